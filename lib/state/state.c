/* SPDX-License-Identifier: Apache-2.0 */
/* States: a slice is checked once, when it is added, and is in units from then on. So planning
 * and copying never meet an item of half a byte, strides of 0 that mean "dense", or a box that is
 * out of range. */
#include "state.h"
#include "slice_twins.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "averages.h"
#include "dtype.h"
#include "err.h"
#include "flags.h"
#include "sheaf-load.h"
#include "struct_size.h"
#include "valid.h"

/* snprintf() returns the length that it would have written, so `at` may pass n; from then on
 * nothing is written. */
char *shf_shape_print(const struct shf_shape *s, char *text, size_t n)
{
	size_t at = (size_t)snprintf(text, n, "[");

	for (int d = 0; d < s->ndim && at < n; d++)
		at += (size_t)snprintf(text + at, n - at, d ? ", %" PRId64 : "%" PRId64, s->dim[d]);
	if (at < n)
		snprintf(text + at, n - at, "]");
	return text;
}

/* Counts the items. Returns false if there are too many, or a dimension is negative. If a dimension
 * is 0 the count is 0, and the others are not multiplied, because their product might overflow. The
 * bound keeps the size in bytes within 63 bits for items of up to 8 bytes. */
static bool count_items(const struct shf_shape *s, uint64_t *items)
{
	bool zero = false;

	*items = 1;
	for (int d = 0; d < s->ndim; d++)
		zero |= s->dim[d] == 0;
	if (zero) {
		*items = 0;
		return true;
	}
	for (int d = 0; d < s->ndim; d++)
		if (s->dim[d] < 0 || !shf_mul64(items, *items, (uint64_t)s->dim[d]))
			return false;
	return *items <= INT64_MAX / 8;
}

/* Types of whole bytes have one unit for each item. F4 and F6 have groups of items that fill
 * whole bytes. If rows are whole groups, the last dimension counts bytes, and boxes can be cut
 * there; otherwise rows begin inside bytes, and the tensor becomes one dimension of all bytes,
 * which nothing can cut. */
bool shf_units_of(struct shf_shape *units, uint32_t *unit, int dtype,
                  const struct shf_shape *items)
{
	const struct shf_dtype *t = shf_dtype(dtype);
	uint64_t n, bytes;

	if (!t || !count_items(items, &n) || !shf_dtype_bytes(&bytes, dtype, n))
		return false;
	*units = *items;
	*unit = t->group == 1 ? t->bits / 8u : 1u;
	if (t->group == 1)
		return true;
	int last = items->ndim - 1;
	if (!always(last >= 0)) /* shf_dtype_bytes() has refused a scalar: no whole group */
		return false;
	if (items->dim[last] % t->group == 0) {
		units->dim[last] = items->dim[last] / t->group * (t->bits * t->group / 8);
		return true;
	}
	*units = (struct shf_shape){ .ndim = 1, .dim = { (int64_t)bytes } };
	return true;
}

/* Checks box, strides and flat range as the caller gave them, in items. The comparisons
 * subtract instead of adding, so numbers near 2^63 do not wrap. Negative strides are refused,
 * since the memory rule (box.h) counts units upwards from the origin. */
