/* SPDX-License-Identifier: Apache-2.0 */
/* What each act reports when a call of the disk fails. Each act is done once for each kind of call
 * that it makes, with that call failing, and once for each file that it opens, with that file as
 * descriptor 0, which is a valid one. An error has one of the sentences listed here. If the act
 * succeeds all the same, its report and its items are those of an act where nothing failed. */
#include "acts.h"
#include <errno.h>
#include <stdlib.h>
#include "sheaf-inspect.h"
#include "t.h"
#include "run_open.h"
#include "run_resume.h"
#include "run_ops.h"

struct act {
	const char *name;
	int (*act)(struct hand *h);
	int ranks;
	const char *log;                /* where nothing fails */
	bool damaged;                   /* the newest step is */
};

/* In these sentences # stands for a number, * for a session, a checksum or another number in
 * hexadecimal, and FILE for a file of a step. The words of the C library for an error are left
 * out, and so is what is added where the files of a save are gone. */
#define GONE                                                                                \
	": the files of this save were deleted from .sheaf/stage by another job or by hand; " \
	"save again"
#define SO_FAR " (# damaged so far)"
#define BACK " (sheaf rewind run@# goes back to the step before it)"
static const char *const sentences[] = {
	"0 run: step # is damaged: it was read again after its commit: "
	"run/checkpoint-#/FILE" SO_FAR,
	"0 run: step # is damaged: it was read again after its commit: "
	"run/checkpoint-#/sheaf.json" SO_FAR,
	"0 run: step # is damaged: it was read again after its commit: "
	"run/checkpoint-#/sheaf.sums" SO_FAR,
	"1 run/.sheaf/stage/#-*/FILE: the index is missing; rebuilt in memory from the file "
	"headers",
	"1 run/checkpoint-#/FILE: the index is missing; rebuilt in memory from the file headers",
	"1 run: loading step # could not be recorded as a resume attempt: run/.sheaf/tries/#-*",
	"1 run: a successful resume could not be recorded, so it still counts as a failed attempt: "
	"run/.sheaf/tries (sheaf mark RUN@N none resets the count)",
	"1 run: metrics are not written: run/.sheaf/metrics.jsonl",
	"1 run: nothing pruned: run/.sheaf/aside", "1 run: nothing pruned: run/.sheaf/descent",
	"1 run: step # could not be read again: run/checkpoint-#" SO_FAR,
	"1 run: step # could not be read again: run/checkpoint-#/FILE" SO_FAR,
	"1 run: step # could not be read again: run/checkpoint-#/sheaf.json" SO_FAR,
	"1 run: step # could not be read again: run/checkpoint-#/sheaf.sums" SO_FAR,
	"1 run: step # could not be read again: run/checkpoint-#: starting a thread to read it "
	"again" SO_FAR,
	"allocating a staging buffer of # MiB", "reading random bytes", "hf", "hf/FILE",
	"hf/FILE: reading # bytes at #", "hf/sheaf.json", "other/run/.sheaf",
	"other/run/.sheaf/aside", "other/run/.sheaf/lock", "other/run/.sheaf/marks",
	"other/run/.sheaf/rewind", "other/run/.sheaf/run", "other/run/.sheaf/stage",
	"other/run/.sheaf/stage/copy-#-*", "other/run/.sheaf/stage/copy-#-*/",
	"other/run/.sheaf/stage/copy-#-*/.", "other/run/.sheaf/stage/copy-#-*/FILE",
	"other/run/.sheaf/stage/copy-#-*/ema", "other/run/.sheaf/stage/copy-#-*/optimizer",
	"other/run/.sheaf/stage/copy-#-*/ranks", "other/run/.sheaf/stage/copy-#-*/sheaf.json",
	"other/run/.sheaf/stage/copy-#-*/sheaf.json.tmp",
	"other/run/.sheaf/stage/copy-#-*/sheaf.sums",
	"other/run/.sheaf/stage: deleting what dead jobs left", "other/run/.sheaf/trash",
	"other/run/.sheaf/trash: sync before deleting", "other/run/checkpoint-#",
	"other/run/checkpoint-#: rename of the stage", "other/run: creating the run directory",
	"other/run: step #", "other/run: fsync of the directory", "other/run: reading random bytes "
		"for the run's identity", "other/run: listing the directory",
	"run/.sheaf", "run/.sheaf/aside", "run/.sheaf/descent", "run/.sheaf/lock",
	"run/.sheaf/marks", "run/.sheaf/marks/#", "run/.sheaf/proof-*", "run/.sheaf/rewind",
	"run/.sheaf/rewinds", "run/.sheaf/run", "run/.sheaf/stage", "run/.sheaf/stage/#-*",
	"run/.sheaf/stage/#-*/.", "run/.sheaf/stage/#-*/FILE", "run/.sheaf/stage/#-*/FILE: missing",
	"run/.sheaf/stage/#-*/FILE: reading # bytes at #", "run/.sheaf/stage/#-*/alive-#",
	"run/.sheaf/stage/#-*/alive-#: Device or resource busy", "run/.sheaf/stage/#-*/ema",
	"run/.sheaf/stage/#-*/optimizer", "run/.sheaf/stage/#-*/ranks",
	"run/.sheaf/stage/#-*/sheaf.json", "run/.sheaf/stage/#-*/sheaf.json.tmp",
	"run/.sheaf/stage/#-*/sheaf.sums", "run/.sheaf/stage/#-*/sheaf.sums: missing",
	"run/.sheaf/stage/#-*: sheaf.json is missing, so sheaf.sums proves nothing; "
	"SHEAF_RUN_UNVERIFIED reads it without checks",
	"run/.sheaf/stage/#-*: its writer may be alive; end that job, or wait a day after its last "
	"write",
	"run/.sheaf/stage/#-*: listing it", "run/.sheaf/stage: deleting what dead jobs left",
	"run/.sheaf/trash", "run/.sheaf/trash: sync before deleting", "run/checkpoint-#",
	"run/checkpoint-#/FILE", "run/checkpoint-#/FILE" BACK, "run/checkpoint-#/FILE: missing",
	"run/checkpoint-#/FILE: reading # bytes at #",
	"run/checkpoint-#/FILE; read again, the checkpoint is whole: memory or the network failed. "
	"Load again, and check this node", "run/checkpoint-#/ema",
	"run/checkpoint-#/optimizer", "run/checkpoint-#/ranks", "run/checkpoint-#/sheaf.json",
	"run/checkpoint-#/sheaf.json: missing", "run/checkpoint-#/sheaf.sums",
	"run/checkpoint-#/sheaf.sums: missing",
	"run/checkpoint-#: was deleted or moved while it was being read again",
	"run/checkpoint-#: sheaf.json is missing, so sheaf.sums proves nothing; "
	"SHEAF_RUN_UNVERIFIED reads it without checks",
	"run/checkpoint-#: listing it", "run/checkpoint-#: moving it away",
	"run/checkpoint-#: no sheaf.json, so it was not saved by Sheaf; open it with "
	"sheaf_checkpoint_open_path",
	"run/checkpoint-#: rename of the stage", "run: reading random bytes for the session",
	"run: this rank sees *, but rank # opened run *; check that all nodes mount the same file "
	"system there",
	"run: this rank sees no run, but rank # opened run *; check that all nodes mount the same "
	"file system there",
	"run: listing its steps", "run: no run directory here (SHEAF_RUN_CREATE makes one)",
		"run: creating the run directory",
		"run: step #",
	"run: step # is in the stage, but incomplete: it has no manifest",
	"run: fsync of the directory after moving the remains of checkpoint-#",
	"run: fsync of the directory after setting step # aside", "run: fsync of the directory",
	"run: fsync of the directory above",
	"run: this rank sees *, but rank # opened run *; check that all nodes mount the same file "
	"system there",
	"run: this rank sees no run, but rank # opened run *; check that all nodes mount the same "
	"file system there",
	"run/checkpoint-#: was deleted or moved while it was being opened",
	"run: a file that rank # has just written is not visible to this rank; check that all "
	"nodes mount the same file system there",
	"starting # I/O threads",
	"step #, the latest, cannot be read: run/checkpoint-#/FILE: finding the file that the "
	"manifest names",
	"step #, the latest, is damaged: run/checkpoint-#/FILE: finding the file that the manifest "
	"names" BACK,
	"step #: FILE", "step #: FILE: fsync", "step #: FILE: preallocating # bytes",
	"step #: FILE: submitting a write", "step #: FILE: write",
	"step #: FILE: writing # bytes", "step #: closing FILE", "step #: ema",
	"step #: optimizer", "step #: sheaf.sums", "step #: sheaf.sums: writing # bytes",
	"step #: submitting an fsync", "submitting a read",
	"this process cannot be identified: /proc/sys/kernel/random/boot_id or its pid cannot be "
	"read; mount /proc",
};

