/* SPDX-License-Identifier: Apache-2.0 */
/* What rank 0 does when all ranks agree on a step: its own small files of C5, then C6 to C9. At
 * once, or behind a caller who just asks how far it is: then by a task. Who of this handle makes a
 * stage, marks, prunes, or goes by what is newest meanwhile, settles it first. */
#ifndef SHF_SAVE_PUBLISH_H
#define SHF_SAVE_PUBLISH_H
#include "background.h"
#include "save_record.h"
#include "sheaf.h"

struct sheaf_run;
struct shf_publishing {
	/* equal on all ranks */
	bool carried;                   /* the bytes of attached files were gathered, too */
	bool by_zero;                   /* rank 0 writes everybody's attached files */
	/* rank 0's, from then on until all know what came of it */
	struct shf_arena arena;
	struct shf_given given;
	struct shf_buf in;              /* what was gathered, which given points into */
	struct shf_buf owners;          /* who writes which attached file */
	struct shf_sums_out sums;
	struct shf_record record;
	struct shf_background behind;   /* while it goes on behind a caller */
	int turn;                       /* what is next */
	int rc;                         /* so far */
	struct sheaf_error err;
	int64_t over_ns;                /* when it was over */
};
/* All has been gathered: what it says is written down. Failures are told by the end. [rank 0] */
void shf_publishing_begin(struct sheaf_save *save);
/* Does it go on, behind? Not where there are no threads to be had. [rank 0] */
bool shf_publishing_goes_on(struct sheaf_save *save);
/* What is left of it, now; 0, EINDOUBT, or T never appears. May be asked again. [rank 0] */
int  shf_publishing_end(struct sheaf_save *save, struct sheaf_error *err);
/* Before anything else of this handle changes the run directory, or goes by what is there. What
 * came of it stays untold. [local] */
void shf_publishing_settle(struct sheaf_run *run);
/* The save whose publication has begun and is not told, NULL: none. */
struct sheaf_save *shf_publishing_now(const struct sheaf_run *run);
void shf_publishing_release(struct shf_publishing *p);
#endif
