/* SPDX-License-Identifier: Apache-2.0 */
/* A committed step is read again in the background, by one task of each node, and the result
 * decides whether older steps may be pruned.
 *
 *   I9  No step is deleted unless a newer one on the same branch has been re-read and verified
 *       since its commit, and keep rules allow; marks k and the loaded step are never deleted. */
#include "manifest_read.h"
#include "step.h"
#include "err.h"
#include "scrub.h"
#include "save.h"
#include "simdisk.h"
#include "simgroup.h"
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include "scrub_run.h"
#include "simover.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "save_attach.h"
#include "state.h"
#include "step_open.h"
#include "verify_step.h"
#include "run_ops.h"
#include "load.h"
#include "sheaf-admin.h"

enum { RANKS = 4, TENSORS = 5, ALL = 1 << 20 };
static const int32_t one_node[RANKS] = { 1, 1, 1, 1 }, two_nodes[RANKS] = { 1, 1, 2, 2 },
                     four_nodes[RANKS] = { 1, 2, 3, 4 };

/* A job of many commits. */
struct world {
	struct simdisk *disk;
	const struct shf_sys *sys[RANKS];
	const int32_t *nodes;
	struct shf_opts opts;
	int64_t items;                  /* of a row of each tensor */
	int64_t first, last;            /* steps to commit */
	int turns, turns_at_close;      /* of a task: at each commit, at the close */
	void (*before)(struct world *w, int64_t step); /* on rank 0, before it begins */
	const char *script;             /* then instead: see play */
	bool cached;                    /* nodes have a page cache of their own */
	int64_t verified, damaged;      /* what rank 0's run knows at last */
	int lost;                       /* groups that were lost, when all had closed */
	bool prunes;                    /* at last */
	int64_t prune_bytes;            /* of tensor files that it read */
	int64_t reads[16];              /* of tensors' bytes during the commit of each step */
	char log[4000];
	char why[500];
};

static void hear(void *arg, int level, const char *line)
{
	struct world *w = arg;
	size_t n = strlen(w->log);

	if (level <= 1)
		snprintf(w->log + n, sizeof(w->log) - n, "%d %s\n", level, line);
}

/* Reads of tensor files since call `from`. */
static int64_t reads_since(const struct world *w, size_t from)
{
	int64_t n = 0;

	for (size_t i = from; i < simdisk_calls(w->disk); i++)
		n += strstr(simdisk_call_text(w->disk, i), "pread(") != NULL &&
		     strstr(simdisk_call_text(w->disk, i), "of-0000") != NULL;
	return n;
}

static int64_t bytes_since(const struct world *w, size_t from)
{
	int64_t n = 0;

	for (size_t i = from; i < simdisk_calls(w->disk); i++) {
		const char *text = simdisk_call_text(w->disk, i), *got = strstr(text, ") = ");

		if (got && strstr(text, "pread(") && strstr(text, "of-0000"))
			n += strtoll(got + 4, NULL, 10);
	}
	return n;
}

/* ---- a page cache on each node, that has one file as it was ---- */

static struct {
	const struct world *w;
	bool has[RANKS + 1];            /* by node: what it has is not the disk's */
	uint64_t ino;                   /* of that file */
	uint8_t *bytes;                 /* owned */
	size_t n;
} cache;

/* Is it that file, on a node that has it? */
static bool is_cached(void *arg, int fd, int32_t *node)
{
	struct shf_stat st;

	*node = 0;
	for (int r = 0; r < RANKS; r++)
		if (cache.w->sys[r]->file.arg == arg)
			*node = cache.w->nodes[r];
	return cache.has[*node] && simover_real()->file.fstat(arg, fd, &st) >= 0 &&
	       st.ino == cache.ino;
}

static void read_cached(void *arg, int fd, void *buf, uint64_t off, int64_t got)
{
	int32_t node;

	if (got > 0 && is_cached(arg, fd, &node))
		memcpy(buf, cache.bytes + off, (size_t)got);
}

