/* SPDX-License-Identifier: Apache-2.0 */
/* Directories of torch.distributed.checkpoint: loaded in any layout from many boxes, and refused
 * with a sentence where the metadata and the files do not fit. */
#include <stdio.h>
#include <stdlib.h>
#include "foreign.h"
#include "read_slice.h"
#include "sheaf-inspect.h"
#include "t.h"
#include "foreign_plays.h"
#include "foreign_starved.h"
#include "torchfile.h"

static const struct torch_tensor two[] = {
	{ .name = "a.w", .dtype = SHEAF_F32, .ndim = 2, .shape = { 37, 29 } },
	{ .name = "a.h", .dtype = SHEAF_BF16, .ndim = 2, .shape = { 301, 41 } },
	{ .name = "big", .dtype = SHEAF_F64, .ndim = 2, .shape = { 700, 513 } },
};
#define TWO ((int)(sizeof(two) / sizeof(two[0])))

static void held(struct hand *h)
{
	struct sheaf_slice *s = hand_add(h, "model", "a.w", SHEAF_F32, 2, 37, 29);

	s->flags = SHEAF_SLICE_FLAT;
	s->flat_start = 1073 * h->rank / h->ranks;
	s->flat_count = 1073 * (h->rank + 1) / h->ranks - s->flat_start;
	s = hand_add(h, "model", "a.h", SHEAF_BF16, 2, 301, 41);
	hand_cut(s, h->play->variant % 2, h->rank, h->ranks);
	s = hand_add(h, "model", "big", SHEAF_F64, 2, 700, 513);
	hand_cut(s, 1, h->rank, h->ranks);
}

TEST(boxes_load_in_any_layout)
{
	static const int cuts[][2] = { { 1, 1 }, { 4, 1 }, { 1, 5 }, { 3, 4 }, { 40, 2 } };

	for (size_t k = 0; k < sizeof(cuts) / sizeof(cuts[0]); k++) {
		struct simdisk *disk = disk_new();

		torch_dcp(disk, "dcp", two, TWO, cuts[k][0], cuts[k][1], DCP_SOUND);
		for (int ranks = 1; ranks < 5; ranks++) {
			struct play p = foreign_play(disk, "dcp", ranks, held);

			p.variant = ranks;
			LOADED(p);
			CHECK_INT(p.report.loaded, TWO);
		}
		simdisk_free(disk);
	}
}

TEST(compressed_boxes_load_in_any_layout)
{
	for (int frames = 0; frames < 2; frames++) {
		struct simdisk *disk = disk_new();

		torch_dcp(disk, "dcp", two, TWO, 3, 2, frames ? DCP_FRAMES : DCP_ZSTD);
		for (int ranks = 1; ranks < 4; ranks += 2) {
			struct play p = foreign_play(disk, "dcp", ranks, held);

			p.variant = ranks;
			LOADED(p);
			CHECK_INT(p.report.loaded, TWO);
		}
		simdisk_free(disk);
	}
}

TEST(boxes_that_several_ranks_have_are_taken_once)
{
	for (int ranks = 1; ranks < 4; ranks += 2) {
		struct simdisk *disk = disk_new();
		struct play p = foreign_play(disk, "dcp", ranks, held);

		torch_dcp(disk, "dcp", two, TWO, 3, 4, DCP_RANKS);
		LOADED(p);
		CHECK_INT(p.report.loaded, TWO);
		simdisk_free(disk);
	}
}

/* Opens, reads and verifies a directory with a flaw; returns the first code that is not 0. */
static int opens(enum dcp_flaw flaw, int *verified, struct sheaf_error *err)
{
	struct simdisk *disk = disk_new();
	const struct shf_sys *sys = simdisk_process(disk, 77, 0);
	struct sheaf_slice s = { .size = sizeof(s), .dtype = SHEAF_F32, .ndim = 2, .name = "a.w",
		.shape = { 37, 29 }, .count = { 37, 29 } };
	struct sheaf_checkpoint *step = NULL;
	int rc;

	s.data = malloc(37 * 29 * 4);
	torch_dcp(disk, "dcp", two, 1, 3, 2, flaw);
	rc = shf_step_open_path(&step, "dcp", NULL, NULL, sys, err);
	if (rc == 0)
		rc = shf_step_read(step, &s, err);
	if (rc == 0)
		*verified = shf_step_verify(step, NULL, err);
	shf_step_put(step);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_free(disk);
	free(s.data);
	return rc;
}

