/* SPDX-License-Identifier: Apache-2.0 */
#include "actor.h"
#include "sheaf-admin.h"
#include "sheaf-inspect.h"
#include "sheaf-state.h"
#include "sheaf-agent.h"
#include "sheaf-opts.h"

#include <stdlib.h>
#include <string.h>

#define FIELD 65521   /* values are numbers below this prime, which a float can hold */
#define UNDO 48118    /* the inverse of 1009 in the field */
#define NOBODYS 40000 /* ids of values that belong to no save */

int actor_timeout_ms = 60000;

/* Weights, their moments, and a small mixture of experts with moments */
const struct actor_tensor actor_tensors[TENSORS] = {
	{ "model", "w", 24, 16 },
	{ "model", "layers.0.mlp.experts.0.up", 6, 8 },
	{ "model", "layers.0.mlp.experts.1.up", 6, 8 },
	{ "model", "layers.0.mlp.experts.2.up", 6, 8 },
	{ "optimizer", "w/moment1_0", 24, 16 },
	{ "optimizer", "layers.0.mlp.experts.0.up/moment1_0", 6, 8 },
	{ "optimizer", "layers.0.mlp.experts.1.up/moment1_0", 6, 8 },
};

static int expert_of(int tensor)
{
	return tensor >= 1 && tensor <= 3 ? tensor - 1 : tensor >= 5 ? tensor - 5 : -1;
}

static float value(int tensor, int64_t item, int id)
{
	return (float)((item * 7 + tensor * 131 + (int64_t)id * 1009) % FIELD);
}

const int actor_probes[ACTOR_PROBES] = { 0, 17, 200, 383 };

float actor_value(int probe, int id)
{
	return value(0, actor_probes[probe], id);
}

/* Returns the id with this value, or -1. */
static int id_of(int tensor, int64_t item, float v)
{
	int64_t x = (int64_t)v - item * 7 - tensor * 131;

	if (!(v >= 0 && v < FIELD) || v != (float)(int64_t)v)
		return -1;
	return (int)((x % FIELD + FIELD) % FIELD * UNDO % FIELD);
}

/* ---- memory ---- */

static void cut(int64_t n, int i, int parts, int64_t *start, int64_t *count)
{
	int64_t each = (n + parts - 1) / parts, lo = i * each < n ? i * each : n;

	*start = lo;
	*count = (lo + each < n ? lo + each : n) - lo;
}

/* With layouts by rows, experts are distributed whole, and some ranks may have none. By columns and
 * by flat ranges, they are cut like all other tensors. */
static void piece_init(struct actor_piece *p, const struct actor *a, int t)
{
	const struct actor_tensor *of = &actor_tensors[t];
	int e = expert_of(t), rank = a->layout == L_BACKWARDS ? a->ranks - 1 - a->rank : a->rank;

	*p = (struct actor_piece){ .count = { of->rows, of->cols } };
	if (a->layout == L_COLUMNS) {
		cut(of->cols, rank, a->ranks, &p->start[1], &p->count[1]);
	} else if (a->layout == L_FLAT) {
		p->flat = true;
		cut(of->rows * of->cols, rank, a->ranks, &p->flat_start, &p->n);
	} else if (a->layout != L_WHOLE && e >= 0) {
		p->count[0] = e % a->ranks == rank ? of->rows : 0;
	} else if (a->layout != L_WHOLE) {
		cut(of->rows, rank, a->ranks, &p->start[0], &p->count[0]);
	}
	if (!p->flat)
		p->n = p->count[0] * p->count[1];
	p->data = calloc((size_t)p->n + 1, sizeof(*p->data));
	if (!p->data)
		abort();
}

static int64_t item_of(const struct actor_piece *p, int t, int64_t i)
{
	int64_t cols = actor_tensors[t].cols;

	return p->flat ? p->flat_start + i
		       : (p->start[0] + i / p->count[1]) * cols + p->start[1] + i % p->count[1];
}

static void paint(struct actor *a, int t, int id)
{
	struct actor_piece *p = &a->pieces[t];

	for (int64_t i = 0; i < p->n; i++)
		p->data[i] = value(t, item_of(p, t, i), id);
}

