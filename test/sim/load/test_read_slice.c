/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf_read_slice by one process: any box, any memory, any type that an item can become, compared
 * with values from a formula; and which slices a damaged block affects. */
#include "hands.h"
#include <stdio.h>
#include <stdlib.h>
#include "crc64.h"
#include "err.h"
#include "list.h"
#include "simover.h"
#include "rng.h"
#include "t.h"
#include "deal_home.h"
#include "read_slice.h"

static const struct {
	const char *family, *name;
	int dtype, ndim;
	int64_t shape[4];
} tensors[] = {
	{ "model", "big", SHEAF_F32, 2, { 1500, 701 } },        /* over five blocks */
	{ "model", "cube", SHEAF_BF16, 3, { 17, 23, 29 } },
	{ "model", "four", SHEAF_F16, 4, { 3, 5, 7, 11 } },
	{ "model", "line", SHEAF_F64, 1, { 4001 } },
	{ "model", "one", SHEAF_F32, 0, { 0 } },
	{ "model", "quarter", SHEAF_F8_E4M3, 2, { 41, 67 } },
	{ "optimizer", "big/moment1_0", SHEAF_F32, 2, { 61, 67 } },
};
enum { TENSORS = sizeof(tensors) / sizeof(tensors[0]) };

static struct sheaf_slice *add(struct hand *h, int k)
{
	struct sheaf_slice *s =
	    hand_add(h, tensors[k].family, tensors[k].name, tensors[k].dtype, 0);

	s->ndim = tensors[k].ndim;
	memcpy(s->shape, tensors[k].shape, sizeof(tensors[k].shape));
	memcpy(s->count, tensors[k].shape, sizeof(tensors[k].shape));
	return s;
}

static void held(struct hand *h)
{
	for (int k = 0; k < TENSORS; k++) {
		struct sheaf_slice *s = add(h, k);

		if (s->ndim)
			hand_cut(s, 0, h->rank, h->ranks);
	}
}

static uint64_t draw(uint64_t *x, uint64_t n)
{
	return rng_next(x) % n;
}

/* A random box, in random memory: dense, transposed with gaps, or a flat window; of the stored
 * type or another. */
static void random_slice(struct hand *h, uint64_t *x)
{
	static const int floats[] = { SHEAF_F16, SHEAF_BF16, SHEAF_F32, SHEAF_F64, SHEAF_F8_E5M2 };
	struct sheaf_slice *s = add(h, (int)draw(x, TENSORS));
	int64_t items = 1, by = 1 + (int64_t)draw(x, 3);

	for (int d = 0; d < s->ndim; d++) {
		s->start[d] = (int64_t)draw(x, (uint64_t)s->shape[d] + 1);
		s->count[d] = (int64_t)draw(x, (uint64_t)(s->shape[d] - s->start[d]) + 1);
		if (draw(x, 3) == 0) {
			s->start[d] = 0;
			s->count[d] = s->shape[d];
		}
		items *= s->count[d];
	}
	if (draw(x, 3) == 0)
		s->data_dtype = floats[draw(x, 5)];
	if (draw(x, 4) == 0)
		s->dtype = s->data_dtype ? s->data_dtype : floats[draw(x, 5)], s->data_dtype = 0;
	s->origin = (int64_t)draw(x, 5);
	if (draw(x, 2) && s->ndim > 0)
		for (int d = 0; d < s->ndim; d++) { /* column-major with gaps */
			s->stride[d] = by;
			by *= (s->count[d] ? s->count[d] : 1) + (int64_t)draw(x, 2);
		}
	s->flags = SHEAF_SLICE_COPY;
	if (draw(x, 3) == 0) {
		s->flags |= SHEAF_SLICE_FLAT;
		s->flat_start = (int64_t)draw(x, (uint64_t)items + 9);
		s->flat_count = (int64_t)draw(x, (uint64_t)items + 9);
	}
}

enum { READS = 300 };

static void random_hold(struct hand *h)
{
	uint64_t x = h->play->seed * 97 + (uint64_t)h->rank;

	for (int k = 0; k < HAND_SLICES; k++)
		random_slice(h, &x);
}

static int read_act(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	char why[300] = "";
	int rc = shf_step_open(&step, h->run, 7, &h->err);

	for (int k = 0; k < h->n && rc == 0; k++)
		rc = shf_step_read(step, &h->s[k], &h->err);
	if (rc == 0 && hand_wrong(h, why, sizeof(why)))
		rc = shf_fail(&h->err, SHEAF_EBUG, "%.280s", why);
	shf_step_put(step);
	return rc;
}

static struct simdisk *saved(void)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 3, held);

	SAVED(p);
	return disk;
}