TEST(metadata_that_does_not_fit_its_files_is_refused_by_what_is_wrong)
{
	static const struct { enum dcp_flaw flaw; const char *why; } flaws[] = {
		{ DCP_GAP, "tensor a.w: [0:12, 0:14] is in no chunk; the metadata of a rank may "
			   "be" },
		{ DCP_OVERLAP, "is in several chunks" },
		{ DCP_OTHER_SAVE, "is not the chunk of tensor a.w that the metadata says it is" },
		{ DCP_BEYOND, "a chunk beyond the end of its file" },
		{ DCP_NO_FILE, "dcp/__0_0.distcp: missing, but the metadata names it" },
		{ DCP_OUTSIDE, "names the file ../__0_0.distcp, which is not a file directly in "
			       "it" },
		{ DCP_CIPHER, "tensor a.w: is stored through a transformation that is not read: "
			      "stream.zstd/1, stream.aes@here/7" },
		{ DCP_ZSTD_2, "that is not read: stream.zstd/2" },
		{ DCP_BOMB, "stand for more than the 67" },
		{ DCP_TWICE, "is in the metadata twice" },
		{ DCP_NO_ENTRY, "has a chunk that is in no file" },
		{ DCP_LEAVES, "has a chunk that leaves it" },
		{ DCP_ENTRY_TWICE, "tensor a.w: has two places in the metadata for one chunk" },
	};
	struct sheaf_error err = { 0 };
	int verified = 1;

	CHECK_RC(opens(DCP_SOUND, &verified, &err), 0, &err);
	CHECK_INT(verified, 0);
	for (size_t i = 0; i < sizeof(flaws) / sizeof(flaws[0]); i++) {
		int rc = opens(flaws[i].flaw, &verified, &err);

		if (rc != SHEAF_EFORMAT || !strstr(err.msg, flaws[i].why))
			fail_msg("want '%s', got %d: %s", flaws[i].why, rc, err.msg);
	}
}

/* Reads all items of a.w from a directory of boxes. */
static void read_boxes(float *got, bool neg, int rows, int columns)
{
	const struct torch_tensor t = { .name = "a.w", .dtype = SHEAF_F32, .ndim = 2,
		.shape = { 37, 29 }, .neg = neg };
	struct simdisk *disk = disk_new();
	struct sheaf_slice s = { .size = sizeof(s), .dtype = SHEAF_F32, .ndim = 2, .name = "a.w",
		.shape = { 37, 29 }, .count = { 37, 29 }, .data = got };
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err = { 0 };

	torch_dcp(disk, "dcp", &t, 1, rows, columns, DCP_SOUND);
	CHECK_RC(shf_step_open_path(&step, "dcp", NULL, NULL, simdisk_process(disk, 77, 0), &err),
	         0, &err);
	CHECK_RC(shf_step_read(step, &s, &err), 0, &err);
	shf_step_put(step);
	simdisk_free(disk);
}

TEST(boxes_that_are_negative_views_are_read_with_their_values)
{
	static const int cuts[][2] = { { 1, 1 }, { 4, 1 }, { 1, 5 }, { 3, 4 } };
	float plain[37 * 29], negative[37 * 29];

	for (size_t k = 0; k < sizeof(cuts) / sizeof(cuts[0]); k++) {
		read_boxes(plain, false, cuts[k][0], cuts[k][1]);
		read_boxes(negative, true, cuts[k][0], cuts[k][1]);
		for (int i = 0; i < 37 * 29; i++) {
			uint32_t a, b;

			memcpy(&a, &plain[i], 4);
			memcpy(&b, &negative[i], 4);
			CHECK_INT(a ^ b, UINT32_C(1) << 31);
		}
	}
}

TEST(a_failure_is_told_and_not_an_earlier_one)
{
	static const struct torch_tensor pair[] = {
		{ .name = "a.w", .dtype = SHEAF_F32, .ndim = 2, .shape = { 3, 5 } },
		{ .name = "b.w", .dtype = SHEAF_F32, .ndim = 2, .shape = { 3, 5 } },
	};
	struct simdisk *disk = disk_new();
	struct sheaf_slice s = { .size = sizeof(s), .dtype = SHEAF_F32, .ndim = 2,
		.shape = { 3, 5 }, .count = { 3, 5 } };
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err = { 0 };
	float got[15];

	torch_dcp(disk, "dcp", pair, 2, 2, 3, DCP_OTHER_SAVE);
	CHECK_RC(shf_step_open_path(&step, "dcp", NULL, NULL, simdisk_process(disk, 77, 0), &err),
	         0, &err);
	s.data = got;
	for (int i = 0; i < 2; i++) {
		char want[40];

		s.name = pair[i].name;
		snprintf(want, sizeof(want), "the chunk of tensor %s ", s.name);
		CHECK_RC(shf_step_read(step, &s, &err), SHEAF_EFORMAT, &err);
		CHECK(strstr(err.msg, want) != NULL);
	}
	shf_step_put(step);
	simdisk_free(disk);
}

