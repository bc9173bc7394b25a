/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoints of a job. The files bind*.c are the only ones of the trainer that know
 * libsheaf. */
#ifndef BIND_H
#define BIND_H
#include "training.h"

struct tr_store;

enum { TR_ISA_NAME_MAX = 32 };
/* The step of a checkpoint, and what its notes say. */
struct tr_progress {
	int64_t step;
	int64_t consumed, tokens;       /* samples and targets that were trained on */
	int64_t adam_step;
	uint64_t seed;
	int64_t virtual_dp, virtual_tp; /* 0: it was not set */
	/* The name of the kernels if they have bits of their own (struct tr_isa.tile_bf16),
	 * otherwise "". */
	char isa[TR_ISA_NAME_MAX];
	/* What follows is not noted. */
	int found;                      /* 0: there is no checkpoint to resume from */
	int on_disk;                    /* 0: it is in memory only, or not in this run */
	int64_t data_tokens;            /* this and data_hash: tr_lm_identify; 0: not noted */
	uint64_t data_hash;
	/* 1: eval_loss is that of this step, and is noted. tr_store_find sets both if the step is
	 * in memory only. */
	int evaluated;
	double eval_loss;
};
enum { TR_LOSS_KEY_MAX = 40 };
struct tr_store_opts {
	const char *run;
	int64_t keep_last;              /* as of struct sheaf_retention; 0: all are kept */
	int64_t keep_every, keep_best;  /* best: those with the smallest note loss_key */
	/* Key of a note of the loss. It names the data and the weights that are evaluated, because
	 * losses of different ones must not be compared. "": nothing is evaluated. */
	const char *loss_key;
	/* The agent of each node, which keeps checkpoints in its memory: "none", "auto", or the
	 * path of its socket. With "auto" it does not have to be there, unless memory is 1. */
	const char *agent;
	int memory;                     /* 1: there will be saves to memory only */
	/* 1: nothing is saved. If there is no run, tr_store_find finds only what is elsewhere. */
	int reads_only;
	int64_t only;                   /* resume auto takes this checkpoint; 0: the newest */
	/* 1: the checkpoints after `only` are damaged, and tr_store_rewind sets them aside. */
	int sets_aside;
	/* level 0: an error, 1: a warning */
	void (*log)(void *arg, int level, const char *line);
	/* Called on rank 0 for each checkpoint that a load passes over because it is damaged, or
	 * sets aside because it is newer than the one that is loaded. */
	void (*passed)(void *arg, const char *checkpoint, const char *why);
	void *arg;
};
/* Returns the version of the library, 10000 * major + 100 * minor + patch. */
int tr_library_version(void);
/* Returns the name of a code, such as "EIO". The text is static. */
const char *tr_code_name(int code);

/* Replaces advice that is for programs in a message of the library by advice for users of the
 * trainer.
 * size  of the memory at msg */
void tr_store_words(char *msg, size_t size);

/* Opens the run, and makes it if it does not exist, unless the store only reads. [collective] */
int tr_store_open(struct tr_store **s, const struct tr_store_opts *o, struct tr_ranks *ranks,
		  struct tr_error *err);
/* Releases everything.
 * lost  1: an operation of the ranks returned ELOST, so this call must not wait for any rank.
 * [collective] unless lost */
void tr_store_close(struct tr_store *s, int lost);
/* Finds the checkpoint to resume from.
 * resume     "auto", "none", "RUN@STEP", or the directory of a checkpoint, which may be one of
 *            other software, such as a Hugging Face model.
 * rewind     1: the run may have newer checkpoints, which tr_store_rewind will set aside.
 * p          receives the notes. A checkpoint that other software has written may have none. Then
 *            all members are 0 except found, on_disk and adam_step.
 * config, n  receive the options that the checkpoint was trained with, or NULL; valid until the
 *            load.
 * EINVAL: the run has newer checkpoints and rewind is 0, so no save could be committed; or the
 * checkpoint is in another run, and rewind is 1 or this run has checkpoints; or keep_best is set,
 * and the checkpoint was trained with another loss_key. [collective] */
