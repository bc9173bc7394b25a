/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf-bench: what its files share. Every rank runs the same code on the same command line;
 * rank 0 alone speaks. */
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
	double step_memcpys;            /* 0: step_ms says how long a step is */
	int64_t step;                   /* SHEAF_LATEST: load the newest */
	int64_t steps, every, zero, to_zero, nodes, staging_bytes, file_bytes, io_threads;
	int64_t timeout_ms, keep_last, rounds, images, copy_threads, copy_rate;
	int64_t deadline_ms, copies;
	int64_t step_ms, warmup, compute_threads, memory_every;
	uint64_t seed;
	bool adam, lenient, convert, json, help, on_line, unverified, async, lazy, no_agent;
	bool metrics, copies_behind, commit_behind, in_place;
};
/* 0, or SHEAF_EINVAL with the sentence. The same on every rank, because argv is. */
int bench_opts_parse(struct bench_opts *o, int argc, char **argv, struct sheaf_error *err);
extern const char bench_usage[];

/* Ranks outside the library's calls: agreement with a deadline, so that a stopped rank does not
 * hang the others here where the library would have told them. */
struct bench_comm {
	MPI_Comm comm;
	int rank, ranks, timeout_ms;
	bool threads;                   /* MPI may be called by several at once */
};
/* Everybody gets the worst code and its sentence, or SHEAF_ELOST. A positive code (EVALUE) is
 * the worst of all. */
int bench_agree(const struct bench_comm *c, int code, struct sheaf_error *err);
int bench_barrier(const struct bench_comm *c, struct sheaf_error *err);
/* In place; op MPI_SUM, MPI_MAX or MPI_MIN. */
int bench_reduce(const struct bench_comm *c, uint64_t *x, int n, MPI_Op op,
                 struct sheaf_error *err);
/* Adds up over the ranks, in place, waiting busily. */
int bench_sum(const struct bench_comm *c, float *x, size_t n, struct sheaf_error *err);

/* Events: one JSON object a line, one write(2). */
struct bench_events {
	bool speaks, json;              /* rank 0; --json */
	int fd;                         /* --events; -1: none */
	const char *path;               /* of --events */
	int *failed;                    /* becomes 1 when something could not be written */
};
int bench_events_open(struct bench_events *e, const struct bench_opts *o, int rank,
                      struct sheaf_error *err);
void bench_events_close(struct bench_events *e);
void bench_event(const struct bench_events *e, json_t *event);          /* steals event */
/* A line for people, unless --json. */
void bench_say(const struct bench_events *e, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
int bench_exit_code(int code);

struct bench {
	const struct bench_opts *o;
	struct bench_comm comm;
	struct bench_events events;
	struct sheaf_group *group, *behind;     /* behind: of copies; or NULL */
	struct sheaf_group *commits;            /* of commits in the background; or NULL */
	struct sheaf_checkpoint *like;  /* NULL: none */
	struct wl_model model;
	struct wl_layout from, to;
	struct wl_held held, held_to;
	struct sheaf_state *state, *state_to;
};

/* What a rank used between start and stop. */
struct bench_meter {
	uint64_t user_ns, sys_ns, faults;
	uint64_t read_bytes, write_bytes;       /* from and to the disk, by the kernel */
	uint64_t rss, peak, grown;              /* resident at start, most, and peak - rss */
};
void bench_meter_start(struct bench_meter *m);
void bench_meter_stop(struct bench_meter *m);
/* All ranks: times and bytes are added, of memory the largest is taken. */
int bench_meter_share(const struct bench_comm *c, struct bench_meter *m, struct sheaf_error *err);
json_t *bench_meter_json(const struct bench_meter *m, int64_t round);
#define BENCH_LINE 48
/* With --on-line: event `ready`, then 1 when rank 0 has read a line, 0 at the end of its input,
 * or ELOST. Waits without a deadline. Without --on-line 1. line: how the line begins, on all
 * ranks; "" without one. */
int bench_on_line(const struct bench *b, char line[BENCH_LINE], struct sheaf_error *err);

/* How the command line says that a run is to be opened. */
struct bench_run_opts {
	struct sheaf_opts opts;         /* points to the others */
	struct sheaf_staging staging;
	struct sheaf_retention retention;
	struct sheaf_memory_tier tier;
	struct sheaf_notify notify;
};
void bench_run_opts_init(struct bench_run_opts *o, const struct bench *b, uint64_t flags);
/* Waits as long as anybody writes. */
int bench_commit(const struct bench *b, struct sheaf_save *save, struct sheaf_error *err);
/* 0, or the code that all ranks return; events and sentences are out. */
int bench_run(struct bench *b);
int bench_stall(struct bench *b);
/* The modes of a list with commas (NULL: all that can be), a bit each. */
int bench_stall_modes(const char *list, bool has_agent, unsigned *mask, struct sheaf_error *err);
/* An agent of our own on each node for run, which is made; *pid: what this rank has started, or 0.
 * All ranks. */
int bench_agent_start(const struct bench_comm *c, const char *run, int *pid,
                      struct sheaf_error *err);
void bench_agent_end(int *pid);
int bench_agent_serve(const char *run);         /* what is started: the exit status */
/* The sentence of a failure, to stderr and as an event; returns code. */
int bench_error(const struct bench *b, int64_t step, int code, const struct sheaf_error *err);
#endif
