/* SPDX-License-Identifier: Apache-2.0 */
#include "torch_place.h"
#include <inttypes.h>
#include "dtype.h"
#include "err.h"
#include "valid.h"

/* Sets *end to the item after the last one, counted as the tensor's offset is. A tensor without
 * items ends at 0. Returns false if that exceeds 63 bits. */
static bool last_item(const struct shf_torch_tensor *t, uint64_t *end)
{
	uint64_t far, at = (uint64_t)t->at;

	*end = 0;
	for (int d = 0; d < t->ndim; d++)
		if (t->dims->u.a[d]->u.i == 0)
			return true;
	for (int d = 0; d < t->ndim; d++)
		if (!shf_mul64(&far, (uint64_t)t->dims->u.a[d]->u.i - 1,
		               (uint64_t)t->strides->u.a[d]->u.i) ||
		    !shf_add64(&at, at, far) || at >= INT64_MAX / 16)
			return false;
	*end = at + 1;
	return at < INT64_MAX / 16;
}

int shf_torch_place(const struct shf_torch_tensor *t, uint64_t have, const char *where,
                    const char *name, uint64_t *at, int64_t *stride, struct sheaf_error *err)
{
	uint32_t item = shf_torch_item_bytes(t);
	uint64_t end = 0, view = (uint64_t)t->view_at;

	if (view > have || t->storage_bytes > have - view)
		return shf_fail(err, SHEAF_EFORMAT, "%s: tensor %.*s: its storage has %" PRIu64
		                " bytes in the file, the pickle says %" PRIu64, where,
		                shf_name_show(name), name, have, t->storage_bytes);
	if (!last_item(t, &end) || end > t->storage_bytes / item)
		return shf_fail(err, SHEAF_EFORMAT, "%s: tensor %.*s: its offset and strides "
		                "leave its storage of %" PRIu64 " bytes", where,
		                shf_name_show(name), name, t->storage_bytes);
	*at = end ? view + (uint64_t)t->at * item : 0;
	/* The stride of a dimension of one item, or of a tensor without items, is never used, and
	 * may be any number. */
	for (int d = 0; d < t->ndim; d++)
		stride[d] = end && t->dims->u.a[d]->u.i > 1 ? t->strides->u.a[d]->u.i * item : 0;
	if (t->pair)
		stride[t->ndim] = item / 2;
	return 0;
}

struct shf_foreign_tensor shf_torch_shown(const struct shf_torch_tensor *t, int64_t *dims)
{
	struct shf_foreign_tensor out = { .dtype = t->dtype, .ndim = t->ndim, .dims = dims };
	uint32_t bytes = shf_torch_item_bytes(t), part = t->pair || t->dtype == SHEAF_C64 ?
		bytes / 2
	                                                                                  : bytes;

	for (int d = 0; d < t->ndim; d++)
		dims[d] = t->dims->u.a[d]->u.i;
	if (t->pair)
		dims[out.ndim++] = 2;
	/* The negative of a conjugate is the number with the sign of its real part inverted. */
	if (t->neg || t->conj) {
		out.flip_every = (uint8_t)(t->conj ? bytes : part);
		out.flip_at = (uint8_t)(t->conj && t->neg ? part - 1 : out.flip_every - 1u);
	}
	return out;
}