static int64_t cache_pread(void *arg, int fd, void *buf, size_t n, uint64_t off)
{
	int64_t got = simover_real()->file.pread(arg, fd, buf, n, off);

	read_cached(arg, fd, buf, off, got);
	return got;
}

static int cache_complete(void *arg, struct shf_queue *queue, struct shf_io **io, int timeout_ms)
{
	int rc = simover_real()->queue.complete(arg, queue, io, timeout_ms);

	if (rc > 0 && (*io)->op == SHF_IO_READ && !(*io)->direct)
		read_cached(arg, (*io)->fd, (*io)->buf, (*io)->off, (*io)->result);
	return rc;
}

static void cache_forget(void *arg, int fd, uint64_t off, uint64_t n)
{
	int32_t node;

	if (is_cached(arg, fd, &node) && off == 0 && n >= cache.n)
		cache.has[node] = false;
}

static void cache_show(struct world *w, int rank)
{
	cache.w = w;
	simover(w->sys[rank])->file.pread = cache_pread;
	simover(w->sys[rank])->queue.complete = cache_complete;
	simover(w->sys[rank])->file.forget = cache_forget;
}

/* The disk spoils a file; all nodes have it in their caches as it was. */
static void spoil(struct world *w, const char *path)
{
	const struct shf_sys *sys = simdisk_process(w->disk, 2999, 0);
	int fd = shf_sys_open(sys, SHF_CWD, path, 0, 0);
	struct shf_stat st = { .ino = 0 };

	CHECK(fd >= 0 && shf_sys_fstat(sys, fd, &st) >= 0);
	simdisk_kill(w->disk, sys);
	free(cache.bytes);
	cache.bytes = simdisk_get(w->disk, path, &cache.n);
	cache.ino = st.ino;
	for (int node = 0; node <= RANKS; node++)
		cache.has[node] = true;
	CHECK_INT(simdisk_flip(w->disk, path, 8 * cache.n - 3), 0);
}

/* ---- a job ---- */

static struct sheaf_state *state_of(struct world *w, int rank, int64_t step, float **data)
{
	static const char *const names[TENSORS] = { "a", "b", "c", "d", "e" };
	struct sheaf_state *st = shf_state_new();
	float *at = calloc((size_t)(TENSORS * w->items * 2), sizeof(*at));

	*data = at;
	for (int i = 0; i < TENSORS; i++) {
		int64_t n = w->items + i;
		struct sheaf_slice s = { .size = sizeof(s), .name = names[i], .dtype = SHEAF_F32,
			.family = i < 3 ? "model" : "optimizer", .ndim = 1, .shape = { RANKS * n },
			.start = { rank * n }, .count = { n }, .data = at };

		for (int64_t k = 0; k < n; k += 97)
			at[k] = (float)(step * 1000 + k + rank);
		(void)shf_state_add(st, &s, NULL);
		at += n;
	}
	return st;
}

static int commit(struct world *w, int rank, struct sheaf_run *run, int64_t step,
                  struct sheaf_error *err)
{
	struct sheaf_save *save = NULL;
	float *data;
	struct sheaf_state *st = state_of(w, rank, step, &data);
	int rc = shf_save_begin(&save, run, step, st, NULL, err);
	size_t from;

	if (rc == 0 && rank == 0)
		(void)shf_save_attach(save, "config.json", "{}", 2, NULL);
	from = simdisk_calls(w->disk);
	if (rc == 0)
		rc = shf_save_commit(save, -1, err);
	if (rank == 0 && step < 16)
		w->reads[step] = reads_since(w, from);
	shf_save_free(save);
	shf_state_put(st);
	free(data);
	return rc;
}

static int commit_next(struct world *w, int rank, struct sheaf_run *run, int64_t step,
                       struct sheaf_error *err)
{
	if (rank == 0)
		simdisk_set_task_steps(w->disk, w->turns);
	if (rank == 0 && w->before)
		w->before(w, step);
	return commit(w, rank, run, step, err);
}

