/* SPDX-License-Identifier: Apache-2.0 */
/* A step is exported while the process is killed at every call, each call and each allocation
 * fails, the power is cut after every call, or what lies in the partial directory is wrong. The
 * directory is whole or not there, and the next export succeeds.
 *
 *   test_export_hf [--long] [--seed N] [part of a test's name ...]
 *
 * --long tries all that everycut.h says; otherwise few sets of unsynced items at a cut. */
#include <stdatomic.h>
#include "export_step.h"
#include "simover.h"
#include "torchfile.h"

#define main t_main
#include "t.h"
#undef main
#include "rewritten.h"

#define FROM "run/checkpoint-2"
#define TO "out/hf"
#define PARTIAL "out/hf.partial/"
#define MARK ".sheaf-export"
#define FIRST "model-00001-of-00002.safetensors"

static struct shf_export_opts how = { .family = "model", .prefix = "", .file_bytes_max = 5000,
	.memory_bytes = 1 };
static const char *to = TO;

static int export(struct sheaf_checkpoint *step, struct sheaf_report *report,
                  struct sheaf_error *err)
{
	return shf_step_export(step, to, &how, report, err);
}

static struct written export_from(struct simdisk *disk, const char *from)
{
	return write_by(disk, process(disk), from, export);
}

static struct written export_by(struct simdisk *disk, const struct shf_sys *sys)
{
	return write_by(disk, sys, FROM, export);
}

static struct written exported(struct simdisk *disk)
{
	return export_from(disk, FROM);
}

/* Step 2 of a run. */
static struct simdisk *saved_on(enum simdisk_model model, int64_t rows, int bigs)
{
	struct simdisk *disk = with_one_step(model, rows, bigs, rows ? 0 : 5000);

	CHECK_INT(simdisk_put(disk, "out/other", "", 0), 0);
	simdisk_settle(disk);
	return disk;
}

static struct simdisk *saved(void)
{
	return saved_on(SIMDISK_EXT4, 0, 0);
}

/* What an export makes of this disk's step. */
static uint64_t wanted(struct simdisk *base)
{
	return hash_of(base, TO, exported);
}

/* An export places tensors in files as a save does, so its files are those of the step. */
static void is_like_the_step(struct simdisk *disk, const char *name)
{
	CHECK(is_same_file(disk, FROM, TO, name));
}

TEST(an_export_has_the_files_of_the_step_and_nothing_of_sheaf)
{
	struct simdisk *disk = saved();
	struct written e = exported(disk);

	CHECK_RC(e.rc, 0, &e.err);
	is_like_the_step(disk, FIRST);
	is_like_the_step(disk, "model-00002-of-00002.safetensors");
	is_like_the_step(disk, "model.safetensors.index.json");
	CHECK(!simdisk_exists(disk, TO "/sheaf.json"));
	CHECK(!simdisk_exists(disk, TO "/" MARK));
	CHECK(!simdisk_exists(disk, "out/hf.partial"));
	CHECK_INT(e.report.files, 2);
	CHECK(e.report.held > e.report.bytes && e.report.bytes > 5000);
	e = exported(disk);
	CHECK_RC(e.rc, SHEAF_EEXIST, &e.err);
	simdisk_free(disk);
}

TEST(an_export_that_kept_its_mark_is_exported_like_any_other)
{
	struct simdisk *disk = saved();
	struct written e;

	simdisk_fault(disk, &(struct simdisk_fault){ .nth = 1, .kind = SIMDISK_UNLINK,
	                                             .how = SIMDISK_KILL, .name = MARK });
	(void)exported(disk);
	CHECK_INT(simdisk_fired(disk), 1);
	simdisk_faults_clear(disk);
	CHECK(simdisk_exists(disk, TO "/" MARK));
	to = "out/again";
	e = export_from(disk, TO);
	to = TO;
	CHECK_RC(e.rc, 0, &e.err);
	CHECK(!simdisk_exists(disk, "out/again/" MARK));
	CHECK_INT(simdisk_remove(disk, TO "/" MARK), 0);
	CHECK(simdisk_hash(disk, TO) == simdisk_hash(disk, "out/again"));
	simdisk_free(disk);
}

