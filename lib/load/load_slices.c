/* SPDX-License-Identifier: Apache-2.0 */
/* A load for a rank that has no host memory for all of its state, because its tensors live on a
 * device. The caller takes one slice after the other into a few buffers, in any order and from any
 * thread. So a take cannot wait for other ranks, which may take other slices, or none, at that
 * moment: each rank reads what its slices need itself, as sheaf_checkpoint_read does. The ranks
 * communicate only in begin, which decides what each slice is filled from, as every load does
 * (load.c), and in end, which agrees on the result.
 *
 * What that costs: a block that several ranks want is read by each of them. On one node all but the
 * first find it in the page cache, if they take it before the kernel has dropped it; each node
 * reads it from the disk once. Nothing is sent to other nodes.
 *
 * What is proved:
 * T1. A take compares every block that its slice has bytes in with its sum, before it returns 0.
 *     The bytes are summed in a buffer of this process and copied from there, so no other process
 *     can change them in between.
 * T2. If the slice is a whole tensor, the take compares the digest of what it has copied, too. A
 *     tensor of which every rank takes only parts is not compared with its digest, and is reported
 *     as unverified. sheaf_checkpoint_load can compare it, because there each byte is read by one
 *     rank, so that the sums of all ranks make up the digest.
 * T3. End succeeds only if on every rank the last take of each slice has succeeded.
 *
 * Locks: disk_lock, then lock. */
#include "load_slices.h"
#include <pthread.h>
#include <string.h>
#include "digests.h"
#include "err.h"
#include "load_asked.h"
#include "load_common.h"
#include "load_digests.h"
#include "load_fill.h"
#include "load_report.h"
#include "memory_dir_fill.h"
#include "read_slice.h"
#include "run_env.h"
#include "run_files.h"
#include "sheaf-load.h"
#include "step_files.h"
#include "step_open.h"

#define NOT_TAKEN 1     /* in `taken`: no take of the slice has succeeded or failed */

struct sheaf_load {
	struct shf_load ld;             /* constant between begin and end, but see `lock` */
	struct sheaf_state *state;      /* holds a reference; so does ld.step */
	size_t n;                       /* slices of the state */
	/* Bytes of a view that are in no memory are read from disk, by one thread at a time. */
	pthread_mutex_t disk_lock;
	/* Guards the members below, the table of descriptors of the step, and the counters of
	 * `ld`. */
	pthread_mutex_t lock;
	bool over;                      /* end has given its verdict: nothing can be taken */
	size_t taking;                  /* number of takes that are running */
	int *taken;                     /* owned; by slice: result of its last take, or NOT_TAKEN */
	size_t failed;                  /* slice whose take was the last to fail, with `failure` */
	struct sheaf_error failure;
	uint64_t *whole;                /* owned; a bit by tensor: compared with its digest */
	uint64_t *counts;               /* owned; for the operation that unites `whole` */
};

struct sheaf_run *shf_load_slices_run(const struct sheaf_load *load)
{
	return load->ld.step->run;
}

/* ---- begin ---- */

static bool is_wanted(const struct shf_target *t)
{
	return t->source != SHF_KEEP && !t->slice.empty;
}

struct here {                   /* the argument of check_box_is_here */
	const struct shf_load *ld;
	const struct shf_lt_tensor *t;
	struct sheaf_error *err;
};

/* Checks that the memory of this node has all blocks of the box; callback of shf_mem_boxes. Blocks
 * between those that the box touches count as well. */
static int check_box_is_here(void *arg, const struct shf_box *box)
{
	const struct here *h = arg;
	const struct sheaf_checkpoint *step = h->ld->step;
	uint64_t lo, hi, end = step->layout.files[h->t->file].bytes;

	shf_box_span(&h->t->shape, box, &lo, &hi);
	lo = (h->t->off + lo * h->t->unit) / SHF_BLOCK * SHF_BLOCK;
	hi = (h->t->off + hi * h->t->unit + SHF_BLOCK - 1) / SHF_BLOCK * SHF_BLOCK;
	hi = hi < end ? hi : end;
	for (uint64_t some; lo < hi; lo += some) {
		some = hi - lo;
		if (!shf_view_at(step->view, h->t->file, lo, &some))
			return shf_fail(h->err, SHEAF_EINVAL, "%s: %s/%s lies in the memory of "
			                "another node, and the step is not on disk: load it with "
			                "sheaf_checkpoint_load, or write it to disk first (sheaf "
			                "agent RUN --flush)", step->path,
			                shf_load_family(h->ld, h->t), h->t->name);
	}
	return 0;
}

