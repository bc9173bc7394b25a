/* SPDX-License-Identifier: Apache-2.0 */
/* Unified checkpoints of PaddleNLP and PaddleFormers: directories of safetensors files of up to
 * three kinds (model, master_weights, optimizer), each with an index. sheaf export writes other
 * families in the same way, such as averages. Merged ones have whole
 * tensors. With ignore_merge_optimizer each rank wrote a file of its own of the last two kinds, and
 * the index has no weight_map. PaddleNLP labels bfloat16 as U16, and Paddle has no other 16-bit
 * integers without a sign.
 *
 * Source: trainer/plugins/unified_checkpoint of PaddleNLP 3.0.0b4 and PaddleFormers 1.2, and
 * checkpoints that both wrote. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "foreign_st.h"
#include "index.h"
#include "json.h"
#include "paddle_facts.h"
#include "paddle_parts.h"
#include "valid.h"

#define INDEX_MAX (UINT64_C(1) << 28)

static const struct { const char *kind, *family; } kinds[] = { { "model", "model" },
	{ "peft_model", "model" }, { "master_weights", "master_weights" },
	{ "optimizer", "optimizer" } };
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))
#define INDEX_TAIL ".safetensors.index.json"

/* ---- recognising it ---- */

/* Whether a name is <kind>-00001-of-00002.safetensors, or <kind>.safetensors. *of: how many files
 * it says there are. */
static bool is_shard(const char *name, const char *kind, unsigned *i, unsigned *of)
{
	size_t n = strlen(kind);
	char end[20];

	*i = *of = 1;
	if (strncmp(name, kind, n) == 0 && strcmp(name + n, ".safetensors") == 0)
		return true;
	return strncmp(name, kind, n) == 0 && name[n] == '-' &&
	       sscanf(name + n, "-%5u-of-%5u%19s", i, of, end) == 3 &&
	       strcmp(end, ".safetensors") == 0;
}

/* Looks for what only Paddle writes: an index of one of its kinds, moments under its names, or
 * weights whose metadata say that they are NumPy's. */
static int look_for_unified(const struct shf_sys *sys, int dir, const struct shf_listing *l,
                            const char **why, struct sheaf_error *err)
{
	static const char *const map[] = { "\"weight_map\"", "\"quant_ckpt_resume_times\"" };
	static const char *const moments[] = { "/moment1_0\"", "/moment2_0\"", "_pow_acc_0\"",
		"/velocity_0\"" };
	static const char *const np[] = { "\"format\":\"np\"", "\"format\": \"np\"" };
	unsigned i, of;
	int rc = 0;

	*why = "an index of peft_model, master_weights or optimizer, as Paddle's unified "
	       "checkpoints have";
	for (size_t k = 1; k < KINDS && rc == 0; k++) {
		char name[64];

		snprintf(name, sizeof(name), "%s" INDEX_TAIL, kinds[k].kind);
		if (shf_listing_has(l, name))
			rc = shf_begins_with_any(sys, dir, name, map, 2, err);
	}
	for (size_t k = 0; k < shf_listing_n(l) && rc == 0; k++) {
		const char *name = shf_listing_at(l, k);
		struct shf_pd_rank rank;

		if (is_shard(name, "optimizer", &i, &of) ||
		    shf_pd_rank_of(&rank, name, "optimizer", ".safetensors")) {
			*why = "moments under Paddle's names in optimizer*.safetensors";
			rc = shf_begins_with_any(sys, dir, name, moments, 4, err);
		} else if (is_shard(name, "model", &i, &of)) {
			*why = "model-*.safetensors whose metadata say \"np\", as Paddle writes";
			rc = shf_begins_with_any(sys, dir, name, np, 2, err);
		}
		if (rc == 0 && is_shard(name, "model", &i, &of))
			break;                  /* one of them is enough */
	}
	return rc;
}

static int is_unified(const struct shf_sys *sys, int dir, const char *path, const char **why,
                      struct sheaf_error *err)
{
	struct shf_arena arena = { 0 };
	struct shf_listing l;
	int rc = shf_listing_read(&l, &arena, sys, dir, path, err);

	if (rc == 0)
		rc = look_for_unified(sys, dir, &l, why, err);
	shf_buf_release(&l.a);
	shf_arena_release(&arena);
	return rc;
}

/* ---- an index ---- */

