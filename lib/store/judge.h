/* SPDX-License-Identifier: Apache-2.0 */
/* Judges the steps of a run, such as which is the newest, from a list of them that is not out of
 * date. */
#ifndef SHF_JUDGE_H
#define SHF_JUDGE_H
#include "store.h"
#include "tree.h"

#define SHF_HAS_GONE 3        /* the step has gone, since the list was read */
/* Judges the steps that are listed. If one of those that count has gone since, the list is old: a
 * job may have committed newer steps before it pruned that one. Then they are listed and judged
 * again, so that nothing is concluded from what an old list does not have. */
int shf_judge_list(struct shf_store *s,
                   int (*judge)(struct shf_store *s, const struct shf_steps *steps, void *arg,
                                struct sheaf_error *err),
                   void *arg, struct sheaf_error *err);
/* A step of the run: 1 when it is one, 0 when it is foreign or remains, SHF_HAS_GONE, or a code.
 * files: looks, too, whether all its files are there and have their sizes. */
int shf_look_at(struct shf_store *s, int64_t step, bool files, struct shf_entry *e,
                struct sheaf_error *err);
/* As far as its manifest tells. */
int shf_look_briefly(struct shf_store *s, int64_t step, struct shf_entry *e,
                     struct sheaf_error *err);
/* Checks that the manifest is of that step and of this run. ECORRUPT: it is not, because the step
 * was copied or renamed by hand. */
int shf_manifest_is_of(struct shf_store *s, const struct shf_manifest *m, int64_t step,
                       const char *where, struct sheaf_error *err);
/* The kernel would not say, which is no verdict on the step. Where a link or a directory stands for
 * a file, or a name cannot be one, it has said enough. */
bool shf_is_unread(const struct sheaf_error *why);
#endif
