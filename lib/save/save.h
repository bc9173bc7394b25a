/* SPDX-License-Identifier: Apache-2.0 */
/* A save, from begin to its end.
 *
 *   save.c          begins it: plan, image, stage
 *   save_rounds.c   copies memory into images inside begin
 *   save_copier.c   copies memory into images in the background (a lazy save)
 *   save_net.c      exchanges the bytes that must go to other nodes
 *   save_write.c    writes images to files
 *   save_commit.c   agrees, combines the checksums and publishes
 *   save_submit.c   commits it in a thread of the library, if the run has one
 *   save_end.c      ends it, committed or not
 *
 * save_where.c and save_status.c serve all of these. The room lib/save owns struct sheaf_save and
 * struct shf_plan. It may use lib/retain, lib/memory and all that those use, but neither lib/step
 * nor lib/load.
 *
 * Invariants. A page of the image is filled by ranks of its node within one round. Its owner reads
 * it only after the counter in the segment's control (struct shf_ctl) has reached 0.
 *
 * Each stored byte is checksummed as it is copied from memory, by the rank that copies it. The same
 * pass adds it to the digest of its tensor (copy.held) and to the sum of its block. Digests and
 * block sums are then combined separately, and must give the same sum for every file before the
 * step is published (I4). */
#ifndef SHF_SAVE_H
#define SHF_SAVE_H
#include <pthread.h>
#include <stdatomic.h>
#include "averages.h"
#include "copy_pace.h"
#include "match.h"
#include "run_io.h"
#include "save_blocked.h"
#include "save_record.h"
#include "save_publish.h"
#include "save_state.h"
#include "sheaf-stat.h"
#include "stage.h"
#include "streaming_stores.h"
#include "streams.h"

/* The order in which a save copies (save_order.c). A serve is a box of this rank's memory that
 * belongs to a segment which some rank writes (work.h). A lazy save copies it in pieces of at most
 * SHF_PIECE_BYTES bytes, begin as a single piece. */
struct shf_save_order_piece {   /* one piece of one serve */
	uint32_t slice;                 /* the slice of the state that has the box */
	uint32_t serve, piece;          /* index in work.serves; index in the serve */
	uint64_t image;                 /* offset of the serve in the image of the rank that writes
	                                 * it */
	size_t stream;                  /* offset of the serve in the streams of its round to all
	                                 * ranks, which are packed in the order of work.serves */
};
struct shf_save_order {              /* all pieces that this rank copies under a plan, grouped by
                                      * slice; and what its lazy saves have learned for the next one
                                      * (save_learn.h) */
	struct shf_save_order_piece *a;             /* owned */
	size_t *first;                  /* owned; slices_n + 1 items: the pieces of slice s are
	                                 * a[first[s]] up to a[first[s + 1]] */
	bool *saved;                    /* owned; by slice: the caller must ask at its gate, because
	                                 * some of it, or of its average, is saved */
	size_t slices_n, saved_n;       /* slices of the state; how many of these are `saved` */
	uint64_t bytes;                 /* total to copy: all pieces, and the segments in slots */
	size_t *slotted, *slotted_first; /* owned; segments in no image (unstaged.h), grouped by
	                                  * slice as `a` is by `first` */
	uint32_t *order;                /* owned; the slices in the order in which callers asked for
	                                 * them in the last save; NULL: no order was learned yet */
	struct shf_copy_pace seen;      /* how the last copy in a learned order went */
};
struct shf_plan {               /* who writes what, for one state and one run; the state caches
                                 * it */
	int refs;
	uint64_t run_id;                /* run->life.id of the run that it was made for */
	uint64_t version;               /* state->version when it was made; a change of the state
	                                 * makes the plan stale */
	struct shf_layout layout;
	struct shf_holds holds;
	struct shf_work work;
	uint64_t hash;                  /* of the whole plan; equal on all ranks */
	size_t manifest_bytes;          /* upper bound for the size of the manifest, without notes
	                                 * and attached files */
	int images;                     /* how many images opts.staging.bytes_max holds; at least 1;
	                                 * equal on all ranks */
	bool slotted;                   /* some rank has segments in no image (unstaged.h); equal on
	                                 * all ranks */
	struct shf_save_order turns;         /* filled by the first lazy save */
	struct shf_record_cache stock;         /* filled on rank 0 only */
	bool most_known;                /* `most` is valid; equal on all ranks */
	uint64_t most;                  /* longest stream between any two ranks, for a plan of one
	                                 * round; 0: no bytes are sent to other nodes */
};

/* What a caller gave by sheaf_save_attach, by sheaf_save_note and by sheaf_save_rank_bytes. The
 * strings and bytes are owned copies. */
