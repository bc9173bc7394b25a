/* SPDX-License-Identifier: Apache-2.0 */
/* Opaque bytes of ranks whose size varies: what was given is what every rank reads, in every kind
 * of save, after a power cut and after the job has died; and what is refused costs no checkpoint.
 *
 *   test_rank_bytes [--long] [--seed N] [part of a test's name ...] */
#include <inttypes.h>
#include <stdlib.h>
#include "everycut.h"
#include "hands.h"
#include "rank_files.h"
#include "read_slice.h"
#include "save_attach.h"
#include "starve.h"
#include "step_attached.h"
#include "step_copy.h"

#define main t_main
#include "t.h"
#undef main

/* ---- what a rank gives in a step ---- */

/* Bytes of a stream; less than 0: the rank gives none. */
static int64_t size_of(const char *stream, int64_t step, int rank)
{
	if (strcmp(stream, "loader") == 0)      /* none or all in one file */
		return (step * 37 + (int64_t)rank * rank * 1003) % 5000;
	if (strcmp(stream, "some.ranks") == 0)
		return rank % 2 ? -1 : step % 3 * 10;
	return step == 8 ? -1 : (7 << 20) + rank;       /* several files */
}

static uint8_t byte_of(const char *stream, int64_t step, int rank, size_t i)
{
	return (uint8_t)((i * 131 + i / 251 + (size_t)step * 7 + (size_t)rank * 29 +
	                  (uint8_t)stream[0]) % 251);
}

static const char *const streams[] = { "loader", "some.ranks", "large" };
enum { STREAMS = 3, SMALL = 2 };
static int streams_n;           /* how many of them a play uses */

static int give(struct sheaf_save *save, int64_t step, int rank, struct sheaf_error *err)
{
	int rc = 0;

	for (int k = 0; k < streams_n && rc == 0; k++) {
		int64_t n = size_of(streams[k], step, rank);
		uint8_t *bytes = n < 0 ? NULL : malloc((size_t)n + 1);

		for (int64_t i = 0; i < n; i++)
			bytes[i] = byte_of(streams[k], step, rank, (size_t)i);
		if (n >= 0)
			rc = shf_save_rank_bytes(save, streams[k], n ? bytes : NULL, (size_t)n,
			                         err);
		free(bytes);
	}
	return rc;
}

/* Reads what `ranks` ranks gave in the step. 0, or a code and why. */
static int read_all(struct sheaf_checkpoint *step, int ranks, struct sheaf_error *err)
{
	for (int k = 0; k < streams_n; k++)
		for (int r = 0; r <= ranks; r++) {
			int64_t want = r == ranks ? -1 : size_of(streams[k], step->number, r);
			const void *bytes = NULL;
			size_t n = 0;
			int rc = shf_step_rank_bytes(step, streams[k], r, &bytes, &n, err);

			if (want < 0 && rc == SHEAF_ENOENT)
				continue;
			if (rc < 0)
				return rc;
			if ((int64_t)n != want)
				return shf_fail(err, SHEAF_EBUG, "%s/%d has %zu bytes", streams[k],
				                r, n);
			for (size_t i = 0; i < n; i++)
				if (((const uint8_t *)bytes)[i] !=
				    byte_of(streams[k], step->number, r, i))
					return shf_fail(err, SHEAF_EBUG, "%s/%d: byte %zu differs",
					                streams[k], r, i);
		}
	return 0;
}

/* ---- plays ---- */

static void tensors(struct hand *h)
{
	hand_cut(hand_add(h, "model", "a.b", SHEAF_F32, 2, 64, 32), 0, h->rank, h->ranks);
	hand_add(h, "optimizer", "c", SHEAF_BF16, 1, 40);
}

static void during(struct hand *h, struct sheaf_save *save)
{
	(void)give(save, h->play->step, h->rank, NULL);
}

static int given_ranks;         /* how many ranks have saved */

