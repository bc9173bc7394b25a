/* SPDX-License-Identifier: Apache-2.0 */
#include "t.h"
#include "deal_home.h"

#include <stdlib.h>

#include "crc64.h"
#include "dtype.h"
#include "safetensors.h"
#include "sums.h"

struct spec {                           /* a table to be built: files of (family, tensors) */
	const char *family;
	const char *const *names;       /* NULL-ended */
	uint64_t bytes_each;
};

struct built {
	struct shf_sums_head head;
	uint8_t *bytes;                 /* owned */
	uint64_t crc;
};

static uint64_t tail_crc(const struct built *b)
{
	return shf_crc64_more(shf_crc64(b->bytes, SHF_SUMS_HEADER), b->bytes + b->head.pages_off,
			      b->head.bytes - b->head.pages_off);
}

/* Recomputes the checksums of the pages and of the manifest, so that only the content check can see
 * the change. */
static void seal(struct built *b)
{
	shf_put64(b->bytes + 120, shf_crc64(b->bytes, 120));
	for (uint64_t at = 0; at < b->head.pages_off; at += SHF_SUMS_PAGE) {
		uint64_t n = b->head.pages_off - at;

		shf_put64(b->bytes + b->head.pages_off + at / SHF_SUMS_PAGE * 8,
			  shf_crc64(b->bytes + at, n < SHF_SUMS_PAGE ? n : SHF_SUMS_PAGE));
	}
	b->crc = tail_crc(b);
}

struct rank { uint64_t key; uint32_t i; };

static int by_key(const void *a, const void *b)
{
	const struct rank *x = a, *y = b;

	if (x->key != y->key)
		return x->key < y->key ? -1 : 1;
	return x->i < y->i ? -1 : x->i > y->i;
}

static void put_slots(struct built *b)
{
	struct rank *ranks = calloc(b->head.tensors_n + 1, sizeof(*ranks));

	for (uint32_t i = 0; i < b->head.tensors_n; i++) {
		uint8_t *at = b->bytes + b->head.tensors_off + i * SHF_SUMS_TENSOR;

		ranks[i] = (struct rank){ shf_get64(at + 32), i };
	}
	qsort(ranks, b->head.tensors_n, sizeof(*ranks), by_key);
	for (uint32_t i = 0; i < b->head.tensors_n; i++)
		shf_put32(b->bytes + b->head.tensors_off + i * SHF_SUMS_TENSOR + 52, ranks[i].i);
	free(ranks);
}

static void put_file(struct built *b, uint32_t file, const struct spec *s, uint64_t *tensor,
		     uint64_t *block, uint64_t *name_off)
{
	struct shf_sums_file f = { .first_block = *block, .first_tensor = *tensor,
				   .header_bytes = 4096 };
	uint64_t pos = 4096;

	for (size_t i = 0; s->names[i]; i++, (*tensor)++) {
		size_t family_n = strlen(s->family), name_n = strlen(s->names[i]);
		struct shf_sums_tensor t = {
			.off = pos, .bytes = s->bytes_each, .file = file,
			.name_bytes = (uint32_t)(family_n + 1 + name_n), .name_off = *name_off,
			.key = shf_sums_key(s->family, s->names[i]),
			.digest = s->bytes_each ? 77 + i : 0, .dtype = SHEAF_U8, .ndim = 1,
			.items = s->bytes_each,
		};
		uint8_t *name = b->bytes + b->head.names_off + *name_off;

		memcpy(name, s->family, family_n + 1);
		memcpy(name + family_n + 1, s->names[i], name_n + 1);
		shf_sums_put_tensor(b->bytes + b->head.tensors_off + *tensor * SHF_SUMS_TENSOR, &t);
		*name_off += family_n + name_n + 2;
		pos += s->bytes_each;
		f.tensors_n++;
	}
	f.bytes = pos;
	for (uint64_t i = 0; i < (pos + 1048575) / 1048576; i++, (*block)++)
		shf_put64(b->bytes + b->head.blocks_off + *block * 8, 1000 + *block);
	shf_sums_put_file(b->bytes + b->head.files_off + file * SHF_SUMS_FILE, &f);
}

/* more: counts of what belongs to nothing. */
static struct built build_with(const struct spec *specs, uint32_t n, struct shf_sums_head more)
{
	struct built b = { .head = more };
	uint64_t tensor = 0, block = 0, name_off = 0;

