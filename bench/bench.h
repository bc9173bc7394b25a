/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf-bench: declarations that its files share. Every rank runs the same code with the same
 * command line; only rank 0 prints. */
#ifndef BENCH_H
#define BENCH_H
#include <jansson.h>
#include <mpi.h>
#include "sheaf-opts.h"
#include "workload.h"

enum bench_verb { BENCH_SAVE = 1, BENCH_LOAD = 2, BENCH_RESHARD = 4, BENCH_STALL = 8 };

struct bench_opts {
	enum bench_verb verb;
	const char *verb_name;
	const char *run, *state, *like, *preset, *mesh, *expert_mesh, *to, *families, *events;
	const char *io, *isa, *step_text, *gb_text, *ema_text, *modes, *agent, *signal_dir,
	    *copy_cpus, *memcpys_text;
	double gb, ema;                 /* ema < 0: no averages */
	double step_memcpys;            /* 0: a step lasts step_ms */
	int64_t step;                   /* SHEAF_LATEST: loads the newest */
	int64_t steps, every, zero, to_zero, nodes, staging_bytes, file_bytes, io_threads;
	int64_t timeout_ms, keep_last, rounds, images, copy_threads, copy_rate;
	int64_t deadline_ms, copies;
	int64_t step_ms, warmup, compute_threads, memory_every;
	uint64_t seed;
	bool adam, lenient, convert, json, help, on_line, unverified, async, lazy, no_agent;
	bool metrics, copies_behind, commit_behind, in_place;
};
/* Returns 0, or SHEAF_EINVAL with a message: the same on every rank, because argv is the same. */
int bench_opts_parse(struct bench_opts *o, int argc, char **argv, struct sheaf_error *err);
extern const char bench_usage[];

/* Communication between ranks outside the library's calls. It has a deadline: if a rank stops, the
 * others return an error, as they would in a call of the library. */
struct bench_comm {
	MPI_Comm comm;
	int rank, ranks, timeout_ms;
	bool threads;                   /* several threads may call MPI at once */
};
/* All ranks get the worst code and its message, or SHEAF_ELOST. A positive code (EVALUE) is the
 * worst. */
int bench_agree(const struct bench_comm *c, int code, struct sheaf_error *err);
int bench_barrier(const struct bench_comm *c, struct sheaf_error *err);
/* In place; op is MPI_SUM, MPI_MAX or MPI_MIN. */
int bench_reduce(const struct bench_comm *c, uint64_t *x, int n, MPI_Op op,
                 struct sheaf_error *err);
/* Adds up over the ranks, in place; polls without sleeping. */
int bench_sum(const struct bench_comm *c, float *x, size_t n, struct sheaf_error *err);

/* Events: one JSON object a line, written by one write(2) */
struct bench_events {
	bool speaks, json;              /* rank 0; --json */
	int fd;                         /* --events; -1: none */
	const char *path;               /* of --events */
	int *failed;                    /* set to 1 if something could not be written */
};
int bench_events_open(struct bench_events *e, const struct bench_opts *o, int rank,
                      struct sheaf_error *err);
void bench_events_close(struct bench_events *e);
void bench_event(const struct bench_events *e, json_t *event);          /* takes ownership */
/* Prints a line for people, unless --json was given. */
void bench_say(const struct bench_events *e, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
int bench_exit_code(int code);

struct bench {
	const struct bench_opts *o;
	struct bench_comm comm;
	struct bench_events events;
	struct sheaf_group *group, *behind;     /* behind: for sending replicas; or NULL */
	struct sheaf_group *commits;            /* for commits in the background, or NULL */
	struct sheaf_checkpoint *like;  /* NULL: none */
	struct wl_model model;
	struct wl_layout from, to;
	struct wl_held held, held_to;
	struct sheaf_state *state, *state_to;
};

/* What a rank used between start and stop */
struct bench_meter {
	uint64_t user_ns, sys_ns, faults;
	uint64_t read_bytes, write_bytes;       /* disk I/O, as the kernel counts it */
	uint64_t rss, peak, grown;              /* resident at start, maximum, and peak - rss */
};
void bench_meter_start(struct bench_meter *m);
void bench_meter_stop(struct bench_meter *m);
/* Combines all ranks: times and bytes are added; of memory, it takes the maximum. */
int bench_meter_share(const struct bench_comm *c, struct bench_meter *m, struct sheaf_error *err);
json_t *bench_meter_json(const struct bench_meter *m, int64_t round);
#define BENCH_LINE 48
/* With --on-line: prints event `ready`, then returns 1 when rank 0 has read a line, 0 at the end of
 * its input, or ELOST. It waits without a deadline. Without --on-line it returns 1. line: the
 * beginning of the line, on all ranks; "" if there is none. */
int bench_on_line(const struct bench *b, char line[BENCH_LINE], struct sheaf_error *err);

/* Options of the run, from the command line */
struct bench_run_opts {
	struct sheaf_opts opts;         /* points to the other members */
	struct sheaf_staging staging;
	struct sheaf_retention retention;
	struct sheaf_memory_tier tier;
	struct sheaf_notify notify;
};
void bench_run_opts_init(struct bench_run_opts *o, const struct bench *b, uint64_t flags);
/* Commits, and waits as long as any rank writes. */
int bench_commit(const struct bench *b, struct sheaf_save *save, struct sheaf_error *err);
/* Returns 0, or the same code on all ranks; events and messages have been printed. */
int bench_run(struct bench *b);
int bench_stall(struct bench *b);
/* Parses a comma-separated list of modes to a mask, one bit each. NULL: all that are possible. */
int bench_stall_modes(const char *list, bool has_agent, unsigned *mask, struct sheaf_error *err);
/* Starts an agent for `run` on each node, and makes the run. *pid: the agent that this rank
 * started, or 0. All ranks must call this. */
int bench_agent_start(const struct bench_comm *c, const char *run, int *pid,
                      struct sheaf_error *err);
void bench_agent_end(int *pid);
int bench_agent_serve(const char *run);         /* main of the agent; returns the exit status */
/* Reports a failure to stderr and as an event. Returns code. */
int bench_error(const struct bench *b, int64_t step, int code, const struct sheaf_error *err);
#endif
