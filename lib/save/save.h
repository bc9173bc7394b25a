/* SPDX-License-Identifier: Apache-2.0 */
/* A save, from begin to its end. save.c begins it: plan, image, stage. save_rounds.c, or for a lazy
 * save save_copier.c, copies memory into images; save_net.c exchanges what must go to other nodes;
 * save_write.c writes images to files; save_commit.c agrees, sums up and publishes; save_end.c ends
 * the save. save_where.c and save_handle.c serve all of these.
 *
 * The room lib/save owns struct sheaf_save and the plan of a save. It sees retain, memory and all
 * that those see, and neither a step nor a load.
 *
 * What is always true: a page of the image is filled by the ranks of its node inside one round, and
 * read by its owner after the segment's counter has come to nothing. Every stored byte is looked at
 * once: where it is copied from memory it counts into `held`, its tensor's digest, and into the sum
 * of its block. The two are added up apart, over tensors and over blocks, and must say the same of
 * every file before anything is published (I4).
 */
#ifndef SHF_SAVE_H
#define SHF_SAVE_H
#include <pthread.h>
#include <stdatomic.h>
#include "averages.h"
#include "match.h"
#include "run_io.h"
#include "save_blocked.h"
#include "save_indexes.h"
#include "save_publish.h"
#include "save_state.h"
#include "stage.h"
#include "store_way.h"

/* save_copier.c: the order of the copy behind. */
struct shf_turn {               /* a piece of a serve */
	uint32_t serve, piece;
	uint64_t image;                 /* where the serve begins, in its rank's image */
	size_t stream;                  /* of the serve, in what goes to its rank */
};
struct shf_turns {              /* of a plan: all that this rank copies, slice by slice */
	struct shf_turn *a;             /* owned */
	size_t *first;                  /* owned; by slice, and one more */
	bool *saved;                    /* owned; by slice: something of it is */
	size_t slices_n, saved_n;
	uint64_t bytes;                 /* of all pieces, and of the segments in slots */
	size_t *slotted, *slotted_first; /* owned; segments in no image (unstaged.h), by slice */
};
struct shf_plan {               /* of one state on one run; cached in the state */
	int refs;
	uint64_t run_id;
	uint64_t version;               /* of the state */
	struct shf_layout layout;
	struct shf_holds holds;
	struct shf_work work;
	uint64_t hash;
	size_t manifest_bytes;          /* at most, without notes and attached files */
	int images;                     /* that have room in the staging; at least 1 */
	bool slotted;                   /* some rank has segments in no image */
	struct shf_turns turns;         /* once a lazy save wanted them */
	struct shf_stock stock;         /* rank 0's */
	bool most_known;
	uint64_t most;                  /* of its only round: longest stream anywhere, if known */
};

