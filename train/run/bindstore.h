/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of bind.h share. Only they include sheaf.h. */
#ifndef BINDSTORE_H
#define BINDSTORE_H
#include "bind.h"
#include "sheaf.h"

enum { WEIGHT, MASTER, MOMENT1, MOMENT2, AVERAGE, KINDS };      /* slices of a parameter */
struct tr_store {
	struct tr_ranks *ranks;         /* borrowed */
	int lost;                       /* 1: operations of the group fail without waiting */
	struct sheaf_group *group;
	struct sheaf_run *run;          /* NULL: there is none, and the store only reads */
	struct sheaf_run *other;        /* the run that is resumed from, if another one */
	struct sheaf_checkpoint *found;
	struct sheaf_state *state;
	struct sheaf_state *load;       /* what a load fills, if it is not `state`; or NULL */
	int has_average;                /* 1: a load fills the average */
	int *slice;                     /* [parameters * KINDS]; -1: none */
	struct sheaf_save *save[TR_PLACES];     /* in flight */
	int64_t save_step[TR_PLACES];
	int64_t rewind_to;              /* -1: nothing is set aside */
	struct tr_trainer *t;           /* borrowed, as of tr_store_describe */
	char loss_key[TR_LOSS_KEY_MAX]; /* of struct tr_store_opts, as the next six */
	int keeps_best;
	int64_t only;
	int sets_aside;
	int reads_only;
	void (*passed)(void *arg, const char *checkpoint, const char *why);
	void *arg;
	/* Of the checkpoint that was found. */
	int falls_back;                 /* 1: resume auto: an older one is tried if it is damaged */
	int newest;                     /* 1: resume auto has found it as the newest of the run */
	int elsewhere;                  /* 1: it is not in the run */
	int foreign;                    /* 1: other software has saved it */
	int moments;                    /* 1: it has moments */
	char name[4200];                /* as of tr_store_found */
	char *run_dir;                  /* owned */
};
/* Passes an error of the library on. Returns its code. */
int tr_store_pass(struct tr_error *err, const struct sheaf_error *from, int code);
/* Makes the group of the library from the operations of s->ranks. [local] */
int tr_store_group(struct tr_store *s, struct sheaf_error *err);
/* Fills the state from the checkpoint that was found.
 * flags  of sheaf_checkpoint_load. [collective] */
int tr_store_fill(struct tr_store *s, uint64_t flags, struct sheaf_error *err);

/* The notes of a checkpoint, whose names are in tr_store_keys. A checkpoint of an older trainer may
 * have the first TR_NOTES_NEEDED only. */
enum { TR_NOTES = 8, TR_NOTES_NEEDED = 5 };
extern const char *const tr_store_keys[TR_NOTES];
extern const char tr_store_isa_key[];   /* the note of kernels with bits of their own */
extern const char tr_store_loss_key[];  /* the note of the loss of eval-data, for people */
extern const char tr_store_best_key[];  /* the note of loss_key of the job */
#endif
