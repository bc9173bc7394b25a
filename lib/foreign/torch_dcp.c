/* SPDX-License-Identifier: Apache-2.0 */
/* Directories of torch.distributed.checkpoint (DCP): `.metadata`, a pickle, says of each tensor its
 * shape and the boxes it was cut into, and of each box the file, offset and length of an item. An
 * item is a whole archive of torch.save with one tensor, whose strides only it knows, so it is
 * opened when it is first read. A save without a coordinator has a `__<rank>.metadata` of each
 * rank instead, with the boxes of that rank.
 *
 * Source: torch/distributed/checkpoint/metadata.py and filesystem.py of torch 2.13, and directories
 * that it wrote. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "foreign.h"
#include "torch_dcp.h"
#include "torch_dcp_flat.h"
#include "torch_dcp_index.h"
#include "torch_dcp_item.h"
#include "torch_dcp_states.h"
#include "torch_walk.h"
#include "torch_zip.h"
#include "valid.h"

#define BYTES_SHOWN (UINT64_C(64) << 10)        /* byte items up to this size are looked into */

/* ---- recognising it ---- */

/* one: there is a .metadata; data: .distcp files; weights: safetensors files, of which a directory
 * of Hugging Face may have some beside a stray .distcp file; ranks: number of files of metadata by
 * rank. */
struct dcp_names { bool one, data, weights; uint32_t ranks; };

/* Notes what kind of file a name is; callback of shf_sys_list. */
static int dcp_see_name(void *arg, const char *name)
{
	struct dcp_names *d = arg;
	size_t n = strlen(name);
	char end[10];
	unsigned rank;

	d->one |= strcmp(name, ".metadata") == 0;
	d->data |= n > 7 && strcmp(name + n - 7, ".distcp") == 0;
	d->weights |= strstr(name, ".safetensors") != NULL;
	if (sscanf(name, "__%u.%9s", &rank, end) == 2 && strcmp(end, "metadata") == 0)
		d->ranks++;
	return 0;
}

static int dcp_list(const struct shf_sys *sys, int dir, const char *path, struct dcp_names *d,
                    struct sheaf_error *err)
{
	int rc;

	*d = (struct dcp_names){ 0 };
	rc = shf_sys_list(sys, dir, dcp_see_name, d);
	return rc < 0 ? shf_fail_sys(err, -rc, "%s", path) : 0;
}

/* Whether the first bytes of a file are those of a pickle that names DCP's classes. */
static bool begins_as_metadata(const struct shf_sys *sys, int dir, const char *name)
{
	static const char module[] = "torch.distributed.checkpoint.metadata";
	uint8_t head[256];
	int fd = shf_sys_open(sys, dir, name, 0, 0);
	int64_t n = fd < 0 ? 0 : shf_sys_pread(sys, fd, head, sizeof(head), 0);

	if (fd >= 0)
		shf_sys_close(sys, fd);
	for (int64_t i = 0; i + (int64_t)sizeof(module) <= n && head[0] == 0x80; i++)
		if (memcmp(head + i, module, sizeof(module) - 1) == 0)
			return true;
	return false;
}

bool shf_dcp_has_metadata(const struct shf_sys *sys, int dir)
{
	return begins_as_metadata(sys, dir, ".metadata");
}

static int is_dcp(const struct shf_sys *sys, int dir, const char *path, const char **why,
                  struct sheaf_error *err)
{
	struct dcp_names d;
	int rc = dcp_list(sys, dir, path, &d, err);

	if (rc < 0)
		return rc;
	*why = "a directory with .metadata, a pickle of torch.distributed.checkpoint";
	if (d.one)
		return begins_as_metadata(sys, dir, ".metadata");
	*why = "a directory with __<rank>.metadata, pickles of torch.distributed.checkpoint";
	if (d.ranks)
		return begins_as_metadata(sys, dir, "__0.metadata");
	if (d.data && !d.weights)
		return shf_fail(err, SHEAF_EFORMAT, "%s: has .distcp files, but no .metadata of "
		                "torch.distributed.checkpoint: its save has not finished, or "
		                "another program wrote it", path);
	return 0;
}

