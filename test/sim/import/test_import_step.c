/* SPDX-License-Identifier: Apache-2.0 */
/* A step is imported into a run while the process is killed, each call and each allocation fails,
 * the power is cut after every call, or what lies in the stage is wrong. The run has the whole step
 * or none of it, and the next import succeeds.
 *
 *   test_import_step [--long] [--seed N] [part of a test's name ...]
 *
 * --long tries all that everycut.h says; otherwise few sets of unsynced items at a cut. */
#include "import_step.h"
#include "torchfile.h"
#include "verify_step.h"

#define main t_main
#include "t.h"
#undef main
#include "rewritten.h"

#define FROM "src/checkpoint-2"
#define TO "run/checkpoint-2"
#define FIRST "model-00001-of-00002.safetensors"

static struct shf_import_opts opts = { .number = -1, .how = { .prefix = "", .is_step = true,
	.file_bytes_max = 5000, .memory_bytes = 1 } };
static int import(struct sheaf_checkpoint *step, struct sheaf_report *report,
                  struct sheaf_error *err)
{
	return shf_step_import(step, "run", &opts, report, err);
}

static struct written import_from(struct simdisk *disk, const char *from)
{
	return write_by(disk, process(disk), from, import);
}

static struct written import_by(struct simdisk *disk, const struct shf_sys *sys)
{
	return write_by(disk, sys, FROM, import);
}

static struct written imported(struct simdisk *disk)
{
	return import_from(disk, FROM);
}

/* Step 2 of a run, which lies in the directory src. */
static struct simdisk *saved_on(enum simdisk_model model, int64_t rows, int bigs)
{
	struct simdisk *disk = with_one_step(model, rows, bigs, rows ? 0 : 5000);

	CHECK_INT(simdisk_copy(disk, "run", "src"), 0);
	CHECK_INT(simdisk_remove(disk, "run"), 0);
	simdisk_settle(disk);
	return disk;
}

static struct simdisk *saved(void)
{
	return saved_on(SIMDISK_EXT4, 0, 0);
}

/* Checks the run: its only step is 2, a job can load it, and its files are equal to those of the
 * source, because an import places tensors as a save does. Returns what is wrong, or "". */
static const char *look(struct simdisk *disk, char why[300])
{
	static const char *const names[] = { FIRST, "model-00002-of-00002.safetensors",
		"model.safetensors.index.json", "sheaf.sums" };
	struct seen seen;

	if (job_look(disk, true, 0, &seen, why)[0])
		return why;
	if (seen.n != 1 || seen.steps[0] != 2 || seen.damaged)
		return snprintf(why, 300, "%zu steps, %d damaged", seen.n, seen.damaged), why;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!is_same_file(disk, FROM, TO, names[i]))
			return snprintf(why, 300, "%s differs", names[i]), why;
	return "";
}

static void is_whole(struct simdisk *disk)
{
	char why[300];

	if (look(disk, why)[0])
		fail_msg("%s", why);
}

static void is_verified(struct simdisk *disk, const char *path)
{
	struct shf_opts run = { .flags = SHEAF_RUN_READONLY, .io_threads = 1 };
	const struct shf_sys *sys = process(disk);
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;
	int rc = shf_step_open_path(&step, path, NULL, &run, sys, &err);

	if (rc == 0)
		rc = shf_step_verify(step, NULL, &err);
	CHECK_RC(rc, 0, &err);
	shf_step_put(step);
	simdisk_kill(disk, sys);
}

static int note_name(void *arg, const char *name)
{
	snprintf(arg, 100, "run/.sheaf/stage/%.80s", name);
	return 0;
}

/* The path of the only stage; "": there is none. */
static void stage_of(struct simdisk *disk, char stage[100])
{
	const struct shf_sys *sys = process(disk);
	int dir = shf_sys_open(sys, SHF_CWD, "run/.sheaf/stage", SHF_O_DIR, 0);

	stage[0] = '\0';
	if (dir < 0)
		return;
	CHECK_INT(shf_sys_list(sys, dir, note_name, stage), 0);
	CHECK_INT(shf_sys_close(sys, dir), 0);
	simdisk_kill(disk, sys);
}