TEST(any_slice_reads_what_was_saved)
{
	struct simdisk *disk = saved();

	for (int round = 0; round < READS / HAND_SLICES + 1; round++) {
		struct play p = hands_play(disk, 1 + round, random_hold);

		p.seed = (uint64_t)round + 11;
		CHECK_RC(hands_run(&p, read_act, false), 0, &p.err);
	}
	simdisk_free(disk);
}

TEST(any_slices_load_together)
{
	struct simdisk *disk = saved();

	for (int round = 0; round < 6; round++) {
		static const int32_t apart[4] = { 1, 2, 2, 3 };
		struct play p = hands_play(disk, 1 + round % 4, random_hold);

		p.seed = (uint64_t)round + 101;
		p.nodes = round % 2 ? apart : NULL;
		p.flags = SHEAF_LOAD_CONVERT;
		p.opts.staging_bytes_max = round > 3 ? 2 << 16 : 0;
		LOADED(p);
	}
	simdisk_free(disk);
}

/* ---- damage ---- */

static const char big_file[] = "run/checkpoint-7/model-00001-of-00001.safetensors";

static void rows(struct hand *h)
{
	struct sheaf_slice *s = add(h, 0);

	s->start[0] = h->play->variant;
	s->count[0] = 20;
	hand_want(h, h->play->opts.flags & SHEAF_RUN_UNVERIFIED ? HAND_ANY : HAND_VALUES);
}

static int path_act(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	char why[300] = "";
	int rc = shf_step_open_path(&step, "run/checkpoint-7", h->group, &h->play->opts, h->sys,
	                            &h->err);

	if (rc == 0)
		rc = shf_step_read(step, &h->s[0], &h->err);
	if (rc == 0 && hand_wrong(h, why, sizeof(why)))
		rc = shf_fail(&h->err, SHEAF_EBUG, "%.280s", why);
	shf_step_put(step);
	return rc;
}

TEST(damage_is_found_by_the_slices_whose_blocks_it_touches_and_by_no_other)
{
	struct simdisk *disk = saved();
	const uint64_t at = (UINT64_C(2) << 20) + 777;  /* in block 2 */
	int bad = 0, good = 0;

	CHECK_INT(simdisk_flip(disk, big_file, 8 * at), 0);
	for (int row = 0; row + 20 <= 1500; row += 40) {
		struct play p = hands_play(disk, 1, rows);
		int rc;

		p.path = "run/checkpoint-7";
		p.opts.flags = 0;
		p.variant = row;
		rc = hands_run(&p, path_act, false);
		CHECK(rc == 0 || rc == SHEAF_ECORRUPT);
		bad += rc != 0;
		good += rc == 0;
		CHECK(rc == 0 || strstr(p.err.msg, "block 2 at byte 2097152") != NULL);
		CHECK(rc == 0 || strstr(p.err.msg, "model/big") != NULL);
		p.opts.flags = SHEAF_RUN_UNVERIFIED;
		CHECK_RC(hands_run(&p, path_act, false), 0, &p.err);
	}
	/* A block has 374 rows of 2804 bytes: it touches 9 or 10 of these 38 pieces. */
	CHECK(bad >= 9 && bad <= 10);
	CHECK_INT(good, 38 - bad);
	simdisk_free(disk);
}

TEST(a_load_that_checks_nothing_does_not_say_that_it_checked)
{
	struct simdisk *disk = saved();
	struct play p = hands_play(disk, 2, rows);

	p.path = "run/checkpoint-7";
	p.opts.flags = 0;
	LOADED(p);
	CHECK(strstr(p.told, "V model/big: only a part was read: its blocks were checked") != NULL);
	p.opts.flags = SHEAF_RUN_UNVERIFIED;
	LOADED(p);
	CHECK(strstr(p.told, "V model/big: read without any check") != NULL);
	simdisk_free(disk);
}

static void absent(struct hand *h)
{
	hand_add(h, "model", h->play->variant ? "big" : "none", SHEAF_F32, 2, 3, 3);
	hand_want(h, HAND_KEPT);
}

TEST(a_read_of_what_is_not_there_is_a_layout_error)
{
	struct simdisk *disk = saved();
	struct play p = hands_play(disk, 1, absent);

	p.path = "run/checkpoint-7";
	p.opts.flags = 0;
	CHECK_RC(hands_run(&p, path_act, false), SHEAF_ELAYOUT, &p.err);
	CHECK(strstr(p.err.msg, "no tensor model/none") != NULL);
	p.variant = 1;
	CHECK_RC(hands_run(&p, path_act, false), SHEAF_ELAYOUT, &p.err);
	CHECK(strstr(p.err.msg, "shape [1500, 701] is stored") != NULL);
	simdisk_free(disk);
}

/* ---- one tensor of a step that is not read whole ---- */

static void one_tensor(struct hand *h)
{
	(void)add(h, h->play->variant);
}

