/* SPDX-License-Identifier: Apache-2.0 */
/* Source: torch/_tensor.py, torch/_utils.py and torch/serialization.py of torch 2.13. */
#include "torch_write.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "dtype.h"
#include "torch_tensor.h"

const char *shf_torch_name(int32_t dtype)
{
	const char *storage;

	return shf_torch_type_name(dtype, &storage);
}

bool shf_torch_has_type(int32_t dtype)
{
	return shf_torch_name(dtype) != NULL;
}

const char *shf_torch_state_key(const char *kind)
{
	static const char *const keys[][2] = { { "moment1_0", "exp_avg" },
		{ "moment2_0", "exp_avg_sq" }, { "moment2_max_0", "max_exp_avg_sq" } };

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (strcmp(kind, keys[i][0]) == 0)
			return keys[i][1];
	return kind;
}

/* Puts the persistent id of the storage: ("storage", class, key, "cpu", items). */
static void put_storage(struct shf_pkw *w, const struct shf_lt_tensor *t, const char *storage,
                        uint32_t key)
{
	uint64_t item = shf_dtype(t->dtype)->bits / 8u;
	char text[16];

	snprintf(text, sizeof(text), "%" PRIu32, key);
	shf_pkw_op(w, SHF_PKW_MARK);
	shf_pkw_known_text(w, "storage");
	shf_pkw_global(w, storage ? "torch" : "torch.storage",
	               storage ? storage : "UntypedStorage");
	shf_pkw_text(w, text, strlen(text));
	shf_pkw_known_text(w, "cpu");
	shf_pkw_int(w, storage ? t->bytes / item : t->bytes);
	shf_pkw_op(w, SHF_PKW_TUPLE);
	shf_pkw_op(w, SHF_PKW_BINPERSID);
}

/* A tensor is _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, OrderedDict()). Of
 * types without a class of storages it is _rebuild_tensor_v3, with the type at the end. */
void shf_torch_put_tensor(struct shf_pkw *w, const struct shf_lt_tensor *t, uint32_t key)
{
	const char *storage, *name = shf_torch_type_name(t->dtype, &storage);
	int64_t stride[SHEAF_DIMS_MAX], step = 1;

	for (int d = t->items.ndim - 1; d >= 0; d--) {
		stride[d] = step;
		step *= t->items.dim[d] ? t->items.dim[d] : 1;
	}
	shf_pkw_global(w, "torch._utils", storage ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
	shf_pkw_op(w, SHF_PKW_MARK);
	put_storage(w, t, storage, key);
	shf_pkw_int(w, 0);
	shf_pkw_ints(w, t->items.dim, t->items.ndim);
	shf_pkw_ints(w, stride, t->items.ndim);
	shf_pkw_op(w, SHF_PKW_NEWFALSE);
	shf_pkw_global(w, "collections", "OrderedDict");
	shf_pkw_op(w, SHF_PKW_EMPTY_TUPLE);
	shf_pkw_op(w, SHF_PKW_REDUCE);
	if (!storage)
		shf_pkw_global(w, "torch", name);
	shf_pkw_op(w, SHF_PKW_TUPLE);
	shf_pkw_op(w, SHF_PKW_REDUCE);
}

void shf_torch_put_size(struct shf_pkw *w, const int64_t *dims, int n)
{
	static const int64_t zeros[SHEAF_DIMS_MAX];

	shf_pkw_global(w, "torch", "Size");
	shf_pkw_ints(w, dims ? dims : zeros, n);
	shf_pkw_op(w, SHF_PKW_TUPLE1);
	shf_pkw_op(w, SHF_PKW_REDUCE);
}

void shf_torch_begin(struct shf_zip_out *z, struct shf_export_plan *plan,
                     struct shf_export_file *file, uint64_t at, struct shf_pkw *w)
{
	shf_pkw_end(w);
	shf_zip_begin(z, plan, file, at);
	shf_zip_add(z, SHF_TORCH_ARCHIVE "data.pkl", w->out.data, w->out.len);
	shf_zip_add(z, SHF_TORCH_ARCHIVE "byteorder", "little", 6);
	shf_zip_add(z, SHF_TORCH_ARCHIVE "version", "3\n", 2);
	file->header.oom |= w->out.oom;
	shf_pkw_release(w);
}
