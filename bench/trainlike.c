/* SPDX-License-Identifier: Apache-2.0 */
/* stall: measures what saving costs a trainer.
 *
 * A trainer steps without saves and with saves of each kind, in alternating blocks. Each kind has
 * its own run below --run. The result is the duration of a step as the trainer sees it, and how
 * much of it was spent inside the library's calls; the slowest rank counts.
 *
 * A step is matrix products, the sum of gradients, Adam with a gate before each tensor, an
 * allreduce of the loss, then the saves: a save that is written is committed, and a new one begins
 * if one is due and a staging buffer is free. Nothing waits for the disk.
 */
#include "drill.h"
#include "sheaf-admin.h"
#include "sheaf-stat.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

enum { STEP, BLOCKED, BEGIN, GATES, COMMIT, TIMES };
enum { FLIGHT = 8, MODES = 6 };

static const struct kind {
	const char *name;
	bool saves;
	uint64_t flags;                 /* flags of its saves */
} kinds[MODES] = {
	{ "none", false, 0 },
	{ "none2", false, 0 },
	{ "lazy-memory", true, SHEAF_SAVE_LAZY | SHEAF_SAVE_MAY_DROP | SHEAF_SAVE_NO_DISK },
	{ "lazy-disk", true, SHEAF_SAVE_LAZY | SHEAF_SAVE_MAY_DROP },
	{ "copy-memory", true, SHEAF_SAVE_MAY_DROP | SHEAF_SAVE_NO_DISK },
	{ "copy-disk", true, SHEAF_SAVE_MAY_DROP },
};

struct mode {
	const struct kind *kind;
	bool chosen;
	int64_t every;                  /* 0: never */
	int64_t step;                   /* number of the next one */
	struct sheaf_state *state;      /* owned; NULL: does not save */
	uint64_t *ns[TIMES];            /* owned; for each counted step */
	size_t n, room;
	int64_t saves, dropped, committed;      /* in counted steps; committed: during them */
	uint64_t gates, waited;         /* in whole blocks: gates of this rank; how many waited */
	uint64_t cpu_ns;                /* in the same blocks, all threads */
};

struct stall {
	struct bench *b;
	struct drill *drill;
	struct mode modes[MODES];
	int64_t trained;                /* steps in all modes */
	int64_t units;                  /* products in a step */
	uint64_t unit_ns, rest_ns;      /* time of one product, and of a step without products */
	uint64_t memcpy_ns;             /* time to memcpy an equal share of the state */
	uint64_t bytes;                 /* size of a step, without replicas */
};

/* A block of a mode */
struct turn {
	struct stall *s;
	struct mode *m;
	struct sheaf_run *run;          /* NULL: does not save */
	struct sheaf_save *fly[FLIGHT]; /* begun but not committed, oldest first */
	int n;
	struct sheaf_save *gated;       /* its tensors may not change yet; NULL: none */
	bool counted;
	uint64_t ns[TIMES];             /* in this step */
};

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static bool is_memory(const struct kind *k)
{
	return k->flags & SHEAF_SAVE_NO_DISK;
}

static int64_t cadence(const struct bench_opts *o, const struct kind *k)
{
	return !k->saves ? 0 : is_memory(k) ? o->memory_every : o->every;
}

int bench_stall_modes(const char *list, bool has_agent, unsigned *mask,
		      struct sheaf_error *err)
{
	*mask = 0;
	for (size_t k = 0; !list && k < MODES; k++)
		if (has_agent || !is_memory(&kinds[k]))
			*mask |= 1u << k;
	for (const char *s = list; s;) {
		size_t n = strcspn(s, ","), k = 0;

		while (k < MODES && (strlen(kinds[k].name) != n ||
				     memcmp(kinds[k].name, s, n) != 0))
			k++;
		if (k == MODES)
			return wl_fail(err, SHEAF_EINVAL, "--modes: no mode '%.*s'",
				       n < 60 ? (int)n : 60, s);
		if (is_memory(&kinds[k]) && !has_agent)
			return wl_fail(err, SHEAF_EINVAL, "--modes: %s without an agent",
				       kinds[k].name);
		*mask |= 1u << k;
		s = s[n] ? s + n + 1 : NULL;
	}
	return 0;
}

/* --- a step ----------------------------------------------------------------------------------- */