static struct {                 /* of the act that is tried */
	const struct act *act;
	struct simdisk_fault fault;     /* nth 0: none */
	int rank;
} now;

/* Falls back from 12 to 11. */
static int act_resume(struct hand *h)
{
	struct shf_opts o = h->play->opts;
	int rc;

	o.flags = 0;
	rc = shf_run_open(&h->run, "run", h->group, &o, h->sys, &h->err);
	if (rc == 0)
		rc = shf_run_resume(h->run, h->state, SHEAF_LOAD_FALLBACK | SHEAF_LOAD_LENIENT,
		                    &h->report,
		                    &h->err);
	return rc;
}

static int act(struct hand *h)
{
	int rc;

	if (h->rank == now.rank && now.fault.nth) {
		now.fault.process = acts_process(h);
		simdisk_fault(h->play->disk, &now.fault);
	}
	rc = now.act->act(h);
	shf_run_close(h->run);
	h->run = NULL;
	return rc;
}

/* What was logged by all ranks: level, line, and after each a newline. */
static struct {
	char text[20000];
	size_t n;
} logged;

static void hear(void *arg, int level, const char *line)
{
	(void)arg;
	logged.n += (size_t)snprintf(logged.text + logged.n, sizeof(logged.text) - logged.n,
	                             "%d %s\n", level, line);
	if (logged.n >= sizeof(logged.text))
		abort();
}

