/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs that save to the memory of agents and to disk, die, and are followed by others. Each value
 * identifies its step. */
#ifndef RESTARTS_H
#define RESTARTS_H
#include <stdatomic.h>
#include "sheaf.h"
#include "simdisk.h"
#include "simgroup.h"

enum { RE_RANKS = 6, RE_NODES = 3, RE_TENSORS = 3, RE_ROWS = 13 };
extern int64_t re_cols;         /* of each tensor: 700; a test must restore it */

struct re_plan {                /* what a job does */
	int64_t first, last;            /* first 0: the step after the one that it resumes from */
	int disk_every;                 /* 0: never */
	uint64_t flags;                 /* of its saves */
	int images;
	bool fresh, rewind_first;       /* loads nothing; rewinds to `resume` */
	int64_t resume;                 /* the step to load; -1: the newest */
	bool no_agent;                  /* opens the run without an agent */
	bool reader;                    /* opens with SHEAF_RUN_READONLY, to load */
	bool stop;                      /* ends after the load */
	bool dies;                      /* ends without a close */
	int attempts;                   /* opts.resume_attempts_max */
	bool resumes, falls;            /* by sheaf_run_resume; with LOAD_FALLBACK */
	int takes;                      /* loads slice by slice, with so many threads; 0: at once */
	bool readonly;
	int gaps;                       /* number of saves that begin may refuse */
	int nodes;                      /* number of nodes for its ranks; 0: one */
	bool backwards;                 /* the last rank is on the first node */
	bool late;                      /* a save to disk is committed only after the next save */
	bool asks;                      /* late, and commit is called in each save until it is done:
	                                 * the library publishes in the background */
	int64_t fail;                   /* late: a step that rank 0 then aborts */
	int copies;
	bool behind;                    /* a thread sends the replicas, with the same simulated
	                                 * group: the ranks give it turns */
};
struct re_job {
	struct simdisk *disk;
	int ranks;
	struct re_plan plan;
	struct simgroup_opts group;
	const struct shf_sys *sys[RE_RANKS];
	void (*starts)(int rank);       /* at the start of each thread; may be NULL */
	/* results */
	int64_t loaded;                 /* -1: no step */
	uint32_t passed;                /* skipped by sheaf_run_resume */
	atomic_llong acked;             /* the newest step that a rank knows to be committed */
	uint64_t disk_bytes, memory_bytes;
	bool peers;                     /* loaded replicas of another node */
	atomic_llong given_up;          /* a rank got this step as given up; 0: none */
	atomic_int once;                /* logged, on any rank, that steps are kept only once */
	int refused;                    /* refused begins, on rank 0 */
	int killed;                     /* processes that died before their rank had finished */
	char why[600];
};
struct re_mine {                /* a rank's rows of each tensor */
	int64_t lo, n;
	float *data[RE_TENSORS];
};
/* Makes a disk with agents that have enough memory. */
struct simdisk *re_world(uint64_t seed);
struct re_job re_on(struct simdisk *disk, int ranks, struct re_plan plan);
/* Runs the job. Returns the worst code of its ranks; all its processes are gone afterwards. */
int  re_play(struct re_job *job, uint64_t seed);
void re_died(void *job, int rank);
/* For tests that do not use re_play: makes a state of these pieces. */
struct sheaf_state *re_state(struct re_mine *m, int rank, int ranks);
void re_free(struct re_mine *m);        /* frees the memory */
void re_paint(struct re_mine *m, int64_t step);
int64_t re_wrong(const struct re_mine *m, int64_t step);        /* wrong values */
void re_say(struct re_job *job, int rank, const char *what, int rc, const struct sheaf_error *err);
int  re_resume(struct re_job *job, int rank, struct sheaf_run *run, struct sheaf_state *state,
               struct re_mine *m, int64_t *at, struct sheaf_error *err);
/* Flips a bit in every staging buffer that the agents of a node keep; a second call restores them.
 * Returns their number. */
int  re_flip(struct simdisk *disk, int node);
/* Counts the lines of metrics that contain both texts. */
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