	b.head.files_n = n;
	for (uint32_t f = 0; f < n; f++) {
		uint64_t bytes = 4096;

		for (size_t i = 0; specs[f].names[i]; i++) {
			b.head.names_bytes += strlen(specs[f].family) + 2 +
					      strlen(specs[f].names[i]);
			b.head.tensors_n++;
			bytes += specs[f].bytes_each;
		}
		b.head.blocks_n += (bytes + 1048575) / 1048576;
	}
	CHECK(shf_sums_layout(&b.head));
	b.bytes = calloc(1, b.head.bytes);
	shf_sums_put_head(b.bytes, &b.head);
	for (uint32_t f = 0; f < n; f++)
		put_file(&b, f, &specs[f], &tensor, &block, &name_off);
	put_slots(&b);
	seal(&b);
	return b;
}

static struct built build(const struct spec *specs, uint32_t n)
{
	return build_with(specs, n, (struct shf_sums_head){ 0 });
}

static const char *const three[] = { "a.weight", "b", "c\xc3\xa9", NULL };
static const char *const two[] = { "a.weight/moment1_0", "b", NULL };
static const char *const none[] = { NULL };
static const struct spec small[] = {
	{ "model", three, 700000 }, { "model", none, 0 }, { "optimizer", two, 24 },
	{ "ema", three, 0 },
};

TEST(a_table_is_read_back_as_it_was_put)
{
	struct built b = build(small, 4);
	struct shf_sums s;
	struct shf_sums_tensor t;
	struct sheaf_error err;

	CHECK_RC(shf_sums_open(&s, b.bytes, b.head.bytes, b.crc, "s", &err), 0, &err);
	CHECK_INT(s.head.tensors_n, 8);
	CHECK_INT(s.head.blocks_n, 3 + 1 + 1 + 1);
	CHECK_INT(shf_sums_block(&s, 2), 1002);
	CHECK_INT(shf_sums_file(&s, 2).first_block, 4);
	CHECK_INT(shf_sums_file(&s, 2).tensors_n, 2);
	t = shf_sums_tensor(&s, 4);
	CHECK_STR(shf_sums_family(&s, &t), "optimizer");
	CHECK_STR(shf_sums_name(&s, &t), "b");
	CHECK(t.off == 4096 + 24 && t.bytes == 24 && t.file == 2 && t.digest == 78 &&
	      t.dtype == SHEAF_U8 && t.ndim == 1 && t.items == 24);
	CHECK_INT(shf_sums_find(&s, "model", "a.weight"), 0);
	CHECK_INT(shf_sums_find(&s, "optimizer", "b"), 4);
	CHECK_INT(shf_sums_find(&s, "ema", "c\xc3\xa9"), 7);
	CHECK_INT(shf_sums_find(&s, "ema", "d"), -1);
	CHECK_INT(shf_sums_find(&s, "", "a.weight"), -1);
	free(b.bytes);
}

TEST(an_empty_table_is_one)
{
	struct built b = build(NULL, 0);
	struct shf_sums s;
	struct sheaf_error err;

	CHECK_INT(b.head.bytes, 136);
	CHECK_RC(shf_sums_open(&s, b.bytes, b.head.bytes, b.crc, "s", &err), 0, &err);
	CHECK_INT(shf_sums_find(&s, "model", "a"), -1);
	free(b.bytes);
}

TEST(the_bytes_of_header_and_records_are_these)
{
	struct shf_sums_head h = { .files_n = 1, .tensors_n = 2, .blocks_n = 3, .names_bytes = 65 };
	struct shf_sums_tensor t = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 }, u;
	struct shf_sums_file f = { 1, 2, 3, 4, 5 }, g;
	uint8_t head[128], rec[64];

	CHECK(shf_sums_layout(&h));
	CHECK(h.files_off == 128 && h.tensors_off == 192 && h.blocks_off == 320 &&
	      h.names_off == 384 && h.pages_off == 512 && h.bytes == 520);
	shf_sums_put_head(head, &h);
	CHECK(!memcmp(head, "SHEAFSUM\1\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2", 25));
	CHECK_INT(shf_get64(head + 80), 512);
	CHECK(shf_get64(head + 120) == shf_crc64(head, 120));
	shf_sums_put_tensor(rec, &t);
	CHECK(!memcmp(rec, "\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\3\0\0\0\4\0\0\0\5\0\0\0\0\0\0\0"
		      "\6\0\0\0\0\0\0\0\7\0\0\0\0\0\0\0\10\0\11\0\12\0\0\0\13\0\0\0\0\0\0\0", 64));
	u = shf_sums_get_tensor(rec);
	CHECK(u.off == 1 && u.bytes == 2 && u.file == 3 && u.name_bytes == 4 && u.name_off == 5 &&
	      u.key == 6 && u.digest == 7 && u.dtype == 8 && u.ndim == 9 && u.slot == 10 &&
	      u.items == 11);
	shf_sums_put_file(rec, &f);
	CHECK(!memcmp(rec, "\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\4\0\0\0\5\0\0\0", 32));
	g = shf_sums_get_file(rec);
	CHECK(g.bytes == 1 && g.first_block == 2 && g.first_tensor == 3 && g.tensors_n == 4 &&
	      g.header_bytes == 5);
}

