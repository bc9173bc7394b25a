/* SPDX-License-Identifier: Apache-2.0 */
/* The metadata of an array of Zarr, with its codecs. The first byte, modulo 2, says whether the
 * rest of the input is .zarray (0) or zarr.json (1). What is accepted describes an array whose
 * items can be counted. */
#include "fuzz.h"
#include "dtype.h"
#include "mem.h"
#include "zarr_meta.h"

static void check_coding(const struct shf_zarr_array *z)
{
	unsigned seen = 0;
	bool empty = false;

	for (int d = 0; d < z->ndim; d++)
		empty |= !z->shape[d];
	MUST(z->coding.codec <= SHF_CODEC_BLOSC);
	for (int d = 0; d < z->ndim; d++) {
		MUST(z->coding.order[d] >= 0 && z->coding.order[d] < z->ndim);
		seen |= 1U << z->coding.order[d];
		MUST(z->shape[d] >= 0 && (z->chunk[d] > 0 || empty));
		MUST(!z->sharded || (z->inner[d] > 0 && z->chunk[d] % z->inner[d] == 0));
	}
	MUST(seen == (1U << z->ndim) - 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct shf_arena arena = { 0 };
	struct shf_zarr_array z;
	bool oom = false;
	const char *why;

	if (!size)
		return 0;
	why = shf_zarr_parse(&z, &arena, data[0] % 2 ? 3 : 2, data + 1, size - 1, &oom);
	MUST(!oom && (!why || *why));
	if (!why && !z.is_group && !z.unread) {
		MUST(z.ndim >= 0 && z.ndim <= SHF_ZARR_DIMS_MAX);
		MUST(shf_dtype(z.dtype)->bits >= 8);
		check_coding(&z);
	}
	shf_arena_release(&arena);
	return 0;
}
