/* SPDX-License-Identifier: Apache-2.0 */
#include "paddle_meta.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "json.h"
#include "sort.h"
#include "valid.h"

struct meta_reader {
	struct shf_pd_meta *m;
	struct shf_pd_parts *parts;
	struct shf_json json;
	int tp, pp, ep;                 /* the ranks that the current object is of */
	bool oom;
};

static char *meta_text(struct meta_reader *r)
{
	size_t n;
	const char *text = shf_json_text(&r->json, &n);
	char *own = shf_arena_strdup(&r->parts->f->arena, text, n);

	r->oom |= !own;
	return own;
}

/* Reads {"struct name": "run-time name"}. Returns false if it has another form. */
static bool read_meta_names(struct meta_reader *r)
{
	enum shf_json_kind kind = shf_json_next(&r->json);

	if (kind != SHF_JSON_OBJECT)
		return false;
	while ((kind = shf_json_next(&r->json)) == SHF_JSON_KEY) {
		struct shf_pd_name name = { r->tp, r->pp, r->ep, NULL, meta_text(r) };

		if (shf_json_next(&r->json) != SHF_JSON_STRING)
			return false;
		name.run = meta_text(r);
		if (r->oom)
			return false;
		shf_buf_add(&r->m->names, &name, sizeof(name));
		r->oom |= r->m->names.oom;
	}
	return kind == SHF_JSON_OBJECT_END;
}

/* Reads [[shape], dtype, is it split over tensor-parallel ranks, ...]. */
static bool read_meta_shape(struct meta_reader *r, char *name)
{
	struct shf_pd_shape s = { .name = name, .local = true };
	int64_t dims[SHEAF_DIMS_MAX], *own;
	enum shf_json_kind kind;

	if (shf_json_next(&r->json) != SHF_JSON_ARRAY || shf_json_next(&r->json) != SHF_JSON_ARRAY)
		return false;
	while ((kind = shf_json_next(&r->json)) == SHF_JSON_NUMBER)
		if (s.ndim == SHEAF_DIMS_MAX || !shf_json_i64(&r->json, &dims[s.ndim]) ||
		    dims[s.ndim++] < 0)
			return false;
	own = shf_foreign_numbers(r->parts->f, (size_t)s.ndim);
	r->oom |= !own;
	if (kind != SHF_JSON_ARRAY_END || !own ||
	    !shf_json_skip(&r->json, shf_json_next(&r->json)))
		return false;
	memcpy(own, dims, (size_t)s.ndim * sizeof(*own));
	s.dims = own;
	kind = shf_json_next(&r->json);
	s.split = kind == SHF_JSON_TRUE;
	if (kind != SHF_JSON_TRUE && kind != SHF_JSON_FALSE)
		return false;
	while ((kind = shf_json_next(&r->json)) != SHF_JSON_ARRAY_END)
		if (!shf_json_skip(&r->json, kind))
			return false;
	shf_buf_add(&r->parts->shapes, &s, sizeof(s));
	r->oom |= r->parts->shapes.oom;
	return true;
}

static bool read_meta_shapes(struct meta_reader *r)
{
	enum shf_json_kind kind = shf_json_next(&r->json);

	if (kind != SHF_JSON_OBJECT)
		return false;
	while ((kind = shf_json_next(&r->json)) == SHF_JSON_KEY) {
		char *name = meta_text(r);

		if (r->oom || !read_meta_shape(r, name))
			return false;
	}
	return kind == SHF_JSON_OBJECT_END;
}

/* Reads what the ranks of one tp, pp and ep have. */
static bool read_ranks(struct meta_reader *r)
{
	enum shf_json_kind kind = shf_json_next(&r->json);
	bool fine = kind == SHF_JSON_OBJECT;

	while (fine && (kind = shf_json_next(&r->json)) == SHF_JSON_KEY) {
		char key[40];

		snprintf(key, sizeof(key), "%s", shf_json_text(&r->json, NULL));
		if (strcmp(key, "structure_name_mapping") == 0) {
			fine = read_meta_names(r);
		} else if (strcmp(key, "param_meta") == 0) {
			fine = read_meta_shapes(r);
		} else {
			kind = shf_json_next(&r->json);
			if (strcmp(key, "sharding_strategy") == 0 && kind == SHF_JSON_STRING)
				r->m->strategy = meta_text(r);
			fine = !r->oom && shf_json_skip(&r->json, kind);
		}
	}
	return fine && kind == SHF_JSON_OBJECT_END;
}

