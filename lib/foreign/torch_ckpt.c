/* SPDX-License-Identifier: Apache-2.0 */
/* Directories of torch_checkpointing. Each rank writes one file for each item, such as model_0.pt:
 * a torch.save file or of safetensors, with the rank's part of each tensor. metadata.pkl, a
 * pickle of plain values, says where in the whole tensor each part lies. torch_checkpointing writes
 * it for items that have a resharder. A directory without it is read by torch_ckpt_bare.c.
 *
 * Source: metadata_serialization.py, distributed_metadata.py, dtensor_metadata.py and
 * default_metadata.py of torch_checkpointing 0.1.1, and directories that it wrote. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "json.h"
#include "torch_ckpt_ranks.h"
#include "torch_folder.h"
#include "torch_mesh.h"
#include "zip_verify.h"

#define METADATA SHF_CKPT_METADATA
#define VERSION "2.0"
#define MESH_DIMS 16
#define RANKS_MAX (1 << 20)
#define BOXES_MAX (1 << 20)

static int is_torch_ckpt(const struct shf_sys *sys, int dir, const char *path, const char **why,
                         struct sheaf_error *err)
{
	static const char *const texts[] = { "nested_path_to_metadata" };

	(void)path;
	*why = METADATA " with nested_path_to_metadata";
	return shf_begins_with_any(sys, dir, METADATA, texts, 1, err);
}

/* ---- whole tensors ---- */

struct whole {                  /* a tensor that is being put together from its parts */
	const char *name;
	struct shf_foreign_tensor t;
	int64_t dims[SHF_FOREIGN_DIMS_MAX];
	int32_t ndim;                   /* as torch has it. Tensors of complex numbers are shown
	                                 * with one more dimension, of size 2 */
	size_t n;                       /* how many pieces it has so far */
};

/* Adds a piece: the box [start, start + count) of the whole tensor, whose items lie in the part p
 * from index `local` on. */
static int ckpt_add_box(struct shf_ckpt *c, struct whole *w, const struct shf_ckpt_part *p,
                        const int64_t *start, const int64_t *count, const int64_t *local)
{
	int32_t ndim = p->t.ndim;
	int64_t *own = shf_foreign_numbers(c->f, 3 * (size_t)ndim);
	struct shf_foreign_piece x = p->piece;
	uint64_t row = shf_dtype(p->t.dtype)->bits / 8u;

	if (!own)
		return shf_ckpt_no_memory(c);
	if (w->n == BOXES_MAX)
		return shf_ckpt_bad(c, w->name, "is cut into more boxes than are read");
	for (int32_t d = ndim - 1; d >= 0; d--) {
		bool pair = d >= w->ndim;
		int64_t stride = p->piece.stride ? p->piece.stride[d] : (int64_t)row;

		own[d] = pair ? 0 : start[d];
		own[ndim + d] = pair ? 2 : count[d];
		own[2 * ndim + d] = stride;
		x.at += pair ? 0 : (uint64_t)(local[d] * stride);
		row *= (uint64_t)p->t.dims[d];
	}
	x.start = own;
	x.count = own + ndim;
	x.stride = own + 2 * ndim;
	x.flip_every = p->t.flip_every;
	x.flip_at = p->t.flip_at;
	shf_buf_add(&c->f->pieces, &x, sizeof(x));
	w->n++;
	return c->f->pieces.oom ? shf_ckpt_no_memory(c) : 0;
}

/* Finds the part of a rank, which must have this shape. shape NULL: any. A rank has one place in a
 * tensor: if the metadata give it a second one, the values there would be those of the first. */
static int find_part(struct shf_ckpt *c, struct whole *w, int64_t rank, const int64_t *shape,
                     struct shf_ckpt_part **out)
{
	struct shf_ckpt_part *p = shf_ckpt_part_of(c, w->name, rank);
	char why[120];

	snprintf(why, sizeof(why), "the file of rank %" PRId64 " does not have it, or has another "
	         "shape or type of it", rank);
	if (!p || (p->t.ndim != w->ndim &&
	           (p->t.ndim != w->ndim + 1 || p->t.dims[w->ndim] != 2)) ||
	    (w->t.name && (p->t.dtype != w->t.dtype || p->t.ndim != w->t.ndim)))
		return shf_ckpt_bad(c, w->name, why);
	for (int32_t d = 0; d < w->ndim && shape; d++)
		if (p->t.dims[d] != shape[d])
			return shf_ckpt_bad(c, w->name, why);
	snprintf(why, sizeof(why), "rank %" PRId64 " has two places in it", rank);
	if (p->used)
		return shf_ckpt_bad(c, w->name, why);
	p->used = true;
	if (!w->t.name) {
		w->t = p->t;
		w->t.flip_every = 0;            /* each piece has its own */
		w->dims[w->ndim] = 2;
		w->t.dims = w->dims;
	}
	*out = p;
	return 0;
}

