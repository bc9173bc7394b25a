/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of a load from the files of its step, with their error messages. */
#ifndef SHF_LOAD_READ_H
#define SHF_LOAD_READ_H
#include "load.h"
#include "read_ring.h"

/* Sets *r to a read of n bytes at `lo` of a file of the step into r->buf. past: use direct I/O, if
 * the file can be opened for it. Returns 0, or the code of a file that cannot be opened. [local] */
int shf_load_read_set(struct shf_load *load, struct shf_read *r, uint32_t file, uint64_t lo,
                      uint64_t n, bool past, struct sheaf_error *err);
/* Checks the result of a read: got, which shf_read_wait has returned, or r->rc if the read could
 * not be submitted. Adds the bytes to load->disk_bytes. EIO, or ECORRUPT if the file ends too
 * early. [local] */
int shf_load_read_check(struct shf_load *load, const struct shf_read *r, int64_t got,
                        struct sheaf_error *err);
/* Reads n bytes at `lo` of a file into `to` on this thread, through the page cache, and adds n to
 * load->disk_bytes. EIO, ECORRUPT. [local] */
int shf_load_read_now(struct shf_load *load, uint32_t file, uint64_t lo, uint64_t n, uint8_t *to,
                      struct sheaf_error *err);
#endif