struct shf_attached {
	char *name;
	uint8_t *bytes;
	size_t n;
};
struct shf_note {
	char *key, *value;
};
struct shf_rank_given {
	char *stream;
	uint8_t *bytes;
	size_t n;
	uint64_t crc;                   /* standard CRC of the bytes, as the caller gave them */
};
struct shf_block_sum {
	uint64_t block, part;           /* block: its number in the whole step; part: raw CRC of the
	                                 * bytes that this rank writes of it, shifted to the block's
	                                 * end */
};
struct shf_syncs {              /* C3: the fsyncs of the files that this rank wrote */
	struct shf_io_owner io;
	struct shf_io *ios;             /* owned; by file of the layout; NULL: not begun */
	atomic_int_fast64_t from_ns;    /* when they were submitted; 0: not yet */
	atomic_bool over;               /* all fsyncs of this rank succeeded, and its files are
	                                 * closed */
};
/* Identifies the save, and the step that it follows. */
struct shf_save_id {
	int64_t step;
	char session[33];               /* part of the name of its stage; a memory-only save gets it
	                                 * from save_memory.c. If a step is saved again after a
	                                 * rewind, the two saves have different sessions */
	uint64_t made;                  /* shf_call.number of its begin, which is equal on all
	                                 * ranks */
	uint64_t flags;                 /* of sheaf_save_opts */
	unsigned loads;                 /* run->lineage.loads when the save began */
	/* The step that this one follows (its parent in the manifest); -1: none. At begin this is
	 * the step that the run continues from. When an earlier save in flight is committed, that
	 * save becomes the parent. A load after begin does not change it. A save to disk knows its
	 * final parent once its stage is made. [rank 0] */
	int64_t parent;
	char parent_session[33];
	int64_t doubtful;               /* run->lineage.doubtful when the save began: if that step
	                                 * turns out to be on disk, it is the parent */
};
/* The copy from memory into images. */
struct shf_save_copy {
	uint32_t round;                 /* the round that was begun last */
	int image;                      /* index in run->image.all; -1: none yet, or no longer */
	int card;                       /* the image whose card makes this step readable from the
	                                 * memory of agents; -1: none */
	uint64_t hidden;                /* `whole` of the image's card before begin cleared it;
	                                 * restored if the ranks do not agree to begin */
	size_t open_seg;                /* writes of all segments of this round before this one are
	                                 * submitted; guarded by end.write_lock */
	struct shf_streams streams;     /* the bytes of the round that was begun last that go to and
	                                 * come from other nodes */
	size_t streams_done;            /* how many bytes of every stream have been exchanged */
	size_t streams_most;            /* longest stream between any two ranks; equal on all
	                                 * ranks */
	uint64_t *held;                 /* owned; by tensor: digest of what this rank copied; once
	                                 * sums are UNITED, of the whole tensor */
	uint64_t *headers;              /* owned; by file: raw CRC of the header bytes that this
	                                 * rank wrote, shifted to the header's end */
	struct shf_block_sum *blocks;   /* owned; sums of the blocks of submitted segments */
	size_t blocks_n;                /* items in `blocks`: those of the segments submitted so
	                                 * far; guarded by end.write_lock */
	struct shf_nt_stores stores;       /* measures whether stores past the caches are faster */
	struct shf_save_copier *lazy;          /* owned; NULL: the save is not lazy */
	struct shf_unstaged *slots;        /* owned; NULL: every segment of this rank has a place in
	                                 * the image */
	struct shf_reader reader;       /* lazy: in state->readers while the copy threads may read
	                                 * the slices */
	bool exchanged;                 /* no bytes of this save are left to exchange */
	struct shf_mf_ema emas[SHF_EMAS_MAX];   /* what the manifest says of the averages; set at
	                                         * begin */
	size_t emas_n;
	struct shf_ema_update fresh[SHF_EMAS_MAX]; /* by averages of the state: how this step
	                                            * updates them */
	struct shf_ema_window *due;     /* owned; by slice: units whose averages are not up to date;
	                                 * NULL: no averages are updated. A copy inside begin
	                                 * advances the window as it goes; a lazy save leaves it as
	                                 * it was at begin */
};
/* The writes from images to files. */
struct shf_save_disk {
	struct shf_io_owner io;
	struct shf_stage stage;
	int *fds;                       /* owned; by file of the layout: descriptor; -1: not open */
	int *directs;                   /* owned; by file: a second descriptor with O_DIRECT; 0:
	                                 * none */
	bool few_fds;                   /* no O_DIRECT descriptors, because the process ran out of
	                                 * descriptors */
	struct shf_io *ios;             /* owned; by segment: its write; op 0: not submitted */
	struct shf_io *sizes;           /* owned; by file of the layout: the request with which C0
	                                 * sets the file's size */
	struct shf_syncs syncs;
};
/* Attached files, notes and opaque bytes, as this rank's caller gave them. */
struct shf_save_given {
	struct shf_attached *attached;  /* owned */
	size_t attached_n;
	struct shf_note *notes;         /* owned */
	size_t notes_n, notes_bytes;    /* notes_bytes: of all keys and values */
	struct shf_rank_given *ranks;   /* owned; a stream each */
	size_t ranks_n;
	uint64_t ranks_bytes;           /* of all streams */
	size_t given_bytes;             /* how many bytes all of these take in the manifest */
};
/* Failure and end of the save. */
struct shf_save_end {
	bool listed;                    /* in the list run->saves */
	bool refused;                   /* a commit returned EAGAIN because too little time was
	                                 * left; later commits do not check the time */
	int rc;                         /* the first failure on this rank; later ones are ignored */
	struct sheaf_error err;         /* of rc */
	atomic_int failed;              /* sheaf_save_abort was called. Stored after `why` is set */
	char why[400];                  /* the reason that the caller gave */
	pthread_mutex_t lock;           /* guards rc, err and why; held while at.end is set to
	                                 * SHF_SEALED */
	pthread_mutex_t write_lock;     /* held while looking for segments to write. Guards
	                                 * copy.image, copy.open_seg and copy.blocks; held while
	                                 * at.disk is set to SHF_DISK_STAGED and while disk.ios are
	                                 * submitted */
};
/* Progress and times, for sheaf_save_get_stat, the ETA and metrics. Bytes are of this rank; times
 * are nanoseconds of its monotonic clock. */
