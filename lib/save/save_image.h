/* SPDX-License-Identifier: Apache-2.0 */
/* Which save has which image. */
#ifndef SHF_SAVE_IMAGE_H
#define SHF_SAVE_IMAGE_H
#include "run.h"

/* An image that no save uses: a free one with a number below `below`, or that of the oldest save
 * once it is written everywhere. Flags: SHEAF_MAY_DROP, SHEAF_MAY_FAIL instead of waiting for that.
 * Who takes it says so by save->copy.image. [collective] */
int shf_image_take(struct sheaf_run *run, int below, uint32_t flags, int *image,
                   struct sheaf_error *err);
/* Which one shf_image_take would take, where the saves in flight are alike on all ranks; *of: whose
 * it is until then. [local] */
int shf_image_choose(const struct sheaf_run *run, int below, struct sheaf_save **of);
/* May it be set up for a save of so many bytes, as far as this rank knows? [local] */
bool shf_image_is_free(struct sheaf_run *run, int image, struct sheaf_save *of, uint64_t bytes);
/* All ranks have found that it is free: it is that save's no more. [local] */
void shf_image_leave(struct sheaf_save *of);
/* Of the saves in flight. */
uint64_t shf_saves_hash(const struct sheaf_run *run);
/* The save needs its image no more. Waits for who looks at it. */
void shf_image_give(struct sheaf_save *save);
#endif