struct unified_index {
	bool here, map, quantised;
	bool masters;                   /* of the optimizer: there are master weights somewhere */
	char stage[16], type[16];
	struct shf_index list;          /* sorted by name, if there is a map */
	bool *seen;                     /* in the arena; by entry */
};
struct unified {
	struct shf_foreign *f;
	struct sheaf_error *err;
	struct shf_listing names;
	struct shf_pd_parts parts;
	const char *kind, *family;
	struct unified_index index;
	uint64_t unlisted;              /* tensors that are in no index */
	bool fp32_model, has_masters, turned;   /* turned: weights are those of transformers */
};

static int unified_no_memory(const struct unified *u)
{
	return shf_fail(u->err, SHEAF_ENOMEM, "%s: no memory for its list of tensors", u->f->path);
}

/* Copies a short text. */
static void keep_text(char *to, size_t n, const struct shf_json *j)
{
	snprintf(to, n, "%s", shf_json_text(j, NULL));
}

/* Reads what an index says beside its map. */
static int index_facts(struct unified_index *x, const uint8_t *bytes, size_t n, const char *where,
                       struct sheaf_error *err)
{
	enum shf_json_kind kind;
	struct shf_json j;
	bool fine;

	shf_json_init(&j, bytes, n);
	fine = shf_json_next(&j) == SHF_JSON_OBJECT;
	for (kind = shf_json_next(&j); fine && kind == SHF_JSON_KEY; kind = shf_json_next(&j)) {
		char key[40];

		keep_text(key, sizeof(key), &j);
		kind = shf_json_next(&j);
		x->map |= strcmp(key, "weight_map") == 0;
		x->masters |= strcmp(key, "master_weights") == 0 && kind == SHF_JSON_TRUE;
		if (strcmp(key, "ckpt_quant_stage") == 0 && kind == SHF_JSON_STRING)
			keep_text(x->stage, sizeof(x->stage), &j);
		if (strcmp(key, "type") == 0 && kind == SHF_JSON_STRING)
			keep_text(x->type, sizeof(x->type), &j);
		if (!shf_json_skip(&j, kind))
			break;
	}
	fine = fine && kind == SHF_JSON_OBJECT_END;
	x->quantised = x->stage[0] && strcmp(x->stage, "O0");
	if (!fine)
		shf_fail(err, SHEAF_EFORMAT, "%s: is not a JSON object: %s", where, j.why);
	shf_json_release(&j);
	return fine ? 0 : SHEAF_EFORMAT;
}

static int entries_order(const void *a, const void *b)
{
	return strcmp(((const struct shf_index_entry *)a)->name,
	              ((const struct shf_index_entry *)b)->name);
}

/* Reads the index of the current kind, if there is one. */
static int read_index(struct unified *u)
{
	struct unified_index *x = &u->index;
	struct shf_buf bytes = SHF_BUF_INIT;
	char name[64], where[600];
	int rc;

	*x = (struct unified_index){ .here = true };
	snprintf(name, sizeof(name), "%s" INDEX_TAIL, u->kind);
	x->here = shf_listing_has(&u->names, name);
	if (!x->here)
		return 0;
	snprintf(where, sizeof(where), "%.500s/%s", u->f->path, name);
	rc = shf_foreign_slurp(u->f, NULL, name, INDEX_MAX, &bytes, u->err);
	if (rc == 0)
		rc = index_facts(x, bytes.data, bytes.len, where, u->err);
	if (rc == 0 && x->map)
		rc = shf_index_parse(&x->list, &u->f->arena, bytes.data, bytes.len, where, u->err);
	if (rc == 0 && x->list.n) {
		qsort(x->list.entries, x->list.n, sizeof(*x->list.entries), entries_order);
		x->seen = shf_arena_alloc(&u->f->arena, x->list.n, sizeof(*x->seen));
		rc = x->seen ? 0 : unified_no_memory(u);
	}
	shf_buf_release(&bytes);
	return rc;
}

/* ---- files with whole tensors ---- */

/* Whether the index has this tensor in this file, or is not there. */
static bool is_listed(struct unified *u, const char *name, const char *file, bool *elsewhere)
{
	struct unified_index *x = &u->index;
	struct shf_index_entry want = { .name = name }, *e = NULL;

	if (x->list.n)
		e = bsearch(&want, x->list.entries, x->list.n, sizeof(want), entries_order);
	*elsewhere = e && strcmp(e->file, file);
	if (e && !*elsewhere)
		x->seen[e - x->list.entries] = true;
	return e != NULL;
}

