/* SPDX-License-Identifier: Apache-2.0 */
/* A file of a rank is a pickle of a dictionary: names and arrays of NumPy; or, as paddle.save can
 * write it too, a safetensors file. Arrays are taken out of the pickle while it is read, so a long
 * list takes no more memory than the places of its arrays.
 *
 * One thread reads a file; others that need it wait. What was found out stays until the checkpoint
 * is closed. */
#include "paddle_flex_file.h"
#include <stdlib.h>
#include <string.h>
#include "crc64.h"
#include "dtype.h"
#include "err.h"
#include "foreign_st.h"
#include "paddle_tensor.h"
#include "sort.h"
#include "valid.h"

enum flex_state { FLEX_UNREAD, FLEX_READING, FLEX_READ };
/* A place is the offset of an array in its file; or FLEX_ODD plus a number in `odd`; or one of
 * these. */
#define FLEX_ODD (UINT64_C(1) << 62)
enum flex_fault { FLEX_MISSING, FLEX_TYPE, FLEX_SHAPE, FLEX_RANGE, FLEX_AGAIN, FLEX_TWO,
	FLEX_FAULTS };
static const char *const faults[FLEX_FAULTS] = {
	"is not in this file, in which the metadata say it is",
	"has another type in its file than the metadata say; is it of another save?",
	"has another shape in its file than the metadata say; is it of another save?",
	"has a flat range that its file does not have",
	"has two arrays in this file",
	"has two parts in this file, and one array for both",
};
struct flex_odd { const int64_t *stride; struct shf_foreign_text *text; uint64_t at; };

struct flex_reader {            /* a file that is being read */
	struct shf_foreign *f;
	struct shf_flex *flex;
	struct shf_flex_set *set;
	uint32_t file;                  /* number in index.files */
	uint32_t taken;                 /* pairs that were taken out of its dictionary */
	bool oom;
};

static uint64_t fault_place(enum flex_fault fault)
{
	return UINT64_MAX - fault;
}

static bool is_fault(uint64_t place)
{
	return place > UINT64_MAX - FLEX_FAULTS;
}

static int arrays_no_memory(const struct shf_foreign *f, struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of arrays", f->path);
}

static struct shf_flex_tensor *set_tensor(const struct shf_flex_set *set, uint32_t i)
{
	return (struct shf_flex_tensor *)(void *)set->index.tensors.data + i;
}

/* ---- parts by file ---- */

/* Counts the parts of each file in next[file + 1], or puts them at next[file] on. */
static void go_through_parts(const struct shf_flex_set *set, uint32_t *next, bool put)
{
	size_t n = set->index.tensors.len / sizeof(struct shf_flex_tensor);

	for (size_t k = 0; k < n; k++) {
		const struct shf_flex_tensor *t = set_tensor(set, (uint32_t)k);

		for (uint32_t i = 0; i < t->parts_n; i++) {
			uint32_t file = t->spots[i].file;

			if (file >= SHF_FLEX_TWICE)
				continue;
			if (put)
				set->parts[next[file]++] = t->first + i;
			else
				next[file + 1]++;
		}
	}
}

/* Makes first, parts, places and states of the set, unless they were made before. The caller has
 * the lock. */
static int sort_parts(struct shf_flex_set *set)
{
	uint32_t n = shf_text_count(&set->index.files), *next;

	if (set->states)
		return 0;
	next = shf_zalloc((size_t)n + 1, sizeof(*next));
	set->first = shf_alloc((size_t)n + 1, sizeof(*set->first));
	set->parts = shf_alloc((size_t)set->index.parts_n + 1, sizeof(*set->parts));
	set->places = shf_alloc((size_t)set->index.parts_n + 1, sizeof(*set->places));
	if (next && set->first && set->parts && set->places)
		set->states = shf_zalloc((size_t)n + 1, sizeof(*set->states));
	if (set->states) {
		go_through_parts(set, next, false);
		for (uint32_t k = 0; k < n; k++)
			next[k + 1] += next[k];
		memcpy(set->first, next, ((size_t)n + 1) * sizeof(*next));
		go_through_parts(set, next, true);
	} else {
		shf_free(set->first);
		shf_free(set->parts);
		shf_free(set->places);
		set->first = set->parts = NULL;
		set->places = NULL;
	}
	shf_free(next);
	return set->states ? 0 : SHEAF_ENOMEM;
}