/* Marks the step bad and goes on from the one that is the latest then. */
static int turn_back(struct world *w, int rank, struct sheaf_run *run, int64_t bad,
                     struct sheaf_error *err)
{
	struct sheaf_checkpoint *latest = NULL;
	float *data;
	struct sheaf_state *st = state_of(w, rank, 0, &data);
	int rc = shf_run_mark(run, bad, SHEAF_MARK_BAD, err);

	if (rc == 0)
		rc = shf_step_open(&latest, run, SHEAF_LATEST, err);
	if (rc == 0)
		rc = shf_step_load(latest, st, SHEAF_LOAD_STRICT, NULL, err);
	shf_step_put(latest);
	shf_state_put(st);
	free(data);
	return rc;
}

/* A digit: that step is committed. h: the latest is opened, and held; v: it is verified; b: it is
 * marked bad, and the run goes on from the latest before it; r: it is rewound. */
static int play(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	struct sheaf_checkpoint *held = NULL;
	int rc = 0;

	for (const char *p = w->script; p && *p && rc == 0; p++)
		rc = *p == 'h'   ? shf_step_open(&held, run, SHEAF_LATEST, err)
		     : *p == 'v' ? shf_step_verify(held, NULL, err)
		     : *p == 'b' ? turn_back(w, rank, run, held->number, err)
		     : *p == 'r' ? shf_run_rewind(run, held->number - 1, err)
		                 : commit_next(w, rank, run, *p - '0', err);
	shf_step_put(held);
	return rc;
}

static int job_of(void *arg, int rank, struct sheaf_group *group)
{
	struct world *w = arg;
	struct sheaf_run *run = NULL;
	struct sheaf_error err = { 0 };
	int rc;

	if (w->cached)
		cache_show(w, rank);
	rc = shf_run_open(&run, "run", group, &w->opts, w->sys[rank], &err);
	for (int64_t step = w->first; step <= w->last && rc == 0; step++)
		rc = commit_next(w, rank, run, step, &err);
	if (rc == 0)
		rc = play(w, rank, run, &err);
	if (rc == 0 && w->prunes) {
		size_t from = simdisk_calls(w->disk);

		rc = shf_run_prune(run, false, NULL, NULL, &err);
		if (rank == 0)
			w->prune_bytes = bytes_since(w, from);
		rc = rc < 0 ? rc : 0;
	}
	if (rc < 0)
		snprintf(w->why, sizeof(w->why), "rank %d: %.400s", rank, err.msg);
	if (run && rank == 0) {
		w->verified = run->lineage.verified.step;
		w->damaged = (int64_t)run->retain.behind->damaged_n;
		simdisk_set_task_steps(w->disk, w->turns_at_close);
	}
	shf_run_close(run);
	w->lost += group->lost;
	return rc;
}

static int job(struct world *w, int64_t first, int64_t last)
{
	static uint64_t pid = 3000, seed = 1;
	struct simgroup_opts o = { .seed = seed++, .ranks = RANKS, .nodes = w->nodes };
	int results[RANKS];

	w->first = first;
	w->last = last;
	w->log[0] = w->why[0] = '\0';
	w->lost = 0;
	w->opts.arg = w;
	for (int r = 0; r < RANKS; r++)
		w->sys[r] = simdisk_process(w->disk, pid++, w->nodes[r]);
	CHECK_INT(simgroup_run(&o, job_of, w, results), 0);
	for (int r = 0; r < RANKS; r++) {
		CHECK_INT(results[r], results[0]);
		CHECK_INT(simdisk_open_n(w->sys[r]), 0);
		simdisk_kill(w->disk, w->sys[r]);
	}
	if (results[0] < 0)
		print_message("# %s\n", w->why);
	return results[0];
}

static void start(struct world *w, const int32_t *nodes, int64_t items)
{
	*w = (struct world){ .disk = simdisk_new(0xbed, SIMDISK_STRICT), .nodes = nodes,
		.items = items, .turns = ALL, .turns_at_close = ALL,
		.opts = { .flags = SHEAF_RUN_CREATE, .timeout_ms = 60000,
		          .grace_s = -1, .keep_last = 1, .log = hear } };
}

