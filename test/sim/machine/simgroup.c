/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as threads that pass a baton.
 *
 * Invariants: at most one rank thread is outside sem_wait, the one with number sim->running.
 * Everything below struct sim is guarded by sim->lock, which a rank holds only inside an operation.
 * The n-th operation of a rank meets the n-th operations of all other ranks in its team.
 */
#include "simgroup.h"
#include "rng.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "group.h"

#define FAR_MS (INT64_MAX / 4)

enum kind { ALLGATHER, ALLTOALLV, ALLREDUCE };
enum state { READY, WAITING, SLEEPING, DONE };

struct call {                   /* an operation, as one rank calls it */
	enum kind kind;
	int op;                         /* allreduce */
	size_t n;                       /* allgather: bytes, allreduce: words */
	const void *out;                /* borrowed from the caller */
	const size_t *out_bytes, *in_bytes;
	void *in;
	int timeout_ms;
	struct sheaf_error *err;        /* receives the reason of a failure */
};

struct part {                   /* the data of one rank */
	bool here;
	uint8_t *bytes;                 /* owned */
	size_t *out_bytes, *in_bytes;   /* owned; alltoallv */
};

struct simop {
	struct simop *next;
	uint64_t number;
	int base, ranks;                /* the first rank of the team, and their number */
	struct call call;               /* of the rank that came first; its pointers are not used */
	int first;
	int here_n, left_n;
	bool complete;
	struct part *parts;             /* owned; one for each rank of the team */
	uint64_t *sum;                  /* owned; allreduce, when complete */
};

struct simrank {
	struct sim *sim;
	int rank;
	int base, team_n;               /* its team: ranks base .. base + team_n - 1 */
	pthread_t thread;
	sem_t turn;                     /* posted only for the rank whose turn it is */
	enum state state;
	int64_t due_ms;                 /* while WAITING or SLEEPING */
	struct simop *op;               /* while WAITING */
	uint64_t op_n;
	bool expired, dead, lost;
	bool freed;                     /* the group was freed */
	struct sheaf_group *group;
	int result;
};

struct sim {
	pthread_mutex_t lock;
	sem_t over;
	const struct simgroup_opts *opts;
	int (*fn)(void *arg, int rank, struct sheaf_group *group);
	void *arg;
	int ranks, running;             /* running: -1 when all are done */
	struct simrank *rank;           /* owned; one for each rank */
	struct simop *ops;              /* owned; those that some rank has not left yet */
	uint64_t random;
	bool excused;                   /* a fault has occurred */
	bool broken;                    /* the run failed: all operations fail */
	struct simgroup_stat stat;
};

static void *must(void *p)
{
	if (!p) {
		fprintf(stderr, "simgroup: out of memory\n");
		abort();
	}
	return p;
}

static void *copy_of(const void *bytes, size_t n)
{
	void *p = must(malloc(n + 1));

	if (n > 0)
		memcpy(p, bytes, n);
	return p;
}

/* Fails the run. Only the first reason is kept: the others follow from it. */
__attribute__((format(printf, 2, 3)))
static void complain(struct sim *sim, const char *fmt, ...)
{
	va_list ap;

	if (sim->broken)
		return;
	sim->broken = true;
	va_start(ap, fmt);
	vsnprintf(sim->stat.why, sizeof(sim->stat.why), fmt, ap);
	va_end(ap);
	if (!sim->opts->quiet)
		fprintf(stderr, "simgroup: seed 0x%llx, %d ranks: %s\n",
			(unsigned long long)sim->opts->seed, sim->ranks, sim->stat.why);
}

static const char *call_text(const struct call *c, char *text, size_t n)
{
	static const char *const ops[] = { "SUM", "MAX", "XOR" };

	if (c->kind == ALLGATHER)
		snprintf(text, n, "allgather of %zu bytes", c->n);
	else if (c->kind == ALLTOALLV)
		snprintf(text, n, "alltoallv");
	else
		snprintf(text, n, "allreduce of %zu words by %s", c->n,
			 c->op >= 0 && c->op <= SHEAF_XOR ? ops[c->op] : "?");
	return text;
}

/* ---- turns ---- */

static void wake(struct simrank *r)
{
	r->state = READY;
	r->op = NULL;
}

/* No rank can run: advances the time until something is due. Returns false if there is nothing to
 * wait for. */
