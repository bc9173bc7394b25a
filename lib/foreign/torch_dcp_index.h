/* SPDX-License-Identifier: Apache-2.0 */
/* What the metadata of torch.distributed.checkpoint says: tensors, and where each chunk is. It is
 * taken out of the pickle while that is read. Names, paths and dtypes are in the pickle, which must
 * outlive the index. */
#ifndef SHF_TORCH_DCP_INDEX_H
#define SHF_TORCH_DCP_INDEX_H
#include "pickle.h"
#include "text_table.h"
#include "unpack.h"

struct shf_dcp_place {          /* where a chunk, or a value that is no tensor, is stored */
	const char *path;               /* path_n bytes */
	uint64_t at, bytes;
	uint32_t path_n;
	bool known;
	uint8_t transform;              /* how the bytes were transformed: enum shf_dcp_transform,
	                                 * or SHF_DCP_UNKNOWN + the number of an unknown name */
};
enum shf_dcp_transform { SHF_DCP_PLAIN, SHF_DCP_ZSTD, SHF_DCP_UNKNOWN };
/* Returns how an item of a known transformation is compressed. */
static inline enum shf_codec shf_dcp_codec(const struct shf_dcp_place *place)
{
	return place->transform == SHF_DCP_ZSTD ? SHF_CODEC_ZSTD : SHF_CODEC_NONE;
}
#define SHF_DCP_UNKNOWN_MAX 8   /* names of unknown transformations that are kept */
struct shf_dcp_tensor {
	const char *name;               /* name_n bytes */
	uint32_t name_n;
	uint32_t order, file;           /* in which it was added; the pickle that has it */
	uint32_t first;                 /* number of the first tensor of this name, once that is
	                                 * settled */
	uint32_t chunks_n;
	uint32_t next;                  /* the chunk whose place is expected next */
	uint32_t width;                 /* numbers of a box: one for each dimension, and one more
	                                 * if a complex number is shown as a pair */
	int32_t ndim;                   /* without that one */
	bool is_bytes;                  /* it is no tensor, but a value in bytes */
	bool is_odd;                    /* a chunk has an unknown structure */
	const struct shf_pk *dtype;     /* a GLOBAL */
	const int64_t *dims;            /* of that many dimensions */
	/* By chunk: `width` offsets, and then as many sizes. In the arena of the checkpoint, where
	 * the pieces refer to them. NULL: it has none, is odd, or has too many dimensions. */
	int64_t *boxes;
	struct shf_dcp_place *places;   /* by chunk; of bytes: one */
};
struct shf_dcp_entry {          /* a place that was not found to be of a chunk when it was read */
	const char *name;
	uint32_t name_n, order, file;
	uint32_t tensor;                /* number of the first tensor of its name, once that is
	                                 * settled; UINT32_MAX: none has it */
	const int64_t *offsets;         /* NULL: of bytes */
	uint32_t offsets_n;
	struct shf_dcp_place place;
};
struct shf_dcp_index {
	bool many;                      /* there are several pickles, and the place of a chunk may
	                                 * be in a pickle other than the chunk's */
	bool oom;
	struct shf_arena *kept;         /* borrowed; gets the boxes */
	struct shf_arena arena;         /* has places, offsets and dims */
	struct shf_buf tensors, a;      /* owned; of shf_dcp_tensor and shf_dcp_entry */
	struct shf_text_table names;    /* owned; of tensors; empty if there are many pickles */
	bool again;                     /* two tensors have the same name */
	const struct shf_pk *other;     /* the last class found to be irrelevant, to recognise it
	                                 * again: most pickles have each class once */
	/* Names of unknown transformations. Names that no longer fit share the last number. */
	const char *unknown[SHF_DCP_UNKNOWN_MAX];
	uint32_t unknown_n;
	uint64_t left;                  /* bytes that chunks may take: in proportion to those of the
	                                 * pickles, in which one list may stand for many */
	uint32_t files;                 /* pickles that were added */
	uint32_t tensors_n, places_n;   /* taken out of the current pickle */
};
/* The function of a struct shf_pickle_taker whose argument is the index. */
bool shf_dcp_index_take(void *arg, const struct shf_pk *key, const struct shf_pk *value);
/* Ends a pickle. Returns false if it is no Metadata, or of unknown structure. */
bool shf_dcp_index_end(struct shf_dcp_index *x, const struct shf_pk *root);
/* Sorts: tensors by name, and then in the order in which they were added. Returns 1 if a chunk has
 * two places in one pickle, of which Python would take the last, and sets *name and *name_n to the
 * name of its tensor; else 0. */
int shf_dcp_index_settle(struct shf_dcp_index *x, const char **name, uint32_t *name_n);
/* Finds the place of chunk i of a tensor, which is one of x->tensors; of bytes, i is 0. NULL: it
 * has none. */
const struct shf_dcp_place *shf_dcp_index_find(const struct shf_dcp_index *x,
                                               const struct shf_dcp_tensor *t, uint32_t i);
/* Returns the name of an item's transformation if that is unknown, or NULL. */
const char *shf_dcp_index_unknown(const struct shf_dcp_index *x, const struct shf_dcp_place *place);
/* Whether both are tensors of one dtype and size. */
bool shf_dcp_is_same(const struct shf_dcp_tensor *a, const struct shf_dcp_tensor *b);
void shf_dcp_index_release(struct shf_dcp_index *x);
#endif
