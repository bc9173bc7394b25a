/* SPDX-License-Identifier: Apache-2.0 */
/* The memory tier: jobs that save to the memory of agents, die, and are followed by others. What
 * the next one finds is judged by values that say of which step they are. */
#include <stdatomic.h>
#include <stdlib.h>
#include "engine.h"
#include "recall.h"
#include "save.h"
#include "simdisk.h"
#include "simgroup.h"
#include "t.h"

enum { RANKS = 4, TENSORS = 3, ROWS = 13, COLS = 700, STEPS = 16 };
#define ROOM (UINT64_C(1) << 30)

struct plan {                   /* what a job does at each of its steps: */
	int first, last;                /* first 0: after the one that it resumes from */
	int disk_every;                 /* 0: never */
	uint32_t flags;                 /* of its saves */
	int images;
	bool fresh, rewind_first;       /* nothing is loaded; a rewind to `resume` first */
	int64_t resume;                 /* which step; -1: the newest */
	bool no_agent;                  /* opened without */
	bool stop;                      /* after the load */
	int gaps;                       /* saves that begin may refuse */
};
struct job {
	struct simdisk *disk;
	int ranks;
	struct plan plan;
	struct simgroup_opts group;
	const struct shf_sys *sys[RANKS];
	/* what came of it */
	int64_t loaded;                 /* -1: there was none */
	atomic_llong acked;             /* the newest that a rank knows to be committed */
	uint64_t disk_bytes, memory_bytes;
	int refused;                    /* begins, on rank 0 */
	char why[600];
};

static float value(int tensor, int64_t item, int64_t step)
{
	return (float)((item * 7 + tensor * 131 + step * 1009) % 65521);
}

struct mine {                   /* a rank's rows of each tensor */
	int64_t lo, n;
	float *data[TENSORS];
};

static void paint(struct mine *m, int64_t step)
{
	for (int t = 0; t < TENSORS; t++)
		for (int64_t i = 0; i < m->n * COLS; i++)
			m->data[t][i] = value(t, m->lo * COLS + i, step);
}

static int64_t wrong(const struct mine *m, int64_t step)
{
	int64_t n = 0;

	for (int t = 0; t < TENSORS; t++)
		for (int64_t i = 0; i < m->n * COLS; i++)
			n += m->data[t][i] != value(t, m->lo * COLS + i, step);
	return n;
}

static struct sheaf_state *state_of(struct mine *m, int rank, int ranks)
{
	static const char *const names[TENSORS] = { "a", "b", "c" };
	struct sheaf_state *state = shf_state_new();

	m->lo = (int64_t)rank * ROWS / ranks;
	m->n = (int64_t)(rank + 1) * ROWS / ranks - m->lo;
	for (int t = 0; t < TENSORS; t++) {
		struct sheaf_slice s = { .size = sizeof(s), .name = names[t],
			.family = t ? "optimizer" : "model", .dtype = SHEAF_F32, .ndim = 2,
			.shape = { ROWS, COLS }, .start = { m->lo, 0 }, .count = { m->n, COLS } };

		m->data[t] = calloc((size_t)(m->n * COLS) + 1, sizeof(float));
		s.data = m->data[t];
		(void)shf_state_add(state, &s);
	}
	return state;
}

static void say(struct job *j, int rank, const char *what, int rc, const struct sheaf_error *err)
{
	if (!j->why[0])
		snprintf(j->why, sizeof(j->why), "rank %d: %s: %d %.400s", rank, what, rc,
		         err->msg);
}

static int resume(struct job *j, int rank, struct sheaf_run *run, struct sheaf_state *state,
                  struct mine *m, int64_t *at, struct sheaf_error *err)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_step *step = NULL;
	int rc = shf_step_open(&step, run, j->plan.resume, err);

	if (rc == SHEAF_ENOENT) {
		*at = 0;
		return 0;
	}
	if (rc == 0)
		rc = shf_step_load(step, state, SHEAF_STRICT, &report, err);
	if (rc == 0) {
		*at = step->number;
		if (wrong(m, *at) && !j->why[0])
			snprintf(j->why, sizeof(j->why), "rank %d: step %lld came back wrong", rank,
			         (long long)*at);
		if (rank == 0) {
			j->loaded = *at;
			j->disk_bytes = report.disk_bytes;
			j->memory_bytes = report.memory_bytes;
		}
	}
	shf_step_put(step);
	return rc;
}

