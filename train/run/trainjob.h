/* SPDX-License-Identifier: Apache-2.0 */
/* A running job: a training run, or the evaluation of a checkpoint. trainstart.h makes it,
 * trainloop.c carries it out, trainsave.h saves it, and trainreport.h writes its events. */
#ifndef TRAINJOB_H
#define TRAINJOB_H
#include "bind.h"
#include "modelfiles.h"
#include "offload.h"
#include "trainevents.h"
#include "trainsetup.h"
#include "trainsignals.h"

struct tr_job {
	struct tr_opts *o;
	struct tr_events *events;
	struct tr_signals *signals;     /* of this rank; NULL: none */
	struct tr_ranks *ranks;         /* those of the caller, or `linked` */
	struct tr_ranks linked;
	struct tr_mesh mesh;
	struct tr_store *store;
	const char *isa;                /* the name of the kernels, or auto; of `o` or static */
	struct tr_backend *be;
	struct tr_trainer t;
	struct tr_offload moments;      /* the arena of the optimizer, if that is in a file */
	int *source;                    /* which ranks of mesh.line read the data; rowfeed.h */
	struct tr_lm *lm, *eval;        /* eval: the data of evaluations, or NULL */
	uint64_t eval_hash;             /* of tr_lm_identify */
	char loss_key[TR_LOSS_KEY_MAX]; /* as of struct tr_store_opts */
	struct tr_setup setup;
	char *yaml;                     /* the options */
	struct tr_modelfiles files;     /* that are attached to checkpoints; on rank 0 */
	struct tr_progress progress;
	int evaluates;                  /* 1: nothing is trained or saved */
	int64_t only;                   /* the checkpoint that resume auto takes; 0: the newest */
	int sets_aside;                 /* 1: those after it are damaged and still in the run */
	json_t *passed;                 /* on rank 0: the checkpoints that were passed over or set
	                                 * aside, with the reason */
	int64_t blocked_ns;             /* time that saves took, since the last event of a step */
	int64_t last_saved;             /* step of the last save to disk that began and has not
	                                 * failed */
	int64_t committed;              /* step of the last one that was committed */
	struct tr_error unsaved;        /* code ENOSPC: why the last save has failed */
	int memory_lost;                /* the last save to memory failed, and an event said so */
	int save_asked;                 /* a signal asks for a save, as all ranks have agreed */
	int64_t stop_ns;                /* when a signal asked to stop, or when the ranks agreed to;
	                                 * 0: not yet */
	int64_t last_eval;              /* step of the last evaluation; -1: none */
	int told_masked;                /* 1: a message said that a step has no targets */
	int told_memory;                /* 1: the events `memory` were written */
	const char *changed[TR_OPTS_MAX + 1];
};
#endif
