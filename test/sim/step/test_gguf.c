/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF files: loaded in any layout, and refused with a sentence where they are damaged or
 * lie. */
#include <stdio.h>
#include <stdlib.h>
#include "foreign.h"
#include "foreign_read.h"
#include "t.h"
#include "foreign_plays.h"
#include "packedfile.h"
#include "foreign_starved.h"

static const struct torch_tensor two[] = {
	{ .name = "a.w", .dtype = SHEAF_F32, .ndim = 2, .shape = { 37, 29 } },
	{ .name = "norm", .dtype = SHEAF_BF16, .ndim = 1, .shape = { 41 } },
	{ .name = "b", .dtype = SHEAF_F64, .ndim = 3, .shape = { 5, 3, 7 } },
};
#define TWO ((int)(sizeof(two) / sizeof(two[0])))

enum gguf_flaw {
	GGUF_SOUND, GGUF_VERSION, GGUF_BIG_ENDIAN, GGUF_QUANTISED, GGUF_ROWS, GGUF_TYPE,
	GGUF_VALUE_TYPE, GGUF_NESTED, GGUF_ARRAY, GGUF_LONG_ARRAY, GGUF_TEXT, GGUF_DIMS, GGUF_SIZE,
	GGUF_HUGE, GGUF_PLACE, GGUF_ALIGNED, GGUF_ALIGNMENT, GGUF_TWICE, GGUF_TENSORS
};

static void put_string(struct torch_bytes *b, const char *s)
{
	packed_number(b, strlen(s), 8);
	torch_add(b, s, strlen(s));
}

static uint32_t number_of(int dtype)
{
	return dtype == SHEAF_F64 ? 28 : dtype == SHEAF_BF16 ? 30 : 0;
}

