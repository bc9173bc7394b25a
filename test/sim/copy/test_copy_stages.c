/* SPDX-License-Identifier: Apache-2.0 */
/* A copy takes over the stage that an earlier copier left, whatever is in it and whichever call or
 * allocation fails: it ends with a code and a sentence, and the next copy is whole. */
#include "simover.h"
#include "step_copy.h"
#include "t.h"
#include "written.h"

#define FROM "run/checkpoint-2"
#define TO "dst/checkpoint-2"
#define FIRST "model-00001-of-00002.safetensors"
#define SECOND "model-00002-of-00002.safetensors"
#define THIRD "optimizer/optimizer-00001-of-00001.safetensors"

static int copy(struct sheaf_checkpoint *step, struct sheaf_report *report, struct sheaf_error *err)
{
	return shf_step_copy(step, "dst", report, err);
}

static struct written copy_by(struct simdisk *disk, const struct shf_sys *sys)
{
	return write_by(disk, sys, FROM, copy);
}

static struct written copied(struct simdisk *disk)
{
	return copy_by(disk, process(disk));
}

static struct simdisk *saved(void)
{
	return with_one_step(SIMDISK_EXT4, 0, 0, 5000);
}

static const char *in_stage(struct simdisk *disk, const char *name)
{
	static char path[300];
	size_t n;
	char *text = simdisk_get(disk, FROM "/sheaf.json", &n), *at;

	CHECK(text != NULL);
	at = strstr(text, "\"session\": \"");
	snprintf(path, sizeof(path), "dst/.sheaf/stage/copy-2-%.32s/%s", at + 12, name);
	free(text);
	return path;
}

/* A copier was killed in its nth file. */
static struct simdisk *left_by(struct simdisk *base, int nth)
{
	return killed_in_part(base, nth, copied);
}

static bool is_whole(struct simdisk *disk)
{
	return simdisk_exists(disk, TO) && simdisk_hash(disk, TO) == simdisk_hash(disk, FROM);
}

static void next_is_whole(struct simdisk *disk)
{
	struct written c = copied(disk);

	CHECK_RC(c.rc, 0, &c.err);
	CHECK(is_whole(disk));
}

/* ---- what lies in the stage ---- */

TEST(what_the_step_does_not_have_is_swept_out_of_the_stage)
{
	struct simdisk *base = saved(), *disk = left_by(base, 4);

	CHECK_INT(simdisk_put(disk, in_stage(disk, "notes"), "x", 1), 0);
	CHECK_INT(simdisk_put(disk, in_stage(disk, "optimizer/notes/more"), "x", 1), 0);
	CHECK_INT(simdisk_put(disk, in_stage(disk, "sheaf.json"), "x", 1), 0);
	next_is_whole(disk);
	simdisk_free(disk);
	simdisk_free(base);
}

TEST(a_file_of_another_size_or_a_link_in_the_stage_is_written_again)
{
	struct simdisk *base = saved(), *disk = left_by(base, 4);

	CHECK(simdisk_exists(disk, in_stage(disk, FIRST)));
	CHECK_INT(simdisk_put(disk, in_stage(disk, FIRST), "short", 5), 0);
	next_is_whole(disk);
	simdisk_free(disk);
	disk = left_by(base, 4);
	CHECK_INT(simdisk_remove(disk, in_stage(disk, FIRST)), 0);
	CHECK_INT(simdisk_symlink(disk, SECOND, in_stage(disk, FIRST)), 0);
	next_is_whole(disk);
	simdisk_free(disk);
	simdisk_free(base);
}

TEST(a_file_that_is_not_right_and_goes_by_itself_is_written_again)
{
	struct simdisk *base = saved(), *disk = left_by(base, 7);

	CHECK_INT(simdisk_flip(disk, in_stage(disk, THIRD), 8 * 4200), 0);
	simdisk_fault(disk, &(struct simdisk_fault){ .nth = 1, .error = ENOENT,
		.kind = SIMDISK_UNLINK, .how = SIMDISK_AFTER, .name = "optimizer-00001" });
	next_is_whole(disk);
	CHECK_INT(simdisk_fired(disk), 1);
	simdisk_free(disk);
	simdisk_free(base);
}