TEST(an_import_is_a_step_with_the_files_of_its_source)
{
	struct simdisk *disk = saved();
	struct written e = imported(disk);
	struct job j = { .disk = disk, .ranks = 4, .deeds_n = 2, .file_bytes = 5000,
		.group = { .seed = 9 },
		.deeds = { { .kind = DEED_LOAD, .step = -1 }, { .kind = DEED_SAVE, .step = 3 } } };

	CHECK_RC(e.rc, 0, &e.err);
	is_whole(disk);
	is_verified(disk, TO);
	CHECK_INT(e.report.step, 2);
	CHECK(e.report.held > e.report.bytes && e.report.bytes > 5000);
	CHECK(!is_same_file(disk, FROM, TO, "sheaf.json"));     /* another session and run */
	e = imported(disk);
	CHECK_RC(e.rc, SHEAF_EEXIST, &e.err);
	CHECK(strstr(e.err.msg, "run/checkpoint-2: exists") != NULL);
	job_prepare(&j);
	CHECK(job_run(&j));
	CHECK_INT(job_rc(&j), 0);
	simdisk_free(disk);
}

TEST(an_import_gets_the_number_that_is_asked_for)
{
	struct simdisk *disk = saved();
	struct written e;

	opts.number = 70;
	e = imported(disk);
	CHECK_RC(e.rc, 0, &e.err);
	CHECK_INT(e.report.step, 70);
	is_verified(disk, "run/checkpoint-70");
	opts.number = -1;
	CHECK(is_same_file(disk, FROM, "run/checkpoint-70", FIRST));
	simdisk_free(disk);
}

TEST(a_directory_inside_a_step_becomes_no_run)
{
	struct simdisk *disk = saved();
	struct written e;

	CHECK_INT(simdisk_copy(disk, FROM, "run"), 0);
	e = imported(disk);
	CHECK_RC(e.rc, SHEAF_EINVAL, &e.err);
	CHECK(!simdisk_exists(disk, "run/.sheaf"));
	simdisk_free(disk);
}

TEST(files_of_several_chunks_are_imported_by_several_threads)
{
	struct simdisk *disk = saved_on(SIMDISK_EXT4, 40000, 2);
	struct written e;

	opts.how.file_bytes_max = UINT64_C(5000000000);
	opts.how.memory_bytes = UINT64_C(64) << 20;
	e = imported(disk);
	opts.how.file_bytes_max = 5000;
	opts.how.memory_bytes = 1;
	CHECK_RC(e.rc, 0, &e.err);
	CHECK(e.report.bytes > UINT64_C(9) << 20);
	is_verified(disk, TO);
	CHECK(is_same_file(disk, FROM, TO, "model-00001-of-00001.safetensors"));
	CHECK(is_same_file(disk, FROM, TO, "sheaf.sums"));
	simdisk_free(disk);
}

TEST(damage_of_the_source_is_found_and_nothing_is_left)
{
	struct simdisk *disk = saved_on(SIMDISK_EXT4, 40000, 2);
	struct written e;
	char stage[100];

	CHECK_INT(simdisk_flip(disk, FROM "/model-00001-of-00001.safetensors", UINT64_C(8) * (5 <<
	                       20)), 0);
	e = imported(disk);
	CHECK_RC(e.rc, SHEAF_ECORRUPT, &e.err);
	CHECK(strstr(e.err.msg, "model-00001-of-00001.safetensors: block 5") != NULL);
	CHECK(!simdisk_exists(disk, TO));
	stage_of(disk, stage);
	CHECK_STR(stage, "");
	simdisk_free(disk);
}

/* ---- sources of other software ---- */

static const struct torch_tensor two[] = {
	{ .name = "m.a", .dtype = SHEAF_F32, .ndim = 2, .shape = { 37, 29 } },
	{ .name = "m.b", .dtype = SHEAF_F32, .ndim = 2, .shape = { 37, 29 } },
};

static struct simdisk *with_torch(void)
{
	struct simdisk *disk = saved();
	struct torch_bytes whole = torch_archive(two, 2, TORCH_SOUND);

	torch_dcp(disk, "dcp", two, 2, 3, 4, DCP_SOUND);
	CHECK_INT(simdisk_put(disk, "dcp/config.json", "{}", 2), 0);
	CHECK_INT(simdisk_put(disk, "dcp/notes.txt", "x", 1), 0);
	CHECK_INT(simdisk_put(disk, "file/config.json", "{}", 2), 0);
	CHECK_INT(simdisk_put(disk, "file/whole.pt", whole.p, whole.n), 0);
	free(whole.p);
	return disk;
}