static int save_one(struct job *j, int rank, struct sheaf_run *run, struct sheaf_state *state,
                    struct mine *m, int64_t step, struct sheaf_error *err)
{
	bool disk = j->plan.disk_every && step % j->plan.disk_every == 0;
	struct sheaf_save_opts opts = { .size = sizeof(opts),
		.flags = j->plan.flags | (disk ? 0 : SHEAF_NO_DISK) };
	struct sheaf_save *save = NULL;
	int rc;

	paint(m, step);
	rc = shf_save_begin(&save, run, step, state, &opts, err);
	if (rc == SHEAF_EAGAIN) {
		j->refused += rank == 0;
		return 0;
	}
	for (int s = 0; rc == 0 && s < TENSORS && opts.flags & SHEAF_LAZY; s++)
		rc = shf_save_copied(save, s, -1);
	if (rc == 0 && opts.flags & SHEAF_LAZY)
		paint(m, 9999);         /* and training goes on */
	if (rc == 0)
		rc = shf_save_commit(save, -1, err);
	if (rc == 0 && step > atomic_load(&j->acked))
		atomic_store(&j->acked, step);
	shf_save_free(save);
	return rc;
}

static int rank_main(void *arg, int rank, struct sheaf_group *group)
{
	struct job *j = arg;
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_CREATE | SHEAF_METRICS,
		.timeout_ms = 60000, .images_max = j->plan.images,
		.agent = j->plan.no_agent ? NULL : "auto" };
	struct sheaf_error err = { 0 };
	struct sheaf_run *run = NULL;
	struct mine m = { 0 };
	struct sheaf_state *state = state_of(&m, rank, j->ranks);
	int64_t at = 0;
	int rc = shf_run_open(&run, "run", group, &opts, j->sys[rank], &err);

	if (rc == 0 && j->plan.rewind_first)
		rc = shf_run_rewind(run, j->plan.resume, &err);
	if (rc == 0 && !j->plan.fresh)
		rc = resume(j, rank, run, state, &m, &at, &err);
	for (int64_t k = j->plan.first ? j->plan.first : at + 1;
	     rc == 0 && !j->plan.stop && k <= j->plan.last; k++)
		rc = save_one(j, rank, run, state, &m, k, &err);
	if (rc < 0)
		say(j, rank, "the job", rc, &err);
	shf_run_close(run);
	shf_state_put(state);
	for (int t = 0; t < TENSORS; t++)
		free(m.data[t]);
	return rc;
}

static void died(void *arg, int rank)
{
	struct job *j = arg;

	simdisk_kill(j->disk, j->sys[rank]);
}

/* What the worst rank returned; all its processes are gone afterwards. */
static int play(struct job *j, uint64_t seed)
{
	static uint64_t pid = 100;
	int results[RANKS], rc = 0;

	j->group.seed = seed;
	j->group.ranks = j->ranks;
	j->group.died = died;
	j->loaded = -1;
	atomic_store(&j->acked, -1);
	for (int r = 0; r < j->ranks; r++)
		if (!j->sys[r])
			j->sys[r] = simdisk_process(j->disk, pid++, 0);
	if (simgroup_run(&j->group, rank_main, j, results) < 0)
		return SHEAF_EBUG;
	for (int r = 0; r < j->ranks; r++) {
		rc = results[r] < rc ? results[r] : rc;
		simdisk_kill(j->disk, j->sys[r]);
		j->sys[r] = NULL;
	}
	return rc;
}

static struct simdisk *world(uint64_t seed)
{
	struct simdisk *d = simdisk_new(seed, SIMDISK_STRICT);

	simdisk_set_trace(d, false);
	simdisk_set_agents(d, ROOM);
	return d;
}

static struct job job_on(struct simdisk *d, int ranks, struct plan plan)
{
	if (plan.resume == 0)
		plan.resume = SHEAF_LATEST;
	return (struct job){ .disk = d, .ranks = ranks, .plan = plan };
}

