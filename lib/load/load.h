/* SPDX-License-Identifier: Apache-2.0 */
/* Filling a state from a step. load.c decides for every slice what it is filled from, before a byte
 * is touched; load_fill.c leads the rest: load_stream.c reads what this rank alone wants, with
 * load_workers.c for what lies in memory already and load_prefault.c for memory that is new,
 * load_rounds.c what several do, load_digests.c compares whole tensors.
 *
 * The room lib/load owns struct shf_load. It sees step, retain, memory and all that those see, and
 * never a save. */
#ifndef SHF_LOAD_H
#define SHF_LOAD_H
#include "averages.h"
#include "block_pass.h"
#include "step.h"
#include "match.h"
#include "run_io.h"
#include "store_way.h"
#include "count_tensors.h"

enum shf_source { SHF_FROM_STEP, SHF_FROM_ZERO, SHF_KEEP };
struct shf_target {             /* one slice of the state */
	struct shf_slice slice;         /* its memory, in the stored tensor's units and type */
	uint32_t tensor;
	enum shf_source source;
};
/* A load, on one rank. A worker thread has a copy, with a pass, lists and counters of its own. */
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
	uint64_t *asked, *asked_counts; /* owned; see load_asked.h */
	uint64_t room;                  /* of its image, at most; the same on all ranks */
	/* By tensor: digest and bytes of it that were read here, by whichever thread. got_bytes
	 * has a member more. */
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
/* Fills the state. [collective] */
int shf_step_load(struct sheaf_step *step, struct sheaf_state *state, uint32_t flags,
                  struct sheaf_report *report, struct sheaf_error *err);
#endif
