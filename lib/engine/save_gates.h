/* SPDX-License-Identifier: Apache-2.0 */
/* Who asks whether the memory of a slice may change, who brings it, who wants all of it copied. */
#ifndef SHF_SAVE_GATES_H
#define SHF_SAVE_GATES_H
#include "save_copier.h"

/* All that is left is copied here, by whoever; or what is under way, if the save has failed. EAGAIN
 * after timeout_ms (< 0: for ever; 0: only asks). [any thread] */
int shf_lazy_finish(struct sheaf_save *save, int timeout_ms);
/* All ranks copy together what is left, whether anybody has asked for it or not. A failure of the
 * copy sticks to the save and is not returned; ELOST is. [collective] */
int shf_lazy_rest(struct sheaf_save *save, struct sheaf_error *err);
/* Looks, and tells whether some own segments are not whole yet. [any thread] */
bool shf_lazy_is_partial(struct sheaf_save *save);
/* That it may be read, and where it lies (NULL: where it did): what sheaf_save_put says. */
int shf_lazy_put(struct sheaf_save *save, int slice, void *data);
/* The first slice that may not be read yet; -1. [any thread] */
int64_t shf_lazy_unput(const struct sheaf_save *save);
/* Of a slice, or of all (SHEAF_ALL_SLICES): what sheaf_save_copied says. */
int shf_lazy_copied(struct sheaf_save *save, int slice, int timeout_ms, struct sheaf_error *err);
/* The first slice that was not put, or that is saved and that nobody asked for: EINVAL. [local] */
int shf_lazy_unasked(struct sheaf_save *save, struct sheaf_error *err);
/* Will memory of the slice still be read, for this slice or for another one that lies in it? */
bool shf_lazy_reads(struct sheaf_save *save, size_t slice);
bool shf_lazy_reads_some(struct sheaf_save *save);      /* of any slice */
/* The same, as a state asks it of its readers. */
bool shf_gates_read(struct shf_reader *reader, size_t slice);
/* EINVAL if the process that this one was forked from has a lazy save of the state in flight: its
 * threads and its image are not here. [local] */
int shf_lazy_check_forked(const struct sheaf_state *state, struct sheaf_error *err);
/* All ranks have copied all they have, or EAGAIN on all. [collective] */
int shf_lazy_together(struct sheaf_save *save, struct sheaf_error *err);
#endif