static void gate(void *arg, int piece)
{
	struct turn *t = arg;
	uint64_t start;

	if (!t->gated)
		return;
	/* A failed save opens its gates, too; its commit says why. */
	start = now_ns();
	sheaf_save_wait_copied(t->gated, piece, -1, NULL);
	t->ns[GATES] += now_ns() - start;
}

/* Does forward, backward and optimizer: everything but the saves. */
static int work(struct turn *t, int64_t units, struct sheaf_error *err)
{
	struct stall *s = t->s;
	float loss = 1;
	int rc;

	s->trained++;
	drill_compute(s->drill, units);
	rc = drill_reduce(s->drill, &s->b->comm, s->trained, err);
	if (rc < 0)
		return rc;
	drill_update(s->drill, s->trained, gate, t);
	t->gated = NULL;
	return bench_sum(&s->b->comm, &loss, 1, err);
}

/* Commits the oldest saves that are written; wait: all saves. */
static int land(struct turn *t, bool wait, struct sheaf_error *err)
{
	uint64_t start;
	int rc = 0;

	if (t->n == 0)
		return 0;
	start = now_ns();
	while (rc == 0 && t->n > 0) {
		rc = t->s->b->commits ? sheaf_save_result(t->fly[0], wait ? INT_MAX : 0, err)
		     : wait ? bench_commit(t->s->b, t->fly[0], err)
			    : sheaf_save_advance(t->fly[0], 0, err);
		if (rc == SHEAF_EAGAIN && !wait) {
			rc = 0;
			break;
		}
		t->m->committed += t->counted && rc == 0;
		sheaf_save_free(t->fly[0]);
		memmove(&t->fly[0], &t->fly[1], (size_t)--t->n * sizeof(t->fly[0]));
	}
	t->ns[COMMIT] += now_ns() - start;
	return rc;
}

/* Begins a save of the current state, or drops it if no staging buffer is free. */
static int begin(struct turn *t, struct sheaf_error *err)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = t->m->kind->flags };
	uint64_t start;
	int rc = 0;

	/* A thread commits on each rank at its own pace. So the ranks wait here, because they could
	 * not agree to drop the save. */
	if (t->n == FLIGHT && t->s->b->commits)
		rc = land(t, true, err);
	if (rc < 0)
		return rc;
	start = now_ns();
	rc = t->n == FLIGHT ? SHEAF_EAGAIN
	   : sheaf_save_begin(&t->fly[t->n], t->run, t->m->step, t->m->state, &opts, err);
	if (rc == 0 && t->s->b->commits)
		rc = sheaf_save_submit(t->fly[t->n], err);
	t->ns[BEGIN] += now_ns() - start;
	t->m->saves += t->counted && rc == 0;
	t->m->dropped += t->counted && rc == SHEAF_EAGAIN;
	if (rc == 0 && t->m->kind->flags & SHEAF_SAVE_LAZY)
		t->gated = t->fly[t->n];
	t->n += rc == 0;
	/* A buffer was free, so EAGAIN means that there is no agent. */
	if (rc == SHEAF_EAGAIN && is_memory(t->m->kind) && t->n == 0)
		return rc;
	return rc == SHEAF_EAGAIN ? 0 : rc;
}

static int step(struct turn *t, bool saves, struct sheaf_error *err)
{
	uint64_t start = now_ns();
	int rc;

	memset(t->ns, 0, sizeof(t->ns));
	t->m->step++;
	rc = work(t, t->s->units, err);
	if (rc == 0)
		rc = land(t, false, err);
	if (rc == 0 && saves && t->run)
		rc = begin(t, err);
	t->ns[STEP] = now_ns() - start;
	t->ns[BLOCKED] = t->ns[BEGIN] + t->ns[GATES] + t->ns[COMMIT];
	return rc;
}

/* --- a block ---------------------------------------------------------------------------------- */

static void run_path(const struct stall *s, const struct mode *m, char path[PATH_MAX])
{
	/* A path that is too long is cut, and opening it fails. */
	snprintf(path, PATH_MAX, "%.4000s/%s", s->b->o->run, m->kind->name);
}

