/* SPDX-License-Identifier: Apache-2.0 */
/* What a run is, in terms of what its users are promised: which checkpoints exist, on disk and in
 * memory, which is the newest, what each call returns. It knows nothing of files, images or cards.
 *
 * The model names a checkpoint by the id of the values in it. A promise may leave two outcomes
 * open: a checkpoint whose writer dies while it is published may be there or not, and memory may
 * keep more than its newest. Then the model allows both, and the next look at the run tells it
 * which came about.
 */
#ifndef MODEL_H
#define MODEL_H
#include "actor.h"
#include "call.h"

enum { ENTRIES = 64, MEMORIES = 64, IDS = 128 };

enum { UPDATES = 48 };
struct average {          /* what it was made of: the ids, in order */
	bool has, unsure; /* has: there is one. unsure: of what is not known */
	int n;
	int64_t at; /* the step of the last one */
	int ids[UPDATES];
};
struct entry {          /* a checkpoint on the disk of a run */
	int id, parent; /* parent: id; -1: none, -2: not known */
	int64_t step;
	int mark; /* 'k', 'b', 0 */
	bool aside, gone;
	bool was_aside; /* it was, and has been copied here again */
	bool unsure;    /* perhaps it was published */
	bool may_go;    /* the rules of some prune allow it to be removed */
	int readers;    /* that hold it open */
	struct average average;
};
struct run_model {
	bool exists;
	bool torn;            /* a cp into it failed, and may have left steps that are not whole */
	int run_id, identity; /* a copy has the first, a renamed run both */
	struct entry e[ENTRIES];
	int n;
	struct {
		int id;
		int64_t step;
	} left[SAVES];            /* what the last writer was saving when it
				   * was killed; id 0: nothing */
	unsigned char tries[IDS]; /* by id: sessions that loaded it and came no further */
	bool fuzzy[IDS];          /* that may be 0: a save whose stage may be made */
	int64_t floor;            /* once calls fail: no newest step may be older; -1: none */
};
struct memory { /* a checkpoint in the memory of agents */
	bool here, sure;
	bool adrift;  /* after a mark or a load: it may follow another one */
	bool rebased; /* its base came to disk after it came to memory */
	int identity, nodes;  /* of its run; bits of the nodes that have a part */
	int id, base, coming; /* base: what on disk it follows, id; -1: an empty run.
			       * coming: or this, which was being published; 0: nothing */
	int64_t step;
	int job; /* serial number of who saved it */
	int left; /* when its job went back to an older step of the disk first since, in begins and
		   * loads so far: it is gone once a save that was begun later is there; 0 */
	struct average average;
};
struct save_model {
	bool open; /* begun and not freed */
	int id;
	int64_t step;
	uint64_t flags;
	int order;                                 /* of its begin */
	bool over, failed, spoiled, asked_publish; /* spoiled: a call found what is wrong with it */
	bool put[ACTOR_SLICES], gated[ACTOR_SLICES];
	bool late_check;        /* what is wrong with its number is found by commit, */
	uint32_t found;         /* or by a load before it, as these codes */
	int parent;             /* id of what it follows; -1: what is newest. As of its begin, or
				 * what was committed since; a load in between is no matter */
	bool kept;              /* a commit said that it is in memory: it takes no more notes */
	bool asked;             /* a commit came to no end, and it may be in memory */
	struct average average; /* as of its begin */
	unsigned notes;         /* bits of the notes and files that it was given */
};
struct job_model {
	bool open, child; /* child: a forked process of it lives */
	bool orphan;      /* which inherited the lock of a job that was killed */
	struct call as;   /* how it was opened */
	int serial, nodes, orphan_of;
	unsigned unmoved; /* by tensor: it was to be moved, too early */
	int parent;       /* id of what its next save follows; -1: what is newest, -2: not known */
	int loaded;       /* id; -1: nothing since the last commit */
	int loaded_on;    /* its id, or from memory that of what it follows on disk; -1: nothing,
			   * -2: not known */
	int64_t loaded_step;
	bool beyond;      /* it loaded a step that is in memory alone, where a newer one is */
	bool from_memory; /* what it loaded may be there alone */
	int went_back;    /* when it last loaded a step of the disk; as memory.left */
	bool shaken;      /* an agent of its was lost, or another thing that makes
			   * saves to memory fail */
	bool marked;      /* a mark changed what is newest: what it keeps in memory until the next
			   * step on disk may follow another one */
	bool staged_once; /* a lazy save was begun: the next begin is one agreement */
	int slices;
	int64_t most;           /* the greatest step it saved */
	struct average average; /* of its state */
	bool counted[IDS];      /* by id: it is counted as a try of this session */
	struct save_model saves[SAVES];
	int held[HELD]; /* ids; 0: none */
	int held_or[HELD]; /* or this one, of the same number; 0: it is surely the first */
	int held_run[HELD];
	int held_from[HELD];       /* what goes on from it follows this: itself, if it was on disk
				    * when it was opened, else what it followed in memory */
	unsigned held_leases[HELD]; /* 1, 2: an entry for held, held_or counts it as a reader */
};
struct model {
	struct run_model runs[RUNS];
	struct memory mems[MEMORIES];
	struct job_model jobs[JOBS];
	int serials, identities, run_ids, order;
	bool agents, tight; /* each node has one. tight: it has, or had, little room */
	bool parted;        /* an agent died: others may have parts of a step of its */
	bool faulty;        /* a call of the disk was made to fail: outcomes are open */
};
/* Codes as bits. */
#define CODE(rc) (1u << -(rc))

void model_init(struct model *m, bool agents);
/* Has the call what it speaks of? If not, it is skipped. */
bool model_can(const struct model *m, const struct call *c);
/* The codes that it may return, as bits. */
uint32_t model_codes(const struct model *m, const struct call *c);
/* Takes what came of it: false and why, where that is not what was promised. */
bool model_take(struct model *m, const struct call *c, const struct reply *r, char why[400]);
/* A look at a run by a fresh process on these nodes (0: without an agent). */
bool model_looked(struct model *m, int run, int nodes, bool loaded, const struct reply *r,
		  char why[400]);
/* At the end of a sequence in which calls failed: what a job finds that opens the run then. */
bool model_survives(const struct model *m, int run, const struct reply *r, char why[400]);
/* For the generator. */
struct job_model *model_writer(struct model *m, int run);
int model_tensor(const struct job_model *j, int slice); /* which tensor a slice has */
int64_t model_top(const struct model *m, int run); /* no step was ever greater; 0 */
struct entry *model_newest(struct run_model *r);   /* on disk, not marked bad; or NULL */
#endif
