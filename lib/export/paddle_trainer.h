/* SPDX-License-Identifier: Apache-2.0 */
/* The small files of a checkpoint from which the trainers of PaddleNLP and PaddleFormers go on: how
 * far the training is, and where its learning-rate schedule stands. */
#ifndef SHF_PADDLE_TRAINER_H
#define SHF_PADDLE_TRAINER_H
#include "export_plan.h"

/* Adds trainer_state.json, which PaddleNLP reads, and trainer_state.bin, which PaddleFormers reads.
 * Both have the values of the notes trainer_state.*, and the number of the step; if the step has
 * none, the number of updates of AdamW. If the learning rate can be found, also adds
 * scheduler.pdparams. Adds nothing if one family was asked for, or none has moments. */
int shf_paddle_trainer_add(struct shf_export_plan *plan, struct sheaf_checkpoint *step,
                           const struct shf_export_opts *opts, struct sheaf_error *err);
#endif