static int run_open(const struct stall *s, const struct mode *m, uint64_t flags, bool prunes,
		    struct sheaf_run **run, struct sheaf_error *err)
{
	const char *agent = s->b->o->agent;
	struct bench_run_opts o;
	char path[PATH_MAX];

	run_path(s, m, path);
	bench_run_opts_init(&o, s->b, flags);
	o.tier.agent = !is_memory(m->kind) ? NULL : agent ? agent : "auto";
	o.retention.keep_last = prunes;
	o.retention.grace_s = prunes ? -1 : 0;
	return sheaf_run_open(run, path, s->b->group, &o.opts, err);
}

static int agent_begin(const struct stall *s, const struct mode *m, int *agent,
		       struct sheaf_error *err)
{
	char path[PATH_MAX];

	*agent = 0;
	if (!is_memory(m->kind) || s->b->o->agent)
		return 0;
	run_path(s, m, path);
	return bench_agent_start(&s->b->comm, path, agent, err);
}

static int turn_begin(struct turn *t, struct sheaf_error *err)
{
	return t->m->state ? run_open(t->s, t->m, SHEAF_RUN_CREATE, false, &t->run, err) : 0;
}

/* Commits the remaining saves, outside the measured time. If a rank was lost, it does not wait. */
static int turn_end(struct turn *t, int rc, struct sheaf_error *err)
{
	t->counted = false;
	for (size_t i = 0; rc == 0 && t->gated && i < t->s->b->held.n; i++)
		gate(t, (int)i);
	if (rc == 0)
		rc = land(t, true, err);
	while (t->n > 0)
		sheaf_save_free(t->fly[--t->n]);
	if (rc == 0 && t->run) {
		struct sheaf_run_stat stat = { .size = sizeof(stat) };

		sheaf_run_get_stat(t->run, &stat, NULL);
		t->m->gates += stat.gates;
		t->m->waited += stat.gates_waited;
	}
	if (rc != SHEAF_ELOST)
		sheaf_run_close(t->run);
	return rc;
}

/* Deletes all steps but the newest, which is read again and verified. */
static int prune(const struct stall *s, const struct mode *m, struct sheaf_error *err)
{
	struct sheaf_run *run;
	int rc = run_open(s, m, 0, true, &run, err);

	if (rc < 0)
		return rc;
	rc = sheaf_run_prune(run, 0, NULL, NULL, err);
	if (rc != SHEAF_ELOST)
		sheaf_run_close(run);
	return rc < 0 ? rc : 0;
}

static void record(struct turn *t)
{
	struct mode *m = t->m;

	for (int k = 0; k < TIMES; k++)
		m->ns[k][m->n] = t->ns[k];
	m->n++;
}

/* Runs a block. The warm-up steps are not counted: two of them save, so that two staging buffers
 * have been allocated and touched. */
static int block(struct stall *s, struct mode *m, struct sheaf_error *err)
{
	const struct bench_opts *o = s->b->o;
	struct turn t = { .s = s, .m = m };
	struct bench_meter meter;
	int agent, rc = agent_begin(s, m, &agent, err);

	if (rc == 0)
		rc = turn_begin(&t, err);
	if (rc < 0)
		goto out;
	for (int64_t i = 0; rc == 0 && i < o->warmup; i++)
		rc = step(&t, i < 2 || m->every == 1, err);
	t.counted = true;
	bench_meter_start(&meter);
	for (int64_t i = 0; rc == 0 && i < o->steps; i++) {
		rc = step(&t, m->every && i % m->every == 0, err);
		if (rc == 0)
			record(&t);
	}
	bench_meter_stop(&meter);
	m->cpu_ns += meter.user_ns + meter.sys_ns;
	rc = turn_end(&t, rc, err);
	if (rc == 0 && m->state && !is_memory(m->kind))
		rc = prune(s, m, err);
out:
	bench_agent_end(&agent);
	return rc;
}

/* --- proof ------------------------------------------------------------------------------------ */

static uint64_t fold(const void *bytes, size_t n)
{
	const unsigned char *p = bytes;
	uint64_t h = n, x = 0;

	for (; n >= 8; p += 8, n -= 8) {
		memcpy(&x, p, 8);
		h = (h ^ x) * UINT64_C(0x9E3779B97F4A7C15);
		h ^= h >> 29;
	}
	x = 0;
	if (n)
		memcpy(&x, p, n);
	return (h ^ x) * UINT64_C(0x9E3779B97F4A7C15);
}

