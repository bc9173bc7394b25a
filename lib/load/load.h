/* SPDX-License-Identifier: Apache-2.0 */
/* Filling a state from a step. load.c decides for every slice what it is filled from, before a byte
 * is touched; load_fill.c leads the rest: load_stream.c reads what only this rank wants, with
 * load_workers.c for what lies in memory already and load_prefault.c for memory that is new,
 * load_rounds.c what several do, load_digests.c compares whole tensors. load_slices.c does the rest
 * for a caller that takes one slice after the other (sheaf_load_begin).
 *
 * The room lib/load owns struct shf_load. It may include step, retain, memory and all that those
 * include, but never save. */
#ifndef SHF_LOAD_H
#define SHF_LOAD_H
#include "averages.h"
#include "block_pass.h"
#include "step.h"
#include "match.h"
#include "run_io.h"
#include "streaming_stores.h"
#include "count_tensors.h"

/* What a slice is filled from: the step, or zeros (SHEAF_LOAD_ZERO). SHF_KEEP: it is not filled,
 * and keeps what the caller has in it. */
enum shf_source { SHF_FROM_STEP, SHF_FROM_ZERO, SHF_KEEP };
struct shf_target {             /* one slice of the state */
	struct shf_slice slice;         /* the slice of the state, in units and type of the stored
	                                 * tensor */
	uint32_t tensor;                /* number in the layout; only if filled from the step */
	enum shf_source source;
};
/* A load, on one rank. Each worker thread has a copy of it, with a pass, lists and counters of its
 * own (load_workers.c). */
struct shf_load {
	struct sheaf_checkpoint *step;
	struct sheaf_state *state;
	uint64_t flags;
	enum shf_call_kind call;        /* SHF_CALL_LOAD, or SHF_CALL_LOAD_BEGIN: the caller gives a
	                                 * buffer for each slice later */
	/* Does what can fail on a single rank once it is decided what the slices are filled from:
	 * lists what this rank wants, allocates. NULL: nothing is filled. [local] */
	int (*prepare)(struct shf_load *load, struct sheaf_error *err);
	uint64_t made;                  /* number of the call that began the load, see
	                                 * shf_call_enter */
	struct sheaf_report report;     /* copied to the caller's report at the end */
	struct shf_target *targets;     /* owned; by slice of the state */
	struct shf_holds holds;         /* the boxes that this rank wants by the plan */
	struct shf_home_messages tells; /* owned; this rank's messages to the home ranks of the plan
	                                 * (match.h), made from `holds` */
	uint64_t told;                  /* size of the messages of all ranks to this one as a
	                                 * home */
	struct shf_work work;           /* this rank's part of the plan */
	bool apart;                     /* all ranks can read all of the step in the memory of this
	                                 * node: each reads for itself, and there are no rounds */
	struct shf_tensor_counts tally;         /* counts tensors for the report */
	uint64_t *asked, *asked_counts; /* owned; see load_asked.h */
	uint64_t room;                  /* bytes that the load's image on each rank may have; equal
	                                 * on all ranks */
	/* By tensor: the sum and the number of its bytes that this rank has read, in all threads.
	 * Behind them got_bytes has the words of the report, which are summed over the ranks in the
	 * same operation (shf_load_digests_check). Owned. */
	atomic_uint_fast64_t *got, *got_bytes;
	struct shf_image_sharing *sharing; /* borrowed; maps the images that other ranks of the node
	                                    * have made larger; NULL: no image had to grow */
	struct shf_pass pass;           /* over the bytes that were read */
	struct shf_nt_stores stores;       /* decides how the pass copies */
	struct shf_want *wants;         /* owned; boxes in the bytes of the current pass */
	size_t wants_cap;
	/* disk_bytes: read from files of the step, or from memory that holds them. node_bytes:
	 * copied from images of other ranks of the node. net_bytes: sent to other nodes. retries:
	 * how often a read that had failed was repeated. */
	uint64_t disk_bytes, node_bytes, net_bytes, retries;
	uint64_t disk_from;             /* bytes that the view had read from disk before this load
	                                 * began */
	bool emas_filled[SHF_EMAS_MAX]; /* some rank has filled a slice of these averages */
	int64_t read_ns, verify_ns;     /* ns spent waiting for reads; ns spent copying and
	                                 * checking */
};
#define SHF_LOAD_PIECE (UINT64_C(4) << 20)      /* bytes of a read; a multiple of the block */
/* Fills the state from the step, as sheaf_checkpoint_load in sheaf.h. The numbers in *report, which
 * may be NULL, are set on success only. [collective] */
int shf_step_load(struct sheaf_checkpoint *step, struct sheaf_state *state, uint64_t flags,
                  struct sheaf_report *report, struct sheaf_error *err);

/* The parts of a load, for load_slices.c. step, state, flags, call, prepare, and callbacks of the
 * report are set before the first one. */
/* Does all that comes before the first byte is read: decides for all slices, compares the ranks,
 * counts the try. rc: 0, or a failure of this rank before the call, which is then returned on all
 * ranks. shf_load_leave must follow a failure. [collective] */
int shf_load_enter(struct shf_load *load, struct sheaf_state *state, int rc,
                   struct sheaf_error *err);
/* Ends a load with rc, which is the same on all ranks, and returns the code of the load. After a
 * success the next save follows the step. [collective] */
int shf_load_leave(struct shf_load *load, struct sheaf_state *state, int rc,
                   struct sheaf_error *err);
/* Adds up over the ranks what was decided, in the report. [collective] */
int shf_load_report_decided(struct shf_load *load, struct sheaf_error *err);
/* Returns whether the step was opened in memory and is on disk, too, written by the same save. */
bool shf_load_has_twin(const struct sheaf_checkpoint *step);
/* Frees the members that the load owns. */
void shf_load_release(struct shf_load *load);
#endif
