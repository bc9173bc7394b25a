/* SPDX-License-Identifier: Apache-2.0 */
/* The small files of a checkpoint from which the trainers of PaddleNLP and PaddleFormers go on: how
 * far the training is, and where its learning-rate schedule stands. */
#ifndef SHF_PADDLE_TRAINER_H
#define SHF_PADDLE_TRAINER_H
#include "export_plan.h"

/* Adds trainer_state.json, which PaddleNLP reads, and trainer_state.bin, which PaddleFormers reads,
 * with the number of the step, and what the notes trainer_state.* say; if the step says no number,
 * with that of the updates of AdamW. If the step says its learning rate, also adds
 * scheduler.pdparams. Adds nothing if no family of the plan has moments. */
int shf_paddle_trainer_add(struct shf_export_plan *plan, struct sheaf_checkpoint *step,
                           const struct shf_export_opts *opts, struct sheaf_error *err);
#endif