static void paint_all(struct actor *a, int id)
{
	for (int t = 0; t < TENSORS; t++)
		paint(a, t, id);
}

static bool has_tensor(const struct actor *a, int t)
{
	return !(a->variant & V_PART) || strcmp(actor_tensors[t].family, "model") == 0;
}

/* Finds the id of the values in memory, and counts the items with another one. */
static void check_values(const struct actor *a, struct reply *r)
{
	for (int t = 0; t < TENSORS; t++) {
		const struct actor_piece *p = &a->pieces[t];

		for (int64_t i = 0; i < p->n && has_tensor(a, t); i++) {
			if (r->id < 0)
				r->id = id_of(t, item_of(p, t, i), p->data[i]);
			r->wrong += p->data[i] != value(t, item_of(p, t, i), r->id);
		}
	}
}

static void slice_add(struct actor *a, int t, const char *name, const char *tied_to)
{
	struct actor_piece *p = &a->pieces[t];
	struct sheaf_slice s = { .size = sizeof(s),
				 .family = actor_tensors[t].family,
				 .name = name,
				 .tied_to = tied_to,
				 .dtype = SHEAF_F32,
				 .ndim = 2,
				 .shape = { actor_tensors[t].rows, actor_tensors[t].cols },
				 .start = { p->start[0], p->start[1] },
				 .count = { p->count[0], p->count[1] },
				 .data = p->data };

	if (p->flat) {
		s.flags |= SHEAF_SLICE_FLAT;
		s.flat_start = p->flat_start;
		s.flat_count = p->n;
	}
	if (a->variant & V_IN_PLACE && t == 4)
		s.flags |= SHEAF_SLICE_IN_PLACE;
	if (sheaf_state_add(a->state, &s, NULL) == a->slices_n)
		a->slice_of[a->slices_n++] = t;
}

void actor_init(struct actor *a, const struct call *open, int rank, struct sheaf_group *group)
{
	static const struct sheaf_ema average = { .size = sizeof(average), .coef = 0.5 };

	*a = (struct actor){ .rank = rank,
			     .ranks = open->n,
			     .variant = open->variant,
			     .layout = open->layout,
			     .group = group,
			     .state = sheaf_state_new() };
	for (int t = 0; t < TENSORS; t++)
		piece_init(&a->pieces[t], a, t);
	for (int t = 0; t < TENSORS; t++)
		if (has_tensor(a, t))
			slice_add(a, t, actor_tensors[t].name, NULL);
	if (a->variant & V_TIED)
		slice_add(a, 0, "head", "w");
	if (a->variant & V_DOUBLED)
		slice_add(a, 1, actor_tensors[1].name, NULL);
	if (a->variant & V_AVERAGE)
		(void)sheaf_state_ema(a->state, "model", &average, NULL);
}

void actor_release(struct actor *a)
{
	for (int t = 0; t < TENSORS; t++)
		free(a->pieces[t].data);
	memset(a, 0, sizeof(*a));
}

void actor_bury(struct actor *a)
{
	for (int i = 0; i < SAVES; i++)
		sheaf_save_free(a->saves[i]);
	for (int i = 0; i < HELD; i++)
		sheaf_checkpoint_close(a->held[i]);
	sheaf_run_close(a->run);
	sheaf_state_free(a->state);
	actor_release(a);
}

/* ---- calls ---- */

static void failed(struct reply *r, int rc, const struct sheaf_error *err)
{
	r->rc = rc;
	if (rc < 0 && err)
		snprintf(r->msg, sizeof(r->msg), "%s", err->msg);
}