/* A mesh of ranks, and how the tensor is placed on each dimension of the mesh. */
struct mesh {
	const struct shf_pk *ranks;     /* row-major */
	int32_t dims;
	int64_t shape[MESH_DIMS], at[MESH_DIMS];        /* at: the current coordinate */
	int64_t dim[MESH_DIMS];         /* the dimension of the tensor that this one cuts; -1: it
	                                 * replicates */
	int64_t factor[MESH_DIMS];      /* split_factor of a StridedShard; 1: a Shard */
};

static bool read_mesh(struct mesh *m, const struct whole *w, const struct shf_pk *data)
{
	const struct shf_pk *spec = shf_pk_get(data, "mesh_spec");
	const struct shf_pk *shape = shf_pk_get(spec, "mesh_shape");
	const struct shf_pk *placements = shf_pk_get(data, "placements");
	int64_t ranks = 1;

	*m = (struct mesh){ .ranks = shf_pk_get(spec, "mesh_data") };
	if (!shape || shape->n > MESH_DIMS || !m->ranks || m->ranks->n > RANKS_MAX ||
	    !shf_pk_is_row(m->ranks) || !shf_pk_counts(m->shape, shape, shape->n, shf_pk_int) ||
	    !placements || placements->kind != SHF_PK_LIST || placements->n != shape->n)
		return false;
	m->dims = (int32_t)shape->n;
	for (int32_t i = 0; i < m->dims; i++) {
		const struct shf_pk *of = placements->u.a[i], *type = shf_pk_get(of, "type");

		if (m->shape[i] < 1 || m->shape[i] > RANKS_MAX)
			return false;
		ranks = ranks > RANKS_MAX ? ranks : ranks * m->shape[i];
		m->dim[i] = -1;
		m->factor[i] = 1;
		if (shf_pk_text_is(type, "Replicate"))
			continue;
		if ((!shf_pk_text_is(type, "Shard") && !shf_pk_text_is(type, "StridedShard")) ||
		    !shf_pk_int(shf_pk_get(of, "dim"), &m->dim[i]) || m->dim[i] < 0 ||
		    m->dim[i] >= w->ndim)
			return false;
		if (shf_pk_text_is(type, "StridedShard") &&
		    (!shf_pk_int(shf_pk_get(of, "split_factor"), &m->factor[i]) ||
		     m->factor[i] < 1 || m->factor[i] > SHF_TORCH_RUNS_MAX))
			return false;
	}
	return ranks == m->ranks->n;
}

/* Moves to the next coordinate, and returns false after the last one. Of replicas only the first is
 * visited. */
static bool mesh_next(struct mesh *m)
{
	for (int32_t i = m->dims - 1; i >= 0; i--) {
		if (m->dim[i] >= 0 && ++m->at[i] < m->shape[i])
			return true;
		m->at[i] = 0;
	}
	return false;
}

/* Adds a piece for each combination of one run along each dimension. Along a dimension, the part
 * has its runs one after the other. */
static int ckpt_add_runs(struct shf_ckpt *c, struct whole *w, const struct shf_ckpt_part *p,
                         const struct shf_torch_runs *runs)
{
	size_t i[SHF_FOREIGN_DIMS_MAX] = { 0 };
	int64_t start[SHF_FOREIGN_DIMS_MAX], count[SHF_FOREIGN_DIMS_MAX];
	int64_t local[SHF_FOREIGN_DIMS_MAX] = { 0 };
	int rc = 0, d;

	do {
		for (d = 0; d < w->ndim; d++) {
			start[d] = shf_torch_runs_at(&runs[d], i[d])->start;
			count[d] = shf_torch_runs_at(&runs[d], i[d])->count;
		}
		rc = ckpt_add_box(c, w, p, start, count, local);
		for (d = w->ndim - 1; d >= 0; d--) {
			local[d] += count[d];
			if (++i[d] < shf_torch_runs_n(&runs[d]))
				break;
			i[d] = 0;
			local[d] = 0;
		}
	} while (d >= 0 && rc == 0);
	return rc;
}