static uint64_t fold_piece(const struct wl_piece *p)
{
	return p->items ? fold(wl_piece_at(p, p->from),
			       (size_t)wl_bytes(p->slice.dtype, p->items)) : 0;
}

/* Makes one more save like the others, and trains on. seen: hashes of the pieces when it began. */
static int prove_save(struct stall *s, struct mode *m, uint64_t *seen, struct sheaf_error *err)
{
	struct turn t = { .s = s, .m = m };
	int rc = turn_begin(&t, err);

	if (rc < 0)
		return rc;
	rc = step(&t, true, err);
	if (rc == 0 && t.n == 0)
		rc = wl_fail(err, SHEAF_EAGAIN, "%s: a save was refused while none was on its way",
			     m->kind->name);
	for (size_t i = 0; rc == 0 && i < s->b->held.n; i++)
		seen[i] = fold_piece(&s->b->held.p[i]);
	if (rc == 0)
		rc = work(&t, s->units, err);
	return turn_end(&t, rc, err);
}

static int prove_load(struct stall *s, struct mode *m, const uint64_t *seen,
		      struct sheaf_error *err)
{
	const struct wl_held *held = &s->b->held;
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_run *run;
	struct sheaf_checkpoint *newest = NULL;
	int rc = run_open(s, m, SHEAF_RUN_READONLY, false, &run, err);

	if (rc < 0)
		return rc;
	rc = sheaf_checkpoint_open(&newest, run, SHEAF_LATEST, err);
	if (rc == 0 && sheaf_checkpoint_number(newest) != m->step)
		rc = wl_fail(err, 1, "%s: the newest step is %lld, %lld was committed",
			     m->kind->name, (long long)sheaf_checkpoint_number(newest),
			     (long long)m->step);
	if (rc == 0)
		rc = sheaf_checkpoint_load(newest, m->state, 0, &report, err);
	for (size_t i = 0; rc == 0 && i < held->n; i++)
		if (fold_piece(&held->p[i]) != seen[i])
			rc = wl_fail(err, 1, "%s: step %lld: %.150s/%.150s is not what it was "
				     "when the save began", m->kind->name, (long long)m->step,
				     held->p[i].slice.family, held->p[i].slice.name);
	rc = bench_agree(&s->b->comm, rc, err);
	sheaf_checkpoint_close(newest);
	if (rc != SHEAF_ELOST)
		sheaf_run_close(run);
	return rc;
}

/* Loads a save that was copied while the training went on, and checks that each value is as it was
 * when the save began. */
static int prove(struct stall *s, struct mode *m, struct sheaf_error *err)
{
	uint64_t *seen = calloc(s->b->held.n + 1, sizeof(*seen));
	int rc = seen ? 0 : wl_fail(err, SHEAF_ENOMEM, "no memory to compare with"), agent = 0;

	rc = bench_agree(&s->b->comm, rc, err);
	if (rc == 0)
		rc = agent_begin(s, m, &agent, err);
	if (rc == 0)
		rc = prove_save(s, m, seen, err);
	if (rc == 0)
		rc = prove_load(s, m, seen, err);
	bench_agent_end(&agent);
	free(seen);
	if (rc == 0)
		bench_say(&s->b->events, "%s: step %lld is what was in memory when it began",
			  m->kind->name, (long long)m->step);
	if (rc == 0)
		bench_event(&s->b->events, json_pack("{s:s,s:s,s:I,s:I}", "event", "proved", "mode",
			m->kind->name, "step", (json_int_t)m->step, "bytes",
			(json_int_t)s->bytes));
	return rc;
}

/* --- pace ------------------------------------------------------------------------------------- */

/* Measures the time of a step without products, or of so many products. Takes the best of four on
 * the slowest rank, so that a disturbance now does not make all steps too short. */
static int timed(struct stall *s, int64_t units, uint64_t *ns, struct sheaf_error *err)
{
	struct turn t = { .s = s, .m = &s->modes[0] };
	uint64_t best = UINT64_MAX;
	int rc = 0;

	for (int i = 0; rc == 0 && i < 4; i++) {
		uint64_t start = now_ns(), took;

		if (units)
			drill_compute(s->drill, units);
		else
			rc = work(&t, 0, err);
		took = now_ns() - start;
		if (rc == 0)
			rc = bench_reduce(&s->b->comm, &took, 1, MPI_MAX, err);
		best = took < best ? took : best;
	}
	*ns = best;
	return rc;
}