static void do_open(struct actor *a, const struct call *c, const char *dir, struct reply *r)
{
	struct sheaf_staging staging = { .size = sizeof(staging), .buffers_max = c->images };
	struct sheaf_retention keep = { .size = sizeof(keep),
					.keep_last = c->keep,
					.grace_s = -1 };
	struct sheaf_memory_tier tier = { .size = sizeof(tier),
					  .agent = c->agent ? "auto" : NULL };
	struct sheaf_opts opts = { .size = sizeof(opts),
				   .flags = c->flags,
				   .timeout_ms = actor_timeout_ms,
				   .io_threads = 1,
				   .staging = &staging,
				   .retention = &keep,
				   .memory_tier = &tier };
	struct sheaf_error err = { 0 };

	opts.resume_attempts_max = c->attempts;
	a->dir = dir;
	failed(r, sheaf_run_open(&a->run, dir, a->group, &opts, &err), &err);
}

static bool is_behind(const struct actor *a, int slot)
{
	return a->saves[slot] && a->save_flags[slot] & SHEAF_SAVE_LAZY;
}

static bool all_put(const struct actor *a, int slot)
{
	for (int s = 0; s < a->slices_n && a->save_flags[slot] & SHEAF_SAVE_LATER; s++)
		if (!a->put[slot][s])
			return false;
	return true;
}

/* Returns whether a slice of that memory will be ready only later. */
static bool is_awaited(const struct actor *a, int slot, int t)
{
	for (int s = 0; s < a->slices_n && a->save_flags[slot] & SHEAF_SAVE_LATER; s++)
		if (a->slice_of[s] == t && !a->put[slot][s] && !a->failed[slot])
			return true;
	return false;
}

/* A slice may change now, or is not read any more: changes its memory. */
static void let_change(struct actor *a, int slot, int slice)
{
	a->gated[slot][slice] = true;
	if (!is_awaited(a, slot, a->slice_of[slice]))
		paint(a, a->slice_of[slice], NOBODYS + slice);
}

static void gate_one(struct actor *a, int slot, int slice, int ms, struct reply *r)
{
	int rc = sheaf_save_wait_copied(a->saves[slot], slice, ms, NULL);

	r->rc = r->rc ? r->rc : rc;
	if (is_behind(a, slot) && rc != SHEAF_EAGAIN && rc != SHEAF_EINVAL &&
	    !a->gated[slot][slice])
		let_change(a, slot, slice);
}

static void do_gate(struct actor *a, const struct call *c, struct reply *r)
{
	for (int s = 0; s < a->slices_n; s++)
		if (c->n < 0 || s == c->n % a->slices_n)
			gate_one(a, c->slot, s, c->to, r);
}

/* Passes the gates of every save that may still read memory, before memory changes. Returns false
 * if a save has slices that are not ready, so that memory must stay. */
static bool pass_gates(struct actor *a)
{
	bool all = true;

	for (int k = 0; k < SAVES; k++) {
		struct reply r = { 0 };

		if (!is_behind(a, k))
			continue;
		all &= all_put(a, k) || a->failed[k];
		for (int s = 0; s < a->slices_n; s++)
			if (!a->gated[k][s] &&
			    (!(a->save_flags[k] & SHEAF_SAVE_LATER) || a->put[k][s]))
				gate_one(a, k, s, -1, &r);
		if (all_put(a, k) || a->failed[k]) /* averages have their own slices */
			(void)sheaf_save_wait_copied(a->saves[k], SHEAF_ALL_SLICES, -1, NULL);
	}
	return all;
}

static void do_begin(struct actor *a, const struct call *c, struct reply *r)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = c->flags };
	struct sheaf_error err = { 0 };
	int k = c->slot;

	if (a->saves[k])
		sheaf_save_free(a->saves[k]);
	a->saves[k] = NULL;
	if (pass_gates(a)) {
		memset(a->gated, true, sizeof(a->gated)); /* failed saves do not read it either */
		paint_all(a, c->id);
	}
	failed(r, sheaf_save_begin(&a->saves[k], a->run, c->step, a->state, &opts, &err), &err);
	if (r->rc < 0) {
		a->saves[k] = NULL;
		return;
	}
	a->save_flags[k] = c->flags;
	memset(a->gated[k], 0, sizeof(a->gated[k]));
	memset(a->put[k], 0, sizeof(a->put[k]));
	a->failed[k] = false;
	if (!(c->flags & SHEAF_SAVE_LAZY))
		paint_all(a, NOBODYS);
}

