/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs save, load and reshard: they call the library in the order of a trainer, measure the
 * calls, and check all values. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "sheaf-admin.h"
#include "sheaf-inspect.h"
#include "sheaf-stat.h"

static int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* Times are relative to the end of a barrier, so that ranks on different machines can be compared:
 * from the first rank's entry to the last one's return. */
struct span {
	int64_t zero, start, end;
};

static int span_begin(const struct bench *b, struct span *s, struct sheaf_error *err)
{
	int rc = bench_barrier(&b->comm, err);

	s->zero = s->start = s->end = now_ns();
	return rc;
}

static int span_seconds(const struct bench *b, const struct span *s, double *seconds,
			struct sheaf_error *err)
{
	uint64_t start = (uint64_t)(s->start - s->zero), end = (uint64_t)(s->end - s->zero);
	int rc = bench_reduce(&b->comm, &start, 1, MPI_MIN, err);

	if (rc == 0)
		rc = bench_reduce(&b->comm, &end, 1, MPI_MAX, err);
	*seconds = (double)(end - start) * 1e-9;
	return rc;
}

static void log_line(void *arg, int level, const char *line)
{
	const struct bench *b = arg;

	if (level > 1 || !b->events.speaks)
		return;
	fprintf(stderr, "sheaf-bench: %s: ", b->o->verb_name);
	wl_put(stderr, line);
	fputc('\n', stderr);
}

/* Returns ", 1.25 GB/s", in MB/s if that would be 0.00, or "" if no bytes were moved. */
static const char *speed(char text[40], uint64_t bytes, double seconds)
{
	double v = (double)bytes / 1e9 / (seconds > 0 ? seconds : 1e-9);

	text[0] = '\0';
	if (v >= 0.1)
		snprintf(text, 40, ", %.2f GB/s", v);
	else if (v >= 1e-6)
		snprintf(text, 40, ", %.3f MB/s", v * 1e3);
	return text;
}

void bench_run_opts_init(struct bench_run_opts *out, const struct bench *b, uint64_t flags)
{
	const struct bench_opts *o = b->o;

	*out = (struct bench_run_opts){
		.opts = {
			.size = sizeof(out->opts),
			.flags = flags,
			.file_bytes_max = (uint64_t)o->file_bytes,
			.io_threads = (int32_t)o->io_threads,
			.timeout_ms = (int32_t)o->timeout_ms,
			.commit_group = b->commits,
			.log = log_line,
			.arg = (void *)(uintptr_t)b,
			.staging = &out->staging,
			.retention = &out->retention,
			.memory_tier = &out->tier,
			.notify = &out->notify,
		},
		.staging = {
			.size = sizeof(out->staging),
			.bytes_max = (uint64_t)o->staging_bytes,
			.buffers_max = (int32_t)o->images,
			.copy_threads = (int32_t)o->copy_threads,
			.copy_cpus = o->copy_cpus,
			.copy_rate_max = (uint64_t)o->copy_rate,
		},
		.retention = {
			.size = sizeof(out->retention),
			.keep_last = (int32_t)o->keep_last,
		},
		.tier = {
			.size = sizeof(out->tier),
			.agent = o->agent,
			.copies = (int32_t)o->copies,
			.copies_group = b->behind,
		},
		.notify = {
			.size = sizeof(out->notify),
			.signal_dir = o->signal_dir,
		},
	};
	if (o->io && strcmp(o->io, "buffered") == 0)
		out->opts.flags |= SHEAF_RUN_BUFFERED;
	out->opts.flags |= o->metrics ? SHEAF_RUN_METRICS : 0;
}

/* --- save --------------------------------------------------------------------------------- */

/* Rank 0 attaches the notes and, if there is --like, the files beside its weights. An error here is
 * returned by the commit. */
