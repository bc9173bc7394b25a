/* SPDX-License-Identifier: Apache-2.0 */
/* What the metadata of torch.distributed.checkpoint says: tensors, and where each chunk is. All
 * pointers are into the pickles that were added. */
#ifndef SHF_TORCH_DCP_INDEX_H
#define SHF_TORCH_DCP_INDEX_H
#include "pickle.h"

struct shf_dcp_tensor {
	const char *name;               /* name_n bytes */
	uint32_t name_n;
	uint32_t order, file;           /* in which it was added; the pickle that has it */
	uint32_t first;                 /* number of the first tensor of this name, once that is
	                                 * settled */
	const struct shf_pk *dtype, *size;      /* size: a TUPLE */
	const struct shf_pk *chunks;    /* a LIST; NULL: it is no tensor, but bytes */
};
struct shf_dcp_entry {          /* where a chunk is */
	const char *name, *path;
	uint32_t name_n, path_n, order, file;
	uint32_t tensor;                /* number of the first tensor of its name, once that is
	                                 * settled; UINT32_MAX: none has it */
	const struct shf_pk *offsets;   /* a TUPLE; NULL: of bytes */
	uint64_t at, bytes;
	bool transformed;               /* what is there is compressed or the like */
};
struct shf_dcp_index {
	struct shf_buf tensors, a;      /* owned; of the structs above */
	uint32_t files;                 /* pickles that were added */
};
/* Adds what a pickle of Metadata says. Returns false if it is of a form that is not known. Memory
 * may be out: tensors.oom, a.oom. */
bool shf_dcp_index_add(struct shf_dcp_index *x, const struct shf_pk *root);
/* Sorts: tensors by name, and then in the order in which they were added. Returns NULL, or an
 * entry whose chunk has two places in one pickle, of which Python would take the last. */
const struct shf_dcp_entry *shf_dcp_index_settle(struct shf_dcp_index *x);
/* Finds the place of a chunk of a tensor, which is one of x->tensors. */
const struct shf_dcp_entry *shf_dcp_index_find(const struct shf_dcp_index *x,
                                               const struct shf_dcp_tensor *t,
                                               const struct shf_pk *offsets);
/* Sets *offsets and *sizes, TUPLEs, to those of a ChunkStorageMetadata; false: it is none. */
bool shf_dcp_chunk(const struct shf_pk *v, const struct shf_pk **offsets,
                   const struct shf_pk **sizes);
/* Whether both are tensors of one dtype and size. */
bool shf_dcp_is_same(const struct shf_dcp_tensor *a, const struct shf_dcp_tensor *b);
void shf_dcp_index_release(struct shf_dcp_index *x);
#endif