#define PLAYED(j, want)                                                                  \
	do {                                                                             \
		int rc_ = play(&(j), 1);                                                 \
		if (rc_ != (want) || (rc_ == 0 && (j).why[0]))                           \
			print_error("%s:%d: %d %s\n", __FILE__, __LINE__, rc_, (j).why); \
		CHECK_INT(rc_, (want));                                                  \
		if (rc_ == 0)                                                            \
			CHECK(!(j).why[0]);                                              \
	} while (0)

/* Lines of metrics with both in them. */
static int told(struct simdisk *d, const char *what, const char *member)
{
	size_t n = 0;
	char *text = simdisk_get(d, "run/.sheaf/metrics.jsonl", &n);
	int lines = 0;

	for (char *p = text, *end; p && p < text + n; p = end + 1) {
		end = memchr(p, '\n', (size_t)(text + n - p));
		if (!end)
			break;
		*end = '\0';
		lines += strstr(p, what) && strstr(p, member);
	}
	free(text);
	return lines;
}

TEST(what_memory_has_comes_back_in_any_layout)
{
	for (int ranks = 1; ranks <= RANKS; ranks++) {
		struct simdisk *d = world((uint64_t)ranks);
		struct job j = job_on(d, ranks, (struct plan){ .last = 5 });

		PLAYED(j, 0);
		CHECK_INT(j.acked, 5);
		CHECK_INT(told(d, "\"committed\"", "\"disk\":false"), 5);
		for (int next = 1; next <= RANKS; next++) {
			struct job k = job_on(d, next, (struct plan){ .last = 5 + next });

			PLAYED(k, 0);
			CHECK_INT(k.loaded, 4 + next);
			CHECK_INT(k.disk_bytes, 0);
			CHECK(k.memory_bytes >= (uint64_t)TENSORS * ROWS * COLS * sizeof(float));
			/* A card of each rank, images of those that write, and nothing older. */
			CHECK(simdisk_kept(d, 0) > (size_t)next);
			CHECK(simdisk_kept(d, 0) <= 2 * (size_t)next);
		}
		simdisk_free(d);
	}
}

TEST(the_newer_of_memory_and_disk_is_taken)
{
	struct simdisk *d = world(2);
	struct job j = job_on(d, 2, (struct plan){ .last = 7, .disk_every = 3, .images = 3 });
	struct job k = job_on(d, 3, (struct plan){ .stop = true });
	struct job l = job_on(d, 2, (struct plan){ .last = 9, .disk_every = 3, .images = 3 });
	struct job m = job_on(d, 1, (struct plan){ .stop = true });

	PLAYED(j, 0);
	PLAYED(k, 0);
	CHECK_INT(k.loaded, 7);
	CHECK_INT(k.disk_bytes, 0);
	PLAYED(l, 0);
	CHECK_INT(l.loaded, 7);
	/* Step 9 is on disk and in memory: the same one, from where it is faster. */
	PLAYED(m, 0);
	CHECK_INT(m.loaded, 9);
	CHECK_INT(m.disk_bytes, 0);
	/* Without its agent: from the disk. */
	simdisk_kill_agent(d, 0);
	m.why[0] = '\0';
	PLAYED(m, 0);
	CHECK_INT(m.loaded, 9);
	CHECK(m.disk_bytes > 0);
	simdisk_free(d);
}

TEST(what_was_rewound_is_not_found_in_memory)
{
	for (int with = 0; with < 2; with++) {
		struct simdisk *d = world(3);
		struct job j = job_on(d, 2, (struct plan){ .last = 8, .disk_every = 3,
		                                           .images = 3 });
		struct job back = job_on(d, 1, (struct plan){ .resume = 3, .rewind_first = true,
		                                              .stop = true, .no_agent = !with });
		struct job next = job_on(d, 2, (struct plan){ .last = 6, .disk_every = 4 });
		struct job last = job_on(d, 2, (struct plan){ .stop = true });

		PLAYED(j, 0);
		PLAYED(back, 0);
		PLAYED(next, 0);
		CHECK_INT(next.loaded, 3);
		CHECK(next.disk_bytes > 0);
		PLAYED(last, 0);
		CHECK_INT(last.loaded, 6);
		CHECK_INT(last.disk_bytes, 0);
		simdisk_free(d);
	}
}