/* Makes sure that this rank can read all that its slices need. If the step lies in the memory of
 * several nodes, others have blocks that no take can reach; they are read from disk, if the step is
 * there as well. */
static int reach_all(const struct shf_load *ld, struct sheaf_error *err)
{
	const struct sheaf_run *run = ld->step->run->lineage.memory_of;
	struct shf_view *view = ld->step->view;
	char name[SHF_STEP_NAME];
	int rc = 0;

	if (!view || !shf_view_access(view) || shf_view_has_disk(view))
		return 0;
	if (shf_load_has_twin(ld->step) && !run->life.closed) {
		shf_name_of_step(&run->store, name, ld->step->number);
		return shf_view_open_disk(view, run->store.dir, name, err);
	}
	for (size_t i = 0; i < ld->state->n && rc == 0; i++) {
		const struct shf_target *t = &ld->targets[i];
		struct here h = { ld, &ld->step->layout.tensors[t->tensor], err };

		if (t->source == SHF_FROM_STEP && !t->slice.empty)
			rc = shf_mem_boxes(&t->slice.mem, check_box_is_here, &h);
	}
	return rc;
}

/* What shf_load_fill_prepare is for other loads. Averages are the exception that needs memory now:
 * the state has it, where their weights have memory. */
static int prepare_takes(struct shf_load *ld, struct sheaf_error *err)
{
	for (size_t i = 0; i < ld->state->n; i++) {
		const struct shf_target *t = &ld->targets[i];

		if (is_wanted(t) && t->slice.owned && !t->slice.mem.base)
			return shf_fail(err, SHEAF_EINVAL, "%s/%s: averages of weights that "
			                "have no memory cannot be loaded", t->slice.family,
			                t->slice.name);
	}
	int rc = shf_load_hold(ld, err);

	return rc == 0 ? reach_all(ld, err) : rc;
}

/* Allocates a load. The tables by tensor are made in begin_tables, as the step may be asleep. */
static struct sheaf_load *load_new(struct sheaf_state *state)
{
	struct sheaf_load *load = shf_zalloc(1, sizeof(*load));

	if (!load)
		return NULL;
	pthread_mutex_init(&load->disk_lock, NULL);
	pthread_mutex_init(&load->lock, NULL);
	load->n = state ? state->n : 0;
	load->taken = shf_alloc(load->n, sizeof(*load->taken));
	for (size_t i = 0; load->taken && i < load->n; i++)
		load->taken[i] = NOT_TAKEN;
	return load;
}

/* Frees what begin has allocated. */
static void load_delete(struct sheaf_load *load)
{
	shf_load_release(&load->ld);
	pthread_mutex_destroy(&load->disk_lock);
	pthread_mutex_destroy(&load->lock);
	shf_free(load->taken);
	shf_free(load->whole);
	shf_free(load->counts);
	shf_free(load);
}

/* Makes the tables that end needs, and agrees that all ranks have memory for them: end allocates
 * nothing. [collective] */
static int begin_tables(struct sheaf_load *load, struct sheaf_error *err)
{
	struct shf_team *team = &load->ld.step->run->team;
	size_t n = load->ld.step->layout.tensors_n;

	load->whole = shf_zalloc(n / 64 + 1, sizeof(*load->whole));
	load->counts = shf_zalloc(shf_allreduce_or_words(team, n) + SHF_LOAD_REPORT_WORDS,
	                          sizeof(*load->counts));
	return shf_agree(team, load->whole && load->counts ? 0 : shf_fail(err, SHEAF_ENOMEM,
	                 "no memory for %zu tensors", n), err);
}

/* Copies the report's callbacks into the load, which keeps its own numbers. */
static void set_callbacks(struct shf_load *ld, const struct sheaf_report *report)
{
	ld->report.item = report ? report->item : NULL;
	ld->report.finding = report ? report->finding : NULL;
	ld->report.arg = report ? report->arg : NULL;
}

