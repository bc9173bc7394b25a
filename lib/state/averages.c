/* SPDX-License-Identifier: Apache-2.0 */
/* Exponential moving averages: which slices are averaged, their memory, and the updates. */
#include "averages.h"
#include "crc64.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "average.h"
#include "dtype.h"
#include "err.h"
#include "hexfloat.h"
#include "state.h"
#include "struct_size.h"
#include "valid.h"

/* ---- which slices ---- */

/* Returns how many items of the buffer, from item *lo on, need averages. The slice's window may be
 * wider than its box reaches; averages of items outside the box would only cost memory, so the
 * result is the part of the window that the box reaches. */
static uint64_t average_window(const struct shf_slice *s, int64_t *lo)
{
	int64_t top = s->mem.origin, hi;

	*lo = 0;
	if (s->empty)
		return 0;
	for (int d = 0; d < s->mem.box.ndim; d++)
		top += (s->mem.box.count[d] - 1) * s->mem.stride[d];
	*lo = s->mem.lo > s->mem.origin ? s->mem.lo : s->mem.origin;
	hi = s->mem.hi < top + 1 ? s->mem.hi : top + 1;
	return hi > *lo ? (uint64_t)(hi - *lo) : 0;
}

static int families_by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Returns the sorted names of the fp32 masters, *n of them, for the caller to free; NULL: no
 * memory. */
static const char **masters_of(const struct sheaf_state *state, size_t *n)
{
	const char **names = shf_alloc(state->n, sizeof(*names));

	*n = 0;
	for (size_t i = 0; names && i < state->n; i++)
		if (strcmp(state->slices[i].family, "master_weights") == 0)
			names[(*n)++] = state->slices[i].name;
	if (names && *n)
		qsort(names, *n, sizeof(*names), families_by_text);
	return names;
}

/* Returns whether the slice is averaged. Without a family the fp32 masters are averaged, and
 * those F32 weights of the model that have no master. So every parameter is averaged once, in the
 * best precision that the state has. */
static bool is_source(const struct shf_slice *s, const char *family, const char *const *masters,
                      size_t masters_n)
{
	if (family)
		return strcmp(s->family, family) == 0;
	if (strcmp(s->family, "master_weights") == 0)
		return true;
	if (strcmp(s->family, "model") != 0 || s->dtype != SHEAF_F32)
		return false;
	return !bsearch(&s->name, masters, masters_n, sizeof(*masters), families_by_text);
}

/* Adds the slice for the averages of one source slice. It has the same box, strides and window as
 * its source, but F32 items, so item i of one is item i of the other. SHEAF_SLICE_OPTIONAL lets a
 * step without averages be loaded. */
static int add_one(struct sheaf_state *state, struct shf_ema *e, uint32_t source,
                   struct sheaf_error *err)
{
	const struct shf_slice *s = &state->slices[source];
	struct sheaf_slice in = { .size = sizeof(in), .flags = SHEAF_SLICE_FLAT |
	                          SHEAF_SLICE_OPTIONAL,
		.family = e->name, .name = s->name,
		.tied_to = strcmp(s->stored, s->name) ? s->stored : NULL, .dtype = SHEAF_F32,
		.ndim = s->items.ndim, .origin = s->mem.origin };
	int rc;

	if (!shf_can_convert(SHEAF_F32, s->data_dtype))
		return shf_fail(err, SHEAF_EINVAL, "averages %s: %s/%.120s is %s, which cannot be "
		                "averaged in fp32", e->name,
		                s->family, s->name, shf_dtype(s->data_dtype)->name);
	memcpy(in.shape, s->items.dim, sizeof(in.shape));
	memcpy(in.start, s->mem.box.start, sizeof(in.start));
	memcpy(in.count, s->mem.box.count, sizeof(in.count));
	memcpy(in.stride, s->mem.stride, sizeof(in.stride));
	in.flat_count = (int64_t)average_window(s, &in.flat_start);
	rc = shf_state_take(state, &in, err);
	if (rc < 0)
		return rc;
	state->slices[rc].owned = true;
	e->source[e->n++] = source;
	return 0;
}

/* Adds slices for all sources. The loop itself adds slices, so it stops at n, their number before.
 * Sources are added in ascending order, because shf_emas_update() finds them by binary search.
 * Averages and streams are not averaged. */
