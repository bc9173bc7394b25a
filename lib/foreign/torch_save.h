/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the records of an archive of torch.save with their CRC-32, which torch does not. */
#ifndef SHF_TORCH_SAVE_H
#define SHF_TORCH_SAVE_H
#include "foreign.h"
#include "zip.h"

/* Reports to `to` every record of the archive whose data has another sum. file: its name, for
 * reports. at: where the region begins in that file. Returns 0 after findings, too. */
int shf_zip_verify(const struct shf_zip *zip, const struct shf_region *r, const char *file,
                   uint64_t at, struct shf_foreign_findings *to, struct sheaf_error *err);
#endif