/* Returns where the first of these parts that is not before `part` is in set->parts. */
static uint32_t part_at(const struct shf_flex_set *set, uint32_t file, uint32_t part)
{
	uint32_t lo = set->first[file], hi = set->first[file + 1];

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (set->parts[mid] < part)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* ---- arrays ---- */

/* Returns the place of an array that is not row-major, or is a text. 0: no memory. */
static uint64_t odd_place(struct flex_reader *x, const struct shf_numpy_array *a)
{
	int64_t step = shf_dtype(a->dtype)->bits / 8, *stride = NULL;
	struct flex_odd odd = { .at = a->text_bytes ? 0 : a->at };
	size_t n = 0;

	pthread_mutex_lock(&x->f->lock);
	if (a->fortran)
		odd.stride = stride = shf_arena_alloc(&x->f->resolved, (size_t)a->ndim + 1,
		                                      sizeof(*stride));
	if (a->text_bytes)
		odd.text = shf_arena_alloc(&x->f->resolved, 1, sizeof(*odd.text));
	pthread_mutex_unlock(&x->f->lock);
	if ((a->fortran && !stride) || (a->text_bytes && !odd.text))
		return 0;
	if (odd.text)
		*odd.text = (struct shf_foreign_text){ .at = a->at, .bytes = a->text_bytes,
			.decoded = a->bytes };
	for (int d = 0; stride && d < a->ndim; d++) {
		stride[d] = a->bytes ? step : 0;
		step *= a->bytes ? a->dims->u.a[d]->u.i : 1;
	}
	pthread_mutex_lock(&x->flex->lock);
	n = x->set->odd.len / sizeof(odd);
	shf_buf_add(&x->set->odd, &odd, sizeof(odd));
	if (x->set->odd.oom)
		n = SIZE_MAX;
	x->set->odd.oom = false;
	pthread_mutex_unlock(&x->flex->lock);
	return n == SIZE_MAX ? 0 : FLEX_ODD + n;
}

/* Returns whether an array has the type of a tensor. NumPy has no float8 types, so Paddle writes
 * those as int8. The first array that is read says the type if the metadata do not. */
static bool is_type(struct shf_flex_tensor *t, int32_t dtype)
{
	if (!t->dtype)
		t->dtype = dtype;
	return dtype == t->dtype || (dtype == SHEAF_I8 && (t->dtype == SHEAF_F8_E4M3 ||
	                                                   t->dtype == SHEAF_F8_E5M2));
}

/* Returns FLEX_FAULTS if an array with these dimensions can be part i of a tensor. dtype 0: it is
 * none that is read. */
static enum flex_fault prove_array(struct shf_flex_tensor *t, uint32_t i, int32_t dtype,
                                   const int64_t *dims, int32_t ndim)
{
	const int64_t *range = t->ranges ? &t->ranges[2 * (size_t)i] : NULL;

	if (!dtype || !is_type(t, dtype))
		return FLEX_TYPE;
	if (range && range[0] >= 0)
		return ndim == 1 && dims[0] == range[1] - range[0] ? FLEX_FAULTS : FLEX_RANGE;
	return ndim == (int32_t)t->ndim &&
	       memcmp(dims, shf_flex_count(t, i), t->ndim * sizeof(*dims)) == 0 ? FLEX_FAULTS
	                                                                        : FLEX_SHAPE;
}

/* Takes the array of this name. a: NULL, or the array of NumPy, whose layout may be odd. */
static void take_array(struct flex_reader *x, const struct shf_text *name, int32_t dtype,
                       const int64_t *dims, int32_t ndim, uint64_t at,
                       const struct shf_numpy_array *a)
{
	struct shf_flex_set *set = x->set;
	uint32_t i = shf_text_seek(&set->index.names, name->s, name->n), k;
	struct shf_flex_tensor *t = i == SHF_TEXT_NONE ? NULL : set_tensor(set, i);
	enum flex_fault fault;

	k = t ? part_at(set, x->file, t->first) : 0;
	/* A file may have copies of parts that are read from other files. */
	if (!t || k == set->first[x->file + 1] || set->parts[k] >= t->first + t->parts_n)
		return;
	if (k + 1 < set->first[x->file + 1] && set->parts[k + 1] < t->first + t->parts_n) {
		for (; k < set->first[x->file + 1] && set->parts[k] < t->first + t->parts_n; k++)
			set->places[k] = fault_place(FLEX_TWO);
		return;
	}
	fault = set->places[k] != fault_place(FLEX_MISSING) ? FLEX_AGAIN
	      : prove_array(t, set->parts[k] - t->first, dtype, dims, ndim);
	if (fault != FLEX_FAULTS) {
		set->places[k] = fault_place(fault);
	} else if (a && (a->fortran || a->text_bytes)) {
		at = odd_place(x, a);
		x->oom |= !at;
		set->places[k] = at;
	} else {
		set->places[k] = at;
	}
}

/* The function of the taker: takes arrays out of the dictionary of the file. */
static bool take_pair(void *arg, const struct shf_pk *key, const struct shf_pk *value)
{
	struct flex_reader *x = arg;
	int64_t dims[SHF_FOREIGN_DIMS_MAX];
	struct shf_numpy_array a;
	const char *why;

	if (key->kind != SHF_PK_STR || shf_paddle_tensor_of(&a, value, &why) != SHF_TENSOR_READ)
		return false;
	for (int d = 0; d < a.ndim; d++)
		dims[d] = a.dims->u.a[d]->u.i;
	take_array(x, &(struct shf_text){ key->u.s, key->n }, a.pair ? 0 : a.dtype, dims, a.ndim,
	           a.at, &a);
	x->taken++;
	return true;
}

static int read_pickle_file(struct flex_reader *x, struct sheaf_error *err)
{
	const struct shf_pickle_taker taker = { take_pair, x, true };
	uint32_t file = x->set->files[x->file];
	struct shf_pickle p = { 0 };
	struct shf_region r;
	int rc = shf_foreign_region(x->f, file, &r, err);

	if (rc < 0)
		return rc;
	rc = shf_paddle_read(&p, &r, &taker, err);
	if (rc == 0 && (p.root->kind != SHF_PK_DICT || p.root->taken != x->taken))
		rc = shf_fail(err, SHEAF_EFORMAT, "%s: is not a dictionary of tensors", r.where);
	shf_pickle_release(&p);
	shf_foreign_region_end(x->f, file);
	return rc;
}

static int read_st_file(struct flex_reader *x, struct sheaf_error *err)
{
	struct shf_arena arena = { 0 };
	struct shf_st st;
	int rc = shf_foreign_st_head(x->f, x->set->files[x->file], &arena, &st, err);

	for (size_t i = 0; rc == 0 && i < st.n; i++) {
		const struct shf_st_tensor *t = &st.tensors[i];

		if (shf_dtype(t->dtype)->bits >= 8)
			take_array(x, &(struct shf_text){ t->name, (uint32_t)strlen(t->name) },
			           t->dtype == SHEAF_U16 ? SHEAF_BF16 : t->dtype, t->shape,
			           t->ndim, st.header_bytes + t->off, NULL);
	}
	shf_arena_release(&arena);
	return rc;
}

/* ---- files ---- */

/* Reads a file, whose state is FLEX_READING. */
static int read_file(struct shf_foreign *f, struct shf_flex *flex, struct shf_flex_set *set,
                     uint32_t file, struct sheaf_error *err)
{
	struct flex_reader x = { .f = f, .flex = flex, .set = set, .file = file };
	const char *path = shf_foreign_file(f, set->files[file])->name;
	size_t n = strlen(path);
	int rc;

	for (uint32_t k = set->first[file]; k < set->first[file + 1]; k++)
		set->places[k] = fault_place(FLEX_MISSING);
	rc = n > 12 && strcmp(path + n - 12, ".safetensors") == 0 ? read_st_file(&x, err)
	                                                          : read_pickle_file(&x, err);
	return rc == 0 && x.oom ? arrays_no_memory(f, err) : rc;
}

/* Waits until a file has been read, or reads it. */
static int need_file(struct shf_foreign *f, struct shf_flex_set *set, uint32_t file,
                     struct sheaf_error *err)
{
	struct shf_flex *flex = f->own;
	int rc;

	pthread_mutex_lock(&flex->lock);
	rc = sort_parts(set);
	while (rc == 0 && set->states[file] == FLEX_READING)
		pthread_cond_wait(&flex->read, &flex->lock);
	if (rc == 0 && set->states[file] == FLEX_UNREAD) {
		set->states[file] = FLEX_READING;
		pthread_mutex_unlock(&flex->lock);
		rc = read_file(f, flex, set, file, err);
		pthread_mutex_lock(&flex->lock);
		set->states[file] = rc == 0 ? FLEX_READ : FLEX_UNREAD;
		pthread_cond_broadcast(&flex->read);
		pthread_mutex_unlock(&flex->lock);
		return rc;
	}
	pthread_mutex_unlock(&flex->lock);
	return rc < 0 ? arrays_no_memory(f, err) : 0;
}

/* Returns the tensor that has a part. part: its number, counted through all tensors. */
static const struct shf_flex_tensor *tensor_of_part(const struct shf_flex_set *set, uint32_t part)
{
	size_t lo = 0, hi = set->index.tensors.len / sizeof(struct shf_flex_tensor);

	while (lo + 1 < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (set_tensor(set, (uint32_t)mid)->first <= part)
			lo = mid;
		else
			hi = mid;
	}
	return set_tensor(set, (uint32_t)lo);
}

static int part_fault(const struct shf_foreign *f, const struct shf_flex_set *set, uint32_t file,
                      const char *name, uint64_t place, struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_EFORMAT, "%s: tensor %.*s: %s",
	                shf_foreign_file(f, set->files[file])->where, shf_name_show(name), name,
	                faults[UINT64_MAX - place]);
}