/* Finds how many products make a step last --step-ms, or that many memcpys. Times at least 20 ms of
 * products. */
static int find_pace(struct stall *s, struct sheaf_error *err)
{
	double memcpys = s->b->o->step_memcpys;
	int64_t step_ns = memcpys > 0 ? (int64_t)(memcpys * (double)s->memcpy_ns)
				      : s->b->o->step_ms * 1000000;
	int64_t short_ns, units = 4;
	uint64_t ns = 0;
	int rc = timed(s, 0, &s->rest_ns, err);

	while (rc == 0 && ns < 20000000) {
		units *= 2;
		rc = timed(s, units, &ns, err);
	}
	if (rc < 0)
		return rc;
	s->unit_ns = ns / (uint64_t)units + 1;
	short_ns = step_ns - (int64_t)s->rest_ns;
	s->units = short_ns > 0 ? short_ns / (int64_t)s->unit_ns : 0;
	return 0;
}

/* Measures a plain copy of an even share, on all ranks at once: the best of three. */
static int time_memcpy(struct stall *s, struct sheaf_error *err)
{
	const struct wl_held *held = &s->b->held;
	/* Nothing reads the copy, and the compiler would remove a plain memcpy. */
	void *(*volatile copy)(void *to, const void *from, size_t n) = memcpy;
	size_t n = (size_t)(s->bytes / (uint64_t)s->b->comm.ranks);
	uint64_t best = UINT64_MAX;
	char *to;
	int rc = 0;

	if (n > held->mapped)
		n = (size_t)held->mapped;
	to = malloc(n + 1);
	if (!to)
		rc = wl_fail(err, SHEAF_ENOMEM, "no memory for a second copy of the state");
	else
		memset(to, 1, n + 1);
	rc = bench_agree(&s->b->comm, rc, err);
	for (int i = 0; rc == 0 && i < 3; i++) {
		uint64_t start, ns;

		rc = bench_barrier(&s->b->comm, err);
		start = now_ns();
		if (n)
			copy(to, held->memory, n);
		ns = now_ns() - start;
		best = ns < best ? ns : best;
	}
	free(to);
	s->memcpy_ns = best;
	return rc ? rc : bench_reduce(&s->b->comm, &s->memcpy_ns, 1, MPI_MAX, err);
}

/* --- the report ------------------------------------------------------------------------------- */

static double ms(uint64_t ns)
{
	return (double)ns * 1e-6;
}

struct spread {
	double min, median, p99, mean, sum;
};

