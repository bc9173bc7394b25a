/* SPDX-License-Identifier: Apache-2.0 */
/* Assigns images (shared-memory staging buffers) to saves. */
#ifndef SHF_SAVE_IMAGE_H
#define SHF_SAVE_IMAGE_H
#include "run.h"

/* Finds an image with a number less than `below` for a new save: a free one, or the image of the
 * oldest save in flight, after waiting until that save is written on all ranks. Returns EAGAIN
 * instead of waiting if flags has SHEAF_SAVE_MAY_DROP, or if that is a memory-only save, because
 * only its end frees the image. The caller sets save->copy.image. [collective] */
int shf_save_image_take(struct sheaf_run *run, int below, uint64_t flags, int *image,
                        struct sheaf_error *err);
/* Returns the image that shf_save_image_take would choose; the same on all ranks that have the same
 * saves in flight, newest step in memory and replicas. *of: the save that still has the image, or
 * NULL. [local] */
int shf_save_image_choose(const struct sheaf_run *run, int below, struct sheaf_save **of);
/* Whether this rank can use the image at once: it is large enough, no other rank may still be
 * copying into it (dirty), and `of`, the save that has it (or NULL), is written here. [local] */
bool shf_save_image_is_free(struct sheaf_run *run, int image, struct sheaf_save *of,
                            uint64_t bytes);
/* Makes the save release its image (shf_save_image_give_up) and frees its streams, after all ranks
 * have found that it is written. [local] */
void shf_save_image_leave(struct sheaf_save *of);
/* Returns a hash of the steps of the saves in flight, to compare between ranks. The top byte is the
 * number of these saves. */
uint64_t shf_saves_hash(const struct sheaf_run *run);
/* Makes the save release its image, if it has one, so that no thread submits a write from it any
 * more. Waits for a thread that is submitting now. */
void shf_save_image_give_up(struct sheaf_save *save);
#endif
