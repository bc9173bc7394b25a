/* SPDX-License-Identifier: Apache-2.0 */
/* What the metadata of a flex checkpoint say: tensors, and in which file each part of one is. All
 * pointers are into the pickle that was added. And the folders in which a trainer has flex
 * checkpoints. */
#ifndef SHF_PADDLE_FLEX_INDEX_H
#define SHF_PADDLE_FLEX_INDEX_H
#include "pickle.h"

struct shf_flex_folder {
	const char *folder, *family;
	const char *tail;               /* ends the keys; NULL: the last slash of a name is a dot */
};
#define SHF_FLEX_FOLDERS 4
extern const struct shf_flex_folder shf_flex_folders[SHF_FLEX_FOLDERS];

struct shf_flex_part {
	const struct shf_pk *key;       /* a STR */
	const struct shf_pk *offset, *shape;    /* TUPLEs or LISTs; shape NULL: it is not said */
	const struct shf_pk *global;    /* shape of the whole; NULL: it is not said */
	const struct shf_pk *dtype;     /* a STR, or NULL */
	const struct shf_pk *file;      /* a STR; NULL: of a tensor's own list of parts */
	bool flat;
	int64_t lo, hi;                 /* flat: the range of the box that is stored */
	int64_t replica;
	bool used;                      /* of a place: its part was found before */
};
struct shf_flex_index {
	struct shf_buf parts;           /* owned; the parts that tensors have, in their order */
	struct shf_buf places;          /* owned; where parts are, sorted */
};
/* Adds what a pickle of Metadata says. Returns false if it is of a form that is not known. Memory
 * may be out: parts.oom, places.oom. */
bool shf_flex_index_add(struct shf_flex_index *x, const struct shf_pk *root);
/* Sorts places. */
void shf_flex_index_settle(struct shf_flex_index *x);
/* Finds where a part is: the place with the lowest replica. NULL: nowhere. */
struct shf_flex_part *shf_flex_index_find(const struct shf_flex_index *x,
                                          const struct shf_flex_part *part);
/* Reads item i of a TUPLE or LIST as a number >= 0. */
bool shf_flex_number(const struct shf_pk *v, uint32_t i, int64_t *out);
void shf_flex_index_release(struct shf_flex_index *x);
#endif
