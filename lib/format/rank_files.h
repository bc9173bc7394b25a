/* SPDX-License-Identifier: Apache-2.0 */
/* Files with the opaque bytes of ranks (sheaf_save_rank_bytes). A stream is stored in one or more
 * attached files named rank-bytes.<stream>.<first>. Each of them is a safetensors file with the U8
 * tensors <stream>/<rank>, in ascending order of ranks; <first> is its lowest rank. So the bytes of
 * rank r are in the file of the stream whose <first> is the largest that is not above r. */
#ifndef SHF_RANK_FILES_H
#define SHF_RANK_FILES_H
#include "mem.h"
#include "sheaf.h"

#define SHF_RANK_BYTES_MAX (UINT64_C(64) << 20)         /* of one stream and rank */
#define SHF_RANK_BYTES_ALL (UINT64_C(512) << 20)        /* of all streams and ranks of a save */
/* A file ends before the rank with which it would be longer than this, so a rank that reads its
 * bytes reads at most this much of others. */
#define SHF_RANK_FILE_BYTES (UINT64_C(16) << 20)
#define SHF_RANK_FILE_HEAD (UINT64_C(1) << 20)  /* more than the header of a file that is longer */
#define SHF_RANK_FILE_NAME 96                   /* room for a name, with its end */

/* The bytes of one rank. */
struct shf_rank_part {
	uint32_t rank;
	const uint8_t *bytes;           /* borrowed */
	uint64_t n, crc;                /* their number, and their standard CRC */
};
/* Returns whether an attached file of that name belongs to rank bytes. Callers must not attach
 * it. */
bool shf_rank_file_is(const char *name);
/* Writes the name of the file whose lowest rank is `first`. */
void shf_rank_file_name(char name[SHF_RANK_FILE_NAME], const char *stream, uint32_t first);
/* Returns whether `name` is that of a file of the stream. *first: its lowest rank. */
bool shf_rank_file_of(const char *name, const char *stream, uint32_t *first);
/* Returns how many of the n parts, from the first on, go into one file. */
size_t shf_rank_file_takes(const struct shf_rank_part *parts, size_t n);
/* Makes a file of the parts, whose ranks ascend. *crc: its standard CRC, computed from those of the
 * parts, so that a byte that changed since they were computed is found later. ENOMEM. */
int shf_rank_file_make(struct shf_buf *out, uint64_t *crc, const char *stream,
                       const struct shf_rank_part *parts, size_t n, struct sheaf_error *err);
/* Finds the bytes of a rank in a file. part->crc is not set. where: the file, for messages.
 * ENOENT: it has none of that rank. EFORMAT: it is no such file. */
int shf_rank_file_find(struct shf_rank_part *part, const char *stream, uint32_t rank,
                       const uint8_t *file, size_t n, const char *where, struct sheaf_error *err);
#endif
