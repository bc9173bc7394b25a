/* SPDX-License-Identifier: Apache-2.0 */
/* Records of a pickle that NumPy makes arrays of. */
#ifndef SHF_NUMPY_ARRAY_H
#define SHF_NUMPY_ARRAY_H
#include "pickle_walk.h"

struct shf_numpy_array {
	int32_t dtype;                  /* enum sheaf_dtype; of one part of a complex128 */
	bool pair;                      /* complex128, which safetensors does not have: the array
	                                 * has one more dimension, of 2 */
	bool fortran;                   /* the first dimension is the one that lies in a row */
	int32_t ndim;                   /* without the dimension of `pair` */
	const struct shf_pk *dims;      /* a TUPLE of ndim INTs >= 0 */
	uint64_t bytes;                 /* of all items */
	uint64_t at;                    /* where they are in the file */
	/* Not 0: they are written as a text, whose characters are the bytes (pickle protocol 2).
	 * This is the length of that text, in UTF-8. */
	uint64_t text_bytes;
};
/* Returns whether v is an array, and describes it in *a. UNREAD: *why says why it is not read. The
 * pickle must have been read by shf_pickle_read_file. */
enum shf_tensor_kind shf_numpy_array_of(struct shf_numpy_array *a, const struct shf_pk *v,
                                        const char **why);
/* Describes the array as it is shown, and as one piece of that file. x->dims is in f's arena.
 * ENOMEM. */
int shf_numpy_shown(struct shf_foreign *f, const struct shf_numpy_array *a, uint32_t file,
                    struct shf_foreign_tensor *x, struct shf_foreign_piece *piece,
                    struct sheaf_error *err);
#endif