static int check_box(const struct sheaf_slice *in, const char *who, struct sheaf_error *err)
{
	for (int d = 0; d < in->ndim; d++) {
		if (in->start[d] < 0 || in->count[d] < 0 || in->start[d] > in->shape[d] ||
		    in->count[d] > in->shape[d] - in->start[d])
			return shf_fail(err, SHEAF_EINVAL,
			                "%s: dimension %d: start %" PRId64 ", count %" PRId64 " is "
			                "outside of shape %" PRId64,
			                who, d, in->start[d], in->count[d], in->shape[d]);
		if (in->stride[d] < 0)
			return shf_fail(err, SHEAF_EINVAL, "%s: dimension %d: stride %" PRId64 " "
			                "is negative, must be at least 0", who, d, in->stride[d]);
	}
	if (in->origin < 0)
		return shf_fail(err, SHEAF_EINVAL, "%s: origin %" PRId64 " is negative, must be at "
		                "least 0", who,
		                in->origin);
	if (!(in->flags & SHEAF_SLICE_FLAT) && (in->flat_start || in->flat_count))
		return shf_fail(err, SHEAF_EINVAL, "%s: flat_start or flat_count is set, but not "
		                "the flag SHEAF_SLICE_FLAT", who);
	if ((in->flags & SHEAF_SLICE_FLAT) && (in->flat_start < 0 || in->flat_count < 0 ||
	                                 in->flat_start > INT64_MAX - in->flat_count))
		return shf_fail(err, SHEAF_EINVAL, "%s: flat_start %" PRId64 " and flat_count "
		                "%" PRId64 " must not be negative or overflow", who, in->flat_start,
		                in->flat_count);
	return 0;
}

/* Strides that are all 0 mean dense memory, unless the caller set SHEAF_SLICE_STRIDED. */
static bool strides_are_dense(const struct sheaf_slice *in)
{
	if (in->flags & SHEAF_SLICE_STRIDED)
		return false;
	for (int d = 0; d < in->ndim; d++)
		if (in->stride[d] != 0)
			return false;
	return true;
}

/* Sets row-major strides of the box itself, not of the tensor: dense memory holds the box and
 * nothing else. A dimension of 0 does not count as a factor, because a stride of 0 means that
 * several items are in one place. */
static void dense_strides(struct shf_mem *m)
{
	int64_t by = 1;

	for (int d = m->box.ndim - 1; d >= 0; d--) {
		m->stride[d] = by;
		if (m->box.count[d] > 0)
			by *= m->box.count[d];
	}
}

/* Sets strides, origin and window of a slice whose items have whole bytes. Stride 0 is refused in
 * a dimension with more than one index: a load would write several items to one place. top is the
 * last unit that the box reaches; its bound keeps sizes in bytes within 63 bits.
 *
 * Without SHEAF_SLICE_FLAT the window is all of [0, top]. */
static int take_memory(struct shf_slice *out, const struct sheaf_slice *in, const char *who,
                       struct sheaf_error *err)
{
	struct shf_mem *m = &out->mem;
	uint64_t top = (uint64_t)in->origin, far;

	if (out->empty) /* it has no items, so its strides and origin mean nothing */
		return 0;
	if (strides_are_dense(in))
		dense_strides(m);
	else
		memcpy(m->stride, in->stride, sizeof(m->stride));
	m->origin = in->origin;
	for (int d = 0; d < in->ndim; d++) {
		if (m->box.count[d] > 1 && m->stride[d] == 0)
			return shf_fail(err, SHEAF_EINVAL, "%s: dimension %d: with stride 0 its "
			                "%" PRId64 " items overlap; copy the tensor to dense "
			                "memory, or add one item alone", who, d, m->box.count[d]);
		if (!shf_mul64(&far, (uint64_t)(m->box.count[d] - 1), (uint64_t)m->stride[d]) ||
		    !shf_add64(&top, top, far) || top > INT64_MAX / 16)
			return shf_fail(err, SHEAF_EINVAL, "%s: with its strides the slice is "
			                "larger than any memory; check stride and count", who);
	}
	m->lo = in->flags & SHEAF_SLICE_FLAT ? in->flat_start : 0;
	m->hi = in->flags & SHEAF_SLICE_FLAT ? in->flat_start + in->flat_count : (int64_t)top + 1;
	return 0;
}

/* Sets box, strides, origin and window of a slice of F4 or F6. Their units are bytes, so start,
 * count, origin and window are divided by the group and multiplied by its bytes; none of these
 * numbers may cut a group. Their memory is dense, as a stride between items of less than a byte
 * means nothing. */