static int open_and_read(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, h->play->step, &h->err);

	if (rc == 0)
		rc = read_all(step, given_ranks, &h->err);
	if (rc == 0)
		rc = shf_step_verify(step, &h->report, &h->err);
	if (rc == SHEAF_EINVAL && h->play->nodes) /* in the memory of several nodes */
		rc = 0;
	shf_step_put(step);
	return rc;
}

static struct play story(struct simdisk *disk, int ranks, int n)
{
	struct play p = hands_play(disk, ranks, tensors);

	p.during = during;
	streams_n = n;
	given_ranks = ranks;
	return p;
}

static int files_of(struct simdisk *disk, const char *stream, int ranks)
{
	char path[200], name[SHF_RANK_FILE_NAME];
	int n = 0;

	for (int r = 0; r < ranks; r++) {
		shf_rank_file_name(name, stream, (uint32_t)r);
		snprintf(path, sizeof(path), "run/checkpoint-7/%s", name);
		n += simdisk_exists(disk, path);
	}
	return n;
}

TEST(every_rank_reads_what_any_rank_gave_whatever_its_size)
{
	for (int ranks = 1; ranks <= 5; ranks += 2) {
		struct simdisk *disk = disk_new();
		struct play p = story(disk, ranks, STREAMS);

		SAVED(p);
		CHECK_INT(files_of(disk, "loader", ranks), 1);
		CHECK_INT(files_of(disk, "large", ranks), (ranks + 1) / 2);
		p.step = 8;
		SAVED(p);
		for (int readers = 1; readers <= 2; readers++) {
			p = hands_play(disk, readers, tensors);
			p.opts.flags = 0;
			for (p.step = 7; p.step <= 8; p.step++)
				CHECK_RC(hands_run(&p, open_and_read, false), 0, &p.err);
		}
		p.step = 7;
		LOADED(p);
		simdisk_free(disk);
	}
}

/* More than a file, and large attached files beside them, which ranks write themselves. */
static void during_with_files(struct hand *h, struct sheaf_save *save)
{
	uint8_t *much = calloc(1, 17 << 20);
	char name[20];

	snprintf(name, sizeof(name), "much-%d.bin", h->rank);
	(void)shf_save_attach(save, name, much, (17 << 20) >> (2 * h->rank), NULL);
	free(much);
	during(h, save);
}

TEST(they_are_written_beside_attached_files_that_ranks_write_themselves)
{
	struct simdisk *disk = disk_new();
	struct play p = story(disk, 2, STREAMS);

	p.during = during_with_files;
	SAVED(p);
	CHECK(simdisk_exists(disk, "run/checkpoint-7/much-1.bin"));
	CHECK_RC(hands_run(&p, open_and_read, false), 0, &p.err);
	simdisk_free(disk);
}

static int copy_it(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, 7, &h->err);

	if (rc == 0)
		rc = shf_step_copy(step, "other", &h->report, &h->err);
	shf_step_put(step);
	return rc;
}

static int read_copy(struct hand *h)
{
	struct shf_opts o = { .io_threads = 0 };
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open_path(&step, "other/checkpoint-7", h->group, &o, h->sys, &h->err);

	if (rc == 0)
		rc = read_all(step, given_ranks, &h->err);
	shf_step_put(step);
	return rc;
}

TEST(a_copy_has_them)
{
	struct simdisk *disk = disk_new();
	struct play p = story(disk, 3, STREAMS);

	SAVED(p);
	p = hands_play(disk, 1, tensors);
	CHECK_RC(hands_run(&p, copy_it, false), 0, &p.err);
	CHECK_RC(hands_run(&p, read_copy, false), 0, &p.err);
	simdisk_free(disk);
}