static int add_all(struct sheaf_state *state, struct shf_ema *e, struct sheaf_error *err)
{
	size_t masters_n, n = state->n;
	const char **masters = masters_of(state, &masters_n);
	int rc = 0;

	e->first = n;
	e->source = shf_alloc(n, sizeof(*e->source));
	e->anew = shf_zalloc(n, sizeof(*e->anew));
	if (!masters || !e->source || !e->anew)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for averages of %zu slices", n);
	for (uint32_t i = 0; rc == 0 && i < n; i++)
		if (!state->slices[i].owned && !state->slices[i].stream.stream &&
		    is_source(&state->slices[i], e->of, masters, masters_n))
			rc = add_one(state, e, i, err);
	shf_free(masters);
	return rc;
}

/* Checks the arguments of sheaf_state_ema. The comparison on coef is written so that NaN fails
 * it. */
static int average_check(const struct sheaf_state *state, const char *family,
                         const struct shf_ema *e, struct sheaf_error *err)
{
	if (state->fixed)
		return shf_fail(err, SHEAF_EINVAL, "sheaf_state_ema must be called before the "
		                "first save");
	if (!shf_family_is_valid(e->name))
		return shf_fail(err, SHEAF_EINVAL, "averages '%.40s': the name must match "
		                "[a-z][a-z0-9_]{0,31}",
		                e->name);
	if (family && !shf_family_is_valid(family))
		return shf_fail(err, SHEAF_EINVAL, "averages %s: no slice of family '%.40s' was "
		                "added before; add its slices first", e->name,
		                family);
	for (size_t i = 0; i < state->n; i++)
		if (strcmp(state->slices[i].family, e->name) == 0)
			return shf_fail(err, SHEAF_EINVAL, "averages %s: a family has this name "
			                "already; choose another", e->name);
	if (!(e->coef >= 0 && e->coef < 1))
		return shf_fail(err, SHEAF_EINVAL, "averages %s: ema.coef is %g, must be at least "
		                "0 and less than 1",
		                e->name, e->coef);
	if (isnan(e->loss_max) || e->interval < 0 || e->warmup < 0)
		return shf_fail(err, SHEAF_EINVAL, "averages %s: ema.interval, warmup and loss_max "
		                "must be numbers that are not negative", e->name);
	if (state->emas_n == SHF_EMAS_MAX)
		return shf_fail(err, SHEAF_EINVAL, "averages %s: at most %d sets of averages are "
		                "possible", e->name,
		                SHF_EMAS_MAX);
	return 0;
}

/* Adds averages to the state. They are counted even if add_all() failed in the middle, so that
 * what it allocated is freed with the state; the failure sticks, so no save uses them. */
static int average_take(struct sheaf_state *state, const char *family, const struct sheaf_ema *in,
                        struct sheaf_error *err)
{
	const char *name;
	struct shf_ema e = { .last = -1 };
	struct sheaf_ema own;
	int rc = shf_struct_take(&own, in, sizeof(own), sizeof(own), "ema", "ema", err);

	if (rc < 0)
		return rc;
	name = own.name ? own.name : "ema";
	e.name = name;
	e.coef = own.coef;
	e.loss_max = own.loss_max;
	e.interval = own.interval ? own.interval : 1;
	e.warmup = own.warmup;
	rc = average_check(state, family, &e, err);
	if (rc < 0)
		return rc;
	e.name = shf_arena_strdup(&state->arena, name, strlen(name));
	e.of = family ? shf_arena_strdup(&state->arena, family, strlen(family)) : NULL;
	if (!state->emas)
		state->emas = shf_zalloc(SHF_EMAS_MAX, sizeof(*state->emas));
	if (!e.name || (family && !e.of) || !state->emas)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for averages");
	rc = add_all(state, &e, err);
	state->emas[state->emas_n++] = e;
	return rc;
}

int shf_state_ema(struct sheaf_state *state, const char *family, const struct sheaf_ema *ema,
                  struct sheaf_error *err)
{
	struct sheaf_error own;

	err = shf_err_or(err, &own);
	if (!state)
		return shf_state_is_null(err);
	return shf_state_stick(state, average_take(state, family, ema, err), err);
}