static void attach(const struct bench *b, struct sheaf_save *save)
{
	struct sheaf_checkpoint_info info = { .size = sizeof(info) };
	const char *file;
	const void *bytes;
	uint64_t n;
	size_t got;
	char text[32];

	if (b->comm.rank != 0)
		return;
	if (b->o->mesh)
		sheaf_save_note(save, "mesh", b->o->mesh, NULL);
	snprintf(text, sizeof(text), "%llu", (unsigned long long)b->o->seed);
	sheaf_save_note(save, "bench.seed", text, NULL);
	if (!b->like || sheaf_checkpoint_get_info(b->like, &info, NULL) < 0 ||
	    strcmp(info.format, "safetensors") == 0)
		return;
	for (size_t i = 0; sheaf_checkpoint_file_at(b->like, i, &file, &n, NULL) == 0; i++) {
		int rc;

		if (!wl_attachable(file, n))
			continue;
		rc = sheaf_checkpoint_file(b->like, file, &bytes, &got, NULL);
		if (rc == 0)
			sheaf_save_attach(save, file, bytes, got, NULL);
		else
			sheaf_save_abort(save, "a file beside the weights cannot be read", NULL);
	}
}

/* EAGAIN after the timeout means that a rank's disk is slow. Goes on as long as any rank writes. */
int bench_commit(const struct bench *b, struct sheaf_save *save, struct sheaf_error *err)
{
	uint64_t before = UINT64_MAX;

	for (;;) {
		struct sheaf_stat stat = { .size = sizeof(stat) };
		int rc = sheaf_save_commit(save, -1, err), lost;
		uint64_t written;

		if (rc != SHEAF_EAGAIN)
			return rc;
		written = sheaf_save_get_stat(save, &stat, NULL) == 0 ? stat.written : 0;
		lost = bench_reduce(&b->comm, &written, 1, MPI_SUM, err);
		if (lost < 0)
			return lost;
		if (written == before)
			return wl_fail(err, SHEAF_EAGAIN, "nothing was written for %lld ms",
				       (long long)b->o->timeout_ms);
		before = written;
	}
}

/* Measurements of a save: time, what it used, and how long begin blocked */
struct measure {
	struct span span;
	struct bench_meter meter;
	uint64_t first_ns;
};

/* Adds what --rounds adds to an event. All ranks must call this; rank 0 has the event. */
static int measured(const struct bench *b, struct measure *m, int64_t round, const char *first,
		    json_t *event, struct sheaf_error *err)
{
	int rc = 0;
	json_t *more;

	if (b->o->rounds)
		rc = bench_meter_share(&b->comm, &m->meter, err);
	if (b->o->rounds && rc == 0)
		rc = bench_reduce(&b->comm, &m->first_ns, 1, MPI_MAX, err);
	if (b->o->rounds && rc == 0) {
		more = bench_meter_json(&m->meter, round);
		json_object_set_new(event, first, json_real((double)m->first_ns * 1e-9));
		json_object_update(event, more);
		json_decref(more);
	}
	return rc;
}

/* Without --lazy, copying is part of begin. */
static uint64_t gates_ns(const struct bench *b, const struct sheaf_stat *stat)
{
	return b->o->lazy && !stat->at_once ? stat->copied_ns : 0;
}

/* Adds what --async adds to an event: where the caller was blocked, on the rank with the longest
 * time. */
static int stalled(const struct bench *b, const struct sheaf_stat *stat, json_t *event,
		   struct sheaf_error *err)
{
	uint64_t ns[5] = { stat->begin_ns, stat->buffer_ns, stat->exchange_ns, stat->commit_ns,
			   gates_ns(b, stat) };
	int rc = b->o->async ? bench_reduce(&b->comm, ns, 5, MPI_MAX, err) : 0;

	if (b->o->async && rc == 0)
		json_object_update_new(event, json_pack("{s:f,s:f,s:f,s:f,s:f,s:b}", "begin_ms",
			(double)ns[0] * 1e-6, "image_ms", (double)ns[1] * 1e-6, "exchange_ms",
			(double)ns[2] * 1e-6, "commit_ms", (double)ns[3] * 1e-6, "gates_ms",
			(double)ns[4] * 1e-6, "at_once", stat->at_once != 0));
	return rc;
}

static int saved(const struct bench *b, struct sheaf_run *run, int64_t step, int64_t round,
		 bool memory, struct measure *m, const struct sheaf_stat *stat,
		 struct sheaf_error *err)
{
	struct sheaf_checkpoint_info info = { .size = sizeof(info) };
	uint64_t sum[4] = { stat->held, stat->written, stat->sent, stat->copied };
	uint64_t blocked = stat->begin_ns + gates_ns(b, stat) + stat->exchange_ns + stat->ready_ns +
			   stat->commit_ns;
	struct sheaf_checkpoint *made = NULL;
	json_t *event;
	char path[4200], size[32], rate[40];
	double seconds = 0;
	int rc = bench_reduce(&b->comm, sum, 4, MPI_SUM, err);