TEST(a_checkpoint_of_torch_is_imported_from_its_boxes)
{
	struct simdisk *disk = with_torch();
	struct written e;

	opts.how.prefix = "m.";
	opts.how.as = "optimizer";
	e = import_from(disk, "dcp");
	CHECK_RC(e.rc, 0, &e.err);
	CHECK_INT(e.report.step, 0);    /* it has tensors only */
	CHECK_INT(e.report.loaded, 2);
	opts.number = 1;
	e = import_from(disk, "file/whole.pt");
	CHECK_RC(e.rc, 0, &e.err);
	opts.how.prefix = "x.";
	opts.number = 2;
	e = import_from(disk, "dcp");
	CHECK_RC(e.rc, SHEAF_ELAYOUT, &e.err);
	opts.how.prefix = "";
	opts.how.as = NULL;
	opts.number = -1;
	is_verified(disk, "run/checkpoint-0");
	is_verified(disk, "run/checkpoint-1");
	CHECK(is_same_file(disk, "run/checkpoint-0", "run/checkpoint-1",
	                   "optimizer/optimizer-00001-of-00002.safetensors"));
	CHECK(is_same_file(disk, "run/checkpoint-0", "run/checkpoint-1", "sheaf.sums"));
	CHECK(simdisk_exists(disk, "run/checkpoint-0/config.json"));
	CHECK(!simdisk_exists(disk, "run/checkpoint-0/notes.txt"));
	simdisk_free(disk);
}

/* A name of a family is also that of its folder. */
TEST(a_file_that_cannot_be_attached_to_the_step_is_left_out_and_counted)
{
	struct simdisk *disk = saved();
	struct written e;

	CHECK_INT(simdisk_copy(disk, FROM, "hf"), 0);
	CHECK_INT(simdisk_remove(disk, "hf/sheaf.json"), 0);
	CHECK_INT(simdisk_remove(disk, "hf/sheaf.sums"), 0);
	CHECK_INT(simdisk_put(disk, "hf/extra", "x", 1), 0);
	opts.how.family = "model";
	opts.number = 1;
	e = import_from(disk, "hf");
	CHECK_RC(e.rc, 0, &e.err);
	CHECK_INT(e.report.unexpected, 0);
	CHECK(is_same_file(disk, "hf", "run/checkpoint-1", "extra"));
	opts.how.as = "extra";
	for (opts.number = 2; opts.number < 4; opts.number++) {
		e = import_from(disk, opts.number == 2 ? "hf" : "run/checkpoint-1");
		CHECK_RC(e.rc, 0, &e.err);
		CHECK_INT(e.report.unexpected, 1);
	}
	opts.how.family = opts.how.as = NULL;
	opts.number = -1;
	is_verified(disk, "run/checkpoint-2");
	is_verified(disk, "run/checkpoint-3");
	simdisk_free(disk);
}

static void is_not_imported_while(struct simdisk *disk, const char *from, const char *path,
                                  int64_t number)
{
	char to[60];
	struct written e;

	snprintf(to, sizeof(to), "run/checkpoint-%lld", (long long)number);
	changing = (struct changing){ .disk = disk, .path = path };
	opts.number = number;
	opts.how.progress = change;
	e = import_from(disk, from);
	opts.how.progress = NULL;
	CHECK(changing.done);
	CHECK_RC(e.rc, SHEAF_EAGAIN, &e.err);
	CHECK(strstr(e.err.msg, path) && strstr(e.err.msg, "was changed while"));
	CHECK(!simdisk_exists(disk, to));
	e = import_from(disk, from);
	CHECK_RC(e.rc, 0, &e.err);
	is_verified(disk, to);
	opts.number = -1;
}

TEST(a_source_without_checksums_that_changes_meanwhile_is_not_imported)
{
	struct simdisk *disk = with_torch();

	is_not_imported_while(disk, "file/whole.pt", "file/whole.pt", 1);
	is_not_imported_while(disk, "dcp", "dcp/__0_0.distcp", 2);
	CHECK_INT(simdisk_copy(disk, FROM, "hf"), 0);
	CHECK_INT(simdisk_remove(disk, "hf/sheaf.json"), 0);
	CHECK_INT(simdisk_remove(disk, "hf/sheaf.sums"), 0);
	is_not_imported_while(disk, "hf", "hf/" FIRST, 3);
	simdisk_free(disk);
}

/* ---- the stage ---- */

static struct simdisk *left_by(struct simdisk *base, int nth)
{
	struct simdisk *disk = killed_in_part(base, nth, imported);

	CHECK(!simdisk_exists(disk, TO));
	return disk;
}