static bool has(struct world *w, int64_t step)
{
	char path[80];

	snprintf(path, sizeof(path), "run/checkpoint-%lld/sheaf.json", (long long)step);
	return simdisk_exists(w->disk, path);
}

/* The steps that are there, as digits. */
static const char *there(struct world *w)
{
	static char text[32];
	size_t n = 0;

	for (int64_t step = 1; step < 16; step++)
		if (has(w, step))
			n += (size_t)snprintf(text + n, sizeof(text) - n, "%lld", (long long)step);
	text[n] = '\0';
	return text;
}

TEST(a_commit_reads_nothing_and_lets_go_only_what_was_read_again)
{
	struct world w;

	start(&w, one_node, 500);
	w.turns = w.turns_at_close = 0;
	CHECK_INT(job(&w, 1, 4), 0);
	CHECK_STR(there(&w), "1234");           /* I9 */
	CHECK_INT(w.verified, -1);
	for (int step = 1; step <= 4; step++)
		CHECK_INT(w.reads[step], 0);
	/* The next job begins with its own first step, and has read it at the second. */
	w.turns = w.turns_at_close = ALL;
	CHECK_INT(job(&w, 5, 6), 0);
	CHECK_STR(there(&w), "6");
	CHECK_INT(w.verified, 5);       /* 6 was read again by the close */
	CHECK_STR(w.log, "");
	simdisk_free(w.disk);
}

TEST(a_read_that_takes_several_commits_goes_on)
{
	int64_t seen = 0;

	for (int turns = 1; turns <= 6; turns++) {
		struct world w;

		start(&w, two_nodes, 500);
		w.turns = turns;
		w.turns_at_close = 0;
		CHECK_INT(job(&w, 1, 12), 0);
		/* Never fewer than the newest and the one that was read. */
		CHECK(has(&w, 12));
		CHECK(w.verified < 0 || has(&w, w.verified));
		for (int64_t step = 1; step <= 12; step++)
			CHECK_INT(has(&w, step), step >= w.verified);
		seen += w.verified;
		simdisk_free(w.disk);
	}
	CHECK(seen > 30);
}

static int flips;
static const char *flip_file;
static uint64_t flip_bit;

static void flip_3(struct world *w, int64_t step)
{
	char path[120];

	if (step != 4)
		return;
	snprintf(path, sizeof(path), "run/checkpoint-3/%s", flip_file);
	flips += simdisk_flip(w->disk, path, flip_bit) == 0;
}

static const char *const step_files[] = { "model-00001-of-00001.safetensors",
	"optimizer/optimizer-00001-of-00001.safetensors", "sheaf.sums", "sheaf.json", "config.json",
	"model.safetensors.index.json" };

TEST(damage_that_is_read_again_is_said_and_dominates_nothing)
{
	const int32_t *const nodes[] = { one_node, two_nodes, four_nodes };
	int said = 0;

	flips = 0;
	for (size_t i = 0; i < 6 * 5; i++) {
		struct world w;
		size_t bytes;
		char path[120];

		flip_file = step_files[i % 6];
		start(&w, nodes[(i + i / 6) % 3], i % 4 ? 500 : 90000);
		w.opts.keep_every = 3;          /* a damaged step that need not go */
		CHECK_INT(job(&w, 1, 1), 0);
		snprintf(path, sizeof(path), "run/checkpoint-1/%s", flip_file);
		free(simdisk_get(w.disk, path, &bytes));
		/* The first, the last, and three between. */
		flip_bit = 8 * bytes * (i / 6) / 4 + i;
		flip_bit = i / 6 == 0   ? 0
		           : i / 6 == 4 ? 8 * bytes - 1
		                        : flip_bit % (8 * bytes);
		w.before = flip_3;
		w.turns_at_close = 0;
		CHECK_INT(job(&w, 2, 4), 0);
		if (!strstr(w.log, "step 3 is damaged: it was read again after its commit") ||
		    !strstr(w.log, flip_file))
			print_error("%s, bit %llu, nodes %zu: %s\n", flip_file,
			            (unsigned long long)flip_bit, (i + i / 6) % 3, w.log);
		said += strstr(w.log, "0 run: step 3 is damaged") && strstr(w.log, flip_file);
		CHECK_INT(w.damaged, 1);
		CHECK_INT(w.verified, 2);       /* I9: 3 dominates nothing */
		CHECK_STR(there(&w), "234");    /* 2 could go by its age */
		simdisk_free(w.disk);
	}
	CHECK_INT(flips, 6 * 5);
	CHECK_INT(said, flips);
	printf("# %d flips, each said with its file\n", flips);
}