	if (rc == 0)
		rc = bench_reduce(&b->comm, &blocked, 1, MPI_MAX, err);
	if (rc == 0)
		rc = span_seconds(b, &m->span, &seconds, err);
	if (rc < 0)
		return rc;
	info.bytes = sum[3];
	if (b->comm.rank == 0 && !memory) {
		rc = sheaf_run_path(run, step, path, sizeof(path), err);
		if (rc == 0)
			rc = sheaf_checkpoint_open_path(&made, path, NULL, NULL, err);
		if (rc == 0)
			rc = sheaf_checkpoint_get_info(made, &info, NULL);
	}
	rc = bench_agree(&b->comm, rc, err);
	event = json_pack("{s:s,s:I,s:I,s:I,s:f,s:f,s:I,s:I,s:I}", "event", "saved", "step",
			  (json_int_t)step, "bytes", (json_int_t)info.bytes, "held",
			  (json_int_t)sum[0], "seconds", seconds, "blocked_ms",
			  (double)blocked * 1e-6, "disk_bytes", (json_int_t)sum[1], "net_bytes",
			  (json_int_t)sum[2], "files", (json_int_t)info.files);
	if (b->o->agent)
		json_object_set_new(event, "to", json_string(memory ? "memory" : "disk"));
	if (rc == 0)
		rc = measured(b, m, round, "begin_s", event, err);
	if (rc == 0)
		rc = stalled(b, stat, event, err);
	if (rc == 0 && b->events.speaks) {
		bench_event(&b->events, json_incref(event));
		if (memory)
			bench_say(&b->events, "step %lld is in memory: %s, %.3f s",
				  (long long)step, wl_size(size, info.bytes), seconds);
		else
			bench_say(&b->events, "step %lld saved: %s in %llu file%s, %.3f s%s",
			  (long long)step, wl_size(size, info.bytes),
			  (unsigned long long)info.files, info.files == 1 ? "" : "s", seconds,
			  speed(rate, info.bytes, seconds));
	}
	json_decref(event);
	sheaf_checkpoint_close(made);
	return rc;
}

/* Begun but not committed, oldest first */
enum { FLIGHT = 8 };
struct flight {
	struct flown {
		struct sheaf_save *save;
		int64_t step, round;
		bool memory;            /* not on disk */
		struct measure m;
	} a[FLIGHT];
	int n;
	struct sheaf_run *run;
};

/* The last save is copied in the background: waits for the gate of each tensor, before it
 * changes. */
static int pass_gates(const struct bench *b, const struct flight *f, struct sheaf_error *err)
{
	struct sheaf_save *save = f->n > 0 && b->o->lazy ? f->a[f->n - 1].save : NULL;
	int rc = 0;

	/* A failed save opens its gates, too; its commit says why. */
	for (int i = 0; save && rc != SHEAF_EINVAL; i++)
		rc = sheaf_save_wait_copied(save, i, -1, NULL);
	return save ? bench_agree(&b->comm, 0, err) : 0;
}

/* Round 0 fills the memory; later rounds save the same values, as a trainer saves the same memory
 * again. */
static int begin_step(struct bench *b, struct sheaf_run *run, int64_t step, int64_t round,
		      struct flight *f, struct sheaf_error *err)
{
	struct wl_source src = { b->o->seed, step, b->like };
	struct sheaf_save_opts opts = { .size = sizeof(opts),
					.flags = b->o->lazy ? SHEAF_SAVE_LAZY : 0 };
	struct flown *new = &f->a[f->n];
	int rc = 0;

	*new = (struct flown){ .step = step, .round = round,
			       .memory = b->o->memory_every &&
					 (step - b->o->step) % b->o->every };
	opts.flags |= new->memory ? SHEAF_SAVE_NO_DISK : 0;
	if (rc == 0 && !round)
		rc = bench_agree(&b->comm, wl_held_fill(&b->held, &b->model, &src, err), err);
	bench_meter_start(&new->m.meter);
	if (rc == 0)
		rc = span_begin(b, &new->m.span, err);
	if (rc != 0)
		return rc;
	bench_event(&b->events, json_pack("{s:s,s:I}", "event", "begin", "step", (json_int_t)step));
	new->m.span.start = now_ns();
	rc = sheaf_save_begin(&new->save, run, step, b->state, &opts, err);
	new->m.first_ns = (uint64_t)(now_ns() - new->m.span.start);
	if (rc == 0) {
		attach(b, new->save);
		f->n++;
	}
	return rc;
}

