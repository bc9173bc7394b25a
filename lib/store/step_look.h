/* SPDX-License-Identifier: Apache-2.0 */
/* One directory of a run, and what is known of it after a look. */
#ifndef SHF_STEP_LOOK_H
#define SHF_STEP_LOOK_H
#include "decimal.h"
#include "store.h"

enum shf_step_state { SHF_COMMITTED, SHF_DAMAGED, SHF_FOREIGN, SHF_ASIDE, SHF_STAGED };
struct shf_entry {
	int64_t step;
	enum shf_step_state state;
	bool remains;                   /* damaged: no manifest, but sums, or nothing at all, which
	                                 * is what a removal by hand leaves. Never a latest step or
	                                 * a parent */
	bool unread;                    /* damaged or not: an I/O error hides it */
	char path[96];                  /* relative to the run */
	char session[33], created[32], parent_session[33];
	int64_t parent;                 /* -1: none */
	uint64_t bytes;
	char mark;                      /* 'k', 'b', 0; '?': it cannot be read, so it is unknown
	                                 * whether the step is good */
	int tries;                      /* -1: cannot be read */
	const char *note;               /* key of the note to look for; NULL: none */
	enum { SHF_NOTE_ABSENT, SHF_NOTE_ODD, SHF_NOTE_NUMBER } noted;
	struct shf_decimal number;      /* NUMBER: its value, */
	char value[48];                 /* and its text for messages, cut if it is long */
	int best;                       /* 1: the best by that note, 2: the next; 0: not chosen */
	bool adopted;                   /* parent is an older ancestor: those between are gone */
	bool on_branch, goes;           /* while pruning: on the branch of the verified step; will
	                                 * be deleted */
	int64_t newer_n;                /* while pruning: number of good steps above it */
};
/* Looks at one directory `name` under dir, which is a committed, damaged or foreign step, and fills
 * in e, except path and step. If it is damaged, err says why. Returns 0; 1 if it is gone meanwhile;
 * a code only if this process lacks memory or descriptors. */
int shf_step_look(struct shf_store *s, int dir, const char *name, struct shf_entry *e,
                  struct sheaf_error *err);
#define SHF_HAS_GONE 3        /* the step was removed after the list was read */
/* Looks at a step of the run: 1 if it is one, 0 if it is foreign or remains, SHF_HAS_GONE, or a
 * code. files: also check that all its files exist with their sizes. */
int shf_look_at(struct shf_store *s, int64_t step, bool files, struct shf_entry *e,
                struct sheaf_error *err);
/* The same, by the manifest alone. */
int shf_look_briefly(struct shf_store *s, int64_t step, struct shf_entry *e,
                     struct sheaf_error *err);
/* Is the directory without manifest, with sums only or empty? */
bool shf_dir_is_remains(const struct shf_sys *sys, int dir);
/* Does the error say nothing about the step, as an I/O error or a lack of permission? ELOOP, EISDIR
 * and ENAMETOOLONG do say something: the step is damaged. */
bool shf_is_unread(const struct sheaf_error *why);
#endif
