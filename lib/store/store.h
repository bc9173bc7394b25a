/* SPDX-License-Identifier: Apache-2.0 */
/* The run directory, as one rank sees it: opening and closing. No function of this room
 * communicates: the callers run them on one rank and then let all ranks agree on the outcome.
 *
 *   <run>/checkpoint-<step>/           committed; the run may have another prefix
 *   <run>/.sheaf/run                   "sheaf-run 1\n<32 hex run id>\n", or with another prefix
 *                              "sheaf-run 2\n<32 hex run id>\nfolder <prefix>{n}\n"
 *               /lock                  locked by the writer (OFD lock); its text names the writer
 *               /door                  locked for a moment by a process that wants lock (lock.c)
 *               /lock.next             a new lock, about to replace one of a dead owner
 *               /stage/<step>-<session>/     alive-<node> inside while it is being made
 *               /stage/copy-<step>-<session>/        a step being copied from another run, or
 *                              imported: then the hex digits are a hash of the plan
 *               /trash/<step>-<session>/     a pruned step until its grace is over, or what is left
 *                              of a stage that could not be deleted in time
 *               /aside/<step>-<session>/     set aside by a rewind, or because it was bad
 *               /rewind                journal of a rewind in progress
 *               /marks/<step>          k or b, and the session of the save that was marked
 *               /marks/<step>-<session>      the mark of a save that was set aside
 *               /descent               older ancestors of steps whose parents were pruned
 *               /tries/<step>-<session>      how many sessions loaded the step and made no
 *                              progress after it
 *               /rewinds               how many rewinds were begun
 *               /metrics.jsonl, metrics.1.jsonl      a line for each finished save, if asked for
 *               /flush-<job>/, due-<job>/    while agents of several nodes write a step
 *                              (engine/flush_nodes.h)
 *               /proof-<token>         while ranks prove that they see one file system
 *               /tmp-<32 hex>          a file that is being written, before it is renamed
 */
#ifndef SHF_STORE_H
#define SHF_STORE_H
#include <stdatomic.h>
#include "sheaf.h"
#include "sys.h"

#define SHF_FOLDER_MAX 40       /* most bytes of the prefix in a step's folder name */
#define SHF_STEP_NAME (SHF_FOLDER_MAX + 24)     /* room for such a name, with its NUL */
#define SHF_TRIED_MAX 8
struct shf_tried {              /* a step that this session has loaded and counted as a try */
	int64_t step;
	char session[33];
};
struct shf_store {
	const struct shf_sys *sys;      /* borrowed */
	char *path;                     /* owned; for error messages */
	int dir, dot, stage, lock, door; /* descriptors of the run directory, of .sheaf and of
	                                  * stage, lock and door in it; -1: not open */
	bool writer;                    /* holds the lock */
	bool rewinding;                 /* a rewind failed and its journal is still there */
	bool in_doubt;                  /* the last publish ended in EINDOUBT: a power cut may take
	                                 * its step, so that step is no reason to delete others */
	int clear_ms;                   /* how long a call may delete old files while other ranks
	                                 * wait for it; 0: no limit */
	bool late;                      /* recovery or the last prune did not finish within
	                                 * clear_ms */
	atomic_bool no_dir_fsync;       /* the file system cannot sync directories (recorded in the
	                                 * manifest) */
	char prefix[SHF_FOLDER_MAX + 1];        /* prefix of step names; the number follows it
	                                         * (step_folder.h) */
	char folder[SHF_FOLDER_MAX + 4];        /* the pattern that the caller asked for; "": any */
	char run[33], session[33];      /* hex digits: the id of the run, and the session of the
	                                 * writing job; session "": this process is not of that
	                                 * job */
	struct shf_owner self;          /* this process */
	struct shf_owner prev;          /* the former holder of the lock, as the text in the lock's
	                                 * file names it */
	char prev_session[33];          /* "": prev is unknown */
	bool prev_gone;                 /* prev is proven gone: it is dead, or our kernel has
	                                 * released its lock */
	struct shf_tried tried[SHF_TRIED_MAX];  /* steps that are loaded when this is full are not
	                                         * counted */
	int tried_n;                    /* entries of tried */
	int attempts_max;               /* a step with this many failed resumes is to be marked bad
	                                 * (tries.c); 0: no number is enough. Set by the caller
	                                 * after opening */
};
/* Opens the run for reading, on any rank. The directory must exist (ENOENT); .sheaf need not. */
int shf_store_open(struct shf_store *s, const struct shf_sys *sys, const char *path,
                   struct sheaf_error *err);
