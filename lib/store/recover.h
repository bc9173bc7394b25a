/* SPDX-License-Identifier: Apache-2.0 */
/* Cleaning up after dead jobs, and the proof that they are dead. */
#ifndef SHF_RECOVER_H
#define SHF_RECOVER_H
#include "store.h"
#include "run_files.h"

/* Cleans up; called by shf_store_own. Calling it again changes nothing, and it never creates a
 * step. */
int shf_store_recover(struct shf_store *s, struct sheaf_error *err);
/* Returns whether s->prev, the last holder of the run's lock, is proven gone. This process must
 * hold a lock on fd, the descriptor of the lock file, shared or exclusive. */
bool shf_prev_is_gone(struct shf_store *s, int fd);
/* Returns whether the writer of a stage is proven dead. names: what is in the stage; its
 * alive-<node> files are the evidence. The writer is dead if its process is proven dead, or if the
 * locks of the files are free and the writer took them through this very kernel or gave no sign for
 * a day. A free lock alone proves nothing: the lock of a living process on another host, or on a
 * file system without locks, may look free. look: the caller must change nothing. Uses s->self,
 * s->prev and s->prev_gone. */
bool shf_stage_is_dead(struct shf_store *s, int dir, const struct shf_names *names,
                       const char *session, bool look);
/* Returns whether a name in .sheaf is that of a directory in which agents of several nodes agree to
 * write a step. They remove it at the end; if an agent died, it stays. */
bool shf_is_flush_folder(const char *name);
/* Returns whether this copy was abandoned for longer than SHF_COPY_S. */
bool shf_stage_copy_is_old(struct shf_store *s, int dir);
#endif