TEST(a_layout_that_overflows_is_none)
{
	struct shf_sums_head h = { .files_n = UINT64_MAX / 32 };

	CHECK(!shf_sums_layout(&h));
	h = (struct shf_sums_head){ .tensors_n = UINT64_MAX };
	CHECK(!shf_sums_layout(&h));
	h = (struct shf_sums_head){ .names_bytes = UINT64_MAX - 100 };
	CHECK(!shf_sums_layout(&h));
	h = (struct shf_sums_head){ .names_bytes = UINT64_MAX - 300 };
	CHECK(!shf_sums_layout(&h));
}

TEST(every_flipped_bit_is_refused)
{
	struct built b = build(small, 4);
	struct shf_sums s;
	struct sheaf_error err;

	for (uint64_t bit = 0; bit < b.head.bytes * 8; bit++) {
		b.bytes[bit / 8] ^= (uint8_t)(1U << bit % 8);
		CHECK_INT(shf_sums_open(&s, b.bytes, b.head.bytes, b.crc, "s", &err),
			  SHEAF_ECORRUPT);
		b.bytes[bit / 8] ^= (uint8_t)(1U << bit % 8);
	}
	for (unsigned bit = 0; bit < 64; bit++)
		CHECK_INT(shf_sums_open(&s, b.bytes, b.head.bytes, b.crc ^ UINT64_C(1) << bit, "s",
					&err), SHEAF_ECORRUPT);
	free(b.bytes);
}

TEST(every_truncation_and_extension_is_refused)
{
	struct built b = build(small, 4);
	struct shf_sums s;
	struct sheaf_error err;

	for (uint64_t n = 0; n < b.head.bytes; n++) {
		uint8_t *copy = malloc(n ? n : 1);

		memcpy(copy, b.bytes, n);
		CHECK_INT(shf_sums_open(&s, copy, n, b.crc, "s", &err), SHEAF_ECORRUPT);
		free(copy);
	}
	b.bytes = realloc(b.bytes, b.head.bytes + 1);
	b.bytes[b.head.bytes] = 0;
	CHECK_INT(shf_sums_open(&s, b.bytes, b.head.bytes + 1, b.crc, "s", &err), SHEAF_ECORRUPT);
	free(b.bytes);
}

/* A writer with a bug, or a stranger who knows the checksum: every byte of header, files,
 * tensors and names changed and everything sealed again. What may pass is what is only data:
 * digests, and sums of blocks. */
TEST(a_sealed_lie_is_refused_by_its_meaning)
{
	struct built b = build(small, 4);
	struct shf_sums s;
	struct sheaf_error err;
	uint64_t passed = 0;

	for (uint64_t at = 0; at < b.head.pages_off; at++) {
		uint64_t in = (at - b.head.tensors_off) % SHF_SUMS_TENSOR;
		bool digest = at >= b.head.tensors_off &&
			      at < b.head.tensors_off + b.head.tensors_n * SHF_SUMS_TENSOR &&
			      ((in >= 40 && in < 48) || in == 50);
		bool dtype = in == 48;  /* U8 and its like are one to the arithmetic */
		bool block = at >= b.head.blocks_off &&
			at < b.head.blocks_off + 8 * b.head.blocks_n;
		uint8_t old = b.bytes[at];

		if (at >= 120 && at < 128)
			continue;
		for (int bit = 0; bit < 8; bit++) {
			b.bytes[at] ^= (uint8_t)(1 << bit);
			seal(&b);
			if (shf_sums_open(&s, b.bytes, b.head.bytes, b.crc, "s", &err) == 0) {
				if (!digest && !block && !(dtype && at >= b.head.tensors_off))
					print_error("byte %llu bit %d\n", (unsigned long long)at,
						    bit);
				CHECK(digest || block || (dtype && at >= b.head.tensors_off));
				passed++;
			}
			b.bytes[at] = old;
		}
	}
	CHECK(passed > 0);
	free(b.bytes);
}

