/* SPDX-License-Identifier: Apache-2.0 */
/* How far a save has come. Five aspects of it advance separately, and each has an enum whose values
 * are passed from the first to the last. No value is ever taken back, except STAGED.
 *
 *   copy     COPYING   -> COPIED -> ASKED
 *   sums     APART     -> UNITED -> GATHERED
 *   memory   NOT_KEPT,  or TO_BE_KEPT -> TRIED -> KEPT
 *   disk     UNSTAGED <-> STAGED -> PUBLISHING -> BEHIND
 *   end      OPEN      -> SEALED -> OVER
 *
 * A rank advances a value after all ranks have agreed on it, so outside a collective call each
 * value is equal on all ranks. The exception is SEALED: each rank sets it alone, just before the
 * ranks agree on whether the save has failed.
 *
 * What must have happened before each value is set:
 *
 *   ASKED       a plain save: begin. A lazy save: a commit found that the callers of all ranks
 *               have asked at the gates of all slices
 *   COPIED      only a lazy save whose copy had to be finished earlier, because a later begin needs
 *               its image, or for sheaf_save_advance
 *   STAGED      C0 in begin, or for a lazy save in the first collective call for it after begin
 *   TRIED       ASKED, STAGED, and all bytes exchanged. The call that tries also brings GATHERED
 *   GATHERED    TRIED; or, if the save is not kept in memory, all writes synced on all ranks (C3)
 *   SEALED      all writes synced; or, for a memory-only save (SHEAF_SAVE_NO_DISK), its card
 *               stamped on this rank: when the ranks have agreed on the stamps, it is complete
 *   PUBLISHING  SEALED and GATHERED. Now only the disk can keep the step from appearing (C4, C5)
 *   BEHIND      PUBLISHING, and a commit with timeout 0 has come this far
 *   OVER        all ranks know the outcome of the commit; or the caller aborted the save
 *
 * A commit that returns EAGAIN leaves every value where it is, and the next commit continues from
 * there. */
#ifndef SHF_SAVE_STATE_H
#define SHF_SAVE_STATE_H
#include <stdatomic.h>

enum shf_save_copy_at {
	SHF_COPYING,
	SHF_COPIED,                     /* all ranks have finished the copy */
	SHF_ASKED                       /* moreover, on all ranks the caller has asked for every
	                                 * slice */
};
enum shf_save_sums_at {
	SHF_SUMS_APART,                 /* copy.held has digests of what this rank copied */
	SHF_SUMS_UNITED,                /* on all ranks it has digests of whole tensors */
	SHF_SUMS_GATHERED               /* rank 0 has all that the manifest needs (save_gather.h) */
};
enum shf_save_memory_at {
	SHF_MEMORY_NOT_KEPT,            /* some rank has no agent, so the step cannot be kept in
	                                 * memory */
	SHF_MEMORY_TO_BE_KEPT,          /* every rank has an agent with room for it */
	SHF_MEMORY_TRIED,               /* ranks have stamped their cards, or some rank could not */
	SHF_MEMORY_KEPT                 /* all ranks agreed that the step is in memory */
};
enum shf_save_disk_at {
	SHF_DISK_UNSTAGED,              /* no files yet, or C0 has failed */
	SHF_DISK_STAGED,                /* C0 is done; or the save is memory-only */
	SHF_DISK_PUBLISHING,            /* rank 0 publishes; sheaf_save_abort comes too late */
	SHF_DISK_BEHIND                 /* rank 0 may publish in the background, between two
	                                 * commits */
};
enum shf_save_end_at {
	SHF_OPEN,                       /* sheaf_save_abort can still fail it */
	SHF_SEALED,                     /* sheaf_save_abort comes too late */
	SHF_OVER
};
/* The state of one save. Only the thread that has the run changes it (turns.h). */
struct shf_save_state {
	enum shf_save_copy_at copy;
	enum shf_save_sums_at sums;
	enum shf_save_memory_at memory;
	/* Any thread may read `disk`. A thread that sets it to STAGED, or that submits writes
	 * because it is STAGED, holds the lock end.write_lock. */
	_Atomic(enum shf_save_disk_at) disk;
	_Atomic(enum shf_save_end_at) end; /* set to SEALED with end.lock held, so that no failure
	                                      * that sheaf_save_abort has accepted is missed */
};
#endif