static void report_out(struct shf_load *ld, struct sheaf_report *report)
{
	if (!report)
		return;
	ld->report.size = report->size;
	*report = ld->report;
}

/* The step and the state stay until the load is freed, whatever the caller does with its
 * handles. */
static void load_started(struct sheaf_load *load, struct sheaf_state *state)
{
	load->state = state;
	state->refs++;
	state->loads++;
	shf_step_get(load->ld.step);
}

/* No rank takes anything before rank 0 has counted the try on disk (shf_load_enter), because the
 * agreements of shf_load_report_decided come after that. If there is no memory for a load on this
 * rank, `none` takes part in the call. */
int shf_load_slices_begin(struct sheaf_load **out, struct sheaf_checkpoint *step,
                          struct sheaf_state *state, uint64_t flags, struct sheaf_report *report,
                          struct sheaf_error *err)
{
	struct sheaf_load *load = load_new(state);
	struct shf_load none, *ld = load ? &load->ld : &none;
	int rc = 0;

	*ld = (struct shf_load){ .step = step, .state = state, .flags = flags,
		.call = SHF_CALL_LOAD_BEGIN, .prepare = prepare_takes };
	set_callbacks(ld, report);
	if (!load || !load->taken)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for a load");
	else if (flags & SHEAF_LOAD_DRY)
		rc = shf_fail(err, SHEAF_EINVAL, "SHEAF_LOAD_DRY loads nothing: it belongs to "
		              "sheaf_checkpoint_load");
	rc = shf_load_enter(ld, state, rc, err);
	if (rc == 0 && always(load != NULL))
		rc = begin_tables(load, err);
	if (rc == 0)
		rc = shf_load_report_decided(ld, err);
	if (rc < 0) {
		rc = shf_load_leave(ld, state, rc, err);
		shf_load_release(ld);
		if (load) {
			load->ld = (struct shf_load){ 0 };
			load_delete(load);
		}
		return rc;
	}
	load_started(load, state);
	report_out(ld, report);
	*out = load;
	return 0;
}

/* ---- take ---- */

/* Returns 0, or EINVAL if the state has no slice of that number. */
static int check_number(const struct sheaf_load *load, int slice, struct sheaf_error *err)
{
	return slice >= 0 && (size_t)slice < load->n
	       ? 0 : shf_fail(err, SHEAF_EINVAL, "there is no slice %d; the state has %zu", slice,
	                      load->n);
}

int shf_load_slices_fills(const struct sheaf_load *load, int slice, struct sheaf_error *err)
{
	int rc = check_number(load, slice, err);

	return rc < 0 ? rc : is_wanted(&load->ld.targets[slice]);
}

/* Decides whether the slice can be taken into `data`, and sets *s to the slice as it lies there.
 * Uses nothing that changes between begin and end. EINVAL. */
static int place_slice(const struct sheaf_load *load, int slice, void *data, struct shf_slice *s,
                      struct sheaf_error *err)
{
	const struct shf_target *t;
	int rc = check_number(load, slice, err);

	if (rc < 0)
		return rc;
	t = &load->ld.targets[slice];
	*s = t->slice;
	if (t->source == SHF_KEEP)
		return shf_fail(err, SHEAF_EINVAL, "%s/%s: the load has nothing for it, and it "
		                "keeps what it has (sheaf_load_fills)", s->family, s->name);
	if (data && s->owned)
		return shf_fail(err, SHEAF_EINVAL, "%s/%s: averages are in memory of the state; "
		                "pass NULL for the memory to take them", s->family, s->name);
	if (data)
		s->mem.base = data;
	if (!s->empty && !s->mem.base)
		return shf_fail(err, SHEAF_EINVAL, "%s/%s: no buffer was given, and the slice has "
		                "no memory", s->family, s->name);
	return 0;
}

/* Enters a take: opens the file of the tensor, whose descriptor all threads then use. Descriptors
 * are opened at first use, by one thread at a time. [any thread] */
static int enter_take(struct sheaf_load *load, const struct shf_target *t,
                      struct sheaf_error *err)
{
	struct sheaf_checkpoint *step = load->ld.step;
	int rc = 0;