struct heard { int n, kind; int64_t offset; char msg[300]; };

static void hear(void *arg, const struct sheaf_finding *f)
{
	struct heard *h = arg;

	h->n++;
	h->kind = f->kind;
	h->offset = f->offset;
	snprintf(h->msg, sizeof(h->msg), "%s", f->msg);
}

/* Opens and verifies a directory with a flaw. */
static int verified(enum dcp_flaw flaw, struct heard *h, struct sheaf_error *err)
{
	struct simdisk *disk = disk_new();
	const struct shf_sys *sys = simdisk_process(disk, 77, 0);
	struct sheaf_report report = { .size = sizeof(report), .finding = hear, .arg = h };
	struct sheaf_checkpoint *step = NULL;
	int rc;

	*h = (struct heard){ 0 };
	torch_dcp(disk, "dcp", two, 1, 3, 2, flaw);
	CHECK_RC(shf_step_open_path(&step, "dcp", NULL, NULL, sys, err), 0, err);
	rc = shf_step_verify(step, &report, err);
	shf_step_put(step);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_free(disk);
	return rc;
}

/* Every item of a tensor is an archive, so one that does not begin as one is damaged. */
TEST(a_tensor_whose_item_is_no_archive_is_found)
{
	struct sheaf_error err = { 0 };
	struct heard h;

	CHECK_RC(verified(DCP_SOUND, &h, &err), 0, &err);
	CHECK_INT(h.n, 0);
	CHECK_RC(verified(DCP_TORN, &h, &err), SHEAF_ECORRUPT, &err);
	CHECK_INT(h.n, 1);
	CHECK_INT(h.kind, SHEAF_FINDING_HEADER);
	CHECK_INT(h.offset, 0);
}

/* zstd has no checksum here, but the archive that the item stands for has. */
TEST(a_flipped_bit_of_a_compressed_item_is_found)
{
	struct sheaf_error err = { 0 };
	struct heard h;

	CHECK_RC(verified(DCP_ZSTD, &h, &err), 0, &err);
	CHECK_RC(verified(DCP_FRAMES, &h, &err), 0, &err);
	CHECK_RC(verified(DCP_ZSTD_FLIPPED, &h, &err), SHEAF_ECORRUPT, &err);
	CHECK_INT(h.n, 1);
	CHECK_INT(h.kind, SHEAF_FINDING_CHECKSUM);
	CHECK_INT(h.offset, 0);
	CHECK(strstr(h.msg, "record archive/data/0 at byte 0 has CRC-32") != NULL);
}

TEST(a_compressed_item_that_is_cut_anywhere_is_refused)
{
	struct simdisk *disk = disk_new();
	struct torch_bytes whole = { NULL, 0, 0 };
	struct sheaf_slice s = { .size = sizeof(s), .dtype = SHEAF_F32, .ndim = 2, .name = "a.w",
		.shape = { 37, 29 }, .count = { 37, 29 } };

	s.data = malloc(37 * 29 * 4);
	torch_dcp(disk, "dcp", two, 1, 1, 1, DCP_ZSTD);
	whole.p = simdisk_get(disk, "dcp/__0_0.distcp", &whole.n);
	for (size_t n = 1; n + 8 < whole.n; n += 1 + whole.n / 200) {
		struct sheaf_checkpoint *step = NULL;
		struct sheaf_error err = { 0 };
		struct torch_bytes zeros = { calloc(whole.n, 1), whole.n, 0 };

		/* The rest of the item is zeros, as after a crash. */
		memcpy(zeros.p, whole.p, n);
		CHECK_INT(simdisk_put(disk, "dcp/__0_0.distcp", zeros.p, zeros.n), 0);
		CHECK_RC(shf_step_open_path(&step, "dcp", NULL, NULL,
		                            simdisk_process(disk, 77, 0), &err), 0, &err);
		CHECK_RC(shf_step_read(step, &s, &err), SHEAF_EFORMAT, &err);
		CHECK(strstr(err.msg, "__0_0.distcp") != NULL);
		shf_step_put(step);
		free(zeros.p);
	}
	free(whole.p);
	free(s.data);
	simdisk_free(disk);
}