TEST(files_of_several_chunks_are_written_by_several_threads)
{
	struct simdisk *disk = saved_on(SIMDISK_EXT4, 40000, 2);
	struct written e;

	how.file_bytes_max = UINT64_C(5000000000);
	how.memory_bytes = UINT64_C(64) << 20;
	e = exported(disk);
	how.file_bytes_max = 5000;
	how.memory_bytes = 1;
	CHECK_RC(e.rc, 0, &e.err);
	CHECK(e.report.bytes > UINT64_C(9) << 20);
	CHECK_INT(e.report.files, 1);
	CHECK_INT(simdisk_copy(disk, TO "/model.safetensors",
	                       TO "/model-00001-of-00001.safetensors"), 0);
	is_like_the_step(disk, "model-00001-of-00001.safetensors");
	simdisk_free(disk);
}

static atomic_uint_fast64_t read_once;

static int64_t pread_once(void *arg, int fd, void *buf, size_t n, uint64_t off)
{
	read_once += n;
	return simover_real()->file.pread(arg, fd, buf, n, off);
}

TEST(what_is_read_once_needs_no_page_cache)
{
	static const struct torch_tensor one[] = {
		{ .name = "m.a", .dtype = SHEAF_F32, .ndim = 2, .shape = { 1000, 1000 } },
	};
	struct simdisk *disk = saved_on(SIMDISK_EXT4, 40000, 2);
	const struct shf_sys *sys = process(disk);
	struct torch_bytes whole = torch_archive(one, 1, TORCH_SOUND);
	struct written e;

	simover(sys)->file.pread_once = pread_once;
	read_once = 0;
	how.file_bytes_max = UINT64_C(5000000000);
	e = export_by(disk, sys);
	CHECK_RC(e.rc, 0, &e.err);
	CHECK(read_once >= e.report.bytes);
	CHECK_INT(simdisk_copy(disk, TO "/model.safetensors",
	                       TO "/model-00001-of-00001.safetensors"), 0);
	is_like_the_step(disk, "model-00001-of-00001.safetensors");
	CHECK_INT(simdisk_remove(disk, TO), 0);
	CHECK_INT(simdisk_put(disk, "file/whole.pt", whole.p, whole.n), 0);
	sys = process(disk);
	simover(sys)->file.pread_once = pread_once;
	read_once = 0;
	e = write_by(disk, sys, "file/whole.pt", export);
	CHECK_RC(e.rc, 0, &e.err);
	CHECK(read_once >= 4000000 && read_once < 4100000);
	how.file_bytes_max = 5000;
	free(whole.p);
	simdisk_free(disk);
}

TEST(damage_of_the_step_is_found_and_nothing_is_published)
{
	struct simdisk *disk = saved_on(SIMDISK_EXT4, 40000, 2);
	struct written e;

	/* In a block that has nothing of the header, which is checked when the step is opened. */
	CHECK_INT(simdisk_flip(disk, FROM "/model-00001-of-00001.safetensors", UINT64_C(8) * (5 <<
	                       20)), 0);
	e = exported(disk);
	CHECK_RC(e.rc, SHEAF_ECORRUPT, &e.err);
	CHECK(strstr(e.err.msg, "model-00001-of-00001.safetensors: block 5") != NULL);
	CHECK(!simdisk_exists(disk, TO));
	simdisk_free(disk);
}

