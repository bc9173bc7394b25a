/* SPDX-License-Identifier: Apache-2.0 */
/* Items in the files of torch.distributed.checkpoint. An item is an archive of torch.save, and may
 * be compressed as a whole by zstd. */
#ifndef SHF_TORCH_DCP_ITEM_H
#define SHF_TORCH_DCP_ITEM_H
#include "foreign.h"

struct shf_dcp_item {           /* an item that is open */
	struct shf_region region;       /* the bytes of the archive, decoded if need be */
	struct shf_foreign *f;          /* borrowed */
	uint32_t file;
	bool in_use;                    /* the region of the file must be ended */
	struct shf_packed packed;
	struct shf_unpacker unpacker;
};
/* Opens an item, which must lie in its file. of: says its file, codec, place and length; the other
 * members are ignored. most: how many bytes a compressed item may have when decoded. *item must not
 * be moved while it is open, because region points into it. The caller calls shf_dcp_item_end, even
 * after a failure. EFORMAT: the item is damaged. */
int shf_dcp_item_open(struct shf_dcp_item *item, struct shf_foreign *f,
                      const struct shf_foreign_item *of, uint64_t most, struct sheaf_error *err);
void shf_dcp_item_end(struct shf_dcp_item *item);
/* Appends to `items`, a list of struct shf_foreign_item, the item that contains a piece. */
void shf_dcp_list_item(struct shf_buf *items, const struct shf_foreign_piece *p);
/* The functions resolve and verify of a format. */
int shf_dcp_resolve(struct shf_foreign *f, const struct shf_foreign_tensor *t,
                    struct shf_foreign_piece *p, int64_t stride[SHF_FOREIGN_DIMS_MAX],
                    struct sheaf_error *err);
int shf_dcp_verify(struct shf_foreign *f, struct shf_foreign_findings *to,
                   struct sheaf_error *err);
#endif
