/* SPDX-License-Identifier: Apache-2.0 */
/* Saves that a thread of the library commits, with real threads and a real disk: for
 * ThreadSanitizer as much as for the values. Each rank is a thread of this program, and each has a
 * commit thread. */
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "rmtree.h"
#include "rng.h"
#include "sheaf-inspect.h"
#include "sheaf-opts.h"
#include "sheaf.h"
#include "sheaf-admin.h"
#include "sheaf-load.h"
#include "painted.h"
#include "t.h"

enum { RANKS = 2, SLICES = 3, ITEMS = 3000 };

/* ---- a group of threads, with deadlines, and with delays on one rank ---- */

struct meeting {
	pthread_mutex_t lock;
	pthread_cond_t moved;
	const void *data[RANKS];
	const size_t *bytes[RANKS];
	int here;
	unsigned turn;
	bool dead;                      /* a member has left, and all operations fail */
};
struct member {
	struct meeting *m;
	int rank;
	uint64_t random;                /* 0: no delays */
	int most_us;
	pthread_t user;                 /* who made the first call; another is a mistake */
	bool used;
	atomic_int *strangers;
};

static void pause_us(long us)
{
	struct timespec ts = { us / 1000000, us % 1000000 * 1000 };

	nanosleep(&ts, NULL);
}

/* Returns 0 when all are here, -1 after the deadline. */
static int wait_all(struct meeting *m, int timeout_ms)
{
	struct timespec until;
	unsigned turn;
	int rc = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += timeout_ms / 1000;
	until.tv_nsec += timeout_ms % 1000 * 1000000L;
	if (until.tv_nsec >= 1000000000L) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000L;
	}
	pthread_mutex_lock(&m->lock);
	turn = m->turn;
	if (++m->here == RANKS) {
		m->here = 0;
		m->turn++;
		pthread_cond_broadcast(&m->moved);
	}
	while (m->turn == turn && !m->dead && rc == 0)
		rc = pthread_cond_timedwait(&m->moved, &m->lock, &until) ? -1 : 0;
	if (m->turn == turn)
		m->dead = true;
	rc = m->turn == turn ? -1 : 0;
	pthread_cond_broadcast(&m->moved);
	pthread_mutex_unlock(&m->lock);
	return rc;
}

static int meet(struct member *me, const void *data, const size_t *bytes, int timeout_ms)
{
	if (!me->used)
		me->user = pthread_self();
	me->used = true;
	if (!pthread_equal(me->user, pthread_self()))
		atomic_fetch_add(me->strangers, 1);
	if (me->random)
		pause_us((long)(rng_next(&me->random) % (uint64_t)(me->most_us + 1)));
	me->m->data[me->rank] = data;
	me->m->bytes[me->rank] = bytes;
	return wait_all(me->m, timeout_ms);
}

static int gather(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms,
		  struct sheaf_error *err)
{
	struct member *me = arg;

	(void)err;
	if (meet(me, mine, NULL, timeout_ms) < 0)
		return -1;
	for (int r = 0; r < RANKS; r++)
		memcpy((uint8_t *)all + (size_t)r * bytes, me->m->data[r], bytes);
	return wait_all(me->m, timeout_ms);
}

static int exchange(void *arg, const void *out, const size_t *out_bytes, void *in,
                    const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	struct member *me = arg;
	uint8_t *to = in;

	(void)err;
	if (meet(me, out, out_bytes, timeout_ms) < 0)
		return -1;
	for (int r = 0; r < RANKS; r++) {
		const uint8_t *from = me->m->data[r];

		for (int k = 0; k < me->rank; k++)
			from += me->m->bytes[r][k];
		if (in_bytes[r])
			memcpy(to, from, in_bytes[r]);
		to += in_bytes[r];
	}
	return wait_all(me->m, timeout_ms);
}

