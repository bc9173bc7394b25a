/* SPDX-License-Identifier: Apache-2.0 */
/* The members of a view, for memory_dir.c, which shows it as a system layer, and memory_dir_fill.c,
 * which fills it. */
#ifndef SHF_MEMORY_DIR_IN_H
#define SHF_MEMORY_DIR_IN_H
#include "memory_dir.h"

struct shf_view_range {                /* bytes [lo, hi) of a tensor file, in memory at `at` */
	uint32_t file;
	uint64_t lo, hi;
	const uint8_t *at;
};
/* A file that the view shows. */
struct shf_view_file {
	const char *name;               /* its name in the step, with the folder */
	uint64_t bytes;
	size_t first, end;              /* in a tensor file: its stretches are [first, end) */
	const uint8_t *whole;           /* in a small file: its bytes; NULL in a tensor file */
};
/* A view: the memory that it was made of, the files that it shows, and where their bytes lie. */
struct shf_view {
	struct shf_sys sys;             /* as `in`, except for the operations on files and queues */
	const struct shf_sys *in;       /* borrowed; the system layer below */
	struct shf_arena arena;
	struct shf_view_part *parts;    /* owned */
	size_t parts_n;
	struct shf_view_range *stretches;      /* owned; sorted by file and place when finished */
	size_t stretches_n, stretches_cap;
	struct shf_card_small_file *smalls;     /* in the arena */
	size_t smalls_n;
	struct shf_manifest manifest;
	struct shf_view_file *files;            /* in the arena */
	size_t files_n;
	char (*folders)[64];            /* in the arena */
	size_t folders_n;
	int disk;                       /* directory of the same step on disk; -1: not opened */
	int lease;                      /* descriptor with a shared lock of that step's sheaf.json;
	                                 * -1: none */
	uint64_t pid;                   /* process that took the lease */
	int *disk_files;                /* in the arena; by tensor file: descriptor of the file on
	                                 * disk; -1: not opened */
	uint64_t disk_bytes;            /* number of bytes read from disk so far */
	struct shf_block_access_map hads; /* in the arena; which node can read which blocks */
	bool guests;                    /* some parts may be replicas */
};
#endif
