/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors header: bytes <-> structs. A file is u64le N, N bytes of JSON, then the data
 * section. What the reference library reads is read here, too, but for these, of which two readers
 * may make two things: a name twice, a key twice in __metadata__, an entry that is an array, and
 * dimensions that, or whose product without zeros, exceed 63 bits. Source: the safetensors format
 * page and library 0.8. */
#ifndef SHF_SAFETENSORS_H
#define SHF_SAFETENSORS_H
#include "mem.h"
#include "sheaf.h"

/* The limit of N, the bytes of JSON, as in the reference library. It bounds the memory that a
 * reader allocates for a hostile file. */
#define SHF_ST_HEADER_MAX UINT64_C(100000000)
#define SHF_NAME_MAX 1024
#define SHF_ST_DIMS_MAX 64      /* the limit of NumPy and torch */
struct shf_st_tensor {
	const char *name;               /* in the arena, NUL-ended, valid UTF-8 without control
	                                 * characters (shf_name_escape); written: a valid name */
	int32_t dtype, ndim;
	int64_t shape[SHEAF_DIMS_MAX];  /* all 0 if ndim > SHEAF_DIMS_MAX: use dims */
	uint64_t off, bytes;            /* from the start of the data section */
	const int64_t *dims;            /* if ndim > SHEAF_DIMS_MAX: the shape, in the arena; NULL
	                                 * if ndim > SHF_ST_DIMS_MAX: the shape was not kept */
};
struct shf_st {
	uint64_t header_bytes;          /* 8 + N */
	uint64_t payload_bytes;
	struct shf_st_tensor *tensors;  /* in the arena, in order of offset, then of name */
	size_t n;
	const char *format;             /* __metadata__.format, or NULL */
	const char *sharding;           /* __metadata__.DCP_SHARDING_INFO, or NULL: where the
	                                 * tensors of this file lie in those of which
	                                 * torch.distributed.checkpoint has saved parts */
};
/* Computes the length of the header, 8 + N, from the first 8 bytes of the file. SHEAF_EFORMAT if it
 * exceeds the limit or the file. */
int shf_st_header_bytes(uint64_t *header_bytes, const uint8_t first[8], uint64_t file_bytes,
                        const char *where, struct sheaf_error *err);
/* Parses a header. bytes: all of it (n is 8 + N). file_bytes: the size of the file; the tensors
 * must cover exactly the rest of it. Returns 0, SHEAF_ENOMEM, or SHEAF_EFORMAT with a sentence that
 * names tensor and byte: duplicates (after decoding), overlaps, holes, overflows, sizes that do not
 * match dtype and shape, unknown dtypes. */
int shf_st_parse(struct shf_st *st, struct shf_arena *arena, const uint8_t *bytes, size_t n,
                 uint64_t file_bytes, const char *where, struct sheaf_error *err);
/* Appends to out the header of these tensors, in this order. Their offsets must ascend without
 * gaps. Its __metadata__ is {"format":FORMAT}, such as "pt", and it is padded with spaces so that
 * 8 + N is a multiple of 4096. Returns 0, SHEAF_ENOMEM or SHEAF_EINVAL. */
int shf_st_write_as(struct shf_buf *out, const struct shf_st_tensor *tensors, size_t n,
                    const char *format, struct sheaf_error *err);
/* The same with the format "pt", as steps of Sheaf have it. */
int shf_st_write(struct shf_buf *out, const struct shf_st_tensor *tensors, size_t n,
                 struct sheaf_error *err);
/* Returns an upper bound of the bytes of one entry, whatever its offsets. Placement uses it, so it
 * is part of the format. */
uint64_t shf_st_entry_bound(const struct shf_st_tensor *t);
#endif