int shf_flex_read_type(struct shf_foreign *f, struct shf_flex_set *set, struct shf_flex_tensor *t,
                       const char *name, struct sheaf_error *err)
{
	for (uint32_t i = 0; i < t->parts_n && !t->dtype; i++) {
		uint32_t file = t->spots[i].file;
		uint64_t place;
		int rc;

		if (file >= SHF_FLEX_TWICE)
			continue;
		rc = need_file(f, set, file, err);
		if (rc < 0)
			return rc;
		place = set->places[part_at(set, file, t->first + i)];
		if (is_fault(place))
			return part_fault(f, set, file, name, place, err);
	}
	return 0;
}

/* Sets where part i of a tensor begins in its file, and its layout. */
static int flex_find_part(struct shf_foreign *f, struct shf_flex_set *set,
                     const struct shf_flex_tensor *t, uint32_t i, const char *name,
                     struct shf_foreign_piece *piece, struct sheaf_error *err)
{
	struct shf_flex *flex = f->own;
	uint32_t file = t->spots[i].file;
	struct flex_odd odd = { 0 };
	int rc = need_file(f, set, file, err);

	if (rc < 0)
		return rc;
	piece->at = set->places[part_at(set, file, t->first + i)];
	if (is_fault(piece->at))
		return part_fault(f, set, file, name, piece->at, err);
	if (piece->at < FLEX_ODD)
		return 0;
	pthread_mutex_lock(&flex->lock);
	odd = ((const struct flex_odd *)(const void *)set->odd.data)[piece->at - FLEX_ODD];
	pthread_mutex_unlock(&flex->lock);
	piece->at = odd.at;
	piece->stride = odd.stride;
	piece->text = odd.text;
	return 0;
}

