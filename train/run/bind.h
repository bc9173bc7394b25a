/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoints of a training. bind.c is the only file of the trainer that knows libsheaf. */
#ifndef BIND_H
#define BIND_H
#include "training.h"

struct tr_store;

/* What a checkpoint knows beside tensors. */
struct tr_progress {
	int64_t step, consumed, tokens, adam_step;
	uint64_t seed;
	int64_t virtual_dp;             /* V; 0: it was not set */
	int64_t data_tokens;            /* which data: tr_lm_identify; 0: unknown, in old ones */
	uint64_t data_hash;
};
struct tr_store_opts {
	const char *run;
	int64_t keep_last;
	/* level 0: an error, 1: a warning */
	void (*log)(void *arg, int level, const char *line);
	void *arg;
};
/* The name of a code: "EIO". Static. */
const char *tr_code_name(int code);

/* Opens the run, and makes it if it is not there. [collective] */
int tr_store_open(struct tr_store **s, const struct tr_store_opts *o, struct tr_ranks *ranks,
		  struct tr_error *err);
/* lost: a rank is lost, and the others are not waited for. [collective] unless lost */
void tr_store_close(struct tr_store *s, int lost);
/* Finds the checkpoint to resume from. resume: "auto", "none" or "RUN@STEP". p->step is 0 if there
 * is none. *config and *n get the options that it was trained with, or NULL; valid until the load.
 * rewind: newer checkpoints of the run may be in the way, for tr_store_rewind.
 * EINVAL: they are, so no save could be committed, or rewind with another run. [collective] */
int tr_store_find(struct tr_store *s, const char *resume, int rewind, struct tr_progress *p,
		  const char **config, size_t *n, struct tr_error *err);
/* An attached file of what was found, valid until the load; NULL if it has no such file. [local] */
int tr_store_file(struct tr_store *s, const char *name, const char **text, size_t *n,
		  struct tr_error *err);
/* Whether what was found is of another run. */
int tr_store_is_other(const struct tr_store *s);
/* Sets aside what is in the way, if tr_store_find got rewind. Call it when all else is checked,
 * before the load. [collective] */
int tr_store_rewind(struct tr_store *s, struct tr_error *err);
/* What was found, for people: "RUN@STEP". Valid until the store is closed. */
const char *tr_store_found(const struct tr_store *s);
/* Describes the state: the weights and moments of a trainer. Before the next calls. [local] */
int tr_store_describe(struct tr_store *s, struct tr_trainer *t, struct tr_error *err);
/* Fills the state from the checkpoint that was found. [collective] */
int tr_store_load(struct tr_store *s, struct tr_error *err);
/* Fills the weights of a trainer from a Hugging Face directory. [collective] */
int tr_store_import(struct tr_store *s, struct tr_trainer *t, const char *dir,
		    struct tr_error *err);

struct tr_attachment {
	const char *file;
	const void *bytes;
	size_t n;
};
/* Begins to save in the background. The memory of a parameter may change after its gate. The last
 * save must be committed. [collective] */
int tr_store_begin(struct tr_store *s, const struct tr_progress *p,
		   const struct tr_attachment *files, int files_n, struct tr_error *err);
/* The gate of each parameter, for tr_adamw_update. */
struct tr_gate tr_store_gate(struct tr_store *s);
/* Carries a save on without waiting; with wait until it is committed. *step gets the number of a
 * save that this call committed, or 0. [collective] */
int tr_store_advance(struct tr_store *s, int wait, int64_t *step, struct tr_error *err);
#endif
