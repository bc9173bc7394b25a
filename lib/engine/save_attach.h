/* SPDX-License-Identifier: Apache-2.0 */
/* Attached files and notes of all ranks. */
#ifndef SHF_SAVE_ATTACH_H
#define SHF_SAVE_ATTACH_H
#include "save.h"

/* The files' bytes to rank 0, into *in, which given points into; nothing is written. [collective]
 */
int shf_attach_carry(struct sheaf_save *save, struct shf_arena *arena, struct shf_given *given,
                     struct shf_buf *in, struct sheaf_error *err);
/* Each rank writes its own; rank 0 hears of all. [collective] */
int shf_attach_gather(struct sheaf_save *save, struct shf_arena *arena, struct shf_given *given,
                      struct sheaf_error *err);
#endif