static int cmp(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* Sorts ns. */
static struct spread spread_of(uint64_t *ns, size_t n)
{
	struct spread s = { 0 };

	for (size_t i = 0; i < n; i++)
		s.sum += ms(ns[i]);
	if (!n)
		return s;
	qsort(ns, n, sizeof(*ns), cmp);
	s.min = ms(ns[0]);
	s.median = (ms(ns[(n - 1) / 2]) + ms(ns[n / 2])) / 2;
	s.p99 = ms(ns[(n * 99 + 99) / 100 - 1]);
	s.mean = s.sum / (double)n;
	return s;
}

/* Reports each step by its slowest rank. round < 0: all rounds. */
static int tell(struct stall *s, struct mode *m, int64_t round, struct sheaf_error *err)
{
	struct spread of[TIMES];
	json_t *event;
	int rc = 0;

	for (int k = 0; rc == 0 && k < TIMES; k++) {
		rc = bench_reduce(&s->b->comm, m->ns[k], (int)m->n, MPI_MAX, err);
		of[k] = spread_of(m->ns[k], m->n);
	}
	if (rc == 0)
		rc = bench_reduce(&s->b->comm, &m->cpu_ns, 1, MPI_SUM, err);
	if (rc < 0)
		return rc;
	event = json_pack("{s:s,s:s,s:I,s:I,s:I,s:I,s:{s:f,s:f,s:f,s:f},s:{s:f,s:f,s:f}}", "event",
			  "stall", "mode", m->kind->name, "every", (json_int_t)m->every, "steps",
			  (json_int_t)m->n, "dropped", (json_int_t)m->dropped, "bytes",
			  (json_int_t)s->bytes, "step_ms", "min", of[STEP].min, "median",
			  of[STEP].median, "p99", of[STEP].p99, "mean", of[STEP].mean, "blocked_ms",
			  "median", of[BLOCKED].median, "p99", of[BLOCKED].p99, "sum",
			  of[BLOCKED].sum);
	json_object_update_new(event, json_pack("{s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:I,s:f}", "saves",
			  (json_int_t)m->saves, "committed", (json_int_t)m->committed, "begin_ms",
			  of[BEGIN].sum, "gates_ms", of[GATES].sum, "commit_ms", of[COMMIT].sum,
			  "memcpy_ms", ms(s->memcpy_ns), "rest_ms", ms(s->rest_ns), "units",
			  (json_int_t)s->units, "cpu_ms", ms(m->cpu_ns) / (double)m->n));
	json_object_update_new(event, json_pack("{s:I,s:I,s:{s:f,s:f,s:f}}", "gates",
			  (json_int_t)m->gates, "gates_waited", (json_int_t)m->waited, "median_ms",
			  "begin", of[BEGIN].median, "gates", of[GATES].median, "commit",
			  of[COMMIT].median));
	if (round >= 0)
		json_object_set_new(event, "round", json_integer(round));
	bench_event(&s->b->events, event);
	bench_say(&s->b->events, "%-9s every %lld: %zu steps, %lld saved, %lld dropped; step %.2f "
		  "ms (min %.2f, p99 %.2f, mean %.2f); blocked %.3f ms (p99 %.3f, sum %.3f)",
		  m->kind->name, (long long)m->every, m->n, (long long)m->saves,
		  (long long)m->dropped, of[STEP].median, of[STEP].min, of[STEP].p99, of[STEP].mean,
		  of[BLOCKED].median, of[BLOCKED].p99, of[BLOCKED].sum);
	m->n = 0;
	m->saves = m->dropped = m->committed = 0;
	m->cpu_ns = m->gates = m->waited = 0;
	return 0;
}

/* --- the verb --------------------------------------------------------------------------------- */

/* Returns the number of weights on the rank that has most, divided by 16. */
static int grad_items(const struct bench *b, size_t *n, struct sheaf_error *err)
{
	uint64_t items = 0;
	int rc;

	for (size_t i = 0; i < b->held.n; i++)
		if (strcmp(b->held.p[i].slice.family, "model") == 0)
			items += (uint64_t)b->held.p[i].items;
	rc = bench_reduce(&b->comm, &items, 1, MPI_MAX, err);
	items = items / 16 < 1024 ? 1024 : items / 16;
	*n = items > INT32_MAX ? INT32_MAX : (size_t)items;
	return rc;
}

static int mode_init(struct stall *s, struct mode *m, struct sheaf_error *err)
{
	const struct bench_opts *o = s->b->o;

	m->room = (size_t)(o->steps * (o->on_line ? 1 : o->rounds));
	m->every = cadence(o, m->kind);
	m->step = o->step - 1;
	for (int k = 0; k < TIMES; k++) {
		m->ns[k] = calloc(m->room, sizeof(*m->ns[k]));
		if (!m->ns[k])
			return wl_fail(err, SHEAF_ENOMEM, "no memory for %zu steps", m->room);
	}
	return m->kind->saves ? wl_held_state(&s->b->held, &m->state, err) : 0;
}

static int make_folder(const struct bench *b, struct sheaf_error *err)
{
	if (b->comm.rank == 0 && mkdir(b->o->run, 0777) != 0 && errno != EEXIST)
		return wl_fail(err, SHEAF_EIO, "%.300s: %s", b->o->run, strerror(errno));
	return 0;
}

static int prepare(struct stall *s, struct sheaf_error *err)
{
	struct bench *b = s->b;
	struct wl_source src = { b->o->seed, b->o->step, b->like };
	unsigned mask = 0;
	/* ZeRO separates a parameter from its moments, differently on each rank. */
	struct drill_opts opts = { .threads = (int)b->o->compute_threads,
				   .adam = b->from.zero == 0 };
	int rc = grad_items(b, &opts.grad_items, err);

	if (rc < 0)
		return rc;
	for (size_t i = 0; i < b->model.n; i++)
		if (!b->model.t[i].tied_to)
			s->bytes += wl_bytes(b->model.t[i].dtype, wl_items(&b->model.t[i]));
	rc = make_folder(b, err);
	if (rc == 0)
		rc = bench_stall_modes(b->o->modes, !b->o->no_agent, &mask, err);
	for (size_t i = 0; rc == 0 && i < MODES; i++) {
		s->modes[i].kind = &kinds[i];
		s->modes[i].chosen = !b->o->on_line && mask >> i & 1;
		rc = mode_init(s, &s->modes[i], err);
	}
	if (rc == 0)
		rc = drill_new(&s->drill, &b->held, &b->model, &opts, err);
	if (rc == 0)
		rc = wl_held_fill(&b->held, &b->model, &src, err);
	rc = bench_agree(&b->comm, rc, err);
	if (rc == 0) {
		drill_start(s->drill);
		rc = time_memcpy(s, err);
	}
	return rc ? rc : find_pace(s, err);
}

/* Runs every mode once per round, in a random order, so that no mode always follows the same
 * one. */
static int take_turns(struct stall *s, struct sheaf_error *err)
{
	int rc = 0;

	for (int64_t r = 0; rc == 0 && r < s->b->o->rounds; r++) {
		unsigned left = (1u << MODES) - 1;

		for (uint64_t k = MODES; rc == 0 && k > 0; k--) {
			uint64_t nth = wl_item(s->b->o->seed, (uint64_t)r * MODES + k) % k;
			int i = 0;

			while (!(left >> i & 1) || nth-- > 0)
				i++;
			left &= ~(1u << i);
			if (s->modes[i].chosen)
				rc = block(s, &s->modes[i], err);
		}
	}
	for (int i = 0; rc == 0 && i < MODES; i++)
		if (s->modes[i].chosen)
			rc = tell(s, &s->modes[i], -1, err);
	return rc;
}

/* Parses "MODE" or "MODE K". */
static int mode_of(struct stall *s, char line[BENCH_LINE], struct mode **m,
		   struct sheaf_error *err)
{
	char *space = strchr(line, ' '), *end;
	long long every = space ? strtoll(space + 1, &end, 10) : 1;
	unsigned mask;
	int i = 0, rc;

	if (space && (*end || every < 1 || every > 1000000000))
		return wl_fail(err, SHEAF_EINVAL, "'%s': is neither a mode nor a cadence", line);
	if (space)
		*space = '\0';
	rc = bench_stall_modes(line, !s->b->o->no_agent, &mask, err);
	if (rc < 0)
		return rc;
	while (!(mask >> i & 1))
		i++;
	*m = &s->modes[i];
	(*m)->every = space && kinds[i].saves ? (int64_t)every : cadence(s->b->o, &kinds[i]);
	return 0;
}

/* Runs the mode that each line of the input names. */
static int take_lines(struct stall *s, struct sheaf_error *err)
{
	char line[BENCH_LINE];
	int64_t round = 0;
	int rc = 0;

	while (rc == 0) {
		struct mode *m = NULL;

		rc = bench_on_line(s->b, line, err);
		if (rc <= 0)
			return rc;
		rc = mode_of(s, line, &m, err);
		if (rc < 0)
			return rc;
		m->chosen = true;
		rc = block(s, m, err);
		if (rc == 0)
			rc = tell(s, m, round++, err);
	}
	return rc;
}

int bench_stall(struct bench *b)
{
	struct stall s = { .b = b };
	struct sheaf_error err = { .rank = -1 };
	int rc = prepare(&s, &err);

	if (rc == 0)
		rc = b->o->on_line ? take_lines(&s, &err) : take_turns(&s, &err);
	for (int i = 0; rc == 0 && i < MODES; i++)
		if (s.modes[i].chosen && s.modes[i].state)
			rc = prove(&s, &s.modes[i], &err);
	if (rc != 0)
		bench_error(b, -1, rc, &err);
	drill_free(s.drill);
	for (int i = 0; i < MODES; i++) {
		sheaf_state_free(s.modes[i].state);
		for (int k = 0; k < TIMES; k++)
			free(s.modes[i].ns[k]);
	}
	return rc;
}