static int take_sub_byte(struct shf_slice *out, const struct sheaf_slice *in, const char *who,
                         struct sheaf_error *err)
{
	const struct shf_dtype *t = shf_dtype(in->dtype);
	int64_t group = t->group, bytes = t->bits * t->group / 8;
	struct shf_mem *m = &out->mem;
	int last = in->ndim - 1;
	bool rows = in->shape[last] % group == 0; /* last >= 0: shf_units_of() refuses a scalar */

	if (!strides_are_dense(in))
		return shf_fail(err, SHEAF_EINVAL, "%s: %s memory must be dense", who, t->name);
	if (rows && (in->start[last] % group || in->count[last] % group))
		return shf_fail(err, SHEAF_EINVAL, "%s: %s can be cut between bytes only: start "
		                "and count must be multiples of %d items", who, t->name,
		                (int)group);
	if (rows) {
		m->box.start[last] = in->start[last] / group * bytes;
		m->box.count[last] = in->count[last] / group * bytes;
	} else if (!out->empty) {
		for (int d = 0; d < in->ndim; d++)
			if (in->count[d] != in->shape[d])
				return shf_fail(err, SHEAF_EINVAL, "%s: rows of %s do not end at a "
				                "byte, so the slice must be the whole tensor", who,
				                t->name);
		m->box = shf_box_of(&out->shape);
	}
	if (in->origin % group || (in->flags & SHEAF_SLICE_FLAT && (in->flat_start % group ||
	                                                      in->flat_count % group)))
		return shf_fail(err, SHEAF_EINVAL, "%s: %s: origin, flat_start and flat_count must "
		                "be at a byte", who,
		                t->name);
	dense_strides(m);
	m->origin = in->origin / group * bytes;
	m->lo = in->flags & SHEAF_SLICE_FLAT ? in->flat_start / group * bytes : 0;
	m->hi = in->flags & SHEAF_SLICE_FLAT ? m->lo + in->flat_count / group * bytes
	                               : m->origin + (int64_t)shf_box_units(&m->box);
	return 0;
}

/* Names become file names and JSON keys, so they are checked before any text is stored. The
 * error message shows only the beginning of a long name. any_name: the slice is only read, so its
 * name may be whatever another program wrote. */
static int check_slice_names(const struct sheaf_slice *in, bool any_name, const char **family,
                             struct sheaf_error *err)
{
	*family = in->family ? in->family : "model";
	if (!shf_family_is_valid(*family))
		return shf_fail(err, SHEAF_EINVAL, "family '%.40s': must match "
		                "[a-z][a-z0-9_]{0,31}",
		                *family);
	if (!in->name || (!any_name && !shf_name_is_valid(in->name, strlen(in->name))))
		return shf_fail(err, SHEAF_EINVAL, "%s: name '%.80s': must be 1 to 1024 bytes of "
		                "UTF-8 without control characters", *family,
		                in->name ? in->name : "");
	if (in->tied_to && !shf_name_is_valid(in->tied_to, strlen(in->tied_to)))
		return shf_fail(err, SHEAF_EINVAL, "%s/%s: slice.tied_to must be a valid name: 1 "
		                "to 1024 bytes of UTF-8 without control characters", *family,
		                in->name);
	return 0;
}

/* Unknown flags and a reserved field that is not 0 are refused: a caller that was compiled for
 * a newer header asks for something that this library would otherwise silently ignore. */
