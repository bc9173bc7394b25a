/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf-admin.h - administration of a run: lists, leftovers of dead jobs, retention, marks,
 * rewinds, copies. The rules at the head of sheaf.h apply to these calls, too. */
#ifndef SHEAF_ADMIN_H
#define SHEAF_ADMIN_H
#include "sheaf.h"
#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

enum sheaf_mark {
	SHEAF_MARK_NONE = 0,
	SHEAF_MARK_KEEP = 1,            /* it is never pruned */
	SHEAF_MARK_BAD = 2,             /* SHEAF_LATEST passes it over */
	SHEAF_MARK_UNREAD = 3           /* in lists: the mark could not be read */
};
const char *sheaf_mark_name(int32_t mark);      /* "keep"; NULL: none such */
enum sheaf_item_state {
	SHEAF_ITEM_COMMITTED = 1,
	SHEAF_ITEM_DAMAGED = 2,         /* its manifest is damaged, or files are missing or have
	                                 * another size */
	SHEAF_ITEM_FOREIGN = 3,         /* has no manifest: another program wrote it */
	SHEAF_ITEM_ASIDE = 4,           /* set aside */
	SHEAF_ITEM_STAGED = 5,          /* a save that was not committed */
	SHEAF_ITEM_UNREAD = 6           /* an I/O error hides what it is */
};
const char *sheaf_item_state_name(int32_t state);       /* "committed"; NULL: none such */
struct sheaf_item {                     /* one entry of a run; strings live during the call */
	uint32_t size;
	int32_t mark, state;            /* enum sheaf_mark, enum sheaf_item_state */
	int32_t tries;                  /* sessions that loaded it and came no further; -1: it could
	                                 * not be read */
	int64_t step, parent;           /* parent -1: none */
	const char *session, *created, *path;   /* "" where unknown; path relative to the run */
	uint64_t bytes;                 /* of all files the manifest names */
};
/* Everything in the run, by step; a non-zero result of item ends it and is returned. [local] */
int  sheaf_run_list(struct sheaf_run *run, int (*item)(void *arg, const struct sheaf_item *),
                    void *arg, struct sheaf_error *err);
/* Writes the path that the folder of a checkpoint has, or would have, into path: the directory of
 * the run as it was opened, and a name by sheaf_opts.folder. EINVAL: there is no run, the number is
 * negative, or `bytes` are too few. [local] */
int  sheaf_run_path(struct sheaf_run *run, int64_t step, char *path, size_t bytes,
                    struct sheaf_error *err);
enum sheaf_leftover_kind {
	SHEAF_LEFTOVER_LOCK = 1, SHEAF_LEFTOVER_DAMAGED = 2, SHEAF_LEFTOVER_UNREAD = 3,
	SHEAF_LEFTOVER_REMAINS = 4,     /* a checkpoint without its manifest */
	SHEAF_LEFTOVER_STAGED = 5,      /* a save that was not committed */
	SHEAF_LEFTOVER_COPY = 6,        /* half a copy of a checkpoint */
	SHEAF_LEFTOVER_ASIDE = 7, SHEAF_LEFTOVER_TRASH = 8, SHEAF_LEFTOVER_REWIND = 9,
	SHEAF_LEFTOVER_FLUSH = 10       /* of agents of several nodes that wrote a checkpoint */
};
const char *sheaf_leftover_kind_name(int32_t kind);     /* "staged"; NULL: none such */
enum sheaf_leftover_action {            /* what the next sheaf_run_open to write does with it */
	SHEAF_ACTION_NONE = 0,
	SHEAF_ACTION_DELETE = 1,
	SHEAF_ACTION_FINISH = 2,
	SHEAF_ACTION_WAIT = 3,          /* nothing yet */
	SHEAF_ACTION_DECIDE = 4         /* never anything: that is yours */
};
const char *sheaf_leftover_action_name(int32_t action); /* "delete"; NULL: none such */
struct sheaf_leftover {                 /* strings live during the call */
	uint32_t size;
	int32_t lives;                  /* its writer: 0 proven dead, 1 lives or may, -1 none */
	int32_t kind, action;           /* enum sheaf_leftover_kind, sheaf_leftover_action */
	int64_t step;                   /* -1: of none */
	uint64_t bytes;                 /* of the files its manifest names; 0: unknown */
	const char *path, *session, *why;       /* "" where unknown; path relative to the run */
	int32_t whole, reserved;        /* staged: 1: manifest, names and sizes are right */
};
/* What dead jobs, half done work and a person's hand left, the lock first; a non-zero result of
 * item ends it and is returned. Changes nothing; asks for locks, for a moment. [local] */
int  sheaf_run_leftovers(struct sheaf_run *run,
                         int (*item)(void *arg, const struct sheaf_leftover *),
                         void *arg, struct sheaf_error *err);
/* Publish a save of a dead writer that is whole in the stage, which the next sheaf_run_open to
 * write would delete: its commit may have returned a failure, so a person decides. Takes the lock,
 * proves every byte, publishes as a commit does. ENOENT: no such stage. EBUSY: its writer may
 * live, or somebody writes here. ECORRUPT: it is not whole (report.finding hears why). EEXIST:
 * the number is taken. opts as of sheaf_run_open. [local] */