/* Adds a tensor of a safetensors file. */
static int unified_add(struct unified *u, const struct shf_st_tensor *t, uint32_t file,
                       uint64_t payload)
{
	struct shf_foreign_tensor x = { .family = u->family, .ndim = t->ndim, .n = 1,
		.dims = t->ndim > SHEAF_DIMS_MAX ? t->dims : t->shape,
		.dtype = t->dtype == SHEAF_U16 ? SHEAF_BF16 : t->dtype };

	if (!x.dims || shf_dtype(t->dtype)->bits < 8)
		return shf_foreign_note(u->f, u->err, t->name, strlen(t->name), "a tensor of more "
		                        "than 64 dimensions, or of a type of less than a byte, "
		                        "which sheaf does not read");
	shf_buf_add(&u->f->pieces, &(struct shf_foreign_piece){ .file = file,
	            .at = payload + t->off }, sizeof(struct shf_foreign_piece));
	return shf_foreign_add_tensor(u->f, &x, t->name, strlen(t->name), u->err);
}

/* Keeps the shape of a weight, by which parts of its moments are joined. transformers has the
 * weights of layers the other way round than moments have them. Which weights those are, their
 * names say; a weight of another name has no known shape there. */
static int keep_shape(struct unified *u, const struct shf_st_tensor *t)
{
	static const char tail[] = "_proj.weight";
	struct shf_pd_shape s = { .name = t->name, .ndim = t->ndim };
	size_t n = strlen(t->name), m = strlen(tail);
	int64_t *dims = shf_foreign_numbers(u->f, (size_t)t->ndim);
	bool swap = u->turned && t->ndim == 2 && n > m && strcmp(t->name + n - m, tail) == 0;

	if (!dims)
		return unified_no_memory(u);
	if (t->ndim > SHEAF_DIMS_MAX || (u->turned && t->ndim > 1 && !swap &&
	                                 !strstr(t->name, "embed_tokens.weight") &&
	                                 !strstr(t->name, "lm_head.weight")))
		return 0;
	for (int d = 0; d < t->ndim; d++)
		dims[d] = t->shape[swap ? t->ndim - 1 - d : d];
	s.dims = dims;
	shf_buf_add(&u->parts.shapes, &s, sizeof(s));
	return u->parts.shapes.oom ? unified_no_memory(u) : 0;
}

/* Adds the tensors of a file with whole tensors. */
static int unified_file(struct unified *u, const char *name)
{
	struct shf_st st;
	uint32_t file;
	int rc = shf_foreign_st_read(u->f, name, &file, &st, u->err);

	if (rc == 0 && strcmp(u->family, "model") == 0)
		u->turned |= st.format && strcmp(st.format, "pt") == 0;
	for (size_t i = 0; rc == 0 && i < st.n; i++) {
		const struct shf_st_tensor *t = &st.tensors[i];
		bool elsewhere;

		if (!is_listed(u, t->name, name, &elsewhere) && u->index.list.n)
			u->unlisted++;
		if (elsewhere)
			continue;
		rc = unified_add(u, t, file, st.header_bytes);
		if (rc == 0 && strcmp(u->family, "model") == 0) {
			u->fp32_model |= t->dtype == SHEAF_F32;
			rc = keep_shape(u, t);
		}
	}
	return rc;
}

/* Whether the index names the file. Without an index every file of the kind counts. */
static bool is_in_index(const struct unified *u, const char *name)
{
	for (size_t i = 0; i < u->index.list.n; i++)
		if (strcmp(u->index.list.entries[i].file, name) == 0)
			return true;
	return !u->index.map;
}

/* Whether the file was read before. */
static bool is_file_read(const struct unified *u, const char *name)
{
	for (uint32_t i = 0; i < shf_foreign_files(u->f); i++)
		if (strcmp(shf_foreign_file(u->f, i)->name, name) == 0)
			return true;
	return false;
}

/* Checks that every tensor that the index lists was found. The index of a quantised checkpoint
 * lists what it would have unquantised. */
