/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a commit that rank 0 does alone, after all ranks have agreed to publish: the small
 * files of C5, then C6 to C9. Commit waits for it, or, with timeout 0, leaves it to a background
 * task and returns EAGAIN.
 *
 * While the task runs, any other function of this handle on rank 0 that makes a stage, marks,
 * prunes, or reads the newest step calls shf_save_publish_finish first. */
#ifndef SHF_SAVE_PUBLISH_H
#define SHF_SAVE_PUBLISH_H
#include "background.h"
#include "save_record.h"
#include "sheaf.h"

struct sheaf_run;
struct shf_save_publish {
	/* These two are equal on all ranks. */
	bool carried;                   /* the bytes of attached files were gathered, too, not only
	                                 * their sizes */
	bool by_zero;                   /* rank 0 writes the attached files of all ranks */
	/* The rest is used only on rank 0, from the gathering until all ranks know the outcome. */
	struct shf_arena arena;
	struct shf_given given;
	struct shf_buf in;              /* the gathered bytes; members of `given` point into it */
	struct shf_buf owners;          /* encoded list of which rank writes which attached file */
	struct shf_save_sums_out sums;
	struct shf_save_record record;
	struct shf_background behind;   /* the background task */
	int turn;                       /* which part of the work comes next (save_publish.c) */
	int rc;                         /* result so far */
	struct sheaf_error err;
	int64_t over_ns;                /* when the last part ended */
};
/* Makes the manifest and indexes from what was gathered. A failure is kept, and returned by
 * shf_save_publish_end. [rank 0] */
void shf_save_publish_begin(struct sheaf_save *save);
/* Whether the publication goes on in the background; starts the task if there is none. It also
 * returns true while a prune runs in the background, after which the task can start. False: the
 * publication is over, or no thread can be made. [rank 0] */
bool shf_save_publish_runs(struct sheaf_save *save);
/* Finishes the publication in this call. 0: published. EINDOUBT: the step may be published or not.
 * Any other code: the step never appears. A further call returns the same code. [rank 0] */
int  shf_save_publish_end(struct sheaf_save *save, struct sheaf_error *err);
/* Finishes a publication that is under way. Called before anything else of this handle changes the
 * run directory or reads which step is newest. The outcome is kept for the commit. [local] */
void shf_save_publish_finish(struct sheaf_run *run);
/* Returns the save whose publication has begun and whose outcome the ranks do not know yet, or
 * NULL. */
struct sheaf_save *shf_save_publish_current(const struct sheaf_run *run);
/* Frees what the publication holds. [local] */
void shf_save_publish_release(struct shf_save_publish *p);
#endif