/* Another name with the key of the first: the key is linear in the bits of a name, so among more
 * than 64 bits some cancel. Each letter has four to choose. */
enum { LETTERS = 24, CHOICES = 4 * LETTERS };

static void twin_of(char name[LETTERS + 1], char twin[LETTERS + 1])
{
	struct { uint64_t key, bits[2]; } row[CHOICES], swap;
	uint64_t base;
	int rank = 0;

	memset(name, '@', LETTERS);     /* to 'O', by the lowest four bits */
	name[LETTERS] = '\0';
	memcpy(twin, name, LETTERS + 1);
	base = shf_sums_key("model", name);
	for (int i = 0; i < CHOICES; i++) {
		twin[i / 4] ^= (char)(1 << i % 4);
		row[i].key = shf_sums_key("model", twin) ^ base;
		row[i].bits[i / 64] = UINT64_C(1) << i % 64;
		row[i].bits[!(i / 64)] = 0;
		twin[i / 4] = '@';
	}
	for (int bit = 0; bit < 64; bit++) {
		int pivot = rank;

		while (pivot < CHOICES && !(row[pivot].key >> bit & 1))
			pivot++;
		if (pivot == CHOICES)
			continue;
		swap = row[pivot];
		row[pivot] = row[rank];
		row[rank++] = swap;
		for (int i = rank; i < CHOICES; i++)
			if (row[i].key >> bit & 1) {
				row[i].key ^= swap.key;
				row[i].bits[0] ^= swap.bits[0];
				row[i].bits[1] ^= swap.bits[1];
			}
	}
	CHECK(rank < CHOICES && row[rank].key == 0);
	for (int i = 0; i < CHOICES; i++)
		if (row[rank].bits[i / 64] >> i % 64 & 1)
			twin[i / 4] ^= (char)(1 << i % 4);
}

TEST(two_names_of_one_key_are_two_tensors)
{
	char name[LETTERS + 1], twin[LETTERS + 1];
	const char *const names[] = { "a", name, "b", twin, NULL };
	const struct spec spec = { "model", names, 8 };
	struct sheaf_error err;
	struct shf_sums s;
	struct built b;

	twin_of(name, twin);
	CHECK(strcmp(name, twin) != 0);
	CHECK_INT(shf_sums_key("model", name), shf_sums_key("model", twin));
	b = build(&spec, 1);
	CHECK_RC(shf_sums_open(&s, b.bytes, b.head.bytes, b.crc, "s", &err), 0, &err);
	for (int i = 0; i < 4; i++)
		CHECK_INT(shf_sums_find(&s, "model", names[i]), i);
	free(b.bytes);
}

TEST(one_tensor_twice_is_refused)
{
	static const char *const doubled[] = { "a", "b", "a", NULL };
	const struct spec s1 = { "model", doubled, 8 };
	struct built b = build(&s1, 1);
	struct shf_sums s;
	struct sheaf_error err;

	CHECK_INT(shf_sums_open(&s, b.bytes, b.head.bytes, b.crc, "s", &err), SHEAF_ECORRUPT);
	CHECK(strstr(err.msg, "\"a\" is there twice") != NULL);
	free(b.bytes);
}

/* ---- each way to be no table, and its sentence ---- */

