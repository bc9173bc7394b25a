/* SPDX-License-Identifier: Apache-2.0 */
/* Cleaning up after dead jobs, and the proof that they are dead. */
#ifndef SHF_RECOVER_H
#define SHF_RECOVER_H
#include "store.h"
#include "tree.h"

/* Called by shf_store_own. Idempotent; never creates a step. */
int shf_store_recover(struct shf_store *s, struct sheaf_error *err);
/* Is s->prev, the last holder of the run's lock, proven gone? s->self must have the lock on fd,
 * shared or not. */
bool shf_prev_is_gone(struct shf_store *s, int fd);
/* Do the alive-<node> files of a stage, or a stage without any, prove that its writer is dead? Only
 * if nobody holds their locks, and the writer's process is proven dead or gave no sign for a day:
 * other hosts, and file systems without locks, make the living look dead. look: the caller changes
 * nothing. Uses s->self, s->prev and s->prev_gone. */
bool shf_stage_is_dead(struct shf_store *s, int dir, const struct shf_names *names,
                       const char *session, bool look);
/* Was this copy abandoned for longer than SHF_COPY_S? */
bool shf_copy_is_old(struct shf_store *s, int dir);
#endif