/* Like shf_store_open, but returns EINVAL if the folders of the run's steps are named by a pattern
 * other than `folder`. NULL allows any pattern. */
int shf_store_open_as(struct shf_store *s, const struct shf_sys *sys, const char *path,
                      const char *folder, struct sheaf_error *err);
/* Makes rank 0 the writer: creates the directory and .sheaf if create, takes the lock within
 * wait_ms (EBUSY names the holder), draws a session, writes the lock file, recovers. */
int shf_store_own(struct shf_store *s, const struct shf_sys *sys, const char *path, bool create,
                  int wait_ms, struct sheaf_error *err);
/* Fails with EINVAL if `path` is a step. A run must not be created inside one, because a step has
 * only the files that its manifest names. */
int shf_store_is_no_step(const struct shf_sys *sys, const char *path, struct sheaf_error *err);
/* How shf_store_own_as opens a run. */
struct shf_owning {
	bool create;                    /* make the run if there is none */
	int wait_ms;                    /* most time to wait for the lock */
	int clear_ms;                   /* see struct shf_store */
	const char *run;                /* the id for a run that has none yet; NULL draws one */
	const char *folder;             /* the pattern that steps must have; NULL: any. EINVAL if
	                                 * the run's is different */
	const char *folder_if_new;      /* the pattern of a run that has none yet; NULL: the usual
	                                 * one */
};
/* Like shf_store_own, with the options in *how. */
int shf_store_own_as(struct shf_store *s, const struct shf_sys *sys, const char *path,
                     const struct shf_owning *how, struct sheaf_error *err);
/* The two halves of shf_store_own, between which the caller may look at what the last owner left.
 * After shf_store_own_begin, this process has .sheaf/lock and .sheaf/door locked, and s->prev is
 * read. shf_store_own_end writes the text of the lock, unlocks the door, and makes durable the
 * names by which steps are reached. run: the id for a run without one; NULL draws one. */
int shf_store_own_begin(struct shf_store *s, const struct shf_sys *sys, const char *path,
                        const struct shf_owning *how, struct sheaf_error *err);
int shf_store_own_end(struct shf_store *s, const char *run, struct sheaf_error *err);
/* Opens the run on another rank of the writing job, with the run id and session of rank 0. */
int shf_store_join(struct shf_store *s, const struct shf_sys *sys, const char *path,
                   const char *run, const char *session, struct sheaf_error *err);
/* Releases the lock and closes. Also works on a store whose open failed. */
void shf_store_close(struct shf_store *s);
/* In a forked child: closes what it inherited. The lock stays with the parent. */
void shf_store_leave(struct shf_store *s);
/* Identifies the run's directory among all that this machine sees: "<run id>-<file system>-<inode
 * of .sheaf>", the last two in hex. Renaming the directory does not change it, and any copy has a
 * different one. On another machine the number of the file system may differ. */
#define SHF_IDENTITY 72
int shf_store_identity(const struct shf_store *s, char out[SHF_IDENTITY],
                       struct sheaf_error *err);
/* Find out whether all ranks see the same file system: rank 0 writes a token under .sheaf, the
 * other ranks look for it (EINVAL: it is missing or another one), and rank 0 removes it. */
int shf_store_proof_write(struct shf_store *s, const char token[33], struct sheaf_error *err);
int shf_store_proof_read(struct shf_store *s, const char token[33], struct sheaf_error *err);
void shf_store_proof_remove(struct shf_store *s, const char token[33]);
#endif