static void cut_3(struct world *w, int64_t step)
{
	if (step == 4)
		CHECK_INT(simdisk_remove(w->disk, "run/checkpoint-3/optimizer"), 0);
}

TEST(a_file_that_is_gone_is_damage_and_the_training_goes_on)
{
	struct world w;

	start(&w, two_nodes, 500);
	w.before = cut_3;
	CHECK_INT(job(&w, 1, 7), 0);
	CHECK_INT(w.damaged, 1);
	CHECK(strstr(w.log, "optimizer"));
	CHECK(has(&w, 7));
	CHECK_INT(w.verified, 6);
	simdisk_free(w.disk);
}

static const char *odd_file;
static char odd_as;                     /* l: a link; f: a file where a folder was, or longer */

static void odd_3(struct world *w, int64_t step)
{
	static char text[(1 << 20) + 5];
	char path[120];

	if (step != 4)
		return;
	snprintf(path, sizeof(path), "run/checkpoint-3/%s", odd_file);
	CHECK_INT(simdisk_remove(w->disk, path), 0);
	CHECK_INT(odd_as == 'l' ? simdisk_symlink(w->disk, "../checkpoint-2/config.json", path)
	                        : simdisk_put(w->disk, path, text, sizeof(text)), 0);
}

TEST(what_stands_in_the_place_of_a_file_is_damage)
{
	static const struct { const char *file; char as; } odd[] = {
		{ "model-00001-of-00001.safetensors", 'l' }, { "sheaf.json", 'l' },
		{ "sheaf.sums", 'l' }, { "config.json", 'l' }, { "optimizer", 'l' },
		{ "optimizer", 'f' }, { "sheaf.json", 'f' } };

	for (size_t i = 0; i < sizeof(odd) / sizeof(*odd); i++) {
		struct world w;

		start(&w, i % 2 ? one_node : two_nodes, 500);
		odd_file = odd[i].file;
		odd_as = odd[i].as;
		w.before = odd_3;
		w.turns_at_close = 0;
		CHECK_INT(job(&w, 1, 4), 0);
		if (!strstr(w.log, "0 run: step 3 is damaged") || !strstr(w.log, odd_file))
			print_error("%s %c: %s\n", odd_file, odd_as, w.log);
		CHECK(strstr(w.log, "0 run: step 3 is damaged") && strstr(w.log, odd_file));
		CHECK_INT(w.damaged, 1);
		simdisk_free(w.disk);
	}
}

TEST(a_reading_that_fails_stops_nobody_and_proves_nothing)
{
	static const struct { enum simdisk_kind kind; const char *name; bool always; } faults[] = {
		{ SIMDISK_TASK_NEW, NULL, false }, { SIMDISK_PREAD, "model-", true },
		{ SIMDISK_PREAD, "optimizer-", true }, { SIMDISK_PREAD, "model-", false } };

	for (int i = 0; i < 4; i++) {
		struct world w;

		start(&w, two_nodes, 500);
		w.turns_at_close = 0;
		CHECK_INT(job(&w, 1, 1), 0);
		simdisk_fault(w.disk, &(struct simdisk_fault){ .nth = 1, .error = EIO,
		              .kind = faults[i].kind, .name = faults[i].name,
		              .always = faults[i].always });
		CHECK_INT(job(&w, 2, 3), 0);
		CHECK(simdisk_fired(w.disk) > 0);
		/* A disk that answers when it is asked again is no failure. */
		CHECK_INT(strstr(w.log, "1 run: step 2 could not be read again") != NULL, i < 3);
		CHECK_INT(w.verified, i < 3 ? -1 : 2);
		CHECK_STR(there(&w), i < 3 ? "123" : "23");     /* I9 */
		CHECK_INT(w.damaged, 0);
		simdisk_faults_clear(w.disk);
		CHECK_INT(job(&w, 4, 5), 0);
		CHECK_STR(there(&w), "45");
		simdisk_free(w.disk);
	}
}