/* Makes the pieces of part i. */
static int make_part(struct shf_foreign *f, const struct shf_flex_make *m, uint32_t i,
                     const struct shf_foreign_tensor *own, struct sheaf_error *err)
{
	const struct shf_flex_tensor *t = m->t;
	const int64_t *range = t->ranges ? &t->ranges[2 * (size_t)i] : NULL;
	struct shf_foreign_piece piece = { .start = shf_flex_start(t, i),
		.count = shf_flex_count(t, i), .file = m->set->files[t->spots[i].file] };
	struct shf_foreign_range r;
	int rc = m->places ? flex_find_part(f, m->set, t, i, own->name, &piece, err) : 0;

	if (rc < 0)
		return rc;
	if (range && range[0] >= 0) {
		r = (struct shf_foreign_range){ piece.start, piece.count, (uint64_t)range[0],
			(uint64_t)range[1], piece.at, piece.file, piece.text };
		return shf_foreign_make_range(m->pieces, m->arena, f->path, own, &r, err);
	}
	if (shf_foreign_box_items(piece.count, (int32_t)t->ndim))
		shf_buf_add(m->pieces, &piece, sizeof(piece));
	return m->pieces->oom ? arrays_no_memory(f, err) : 0;
}

int shf_flex_make(struct shf_foreign *f, const struct shf_flex_make *m,
                  const struct shf_foreign_tensor *own, struct sheaf_error *err)
{
	int rc = 0;

	for (uint32_t i = 0; i < m->t->parts_n && rc >= 0; i++)
		if (m->t->spots[i].file < SHF_FLEX_TWICE)
			rc = make_part(f, m, i, own, err);
	return rc < 0 ? rc : 0;
}

