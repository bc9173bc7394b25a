/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of an input as a file, for decoders that read regions of one. Nothing but pread works,
 * so an execution costs no more than the decoder itself. */
#ifndef MEMFILE_H
#define MEMFILE_H
#include <errno.h>
#include "fuzz.h"
#include "region.h"

struct memfile {
	const uint8_t *bytes;
	size_t n;
	struct shf_sys sys;
};

static inline int64_t memfile_pread(void *arg, int fd, void *buf, size_t n, uint64_t off)
{
	const struct memfile *m = arg;
	size_t left = off < m->n ? m->n - (size_t)off : 0;

	(void)fd;
	n = n < left ? n : left;
	if (n)
		memcpy(buf, m->bytes + off, n);
	return (int64_t)n;
}

/* Returns the whole of the file. */
static inline struct shf_region memfile_region(struct memfile *m, const uint8_t *bytes, size_t n)
{
	static const struct shf_file_ops ops = { .pread = memfile_pread };

	*m = (struct memfile){ .bytes = bytes, .n = n, .sys = { .file = { &ops, m } } };
	return (struct shf_region){ .sys = &m->sys, .bytes = n, .where = "f" };
}
#endif
