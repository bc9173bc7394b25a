/* SPDX-License-Identifier: Apache-2.0 */
/* What a view is made of; for memory_dir.c, the machine, and memory_dir_fill.c, which fills it. */
#ifndef SHF_MEMORY_DIR_IN_H
#define SHF_MEMORY_DIR_IN_H
#include "memory_dir.h"

struct shf_stretch {                /* bytes [lo, hi) of a file */
	uint32_t file;
	uint64_t lo, hi;
	const uint8_t *at;
};
/* A file that the view shows. */
struct shf_vfile {
	const char *name;               /* with its folder */
	uint64_t bytes;
	size_t first, end;              /* stretches */
	const uint8_t *whole;           /* of a small one: all of it */
};
/* A view: the memory that it was made of, the files that it shows, and where their bytes lie. */
struct shf_view {
	struct shf_sys sys;             /* as `in`, with files and a queue of our own */
	const struct shf_sys *in;       /* borrowed; the machine below */
	struct shf_arena arena;
	struct shf_part_held *parts;    /* owned */
	size_t parts_n;
	struct shf_stretch *stretches;      /* owned */
	size_t stretches_n, stretches_cap;
	const struct shf_card_small *smalls;    /* in the arena */
	size_t smalls_n;
	struct shf_manifest manifest;
	struct shf_vfile *files;            /* in the arena */
	size_t files_n;
	char (*folders)[64];            /* in the arena */
	size_t folders_n;
	int disk;                       /* the same step as it is on disk; -1: it is not */
	int lease;                      /* of its sheaf.json there, shared lock; -1 */
	uint64_t pid;                   /* of the process that took the lease */
	int *disk_files;                /* in the arena; by tensor file: open there, or -1 */
	uint64_t disk_bytes;            /* that were read there */
	struct shf_hads hads;           /* in the arena; what each node has */
	bool guests;
};
#endif