static int reduce(void *arg, uint64_t *x, size_t n, int op, int timeout_ms, struct sheaf_error *err)
{
	struct member *me = arg;
	uint64_t *sum;
	int rc = meet(me, x, NULL, timeout_ms);

	(void)err;
	if (rc < 0)
		return rc;
	sum = calloc(n + 1, sizeof(*sum));
	for (int r = 0; r < RANKS; r++)
		for (size_t i = 0; i < n; i++) {
			uint64_t v = ((const uint64_t *)me->m->data[r])[i];

			sum[i] = op == SHEAF_SUM ? sum[i] + v : op == SHEAF_XOR ? sum[i] ^ v
			       : v > sum[i] ? v : sum[i];
		}
	rc = wait_all(me->m, timeout_ms);
	memcpy(x, sum, n * sizeof(*x));
	free(sum);
	return rc;
}

static struct sheaf_group *group_of(struct member *me)
{
	struct sheaf_group_ops ops = { .size = sizeof(ops), .rank = me->rank, .ranks = RANKS,
		.allgather = gather, .alltoallv = exchange, .allreduce = reduce, .arg = me };
	struct sheaf_group *group = NULL;

	CHECK_INT(sheaf_group_new(&group, &ops, NULL), 0);
	return group;
}

/* ---- ranks ---- */

struct world {
	char dir[32];
	struct meeting front, back;
	bool alone;                     /* without a commit group */
	int timeout_ms;
	uint64_t seed;                  /* of the delays; 0: none */
	int front_us, back_us;          /* longest delay before an operation of rank 1 */
	int steps;
	atomic_int bad, strangers, told, pruned;
	atomic_llong loaded;
};
struct rank {
	struct world *w;
	int rank;
	float *data[SLICES];
	struct sheaf_state *state;
	struct sheaf_run *run;
};

static void paint(struct rank *k, int slice, int64_t step)
{
	painted_fill(k->data[slice], ITEMS, k->rank, slice, step);
}

static void state_init(struct rank *k)
{
	k->state = painted_state(k->data, SLICES, k->rank, RANKS, ITEMS);
	for (int i = 0; i < SLICES; i++)
		paint(k, i, 1);
}

static void hear(void *arg, int level, const char *line)
{
	(void)arg;
	if (level == 0 || getenv("SUBMIT_LOG"))
		fprintf(stderr, "# %d %s\n", level, line);
}

static void committed(void *arg, int64_t step, const char *path)
{
	struct world *w = arg;

	w->bad += access(path, F_OK) != 0;
	w->bad += step <= w->told;
	w->told = (int)step;
}

struct job {
	struct rank rank;
	void (*does)(struct rank *k);
};

static void *run_rank(void *arg)
{
	struct job *j = arg;
	struct rank *k = &j->rank;
	struct world *w = k->w;
	uint64_t seed = k->rank == 1 ? w->seed : 0;
	struct member front = { .m = &w->front, .rank = k->rank, .random = seed,
		.most_us = w->front_us, .strangers = &w->strangers };
	struct member back = { .m = &w->back, .rank = k->rank, .random = seed ? seed + 1 : 0,
		.most_us = w->back_us, .strangers = &w->strangers };
	struct sheaf_group *a = group_of(&front), *b = group_of(&back);
	struct sheaf_retention keep = { .size = sizeof(keep), .keep_last = 3, .grace_s = -1 };
	struct sheaf_notify notify = { .size = sizeof(notify), .committed = committed, .arg = w };
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE,
		.timeout_ms = w->timeout_ms, .io_threads = 1,
		.commit_group = w->alone ? NULL : b, .log = hear, .retention = &keep,
		.notify = &notify };
	struct sheaf_error err;

	state_init(k);
	CHECK_RC(sheaf_run_open(&k->run, w->dir, a, &opts, &err), 0, &err);
	j->does(k);
	sheaf_run_close(k->run);
	sheaf_state_free(k->state);
	sheaf_group_free(b);
	sheaf_group_free(a);
	for (int i = 0; i < SLICES; i++)
		free(k->data[i]);
	return NULL;
}

static void meeting_init(struct meeting *m)
{
	*m = (struct meeting){ .here = 0 };
	pthread_mutex_init(&m->lock, NULL);
	pthread_cond_init(&m->moved, NULL);
}