static int check_listed(struct unified *u)
{
	const struct shf_index *list = &u->index.list;
	uint64_t gone = 0;

	for (size_t i = 0; i < list->n; i++) {
		const struct shf_index_entry *e = &list->entries[i];

		gone += !u->index.seen[i];
		if (!u->index.seen[i] && !u->index.quantised)
			return shf_fail(u->err, SHEAF_EFORMAT, "%s: the index says that %.*s is in "
			                "%s, but it is not; make the index again", u->f->path,
			                shf_name_show(e->name), e->name, e->file);
	}
	if (!gone && !u->index.quantised)
		return 0;
	return shf_foreign_note(u->f, u->err, u->kind, strlen(u->kind), "is quantised (%s): the "
	                        "tensors are listed as they are stored, in 8 bits with their "
	                        "scales, and not turned back; %" PRIu64 " names of its index are "
	                        "in no file", u->index.stage, gone);
}

/* ---- files of ranks ---- */

/* Returns the parameter to which <parameter>/moment1_0 belongs; NULL: no memory. */
static const char *owner_of(struct shf_arena *arena, const char *name)
{
	const char *slash = strrchr(name, '/');

	return shf_arena_strdup(arena, name, slash ? (size_t)(slash - name) : strlen(name));
}

/* Adds the tensors of a file that one rank wrote as parts. */
static int unified_rank_file(struct unified *u, const char *name, const struct shf_pd_rank *rank)
{
	struct shf_pd_part like = { .family = u->family, .rank = *rank };
	struct shf_st st;
	int rc = shf_foreign_st_read(u->f, name, &like.file, &st, u->err);

	for (size_t i = 0; rc == 0 && i < st.n; i++)
		rc = shf_pd_parts_add_st(&u->parts, &like, &st.tensors[i],
		                         owner_of(&u->f->arena, st.tensors[i].name),
		                         st.header_bytes, u->err);
	return rc;
}

/* Whether a name is that of a file which one rank wrote, perhaps as one of several
 * (optim_shard_num): <kind>.<ranks>.safetensors_shard_0001. */
static bool is_rank_file(const char *name, const char *kind, struct shf_pd_rank *rank)
{
	const char *more = strstr(name, ".safetensors_shard_");
	char head[256];
	size_t n = strlen(name);

	if (!more || n >= sizeof(head))
		return shf_pd_rank_of(rank, name, kind, ".safetensors");
	snprintf(head, sizeof(head), "%.*s.safetensors", (int)(more - name), name);
	return shf_pd_rank_of(rank, head, kind, ".safetensors");
}

/* ---- the directory ---- */

/* Reads all files of the current kind, whose index has been read. */
static int unified_kind(struct unified *u)
{
	unsigned i, of, shards = 0, want = 0;
	int rc = 0;

	for (size_t k = 0; k < shf_listing_n(&u->names) && rc == 0; k++) {
		const char *name = shf_listing_at(&u->names, k);
		struct shf_pd_rank rank;

		if (is_shard(name, u->kind, &i, &of)) {
			if (!is_in_index(u, name)) {
				rc = shf_foreign_note(u->f, u->err, name, strlen(name), "is not "
				                      "named by the index, and is not read");
				continue;
			}
			rc = unified_file(u, name);
			shards++;
			want = of;
			u->has_masters |= strcmp(u->kind, "master_weights") == 0;
		} else if (is_rank_file(name, u->kind, &rank)) {
			rc = unified_rank_file(u, name, &rank);
			u->has_masters |= strcmp(u->kind, "master_weights") == 0;
		}
	}
	/* Files that the index names, and that are not called like this. */
	for (size_t k = 0; k < u->index.list.n && rc == 0; k++) {
		const char *name = u->index.list.entries[k].file;

		if (!shf_listing_has(&u->names, name))
			rc = shf_fail(u->err, SHEAF_EFORMAT, "%s: the index names %s, which is "
			              "missing", u->f->path, name);
		else if (!is_shard(name, u->kind, &i, &of) && !is_file_read(u, name))
			rc = unified_file(u, name);
	}
	if (rc == 0)
		rc = check_listed(u);
	if (rc == 0 && shards && !u->index.here)
		rc = shf_foreign_note(u->f, u->err, u->kind, strlen(u->kind), "has no index: its "
		                      "tensors are taken from the headers of %u files, but the "
		                      "names say up to %u", shards, want);
	if (rc == 0 && u->index.type[0])
		rc = shf_foreign_note(u->f, u->err, "type", 4, "%s: the tensors of an adapter; the "
		                      "weights that it belongs to are not here", u->index.type);
	return rc;
}

