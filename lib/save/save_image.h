/* SPDX-License-Identifier: Apache-2.0 */
/* Assigns images (shared-memory staging buffers) to saves. */
#ifndef SHF_SAVE_IMAGE_H
#define SHF_SAVE_IMAGE_H
#include "run.h"

/* Finds an image with a number less than `below` for a new save: a free one, or the image of the
 * oldest save in flight, after waiting until that save is written on all ranks. Flags: with
 * SHEAF_MAY_DROP (EAGAIN) and SHEAF_MAY_FAIL (EBUSY) it does not wait. The caller sets
 * save->copy.image. [collective] */
int shf_image_take(struct sheaf_run *run, int below, uint32_t flags, int *image,
                   struct sheaf_error *err);
/* Returns the image that shf_image_take would choose; the same on all ranks if they have the same
 * saves in flight. *of: the save that still has the image, or NULL. [local] */
int shf_image_choose(const struct sheaf_run *run, int below, struct sheaf_save **of);
/* Whether this rank can use the image at once: it is large enough, no other rank may still be
 * copying into it (dirty), and `of`, the save that has it (or NULL), is written here. [local] */
bool shf_image_is_free(struct sheaf_run *run, int image, struct sheaf_save *of, uint64_t bytes);
/* Takes the image from that save, after all ranks have found that it is written. [local] */
void shf_image_leave(struct sheaf_save *of);
/* Hash of the steps of the saves in flight, to compare between ranks. The top byte is their
 * number. */
uint64_t shf_saves_hash(const struct sheaf_run *run);
/* Takes the image from the save. Waits for a thread that is submitting writes from it. */
void shf_image_give(struct sheaf_save *save);
#endif
