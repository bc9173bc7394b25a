/* SPDX-License-Identifier: Apache-2.0 */
/* A step is exported while the process is killed at every call, each call and each allocation
 * fails, the power is cut after every call, or what lies in the partial directory is wrong. The
 * directory is whole or not there, and the next export succeeds.
 *
 *   test_export_hf [--long] [--seed N] [part of a test's name ...]
 *
 * --long tries all that everycut.h says; otherwise few sets of unsynced items at a cut. */
#include <errno.h>
#include <stdlib.h>
#include "everycut.h"
#include "export_hf.h"
#include "jobs.h"
#include "simover.h"
#include "starve.h"
#include "step_open.h"
#include "torchfile.h"

#define main t_main
#include "t.h"
#undef main

#define FROM "run/checkpoint-2"
#define TO "out/hf"
#define PARTIAL "out/hf.partial/"
#define MARK ".sheaf-export"
#define FIRST "model-00001-of-00002.safetensors"

static const struct shf_sys *process(struct simdisk *disk)
{
	static uint64_t pid = 95000;

	return simdisk_process(disk, pid++, 0);
}

struct export {
	int rc;
	struct sheaf_error err;
	struct sheaf_report report;
};
static struct shf_export_opts how = { .family = "model", .prefix = "", .file_bytes_max = 5000,
	.memory_bytes = 1 };
static const char *to = TO;
static long hungry;             /* which allocation of an export fails; 0: none */

/* By a process that is killed afterwards, and has given back what it opened. */
static struct export export_by(struct simdisk *disk, const struct shf_sys *sys, const char *from)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY, .io_threads = 1 };
	struct export e = { .report = { .size = sizeof(e.report) } };
	struct sheaf_checkpoint *step = NULL;

	e.rc = shf_step_open_path(&step, from, NULL, &opts, sys, &e.err);
	starve_left = hungry;
	if (e.rc == 0)
		e.rc = shf_step_export(step, to, &how, &e.report, &e.err);
	starve_left = 0;
	shf_step_put(step);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_kill(disk, sys);
	return e;
}

static struct export exported(struct simdisk *disk)
{
	return export_by(disk, process(disk), FROM);
}

/* Step 2 of a run. */
static struct simdisk *saved_on(enum simdisk_model model, int64_t rows, int bigs)
{
	struct simdisk *disk = simdisk_new(5, model);
	struct job j = { .disk = disk, .ranks = 1, .deeds_n = 1, .rows = rows, .bigs = bigs,
		.file_bytes = rows ? 0 : 5000, .group = { .seed = 9 },
		.deeds = { { .kind = DEED_SAVE, .step = 2 } } };

	job_prepare(&j);
	CHECK(job_run(&j));
	CHECK_INT(job_rc(&j), 0);
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
	struct simdisk *disk = simdisk_twin(base);
	struct export e = exported(disk);
	uint64_t hash;

	CHECK_RC(e.rc, 0, &e.err);
	hash = simdisk_hash(disk, TO);
	CHECK(hash != 0);
	simdisk_free(disk);
	return hash;
}

/* The files have the bytes that the files of the step have, because they are placed alike. */
static void is_like_the_step(struct simdisk *disk, const char *name)
{
	char a[300], b[300];
	size_t n, m;
	char *x, *y;

	snprintf(a, sizeof(a), FROM "/%s", name);
	snprintf(b, sizeof(b), TO "/%s", name);
	x = simdisk_get(disk, a, &n);
	y = simdisk_get(disk, b, &m);
	CHECK(x && y && n == m && memcmp(x, y, n) == 0);
	free(x);
	free(y);
}

