/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of one directory of a run: its state, manifest, mark and tries. */
#ifndef SHF_STEP_LOOK_H
#define SHF_STEP_LOOK_H
#include "decimal.h"
#include "store.h"

enum shf_step_state { SHF_COMMITTED, SHF_DAMAGED, SHF_FOREIGN, SHF_ASIDE, SHF_STAGED };
struct shf_entry {
	int64_t step;
	enum shf_step_state state;
	bool remains;                   /* the step is damaged in this way: it has sheaf.sums and no
	                                 * manifest, or no file at all. A removal by hand leaves
	                                 * such a directory. It is never the latest step or a
	                                 * parent */
	bool unread;                    /* an I/O error hides whether the step is damaged */
	char path[96];                  /* relative to the run */
	char session[33], created[32], parent_session[33]; /* as in the manifest */
	int64_t parent;                 /* number of the parent; -1: the step has no parent in this
	                                 * run */
	uint64_t bytes;                 /* of all files that the manifest names */
	char mark;                      /* 'k' (keep), 'b' (bad), 0 (not marked), or '?': the mark
	                                 * cannot be read, so it is unknown whether the step is
	                                 * good */
	int tries;                      /* how many sessions loaded the step and made no progress;
	                                 * -1: the count cannot be read */
	const char *note;               /* key of the note to look for; NULL: no note is looked
	                                 * for */
	enum { SHF_NOTE_ABSENT, SHF_NOTE_ODD, SHF_NOTE_NUMBER } noted;
	struct shf_decimal number;      /* value of the note, if noted is NUMBER, */
	char value[48];                 /* and its text for messages, cut if it is long */
	int best;                       /* rank by the note: 1: the best; 0: not among the best */
	bool adopted;                   /* parent is not that of the manifest, which is gone, but an
	                                 * older ancestor (descent.h) */
	bool on_branch, goes;           /* while pruning: on the branch of the verified step; will
	                                 * be deleted */
	int64_t newer_n;                /* while pruning: number of good steps above it */
};
/* Looks at the directory `name` under dir, and fills in e, except path and step: the step is
 * committed, damaged or foreign. If it is damaged, err says why. Returns 0; 1 if it no longer
 * exists; a code only if this process lacks memory or descriptors. */
int shf_step_look(struct shf_store *s, int dir, const char *name, struct shf_entry *e,
                  struct sheaf_error *err);
#define SHF_STEP_GONE 3        /* the step was removed after the list was read */
/* Looks at a step of the run. Returns 1 if it is a checkpoint, even a damaged one; 0 if it is
 * foreign or remains; SHF_STEP_GONE; or a code, as shf_step_look does. files: also check that all
 * its files exist with their sizes. */
int shf_step_look_at(struct shf_store *s, int64_t step, bool files, struct shf_entry *e,
                     struct sheaf_error *err);
/* Like shf_step_look_at, but reads only the manifest. */
int shf_step_look_briefly(struct shf_store *s, int64_t step, struct shf_entry *e,
                          struct sheaf_error *err);
/* Returns whether the directory has no sheaf.json, and either has sheaf.sums or is empty. */
bool shf_dir_is_remains(const struct shf_sys *sys, int dir);
/* Returns whether the error says nothing about the step, such as an I/O error or a lack of
 * permission. ELOOP, EISDIR and ENAMETOOLONG do say something: the step is damaged. */
bool shf_step_is_unread(const struct sheaf_error *why);
#endif