TEST(a_checkpoint_of_torch_is_exported_from_its_boxes)
{
	static const struct torch_tensor two[] = {
		{ .name = "m.a", .dtype = SHEAF_F32, .ndim = 2, .shape = { 37, 29 } },
		{ .name = "m.b", .dtype = SHEAF_F32, .ndim = 2, .shape = { 37, 29 } },
	};
	struct simdisk *disk = saved();
	struct written e;
	struct torch_bytes whole = torch_archive(two, 2, TORCH_SOUND);
	uint64_t hash;

	torch_dcp(disk, "dcp", two, 2, 3, 4, DCP_SOUND);
	CHECK_INT(simdisk_put(disk, "dcp/config.json", "{}", 2), 0);
	CHECK_INT(simdisk_put(disk, "dcp/notes.txt", "x", 1), 0);
	CHECK_INT(simdisk_put(disk, "file/config.json", "{}", 2), 0);
	CHECK_INT(simdisk_put(disk, "file/whole.pt", whole.p, whole.n), 0);
	how.prefix = "m.";
	e = export_from(disk, "dcp");
	CHECK_RC(e.rc, 0, &e.err);
	CHECK_INT(e.report.loaded, 2);
	CHECK(simdisk_exists(disk, TO "/config.json"));
	CHECK(!simdisk_exists(disk, TO "/notes.txt"));
	hash = simdisk_hash(disk, TO);
	CHECK_INT(simdisk_remove(disk, TO), 0);
	e = export_from(disk, "file/whole.pt");
	CHECK_RC(e.rc, 0, &e.err);
	CHECK(simdisk_hash(disk, TO) == hash);
	how.prefix = "x.";
	CHECK_INT(simdisk_remove(disk, TO), 0);
	e = export_from(disk, "dcp");
	CHECK_RC(e.rc, SHEAF_ELAYOUT, &e.err);
	CHECK(!simdisk_exists(disk, "out/hf.partial"));
	how.prefix = "";
	free(whole.p);
	simdisk_free(disk);
}

/* ---- a source without checksums ---- */

static void is_not_exported_while(struct simdisk *disk, const char *from, const char *path)
{
	struct written e;

	changing = (struct changing){ .disk = disk, .path = path };
	to = "out/torn";
	how.progress = change;
	e = export_from(disk, from);
	how.progress = NULL;
	CHECK(changing.done);
	CHECK_RC(e.rc, SHEAF_EAGAIN, &e.err);
	CHECK(strstr(e.err.msg, path) && strstr(e.err.msg, "was changed while"));
	CHECK(!simdisk_exists(disk, to));
	e = export_from(disk, from);
	CHECK_RC(e.rc, 0, &e.err);
	CHECK_INT(simdisk_remove(disk, to), 0);
	to = TO;
}

TEST(a_source_without_checksums_that_changes_meanwhile_is_not_exported)
{
	static const struct torch_tensor one[] = {
		{ .name = "a", .dtype = SHEAF_F32, .ndim = 2, .shape = { 90, 70 } },
	};
	struct simdisk *disk = saved();
	struct torch_bytes whole = torch_archive(one, 1, TORCH_SOUND);
	struct written e = exported(disk);

	CHECK_RC(e.rc, 0, &e.err);
	torch_dcp(disk, "dcp", one, 1, 3, 4, DCP_SOUND);
	CHECK_INT(simdisk_put(disk, "file/whole.pt", whole.p, whole.n), 0);
	is_not_exported_while(disk, "file/whole.pt", "file/whole.pt");
	is_not_exported_while(disk, "dcp", "dcp/__0_0.distcp");
	is_not_exported_while(disk, TO, TO "/" FIRST);
	free(whole.p);
	simdisk_free(disk);
}

static int config_fd;           /* of the file config.json that is copied */

static int open_and_watch(void *arg, int dir, const char *name, int flags, unsigned mode)
{
	int fd = simover_real()->file.open(arg, dir, name, flags, mode);

	if (strcmp(name, "config.json") == 0 && !(flags & SHF_O_WRITE))
		config_fd = fd;
	return fd;
}

static int64_t pread_and_change(void *arg, int fd, void *buf, size_t n, uint64_t off)
{
	int64_t got = simover_real()->file.pread(arg, fd, buf, n, off);

	if (fd == config_fd)
		change(NULL, 1, 1);
	return got;
}

TEST(a_file_beside_the_source_that_changes_while_it_is_copied_is_not_exported)
{
	static const struct torch_tensor one[] = {
		{ .name = "a", .dtype = SHEAF_F32, .ndim = 2, .shape = { 9, 7 } },
	};
	static const char text[500] = "{}";
	struct simdisk *disk = saved();
	const struct shf_sys *sys = process(disk);
	struct written e;

	torch_dcp(disk, "dcp", one, 1, 1, 1, DCP_SOUND);
	CHECK_INT(simdisk_put(disk, "dcp/config.json", text, sizeof(text)), 0);
	changing = (struct changing){ .disk = disk, .path = "dcp/config.json" };
	config_fd = -1;
	simover(sys)->file.open = open_and_watch;
	simover(sys)->file.pread = pread_and_change;
	e = write_by(disk, sys, "dcp", export);
	CHECK(changing.done);
	CHECK_RC(e.rc, SHEAF_EAGAIN, &e.err);
	CHECK(strstr(e.err.msg, "dcp/config.json: was changed while") != NULL);
	CHECK(!simdisk_exists(disk, to));
	e = export_from(disk, "dcp");
	CHECK_RC(e.rc, 0, &e.err);
	simdisk_free(disk);
}