static void play(struct world *w, void (*does)(struct rank *k))
{
	struct job jobs[RANKS];
	pthread_t threads[RANKS];

	meeting_init(&w->front);
	meeting_init(&w->back);
	for (int r = 0; r < RANKS; r++) {
		jobs[r] = (struct job){ { .w = w, .rank = r }, does };
		CHECK_INT(pthread_create(&threads[r], NULL, run_rank, &jobs[r]), 0);
	}
	for (int r = 0; r < RANKS; r++)
		pthread_join(threads[r], NULL);
	CHECK_INT(w->strangers, 0);
}

/* Rank 1 passes a group of options whose size it did not set. */
static void *open_wrongly(void *arg)
{
	struct job *j = arg;
	struct rank *k = &j->rank;
	struct member front = { .m = &k->w->front, .rank = k->rank, .strangers = &k->w->strangers };
	struct sheaf_group *group = group_of(&front);
	struct sheaf_staging staging = { .size = k->rank == 1 ? 4 : sizeof(staging) };
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE,
		.timeout_ms = 60000, .staging = &staging };
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;

	for (int i = 0; i < 2; i++) {
		int rc = i ? sheaf_checkpoint_open_path(&step, k->w->dir, group, &opts, &err)
		           : sheaf_run_open(&k->run, k->w->dir, group, &opts, &err);

		CHECK_RC(rc, SHEAF_EINVAL, &err);
		CHECK_INT(err.rank, 1);
		CHECK_STR(err.msg, "opts.staging.size is 4; set it to sizeof(struct "
		          "sheaf_staging)");
	}
	CHECK(!k->run && !step && access(k->w->dir, F_OK) != 0);
	sheaf_group_free(group);
	return NULL;
}

TEST(options_that_one_rank_cannot_pass_open_nothing_on_any)
{
	struct world w = { .dir = "submit.none" };
	struct job jobs[RANKS];
	pthread_t threads[RANKS];

	meeting_init(&w.front);
	for (int r = 0; r < RANKS; r++) {
		jobs[r] = (struct job){ .rank = { .w = &w, .rank = r } };
		CHECK_INT(pthread_create(&threads[r], NULL, open_wrongly, &jobs[r]), 0);
	}
	for (int r = 0; r < RANKS; r++)
		pthread_join(threads[r], NULL);
	CHECK_INT(w.strangers, 0);
}

static void world_new(struct world *w)
{
	snprintf(w->dir, sizeof(w->dir), "submit.XXXXXX");
	CHECK(mkdtemp(w->dir) != NULL);
	w->timeout_ms = w->timeout_ms ? w->timeout_ms : 60000;
}

static struct sheaf_save *begin(struct rank *k, int64_t step, uint64_t flags)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = flags };
	struct sheaf_save *save = NULL;
	struct sheaf_error err;

	CHECK_RC(sheaf_save_begin(&save, k->run, step, k->state, &opts, &err), 0, &err);
	return save;
}

/* The training step: each slice changes once its gate is open. */
static void train(struct rank *k, struct sheaf_save *save, int64_t step)
{
	for (int i = 0; i < SLICES; i++) {
		k->w->bad += sheaf_save_wait_copied(save, i, -1, NULL) != 0;
		paint(k, i, step + 1);
	}
}

static void submit(struct sheaf_save *save)
{
	struct sheaf_error err;

	CHECK_RC(sheaf_save_submit(save, &err), 0, &err);
}

static void check_latest(struct rank *k, int64_t step)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_checkpoint *latest = NULL;
	struct sheaf_error err;

	for (int i = 0; i < SLICES; i++)
		memset(k->data[i], 0, ITEMS * sizeof(float));
	CHECK_RC(sheaf_checkpoint_open(&latest, k->run, SHEAF_LATEST, &err), 0, &err);
	CHECK_RC(sheaf_checkpoint_load(latest, k->state, 0, &report, &err), 0, &err);
	CHECK_INT(report.step, step);
	for (int i = 0; i < SLICES; i++)
		for (size_t n = 0; n < ITEMS; n++)
			k->w->bad += k->data[i][n] != painted_item(k->rank, i, step, n);
	sheaf_checkpoint_close(latest);
}

/* ---- one save ---- */