/* marks[k] is 0 if this rank has no averages k; 1 if it has them, but no slice to average in them;
 * 2 if it has such a slice. So the maximum over all ranks is 1 only if no rank has a slice to
 * average. */
void shf_emas_mark(const struct sheaf_state *state, uint64_t marks[SHF_EMAS_MAX])
{
	for (size_t k = 0; k < SHF_EMAS_MAX; k++)
		marks[k] = k >= state->emas_n ? 0 : state->emas[k].n == 0 ? 1 : 2;
}

int shf_emas_check(const struct sheaf_state *state, const uint64_t marks[SHF_EMAS_MAX],
                   struct sheaf_error *err)
{
	for (size_t k = 0; k < SHF_EMAS_MAX; k++) {
		const struct shf_ema *e = k < state->emas_n ? &state->emas[k] : NULL;

		if (marks[k] == 1)
			return shf_fail(err, SHEAF_EINVAL, "averages %s: no rank has a slice to "
			                "average%s%s; add one, or drop the call of sheaf_state_ema",
			                e ? e->name : "of other ranks",
			                e && e->of ? " in " : "", e && e->of ? e->of : "");
	}
	return 0;
}

/* ---- their memory ---- */

/* Allocates the averages whose source slices have memory, and leaves averages alone that are
 * allocated already. Slices without memory, which serve only for planning, get no averages. */
int shf_emas_ready(struct sheaf_state *state, struct sheaf_error *err)
{
	for (size_t k = 0; state && state->rc == 0 && k < state->emas_n; k++)
		for (size_t i = 0; i < state->emas[k].n; i++) {
			struct shf_slice *a = &state->slices[state->emas[k].first + i];
			const struct shf_slice *s = &state->slices[state->emas[k].source[i]];

			if (a->mem.base || a->empty || !s->mem.base)
				continue;
			a->mem.base = shf_alloc((size_t)(a->mem.hi - a->mem.lo), sizeof(float));
			if (!a->mem.base)
				return shf_fail(err, SHEAF_ENOMEM, "%s/%s: no memory for %lld "
				                "averages", a->family, a->name,
				                (long long)(a->mem.hi - a->mem.lo));
			state->hollow--;
		}
	return 0;
}

/* ---- updates ---- */

/* Returns whether these averages already include this step. If a state is saved to two runs, it is
 * the same step in both, and is averaged once. A step that was loaded from one run is not the step
 * of the same number that is trained later for another run. */
static bool is_again(const struct shf_ema *e, const char *run, int64_t step)
{
	return e->last == step && (!e->last_of[0] || strcmp(e->last_of, run) == 0);
}

/* f.first: the averages have no history, so they are set to the weights. This happens before the
 * first update, both when the memory holds nothing yet and when a step counts. The step is due if
 * it changes the memory and the averages do not include it already. */
void shf_emas_decide(const struct sheaf_state *state, const char *run, int64_t step, double loss,
                     struct shf_ema_update *fresh)
{
	for (size_t k = 0; k < state->emas_n; k++) {
		const struct shf_ema *e = &state->emas[k];
		struct shf_ema_update f = { .coef = shf_average_coef(e->coef, e->warmup,
		                                                     e->updates) };

		f.counts = step % e->interval == 0 && (e->loss_max == 0 || loss < e->loss_max);
		f.first = e->updates == 0 && (!e->begun || f.counts);
		f.due = !is_again(e, run, step) && (f.first || f.counts);
		fresh[k] = f;
	}
}

/* Notes what the step does to the i-th slice of averages k. Several averages of one source have
 * the same window, so they share an entry of due, with a bit for each of them. A slice that a load
 * did not fill is set to its weights at every step until a step counts. */
static void windows_add(const struct sheaf_state *state, size_t k, size_t i,
                        const struct shf_ema_update *f, struct shf_ema_window *due)
{
	const struct shf_ema *e = &state->emas[k];
	const struct shf_slice *a = &state->slices[e->first + i];
	struct shf_ema_window *d = &due[e->source[i]];

	if (a->empty || (!f->due && !e->anew[i]))
		return;
	d->slice = e->source[i];
	d->at = a->mem.lo;
	d->hi = a->mem.hi;
	d->made |= (uint8_t)(1u << k);
	if (f->first || e->anew[i])
		d->first |= (uint8_t)(1u << k);
}

