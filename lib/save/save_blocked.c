/* SPDX-License-Identifier: Apache-2.0 */
/* Measures how long callers were blocked, and writes .sheaf/metrics.jsonl. */
#include "save_blocked.h"
#include <inttypes.h>
#include "err.h"
#include "metrics.h"
#include "run_env.h"
#include "save.h"
#include "save_status.h"
#include "sheaf-stat.h"

static void add(struct shf_save_blocked *s, enum shf_cause in, uint64_t ns)
{
	atomic_fetch_add_explicit(&s->ns[in], ns, memory_order_relaxed);
}

void shf_save_blocked_add(struct sheaf_run *run, struct sheaf_save *save, enum shf_cause in,
                          int64_t from)
{
	uint64_t ns = (uint64_t)(shf_now(run) - from);

	add(&run->saves.stalls->all, in, ns);
	if (save)
		add(&save->took.stall, in, ns);
}

/* Counts one gate. The maximum is raised by compare-and-swap, because threads pass gates at the
 * same time. */
static void gate(struct shf_save_blocked *s, uint64_t ns, bool waited)
{
	uint_fast64_t most = atomic_load_explicit(&s->gate_ns_max, memory_order_relaxed);

	add(s, SHF_IN_GATES, ns);
	atomic_fetch_add_explicit(&s->gates, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&s->gates_waited, waited, memory_order_relaxed);
	while (ns > most && !atomic_compare_exchange_weak(&s->gate_ns_max, &most, ns))
		;       /* another thread has raised the maximum; `most` is its value now, and is
		         * compared again */
}

void shf_save_blocked_gate(struct sheaf_save *save, int64_t from, bool waited)
{
	uint64_t ns = (uint64_t)(shf_now(save->run) - from);

	gate(&save->took.stall, ns, waited);
	gate(&save->run->saves.stalls->all, ns, waited);
}

void shf_save_blocked_begun(struct sheaf_run *run, int rc)
{
	struct shf_run_blocked *s = run->saves.stalls;

	atomic_fetch_add(&s->begun, 1);
	if (rc == SHEAF_EAGAIN)
		atomic_fetch_add(&s->dropped, 1);
	else if (rc < 0)
		atomic_fetch_add(&s->failed, 1);
}

void shf_save_blocked_end(struct sheaf_save *save, int64_t bytes)
{
	struct shf_run_blocked *s = save->run->saves.stalls;

	atomic_store(&save->took.over_ns, (uint64_t)(shf_now(save->run) - save->took.began));
	atomic_fetch_add(bytes < 0 ? &s->failed : &s->committed, 1);
	if (bytes > 0)
		atomic_fetch_add(&s->bytes, (uint64_t)bytes);
}

void shf_save_blocked_stat(const struct sheaf_run *run, struct sheaf_run_stat *stat)
{
	const struct shf_run_blocked *s = run->saves.stalls;
	const struct shf_save_blocked *all = &s->all;

	*stat = (struct sheaf_run_stat){ .size = sizeof(*stat),
		.buffers_busy = atomic_load(&run->image.busy), .begun = atomic_load(&s->begun),
		.committed = atomic_load(&s->committed), .dropped = atomic_load(&s->dropped),
		.failed = atomic_load(&s->failed), .bytes = atomic_load(&s->bytes),
		.gates = atomic_load(&all->gates),
		.gates_waited = atomic_load(&all->gates_waited),
		.gate_ns_max = atomic_load(&all->gate_ns_max),
		.begin_ns = atomic_load(&all->ns[SHF_IN_BEGIN]),
		.buffer_ns = atomic_load(&all->ns[SHF_IN_IMAGE]),
		.gates_ns = atomic_load(&all->ns[SHF_IN_GATES]),
		.exchange_ns = atomic_load(&all->ns[SHF_IN_EXCHANGE]),
		.ready_ns = atomic_load(&all->ns[SHF_IN_WAIT]),
		.commit_ns = atomic_load(&all->ns[SHF_IN_COMMIT]) };
}

/* ---- lines of JSON ---- */

enum {
	T_GATE_MAX = SHF_CAUSES, T_COPY, T_OVER, T_GATES, T_WAITED, T_N
};
struct told {                   /* the numbers of a line: of one rank, or the maximum over all
                                 * ranks */
	uint64_t x[T_N];                /* by enum shf_cause, then by the enum above */
	int of;                         /* how many ranks they are the maximum of */
};

/* Fills *t with the numbers of this rank. */
static void told_of(struct told *t, const struct sheaf_save *save)
{
	const struct shf_save_blocked *s = &save->took.stall;

	for (int i = 0; i < SHF_CAUSES; i++)
		t->x[i] = atomic_load(&s->ns[i]);
	t->x[T_GATE_MAX] = atomic_load(&s->gate_ns_max);
	t->x[T_COPY] = atomic_load(&save->took.copy_ns);
	t->x[T_OVER] = atomic_load(&save->took.over_ns);
	t->x[T_GATES] = atomic_load(&s->gates);
	t->x[T_WAITED] = atomic_load(&s->gates_waited);
	t->of = 1;
}

