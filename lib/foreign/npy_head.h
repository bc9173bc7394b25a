/* SPDX-License-Identifier: Apache-2.0 */
/* The header of an array in NumPy's format .npy: a magic number, a version, a length, and a literal
 * of Python, which is parsed here and never evaluated. */
#ifndef SHF_NPY_HEAD_H
#define SHF_NPY_HEAD_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "foreign.h"

#define SHF_NPY_MAGIC "\x93NUMPY"
#define SHF_NPY_MAGIC_BYTES 6
#define SHF_NPY_FIRST 12        /* bytes from which the length of the header is known */
#define SHF_NPY_HEAD_MAX 65536  /* NumPy itself reads 10,000 */
struct shf_npy_head {
	int32_t dtype, ndim;
	bool fortran;                   /* the first dimension is the one that lies in a row */
	bool pair;                      /* complex128, which safetensors does not have: the array
	                                 * has one more dimension, of 2, which ndim does not
	                                 * count */
	int64_t dims[SHF_FOREIGN_DIMS_MAX];
	uint64_t bytes;                 /* of all items */
	size_t head_bytes;              /* of the header; set by the caller */
	const char *unread;             /* NULL, or why the items are not read, such as "a
	                                 * big-endian array"; dtype and bytes are 0 then */
};
/* Returns the length of the whole header, of which `first` has the first SHF_NPY_FIRST bytes. 0:
 * it has another magic number, an unknown version, or is longer than SHF_NPY_HEAD_MAX. */
size_t shf_npy_head_bytes(const uint8_t first[SHF_NPY_FIRST]);
/* Parses a whole header of n bytes. Returns NULL, or what is wrong with it. */
const char *shf_npy_head_parse(struct shf_npy_head *h, const uint8_t *head, size_t n);
#endif