/* ---- the metadata ---- */

struct dcp {
	struct shf_foreign *f;
	struct shf_dcp_index index;
	struct shf_dcp_flats flats;
	const struct shf_torch_show *show;      /* NULL: names are shown as they are */
	bool flat;                      /* it may have flat tensors */
	struct shf_pickle *pickles;     /* owned */
	int files_n;
	struct sheaf_error *err;
};

static int dcp_bad(const struct dcp *d, const char *name, size_t n, const char *why)
{
	const char *safe = shf_name_escape(&d->f->arena, name, n);

	return shf_fail(d->err, SHEAF_EFORMAT, "%s: %s%.*s: %s", d->f->path, n ? "tensor " : "",
	                safe && n ? shf_name_show(safe) : 10, safe && n ? safe : ".metadata", why);
}

static int dcp_no_memory(const struct dcp *d)
{
	return shf_fail(d->err, SHEAF_ENOMEM, "%s: no memory for its metadata", d->f->path);
}

/* Reads one file of metadata, in portions. */
static int dcp_read_file(struct dcp *d, const char *name, int i)
{
	const struct shf_pickle_taker taker = { .take = shf_dcp_index_take, .arg = &d->index };
	const struct shf_sys *sys = d->f->in;
	struct shf_region r = { .sys = sys, .fd = -1 };
	struct shf_buf where = SHF_BUF_INIT;
	struct shf_stat st;
	int rc;

	shf_buf_addf(&where, "%s/%s", d->f->path, name);
	shf_buf_u8(&where, 0);
	if (where.oom) {
		shf_buf_release(&where);
		return dcp_no_memory(d);
	}
	r.where = (const char *)where.data;
	r.fd = shf_sys_open(sys, d->f->dir, name, 0, 0);
	rc = r.fd < 0 ? r.fd : shf_sys_fstat(sys, r.fd, &st);
	if (rc < 0)
		rc = shf_fail_sys(d->err, -rc, "%s", r.where);
	r.bytes = rc < 0 ? 0 : st.bytes;
	if (rc >= 0 && (st.type != SHF_T_FILE || st.bytes > SHF_PICKLE_MAX))
		rc = shf_fail(d->err, SHEAF_EFORMAT, "%s: is not a file of at most 1 GiB", r.where);
	d->index.left += 64 * r.bytes + (1 << 20);
	if (rc >= 0)
		rc = shf_pickle_read_file(&d->pickles[i], &r, &taker, d->err);
	if (r.fd >= 0)
		shf_sys_close(sys, r.fd);
	shf_buf_release(&where);
	return rc;
}

/* Reads all files of metadata. */
static int dcp_read(struct dcp *d)
{
	struct dcp_names names;
	const char *twice;
	uint32_t twice_n;
	int rc = dcp_list(d->f->in, d->f->dir, d->f->path, &names, d->err);

	if (rc < 0)
		return rc;
	d->files_n = names.one ? 1 : (int)names.ranks;
	d->pickles = shf_zalloc((size_t)d->files_n, sizeof(*d->pickles));
	if (!d->pickles)
		return dcp_no_memory(d);
	d->index.many = d->files_n > 1;
	d->index.kept = &d->f->arena;
	for (int i = 0; i < d->files_n && rc == 0; i++) {
		char name[40];

		snprintf(name, sizeof(name), "__%d.metadata", i);
		rc = dcp_read_file(d, names.one ? ".metadata" : name, i);
		if (rc == 0)
			rc = d->index.oom ? dcp_no_memory(d)
			   : shf_dcp_index_end(&d->index, d->pickles[i].root)
			   ? 0 : dcp_bad(d, "", 0, "is not Metadata of torch.distributed."
			                 "checkpoint as it is known");
	}
	if (rc == 0 && d->flat && !shf_dcp_flats_read(&d->flats, d->pickles[0].root))
		rc = d->flats.a.oom ? dcp_no_memory(d)
		   : dcp_bad(d, "", 0, "its mcore_data has an unknown structure");
	if (rc == 0 && shf_dcp_index_settle(&d->index, &twice, &twice_n))
		rc = dcp_bad(d, twice, twice_n, "has two places in the metadata for one chunk");
	return rc;
}