/* Appends a time in milliseconds. It is written as integers, because printf of a double depends on
 * the locale. */
static void put_ms(struct shf_buf *b, const char *name, uint64_t ns)
{
	shf_buf_addf(b, ",\"%s\":%" PRIu64 ".%03u", name, ns / 1000000,
	             (unsigned)(ns / 1000 % 1000));
}

/* Whether this rank may write metrics: it is the writer of the run, which is open in this
 * process. */
static bool may_write_metrics(const struct sheaf_run *run)
{
	return run->opts.flags & SHEAF_RUN_METRICS && run->store.writer && !run->life.closed &&
	       shf_run_is_ours(run);
}

/* Appends the line to .sheaf/metrics.jsonl. Only the first failure is logged. [rank 0] */
static void add_line(struct sheaf_run *run, struct shf_buf *b)
{
	struct sheaf_error err;
	int rc;

	if (!may_write_metrics(run))
		return;
	shf_buf_u8(b, '\0');
	rc = b->oom ? shf_fail(&err, SHEAF_ENOMEM, "no memory for a line of metrics")
	            : shf_metrics_add(&run->store, (const char *)b->data, &err);
	if (rc < 0 && !run->saves.metrics_said) {
		run->saves.metrics_said = true;
		shf_log(run, 1, "%s: metrics are not written: %s", run->store.path, err.msg);
	}
}

/* Appends the times and counts of *t. */
static void put_times(struct shf_buf *b, const struct told *t)
{
	static const struct { const char *name; int at; } times[] = {
		{ "begin_ms", SHF_IN_BEGIN }, { "image_ms", SHF_IN_IMAGE },
		{ "gates_ms", SHF_IN_GATES }, { "gate_max_ms", T_GATE_MAX },
		{ "exchange_ms", SHF_IN_EXCHANGE }, { "wait_ms", SHF_IN_WAIT },
		{ "commit_ms", SHF_IN_COMMIT }, { "copy_ms", T_COPY }, { "wall_ms", T_OVER },
	};

	shf_buf_addf(b, ",\"gates\":%" PRIu64 ",\"gates_waited\":%" PRIu64, t->x[T_GATES],
	             t->x[T_WAITED]);
	for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++)
		put_ms(b, times[i].name, t->x[times[i].at]);
}

/* Makes one line of metrics and writes it. save NULL: the begin failed before there was a save. */
static void write_metrics_line(struct sheaf_run *run, const struct sheaf_save *save, int64_t step,
                               int rc, const struct told *t)
{
	bool dropped = rc == SHEAF_EAGAIN;
	const char *what = rc == 0 ? "committed" : dropped ? "dropped" : "failed";
	struct shf_buf b = SHF_BUF_INIT;
	char at[32];

	shf_run_time(run, at);
	shf_buf_addf(&b, "{\"what\":\"%s\",\"step\":%" PRId64 ",\"session\":\"%s\","
	             "\"at\":\"%s\",\"code\":%d,\"ranks\":%d,\"of\":%d,\"lazy\":%s,"
	             "\"disk\":%s", what, step,
	             save && save->id.session[0] ? save->id.session : run->store.session, at, rc,
	             run->team.ranks, t->of, save && save->id.flags & SHEAF_SAVE_LAZY ? "true"
	                     : "false",
	             save && save->id.flags & SHEAF_SAVE_NO_DISK ? "false" : "true");
	shf_buf_addf(&b, ",\"images\":%u,\"bytes\":%" PRIu64,
	             save ? save->took.images_busy : 0,
	             save && save->plan ? shf_save_bytes(save) : 0);
	put_times(&b, t);
	shf_buf_adds(&b, "}");
	add_line(run, &b);
	shf_buf_release(&b);
}

void shf_save_blocked_write(struct sheaf_run *run, struct sheaf_save *save, int64_t step, int rc)
{
	struct told t = { .of = 1 };

	if (!may_write_metrics(run))
		return;
	if (save)
		told_of(&t, save);
	write_metrics_line(run, save, step, rc, &t);
}

void shf_save_blocked_write_all(struct sheaf_save *save, int rc)
{
	struct sheaf_run *run = save->run;
	struct told t;

	if (!(run->opts.flags & SHEAF_RUN_METRICS))
		return;
	told_of(&t, save);
	if (rc != SHEAF_ELOST && shf_allreduce(&run->team, t.x, T_N, SHEAF_MAX, NULL) == 0)
		t.of = run->team.ranks;
	else
		told_of(&t, save);
	if (may_write_metrics(run))
		write_metrics_line(run, save, save->id.step, rc, &t);
}
