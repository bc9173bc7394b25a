/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank has of a tensor differs along four axes of the job:
 * - shard: with split parameters a flat slice, in the order of the ranks, padded at the end; else
 *   one of the ranks has the whole;
 * - tp: a part along one dimension, or the whole on each rank. Nothing says which, so the shape of
 *   the model's own weight must;
 * - pp, moe: the whole, on each rank that has it at all.
 * The fused weight of gate and up is the one that tensor-parallel ranks cut in two parts each. */
#include "paddle_parts.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "sort.h"
#include "valid.h"

#define BETA "_pow_acc_0"       /* ends the names of powers of Adam's betas: each rank has them */
#define FUSED "gate_up_fused_proj"

bool shf_pd_rank_of(struct shf_pd_rank *rank, const char *name, const char *kind, const char *end)
{
	struct { const char *word; int *to; } words[] = { { "tp", &rank->tp }, { "pp", &rank->pp },
		{ "shard", &rank->shard }, { "moe", &rank->moe } };
	size_t n = strlen(kind);
	bool any = false;

	*rank = (struct shf_pd_rank){ -1, -1, -1, -1 };
	if (strncmp(name, kind, n) || name[n] != '.')
		return false;
	if (strcmp(name + n, end) == 0)
		return true;
	name += n + 1;
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		size_t word = strlen(words[i].word);
		int digits = 0, value = 0;

		if (strncmp(name, words[i].word, word))
			continue;
		while (name[word] >= '0' && name[word] <= '9' && digits++ < 6)
			value = 10 * value + (name[word++] - '0');
		if (!digits)
			return false;
		*words[i].to = value;
		any = true;
		name += word;
		name += *name == '_';
	}
	return any && strcmp(name[-1] == '_' ? "?" : name, end) == 0;
}

/* ---- looking at parts ---- */

struct join {
	struct shf_pd_parts *p;
	struct sheaf_error *err;
};

static int join_bad(const struct join *j, const char *name, const char *why)
{
	return shf_fail(j->err, SHEAF_EFORMAT, "%s: tensor %.*s: %s", j->p->f->path,
	                shf_name_show(name), name, why);
}

static int join_no_memory(const struct join *j)
{
	return shf_fail(j->err, SHEAF_ENOMEM, "%s: no memory for its list of tensors",
	                j->p->f->path);
}

static int part_compare(const struct shf_pd_part *x, const struct shf_pd_part *y)
{
	int c = strcmp(x->family, y->family);

	c = c ? c : strcmp(x->name, y->name);
	c = c ? c : (x->rank.moe > y->rank.moe) - (x->rank.moe < y->rank.moe);
	c = c ? c : (x->rank.pp > y->rank.pp) - (x->rank.pp < y->rank.pp);
	c = c ? c : (x->rank.tp > y->rank.tp) - (x->rank.tp < y->rank.tp);
	return c ? c : (x->rank.shard > y->rank.shard) - (x->rank.shard < y->rank.shard);
}

static int parts_order(const void *a, const void *b)
{
	return part_compare(a, b);
}

static int shapes_order(const void *a, const void *b)
{
	return strcmp(((const struct shf_pd_shape *)a)->name,
	              ((const struct shf_pd_shape *)b)->name);
}

static const struct shf_pd_shape *shape_find(const struct shf_pd_parts *p, const char *name)
{
	struct shf_pd_shape want = { .name = name };

	return p->shapes.len ? bsearch(&want, p->shapes.data, p->shapes.len / sizeof(want),
	                               sizeof(want), shapes_order) : NULL;
}

static bool dims_are(const struct shf_pd_part *t, const struct shf_pd_shape *s)
{
	return t->ndim == s->ndim &&
	       memcmp(t->dims, s->dims, (size_t)t->ndim * sizeof(*t->dims)) == 0;
}

static uint64_t items_of(int32_t ndim, const int64_t *dims)
{
	uint64_t n = 1;

	for (int d = 0; d < ndim; d++)
		if (!shf_mul64(&n, n, (uint64_t)dims[d]))
			return UINT64_MAX;
	return n;
}