static int check_kind(const struct sheaf_slice *in, const char *who, struct sheaf_error *err)
{
	int memory = in->data_dtype ? in->data_dtype : in->dtype;

	int most = in->dtype == SHEAF_C128 ? SHEAF_DIMS_MAX - 1 : SHEAF_DIMS_MAX;

	if (!shf_dtype_of_slice(in->dtype) || !shf_dtype_of_slice(memory))
		return shf_fail(err, SHEAF_EINVAL, "%s: dtype %d is not one of enum sheaf_dtype; "
		                "use sheaf_dtype_from_name", who,
		                shf_dtype_of_slice(in->dtype) ? memory : in->dtype);
	if (memory != in->dtype && !shf_can_convert(memory, in->dtype))
		return shf_fail(err, SHEAF_EINVAL, "%s: dtype %s cannot be converted from and to "
		                "data_dtype %s", who,
		                shf_dtype_of_slice(in->dtype)->name,
		                shf_dtype_of_slice(memory)->name);
	if (in->ndim < 0 || in->ndim > most)
		return shf_fail(err, SHEAF_EINVAL, "%s: %d dimensions, at most %d%s", who, in->ndim,
		                most, most < SHEAF_DIMS_MAX ? " in C128" : "");
	if (shf_flags_check(in->flags, SHF_SLICE_FLAGS, who, err) < 0)
		return SHEAF_EINVAL;
	if (in->memory || in->reserved)
		return shf_fail(err, SHEAF_EINVAL, "%s: slice.%s is %d; it must be 0", who,
		                in->memory ? "memory" : "reserved",
		                (int)(in->memory ? in->memory : in->reserved));
	for (int d = 0; d < in->ndim; d++)
		if (in->shape[d] < 0)
			return shf_fail(err, SHEAF_EINVAL, "%s: dimension %d is %" PRId64 ", must "
			                "be at least 0", who, d,
			                in->shape[d]);
	return 0;
}

/* Returns the state's copy of a family's name, or NULL on lack of memory. Slices of one
 * family point to the same copy, for the first SHF_FAMILIES_KNOWN families, so that holds.c can
 * mostly compare pointers. known NULL: always makes a new copy. */
static const char *take_family(struct shf_families *known, const char *family,
                               struct shf_arena *arena)
{
	const char *text;

	for (size_t i = 0; known && i < known->n; i++)
		if (strcmp(known->names[i], family) == 0)
			return known->names[i];
	text = shf_arena_strdup(arena, family, strlen(family));
	if (text && known && known->n < SHF_FAMILIES_KNOWN)
		known->names[known->n++] = text;
	return text;
}

/* Copies the strings to the arena, because the caller may reuse its own after the call. A tied
 * slice is stored under the name of the tensor it is tied to, and keeps its own name for
 * messages. */
static int slice_take_text(struct shf_slice *out, const struct sheaf_slice *in, const char *family,
                           struct shf_families *known, struct shf_arena *arena,
                     struct sheaf_error *err)
{
	out->family = take_family(known, family, arena);
	out->name = shf_arena_strdup(arena, in->name, strlen(in->name));
	out->stored = in->tied_to ? shf_arena_strdup(arena, in->tied_to, strlen(in->tied_to))
	                          : out->name;
	if (!out->family || !out->name || !out->stored)
		return shf_fail(err, SHEAF_ENOMEM, "%s/%.80s: no memory", family, in->name);
	return 0;
}

/* Doubles a number that counts items and becomes one that counts halves of items. False: it is too
 * large. */
static bool twice(int64_t *x)
{
	bool fits = *x <= INT64_MAX / 2;

	*x = fits ? 2 * *x : *x;
	return fits;
}

/* Turns a slice of C128, which was checked, into the slice of F64 that is stored: its last
 * dimension has real and imaginary part. Strides that are all 0 stay so: dense memory stays
 * dense. */
static int take_complex(struct sheaf_slice *s, const char *who, struct sheaf_error *err)
{
	bool dense = strides_are_dense(s), fits = twice(&s->origin);
	int n = s->ndim++;

	for (int d = 0; d < n; d++)
		fits &= twice(&s->stride[d]);
	s->shape[n] = s->count[n] = 2;
	s->start[n] = 0;
	s->stride[n] = dense ? 0 : 1;
	fits &= twice(&s->flat_start);
	fits &= twice(&s->flat_count);
	if (s->flat_start > INT64_MAX - s->flat_count)
		fits = false;
	s->dtype = SHEAF_F64;
	s->data_dtype = 0;
	return fits ? 0 : shf_fail(err, SHEAF_EINVAL, "%s: the slice reaches beyond the address "
	                           "space; check flat_start and flat_count", who);
}