/* ---- tensors ---- */

/* Returns whether an earlier chunk is the same box as chunk i. */
static bool dcp_is_twice(const struct shf_dcp_tensor *t, uint32_t i)
{
	const int64_t *box = t->boxes + (size_t)i * 2 * t->width;

	for (uint32_t k = 0; k < i; k++)
		if (memcmp(t->boxes + (size_t)k * 2 * t->width, box,
		           2 * t->width * sizeof(*box)) == 0)
			return true;
	return false;
}

/* Finds the item of chunk i: *e, and the number of its file. Returns 1 if the chunk has items, 0 if
 * it has none, or a negative code. dims: of the tensor as it is stored. */
static int dcp_find_chunk(struct dcp *d, const struct shf_dcp_tensor *t, const int64_t *dims,
                          uint32_t i, const struct shf_dcp_place **e, uint32_t *number)
{
	const int64_t *start = t->boxes + (size_t)i * 2 * t->width, *count = start + t->width;
	const struct shf_foreign_file *file;
	char why[1000];
	int rc;

	for (int32_t k = 0; k < t->ndim; k++) {
		if (start[k] > dims[k] || count[k] > dims[k] - start[k])
			return dcp_bad(d, t->name, t->name_n, "has a chunk that leaves it");
		if (count[k] == 0)
			return 0;
	}
	*e = shf_dcp_index_find(&d->index, t, i);
	if (!*e)
		return dcp_bad(d, t->name, t->name_n, dcp_is_twice(t, i) ? "has a chunk twice"
		                                      : "has a chunk that is in no file");
	if (shf_dcp_index_unknown(&d->index, *e)) {
		snprintf(why, sizeof(why), "is stored through a transformation that is not read: "
		         "%s", shf_dcp_index_unknown(&d->index, *e));
		return dcp_bad(d, t->name, t->name_n, why);
	}
	rc = shf_foreign_add_file(d->f, (*e)->path, (*e)->path_n, number, d->err);
	if (rc < 0)
		return rc;
	file = shf_foreign_file(d->f, *number);
	if ((*e)->bytes == 0 || (*e)->at > file->bytes || (*e)->bytes > file->bytes - (*e)->at)
		return dcp_bad(d, t->name, t->name_n, "has a chunk beyond the end of its file");
	return 1;
}

/* Adds the pieces of chunk i. Returns how many, or a negative code. */
static int dcp_add_chunk(struct dcp *d, const struct shf_dcp_tensor *t,
                         const struct shf_foreign_tensor *x, bool flat, uint32_t i)
{
	const int64_t *start = t->boxes + (size_t)i * 2 * t->width;
	struct shf_foreign_piece p = { .start = start, .count = start + t->width };
	const struct shf_dcp_place *e = NULL;
	int rc = dcp_find_chunk(d, t, flat ? t->dims : x->dims, i, &e, &p.file);

	if (rc <= 0)
		return rc;
	if (flat)
		return shf_dcp_flat_add(d->f, x, t, i, p.file, e, d->err);
	p.at = e->at;
	p.item_bytes = e->bytes;
	p.item_codec = (uint8_t)shf_dcp_codec(e);
	shf_buf_add(&d->f->pieces, &p, sizeof(p));
	return d->f->pieces.oom ? dcp_no_memory(d) : 1;
}

