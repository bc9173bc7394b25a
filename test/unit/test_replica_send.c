/* SPDX-License-Identifier: Apache-2.0 */
/* Replicas of steps in memory that are sent in the background, with real threads and a real agent:
 * for ThreadSanitizer as much as for the values. Two ranks are threads that are told they are
 * nodes. */
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include "step.h"
#include "rmtree.h"
#include "sheaf-opts.h"
#include "sheaf.h"
#include "sheaf-inspect.h"
#include "sheaf-agent.h"
#include "agent_link.h"
#define T_STDIN_CLOSED
#include "image_card.h"
#include "painted.h"
#include "t.h"

enum { RANKS = 2, SLICES = 3, ITEMS = 1500000, STEPS = 12 };

/* ---- a group of threads ---- */

struct meeting {
	pthread_barrier_t all;
	const void *data[RANKS];
	const size_t *bytes[RANKS];
};
struct member {
	struct meeting *m;
	int rank;
};

static void meet(struct member *me, const void *data, const size_t *bytes)
{
	me->m->data[me->rank] = data;
	me->m->bytes[me->rank] = bytes;
	pthread_barrier_wait(&me->m->all);
}

static int gather(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms,
		  struct sheaf_error *err)
{
	struct member *me = arg;

	(void)timeout_ms, (void)err;
	meet(me, mine, NULL);
	for (int r = 0; r < RANKS; r++)
		memcpy((uint8_t *)all + (size_t)r * bytes, me->m->data[r], bytes);
	pthread_barrier_wait(&me->m->all);
	return 0;
}

static int exchange(void *arg, const void *out, const size_t *out_bytes, void *in,
                    const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	struct member *me = arg;
	uint8_t *to = in;

	(void)timeout_ms, (void)err;
	meet(me, out, out_bytes);
	for (int r = 0; r < RANKS; r++) {
		const uint8_t *from = me->m->data[r];

		for (int k = 0; k < me->rank; k++)
			from += me->m->bytes[r][k];
		if (in_bytes[r])
			memcpy(to, from, in_bytes[r]);
		to += in_bytes[r];
	}
	pthread_barrier_wait(&me->m->all);
	return 0;
}

static int reduce(void *arg, uint64_t *x, size_t n, int op, int timeout_ms, struct sheaf_error *err)
{
	struct member *me = arg;
	uint64_t *sum = calloc(n + 1, sizeof(*sum));

	(void)timeout_ms, (void)err;
	meet(me, x, NULL);
	for (int r = 0; r < RANKS; r++)
		for (size_t i = 0; i < n; i++) {
			uint64_t v = ((const uint64_t *)me->m->data[r])[i];

			sum[i] = op == SHEAF_SUM ? sum[i] + v : op == SHEAF_XOR ? sum[i] ^ v
			       : v > sum[i] ? v : sum[i];
		}
	pthread_barrier_wait(&me->m->all);
	memcpy(x, sum, n * sizeof(*x));
	free(sum);
	return 0;
}

static struct sheaf_group *group_of(struct member *me)
{
	struct sheaf_group_ops ops = { .size = sizeof(ops), .rank = me->rank, .ranks = RANKS,
		.node = me->rank + 1, .allgather = gather, .alltoallv = exchange,
		.allreduce = reduce, .arg = me };
	struct sheaf_group *group = NULL;

	CHECK_INT(sheaf_group_new(&group, &ops, NULL), 0);
	return group;
}

/* ---- ranks ---- */

struct world {
	char dir[32];
	struct meeting front, back, commits;
	bool behind, submits;           /* submits: a thread of the library commits */
	pid_t agent;
	atomic_int bad, once, peers;
	atomic_llong loaded;
	atomic_ullong disk_bytes;
};
struct rank {
	struct world *w;
	int rank;
	float *data[SLICES];
	struct sheaf_state *state;
};

static void paint(struct rank *k, int slice, int64_t step)
{
	painted_fill(k->data[slice], ITEMS, k->rank, slice, step);
}