static void save_one(struct rank *k)
{
	struct sheaf_save *save = begin(k, 1, SHEAF_SAVE_LAZY);
	struct sheaf_error err;

	CHECK_INT(sheaf_save_note(save, "lr", "1", NULL), 0);
	submit(save);
	CHECK_INT(sheaf_save_note(save, "more", "1", NULL), SHEAF_EINVAL);
	train(k, save, 1);
	CHECK_RC(sheaf_save_result(save, INT_MAX, &err), 0, &err);
	CHECK_RC(sheaf_save_result(save, 0, &err), 0, &err);
	sheaf_save_free(save);
	check_latest(k, 1);
}

TEST(a_thread_commits_a_save)
{
	struct world w = { .seed = 0 };

	world_new(&w);
	play(&w, save_one);
	CHECK_INT(w.bad, 0);
	CHECK_INT(w.told, 1);
	rmtree(w.dir);
}

/* ---- a save each step ---- */

/* Three of four handles are kept for a step, so that the outcome is asked for while the next save
 * is in flight; the others are freed at once. */
static void save_each_step(struct rank *k)
{
	struct sheaf_save *before = NULL;
	struct sheaf_error err;

	for (int64_t step = 1; step <= k->w->steps; step++) {
		struct sheaf_save *save = begin(k, step, step % 3 ? SHEAF_SAVE_LAZY : 0);

		if (step % 5 == 0)
			train(k, save, step);
		submit(save);
		if (step % 5)
			train(k, save, step);
		if (before)
			CHECK_RC(sheaf_save_result(before, INT_MAX, &err), 0, &err);
		sheaf_save_free(before);
		before = save;
		if (step % 4 == 0) {
			sheaf_save_free(save);
			before = NULL;
		}
	}
	sheaf_save_free(before);
}

static void look(struct rank *k)
{
	check_latest(k, k->w->steps);
}

static void many(uint64_t seed, int steps, int front_us, int back_us)
{
	struct world w = { .seed = seed, .steps = steps, .front_us = front_us,
		.back_us = back_us };

	world_new(&w);
	play(&w, save_each_step);
	CHECK_INT(w.bad, 0);
	CHECK_INT(w.told, steps);
	play(&w, look);
	CHECK_INT(w.bad, 0);
	rmtree(w.dir);
}

TEST(a_save_each_step)
{
	many(0, 60, 0, 0);
}

TEST(with_a_late_thread_on_one_rank)
{
	many(1, 60, 0, 3000);
}

TEST(with_a_late_caller_on_one_rank)
{
	many(2, 60, 3000, 0);
}

TEST(with_both_late)
{
	many(3, 60, 1000, 1000);
}

/* ---- loads slice by slice meanwhile ---- */

/* Loads the latest checkpoint into a state of its own, one slice after the other. All saves of this
 * test have the values of step 1. */
static void load_by_slices(struct rank *k)
{
	float *data[SLICES];
	struct sheaf_state *state = painted_state(data, SLICES, k->rank, RANKS, ITEMS);
	struct sheaf_checkpoint *latest = NULL;
	struct sheaf_load *load = NULL;
	struct sheaf_error err;

	CHECK_RC(sheaf_checkpoint_open(&latest, k->run, SHEAF_LATEST, &err), 0, &err);
	CHECK_RC(sheaf_load_begin(&load, latest, state, 0, NULL, &err), 0, &err);
	for (int i = 0; i < SLICES; i++)
		CHECK_RC(sheaf_load_take(load, i, NULL, &err), 0, &err);
	CHECK_RC(sheaf_load_end(load, NULL, &err), 0, &err);
	sheaf_load_free(load);
	sheaf_checkpoint_close(latest);
	sheaf_state_free(state);
	for (int i = 0; i < SLICES; i++) {
		for (size_t n = 0; n < ITEMS; n++)
			k->w->bad += data[i][n] != painted_item(k->rank, i, 1, n);
		free(data[i]);
	}
}

/* Neither group is ever used by two threads (play counts strangers). The last load of each step is
 * that of the newest checkpoint, so that the next save may follow. */