	pthread_mutex_lock(&load->lock);
	if (load->over)
		rc = shf_fail(err, SHEAF_EINVAL, "the load has ended: call sheaf_load_begin to "
		              "take slices again");
	else if (t->source == SHF_FROM_STEP && !t->slice.empty)
		rc = shf_step_fd(step, step->layout.tensors[t->tensor].file, err);
	if (!load->over)
		load->taking++;
	pthread_mutex_unlock(&load->lock);
	return rc < 0 ? rc : 0;
}

/* Leaves a take with its result, which is that of the slice from now on. compared: the take has
 * compared its tensor with the digest. */
static void leave_take(struct sheaf_load *load, int slice, int rc,
                       const struct shf_slice_read *done, bool compared,
                       const struct sheaf_error *err)
{
	const struct shf_target *t = &load->ld.targets[slice];

	pthread_mutex_lock(&load->lock);
	load->taking--;
	load->taken[slice] = rc;
	load->ld.disk_bytes += done->disk_bytes;
	load->ld.retries += done->retries;
	if (rc < 0) {
		load->failed = (size_t)slice;
		load->failure = *err;
	}
	if (compared)
		load->whole[t->tensor / 64] |= UINT64_C(1) << (t->tensor % 64);
	pthread_mutex_unlock(&load->lock);
}

/* Reads the slice from the step. *compared: it is a whole tensor, and has the right digest. If the
 * step lies in memory that was reused for another step meanwhile, the bytes are of that step:
 * EAGAIN. */
static int read_values(struct sheaf_load *load, uint32_t n, const struct shf_slice *s,
                       struct shf_slice_read *done, bool *compared, struct sheaf_error *err)
{
	struct sheaf_checkpoint *step = load->ld.step;
	const struct shf_lt_tensor *t = &step->layout.tensors[n];
	bool one_by_one = step->view && shf_view_access(step->view);
	int rc;

	done->sums = shf_block_pass_sums(step) && !t->loose &&
	             shf_box_units(&s->mem.box) == shf_shape_units(&t->shape);
	if (one_by_one)
		pthread_mutex_lock(&load->disk_lock);
	rc = shf_read_slice(step, t, s, done, err);
	if (one_by_one)
		pthread_mutex_unlock(&load->disk_lock);
	if (rc == 0 && done->sums && done->bytes == t->bytes) {
		rc = shf_load_digest_compare(&load->ld, n, done->digest, err);
		*compared = rc == 0;
	}
	if ((rc == 0 || rc == SHEAF_ECORRUPT) &&
	    shf_view_check_unchanged(step->view, step->path, err) < 0)
		rc = SHEAF_EAGAIN;
	return rc;
}

int shf_load_slices_take(struct sheaf_load *load, int slice, void *data, struct sheaf_error *err)
{
	const struct shf_target *t;
	struct shf_slice_read done = { 0 };
	struct shf_slice s;
	bool compared = false;
	int rc = place_slice(load, slice, data, &s, err);

	if (rc < 0)
		return rc;
	t = &load->ld.targets[slice];
	rc = enter_take(load, t, err);
	if (rc == SHEAF_EINVAL)
		return rc;
	if (rc == 0 && !s.empty && t->source == SHF_FROM_ZERO)
		shf_load_zero(&s);
	else if (rc == 0 && !s.empty)
		rc = read_values(load, t->tensor, &s, &done, &compared, err);
	leave_take(load, slice, rc, &done, compared, err);
	return rc;
}

/* ---- end ---- */

/* Returns the failure of slice i, whose last take has failed. Only the last failure is kept with
 * its message. */
static int take_failed(const struct sheaf_load *load, size_t i, struct sheaf_error *err)
{
	const struct shf_slice *s = &load->ld.targets[i].slice;

	if (i != load->failed)
		return shf_fail(err, load->taken[i], "%s/%s could not be taken: %s", s->family,
		                s->name, shf_strerror(load->taken[i]));
	if (err)
		*err = load->failure;
	return load->taken[i];
}

/* Returns 0 if every slice was taken, else what end returns for this rank. A take that failed is
 * reported rather than a slice that was not taken, because callers stop taking after a failure. */
