/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a committed step again, to check that the disk has what was written: one node's share of
 * its blocks, of the pages of its table and of its small files. It works in short turns, so that it
 * can run in the background of the training, with bounded memory: 2 MiB, the manifest, and the page
 * table of the sums (1/8192 of the table).
 *
 * A block is compared with its sum. A tensor that lies within the share is compared with its
 * digest. For tensors that lie in several shares, the sums of the parts in this share are XORed
 * into `cut`; the XOR of the cuts of all shares is 0 if these tensors are right. Files that cannot
 * be read with direct I/O are dropped from the page cache first, because the bytes on disk are to
 * be checked.
 *
 * This file knows nothing of runs, groups and callers: a thread takes the turns. */
#ifndef SHF_SCRUB_H
#define SHF_SCRUB_H
#include <stdbool.h>
#include <stdint.h>
#include "manifest.h"
#include "sheaf.h"
#include "sums.h"
#include "sys.h"

enum { SHF_TABLE_FILES, SHF_TABLE_TENSORS, SHF_TABLE_BLOCKS, SHF_TABLE_SECTIONS };
struct shf_scrub_page {         /* a page of sheaf.sums that was read and checked */
	uint8_t *bytes;                 /* owned */
	uint64_t page;                  /* number of the page; UINT64_MAX: no page was read yet */
};
/* A step that is being read again. It belongs to the thread that takes the turns until the last
 * turn is over. */
struct shf_scrub {
	/* parameters */
	const struct shf_sys *sys;
	int dir;                        /* owned; descriptor of the step's directory; -1: none */
	int64_t step;
	char session[33];               /* the manifest must have this session; "": any session will
	                                 * do */
	const char *run;                /* borrowed; the manifest must have this run id; NULL or "":
	                                 * any run id will do */
	char where[300];                /* path of the step, for messages */
	uint32_t share, shares;         /* reads part number `share` of `shares` */
	bool buffered;                  /* no direct I/O */
	/* results, valid after the last turn */
	int rc;                         /* 0: the share is right; ECORRUPT: damage, described in
	                                 * err; another code: it could not be read */
	struct sheaf_error err;
	uint64_t cut, bytes;            /* cut: see the head of this file; bytes: number of bytes
	                                 * read */
	/* state between two turns */
	int phase;                      /* BEGIN, TABLE, DATA, SMALL or OVER in scrub.c */
	struct shf_arena arena;
	struct shf_manifest manifest;
	struct shf_sums_head head;
	int sums_fd;
	uint8_t *pages;                 /* owned; the page table of sheaf.sums: the sums of its
	                                 * other pages */
	struct shf_scrub_page table[SHF_TABLE_SECTIONS];
	uint8_t *room, *buf;            /* owned; room for a block; buf is its aligned start */
	uint64_t page, at, end;         /* page: next page of the table; [at, end): the blocks of
	                                 * the share that are still to be read, numbered over all
	                                 * files */
	uint32_t file;                  /* the file that is open, or was open last */
	uint64_t first;                 /* number, over all files, of the first block of that
	                                 * file */
	int fd, direct;                 /* descriptors of that file for reads through the page cache
	                                 * and for direct I/O; negative: not open, or not
	                                 * available */
	struct shf_sums_file sums_file; /* the file's record in the table */
	uint64_t tensor, digest;        /* the tensor that is being summed: number of its record,
	                                 * and the raw sum so far */
	bool whole;                     /* the tensor lies in this share from its start */
	size_t small;                   /* the attached file that is read */
	uint64_t small_at, small_crc;   /* next byte of that file to read; its CRC so far */
};
/* Prepares to read the step in the open directory dir, which *r owns from now on, also on failure.
 * Until the caller sets share and shares, the share is the whole step. ENOMEM. */
int shf_scrub_init(struct shf_scrub *r, const struct shf_sys *sys, int dir, int64_t step,
                   const char *session, const char *where, struct sheaf_error *err);
/* Takes one turn: reads up to a block. Returns false after the last one; r->rc then has the
 * result. */
bool shf_scrub_turn(void *reread);
/* Frees everything but the result (rc, err, cut, bytes). *r need not have been initialized, if it
 * is zeroed and its descriptors are -1. */
void shf_scrub_release(struct shf_scrub *r);
/* Drops the files of the step in this directory from the page cache of this node, as far as the
 * kernel allows, so that the next reader gets the bytes on disk. */
void shf_scrub_drop_cache(const struct shf_sys *sys, int dir);
#endif
