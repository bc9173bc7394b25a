/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf.sums: the binary table of sums and digests (doc/format.md). Little-endian.
 *
 *   header   128 bytes
 *     0  8 "SHEAFSUM"    8 u32 version 1   12 u32 flags 0
 *    16 u64 files_n     24 u64 tensors_n   32 u64 blocks_n   40 u64 names_bytes
 *    48 u64 files_off   56 u64 tensors_off 64 u64 blocks_off 72 u64 names_off
 *    80 u64 pages_off   88 zeros          120 u64 standard CRC of bytes 0..119
 *   files    32 each: u64 bytes, u64 first_block, u64 first_tensor, u32 tensors_n, u32 header_bytes
 *   tensors  64 each, by (file, offset): u64 offset in file, u64 bytes, u32 file, u32 name_bytes,
 *            u64 name_off (in the names section), u64 key, u64 digest, u16 dtype, u8 ndim, u8 0,
 *            u32 slot, u64 items. key = standard CRC of family 00 name. slot is a permutation:
 *            tensor slot[i] is the i-th by (key, number), for binary search
 *   blocks   u64 standard CRC each; block b of file f at blocks_off + 8 * (first_block + b)
 *   names    family 00 name 00, in tensor order
 *   pages    u64 standard CRC of every 64 KiB of the file before pages_off, the last one short
 * Sections in this order, each padded with zeros to a multiple of 64 bytes; the file ends with
 * the pages (not padded). */
#ifndef SHF_SUMS_H
#define SHF_SUMS_H
#include "manifest.h"
#include "mem.h"
#include "sheaf.h"

#define SHF_SUMS_HEADER 128
#define SHF_SUMS_FILE 32
#define SHF_SUMS_TENSOR 64
#define SHF_SUMS_DIGEST 40      /* offset of the digest in the record of a tensor */
#define SHF_SUMS_PAGE (UINT64_C(64) << 10)
struct shf_sums_head {
	uint64_t files_n, tensors_n, blocks_n, names_bytes;
	uint64_t files_off, tensors_off, blocks_off, names_off, pages_off;
	uint64_t bytes;                 /* of the whole table */
};
struct shf_sums_file {
	uint64_t bytes, first_block, first_tensor;
	uint32_t tensors_n, header_bytes;
};
struct shf_sums_tensor {
	uint64_t off, bytes;
	uint32_t file, name_bytes;      /* name_bytes: of family 00 name, without the last 00 */
	uint64_t name_off, key, digest;
	uint16_t dtype;
	uint8_t ndim;
	uint32_t slot;
	uint64_t items;
};
/* Fills the offsets and bytes from the four counts. Returns false on overflow. */
bool shf_sums_layout(struct shf_sums_head *h);
void shf_sums_put_head(uint8_t out[SHF_SUMS_HEADER], const struct shf_sums_head *h);
void shf_sums_put_file(uint8_t out[SHF_SUMS_FILE], const struct shf_sums_file *f);
void shf_sums_put_tensor(uint8_t out[SHF_SUMS_TENSOR], const struct shf_sums_tensor *t);
/* Reads the header of a table of file_bytes bytes. Every offset and count is checked against that
 * size. ECORRUPT, or EFORMAT for a newer version. */
int shf_sums_get_head(struct shf_sums_head *h, const uint8_t *bytes, uint64_t file_bytes,
                      const char *where, struct sheaf_error *err);
/* Returns whether the counts in a header can be true of the files in the manifest: the number of
 * blocks follows from their sizes, and tensors and names must have room in their headers. A reader
 * of a table above SHF_SUMS_SMALL bytes checks this before it allocates memory for the table. */
#define SHF_SUMS_SMALL (UINT64_C(16) << 20)
bool shf_sums_is_likely(const struct shf_sums_head *h, const struct shf_manifest *m);
/* Returns the checksum of header and page table, which the manifest has. pages: the page table,
 * from pages_off to the end of the table. */
uint64_t shf_sums_crc(const struct shf_sums_head *h, const uint8_t header[SHF_SUMS_HEADER],
                      const uint8_t *pages);
/* Returns how many bytes the page has: SHF_SUMS_PAGE, or less if it is the last one. */
uint64_t shf_sums_page_bytes(const struct shf_sums_head *h, uint64_t page);
struct shf_sums_file shf_sums_get_file(const uint8_t in[SHF_SUMS_FILE]);
struct shf_sums_tensor shf_sums_get_tensor(const uint8_t in[SHF_SUMS_TENSOR]);
/* A whole table in memory. shf_sums_open() checks all of it: page sums, header, the ranges of every
 * record, names (UTF-8, NUL-ended), slots (a permutation in order), keys, that no tensor occurs
 * twice, that the tensors of a file are consecutive and without gaps after its header, and that
 * blocks_n is the sum over the files. crc: the checksum of header and page table that the manifest
 * has. Returns 0, SHEAF_ECORRUPT, SHEAF_EFORMAT (a newer version) or SHEAF_ENOMEM. */
struct shf_sums {
	struct shf_sums_head head;
	const uint8_t *bytes;           /* borrowed */
};
int shf_sums_open(struct shf_sums *s, const uint8_t *bytes, size_t n, uint64_t crc,
                  const char *where, struct sheaf_error *err);
/* The accessors of a table that was opened: records and block sums by their number. Strings are
 * borrowed from the table. */
struct shf_sums_file shf_sums_file(const struct shf_sums *s, uint64_t i);
struct shf_sums_tensor shf_sums_tensor(const struct shf_sums *s, uint64_t i);
uint64_t shf_sums_block(const struct shf_sums *s, uint64_t i);
const char *shf_sums_family(const struct shf_sums *s, const struct shf_sums_tensor *t);
const char *shf_sums_name(const struct shf_sums *s, const struct shf_sums_tensor *t);
/* Returns the number of a tensor, or -1 if the table does not have it. */
int64_t shf_sums_find(const struct shf_sums *s, const char *family, const char *name);
uint64_t shf_sums_key(const char *family, const char *name);    /* as stored in the table */
#endif
