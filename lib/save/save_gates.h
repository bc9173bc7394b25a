/* SPDX-License-Identifier: Apache-2.0 */
/* The gates of a lazy save. At the gate of a slice (sheaf_save_wait_copied) the caller waits until
 * it may change the memory of the slice again. With SHEAF_SAVE_LATER it calls
 * sheaf_save_slice_ready to say that the slice may be read. */
#ifndef SHF_SAVE_GATES_H
#define SHF_SAVE_GATES_H
#include "save_copier.h"

/* Copies all remaining pieces together with the threads of the save, and waits for the pieces that
 * the threads have taken. If the save has failed, only waits, and returns the code of its failure.
 * EAGAIN after timeout_ms (< 0: no limit; 0: does not copy or wait), or if slices are still to be
 * put. [any thread] */
int shf_save_gates_finish(struct sheaf_save *save, int timeout_ms);
/* Makes all ranks finish their copies of the save, whether the callers have asked for the slices or
 * not. A failure of the copy is kept in the save and is not returned here; ELOST is.
 * [collective] */
int shf_save_gates_finish_all(struct sheaf_save *save, struct sheaf_error *err);
/* Submits the writes of all complete segments. Returns whether this rank has segments in the image
 * that are not complete. [any thread] */
bool shf_save_gates_is_partial(struct sheaf_save *save);
/* Does what sheaf_save_slices_ready does. data NULL: the slices are read where the state says that
 * they lie; otherwise the one slice lies there. [any thread] */
int shf_save_gates_put(struct sheaf_save *save, const int *slices, size_t n, void *data,
                       struct sheaf_error *err);
/* Returns the first slice that must still be put; -1: there is none. [any thread] */
int64_t shf_save_gates_unput(const struct sheaf_save *save);
/* Does the same for the slices of a list; NULL: all. [any thread] */
int64_t shf_save_gates_first_unput(const struct sheaf_save *save, const int *slices, size_t n);
/* Does what sheaf_save_slices_copied does. slices NULL: all, and n is their number.
 * [any thread] */
int shf_save_gates_list_copied(struct sheaf_save *save, const int *slices, size_t n, int timeout_ms,
                               struct sheaf_error *err);
/* Does what sheaf_save_wait_copied does, for one slice or SHEAF_ALL_SLICES. [any thread] */
int shf_save_gates_copied(struct sheaf_save *save, int slice, int timeout_ms,
                          struct sheaf_error *err);
/* Checks that all slices were put, and that the gates of all slices that are saved have opened.
 * EINVAL names the first slice that was not put, EAGAIN the first whose gate has not opened.
 * [local] */
int shf_save_gates_check_asked(struct sheaf_save *save, struct sheaf_error *err);
/* Whether the save will still read the memory of the slice, for this slice or for another one that
 * overlaps it. [any thread] */
bool shf_save_gates_reads(struct sheaf_save *save, size_t slice);
bool shf_save_gates_reads_some(struct sheaf_save *save); /* whether it will still read any slice */
/* The function `reads` of the save's struct shf_reader. */
bool shf_save_gates_reader_reads(struct shf_reader *reader, size_t slice);
/* Checks that this process was not forked while its parent had a lazy save of the state in flight:
 * the copy threads of such a save exist only in the parent. EINVAL if it was. [local] */
int shf_save_gates_check_forked(const struct sheaf_state *state, struct sheaf_error *err);
/* Asks, without waiting, whether all ranks have finished the copy of this lazy save. A rank without
 * a copy thread copies here, for SHF_SAVE_POLL_MS at most. EAGAIN on all ranks if one has not
 * finished; 0 at once for a save that is not lazy. [collective] */
int shf_save_gates_poll_all(struct sheaf_save *save, struct sheaf_error *err);
#endif