TEST(without_an_agent_training_goes_on)
{
	struct simdisk *d = world(4);
	struct job j = job_on(d, 2, (struct plan){ .last = 6, .disk_every = 3 });
	struct job none = job_on(d, 2, (struct plan){ .last = 3, .no_agent = true });

	simdisk_set_agents(d, 0);
	PLAYED(j, 0);
	CHECK_INT(j.refused, 4);
	CHECK_INT(j.acked, 6);
	CHECK_INT(told(d, "\"dropped\"", "\"disk\":false"), 4);
	CHECK_INT(told(d, "\"committed\"", "\"disk\":true"), 2);
	PLAYED(none, 0); /* nothing left to do */
	none.plan.last = 7;
	PLAYED(none, SHEAF_EINVAL);
	CHECK(strstr(none.why, "needs opts.agent") != NULL);
	simdisk_free(d);
}

TEST(more_than_the_agent_may_keep_is_kept_by_nobody)
{
	struct simdisk *d = world(5);
	struct job j = job_on(d, 2, (struct plan){ .last = 6, .disk_every = 3 });

	simdisk_set_agents(d, 4096);
	PLAYED(j, 0);
	CHECK_INT(j.acked, 6);
	CHECK(j.refused > 0);
	simdisk_free(d);
}

TEST(a_step_that_two_jobs_died_of_is_passed_over)
{
	struct simdisk *d = world(6);
	struct job j = job_on(d, 2, (struct plan){ .last = 5, .disk_every = 3, .images = 3 });

	PLAYED(j, 0);
	for (int i = 0; i < 6; i++) {
		struct job k = job_on(d, 2, (struct plan){ .stop = true });

		PLAYED(k, 0);
		CHECK_INT(k.loaded, i < 2 ? 5 : i < 4 ? 4 : 3);
	}
	simdisk_free(d);
}

struct flipping {
	const struct shf_sys *sys;
	int keep, n;
	char names[32][SHF_KEEP_NAME];
};

static int note_image(void *arg, const char *name)
{
	struct flipping *f = arg;

	if (strstr(name, ".image") && f->n < 32)
		snprintf(f->names[f->n++], SHF_KEEP_NAME, "%s", name);
	return 0;
}

/* A byte of every image that is kept, somewhere in the middle. */
static void flip(struct simdisk *d)
{
	struct flipping f = { .sys = simdisk_process(d, 9000, 0) };

	CHECK_INT(f.sys->ops->keep_open(f.sys->arg, "auto/x", "", "", &f.keep), 0);
	CHECK_INT(f.sys->ops->keep_list(f.sys->arg, f.keep, note_image, &f), 0);
	CHECK(f.n > 0);
	for (int i = 0; i < f.n; i++) {
		struct shf_shm shm = { NULL, 0, -1 };

		CHECK_INT(f.sys->ops->keep_get(f.sys->arg, f.keep, f.names[i], &shm), 0);
		((uint8_t *)shm.base)[shm.bytes / 2] ^= 16;
		f.sys->ops->shm_free(f.sys->arg, &shm);
	}
	simdisk_kill(d, f.sys);
}

TEST(a_byte_that_changes_in_memory_is_found_and_the_disk_is_taken_then)
{
	struct simdisk *d = world(7);
	struct job j = job_on(d, 2, (struct plan){ .last = 5, .disk_every = 3, .images = 3 });
	struct job k = job_on(d, 2, (struct plan){ .stop = true });

	PLAYED(j, 0);
	flip(d);
	PLAYED(k, SHEAF_ECORRUPT);
	CHECK(strstr(k.why, "memory of") != NULL);
	PLAYED(k, SHEAF_ECORRUPT); /* step 4 lies beside it */
	k.why[0] = '\0';
	PLAYED(k, 0);
	CHECK_INT(k.loaded, 3);
	simdisk_free(d);
}

/* The agent writes what nobody else can write any more, and goes, too: the disk has it then. */
static bool flush(struct simdisk *d)
{
	const struct shf_sys *sys = simdisk_process(d, 9500, 0);
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_error err = { 0 };
	int64_t step = -1;
	int rc = shf_recall_flush("run", NULL, false, sys, &step, &report, &err);

	if (rc == SHEAF_ENOENT) /* there is no run yet */
		return false;
	CHECK_RC(rc, 0, &err);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_kill(d, sys);
	simdisk_kill_agent(d, 0);
	return step >= 0;
}

