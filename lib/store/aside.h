/* SPDX-License-Identifier: Apache-2.0 */
/* Setting steps aside, and rewinding the run to an older step. */
#ifndef SHF_ASIDE_H
#define SHF_ASIDE_H
#include "store.h"

/* Moves all steps later than `step` to .sheaf/aside, newest first, after writing a journal. If it
 * fails and leaves the journal, the next job finishes the rewind; until a rewind succeeds, nothing
 * can be saved or pruned (EINVAL). */
int shf_store_rewind(struct shf_store *s, int64_t step, struct sheaf_error *err);
/* Returns how many rewinds were begun. A step in memory carries the count of the time when it was
 * saved, and is not loaded once the count has changed. UINT64_MAX: the number is unknown. */
uint64_t shf_store_rewinds(struct shf_store *s);
/* Finishes a rewind that was interrupted. Does nothing if there is no journal. */
int shf_rewind_finish(struct shf_store *s, struct sheaf_error *err);
/* Returns 0, or EINVAL if a rewind has failed and is not finished yet. */
int shf_rewind_is_over(const struct shf_store *s, struct sheaf_error *err);
/* Moves the step to .sheaf/aside and makes that durable. Its name there contains its session, or
 * fresh digits if the session cannot be read. */
int shf_step_set_aside(struct shf_store *s, int64_t step, struct sheaf_error *err);
/* Moves checkpoint-<step> to <to>/<step>-<session>, or to a name with fresh digits if that name is
 * taken or session is NULL. The caller syncs both directories. */
int shf_step_move(struct shf_store *s, int64_t step, int to, const char *session,
                  struct sheaf_error *err);
#endif
