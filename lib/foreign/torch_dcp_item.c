/* SPDX-License-Identifier: Apache-2.0 */
#include "torch_dcp_item.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "torch_dcp_flat.h"
#include "torch_place.h"
#include "torch_zip.h"
#include "valid.h"
#include "zip_verify.h"

#define ITEM_ROOM (UINT64_C(4) << 20)   /* decoded bytes of a compressed item that are kept while
                                         * its archive is read */
#define ITEM_MORE (UINT64_C(64) << 20)  /* decoded bytes that an item may have beside values */

int shf_dcp_item_open(struct shf_dcp_item *item, struct shf_foreign *f,
                      const struct shf_foreign_item *of, uint64_t most, struct sheaf_error *err)
{
	uint64_t decoded;
	int rc;

	*item = (struct shf_dcp_item){ .f = f, .file = of->file };
	rc = shf_foreign_region(f, of->file, &item->region, err);
	item->in_use = rc == 0;
	if (rc < 0)
		return rc;
	if (of->codec == SHF_CODEC_NONE) {
		item->region.off = of->at;
		item->region.bytes = of->bytes;
		return 0;
	}
	item->packed = (struct shf_packed){ .at = of->at, .bytes = of->bytes,
		.decoded = UINT64_MAX, .codec = of->codec, .frames = true };
	shf_unpacker_init(&item->unpacker, &item->packed, ITEM_ROOM);
	rc = shf_unpacker_measure(&item->unpacker, &item->region, most, &decoded, err);
	if (rc < 0)
		return rc;
	item->packed.decoded = item->region.bytes = decoded;
	item->region.unpacker = &item->unpacker;
	return 0;
}

void shf_dcp_item_end(struct shf_dcp_item *item)
{
	shf_unpacker_release(&item->unpacker);
	if (item->in_use)
		shf_foreign_region_end(item->f, item->file);
}

void shf_dcp_list_item(struct shf_buf *items, const struct shf_foreign_piece *p)
{
	struct shf_foreign_item item = { p->file, true, p->item_codec, p->at, p->item_bytes, NULL };

	shf_buf_add(items, &item, sizeof(item));
}

/* Returns whether the tensor in an item is the chunk that the metadata says it is. items: how many
 * items it must have if it is flat, which means it is one row; -1: it is not flat. */
static bool is_chunk(const struct shf_foreign_tensor *shown, const struct shf_foreign_tensor *t,
                     const struct shf_foreign_piece *p, int64_t items)
{
	if (!shown->dims || shown->dtype != t->dtype)
		return false;
	if (items < 0)
		return shown->ndim == t->ndim &&
		       memcmp(shown->dims, p->count, (size_t)t->ndim * sizeof(*p->count)) == 0;
	for (int i = 0; i < t->ndim && shown->ndim == t->ndim + 1; i++)
		if (shown->dims[i] != 1)
			return false;
	return shown->ndim == t->ndim + 1 && shown->dims[t->ndim] == items;
}

/* Sets the strides of a piece in a flat item. Returns -1 if the row that the item is has gaps. */
static int flat_strides(const struct shf_foreign_tensor *t, const struct shf_foreign_piece *p,
                        int64_t items, int64_t stride[SHF_FOREIGN_DIMS_MAX])
{
	if (items > 1 && stride[t->ndim] != shf_dtype(t->dtype)->bits / 8)
		return -1;
	memcpy(stride, p->stride, (size_t)t->ndim * sizeof(*stride));
	return 0;
}

/* Returns how many bytes the item of a piece may have when decoded. torch stores little more than
 * the values of the chunk, except in a storage that several tensors share, so this allows more. */
static uint64_t most_bytes(const struct shf_foreign_tensor *t, const struct shf_foreign_piece *p)
{
	uint64_t bytes = shf_dtype(t->dtype)->bits / 8u;

	for (int i = 0; i < t->ndim; i++)
		bytes *= (uint64_t)p->count[i];         /* a tensor has less than 2^63 bytes */
	return bytes > UINT64_MAX / 8 ? UINT64_MAX / 2 : 4 * bytes + ITEM_MORE;
}

/* Keeps the description of a compressed item as long as the checkpoint is open. NULL: no memory. */
static const struct shf_packed *keep_packed(struct shf_foreign *f, const struct shf_packed *packed)
{
	struct shf_packed *kept;

	pthread_mutex_lock(&f->lock);
	kept = shf_arena_alloc(&f->resolved, 1, sizeof(*kept));
	pthread_mutex_unlock(&f->lock);
	if (kept)
		*kept = *packed;
	return kept;
}

/* Finds the values of a chunk in its item, which is open. */
static int place_in_item(struct shf_dcp_item *item, const struct shf_foreign_tensor *t,
                         struct shf_foreign_piece *p, int64_t stride[SHF_FOREIGN_DIMS_MAX],
                         struct sheaf_error *err)
{
	const struct shf_region *r = &item->region;
	struct shf_torch_zip zip = { 0 };
	struct shf_torch_tensor have;
	int64_t dims[SHF_FOREIGN_DIMS_MAX], items = -1;
	struct shf_foreign_tensor shown = { 0 };
	const char *why;
	uint64_t at = 0, skip = 0;
	bool flat = shf_dcp_flat_is(p, t->ndim, &skip, &items);
	int rc = shf_torch_zip_open(&zip, r, err);

