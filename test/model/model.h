/* SPDX-License-Identifier: Apache-2.0 */
/* The model of a run: what its users are promised. It knows which checkpoints exist, on disk and in
 * memory, which is the newest, and what each call may return. It knows nothing of files or staging
 * buffers.
 *
 * The model names a checkpoint by the id of its values. A promise may leave two outcomes open: if a
 * writer dies while it publishes a checkpoint, the checkpoint may exist or not, and memory may keep
 * more than its newest. The model then allows both outcomes, and the next look at the run shows
 * which one it was.
 */
#ifndef MODEL_H
#define MODEL_H
#include "actor.h"
#include "call.h"

enum { ENTRIES = 64, MEMORIES = 64, IDS = 128 };

enum { UPDATES = 48 };
struct average {          /* how it was made: the ids, in order */
	bool has, unsure; /* has: it exists. unsure: its ids are not known */
	int n;
	int64_t at; /* step of the last update */
	int ids[UPDATES];
};
struct entry {          /* a checkpoint on the disk of a run */
	int id, parent; /* parent: id; -1: none, -2: not known */
	int64_t step;
	int mark; /* 'k', 'b', 0; '?': unknown */
	bool aside, gone;
	bool was_aside; /* it was aside, and has been copied here again */
	bool unsure;    /* it may have been published, or not */
	bool may_go;    /* a prune may have removed it */
	int readers;    /* that have it open */
	struct average average;
};
struct run_model {
	bool exists;
	bool torn;            /* a failed cp may have left steps here that are not complete */
	int run_id, identity; /* a copy has the same run_id, a renamed run the same two */
	struct entry e[ENTRIES];
	int n;
	struct {
		int id;
		int64_t step;
	} left[SAVES];            /* what the last writer was saving when it was killed; id 0:
				   * nothing */
	unsigned char tries[IDS]; /* by id: sessions that loaded it and made no progress */
	bool fuzzy[IDS];          /* the count may be 0: a save may have made its stage */
	int64_t floor;            /* after a fault: no newest step may be older; -1: none */
};
struct memory { /* a checkpoint in the memory of agents */
	bool here, sure;
	bool adrift;  /* after a mark or a load: it may have another base */
	int identity, nodes;  /* of its run; bits of the nodes that have a part */
	int id, base, coming; /* base: id of the step on disk that it follows; -1: an empty run.
			       * coming: or it follows this one, which was being published; 0:
			       * none */
	int64_t step;
	int job; /* serial number of the job that saved it */
	int left; /* the order number at which its job first went back to an older step on disk; 0:
		   * it did not. The step disappears once a later save is done. */
	struct average average;
};
struct save_model {
	bool open; /* begun and not freed */
	int id;
	int64_t step;
	uint64_t flags;
	int order;                                 /* number of its begin */
	bool over, failed, spoiled, asked_publish; /* spoiled: a call reported its error */
	bool put[ACTOR_SLICES], gated[ACTOR_SLICES];
	bool late_check;        /* errors in its number are found by commit, */
	uint32_t found;         /* or by a load before it, as these codes */
	int parent;             /* id of the step that it follows; -1: the newest. Set by begin, and
				 * by commits since; a load in between does not change it. */
	bool kept;              /* commit reported that it is in memory: it accepts no more notes */
	bool asked;             /* commit has not finished, and the save may be in memory */
	struct average average; /* as of its begin */
	unsigned notes;         /* bits of its notes and attached files */
};
struct job_model {
	bool open, child; /* child: it has a forked process that lives */
	bool orphan;      /* the child has the lock of a job that was killed */
	struct call as;   /* the call that opened it */
	int serial, nodes, orphan_of;
	unsigned unmoved; /* by tensor: it has to be moved again, because the first move was too
			   * early */
	int parent;       /* id of the step that its next save follows; -1: the newest, -2:
			   * unknown */
	int loaded;       /* id; -1: nothing since the last commit */
	int loaded_on;    /* the id of what was loaded, or for a step from memory, the id of its
			   * base on disk; -1: none, -2: unknown */
	int64_t loaded_step;
	bool beyond;      /* it loaded a step from memory, where there is a newer one */
	bool from_memory; /* it loaded a step that may be only in memory */
	int went_back;    /* order number of its last load of a step on disk; see memory.left */
	bool shaken;      /* one of its agents was lost, or saves to memory may fail for another
			   * reason */
	bool marked;      /* a mark changed which step is the newest: until the next step on disk,
			   * its steps in memory may have another base */
	bool staged_once; /* a lazy save was begun: the next begin makes only one agreement */
	int slices;
	int64_t most;           /* the largest step that it saved */
	struct average average; /* of its state */
	bool counted[IDS];      /* by id: this session counts as an attempt to load it */
	struct save_model saves[SAVES];
	int held[HELD]; /* ids; 0: none */
	int held_or[HELD]; /* or this id, with the same number; 0: it is held[] for sure */
	int held_run[HELD];
	int held_from[HELD];       /* id of the step that a save after a load follows: the step
				    * itself, if it was on disk when it was opened, else its base */
	unsigned held_leases[HELD]; /* 1, 2: the entry of held, held_or counts this job as a
				     * reader */
};
struct model {
	struct run_model runs[RUNS];
	struct memory mems[MEMORIES];
	struct job_model jobs[JOBS];
	int serials, identities, run_ids, order;
	bool agents, tight; /* agents: each node has one. tight: memory is or was short */
	bool parted;        /* an agent died: others may have parts of its step */
	bool faulty;        /* a fault was set for a disk call: many outcomes are possible */
};
/* Result codes as bits. */
#define CODE(rc) (1u << -(rc))

void model_init(struct model *m, bool agents);
/* Returns whether the objects of the call exist. If not, the call is skipped. */
bool model_can(const struct model *m, const struct call *c);
/* Returns the codes that the call may return, as bits. */
uint32_t model_codes(const struct model *m, const struct call *c);
/* Updates the model by the result of a call. If the result is not as promised, returns false with
 * the reason in why. */
bool model_take(struct model *m, const struct call *c, const struct reply *r, char why[400]);
/* Checks what a new process on these nodes sees of a run (0: without an agent). */
bool model_looked(struct model *m, int run, int nodes, bool loaded, const struct reply *r,
		  char why[400]);
/* Checks, after a sequence in which calls failed, what a job finds that opens the run. */
bool model_survives(const struct model *m, int run, const struct reply *r, char why[400]);
/* For draw.c. */
struct job_model *model_writer(struct model *m, int run);
int model_tensor(const struct job_model *j, int slice); /* the tensor of a slice */
int64_t model_top(const struct model *m, int run); /* the largest step so far, or 0 */
struct entry *model_newest(struct run_model *r);   /* on disk, not marked bad; may be NULL */
#endif
