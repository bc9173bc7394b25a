/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a run: all of them, the newest, the latest that can be loaded. */
#ifndef SHF_LIST_H
#define SHF_LIST_H
#include "step_look.h"

struct shf_list {
	struct shf_entry *entries;      /* owned; by step, then state, then path */
	size_t n;
};
/* Returns whether the step is committed and known not to be marked bad. */
bool shf_entry_is_good(const struct shf_entry *e);
/* Lists all steps, steps set aside, and stages. Reads every manifest. A step is damaged if its
 * manifest fails its own sum, is that of another step, or names files that are missing or of
 * another size. A directory without a manifest is foreign. If a step is removed meanwhile, all
 * steps are listed again; if that happens each time, the result is EIO with sys ENOENT. */
int shf_store_list(struct shf_store *s, struct shf_list *list, struct sheaf_error *err);
/* Like shf_store_list, but also looks in each step for the note with the key `note`, and reads it
 * as a number (noted, number and value of the entry). note NULL: no note is looked for. */
int shf_list_noted(struct shf_store *s, const char *note, struct shf_list *list,
                   struct sheaf_error *err);
void shf_list_release(struct shf_list *list);
/* What a save of `step` has to know about the existing steps. It is found by a listing and by
 * reading as few manifests as possible, mostly one. Foreign directories and remains do not count;
 * damaged steps do. */
struct shf_newest {
	bool exists;                    /* a checkpoint has the number `step` */
	bool is_bad;                    /* that checkpoint is bad, so a save of its number sets it
	                                 * aside */
	int64_t newest;                 /* the newest step that is not bad; -1: there is no such
	                                 * step */
	int64_t known;                  /* the newest of the steps that are not bad whose session
	                                 * can be read; -1: there is no such step */
	char session[33];               /* session of `known` */
};
int shf_store_newest(struct shf_store *s, int64_t step, struct shf_newest *out,
                     struct sheaf_error *err);
/* Like shf_store_newest, but newest and known are smaller than `below`. */
int shf_store_newest_below(struct shf_store *s, int64_t below, int64_t step,
                           struct shf_newest *out, struct sheaf_error *err);
/* Where shf_store_seek searches, and what it calls for the steps that it skips. */
struct shf_seek {
	int64_t below, floor;           /* only numbers n with floor < n < below count */
	/* Called once for each skipped step, with the reason. */
	void (*passed)(void *arg, int64_t step, const char *why);
	void *arg;
};
/* Finds the newest step that is neither marked bad nor to be marked bad (shf_tries_condemn).
 * Foreign directories and remains do not count. The error names the step, and *step is its number
 * or -1:
 *   ENOENT    there is no step, not even a skipped one, so a job may start afresh
 *   ECORRUPT  the step is damaged, or all were skipped, or all that is left lost sheaf.json; only a
 *             person may decide to start afresh
 *   EIO       the step or its mark cannot be read; with sys ENOENT, a step was removed each time
 *             that they were listed */
int shf_store_seek(struct shf_store *s, const struct shf_seek *k, int64_t *step,
                   struct sheaf_error *err);
/* Writes advice for the end of an error message to out: what to do if `step`, the latest, is
 * damaged. */
#define SHF_REMEDY 180
void shf_store_remedy(struct shf_store *s, int64_t step, char out[SHF_REMEDY]);
/* Does what shf_store_seek does, among all steps. log gets a line for each skipped step. */
int shf_store_latest(struct shf_store *s, int64_t *step,
                     void (*log)(void *arg, int level, const char *line), void *log_arg,
                     struct sheaf_error *err);
/* Returns 1 if the step is a checkpoint that is marked bad or to be marked bad (shf_tries_condemn),
 * 0 if not, or a code if this process lacks memory or descriptors, or if an I/O error hides the
 * mark. */
int shf_step_is_condemned(struct shf_store *s, int64_t step);
#endif