static bool clock_jump(struct sim *sim)
{
	int64_t due = INT64_MAX;
	char text[80];

	for (int i = 0; i < sim->ranks; i++)
		if (sim->rank[i].state != DONE && sim->rank[i].due_ms < due)
			due = sim->rank[i].due_ms;
	if (due == INT64_MAX)
		return false;
	if (due > sim->stat.clock_ms)
		sim->stat.clock_ms = due;
	for (int i = 0; i < sim->ranks; i++) {
		struct simrank *r = &sim->rank[i];

		if (r->state == DONE || r->due_ms > due)
			continue;
		for (int j = 0; j < r->team_n && r->state == WAITING && !sim->excused; j++)
			if (!r->op->parts[j].here)
				complain(sim, "operation %llu: rank %d waits in %s, rank %d %s",
					 (unsigned long long)r->op->number, i,
					 call_text(&r->op->call, text, sizeof(text)), r->base + j,
					 sim->rank[r->base + j].state == DONE ?
					 "has returned" : "never comes");
		r->expired = r->state == WAITING;
		wake(r);
	}
	return true;
}

/* Draws the rank that runs next. */
static void baton_pass(struct sim *sim)
{
	int ready = 0;

	for (;;) {
		for (int i = 0; i < sim->ranks; i++)
			ready += sim->rank[i].state == READY;
		if (ready > 0)
			break;
		if (!clock_jump(sim)) {
			sim->running = -1;
			return;
		}
	}
	ready = (int)(rng_next(&sim->random) % (uint64_t)ready);
	for (int i = 0; i < sim->ranks; i++) {
		if (sim->rank[i].state != READY || ready-- > 0)
			continue;
		sim->running = i;
		return;
	}
}

/* Called with the lock, which it releases first, so that the thread that wakes finds it free. */
static void baton_hand_over(struct sim *sim)
{
	sem_t *next = sim->running < 0 ? &sim->over : &sim->rank[sim->running].turn;

	pthread_mutex_unlock(&sim->lock);
	sem_post(next);
}

static void baton_take(sem_t *turn)
{
	while (sem_wait(turn) != 0)
		;
}

static void baton_wait(struct simrank *me)
{
	struct sim *sim = me->sim;

	if (sim->running == me->rank)
		return;
	baton_hand_over(sim);
	baton_take(&me->turn);
	pthread_mutex_lock(&sim->lock);
}

static void sleep_until(struct simrank *me, int64_t ms)
{
	struct sim *sim = me->sim;

	me->state = ms > sim->stat.clock_ms ? SLEEPING : READY;
	me->due_ms = ms;
	baton_pass(sim);
	baton_wait(me);
}

/* ---- operations ---- */

static void simop_free(struct simop *op)
{
	for (int i = 0; i < op->ranks; i++) {
		free(op->parts[i].bytes);
		free(op->parts[i].out_bytes);
		free(op->parts[i].in_bytes);
	}
	free(op->parts);
	free(op->sum);
	free(op);
}

static void simop_leave(struct sim *sim, struct simop *op)
{
	struct simop **p = &sim->ops;

	if (++op->left_n < op->ranks)
		return;
	while (*p != op)
		p = &(*p)->next;
	*p = op->next;
	simop_free(op);
}

/* Returns the team's operation of that number. The first rank makes it. */
static struct simop *simop_get(struct simrank *me, uint64_t number, const struct call *c)
{
	struct sim *sim = me->sim;
	struct simop *op = sim->ops;

	while (op && (op->number != number || op->base != me->base))
		op = op->next;
	if (op)
		return op;
	op = must(calloc(1, sizeof(*op)));
	op->parts = must(calloc((size_t)me->team_n, sizeof(*op->parts)));
	op->number = number;
	op->base = me->base;
	op->ranks = me->team_n;
	op->call = *c;
	op->first = me->rank;
	op->next = sim->ops;
	sim->ops = op;
	return op;
}

static bool calls_match(struct simrank *me, const struct simop *op, const struct call *c)
{
	char a[80], b[80];

	if (c->kind == op->call.kind && c->n == op->call.n && c->op == op->call.op)
		return true;
	complain(me->sim, "operation %llu: rank %d calls %s, rank %d calls %s",
		 (unsigned long long)op->number, op->first, call_text(&op->call, a, sizeof(a)),
		 me->rank, call_text(c, b, sizeof(b)));
	return false;
}

