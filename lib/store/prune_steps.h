/* SPDX-License-Identifier: Apache-2.0 */
/* Retention: which steps are deleted, and how. */
#ifndef SHF_PRUNE_STEPS_H
#define SHF_PRUNE_STEPS_H
#include "store.h"
#include "run_files.h"

struct shf_saved {              /* one save of a step; the number may be saved again later */
	int64_t step;                   /* -1: no step */
	char session[33];               /* "": any save of this number */
};
bool shf_saved_is_same(const struct shf_saved *a, const struct shf_saved *b);
/* The keep rules, and what else decides about steps. */
struct shf_prune {
	int32_t keep_last, keep_every;  /* keep_last: how many of the newest good steps stay, 0: all
	                                 * steps stay; keep_every: multiples of it stay, 0: no such
	                                 * rule */
	int32_t keep_best;              /* how many steps stay because they are the best by
	                                 * best_note; 0: no such rule */
	bool best_largest;              /* the largest note is the best, else the smallest */
	const char *best_note;          /* borrowed; set if keep_best > 0 */
	struct shf_saved verified;      /* a step whose content was re-read since its commit. Only
	                                 * older steps on its branch may be deleted (I9) */
	struct shf_saved likely;        /* the newest good step. It was not re-read, because nothing
	                                 * would be deleted. Used only in the reported reasons; step
	                                 * -1: none */
	int64_t keep;                   /* a step that must stay (the loaded one); -1: there is no
	                                 * such step */
	int grace_s;                    /* how long a removed step stays in the trash; 0:
	                                 * SHF_GRACE_S; < 0: not at all */
	bool dry;                       /* decide and report only */
};
/* Prunes. Returns how many steps were deleted (if dry: would be), or a code. Calls item (unless
 * NULL) for each step: `action` is an enum sheaf_prune_action, `why` the reason. Also deletes from
 * the trash what is older than the grace (not if dry), within clear_ms. A step stays while some
 * process holds a shared lock on its sheaf.json. */
int shf_store_prune(struct shf_store *s, const struct shf_prune *p,
                    void (*item)(void *arg, int64_t step, int32_t action,
                                 const char *why), void *arg,
                    struct sheaf_error *err);
/* Returns whether the grace of this folder of the trash is over. */
bool shf_grace_is_over(struct shf_store *s, int dir, int grace_s);
/* Deletes from the trash what is older than grace_s (< 0: all), after syncing the trash and the run
 * directory. */
int shf_trash_empty(struct shf_store *s, int grace_s, struct shf_clear *c,
                    struct sheaf_error *err);
#endif
