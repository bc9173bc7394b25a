/* SPDX-License-Identifier: Apache-2.0 */
/* Makes files as torch.save writes them, with values of hands.h, and invalid ones. Shares no code
 * with lib/foreign. */
#ifndef TORCHFILE_H
#define TORCHFILE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "hands.h"

struct torch_tensor {           /* a tensor: its values are those of hands.h for its name */
	const char *name;
	int dtype, ndim;
	int64_t shape[8], stride[8];    /* in items; stride all 0: row-major */
	int64_t at;                     /* first item in the storage */
	int64_t lied_items;             /* added to the size of the storage in the pickle */
	bool neg;                       /* it is the negative of the stored values */
	const char *of;                 /* NULL, or the tensor whose storage it shares; then no
	                                 * values are written */
};
enum torch_flaw {               /* the error in the archive */
	TORCH_SOUND, TORCH_BIG_ENDIAN, TORCH_COMPRESSED, TORCH_ENCRYPTED, TORCH_TWICE,
	TORCH_OVERLAP, TORCH_TAIL, TORCH_COMMENT, TORCH_OTHER_NAME, TORCH_NO_PICKLE,
	TORCH_NO_STORAGE, TORCH_SCRIPT, TORCH_MANY_RECORDS, TORCH_NUL_NAME, TORCH_NO_SUMS,
	TORCH_TWO_FOLDERS
};
struct torch_bytes { uint8_t *p; size_t n, cap; };      /* p: to be freed */
void torch_add(struct torch_bytes *b, const void *bytes, size_t n);
/* Append a text, a number, and tensor i of n, whose storage has number i. */
void torch_text(struct torch_bytes *b, const char *s);
void torch_int(struct torch_bytes *b, int64_t v);
void torch_put(struct torch_bytes *b, const struct torch_tensor *t, int n, int i);
/* Returns the values of a tensor at their places in its storage. */
struct torch_bytes torch_storage(const struct torch_tensor *t);
struct torch_record {           /* of a zip archive; packed.p: NULL, or the data compressed by
                                 * deflate */
	const char *name;
	struct torch_bytes data, packed;
};
/* Returns an archive of these records. */
struct torch_bytes torch_zip(const struct torch_record *r, int n);
/* Returns an archive with a folder of this name, a pickle, and storages 0 to n - 1. */
struct torch_bytes torch_archive_with(const char *folder, const struct torch_bytes *pickle,
                                      const struct torch_bytes *storages, int n);
/* Returns an archive of a dictionary of these tensors. */
struct torch_bytes torch_archive(const struct torch_tensor *t, int n, enum torch_flaw flaw);
/* Returns an archive with this pickle and a storage "0" of 64 bytes. */
struct torch_bytes torch_archive_of(const void *pickle, size_t n);

enum dcp_flaw {
	DCP_SOUND, DCP_GAP, DCP_OVERLAP, DCP_OTHER_SAVE, DCP_BEYOND, DCP_NO_FILE, DCP_OUTSIDE,
	DCP_TWICE, DCP_NO_ENTRY, DCP_LEAVES, DCP_TORN, DCP_BYTES, DCP_ENTRY_TWICE,
	DCP_MANY_FILES, DCP_RANKS,
	/* Items are compressed by zstd: in one frame; in two; with an unknown transformation or
	 * version; with a flipped bit in the values; or so that the first one decompresses to 500
	 * MB. */
	DCP_ZSTD, DCP_FRAMES, DCP_CIPHER, DCP_ZSTD_2, DCP_ZSTD_FLIPPED, DCP_BOMB
};
/* Puts a directory of torch.distributed.checkpoint with these two-dimensional tensors. Each is cut
 * into `rows` times `columns` boxes, some of them stored column by column, in two files, or in 200
 * with DCP_MANY_FILES. DCP_RANKS: there is metadata of two ranks, and both list all boxes except
 * the last one of the first tensor, which only rank 1 lists. */
void torch_dcp(struct simdisk *disk, const char *dir, const struct torch_tensor *t, int n, int rows,
               int columns, enum dcp_flaw flaw);
#endif