/* Every file is one that tools and other programs read by its path. */
static int read_file(struct hand *h)
{
	struct shf_opts o = { .io_threads = 0 };
	struct sheaf_checkpoint *step = NULL;
	int64_t n = size_of("loader", 7, 2);
	uint8_t *bytes = calloc(1, (size_t)n);
	struct sheaf_slice s = { .size = sizeof(s), .name = "loader/2", .dtype = SHEAF_U8,
		.ndim = 1, .shape = { n }, .count = { n }, .data = bytes };
	int rc = shf_step_open_path(&step, "run/checkpoint-7/rank-bytes.loader.0", h->group, &o,
	                            h->sys, &h->err);

	if (rc == 0)
		rc = shf_step_read(step, &s, &h->err);
	for (int64_t i = 0; rc == 0 && i < n; i++)
		if (bytes[i] != byte_of("loader", 7, 2, (size_t)i))
			rc = SHEAF_EBUG;
	shf_step_put(step);
	free(bytes);
	return rc;
}

TEST(each_file_is_read_as_a_safetensors_file)
{
	struct simdisk *disk = disk_new();
	struct play p = story(disk, 3, SMALL);

	SAVED(p);
	p = hands_play(disk, 1, tensors);
	CHECK_RC(hands_run(&p, read_file, false), 0, &p.err);
	simdisk_free(disk);
}

/* ---- damage ---- */

TEST(no_flipped_bit_is_read)
{
	struct simdisk *disk = disk_new();
	struct play p = story(disk, 2, SMALL), one;
	const char *path = "run/checkpoint-7/rank-bytes.loader.0";
	size_t n = 0;
	int tried = 0;

	SAVED(p);
	free(simdisk_get(disk, path, &n));
	CHECK(n > 4096);
	one = hands_play(disk, 1, tensors);
	for (uint64_t bit = 3; bit < 8 * n; bit += 2003, tried++) {
		CHECK_INT(simdisk_flip(disk, path, bit), 0);
		CHECK_RC(hands_run(&one, open_and_read, false), SHEAF_ECORRUPT, &one.err);
		CHECK(strstr(one.err.msg, "rank-bytes.loader.0") != NULL);
		CHECK_INT(simdisk_flip(disk, path, bit), 0);
	}
	CHECK_RC(hands_run(&one, open_and_read, false), 0, &one.err);
	printf("# %d bits\n", tried);
	simdisk_free(disk);
}

/* What another program may have put in such a place: a file that is no file of ours. */
TEST(another_programs_file_of_that_name_is_no_stream)
{
	static const char *const texts[] = { "", "{}", "12345678", "\2\0\0\0\0\0\0\0{}" };
	static const size_t sizes[] = { 0, 2, 8, 10 };
	struct shf_rank_part part;
	struct sheaf_error err;

	for (int i = 0; i < 4; i++)
		CHECK_INT(shf_rank_file_find(&part, "s", 0, (const uint8_t *)texts[i], sizes[i],
		                             "f", &err),
		          i < 3 ? SHEAF_EFORMAT : SHEAF_ENOENT);
}

TEST(names_of_files_are_told_apart)
{
	static const struct {
		const char *name, *stream;
		int64_t first;
	} t[] = { { "rank-bytes.a.0", "a", 0 }, { "rank-bytes.a.12", "a", 12 },
		{ "rank-bytes.a.1.0", "a.1", 0 }, { "rank-bytes.a.1.0", "a", -1 },
		{ "rank-bytes.a.01", "a", -1 }, { "rank-bytes.a.", "a", -1 },
		{ "rank-bytes.a.+1", "a", -1 }, { "rank-bytes.a", "a", -1 },
		{ "rank-bytes.a.4294967295", "a", 4294967295 },
		{ "rank-bytes.a.4294967296", "a", -1 },
		{ "rank-bytes.a.42949672950000000000000", "a", -1 },
		{ "rank-bytes.aa.0", "a", -1 }, { "config.json", "a", -1 } };
	uint32_t first;

	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		bool is = shf_rank_file_of(t[i].name, t[i].stream, &first);

		CHECK(is == (t[i].first >= 0));
		if (is)
			CHECK(first == t[i].first);
	}
}

/* ---- what is refused ---- */

static char warned[400];

static void log_line(void *arg, int level, const char *line)
{
	(void)arg;
	if (level == 1)
		snprintf(warned, sizeof(warned), "%.399s", line);
}