static void state_init(struct rank *k)
{
	k->state = painted_state(k->data, SLICES, k->rank, RANKS, ITEMS);
}

static void hear(void *arg, int level, const char *line)
{
	struct world *w = arg;

	if (level <= 1)
		fprintf(stderr, "# %s\n", line);
	w->once += level == 1 && strstr(line, "no second copy") != NULL;
}

static struct sheaf_run *open_run(struct rank *k, struct sheaf_group *front,
                                  struct sheaf_group *back, struct sheaf_group *commits)
{
	struct sheaf_staging staging = { .size = sizeof(staging), .buffers_max = 3 };
	struct sheaf_memory_tier tier = { .size = sizeof(tier), .agent = "auto", .copies = 2,
		.copies_group = k->w->behind ? back : NULL };
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE,
		.staging = &staging, .memory_tier = &tier,
		.commit_group = k->w->submits ? commits : NULL, .log = hear, .arg = k->w };
	struct sheaf_run *run = NULL;
	struct sheaf_error err;

	CHECK_RC(sheaf_run_open(&run, k->w->dir, front, &opts, &err), 0, &err);
	return run;
}

static void train(struct rank *k, struct sheaf_run *run)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts),
		.flags = SHEAF_SAVE_LAZY | SHEAF_SAVE_NO_DISK };
	struct sheaf_error err;

	for (int64_t step = 1; step <= STEPS; step++) {
		struct sheaf_save *save = NULL;

		CHECK_RC(sheaf_save_begin(&save, run, step, k->state, &opts, &err), 0, &err);
		if (k->w->submits)
			CHECK_RC(sheaf_save_submit(save, &err), 0, &err);
		for (int i = 0; i < SLICES; i++) {
			k->w->bad += sheaf_save_wait_copied(save, i, -1, NULL) != 0;
			paint(k, i, step + 1);
		}
		if (!k->w->submits)
			CHECK_RC(sheaf_save_commit(save, -1, &err), 0, &err);
		if (k->w->submits && step == STEPS)
			CHECK_RC(sheaf_save_result(save, INT_MAX, &err), 0, &err);
		sheaf_save_free(save);
	}
}

static void look(struct rank *k, struct sheaf_run *run)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_checkpoint_info info = { .size = sizeof(info) };
	struct sheaf_error err;

	CHECK_RC(sheaf_checkpoint_open(&step, run, SHEAF_LATEST, &err), 0, &err);
	CHECK_RC(sheaf_checkpoint_load(step, k->state, 0, &report, &err), 0, &err);
	CHECK_INT(sheaf_checkpoint_get_info(step, &info, NULL), 0);
	for (int i = 0; i < SLICES; i++)
		for (size_t n = 0; n < ITEMS; n++)
			k->w->bad += k->data[i][n] != painted_item(k->rank, i, info.step, n);
	k->w->loaded = info.step;
	k->w->disk_bytes = report.disk_bytes;
	k->w->peers = (int)report.peers;
	sheaf_checkpoint_close(step);
}

struct job {
	struct rank rank;
	void (*does)(struct rank *k, struct sheaf_run *run);
};

static void *run_rank(void *arg)
{
	struct job *j = arg;
	struct rank *k = &j->rank;
	struct member front = { &k->w->front, k->rank }, back = { &k->w->back, k->rank };
	struct member commits = { &k->w->commits, k->rank };
	struct sheaf_group *a = group_of(&front), *b = group_of(&back), *c = group_of(&commits);
	struct sheaf_run *run;

	state_init(k);
	for (int i = 0; i < SLICES; i++)
		paint(k, i, 1);
	run = open_run(k, a, b, c);
	j->does(k, run);
	sheaf_run_close(run);
	sheaf_state_free(k->state);
	sheaf_group_free(c);
	sheaf_group_free(b);
	sheaf_group_free(a);
	for (int i = 0; i < SLICES; i++)
		free(k->data[i]);
	return NULL;
}