static void say_dropped(const struct bench *b, int64_t step, const struct sheaf_error *err)
{
	bench_event(&b->events, json_pack("{s:s,s:I,s:s}", "event", "dropped", "step",
					  (json_int_t)step, "why", err->msg));
	bench_say(&b->events, "step %lld dropped: %s", (long long)step, err->msg);
}

/* Commits save i. Returns EAGAIN if it is not finished in ms, and then it stays in flight. ms < 0:
 * waits as long as it takes. */
static int land(struct bench *b, struct flight *f, int i, int ms, struct sheaf_error *err)
{
	struct flown *old = &f->a[i];
	struct sheaf_stat stat = { .size = sizeof(stat) };
	int rc = ms < 0 ? bench_commit(b, old->save, err) : sheaf_save_commit(old->save, ms, err);

	if (rc == SHEAF_EAGAIN && ms >= 0)
		return rc;
	old->m.span.end = now_ns();
	bench_meter_stop(&old->m.meter);
	if (rc == 0) {
		bench_event(&b->events, json_pack("{s:s,s:I}", "event", "committed", "step",
						  (json_int_t)old->step));
		sheaf_save_get_stat(old->save, &stat, NULL);
		rc = saved(b, f->run, old->step, old->round, old->memory, &old->m, &stat, err);
	} else if (old->memory && rc == SHEAF_EFAILED) { /* its agent died: training continues */
		say_dropped(b, old->step, err);
		rc = 0;
	}
	sheaf_save_free(old->save);
	f->n--;
	memmove(&f->a[i], &f->a[i + 1], (size_t)(f->n - i) * sizeof(f->a[0]));
	return rc;
}

static int ms_left(int64_t until)
{
	int64_t left = (until - now_ns()) / 1000000;

	return left > 0 ? (int)left : 1;
}

/* Waits for the gates of the last save until then, on all ranks. *late: a rank did not pass
 * them. */
static int pass_gates_by(const struct bench *b, const struct flight *f, int64_t until,
			 uint64_t *late, struct sheaf_error *err)
{
	struct sheaf_save *save = b->o->lazy ? f->a[f->n - 1].save : NULL;
	int rc = 0;

	for (int i = 0; save && rc != SHEAF_EINVAL && rc != SHEAF_EAGAIN; i++)
		rc = sheaf_save_wait_copied(save, i, ms_left(until), NULL);
	*late = rc == SHEAF_EAGAIN;
	return bench_reduce(&b->comm, late, 1, MPI_MAX, err);
}

/* Behaves as a trainer that is told to exit after it has begun its last step. */
static int land_by_deadline(struct bench *b, struct flight *f, struct sheaf_error *err)
{
	int64_t from = now_ns(), until = from + b->o->deadline_ms * 1000000;
	int64_t step = f->a[f->n - 1].step, eta = sheaf_save_eta_ms(f->a[f->n - 1].save);
	double ms;
	uint64_t late;
	int rc = pass_gates_by(b, f, until, &late, err);

	while (rc == 0 && !late && f->n > 0)
		rc = land(b, f, 0, ms_left(until), err);
	if (rc < 0 && rc != SHEAF_EAGAIN)
		return rc;
	ms = (double)(now_ns() - from) * 1e-6;
	bench_event(&b->events, json_pack("{s:s,s:I,s:b,s:f,s:I}", "event", "deadline", "step",
					  (json_int_t)step, "made", f->n == 0, "ms", ms, "eta_ms",
					  (json_int_t)eta));
	bench_say(&b->events, "step %lld %s in the %lld ms there were: %.3f s%s%s",
		  (long long)step, f->n ? "was not made" : "was made",
		  (long long)b->o->deadline_ms, ms * 1e-3, rc < 0 ? ", " : "",
		  rc < 0 ? err->msg : "");
	while (f->n > 0)
		sheaf_save_free(f->a[--f->n].save);
	return 0;
}