int shf_pd_parts_add_st(struct shf_pd_parts *p, const struct shf_pd_part *like,
                        const struct shf_st_tensor *t, const char *of, uint64_t payload,
                        struct sheaf_error *err)
{
	int64_t *dims = shf_foreign_numbers(p->f, (size_t)t->ndim);
	struct join j = { p, err };
	struct shf_pd_part part = *like;

	if (!dims || !of)
		return join_no_memory(&j);
	if (t->ndim > SHEAF_DIMS_MAX || shf_dtype(t->dtype)->bits < 8)
		return shf_fail(err, SHEAF_EFORMAT, "%s: tensor %.*s has more than 8 dimensions, "
		                "or a type of less than a byte",
		                shf_foreign_file(p->f, part.file)->where, shf_name_show(t->name),
		                t->name);
	memcpy(dims, t->shape, (size_t)t->ndim * sizeof(*dims));
	part.name = t->name;
	part.of = of;
	part.dtype = t->dtype == SHEAF_U16 ? SHEAF_BF16 : t->dtype;
	part.ndim = t->ndim;
	part.dims = dims;
	part.at = payload + t->off;
	shf_buf_add(&p->parts, &part, sizeof(part));
	return p->parts.oom ? join_no_memory(&j) : 0;
}

/* ---- making tensors of them ---- */

static int join_add(struct join *j, const struct shf_pd_part *t, const int64_t *dims, int32_t ndim,
                    size_t n)
{
	struct shf_foreign_tensor x = { .family = t->family, .dtype = t->dtype, .ndim = ndim,
		.dims = dims, .n = n };

	return shf_foreign_add_tensor(j->p->f, &x, t->name, strlen(t->name), j->err);
}

/* Adds a tensor that is one part. */
static int join_one(struct join *j, const struct shf_pd_part *t)
{
	shf_buf_add(&j->p->f->pieces, &(struct shf_foreign_piece){ .file = t->file, .at = t->at,
	            .stride = t->stride, .text = t->text }, sizeof(struct shf_foreign_piece));
	return join_add(j, t, t->dims, t->ndim, 1);
}

/* Adds each part as a tensor of its own. */
static int join_apart(struct join *j, const struct shf_pd_part *t, size_t n)
{
	int rc = 0;

	for (size_t i = 0; i < n && rc == 0; i++) {
		const struct shf_pd_rank *r = &t[i].rank;
		const struct { const char *word; int value; } words[] = { { "tp", r->tp },
			{ "pp", r->pp }, { "shard", r->shard }, { "moe", r->moe } };
		struct shf_pd_part own = t[i];
		struct shf_buf name = SHF_BUF_INIT;
		bool any = false;

		shf_buf_addf(&name, "%s@", t[i].name);
		for (size_t k = 0; k < sizeof(words) / sizeof(words[0]); k++)
			if (words[k].value >= 0) {
				shf_buf_addf(&name, "%s%s%02d", any ? "_" : "", words[k].word,
				             words[k].value);
				any = true;
			}
		own.name = name.oom ? NULL : shf_arena_strdup(&j->p->f->arena,
		                                              (const char *)name.data, name.len);
		shf_buf_release(&name);
		rc = own.name ? join_one(j, &own) : join_no_memory(j);
	}
	j->p->apart += n;
	return rc;
}