TEST(each_rank_may_die_at_each_operation)
{
	long deaths = 0, found = 0, flushed = 0;

	for (int lazy = 0; lazy < 2; lazy++)
		for (int rank = 0; rank < 2; rank++)
			for (int at = 1;; at += T_STRIDE) {
				struct simdisk *d = world((uint64_t)at);
				struct simgroup_stat stat = { 0 };
				struct job j = job_on(d, 2, (struct plan){ .last = 4,
					.disk_every = 3, .images = 3,
					.flags = lazy ? SHEAF_LAZY : 0 });
				struct job k = job_on(d, 1 + at % 3, (struct plan){ .last = 9,
					.disk_every = 4, .images = 3 });
				long long acked;

				j.group.die_rank = rank;
				j.group.die_at = at;
				j.group.quiet = true;
				j.group.stat = &stat;
				(void)play(&j, (uint64_t)at);
				acked = j.acked;
				if (!stat.fired) {
					simdisk_free(d);
					break;
				}
				deaths++;
				flushed += at % 3 == 0 && flush(d);
				PLAYED(k, 0);
				if (k.loaded < acked)
					print_error("rank %d at %d: acked %lld, found %lld\n",
					            rank, at, acked, (long long)k.loaded);
				CHECK(k.loaded >= acked);
				found += k.loaded > 0 && k.disk_bytes == 0;
				CHECK_INT(k.acked, 9);
				simdisk_free(d);
			}
	print_message("# %ld deaths, %ld restarts from memory, %ld after a flush\n", deaths, found,
	              flushed);
	CHECK(deaths > 100 / T_STRIDE && found > 20 / T_STRIDE && flushed > 20 / T_STRIDE);
}

TEST(each_call_may_fail_and_no_step_is_lost)
{
	long faults = 0, found = 0;

	for (int nth = 1;; nth += T_STRIDE) {
		struct simdisk *d = world((uint64_t)nth);
		struct job j = job_on(d, 2, (struct plan){ .last = 4, .disk_every = 3,
			.images = 3 });
		struct job k = job_on(d, 1 + nth % 3, (struct plan){ .last = 9, .disk_every = 4,
			.images = 3 });
		long long acked;
		int fired;

		simdisk_fail_at(d, nth, nth % 2 ? 5 : 28);
		(void)play(&j, (uint64_t)nth);
		acked = j.acked;
		fired = simdisk_fired(d);
		simdisk_faults_clear(d);
		if (!fired) {
			simdisk_free(d);
			break;
		}
		faults++;
		PLAYED(k, 0);
		if (k.loaded < acked)
			print_error("call %d: acked %lld, found %lld\n", nth, acked,
			            (long long)k.loaded);
		CHECK(k.loaded >= acked);
		found += k.loaded > 0 && k.disk_bytes == 0;
		simdisk_free(d);
	}
	print_message("# %ld failed calls, %ld restarts from memory\n", faults, found);
	CHECK(faults > 200 / T_STRIDE && found > 100 / T_STRIDE);
}

/* ---- what a second pair of eyes saw ---- */

TEST(the_third_job_finds_what_the_second_saved)
{
	struct simdisk *d = world(21);
	struct job j = job_on(d, 2, (struct plan){ .last = 4, .disk_every = 3, .images = 3 });
	struct job k = job_on(d, 2, (struct plan){ .last = 6, .images = 3 });
	struct job l = job_on(d, 2, (struct plan){ .stop = true });

	PLAYED(j, 0);
	PLAYED(k, 0);
	CHECK_INT(k.loaded, 4);
	PLAYED(l, 0);
	CHECK_INT(l.loaded, 6);
	CHECK_INT(l.disk_bytes, 0);
	simdisk_free(d);
}

TEST(a_rewind_to_the_newest_on_disk_leaves_nothing_in_memory_behind)
{
	struct simdisk *d = world(22);
	struct job j = job_on(d, 2, (struct plan){ .last = 5, .disk_every = 3, .images = 3 });
	struct job back = job_on(d, 1, (struct plan){ .resume = 3, .rewind_first = true,
	                                              .stop = true, .no_agent = true });
	struct job l = job_on(d, 2, (struct plan){ .stop = true });

	PLAYED(j, 0);
	PLAYED(back, 0);
	PLAYED(l, 0);
	CHECK_INT(l.loaded, 3);
	simdisk_free(d);
}