TEST(a_read_needs_the_header_of_its_own_file_alone)
{
	struct simdisk *disk = saved();
	struct play p = hands_play(disk, 1, one_tensor);

	CHECK_INT(simdisk_flip(disk, "run/checkpoint-7/optimizer/"
	                       "optimizer-00001-of-00001.safetensors", 8 * 40), 0);
	p.path = "run/checkpoint-7";
	p.opts.flags = 0;
	CHECK_RC(hands_run(&p, path_act, false), 0, &p.err);
	p.variant = TENSORS - 1;
	CHECK_RC(hands_run(&p, path_act, false), SHEAF_ECORRUPT, &p.err);
	CHECK(strstr(p.err.msg, "optimizer-00001-of-00001.safetensors: block 0") != NULL);
	simdisk_free(disk);
}

/* The table of so few tensors is one page: a read touches all of it. */
TEST(every_flip_in_the_table_of_sums_is_found_by_a_read)
{
	struct simdisk *disk = saved();
	size_t n = 0;

	free(simdisk_get(disk, "run/checkpoint-7/sheaf.sums", &n));
	CHECK(n > 500);
	for (uint64_t bit = 3; bit < 8 * n; bit += 41) {
		struct play p = hands_play(disk, 1, one_tensor);

		p.path = "run/checkpoint-7";
		p.opts.flags = 0;
		p.variant = (int)(bit % TENSORS);
		CHECK_INT(simdisk_flip(disk, "run/checkpoint-7/sheaf.sums", bit), 0);
		CHECK_RC(hands_run(&p, path_act, false), SHEAF_ECORRUPT, &p.err);
		CHECK_INT(simdisk_flip(disk, "run/checkpoint-7/sheaf.sums", bit), 0);
	}
	simdisk_free(disk);
}

/* The table as n bytes, proved again by itself and by the manifest: only what it says is wrong. */
static void seal(struct simdisk *disk, const struct shf_manifest *m, uint8_t *table, size_t n)
{
	struct shf_manifest now = *m;
	struct shf_buf text = SHF_BUF_INIT;
	uint64_t pages_off = shf_get64(table + 80);
	struct sheaf_error err;

	if (pages_off > n)
		pages_off = n;
	shf_put64(table + 120, shf_crc64(table, 120));
	for (uint64_t at = 0, k = 0; at < pages_off; at += SHF_SUMS_PAGE, k++)
		if (pages_off + 8 * k + 8 <= n)
			shf_put64(table + pages_off + 8 * k,
			          shf_crc64(table + at, pages_off - at < SHF_SUMS_PAGE
			                    ? pages_off - at : SHF_SUMS_PAGE));
	now.sums.crc = shf_crc64_more(shf_crc64(table, SHF_SUMS_HEADER), table + pages_off,
	                              n - pages_off);
	CHECK_RC(shf_manifest_encode(&text, &now, &err), 0, &err);
	CHECK_INT(simdisk_put(disk, "run/checkpoint-7/sheaf.sums", table, n), 0);
	CHECK_INT(simdisk_put(disk, "run/checkpoint-7/sheaf.json", text.data, text.len), 0);
	shf_buf_release(&text);
}

TEST(a_table_whose_sums_are_right_and_whose_numbers_are_wrong_gives_nothing_wrong)
{
	static const uint32_t evil[] = { 0, 1, 6, 7, 8, 0x7fffffff, 0x80000000, UINT32_MAX };
	struct simdisk *disk = saved();
	struct shf_arena arena = { 0 };
	struct shf_manifest m;
	struct sheaf_error err;
	size_t n = 0, text_n = 0;
	uint8_t *table = simdisk_get(disk, "run/checkpoint-7/sheaf.sums", &n);
	uint8_t *text = simdisk_get(disk, "run/checkpoint-7/sheaf.json", &text_n);
	int refused = 0;

	CHECK_RC(shf_manifest_decode(&m, &arena, text, text_n, "", &err), 0, &err);
	for (size_t at = 16; at < n; at += 4) {
		uint32_t was = shf_get32(table + at), now = evil[(at / 4 + at / 64) % 8];
		struct play p = hands_play(disk, 1, one_tensor);
		int rc;

		p.path = "run/checkpoint-7";
		p.opts.flags = 0;
		p.variant = (int)(at / 4 % TENSORS);
		shf_put32(table + at, now);
		seal(disk, &m, table, n);
		shf_put32(table + at, was);
		rc = hands_run(&p, path_act, false);
		CHECK(rc == 0 || rc == SHEAF_ECORRUPT || rc == SHEAF_EFORMAT);
		refused += rc != 0;
	}
	CHECK(refused >= 30);
	seal(disk, &m, table, n);
	free(table);
	free(text);
	shf_arena_release(&arena);
	simdisk_free(disk);
}