static struct play tried(struct simdisk *base, struct simdisk **disk)
{
	static const int32_t apart[] = { 1, 2 };
	struct play p;

	*disk = acts_disk_copy(base);
	p = hands_play(*disk, now.act->ranks, acts_hold);
	p.nodes = now.act->ranks > 1 ? apart : NULL;
	p.path = "";
	p.opts.keep_last = 1;
	p.opts.log = hear;
	logged.n = 0;
	logged.text[0] = '\0';
	(void)hands_run(&p, act, false);
	return p;
}

/* ---- sentences ---- */

/* Each file of a step by one name. */
static void mask_files(char *text)
{
	static const char *const files[] = {
		"ranks/ranks-#-of-#.safetensors", "optimizer/optimizer-#-of-#.safetensors",
		"ema/ema-#-of-#.safetensors", "model-#-of-#.safetensors",
		"ranks/ranks.safetensors.index.json", "ema/ema.safetensors.index.json",
		"optimizer/optimizer.safetensors.index.json", "model.safetensors.index.json",
		"ranks.safetensors.index.json", "ema.safetensors.index.json",
		"optimizer.safetensors.index.json", "extra-#.json", "config.json",
		"model_state", "master_weight", "optimizer_state", "ema_state" };

	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
		char *at = strstr(text, files[i]);

		if (at) {
			memcpy(at, "FILE", 4);
			at += strlen(files[i]);
			memmove(strstr(text, "FILE") + 4, at, strlen(at) + 1);
		}
	}
}

/* Without what differs from one act to another. The first letter, the level of a line of the log,
 * stays. */