/* Adds the pieces of the rank at the current coordinate. runs: room, by dimension. */
static int add_at_mesh(struct shf_ckpt *c, struct whole *w, const struct mesh *m,
                       struct shf_torch_runs *runs)
{
	int64_t shape[SHF_FOREIGN_DIMS_MAX], rank, items = 1;
	size_t place = 0;
	struct shf_ckpt_part *p = NULL;
	bool good = true;
	int rc;

	for (int32_t d = 0; d < w->ndim; d++)
		good = good && shf_torch_runs_whole(&runs[d], w->dims[d]);
	for (int32_t i = 0; i < m->dims; i++) {
		place = place * (size_t)m->shape[i] + (size_t)m->at[i];
		if (m->dim[i] >= 0)
			good = good && shf_torch_runs_strided(&runs[m->dim[i]], m->factor[i],
			                                      m->shape[i], m->at[i]);
	}
	for (int32_t d = 0; d < w->ndim; d++)
		c->oom |= runs[d].a.oom;
	if (!good)
		return shf_ckpt_bad(c, w->name, "is cut into more runs of items than are read");
	for (int32_t d = 0; d < w->ndim; d++) {
		shape[d] = shf_torch_runs_count(&runs[d]);
		items = shape[d] ? items : 0;
	}
	if (!shf_pk_int(m->ranks->u.a[place], &rank))
		return shf_ckpt_bad(c, w->name, "its mesh has a rank that is not a number");
	rc = find_part(c, w, rank, items ? shape : NULL, &p);
	return rc < 0 || !items ? rc : ckpt_add_runs(c, w, p, runs);
}

/* Adds a tensor that is placed on a mesh. */
static int add_on_mesh(struct shf_ckpt *c, struct whole *w, const struct shf_pk *data)
{
	struct shf_torch_runs runs[SHF_FOREIGN_DIMS_MAX] = { { SHF_BUF_INIT } };
	struct mesh m;
	int rc = read_mesh(&m, w, data) ? 0
	       : shf_ckpt_bad(c, w->name, "has a mesh or a placement of unknown structure");

	while (rc == 0) {
		rc = add_at_mesh(c, w, &m, runs);
		if (!mesh_next(&m))
			break;
	}
	for (int32_t d = 0; d < w->ndim; d++)
		shf_torch_runs_release(&runs[d]);
	return rc;
}

/* Adds the boxes that the metadata list for a rank. */
static int add_said_boxes(struct shf_ckpt *c, struct whole *w, const struct shf_pk *data,
                          int64_t rank)
{
	const struct shf_pk *starts = shf_pk_get(data, "global_offsets");
	const struct shf_pk *locals = shf_pk_get(data, "local_offsets");
	const struct shf_pk *counts = shf_pk_get(data, "local_sizes");
	int64_t start[SHF_FOREIGN_DIMS_MAX], count[SHF_FOREIGN_DIMS_MAX];
	int64_t local[SHF_FOREIGN_DIMS_MAX];
	struct shf_ckpt_part *p = NULL;
	int rc = find_part(c, w, rank, NULL, &p);

	if (rc == 0 && (!starts || !locals || !counts || starts->kind != SHF_PK_LIST ||
	                locals->kind != SHF_PK_LIST || counts->kind != SHF_PK_LIST ||
	                starts->n != locals->n || starts->n != counts->n))
		rc = shf_ckpt_bad(c, w->name, "has boxes of unknown structure");
	for (uint32_t i = 0; rc == 0 && i < starts->n; i++) {
		int64_t items = 1;

		if (!shf_pk_counts(start, starts->u.a[i], (uint32_t)w->ndim, shf_pk_int) ||
		    !shf_pk_counts(count, counts->u.a[i], (uint32_t)w->ndim, shf_pk_int) ||
		    !shf_pk_counts(local, locals->u.a[i], (uint32_t)w->ndim, shf_pk_int))
			return shf_ckpt_bad(c, w->name, "has boxes of unknown structure");
		for (int32_t d = 0; d < w->ndim; d++) {
			if (count[d] > p->t.dims[d] || local[d] > p->t.dims[d] - count[d] ||
			    count[d] > w->dims[d] || start[d] > w->dims[d] - count[d])
				return shf_ckpt_bad(c, w->name, "has a box that leaves it");
			items = count[d] ? items : 0;
		}
		rc = items ? ckpt_add_box(c, w, p, start, count, local) : 0;
	}
	return rc;
}