/* Returns whether a load did not fill some slice of these averages, and no step counted since. */
static bool some_anew(const struct shf_ema *e)
{
	size_t i = 0;

	while (i < e->n && !e->anew[i])
		i++;
	return i < e->n;
}

bool shf_ema_changes(const struct shf_ema *e, const struct shf_ema_update *f)
{
	return f->due || some_anew(e);
}

/* The table has an entry for each slice and is allocated only if some averages change, so that
 * steps that change no averages cost nothing. */
int shf_emas_windows(const struct sheaf_state *state, const struct shf_ema_update *fresh,
                     struct shf_ema_window **out, struct sheaf_error *err)
{
	struct shf_ema_window *due = NULL;

	for (size_t k = 0; k < state->emas_n; k++) {
		const struct shf_ema *e = &state->emas[k];

		if (!shf_ema_changes(e, &fresh[k]))
			continue;
		if (!due && !(due = shf_zalloc(state->n, sizeof(*due))))
			return shf_fail(err, SHEAF_ENOMEM, "no memory to average %zu slices", e->n);
		for (size_t i = 0; i < e->n; i++)
			windows_add(state, k, i, &fresh[k], due);
	}
	*out = due;
	return 0;
}

/* last_of is cleared because `last` is now a step of this process, not a loaded one. `anew` is
 * cleared only by a step that counts: until then the averages of these slices are copies of their
 * weights. */
void shf_emas_count(struct sheaf_state *state, int64_t step, const struct shf_ema_update *fresh)
{
	for (size_t k = 0; k < state->emas_n; k++) {
		struct shf_ema *e = &state->emas[k];

		if (fresh[k].counts && e->n)
			memset(e->anew, 0, e->n * sizeof(*e->anew));
		if (!fresh[k].due)
			continue;
		e->begun = true;
		e->updates += fresh[k].counts;
		e->last = step;
		e->last_of[0] = '\0';
	}
}

static uint64_t add_number(uint64_t hash, uint64_t x)
{
	uint8_t bytes[8];

	shf_put64(bytes, x);
	return shf_crc64_more(hash, bytes, sizeof(bytes));
}

