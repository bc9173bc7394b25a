/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a model besides config.json and weights, such as its tokenizer. They are attached to
 * checkpoints, so that other software opens these as models with a tokenizer. */
#ifndef MODELFILES_H
#define MODELFILES_H
#include "bind.h"
#include "trainopts.h"

enum { TR_MODEL_FILES_MAX = 12 };
struct tr_modelfiles {
	int n;
	struct tr_attachment file[TR_MODEL_FILES_MAX];  /* the bytes are owned */
};
/* Reads the files that are in the directory of the model. If it has no tokenizer.json, that of the
 * directory of the data is read. EINVAL: a file is larger than 64 MiB. [local] */
int tr_modelfiles_read(struct tr_modelfiles *m, const struct tr_opts *o, struct tr_error *err);
void tr_modelfiles_release(struct tr_modelfiles *m);
#endif