static void load_while_committed(struct rank *k)
{
	struct sheaf_error err;

	for (int64_t step = 1; step <= k->w->steps; step++) {
		struct sheaf_save *save = begin(k, step, 0);

		submit(save);
		for (int i = 0; i < 3 && step > 1; i++)
			load_by_slices(k);
		CHECK_RC(sheaf_save_result(save, INT_MAX, &err), 0, &err);
		sheaf_save_free(save);
		load_by_slices(k);
	}
}

TEST(a_load_by_slices_and_the_commit_thread_use_no_group_together)
{
	struct world w = { .seed = 4, .steps = 12, .back_us = 3000 };

	world_new(&w);
	play(&w, load_while_committed);
	CHECK_INT(w.bad, 0);
	rmtree(w.dir);
}

/* ---- what is refused ---- */

#define SAYS(rc, code, text, err)                                                        \
	do {                                                                             \
		CHECK_RC((rc), (code), (err));                                           \
		if (!strstr((err)->msg, (text)))                                         \
			print_error("%s\n", (err)->msg);                                 \
		CHECK(strstr((err)->msg, (text)) != NULL);                               \
	} while (0)

static void submit_wrongly(struct rank *k)
{
	struct sheaf_save *one = begin(k, 1, SHEAF_SAVE_LAZY), *two;
	struct sheaf_error err;

	SAYS(sheaf_save_submit(NULL, &err), SHEAF_EINVAL, "argument 'save' is NULL", &err);
	SAYS(sheaf_save_result(NULL, 0, &err), SHEAF_EINVAL, "argument 'save' is NULL", &err);
	SAYS(sheaf_save_result(one, 0, &err), SHEAF_EINVAL, "was not submitted", &err);
	train(k, one, 1);
	two = begin(k, 2, SHEAF_SAVE_LAZY);
	train(k, two, 2);
	SAYS(sheaf_save_submit(two, &err), SHEAF_EINVAL, "step 1 was begun before it", &err);
	submit(one);
	SAYS(sheaf_save_submit(one, &err), SHEAF_EINVAL, "submitted before; call", &err);
	SAYS(sheaf_save_commit(one, -1, &err), SHEAF_EINVAL, "the save was submitted", &err);
	CHECK_RC(sheaf_save_result(one, INT_MAX, &err), 0, &err);
	SAYS(sheaf_save_submit(one, &err), SHEAF_EINVAL, "submitted before; call", &err);
	/* What the caller commits itself is over, too. */
	CHECK_RC(sheaf_save_commit(two, -1, &err), 0, &err);
	SAYS(sheaf_save_submit(two, &err), SHEAF_EINVAL, "the save has ended; free it", &err);
	sheaf_save_free(one);
	sheaf_save_free(two);
	check_latest(k, 2);
}

static void submit_without_thread(struct rank *k)
{
	struct sheaf_save *save = begin(k, 1, 0);
	struct sheaf_error err;

	SAYS(sheaf_save_submit(save, &err), SHEAF_EINVAL, "opts.commit_group", &err);
	CHECK_RC(sheaf_save_commit(save, -1, &err), 0, &err);
	sheaf_save_free(save);
}

TEST(what_cannot_be_submitted_is_refused)
{
	struct world w = { .seed = 0 }, without = { .alone = true };

	world_new(&w);
	play(&w, submit_wrongly);
	CHECK_INT(w.bad, 0);
	rmtree(w.dir);
	world_new(&without);
	play(&without, submit_without_thread);
	rmtree(without.dir);
}