	if (rc == 0 && shf_torch_tensor_of(&have, zip.pickle.root, &why) == SHF_TENSOR_READ)
		shown = shf_torch_shown(&have, dims);
	if (rc == 0 && !is_chunk(&shown, t, p, items))
		rc = shf_fail(err, SHEAF_EFORMAT, "%s: the item at byte %" PRIu64 " is not the "
		              "chunk of tensor %.*s that the metadata says it is; is it of another "
		              "save?", r->where, p->at, shf_name_show(t->name), t->name);
	if (rc == 0)
		rc = shf_torch_zip_place(&zip, &have, t->name, &at, stride, err);
	if (rc == 0 && flat && flat_strides(t, p, items, stride) < 0)
		rc = shf_fail(err, SHEAF_EFORMAT, "%s: the item at byte %" PRIu64 ", a flat range "
		              "of tensor %.*s, has a stride, which sheaf does not read", r->where,
		              p->at, shf_name_show(t->name), t->name);
	if (rc == 0) {
		p->at = (r->unpacker ? 0 : p->at) + at + skip;
		p->flip_every = shown.flip_every;
		p->flip_at = shown.flip_at;
	}
	shf_torch_zip_release(&zip);
	return rc;
}

int shf_dcp_resolve(struct shf_foreign *f, const struct shf_foreign_tensor *t,
                    struct shf_foreign_piece *p, int64_t stride[SHF_FOREIGN_DIMS_MAX],
                    struct sheaf_error *err)
{
	const struct shf_foreign_item of = { p->file, true, p->item_codec, p->at, p->item_bytes,
		NULL };
	struct shf_dcp_item item;
	int rc = shf_dcp_item_open(&item, f, &of, most_bytes(t, p), err);

	if (rc == 0)
		rc = place_in_item(&item, t, p, stride, err);
	if (rc == 0 && item.region.unpacker) {
		p->packed = keep_packed(f, &item.packed);
		if (!p->packed)
			rc = shf_fail(err, SHEAF_ENOMEM, "%s: no memory for a tensor", f->path);
	}
	shf_dcp_item_end(&item);
	return rc;
}

/* Checks one item, whose bytes are the region r. An item of a value that is no tensor need not be
 * an archive, because some planners write none. Such an item has no checksums. */
static int dcp_verify_item(struct shf_region *r, const struct shf_foreign_item *item,
                           const char *file, struct shf_foreign_findings *to,
                           struct sheaf_error *err)
{
	struct shf_arena arena = { 0 };
	struct shf_zip zip;
	uint8_t head[4] = { 0 };
	int rc = r->bytes < 4 ? 0 : shf_region_read(r, head, 4, 0, err);

	if (rc == 0 && !item->tensor && shf_get32(head) != SHF_ZIP_MAGIC) {
		to->item = to->item ? to->item : item->name;
		to->unproved = true;
		return 0;
	}
	if (rc == 0)
		rc = shf_zip_open(&zip, r, &arena, err);
	if (rc == 0)
		rc = shf_zip_verify(&zip, r, file, item->at, to, err);
	shf_arena_release(&arena);
	return rc;
}

/* By file and place; at one place, items of tensors come first. */
static int dcp_item_order(const void *a, const void *b)
{
	const struct shf_foreign_item *x = a, *y = b;

	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	if (x->at != y->at)
		return x->at < y->at ? -1 : 1;
	return y->tensor - x->tensor;
}

/* Lists all items, in order: those that are listed already, and those of pieces that were not
 * read. */
static int dcp_items(struct shf_foreign *f, struct shf_buf *all, struct sheaf_error *err)
{
	const struct shf_foreign_piece *p = (const void *)f->pieces.data;
	size_t n = f->pieces.len / sizeof(*p);

	pthread_mutex_lock(&f->lock);
	if (f->items.len)
		shf_buf_add(all, f->items.data, f->items.len);
	for (size_t i = 0; i < n; i++)
		if (p[i].item_bytes)
			shf_dcp_list_item(all, &p[i]);
	pthread_mutex_unlock(&f->lock);
	if (all->oom)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for a list of its items",
		                f->path);
	if (all->len)
		qsort(all->data, all->len / sizeof(struct shf_foreign_item),
		      sizeof(struct shf_foreign_item), dcp_item_order);
	return 0;
}

/* Checks one item, and reports what is wrong with it. */
static int dcp_check_item(struct shf_foreign *f, const struct shf_foreign_item *of,
                          struct shf_foreign_findings *to, struct sheaf_error *err)
{
	const char *file = shf_foreign_file(f, of->file)->shown;
	struct sheaf_error e = { 0 };
	struct shf_dcp_item item;
	int rc = shf_dcp_item_open(&item, f, of, UINT64_MAX / 2, &e);

	if (rc == 0)
		rc = dcp_verify_item(&item.region, of, file, to, &e);
	shf_dcp_item_end(&item);
	if (rc == SHEAF_EFORMAT) {
		to->found(to->arg, false, file, (int64_t)of->at, &e);
		rc = 0;
	} else if (rc < 0) {
		*err = e;
	}
	return rc;
}

/* Checks each item once. */
int shf_dcp_verify(struct shf_foreign *f, struct shf_foreign_findings *to,
                   struct sheaf_error *err)
{
	struct shf_buf all = SHF_BUF_INIT;
	const struct shf_foreign_item *item;
	bool unproved = false;
	int rc = dcp_items(f, &all, err);

	item = (const void *)all.data;
	for (size_t i = 0; i < all.len / sizeof(*item) && rc == 0; i++) {
		if (i && item[i - 1].file == item[i].file && item[i - 1].at == item[i].at &&
		    item[i - 1].bytes == item[i].bytes)
			continue;
		to->unproved = false;
		rc = dcp_check_item(f, &item[i], to, err);
		unproved |= to->unproved;
	}
	shf_buf_release(&all);
	to->unproved = unproved;
	return rc;
}
