/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the segments of a save to disk, each as soon as all its bytes are in the image. */
#ifndef SHF_SAVE_WRITE_H
#define SHF_SAVE_WRITE_H
#include "save.h"

/* Submits the write of a segment that was copied into a slot (unstaged.h). [any thread] */
int shf_save_write_unstaged(struct sheaf_save *save, size_t seg, struct sheaf_error *err);
/* Submits the writes of those of this rank's segments of the round that are complete. Does nothing
 * before the stage is made. [any thread] */
int shf_save_write_complete(struct sheaf_save *save, struct sheaf_error *err);
/* Does the same as shf_save_write_complete, but checks at most `most` segments, to limit the time
 * it takes. [any thread] */
int shf_save_write_some(struct sheaf_save *save, size_t most, struct sheaf_error *err);
/* Whether the write of some segment of this round on this rank is not submitted yet. [any
 * thread] */
bool shf_save_write_is_partial(struct sheaf_save *save);
/* Called when the bytes from other nodes are in the image: counts them in the controls of the
 * segments that waited for them, and writes these segments. ECORRUPT if a segment is not complete
 * even then. [local] */
int shf_save_write_arrived(struct sheaf_save *save, uint32_t round, struct sheaf_error *err);
/* Counts one part of a segment as copied; ctl: the control of the segment. [any thread] */
void shf_ctl_count_part(struct shf_ctl *ctl);
/* Completion callback of the save's requests (`done` in run_io.h): records failures and progress.
 * Called with the run's io.lock held. */
void shf_save_io_done(struct shf_io_owner *owner, struct shf_io *io);
#endif
