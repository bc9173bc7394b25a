/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the bytes of a zip archive that are not those of tensors. Records are stored as they are,
 * and tensors begin at multiples of 64 bytes of the file, as torch.save aligns them. Sizes and
 * offsets that need it are those of zip64. The CRC-32 of a record with a tensor is a hole
 * (export_plan.h).
 *
 * Source: APPNOTE.TXT 6.3.10 of PKWARE. */
#ifndef SHF_ZIP_WRITE_H
#define SHF_ZIP_WRITE_H
#include "export_plan.h"

struct shf_zip_out {            /* an archive that is being made in a file */
	struct shf_export_plan *plan;   /* borrowed; its crc is made */
	struct shf_export_file *file;   /* borrowed; gets bytes and holes */
	uint64_t begin, at;             /* of the archive in the file; of the next byte */
	struct shf_buf central;         /* owned; the directory so far */
	struct shf_buf late;            /* owned; holes in it, counted from its start */
	uint64_t records;
};
/* Begins an archive at the end of what the file has so far: at byte `at`. */
void shf_zip_begin(struct shf_zip_out *z, struct shf_export_plan *plan,
                   struct shf_export_file *file, uint64_t at);
/* Adds a record with these bytes. */
void shf_zip_add(struct shf_zip_out *z, const char *name, const void *bytes, size_t n);
/* Does the same for the bytes of a small tensor, which are aligned as those of all tensors are. */
void shf_zip_add_aligned(struct shf_zip_out *z, const char *name, const void *bytes, size_t n);
/* Adds a record with these bytes and the bytes of tensor i of the plan, which gets its offset. */
void shf_zip_add_tensor(struct shf_zip_out *z, const char *name, const void *before, size_t n,
                        uint32_t i);
/* Adds the directory. Returns where the archive ends in the file. If there was no memory,
 * file->header or file->holes says so. */
uint64_t shf_zip_end(struct shf_zip_out *z);
#endif