struct shf_save_took {
	atomic_uint_fast64_t to_write, written, copied, sent, to_send;
	atomic_int_fast64_t write_from_ns, write_to_ns; /* when the first write was submitted, and
	                                                 * the last finished */
	atomic_int_fast64_t publish_from_ns;    /* when the publication began; 0: not yet */
	int64_t copy_from_ns;           /* when the copy threads of a lazy save started */
	atomic_int phase;               /* for sheaf_stat.phase; WRITTEN and PUBLISHING are derived
	                                 * in shf_save_stat */
	int64_t began;                  /* when its begin was entered */
	unsigned images_busy;           /* how many images the saves in flight had when this one
	                                 * began, its own included */
	uint64_t rounds_ns;             /* how long the copy inside begin took */
	atomic_uint_fast64_t copy_ns, over_ns;  /* from `began` to the end of the copy, and of the
	                                         * save; 0: not yet */
	struct shf_save_blocked stall;         /* where the caller was blocked by this save */
};
/* A save that the commit thread commits (save_submit.h). What has no other note is guarded by
 * turns.lock of the run. */
struct shf_save_behind {
	bool submitted;                 /* set by the caller's thread */
	bool over;                      /* rc, and err if it is negative, are the outcome */
	int rc;
	struct sheaf_error err;
	struct sheaf_save *next;        /* the next one in the queue */
	bool begun;                     /* a turn was about this save; of the commit thread */
	struct sheaf_save *next_left;   /* in the list of saves that their callers have freed; of
	                                 * the caller's thread */
};
struct sheaf_save {
	struct sheaf_run *run;          /* of these three members a reference is held */
	struct sheaf_state *state;
	struct shf_plan *plan;
	struct sheaf_save *next;        /* in the run's list */
	struct shf_save_id id;
	struct shf_save_state at;
	struct shf_save_copy copy;
	struct shf_save_disk disk;
	struct shf_save_given given;
	struct shf_save_publish publishing;
	struct shf_save_end end;
	struct shf_save_behind behind;
	struct shf_save_took took;
};

/* Returns the save whose member copy.reader this is. */
static inline struct sheaf_save *shf_save_of(struct shf_reader *reader)
{
	size_t at = offsetof(struct sheaf_save, copy.reader);

	return (struct sheaf_save *)(void *)((char *)reader - at);
}

/* Begins a save: what sheaf_save_begin does. On success *out is in the list of the run.
 * [collective] */
int shf_save_begin(struct sheaf_save **out, struct sheaf_run *run, int64_t step,
                   struct sheaf_state *state, const struct sheaf_save_opts *opts,
                   struct sheaf_error *err);
/* Does the same, unless the save needs the image of a memory-only save that the commit thread has
 * not finished, and its flags allow to wait. Then nothing has happened, it returns EAGAIN, and *of
 * is that save; else *of is NULL. [collective] */
int shf_save_begin_unless(struct sheaf_save **out, struct sheaf_run *run, int64_t step,
                          struct sheaf_state *state, const struct sheaf_save_opts *opts,
                          struct sheaf_save **of, struct sheaf_error *err);
#endif