enum where { HEAD, FILES, TENSORS, NAMES };
static const struct lie {
	enum where where;
	uint32_t record, at, bytes;
	uint64_t value;
	const char *says;
} lies[] = {
	{ HEAD, 0, 8, 4, 0, "header with version 0, flags 0 or bytes that are not 0" },
	{ HEAD, 0, 8, 4, 2, "version 2 was written by a newer sheaf; use that version" },
	{ HEAD, 0, 12, 4, 0xab, "header with version 1, flags ab or bytes that are not 0" },
	{ HEAD, 0, 88, 1, 1, "header with version 1, flags 0 or bytes that are not 0" },
	{ HEAD, 0, 119, 1, 1, "header with version 1, flags 0 or bytes that are not 0" },
	{ HEAD, 0, 16, 8, 3, "padding at byte 224 is not 0" },
	{ HEAD, 0, 16, 8, 2, "968 bytes do not fit the counts and offsets in its header" },
	{ HEAD, 0, 40, 8, 9, "968 bytes do not fit the counts and offsets in its header" },
	{ HEAD, 0, 64, 8, 9, "968 bytes do not fit the counts and offsets in its header" },
	{ FILES, 0, 8, 8, 1, "file 0 of the table does not follow the one before it" },
	{ FILES, 1, 8, 8, 2, "file 1 of the table does not follow the one before it" },
	{ FILES, 2, 16, 8, 4, "file 2 of the table does not follow the one before it" },
	{ FILES, 3, 24, 4, 4, "file 3 of the table does not follow the one before it" },
	{ FILES, 3, 28, 4, 4097, "file 3 of the table does not follow the one before it" },
	{ FILES, 3, 0, 8, 1048577, "file 3 of the table does not follow the one before it" },
	{ FILES, 3, 0, 8, 4097, "tensors of file 3 end at byte 4096 of 4097" },
	{ FILES, 3, 0, 8, 1048576, "tensors of file 3 end at byte 4096 of 1048576" },
	{ FILES, 2, 0, 8, 4143, "tensor 4 of the table: it does not follow the one before it" },
	{ FILES, 2, 28, 4, 4095,
	  "tensor 3 of the table: it does not follow the one before it" },
	{ FILES, 3, 24, 4, 2, "0 blocks and 1 tensors belong to no file" },
	{ TENSORS, 4, 0, 8, 4096,
	  "tensor 4 of the table: it does not follow the one before it" },
	{ TENSORS, 4, 0, 8, 4121,
	  "tensor 4 of the table: it does not follow the one before it" },
	{ TENSORS, 6, 0, 8, 4097,
	  "tensor 6 of the table: it does not follow the one before it" },
	{ TENSORS, 3, 16, 4, 1, "tensor 3 of the table: it names another file" },
	{ TENSORS, 3, 51, 1, 1, "tensor 3 of the table: a byte that must be 0 is not" },
	{ TENSORS, 3, 48, 2, 0,
	  "tensor 3 of the table: dtype, dimensions, items and bytes do not fit" },
	{ TENSORS, 3, 48, 2, SHEAF_F32,
	  "tensor 3 of the table: dtype, dimensions, items and bytes do not fit" },
	{ TENSORS, 3, 50, 1, 9,
	  "tensor 3 of the table: dtype, dimensions, items and bytes do not fit" },
	{ TENSORS, 3, 8, 8, 25,
	  "tensor 3 of the table: dtype, dimensions, items and bytes do not fit" },
	{ TENSORS, 5, 56, 8, UINT64_C(1) << 63,
	  "tensor 5 of the table: dtype, dimensions, items and bytes do not fit" },
	{ TENSORS, 5, 40, 8, 1, "tensor 5 of the table: an empty tensor with a digest" },
	{ TENSORS, 1, 24, 8, 14,
	  "tensor 1 of the table: its name is not where the table says" },
	{ TENSORS, 1, 20, 4, 6,
	  "tensor 1 of the table: its name is not where the table says" },
	{ TENSORS, 7, 20, 4, 8,
	  "tensor 7 of the table: its name is not where the table says" },
	{ TENSORS, 1, 32, 8, 5, "tensor 1 of the table: its key does not match its name" },
	{ TENSORS, 1, 52, 4, 8, "tensor 1 of the table: its slot is out of range" },
	{ TENSORS, 0, 52, 4, UINT32_MAX, "tensor 0 of the table: its slot is out of range" },
	{ NAMES, 0, 0, 1, 'M', "tensor 0 of the table: its family is invalid" },
	{ NAMES, 0, 5, 1, 'x', "tensor 0 of the table: its family is invalid" },
	{ NAMES, 0, 20, 1, 'x', "tensor 1 of the table: its family is invalid" },
	{ NAMES, 0, 6, 1, 'b', "tensor 0 of the table: its key does not match its name" },
	{ NAMES, 0, 6, 1, 1, "tensor 0 of the table: its name is invalid" },
	{ NAMES, 0, 6, 1, 0, "tensor 0 of the table: its name is invalid" },
	{ NAMES, 0, 14, 1, 'x',
	  "tensor 0 of the table: its name is not where the table says" },
};

static int open_built(const struct built *b, struct sheaf_error *err)
{
	struct shf_sums s;

	return shf_sums_open(&s, b->bytes, b->head.bytes, b->crc, "s", err);
}