static void do_put(struct actor *a, const struct call *c, struct reply *r)
{
	for (int s = 0; s < a->slices_n; s++) {
		int rc;

		if (c->n >= 0 && s != c->n % a->slices_n)
			continue;
		rc = sheaf_save_slice_ready(a->saves[c->slot], s, NULL, NULL);
		a->put[c->slot][s] |= rc == 0;
		r->rc = r->rc ? r->rc : rc;
	}
}

static void do_commit(struct actor *a, const struct call *c, struct reply *r)
{
	struct sheaf_error err = { 0 };

	failed(r, sheaf_save_commit(a->saves[c->slot], c->to, &err), &err);
	r->in_memory = r->rc < 0 && strstr(r->msg, "it is safe in the agents' memory") != NULL;
}

static void do_advance(struct actor *a, const struct call *c, struct reply *r)
{
	struct sheaf_error err = { 0 };

	failed(r, sheaf_save_advance(a->saves[c->slot], 0, &err), &err);
	r->in_memory = r->rc < 0 && strstr(r->msg, "it is safe in the agents' memory") != NULL;
}

/* Moves a slice to new memory with the same values, and with it all slices in that memory. */
static void do_move(struct actor *a, const struct call *c, struct reply *r)
{
	int slice = c->n % a->slices_n, t = a->slice_of[slice];
	struct actor_piece *p = &a->pieces[t];
	float *data = calloc((size_t)p->n + 1, sizeof(*data));
	int first = -1;

	if (!data)
		abort();
	memcpy(data, p->data, (size_t)p->n * sizeof(*data));
	for (int s = 0; s < a->slices_n; s++) {
		if (a->slice_of[s] != t)
			continue;
		r->rc = sheaf_state_move(a->state, s, data, NULL);
		if (r->rc < 0)
			break;
		first = first < 0 ? s : first;
	}
	if (r->rc == 0) {
		free(p->data);
		p->data = data;
	} else {
		for (int s = 0; first >= 0 && s < a->slices_n; s++)
			if (a->slice_of[s] == t)
				(void)sheaf_state_move(a->state, s, p->data, NULL);
		free(data);
	}
}

/* Reads the step's averages of "w". */
static void read_average(struct sheaf_checkpoint *step, struct reply *r)
{
	float all[24 * 16];
	struct sheaf_slice s = { .size = sizeof(s),
				 .family = "ema",
				 .name = "w",
				 .dtype = SHEAF_F32,
				 .ndim = 2,
				 .shape = { 24, 16 },
				 .count = { 24, 16 },
				 .data = all };
	struct sheaf_tensor t = { .size = sizeof(t) };
	struct sheaf_error err = { 0 };

	if (sheaf_checkpoint_find(step, "ema", "w", &t, NULL) < 0)
		return;
	r->has_average = true;
	r->average_unread = sheaf_checkpoint_read(step, &s, &err) < 0;
	for (int i = 0; i < ACTOR_PROBES; i++)
		r->average[i] = all[actor_probes[i]];
}

static void load_from(struct actor *a, struct sheaf_checkpoint *step, struct reply *r)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_error err = { 0 };
	bool mine = pass_gates(a);

	if (mine)
		paint_all(a, NOBODYS + 99);
	r->step = sheaf_checkpoint_number(step);
	failed(r, sheaf_checkpoint_load(step, a->state, 0, &report, &err), &err);
	if (r->rc == 0) {
		check_values(a, r);
		read_average(step, r);
	}
	if (mine)
		paint_all(a, NOBODYS);
}

static void do_load(struct actor *a, const struct call *c, struct reply *r)
{
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err = { 0 };

	failed(r, sheaf_checkpoint_open(&step, a->run, c->step, &err), &err);
	if (r->rc == 0)
		load_from(a, step, r);
	sheaf_checkpoint_close(step);
}