TEST(over_several_nodes_nothing_is_promised)
{
	struct simdisk *d = world(29);
	struct job j = job_on(d, 2, (struct plan){ .last = 5, .disk_every = 3, .images = 3 });

	for (int r = 0; r < 2; r++)
		j.sys[r] = simdisk_process(d, (uint64_t)(600 + r), r);
	PLAYED(j, SHEAF_EINVAL);
	CHECK(strstr(j.why, "needs one node, this job has 2") != NULL);
	simdisk_free(d);
}

/* One rank by hand. */
struct one {
	struct job *j;
	struct sheaf_run *run;
	struct sheaf_state *state;
	struct mine m;
	struct sheaf_error err;
	struct sheaf_save *flies;       /* when its process ends */
	int rc;
};

/* Begins, and commits unless `*left` is where to leave it; 0 is kept in rc. */
static void one_save(struct one *o, int64_t step, int64_t values, uint32_t flags,
                     struct sheaf_save **left, int timeout_ms)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = flags };
	struct sheaf_save *save = NULL;

	if (o->rc < 0)
		return;
	paint(&o->m, values);
	o->rc = shf_save_begin(&save, o->run, step, o->state, &opts, &o->err);
	if (o->rc == 0)
		o->rc = shf_save_commit(save, timeout_ms, &o->err);
	if (left) {
		*left = save;
		return;
	}
	if (o->rc == 0)
		atomic_store(&o->j->acked, step);
	shf_save_free(save);
}

static void (*acting)(struct one *o);

static int act_main(void *arg, int rank, struct sheaf_group *group)
{
	struct one o = { .j = arg };
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_CREATE,
		.timeout_ms = 60000, .images_max = 4, .agent = "auto" };

	o.state = state_of(&o.m, rank, 1);
	o.rc = shf_run_open(&o.run, "run", group, &opts, o.j->sys[0], &o.err);
	if (o.rc == 0)
		acting(&o);
	if (o.rc < 0)
		say(o.j, rank, "the job", o.rc, &o.err);
	shf_save_free(o.flies);
	simdisk_kill(o.j->disk, o.j->sys[0]); /* it ends without a word */
	if (o.run)
		shf_run_put(o.run);
	shf_state_put(o.state);
	for (int t = 0; t < TENSORS; t++)
		free(o.m.data[t]);
	return o.rc;
}

/* Another job of one rank; what it acknowledged is in j->acked. */
static void act(struct simdisk *d, struct job *j, void (*what)(struct one *o))
{
	static uint64_t pid = 20000;
	struct simgroup_opts g = { .seed = 1, .ranks = 1, .died = died };
	int result;

	*j = job_on(d, 1, (struct plan){ .last = 0 });
	j->sys[0] = simdisk_process(d, pid++, 0);
	j->sys[2] = simdisk_process(d, pid++, 0);
	atomic_store(&j->acked, -1);
	acting = what;
	(void)simgroup_run(&g, act_main, j, &result);
	if (j->why[0])
		print_error("%s\n", j->why);
	CHECK_INT(result, 0);
	simdisk_kill(d, j->sys[2]);
}

static int64_t restarted(struct simdisk *d)
{
	struct job l = job_on(d, 1, (struct plan){ .stop = true });

	PLAYED(l, 0);
	return l.loaded;
}

static int64_t flushed_due(struct simdisk *d)
{
	const struct shf_sys *sys = simdisk_process(d, 9600, 0);
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_error err = { 0 };
	int64_t step = -1;

	CHECK_RC(shf_recall_flush("run", NULL, true, sys, &step, &report, &err), 0, &err);
	simdisk_kill(d, sys);
	return step;
}

/* 4 was to be on disk and is not; what is behind it is in memory. */
static void one_in_flight(struct one *o)
{
	one_save(o, 3, 3, 0, NULL, -1);
	one_save(o, 4, 4, 0, &o->flies, 0);
	o->rc = o->rc == SHEAF_EAGAIN ? 0 : SHEAF_EBUG;
	for (int64_t k = 5; k <= 7; k++)
		one_save(o, k, k, SHEAF_NO_DISK, NULL, -1);
}

