/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of sharding_io of PaddleNLP and PaddleFormers: each rank wrote what it had with
 * paddle.save, weights under the names of the model, and states of the optimizer under those that
 * parameters have at run time; model_meta.json says which is which. The state of the optimizer may
 * be whole parameters, each on one rank, or flat slices of all of them.
 *
 * Source: trainer/utils/sharding_io.py of PaddleNLP 3.0.0b4 and PaddleFormers 1.2, and checkpoints
 * that both wrote. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "err.h"
#include "paddle_facts.h"
#include "paddle_meta.h"
#include "paddle_tensor.h"

#define META "model_meta.json"
#define META_MAX (UINT64_C(1) << 30)
#define STATES_MAX 16           /* most arrays of a file for each parameter, on average */
#define MASTER "_fp32_master_0_"        /* in the name of the state of a 16-bit parameter */

static int is_sharding(const struct shf_sys *sys, int dir, const char *path, const char **why,
                       struct sheaf_error *err)
{
	static const char *const texts[] = { "\"sharding_metas\"", "\"parallel_config\"" };

	(void)path;
	*why = "a directory with " META ", as Paddle's sharding_io writes it";
	return shf_begins_with_any(sys, dir, META, texts, 2, err);
}

struct sharding {
	struct shf_foreign *f;
	struct sheaf_error *err;
	struct shf_listing names;
	struct shf_pd_parts parts;
	struct shf_pd_meta meta;
	const char *family;             /* of the current file */
	struct shf_pd_rank rank;
	uint32_t file;
	uint64_t left;                  /* how many parts the current file may still have: many keys
	                                 * may have one array, and many parameters one name at run
	                                 * time */
	uint64_t unknown;               /* states whose parameter is unknown */
};

static int sharding_no_memory(const struct sharding *s)
{
	return shf_fail(s->err, SHEAF_ENOMEM, "%s: no memory for its list of tensors", s->f->path);
}

/* Adds an array as a part of a tensor. name: NUL-ended, in the arena; of: the parameter that it
 * belongs to. */
static int sharding_add(struct sharding *s, const char *family, const char *name, const char *of,
                        const struct shf_numpy_array *a)
{
	struct shf_foreign_piece piece;
	struct shf_foreign_tensor x;
	struct shf_pd_part part = { .name = name, .of = of, .family = family, .rank = s->rank,
		.file = s->file };
	int rc = shf_numpy_shown(s->f, a, s->file, &x, &piece, s->err);

	part.dtype = x.dtype;
	part.ndim = x.ndim;
	part.dims = x.dims;
	part.stride = piece.stride;
	part.at = piece.at;
	part.text = piece.text;
	if (rc < 0)
		return rc;
	shf_buf_add(&s->parts.parts, &part, sizeof(part));
	return s->parts.parts.oom ? sharding_no_memory(s) : 0;
}

/* Adds an array that is called like a parameter of the model. */
static int add_by_name(struct sharding *s, const char *family, const struct shf_pk *key,
                       const struct shf_numpy_array *a)
{
	char *name = shf_arena_strdup(&s->f->arena, key->u.s, key->n);

	return name ? sharding_add(s, family, name, name, a) : sharding_no_memory(s);
}

/* Adds an array for each of the parameters that share a name at run time. kind: what of them it is;
 * NULL: the parameter itself. */
static int add_for_each(struct sharding *s, const char *family, const struct shf_pd_name *of,
                        size_t n, const char *kind, size_t kind_n, const struct shf_numpy_array *a)
{
	int rc = 0;

	if (n > s->left)
		return shf_fail(s->err, SHEAF_EFORMAT, "%s: has more than %d arrays for each "
		                "parameter of " META, shf_foreign_file(s->f, s->file)->where,
		                STATES_MAX);
	s->left -= n;
	for (size_t i = 0; i < n && rc == 0; i++) {
		struct shf_buf text = SHF_BUF_INIT;
		char *name;

		shf_buf_addf(&text, "%s%s", of[i].name, kind ? "/" : "");
		shf_buf_add(&text, kind, kind ? kind_n : 0);
		name = text.oom ? NULL : shf_arena_strdup(&s->f->arena, (const char *)text.data,
		                                          text.len);
		shf_buf_release(&text);
		rc = name ? sharding_add(s, family, name, of[i].name, a) : sharding_no_memory(s);
	}
	return rc;
}

/* Adds a state of the optimizer: <run-time name>_fp32_master_0_moment1_0, or without the middle. */
static int add_state(struct sharding *s, const struct shf_pk *key, const struct shf_numpy_array *a)
{
	const char *text = key->u.s, *master = memmem(text, key->n, MASTER, strlen(MASTER));
	const struct shf_pd_name *of = NULL;
	size_t n = key->n, count = 0, kind = 0;

	if (master) {
		kind = (size_t)(master - text) + strlen(MASTER);
		of = shf_pd_meta_find(&s->meta, &s->rank, text, (size_t)(master - text), &count);
	}
	/* The longest name that is one of a parameter. */
	for (size_t i = n; !master && !of && i-- > 0;)
		if (text[i] == '_') {
			kind = i + 1;
			of = shf_pd_meta_find(&s->meta, &s->rank, text, i, &count);
		}
	if (of)
		return add_for_each(s, "optimizer", of, count, text + kind, n - kind, a);
	s->unknown++;
	return add_by_name(s, "optimizer", key, a);
}

static int add_master(struct sharding *s, const char *family, const struct shf_pk *key,
                      const struct shf_numpy_array *a)
{
	size_t count = 0;
	const struct shf_pd_name *of = shf_pd_meta_find(&s->meta, &s->rank, key->u.s, key->n,
	                                                &count);

	if (of)
		return add_for_each(s, family, of, count, NULL, 0, a);
	s->unknown++;
	return add_by_name(s, family, key, a);
}