static void do_resume(struct actor *a, struct reply *r)
{
#ifdef SHEAF_LOAD_FALLBACK
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_error err = { 0 };
	bool mine = pass_gates(a);

	if (mine)
		paint_all(a, NOBODYS + 99);
	failed(r, sheaf_run_resume(a->run, a->state, 0, &report, &err), &err);
	r->step = report.step;
	if (r->rc == 0)
		check_values(a, r);
	if (mine)
		paint_all(a, NOBODYS);
#else
	do_load(a, &(struct call){ .step = SHEAF_LATEST }, r);
#endif
}

static void do_hold(struct actor *a, const struct call *c, struct reply *r)
{
	struct sheaf_error err = { 0 };

	sheaf_checkpoint_close(a->held[c->slot]);
	a->held[c->slot] = NULL;
	failed(r, sheaf_checkpoint_open(&a->held[c->slot], a->run, c->step, &err), &err);
	if (r->rc == 0)
		r->step = sheaf_checkpoint_number(a->held[c->slot]);
	else
		a->held[c->slot] = NULL;
}

static void count_pruned(void *arg, int64_t step, int32_t action, const char *why)
{
	char what = sheaf_prune_action_name(action)[0];
	struct reply *r = arg;

	(void)why;
	(void)step;
	r->pruned += what == 'r';
}

static void do_note(struct actor *a, const struct call *c, struct reply *r)
{
	static const char *const keys[] = { "train/loss", "A.b-c_d", "", "key with spaces" };
	static const char *const files[] = { "config.json", "a.bin", "sheaf.json", "x/y" };

	if (c->kind == C_NOTE)
		r->rc = sheaf_save_note(a->saves[c->slot], keys[c->n % 4], "1.25", NULL);
	else
		r->rc = sheaf_save_attach(a->saves[c->slot], files[c->n % 4], "{}\n", 3, NULL);
}

static void do_close(struct actor *a)
{
	for (int i = 0; i < HELD; i++) {
		sheaf_checkpoint_close(a->held[i]);
		a->held[i] = NULL;
	}
	for (int i = 0; i < SAVES; i++) {
		sheaf_save_free(a->saves[i]);
		a->saves[i] = NULL;
	}
	sheaf_run_close(a->run);
	a->run = NULL;
}

/* Converts the model's letter for a mark; 0: no mark. */
static int32_t mark_of(int64_t letter)
{
	return letter == 'k' ? SHEAF_MARK_KEEP : letter == 'b' ? SHEAF_MARK_BAD : SHEAF_MARK_NONE;
}

/* Does one thing as the command line does: a process opens the run, does it and closes the run. */
static void do_once(const struct call *c, const char *dir, struct reply *r)
{
	struct sheaf_retention keep = { .size = sizeof(keep),
					.keep_last = c->keep,
					.grace_s = -1 };
	struct sheaf_opts opts = { .size = sizeof(opts),
				   .timeout_ms = 2000,
				   .io_threads = 1,
				   .retention = &keep };
	struct sheaf_error err = { 0 };
	struct sheaf_run *run = NULL;
	int rc = sheaf_run_open(&run, dir, NULL, &opts, &err);

	if (rc == 0 && c->kind == C_RUN_REWIND)
		rc = sheaf_run_rewind(run, c->step, &err);
	else if (rc == 0 && c->kind == C_RUN_MARK)
		rc = sheaf_run_mark(run, c->step, mark_of(c->n), &err);
	else if (rc == 0)
		rc = sheaf_run_prune(run, 0, count_pruned, r, &err);
	failed(r, rc > 0 ? 0 : rc, &err);
	sheaf_run_close(run);
}

static void do_copy(const struct call *c, const char *dir, const char *to, struct reply *r)
{
	struct sheaf_opts opts = {
		.size = sizeof(opts), .flags = SHEAF_RUN_READONLY, .timeout_ms = 2000,
		        .io_threads = 1
	};
	struct sheaf_error err = { 0 };
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_run *run = NULL;
	int rc = sheaf_run_open(&run, dir, NULL, &opts, &err);

	if (rc == 0)
		rc = sheaf_checkpoint_open(&step, run, c->step, &err);
	if (rc == 0) {
		r->step = sheaf_checkpoint_number(step);
		rc = sheaf_checkpoint_copy(step, to, NULL, &err);
	}
	failed(r, rc, &err);
	sheaf_checkpoint_close(step);
	sheaf_run_close(run);
}

