/* SPDX-License-Identifier: Apache-2.0 */
/* Segments of a save to the disk, each as soon as it is whole. */
#ifndef SHF_SAVE_WRITE_H
#define SHF_SAVE_WRITE_H
#include "save.h"

/* One of no image (unstaged.h), that is whole. [any thread] */
int shf_write_slotted(struct sheaf_save *save, size_t seg, struct sheaf_error *err);
/* Own segments that are whole by now are written. [any thread] */
int shf_write_whole(struct sheaf_save *save, struct sheaf_error *err);
/* Looks at `most` own segments only. [any thread] */
int shf_write_some(struct sheaf_save *save, size_t most, struct sheaf_error *err);
/* Are there own segments that are not? */
bool shf_is_partial(struct sheaf_save *save);
/* What came from other nodes is in the image: those segments are whole now. [local] */
int shf_round_arrived(struct sheaf_save *save, uint32_t round, struct sheaf_error *err);
/* A part of the segment with that control has come into its page. [any thread] */
void shf_part_came(struct shf_ctl *ctl);
/* A request of the save is over: what an owner of requests is told. */
void shf_save_io_done(struct shf_io_owner *owner, struct shf_io *io);
#endif