/* Makes the name under which the parts of a tensor are listed: the item and the keys that lead to
 * the tensor in it, joined by dots. key: the keys, as a list in JSON. Returns NULL if it is no such
 * list, or if there is no memory (c->oom). */
static const char *path_name(struct shf_ckpt *c, const struct shf_pk *key)
{
	struct shf_buf name = SHF_BUF_INIT;
	const char *text, *own = NULL;
	struct shf_json j;
	size_t n;

	if (key->kind != SHF_PK_STR)
		return NULL;
	shf_buf_adds(&name, c->item);
	shf_json_init(&j, key->u.s, key->n);
	if (shf_json_next(&j) == SHF_JSON_ARRAY)
		while (shf_json_next(&j) == SHF_JSON_STRING || j.kind == SHF_JSON_NUMBER) {
			text = shf_json_text(&j, &n);
			shf_buf_adds(&name, ".");
			shf_buf_add(&name, text, n);
		}
	c->oom |= name.oom || j.scratch.oom;
	if (j.kind == SHF_JSON_ARRAY_END && !c->oom) {
		own = shf_arena_strdup(&c->f->arena, (const char *)name.data, name.len);
		c->oom |= !own;
	}
	shf_json_release(&j);
	shf_buf_release(&name);
	return own;
}

/* Reads the shape of a tensor. Returns false if it is no shape, or if the tensor is too large. */
static bool ckpt_shape(struct whole *w, const struct shf_pk *data)
{
	const struct shf_pk *shape = shf_pk_get(data, "global_shape");
	uint64_t items = 16;

	if (!shape || shape->n >= SHF_FOREIGN_DIMS_MAX ||
	    !shf_pk_counts(w->dims, shape, shape->n, shf_pk_int))
		return false;
	w->ndim = (int32_t)shape->n;
	for (int32_t d = 0; d < w->ndim; d++)
		if (!shf_mul64(&items, items, w->dims[d] ? (uint64_t)w->dims[d] : 1) ||
		    items > INT64_MAX)
			return false;
	return true;
}

/* Adds a tensor to the list, after its pieces were added. */
static int end_whole(struct shf_ckpt *c, struct whole *w)
{
	struct shf_foreign_tensor x = w->t;
	char why[300];
	int rc;

	x.n = w->n;
	rc = shf_foreign_cover(c->f, &x, w->n, why);
	if (rc != 0)
		return rc < 0 ? shf_ckpt_no_memory(c) : shf_ckpt_bad(c, w->name, why);
	return shf_foreign_add_tensor(c->f, &x, w->name, strlen(w->name), c->err);
}

/* Adds the tensor that an entry of the metadata describes. The entry is a list of groups of ranks.
 * Each group says where the parts of its ranks lie. Of a DTensor, the mesh of the first group has
 * the whole tensor, and other groups are replicas. */
static int ckpt_add_whole(struct shf_ckpt *c, const struct shf_pk *key, const struct shf_pk *groups)
{
	struct whole w = { .name = path_name(c, key) };
	const struct shf_pk *said = shf_pk_get(shf_pk_at(groups, 0), "sharding_metadata"), *data;
	const struct shf_pk *type = shf_pk_get(said, "type");
	int64_t rank;
	int rc = 0;

	data = shf_pk_get(said, "data");
	if (!w.name || !said || !ckpt_shape(&w, data))
		return shf_ckpt_bad(c, w.name, "has an unknown structure");
	if (shf_pk_text_is(type, "DTensorShardingMetadata")) {
		rc = add_on_mesh(c, &w, data);
	} else if (shf_pk_text_is(type, "default_tensor_v1")) {
		for (uint32_t i = 0; i < groups->n && rc == 0; i++) {
			const struct shf_pk *of = groups->u.a[i];

			data = shf_pk_get(shf_pk_get(of, "sharding_metadata"), "data");
			rc = shf_pk_int(shf_pk_at(shf_pk_get(of, "ranks"), 0), &rank)
			   ? add_said_boxes(c, &w, data, rank)
			   : shf_ckpt_bad(c, w.name, "has a group without ranks");
		}
	} else {
		return shf_ckpt_bad(c, w.name, "is cut in an unknown way");
	}
	return rc == 0 ? end_whole(c, &w) : rc;
}

/* ---- the checkpoint ---- */

