/* SPDX-License-Identifier: Apache-2.0 */
/* Where the arrays of a flex checkpoint are. A file of a rank is read when the first of its parts
 * is needed, because a checkpoint may have millions of arrays, in files of many gigabytes. */
#ifndef SHF_PADDLE_FLEX_FILE_H
#define SHF_PADDLE_FLEX_FILE_H
#include "foreign.h"
#include "paddle_flex_index.h"

struct shf_flex_set {           /* one directory with metadata */
	struct shf_flex_index index;
	uint32_t *files;                /* in the arena of the checkpoint; by number in index.files:
	                                 * number of the file in the checkpoint */
	/* Set when the first file is read; owned. Parts by file: those of file k are
	 * parts[first[k]] to before parts[first[k + 1]], in ascending order. places: of each of
	 * these, where its array begins, or what is wrong with it. */
	uint32_t *first, *parts;
	uint64_t *places;               /* guarded by lock of the flex, except those of a file that
	                                 * is being read */
	uint8_t *states;                /* by file, guarded by that lock; of enum flex_state */
	struct shf_buf odd;             /* guarded by that lock; of struct flex_odd: layouts that
	                                 * are not row-major */
};
struct shf_flex {
	pthread_mutex_t lock;
	pthread_cond_t read;            /* a file was read, or could not be read */
	struct shf_flex_set sets[SHF_FLEX_FOLDERS];
	uint32_t sets_n;
};
/* Reads a file that has a part of tensor t, unless it was read before, and sets the type of the
 * tensor to that of its array. name: of the tensor, for sentences. For use while the checkpoint is
 * opened. */
int shf_flex_read_type(struct shf_foreign *f, struct shf_flex_set *set, struct shf_flex_tensor *t,
                       const char *name, struct sheaf_error *err);
/* Makes the pieces of tensor m->t, which is shown as `own`. EFORMAT: an array is not in its file as
 * the metadata say. */
struct shf_flex_make {
	struct shf_flex_set *set;
	const struct shf_flex_tensor *t;
	struct shf_arena *arena;        /* gets their numbers */
	struct shf_buf *pieces;
	bool places;                    /* find out where they are; else they begin at byte 0 */
};
int shf_flex_make(struct shf_foreign *f, const struct shf_flex_make *m,
                  const struct shf_foreign_tensor *own, struct sheaf_error *err);
/* The functions of the format; f->own is the struct shf_flex. `first` of a tensor has the number of
 * its set and its number there, as shf_key packs them. */
int shf_flex_make_pieces(struct shf_foreign *f, const struct shf_foreign_tensor *t,
                         struct shf_arena *arena, struct shf_buf *pieces,
                         struct sheaf_error *err);
uint64_t shf_flex_digest(const struct shf_foreign *f);
int shf_flex_verify(struct shf_foreign *f, struct shf_foreign_findings *to,
                    struct sheaf_error *err);
void shf_flex_close(struct shf_foreign *f);
#endif