/* ---- the partial directory ---- */

static struct simdisk *left_by(struct simdisk *base, int nth)
{
	struct simdisk *disk = killed_in_part(base, nth, exported);

	CHECK(!simdisk_exists(disk, TO));
	return disk;
}

TEST(an_export_that_was_killed_is_taken_up)
{
	struct simdisk *base = saved(), *disk = left_by(base, 2);
	uint64_t want = wanted(base), all = 0;
	struct written e;

	CHECK(simdisk_exists(disk, PARTIAL FIRST));
	e = exported(disk);
	CHECK_RC(e.rc, 0, &e.err);
	CHECK(simdisk_hash(disk, TO) == want);
	all = e.report.bytes;
	CHECK(e.report.held > 0 && e.report.held < all);        /* one file of two */
	simdisk_free(disk);
	simdisk_free(base);
}

static struct {                 /* how the finished file was read, by descriptor */
	struct { bool it, direct; } fds[64];
	uint64_t bytes, cached;
} finished;

static int open_and_note(void *arg, int dir, const char *name, int flags, unsigned mode)
{
	int fd = simover_real()->file.open(arg, dir, name, flags, mode);

	if (fd >= 0) {
		finished.fds[fd % 64].it = strcmp(name, FIRST) == 0 && flags & SHF_O_NOFOLLOW;
		finished.fds[fd % 64].direct = flags & SHF_O_DIRECT;
	}
	return fd;
}

static int64_t pread_and_note(void *arg, int fd, void *buf, size_t n, uint64_t off)
{
	if (finished.fds[fd % 64].it && finished.fds[fd % 64].direct)
		finished.bytes += n;
	else if (finished.fds[fd % 64].it)
		finished.cached += n;
	return simover_real()->file.pread(arg, fd, buf, n, off);
}

TEST(a_finished_file_is_compared_past_the_page_cache)
{
	struct simdisk *base = saved(), *disk = left_by(base, 2);
	const struct shf_sys *sys = process(disk);
	struct written e;

	memset(&finished, 0, sizeof(finished));
	simover(sys)->file.open = open_and_note;
	simover(sys)->file.pread = pread_and_note;
	e = export_by(disk, sys);
	CHECK_RC(e.rc, 0, &e.err);
	CHECK(finished.bytes >= 4096);
	CHECK_INT(finished.cached, 0);
	simdisk_free(disk);
	simdisk_free(base);
}

/* Another process makes the directory just before the rename, and removes it just after. */
TEST(a_rename_that_was_refused_is_no_success)
{
	struct simdisk *disk = saved();
	struct written e;

	simdisk_fault(disk, &(struct simdisk_fault){ .nth = 1, .kind = SIMDISK_RENAME,
	                                             .error = EEXIST, .name = "hf.partial" });
	e = exported(disk);
	CHECK_INT(simdisk_fired(disk), 1);
	simdisk_faults_clear(disk);
	CHECK_RC(e.rc, SHEAF_EEXIST, &e.err);
	CHECK(!simdisk_exists(disk, TO));
	e = exported(disk);
	CHECK_RC(e.rc, 0, &e.err);
	simdisk_free(disk);
}

TEST(a_finished_file_that_differs_is_written_again)
{
	struct simdisk *base = saved(), *disk = left_by(base, 2);
	uint64_t want = wanted(base);
	struct written e;

	CHECK_INT(simdisk_flip(disk, PARTIAL FIRST, 8 * 4200), 0);
	CHECK_INT(simdisk_put(disk, PARTIAL "notes", "x", 1), 0);
	e = exported(disk);
	CHECK_RC(e.rc, 0, &e.err);
	CHECK(simdisk_hash(disk, TO) == want);
	simdisk_free(disk);
	simdisk_free(base);
}