TEST(a_flush_of_what_was_due_hides_nothing_newer)
{
	struct simdisk *d = world(23);
	struct job j;

	act(d, &j, one_in_flight);
	CHECK_INT(j.acked, 7);
	CHECK_INT(flushed_due(d), 4);
	CHECK_INT(restarted(d), 7);
	simdisk_kill_agent(d, 0);
	CHECK_INT(restarted(d), 4);
	simdisk_free(d);
}

/* A save that was found bad after it had come to memory. */
static void one_failed(struct one *o)
{
	struct sheaf_save *flies = NULL;
	int rc;

	one_save(o, 3, 3, 0, NULL, -1);
	one_save(o, 4, 4444, 0, &flies, 0);
	CHECK_INT(o->rc, SHEAF_EAGAIN);
	(void)shf_save_fail(flies, "NaN");
	rc = shf_save_commit(flies, -1, &o->err);
	o->rc = rc == SHEAF_EFAILED ? 0 : SHEAF_EBUG;
	shf_save_free(flies);
}

/* One whose time was up: commit has said that it is in memory. */
static void one_left(struct one *o)
{
	struct sheaf_save *flies = NULL, *again = NULL;
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = SHEAF_NO_DISK };

	one_save(o, 3, 3, 0, NULL, -1);
	one_save(o, 4, 4, 0, &flies, 0);
	CHECK_INT(o->rc, SHEAF_EAGAIN);
	CHECK(strstr(o->err.msg, "it is in memory") != NULL);
	shf_save_free(flies);
	o->rc = 0;
	/* There is one step 4 in memory, and no other. */
	CHECK_INT(shf_save_begin(&again, o->run, 4, o->state, &opts, &o->err), SHEAF_EINVAL);
}

TEST(a_save_that_failed_is_not_in_memory_and_one_whose_time_was_up_is)
{
	struct simdisk *d = world(26);
	struct job j;

	act(d, &j, one_failed);
	CHECK_INT(flushed_due(d), -1);
	CHECK_INT(restarted(d), 3);
	simdisk_free(d);
	d = world(27);
	act(d, &j, one_left);
	CHECK_INT(restarted(d), 4);
	simdisk_free(d);
}

static int read_as(struct one *o, int times)
{
	struct sheaf_opts ro = { .size = sizeof(ro), .flags = SHEAF_READONLY, .timeout_ms = 60000,
		.agent = "auto" };
	struct sheaf_run *reader = NULL;
	int64_t at;
	int rc = shf_run_open(&reader, "run", NULL, &ro, o->j->sys[2], &o->err);

	for (int i = 0; i < times && rc == 0; i++)
		rc = resume(o->j, 0, reader, o->state, &o->m, &at, &o->err);
	if (reader)
		shf_run_close(reader);
	return rc;
}

static void one_watched(struct one *o)
{
	one_save(o, 3, 3, 0, NULL, -1);
	one_save(o, 4, 4, SHEAF_NO_DISK, NULL, -1);
	if (o->rc == 0)
		o->rc = read_as(o, 3);
}

/* A reader holds step 2 until its image is another one's. */
static void one_watched_late(struct one *o)
{
	struct sheaf_opts ro = { .size = sizeof(ro), .flags = SHEAF_READONLY, .timeout_ms = 60000,
		.agent = "auto" };
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_run *reader = NULL;
	struct sheaf_step *step = NULL;

	for (int64_t k = 1; k <= 6; k++) {
		one_save(o, k, k, SHEAF_NO_DISK, NULL, -1);
		if (o->rc == 0 && k == 2)
			o->rc = shf_run_open(&reader, "run", NULL, &ro, o->j->sys[2], &o->err);
		if (o->rc == 0 && k == 2)
			o->rc = shf_step_open(&step, reader, SHEAF_LATEST, &o->err);
	}
	if (o->rc == 0)
		CHECK_INT(shf_step_load(step, o->state, SHEAF_STRICT, &report, &o->err),
		          SHEAF_ECORRUPT);
	shf_step_put(step);
	shf_run_close(reader);
}