static void do_flush(const char *dir, struct reply *r)
{
	struct sheaf_error err = { 0 };

	failed(r, sheaf_agent_flush(dir, NULL, 0, &r->step, NULL, &err), &err);
}

static void do_salvage(const struct call *c, const char *dir, struct reply *r)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .timeout_ms = 2000, .io_threads = 1 };
	struct sheaf_error err = { 0 };

	failed(r, sheaf_run_salvage(dir, c->step, &opts, NULL, &err), &err);
}

bool call_is_collective(enum call_kind kind)
{
	switch (kind) {
	case C_OPEN:
	case C_CLOSE:
	case C_AVERAGE:
	case C_BEGIN:
	case C_COMMIT:
	case C_ADVANCE:
	case C_LOAD:
	case C_RESUME:
	case C_HOLD:
	case C_LOAD_HELD:
	case C_REWIND:
	case C_MARK:
	case C_PRUNE:
		return true;
	default:
		return false;
	}
}

/* Trains a step and averages it, but does not save it. */
static void do_average(struct actor *a, const struct call *c, struct reply *r)
{
	struct sheaf_error err = { 0 };

	if (pass_gates(a)) {
		memset(a->gated, true, sizeof(a->gated));
		paint_all(a, c->id);
	}
	failed(r, sheaf_state_average(a->state, a->run, c->step, 0, &err), &err);
}

static void do_to_run(struct actor *a, const struct call *c, struct reply *r)
{
	struct sheaf_error err = { 0 };
	int rc;

	if (c->kind == C_REWIND)
		rc = sheaf_run_rewind(a->run, c->step, &err);
	else if (c->kind == C_MARK)
		rc = sheaf_run_mark(a->run, c->step, mark_of(c->n), &err);
	else
		rc = sheaf_run_prune(a->run, 0, count_pruned, r, &err);
	failed(r, rc > 0 ? 0 : rc, &err);
}

/* Makes a call for a save. Returns false if it is another call. */
static bool do_to_save(struct actor *a, const struct call *c, struct reply *r)
{
	switch (c->kind) {
	case C_BEGIN:
		do_begin(a, c, r);
		break;
	case C_GATE:
		do_gate(a, c, r);
		break;
	case C_PUT:
		do_put(a, c, r);
		break;
	case C_COMMIT:
		do_commit(a, c, r);
		break;
	case C_WAIT:
		r->rc = sheaf_save_ready(a->saves[c->slot], NULL);
		break;
	case C_ADVANCE:
		do_advance(a, c, r);
		break;
	case C_FAIL:
		r->rc = sheaf_save_abort(a->saves[c->slot], "the loss is no number", NULL);
		a->failed[c->slot] = r->rc == 0;
		break;
	case C_FREE:
		sheaf_save_free(a->saves[c->slot]);
		a->saves[c->slot] = NULL;
		break;
	case C_ATTACH:
	case C_NOTE:
		do_note(a, c, r);
		break;
	case C_AVERAGE:
		do_average(a, c, r);
		break;
	case C_MOVE:
		do_move(a, c, r);
		break;
	default:
		return false;
	}
	return true;
}

void actor_do(struct actor *a, const struct call *c, const char *dir, const char *to,
	      struct reply *r)
{
	*r = (struct reply){ .id = -1, .step = -1 };
	if (do_to_save(a, c, r))
		return;
	switch (c->kind) {
	case C_OPEN:
		do_open(a, c, dir, r);
		break;
	case C_CLOSE:
		do_close(a);
		break;
	case C_LOAD:
		do_load(a, c, r);
		break;
	case C_RESUME:
		do_resume(a, r);
		break;
	case C_HOLD:
		do_hold(a, c, r);
		break;
	case C_LOAD_HELD:
		load_from(a, a->held[c->slot], r);
		break;
	case C_DROP:
		sheaf_checkpoint_close(a->held[c->slot]);
		a->held[c->slot] = NULL;
		break;
	case C_REWIND:
	case C_MARK:
	case C_PRUNE:
		do_to_run(a, c, r);
		break;
	case C_RUN_REWIND:
	case C_RUN_MARK:
	case C_RUN_PRUNE:
		do_once(c, dir, r);
		break;
	case C_COPY:
		do_copy(c, dir, to, r);
		break;
	case C_FLUSH:
		do_flush(dir, r);
		break;
	case C_SALVAGE:
		do_salvage(c, dir, r);
		break;
	default:
		break;
	}
}