static void mask(char *to, const char *from, size_t room)
{
	size_t n = 0;

	if (*from)
		to[n++] = *from++;
	while (*from && n + 1 < room) {
		size_t hex = strspn(from, "0123456789abcdef"), digits = strspn(from, "0123456789");

		to[n++] = hex >= 16 ? '*' : digits ? '#' : *from;
		from += hex >= 16 ? hex : digits ? digits : 1;
	}
	to[n] = '\0';
	mask_files(to);
}

static void cut(char *text, const char *part)
{
	char *at = strstr(text, part);

	if (at)
		memmove(at, at + strlen(part), strlen(at + strlen(part)) + 1);
}

static bool is_listed(const char *sentence, int error)
{
	char got[700], words[80];

	mask(got, sentence, sizeof(got));
	snprintf(words, sizeof(words), ": %s", strerror(error));
	cut(got, words);
	if (error == ENOENT)
		cut(got, GONE);
	for (size_t i = 0; i < sizeof(sentences) / sizeof(*sentences); i++)
		if (strcmp(sentences[i], got) == 0)
			return true;
	return false;
}

/* Each line, beside those that there are anyway. */
static bool lines_are_listed(const char *lines, const char *want, int error)
{
	const char *line = lines;
	bool good = true;

	while (*line) {
		char one[600];
		size_t n = strcspn(line, "\n");

		snprintf(one, sizeof(one), "%.*s", (int)n, line);
		if (!strstr(want, one) && !is_listed(one, error)) {
			print_error("%s\n", one);
			good = false;
		}
		line += n + (line[n] == '\n');
	}
	return good;
}

static bool same_report(const struct sheaf_report *a, const struct sheaf_report *b)
{
	return a->step == b->step && a->loaded == b->loaded && a->bytes == b->bytes &&
	       a->files == b->files && a->findings == b->findings && a->passed == b->passed &&
	       a->unverified == b->unverified;
}

/* ---- each call ---- */

/* A stage that cannot be looked at counts as that of a writer who lives. */
static bool has_code(const struct play *p)
{
	return p->rc == SHEAF_EIO || (now.fault.error == ENOENT && p->rc < 0) ||
	       (p->rc == SHEAF_EBUSY && strstr(p->err.msg, "its writer may be alive"));
}

/* A file beside the weights of somebody else that cannot be looked at is not listed. */
static bool is_left_out(const char *call)
{
	return strstr(call, " stat(hf, \"config.json\")");
}

static bool one(struct simdisk *base, const struct play *want, const char *call)
{
	struct simdisk *disk;
	struct play p = tried(base, &disk);
	bool zero = now.fault.how == SIMDISK_ZERO, good;

	if (p.rc != 0)
		good = !zero && p.err.code == p.rc && has_code(&p) &&
		       is_listed(p.err.msg, now.fault.error);
	else    /* what is not there is an answer, too */
		good = now.fault.error == ENOENT || is_left_out(call) ||
		       (strcmp(p.told, want->told) == 0 && same_report(&p.report, &want->report));
	good = lines_are_listed(p.told, want->told, now.fault.error) && good;
	good = lines_are_listed(logged.text, now.act->log, now.fault.error) && good;
	if (!good)
		print_error("%s: rank %d, %s as %s: %d: %s\n%s", now.act->name, now.rank, call,
		            zero ? "descriptor 0" : strerror(now.fault.error), p.rc, p.err.msg,
		            p.told);
	simdisk_free(disk);
	return good;
}

/* Calls that were tried: without their numbers and what they returned. */
static struct {
	char text[2000][160];
	size_t n;
} known;

static bool was_tried(const char *call)
{
	char text[160], *end;

	mask(text, strchr(call, ' '), sizeof(text));
	end = strrchr(text, '=');
	*(end ? end : text) = '\0';
	for (size_t i = 0; i < known.n; i++)
		if (strcmp(known.text[i], text) == 0)
			return true;
	if (known.n == 2000)
		abort();
	memcpy(known.text[known.n++], text, sizeof(text));
	return false;
}

