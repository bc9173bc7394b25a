/* SPDX-License-Identifier: Apache-2.0 */
/* The gates of a lazy save. The caller asks at the gate of a slice whether he may change its memory
 * again; with SHEAF_LATER he says at it that the slice may be read. */
#ifndef SHF_SAVE_GATES_H
#define SHF_SAVE_GATES_H
#include "save_copier.h"

/* Copies all that is left, together with the threads of the save, and waits for what they are
 * copying. If the save has failed, only waits. EAGAIN after timeout_ms (< 0: for ever; 0: only
 * asks). [any thread] */
int shf_lazy_finish(struct sheaf_save *save, int timeout_ms);
/* All ranks copy together what is left, whether anybody has asked for it or not. A failure of the
 * copy sticks to the save and is not returned; ELOST is. [collective] */
int shf_lazy_rest(struct sheaf_save *save, struct sheaf_error *err);
/* Writes what is whole, and returns whether this rank has segments that are not. [any thread] */
bool shf_lazy_is_partial(struct sheaf_save *save);
/* What sheaf_save_put does. data NULL: the slice lies where the state says. [any thread] */
int shf_lazy_put(struct sheaf_save *save, int slice, void *data);
/* The first slice that was not put yet, or -1. [any thread] */
int64_t shf_lazy_unput(const struct sheaf_save *save);
/* What sheaf_save_copied does, for one slice or SHEAF_ALL_SLICES. [any thread] */
int shf_lazy_copied(struct sheaf_save *save, int slice, int timeout_ms, struct sheaf_error *err);
/* Fails with EINVAL, naming the slice, if a slice was not put, or if the caller has asked at no
 * gate for a slice that is saved. [local] */
int shf_lazy_unasked(struct sheaf_save *save, struct sheaf_error *err);
/* Will memory of the slice still be read, for this slice or for another one that lies in it? */
bool shf_lazy_reads(struct sheaf_save *save, size_t slice);
bool shf_lazy_reads_some(struct sheaf_save *save);      /* of any slice */
/* The `reads` of the save's struct shf_reader. */
bool shf_gates_read(struct shf_reader *reader, size_t slice);
/* EINVAL if the process that this one was forked from has a lazy save of the state in flight: its
 * threads and its image are not here. [local] */
int shf_lazy_check_forked(const struct sheaf_state *state, struct sheaf_error *err);
/* All ranks have copied all they have, or EAGAIN on all. [collective] */
int shf_lazy_together(struct sheaf_save *save, struct sheaf_error *err);
#endif
