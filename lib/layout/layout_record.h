/* SPDX-License-Identifier: Apache-2.0 */
/* What the small files of a step say of its layout: the index file of each family, the lists of
 * families and files in the manifest, and the table sheaf.sums. */
#ifndef SHF_LAYOUT_RECORD_H
#define SHF_LAYOUT_RECORD_H
#include "layout.h"
#include "manifest.h"
#include "sums.h"

/* Encodes the index file of a family: which tensor is in which file. ENOMEM. */
int shf_layout_index(const struct shf_layout *l, const struct shf_lt_family *fam,
                     struct shf_buf *out, struct sheaf_error *err);
/* Returns the path of a family's index file in the step, allocated in the arena; NULL: no
 * memory. */
char *shf_layout_index_name(const struct shf_lt_family *fam, struct shf_arena *arena);
/* Fills the lists of families, files and tied names. file_crc NULL: the checksums are still
 * unknown. ENOMEM. */
int shf_layout_lists(const struct shf_layout *l, const uint64_t *file_crc, struct shf_arena *arena,
                     struct shf_manifest *m, struct sheaf_error *err);

/* The checksums of a step, all of them raw CRCs. */
struct shf_layout_sums {
	uint64_t *headers, *blocks;     /* owned; by file: of its header; by block of the step */
	const uint64_t *digests;        /* borrowed; by tensor */
};
/* Makes the table sheaf.sums without checksums, which is the same in every save of the layout.
 * *h: where its parts are. ENOMEM. */
int shf_layout_table(const struct shf_layout *l, struct shf_sums_head *h, struct shf_buf *out);
/* Turns the sums of blocks into standard CRCs, in place, and computes those of whole files from
 * them. ECORRUPT if the sum of a file differs from that of its header and its tensors (I4); *bad
 * becomes its number. */
int shf_layout_sums_end(const struct shf_layout *l, const struct shf_layout_sums *in,
                        uint64_t *file_crc, uint32_t *bad);
/* Writes the checksums into the table, after shf_layout_sums_end. Returns the checksum of the
 * table that the manifest has. */
uint64_t shf_layout_table_end(const struct shf_layout *l, const struct shf_sums_head *h,
                              uint8_t *table, const struct shf_layout_sums *in);
#endif