/* Checks a slice and converts it to units; the caller checks that it has memory. known may be
 * NULL. *out is written on success only.
 *
 * in->size is the size of the struct in the caller's header. A struct that ends before `data`,
 * the last member, is refused. A longer struct comes from a newer header; its tail must be 0,
 * which means that the caller uses no newer feature. */
static int slice_take(struct shf_slice *out, const struct sheaf_slice *in, bool any_name,
                      struct shf_families *known, struct shf_arena *arena, struct sheaf_error *err)
{
	struct sheaf_slice own = { 0 };
	const char *family = NULL;
	char who[160];
	int rc = shf_struct_take(&own, in, sizeof(own), sizeof(own), "slice", "slice", err);

	if (rc == 0)
		rc = check_slice_names(&own, any_name, &family, err);
	if (rc < 0)
		return rc;
	snprintf(who, sizeof(who), "%s/%.120s", family, own.name);
	rc = check_kind(&own, who, err);
	if (rc == 0)
		rc = check_box(&own, who, err);
	if (rc == 0 && own.dtype == SHEAF_C128)
		rc = take_complex(&own, who, err);
	if (rc < 0)
		return rc;

	struct shf_slice s = { .dtype = own.dtype, .flags = own.flags };
	s.data_dtype = own.data_dtype ? own.data_dtype : own.dtype;
	s.items.ndim = s.mem.box.ndim = own.ndim;
	memcpy(s.items.dim, own.shape, sizeof(int64_t) * (size_t)own.ndim);
	memcpy(s.mem.box.start, own.start, sizeof(int64_t) * (size_t)own.ndim);
	memcpy(s.mem.box.count, own.count, sizeof(int64_t) * (size_t)own.ndim);
	s.empty = shf_box_is_empty(&s.mem.box) || (own.flags & SHEAF_SLICE_FLAT &&
	                                           own.flat_count == 0);
	if (!shf_units_of(&s.shape, &s.mem.unit, own.dtype, &s.items))
		return shf_fail(err, SHEAF_EINVAL, "%s: shape is too large, or does not fill whole "
		                "bytes of %s", who, shf_dtype(own.dtype)->name);
	rc = shf_dtype(own.dtype)->group == 1 ? take_memory(&s, &own, who, err)
	                                      : take_sub_byte(&s, &own, who, err);
	if (rc < 0)
		return rc;
	s.mem_unit = s.data_dtype == s.dtype ? s.mem.unit : shf_dtype(s.data_dtype)->bits / 8u;
	s.mem.base = own.data;
	rc = slice_take_text(&s, &own, family, known, arena, err);
	if (rc == 0)
		*out = s;
	return rc;
}

/* Returns whether the slice has items but no memory. A state with such a slice can be planned
 * with, but not saved or loaded. */
static bool is_hollow(const struct shf_slice *s)
{
	return !s->mem.base && !s->empty;
}

/* Writes the error for a slice that has items but no memory. Returns EINVAL. */
static int hollow_fail(const struct shf_slice *s, struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_EINVAL, "%s/%.120s: slice.data is NULL, but the slice is not "
	                "empty",
	                s->family, s->name);
}

int shf_slice_take(struct shf_slice *out, const struct sheaf_slice *in, bool any_name,
                   struct shf_arena *arena, struct sheaf_error *err)
{
	struct shf_slice s;
	int rc = slice_take(&s, in, any_name, NULL, arena, err);

	if (rc == 0 && is_hollow(&s))
		rc = hollow_fail(&s, err);
	if (rc == 0)
		*out = s;
	return rc;
}

struct sheaf_state *shf_state_new(void)
{
	struct sheaf_state *state = shf_zalloc(1, sizeof(*state));

	if (state)
		state->refs = 1;
	return state;
}

