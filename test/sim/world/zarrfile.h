/* SPDX-License-Identifier: Apache-2.0 */
/* Makes Zarr arrays and OCDBT databases as TensorStore writes them, with values of hands.h, and
 * invalid ones. Shares no code with lib/foreign. */
#ifndef ZARRFILE_H
#define ZARRFILE_H
#include "torchfile.h"

enum zarr_codec { ZARR_PLAIN, ZARR_ZSTD, ZARR_GZIP, ZARR_BLOSC };
struct zarr_how {               /* how an array is stored */
	int version;                    /* 2 or 3 */
	int64_t chunk[8], inner[8];     /* inner[0] not 0: a chunk is a shard of such chunks */
	enum zarr_codec codec;
	bool fortran, slash, crc;
	bool crc_inside;                /* with crc: before the codec instead of after it */
	bool index_first;
	int64_t skip;                   /* the first `skip` chunks are not stored */
	const char *fill;               /* NULL: null or 0 */
};
struct zarr_kv { char key[160]; struct torch_bytes value; };
struct zarr_store { struct zarr_kv kv[400]; int n; };   /* in any order */
/* Adds a key. The store owns the bytes. */
void zarr_put(struct zarr_store *s, const char *key, struct torch_bytes value);
/* Adds the metadata and the chunks of a tensor. */
void zarr_add(struct zarr_store *s, const struct torch_tensor *t, const struct zarr_how *how);
/* Returns the value of a key, for a test to change. */
struct torch_bytes *zarr_value(struct zarr_store *s, const char *key);
void zarr_free(struct zarr_store *s);
/* Puts each value into a directory as a file. */
void zarr_dir(struct simdisk *disk, const char *dir, const struct zarr_store *s);

enum ocdbt_flaw {
	OCDBT_SOUND, OCDBT_MAGIC, OCDBT_LENGTH, OCDBT_SUM, OCDBT_VERSION, OCDBT_COMPRESSION,
	OCDBT_TWICE_NUMBERED, OCDBT_NO_NUMBER, OCDBT_OTHER_NUMBER, OCDBT_OTHER_UUID, OCDBT_CONFIG,
	OCDBT_NO_VERSION, OCDBT_OLD_LAST, OCDBT_HEIGHT, OCDBT_DEEP, OCDBT_NO_KEYS,
	OCDBT_ORDER, OCDBT_TWICE, OCDBT_PREFIX, OCDBT_SUFFIX, OCDBT_SUBTREE, OCDBT_KIND,
	OCDBT_FILE_ID, OCDBT_BEYOND, OCDBT_INLINE, OCDBT_TAIL, OCDBT_PATH, OCDBT_LONG_PATH,
	OCDBT_LOOP, OCDBT_EMPTY, OCDBT_CONTROL, OCDBT_FLAWS
};
struct ocdbt_how {
	int per_node;                   /* maximum entries in a node */
	int inlined;                    /* values of at most so many bytes are stored in leaves */
	bool zstd, merged;              /* merged: nodes and values are in a folder */
	int versions;                   /* number of empty versions before the last */
	bool numbered;                  /* each version has its own manifest */
	enum ocdbt_flaw flaw;
};
/* Puts the values into a database in a directory. */
void zarr_ocdbt(struct simdisk *disk, const char *dir, const struct zarr_store *s,
                const struct ocdbt_how *how);
#endif