/* How many of three ways this call may fail in: only one that has a name may find nothing under it,
 * and only an open may return descriptor 0. */
static int ways(const char *call)
{
	static const char *const named[] = { " stat(", " mkdir(", " rename(", " unlink(",
		" list(" };

	for (size_t i = 0; i < sizeof(named) / sizeof(*named); i++)
		if (strstr(call, named[i]))
			return 2;
	return strstr(call, " open(") ? 3 : 1;
}

/* The calls of this rank among those of the act as it goes well. */
static int each_of_rank(struct simdisk *base, struct simdisk *done, const struct play *want,
                        long *tries)
{
	unsigned long first = strtoul(simdisk_call_text(done, 0), NULL, 10);
	int bad = 0, nth = 0;

	for (size_t i = 0; i < simdisk_calls(done); i++)
		if (strtoul(simdisk_call_text(done, i), NULL, 10) < first)
			first = strtoul(simdisk_call_text(done, i), NULL, 10);
	known.n = 0;
	for (size_t i = 0; i < simdisk_calls(done) && bad < 10; i++) {
		const struct simdisk_fault faults[] = { { .error = EIO }, { .error = ENOENT },
		                                        { .how = SIMDISK_ZERO } };
		const char *call = simdisk_call_text(done, i);

		if (strtoul(call, NULL, 10) != first + (unsigned long)now.rank)
			continue;
		nth++;
		if (was_tried(call))
			continue;
		for (int k = 0; k < ways(call); k++) {
			if (t_turn++ % T_FEWER)
				continue;
			now.fault = faults[k];
			now.fault.nth = nth;
			bad += !one(base, want, call);
			++*tries;
		}
	}
	return bad;
}