static void tensors_and_stream(struct hand *h)
{
	struct sheaf_slice *s;

	tensors(h);
	s = hand_add(h, "ranks", hand_text(h, "fixed/", h->rank ? "1" : "0"), SHEAF_U8, 1, 8);
	s->flags = 0;
}

#define NO(save, stream, bytes, n, text)                                                        \
	do {                                                                                    \
		warned[0] = '\0';                                                               \
		if (shf_save_rank_bytes(save, stream, bytes, n, &err) != SHEAF_EINVAL ||        \
		    !strstr(err.msg, text) || !strstr(warned, text))                            \
			snprintf(wrong, sizeof(wrong), "line %d: %.250s", __LINE__, err.msg);   \
	} while (0)
static char wrong[300];

static void during_refused(struct hand *h, struct sheaf_save *save)
{
	static uint8_t much[(64 << 20) + 1];
	struct sheaf_error err = { 0 };
	char name[60];

	if (h->rank)            /* the stream of the state is that of another rank, too */
		return;
	NO(save, NULL, "", 0, "stream ''");
	NO(save, "", "", 0, "its name must match [a-z0-9._-]{1,57}");
	NO(save, "Big", "", 0, "its name must match");
	NO(save, "a/b", "", 0, "its name must match");
	NO(save, "loader.safetensors", "", 0, "must not contain .safetensors");
	memset(name, 'x', 58);
	name[58] = '\0';
	NO(save, name, "", 0, "its name must match");
	NO(save, "a", NULL, 1, "stream a: 1 bytes at NULL");
	NO(save, "a", much, sizeof(much), "stream a: 67108865 bytes, at most 64 MiB");
	NO(save, "fixed", "x", 1, "stream fixed: the state has it already, by "
	   "sheaf_state_rank_bytes");
	if (give(save, 7, 0, NULL) < 0)
		snprintf(wrong, sizeof(wrong), "what was right was refused");
	NO(save, "loader", "x", 1, "stream loader: given twice");
	for (int i = 0; i < 7; i++) {
		snprintf(name, sizeof(name), "m%d", i);
		if (shf_save_rank_bytes(save, name, much, 64 << 20, &err) < 0)
			snprintf(wrong, sizeof(wrong), "%s: %.200s", name, err.msg);
	}
	NO(save, "m8", much, 64 << 20, "the streams of this rank would have ");
	if (shf_save_attach(save, "rank-bytes.a.0", "", 0, &err) != SHEAF_EINVAL)
		snprintf(wrong, sizeof(wrong), "a reserved name was attached");
}

TEST(what_is_refused_costs_no_checkpoint)
{
	struct simdisk *disk = disk_new();
	struct play p = story(disk, 2, SMALL);

	p.hold = tensors_and_stream;
	p.during = during_refused;
	p.opts.log = log_line;
	wrong[0] = '\0';
	SAVED(p);
	CHECK_STR(wrong, "");
	CHECK(simdisk_exists(disk, "run/checkpoint-7/rank-bytes.loader.0"));
	CHECK(!simdisk_exists(disk, "run/checkpoint-7/rank-bytes.fixed.0"));
	simdisk_free(disk);
}

/* A commit that returned EAGAIN, or that has gathered everything, or that is over. */
static int late_act(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, 7, h->state, NULL, &h->err), late;

	if (rc == 0)
		rc = give(save, 7, h->rank, &h->err);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	late = shf_save_rank_bytes(save, "late", "x", 1, NULL);
	shf_save_free(save);
	return rc == 0 && late != SHEAF_EINVAL ? SHEAF_EBUG : rc;
}

TEST(after_the_commit_nothing_is_taken)
{
	struct simdisk *disk = disk_new();
	struct play p = story(disk, 2, SMALL);

	CHECK_RC(hands_run(&p, late_act, true), 0, &p.err);
	CHECK_RC(hands_run(&p, open_and_read, false), 0, &p.err);
	simdisk_free(disk);
}

