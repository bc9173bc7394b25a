/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of checkpoints of other software do alike. For the tests' own files, which include t.h
 * first. */
#ifndef FOREIGN_PLAYS_H
#define FOREIGN_PLAYS_H
#include <stdlib.h>
#include "t.h"
#include "torchfile.h"

/* Returns a disk with a file of these bytes, which are freed. */
static inline struct simdisk *disk_with(const char *path, struct torch_bytes file)
{
	struct simdisk *disk = disk_new();

	CHECK_INT(simdisk_put(disk, path, file.p, file.n), 0);
	free(file.p);
	return disk;
}

/* Returns a play that loads all tensors of what lies at the path. */
static inline struct play foreign_play(struct simdisk *disk, const char *path, int ranks,
                                       void (*hold)(struct hand *h))
{
	struct play p = hands_play(disk, ranks, hold);

	p.path = path;
	p.opts.flags = 0;
	p.flags = SHEAF_LOAD_STRICT;
	return p;
}

/* Loads it on 1 rank, on 2, and so on up to `most`, and frees the disk. tensors: how many it
 * has. */
static inline void foreign_loads(struct simdisk *disk, const char *path, int most,
                                 void (*hold)(struct hand *h), int variant, uint64_t tensors)
{
	for (int ranks = 1; ranks <= most; ranks++) {
		struct play p = foreign_play(disk, path, ranks, hold);

		p.variant = variant;
		LOADED(p);
		CHECK_INT(p.report.loaded, tensors);
	}
	simdisk_free(disk);
}
#endif