TEST(a_close_does_not_wait_for_much)
{
	struct world w;
	size_t from;

	start(&w, one_node, (int64_t)1 << 19);  /* 40 MiB */
	w.turns = w.turns_at_close = 0;
	CHECK_INT(job(&w, 1, 1), 0);
	from = simdisk_calls(w.disk);
	w.turns = w.turns_at_close = 1;
	CHECK_INT(job(&w, 2, 2), 0);
	CHECK(reads_since(&w, from) < 4);
	CHECK_STR(there(&w), "12");
	simdisk_free(w.disk);
}

/* What is under way is what a prune would have to read. */
TEST(a_prune_goes_on_with_the_reading_of_the_newest)
{
	const int32_t *const nodes[] = { one_node, two_nodes, four_nodes };
	const int64_t items = 400001, tensors = 4 * RANKS * (TENSORS * items + 10);

	for (int i = 0; i < 3; i++) {
		struct world w;

		start(&w, nodes[i], items);
		w.prunes = true;
		CHECK_INT(job(&w, 1, 1), 0);
		w.turns = 3;
		CHECK_INT(job(&w, 2, 2), 0);
		CHECK_STR(there(&w), "2");
		CHECK_INT(w.verified, 2);
		printf("# %d nodes: %lld bytes read of %lld\n", 1 << i, (long long)w.prune_bytes,
		       (long long)tensors);
		CHECK(w.prune_bytes >= tensors && w.prune_bytes < tensors + tensors / 50);
		simdisk_free(w.disk);
	}
}

/* Of a rank whose sleeps take 30 times as long, also to the group. */
static struct sheaf_group *tired;

static void sleep_long(void *arg, int ms)
{
	simover_real()->host.sleep_ms(arg, 30 * ms);
	simgroup_pause(tired, 30 * ms);
}

static int job_of_tired(void *arg, int rank, struct sheaf_group *group)
{
	struct world *w = arg;

	if (rank == 0) {
		simover(w->sys[0])->host.sleep_ms = sleep_long;
		tired = group;
	}
	return job_of(w, rank, group);
}

/* Who waits for its share of the reading at a close keeps the others in an agreement. */
TEST(a_close_waits_no_longer_than_the_others_do)
{
	static const int32_t deadlines[] = { 300, 1000, 20000 };

	for (int i = 0; i < 3; i++) {
		struct simgroup_stat stat;
		struct simgroup_opts o = { .seed = 5, .ranks = RANKS, .nodes = one_node,
			.stat = &stat };
		int results[RANKS];
		struct world w;

		start(&w, one_node, 500);
		w.opts.timeout_ms = deadlines[i];
		w.opts.arg = &w;
		w.first = w.last = 1;
		w.turns = 0;
		w.turns_at_close = 0;
		for (int r = 0; r < RANKS; r++)
			w.sys[r] = simdisk_process(w.disk, 4000 + (uint64_t)r, 1);
		CHECK_INT(simgroup_run(&o, job_of_tired, &w, results), 0);
		CHECK_INT(results[0], 0);
		CHECK_INT(w.lost, 0);
		/* Twice it waits: for what is under way, then for the newest. */
		CHECK(stat.clock_ms >= (i < 2 ? deadlines[i] : 6000) - 100);
		CHECK(stat.clock_ms <= (i < 2 ? deadlines[i] : 6000) + 200);
		simdisk_free(w.disk);
	}
}

/* ---- a number that is saved again ---- */