static int line_order(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Lines of the text in their order by the alphabet: which rank is first is no promise. */
static void lines_sorted(const char *text, char out[2048])
{
	char copy[2048], *lines[64];
	size_t n = 0;

	snprintf(copy, sizeof(copy), "%s", text);
	for (char *at = strtok(copy, "\n"); at && n < 64; at = strtok(NULL, "\n"))
		lines[n++] = at;
	qsort(lines, n, sizeof(*lines), line_order);
	out[0] = '\0';
	for (size_t i = 0; i < n; i++)
		snprintf(out + strlen(out), 2048 - strlen(out), "%s\n", lines[i]);
}

static void each(const struct act *a)
{
	char got[2048], told[2048];
	struct simdisk *base = acts_disk(a->ranks), *done;
	struct play want;
	long tries = 0;
	int bad = 0;

	if (a->damaged)
		CHECK_INT(simdisk_flip(base, "run/checkpoint-12/model-00001-of-00001.safetensors",
		                       8 * 5000), 0);
	simdisk_settle(base);
	now.act = a;
	now.fault.nth = 0;
	want = tried(base, &done);
	CHECK_RC(want.rc, 0, &want.err);
	lines_sorted(logged.text, got);
	lines_sorted(a->log, told);
	CHECK_STR(got, told);
	for (now.rank = 0; now.rank < a->ranks; now.rank++)
		bad += each_of_rank(base, done, &want, &tries);
	printf("# %s: %zu calls, %ld tries\n", a->name, simdisk_calls(done), tries);
	simdisk_free(done);
	simdisk_free(base);
	CHECK_INT(bad, 0);
	CHECK(tries > 25 / T_FEWER);
}

/* Some file systems cannot lock, and say so with one of these; some cannot sync a directory. */
static const struct simdisk_fault habits[] = {
	{ .kind = SIMDISK_LOCK, .error = ENOSYS }, { .kind = SIMDISK_LOCK, .error = ENOTSUP },
	{ .kind = SIMDISK_LOCK, .error = ENOLCK }, { .kind = SIMDISK_LOCK, .error = EINVAL },
};

/* The steps of the run, by what is in their tensor files. */
static bool left_is_same(struct simdisk *a, struct simdisk *b)
{
	char path[80];

	for (int step = 8; step <= 21; step++) {
		snprintf(path, sizeof(path), "run/checkpoint-%d", step);
		if (simdisk_exists(a, path) != simdisk_exists(b, path))
			return false;
		if (simdisk_exists(a, path) && hands_hash(a, path) != hands_hash(b, path))
			return false;
	}
	return true;
}

/* Is all that the act returns and leaves as it is anywhere? */
static void everywhere(const struct act *a)
{
	struct simdisk *base = acts_disk(a->ranks), *done, *disk;
	struct play want, p;

	now.act = a;
	now.fault.nth = 0;
	want = tried(base, &done);
	CHECK_RC(want.rc, 0, &want.err);
	for (size_t i = 0; i < sizeof(habits) / sizeof(*habits); i++) {
		now.fault = habits[i];
		now.fault.nth = 1;
		now.fault.always = true;
		now.rank = 0;
		p = tried(base, &disk);
		if (p.rc)
			print_error("%s: %s\n", a->name, strerror(habits[i].error));
		CHECK_RC(p.rc, 0, &p.err);
		CHECK_STR(p.told, want.told);
		CHECK(same_report(&p.report, &want.report));
		CHECK(left_is_same(disk, done));
		simdisk_free(disk);
	}
	simdisk_free(done);
	simdisk_free(base);
}

#define ACT(name, ranks, log)                                                                \
	TEST(name##_by_##ranks##_tells_what_failed_or_does_it_all_the_same)             \
	{                                                                               \
		each(&(struct act){ #name, act_##name, ranks, log, false });                 \
	}
#define SKIPPED "1 run/checkpoint-20: skipped: has no manifest, so it is not a checkpoint\n"
#define COMMITTED "2 run: step 20 committed, rank 0\n"
#define PRUNED_TWO                                          \
	"2 run: step 11 pruned: a newer step is verified\n" \
	"2 run: step 12 pruned: a newer step is verified\n"
#define PRUNED                                              \
	"2 run: step 10 pruned: a newer step is verified\n" \
	"2 run: step 11 pruned: a newer step is verified\n"
ACT(save, 1, COMMITTED PRUNED_TWO)
ACT(save, 2, COMMITTED "2 run: step 20 committed, rank 1\n" PRUNED_TWO)
ACT(load, 1, "")
ACT(load, 2, "")
ACT(verify, 1, SKIPPED)
ACT(verify, 2, SKIPPED)
ACT(foreign, 1, "")
ACT(peek, 1, "")
ACT(look, 1, "")
ACT(prune, 1, PRUNED)
ACT(rewind, 1, SKIPPED "2 run: rewound to step 10, rank 0\n")
ACT(salvage, 1, "")
ACT(copy, 1, "")

TEST(a_resume_that_falls_back_tells_what_failed_or_does_it_all_the_same)
{
	static const char log[] = SKIPPED
		"1 run: checkpoint-12 is passed over: run/checkpoint-12/model-00001-of-00001"
		".safetensors: block 0 at byte 0 has checksum b9ae20bb0996716e, want"
		" bb595a2b7b576db6\n"
		"2 run: rewound to step 11, rank 0\n"
		"1 run: checkpoint-12 is set aside: it is kept in .sheaf/aside\n";

	each(&(struct act){ "resume", act_resume, 1, log, true });
}

TEST(each_act_is_done_where_files_cannot_be_locked)
{
	static const struct act acts[] = {
		{ "save", act_save, 1, "", false }, { "save again", act_save_again, 1, "", false },
		{ "load", act_load, 1, "", false }, { "verify", act_verify, 1, "", false },
		{ "peek", act_peek, 1, "", false }, { "look", act_look, 1, "", false },
		{ "prune", act_prune, 1, "", false }, { "rewind", act_rewind, 1, "", false },
		{ "salvage", act_salvage, 1, "", false }, { "copy", act_copy, 1, "", false },
	};

	for (size_t i = 0; i < sizeof(acts) / sizeof(*acts); i++)
		everywhere(&acts[i]);
}