/* Only the first failure is kept: later ones mostly follow from it. */
int shf_state_stick(struct sheaf_state *state, int rc, const struct sheaf_error *err)
{
	if (rc < 0 && state->rc == 0) {
		state->rc = rc;
		state->err = *err;
	}
	return rc;
}

/* Returns the number of the slice. The new slice is written after the last one and counted only
 * when it is complete, so a failure leaves the state as it was. */
int shf_state_take(struct sheaf_state *state, const struct sheaf_slice *slice,
                   struct sheaf_error *err)
{
	if (state->fixed)
		return shf_fail(err, SHEAF_EINVAL, "slices must be added before the first save; "
		                "make another state with sheaf_state_new");
	if (state->loads > 0)
		return shf_fail(err, SHEAF_EINVAL, "a load of this state has begun, and until it "
		                "ends no slice can be added or moved (end it with sheaf_load_end "
		                "or sheaf_load_free)");
	if (state->n == state->cap) {
		size_t cap = state->cap ? 2 * state->cap : 64;
		struct shf_slice *more = shf_realloc(state->slices, cap, sizeof(*more));

		if (!more)
			return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu slices", cap);
		state->slices = more;
		state->cap = cap;
	}
	int rc = slice_take(&state->slices[state->n], slice, false, &state->families, &state->arena,
	                    err);
	if (rc < 0)
		return rc;
	state->hollow += is_hollow(&state->slices[state->n]);
	state->version++;
	state->places++;
	return (int)state->n++;
}

/* sheaf_state_new returns NULL if there is no memory, and its caller need not check. */
int shf_state_is_null(struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_ENOMEM, "the state is NULL; sheaf_state_new returns NULL when "
	                "out of memory");
}

int shf_state_add(struct sheaf_state *state, const struct sheaf_slice *slice,
                  struct sheaf_error *err)
{
	struct sheaf_error own;

	err = shf_err_or(err, &own);
	if (!state)
		return shf_state_is_null(err);
	return shf_state_stick(state, shf_state_take(state, slice, err), err);
}

/* Checks a stream and copies its strings. The rule says what a load with another number of ranks
 * does (doc/format.md, section 1). A bad rule is refused here, because at the load it is too late
 * to change the step that contains it. */
static int stream_take(struct sheaf_state *state, struct shf_stream *s, const char *stream,
                       const char *rule, struct sheaf_error *err)
{
	if (!stream || !shf_stream_is_valid(stream))
		return shf_fail(err, SHEAF_EINVAL, "stream '%.60s': its name must match "
		                "[a-z0-9._-]{1,57}",
		                stream ? stream : "");
	if (!rule)
		rule = "strict";
	if (strcmp(rule, "strict") && strcmp(rule, "drop") && strcmp(rule, "modulo"))
		return shf_fail(err, SHEAF_EINVAL, "stream %s: rule '%.20s' must be strict, drop "
		                "or modulo", stream, rule);
	if (s->ranks < 1 || s->rank < 0 || s->rank >= s->ranks)
		return shf_fail(err, SHEAF_EINVAL, "stream %s: rank %d must be at least 0 and less "
		                "than ranks, %d", stream, s->rank,
		                s->ranks);
	s->stream = shf_arena_strdup(&state->arena, stream, strlen(stream));
	s->rule = shf_arena_strdup(&state->arena, rule, strlen(rule));
	return s->stream && s->rule ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory");
}

/* A stream is stored as a slice of family "ranks", so that saves and loads treat it like any
 * other. Its stream, rule and rank are set on the slice afterwards. */
int shf_state_stream(struct sheaf_state *state, const char *stream, const char *rule,
                     int32_t rank, int32_t ranks, void *data, size_t bytes,
                     struct sheaf_error *err)
{
	struct shf_stream s = { .rank = rank, .ranks = ranks };
	struct sheaf_error own;
	char name[96];