static void give(struct simrank *me, struct simop *op, const struct call *c)
{
	struct part *part = &op->parts[me->rank - me->base];
	size_t ranks = (size_t)op->ranks, bytes = c->n;

	if (c->kind == ALLREDUCE)
		bytes = c->n * sizeof(uint64_t);
	if (c->kind == ALLTOALLV) {
		bytes = 0;
		for (size_t r = 0; r < ranks; r++)
			bytes += c->out_bytes[r];
		part->out_bytes = copy_of(c->out_bytes, ranks * sizeof(size_t));
		part->in_bytes = copy_of(c->in_bytes, ranks * sizeof(size_t));
	}
	part->bytes = copy_of(c->out, bytes);
	part->here = true;
	op->here_n++;
}

static bool sizes_match(struct sim *sim, const struct simop *op)
{
	for (int from = 0; from < op->ranks; from++)
		for (int to = 0; to < op->ranks; to++) {
			size_t out = op->parts[from].out_bytes[to];
			size_t in = op->parts[to].in_bytes[from];

			if (out == in)
				continue;
			complain(sim, "operation %llu: rank %d calls alltoallv with %zu bytes for "
				 "rank %d, which calls alltoallv with %zu bytes from it",
				 (unsigned long long)op->number, op->base + from, out,
				 op->base + to, in);
			return false;
		}
	return true;
}

static void reduce(struct sim *sim, struct simop *op)
{
	size_t n = op->call.n;

	op->sum = must(calloc(n + 1, sizeof(*op->sum)));
	for (int r = 0; r < op->ranks; r++) {
		const uint64_t *x = (const uint64_t *)(void *)op->parts[r].bytes;

		for (size_t i = 0; i < n; i++) {
			if (op->call.op == SHEAF_SUM)
				op->sum[i] += x[i];
			else if (op->call.op == SHEAF_XOR)
				op->sum[i] ^= x[i];
			else if (x[i] > op->sum[i])
				op->sum[i] = x[i];
		}
	}
	sim->stat.reduced_bytes += n * sizeof(uint64_t);
}

static void count_pairs(struct sim *sim, const struct simop *op)
{
	size_t ranks = (size_t)op->ranks, all = (size_t)sim->ranks, base = (size_t)op->base;

	if (!sim->opts->pair_bytes || op->call.kind == ALLREDUCE)
		return;
	for (size_t i = 0; i < ranks * ranks; i++)
		sim->opts->pair_bytes[(base + i / ranks) * all + base + i % ranks] +=
			op->call.kind == ALLGATHER ?
			op->call.n : op->parts[i / ranks].out_bytes[i % ranks];
}

/* All ranks have given their data. */
static void complete(struct sim *sim, struct simop *op)
{
	if (op->call.kind == ALLTOALLV && !sizes_match(sim, op))
		return;
	if (op->call.kind == ALLREDUCE)
		reduce(sim, op);
	count_pairs(sim, op);
	op->complete = true;
	for (int i = 0; i < sim->ranks; i++)
		if (sim->rank[i].state == WAITING && sim->rank[i].op == op)
			wake(&sim->rank[i]);
}

static void take(const struct simrank *me, const struct simop *op, const struct call *c)
{
	size_t me_i = (size_t)(me->rank - me->base), to = 0;

	if (c->kind == ALLREDUCE) {
		memcpy(c->in, op->sum, c->n * sizeof(uint64_t));
		return;
	}
	for (int r = 0; r < op->ranks; r++) {
		const struct part *part = &op->parts[r];
		size_t off = 0, n = c->n;

		if (c->kind == ALLTOALLV) {
			for (size_t i = 0; i < me_i; i++)
				off += part->out_bytes[i];
			n = part->out_bytes[me_i];
		}
		if (n > 0)
			memcpy((uint8_t *)c->in + to, part->bytes + off, n);
		to += n;
	}
}

/* A rank gives up. Its data is still in flight, or never left. */
static void give_up(struct simrank *me, struct simop *op)
{
	me->lost = true;
	if (!op->complete && rng_next(&me->sim->random) % 2 == 0) {
		op->parts[me->rank - me->base].here = false;
		op->here_n = INT32_MIN / 2;     /* it will never be complete */
	}
}

/* Applies the faults that were set. Returns true if this rank is dead and its call fails. */
static bool fault(struct simrank *me, const struct call *c)
{
	struct sim *sim = me->sim;
	const struct simgroup_opts *o = sim->opts;
	struct simop *op;

	if (o->late_at > 0 && me->rank == o->late_rank && me->op_n == (uint64_t)o->late_at) {
		sim->stat.fired = sim->excused = true;
		sleep_until(me, sim->stat.clock_ms + (o->late_ms < FAR_MS ? o->late_ms : FAR_MS));
	}
	if (o->die_at == 0 || me->rank != o->die_rank || me->op_n != (uint64_t)o->die_at)
		return false;
	sim->stat.fired = sim->excused = true;
	me->dead = true;
	if (!o->die_sent)
		return true;
	op = simop_get(me, me->op_n, c);
	if (!calls_match(me, op, c))
		return true;
	give(me, op, c);
	if (op->here_n == op->ranks)
		complete(sim, op);
	return true;
}

