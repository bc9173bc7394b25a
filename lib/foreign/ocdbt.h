/* SPDX-License-Identifier: Apache-2.0 */
/* The database OCDBT of TensorStore: keys and values in a B+tree, whose nodes and values are ranges
 * of data files. */
#ifndef SHF_OCDBT_H
#define SHF_OCDBT_H
#include "foreign.h"
#include "foreign_st.h"

#define SHF_OCDBT_MANIFEST "manifest.ocdbt"
/* A value of a store, by its key: in a file, or here. */
struct shf_kv {
	const char *key;                /* NUL-ended, without control characters */
	const uint8_t *here;            /* in the arena of the checkpoint; NULL: in the file */
	uint64_t at, bytes;
	uint32_t file;
};
/* Reads the newest version of the database in the directory, or in a folder in it (NULL: none).
 * names: the files there. Appends the keys of the database in ascending order to `out`, as struct
 * shf_kv. arena: gets the keys. The CRC-32C of the manifests and of all nodes are compared; values
 * have none. EFORMAT: the database is damaged. */
int shf_ocdbt_read(struct shf_foreign *f, const char *folder, const struct shf_listing *names,
                   struct shf_arena *arena, struct shf_buf *out, struct sheaf_error *err);
#endif