TEST(a_copy_that_ends_within_a_file_leaves_nothing_open)
{
	struct simdisk *disk = with_one_step(SIMDISK_EXT4, 40000, 2, UINT64_C(12) << 20);
	const char *first = FROM "/model-00001-of-00002.safetensors";
	struct written c;
	size_t n;

	free(simdisk_get(disk, first, &n));
	CHECK(n > UINT64_C(9) << 20);
	CHECK_INT(simdisk_flip(disk, first, 8 * (uint64_t)(n - 100)), 0);
	c = copied(disk);
	CHECK_RC(c.rc, SHEAF_ECORRUPT, &c.err);
	CHECK(!simdisk_exists(disk, TO));
	CHECK(!simdisk_exists(disk, in_stage(disk, "")));
	simdisk_free(disk);
}

/* ---- each call and each allocation ---- */

static void each_call(struct simdisk *start, const char *what, int least)
{
	int failed = 0, nth = 1 + t_from(T_STRIDE);
	bool fired = true;

	for (; fired; nth += T_STRIDE) {
		struct simdisk *disk = simdisk_twin(start);
		const struct shf_sys *sys = process(disk);
		bool was_there = simdisk_exists(disk, TO);
		struct written c;

		simdisk_set_trace(disk, false);
		simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth, .error = EACCES,
		                                             .process = sys });
		c = copy_by(disk, sys);
		fired = simdisk_fired(disk) > 0;
		simdisk_faults_clear(disk);
		failed += c.rc < 0;
		if (c.rc == SHEAF_EBUG || (c.rc < 0 && strlen(c.err.msg) < 8))
			print_error("%s, call %d: %d %s\n", what, nth, c.rc, c.err.msg);
		CHECK(c.rc != SHEAF_EBUG && (c.rc == 0 || strlen(c.err.msg) >= 8));
		CHECK(c.rc == 0 || c.rc == SHEAF_EINDOUBT || was_there ||
		      !simdisk_exists(disk, TO));
		CHECK(c.rc < 0 || is_whole(disk));
		next_is_whole(disk);
		simdisk_free(disk);
	}
	print_message("# %s: %d calls, %d copies failed\n", what, nth / T_STRIDE, failed);
	CHECK(failed > least / T_STRIDE);
}

TEST(each_call_of_a_copy_that_is_taken_up_may_fail)
{
	struct simdisk *base = saved(), *disk = left_by(base, 7);

	CHECK_INT(simdisk_put(disk, in_stage(disk, "optimizer/notes"), "x", 1), 0);
	CHECK_INT(simdisk_flip(disk, in_stage(disk, THIRD), 8 * 4200), 0);
	simdisk_settle(disk);
	each_call(disk, "taken up", 20);
	simdisk_free(disk);
	simdisk_free(base);
}

TEST(each_call_of_a_copy_that_is_there_already_may_fail)
{
	struct simdisk *disk = saved();

	next_is_whole(disk);
	simdisk_settle(disk);
	each_call(disk, "there", 10);
	simdisk_free(disk);
}

static void each_allocation(struct simdisk *start, const char *what, int stride, int least)
{
	int failed = 0;

	starved = true;
	for (long nth = 1 + stride * t_from(T_STRIDE); starved; nth += stride * T_STRIDE) {
		struct simdisk *disk = simdisk_twin(start);
		const struct shf_sys *sys = process(disk);
		struct written c;

		simdisk_set_trace(disk, false);
		starved = false;
		hungry = nth;
		c = copy_by(disk, sys);
		hungry = 0;
		failed += c.rc < 0;
		if (c.rc != 0 && c.rc != SHEAF_ENOMEM)
			print_error("%s, allocation %ld: %d %s\n", what, nth, c.rc, c.err.msg);
		CHECK(c.rc == 0 || c.rc == SHEAF_ENOMEM);
		CHECK(c.rc < 0 || is_whole(disk));
		if (nth % 16 == 1)
			next_is_whole(disk);
		simdisk_free(disk);
	}
	print_message("# %s: %d copies without memory\n", what, failed);
	CHECK(failed > least / stride / T_STRIDE);
}

TEST(a_copy_that_is_taken_up_may_lack_memory)
{
	struct simdisk *base = saved(), *disk = left_by(base, 4);

	CHECK_INT(simdisk_put(disk, in_stage(disk, "optimizer/notes"), "x", 1), 0);
	simdisk_settle(disk);
	each_allocation(disk, "taken up", 4, 50);
	simdisk_free(disk);
	simdisk_free(base);
}

