/* SPDX-License-Identifier: Apache-2.0 */
/* Training a language model on a token file: data, loss, and the order of phases. */
#ifndef LM_H
#define LM_H
#include "training.h"

struct tr_lm_opts {
	const char *data;               /* a token file; borrowed, as the next two */
	const struct tr_ranks *ranks;   /* the ranks that take the same samples */
	const int *source;              /* which of them read; see rowfeed.h */
	int job_ranks;
	int64_t batch;                  /* samples of a step; the number of leaves divides it */
	int64_t micro_batch;            /* samples of a call of the model */
	/* Samples whose rows a rank has at once: of a step, or some of those of an evaluation. */
	int64_t rank_batch;
	int64_t seq;                    /* tokens of a sample */
	int64_t vocab;
	uint64_t seed;
	int shuffle;
	int documents;                  /* 1: attention stays inside documents */
	double dropout, attention_dropout;      /* rates, in training only; 0: none */
	int trace;                      /* 1: for tr_lm_trained */
};
struct tr_lm_step {                     /* the results of a step, the same on all ranks */
	double loss, norm, lr;
	int64_t tokens;                 /* unmasked targets */
	/* 1: some rank could not read its rows, so no rank has computed anything. Set also if the
	 * step fails, when the others are not. */
	int unread;
};
struct tr_lm;

/* Opens the token file on the ranks that read. [collective] over o->ranks */
int tr_lm_new(struct tr_lm **lm, const struct tr_lm_opts *o, struct tr_error *err);
void tr_lm_free(struct tr_lm *lm);
/* Returns the number of samples of an epoch. */
int64_t tr_lm_samples(const struct tr_lm *lm);
/* Identifies the data by the number of its tokens and tr_tokenfile_hash. */
void tr_lm_identify(const struct tr_lm *lm, int64_t *tokens, uint64_t *hash);
/* Checks data that is read again and again, as that of evaluations is, before the first time: that
 * all of it can be read, has tokens of the model, and a target that is not masked. Only the ranks
 * that read do so. [local] */
int tr_lm_check(struct tr_lm *lm, struct tr_error *err);
/* Returns the bytes of the rows and of the results of micro-batches that a task needs, and those
 * that it has allocated. */
int64_t tr_lm_bytes(const struct tr_lm_opts *o);
int64_t tr_lm_used(const struct tr_lm *lm);
/* Returns how many calls of the model a rank makes in a step. */
int64_t tr_lm_micros(const struct tr_lm_opts *o);
/* Trains on the positions [consumed, consumed + batch) of the run. gate NULL: none.
 * ENAN: the loss or the gradient is not a number; nothing was updated. [collective] */
int tr_lm_train(struct tr_lm *lm, struct tr_trainer *t, int64_t consumed,
		const struct tr_gate *gate, struct tr_lm_step *step, struct tr_error *err);
/* Returns the positions of the run on which this rank trained in the last step, in that order, and
 * sets *n to their number, which all ranks have alike. NULL: o->trace was 0. */
const int64_t *tr_lm_trained(const struct tr_lm *lm, int64_t *n);
/* Is asked several times in an evaluation whether that is to end early. All ranks ask together.
 * code  0, or that of this rank if the evaluation has failed there.
 * Returns, on all ranks alike, 0 to go on, 1 to end it, or a code below 0. */
struct tr_lm_halt {
	int (*ask)(void *arg, int code, struct tr_error *err);
	void *arg;
};
/* Sets *loss to the mean over the targets of one epoch that are not masked, and *tokens to their
 * number. The state of the job does not change.
 * halt  NULL: it never ends early.
 * Returns 1 if it has ended early. ENAN: the loss is not a number. EINVAL: all targets are masked.
 * [collective] */
int tr_lm_evaluate(struct tr_lm *lm, struct tr_trainer *t, const struct tr_lm_halt *halt,
		   double *loss, int64_t *tokens, struct tr_error *err);
#endif