/* Adds a note for each tensor in the files that the metadata do not describe. */
static int note_unused(struct shf_ckpt *c)
{
	const struct shf_ckpt_part *p = (const struct shf_ckpt_part *)(const void *)c->parts.data;
	size_t n = c->parts.len / sizeof(*p);
	int rc = 0;

	for (size_t i = 0, next; i < n && rc == 0; i = next) {
		bool used = false;

		for (next = i; next < n && strcmp(p[next].t.name, p[i].t.name) == 0; next++)
			used |= p[next].used;
		if (used)
			continue;
		c->f->unread_n++;
		rc = shf_foreign_note(c->f, c->err, p[i].t.name, strlen(p[i].t.name),
		                      "a tensor that " METADATA " does not describe, which is not "
		                      "listed; open the file itself");
	}
	return rc;
}

static int ckpt_add_item(struct shf_ckpt *c, const struct shf_pk *of)
{
	const struct shf_pk *paths = shf_pk_get(of, "nested_path_to_metadata");
	int rc = shf_ckpt_add_files(c, shf_pk_get(of, "rank_to_layout_info"));

	if (rc == 0 && (!paths || paths->kind != SHF_PK_DICT))
		rc = shf_ckpt_bad(c, NULL, "an item has an unknown structure");
	for (uint32_t i = 0; rc == 0 && i < paths->n; i++)
		rc = ckpt_add_whole(c, paths->u.a[2 * i], paths->u.a[2 * i + 1]);
	return rc == 0 ? note_unused(c) : rc;
}

/* Reads metadata.pkl. */
static int read_metadata(struct shf_ckpt *c)
{
	const struct shf_pk *version;
	struct shf_region r;
	uint32_t file;
	int rc = shf_foreign_add_file(c->f, METADATA, strlen(METADATA), &file, c->err);

	if (rc == 0)
		rc = shf_foreign_region(c->f, file, &r, c->err);
	if (rc < 0)
		return rc;
	rc = shf_pickle_read_file(&c->pickle, &r, NULL, c->err);
	shf_foreign_region_end(c->f, file);
	if (rc < 0)
		return rc;
	version = shf_pk_get(c->pickle.root, "version");
	if (!shf_pk_text_is(version, VERSION))
		return shf_fail(c->err, SHEAF_EFORMAT, "%s/" METADATA ": is of version %.*s; "
		                VERSION " is read", c->f->path,
		                version && version->kind == SHF_PK_STR && version->n < 20
		                ? (int)version->n : 1,
		                version && version->kind == SHF_PK_STR && version->n < 20
		                ? version->u.s : "?");
	if (!shf_pk_int(shf_pk_get(c->pickle.root, "world_size"), &c->ranks) || c->ranks < 1)
		return shf_ckpt_bad(c, NULL, "does not say how many ranks there were");
	return 0;
}

static int open_torch_ckpt(struct shf_foreign *f, struct sheaf_error *err)
{
	struct shf_ckpt c = { .f = f, .err = err };
	const struct shf_pk *items;
	int rc = read_metadata(&c);

	items = rc == 0 ? shf_pk_get(c.pickle.root, "metadata") : NULL;
	if (rc == 0 && (!items || items->kind != SHF_PK_DICT))
		rc = shf_ckpt_bad(&c, NULL, "has an unknown structure");
	for (uint32_t i = 0; rc == 0 && i < items->n; i++) {
		c.item = shf_ckpt_text(&c, items->u.a[2 * i]);
		shf_buf_reset(&c.parts);
		rc = c.item ? ckpt_add_item(&c, items->u.a[2 * i + 1])
		   : shf_ckpt_bad(&c, NULL, "has an item without a name");
	}
	if (rc == 0)
		rc = shf_foreign_check_names(f, err);
	shf_buf_release(&c.parts);
	shf_pickle_release(&c.pickle);
	return rc;
}

/* Verifies the files of ranks. The metadata have no checksums, and no values of tensors. */
static int verify_torch_ckpt(struct shf_foreign *f, struct shf_foreign_findings *to,
                             struct sheaf_error *err)
{
	bool unproved = false;
	int rc = 0;

	for (uint32_t i = 0; i < shf_foreign_files(f) && rc == 0; i++) {
		if (strcmp(shf_foreign_file(f, i)->name, METADATA) == 0)
			continue;
		to->unproved = false;
		rc = shf_zip_verify_file(f, i, to, err);
		unproved |= to->unproved;
	}
	to->unproved = unproved;
	return rc;
}

const struct shf_foreign_format shf_torch_ckpt = {
	.name = "torch.checkpointing",
	.is_dir = is_torch_ckpt,
	.open = open_torch_ckpt,
	.verify = verify_torch_ckpt,
};
