/* SPDX-License-Identifier: Apache-2.0 */
/* Retention: which steps are deleted, and how. */
#ifndef SHF_TRASH_H
#define SHF_TRASH_H
#include "store.h"
#include "tree.h"

struct shf_saved {              /* a step; another save may come to have its number */
	int64_t step;                   /* -1: none */
	char session[33];               /* "": any that has the number */
};
bool shf_saved_is_same(const struct shf_saved *a, const struct shf_saved *b);
struct shf_prune {
	int32_t keep_last, keep_every;
	int32_t keep_best;              /* number of them; best_largest: else the smallest */
	bool best_largest;
	const char *best_note;          /* borrowed; set if keep_best > 0 */
	struct shf_saved verified;      /* a step whose content was re-read since its commit. Only
	                                 * older steps on its branch may be deleted (I9) */
	int64_t keep;                   /* a step that must stay (the loaded one); -1: none */
	int grace_s;
	bool dry;
};
/* Returns how many steps were deleted or would be, or a code. Calls item (unless NULL) for each.
 * Empties the trash of what is older than the grace (not if dry), within clear_ms. A step stays
 * while somebody holds a shared lock on its sheaf.json. */
int shf_store_prune(struct shf_store *s, const struct shf_prune *p,
                    void (*item)(void *arg, int64_t step, char what, const char *why), void *arg,
                    struct sheaf_error *err);
/* May a folder of the trash be deleted now? */
bool shf_grace_is_over(struct shf_store *s, int dir, int grace_s);
/* Deletes from the trash what is older than grace_s (< 0: all), after syncing both directories. */
int shf_trash_empty(struct shf_store *s, int grace_s, struct shf_clear *c,
                    struct sheaf_error *err);
#endif
