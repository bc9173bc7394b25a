/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs that save to the memory of agents and to the disk, die, and are followed by others. Each
 * value says which step it is of. */
#ifndef RESTARTS_H
#define RESTARTS_H
#include <stdatomic.h>
#include "sheaf.h"
#include "simdisk.h"
#include "simgroup.h"

enum { RE_RANKS = 6, RE_NODES = 3, RE_TENSORS = 3, RE_ROWS = 13 };
extern int64_t re_cols;         /* of each tensor: 700; whoever sets it sets it back */

struct re_plan {                /* what a job does at each of its steps: */
	int64_t first, last;            /* first 0: after the one that it resumes from */
	int disk_every;                 /* 0: never */
	uint64_t flags;                 /* of its saves */
	int images;
	bool fresh, rewind_first;       /* nothing is loaded; a rewind to `resume` first */
	int64_t resume;                 /* which step; -1: the newest */
	bool no_agent;                  /* opened without */
	bool reader;                    /* opened SHEAF_RUN_READONLY, to load */
	bool stop;                      /* after the load */
	bool dies;                      /* at the end, without a close */
	int attempts;                   /* opts.resume_attempts_max */
	bool resumes, falls;            /* by sheaf_run_resume; with SHEAF_LOAD_FALLBACK */
	int takes;                      /* loads slice by slice, by so many threads; 0: at once */
	bool readonly;
	int gaps;                       /* saves that begin may refuse */
	int nodes;                      /* its ranks are spread over so many; 0: one */
	bool backwards;                 /* the last rank is on the first of them */
	bool late;                      /* what goes to disk is there after the next save */
	bool asks;                      /* late, and asked after in each save until it is there:
	                                 * it is published behind them */
	int64_t fail;                   /* late: a step that rank 0 gives up then */
	int copies;
	bool behind;                    /* those go in a thread, over the same simulated group:
	                                 * ranks give it as many turns, and so meet */
};
struct re_job {
	struct simdisk *disk;
	int ranks;
	struct re_plan plan;
	struct simgroup_opts group;
	const struct shf_sys *sys[RE_RANKS];
	void (*starts)(int rank);       /* each, on its thread, before it asks for anything; NULL */
	/* what came of it */
	int64_t loaded;                 /* -1: there was none */
	uint32_t passed;                /* by sheaf_run_resume */
	atomic_llong acked;             /* the newest that a rank knows to be committed */
	uint64_t disk_bytes, memory_bytes;
	bool peers;                     /* of memory some were copies of another node */
	atomic_llong given_up;          /* a rank was told so; 0: none */
	atomic_int once;                /* logged: steps are kept once, on any rank */
	int refused;                    /* begins, on rank 0 */
	int killed;                     /* processes that were dead before their rank was done */
	char why[600];
};
struct re_mine {                /* a rank's rows of each tensor */
	int64_t lo, n;
	float *data[RE_TENSORS];
};
/* A disk and agents with room. */
struct simdisk *re_world(uint64_t seed);
struct re_job re_on(struct simdisk *disk, int ranks, struct re_plan plan);
/* What the worst rank returned; all its processes are gone afterwards. */
int  re_play(struct re_job *job, uint64_t seed);
void re_died(void *job, int rank);
/* The pieces of it, for who does otherwise. */
struct sheaf_state *re_state(struct re_mine *m, int rank, int ranks);
void re_free(struct re_mine *m);        /* its memory */
void re_paint(struct re_mine *m, int64_t step);
int64_t re_wrong(const struct re_mine *m, int64_t step);        /* how many values are of others */
void re_say(struct re_job *job, int rank, const char *what, int rc, const struct sheaf_error *err);
int  re_resume(struct re_job *job, int rank, struct sheaf_run *run, struct sheaf_state *state,
               struct re_mine *m, int64_t *at, struct sheaf_error *err);
/* A bit of every image that the agent of a node keeps; twice is never. How many. */
int  re_flip(struct simdisk *disk, int node);
/* Lines of metrics with both in them. */
int  re_told(struct simdisk *disk, const char *what, const char *member);

#define PLAYED(j, want)                                                                  \
	do {                                                                             \
		int rc_ = re_play(&(j), 1);                                                 \
		if (rc_ != (want) || (rc_ == 0 && (j).why[0]))                           \
			print_error("%s:%d: %d %s\n", __FILE__, __LINE__, rc_, (j).why); \
		CHECK_INT(rc_, (want));                                                  \
		if (rc_ == 0)                                                            \
			CHECK(!(j).why[0]);                                              \
	} while (0)
#endif