/* The metadata: a number of each kind, a text, and arrays. Returns how many there are. */
static int put_values(struct torch_bytes *b, enum gguf_flaw flaw)
{
	int n = 0;

	for (int i = 0; i < 13; i++) {
		static const int bytes[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
		char key[20];

		if (!bytes[i])
			continue;
		snprintf(key, sizeof(key), "number.%d", i);
		put_string(b, key);
		packed_number(b, (unsigned)i, 4);
		packed_number(b, i == 6 ? 0x3fc00000 : i == 7 ? 1 : UINT64_MAX, bytes[i]);
		n++;
	}
	put_string(b, "general.name");
	packed_number(b, 8, 4);
	put_string(b, "small");
	if (flaw == GGUF_TEXT)
		b->p[b->n - 6] = 0x7f;  /* the highest byte of its length */
	put_string(b, "texts");
	packed_number(b, 9, 4);
	packed_number(b, flaw == GGUF_NESTED ? 9 : flaw == GGUF_ARRAY ? 99 : 8, 4);
	packed_number(b, flaw == GGUF_LONG_ARRAY ? UINT64_C(1) << 60 : 2, 8);
	put_string(b, "a");
	put_string(b, "");
	put_string(b, "numbers");
	packed_number(b, flaw == GGUF_VALUE_TYPE ? 13 : 9, 4);
	packed_number(b, 10, 4);
	packed_number(b, 3, 8);
	for (int i = 0; i < 3; i++)
		packed_number(b, 7, 8);
	put_string(b, "general.alignment");
	packed_number(b, 4, 4);
	packed_number(b, flaw == GGUF_ALIGNMENT ? 48 : 64, 4);
	return n + 4;
}

static struct torch_bytes gguf_file(enum gguf_flaw flaw)
{
	struct torch_bytes out = { NULL, 0, 0 }, head = { NULL, 0, 0 }, data = { NULL, 0, 0 };
	int n;

	n = put_values(&head, flaw);
	for (int i = 0; i < TWO; i++) {
		struct torch_bytes items = torch_storage(&two[i]);
		bool odd = i == 0;

		put_string(&head, flaw == GGUF_TWICE ? "a.w" : two[i].name);
		packed_number(&head, flaw == GGUF_DIMS && odd ? 9 : (unsigned)two[i].ndim, 4);
		for (int d = two[i].ndim - 1; d >= 0; d--)
			packed_number(&head, flaw == GGUF_SIZE && odd ? UINT64_C(1) << 63
			              : flaw == GGUF_HUGE && odd ? UINT64_C(1) << 40
			              : flaw == GGUF_QUANTISED && odd && d == 1 ? 64
			              : (uint64_t)two[i].shape[d], 8);
		packed_number(&head, flaw == GGUF_TYPE ? 4 : odd && (flaw == GGUF_QUANTISED ||
		              flaw == GGUF_ROWS) ? 2 : number_of(two[i].dtype), 4);
		packed_number(&head, data.n + (flaw == GGUF_PLACE ? 1 << 20 : 0) +
		              (flaw == GGUF_ALIGNED), 8);
		torch_add(&data, items.p, items.n);
		while (data.n % 64)
			packed_number(&data, 0, 1);
		free(items.p);
	}
	torch_add(&out, "GGUF", 4);
	packed_number(&out, flaw == GGUF_VERSION ? 1 : flaw == GGUF_BIG_ENDIAN ? 3u << 24 : 3, 4);
	packed_number(&out, flaw == GGUF_TENSORS ? UINT64_C(1) << 62 : TWO, 8);
	packed_number(&out, (unsigned)n, 8);
	torch_add(&out, head.p, head.n);
	while (out.n % 64)
		packed_number(&out, 0, 1);
	torch_add(&out, data.p, data.n);
	free(head.p);
	free(data.p);
	return out;
}

static void held(struct hand *h)
{
	struct sheaf_slice *s = hand_add(h, "model", "a.w", SHEAF_F32, 2, 37, 29);

	hand_cut(s, h->play->variant % 2, h->rank, h->ranks);
	s = hand_add(h, "model", "norm", SHEAF_BF16, 1, 41);
	hand_cut(s, 0, h->rank, h->ranks);
	hand_add(h, "model", "b", SHEAF_F64, 3, 5, 3, 7);
}

TEST(a_file_loads_in_any_layout)
{
	for (int variant = 0; variant < 2; variant++)
		foreign_loads(disk_with("f.gguf", gguf_file(GGUF_SOUND)), "f.gguf", 3, held,
		              variant, TWO);
}

TEST(metadata_are_notes)
{
	static const struct { const char *key, *text; } notes[] = {
		{ "number.0", "255" }, { "number.1", "-1" }, { "number.3", "-1" },
		{ "number.4", "4294967295" }, { "number.6", "1.5" }, { "number.7", "true" },
		{ "number.10", "18446744073709551615" }, { "number.11", "-1" },
		{ "general.name", "small" }, { "texts", "an array of 2 texts" },
		{ "numbers", "an array of 3 numbers" },
	};
	struct simdisk *disk = disk_with("f.gguf", gguf_file(GGUF_SOUND));
	struct sheaf_error err;
	char note[400];

	for (size_t i = 0; i < sizeof(notes) / sizeof(notes[0]); i++) {
		CHECK_RC(foreign_opens(disk, "f.gguf", notes[i].key, note, &err), 0, &err);
		if (strcmp(note, notes[i].text))
			fail_msg("%s: %s, want %s", notes[i].key, note, notes[i].text);
	}
	simdisk_free(disk);
}

TEST(a_quantised_tensor_is_listed_and_refused_by_name_when_it_is_read)
{
	struct simdisk *disk = disk_with("f.gguf", gguf_file(GGUF_QUANTISED));
	struct shf_foreign *f = NULL;
	const struct shf_foreign_tensor *t;
	struct sheaf_error err;
	uint8_t some[16];
	size_t n, seen = 0;

	CHECK_RC(shf_foreign_open(&f, simdisk_process(disk, 77, 0), "f.gguf", &err), 0, &err);
	t = shf_foreign_tensors(f, &n);
	for (size_t i = 0; i < n; i++) {
		int rc = shf_foreign_gather(f, &t[i], some, sizeof(some), 0, &err);

		if (strcmp(t[i].name, "a.w")) {
			CHECK_RC(rc, 0, &err);
			continue;
		}
		CHECK_INT(rc, SHEAF_EFORMAT);
		CHECK(strstr(err.msg, "tensor a.w is quantised (Q4_0)") != NULL);
		CHECK_INT(t[i].dims[0], 37);
		CHECK_INT(t[i].dims[1], 36);
		seen++;
	}
	CHECK_INT(seen, 1);
	shf_foreign_free(f);
	simdisk_free(disk);
}

TEST(files_that_lie_are_refused_by_what_is_wrong)
{
	static const struct { enum gguf_flaw flaw; const char *why; } flaws[] = {
		{ GGUF_VERSION, "of a version that is not read" },
		{ GGUF_BIG_ENDIAN, "a big-endian file, which sheaf does not read" },
		{ GGUF_ROWS, "rows that are not whole blocks" },
		{ GGUF_TYPE, "a tensor is of type 4, which is not known" },
		{ GGUF_VALUE_TYPE, "a value of the metadata has an unknown type" },
		{ GGUF_NESTED, "an array has items of unknown type" },
		{ GGUF_ARRAY, "an array has items of unknown type" },
		{ GGUF_LONG_ARRAY, "an array is longer than the file" },
		{ GGUF_TEXT, "a text is longer than the file" },
		{ GGUF_DIMS, "a tensor has more than 8 dimensions" },
		{ GGUF_SIZE, "a dimension beyond 63 bits" },
		{ GGUF_HUGE, "a size beyond 63 bits" },
		{ GGUF_PLACE, "is beyond the end of the file" },
		{ GGUF_ALIGNED, "the data of a tensor are not aligned" },
		{ GGUF_ALIGNMENT, "its alignment is not a power of two" },
		{ GGUF_TWICE, "two tensors have the name a.w" },
		{ GGUF_TENSORS, "f.gguf: GGUF, byte " },
	};

	for (size_t i = 0; i < sizeof(flaws) / sizeof(flaws[0]); i++)
		foreign_refused(disk_with("f.gguf", gguf_file(flaws[i].flaw)), "f.gguf",
		                flaws[i].why);
}

TEST(a_file_that_is_cut_anywhere_is_refused)
{
	struct torch_bytes file = gguf_file(GGUF_SOUND);

	/* The last bytes are padding. */
	for (size_t n = 8; n < file.n - 56; n += (size_t)(n < 1000 ? T_FEWER : 7 * T_FEWER)) {
		struct torch_bytes part = { malloc(n), n, n };

		memcpy(part.p, file.p, n);
		foreign_refused(disk_with("f.gguf", part), "f.gguf", "");
	}
	free(file.p);
}

TEST(each_allocation_may_fail)
{
	struct simdisk *disk = disk_with("f.gguf", gguf_file(GGUF_SOUND));

	foreign_survives(disk, "f.gguf", 1, 0);
	simdisk_free(disk);
}
