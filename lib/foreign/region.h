/* SPDX-License-Identifier: Apache-2.0 */
/* A range of bytes: an open file, an item in an open file, or the decoded bytes of a compressed
 * item in one. */
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
	/* NULL: the bytes are those of the file. Otherwise they are those that this unpacker
	 * decodes; `bytes` is how many there are, and `off` is 0. Borrowed. Only one thread at a
	 * time may read such a region. */
	struct shf_unpacker *unpacker;
	bool once;                      /* the page cache need not keep what is read */
};
/* Reads n bytes at `off` of the range. EFORMAT: they are not all in it, or the file has become
 * shorter. */
int shf_region_read(const struct shf_region *r, void *to, uint64_t n, uint64_t off,
                    struct sheaf_error *err);
#endif
