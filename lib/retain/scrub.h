/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a committed step again: one node's share of its blocks, of the pages of its table and of
 * its small files, in short turns and bounded memory (2 MiB, the manifest, and of the table the
 * sums of its pages, 1/8192 of it), so that it can go on behind the training. A block is compared
 * with its sum; the digest of a tensor that lies in the share whole with the table's. What of a
 * tensor lies in other shares is summed in `cut`, which over all shares is 0. What cannot be read
 * past the page cache is dropped from it first: what matters is what the disk has.
 *
 * Knows nothing of runs, groups and callers: the turns are a thread's. */
#ifndef SHF_SCRUB_H
#define SHF_SCRUB_H
#include <stdbool.h>
#include <stdint.h>
#include "manifest.h"
#include "sheaf.h"
#include "sums.h"
#include "sys.h"

enum { SHF_TABLE_FILES, SHF_TABLE_TENSORS, SHF_TABLE_BLOCKS, SHF_TABLE_SECTIONS };
struct shf_table_page {         /* of sheaf.sums, checked */
	uint8_t *bytes;                 /* owned */
	uint64_t page;                  /* which; UINT64_MAX: none yet */
};
/* A step that is being read again. It belongs to the thread that takes the turns until there are no
 * more. */
struct shf_reread {
	/* what is asked */
	const struct shf_sys *sys;
	int dir;                        /* owned descriptor of the step; -1 */
	int64_t step;
	char session[33];               /* the step's must be this; "": any */
	const char *run;                /* borrowed; its run id must be this; NULL, "": any */
	char where[300];                /* the step, for sentences */
	uint32_t share, shares;
	bool buffered;                  /* never past the page cache */
	/* what came of it, when there are no more turns */
	int rc;                         /* 0; ECORRUPT: damage, err says where; else unknown */
	struct sheaf_error err;
	uint64_t cut, bytes;            /* bytes: that were read */
	/* where it is */
	int phase;
	struct shf_arena arena;
	struct shf_manifest manifest;
	struct shf_sums_head head;
	int sums_fd;
	uint8_t *pages;                 /* owned; sums of the table's pages */
	struct shf_table_page table[SHF_TABLE_SECTIONS];
	uint8_t *room, *buf;            /* owned; a block, aligned */
	uint64_t page, at, end;         /* next page of the table; next block, and the end */
	uint32_t file;                  /* the one that is open, or was last */
	uint64_t first;                 /* its first block of all */
	int fd, direct;                 /* negative: not open, cannot be had */
	struct shf_sums_file sums_file;
	uint64_t tensor, digest;        /* next record to end; raw sum of what was seen of it */
	bool whole;                     /* all of it was */
	size_t small;                   /* next attached file */
	uint64_t small_at, small_crc;
};
/* dir is taken, also on failure. ENOMEM. */
int shf_reread_init(struct shf_reread *r, const struct shf_sys *sys, int dir, int64_t step,
                    const char *session, const char *where, struct sheaf_error *err);
/* A turn. False: it was the last. */
bool shf_reread_turn(void *reread);
/* Frees everything but the result. A zeroed one with descriptors of -1 may be released. */
void shf_reread_release(struct shf_reread *r);
/* What the page cache has of the step in this directory is dropped, as far as it can be, so that
 * whoever reads the step next reads what the disk has. */
void shf_reread_forget(const struct shf_sys *sys, int dir);
#endif