TEST(an_import_that_was_killed_is_taken_up)
{
	struct simdisk *base = saved(), *disk = left_by(base, 2);
	struct written e = imported(disk), all;
	char stage[100];

	CHECK_RC(e.rc, 0, &e.err);
	is_whole(disk);
	all = imported(base);
	CHECK(e.report.held > 0 && e.report.held < all.report.held);    /* one file was there */
	stage_of(disk, stage);
	CHECK_STR(stage, "");
	simdisk_free(disk);
	simdisk_free(base);
}

TEST(a_finished_file_in_the_stage_that_differs_is_written_again)
{
	struct simdisk *base = saved(), *disk = left_by(base, 2);
	struct written e;
	char stage[100], path[200];

	stage_of(disk, stage);
	snprintf(path, sizeof(path), "%s/" FIRST, stage);
	CHECK_INT(simdisk_flip(disk, path, 8 * 4200), 0);
	snprintf(path, sizeof(path), "%s/notes", stage);
	CHECK_INT(simdisk_put(disk, path, "x", 1), 0);
	e = imported(disk);
	CHECK_RC(e.rc, 0, &e.err);
	is_whole(disk);
	is_verified(disk, TO);
	simdisk_free(disk);
	simdisk_free(base);
}

/* Turns a bit around on the disk when all is written and nothing read back. */
static int flip(void *arg, uint64_t done, uint64_t total)
{
	char stage[100], path[200];

	if (done != total / 2)
		return 0;
	stage_of(arg, stage);
	snprintf(path, sizeof(path), "%s/" FIRST, stage);
	CHECK_INT(simdisk_flip(arg, path, 8 * 4500), 0);
	return 0;
}

TEST(what_reads_back_differently_is_not_published)
{
	struct simdisk *disk = saved();
	struct written e;

	opts.how.progress = flip;
	opts.how.arg = disk;
	e = imported(disk);
	opts.how.progress = NULL;
	CHECK_RC(e.rc, SHEAF_EIO, &e.err);
	CHECK(strstr(e.err.msg, FIRST ": bytes 0 to ") != NULL);
	CHECK(!simdisk_exists(disk, TO));
	e = imported(disk);     /* finds it, and writes the file again */
	CHECK_RC(e.rc, 0, &e.err);
	is_whole(disk);
	simdisk_free(disk);
}

TEST(the_caller_may_stop_an_import)
{
	struct simdisk *disk = saved();
	struct written e;

	opts.how.progress = stop_there;
	e = imported(disk);
	opts.how.progress = NULL;
	CHECK_RC(e.rc, SHEAF_EFAILED, &e.err);
	CHECK(!simdisk_exists(disk, TO));
	e = imported(disk);
	CHECK_RC(e.rc, 0, &e.err);
	is_whole(disk);
	simdisk_free(disk);
}

/* ---- each call, each allocation, each cut ---- */

static void check_whole(struct simdisk *disk, const void *arg)
{
	(void)arg;
	is_whole(disk);
}

TEST(each_call_of_an_import_may_fail)
{
	const struct rewriting r = { import_by, TO, check_whole, 60, NULL };
	struct simdisk *base = saved();

	each_call_may_fail(base, &r);
	simdisk_free(base);
}

TEST(each_allocation_of_an_import_may_fail)
{
	const struct rewriting r = { import_by, TO, check_whole, 20, NULL };
	struct simdisk *base = saved();

	each_allocation_may_fail(base, &r);
	simdisk_free(base);
}

static const char *judge(const void *arg, struct simdisk *disk, int64_t cut, char why[300])
{
	const struct story *story = arg;
	struct written e;

	if (simdisk_hash(disk, "src") != story->was)
		return snprintf(why, 300, "the source has changed"), why;
	if (!simdisk_exists(disk, TO)) {
		if (cut >= story->acked)
			return snprintf(why, 300, "the step is gone"), why;
		e = imported(disk);
		if (e.rc < 0)
			return snprintf(why, 300, "the next import: %.200s", e.err.msg), why;
	}
	return look(disk, why);
}

static void cuts(enum simdisk_model model)
{
	struct simdisk *disk = saved_on(model, 0, 0);
	struct story story = { .was = simdisk_hash(disk, "src") };
	struct written e = imported(disk);

	CHECK_RC(e.rc, 0, &e.err);
	hunt_cuts(disk, &story, T_STRIDE, judge);
	simdisk_free(disk);
}

TEST(an_import_survives_every_cut_strict)
{
	cuts(SIMDISK_STRICT);
}

TEST(an_import_survives_every_cut_ext4)
{
	cuts(SIMDISK_EXT4);
}

int main(int argc, char **argv)
{
	return everycut_main(argc, argv, t_main);
}
