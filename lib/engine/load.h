/* SPDX-License-Identifier: Apache-2.0 */
/* Filling a state from a step. load.c decides for every slice what it is filled from, before a byte
 * is touched; load_run.c leads the rest: load_stream.c reads what this rank alone wants, with
 * load_workers.c for what lies in memory already and load_prefault.c for memory that is new,
 * load_rounds.c what several do, load_digests.c compares whole tensors. */
#ifndef SHF_LOAD_H
#define SHF_LOAD_H
#include "averages.h"
#include "block_pass.h"
#include "engine.h"
#include "match.h"
#include "run_io.h"
#include "store_way.h"
#include "tally.h"

enum shf_source { SHF_FROM_STEP, SHF_FROM_ZERO, SHF_KEEP };
struct shf_target {             /* one slice of the state */
	struct shf_slice slice;         /* its memory, in the stored tensor's units and type */
	uint32_t tensor;
	enum shf_source source;
};
struct shf_load {
	struct sheaf_step *step;
	const struct sheaf_state *state;
	uint32_t flags;
	struct sheaf_report report;     /* ours; the caller's gets a copy */
	struct shf_target *targets;     /* owned; by slice */
	struct shf_holds holds;
	struct shf_work work;
	bool apart;                     /* all of it lies in memory that all ranks see: no rounds */
	struct shf_tally tally;
	/* By tensor: digest and bytes of it that were read here, by whichever thread. */
	atomic_uint_fast64_t *got, *got_bytes;
	struct shf_pass pass;
	struct shf_stores stores;
	struct shf_want *wants;         /* owned; of the bytes that the pass is at */
	size_t wants_cap;
	uint64_t disk_bytes, node_bytes, net_bytes, retries;
	uint64_t disk_from;             /* what a view had read from the disk before */
	bool emas_filled[SHF_EMAS_MAX]; /* from the step, some of it, on some rank */
	int64_t read_ns, verify_ns;     /* waiting for reads; looking at what was read */
};
#define SHF_LOAD_PIECE (UINT64_C(4) << 20)      /* bytes of a read; whole blocks */
/* Refuses to fill one memory from tensors of different types: ELAYOUT, naming the two slices.
 * [local] */
int shf_load_check_aliased(const struct shf_load *load, struct sheaf_error *err);
/* Plan, read, check, scatter. [collective] */
int shf_fill(struct shf_load *load, struct sheaf_error *err);

/* One read. Tried again a few times; what then is wrong with it is told by finish. */
struct shf_read {
	struct shf_io_owner io;
	struct shf_io req;
	uint32_t file;
	uint64_t want;                  /* bytes */
	bool through;                   /* past the page cache, if that can be had */
};
int shf_read_start(struct shf_load *load, struct shf_read *r, uint32_t file, uint64_t lo,
                   uint64_t n, uint8_t *to, struct sheaf_error *err);
int shf_read_finish(struct shf_load *load, struct shf_read *r, struct sheaf_error *err);
/* The same at once, on this thread and through the page cache. */
int shf_read_here(struct shf_load *load, uint32_t file, uint64_t lo, uint64_t n, uint8_t *to,
                  struct sheaf_error *err);

/* load_stream.c: segments that this rank alone wants. What of the image it asks for; [local]. */
struct shf_flow;
int shf_flow_new(struct shf_flow **flow, struct shf_load *load, uint64_t room,
                   uint64_t *image_bytes, struct sheaf_error *err);
/* Will it wait for a disk? What is in memory, several threads take, and its faults. [local] */
bool shf_flow_waits(const struct shf_flow *flow);
int shf_flow_run(struct shf_flow *flow, struct sheaf_error *err); /* [collective] */
void shf_flow_free(struct shf_flow *flow);        /* waits for what is under way */

/* load_prefault.c. Starts a thread that makes the pages of the caller's memory before they are
 * filled. NULL: they are there already, or no thread can be had. [local] */
struct shf_ahead;
struct shf_ahead *shf_ahead_start(const struct shf_load *load);
void shf_ahead_end(struct shf_ahead *ahead);

/* load_workers.c: segments that lie in memory already, of the plan's by number; borrowed.
 * [local] */
struct shf_crew;
int shf_crew_new(struct shf_crew **crew, const struct shf_load *load, const size_t *segs, size_t n,
                 struct sheaf_error *err); /* *crew: also when it fails */
/* One segment, on this thread; false: there is none, or one has failed. */
bool shf_crew_take(struct shf_crew *crew);
uint64_t shf_crew_done(const struct shf_crew *crew); /* bytes */
/* Of all threads the failure of the first segment; then none is at work any more. */
int shf_crew_check(struct shf_crew *crew, struct sheaf_error *err);
int shf_crew_end(struct shf_crew *crew, struct shf_load *load, struct sheaf_error *err);
/* load_rounds.c: segments that others want too. [collective] */
int shf_shared_run(struct shf_load *load, struct sheaf_error *err);
/* load_digests.c: digests of all tensors that were read whole. [collective] */
int shf_prove(struct shf_load *load, struct sheaf_error *err);
#define SHF_FOREIGN_MSG "foreign: no sums exist"
/* read_slice.c: a slice by this process alone. unverified: read past damage. [local] */
int shf_direct_read(struct sheaf_step *step, const struct shf_lt_tensor *t,
                    const struct shf_slice *s, uint64_t *disk_bytes, struct sheaf_error *err);
#endif
