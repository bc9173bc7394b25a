/* SPDX-License-Identifier: Apache-2.0 */
/* A range of bytes of an open file: a whole file, or an item in a file of several. Or what a
 * compressed item of a file stands for. */
#ifndef SHF_REGION_H
#define SHF_REGION_H
#include "sheaf.h"
#include "sys.h"

struct shf_unpacker;            /* unpack.h */
struct shf_region {
	const struct shf_sys *sys;      /* borrowed */
	int fd;                         /* borrowed */
	uint64_t off, bytes;            /* of the range in the file */
	const char *where;              /* borrowed; for sentences */
	/* NULL: the bytes are those of the file. Else they are what this decodes, of which `bytes`
	 * says how many there are, and `off` is 0. Borrowed; for one thread. */
	struct shf_unpacker *unpacker;
};
/* Reads n bytes at `off` of the range. EFORMAT: they are not all in it, or the file has become
 * shorter. */
int shf_region_read(const struct shf_region *r, void *to, uint64_t n, uint64_t off,
                    struct sheaf_error *err);
#endif