TEST(what_a_caller_verified_is_no_reason_to_delete_a_step)
{
	static const struct { const char *script, *there; } jobs[] = {
		{ "12hv", "12" }, { "12hv3", "123" }, { "12hvb", "12" }, { "12hvb2", "12" },
		{ "12hbv2", "12" }, { "12hb2v", "12" }, { "12hb2v3", "123" }, { "12hvr", "1" },
		{ "12hvr2", "12" } };

	for (size_t i = 0; i < 2 * 9; i++) {
		struct world w;

		start(&w, i % 2 ? two_nodes : one_node, 500);
		w.turns = w.turns_at_close = 0;
		w.script = jobs[i / 2].script;
		CHECK_INT(job(&w, 1, 0), 0);
		CHECK_STR(there(&w), jobs[i / 2].there);        /* I9 */
		CHECK_INT(w.verified, -1);
		simdisk_free(w.disk);
	}
}

TEST(a_prune_reads_the_new_save_of_a_bad_number)
{
	struct world w;

	start(&w, two_nodes, 500);
	w.turns = w.turns_at_close = 0;
	w.script = "12hb2v";            /* of the one that was set aside */
	w.prunes = true;
	CHECK_INT(job(&w, 1, 0), 0);
	CHECK_STR(there(&w), "2");
	CHECK(w.prune_bytes >= 4 * RANKS * TENSORS * w.items);
	simdisk_free(w.disk);
}

static void flip_again(struct world *w, int64_t step)
{
	flips += step == 4 && simdisk_flip(w->disk, "run/checkpoint-3/model-00001-of-00001."
	                                   "safetensors", 8 * 5000) == 0;
}

TEST(the_reading_of_a_bad_step_says_nothing_of_the_next_one_of_its_number)
{
	struct world w;

	flips = 0;
	start(&w, two_nodes, 500);
	w.opts.keep_last = 2;
	w.turns_at_close = 0;
	w.before = flip_again;
	w.script = "123hb34";
	CHECK_INT(job(&w, 1, 0), 0);
	CHECK_INT(flips, 1);
	CHECK_INT(w.damaged, 1);
	CHECK(strstr(w.log, "0 run: step 3 is damaged"));
	CHECK_STR(there(&w), "234");            /* I9 */
	simdisk_free(w.disk);
}

TEST(steps_below_the_number_of_a_bad_one_are_read_again_and_let_go)
{
	static const char *const scripts[] = { "129hb34567", "129hvb34567", "129hbv34567" };

	for (size_t i = 0; i < 3; i++) {
		struct world w;

		start(&w, i ? two_nodes : one_node, 500);
		w.turns_at_close = 0;
		w.opts.keep_last = 2;
		w.script = scripts[i];
		CHECK_INT(job(&w, 1, 0), 0);
		CHECK_STR(there(&w), "679");
		CHECK_INT(w.verified, 6);
		simdisk_free(w.disk);
	}
}

/* ---- what the page cache has ---- */

static void spoil_2(struct world *w, int64_t step)
{
	char path[120];

	snprintf(path, sizeof(path), "run/checkpoint-2/%s", flip_file);
	if (step == 3)
		spoil(w, path);
}

TEST(what_is_read_again_is_what_the_disk_has)
{
	for (size_t i = 0; i < 6 * 3; i++) {
		struct world w;

		start(&w, i < 6 ? one_node : i < 12 ? two_nodes : four_nodes, 500);
		flip_file = step_files[i % 6];
		w.cached = true;
		w.before = spoil_2;
		w.turns_at_close = 0;
		CHECK_INT(job(&w, 1, 3), 0);
		if (w.damaged != 1 || !strstr(w.log, flip_file))
			print_error("%s: %s\n", flip_file, w.log);
		CHECK_INT(w.damaged, 1);
		CHECK(strstr(w.log, flip_file));
		CHECK_STR(there(&w), "123");    /* I9: 1 was verified, and 2 was not */
		simdisk_free(w.disk);
	}
	free(cache.bytes);
	cache.bytes = NULL;
}