/* Blocks are as the table says, and a tensor is not: what it was, nobody knows. */
TEST(a_digest_that_was_written_wrong_fails_the_load_of_its_tensor)
{
	struct simdisk *disk = saved();
	struct shf_arena arena = { 0 };
	struct shf_manifest m;
	struct sheaf_error err;
	size_t n = 0, text_n = 0;
	uint8_t *table = simdisk_get(disk, "run/checkpoint-7/sheaf.sums", &n);
	uint8_t *text = simdisk_get(disk, "run/checkpoint-7/sheaf.json", &text_n);
	int found = 0;

	CHECK_RC(shf_manifest_decode(&m, &arena, text, text_n, "", &err), 0, &err);
	for (uint64_t i = 0; i < shf_get64(table + 24); i++) {
		uint8_t *record = table + shf_get64(table + 56) + i * SHF_SUMS_TENSOR;
		struct shf_sums_tensor t = shf_sums_get_tensor(record);

		if (t.bytes == 0)
			continue;
		for (int ranks = 1; ranks <= 4; ranks += 3) {
			struct play p = hands_play(disk, ranks, held);

			shf_put64(record + 40, t.digest ^ UINT64_C(1) << (i * 7 % 64));
			seal(disk, &m, table, n);
			for (p.takes = ranks == 1; p.takes >= 0; p.takes--) {
				CHECK_RC(hands_load(&p), SHEAF_ECORRUPT, &p.err);
				CHECK(strstr(p.err.msg, "has digest"));
			}
			shf_put64(record + 40, t.digest);
			seal(disk, &m, table, n);
			LOADED(p);
			found++;
		}
	}
	CHECK(found >= 2 * 4);
	free(table);
	free(text);
	shf_arena_release(&arena);
	simdisk_free(disk);
}

/* ---- descriptors ---- */

enum { MANY = 16 };
static size_t most_open;        /* when something was submitted, on any rank */

static int counted_submit(void *arg, struct shf_queue *queue, struct shf_io *io)
{
	size_t n = simdisk_open_n(&(struct shf_sys){ .host.arg = arg });

	most_open = n > most_open ? n : most_open;
	return simover_real()->queue.submit(arg, queue, io);
}

static void count_descriptors(struct hand *h)
{
	simover(&h->used)->queue.submit = counted_submit;
}

/* A file each. Variant: columns, which ranks read together. */
static void one_a_file(struct hand *h)
{
	for (int k = 0; k < MANY; k++) {
		char number[8];
		struct sheaf_slice *s;

		snprintf(number, sizeof(number), "%d", k);
		s = hand_add(h, "model", hand_text(h, "file", number), SHEAF_F64, 2, 1600, 125);
		hand_cut(s, h->play->variant, h->rank, h->ranks);
	}
}

static size_t most_opened(struct play *p, uint64_t flags)
{
	p->opts.flags = flags;
	p->tamper = count_descriptors;
	most_open = 0;
	LOADED(*p);
	return most_open;
}

TEST(a_load_past_the_page_cache_opens_few_files_twice_at_a_time)
{
	static const int32_t apart[2] = { 1, 2 };
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, one_a_file);
	size_t twice = 0;

	p.opts.file_bytes_max = 1 << 20;
	SAVED(p);
	p.opts.staging_bytes_max = 2 << 20;
	for (int way = 0; way < 4; way++) {
		size_t buffered, direct;

		p.ranks = way ? 2 : 1;
		p.variant = way > 1;
		p.nodes = way > 2 ? apart : NULL;
		buffered = most_opened(&p, SHEAF_RUN_BUFFERED);
		direct = most_opened(&p, 0);
		if (direct > buffered + 5)
			print_error("way %d: %zu open, %zu buffered\n", way, direct, buffered);
		CHECK(buffered >= MANY / 2 && direct >= buffered);
		CHECK(direct <= buffered + 5);
		twice += direct - buffered;
	}
	CHECK(twice > 0);
	simdisk_free(disk);
}

/* ---- lists ---- */

static int list_act(struct hand *h)
{
	struct shf_list list = { 0 };
	int rc = shf_store_list(&h->run->store, &list, &h->err);

	if (rc == 0 && (list.n != 2 || list.entries[0].state != SHF_DAMAGED ||
	                list.entries[1].state != SHF_COMMITTED || list.entries[1].step != 8))
		rc = shf_fail(&h->err, SHEAF_EBUG, "%zu entries, the first in state %d", list.n,
		              list.n ? (int)list.entries[0].state : -1);
	shf_list_release(&list);
	return rc;
}

TEST(a_half_deleted_step_is_listed_as_damaged)
{
	struct simdisk *disk = saved();
	struct play p = hands_play(disk, 2, held);

	p.step = 8;
	SAVED(p);
	CHECK_INT(simdisk_remove(disk, big_file), 0);
	CHECK_RC(hands_run(&p, list_act, false), 0, &p.err);
	simdisk_free(disk);
}