static int meet(struct simrank *me, const struct call *c)
{
	struct sim *sim = me->sim;
	struct simop *op = simop_get(me, me->op_n, c);

	if (!calls_match(me, op, c)) {
		me->lost = true;
		return -1;
	}
	give(me, op, c);
	if (op->here_n == op->ranks)
		complete(sim, op);
	me->expired = false;
	me->state = READY;
	if (!op->complete && !sim->broken) {
		me->state = WAITING;
		me->op = op;
		me->due_ms = sim->stat.clock_ms + c->timeout_ms;
	}
	baton_pass(sim);
	baton_wait(me);
	if (!op->complete || me->expired || sim->broken) {
		give_up(me, op);
		return -1;
	}
	take(me, op, c);
	simop_leave(sim, op);
	return 0;
}

/* Returns whether the rank's process was killed from outside: ranks that wait for it will fail. */
static bool is_killed(struct simrank *me)
{
	struct sim *sim = me->sim;

	if (me->dead || !sim->opts->is_killed || !sim->opts->is_killed(sim->arg, me->rank))
		return false;
	sim->stat.fired = sim->excused = true;
	return true;
}

/* Writes why an operation of this rank failed. After a timeout it writes nothing: the library knows
 * that itself. */
static void say_why(const struct simrank *me, struct sheaf_error *err)
{
	if (me->sim->broken)
		snprintf(err->msg, sizeof(err->msg), "%s", me->sim->stat.why);
	else if (me->dead)
		snprintf(err->msg, sizeof(err->msg), "the simulation has killed rank %d", me->rank);
}

static int operate(struct simrank *me, const struct call *c)
{
	struct sim *sim = me->sim;
	bool died = false;
	int rc = -1;

	pthread_mutex_lock(&sim->lock);
	if (!pthread_equal(pthread_self(), me->thread)) {
		char text[80];

		complain(sim, "%s by rank %d from another thread",
			 call_text(c, text, sizeof(text)), me->rank);
		say_why(me, c->err);
		pthread_mutex_unlock(&sim->lock);
		return -1;
	}
	if (me->dead || me->lost || sim->broken)
		goto out;
	if (is_killed(me)) {
		me->dead = died = true;
		goto out;
	}
	me->op_n++;
	if (me->op_n > sim->stat.ops)
		sim->stat.ops = me->op_n;
	died = fault(me, c);
	if (!died && !sim->broken)
		rc = meet(me, c);
out:
	if (rc != 0)
		say_why(me, c->err);
	pthread_mutex_unlock(&sim->lock);
	if (died && sim->opts->died)
		sim->opts->died(sim->arg, me->rank);
	return rc;
}

static int sim_allgather(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms,
			 struct sheaf_error *err)
{
	struct call c = {
		.kind = ALLGATHER, .n = bytes, .out = mine, .in = all, .timeout_ms = timeout_ms,
		.err = err
	};

	return operate(arg, &c);
}

static int sim_alltoallv(void *arg, const void *out, const size_t *out_bytes, void *in,
			 const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	struct call c = {
		.kind = ALLTOALLV, .out = out, .out_bytes = out_bytes, .in_bytes = in_bytes,
		.in = in, .timeout_ms = timeout_ms, .err = err
	};

	return operate(arg, &c);
}

static int sim_allreduce(void *arg, uint64_t *x, size_t n, int op, int timeout_ms,
			 struct sheaf_error *err)
{
	struct call c = {
		.kind = ALLREDUCE, .op = op, .n = n, .out = x, .in = x, .timeout_ms = timeout_ms,
		.err = err
	};

	return operate(arg, &c);
}

static void sim_free(void *arg)
{
	struct simrank *me = arg;

	me->freed = true;
}

/* ---- ranks ---- */

static void *rank_main(void *arg)
{
	struct simrank *me = arg;
	struct sim *sim = me->sim;

	baton_take(&me->turn);
	me->thread = pthread_self();
	me->result = sim->fn(sim->arg, me->rank, me->group);

	pthread_mutex_lock(&sim->lock);
	(void)is_killed(me);
	if (me->group->refs != 1)
		complain(sim, "rank %d returned %d with the group in use %d times", me->rank,
			 me->result, me->group->refs - 1);
	sheaf_group_free(me->group);
	me->state = DONE;
	baton_pass(sim);
	baton_hand_over(sim);
	return NULL;
}

