/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays of Zarr in a store of keys: a directory, or a database OCDBT. */
#ifndef SHF_ZARR_H
#define SHF_ZARR_H
#include "crc32.h"
#include "ocdbt.h"

struct shf_zarr_store {
	struct shf_foreign *f;
	struct shf_arena *arena;        /* of what is needed only until the checkpoint is open */
	const struct shf_kv *kv;        /* in ascending order of keys */
	size_t n;
	const char *path;               /* of the store, for sentences */
	const char *prefix;             /* of the names of all tensors */
	bool all_stored;                /* the program stored every chunk, so none may be missing */
	struct shf_crc32 crc;           /* tables of CRC-32C, which shf_zarr_add makes */
	struct shf_buf names;           /* out, owned: of const char *, in the arena: of the arrays,
	                                 * those that are not read too */
};
/* Adds the arrays as tensors, and notes of those that are not read. */
int shf_zarr_add(struct shf_zarr_store *s, struct sheaf_error *err);
/* Reads the small value of a key into *out. EFORMAT: it has more than `most` bytes. */
int shf_kv_read(struct shf_foreign *f, const struct shf_kv *kv, uint64_t most, struct shf_buf *out,
                struct sheaf_error *err);
/* Compares the checksums of all pieces that have one, and decodes all that are compressed. */
int shf_zarr_verify(struct shf_foreign *f, struct shf_foreign_findings *to,
                    struct sheaf_error *err);
#endif
