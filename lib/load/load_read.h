/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of a load, from the files of its step. */
#ifndef SHF_LOAD_READ_H
#define SHF_LOAD_READ_H
#include "load.h"

/* One read. Tried again a few times; what then is wrong with it is told by finish. */
struct shf_read {
	struct shf_io_owner io;
	struct shf_io req;
	uint32_t file;
	uint64_t want;                  /* bytes */
	bool through;                   /* past the page cache, if that can be had */
};
int shf_read_start(struct shf_load *load, struct shf_read *r, uint32_t file, uint64_t lo,
                   uint64_t n, uint8_t *to, struct sheaf_error *err);
int shf_read_finish(struct shf_load *load, struct shf_read *r, struct sheaf_error *err);
/* The same at once, on this thread and through the page cache. */
int shf_read_here(struct shf_load *load, uint32_t file, uint64_t lo, uint64_t n, uint8_t *to,
                  struct sheaf_error *err);
#endif
