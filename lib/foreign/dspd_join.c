/* SPDX-License-Identifier: Apache-2.0 */
/* Makes tensors of the parts that ranks have. */
#include <inttypes.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "dspd_save.h"
#include "sort.h"
#include "valid.h"

static int dspd_parts_order(const void *a, const void *b)
{
	const struct shf_dspd_part *x = a, *y = b;
	int c = (x->kind > y->kind) - (x->kind < y->kind);

	c = c ? c : (x->run > y->run) - (x->run < y->run);
	return c ? c : (x->seq > y->seq) - (x->seq < y->seq);
}

/* Returns how many parts are below `want`. */
static size_t parts_before(const struct shf_dspd *d, const struct shf_dspd_part *want)
{
	const struct shf_dspd_part *p = (const void *)d->parts.data;
	size_t lo = 0, hi = d->parts.len / sizeof(*p);

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (dspd_parts_order(&p[mid], want) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* Returns the parts of a run, and how many there are. */
static struct shf_dspd_part *parts_from(const struct shf_dspd *d, uint32_t kind, uint32_t run,
                                        size_t *n)
{
	struct shf_dspd_part *p = (struct shf_dspd_part *)(void *)d->parts.data;
	struct shf_dspd_part want = { .kind = kind, .run = run };
	size_t first = parts_before(d, &want);

	want.seq = UINT32_MAX;
	*n = parts_before(d, &want) - first;
	return p ? p + first : NULL;
}

static int part_bad(const struct shf_dspd *d, const struct shf_dspd_part *p, const char *why)
{
	return shf_dspd_bad(d, shf_foreign_file(d->f, p->file)->where, why);
}

/* ---- where the parts begin ---- */

/* Returns the group of a run of ZeRO 1 or 2. */
static const struct shf_dspd_group *group_of(const struct shf_dspd *d, uint32_t run)
{
	const struct shf_dspd_group *g = (const void *)d->groups.data;

	return g + run % (d->groups.len / sizeof(*g));
}

/* Whether a group of ZeRO 1 or 2 has as many items as its parameters and the padding at the
 * end. */
static bool is_aligned(uint64_t items, const struct shf_dspd_group *g)
{
	uint64_t each = 2 * (uint64_t)g->count;

	return items >= g->items && items / each + (items % each != 0) ==
	                            g->items / each + (g->items % each != 0);
}

/* Sets the starts of a run of weights. Items in a part before the last one with values are all
 * values: padding is at the end of the run only. */
static int settle_weights(struct shf_dspd *d, struct shf_dspd_part *p, size_t n)
{
	const struct shf_dspd_group *g = d->stage < 3 ? group_of(d, p->run) : NULL;
	uint64_t start = 0, want = g ? g->items : 0;

	for (size_t i = 0; i < n; i++) {
		p[i].start = start;
		if (!shf_add64(&start, start, p[i].items))
			return part_bad(d, &p[i], "has more items than 64 bits can count");
		if (p[i].dtype != p[0].dtype)
			return part_bad(d, &p[i], "has weights whose type differs from those of "
			                "rank 0");
		if (want && start < want && p[i].items != p[0].items)
			return part_bad(d, &p[i], "has a part whose length differs from that of "
			                "rank 0; they are from different saves");
	}
	if (g ? is_aligned(start, g) : start == d->rank_items)
		return 0;
	if (g)
		return shf_fail(d->err, SHEAF_EFORMAT, "%s: has a group of weights of %" PRIu64
		                " items on all ranks, whose parameters have %" PRIu64 " by their "
		                "shapes; they are from different saves",
		                shf_foreign_file(d->f, p->file)->where, start, want);
	return shf_fail(d->err, SHEAF_EFORMAT, "%s: has %" PRIu64 " items of weights, but each "
	                "rank has %" PRIu64 " by the shapes of the parameters; they are from "
	                "different saves",
	                shf_foreign_file(d->f, p->file)->where, start, d->rank_items);
}

/* Sets the starts of the parts of a frozen parameter. Each rank has a part of the same length: that
 * of the parameter divided by the number of ranks, rounded up. */
static int settle_frozen(struct shf_dspd *d, struct shf_dspd_part *p, size_t n)
{
	const struct shf_dspd_param *all = (const void *)d->params.data, *of = all + p->run;
	uint64_t world = (uint64_t)d->world;
	uint64_t each = of->items / world + (of->items % world != 0);

	for (size_t i = 0; i < n; i++) {
		p[i].start = i * each;
		if (p[i].seq != i)
			return shf_fail(d->err, SHEAF_EFORMAT, "%s: tensor %.*s: the file of the "
			                "model of rank %zu has no part of it", d->f->path,
			                shf_name_show(of->name), of->name, i);
		if (p[i].items != each)
			return shf_fail(d->err, SHEAF_EFORMAT, "%s: has a part of %" PRIu64
			                " items of the frozen parameter %.*s, but each of %d ranks "
			                "has %" PRIu64 "; the files are from different saves",
			                shf_foreign_file(d->f, p[i].file)->where, p[i].items,
			                shf_name_show(of->name), of->name, d->world, each);
		if (p[i].dtype != p[0].dtype)
			return part_bad(d, &p[i], "has weights whose type differs from those of "
			                "rank 0");
	}
	return 0;
}

/* Sets the starts of a run of another kind: to those of the weights. */
static int settle_states(struct shf_dspd *d, struct shf_dspd_part *p, size_t n)
{
	const struct shf_dspd_group *g = d->stage < 3 ? group_of(d, p->run) : NULL;
	size_t weights_n, k = 0;
	uint64_t most;
	const struct shf_dspd_part *w = parts_from(d, SHF_DSPD_FP32, p->run, &weights_n);

	for (size_t i = 0; i < n; i++) {
		while (k < weights_n && w[k].seq < p[i].seq)
			k++;
		if (k == weights_n || w[k].seq != p[i].seq || p[i].items < w[k].items)
			return part_bad(d, &p[i], "has fewer items of a state of the optimizer "
			                "than of the weights");
		/* Those beyond are padding, at the end of the run only. */
		most = !g || w[k].start + w[k].items < g->items ? 0 : 2 * (uint64_t)g->count;
		if (p[i].items - w[k].items > most)
			return part_bad(d, &p[i], "has more items of a state of the optimizer than "
			                "of the weights");
		p[i].start = w[k].start;
		p[i].items = w[k].items;
	}
	return 0;
}

static int settle_parts(struct shf_dspd *d)
{
	struct shf_dspd_part *p = (struct shf_dspd_part *)(void *)d->parts.data;
	size_t n = d->parts.len / sizeof(*p), same;
	int rc = 0;

	shf_records_sort(p, n, sizeof(*p), dspd_parts_order);
	for (size_t i = 0; i < n && rc == 0; i += same) {
		for (same = 1; i + same < n && p[i].kind == p[i + same].kind &&
		     p[i].run == p[i + same].run;) {
			if (p[i + same].seq == p[i + same - 1].seq)
				return part_bad(d, &p[i], "has a part twice");
			same++;
		}
		rc = p[i].kind == SHF_DSPD_FROZEN ? settle_frozen(d, &p[i], same)
		   : p[i].kind == SHF_DSPD_FP32 ? settle_weights(d, &p[i], same)
		   : settle_states(d, &p[i], same);
	}
	return rc;
}

/* ---- tensors ---- */

struct joined {                 /* a tensor while its pieces are added */
	struct shf_foreign_tensor x;
	uint64_t items;                 /* that have been added */
};

/* Adds items [lo, hi) of a run as those of the tensor from number j->items on. */
static int join_span(struct shf_dspd *d, struct joined *j, uint32_t kind, uint32_t run, uint64_t lo,
                     uint64_t hi)
{
	size_t n, first = 0, last;
	const struct shf_dspd_part *p = parts_from(d, kind, run, &n);

	for (last = n; first < last;) {         /* the first part that ends after lo */
		size_t mid = first + (last - first) / 2;

		if (p[mid].start + p[mid].items <= lo)
			first = mid + 1;
		else
			last = mid;
	}
	for (p += first, n -= first; n && lo < hi && p->start <= lo; p++, n--) {
		uint64_t end = p->start + p->items < hi ? p->start + p->items : hi;
		struct shf_foreign_range r = { .lo = j->items, .hi = j->items + end - lo,
			.file = p->file };
		int rc;

		if (end <= lo)
			continue;
		if (j->items && j->x.dtype != p->dtype)
			return part_bad(d, p, "has a different type from the parts before it");
		j->x.dtype = p->dtype;
		r.at = p->at + (lo - p->start) * (shf_dtype(p->dtype)->bits / 8u);
		rc = shf_foreign_add_range(d->f, &j->x, &r, d->err);
		if (rc < 0)
			return rc;
		j->x.n += (size_t)rc;
		j->items += end - lo;
		lo = end;
	}
	return 0;
}

/* Adds what ranks have of one kind of a parameter. */
static int join_pieces(struct shf_dspd *d, struct joined *j, const struct shf_dspd_param *p,
                       uint32_t run, uint32_t kind)
{
	uint64_t world = (uint64_t)d->world, part = world ? p->items / world +
		(p->items % world != 0) : 0;
	int rc = 0;

	if (p->frozen)
		return join_span(d, j, SHF_DSPD_FROZEN, p->group, 0, p->items);
	if (d->stage < 3)
		return join_span(d, j, kind, run, p->at, p->at + p->items);
	for (uint32_t r = 0; r < world && j->items < p->items && rc == 0; r++) {
		uint64_t left = p->items - j->items;

		/* What is beyond the last item is padding. */
		rc = join_span(d, j, kind, r, p->at, p->at + (left < part ? left : part));
		if (j->items < p->items && j->items < (r + 1) * part)
			break;  /* this rank has less than its part: the caller sees the sum */
	}
	return rc;
}

/* Adds one kind of a parameter, if the ranks have it, under a name. run: of ZeRO 1 and 2. key NULL:
 * without one. */
static int join_kind(struct shf_dspd *d, const struct shf_dspd_param *p, uint32_t run,
                     uint32_t kind, const char *family, const char *name, const char *key)
{
	struct joined j = { .x = { .family = family, .dtype = SHEAF_F32, .ndim = p->ndim,
		.dims = p->dims } };
	const char *shown;
	int rc = join_pieces(d, &j, p, run, kind);

	if (rc < 0)
		return rc;
	if (j.items == 0 && p->items && key)
		return 0;       /* the optimizer has never had a gradient for it */
	if (j.items != p->items)
		return shf_fail(d->err, SHEAF_EFORMAT, "%s: tensor %.*s%s%s: its parts have %"
		                PRIu64 " of %" PRIu64 " items; the file of a rank is of another "
		                "save", d->f->path, shf_name_show(name), name, key ? "/" : "",
		                key ? key : "", j.items, p->items);
	rc = shf_dspd_boxed(d, &j.x, name, strlen(name), key);
	if (rc)
		return rc < 0 ? rc : 0;
	shown = shf_dspd_shown(d, name, strlen(name), key);
	if (!shown)
		return d->err->code;
	return shf_foreign_add_tensor(d->f, &j.x, shown, strlen(shown), d->err);
}

/* Adds the count of steps that the optimizer has made for a parameter. */
static int join_step(struct shf_dspd *d, const char *name, const struct shf_dspd_group *g)
{
	const struct shf_dspd_param scalar = { .items = 1 };
	const struct shf_dspd_part part = { .dtype = SHEAF_F32, .file = g->step_file,
		.at = g->step_at };
	const char *shown = shf_dspd_shown(d, name, strlen(name), "step");

	return shown ? shf_dspd_add_flat(d, &part, &scalar, "optimizer", shown) : d->err->code;
}

/* Adds the weights of a parameter, and what the optimizer has of it. whole, f32: the file of the
 * model has its values, as F32. */
static int join_all_kinds(struct shf_dspd *d, const struct shf_dspd_param *p, uint32_t run,
                          const char *name, bool whole, bool f32)
{
	const struct shf_dspd_group *g = d->stage < 3 ? group_of(d, run) : NULL;
	int rc = 0;

	/* Weights that are F32 have no masters. */
	if (!whole)
		rc = join_kind(d, p, run, SHF_DSPD_FP32, NULL, name, NULL);
	else if (!f32)
		rc = join_kind(d, p, run, SHF_DSPD_FP32, "master_weights", name, NULL);
	for (uint32_t k = 1; k < d->kinds_n && rc == 0; k++)
		rc = join_kind(d, p, run, k, "optimizer", name, d->kinds[k]);
	if (rc == 0 && d->steps_differ && g && g->step_file != UINT32_MAX)
		rc = join_step(d, name, g);
	return rc;
}

#define EXPERT "deepspeed_experts."

/* Makes the name of an expert of all ranks from that of one of the ranks, which each begin with 0.
 * NULL: it is no name of an expert, or there is no memory. */
static const char *expert_name(struct shf_dspd *d, const char *name, uint64_t first)
{
	const char *at = strstr(name, EXPERT), *end;
	struct shf_buf text = SHF_BUF_INIT;
	uint64_t number = 0;
	const char *own;

	end = at ? at + strlen(EXPERT) : NULL;
	for (at = end; end && *end >= '0' && *end <= '9' && end - at < 7; end++)
		number = 10 * number + (uint64_t)(*end - '0');
	if (!at || end == at || *end != '.') {
		shf_fail(d->err, SHEAF_EFORMAT, "%s: tensor %.*s is in a group of experts, but its "
		         "name is not that of one", d->f->path, shf_name_show(name), name);
		return NULL;
	}
	shf_buf_add(&text, name, (size_t)(at - name));
	shf_buf_addf(&text, "%" PRIu64 "%s", first + number, end);
	if (text.oom)
		shf_dspd_no_memory(d);
	own = text.oom ? NULL : shf_dspd_keep(d, (const char *)text.data, text.len);
	shf_buf_release(&text);
	return own;
}

/* Adds a parameter of an expert: one of each rank that has other experts. */
static int join_experts(struct shf_dspd *d, const struct shf_dspd_param *p, uint32_t spread)
{
	uint32_t groups = (uint32_t)(d->groups.len / sizeof(struct shf_dspd_group));
	uint64_t each = (uint64_t)d->experts / spread;
	int rc = 0;

	for (uint32_t e = 0; e < spread && rc == 0; e++) {
		const char *name = expert_name(d, p->name, e * each);
		const struct shf_dspd_weight *w = name ? shf_dspd_weight(d, name) : NULL;

		if (!name)
			return d->err->code;
		if (!w && d->weights.len)
			return shf_fail(d->err, SHEAF_EFORMAT, "%s: tensor %.*s: no layer_<N>_"
			                "expert_<M>_mp_rank_%02d_model_states.pt has it; the file "
			                "of an expert is missing", d->f->path, shf_name_show(name),
			                name, d->mp);
		rc = join_all_kinds(d, p, e * groups + p->group, name, w != NULL, w && w->f32);
	}
	return rc;
}

static int join_param(struct shf_dspd *d, const struct shf_dspd_param *p)
{
	const struct shf_dspd_group *g = (const void *)d->groups.data;
	uint32_t spread;

	if (p->frozen)
		return p->whole ? 0 : join_kind(d, p, 0, SHF_DSPD_FP32, NULL, p->name, NULL);
	if (d->groups.len == 0)
		return p->whole ? 0
		     : shf_fail(d->err, SHEAF_EFORMAT, "%s: tensor %.*s: no file has its values; "
		                "those of the optimizer are missing", d->f->path,
		                shf_name_show(p->name), p->name);
	if (d->stage < 3 && g[p->group].count == 0)
		return 0;
	spread = d->stage < 3 ? shf_dspd_spread(d, &g[p->group]) : 1;
	return spread > 1 ? join_experts(d, p, spread)
	     : join_all_kinds(d, p, p->group, p->name, p->whole, p->f32);
}

/* Adds weights of a universal checkpoint under another name. */
static int join_again(struct shf_dspd *d, const struct shf_dspd_param *p, const char *name)
{
	const struct shf_foreign_tensor *t = (const void *)d->f->tensors.data;
	const struct shf_foreign_piece *of = (const void *)d->f->pieces.data;
	struct shf_foreign_piece piece;
	struct shf_foreign_tensor x;

	if (p->tensor == SIZE_MAX)
		return 0;
	if (shf_dspd_charge(d, SHF_DSPD_TENSOR_COST) < 0)
		return d->err->code;
	x = t[p->tensor];
	piece = of[x.first];
	shf_buf_add(&d->f->pieces, &piece, sizeof(piece));
	return shf_foreign_add_tensor(d->f, &x, name, strlen(name), d->err);
}

/* Adds the other names of weights that are not in the file of the model. */
static int join_ties(struct shf_dspd *d)
{
	const struct shf_dspd_tie *t = (const void *)d->ties.data;
	int rc = 0;

	for (size_t i = 0; i < d->ties.len / sizeof(*t) && rc == 0; i++) {
		const struct shf_dspd_param *p = shf_dspd_param(d, t[i].of, strlen(t[i].of));

		if (p && p->found)
			rc = join_again(d, p, t[i].name);
		else if (p && !p->whole)
			rc = join_kind(d, p, p->group, SHF_DSPD_FP32, NULL, t[i].name, NULL);
	}
	return rc;
}

int shf_dspd_join(struct shf_dspd *d)
{
	const struct shf_dspd_param *p = (const void *)d->params.data;
	size_t n = d->params.len / sizeof(*p);
	int rc = settle_parts(d);

	for (size_t i = 0; i < n && rc == 0; i++)
		rc = join_param(d, &p[i]);
	return rc == 0 ? join_ties(d) : rc;
}