struct shf_net {                /* what travels in one round, both directions */
	uint8_t *out, *in;              /* owned; streams packed in rank order */
	size_t *out_bytes, *in_bytes;   /* owned; whole streams */
	size_t *out_at, *in_at;         /* owned; start of each stream */
	size_t done;                    /* bytes of every stream that have travelled */
	uint64_t longest;               /* stream of this rank */
	size_t most;                    /* longest stream anywhere; equal on all ranks */
	size_t out_total, in_total;
};
struct shf_attached {
	char *name;
	uint8_t *bytes;
	size_t n;
};
struct shf_note {
	char *key, *value;
};
struct shf_block_sum {
	uint64_t block, part;           /* global number; raw sum, shifted to the block's end */
};
struct shf_syncs {              /* C3: what this rank wrote, being made durable */
	struct shf_io_owner io;
	struct shf_io *ios;             /* owned, by file of the layout; NULL: not begun */
	atomic_int_fast64_t from_ns;    /* 0: not begun */
	atomic_bool over;               /* on all ranks */
};
/* Which save it is, and what it follows. */
struct shf_save_id {
	int64_t step;
	char session[33];               /* of this save, from the stage's name: two saves of one
	                                 * step, with a rewind between, are told apart by it */
	uint64_t made;                  /* number of the begin, see shf_call_enter */
	uint32_t flags;
	unsigned loads;                 /* of the run at its begin */
	/* The step that this one follows; -1: none. It is what the run went on from when this save
	 * began, and then the last save that was committed before this one; a load in between does
	 * not change it. On disk it is known once the stage is made. [rank 0] */
	int64_t parent;
	char parent_session[33];
	int64_t doubtful;               /* the run's when it began: if it is there, the parent */
};
/* From memory to images. */
struct shf_save_copy {
	uint32_t round;                 /* the last one begun */
	int image;                      /* whose number it has; -1: none, any more */
	int card;                       /* the image whose card says that agents have it; -1 */
	uint64_t hidden;                /* what the card of its image said before begin cleared it;
	                                 * put back if ranks do not agree to begin */
	size_t open_seg;                /* of this round: all before it are being written */
	struct shf_net net;             /* of the last round */
	uint64_t *held;                 /* owned; by tensor */
	uint64_t *headers;              /* owned; by file: raw sums, shifted to the header's end */
	struct shf_block_sum *blocks;   /* owned */
	size_t blocks_n;
	struct shf_stores stores;
	struct shf_lazy *lazy;          /* owned; NULL: begin has copied */
	struct shf_slots *slots;        /* owned; NULL: no segments of this rank are */
	struct shf_reader reader;       /* lazy: in the state's list while it copies */
	bool exchanged;                 /* nothing need travel any more */
	struct shf_mf_ema emas[SHF_EMAS_MAX];   /* as they were when it began */
	size_t emas_n;
	struct shf_fresh fresh[SHF_EMAS_MAX];   /* of the state's averages, what it makes */
	struct shf_due *due;            /* owned; by slice; NULL: no averages are. Where begin
	                                 * copies, what is left; behind, all, as it began */
};
/* From images to files. */
struct shf_save_disk {
	struct shf_io_owner io;
	struct shf_stage stage;
	int *fds;                       /* owned; by file of the layout; -1 */
	int *directs;                   /* owned; the same past the page cache; 0 */
	bool few_fds;                   /* and none of these, as descriptors ran out */
	struct shf_io *ios;             /* owned; by segment */
	struct shf_io *sizes;           /* owned; by file of the layout: C0 makes room */
	struct shf_syncs syncs;
};
/* What its callers attached. */
struct shf_save_given {
	struct shf_attached *attached;  /* owned */
	size_t attached_n;
	struct shf_note *notes;         /* owned */
	size_t notes_n, notes_bytes;
	size_t given_bytes;             /* that notes and attached files take in the manifest */
};
/* How it ends. */
struct shf_save_end {
	bool listed;                    /* it is in the run's list */
	bool refused;                   /* a commit had too little time left to publish it: the
	                                 * next one does not ask */
	int rc;                         /* first local failure; sticks */
	struct sheaf_error err;
	atomic_int failed;              /* sheaf_save_fail was called; why was set before it
	                                 * (release) */
	char why[400];
	pthread_mutex_t lock;           /* guards rc, err and why */
	pthread_mutex_t looking;        /* guards open_seg, blocks and what is not submitted */
};
/* How far it is, and how long that took. */
struct shf_save_took {
	atomic_uint_fast64_t to_write, written, copied, sent, to_send;
	atomic_int_fast64_t write_from_ns, write_to_ns; /* first submitted; last one that is done */
	atomic_int_fast64_t publish_from_ns;    /* 0: not begun */
	int64_t copy_from_ns;           /* lazy */
	atomic_uint phase;
	int64_t began;                  /* its begin was entered */
	unsigned images_busy;           /* when it had begun, its own too */
	uint64_t rounds_ns;             /* of begin: what begin copied itself took */
	atomic_uint_fast64_t copy_ns, over_ns;  /* after `began`; 0: not yet */
	struct shf_stall stall;
};
struct sheaf_save {
	struct sheaf_run *run;          /* counted */
	struct sheaf_state *state;      /* counted */
	struct shf_plan *plan;          /* counted */
	struct sheaf_save *next;        /* in the run's list */
	struct shf_save_id id;
	struct shf_save_state at;
	struct shf_save_copy copy;
	struct shf_save_disk disk;
	struct shf_save_given given;
	struct shf_publishing publishing;
	struct shf_save_end end;
	struct shf_save_took took;
};

static inline struct sheaf_save *shf_save_of(struct shf_reader *reader)
{
	size_t at = offsetof(struct sheaf_save, copy.reader);

	return (struct sheaf_save *)(void *)((char *)reader - at);
}

int shf_save_begin(struct sheaf_save **out, struct sheaf_run *run, int64_t step,
                   struct sheaf_state *state, const struct sheaf_save_opts *opts,
                   struct sheaf_error *err);
#endif