TEST(a_value_that_is_no_archive_is_named_as_not_proved)
{
	struct sheaf_error err = { 0 };
	struct heard h;

	CHECK_RC(verified(DCP_BYTES, &h, &err), SHEAF_EFORMAT, &err);
	CHECK_INT(h.kind, SHEAF_FINDING_UNVERIFIED);
	CHECK(strstr(h.msg, "item words is not a zip archive") != NULL);
}

/* A directory may have a file for each box. */
TEST(of_many_files_only_some_stay_open)
{
	struct simdisk *disk = disk_new();
	const struct shf_sys *sys = simdisk_process(disk, 77, 0);
	struct sheaf_slice s = { .size = sizeof(s), .dtype = SHEAF_F32, .ndim = 2, .name = "a.w",
		.shape = { 37, 29 }, .count = { 37, 29 } };
	float *got = s.data = malloc(37 * 29 * sizeof(*got));
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err = { 0 };
	size_t n;

	torch_dcp(disk, "dcp", two, 1, 10, 20, DCP_MANY_FILES);
	CHECK_RC(shf_step_open_path(&step, "dcp", NULL, NULL, sys, &err), 0, &err);
	for (int again = 0; again < 2; again++) {
		memset(got, 0, 37 * 29 * sizeof(*got));
		CHECK_RC(shf_step_read(step, &s, &err), 0, &err);
		for (int i = 0; i < 37 * 29; i++) {
			uint64_t want = hand_value("model", "a.w", SHEAF_F32, i);

			CHECK(memcmp(&got[i], &want, sizeof(*got)) == 0);
		}
	}
	CHECK_RC(shf_step_verify(step, NULL, &err), 0, &err);
	n = simdisk_open_n(sys);
	if (n > SHF_FOREIGN_OPEN_MAX + 10)
		fail_msg("%zu files are open", n);
	shf_step_put(step);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_free(disk);
	free(got);
}

/* Of 200 files all but the last are being read when that is opened, and then none are. */
TEST(a_file_that_is_read_is_not_closed)
{
	struct simdisk *disk = disk_new();
	struct shf_region r[200];
	struct shf_foreign *f = NULL;
	struct sheaf_error err = { 0 };
	uint8_t head[4];

	torch_dcp(disk, "dcp", two, 1, 10, 20, DCP_MANY_FILES);
	CHECK_RC(shf_foreign_open(&f, simdisk_process(disk, 77, 0), "dcp", &err), 0, &err);
	CHECK_INT(shf_foreign_files(f), 200);
	for (uint32_t i = 0; i < 200; i++)
		CHECK_RC(shf_foreign_region(f, i, &r[i], &err), 0, &err);
	for (uint32_t i = 0; i < 200; i++)
		CHECK_RC(shf_region_read(&r[i], head, 4, 0, &err), 0, &err);
	for (uint32_t i = 0; i < 200; i++)
		shf_foreign_region_end(f, i);
	CHECK_INT(simdisk_open_n(f->in), 1 + SHF_FOREIGN_OPEN_MAX);
	shf_foreign_free(f);
	simdisk_free(disk);
}

TEST(a_save_that_has_not_finished_is_said_to_be)
{
	struct simdisk *disk = disk_new();
	const struct shf_sys *sys = simdisk_process(disk, 77, 0);
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;

	torch_dcp(disk, "dcp", two, 1, 3, 2, DCP_SOUND);
	CHECK_INT(simdisk_remove(disk, "dcp/.metadata"), 0);
	CHECK_RC(shf_step_open_path(&step, "dcp", NULL, NULL, sys, &err), SHEAF_EFORMAT, &err);
	CHECK(strstr(err.msg, "its save has not finished") != NULL);
	simdisk_free(disk);
}

TEST(each_allocation_may_fail)
{
	struct simdisk *disk = disk_new();

	torch_dcp(disk, "dcp", two, 1, 2, 2, DCP_ZSTD);
	foreign_survives(disk, "dcp", 1, 8);
	simdisk_free(disk);
}