/* Checks that the last `n` pieces tile the tensor: every item is in one of them. */
static int dcp_check_cover(struct dcp *d, const struct shf_dcp_tensor *t,
                           const struct shf_foreign_tensor *x, size_t n)
{
	char why[300];
	int rc = shf_foreign_cover(d->f, x, n, why);

	return rc < 0 ? dcp_no_memory(d) : rc ? dcp_bad(d, t->name, t->name_n, why) : 0;
}

/* Adds the pieces of all chunks; *n gets their number. */
static int dcp_add_chunks(struct dcp *d, const struct shf_dcp_tensor *t,
                          const struct shf_foreign_tensor *x, bool flat, size_t *n)
{
	*n = 0;
	if (t->is_odd)
		return dcp_bad(d, t->name, t->name_n, "has a chunk of unknown structure");
	for (uint32_t i = 0; i < t->chunks_n; i++) {
		int rc = dcp_add_chunk(d, t, x, flat, i);

		if (rc < 0)
			return rc;
		*n += (size_t)rc;
	}
	return 0;
}

/* Piece i of those that dcp_join() joins, which is in the metadata of that rank. */
struct dcp_joined { const struct shf_foreign_piece *piece; size_t i, rank; int ndim; };

static int compare_boxes(const struct dcp_joined *a, const struct dcp_joined *b)
{
	const struct shf_foreign_piece *x = a->piece, *y = b->piece;

	for (int d = 0; d < a->ndim; d++) {
		if (x->start[d] != y->start[d])
			return x->start[d] < y->start[d] ? -1 : 1;
		if (x->count[d] != y->count[d])
			return x->count[d] < y->count[d] ? -1 : 1;
	}
	return 0;
}

static int dcp_joined_order(const void *a, const void *b)
{
	const struct dcp_joined *x = a, *y = b;
	int c = compare_boxes(x, y);

	return c ? c : (x->i > y->i) - (x->i < y->i);
}

/* Of the last *n pieces, keeps those of the lowest rank that has a box, and drops the same box of
 * other ranks: they have it, too, if the tensor is replicated. What is dropped is still an item
 * that is verified. ends: for each rank, where its pieces end. */
static int dcp_join(struct dcp *d, const size_t *ends, size_t *n, int ndim)
{
	struct shf_foreign_piece *p = (struct shf_foreign_piece *)(void *)d->f->pieces.data;
	struct dcp_joined *a = shf_alloc(*n + 1, sizeof(*a));
	bool *drop = shf_zalloc(*n + 1, sizeof(*drop));
	size_t left = 0;

	p = *n ? p + d->f->pieces.len / sizeof(*p) - *n : NULL;
	for (size_t i = 0, rank = 0; a && drop && i < *n; i++) {
		while (i >= ends[rank])
			rank++;
		a[i] = (struct dcp_joined){ &p[i], i, rank, ndim };
	}
	if (a && drop) {
		qsort(a, *n, sizeof(*a), dcp_joined_order);
		for (size_t i = 1, lowest = 0; i < *n; i++) {
			lowest = compare_boxes(&a[lowest], &a[i]) ? i : lowest;
			drop[a[i].i] = a[i].rank != a[lowest].rank;
		}
		for (size_t i = 0; i < *n; i++) {
			if (drop[i])
				shf_dcp_list_item(&d->f->items, &p[i]);
			else
				p[left++] = p[i];
		}
		d->f->pieces.len -= (*n - left) * sizeof(*p);
		*n = left;
	}
	shf_free(a);
	shf_free(drop);
	return a && drop && !d->f->items.oom ? 0 : dcp_no_memory(d);
}

/* Adds the pieces of a tensor, which has `same` records, one of each rank. *n gets the number of
 * pieces. */