TEST(a_copy_that_is_there_already_may_lack_memory)
{
	struct simdisk *disk = saved();

	next_is_whole(disk);
	simdisk_settle(disk);
	each_allocation(disk, "there", 2, 50);
	simdisk_free(disk);
}

/* ---- a disk that does not keep what it is given ---- */

/* Whenever a file of the stage is thrown away because it was not right, the next one has changed
 * too. */
static struct {
	struct simdisk *disk;
	int gone;
} rot;

static void rot_begin(struct simdisk *disk)
{
	rot.disk = disk;
	rot.gone = 0;
}

static int unlink_and_rot(void *arg, int dir, const char *name, bool folder)
{
	static const char *const next[] = { SECOND, THIRD };
	int rc = simover_real()->disk.unlink(arg, dir, name, folder);

	if (strstr(name, ".safetensors") && rot.gone < 2)
		CHECK_INT(simdisk_flip(rot.disk, in_stage(rot.disk, next[rot.gone++]), 8 * 4200),
		          0);
	return rc;
}

TEST(a_stage_that_rots_pass_after_pass_is_given_up)
{
	struct simdisk *base = saved(), *disk = left_by(base, 7);
	const struct shf_sys *sys = process(disk);
	struct written c;

	rot_begin(disk);
	simover(sys)->disk.unlink = unlink_and_rot;
	CHECK(simdisk_exists(disk, in_stage(disk, THIRD)));
	CHECK_INT(simdisk_flip(disk, in_stage(disk, FIRST), 8 * 4200), 0);
	c = copy_by(disk, sys);
	CHECK_RC(c.rc, SHEAF_EIO, &c.err);
	CHECK(strstr(c.err.msg, "dst/.sheaf/stage/copy-2-") == c.err.msg);
	CHECK(strstr(c.err.msg, "bytes read back differ") != NULL);
	CHECK_INT(rot.gone, 2);
	CHECK(!simdisk_exists(disk, TO));
	CHECK(simdisk_exists(disk, in_stage(disk, "")));
	next_is_whole(disk);
	simdisk_free(disk);
	simdisk_free(base);
}

/* A file of the stage is cut when it has been opened. */
static int open_and_cut(void *arg, int dir, const char *name, int flags, unsigned mode)
{
	int fd = simover_real()->file.open(arg, dir, name, flags, mode);

	if (fd >= 0 && strcmp(name, SECOND) == 0 && rot.gone++ == 1) /* the source's was */
		CHECK_INT(simdisk_put(rot.disk, in_stage(rot.disk, SECOND), "short", 5), 0);
	return fd;
}

TEST(a_file_of_the_stage_that_is_cut_while_it_is_read_is_written_again)
{
	struct simdisk *base = saved(), *disk = left_by(base, 7);
	const struct shf_sys *sys = process(disk);
	struct written c;

	rot_begin(disk);
	simover(sys)->file.open = open_and_cut;
	c = copy_by(disk, sys);
	CHECK_RC(c.rc, 0, &c.err);
	CHECK(rot.gone > 1);
	CHECK(is_whole(disk));
	simdisk_free(disk);
	simdisk_free(base);
}

/* ---- a source that is read on the second try ---- */

/* The first so many reads of it fail. */
static int read_late(struct simdisk *base, const char *name, int fail)
{
	struct simdisk *disk = simdisk_twin(base);
	struct written c;

	for (int nth = 1; nth <= fail; nth++)
		simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth, .error = EIO,
		                                             .kind = SIMDISK_PREAD, .name = name });
	c = copied(disk);
	CHECK(c.rc == 0 || c.rc == SHEAF_EIO);
	CHECK(c.rc == 0 || strstr(c.err.msg, name) != NULL);
	CHECK(simdisk_exists(disk, TO) == (c.rc == 0));
	simdisk_faults_clear(disk);
	next_is_whole(disk);
	simdisk_free(disk);
	return c.rc;
}

TEST(a_source_that_could_not_be_read_at_first_is_copied_next_time)
{
	struct simdisk *base = saved();

	for (int fail = 1; fail <= 12; fail++) {
		CHECK_INT(read_late(base, FIRST, fail), fail < 4 ? 0 : SHEAF_EIO);
		(void)read_late(base, "sheaf.sums", fail);
	}
	simdisk_free(base);
}