/* Whether the index has a map, all files in it are called as those of its kind, and some are
 * here. */
static bool is_index_of_kind(const struct unified *u)
{
	const struct shf_index *list = &u->index.list;
	bool here = false;
	unsigned i, of;

	for (size_t k = 0; k < list->n; k++) {
		if (!is_shard(list->entries[k].file, u->kind, &i, &of))
			return false;
		here |= shf_listing_has(&u->names, list->entries[k].file);
	}
	return here;
}

/* Returns the family of an index that is of none of Paddle's kinds, or NULL. family: receives its
 * name. */
static const char *family_of_index(char family[64], const char *name)
{
	size_t n = strlen(name), m = strlen(INDEX_TAIL);

	if (n <= m || n - m >= 64 || strcmp(name + n - m, INDEX_TAIL))
		return NULL;
	snprintf(family, 64, "%.*s", (int)(n - m), name);
	for (size_t k = 0; k < KINDS; k++)
		if (strcmp(family, kinds[k].kind) == 0)
			return NULL;
	return shf_family_is_valid(family) ? family : NULL;
}

/* Reads the families that have an index and are not Paddle's. */
static int unified_families(struct unified *u)
{
	int rc = 0;

	for (size_t k = 0; k < shf_listing_n(&u->names) && rc == 0; k++) {
		const char *name = shf_listing_at(&u->names, k);
		char text[64];
		const char *family = family_of_index(text, name);

		if (!family)
			continue;
		family = shf_arena_strdup(&u->f->arena, family, strlen(family));
		u->kind = u->family = family;
		rc = family ? read_index(u) : unified_no_memory(u);
		if (rc == SHEAF_EFORMAT)
			rc = shf_foreign_note(u->f, u->err, name, strlen(name), "is not an index, "
			                      "so sheaf does not read it");
		else if (rc == 0 && is_index_of_kind(u))
			rc = unified_kind(u);
		else if (rc == 0)
			rc = shf_foreign_note(u->f, u->err, name, strlen(name), "does not list "
			                      "files %s-<number>-of-<number>.safetensors that are "
			                      "here, so sheaf does not read it", family);
	}
	return rc;
}

/* Notes where the weights of the model and their masters are, if one of them is left out. */
static int unified_masters(struct unified *u, bool masters)
{
	if (!masters || u->has_masters)
		return 0;
	if (u->fp32_model)
		return shf_foreign_note(u->f, u->err, "master_weights", 14, "are stored as the "
		                        "weights of the model, which are F32 "
		                        "(skip_save_model_weight)");
	return shf_foreign_note(u->f, u->err, "master_weights", 14, "are not stored "
	                        "(remove_master_weight): they can be made from the weights of the "
	                        "model, rounded");
}

static int open_unified(struct shf_foreign *f, struct sheaf_error *err)
{
	struct unified u = { .f = f, .err = err, .parts = { .f = f } };
	bool masters = false;
	int rc = shf_listing_read(&u.names, &f->arena, f->in, f->dir, f->path, err);

	for (size_t k = 0; k < KINDS && rc == 0; k++) {
		u.kind = kinds[k].kind;
		u.family = kinds[k].family;
		rc = read_index(&u);
		if (rc == 0)
			rc = unified_kind(&u);
		masters |= u.index.masters;
	}
	if (rc == 0)
		rc = unified_families(&u);
	if (rc == 0)
		rc = shf_pd_parts_join(&u.parts, err);
	if (rc == 0)
		rc = shf_foreign_check_names(f, err);
	if (rc == 0)
		rc = unified_masters(&u, masters);
	if (rc == 0 && u.unlisted)
		rc = shf_foreign_note(f, err, "index", 5, "%" PRIu64 " tensors are in no index and "
		                      "were found in the files", u.unlisted);
	if (rc == 0)
		rc = shf_paddle_facts(f, &u.names, err);
	shf_pd_parts_release(&u.parts);
	shf_buf_release(&u.names.a);
	return rc;
}

const struct shf_foreign_format shf_paddle_unified = {
	.name = "paddle.unified",
	.is_dir = is_unified,
	.open = open_unified,
};
