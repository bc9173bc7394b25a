/* SPDX-License-Identifier: Apache-2.0 */
/* A small job through the engine: simulated ranks open a run and do some deeds with it, and
 * somebody who was not there looks at what the disk holds then.
 *
 * Step n holds lay_value(tensor, item, job_seed(n, salt)), so that no two steps are alike; a salt
 * is a note of the step, and tells apart two saves of one number. */
#ifndef JOBS_H
#define JOBS_H
#include "layouts.h"
#include "simdisk.h"
#include "simgroup.h"

#define JOB_SEED UINT64_C(0x5eaf00)
#define JOB_TIMEOUT_MS 60000
enum { JOB_RANKS = 4, JOB_DEEDS = 5, JOB_STEPS = 16 };

struct job_state {              /* what a step holds; a job's rows, bigs and tiny */
	int64_t rows;
	int bigs;
	bool tiny;                      /* matrices of a quarter of the rows */
};
struct lay_tensor job_tensor(int i, const struct job_state *state);
int job_tensors_n(const struct job_state *state);

/* BEGIN and COMMIT are a save in two: what memory holds has changed between. A COMMIT whose BEGIN
 * failed returns what that did. Between them ASK leaves it being published, or it has failed and
 * the COMMIT returns that. */
enum deed_kind {
	DEED_SAVE, DEED_BEGIN, DEED_ASK, DEED_COMMIT, DEED_LOAD, DEED_PRUNE, DEED_REWIND,
	DEED_MARK_BAD, DEED_MARK_KEEP
};
struct deed {
	enum deed_kind kind;
	int64_t step;                   /* LOAD: -1 is the newest */
	uint64_t salt;                  /* SAVE, BEGIN; 0: none */
	int rc[JOB_RANKS];
	struct sheaf_error err[JOB_RANKS];
	int64_t begun, acked;           /* cuts: before, and when the first rank knew; -1: never */
	int64_t ended;                  /* when the last rank was through */
	int64_t pruned[JOB_STEPS];      /* PRUNE: what rank 0 was told went */
	int pruned_n;
};
/* Four ranks as tp2 x dp2, any other number by dimension 0; all by dimension 0, the last rank
 * first; everybody holds all. */
enum job_layout { JOB_MESH, JOB_ROWS, JOB_WHOLE };
struct job {
	struct simdisk *disk;           /* borrowed */
	int ranks;                      /* of JOB_RANKS at most */
	const int32_t *nodes;           /* NULL: one node */
	enum job_layout layout;
	bool turns;                     /* others may run at each call of the disk, too */
	int64_t rows;                   /* of each big tensor, of 256 bytes; 0: there are none */
	int bigs;                       /* big tensors, 4 at most; 0: one */
	bool tiny;
	uint64_t staging, file_bytes;   /* 0: no bound */
	int keep_last, images;          /* images: of the options */
	bool lazy;                      /* saves copy behind, and memory changes at its gate */
	bool asks;                      /* commits wait for nothing, and are called until they are
	                                 * through: what is published is so behind them */
	bool stays;                     /* nothing of it is staged that need not be */
	struct deed deeds[JOB_DEEDS];
	int deeds_n;
	struct simgroup_opts group;     /* who dies or is late; the rest is filled in */
	long skip_fsync;                /* of all ranks: the nth does nothing; 0: none. Of two jobs
	                                 * on one disk, the first one's says */
	bool skip_of_deeds;             /* counted from the first deed on */
	void (*armed)(void *arg, int rank);     /* on each rank, before it opens the run */
	void (*disarmed)(void *arg, int rank);  /* and when all is closed */
	void *arg;
	const struct shf_sys *sys[JOB_RANKS];
	/* afterwards */
	struct simgroup_stat stat;
	bool dead[JOB_RANKS];
	int64_t opened;                 /* cut: when the first rank had the run open; -1: never */
	int open_rc[JOB_RANKS];
	struct sheaf_error open_err[JOB_RANKS];
	bool skipping;
	long fsyncs;                    /* with skip_fsync: how many were counted, */
	char skipped[80];               /* and the last name of what was not synced */
	int local_rc;                   /* of calls that are not collective */
	uint64_t pairs[JOB_RANKS * JOB_RANKS];  /* bytes from rank to rank */
	char why[700];                  /* what no job may do, whatever fails; "": nothing */
};

/* New processes; faults may then be set against job.sys. Then run them: true when the run kept
 * its promises: one code everywhere, a sentence with it, and nothing left open. */
void job_prepare(struct job *j);
bool job_run(struct job *j);
/* Two at most on one disk at the same time; who dies or is late counts the ranks of all, and stands
 * in the first one's group, as seed and stat do. */
bool jobs_run(struct job **jobs, int n);
/* The pid of the next process: numbers drawn depend on it. */
void job_pids(uint64_t next);
uint64_t job_seed(int64_t step, uint64_t salt);
/* The worst of what its deeds returned; the first of its sentences. */
int job_rc(const struct job *j);
const char *job_word(const struct job *j);

/* What one process that opens the run finds. Every step it lists is loaded and compared. */
struct seen {
	int64_t steps[JOB_STEPS];
	size_t n;
	int64_t newest;                 /* -1: none, or all are marked bad */
	uint64_t salt;                  /* of the newest; 0: none */
	int damaged, staged, aside;
	int unpublished;                /* staged, with a manifest, and all it names is there */
};
/* write: as the next job would, with recovery. rows as in the job. "" or what is wrong. A stage
 * that has a manifest is loaded like a step: that manifest was not to be there before all it
 * names was durable (I2). */
const char *job_look(struct simdisk *disk, bool write, int64_t rows, struct seen *seen,
                     char why[300]);
/* The same of another state, and without a look into stages. */
const char *job_look_at(struct simdisk *disk, bool write, const struct job_state *state,
                        struct seen *seen, char why[300]);
bool seen_has(const struct seen *seen, int64_t step);
/* As job_look, and then save and load `step`. */
const char *job_go_on(struct simdisk *disk, int64_t step, int64_t rows, char why[300]);

#endif
