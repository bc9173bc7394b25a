/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the segments of a save to the disk, each as soon as all its bytes are in the image. */
#ifndef SHF_SAVE_WRITE_H
#define SHF_SAVE_WRITE_H
#include "save.h"

/* Writes a segment that lies in no image (unstaged.h) and is whole. [any thread] */
int shf_write_slotted(struct sheaf_save *save, size_t seg, struct sheaf_error *err);
/* Writes this rank's segments of the round that are whole by now. [any thread] */
int shf_write_whole(struct sheaf_save *save, struct sheaf_error *err);
/* The same, but looks at no more than `most` segments that are not written. [any thread] */
int shf_write_some(struct sheaf_save *save, size_t most, struct sheaf_error *err);
/* Has this rank segments in the round that are not being written yet? [any thread] */
bool shf_is_partial(struct sheaf_save *save);
/* The bytes from other nodes are in the image now, so the segments that waited for them are whole.
 * Writes them. [local] */
int shf_round_arrived(struct sheaf_save *save, uint32_t round, struct sheaf_error *err);
/* Counts one of the parts that a segment waits for as copied; ctl: the segment's control. [any
 * thread] */
void shf_part_came(struct shf_ctl *ctl);
/* The `done` of the save's owners of requests (run_io.h). */
void shf_save_io_done(struct shf_io_owner *owner, struct shf_io *io);
#endif
