/* SPDX-License-Identifier: Apache-2.0 */
/* A small job that uses the engine: simulated ranks open a run and do some deeds with it, and then
 * a new process looks at what is on disk.
 *
 * Step n has the values lay_value(tensor, item, job_seed(n, salt)), so that no two steps are alike.
 * A salt is a note of the step; it distinguishes two saves with the same number. */
#ifndef JOBS_H
#define JOBS_H
#include "layouts.h"
#include "simdisk.h"
#include "simgroup.h"

#define JOB_SEED UINT64_C(0x5eaf00)
#define JOB_TIMEOUT_MS 60000
enum { JOB_RANKS = 4, JOB_DEEDS = 5, JOB_STEPS = 16 };

struct job_state {              /* the content of a step; members as in struct job */
	int64_t rows;
	int bigs;
	bool tiny;                      /* matrices have a quarter of the rows */
};
struct lay_tensor job_tensor(int i, const struct job_state *state);
int job_tensors_n(const struct job_state *state);

/* BEGIN and COMMIT are the two halves of a save: memory changes between them. If BEGIN failed, its
 * COMMIT returns the same code. ASK, between them, waits until the save is being published; if that
 * fails, COMMIT returns the code. */
enum deed_kind {
	DEED_SAVE, DEED_BEGIN, DEED_ASK, DEED_COMMIT, DEED_LOAD, DEED_PRUNE, DEED_REWIND,
	DEED_MARK_BAD, DEED_MARK_KEEP
};
struct deed {
	enum deed_kind kind;
	int64_t step;                   /* LOAD: -1 means the newest */
	uint64_t salt;                  /* SAVE, BEGIN; 0: none */
	int rc[JOB_RANKS];
	struct sheaf_error err[JOB_RANKS];
	int64_t begun, acked;           /* cuts: before the deed, and when the first rank had
					 * returned; -1: never */
	int64_t ended;                  /* when the last rank had returned */
	int64_t pruned[JOB_STEPS];      /* PRUNE: steps that rank 0 got as removed */
	int pruned_n;
};
/* MESH: four ranks as tp2 x dp2, any other number by dimension 0. ROWS: by dimension 0, the last
 * rank first. WHOLE: every rank has everything. */
enum job_layout { JOB_MESH, JOB_ROWS, JOB_WHOLE };
struct job {
	struct simdisk *disk;           /* borrowed */
	int ranks;                      /* at most JOB_RANKS */
	const int32_t *nodes;           /* NULL: one node */
	enum job_layout layout;
	bool turns;                     /* other ranks may run at each disk call, too */
	int64_t rows;                   /* of each big tensor, of 256 bytes; 0: none */
	int bigs;                       /* number of big tensors, at most 4; 0: one */
	bool tiny;
	uint64_t staging, file_bytes;   /* 0: no limit */
	int keep_last, images;          /* images: opts.images_max */
	bool lazy;                      /* copies in the background; uses gates */
	bool asks;                      /* commits do not wait, and are called until they are done:
	                                 * so the library publishes in the background */
	bool stays;                     /* stages only what it must */
	struct deed deeds[JOB_DEEDS];
	int deeds_n;
	struct simgroup_opts group;     /* ranks that die or are late; the rest is set by job_run */
	long skip_fsync;                /* the nth fsync of all ranks does nothing; 0: none. For two
	                                 * jobs on one disk, that of the first */
	bool skip_of_deeds;             /* counts only from the first deed on */
	void (*armed)(void *arg, int rank);     /* called on each rank before it opens the run */
	void (*disarmed)(void *arg, int rank);  /* called when everything is closed */
	void *arg;
	const struct shf_sys *sys[JOB_RANKS];
	/* results */
	struct simgroup_stat stat;
	bool dead[JOB_RANKS];
	int64_t opened;                 /* cut when the first rank had opened the run; -1: never */
	int open_rc[JOB_RANKS];
	struct sheaf_error open_err[JOB_RANKS];
	bool skipping;
	long fsyncs;                    /* with skip_fsync: number of fsyncs, */
	char skipped[80];               /* and last name of what was not synced */
	int local_rc;                   /* of calls that are not collective */
	uint64_t pairs[JOB_RANKS * JOB_RANKS];  /* bytes from rank to rank */
	char why[700];                  /* a broken rule of all jobs, whatever failed; "": none */
};

/* job_prepare makes new processes; then faults may be set for job.sys. job_run runs the job.
 * Returns true if the run kept its promises: the same code on all ranks, with a message, and
 * nothing left open. */
void job_prepare(struct job *j);
bool job_run(struct job *j);
/* Runs at most two jobs at the same time on one disk. The options of the group, such as who dies,
 * the seed and stat, are those of the first job, and count the ranks of both. */
bool jobs_run(struct job **jobs, int n);
/* Sets the pid of the next process, on which random numbers depend. */
void job_pids(uint64_t next);
uint64_t job_seed(int64_t step, uint64_t salt);
/* Return the worst code of the job's deeds, and the first message. */
int job_rc(const struct job *j);
const char *job_word(const struct job *j);

/* What a process finds that opens the run. Every step that it lists is loaded and compared. */
struct seen {
	int64_t steps[JOB_STEPS];
	size_t n;
	int64_t newest;                 /* -1: none, or all are marked bad */
	uint64_t salt;                  /* of the newest; 0: none */
	int damaged, staged, aside;
	int unpublished;                /* stages with a manifest and everything that it names */
};
/* Looks at the run. write: as the next job does, with recovery. rows: as in the job. Returns "" or
 * what is wrong. A stage with a manifest is loaded like a step, because a manifest may exist only
 * when everything that it names is durable (I2). */
const char *job_look(struct simdisk *disk, bool write, int64_t rows, struct seen *seen,
                     char why[300]);
/* The same for another state, without the stages. */
const char *job_look_at(struct simdisk *disk, bool write, const struct job_state *state,
                        struct seen *seen, char why[300]);
bool seen_has(const struct seen *seen, int64_t step);
/* Does the same as job_look, then saves and loads `step`. */
const char *job_go_on(struct simdisk *disk, int64_t step, int64_t rows, char why[300]);

#endif
