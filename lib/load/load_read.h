/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of a load, from the files of its step. */
#ifndef SHF_LOAD_READ_H
#define SHF_LOAD_READ_H
#include "load.h"
#include "read_ring.h"

/* Describes a read of n bytes at lo of a file of the step, to r->buf. past: past the page cache, if
 * the file can be opened so. The code of a file that cannot be opened. [local] */
int shf_load_read_set(struct shf_load *load, struct shf_read *r, uint32_t file, uint64_t lo,
                      uint64_t n, bool past, struct sheaf_error *err);
/* Counts what a read returned. EIO, or ECORRUPT for a file that ends too early. [local] */
int shf_load_read_check(struct shf_load *load, const struct shf_read *r, int64_t got,
                        struct sheaf_error *err);
/* The same at once, on this thread and through the page cache. [local] */
int shf_load_read_now(struct shf_load *load, uint32_t file, uint64_t lo, uint64_t n, uint8_t *to,
                      struct sheaf_error *err);
#endif
