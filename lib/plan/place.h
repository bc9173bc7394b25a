/* SPDX-License-Identifier: Apache-2.0 */
/* Placement: gives every tensor a file and an offset. A pure function of names, dtypes, shapes,
 * file_bytes_max and the format version, so the same state gives the same bytes, whatever ranks
 * save it (doc/format.md). */
#ifndef SHF_PLACE_H
#define SHF_PLACE_H
#include "mem.h"
#include "sheaf.h"

#define SHF_PAGE   UINT64_C(4096)
#define SHF_BLOCK  (UINT64_C(1) << 20)
#define SHF_STRIPE (UINT64_C(16) << 20)
#define SHF_HEADER_MAX (UINT64_C(32) << 20) /* limit of the entries in one header */

struct shf_place_in {           /* a stored tensor; arrays are in natural order of names */
	uint64_t bytes;
	uint64_t header_bytes;          /* bound of its header entry, by shf_st_entry_bound */
	uint8_t align;                  /* of its dtype: 8, 4, 2, 1 */
};
struct shf_place_out {
	uint32_t file;                  /* number inside the family, from 0 */
	uint32_t order;                 /* position among the tensors of that file */
	uint64_t off;                   /* of its first byte, from the start of the data section */
};
struct shf_place_file {
	uint32_t tensors_n;
	uint64_t payload_bytes;
};
/* Places n tensors. Files are filled one after the other: a tensor begins a new file if the current
 * one is not empty and payload + bytes > file_bytes_max or header + entry > SHF_HEADER_MAX. Inside
 * a file come first the tensors with bytes > 0 and bytes mod 4096 == 0, then the others by
 * alignment 8, 4, 2, 1, each class in natural order, without gaps. *files is in the arena; *files_n
 * is 0 if n is 0. Returns 0 or SHEAF_ENOMEM. */
int shf_place(struct shf_arena *arena, const struct shf_place_in *in, size_t n,
              uint64_t file_bytes_max, struct shf_place_out *out, struct shf_place_file **files,
              size_t *files_n);
#endif