int  sheaf_run_salvage(const char *dir, int64_t step, const struct sheaf_opts *opts,
                       struct sheaf_report *report, struct sheaf_error *err);

/* Set later steps aside (kept, no longer found), so that training goes on from `step`. What is set
 * aside, by this or otherwise, stays in .sheaf/aside until sheaf_run_restore or
 * sheaf_run_discard is called for it.
 * Loading an older step, or one that has been set aside, and saving without this is EINVAL. Saving
 * may go on from the newest step on disk, though, if memory alone has newer ones: these are no
 * longer found when the next step is there.
 * [collective] */
int  sheaf_run_rewind(struct sheaf_run *run, int64_t step, struct sheaf_error *err);
/* Brings a checkpoint that was set aside back under its number, as to undo a rewind. `aside` is
 * sheaf_item.path of an item whose state is SHEAF_ITEM_ASIDE. opts as of sheaf_run_open; the lock
 * of the run is taken meanwhile. The checkpoint has the mark again that it had when it was set
 * aside. If it is not marked bad and newer than all others, it is what SHEAF_LATEST means from then
 * on. So that no job goes on from a branch that nobody chose, this is refused unless
 * - the newest checkpoint that is not marked bad is the one that it follows, by number and session
 *   (of several, bring the oldest back first), or
 * - a checkpoint of the run follows it, or
 * - the run has no checkpoint that is not marked bad.
 * Its manifest and the sizes of its files are checked, but not their bytes: sheaf_checkpoint_verify
 * of its path does that. A power cut leaves it set aside or brought back, whole.
 * ENOENT: nothing of that name is set aside. EEXIST: its number is taken (sheaf_run_rewind makes
 * room). EINVAL: refused as above; the error names the two. ECORRUPT: it is damaged. EBUSY: a job
 * writes to the run. EINDOUBT: it is back, but a power cut may set it aside again. [local] */
int  sheaf_run_restore(const char *dir, const char *aside, const struct sheaf_opts *opts,
                       struct sheaf_error *err);
/* Deletes a checkpoint that was set aside; nothing brings it back. A deletion that is interrupted
 * leaves a rest without a manifest in .sheaf/aside, which another call deletes. Arguments as of
 * sheaf_run_restore. ENOENT: nothing of that name is set aside. EBUSY: a job writes to the run, or
 * a process has the checkpoint open. [local] */
int  sheaf_run_discard(const char *dir, const char *aside, const struct sheaf_opts *opts,
                       struct sheaf_error *err);
/* Marks a checkpoint, and forgets the mark that it had. [collective]
 * - SHEAF_MARK_KEEP: no prune removes it.
 * - SHEAF_MARK_BAD: SHEAF_LATEST passes it over, and also a checkpoint that follows it and is in
 *   memory alone. A save of its number sets it aside.
 * - SHEAF_MARK_NONE: neither, and its failed resumes are forgotten. */
int  sheaf_run_mark(struct sheaf_run *run, int64_t step, int32_t mark, struct sheaf_error *err);
enum sheaf_prune_action { SHEAF_PRUNE_KEEP = 1, SHEAF_PRUNE_REMOVE = 2 };
const char *sheaf_prune_action_name(int32_t action);    /* "keep", "remove"; NULL: none such */
/* Removes steps by opts.keep_last, keep_every and keep_best. One goes only if a newer step is
 * verified and descends from it through parents that are in the run or were pruned: if a step
 * between was removed by hand, or never copied, all older ones stay, and their reason names the
 * missing one. Before that the newest step is verified, after what the page cache has of it was
 * dropped, unless that was done since its commit. Returns how many were removed (dry: would be).
 * item, which may be NULL, is called for each step on rank 0, with an enum sheaf_prune_action and
 * the reason. What was removed is deleted after the grace. A call spends at most a quarter of
 * timeout_ms on that; the next prune, commit or open deletes what is left. [collective] */
int  sheaf_run_prune(struct sheaf_run *run, int dry,
                     void (*item)(void *arg, int64_t step, int32_t action, const char *why),
                     void *arg, struct sheaf_error *err);
/* The step into another run, under its number, by this process alone; the run is made where there
 * is none, with this one's identity, and its lock is taken. Each block is compared with its sum and
 * each tensor with its digest on the way; the manifest stays as it is, byte for byte; the commit is
 * that of a save. A copy that was cut is taken up by the next one. 0: the step is there, durable,
 * every byte proved now, by this copy or because the same save was there (report.held: bytes
 * written). ECORRUPT: this step is damaged, or the same one there: nothing appears. EEXIST:
 * another save has its number. EFORMAT: a foreign directory. EBUSY: somebody writes there.
 * EINDOUBT as of a commit. EINVAL: dir is another run; several ranks have the step open.
 * [local] */
int  sheaf_checkpoint_copy(struct sheaf_checkpoint *step, const char *dir,
                           struct sheaf_report *report, struct sheaf_error *err);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
