/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors header: bytes <-> structs. u64le N, N bytes of JSON, then the data section.
 * Strict where the reference library accepts by accident. Source: the safetensors format page
 * and library 0.8. */
#ifndef SHF_SAFETENSORS_H
#define SHF_SAFETENSORS_H
#include "mem.h"
#include "sheaf.h"

/* The limit of N, the bytes of JSON, as in the reference library. It bounds the memory that a
 * hostile file can make a reader take. */
#define SHF_ST_HEADER_MAX UINT64_C(100000000)
#define SHF_NAME_MAX 1024
#define SHF_ST_DIMS_MAX 64      /* as many as NumPy and torch have */
struct shf_st_tensor {
	const char *name;               /* in the arena, NUL-ended, valid UTF-8, 1..1024 bytes, no
	                                 * control bytes, not __metadata__ */
	int32_t dtype, ndim;
	int64_t shape[SHEAF_DIMS_MAX];  /* if ndim > SHEAF_DIMS_MAX: all 0, see dims */
	uint64_t off, bytes;            /* from the start of the data section */
	const int64_t *dims;            /* in the arena, if ndim > SHEAF_DIMS_MAX; NULL if they are
	                                 * more than SHF_ST_DIMS_MAX, and then nobody knows them */
};
struct shf_st {
	uint64_t header_bytes;          /* 8 + N */
	uint64_t payload_bytes;
	struct shf_st_tensor *tensors;  /* in the arena, in order of offset, then of name */
	size_t n;
	const char *format;             /* __metadata__.format, or NULL */
};
/* Bytes of the header from the file's first 8; SHEAF_EFORMAT if beyond the limit or the file. */
int shf_st_header_bytes(uint64_t *header_bytes, const uint8_t first[8], uint64_t file_bytes,
                        const char *where, struct sheaf_error *err);
/* bytes: the whole header (8 + N). file_bytes: of the file; the payload must be exactly the rest.
 * Refused, with a sentence naming tensor and byte: duplicates (after decoding), overlaps, holes,
 * overflows, sizes that do not fit dtype and shape, unknown dtypes and fields, bad names. */
int shf_st_parse(struct shf_st *st, struct shf_arena *arena, const uint8_t *bytes, size_t n,
                 uint64_t file_bytes, const char *where, struct sheaf_error *err);
/* Header of these tensors in this order (offsets as given; by ascending off, no gaps), with
 * {"format":"pt"}, padded with spaces so that 8 + N is a multiple of 4096. Appends to out. */
int shf_st_write(struct shf_buf *out, const struct shf_st_tensor *tensors, size_t n,
                 struct sheaf_error *err);
/* Upper bound of one entry, whatever its offsets (for placement; part of the format). */
uint64_t shf_st_entry_bound(const struct shf_st_tensor *t);
#endif