void reply_join(const struct call *c, const struct reply all[], int ranks, struct reply *r)
{
	*r = all[0];
	for (int i = 1; i < ranks; i++) {
		const struct reply *other = &all[i];

		if (call_is_collective(c->kind) && other->rc != r->rc && other->rc != SHEAF_ELOST &&
		    r->rc != SHEAF_ELOST) {
			snprintf(r->msg, sizeof(r->msg), "rank 0 returns %d, rank %d %d: %.300s",
				 r->rc, i, other->rc, other->msg);
			r->rc = SHEAF_EBUG;
			return;
		}
		if (r->rc == 0)
			r->rc = other->rc;
		if (r->id < 0)
			r->id = other->id;
		else if (other->id >= 0 && other->id != r->id)
			r->wrong++;
		r->wrong += other->wrong;
		r->in_memory &= other->in_memory;
	}
}

/* ---- looks ---- */

static int note_item(void *arg, const struct sheaf_item *item)
{
	struct reply *r = arg;

	if (r->list_n < LIST_MAX)
		r->list[r->list_n++] = (struct listed){
			item->step, item->parent, sheaf_item_state_name(item->state)[0],
			item->mark == SHEAF_MARK_UNREAD ? '?'
			: item->mark == SHEAF_MARK_NONE ? 0 : sheaf_mark_name(item->mark)[0] };
	return 0;
}

void actor_look(const char *dir, bool agent, bool load, struct reply *r)
{
	static const struct call alone = { .n = 1, .layout = L_WHOLE };
	struct sheaf_memory_tier tier = { .size = sizeof(tier), .agent = agent ? "auto" : NULL };
	struct sheaf_opts opts = { .size = sizeof(opts),
				   .flags = SHEAF_RUN_READONLY,
				   .timeout_ms = 2000,
				   .io_threads = 1,
				   .memory_tier = &tier };
	struct sheaf_error err = { 0 };
	struct sheaf_checkpoint *step = NULL;
	struct actor a = { 0 };
	int rc;

	*r = (struct reply){ .id = -1, .step = -1 };
	rc = sheaf_run_open(&a.run, dir, NULL, &opts, &err);
	if (rc == 0)
		rc = sheaf_run_list(a.run, note_item, r, &err);
	if (rc == 0)
		rc = sheaf_checkpoint_open(&step, a.run, SHEAF_LATEST, &err);
	if (rc == 0)
		r->step = sheaf_checkpoint_number(step);
	failed(r, rc, &err);
	if (rc == 0 && load) {
		struct sheaf_run *run = a.run;

		actor_init(&a, &alone, 0, NULL);
		load_from(&a, step, r);
		sheaf_state_free(a.state);
		a.run = run;
		for (int t = 0; t < TENSORS; t++)
			free(a.pieces[t].data);
	}
	sheaf_checkpoint_close(step);
	sheaf_run_close(a.run);
}

/* ---- agents ---- */

int64_t actor_agent_pid(const char *dir)
{
	struct sheaf_agent_info info = { .size = sizeof(info) };

	return sheaf_agent_get_info(dir, NULL, &info, NULL) == 0 ? (int64_t)info.pid : 0;
}

static int is_due(void *arg, const struct sheaf_memory *m)
{
	int64_t *step = arg;

	if (m->due && !m->lost && m->here == m->ranks)
		*step = m->step;
	return *step >= 0;
}

int64_t actor_step_due(const char *dir)
{
	int64_t step = -1;

	(void)sheaf_agent_list(dir, NULL, is_due, &step, NULL);
	return step;
}