static uint64_t bits_of(double x)
{
	uint64_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

uint64_t shf_ema_loss_word(double loss)
{
	return bits_of(isnan(loss) ? (double)NAN : loss == 0 ? 0 : loss);
}

/* The number of updates so far is left out: after ELOST some ranks may have made one more, and the
 * next call for that step brings the others to the same number. */
uint64_t shf_emas_hash(const struct sheaf_state *state)
{
	uint64_t hash = 0;

	for (size_t k = 0; k < state->emas_n; k++) {
		const struct shf_ema *e = &state->emas[k];

		hash = shf_crc64_more(hash, (const uint8_t *)e->name, strlen(e->name) + 1);
		hash = add_number(hash, bits_of(e->coef));
		hash = add_number(hash, bits_of(e->loss_max));
		hash = add_number(hash, (uint64_t)e->interval);
		hash = add_number(hash, (uint64_t)e->warmup);
	}
	return hash;
}

/* The slices of averages are consecutive and ascend with k, so the first range that ends after
 * the slice contains it. */
uint32_t shf_ema_source(const struct sheaf_state *state, size_t slice)
{
	const struct shf_ema *e = state->emas;

	while (slice >= e->first + e->n)
		e++;
	return e->source[slice - e->first];
}

/* Averages must be updated before they are copied, and the update is made in the pass over their
 * weights. So this returns the weights for averages that the step updates. */
size_t shf_emas_before(const struct sheaf_state *state, const struct shf_ema_window *due,
                       size_t slice)
{
	for (size_t k = 0; due && k < state->emas_n; k++) {
		const struct shf_ema *e = &state->emas[k];

		if (slice >= e->first && slice < e->first + e->n) {
			size_t source = e->source[slice - e->first];

			return due[source].made >> k & 1 ? source : slice;
		}
	}
	return slice;
}

/* Orders slice numbers, for bsearch(). */
static int by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

/* Returns the index of the source slice in the averages; -1: it is not averaged in them. */
static int64_t average_index(const struct shf_ema *e, uint32_t slice)
{
	const uint32_t *at = e->n ? bsearch(&slice, e->source, e->n, sizeof(slice), by_number)
	                          : NULL;

	return at ? at - e->source : -1;
}

int shf_emas_find(const struct sheaf_state *state, const char *name, int slice, size_t *average,
                  struct sheaf_error *err)
{
	const struct shf_ema *e = NULL;
	int64_t i;

	for (size_t k = 0; k < state->emas_n; k++)
		if (strcmp(state->emas[k].name, name) == 0)
			e = &state->emas[k];
	if (!e)
		return shf_fail(err, SHEAF_EINVAL, "averages %.40s: the state has none of this "
		                "name; add them with sheaf_state_ema", name);
	i = slice < 0 ? -1 : average_index(e, (uint32_t)slice);
	if (i < 0)
		return shf_fail(err, SHEAF_EINVAL, "averages %s: slice %d is not one of those "
		                "averaged; pass the number of a slice of weights", e->name, slice);
	if (!e->begun || e->anew[i])
		return shf_fail(err, SHEAF_EAGAIN, "averages %s: no step has counted yet for slice "
		                "%d; call this after the next save or sheaf_state_average",
		                e->name, slice);
	*average = e->first + (size_t)i;
	return 0;
}

/* Updates units [lo, hi) of averages `a` from the same units of their source s, which has the same
 * window and strides. Gaps between strided items are updated too, because one dense pass is
 * simpler; no box contains them. */
static void update(const struct shf_slice *a, const struct shf_slice *s, bool first, double coef,
                   int64_t lo, int64_t hi)
{
	float *e = (float *)(void *)a->mem.base + (lo - a->mem.lo);
	const uint8_t *w = s->mem.base + (lo - s->mem.lo) * (int64_t)s->mem_unit;

	if (first)
		shf_convert(e, SHEAF_F32, w, s->data_dtype, (size_t)(hi - lo));
	else
		shf_average(e, w, s->data_dtype, (size_t)(hi - lo), coef);
}

/* Each unit is updated exactly once (E1), because the next call begins at due->at. A source may be
 * part of several averages; its index in each is found by binary search. */
void shf_emas_update(const struct sheaf_state *state, const struct shf_ema_update *fresh,
                     struct shf_ema_window *due, int64_t to)
{
	const uint32_t slice = (uint32_t)due->slice;

	to = to < due->hi ? to : due->hi;
	if (to <= due->at)
		return;
	for (size_t k = 0; k < state->emas_n; k++) {
		const struct shf_ema *e = &state->emas[k];
		int64_t i;

		if (!(due->made >> k & 1))
			continue;
		i = average_index(e, slice);
		if (i >= 0)
			update(&state->slices[e->first + (size_t)i],
			       &state->slices[slice], due->first >> k & 1, fresh[k].coef, due->at,
			       to);
	}
	due->at = to;
}

/* Sets the counters to those of the loaded step. With last and last_of set, saving that step again
 * to the same run updates nothing; otherwise it would be averaged with itself. Averages that were
 * filled but that the manifest does not name, for example because another tool wrote them, count as
 * updated once, so that the next step does not replace them by the weights. */
void shf_emas_loaded(struct sheaf_state *state, const struct shf_manifest *m,
                     const bool filled[SHF_EMAS_MAX])
{
	for (size_t k = 0; k < state->emas_n; k++) {
		struct shf_ema *e = &state->emas[k];

		e->begun = filled[k];
		e->updates = e->begun;
		e->last = -1;
		for (size_t i = 0; e->begun && i < m->emas_n; i++) {
			if (strcmp(m->emas[i].name, e->name) != 0)
				continue;
			e->updates = m->emas[i].updates;
			e->last = m->step;
			memcpy(e->last_of, m->run, sizeof(e->last_of));
		}
	}
}

void shf_emas_describe(const struct sheaf_state *state, struct shf_mf_ema *told)
{
	for (size_t k = 0; k < state->emas_n; k++) {
		const struct shf_ema *e = &state->emas[k];

		told[k] = (struct shf_mf_ema){ .name = e->name, .of = e->of ? e->of : "",
			.interval = e->interval, .updates = e->updates };
		shf_hexfloat_put(told[k].coef, e->coef);
	}
}