TEST(a_prune_reads_what_the_disk_has)
{
	for (size_t i = 0; i < 6 * 6; i++) {
		struct world w;
		char path[120];

		start(&w, i < 12 ? one_node : i < 24 ? two_nodes : four_nodes, 500);
		w.turns = w.turns_at_close = 0;
		CHECK_INT(job(&w, 1, 2), 0);
		snprintf(path, sizeof(path), "run/checkpoint-2/%s", step_files[i % 6]);
		spoil(&w, path);
		w.cached = w.prunes = true;
		if (i / 6 % 2)
			w.script = "hv";        /* finds nothing in what the nodes have */
		CHECK_INT(job(&w, 1, 0), SHEAF_ECORRUPT);
		CHECK(strstr(w.why, step_files[i % 6]));
		CHECK_STR(there(&w), "12");
		simdisk_free(w.disk);
	}
	free(cache.bytes);
	cache.bytes = NULL;
}

/* ---- shares ---- */

static struct shf_scrub reread_of(struct world *w, uint32_t share, uint32_t shares,
                                  const struct simdisk_fault *fault)
{
	const struct shf_sys *sys = simdisk_process(w->disk, 9000 + share, 0);
	struct shf_arena arena = { 0 };
	struct shf_manifest m;
	struct sheaf_error err;
	struct shf_scrub r;
	int dir = shf_sys_open(sys, SHF_CWD, "run/checkpoint-1", SHF_O_DIR, 0);

	CHECK(dir >= 0);
	CHECK_RC(shf_manifest_read(sys, dir, "run/checkpoint-1", &m, &arena, &err), 0, &err);
	CHECK_RC(shf_scrub_init(&r, sys, dir, 1, m.session, "run/checkpoint-1", &err), 0, &err);
	r.share = share;
	r.shares = shares;
	if (fault)
		simdisk_fault(w->disk, fault);
	while (shf_scrub_turn(&r))
		;
	shf_arena_release(&arena);
	shf_scrub_release(&r);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_kill(w->disk, sys);
	return r;
}

TEST(each_call_of_a_reading_may_fail)
{
	static const int errors[] = { EIO, EACCES, EINVAL };
	int n = 0, well = 0;
	struct world w;

	start(&w, one_node, 90000);
	w.turns_at_close = 0;
	CHECK_INT(job(&w, 1, 1), 0);
	for (int e = 0; e < 6; e++)
		for (int nth = 1, more = 1; more; nth++) {
			struct simdisk_fault fault = { .nth = nth, .error = errors[e / 2],
				.always = e % 2 };
			struct shf_scrub r = reread_of(&w, 0, 1, &fault);

			more = simdisk_fired(w.disk);
			simdisk_faults_clear(w.disk);
			/* What cannot be told is never called damage. */
			CHECK(r.rc == 0 || (r.rc != SHEAF_ECORRUPT && r.rc == r.err.code));
			CHECK(r.rc == 0 || strstr(r.err.msg, "run/checkpoint-1/"));
			CHECK(more || r.rc == 0);
			well += r.rc == 0;
			n++;
		}
	CHECK(n > 100 && well < n / 2);
	printf("# %d faults, %d of them without harm\n", n, well);
	simdisk_free(w.disk);
}

TEST(shares_cut_tensors_anywhere_and_add_up)
{
	static const int64_t sizes[] = { 500, 70000, 130000, 400001 };
	int cuts = 0, tensors_cut = 0;

	for (int i = 0; i < 4; i++) {
		struct world w;

		start(&w, one_node, sizes[i]);
		w.opts.file_bytes_max = i % 2 ? 0 : 1 << 20;
		w.turns_at_close = 0;
		CHECK_INT(job(&w, 1, 1), 0);
		for (uint32_t shares = 1; shares <= 12; shares++) {
			uint64_t sum = 0;

			for (uint32_t share = 0; share < shares; share++) {
				struct shf_scrub r = reread_of(&w, share, shares, NULL);

				CHECK_RC(r.rc, 0, &r.err);
				tensors_cut += r.cut != 0;
				sum ^= r.cut;
				cuts++;
			}
			CHECK_INT(sum, 0);
			CHECK(shares > 1 || tensors_cut == 0 || i > 0);
		}
		simdisk_free(w.disk);
	}
	CHECK(tensors_cut > 40);
	printf("# %d shares, %d of them with parts of tensors\n", cuts, tensors_cut);
}
