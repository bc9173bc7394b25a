/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of a zip archive, as torch.save and numpy.savez write it. A record is a range of
 * the file: its data as they are, or compressed by deflate.
 *
 * Two readers may see different records in one hostile archive. So this one takes only archives of
 * which there is one reading: the end record ends the archive, the directory ends where the end
 * record begins, and records neither overlap nor share a name. */
#ifndef SHF_ZIP_H
#define SHF_ZIP_H
#include "mem.h"
#include "region.h"
#include "unpack.h"

#define SHF_ZIP_MAGIC 0x04034b50u       /* the first bytes of a record, and so of an archive */
struct shf_zip_record {
	const char *name;               /* in the arena, NUL-ended, without control characters */
	const char *raw;                /* the same as the archive has it */
	uint64_t at, bytes;             /* of its local header in the region; of its data */
	uint64_t packed;                /* bytes that its data have in the archive */
	bool deflated;                  /* they are compressed */
	uint64_t end;                   /* where its data must have ended: at the next record */
	uint32_t crc;                   /* CRC-32 of its data */
};
struct shf_zip {
	struct shf_zip_record *records; /* in the arena, in order of name */
	size_t n;
};
/* Reads the directory of the archive that fills the region. EFORMAT: it is damaged, or has what
 * neither program writes: encrypted records, another compression, a comment, several disks. */
int shf_zip_open(struct shf_zip *z, const struct shf_region *r, struct shf_arena *arena,
                 struct sheaf_error *err);
/* Returns the record of that name, or NULL. */
const struct shf_zip_record *shf_zip_find(const struct shf_zip *z, const char *name, size_t n);
/* Sets *data to where the data of a record begins in the region. Its local header must name it.
 * EFORMAT: it is compressed. */
int shf_zip_data(const struct shf_zip_record *record, const struct shf_region *r, uint64_t *data,
                 struct sheaf_error *err);
/* Does the same for a record that may be compressed, whose data it describes. */
int shf_zip_packed(const struct shf_zip_record *record, const struct shf_region *r,
                   struct shf_packed *packed, struct sheaf_error *err);
#endif
