/* SPDX-License-Identifier: Apache-2.0 */
/* The checksums of a zip archive, which neither torch nor NumPy's memory maps compare. */
#ifndef SHF_ZIP_VERIFY_H
#define SHF_ZIP_VERIFY_H
#include "foreign.h"
#include "zip.h"

/* Compares the records of an archive with their CRC-32, and reports to `to` every one whose data
 * have another. file: its name, for reports. at: where the region begins in that file. Returns 0
 * after findings, too. */
int shf_zip_verify(const struct shf_zip *zip, const struct shf_region *r, const char *file,
                   uint64_t at, struct shf_foreign_findings *to, struct sheaf_error *err);
/* Verifies a file of a checkpoint if it is an archive. Any other file has no checksums:
 * to->unproved, unless it is a file of JSON. */
int shf_zip_verify_file(struct shf_foreign *f, uint32_t file,
                        struct shf_foreign_findings *to, struct sheaf_error *err);
/* The function verify of a format: verifies all files. */
int shf_zip_verify_files(struct shf_foreign *f, struct shf_foreign_findings *to,
                         struct sheaf_error *err);
#endif