TEST(an_export_has_the_files_of_the_step_and_nothing_of_sheaf)
{
	struct simdisk *disk = saved();
	struct export e = exported(disk);

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
	struct export e;

	simdisk_fault(disk, &(struct simdisk_fault){ .nth = 1, .kind = SIMDISK_UNLINK,
	                                             .how = SIMDISK_KILL, .name = MARK });
	(void)exported(disk);
	CHECK_INT(simdisk_fired(disk), 1);
	simdisk_faults_clear(disk);
	CHECK(simdisk_exists(disk, TO "/" MARK));
	to = "out/again";
	e = export_by(disk, process(disk), TO);
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
	struct export e;

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

TEST(damage_of_the_step_is_found_and_nothing_is_published)
{
	struct simdisk *disk = saved_on(SIMDISK_EXT4, 40000, 2);
	struct export e;

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
	struct export e;
	struct torch_bytes whole = torch_archive(two, 2, TORCH_SOUND);
	uint64_t hash;

	torch_dcp(disk, "dcp", two, 2, 3, 4, DCP_SOUND);
	CHECK_INT(simdisk_put(disk, "dcp/config.json", "{}", 2), 0);
	CHECK_INT(simdisk_put(disk, "dcp/notes.txt", "x", 1), 0);
	CHECK_INT(simdisk_put(disk, "file/config.json", "{}", 2), 0);
	CHECK_INT(simdisk_put(disk, "file/whole.pt", whole.p, whole.n), 0);
	how.prefix = "m.";
	e = export_by(disk, process(disk), "dcp");
	CHECK_RC(e.rc, 0, &e.err);
	CHECK_INT(e.report.loaded, 2);
	CHECK(simdisk_exists(disk, TO "/config.json"));
	CHECK(!simdisk_exists(disk, TO "/notes.txt"));
	hash = simdisk_hash(disk, TO);
	CHECK_INT(simdisk_remove(disk, TO), 0);
	e = export_by(disk, process(disk), "file/whole.pt");
	CHECK_RC(e.rc, 0, &e.err);
	CHECK(simdisk_hash(disk, TO) == hash);
	how.prefix = "x.";
	CHECK_INT(simdisk_remove(disk, TO), 0);
	e = export_by(disk, process(disk), "dcp");
	CHECK_RC(e.rc, SHEAF_ELAYOUT, &e.err);
	CHECK(!simdisk_exists(disk, "out/hf.partial"));
	how.prefix = "";
	free(whole.p);
	simdisk_free(disk);
}

/* ---- a source without checksums ---- */

static struct changing {        /* a file of the source that another process changes */
	struct simdisk *disk;
	const char *path;
	bool done;
} changing;

/* Writes a byte of it as it was, so that its size stays, and the next export finds it whole. */
static int change(void *arg, uint64_t done, uint64_t total)
{
	const struct shf_sys *sys;
	char byte;
	int fd;

	(void)arg;
	(void)total;
	if (!done || changing.done)
		return 0;
	changing.done = true;
	simdisk_advance(changing.disk, 2);
	sys = process(changing.disk);
	fd = shf_sys_open(sys, SHF_CWD, changing.path, SHF_O_WRITE, 0);
	CHECK(fd >= 0);
	CHECK_INT(shf_sys_pread(sys, fd, &byte, 1, 400), 1);
	CHECK_INT(shf_sys_pwrite(sys, fd, &byte, 1, 400), 1);
	CHECK_INT(shf_sys_close(sys, fd), 0);
	return 0;
}

static void is_not_exported_while(struct simdisk *disk, const char *from, const char *path)
{
	struct export e;

	changing = (struct changing){ .disk = disk, .path = path };
	to = "out/torn";
	how.progress = change;
	e = export_by(disk, process(disk), from);
	how.progress = NULL;
	CHECK(changing.done);
	CHECK_RC(e.rc, SHEAF_EAGAIN, &e.err);
	CHECK(strstr(e.err.msg, path) && strstr(e.err.msg, "was changed while"));
	CHECK(!simdisk_exists(disk, to));
	e = export_by(disk, process(disk), from);
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
	struct export e = exported(disk);

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
	struct export e;

	torch_dcp(disk, "dcp", one, 1, 1, 1, DCP_SOUND);
	CHECK_INT(simdisk_put(disk, "dcp/config.json", text, sizeof(text)), 0);
	changing = (struct changing){ .disk = disk, .path = "dcp/config.json" };
	config_fd = -1;
	simover(sys)->file.open = open_and_watch;
	simover(sys)->file.pread = pread_and_change;
	e = export_by(disk, sys, "dcp");
	CHECK(changing.done);
	CHECK_RC(e.rc, SHEAF_EAGAIN, &e.err);
	CHECK(strstr(e.err.msg, "dcp/config.json: was changed while") != NULL);
	CHECK(!simdisk_exists(disk, to));
	e = export_by(disk, process(disk), "dcp");
	CHECK_RC(e.rc, 0, &e.err);
	simdisk_free(disk);
}

/* ---- the partial directory ---- */

/* An export was killed when it synced its nth part. */
static struct simdisk *left_by(struct simdisk *base, int nth)
{
	struct simdisk *disk = simdisk_twin(base);

	simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth, .kind = SIMDISK_FSYNC,
	                                             .how = SIMDISK_KILL, .name = "part-" });
	CHECK(exported(disk).rc < 0);
	CHECK_INT(simdisk_fired(disk), 1);
	simdisk_faults_clear(disk);
	CHECK(!simdisk_exists(disk, TO));
	return disk;
}