/* Two ranks are within their own limits and beyond the common one. */
static void during_too_much(struct hand *h, struct sheaf_save *save)
{
	static uint8_t much[48 << 20];
	char name[20];

	for (int i = 0; i < 6; i++) {
		size_t n = sizeof(much);

		if (h->play->variant && i == 5)
			n = (16U << 20) + (h->rank && h->play->variant == 2);
		snprintf(name, sizeof(name), "m%d", i);
		(void)shf_save_rank_bytes(save, name, much, n, NULL);
	}
}

TEST(more_than_rank_0_holds_is_refused_before_it_is_sent)
{
	for (int variant = 0; variant < 3; variant++) {
		struct simdisk *disk = disk_new();
		struct play p = story(disk, 2, 0);

		p.during = during_too_much;
		p.variant = variant;
		CHECK_RC(hands_save(&p), variant == 1 ? 0 : SHEAF_EFAILED, &p.err);
		if (variant != 1)
			CHECK(strstr(p.err.msg, " bytes on all ranks together, at most 512 MiB"));
		CHECK(simdisk_exists(disk, "run/checkpoint-7") == (variant == 1));
		simdisk_free(disk);
	}
}

/* ---- no memory ---- */

static long starve_at;          /* this allocation fails, from the call on; 0: none */

static int hungry_save(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, 7, h->state, NULL, &h->err);

	if (rc < 0)
		return rc;
	starve_left = starve_at;
	(void)give(save, 7, h->rank, NULL);     /* the commit returns what fails here */
	rc = shf_save_commit(save, -1, &h->err);
	starve_left = 0;
	shf_save_free(save);
	return rc;
}

static int hungry_read(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, 7, &h->err);

	starve_left = rc == 0 ? starve_at : 0;
	if (rc == 0)
		rc = read_all(step, given_ranks, &h->err);
	starve_left = 0;
	if (rc == SHEAF_ENOMEM) /* and nothing is left half read */
		rc = read_all(step, given_ranks, &h->err) == 0 ? SHEAF_ENOMEM : SHEAF_EBUG;
	shf_step_put(step);
	return rc;
}

TEST(without_memory_there_is_no_step_or_all_of_it)
{
	int failed[2] = { 0 };

	starved = true;
	for (starve_at = 1; starved; starve_at++) {
		struct simdisk *disk = disk_new();
		struct play p = story(disk, 1, SMALL);
		int rc;

		starved = false;
		simdisk_set_task_steps(disk, 0);
		rc = hands_run(&p, hungry_save, true);
		CHECK(rc == 0 || rc == SHEAF_ENOMEM);
		CHECK(simdisk_exists(disk, "run/checkpoint-7") == (rc == 0));
		if (rc == 0)
			CHECK_RC(hands_run(&p, open_and_read, false), 0, &p.err);
		failed[0] += rc < 0;
		simdisk_free(disk);
	}
	struct simdisk *disk = disk_new();
	struct play p = story(disk, 2, SMALL);

	SAVED(p);
	starved = true;
	for (starve_at = 1; starved; starve_at++) {
		int rc;

		starved = false;
		rc = hands_run(&p, hungry_read, false);
		CHECK(rc == (starved ? SHEAF_ENOMEM : 0));
		failed[1] += rc < 0;
	}
	printf("# %d saves and %d reads failed\n", failed[0], failed[1]);
	CHECK(failed[0] > 20 && failed[1] > 3);
	starve_at = 0;
	simdisk_free(disk);
}

/* ---- power cuts ---- */

static int64_t acked_cut[10];

static int save_two(struct hand *h)
{
	int rc = 0;

	for (int64_t n = 7; n <= 8 && rc == 0; n++) {
		struct sheaf_save_opts o = { .size = sizeof(o), .flags = h->play->flags };
		struct sheaf_save *save = NULL;

		rc = shf_save_begin(&save, h->run, n, h->state, &o, &h->err);
		if (rc == 0)
			rc = give(save, n, h->rank, &h->err);
		if (rc == 0 && h->play->variant)        /* it is published behind the calls */
			while ((rc = shf_save_commit(save, 0, &h->err)) == SHEAF_EAGAIN)
				;
		else if (rc == 0)
			rc = shf_save_commit(save, -1, &h->err);
		if (rc == 0 && h->rank == 0)
			acked_cut[n] = (int64_t)simdisk_cut_n(h->play->disk) - 1;
		shf_save_free(save);
	}
	return rc;
}

