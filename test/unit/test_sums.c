/* SPDX-License-Identifier: Apache-2.0 */
#include "t.h"

#include <stdlib.h>

#include "crc64.h"
#include "dtype.h"
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

/* Page sums and the manifest's sum anew, after a change that should be seen by meaning alone. */
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

static struct built build(const struct spec *specs, uint32_t n)
{
	struct built b = { .head = { .files_n = n } };
	uint64_t tensor = 0, block = 0, name_off = 0;

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