/* With --async, commits earlier saves that are finished. Otherwise commits this one. */
static int save_step(struct bench *b, struct sheaf_run *run, int64_t step, int64_t round,
		     bool last, struct flight *f, struct sheaf_error *err)
{
	int rc = pass_gates(b, f, err);

	/* A save to memory does not wait for the disk, and its staging buffer is needed now. */
	for (int i = 0; rc == 0 && i < f->n;)
		if (f->a[i].memory)
			rc = land(b, f, i, -1, err);
		else
			i++;
	if (rc == 0)
		rc = begin_step(b, run, step, round, f, err);
	if (rc == SHEAF_EAGAIN) {
		say_dropped(b, step, err);
		return 0;
	}
	if (rc == 0 && last && b->o->deadline_ms)
		return land_by_deadline(b, f, err);
	if (rc == 0 && !b->o->async)
		return land(b, f, 0, -1, err);
	while (rc == 0 && f->n > 1)
		rc = land(b, f, 0, f->n == FLIGHT ? -1 : 0, err);
	return rc == SHEAF_EAGAIN ? 0 : rc;
}

static int land_all(struct bench *b, struct flight *f, int rc, struct sheaf_error *err)
{
	if (rc == 0)
		rc = pass_gates(b, f, err);
	while (rc == 0 && f->n > 0)
		rc = land(b, f, 0, -1, err);
	while (f->n > 0)
		sheaf_save_free(f->a[--f->n].save);
	return rc;
}

/* --- load --------------------------------------------------------------------------------- */

struct heard {                          /* the report of a load, by tensor */
	const struct wl_model *model;
	char *what;                     /* owned */
};

static void put_shape(int ndim, const int64_t *shape)
{
	for (int d = 0; d < ndim; d++)
		fprintf(stderr, "%s%lld", d ? ", " : "", (long long)shape[d]);
}

static void tell_shapes(const struct wl_tensor *t, const struct sheaf_tensor *stored)
{
	fputs(": is stored as [", stderr);
	put_shape(stored->ndim, stored->shape);
	fputs("], not [", stderr);
	put_shape(t->ndim, t->shape);
	fputs("], and left out", stderr);
}

static void hear(void *arg, int32_t kind, const char *family, const char *name, const char *msg)
{
	struct heard *h = arg;
	size_t i = wl_model_find(h->model, family ? family : "model", name);

	(void)msg;
	/* Whether a tensor is verified, or missing in the state, does not affect its values. */
	if (h->what && i < h->model->n && kind != SHEAF_REPORT_UNVERIFIED &&
	    kind != SHEAF_REPORT_UNEXPECTED)
		h->what[i] = (char)kind;
}

static bool is_odd(char kind)
{
	return kind == SHEAF_REPORT_MISSING || kind == SHEAF_REPORT_MISMATCHED ||
	       kind == SHEAF_REPORT_ZEROED;
}

/* Prints one line for each of the first tensors that were not loaded as expected, on whichever rank
 * this was. [all ranks] */
static int tell_odd(const struct bench *b, struct sheaf_checkpoint *step, const struct heard *h,
		    struct sheaf_error *err)
{
	uint64_t *all = calloc(b->model.n + 1, sizeof(*all));
	int told = 0, rc = all ? 0 : wl_fail(err, SHEAF_ENOMEM, "no memory to tell what is odd");

	rc = bench_agree(&b->comm, rc, err);
	for (size_t i = 0; rc == 0 && i < b->model.n; i++)
		all[i] = is_odd(h->what[i]) ? (unsigned char)h->what[i] : 0;
	for (size_t i = 0; rc == 0 && i < b->model.n; i += 65536)
		rc = bench_reduce(&b->comm, all + i, b->model.n - i < 65536
				  ? (int)(b->model.n - i) : 65536, MPI_MAX, err);
	for (size_t i = 0; rc == 0 && b->events.speaks && i < b->model.n && told < 10; i++) {
		const struct wl_tensor *t = &b->model.t[i];
		struct sheaf_tensor s = { .size = sizeof(s) };

		if (!all[i])
			continue;
		told++;
		fprintf(stderr, "sheaf-bench: %s: ", b->o->verb_name);
		wl_put(stderr, t->family);
		fputc('/', stderr);
		wl_put(stderr, t->name);
		if (all[i] != SHEAF_REPORT_MISMATCHED)
			fputs(all[i] == SHEAF_REPORT_MISSING ? ": missing"
			                                   : ": missing, filled with zeros",
			                                           stderr);
		else if (sheaf_checkpoint_find(step, t->family, t->name, &s, NULL) == 0)
			tell_shapes(t, &s);
		fputc('\n', stderr);
	}
	free(all);
	return rc;
}