int shf_flex_make_pieces(struct shf_foreign *f, const struct shf_foreign_tensor *t,
                         struct shf_arena *arena, struct shf_buf *pieces, struct sheaf_error *err)
{
	struct shf_flex *flex = f->own;
	struct shf_flex_set *set = &flex->sets[shf_key_of(t->first)];
	const struct shf_flex_make m = { set, set_tensor(set, shf_key_item(t->first)), arena,
		pieces, true };

	return shf_flex_make(f, &m, t, err);
}

uint64_t shf_flex_digest(const struct shf_foreign *f)
{
	const struct shf_flex *flex = f->own;
	uint64_t sum = 0;

	for (uint32_t s = 0; s < flex->sets_n; s++) {
		const struct shf_flex_set *set = &flex->sets[s];
		size_t n = set->index.tensors.len / sizeof(struct shf_flex_tensor);

		for (size_t k = 0; k < n; k++) {
			const struct shf_flex_tensor *t = set_tensor(set, (uint32_t)k);
			size_t row = t->ndim * sizeof(int64_t), parts = t->parts_n;

			sum = shf_crc64_raw(sum, t->starts, parts * row);
			sum = shf_crc64_raw(sum, t->counts, (t->sizes_differ ? parts : 1) * row);
			if (t->ranges)
				sum = shf_crc64_raw(sum, t->ranges, 2 * parts * sizeof(int64_t));
			sum = shf_crc64_raw(sum, t->spots, parts * sizeof(*t->spots));
		}
	}
	return sum;
}

/* ---- a verification ---- */

/* Reports what is wrong with the parts of a file that was read. */
static void report_parts(struct shf_foreign *f, const struct shf_flex_set *set, uint32_t file,
                         struct shf_foreign_findings *to)
{
	for (uint32_t k = set->first[file]; k < set->first[file + 1]; k++) {
		const struct shf_flex_tensor *t = tensor_of_part(set, set->parts[k]);
		struct shf_arena arena = { 0 };
		struct sheaf_error e = { 0 };
		const char *shown;

		if (!is_fault(set->places[k]))
			continue;
		shown = shf_name_escape(&arena, t->name, t->name_n);
		part_fault(f, set, file, shown ? shown : "", set->places[k], &e);
		to->found(to->arg, false, shf_foreign_file(f, set->files[file])->shown, -1, &e);
		shf_arena_release(&arena);
	}
}

/* Nothing has a checksum. What can be proved is that each file has the arrays of its parts. */
int shf_flex_verify(struct shf_foreign *f, struct shf_foreign_findings *to, struct sheaf_error *err)
{
	struct shf_flex *flex = f->own;
	int rc = 0;

	to->unproved = true;
	for (uint32_t s = 0; s < flex->sets_n && rc == 0; s++) {
		struct shf_flex_set *set = &flex->sets[s];

		for (uint32_t k = 0; k < shf_text_count(&set->index.files) && rc == 0; k++) {
			struct sheaf_error e = { 0 };

			rc = need_file(f, set, k, &e);
			if (rc == 0)
				report_parts(f, set, k, to);
			else if (rc == SHEAF_EFORMAT)
				to->found(to->arg, false,
				          shf_foreign_file(f, set->files[k])->shown, -1, &e);
			else
				*err = e;
			rc = rc == SHEAF_EFORMAT ? 0 : rc;
		}
	}
	return rc;
}

void shf_flex_close(struct shf_foreign *f)
{
	struct shf_flex *flex = f->own;

	for (uint32_t i = 0; flex && i < flex->sets_n; i++) {
		struct shf_flex_set *set = &flex->sets[i];

		shf_flex_index_release(&set->index);
		shf_free(set->first);
		shf_free(set->parts);
		shf_free(set->places);
		shf_free(set->states);
		shf_buf_release(&set->odd);
	}
	if (flex) {
		pthread_mutex_destroy(&flex->lock);
		pthread_cond_destroy(&flex->read);
	}
	shf_free(flex);
}