/* Adds the arrays of a dictionary; NULL: there is none. masters: they are master weights, by their
 * names at run time. */
static int add_arrays(struct sharding *s, const struct shf_pk *v, bool masters)
{
	bool optimizer = strcmp(s->family, "optimizer") == 0;
	const char *family = masters && optimizer ? "master_weights" : s->family;
	int rc = 0;

	for (uint32_t i = 0; v && v->kind == SHF_PK_DICT && i < v->n && rc == 0; i++) {
		const struct shf_pk *key = v->u.a[2 * i];
		struct shf_numpy_array a;
		enum shf_tensor_kind kind;
		const char *why = NULL;

		if (key->kind != SHF_PK_STR)
			continue;
		kind = shf_paddle_tensor_of(&a, v->u.a[2 * i + 1], &why);
		if (kind == SHF_TENSOR_UNREAD)
			rc = shf_foreign_note(s->f, s->err, key->u.s, key->n, "%s", why);
		else if (kind == SHF_TENSOR_READ)
			rc = masters ? add_master(s, family, key, &a)
			     : optimizer ? add_state(s, key, &a) : add_by_name(s, family, key, &a);
	}
	return rc;
}

/* Reads one paddle.save file. */
static int sharding_file(struct sharding *s, const char *name)
{
	struct shf_pickle p = { 0 };
	struct shf_region r;
	int rc = shf_foreign_add_file(s->f, name, strlen(name), &s->file, s->err);

	if (rc == 0)
		rc = shf_foreign_region(s->f, s->file, &r, s->err);
	if (rc < 0)
		return rc;
	rc = shf_paddle_read(&p, &r, NULL, s->err);
	if (rc == 0 && p.root->kind != SHF_PK_DICT)
		rc = shf_fail(s->err, SHEAF_EFORMAT, "%s: is not a dictionary of tensors", r.where);
	s->left = STATES_MAX * (uint64_t)(s->meta.names.len / sizeof(struct shf_pd_name));
	if (rc == 0)
		rc = add_arrays(s, p.root, false);
	if (rc == 0)
		rc = add_arrays(s, shf_pk_get(p.root, "master_weights"), true);
	shf_pickle_release(&p);
	shf_foreign_region_end(s->f, s->file);
	return rc;
}

/* Reads one safetensors file with weights, of which PaddleFormers writes an empty one where all are
 * made from their masters. */
static int sharding_st(struct sharding *s, const char *name)
{
	struct shf_pd_part like = { .family = s->family, .rank = s->rank };
	struct shf_st st;
	int rc = shf_foreign_st_read(s->f, name, &like.file, &st, s->err);

	for (size_t i = 0; rc == 0 && i < st.n; i++)
		rc = shf_pd_parts_add_st(&s->parts, &like, &st.tensors[i], st.tensors[i].name,
		                         st.header_bytes, s->err);
	return rc;
}

static int sharding_files(struct sharding *s)
{
	static const struct { const char *kind, *end, *family; } kinds[] = {
		{ "model_state", "pdparams", "model" }, { "optimizer", "pdopt", "optimizer" },
		{ "ema", "pdopt", "ema" }, { "model", "safetensors", "model" } };
	int rc = 0;

	for (size_t i = 0; i < shf_listing_n(&s->names) && rc == 0; i++)
		for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
			const char *name = shf_listing_at(&s->names, i);
			char end[16];

			snprintf(end, sizeof(end), ".%s", kinds[k].end);
			if (!shf_pd_rank_of(&s->rank, name, kinds[k].kind, end))
				continue;
			s->family = kinds[k].family;
			rc = k == 3 ? sharding_st(s, name) : sharding_file(s, name);
			break;
		}
	return rc;
}

static int open_sharding(struct shf_foreign *f, struct sheaf_error *err)
{
	struct sharding s = { .f = f, .err = err, .parts = { .f = f } };
	struct shf_buf bytes = SHF_BUF_INIT;
	char where[600];
	int rc = shf_listing_read(&s.names, &f->arena, f->in, f->dir, f->path, err);

	snprintf(where, sizeof(where), "%.500s/%s", f->path, META);
	if (rc == 0)
		rc = shf_foreign_slurp(f, NULL, META, META_MAX, &bytes, err);
	if (rc == 0)
		rc = shf_pd_meta_read(&s.meta, &s.parts, bytes.data, bytes.len, where, err);
	if (rc == 0)
		rc = sharding_files(&s);
	if (rc == 0)
		rc = shf_pd_parts_join(&s.parts, err);
	if (rc == 0)
		rc = shf_foreign_check_names(f, err);
	if (rc == 0 && s.meta.strategy)
		rc = shf_foreign_note(f, err, "sharding_strategy", 17, "%s", s.meta.strategy);
	if (rc == 0 && s.unknown)
		rc = shf_foreign_note(f, err, META, strlen(META), "%" PRIu64 " tensors belong to "
		                      "no parameter that it has, and are listed under their own "
		                      "names", s.unknown);
	if (rc == 0)
		rc = shf_paddle_facts(f, &s.names, err);
	shf_pd_parts_release(&s.parts);
	shf_pd_meta_release(&s.meta);
	shf_buf_release(&bytes);
	shf_buf_release(&s.names.a);
	return rc;
}

const struct shf_foreign_format shf_paddle_sharding = {
	.name = "paddle.sharding_io",
	.is_dir = is_sharding,
	.open = open_sharding,
};
