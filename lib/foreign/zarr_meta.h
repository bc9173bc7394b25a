/* SPDX-License-Identifier: Apache-2.0 */
/* The metadata of an array of Zarr, of version 2 (.zarray) and 3 (zarr.json). */
#ifndef SHF_ZARR_META_H
#define SHF_ZARR_META_H
#include "foreign.h"

#define SHF_ZARR_DIMS_MAX SHEAF_DIMS_MAX
/* How the bytes of a chunk are made of its items. */
struct shf_zarr_coding {
	/* Dimension order[i] of the array is dimension i of what lies in memory, where the last one
	 * has the smallest steps. */
	int order[SHF_ZARR_DIMS_MAX];
	enum shf_codec codec;
	bool crc_inside, crc_outside;   /* four bytes of CRC-32C follow the items; follow what the
	                                 * codec made of them */
};
struct shf_zarr_array {
	int32_t dtype;
	bool pair;                      /* complex128: one more dimension of 2 is shown */
	bool is_group;                  /* it is no array but a group; nothing else is set */
	int ndim;                       /* without that of `pair` */
	int64_t shape[SHF_ZARR_DIMS_MAX + 1], chunk[SHF_ZARR_DIMS_MAX];
	/* A chunk, or with `sharded` the chunks in it, which have the shape `inner`. */
	struct shf_zarr_coding coding;
	bool sharded;
	int64_t inner[SHF_ZARR_DIMS_MAX];
	bool index_first, index_crc;    /* of a shard: its index is before the chunks; the index has
	                                 * a CRC-32C */
	char key_prefix;                /* 'c', or 0: keys of chunks have none */
	char separator;                 /* between the numbers of a key */
	bool fill_known;
	uint8_t fill[16];               /* an item, for chunks that are not stored */
	const char *unread;             /* NULL, or why it is not read, such as "an array of dates":
	                                 * for sentences, in the arena */
};
/* Parses the metadata. Returns NULL, or what is wrong with them; neither counts if *oom is set. */
const char *shf_zarr_parse(struct shf_zarr_array *z, struct shf_arena *arena, int version,
                           const void *json, size_t n, bool *oom);
#endif