int tr_store_find(struct tr_store *s, const char *resume, int rewind, struct tr_progress *p,
		  const char **config, size_t *n, struct tr_error *err);
/* Reads a file that is attached to the checkpoint that was found. *text is valid until the load,
 * and NULL if there is no such file. [local] */
int tr_store_file(struct tr_store *s, const char *name, const char **text, size_t *n,
		  struct tr_error *err);
/* Returns whether the checkpoint that was found is not in this run. */
int tr_store_is_other(const struct tr_store *s);
/* Returns whether the checkpoint that was found has moments of the optimizer and a note of how many
 * updates were made. Call it after tr_store_describe. */
int tr_store_has_moments(const struct tr_store *s);
/* Verifies the checkpoint and then sets the newer ones aside, if rewind was 1 in tr_store_find, or
 * if resume auto has passed over newer ones. Call it before the load, when everything else has been
 * checked.
 * older  receives -1; or, if resume auto has found the checkpoint and it is damaged, the step of
 *        the one to begin again with (struct tr_store_opts.only): nothing was set aside.
 * [collective] */
int tr_store_rewind(struct tr_store *s, int64_t *older, struct tr_error *err);
/* Returns the name of the checkpoint that was found, "RUN@STEP", for messages. Valid until the
 * store is closed. */
const char *tr_store_found(const struct tr_store *s);
/* Describes the weights, masters, moments and average of a trainer, which the calls below save and
 * load. Call it before them. [local] */
int tr_store_describe(struct tr_store *s, struct tr_trainer *t, struct tr_error *err);
/* Returns whether tr_store_load fills the average of the weights: the trainer has one, and so does
 * the checkpoint that was found. Call it after tr_store_describe. */
int tr_store_has_average(const struct tr_store *s);
/* Fills the state from the checkpoint that was found; call tr_trainer_spread afterwards. The
 * weights come from its masters, if it has any, and otherwise from its model. The moments stay as
 * they are if it has none. If it was found by resume auto and is damaged, the newest one that is
 * whole is loaded, and those after it are set aside, unless the store only reads.
 * step  receives which one was loaded. If it is not the one that was found, its options and its
 *       notes are still unknown.
 * ELAYOUT: the tensors of *step differ from those of the state. If *step is not the one that was
 * found, that one is damaged and was not set aside. [collective] */
int tr_store_load(struct tr_store *s, int64_t *step, struct tr_error *err);
/* Fills the weights of a trainer from a Hugging Face directory; call tr_trainer_spread afterwards.
 * [collective] */
int tr_store_import(struct tr_store *s, struct tr_trainer *t, const char *dir,
		    struct tr_error *err);

struct tr_attachment {
	const char *file;
	const void *bytes;
	size_t n;
};
/* Where a save goes: to the disk, and to the memory of the nodes if they have agents; or to memory
 * only. Of each kind one save may be in flight. */
enum tr_place { TR_TO_DISK, TR_TO_MEMORY, TR_PLACES };
/* Begins to save in the background. The memory of a parameter may change after its gate. The save
 * before it to the same place must be committed.
 * ENOSPC: the disk is full; a later save may work.
 * EAGAIN: a save to memory cannot be kept, because a node has no agent now. [collective] */
int tr_store_begin(struct tr_store *s, enum tr_place to, const struct tr_progress *p,
		   const struct tr_attachment *files, int files_n, struct tr_error *err);
/* Returns the gate of the parameters, for tr_adamw_update. */
struct tr_gate tr_store_gate(struct tr_store *s);
/* Continues the save in flight to that place, if there is one. *step receives the step that this
 * call committed, or 0.
 * wait_ms  how long it waits at most until the save is committed; the shortest time of all ranks
 *          counts; 0: it does not wait; -1: as long as the ranks wait for each other
 * EAGAIN: it is not committed after wait_ms, which is not 0; it goes on.
 * ENOSPC: the save has failed because the disk is full; a later one may work.
 * EFAILED: of a save to memory: an agent has ended, or has no memory left. [collective] */
int tr_store_advance(struct tr_store *s, enum tr_place to, int wait_ms, int64_t *step,
		     struct tr_error *err);
#endif