static int dcp_add_ranks(struct dcp *d, const struct shf_dcp_tensor *t, size_t same,
                         const struct shf_foreign_tensor *x, bool flat, size_t *n)
{
	size_t *ends = shf_alloc(same, sizeof(*ends));
	int rc = ends ? 0 : dcp_no_memory(d);

	*n = 0;
	for (size_t i = 0; i < same && rc == 0; i++) {
		size_t more = 0;

		if (shf_dcp_is_same(t, &t[i]))
			rc = dcp_add_chunks(d, &t[i], x, flat, &more);
		else
			rc = dcp_bad(d, t->name, t->name_n, "has another size or dtype in the "
			             "metadata of another rank");
		*n += more;
		if (rc == 0)
			ends[i] = *n;
	}
	if (rc == 0 && same > 1)
		rc = dcp_join(d, ends, n, x->ndim);
	shf_free(ends);
	return rc;
}

/* Adds a tensor to the list, under the name that it is shown by. */
static int dcp_list_tensor(struct dcp *d, const struct shf_dcp_tensor *t,
                           struct shf_foreign_tensor *x)
{
	struct shf_buf shown = SHF_BUF_INIT;
	int rc;

	if (!d->show)
		return shf_foreign_add_tensor(d->f, x, t->name, t->name_n, d->err);
	d->show->show(d->show->arg, t->name, t->name_n, &x->family, &shown);
	rc = shown.oom ? dcp_no_memory(d)
	   : shf_foreign_add_tensor(d->f, x, shown.len ? (const char *)shown.data : "", shown.len,
	                            d->err);
	shf_buf_release(&shown);
	return rc;
}

/* Adds a tensor. t: the first of `same` records of its name; there are several if each rank has
 * metadata of its own. */
static int dcp_add_tensor(struct dcp *d, const struct shf_dcp_tensor *t, size_t same)
{
	int64_t dims[SHF_FOREIGN_DIMS_MAX];
	struct shf_foreign_tensor x = { .dims = dims };
	const struct shf_pk *shape = shf_dcp_flats_shape(&d->flats, t->name, t->name_n);
	bool pair = false;
	size_t n;
	int rc;

	if (!shf_torch_dtype(t->dtype, &x.dtype, &pair))
		return shf_foreign_note(d->f, d->err, t->name, t->name_n,
		                        "a tensor of a dtype that is not read");
	if (t->ndim >= SHF_FOREIGN_DIMS_MAX)
		return dcp_bad(d, t->name, t->name_n, "has more than 64 dimensions");
	if (shape && !shf_dcp_flat_dims(dims, t, shape))
		return dcp_bad(d, t->name, t->name_n, "is stored flat, in a shape that its true "
		               "shape in mcore_data does not fit");
	if (!shape)
		memcpy(dims, t->dims, (size_t)t->ndim * sizeof(*dims));
	x.ndim = shape ? (int32_t)shape->n : t->ndim;
	if (pair)
		dims[x.ndim++] = 2;
	rc = dcp_add_ranks(d, t, same, &x, shape != NULL, &n);
	if (rc == 0)
		rc = dcp_check_cover(d, t, &x, n);
	x.n = n;
	return rc < 0 ? rc : dcp_list_tensor(d, t, &x);
}

/* Notes a value that is no tensor, and what is in it. *read gets whether that was possible. */
static int dcp_read_bytes(struct dcp *d, const struct shf_dcp_tensor *t,
                          const struct shf_foreign_item *of, bool *read)
{
	char *name = shf_arena_strdup(&d->f->arena, t->name, t->name_n);
	struct shf_torch_zip zip = { 0 };
	struct shf_dcp_item item;
	struct sheaf_error own;
	int rc = shf_dcp_item_open(&item, d->f, of, BYTES_SHOWN, &own);

	if (rc == 0)
		rc = shf_torch_zip_open(&zip, &item.region, &own);
	if (rc == 0)
		rc = name ? shf_torch_walk_notes(d->f, &zip.pickle, zip.pickle.root, name, &own)
		          : dcp_no_memory(d);
	*read = rc == 0;
	shf_torch_zip_release(&zip);
	shf_dcp_item_end(&item);
	if (rc == 0 || rc == SHEAF_EFORMAT)     /* what is not read is noted */
		return 0;
	if (name)
		*d->err = own;
	return rc;
}