/* The first save is not committed before the caller has come to its gates. */
static void follow_a_submitted(struct rank *k)
{
	struct sheaf_save *one = begin(k, 1, SHEAF_SAVE_LAZY | SHEAF_SAVE_CHECK), *two;
	struct sheaf_error err;

	submit(one);
	two = begin(k, 2, SHEAF_SAVE_LAZY);
	for (int i = 0; i < SLICES; i++)
		CHECK_INT(sheaf_save_wait_copied(two, i, -1, NULL), 0);
	/* Pages of headers have no gate, and may still be copied. */
	while (sheaf_save_advance(two, 0, &err) == SHEAF_EAGAIN && strstr(err.msg, "still copying"))
		pause_us(1000);
	SAYS(sheaf_save_advance(two, 0, &err), SHEAF_EAGAIN, "step 2: step 1 was begun before it "
	     "and is not committed; wait for that one with sheaf_save_result", &err);
	SAYS(sheaf_save_commit(two, -1, &err), SHEAF_EINVAL, "step 2: step 1 was begun before it; "
	     "wait for that save with sheaf_save_result", &err);
	for (int i = 0; i < SLICES; i++)
		CHECK_INT(sheaf_save_wait_copied(one, i, -1, NULL), 0);
	CHECK_RC(sheaf_save_result(one, INT_MAX, &err), 0, &err);
	CHECK_RC(sheaf_save_commit(two, -1, &err), 0, &err);
	sheaf_save_free(one);
	sheaf_save_free(two);
}

TEST(what_follows_a_submitted_save_waits_for_its_result)
{
	struct world w = { .seed = 0 };

	world_new(&w);
	play(&w, follow_a_submitted);
	CHECK_INT(w.bad, 0);
	rmtree(w.dir);
}

static atomic_bool has_closed;

/* Rank 1 closes the run when rank 0 has waited for it in vain. */
static void close_alone(struct rank *k)
{
	struct sheaf_save *save = begin(k, 1, SHEAF_SAVE_LAZY | SHEAF_SAVE_CHECK);
	struct sheaf_error err;

	submit(save);
	while (k->rank && !atomic_load(&has_closed))
		pause_us(1000);
	sheaf_run_close(k->run);
	k->run = NULL;
	atomic_store(&has_closed, true);
	SAYS(sheaf_save_result(save, 0, &err), SHEAF_ELOST, "the run was closed before this save "
	     "was committed, and not by all ranks in time; all ranks must call sheaf_run_close",
	     &err);
	sheaf_save_free(save);
}

TEST(a_rank_that_closes_alone_says_what_became_of_its_save)
{
	struct world w = { .timeout_ms = 1000 };

	world_new(&w);
	play(&w, close_alone);
	rmtree(w.dir);
}

/* ---- a child, and a handle that outlives the run ---- */

static void fork_meanwhile(struct rank *k)
{
	struct sheaf_save *save = begin(k, 1, SHEAF_SAVE_LAZY);
	struct sheaf_error err;
	int status = -1;
	pid_t child;

	submit(save);
	if (k->rank == 0) {
		child = fork();
		if (child == 0) {
			int rc = sheaf_save_result(save, INT_MAX, NULL);

			sheaf_save_free(save);
			sheaf_run_close(k->run);
			_exit(rc == SHEAF_EINVAL ? 0 : 1);
		}
		CHECK_INT(waitpid(child, &status, 0), child);
		CHECK_INT(status, 0);
	}
	train(k, save, 1);
	CHECK_RC(sheaf_save_result(save, INT_MAX, &err), 0, &err);
	sheaf_save_free(save);
	check_latest(k, 1);
}

TEST(a_child_frees_what_it_inherits)
{
	struct world w = { .seed = 0 };

	world_new(&w);
	play(&w, fork_meanwhile);
	CHECK_INT(w.bad, 0);
	rmtree(w.dir);
}

static void close_meanwhile(struct rank *k)
{
	struct sheaf_save *save = begin(k, 1, SHEAF_SAVE_LAZY), *left;
	struct sheaf_error err;

	train(k, save, 1);
	left = begin(k, 2, SHEAF_SAVE_LAZY);
	train(k, left, 2);
	submit(save);
	submit(left);
	sheaf_save_free(left);
	sheaf_run_close(k->run);
	k->run = NULL;
	CHECK_RC(sheaf_save_result(save, 0, &err), 0, &err);
	sheaf_save_free(save);
}

TEST(a_close_commits_what_was_submitted)
{
	struct world w = { .steps = 2, .timeout_ms = 20000 };

	world_new(&w);
	play(&w, close_meanwhile);
	CHECK_INT(w.told, 2);
	play(&w, look);
	CHECK_INT(w.bad, 0);
	rmtree(w.dir);
}