static void play(struct world *w, void (*does)(struct rank *k, struct sheaf_run *run))
{
	struct job jobs[RANKS];
	pthread_t threads[RANKS];

	for (int r = 0; r < RANKS; r++) {
		jobs[r] = (struct job){ { .w = w, .rank = r }, does };
		CHECK_INT(pthread_create(&threads[r], NULL, run_rank, &jobs[r]), 0);
	}
	for (int r = 0; r < RANKS; r++)
		pthread_join(threads[r], NULL);
}

/* ---- the agent ---- */

static int ready(void *arg, const char *socket)
{
	(void)socket;
	return write(*(int *)arg, "r", 1) == 1 ? 0 : -1;
}

static void agent_start(struct world *w)
{
	int ends[2];
	char c;

	CHECK_INT(pipe(ends), 0);
	w->agent = fork();
	if (w->agent == 0) {
		struct sheaf_agent_opts opts = { .size = sizeof(opts), .arg = &ends[1],
			.ready = ready };
		struct sheaf_error err;

		_exit(sheaf_agent_serve(w->dir, &opts, &err) < 0);
	}
	close(ends[1]);
	CHECK_INT(read(ends[0], &c, 1), 1);
	close(ends[0]);
}

struct names {
	int n;
	char text[64][SHF_KEEP_NAME];
};

static int note(void *arg, const char *name)
{
	struct names *f = arg;

	if (f->n < 64)
		snprintf(f->text[f->n++], SHF_KEEP_NAME, "%s", name);
	return 0;
}

/* One agent is both nodes': what the first one had goes, its own and copies for the other. */
static int lose_node(struct world *w)
{
	const struct shf_sys *sys = shf_sys_real();
	struct shf_store store = { .dir = -1, .dot = -1, .stage = -1, .lock = -1 };
	struct names f = { 0 };
	struct sheaf_error err;
	int keep = -1, gone = 0;

	CHECK_RC(shf_store_open(&store, sys, w->dir, &err), 0, &err);
	CHECK_RC(shf_agent_connect(&store, NULL, &keep, NULL, &err), 0, &err);
	CHECK_INT(shf_sys_keep_list(sys, keep, note, &f), 0);
	for (int i = 0; i < f.n; i++) {
		char job[33];
		int rank, image;
		bool card;

		CHECK(shf_card_parse(f.text[i], job, &rank, &image, &card));
		if ((rank == 0) != (image < SHF_CARD_REPLICA))
			continue;
		CHECK_INT(shf_sys_keep_drop(sys, keep, f.text[i]), 0);
		gone++;
	}
	shf_sys_keep_close(sys, keep, true);
	shf_store_close(&store);
	return gone;
}

static void go(bool behind, bool submits)
{
	struct world w = { .dir = "twice.XXXXXX", .behind = behind, .submits = submits };
	struct sheaf_error err;
	int status;

	CHECK(mkdtemp(w.dir) != NULL);
	pthread_barrier_init(&w.front.all, NULL, RANKS);
	pthread_barrier_init(&w.back.all, NULL, RANKS);
	pthread_barrier_init(&w.commits.all, NULL, RANKS);
	agent_start(&w);
	play(&w, train);
	CHECK_INT(w.bad, 0);
	CHECK_INT(w.once, 0);
	CHECK(lose_node(&w) > 0);
	play(&w, look);
	CHECK_INT(w.bad, 0);
	CHECK_INT(w.peers, 1);
	CHECK_INT(w.disk_bytes, 0);
	CHECK(w.loaded >= (behind ? 1 : STEPS)); /* the last goes if no other is in flight */
	CHECK_RC(sheaf_agent_stop(w.dir, NULL, &err), 0, &err);
	CHECK_INT(waitpid(w.agent, &status, 0), w.agent);
	pthread_barrier_destroy(&w.front.all);
	pthread_barrier_destroy(&w.back.all);
	pthread_barrier_destroy(&w.commits.all);
	rmtree(w.dir);
}

TEST(copies_inside_commits_come_back)
{
	go(false, false);
}

TEST(copies_that_went_behind_come_back)
{
	go(true, false);
}

TEST(copies_of_saves_that_a_thread_commits_come_back)
{
	go(false, true);
	go(true, true);
}
