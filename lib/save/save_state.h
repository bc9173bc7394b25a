/* SPDX-License-Identifier: Apache-2.0 */
/* Where a save stands. Five things about it move on, each through the values of one enum, from the
 * first to the last. A value is never taken back, but for STAGED.
 *
 *   copy     COPYING   -> COPIED -> ASKED
 *   sums     APART     -> UNITED -> GATHERED
 *   memory   NOT_KEPT,  or TO_BE_KEPT -> TRIED -> KEPT
 *   disk     UNSTAGED <-> STAGED -> PUBLISHING -> BEHIND
 *   end      OPEN      -> SEALED -> OVER
 *
 * Ranks move a value after they have agreed on it, so outside a collective call it is equal on all
 * of them. SEALED alone is each rank's own, for a moment: it is taken just before the agreement on
 * whether the save has failed.
 *
 * What each waits for:
 *
 *   ASKED       a plain save: begin. A lazy one: the first commit that finds all slices asked for
 *   COPIED      a lazy save without that: a begin that needs its image, or an exchange
 *   STAGED      begin; or of a lazy save the first collective call for it after begin
 *   TRIED       ASKED, STAGED, all bytes exchanged; GATHERED is brought about for it
 *   GATHERED    TRIED, or else, without memory, all writes synced on all ranks (C3)
 *   SEALED      all writes synced; for memory alone (SHEAF_NO_DISK) nothing but KEPT follows
 *   PUBLISHING  SEALED, GATHERED: nothing but the disk can keep the step from appearing (C4, C5)
 *   BEHIND      PUBLISHING, and a commit has returned before the end of it
 *   OVER        the commit's outcome is known on all ranks; or the caller gave the save up
 *
 * A commit that returns EAGAIN leaves all of them as far as they came, and the next one goes on
 * from there. */
#ifndef SHF_SAVE_STATE_H
#define SHF_SAVE_STATE_H
#include <stdatomic.h>

enum shf_copy_at {
	SHF_COPYING,
	SHF_COPIED,                     /* all ranks have copied all of it */
	SHF_ASKED                       /* and the callers of all have asked for every slice */
};
enum shf_sums_at {
	SHF_SUMS_APART,                 /* each rank has the digests of what it copied */
	SHF_SUMS_UNITED,                /* all ranks have those of whole tensors */
	SHF_SUMS_GATHERED               /* rank 0 has all that the manifest needs (save_gather.h) */
};
enum shf_memory_at {
	SHF_MEMORY_NOT_KEPT,            /* some node has no agent */
	SHF_MEMORY_TO_BE_KEPT,
	SHF_MEMORY_TRIED,               /* cards were stamped, or that failed on some rank */
	SHF_MEMORY_KEPT                 /* agents of all nodes have it */
};
enum shf_disk_at {
	SHF_DISK_UNSTAGED,
	SHF_DISK_STAGED,                /* stage and files are there; or none is wanted */
	SHF_DISK_PUBLISHING,            /* whoever fails the save now is late */
	SHF_DISK_BEHIND                 /* and it goes on behind its callers, or did */
};
enum shf_end_at {
	SHF_OPEN,
	SHF_SEALED,                     /* sheaf_save_fail comes too late */
	SHF_OVER
};
struct shf_save_state {
	enum shf_copy_at copy;
	enum shf_sums_at sums;
	enum shf_memory_at memory;
	/* Read by any thread. Whoever writes STAGED, or submits writes because of it, has the
	 * save's lock `looking`. */
	_Atomic(enum shf_disk_at) disk;
	_Atomic(enum shf_end_at) end;        /* SEALED is written under end.lock */
};
#endif
