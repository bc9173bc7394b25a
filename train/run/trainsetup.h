/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the model, the task and the trainer from the options of a job. */
#ifndef TRAINSETUP_H
#define TRAINSETUP_H
#include "lm.h"
#include "trainopts.h"

struct tr_setup {
	const struct tr_opts *o;        /* borrowed */
	struct tr_model_config config;
	char *text;                     /* config.json; owned */
	size_t n;                       /* bytes of it */
};
/* Reads the model, and checks that it fits the options, which have passed tr_opts_check. */
int tr_setup_read(struct tr_setup *s, const struct tr_opts *o, struct tr_error *err);
/* Checks the options and the model's config.json before the run is opened, if no checkpoint can set
 * further options, because the run does not exist yet or resume is none. Otherwise it returns 0.
 * ranks  as of tr_opts_check
 * EINVAL: as of tr_opts_check and tr_setup_read. [local] */
int tr_setup_check(const struct tr_opts *o, int ranks, struct tr_error *err);
void tr_setup_release(struct tr_setup *s);
/* Returns the options of the task, except its ranks, and which of them read. */
struct tr_lm_opts tr_setup_task(const struct tr_setup *s);
/* Returns those of evaluations. Their data is NULL if there are none. */
struct tr_lm_opts tr_setup_eval(const struct tr_setup *s);
/* Returns the trainer of a rank with this place in the mesh, for tr_trainer_init. */
struct tr_trainer tr_setup_trainer(const struct tr_setup *s, const struct tr_mesh *mesh);
#endif