TEST(a_lie_in_a_table_is_named)
{
	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		static const uint64_t each[] = { 0, SHF_SUMS_FILE, SHF_SUMS_TENSOR, 0 };
		const struct lie *lie = &lies[i];
		struct built b = build(small, 4);
		uint64_t base[] = { 0, b.head.files_off, b.head.tensors_off, b.head.names_off };
		uint8_t *at = b.bytes + base[lie->where] + lie->record * each[lie->where] + lie->at;
		struct sheaf_error err;

		for (uint32_t k = 0; k < lie->bytes; k++)
			at[k] = (uint8_t)(lie->value >> 8 * k);
		seal(&b);
		CHECK_RC(open_built(&b, &err),
		         strstr(lie->says, "newer") ? SHEAF_EFORMAT : SHEAF_ECORRUPT, &err);
		CHECK(strncmp(err.msg, "s: ", 3) == 0);
		CHECK_STR(err.msg + 3, lie->says);
		free(b.bytes);
	}
}

TEST(what_belongs_to_nothing_is_counted)
{
	static const struct { struct shf_sums_head more; const char *says; } all[] = {
		{ { .blocks_n = 2 }, "s: 2 blocks and 0 tensors belong to no file" },
		{ { .tensors_n = 1, .blocks_n = 3 },
		  "s: 3 blocks and 1 tensors belong to no file" },
		{ { .names_bytes = 5 }, "s: 5 bytes of names belong to no tensor" },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct built b = build_with(small, 4, all[i].more);
		struct sheaf_error err;

		CHECK_RC(open_built(&b, &err), SHEAF_ECORRUPT, &err);
		CHECK_STR(err.msg, all[i].says);
		free(b.bytes);
	}
}

/* Two slots that changed places; of tensors with one key too. */
TEST(slots_are_in_the_order_of_keys_and_then_of_tensors)
{
	char name[LETTERS + 1], twin[LETTERS + 1];
	const char *const names[] = { name, twin, NULL };
	const struct spec alike = { "model", names, 8 };

	twin_of(name, twin);
	for (int equal = 0; equal < 2; equal++) {
		struct built b = build(equal ? &alike : small, equal ? 1 : 4);
		uint8_t *slot = b.bytes + b.head.tensors_off + 52;
		struct sheaf_error err;

		for (uint64_t i = 1; i < b.head.tensors_n; i++) {
			uint8_t *it = slot + i * SHF_SUMS_TENSOR, *before = it - SHF_SUMS_TENSOR;
			uint32_t a = shf_get32(it), c = shf_get32(before);
			char want[80];

			snprintf(want, sizeof(want), "s: tensor %u of the table: its slot is out "
			         "of order", (unsigned)i);
			shf_put32(it, c);
			shf_put32(before, a);
			seal(&b);
			CHECK_RC(open_built(&b, &err), SHEAF_ECORRUPT, &err);
			CHECK_STR(err.msg, want);
			shf_put32(before, c);           /* one slot twice */
			seal(&b);
			CHECK_RC(open_built(&b, &err), SHEAF_ECORRUPT, &err);
			CHECK_STR(err.msg, want);
			shf_put32(it, a);
		}
		seal(&b);
		CHECK_RC(open_built(&b, &err), 0, &err);
		free(b.bytes);
	}
}

TEST(padding_that_is_not_0_is_found_in_each_place)
{
	/* Behind files, blocks and names of this one: nothing lies behind its tensors. */
	struct built b = build(small, 3);
	const uint64_t end[] = { b.head.files_off + 3 * SHF_SUMS_FILE,
		b.head.blocks_off + 8 * b.head.blocks_n, b.head.names_off + b.head.names_bytes };
	const uint64_t next[] = { b.head.tensors_off, b.head.names_off, b.head.pages_off };
	struct sheaf_error err;

	for (int i = 0; i < 3; i++) {
		char want[60];

		CHECK(end[i] < next[i]);
		snprintf(want, sizeof(want), "s: padding at byte %llu is not 0",
		         (unsigned long long)end[i]);
		for (uint64_t at = end[i]; at < next[i]; at++) {
			b.bytes[at] = 1;
			seal(&b);
			CHECK_RC(open_built(&b, &err), SHEAF_ECORRUPT, &err);
			CHECK_STR(err.msg, want);
			b.bytes[at] = 0;
		}
	}
	free(b.bytes);
}