static void count(char *text, size_t n, uint64_t k, const char *what)
{
	size_t at = strlen(text);

	if (k)
		snprintf(text + at, n - at, ", %llu %s", (unsigned long long)k, what);
}

static int loaded(const struct bench *b, int64_t step, int64_t round, struct measure *m,
		  const struct sheaf_report *r, const struct sheaf_checkpoint_info *info,
		          double seconds,
		  uint64_t checked, struct sheaf_error *err)
{
	char size[32], rate[40], odd[240] = "";
	json_t *event = json_pack(
	    "{s:s,s:I,s:I,s:I,s:f,s:f,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,"
	    "s:I,s:I}",
	    "event", "loaded", "step", (json_int_t)step, "bytes", (json_int_t)r->bytes, "held",
	    (json_int_t)r->held, "seconds", seconds, "blocked_ms", seconds * 1e3, "disk_bytes",
	    (json_int_t)r->disk_bytes, "net_bytes", (json_int_t)r->net_bytes, "files",
	    (json_int_t)info->files, "missing", (json_int_t)r->missing, "unexpected",
	    (json_int_t)r->unexpected, "converted", (json_int_t)r->converted, "derived",
	    (json_int_t)r->derived, "ignored", (json_int_t)r->ignored, "unverified",
	    (json_int_t)r->unverified, "mismatched", (json_int_t)r->mismatched, "zeroed",
	    (json_int_t)r->zeroed, "checked_items", (json_int_t)checked);
	int rc;

	json_object_set_new(event, "source", json_string(!r->memory_bytes ? "disk" :
							 r->disk_bytes ? "mixed" :
							 r->peers ? "peer" : "memory"));
	json_object_set_new(event, "memory_bytes", json_integer((json_int_t)r->memory_bytes));
	rc = measured(b, m, round, "open_s", event, err);

	bench_event(&b->events, event);
	if (rc != 0)
		return rc;
	count(odd, sizeof(odd), r->missing, "missing");
	count(odd, sizeof(odd), r->mismatched, "of another shape");
	count(odd, sizeof(odd), r->unexpected, "unexpected");
	count(odd, sizeof(odd), r->converted, "converted");
	count(odd, sizeof(odd), r->derived, "derived");
	count(odd, sizeof(odd), r->zeroed, "zeroed");
	count(odd, sizeof(odd), r->ignored, "ignored");
	bench_say(&b->events, "step %lld loaded%s: %s, %.3f s%s, %llu items equal%s",
		  (long long)step, r->memory_bytes ? " from memory" : "",
		  wl_size(size, r->bytes), seconds, speed(rate, r->bytes, seconds),
		  (unsigned long long)checked, odd);
	return 0;
}

/* --unverified needs a step that is opened by its path. */
static int step_open(const struct bench *b, struct sheaf_run *run, int64_t step,
		     struct sheaf_checkpoint **open, struct sheaf_error *err)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_UNVERIFIED,
				   .io_threads = (int32_t)b->o->io_threads,
				   .timeout_ms = (int32_t)b->o->timeout_ms };
	char path[4200];
	int rc;

	if (!b->o->unverified)
		return sheaf_checkpoint_open(open, run, step, err);
	rc = sheaf_run_path(run, step, path, sizeof(path), err);
	return rc < 0 ? rc : sheaf_checkpoint_open_path(open, path, b->group, &opts, err);
}

/* Compares what a load left in memory, item by item. */
static int check(struct bench *b, struct wl_held *held, struct sheaf_checkpoint *open,
		 const struct heard *heard, uint64_t *checked, struct sheaf_error *err)
{
	struct wl_source src = { b->o->seed, sheaf_checkpoint_number(open), b->like };
	struct wl_said said = { .what = heard->what, .step = open };
	int rc = wl_held_check(held, &b->model, &src, &said, checked, err);

	rc = bench_agree(&b->comm, rc, err);
	return rc ? rc : bench_reduce(&b->comm, checked, 1, MPI_SUM, err);
}

