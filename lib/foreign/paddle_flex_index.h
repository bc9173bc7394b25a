/* SPDX-License-Identifier: Apache-2.0 */
/* The index of a flex checkpoint, from its metadata: the tensors, and in which file each part of a
 * tensor is. The index is filled in while the pickle of the metadata is read, and outlives it. Also
 * the folders in which a trainer puts flex checkpoints. */
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
struct shf_flex_spot {          /* in which file a part is */
	uint32_t file;                  /* number in `files`, or one of the above */
	int32_t replica;                /* number of the replica. If a part has several places, the
	                                 * one with the lowest number counts */
};
struct shf_flex_tensor {
	const char *name;               /* name_n bytes */
	const int64_t *dims;            /* of the whole tensor; NULL: no part says them */
	/* By part: ndim offsets, and as many sizes; see shf_flex_start and shf_flex_count. In the
	 * arena of the checkpoint, where pieces refer to them. */
	int64_t *starts, *counts;
	int64_t *ranges;                /* by part: [lo, hi), the items of its box that are stored;
	                                 * lo -1: the whole box. NULL: all parts are whole boxes */
	struct shf_flex_spot *spots;    /* by part */
	uint32_t name_n;
	uint32_t ndim;
	uint32_t parts_n;
	uint32_t first;                 /* number of its first part, counted through all tensors */
	uint32_t next;                  /* the part whose place is expected next */
	int32_t dtype;                  /* as the metadata say; 0: they do not say one that is
	                                 * known, and no array was read so far */
	bool sizes_differ;              /* else `counts` has those of one part, which are those of
	                                 * all parts */
	bool again;                     /* an earlier tensor has the same name */
	bool odd;                       /* a part has an unknown structure */
	bool leaves;                    /* a part leaves the tensor, or two parts give the tensor
	                                 * different shapes */
	bool twice;                     /* two parts may be the same */
	bool two_types;                 /* the metadata say different types of two parts */
};
static inline const int64_t *shf_flex_start(const struct shf_flex_tensor *t, uint32_t i)
{
	return t->starts + (size_t)i * t->ndim;
}
static inline const int64_t *shf_flex_count(const struct shf_flex_tensor *t, uint32_t i)
{
	return t->sizes_differ ? t->counts + (size_t)i * t->ndim : t->counts;
}
/* The members of the objects in the metadata that are read. */
enum shf_flex_member { SHF_FLEX_OFFSET, SHF_FLEX_SHAPE, SHF_FLEX_WHOLE, SHF_FLEX_DTYPE,
	SHF_FLEX_FLAT, SHF_FLEX_RANGE, SHF_FLEX_KEY, SHF_FLEX_REPLICA, SHF_FLEX_MEMBERS };
#define SHF_FLEX_KEYS 256       /* places for the addresses of keys, of which there are few */
struct shf_flex_index {
	bool oom;
	struct shf_arena *kept;         /* borrowed; gets boxes and dims */
	struct shf_arena arena;
	struct shf_buf tensors;         /* owned; of struct shf_flex_tensor */
	struct shf_buf places;          /* owned; of struct shf_flex_place: places whose part was
	                                 * not found when they were read */
	struct shf_text_table names, files;     /* owned; names of tensors and of files */
	struct shf_text_table kept_names;       /* owned; of the tensors of `places` */
	uint64_t left;                  /* how many bytes parts may still take. The first value is
	                                 * in proportion to the length of the pickle: a list that
	                                 * the pickle has once can be the value of many keys */
	uint32_t parts_n;               /* parts that were taken */
	/* Pairs that were taken from each of the three dictionaries. */
	uint32_t tensors_n, places_n, paths_n;
	/* A pickle has each class, and the name of each member, mostly once, so what a record
	 * stands for is kept by its address: the classes of parts and of places that were found
	 * last, and names of members. Such a record is not used for anything else. */
	const struct shf_pk *part_class, *place_class;
	struct { const struct shf_pk *key; enum shf_flex_member member; } keys[SHF_FLEX_KEYS];
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