/* Lists the item of a value that is no tensor, and notes the value. */
static int dcp_add_bytes(struct dcp *d, const struct shf_dcp_tensor *t)
{
	const struct shf_dcp_place *e = shf_dcp_index_find(&d->index, t, 0);
	struct shf_foreign_item item = { 0 };
	const char *unknown = e ? shf_dcp_index_unknown(&d->index, e) : NULL;
	const struct shf_foreign_file *file;
	bool read = false;
	int rc;

	if (!e)
		return dcp_bad(d, t->name, t->name_n, "is in no file");
	rc = shf_foreign_add_file(d->f, e->path, e->path_n, &item.file, d->err);
	if (rc < 0)
		return rc;
	file = shf_foreign_file(d->f, item.file);
	if (e->at > file->bytes || e->bytes > file->bytes - e->at)
		return dcp_bad(d, t->name, t->name_n, "is beyond the end of its file");
	item.codec = (uint8_t)shf_dcp_codec(e);
	item.at = e->at;
	item.bytes = e->bytes;
	item.name = shf_name_escape(&d->f->arena, t->name, t->name_n);
	if (!item.name)
		return dcp_no_memory(d);
	shf_buf_add(&d->f->items, &item, sizeof(item));
	if (d->f->items.oom)
		return dcp_no_memory(d);
	if (e->bytes <= BYTES_SHOWN && !unknown)
		rc = dcp_read_bytes(d, t, &item, &read);
	if (rc < 0 || read)
		return rc;
	if (unknown)
		return shf_foreign_note(d->f, d->err, t->name, t->name_n, "an object of %" PRIu64
		                        " bytes, stored through a transformation that is not read: "
		                        "%s", e->bytes, unknown);
	return shf_foreign_note(d->f, d->err, t->name, t->name_n, "an object of %" PRIu64
	                        " bytes, which sheaf does not read", e->bytes);
}

int shf_dcp_open(struct shf_foreign *f, const struct shf_torch_show *show, bool flat,
                 struct sheaf_error *err)
{
	struct dcp d = { .f = f, .show = show, .flat = flat, .err = err };
	const struct shf_dcp_tensor *t;
	size_t n, same;
	int rc = dcp_read(&d);

	t = (const struct shf_dcp_tensor *)(const void *)d.index.tensors.data;
	n = d.index.tensors.len / sizeof(*t);
	for (size_t i = 0; i < n && rc == 0; i += same) {
		bool twice = false;

		for (same = 1; i + same < n && t[i].name_n == t[i + same].name_n &&
		     memcmp(t[i].name, t[i + same].name, t[i].name_n) == 0; same++)
			twice |= t[i + same - 1].file == t[i + same].file;
		if (twice)
			rc = dcp_bad(&d, t[i].name, t[i].name_n, "is in the metadata twice");
		else
			rc = t[i].is_bytes ? dcp_add_bytes(&d, &t[i])
			                   : dcp_add_tensor(&d, &t[i], same);
	}
	for (int i = 0; d.pickles && i < d.files_n; i++)
		shf_pickle_release(&d.pickles[i]);
	shf_free(d.pickles);
	shf_dcp_index_release(&d.index);
	shf_dcp_flats_release(&d.flats);
	return rc;
}

static int open_dcp(struct shf_foreign *f, struct sheaf_error *err)
{
	int rc = shf_dcp_open(f, NULL, false, err);

	return rc < 0 ? rc : shf_dcp_states_rename(f, err);
}

const struct shf_foreign_format shf_torch_dcp = {
	.name = "torch.dcp",
	.is_dir = is_dcp,
	.open = open_dcp,
	.resolve = shf_dcp_resolve,
	.verify = shf_dcp_verify,
};