static void rank_init(struct simrank *r, struct sim *sim, int rank)
{
	const int *teams = sim->opts->teams;

	r->base = rank;
	while (r->base > 0 && (!teams || teams[r->base - 1] == teams[rank]))
		r->base--;
	while (r->base + r->team_n < sim->ranks &&
	       (!teams || teams[r->base + r->team_n] == teams[rank]))
		r->team_n++;
	struct sheaf_group_ops ops = {
		.size = sizeof(ops),
		.rank = rank - r->base,
		.ranks = r->team_n,
		.node = sim->opts->nodes ? sim->opts->nodes[rank] : 0,
		.allgather = sim_allgather,
		.alltoallv = sim_alltoallv,
		.allreduce = sim_allreduce,
		.free = sim_free,
		.arg = r,
	};

	r->sim = sim;
	r->rank = rank;
	r->state = READY;
	sem_init(&r->turn, 0, 0);
	if (sheaf_group_new(&r->group, &ops, NULL) != 0)
		must(NULL);
}

static void ranks_run(struct sim *sim)
{
	pthread_t *threads = must(calloc((size_t)sim->ranks, sizeof(*threads)));

	pthread_mutex_lock(&sim->lock);
	for (int i = 0; i < sim->ranks; i++)
		if (pthread_create(&threads[i], NULL, rank_main, &sim->rank[i]) != 0)
			must(NULL);
	baton_pass(sim);
	baton_hand_over(sim);
	baton_take(&sim->over);
	for (int i = 0; i < sim->ranks; i++)
		pthread_join(threads[i], NULL);
	free(threads);
}

int simgroup_run(const struct simgroup_opts *opts,
		 int (*fn)(void *arg, int rank, struct sheaf_group *group), void *arg,
		 int results[])
{
	struct sim sim = {
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.opts = opts,
		.fn = fn,
		.arg = arg,
		.ranks = opts->ranks,
		.running = -1,
		.random = opts->seed,
	};
	struct simop *op;

	if (opts->ranks < 1)
		return -1;
	sim.rank = must(calloc((size_t)sim.ranks, sizeof(*sim.rank)));
	sem_init(&sim.over, 0, 0);
	for (int i = 0; i < sim.ranks; i++)
		rank_init(&sim.rank[i], &sim, i);
	ranks_run(&sim);
	for (int i = 0; i < sim.ranks; i++) {
		results[i] = sim.rank[i].result;
		if (!sim.rank[i].freed)
			complain(&sim, "the group of rank %d was never freed", i);
		sem_destroy(&sim.rank[i].turn);
	}
	while ((op = sim.ops) != NULL) {
		sim.ops = op->next;
		simop_free(op);
	}
	free(sim.rank);
	pthread_mutex_destroy(&sim.lock);
	sem_destroy(&sim.over);
	if (opts->stat)
		*opts->stat = sim.stat;
	return sim.broken ? -1 : 0;
}

static struct simrank *rank_of(struct sheaf_group *group)
{
	return group && group->ops.allgather == sim_allgather ? group->ops.arg : NULL;
}

void simgroup_pause(struct sheaf_group *group, int64_t ms)
{
	struct simrank *me = rank_of(group);

	if (!me || ms < 0)
		return;
	pthread_mutex_lock(&me->sim->lock);
	if (!me->dead) {
		/* Ranks that wait meanwhile may time out, which is not an error of the ranks. */
		me->sim->excused = me->sim->excused || ms > 0;
		sleep_until(me, me->sim->stat.clock_ms + (ms < FAR_MS ? ms : FAR_MS));
	}
	pthread_mutex_unlock(&me->sim->lock);
}

int64_t simgroup_now_ms(struct sheaf_group *group)
{
	struct simrank *me = rank_of(group);
	int64_t ms;

	if (!me)
		return 0;
	pthread_mutex_lock(&me->sim->lock);
	ms = me->sim->stat.clock_ms;
	pthread_mutex_unlock(&me->sim->lock);
	return ms;
}

bool simgroup_is_dead(struct sheaf_group *group)
{
	struct simrank *me = rank_of(group);
	bool dead;

	if (!me)
		return false;
	pthread_mutex_lock(&me->sim->lock);
	dead = me->dead;
	pthread_mutex_unlock(&me->sim->lock);
	return dead;
}