TEST(an_export_that_was_killed_is_taken_up)
{
	struct simdisk *base = saved(), *disk = left_by(base, 2);
	uint64_t want = wanted(base), all = 0;
	struct export e;

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
	struct export e;

	memset(&finished, 0, sizeof(finished));
	simover(sys)->file.open = open_and_note;
	simover(sys)->file.pread = pread_and_note;
	e = export_by(disk, sys, FROM);
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
	struct export e;

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
	struct export e;

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
	struct export e;

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
	struct export e;

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

static int stop_there(void *arg, uint64_t done, uint64_t total)
{
	(void)arg;
	return done >= total / 3;
}

TEST(the_caller_may_stop_an_export)
{
	struct simdisk *base = saved(), *disk = simdisk_twin(base);
	uint64_t want = wanted(base);
	struct export e;

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

TEST(each_call_of_an_export_may_fail)
{
	struct simdisk *base = saved();
	uint64_t want = wanted(base);
	int failed = 0, nth = 1 + t_from(T_STRIDE);
	bool fired = true;

	for (; fired; nth += T_STRIDE) {
		struct simdisk *disk = simdisk_twin(base);
		const struct shf_sys *sys = process(disk);
		struct export e;

		simdisk_set_trace(disk, false);
		simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth, .error = EACCES,
		                                             .process = sys });
		e = export_by(disk, sys, FROM);
		fired = simdisk_fired(disk) > 0;
		simdisk_faults_clear(disk);
		failed += e.rc < 0;
		if (e.rc == SHEAF_EBUG || (e.rc < 0 && strlen(e.err.msg) < 8))
			print_error("call %d: %d %s\n", nth, e.rc, e.err.msg);
		CHECK(e.rc != SHEAF_EBUG && (e.rc == 0 || strlen(e.err.msg) >= 8));
		CHECK(e.rc == 0 || e.rc == SHEAF_EINDOUBT || !simdisk_exists(disk, TO));
		if (!simdisk_exists(disk, TO)) {
			e = exported(disk);
			CHECK_RC(e.rc, 0, &e.err);
		}
		(void)simdisk_remove(disk, TO "/" MARK);
		CHECK(simdisk_hash(disk, TO) == want);
		simdisk_free(disk);
	}
	print_message("# %d calls, %d exports failed\n", nth / T_STRIDE, failed);
	CHECK(failed > 30 / T_STRIDE);
	simdisk_free(base);
}

TEST(each_allocation_of_an_export_may_fail)
{
	struct simdisk *base = saved();
	uint64_t want = wanted(base);
	int failed = 0;

	for (hungry = 1 + t_from(T_STRIDE);; hungry += T_STRIDE) {
		struct simdisk *disk = simdisk_twin(base);
		struct export e;
		long was = hungry;
		bool fired;

		simdisk_set_trace(disk, false);
		starved = false;
		e = exported(disk);
		fired = starved;
		CHECK(e.rc == 0 || e.rc == SHEAF_ENOMEM);
		CHECK(e.rc == 0 || strlen(e.err.msg) >= 8);
		failed += e.rc < 0;
		hungry = 0;
		if (e.rc < 0)
			e = exported(disk);
		CHECK_RC(e.rc, 0, &e.err);
		CHECK(simdisk_hash(disk, TO) == want);
		simdisk_free(disk);
		if (!fired)
			break;
		hungry = was;
	}
	hungry = 0;
	CHECK(failed > 10 / T_STRIDE);
	simdisk_free(base);
}

struct story {
	uint64_t want;
	int64_t acked;                  /* the cut at which the export had succeeded */
};

static uint64_t promised(const void *story, int64_t cut)
{
	return cut >= ((const struct story *)story)->acked;
}

static const char *judge(const void *arg, struct simdisk *disk, int64_t cut, char why[300])
{
	const struct story *story = arg;
	struct export e;

	if (!simdisk_exists(disk, TO)) {
		if (cut >= story->acked)
			return snprintf(why, 300, "what was written is gone"), why;
		e = exported(disk);
		if (e.rc < 0)
			return snprintf(why, 300, "the next export: %.200s", e.err.msg), why;
	}
	(void)simdisk_remove(disk, TO "/" MARK);
	if (simdisk_hash(disk, TO) != story->want)
		return snprintf(why, 300, "the directory is not whole"), why;
	return "";
}

static void cuts(enum simdisk_model model)
{
	struct simdisk *base = saved(), *disk;
	struct story story = { .want = wanted(base) };
	struct everycut_hunt hunt = { .all_max = 2, .small_max = 1, .seeded = 3,
		.stride = (size_t)T_STRIDE,
		.promised = promised, .judge = judge, .story = &story };
	struct export e;
	char why[400];

	disk = saved_on(model, 0, 0);
	e = exported(disk);
	CHECK_RC(e.rc, 0, &e.err);
	CHECK(simdisk_hash(disk, TO) == story.want);
	story.acked = (int64_t)simdisk_cut_n(disk) - 1;
	hunt.disk = disk;
	if (!everycut_hunt(&hunt, why))
		fail_msg("%s", why);
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