	err = shf_err_or(err, &own);
	if (!state)
		return shf_state_is_null(err);
	int rc = stream_take(state, &s, stream, rule, err);
	if (rc < 0)
		return shf_state_stick(state, rc, err);
	snprintf(name, sizeof(name), "%s/%d", s.stream, (int)rank);
	struct sheaf_slice slice = { .size = sizeof(slice), .family = "ranks", .name = name,
		.dtype = SHEAF_U8, .ndim = 1, .shape = { (int64_t)bytes },
		.count = { (int64_t)bytes }, .data = data };
	rc = shf_state_stick(state, shf_state_take(state, &slice, err), err);
	if (rc >= 0)
		state->slices[rc].stream = s;
	return rc;
}

/* Averages live in memory of the state itself, so the caller cannot move them. */
static int check_move(const struct sheaf_state *state, int slice, const void *data,
                      struct sheaf_error *err)
{
	const struct shf_slice *s;

	if (slice < 0 || (size_t)slice >= state->n)
		return shf_fail(err, SHEAF_EINVAL, "slice %d does not exist: the state has %zu "
		                "(see sheaf_state_add)", slice,
		                state->n);
	s = &state->slices[slice];
	if (!data && !s->empty)
		return shf_fail(err, SHEAF_EINVAL, "%s/%s: cannot be moved to NULL, because the "
		                "slice is not empty", s->family, s->name);
	if (s->owned)
		return shf_fail(err, SHEAF_EINVAL, "%s/%s: averages cannot be moved; their memory "
		                "belongs to the state", s->family,
		                s->name);
	return 0;
}

/* Returns whether a lazy save still reads the memory of the slice. */
static bool is_read(const struct sheaf_state *state, size_t slice)
{
	for (struct shf_reader *r = state->readers; r; r = r->next)
		if (r->reads(r, slice))
			return true;
	return false;
}

/* Returns whether a lazy save still reads the slice, so that it cannot be moved yet, and notes
 * that in s->unmoved. The caller must then move it again. Until it has, shf_state_ready refuses
 * the state, because the caller may have freed the old memory. unmoved_n changes by the difference
 * of the new flag and the old one, so a slice that is refused twice is counted once. */
static bool is_too_early(struct sheaf_state *state, size_t slice)
{
	struct shf_slice *s = &state->slices[slice];
	bool early = is_read(state, slice);

	state->unmoved_n = state->unmoved_n - s->unmoved + early;
	s->unmoved = early;
	return early;
}

/* Writes the error for the first slice that must be moved again. The caller has found unmoved_n >
 * 0, so such a slice exists. Returns EINVAL. */
static int unmoved_fail(const struct sheaf_state *state, struct sheaf_error *err)
{
	for (size_t i = 0; always(i < state->n); i++) {
		const struct shf_slice *s = &state->slices[i];

		if (s->unmoved)
			return shf_fail(err, SHEAF_EINVAL, "%s/%s: sheaf_state_move was refused, "
			                "because a lazy save had not copied the slice; call it "
			                "again", s->family, s->name);
	}
	return shf_fail(err, SHEAF_EBUG, "no slice of %zu is to be moved again", state->n);
}

/* EINVAL for a move that came too early does not stick, because the caller can repeat the move;
 * a failure that sticks fails the state for good. */
int shf_state_move(struct sheaf_state *state, int slice, void *data, struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	if (!state)
		return shf_state_is_null(err);
	rc = check_move(state, slice, data, err);
	if (rc < 0)
		return shf_state_stick(state, rc, err);
	if (is_too_early(state, (size_t)slice))
		return shf_fail(err, SHEAF_EINVAL, "%s/%s: a lazy save still reads its memory: "
		                "call sheaf_save_wait_copied for slice %d, then move it again",
		                state->slices[slice].family, state->slices[slice].name, slice);
	state->hollow -= is_hollow(&state->slices[slice]);
	state->slices[slice].mem.base = data;
	state->places++;
	return 0;
}