/* 500 tensors whose table ends where a page of it ends, and then one byte of name more. */
TEST(wrong_sums_are_told_with_both_numbers)
{
	static char names[500][64];
	static const char *list[501];
	struct spec spec = { "model", list, 16 };
	struct sheaf_error err;
	char want[160];

	for (uint64_t more = 0; more < 2; more++) {
		struct built b;
		uint64_t crc;

		for (int i = 0; i < 500; i++) {
			snprintf(names[i], sizeof(names[i]), "%0*d", i < 280 + (int)more ? 60 : 59,
			         i);
			list[i] = names[i];
		}
		b = build(&spec, 1);
		CHECK_INT(b.head.pages_off, SHF_SUMS_PAGE + 64 * more);
		CHECK_RC(open_built(&b, &err), 0, &err);
		b.bytes[b.head.pages_off - 1] ^= 1;
		snprintf(want, sizeof(want), "s: checksum of the 64 KiB at byte %llu is %016llx, "
		         "want %016llx", (unsigned long long)(more * SHF_SUMS_PAGE),
		         (unsigned long long)shf_crc64(b.bytes + more * SHF_SUMS_PAGE,
		                                       more ? 64 : SHF_SUMS_PAGE),
		         (unsigned long long)shf_get64(b.bytes + b.head.pages_off + 8 * more));
		CHECK_RC(open_built(&b, &err), SHEAF_ECORRUPT, &err);
		CHECK_STR(err.msg, want);
		crc = b.crc++;
		snprintf(want, sizeof(want), "s: checksum of header and page table %016llx, the "
		         "manifest says %016llx", (unsigned long long)crc,
		         (unsigned long long)b.crc);
		CHECK_RC(open_built(&b, &err), SHEAF_ECORRUPT, &err);
		CHECK_STR(err.msg, want);
		crc = shf_crc64(b.bytes, 120);
		shf_put64(b.bytes + 120, 7);
		snprintf(want, sizeof(want), "s: header checksum %016llx, want %016x",
		         (unsigned long long)crc, 7);
		CHECK_RC(open_built(&b, &err), SHEAF_ECORRUPT, &err);
		CHECK_STR(err.msg, want);
		b.head.bytes = SHF_SUMS_HEADER - 1;
		CHECK_RC(open_built(&b, &err), SHEAF_ECORRUPT, &err);
		CHECK_STR(err.msg, "s: 127 bytes are too short for a file of checksums");
		free(b.bytes);
	}
}

/* Before anything of a table is allocated its counts are held against the files. */
TEST(a_table_is_likely_up_to_what_its_files_can_hold)
{
	const uint64_t most = 8 + SHF_ST_HEADER_MAX;
	struct shf_mf_file files[] = { { "a", 4096, 0 }, { "b", 0, 0 }, { "c", 1048576, 0 },
		{ "d", 1048577, 0 }, { "e", most, 0 }, { "f", most + 1, 0 } };
	static const uint64_t blocks[] = { 1, 0, 1, 2, 96, 96 };
	struct shf_manifest m = { .files = files };
	uint64_t text = 0, all = 0;

	for (size_t n = 0; n <= 6; n++) {
		struct shf_sums_head h = { .files_n = n, .blocks_n = all, .tensors_n = text / 40 };

		m.files_n = n;
		h.names_bytes = text + h.tensors_n * 34;
		CHECK(shf_sums_is_likely(&h, &m));
		h.names_bytes++;
		CHECK(!shf_sums_is_likely(&h, &m));
		h.tensors_n++;
		CHECK(!shf_sums_is_likely(&h, &m));
		h.tensors_n = h.names_bytes = 0;
		CHECK(shf_sums_is_likely(&h, &m));
		h.blocks_n++;
		CHECK(!shf_sums_is_likely(&h, &m));
		h.blocks_n--;
		h.files_n++;
		CHECK(!shf_sums_is_likely(&h, &m));
		if (n == 6)
			break;
		text += files[n].bytes < most ? files[n].bytes : most;
		all += blocks[n];
	}
}

