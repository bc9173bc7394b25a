/* SPDX-License-Identifier: Apache-2.0 */
/* The index of a flex checkpoint, from its metadata: the tensors, and in which file each part of a
 * tensor is. The index is filled in while the pickle of the metadata is read. It refers to names in
 * the pickle, which must outlive it. Also the folders in which a trainer puts flex checkpoints. */
#ifndef SHF_PADDLE_FLEX_INDEX_H
#define SHF_PADDLE_FLEX_INDEX_H
#include "pickle.h"
#include "text_table.h"

struct shf_flex_folder {
	const char *folder, *family;
	const char *tail;               /* a key is a name and this tail; NULL: a key is a name with
	                                 * a dot for its last slash */
};
#define SHF_FLEX_FOLDERS 4
extern const struct shf_flex_folder shf_flex_folders[SHF_FLEX_FOLDERS];

#define SHF_FLEX_NOWHERE UINT32_MAX     /* no place of the part is known */
#define SHF_FLEX_TWICE (UINT32_MAX - 1) /* another part of the tensor is the same and is read */
struct shf_flex_spot {          /* where a part is stored */
	uint32_t file;                  /* number in `files`, or one of the above */
	int32_t replica;                /* number of the replica. If a part has several places, the
	                                 * one with the lowest number counts */
	/* Set by the reader of the files: where the array of the part begins, and its layout; piece
	 * NULL: row-major. */
	uint64_t at;
	const struct shf_foreign_piece *piece;
};
struct shf_flex_tensor {
	const char *name;               /* name_n bytes */
	uint32_t name_n;
	uint32_t ndim;
	uint32_t parts_n;
	uint32_t first;                 /* number of its first part, counted through all tensors */
	uint32_t next;                  /* the part whose place is expected next */
	int32_t dtype;                  /* of its arrays; 0: no array was found so far */
	int32_t said;                   /* F8_E4M3 or F8_E5M2 if the metadata say so, because an
	                                 * array of those is stored as int8; else 0 */
	bool again;                     /* an earlier tensor has the same name */
	bool odd;                       /* a part has a form that is not known */
	bool leaves;                    /* a part leaves the tensor, or two parts give the tensor
	                                 * different shapes */
	bool twice;                     /* two parts may be the same */
	const int64_t *dims;            /* of the whole tensor; NULL: no part says them */
	int64_t *boxes;                 /* by part: ndim offsets and then as many sizes. In the
	                                 * arena of the checkpoint, where pieces refer to them */
	int64_t *ranges;                /* by part: the range [lo, hi) of the box that is stored;
	                                 * lo -1: all of it; NULL: all of all boxes */
	struct shf_flex_spot *spots;    /* by part */
};
struct shf_flex_place;
struct shf_flex_index {
	bool oom;
	struct shf_arena *kept;         /* borrowed; gets boxes and dims */
	struct shf_arena arena;
	struct shf_buf tensors;         /* owned; of struct shf_flex_tensor */
	struct shf_buf places;          /* owned; of struct shf_flex_place: places whose part was
	                                 * not found when they were read */
	struct shf_text_table names, files;     /* owned; names of tensors and of files */
	uint64_t left;                  /* how many bytes parts may still take. The first value is
	                                 * in proportion to the length of the pickle: a list that
	                                 * the pickle has once can be the value of many keys */
	uint32_t parts_n;               /* parts that were taken */
	/* Pairs that were taken from each of the three dictionaries. */
	uint32_t tensors_n, places_n, paths_n;
};
static inline struct shf_flex_tensor *shf_flex_tensors(const struct shf_flex_index *x, size_t *n)
{
	*n = x->tensors.len / sizeof(struct shf_flex_tensor);
	return (struct shf_flex_tensor *)(void *)x->tensors.data;
}
/* The function of a struct shf_pickle_taker whose argument is the index. */
bool shf_flex_index_take(void *arg, const struct shf_pk *key, const struct shf_pk *value);
/* Checks what is left of the pickle after it was read, and gives the kept places to their parts.
 * Returns false if the pickle is not a Metadata of a known form. The caller must look at x->oom,
 * too. */
bool shf_flex_index_end(struct shf_flex_index *x, const struct shf_pk *root);
void shf_flex_index_release(struct shf_flex_index *x);
#endif