TEST(readers_cost_a_job_nothing)
{
	struct simdisk *d = world(24);
	struct job j;

	act(d, &j, one_watched);
	CHECK_INT(restarted(d), 4);
	simdisk_free(d);
	d = world(28);
	act(d, &j, one_watched_late);
	CHECK_INT(restarted(d), 6);
	simdisk_free(d);
}

/* The same job goes back to what is on disk, where the disk asks for no rewind. */
static void one_back(struct one *o)
{
	int64_t at = 0;

	one_save(o, 1, 1, 0, NULL, -1);
	for (int64_t k = 2; k <= 5; k++)
		one_save(o, k, 1000 * k, SHEAF_NO_DISK, NULL, -1);
	o->j->plan.resume = 1;
	if (o->rc == 0)
		o->rc = resume(o->j, 0, o->run, o->state, &o->m, &at, &o->err);
	atomic_store(&o->j->acked, -1);
	for (int64_t k = 2; k <= 3; k++)
		one_save(o, k, k, SHEAF_NO_DISK, NULL, -1);
}

TEST(who_went_back_finds_what_he_saved_then)
{
	struct simdisk *d = world(30);
	struct job j;

	act(d, &j, one_back);
	CHECK_INT(j.acked, 3);
	CHECK_INT(restarted(d), 3);
	simdisk_free(d);
}

static int doubt_at;
static bool doubted, fired;

static void one_in_doubt(struct one *o)
{
	one_save(o, 3, 3, 0, NULL, -1);
	simdisk_fail_at(o->j->disk, doubt_at, 5);
	one_save(o, 4, 4, 0, NULL, -1);
	fired = simdisk_fired(o->j->disk) > 0;
	simdisk_faults_clear(o->j->disk);
	doubted = o->rc == SHEAF_EINDOUBT;
	o->rc = 0;
	for (int64_t k = 5; k <= 6 && doubted; k++)
		one_save(o, k, k, SHEAF_NO_DISK, NULL, -1);
}

TEST(after_a_step_in_doubt_what_is_in_memory_is_found)
{
	long n = 0;

	for (doubt_at = 1, fired = true; fired; doubt_at++) {
		struct simdisk *d = world(33);
		struct job j;

		act(d, &j, one_in_doubt);
		if (doubted) {
			CHECK_INT(j.acked, 6);
			CHECK_INT(restarted(d), 6);
		}
		n += doubted;
		simdisk_free(d);
	}
	print_message("# %ld steps in doubt\n", n);
	CHECK(n > 0);
}

static void one_of_two_runs(struct one *o)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_CREATE,
		.timeout_ms = 60000, .agent = "auto" };
	struct sheaf_save_opts mem = { .size = sizeof(mem), .flags = SHEAF_NO_DISK };
	struct sheaf_save *save = NULL;
	struct sheaf_run *other = NULL;

	for (int64_t k = 1; k <= 3; k++)
		one_save(o, k, k, SHEAF_NO_DISK, NULL, -1);
	if (o->rc == 0)
		o->rc = shf_run_open(&other, "other", NULL, &opts, o->j->sys[2], &o->err);
	if (o->rc == 0)
		CHECK_INT(shf_save_begin(&save, other, 1, o->state, &mem, &o->err), SHEAF_EAGAIN);
	for (int64_t k = 4; k <= 6; k++)
		one_save(o, k, k, SHEAF_NO_DISK, NULL, -1);
	shf_run_close(other);
}

TEST(an_agent_is_of_one_run)
{
	struct simdisk *d = world(34);
	struct job j;

	act(d, &j, one_of_two_runs);
	CHECK_INT(restarted(d), 6);
	simdisk_free(d);
}

TEST(an_agent_with_room_for_one_job_serves_the_next_one_too)
{
	struct simdisk *d = world(35);
	struct job j = job_on(d, 1, (struct plan){ .last = 4, .disk_every = 3, .images = 2 });

	PLAYED(j, 0);
	simdisk_set_agents(d, 450 << 10);
	for (int n = 0; n < 3; n++) {
		struct job k = job_on(d, 1, (struct plan){ .last = 10 + 6 * n, .disk_every = 3,
		                                           .images = 2 });

		PLAYED(k, 0);
		CHECK_INT(k.loaded, n ? 4 + 6 * n : 4);
		CHECK_INT(k.acked, 10 + 6 * n);
		CHECK(k.refused < 4);
	}
	simdisk_free(d);
}