/* Loads into `held`, whose memory is touched before the clock starts, and compares every item. Of
 * many rounds, only the first and the last are compared. *step is set to the number that was
 * opened. */
static int load_step(struct bench *b, struct sheaf_run *run, int64_t round, struct wl_held *held,
		     struct sheaf_state *state, int64_t *step, struct sheaf_error *err)
{
	struct heard heard = { .model = &b->model };
	struct sheaf_report report = { .size = sizeof(report), .item = hear, .arg = &heard };
	struct sheaf_checkpoint_info info = { .size = sizeof(info) };
	struct sheaf_checkpoint *open = NULL;
	uint64_t flags = (b->o->convert ? SHEAF_LOAD_CONVERT : 0) |
			 (b->o->lenient ? SHEAF_LOAD_LENIENT | SHEAF_LOAD_DERIVE : 0);
	uint64_t checked = 0;
	struct measure m;
	double seconds;
	int64_t before;
	int rc;

	wl_held_poison(held);
	bench_meter_start(&m.meter);
	before = now_ns();
	rc = step_open(b, run, *step, &open, err);
	m.first_ns = (uint64_t)(now_ns() - before);
	if (rc < 0)
		return rc;
	*step = sheaf_checkpoint_number(open);
	heard.what = calloc(b->model.n + 1, 1);
	if (!heard.what)
		rc = wl_fail(err, SHEAF_ENOMEM, "no memory to hear the report");
	rc = bench_agree(&b->comm, rc, err);
	if (rc == 0)
		rc = span_begin(b, &m.span, err);
	if (rc != 0)
		goto out;
	m.span.start = now_ns();
	rc = sheaf_checkpoint_load(open, state, flags, &report, err);
	m.span.end = now_ns();
	bench_meter_stop(&m.meter);
	if (rc == 0)
		rc = span_seconds(b, &m.span, &seconds, err);
	if (rc != 0)
		goto out;
	sheaf_checkpoint_get_info(open, &info, NULL);
	if (round == 0 || round == b->o->rounds - 1)
		rc = check(b, held, open, &heard, &checked, err);
	if (rc == 0 && b->o->lenient)
		rc = tell_odd(b, open, &heard, err);
	if (rc == 0)
		rc = loaded(b, *step, round, &m, &report, &info, seconds, checked, err);
out:
	free(heard.what);
	sheaf_checkpoint_close(open);
	return rc;
}

/* --- the verbs ---------------------------------------------------------------------------- */

int bench_run(struct bench *b)
{
	const struct bench_opts *o = b->o;
	struct sheaf_error err = { .rank = -1 };
	struct sheaf_run *run = NULL;
	int64_t every = o->memory_every ? o->memory_every : o->every, step = o->step;
	int64_t n = o->rounds ? o->rounds : (o->steps - 1) * (o->every / every) + 1;
	bool saves = o->verb != BENCH_LOAD, loads = o->verb != BENCH_SAVE;
	struct wl_held *into = o->verb == BENCH_RESHARD ? &b->held_to : &b->held;
	struct sheaf_state *state = o->verb == BENCH_RESHARD ? b->state_to : b->state;
	struct flight flight = { .n = 0 };
	struct bench_run_opts how;
	char line[BENCH_LINE];
	int rc;

	bench_run_opts_init(&how, b, saves ? SHEAF_RUN_CREATE : SHEAF_RUN_READONLY);
	rc = sheaf_run_open(&run, o->run, b->group, &how.opts, &err);
	flight.run = run;
	for (int64_t k = 0; rc == 0 && k < n; k++) {
		int64_t round = o->rounds ? k : 0;

		rc = bench_on_line(b, line, &err);
		if (rc <= 0)
			break;
		rc = 0;
		if (o->step >= 0 && (saves || !o->rounds))
			step = o->step + k * every;
		if (saves)
			rc = save_step(b, run, step, round, k == n - 1, &flight, &err);
		if (rc == 0 && loads)
			rc = load_step(b, run, round, into, state, &step, &err);
	}
	rc = land_all(b, &flight, rc, &err);
	if (rc != 0)
		bench_error(b, step, rc, &err);
	/* After ELOST only _free and _close may be called, and even close may wait for dead
	 * ranks. */
	if (rc != SHEAF_ELOST)
		sheaf_run_close(run);
	return rc;
}