TEST(a_directory_that_no_export_has_left_is_not_touched)
{
	struct simdisk *disk = saved();
	uint64_t was;
	struct written e;

	CHECK_INT(simdisk_put(disk, PARTIAL "thesis.txt", "x", 1), 0);
	was = simdisk_hash(disk, "out");
	e = exported(disk);
	CHECK_RC(e.rc, SHEAF_EEXIST, &e.err);
	CHECK(simdisk_hash(disk, "out") == was);
	simdisk_free(disk);
}

/* Turns a bit around on the disk when all is written and nothing read back. */
static int flip(void *arg, uint64_t done, uint64_t total)
{
	if (done == total / 2)
		CHECK_INT(simdisk_flip(arg, PARTIAL FIRST, 8 * 4500), 0);
	return 0;
}

TEST(what_reads_back_differently_is_not_published)
{
	struct simdisk *base = saved(), *disk = simdisk_twin(base);
	uint64_t want = wanted(base);
	struct written e;

	how.progress = flip;
	how.arg = disk;
	e = exported(disk);
	how.progress = NULL;
	CHECK_RC(e.rc, SHEAF_EIO, &e.err);
	CHECK(strstr(e.err.msg, FIRST ": bytes 0 to ") != NULL);
	CHECK(!simdisk_exists(disk, TO));
	e = exported(disk);     /* finds it, and writes the file again */
	CHECK_RC(e.rc, 0, &e.err);
	CHECK(simdisk_hash(disk, TO) == want);
	simdisk_free(disk);
	simdisk_free(base);
}

TEST(the_caller_may_stop_an_export)
{
	struct simdisk *base = saved(), *disk = simdisk_twin(base);
	uint64_t want = wanted(base);
	struct written e;

	how.progress = stop_there;
	e = exported(disk);
	how.progress = NULL;
	CHECK_RC(e.rc, SHEAF_EFAILED, &e.err);
	CHECK(!simdisk_exists(disk, TO));
	e = exported(disk);
	CHECK_RC(e.rc, 0, &e.err);
	CHECK(simdisk_hash(disk, TO) == want);
	simdisk_free(disk);
	simdisk_free(base);
}

/* ---- each call, each allocation, each cut ---- */

/* want: the hash of a whole directory. A crash may leave the mark in it. */
static void check_whole(struct simdisk *disk, const void *want)
{
	(void)simdisk_remove(disk, TO "/" MARK);
	CHECK(simdisk_hash(disk, TO) == *(const uint64_t *)want);
}

TEST(each_call_of_an_export_may_fail)
{
	struct simdisk *base = saved();
	const uint64_t want = wanted(base);
	const struct rewriting r = { export_by, TO, check_whole, 30, &want };

	each_call_may_fail(base, &r);
	simdisk_free(base);
}

TEST(each_allocation_of_an_export_may_fail)
{
	struct simdisk *base = saved();
	const uint64_t want = wanted(base);
	const struct rewriting r = { export_by, TO, check_whole, 10, &want };

	each_allocation_may_fail(base, &r);
	simdisk_free(base);
}

static const char *judge(const void *story, struct simdisk *disk, int64_t cut, char why[300])
{
	return judge_hash(story, disk, cut, why, TO, exported);
}

static void cuts(enum simdisk_model model)
{
	struct simdisk *base = saved(), *disk;
	struct story story = { .was = wanted(base) };
	struct written e;

	disk = saved_on(model, 0, 0);
	e = exported(disk);
	CHECK_RC(e.rc, 0, &e.err);
	CHECK(simdisk_hash(disk, TO) == story.was);
	hunt_cuts(disk, &story, T_STRIDE, judge);
	simdisk_free(disk);
	simdisk_free(base);
}

TEST(an_export_survives_every_cut_strict)
{
	cuts(SIMDISK_STRICT);
}

TEST(an_export_survives_every_cut_ext4)
{
	cuts(SIMDISK_EXT4);
}

int main(int argc, char **argv)
{
	return everycut_main(argc, argv, t_main);
}
