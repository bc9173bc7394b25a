/* SPDX-License-Identifier: Apache-2.0 */
/* Files of a model beside its config.json and its weights, which checkpoints have, too, so that
 * other software opens them with their tokenizer. */
#ifndef MODELFILES_H
#define MODELFILES_H
#include "bind.h"
#include "trainopts.h"

enum { TR_MODEL_FILES_MAX = 12 };
struct tr_modelfiles {
	int n;
	struct tr_attachment file[TR_MODEL_FILES_MAX];  /* the bytes are owned */
};
/* Reads those that are in the directory of the model; or, if it has no tokenizer.json, the one in
 * the directory of the data. EINVAL: one of them is larger than 64 MiB. [local] */
int tr_modelfiles_read(struct tr_modelfiles *m, const struct tr_opts *o, struct tr_error *err);
void tr_modelfiles_release(struct tr_modelfiles *m);
#endif