/* Adds a tensor of flat slices, which follow one another. What exceeds the shape is padding. */
static int join_flat(struct join *j, const struct shf_pd_part *t, size_t n,
                     const struct shf_pd_shape *s)
{
	struct shf_foreign_tensor x = { .dtype = t->dtype, .ndim = s->ndim, .dims = s->dims };
	uint64_t want = items_of(s->ndim, s->dims);
	struct shf_foreign_range r = { .lo = 0 };
	size_t pieces = 0;

	if (want > INT64_MAX / 16)
		return join_bad(j, t->name, "has more items than a file can have");
	for (size_t i = 0; i < n && r.lo < want; i++) {
		uint64_t have = (uint64_t)t[i].dims[0];
		int rc;

		if (t[i].dtype != t->dtype)
			return join_bad(j, t->name, "is of another type on another rank");
		if (i > 0 && t[i].rank.shard != t[i - 1].rank.shard + 1)
			return join_bad(j, t->name, "its slices are not of ranks that follow one "
			                "another; the file of a rank may be missing");
		r.hi = have < want - r.lo ? r.lo + have : want;
		r.at = t[i].at;
		r.file = t[i].file;
		r.text = t[i].text;
		rc = shf_foreign_add_range(j->p->f, &x, &r, j->err);
		if (rc < 0)
			return rc;
		pieces += (size_t)rc;
		r.lo = r.hi;
	}
	if (r.lo != want)
		return join_bad(j, t->name, "its slices have fewer items than the parameter; the "
		                "file of a rank may be missing");
	return join_add(j, t, s->dims, s->ndim, pieces);
}

/* Finds the dimension along which n parts make the shape. Returns -1 if there is none. */
static int split_axis(const struct shf_pd_part *t, size_t n, const struct shf_pd_shape *s)
{
	int axis = -1;

	for (size_t i = 0; i < n; i++)
		if (t[i].ndim != s->ndim || t[i].dtype != t->dtype || t[i].stride ||
		    memcmp(t[i].dims, t->dims, (size_t)s->ndim * sizeof(*s->dims)))
			return -1;
	for (int d = 0; d < s->ndim; d++) {
		if (t->dims[d] == s->dims[d])
			continue;
		if (axis >= 0 || (uint64_t)s->dims[d] % n ||
		    s->dims[d] / (int64_t)n != t->dims[d])
			return -1;
		axis = d;
	}
	return axis;
}

/* Adds the parts of tensor-parallel ranks as boxes along an axis. Of a fused weight each part
 * has two halves, which belong to the two halves of the tensor. */
static int join_boxes(struct join *j, const struct shf_pd_part *t, size_t n,
                      const struct shf_pd_shape *s, int axis)
{
	bool fused = strstr(t->name, FUSED) && axis == s->ndim - 1 && t->dims[axis] % 2 == 0;
	int halves = fused ? 2 : 1;
	int64_t width = t->dims[axis] / halves;
	int64_t *stride = shf_foreign_numbers(j->p->f, (size_t)s->ndim);
	int64_t row = shf_dtype(t->dtype)->bits / 8;

	if (!stride)
		return join_no_memory(j);
	for (int d = s->ndim - 1; d >= 0; d--) {
		stride[d] = row;
		row *= t->dims[d];
	}
	for (size_t i = 0; i < n; i++)
		for (int h = 0; h < halves; h++) {
			int64_t *start = shf_foreign_numbers(j->p->f, (size_t)s->ndim);
			int64_t *count = shf_foreign_numbers(j->p->f, (size_t)s->ndim);

			if (!start || !count)
				return join_no_memory(j);
			memcpy(count, t->dims, (size_t)s->ndim * sizeof(*count));
			count[axis] = width;
			start[axis] = (h * (int64_t)n + (int64_t)i) * width;
			shf_buf_add(&j->p->f->pieces, &(struct shf_foreign_piece){ .start = start,
			            .count = count, .stride = stride, .file = t[i].file,
			            .text = t[i].text,
			            .at = t[i].at + (uint64_t)(h * width * stride[axis]) },
			            sizeof(struct shf_foreign_piece));
		}
	return join_add(j, t, s->dims, s->ndim, n * (size_t)halves);
}

/* Adds what one tensor-parallel rank has: the whole of its shape, or flat slices of it. Returns 1
 * if it is neither. */
static int join_shards(struct join *j, const struct shf_pd_part *t, size_t n,
                       const struct shf_pd_shape *s)
{
	bool flat = true;

	for (size_t i = 0; i < n; i++)
		flat &= t[i].ndim == 1 && !t[i].stride;
	if (n == 1 && dims_are(t, s))
		return join_one(j, t);
	return flat ? join_flat(j, t, n, s) : 1;
}