static uint64_t promised(const void *arg, int64_t cut)
{
	(void)arg;
	return (uint64_t)(cut >= acked_cut[7]) + (cut >= acked_cut[8]);
}

/* Each of the two steps is there, and its bytes are right, or it is not there. */
static const char *judge(const void *arg, struct simdisk *disk, int64_t cut, char why[300])
{
	struct play p = hands_play(disk, 1, tensors);
	char path[60];

	(void)arg;
	for (int64_t n = 7; n <= 8 && !why[0]; n++) {
		bool want = cut >= acked_cut[n];

		snprintf(path, sizeof(path), "run/checkpoint-%" PRId64 "/sheaf.json", n);
		if (!simdisk_exists(disk, path)) {
			if (want)
				snprintf(why, 300, "step %" PRId64 " was committed", n);
			continue;
		}
		p.step = n;
		if (hands_run(&p, open_and_read, false) != 0)
			snprintf(why, 300, "step %" PRId64 ": %.250s", n, p.err.msg);
	}
	return why;
}

static void hunt(enum simdisk_model model, int ranks, uint64_t flags, int polls)
{
	struct simdisk *disk = simdisk_new(everycut.seed, model);
	struct play p = story(disk, ranks, SMALL);
	uint64_t before = everycut.states;
	char why[400];
	bool fine;

	p.flags = flags;
	p.variant = polls;
	CHECK_RC(hands_run(&p, save_two, true), 0, &p.err);
	fine = everycut_hunt(&(struct everycut_hunt){ .disk = disk, .all_max = 4, .small_max = 1,
		.seeded = 2, .stride = everycut.all ? 0 : 3, .promised = promised,
		.judge = judge }, why);
	if (!fine)
		print_error("%s (seed %llu)\n", why, (unsigned long long)everycut.seed);
	printf("# %d ranks: %zu cuts, %llu states\n", ranks, simdisk_cut_n(disk),
	       (unsigned long long)(everycut.states - before));
	CHECK(fine);
	simdisk_free(disk);
}

TEST(a_power_cut_leaves_all_of_them_or_no_step_strict) { hunt(SIMDISK_STRICT, 1, 0, 0); }
TEST(a_power_cut_leaves_all_of_them_or_no_step_lazy)
{
	hunt(SIMDISK_EXT4, 2, SHEAF_SAVE_LAZY, 0);
}
TEST(a_power_cut_leaves_all_of_them_or_no_step_polled)
{
	hunt(SIMDISK_NFS, 2, SHEAF_SAVE_LAZY, 1);
}

/* ---- the memory of agents ---- */

static int in_memory(struct hand *h)
{
	struct sheaf_save_opts o = { .size = sizeof(o), .flags = SHEAF_SAVE_NO_DISK };
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, 7, h->state, &o, &h->err);

	if (rc == 0)
		rc = give(save, 7, h->rank, &h->err);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

/* The job is killed, its agents stay, and the next job reads from them. */
TEST(a_step_in_memory_has_them_after_the_job_was_killed)
{
	static const int32_t nodes[4] = { 1, 1, 2, 2 };

	for (int spread = 0; spread < 2; spread++) {
		struct simdisk *disk = disk_new();
		struct play p = story(disk, 4, spread ? STREAMS : SMALL);

		simdisk_set_agents(disk, 1 << 30);
		p.nodes = spread ? nodes : NULL;
		p.opts.agent = "auto";
		p.opts.images_max = 2;
		CHECK_RC(hands_run(&p, in_memory, true), 0, &p.err);
		CHECK(!simdisk_exists(disk, "run/checkpoint-7"));
		CHECK_RC(hands_run(&p, open_and_read, false), 0, &p.err);
		simdisk_free(disk);
	}
}

int main(int argc, char **argv)
{
	return everycut_main(argc, argv, t_main);
}