/* Reads {"tp00_pp00": {...}, ...}. */
static bool read_meta_sharding(struct meta_reader *r)
{
	enum shf_json_kind kind = shf_json_next(&r->json);

	if (kind != SHF_JSON_OBJECT)
		return false;
	while ((kind = shf_json_next(&r->json)) == SHF_JSON_KEY) {
		const char *key = shf_json_text(&r->json, NULL);

		r->tp = r->pp = r->ep = 0;
		if (sscanf(key, "tp%6d_pp%6d_ep%6d", &r->tp, &r->pp, &r->ep) < 2 || !read_ranks(r))
			return false;
	}
	return kind == SHF_JSON_OBJECT_END;
}

static int names_compare(const struct shf_pd_name *x, const struct shf_pd_name *y)
{
	int c = (x->tp > y->tp) - (x->tp < y->tp);

	c = c ? c : (x->pp > y->pp) - (x->pp < y->pp);
	c = c ? c : (x->ep > y->ep) - (x->ep < y->ep);
	return c ? c : strcmp(x->run, y->run);
}

static int meta_names_order(const void *a, const void *b)
{
	const struct shf_pd_name *x = a, *y = b;
	int c = names_compare(x, y);

	return c ? c : strcmp(x->name, y->name);
}

int shf_pd_meta_read(struct shf_pd_meta *m, struct shf_pd_parts *parts, const uint8_t *bytes,
                     size_t n, const char *where, struct sheaf_error *err)
{
	struct meta_reader r = { .m = m, .parts = parts };
	enum shf_json_kind kind;
	bool fine;

	shf_json_init(&r.json, bytes, n);
	fine = shf_json_next(&r.json) == SHF_JSON_OBJECT;
	while (fine && (kind = shf_json_next(&r.json)) == SHF_JSON_KEY) {
		bool is_it = strcmp(shf_json_text(&r.json, NULL), "sharding_metas") == 0;

		fine = is_it ? read_meta_sharding(&r)
		             : shf_json_skip(&r.json, shf_json_next(&r.json));
	}
	fine = fine && kind == SHF_JSON_OBJECT_END;
	shf_json_release(&r.json);
	if (r.oom)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of parameters",
		                where);
	if (!fine)
		return shf_fail(err, SHEAF_EFORMAT, "%s: byte %zu: is not the description of a "
		                "sharded model as it is known", where, r.json.at);
	shf_records_sort(m->names.data, m->names.len / sizeof(struct shf_pd_name),
	                 sizeof(struct shf_pd_name), meta_names_order);
	return 0;
}

/* Returns the place of the first name that is not below `want`, or, if `after`, that is above. */
static size_t names_bound(const struct shf_pd_meta *m, const struct shf_pd_name *want, bool after)
{
	const struct shf_pd_name *a = (const void *)m->names.data;
	size_t lo = 0, hi = m->names.len / sizeof(*a);

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		int c = names_compare(&a[mid], want);

		if (c < 0 || (after && c == 0))
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

const struct shf_pd_name *shf_pd_meta_find(const struct shf_pd_meta *m,
                                           const struct shf_pd_rank *rank, const char *run,
                                           size_t n, size_t *count)
{
	char text[512];
	struct shf_pd_name want = { rank->tp < 0 ? 0 : rank->tp, rank->pp < 0 ? 0 : rank->pp,
		rank->moe < 0 ? 0 : rank->moe, text, NULL };
	size_t first;

	if (n >= sizeof(text))
		return NULL;
	memcpy(text, run, n);
	text[n] = '\0';
	first = names_bound(m, &want, false);
	*count = names_bound(m, &want, true) - first;
	if (!*count && want.ep) {       /* all ranks of experts have one description */
		want.ep = 0;
		first = names_bound(m, &want, false);
		*count = names_bound(m, &want, true) - first;
	}
	return *count ? (const struct shf_pd_name *)(const void *)m->names.data + first : NULL;
}

void shf_pd_meta_release(struct shf_pd_meta *m)
{
	shf_buf_release(&m->names);
}
