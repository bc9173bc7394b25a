/* SPDX-License-Identifier: Apache-2.0 */
/* A step that is being made: its directory in .sheaf/stage until it is published. */
#ifndef SHF_STAGE_H
#define SHF_STAGE_H
#include "store.h"

struct shf_stage {
	int dir;                        /* descriptor of S */
	int alive;                      /* descriptor of S/alive-<node>, locked; -1: this rank has
	                                 * made no such file */
	int64_t step;
	char name[64];                  /* <step>-<session of this save>, or copy-<step>-<session of
	                                 * the step>; "": there is no stage, or a rename of it was
	                                 * tried */
	char session[33];               /* of the run's writer */
};
/* The part of C0 before the stage: makes sure that T does not exist, else EEXIST. But the remains
 * of a step, and a step that is marked bad or to be marked bad, are set aside, and the mark of the
 * number is removed. session: of the save that comes, if it may have been here before and been
 * marked: then its mark stays; NULL: it is a new one. */
int shf_stage_room(struct shf_store *s, int64_t step, const char *session, struct sheaf_error *err);
/* C0 on rank 0: shf_stage_room, then makes S and its folders (a NULL-terminated list; "." needs
 * none). The other ranks then join by name. */
int shf_stage_new(struct shf_store *s, struct shf_stage *g, int64_t step,
                  const char *const *folders, struct sheaf_error *err);
/* C0 of a copy: like shf_stage_new, but an existing S is used again. If the stage is closed and not
 * discarded, it is kept for the next copy, for SHF_COPY_S. session: the session of the copied
 * step; of an import a key that is the same for each try. */
int shf_stage_copy(struct shf_store *s, struct shf_stage *g, int64_t step, const char *session,
                   const char *const *folders, struct sheaf_error *err);
/* C0 on the other ranks: opens S by the name that rank 0 has sent. */
int shf_stage_join(struct shf_store *s, struct shf_stage *g, int64_t step, const char *name,
                   struct sheaf_error *err);
/* Marks S as alive on behalf of the node, by a lock on S/alive-<node>. One rank of each node calls
 * this. */
int shf_stage_alive(struct shf_store *s, struct shf_stage *g, int node, struct sheaf_error *err);
/* After a failed save: deletes as much of S as it can within clear_ms, then closes. Never fails. */
void shf_stage_discard(struct shf_store *s, struct shf_stage *g);
/* Makes the error of a call for a name below S, as shf_fail_sys does. But a missing name is EIO and
 * the message says that somebody removed it, because ENOENT means that there is no such run or
 * step. */
int shf_stage_fail(struct sheaf_error *err, int sys, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Releases the alive lock and closes. S stays on disk. */
void shf_stage_close(struct shf_store *s, struct shf_stage *g);
/* In a forked child: closes what it inherited. The alive lock stays with the parent. */
void shf_stage_leave(struct shf_store *s, struct shf_stage *g);
#endif
