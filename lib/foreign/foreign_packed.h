/* SPDX-License-Identifier: Apache-2.0 */
/* Compressed parts of the files of a checkpoint, read by several threads. What is being decoded is
 * kept for the next read, in bounded memory. */
#ifndef SHF_FOREIGN_PACKED_H
#define SHF_FOREIGN_PACKED_H
#include "foreign.h"

#define SHF_UNPACKING_BYTES (UINT64_C(128) << 20)       /* of parts that are kept, with
                                                         * those that are being read */
/* Reads n bytes of what a part stands for. p: must live as long as f. r: its file. [any thread] */
int shf_foreign_packed_read(struct shf_foreign *f, const struct shf_packed *p,
                            const struct shf_region *r, uint8_t *to, uint64_t n, uint64_t at,
                            struct sheaf_error *err);
void shf_foreign_packed_release(struct shf_foreign *f);
#endif
