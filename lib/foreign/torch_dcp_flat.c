/* SPDX-License-Identifier: Apache-2.0 */
/* Source: megatron/core/dist_checkpointing/strategies/torch.py and resharding.py of Megatron-Core
 * 0.12.1, and directories that it wrote.
 *
 * A range is several boxes of the tensor, and so several pieces of one item. Their strides are
 * known before the item is read; they are kept with two more numbers: where in the tensor of the
 * item the piece begins, and how many items that tensor has. */
#include "torch_dcp_flat.h"
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "sort.h"
#include "torch_tensor.h"

struct flat_shape { const char *name; uint32_t n; const struct shf_pk *shape; };

static int flat_order(const void *a, const void *b)
{
	const struct flat_shape *x = a, *y = b;
	int c = memcmp(x->name, y->name, x->n < y->n ? x->n : y->n);

	return c ? c : (x->n > y->n) - (x->n < y->n);
}

bool shf_dcp_flats_read(struct shf_dcp_flats *x, const struct shf_pk *root)
{
	const struct shf_pk *state = root && root->kind == SHF_PK_CALL ? root->u.call->state : NULL;
	const struct shf_pk *data = shf_pk_get(state, "mcore_data");

	if (!data || data->kind == SHF_PK_NONE)
		return true;
	if (data->kind != SHF_PK_DICT)
		return false;
	for (uint32_t i = 0; i < data->n; i++) {
		const struct shf_pk *key = data->u.a[2 * i], *shape;
		struct flat_shape s;

		if (key->kind != SHF_PK_STR || data->u.a[2 * i + 1]->kind != SHF_PK_DICT)
			return false;
		shape = shf_pk_get(data->u.a[2 * i + 1], "nd_reformulated_orig_global_shape");
		if (!shape)
			continue;       /* it is stored as it is */
		s = (struct flat_shape){ key->u.s, key->n, shf_torch_size(shape) };
		if (!s.shape)
			return false;
		shf_buf_add(&x->a, &s, sizeof(s));
	}
	if (!x->a.oom)
		shf_records_sort(x->a.data, x->a.len / sizeof(struct flat_shape),
		                 sizeof(struct flat_shape), flat_order);
	return !x->a.oom;
}

const struct shf_pk *shf_dcp_flats_shape(const struct shf_dcp_flats *x, const char *name,
                                         uint32_t n)
{
	const struct flat_shape want = { name, n, NULL }, *a = (const void *)x->a.data;
	size_t lo = 0, hi = x->a.len / sizeof(*a);

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		int c = flat_order(&a[mid], &want);

		if (c == 0)
			return a[mid].shape;
		if (c < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

bool shf_dcp_flat_dims(int64_t dims[SHEAF_DIMS_MAX], const struct shf_dcp_tensor *t,
                       const struct shf_pk *shape)
{
	uint64_t box = 1;

	if (shape->n > SHEAF_DIMS_MAX || t->ndim != (int32_t)shape->n + 1 ||
	    t->width != (uint32_t)t->ndim)
		return false;
	for (uint32_t i = 0; i < shape->n; i++)
		if (!shf_pk_int(shape->u.a[i], &dims[i]) || dims[i] <= 0 || t->dims[i] <= 0 ||
		    dims[i] % t->dims[i] ||
		    !shf_mul64(&box, box, (uint64_t)(dims[i] / t->dims[i])))
			return false;
	return box == (uint64_t)t->dims[shape->n];
}

int shf_dcp_flat_add(struct shf_foreign *f, const struct shf_foreign_tensor *x,
                     const struct shf_dcp_tensor *t, uint32_t chunk, uint32_t file,
                     const struct shf_dcp_place *place, struct sheaf_error *err)
{
	const int64_t *at = t->boxes + (size_t)chunk * 2 * t->width, *count = at + t->width;
	int64_t start[SHEAF_DIMS_MAX], box[SHEAF_DIMS_MAX], *own;
	struct shf_foreign_range r = { .start = start, .count = box, .lo = (uint64_t)at[x->ndim],
		.hi = (uint64_t)(at[x->ndim] + count[x->ndim]), .file = file };
	struct shf_foreign_piece *p;
	int n;

	for (int d = 0; d < x->ndim; d++) {
		if (count[d] != 1)
			return shf_fail(err, SHEAF_EFORMAT, "%s: a chunk of a flat tensor is more "
			                "than one box", f->path);
		box[d] = x->dims[d] / t->dims[d];
		start[d] = at[d] * box[d];
	}
	n = shf_foreign_add_range(f, x, &r, err);
	for (int i = 0; i < n; i++) {
		p = (struct shf_foreign_piece *)(void *)f->pieces.data;
		p += f->pieces.len / sizeof(*p) - (size_t)(n - i);
		own = shf_foreign_numbers(f, (size_t)x->ndim + 2);
		if (!own)
			return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of tensors",
			                f->path);
		memcpy(own, p->stride, (size_t)x->ndim * sizeof(*own));
		own[x->ndim] = (int64_t)p->at;          /* from the start of the range */
		own[x->ndim + 1] = count[x->ndim];
		p->stride = own;
		p->at = place->at;
		p->item_bytes = place->bytes;
		p->item_codec = (uint8_t)shf_dcp_codec(place);
	}
	return n;
}

bool shf_dcp_flat_is(const struct shf_foreign_piece *p, int32_t ndim, uint64_t *skip,
                     int64_t *items)
{
	if (!p->stride)
		return false;
	*skip = (uint64_t)p->stride[ndim];
	*items = p->stride[ndim + 1];
	return true;
}

void shf_dcp_flats_release(struct shf_dcp_flats *x)
{
	shf_buf_release(&x->a);
}
