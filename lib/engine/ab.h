/* SPDX-License-Identifier: Apache-2.0 */
/* What the copy costs the training, measured inside the job: of the saves that may be dropped some
 * are left out, by a coin, and the times from begin to begin with a copy in them are compared with
 * those without.
 *
 * The coin is a function of the session and the step, so that all ranks have the same without a
 * message; a save that is left out is left out after the agreement of its begin, which both kinds
 * so have. Rank 0 measures. */
#ifndef SHF_AB_H
#define SHF_AB_H
#include <stdbool.h>
#include "sheaf.h"

struct shf_ab;
/* With SHEAF_AB, once the session is known; else NULL. Freed by shf_ab_free. ENOMEM. [local] */
int  shf_ab_new(struct sheaf_run *run, struct sheaf_error *err);
void shf_ab_free(struct shf_ab *ab);
/* Is the save of that step left out? [local] */
bool shf_ab_leaves_out(const struct sheaf_run *run, int64_t step, uint32_t flags);
/* A begin is entered: the time since the one before is over. [local] */
void shf_ab_enter(struct sheaf_run *run, int64_t now);
/* And what the time from there on is. NEITHER: the begin was of another kind, or made the plan and
 * the images, or failed; and that without a copy in which an earlier one was still copied or
 * written. [local] */
enum shf_ab_kind { SHF_AB_WITHOUT, SHF_AB_WITH, SHF_AB_NEITHER };
void shf_ab_began(struct sheaf_run *run, uint32_t flags, enum shf_ab_kind kind);
/* Logs what was found, and adds it to the metrics. [local] */
void shf_ab_tell(struct sheaf_run *run);
#endif
