/* SPDX-License-Identifier: Apache-2.0 */
/* What the metadata of a flex checkpoint say: tensors, and in which file each part of one is. It is
 * taken out of the pickle while that is read; names are in the pickle, which must outlive the
 * index. And the folders in which a trainer has flex checkpoints. */
#ifndef SHF_PADDLE_FLEX_INDEX_H
#define SHF_PADDLE_FLEX_INDEX_H
#include "pickle.h"
#include "text_table.h"

struct shf_flex_folder {
	const char *folder, *family;
	const char *tail;               /* ends the keys; NULL: the last slash of a name is a dot */
};
#define SHF_FLEX_FOLDERS 4
extern const struct shf_flex_folder shf_flex_folders[SHF_FLEX_FOLDERS];

#define SHF_FLEX_NOWHERE UINT32_MAX     /* no place of the part is known */
#define SHF_FLEX_TWICE (UINT32_MAX - 1) /* an earlier part is the same, and is taken for it */
struct shf_flex_spot {          /* where a part is stored */
	uint32_t file;                  /* number in `files`, or one of the above */
	int32_t replica;                /* of several places that with the lowest one counts */
	/* For the reader of the files: where its array begins, and how it lies there; NULL:
	 * row-major. */
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
	int32_t dtype;                  /* of its arrays, once they are found; 0: none was */
	int32_t said;                   /* F8_E4M3 or F8_E5M2, which arrays do not tell; else 0 */
	bool again;                     /* an earlier tensor has its name */
	bool odd;                       /* a part has a form that is not known */
	bool leaves;                    /* a part leaves the tensor, or says another shape of it */
	bool twice;                     /* two parts may be the same */
	const int64_t *dims;            /* of the whole; NULL: no part says it */
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
	struct shf_buf places;          /* owned; of struct shf_flex_place: those that were not
	                                 * found to be of a part when they were read */
	struct shf_text_table names, files;     /* owned; names of tensors and of files */
	uint64_t left;                  /* bytes that parts may take: in proportion to those of the
	                                 * pickle, in which one list may stand for many */
	uint32_t parts_n, places_n;     /* that were taken */
	uint32_t tensors_n, paths_n;    /* pairs that were taken */
};
static inline struct shf_flex_tensor *shf_flex_tensors(const struct shf_flex_index *x, size_t *n)
{
	*n = x->tensors.len / sizeof(struct shf_flex_tensor);
	return (struct shf_flex_tensor *)(void *)x->tensors.data;
}
/* The function of a struct shf_pickle_taker whose argument is the index. */
bool shf_flex_index_take(void *arg, const struct shf_pk *key, const struct shf_pk *value);
/* Ends the pickle, and gives the other places to their parts. Returns false if it is no Metadata,
 * or of a form that is not known. Memory may be out: x->oom. */
bool shf_flex_index_end(struct shf_flex_index *x, const struct shf_pk *root);
void shf_flex_index_release(struct shf_flex_index *x);
#endif