static int check_all_taken(const struct sheaf_load *load, struct sheaf_error *err)
{
	size_t missing = 0, first = 0;

	if (load->over)
		return shf_fail(err, SHEAF_EINVAL, "the load has ended; free it");
	if (load->taking > 0)
		return shf_fail(err, SHEAF_EINVAL, "%zu slices are being taken; end the load when "
		                "sheaf_load_take has returned for them", load->taking);
	if (load->failure.code < 0 && load->taken[load->failed] < 0)
		return take_failed(load, load->failed, err);
	for (size_t i = load->n; i-- > 0;) {
		if (load->taken[i] < 0)
			return take_failed(load, i, err);
		if (is_wanted(&load->ld.targets[i]) && load->taken[i] == NOT_TAKEN) {
			first = i;
			missing++;
		}
	}
	if (missing > 0)
		return shf_fail(err, SHEAF_EINVAL, "%zu slice%s of this rank, the first of them "
		                "%s/%s, %s not taken (sheaf_load_take)", missing,
		                missing > 1 ? "s" : "", load->ld.targets[first].slice.family,
		                load->ld.targets[first].slice.name, missing > 1 ? "were" : "was");
	return 0;
}

/* Reports the slices that were taken from loose tensors, of which no sums exist. They were counted
 * in begin. */
static void report_loose(struct shf_load *ld)
{
	for (size_t i = 0; i < ld->state->n; i++) {
		const struct shf_target *t = &ld->targets[i];
		const struct shf_lt_tensor *lt = &ld->step->layout.tensors[t->tensor];

		if (t->source == SHF_FROM_STEP && !t->slice.empty && lt->loose)
			shf_load_report_item(&ld->report, SHEAF_REPORT_UNVERIFIED,
			                     shf_load_family(ld, lt), lt->name,
			                     SHF_FOREIGN_MSG);
	}
}

/* Adds up the report over the ranks, and finds the tensors that no rank has compared with their
 * digests: one operation. [collective] */
static int add_up(struct sheaf_load *load, struct sheaf_error *err)
{
	struct shf_load *ld = &load->ld;
	struct shf_team *team = &ld->step->run->team;
	size_t n = ld->step->layout.tensors_n;
	uint64_t *words = load->counts + shf_allreduce_or_words(team, n);
	struct shf_share own = shf_digests_share(team, n);
	int rc;

	shf_load_report_put(ld, words);
	rc = shf_allreduce_or(team, load->whole, n, load->counts, SHF_LOAD_REPORT_WORDS, err);
	if (rc < 0)
		return rc;
	shf_load_report_take(ld, words);
	report_loose(ld);
	for (size_t t = 0; t < n; t++)
		if (shf_load_asked_wanted(ld, t) && !(load->whole[t / 64] >> (t % 64) & 1))
			shf_load_digest_missing(ld, t, t >= own.first && t < own.end);
	return 0;
}

/* Ends the load: nothing can be taken any more, and other loads and saves of the state may
 * begin. */
static void set_over(struct sheaf_load *load)
{
	pthread_mutex_lock(&load->lock);
	load->over = true;
	pthread_mutex_unlock(&load->lock);
	load->state->loads--;
}

/* EINVAL leaves the load as it is: a rank that has forgotten a slice can take it, and all ranks end
 * the load again. */
int shf_load_slices_end(struct sheaf_load *load, int rc, struct sheaf_report *report,
                        struct sheaf_error *err)
{
	struct shf_load *ld = &load->ld;
	struct shf_call m = { .kind = SHF_CALL_LOAD_END, .handle = ld->made };

	set_callbacks(ld, report);
	pthread_mutex_lock(&load->lock);
	if (rc == 0)
		rc = check_all_taken(load, err);
	pthread_mutex_unlock(&load->lock);
	rc = shf_call_enter(&ld->step->run->team, &m, rc, err);
	if (rc == SHEAF_EINVAL)
		return rc;
	if (rc == 0)
		rc = add_up(load, err);
	rc = shf_load_leave(ld, load->state, rc, err);
	set_over(load);
	if (rc == 0)
		report_out(ld, report);
	return rc;
}

/* Takes no lock: every take has returned. In a forked child, a thread of the parent may have held
 * it. */
void shf_load_slices_free(struct sheaf_load *load)
{
	struct sheaf_checkpoint *step;
	struct sheaf_state *state;

	if (!load)
		return;
	step = load->ld.step;
	state = load->state;
	if (!load->over)
		state->loads--;
	load_delete(load);
	shf_step_put(step);
	shf_state_put(state);
}