/* Adds what tensor-parallel ranks have as a tensor of each of them. */
static int join_by_tp(struct join *j, struct shf_pd_part *t, size_t n,
                      const struct shf_pd_shape *s)
{
	const char *base = t->name;
	size_t same;
	int rc = 0;

	for (size_t i = 0; i < n && rc == 0; i += same) {
		struct shf_buf name = SHF_BUF_INIT;

		for (same = 1; i + same < n && t[i + same].rank.tp == t[i].rank.tp;)
			same++;
		shf_buf_addf(&name, "%s@tp%02d", base, t[i].rank.tp);
		t[i].name = name.oom ? NULL : shf_arena_strdup(&j->p->f->arena,
		                                               (const char *)name.data, name.len);
		shf_buf_release(&name);
		rc = t[i].name ? join_shards(j, &t[i], same, s) : join_no_memory(j);
		j->p->apart++;
	}
	return rc == 1 ? join_bad(j, t->name, "has another shape than the parameter") : rc;
}

/* Joins the parts of one tensor on the ranks of one pipeline stage, sorted by tp and shard. */
static int join_tensor(struct join *j, struct shf_pd_part *t, size_t n)
{
	const struct shf_pd_shape *s = shape_find(j->p, t->of);
	size_t shards = 1, name_n = strlen(t->name);
	int axis, rc = 1;

	if (name_n > strlen(BETA) && strcmp(t->name + name_n - strlen(BETA), BETA) == 0)
		return join_one(j, t);
	while (shards < n && t[shards].rank.tp == t->rank.tp)
		shards++;
	if (!s)
		return n == 1 ? join_one(j, t) : join_apart(j, t, n);
	if (s->local && s->split && shards < n)
		return join_by_tp(j, t, n, s);
	/* Each tensor-parallel rank has the whole. */
	if (s->local || (shards == 1 && dims_are(t, s)))
		n = shards;
	if (shards == n)
		rc = join_shards(j, t, n, s);
	if (rc <= 0)
		return rc;
	axis = shards == 1 && n > 1 ? split_axis(t, n, s) : -1;
	if (axis >= 0)
		return join_boxes(j, t, n, s, axis);
	return n == 1 ? join_bad(j, t->name, "has another shape than the parameter")
	              : join_apart(j, t, n);
}

int shf_pd_parts_join(struct shf_pd_parts *p, struct sheaf_error *err)
{
	struct join j = { p, err };
	struct shf_pd_part *t = (struct shf_pd_part *)(void *)p->parts.data;
	size_t n = p->parts.len / sizeof(*t), same, stage;
	int rc = 0;

	if (p->parts.oom || p->shapes.oom)
		return join_no_memory(&j);
	shf_records_sort(t, n, sizeof(*t), parts_order);
	shf_records_sort(p->shapes.data, p->shapes.len / sizeof(struct shf_pd_shape),
	                 sizeof(struct shf_pd_shape), shapes_order);
	for (size_t i = 1; i < n; i++)
		if (part_compare(&t[i - 1], &t[i]) == 0)
			return join_bad(&j, t[i].name, "two files of the same rank have it");
	for (size_t i = 0; i < n && rc == 0; i += same) {
		for (same = 1; i + same < n && strcmp(t[i].name, t[i + same].name) == 0 &&
		     strcmp(t[i].family, t[i + same].family) == 0;)
			same++;
		for (stage = 1; stage < same && t[i].rank.pp == t[i + stage].rank.pp &&
		     t[i].rank.moe == t[i + stage].rank.moe;)
			stage++;
		rc = join_tensor(&j, &t[i], stage);
	}
	if (rc == 0 && p->apart)
		rc = shf_foreign_note(p->f, err, "parts", 5, "%" PRIu64 " parts of tensors are "
		                      "listed as each rank wrote them, as <name>@<ranks>, because "
		                      "nothing says how tensor-parallel ranks have cut them",
		                      p->apart);
	return rc;
}

void shf_pd_parts_release(struct shf_pd_parts *p)
{
	shf_buf_release(&p->parts);
	shf_buf_release(&p->shapes);
}