/* Notes that all slices must be moved again: the caller may have freed their old memory. */
static void all_unmoved(struct sheaf_state *state)
{
	for (size_t i = 0; i < state->n; i++) {
		struct shf_slice *s = &state->slices[i];

		if (s->owned)
			continue;
		state->unmoved_n += !s->unmoved;
		s->unmoved = true;
	}
}

/* All are checked before any is moved, so that a failure leaves their memory as it was. If it came
 * too early, no save or load of the state begins until all were moved. */
int shf_state_move_all(struct sheaf_state *state, void *const *data, size_t n,
                       struct sheaf_error *err)
{
	struct sheaf_error own;

	err = shf_err_or(err, &own);
	if (!state)
		return shf_state_is_null(err);
	if (n != state->n || (n && !data))
		return shf_state_stick(state, shf_fail(err, SHEAF_EINVAL, "memory for %zu slices "
		                                       "was given, the state has %zu",
		                                       data ? n : 0, state->n), err);
	for (size_t i = 0; i < n; i++) {
		if (state->slices[i].owned)
			continue;
		if (!data[i] && !state->slices[i].empty)
			return shf_state_stick(state, check_move(state, (int)i, NULL, err), err);
		if (is_read(state, i)) {
			all_unmoved(state);
			return shf_fail(err, SHEAF_EINVAL, "%s/%s: a lazy save still reads its "
			                "memory: call sheaf_save_wait_copied for slice %zu, then "
			                "move all again", state->slices[i].family,
			                state->slices[i].name, i);
		}
	}
	for (size_t i = 0; i < n; i++)
		if (!state->slices[i].owned)
			(void)shf_state_move(state, (int)i, data[i], err);
	return 0;
}

int shf_state_fail(struct sheaf_state *state, const char *why, struct sheaf_error *err)
{
	struct sheaf_error own;

	err = shf_err_or(err, &own);
	if (!state)
		return shf_state_is_null(err);
	shf_fail(err, SHEAF_EFAILED, "%s", why ? why : "no reason was given");
	(void)shf_state_stick(state, SHEAF_EFAILED, err);
	return 0;
}

/* Uses counters, so that the check takes the same time for any number of slices, once twins have
 * been looked for (slice_twins.h); slices are walked only to write an error message. */
int shf_state_ready(struct sheaf_state *state, bool memory, struct sheaf_error *err)
{
	if (!state)
		return shf_state_is_null(err);
	if (state->rc < 0) {
		if (err)
			*err = state->err;
		return state->rc;
	}
	if (state->loads > 0)
		return shf_fail(err, SHEAF_EINVAL, "a load of this state has begun; end it first "
		                "with sheaf_load_end or sheaf_load_free");
	if (state->unmoved_n > 0)
		return unmoved_fail(state, err);
	if (!memory || state->hollow == 0)
		return shf_twins_check(state, err);
	for (size_t i = 0; always(i < state->n); i++)
		if (is_hollow(&state->slices[i]))
			return hollow_fail(&state->slices[i], err);
	return shf_fail(err, SHEAF_EBUG, "no slice of %zu is without memory", state->n);
}

/* Frees the memory of averages. The caller owns the memory of all other slices. */
static void averages_release(struct sheaf_state *state)
{
	for (size_t k = 0; k < state->emas_n; k++) {
		for (size_t i = 0; i < state->emas[k].n; i++)
			shf_free(state->slices[state->emas[k].first + i].mem.base);
		shf_free(state->emas[k].source);
		shf_free(state->emas[k].anew);
	}
	shf_free(state->emas);
}

/* The plan is freed first, as it borrows from slices and arena. */
void shf_state_put(struct sheaf_state *state)
{
	if (!state || --state->refs > 0)
		return;
	if (state->plan)
		state->plan_free(state->plan);
	averages_release(state);
	shf_arena_release(&state->arena);
	shf_free(state->slices);
	shf_free(state->overlaps);
	shf_free(state);
}