/* What no shorter table has: eight dimensions, an empty tensor at the first byte of another. */
TEST(tensors_at_their_limits_are_taken)
{
	static const char *const names[] = { "a", "b", "c", NULL };
	const struct spec spec = { "model", names, 24 };
	struct built b = build(&spec, 1);
	uint8_t *t = b.bytes + b.head.tensors_off, *last = t + 2 * SHF_SUMS_TENSOR;
	struct sheaf_error err;

	t[50] = 8;
	shf_put64(last, 4096 + 24);             /* where "b" begins */
	shf_put64(last + 8, 0);
	shf_put64(last + 40, 0);
	shf_put64(last + 56, 0);
	shf_put64(b.bytes + b.head.files_off, 4096 + 48);
	seal(&b);
	CHECK_RC(open_built(&b, &err), 0, &err);
	shf_put64(last, 4096 + 48);             /* and where it ends */
	seal(&b);
	CHECK_RC(open_built(&b, &err), 0, &err);
	shf_put64(last, 4096);                  /* where "a" begins, which is not the one before */
	seal(&b);
	CHECK_RC(open_built(&b, &err), SHEAF_ECORRUPT, &err);
	shf_put64(last, 4096 + 48);
	shf_put64(last + 8, INT64_MAX);
	shf_put64(last + 56, INT64_MAX);        /* a size that is one, and no room for it */
	seal(&b);
	CHECK_RC(open_built(&b, &err), SHEAF_ECORRUPT, &err);
	CHECK_STR(err.msg, "s: tensor 2 of the table: it does not follow the one before it");
	free(b.bytes);
}

TEST(counts_are_of_32_bits)
{
	for (int which = 0; which < 2; which++)
		for (uint64_t n = UINT32_MAX; n <= UINT64_C(1) << 32; n++) {
			struct shf_sums_head head = { 0 }, got;
			uint8_t bytes[SHF_SUMS_HEADER];
			struct sheaf_error err;

			*(which ? &head.tensors_n : &head.files_n) = n;
			CHECK(shf_sums_layout(&head));
			shf_sums_put_head(bytes, &head);
			CHECK_RC(shf_sums_get_head(&got, bytes, head.bytes, "s", &err),
			         n > UINT32_MAX ? SHEAF_ECORRUPT : 0, &err);
			CHECK(n > UINT32_MAX || memcmp(&got, &head, sizeof(got)) == 0);
		}
}

/* By its first bytes alone: every sum of it is right. */
TEST(what_does_not_begin_as_a_table_is_none)
{
	struct shf_sums_head head = { .files_n = 1 }, got;
	uint8_t bytes[SHF_SUMS_HEADER] = { 0 };
	struct sheaf_error err;

	CHECK(shf_sums_layout(&head));
	shf_sums_put_head(bytes, &head);
	CHECK_RC(shf_sums_get_head(&got, bytes, head.bytes, "sums", &err), 0, &err);
	bytes[0] ^= 1;
	shf_put64(bytes + 120, shf_crc64(bytes, 120));
	CHECK_RC(shf_sums_get_head(&got, bytes, head.bytes, "sums", &err), SHEAF_ECORRUPT, &err);
	CHECK(strstr(err.msg, "does not begin with"));
}

TEST(a_newer_version_is_not_called_corrupt)
{
	struct built b = build(small, 4);
	struct shf_sums s;
	struct sheaf_error err;

	shf_put32(b.bytes + 8, 2);
	seal(&b);
	CHECK_INT(shf_sums_open(&s, b.bytes, b.head.bytes, b.crc, "s", &err), SHEAF_EFORMAT);
	free(b.bytes);
}

TEST(a_table_of_several_pages_is_proved_and_searched)
{
	static char names[3000][24];
	static const char *list[3001];
	struct spec s1 = { "model", list, 16 };
	struct built b;
	struct shf_sums s;
	struct sheaf_error err;

	for (size_t i = 0; i < 3000; i++) {
		snprintf(names[i], sizeof(names[i]), "layers.%zu.w", i);
		list[i] = names[i];
	}
	b = build(&s1, 1);
	CHECK(b.head.pages_off > 3 * SHF_SUMS_PAGE);
	CHECK_RC(shf_sums_open(&s, b.bytes, b.head.bytes, b.crc, "s", &err), 0, &err);
	for (size_t i = 0; i < 3000; i++)
		CHECK_INT(shf_sums_find(&s, "model", names[i]), i);
	for (uint64_t at = 0; at < b.head.bytes; at += 4093) {
		b.bytes[at] ^= 16;
		CHECK_INT(shf_sums_open(&s, b.bytes, b.head.bytes, b.crc, "s", &err),
			  SHEAF_ECORRUPT);
		b.bytes[at] ^= 16;
	}
	free(b.bytes);
}
