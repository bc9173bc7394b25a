/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf.h - training state on disk: whole tensors, any layout, never torn.
 *
 * A run is a directory; a step is one committed, immutable checkpoint in it; a
 * state lists what this rank holds. The same state saves and loads.
 *
 * Ranks      [collective]: every rank of the group calls it, in the same order,
 *            even after a local error and even with a NULL state; all return the
 *            same code, or SHEAF_ELOST where a rank died or missed the deadline
 *            (then only _free and _close remain). If ranks are in different calls, or
 *            in the same call on different handles, all of them get EINVAL, which names
 *            two, and nothing happened. [local] calls never communicate: their
 *            failure sticks to the handle and the next collective call on it returns
 *            it everywhere, unless the call says otherwise.
 * Threads    One call at a time for a run and all that was opened, begun or loaded
 *            through it, and one at a time for a state; other runs, and calls marked
 *            [any thread], do not count. Two steps of one run are not loaded at once.
 *            Callbacks run inside the caller's calls. sheaf's own threads block
 *            all signals and never talk to the group; but see opts.commit_group.
 * Callbacks  A callback must return. An exception of C++, a longjmp or a panic of another
 *            language must not leave it, because the library would keep its locks and the
 *            other ranks would wait. Catch it inside the callback and, if the callback has
 *            a result, return non-zero.
 * Results    0, or a negative enum sheaf_code. Every function that can fail takes a struct
 *            sheaf_error as its last parameter, which may be NULL, and fills it with the
 *            message. Outputs are set on success only, the memory of a load excepted.
 * Ownership  You _close or _free, once, what you _open, _new or _begin, in any
 *            order. NULL is fine. Names and structs are copied, data is borrowed.
 *            In a forked child _free and _close release only the child's copies of
 *            memory and descriptors, and the parent is not affected. The parent's
 *            _close gives up its locks even if a child calls neither. Of a parent
 *            that was killed, a step that it had open is not pruned until the
 *            children that it forked meanwhile have exited.
 * Time       timeout_ms: how long a call waits at most, in milliseconds. 0: it does not wait, and
 *            says how things stand. Negative: sheaf_opts.timeout_ms of the run. A call whose time
 *            is up returns EAGAIN, nothing is lost, and it may be called again.
 * Structs    `size` is sizeof of the struct as you were compiled; zero in a field
 *            is its default; a non-zero tail that this sheaf does not know is EINVAL.
 * Flags      Each has a bit of its own, whichever call takes it, so a flag that was
 *            meant for another call is EINVAL, and the message names it.
 */
#ifndef SHEAF_H
#define SHEAF_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)    /* what is declared here is all that libsheaf.so exports */
#endif

struct sheaf_group;                     /* the ranks that act together */
struct sheaf_run;                       /* an open run directory */
struct sheaf_checkpoint;                /* an open committed step; pruning leaves it alone */
struct sheaf_state;                     /* the slices this rank holds */
struct sheaf_save;                      /* a step being made */
struct sheaf_load;                      /* a load that takes one slice after the other */
struct sheaf_report;                    /* what a load or a verify found, see below */

enum sheaf_code {                       /* stable: add, never renumber */
	SHEAF_OK = 0,
	SHEAF_EINVAL = -1,              /* the call was wrong; nothing happened */
	SHEAF_ENOMEM = -2,
	SHEAF_EIO = -3,                 /* err->sys holds the errno; a save in progress is gone */
	SHEAF_ENOENT = -4,              /* no such run, step, file; never "no such tensor" */
	SHEAF_EEXIST = -5,              /* that step exists; msg says what makes room */
	SHEAF_EBUSY = -6,               /* another process writes here, or serves here */
	SHEAF_EAGAIN = -7,              /* not yet */
	SHEAF_ELAYOUT = -8,             /* a gap, or slices that do not match what is stored */
	SHEAF_ECORRUPT = -9,            /* bytes do not match their checksum or digest */
	SHEAF_EFORMAT = -10,            /* not a checkpoint, or written by a newer sheaf */
	SHEAF_EINDOUBT = -11,           /* published, perhaps not durable; save again later */
	SHEAF_EBUG = -12,               /* sheaf broke its own invariant */
	SHEAF_ELOST = -13,              /* a rank or the lock was lost */
	SHEAF_EDIVERGED = -14,          /* replicas that should be equal are not, or a tensor
	                                 * changed before its gate */
	SHEAF_EFAILED = -15,            /* given up: by sheaf_save_abort, whose reason is in msg, by
	                                 * opts.progress, or because of what cannot be stored */
	SHEAF_EEND = -16                /* the list has no item of that number: the last one came
	                                 * before it */
};
struct sheaf_error {                    /* yours, may be NULL; needs no initialisation */
	int code, sys, rank;            /* what, errno or 0, who was first (-1: not known) */
	char msg[500];                  /* one line: what, where, why */
};
const char *sheaf_strerror(int code);   /* a phrase for people; static, never NULL */
const char *sheaf_code_name(int code);  /* "EINVAL" for SHEAF_EINVAL, "OK" for 0; NULL: no code */
/* The version of this header: 10000 * major + 100 * minor + patch. sheaf_version returns that of
 * the library, which may be newer than the header a program was compiled with. */
#define SHEAF_VERSION 100
#define SHEAF_VERSION_STRING "0.1.0"
/* Returns the version of the library, counted as SHEAF_VERSION is. [any thread] */
int sheaf_version(void);

enum sheaf_dtype {                      /* stable: add, never renumber */
	SHEAF_BOOL = 1, SHEAF_U8, SHEAF_I8, SHEAF_U16, SHEAF_I16, SHEAF_U32, SHEAF_I32,
	SHEAF_U64, SHEAF_I64, SHEAF_F16, SHEAF_BF16, SHEAF_F32, SHEAF_F64, SHEAF_C64,
	SHEAF_F8_E4M3, SHEAF_F8_E5M2, SHEAF_F8_E8M0, SHEAF_F8_E4M3FNUZ, SHEAF_F8_E5M2FNUZ,
	SHEAF_F4, SHEAF_F6_E2M3, SHEAF_F6_E3M2,
	/* Of slices alone: two F64, real and imaginary part. Stored as F64 with a last dimension of
	 * 2, because safetensors has no such type; so at most 7 dimensions, and no conversion. */
	SHEAF_C128
};
const char *sheaf_dtype_name(int dtype);        /* as safetensors spells it; NULL: none such */
int sheaf_dtype_bits(int dtype);                /* of one item; 0: none such */
int sheaf_dtype_from_name(const char *name);    /* 0: none such */

#define SHEAF_DIMS_MAX 8
/* A box of a global row-major tensor, and where it lies in this rank's memory:
 * its item i is item  origin + i[0] * stride[0] + i[1] * stride[1] + ...  of a
 * buffer. Without SHEAF_SLICE_FLAT data is item 0 of that buffer. With it this rank has
 * only the buffer's items [flat_start, flat_start + flat_count), perhaps none, and
 * data is the first of them. This says dense and transposed memory (strides),
 * fused q-k-v (one slice per stored tensor), ZeRO and FSDP ranges (flat). Strides
 * are not negative. In F4 and F6 cuts fall between bytes and memory is dense. An
 * empty slice may have NULL data; it never means "all". */
struct sheaf_slice {
	uint32_t size;
	int32_t memory;                 /* 0: host memory. Other values are reserved: EINVAL */
	uint64_t flags;                 /* SHEAF_SLICE_... */
	const char *family, *name;      /* NULL family: "model" */
	const char *tied_to;            /* NULL, or the name whose bytes this one shares: stored
	                                 * once, under that name, and loaded from it */
	int32_t dtype, data_dtype;      /* stored; in memory (0: the same). Loads convert */
	int32_t ndim, reserved;
	int64_t shape[SHEAF_DIMS_MAX];  /* the whole tensor; 0 dimensions: a scalar */
	int64_t start[SHEAF_DIMS_MAX];
	int64_t count[SHEAF_DIMS_MAX];
	int64_t stride[SHEAF_DIMS_MAX]; /* in items; all 0: dense, row-major, but see STRIDED */
	int64_t origin, flat_start, flat_count;
	void *data;
};
#define SHEAF_SLICE_FLAT      0x1ULL
#define SHEAF_SLICE_OPTIONAL  0x2ULL /* may be absent when loading; data is then kept */
/* Saving: is not staged, as optimizer state that was put into host memory, or into a file that is
 * mapped, and of which there is no room for a second copy. With SHEAF_SAVE_LAZY
 * sheaf_save_wait_copied returns for it as fast as the disk takes it; without, begin does. What
 * this rank writes of it goes through 48 MiB at most for each save. Stretches of 16 MiB of a file,
 * or shorter ones, in which there are bytes of other ranks, or of slices without this flag, are
 * staged as all else; so are averages of such slices, and with SHEAF_RUN_REPLICAS what is
 * replicated. Such a save is in no memory tier; its begin makes the files, after the publish of the
 * save before it is over. */
#define SHEAF_SLICE_IN_PLACE  0x4ULL
/* Takes the strides literally. Without the flag strides that are all 0 mean dense memory. Set it if
 * the strides come from another program's tensors: those of a scalar that was expanded to 5 items
 * are all 0, and without the flag sheaf would read 5 items of memory. With it such a slice is
 * EINVAL, as is every slice that has several items in one place. */
#define SHEAF_SLICE_STRIDED   0x8ULL
/* Saves the slice, but does not load it: data is kept, and the report says ignored. Meant for
 * memory that is saved twice, once as it is and once in another type: F32 master weights that are
 * also the BF16 model. Without the flag a load would fill that memory twice, which is ELAYOUT.
 * sheaf_checkpoint_read fills the slice all the same, and sheaf_plan counts it as read. */
#define SHEAF_SLICE_SAVE_ONLY 0x10ULL
/* Narrow slice to piece i of n along dim: pieces of ceil(count / n), the last ones
 * short or empty, as torch.chunk cuts. Once per mesh axis, outermost first; strides
 * that are not all 0 keep their meaning (origin moves along). [local] */
int sheaf_slice_shard(struct sheaf_slice *slice, int dim, int64_t i, int64_t n,
                      struct sheaf_error *err);

/* Groups. NULL is this process alone; sheaf-mpi.h makes one of a communicator. It outlives
 * its runs. Calls come from the thread that called sheaf, in one order on all ranks, and
 * fail (non-zero) rather than wait longer than timeout_ms; one failure ends the group.
 * allgather: bytes from each, all holds ranks * bytes. alltoallv: out_bytes[r] to rank r
 * and in_bytes[r] from it, both packed in rank order, both sides agree. allreduce: in place. */
enum sheaf_op { SHEAF_SUM = 0, SHEAF_MAX = 1, SHEAF_XOR = 2 };
struct sheaf_group_ops {
	uint32_t size;
	int32_t rank, ranks;
	int32_t node;                   /* 0: nodes are found by proof; n > 0: ranks of other n
	                                 * never share memory with this one */
	int (*allgather)(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms);
	int (*alltoallv)(void *arg, const void *out, const size_t *out_bytes, void *in,
	                 const size_t *in_bytes, int timeout_ms);
	int (*allreduce)(void *arg, uint64_t *x, size_t n, int op, int timeout_ms); /* sheaf_op */
	void (*free)(void *arg);        /* by sheaf_group_free; may be NULL */
	void *arg;
};
int  sheaf_group_new(struct sheaf_group **group, const struct sheaf_group_ops *ops,
                     struct sheaf_error *err);
void sheaf_group_free(struct sheaf_group *group);

enum sheaf_phase {
	SHEAF_PHASE_COPYING = 0,
	SHEAF_PHASE_WRITING = 1,
	SHEAF_PHASE_WRITTEN = 2,        /* all that this rank writes is written and synced */
	SHEAF_PHASE_FINISHED = 3,       /* committed, failed or given up */
	SHEAF_PHASE_READING = 4,        /* of a load */
	SHEAF_PHASE_VERIFYING = 5,
	SHEAF_PHASE_PUBLISHING = 6      /* a thread of rank 0 publishes the checkpoint */
};
const char *sheaf_phase_name(int32_t phase);    /* "copying"; NULL: none such */
struct sheaf_stat {
	uint32_t size;
	int32_t phase;                  /* enum sheaf_phase */
	uint64_t held, copied, to_write, written, sent; /* bytes, this rank; of a load or a verify:
	                                                 * held is to be read here, copied has been
	                                                 * read */
	uint64_t begin_ns, copied_ns, exchange_ns, wait_ns, commit_ns;  /* caller blocked in;
	                                 * copied: of a plain save a part of begin */
	uint64_t image_ns;              /* of begin: until an image was free */
	uint32_t images_busy;           /* that the run's saves in flight have */
	uint32_t at_once;               /* 1: a lazy save that was copied inside begin */
	uint64_t gates, gates_waited;   /* of a lazy save: calls of sheaf_save_wait_copied; of them,
	                                 * those with time to wait whose slice was not copied */
	uint64_t gates_ns, gate_ns_max; /* callers were in these calls; and in the longest */
	uint64_t copy_ns, over_ns;      /* after begin was entered, all was copied here: bytes a
	                                 * second are copied / copy_ns; it was over. 0: not yet */
};
enum sheaf_log_level {
	SHEAF_LOG_ERROR = 0, SHEAF_LOG_WARNING = 1,
	SHEAF_LOG_INFO = 2,             /* what is done to checkpoints */
	SHEAF_LOG_DEBUG = 3
};
struct sheaf_opts {
	uint32_t size;
	int32_t timeout_ms;             /* for a rank to appear in a collective; 0: 600000 */
	uint64_t flags;                 /* SHEAF_RUN_... */
	/* This rank's host copies of saves, half of it for images: as many as fit, or parts of
	 * one; 0: what images_max saves need. A load takes 40 MiB at most of what they leave,
	 * 2 MiB at least, and frees them when it returns. */
	uint64_t staging_bytes_max;
	uint64_t file_bytes_max;        /* 0: 5e9; a larger tensor gets a file of its own */
	/* io_threads: of this rank, for the disk where there is no ring, and, as far as there are
	 * processors, for loading what lies in memory or in the page cache; more than 1: one makes
	 * the pages of memory that a load from disk is the first to write */
	int32_t io_threads, images_max; /* 0: 4; 0: 1, of lazy saves 2, at most 8, equal on all
	                                 * ranks: saves that lie in memory until they are written */
	/* For sheaf_run_prune, and for commits, which do not wait: after one, a thread of each node
	 * reads its share of the step again, at low priority and past the page cache, and older
	 * ones go in the first later commit or close that finds it sound. 0: keep all */
	int32_t keep_last, keep_every;  /* keep_every and keep_best need keep_last: EINVAL */
	int32_t grace_s;                /* before this run's prunes delete what went; 0: 600; -1:
	                                 * none. A job that opens the run: always after 600 s */
	/* 0: failed resumes condemn no checkpoint. N: a checkpoint is condemned if N sessions have
	 * loaded it and none of them came further, and if there is an older one. SHEAF_LATEST
	 * passes over a condemned checkpoint, and this sheaf_run_open marks it bad. Loads from
	 * memory and from disk count together. A session comes further when its next save to disk
	 * has made its files, when its next save to memory is committed, or when it closes the run.
	 * The value of rank 0 is used */
	int32_t resume_attempts_max;
	const char *const *ignore;      /* NULL-ended fnmatch(3) patterns on "family/name": neither
	                                 * saved nor loaded, but reported */
	void (*log)(void *arg, int level, const char *line);    /* level: enum sheaf_log_level */
	/* Called again and again by calls that wait: commits, loads, verifies and
	 * sheaf_save_result. Non-zero ends the call with EFAILED on all ranks, and gives up the
	 * save. Must not call sheaf */
	int  (*progress)(void *arg, const struct sheaf_stat *stat);
	void *arg;
	/* Beside keep_last and keep_every stay the keep_best steps whose note best_note, a decimal
	 * number of up to 40 significant digits, is smallest; best_largest not 0: largest. Of equal
	 * ones the newer is better; a step without such a note never is. 0: none. Equal on all
	 * ranks */
	int32_t keep_best, best_largest;
	const char *best_note;          /* a key of sheaf_save_note; with keep_best only */
	/* Of this rank, for each lazy save at most, and never more than there are processors; 0: 4,
	 * and this rank's share of the node's processors less one. How many there are follows from
	 * the saves before: the first has 1, one more comes after a save whose copy was waited for
	 * at a gate, one goes after a save that fewer would have copied before the first gate */
	int32_t copy_threads;
	int32_t copies;                 /* of a step in memory, see agent; 0: 1 */
	/* NULL: no memory tier. Else the socket of this node's `sheaf agent`, or "auto": where the
	 * agent of this run listens unless told otherwise. If no agent answers, or that of another
	 * run directory does, or the agent ends, the run goes on without one, and level 1 of log
	 * says so. NULL on all ranks or on none.
	 * With copies 2 a rank of the next node keeps what this one has, too, in two more images'
	 * memory, so that a step outlives any one node; a commit sends it over the group before it
	 * returns, or see copies_group. Equal on all ranks; of one node, and after a failure,
	 * level 1 of log says that there are no copies */
	const char *agent;
	/* On rank 0, inside its sheaf_save_commit, which then returns 0: the step survives power
	 * loss, its done files are written, and the other ranks go on. path: <dir of the run>/
	 * checkpoint-<step> (see folder), alive during the call. Not called for a step that
	 * failed, is in doubt or in memory alone. Forbidden inside: every [collective] call on
	 * this run, its steps and its saves, sheaf_save_free of this save, to leave by longjmp or
	 * an exception. What it takes, the others wait in the next collective call: less than
	 * timeout_ms */
	void (*committed)(void *arg, int64_t step, const char *path);
	/* NULL: nothing. A folder of rank 0 (its parent exists), where each commit that returns 0
	 * leaves, before that: <family>.<step>.done for each family of the step, and when those are
	 * durable whole-step.<step>.done, as doc/format.md has them; and sheaf_run_open to write
	 * those of the newest step that lacks them. What fails there is a warning. Nothing is ever
	 * removed from it: the session tells a step from one saved again. A relative path is looked
	 * up at each commit, so a program that changes its directory gives an absolute one */
	const char *signal_dir;
	/* Of the threads that copy lazy saves on this rank: which processors they may run on, as
	 * "0-3,8" (NULL: any; what the kernel refuses is a warning), and bytes a second that those
	 * of one save copy at most, together (0: no bound). Whoever waits at a gate or in commit
	 * copies what is left without a bound */
	const char *copy_cpus;
	uint64_t copy_rate_max;
	/* NULL, or a second group of the same ranks, on all of them: then copies go behind the
	 * training, in a thread of each rank, whose calls on this group meet those of the caller on
	 * the other at any time; sheaf_run_close waits for it. It outlives the run. A step that is
	 * committed while another is on its way is not sent. images_max is then 4, or 3: with 3 a
	 * copy that takes longer than a step costs the one before it; where the staging has room
	 * for 2, copies are sent inside commits */
	struct sheaf_group *copies_group;
	/* How the folders of checkpoints are named: NULL for "checkpoint-{n}", or for what the run
	 * has; else a prefix of up to 40 of [A-Za-z0-9._-], without a dot at its start or a digit
	 * at its end, and then "{n}", as in "step-{n}". It is stored when the run is made and never
	 * changes: opening the run with another one is EINVAL, which names both. Equal on all
	 * ranks */
	const char *folder;
	/* NULL, or one more group of the same ranks, on all of them: then a thread of sheaf on each
	 * rank commits the saves that are given to sheaf_save_submit. It uses this group at any
	 * time, so nothing else may use it. It outlives the run. log and committed are then called
	 * by that thread, too, and must not call sheaf: log by one thread at a time, committed also
	 * while another thread is in a call of sheaf */
	struct sheaf_group *commit_group;
};
/* Makes the run directory if there is none. */
#define SHEAF_RUN_CREATE     0x10000ULL
/* Takes no lock, writes nothing and cleans nothing up. */
#define SHEAF_RUN_READONLY   0x20000ULL
/* Compares the replicas of different ranks at each save; EDIVERGED names a tensor and a rank where
 * they differ. Slices of one rank that have the same name, or overlap, are not compared. */
#define SHEAF_RUN_REPLICAS   0x40000ULL
/* Reads and writes through the page cache alone, never with O_DIRECT. */
#define SHEAF_RUN_BUFFERED   0x80000ULL
/* Loads and reads without checking: what lies in damaged blocks is loaded as it is. For getting
 * values out of a damaged checkpoint, not for training. */
#define SHEAF_RUN_UNVERIFIED 0x100000ULL
/* Rank 0 adds a line of JSON to .sheaf/metrics.jsonl, which is at most twice 1 MiB, for each save
 * that is over; `sheaf stats` reads it. Costs one more agreement a commit. What goes wrong with it
 * is logged and fails no save. */
#define SHEAF_RUN_METRICS    0x200000ULL

/* Runs. Opening to write takes the lock (waiting for it 30 s or half of timeout_ms, whichever
 * is less), proves that all ranks see one file system, and discards what dead jobs left in
 * the stage. ENOENT: no such directory and no SHEAF_RUN_CREATE. [collective] */
int  sheaf_run_open(struct sheaf_run **run, const char *dir, struct sheaf_group *group,
                    const struct sheaf_opts *opts, struct sheaf_error *err);
/* Waits until the saves that were submitted on all ranks are committed. Abandons all others (one
 * that is being published is, whole, if the disk lets it; no callback or done file tells of it);
 * the lock goes with the last handle. [collective] */
void sheaf_run_close(struct sheaf_run *run);
/* Committed steps, ascending; returns how many there are, stores at most n. [local] */
int  sheaf_run_steps(struct sheaf_run *run, int64_t *steps, size_t n, struct sheaf_error *err);
struct sheaf_run_stat {                 /* this rank, all saves since the run was opened */
	uint32_t size, images_busy;
	uint64_t begun;                 /* calls of begin: committed + dropped (EAGAIN from begin) +
	                                 * failed + those that are not over */
	uint64_t committed, dropped, failed;
	uint64_t bytes;                 /* of the tensors of the committed ones, all ranks */
	uint64_t gates, gates_waited, gate_ns_max;      /* as in sheaf_stat */
	uint64_t begin_ns, image_ns, gates_ns, exchange_ns, wait_ns, commit_ns; /* blocked in, also
	                                 * of saves that came to nothing; image: a part of begin */
};
/* [local] [any thread] */
int  sheaf_run_get_stat(struct sheaf_run *run, struct sheaf_run_stat *stat,
                        struct sheaf_error *err);
/* States. add returns the slice's number, 0, 1, ...; NULL state gives ENOMEM, so only
 * the collective call that follows need be checked. One name may be added many times
 * (pieces, replicas); overlapping pieces of one rank must be the same bytes. After the
 * first begin the list is fixed, but move gives a slice new memory. move is EINVAL while the gate
 * of the slice in a lazy save is not open. Move it again then: until that succeeds no save or load
 * of the state begins. A run may save different states at different steps. free may be called
 * during a save; the caller keeps memory that a lazy save has not copied. [local] */
struct sheaf_state *sheaf_state_new(void);
int  sheaf_state_add(struct sheaf_state *state, const struct sheaf_slice *slice,
                     struct sheaf_error *err);
int  sheaf_state_move(struct sheaf_state *state, int slice, void *data, struct sheaf_error *err);
/* Gives every slice that sheaf_state_add has added new memory, as sheaf_state_move does one by one:
 * data[i] is that of slice i. n: of data; as many as there are slices up to the last that was
 * added, averages included, whose entries are not read. Nothing is moved if one of them cannot be.
 * [local] */
int  sheaf_state_move_all(struct sheaf_state *state, void *const *data, size_t n,
                          struct sheaf_error *err);
/* Makes the next collective call with this state fail on all ranks with EFAILED and this reason:
 * for a rank that cannot say what it holds, while the others already wait in sheaf_save_begin or a
 * load. The state cannot be used after that. [local] */
int  sheaf_state_fail(struct sheaf_state *state, const char *why, struct sheaf_error *err);
/* This rank's opaque bytes (an RNG stream and the like): U8 tensor <stream>/<rank> of family
 * "ranks". `ranks` of the group that saves. rule: stored with the step; it says what a load on
 * another number of ranks does: NULL or "strict" ELAYOUT, "drop" keeps data as it is, "modulo"
 * takes rank r mod R. opts.ignore loads the rest without the stream. */
int  sheaf_state_rank_bytes(struct sheaf_state *state, const char *stream, const char *rule,
                            int32_t rank, int32_t ranks, void *data, size_t bytes,
                            struct sheaf_error *err);
/* Exponential moving averages of a family's slices, added before this call, in fp32: of `family`,
 * or NULL: master_weights, and what of model is stored in F32 and has no master. They are slices
 * of family `name`, that are saved and loaded with the others; their memory is the state's (4
 * bytes an item; of memory with strides, 4 bytes for each item from the first to the last, held or
 * not), and it has as many more numbers of slices. Every save brings them up to
 * date with the weights that it copies: inside begin, or with SHEAF_SAVE_LAZY behind it, those of a
 * slice before sheaf_save_wait_copied returns for it:
 *   e = w at the first,  e = fma(c, e, d * w) at each step that is a multiple of interval and
 * whose loss is below loss_max; c = (float)coef, d = (float)(1 - coef), both products rounded
 * once: the same bits in every layout. With warmup the n-th update after the first takes the
 * smaller of coef and (1 + n) / (warmup + n). No update is left out because no image was free or
 * the save failed, and none is made twice for one step: a begin that all ranks agreed on and that
 * gives no save makes them itself, and what a lazy save that failed has left is made by who asks
 * for its slices, by the next begin or sheaf_state_average, and by its commit or free. After a
 * load of a step that has the averages the count of updates goes on, and so do those averages
 * that were filled; a save of that step again, to the same run, makes no update. The others
 * become the weights at the next save: those that SHEAF_LOAD_LENIENT kept, and those of a weight
 * that is SHEAF_SLICE_OPTIONAL and absent. After a load that fills none, all begin anew. Equal on
 * all ranks. A rank may have none of the slices, but if no rank has any, begin, sheaf_state_average
 * and load are EINVAL. [local] */
struct sheaf_ema {
	uint32_t size, reserved;
	const char *name;               /* NULL: "ema"; a family that no slice has */
	double coef, loss_max;          /* 0 <= coef < 1; loss_max 0: any */
	int64_t interval, warmup;       /* 0: every step; 0: none */
};
int  sheaf_state_ema(struct sheaf_state *state, const char *family, const struct sheaf_ema *ema,
                     struct sheaf_error *err);
/* Updates the averages as a save of the step to that run would, and saves nothing. Call it at
 * steps that are not saved, so that the averages miss none. The update is made on the calling
 * thread, after waiting for averages that a lazy save still copies; the weights may change when
 * it returns. If this and a save, in any order, are called for the same step, one update is made;
 * step numbers must not go down without a load or a rewind. `run` is open for writing; step and
 * loss are equal on all ranks. sheaf_run_get_stat counts the time as begin_ns.
 * EINVAL: the run, the step or the state cannot be saved now, or ranks disagree; ENOMEM: no
 * memory for the averages. Neither has updated anything. ELOST: some ranks may have updated
 * theirs; call it again for that step, over a new group, before going on. [collective] */
int  sheaf_state_average(struct sheaf_state *state, struct sheaf_run *run, int64_t step,
                         double loss, struct sheaf_error *err);
void sheaf_state_free(struct sheaf_state *state);

/* Saving. begin copies and returns: the tensors may change. With SHEAF_SAVE_LAZY nothing is copied
 * then: threads of sheaf copy the slices, in the order in which they were asked for in the save
 * before (the first one: in which they were added), and a tensor may change when
 * sheaf_save_wait_copied has returned for its slice; nothing is loaded into the state before. Where
 * staging_bytes_max has no room for all of it, begin copies after all (sheaf_stat.at_once). EAGAIN
 * from begin: this save was not started, train on. A save for which there is no image
 * waits until the oldest one is written; saves are committed in the order they began. EEXIST,
 * EINVAL, ELAYOUT name the step, the argument, the tensor and box. From the second lazy save of a
 * state on, begin is one small agreement and touches no disk (but see SHEAF_SLICE_IN_PLACE): then
 * the files are made, and what is wrong with the step found (EEXIST, no room), by the first
 * exchange or commit. [collective] */
struct sheaf_save_opts {
	uint32_t size, reserved;
	uint64_t flags;                 /* SHEAF_SAVE_... */
	double loss;                    /* for averages; equal on all ranks */
};
/* begin returns at once and threads of sheaf copy in the background. */
#define SHEAF_SAVE_LAZY     0x100000000ULL
/* Saves to the memory tier alone, and updates averages; nothing is written. After commit a later
 * job finds the step in memory. EAGAIN from begin: some node has no agent. EFAILED from commit: an
 * agent has died since, or has no room. After both train on: only this step is not kept. Such saves
 * are committed in the order in which they began, whatever goes to disk between. Needs two images.
 */
#define SHEAF_SAVE_NO_DISK  0x200000000ULL
/* If no image is free, begin returns EAGAIN instead of waiting. */
#define SHEAF_SAVE_MAY_DROP 0x400000000ULL
/* With LAZY: begin sums all that this rank copies (with LATER: sheaf_save_slice_ready does), and
 * each gate sums it again. EDIVERGED names a slice that changed between. Slow, because the caller
 * reads all that memory twice more; meant for the first runs of a trainer. */
#define SHEAF_SAVE_CHECK    0x800000000ULL
/* With LAZY: no slice is read before sheaf_save_slice_ready was called for it, and its data may be
 * NULL until then. EINVAL with averages, with slices in place, and if staging_bytes_max does not
 * hold the whole state. */
#define SHEAF_SAVE_LATER    0x2000000000ULL
int  sheaf_save_begin(struct sheaf_save **save, struct sheaf_run *run, int64_t step,
                      struct sheaf_state *state, const struct sheaf_save_opts *opts,
                      struct sheaf_error *err);
/* A file of the step (the same name from two ranks: the same bytes), 64 MiB each, plain
 * names only: [A-Za-z0-9._-]{1,128}, not sheaf.*, not *.safetensors*, no family of the step but
 * model. A line of its manifest: key [A-Za-z0-9._/-]{1,64}, not ranks.*, value <= 64 KiB, all
 * <= 512 KiB, and the manifest < 1 MiB, in which a control character is 6 bytes; equal on the
 * ranks that give it. Bytes and value are copied.
 * EINVAL: it is not allowed, given twice, or too late: a call of sheaf_save_commit that returned
 * EAGAIN has gathered what ranks had given, for the memory of agents or to publish the step. The
 * save goes on without it, and level 1 of log says why. ENOMEM fails the save. [local] */
int  sheaf_save_attach(struct sheaf_save *save, const char *file, const void *bytes, size_t n,
                       struct sheaf_error *err);
int  sheaf_save_note(struct sheaf_save *save, const char *key, const char *value,
                     struct sheaf_error *err);
/* Carries the save on without waiting, for a trainer that commits between its steps: sends up to
 * bytes_max bytes to other nodes (0: all that are ready), and once every rank has written its part,
 * a thread of rank 0 publishes the checkpoint.
 * 0: the save is committed, as when sheaf_save_commit returns 0.
 * EAGAIN: work is left, on some rank, or a save that was begun before this one is not committed.
 *    Call again later.
 * Any other code: as of sheaf_save_commit; the save has failed. [collective] */
int  sheaf_save_advance(struct sheaf_save *save, uint64_t bytes_max, struct sheaf_error *err);
/* The gate of a slice: call it before the slice's memory changes.
 * 0: the memory of the slice may change. This save does not read it any more, neither for this
 *    slice nor for another one in the same memory: a tied tensor, a slice that was added twice,
 *    pieces that overlap, F32 masters that are also stored as a BF16 model. The gate of each waits
 *    until all of them are copied and their averages are made. Slices count as in the same memory
 *    if the bytes from the first to the last item of one overlap with those of another.
 * EAGAIN: not yet, after timeout_ms.
 * EINVAL: there is no such slice, or it was not put yet (SHEAF_SAVE_LATER).
 * Any other code: the save has failed. It does not read the memory any more either.
 * The caller copies what no thread has begun to copy and waits for the rest; no other rank is
 * asked. The gate is open at once in a plain save, and where this save reads nothing of the memory
 * (bytes that another rank writes). Each save has its own gates: memory that two saves read may
 * change after the gates of both. Threads must have returned from it before the save is freed.
 * A commit that waits opens the gates that were not called. [any thread] */
int  sheaf_save_wait_copied(struct sheaf_save *save, int slice, int timeout_ms,
                            struct sheaf_error *err);
#define SHEAF_ALL_SLICES INT32_MIN      /* all of them, for who changes all at once; no code of
                                         * sheaf_state_add that went unseen */
/* Of a save with SHEAF_SAVE_LATER: that slice holds the step's values, and may be read until
 * sheaf_save_wait_copied has returned for it. data: where it lies in this save, as
 * sheaf_slice.data, whose other members hold; NULL: where the state says. So a layer is copied as
 * soon as it is final, while others are still computed, and what lies elsewhere (a device, a file)
 * is streamed through a few buffers: put, copied, the next one. Each slice once, in any order (an
 * empty one need not be); before, sheaf_save_wait_copied is EINVAL for it, commit refuses the save
 * and names it, no other save begins (EINVAL). The gate of a slice waits for the slices that were
 * put into its memory before the gate was called, not for those that follow. EINVAL: the slice was
 * put already, or the save is not such a save. [any thread] */
int  sheaf_save_slice_ready(struct sheaf_save *save, int slice, const void *data,
                            struct sheaf_error *err);
/* Returns whether this rank has done its part of the save: all that it copies is copied, and all
 * that it writes without bytes of other nodes is written and synced. Other ranks are not asked, so
 * the answer must not decide whether a [collective] call is made.
 * 0: its part is done. Nothing is durable before the commit, all the same.
 * EAGAIN: not yet.
 * Any other code: the save has failed. [any thread] */
int  sheaf_save_ready(struct sheaf_save *save, struct sheaf_error *err);
/* [any thread] */
int  sheaf_save_get_stat(struct sheaf_save *save, struct sheaf_stat *stat,
                         struct sheaf_error *err);
/* In how many ms, about, this rank will have done what a commit returns 0 after, if all copy,
 * exchange and commit from now on: by the speed of this save, or of the run's saves before. Of all
 * ranks the largest counts. 0: it is committed, and never before. -1: it has failed, or nothing is
 * known yet (the first save of a run, until something of it is written). [any thread] */
int64_t sheaf_save_eta_ms(struct sheaf_save *save);
/* Gives the save up, because what was saved is no good. 0: the next exchange or commit returns
 * EFAILED on all ranks, also one that another thread is in now, and the step is not in memory
 * either. This rank must still call sheaf_save_commit, where the others wait and learn of it,
 * unless the save was submitted: if all ranks free the save instead, a replica on another node may
 * keep a step that was in memory. EINVAL: it is too late, because the step is committed or all
 * ranks have agreed to publish it; nothing happened. [any thread] */
int  sheaf_save_abort(struct sheaf_save *save, const char *why, struct sheaf_error *err);
/* Commits the save: waits until every rank has copied and written its part, and publishes the
 * checkpoint. What is left of a lazy save is copied by this call, so a trainer whose tensors no
 * longer change, as at its end, need not call the gates. timeout_ms: the shortest of all ranks
 * counts; with 0 the call does not wait, as sheaf_save_advance.
 * 0: the checkpoint survives power loss.
 * EAGAIN: it is not committed after timeout_ms. What was begun goes on; call again.
 * EINVAL: a save that was begun before this one is not committed, or with SHEAF_SAVE_LATER a slice
 *    is not ready; msg names it. Nothing happened; call again.
 * EFAILED: the save was given up, or the notes and attached files of its ranks differ or do not fit
 *    into one manifest.
 * EDIVERGED: replicas differ, or with SHEAF_SAVE_CHECK a slice changed before it was copied.
 * EINDOUBT: the checkpoint is there and whole, but a power cut may still take it. Save again.
 * ELOST: a rank was lost. sheaf_run_steps, after opening the run again, says whether the checkpoint
 *    is there.
 * Any other code: the checkpoint does not exist and never will.
 * With a deadline, as after SIGTERM, pass the time that is left:
 * - Copies, writes and transfers end when the time is up. The call may last longer by one agreement
 *   of the ranks and one portion of a transfer (4 MiB at first, and later what takes 0.1 s).
 * - Making the files and publishing cannot be interrupted. Each is begun only if at least as much
 *   time is left as it took in the last two saves of the run, else the result is EAGAIN at once.
 *   The next call begins it in any case. The first save of a run always begins.
 * - After EAGAIN with no time left call sheaf_save_free, which waits for what is being written, or
 *   exit at once. The next sheaf_run_open removes what is left, and the checkpoint never appears,
 *   unless it was being published: then it may appear, whole.
 * - With opts.agent the checkpoint may be in memory. Then msg ends in "it is in memory", and the
 * next
 *   job or the agent can still write it to disk.
 * [collective] */
int  sheaf_save_commit(struct sheaf_save *save, int timeout_ms, struct sheaf_error *err);
/* Hands the save over to the thread of sheaf that commits (opts.commit_group), and returns at
 * once. All notes and attached files were given before. Gates may still be closed: call
 * sheaf_save_wait_copied as always before memory changes. The thread goes on when all is copied on
 * all ranks, so a slice whose gate nobody calls holds up no commit; with SHEAF_SAVE_CHECK it waits
 * for all gates. Every rank submits its saves in the order in which they began, those to memory
 * alone in an order of their own, and those are committed meanwhile while others are still written.
 * Other calls go on as usual: what needs no save in flight (a rewind, a resume) is EINVAL until
 * the save is over, and begin waits for it if no image is free.
 * EINVAL: the run has no such thread, the save was submitted, or one begun before it was not;
 * nothing happened. ELOST: the background group is lost, and with it the save. [local] */
int  sheaf_save_submit(struct sheaf_save *save, struct sheaf_error *err);
/* Waits for the outcome of a submitted save, and returns what sheaf_save_commit would have. EAGAIN:
 * it is not known after timeout_ms. EINVAL: it was not submitted.
 * Each rank asks for itself, so do not call a [collective] function on account of an EAGAIN. With a
 * deadline, pass what is left of it, and then call sheaf_save_abort, or just exit: sheaf_run_close
 * would wait. [any thread] */
int  sheaf_save_result(struct sheaf_save *save, int timeout_ms, struct sheaf_error *err);
/* A submitted save is committed all the same, and sheaf frees it afterwards; sheaf_save_abort gives
 * it up. Another one that is not committed is given up; what commit said is in memory stays there.
 * Of one that is being published the end is waited for; it is there or not, and the saves begun
 * after it, which would follow it, fail. [local] */
void sheaf_save_free(struct sheaf_save *save);

/* Steps. open_path takes any directory or file that sheaf reads: a step, a Hugging Face
 * directory, one safetensors file; foreign ones have no checksums and say so in the report.
 * A step opened by number whose manifest names another is ECORRUPT. [collective] */
/* The newest checkpoint, in memory or on disk, that is neither marked bad nor set aside (but see
 * opts.resume_attempts_max). If it cannot be loaded no older one is taken instead, however often it
 * is tried; the error names the damage and the command that helps. sheaf_run_resume can fall back.
 * ENOENT means that the run has no checkpoint at all; if all are marked bad it is ECORRUPT. A
 * directory checkpoint-<n> without sheaf.json is no checkpoint: it is passed over, and level 1 of
 * log and the report of the load say so. If there is nothing else, and sheaf.sums in it shows that
 * it was one, that is ECORRUPT too. */
#define SHEAF_LATEST (-1)
int  sheaf_checkpoint_open(struct sheaf_checkpoint **step, struct sheaf_run *run, int64_t n,
                           struct sheaf_error *err);
int  sheaf_checkpoint_open_path(struct sheaf_checkpoint **step, const char *path,
                                struct sheaf_group *group,
                                const struct sheaf_opts *opts, struct sheaf_error *err);
void sheaf_checkpoint_close(struct sheaf_checkpoint *step);
struct sheaf_checkpoint_info {          /* strings live as long as the step is open */
	uint32_t size;
	int32_t ranks;                  /* that saved it; 0: unknown */
	int64_t step, parent;           /* -1: unknown or none */
	const char *format;             /* "sheaf", "hf", "safetensors" */
	const char *path, *session, *run, *created, *writer, *commit, *compiler; /* "" unknown */
	uint64_t bytes, tensors, files; /* distinct tensor bytes; tensor files */
};
/* [local] */
int  sheaf_checkpoint_get_info(struct sheaf_checkpoint *step, struct sheaf_checkpoint_info *info,
                               struct sheaf_error *err);
struct sheaf_tensor {                   /* strings live as long as the step is open */
	uint32_t size;
	int32_t dtype, ndim, verified;  /* verified 1: digest and block sums exist */
	const char *family, *name, *file;       /* file relative to the step */
	const char *tied_to;            /* NULL, or under which name the bytes are stored */
	int64_t shape[SHEAF_DIMS_MAX];
	uint64_t offset, bytes, digest; /* offset in file; UINT64_MAX: not contiguous there */
	/* NULL, unless a foreign tensor has more than SHEAF_DIMS_MAX dimensions. Then shape is 0,
	 * and dims has all ndim of them, or is NULL if they are more than 64. sheaf_checkpoint_read
	 * reads such a tensor as its bytes, U8 of one dimension */
	const int64_t *dims;
};
/* Tensor i, by family and natural order of names; EEND past the end. Or one by name (family
 * NULL: "model"): ELAYOUT if absent. [local] */
int  sheaf_checkpoint_tensor(struct sheaf_checkpoint *step, size_t i, struct sheaf_tensor *tensor,
                             struct sheaf_error *err);
int  sheaf_checkpoint_find(struct sheaf_checkpoint *step, const char *family, const char *name,
                           struct sheaf_tensor *tensor, struct sheaf_error *err);
int64_t sheaf_checkpoint_number(const struct sheaf_checkpoint *step);   /* -1: foreign */
const char *sheaf_checkpoint_note(struct sheaf_checkpoint *step, const char *key); /* NULL: none */
/* Note i in order of keys; EEND past the end. [local] */
int  sheaf_checkpoint_note_at(struct sheaf_checkpoint *step, size_t i, const char **key,
                              const char **value, struct sheaf_error *err);
struct sheaf_ema_info {                 /* strings live as long as the step is open */
	uint32_t size, reserved;
	const char *name, *of;          /* its family; of which, NULL as in sheaf_state_ema */
	double coef;
	int64_t interval, updates;      /* how often it was brought up to date */
};
/* Averages i of the step; EEND past the end. [local] */
int  sheaf_checkpoint_ema_at(struct sheaf_checkpoint *step, size_t i, struct sheaf_ema_info *info,
                             struct sheaf_error *err);
/* Attached file i (foreign: plain files beside the weights); EEND past the end. [local] */
int  sheaf_checkpoint_file_at(struct sheaf_checkpoint *step, size_t i, const char **file,
                              uint64_t *bytes, struct sheaf_error *err);
/* An attached file, checked; bytes live as long as the step is open. [local] */
int  sheaf_checkpoint_file(struct sheaf_checkpoint *step, const char *file, const void **bytes,
                           size_t *n, struct sheaf_error *err);
enum sheaf_finding_kind {
	SHEAF_FINDING_CHECKSUM = 1,     /* a block does not match its checksum */
	SHEAF_FINDING_DIGEST = 2,       /* a tensor does not match its digest */
	SHEAF_FINDING_TRUNCATED = 3,    /* a file is shorter than the manifest says */
	SHEAF_FINDING_EXTENDED = 4,     /* or longer */
	SHEAF_FINDING_MISSING = 5,      /* or is not there */
	SHEAF_FINDING_EXTRA = 6,        /* a file that no manifest names */
	SHEAF_FINDING_MANIFEST = 7,     /* sheaf.json or sheaf.sums is damaged */
	SHEAF_FINDING_HEADER = 8,       /* the header of a safetensors file is damaged */
	SHEAF_FINDING_INDEX = 9,        /* an index is damaged */
	SHEAF_FINDING_UNVERIFIED = 10   /* there are no checksums to compare with */
};
const char *sheaf_finding_kind_name(int32_t kind);      /* "checksum"; NULL: none such */
struct sheaf_finding {                  /* something verify found; strings live during the call */
	uint32_t size;
	int32_t kind;                   /* enum sheaf_finding_kind */
	const char *file, *family, *name, *msg; /* "" where it does not apply */
	int64_t block, offset;          /* 1-MiB block and byte from the start of file; -1: none */
};
enum sheaf_report_kind {
	SHEAF_REPORT_MISSING = 1,       /* a tensor of the state is not in the checkpoint */
	SHEAF_REPORT_UNEXPECTED = 2,    /* the checkpoint has a tensor that the state has not */
	SHEAF_REPORT_CONVERTED = 3,     /* another dtype is stored */
	SHEAF_REPORT_UNVERIFIED = 4,    /* read without comparing all of it with its digest */
	SHEAF_REPORT_DERIVED = 5,       /* made from another family: SHEAF_LOAD_DERIVE */
	SHEAF_REPORT_IGNORED = 6,       /* by opts.ignore, or SHEAF_SLICE_SAVE_ONLY */
	SHEAF_REPORT_MISMATCHED = 7,    /* another shape is stored, and data is kept */
	SHEAF_REPORT_ZEROED = 8,        /* filled with zeros: SHEAF_LOAD_ZERO */
	SHEAF_REPORT_STREAM = 9,        /* bytes of ranks, saved by another number of ranks; msg
	                                 * names the rule that was followed */
	/* On rank 0 alone, for checkpoints: family is "", name is like "checkpoint-8". */
	SHEAF_REPORT_PASSED_OVER = 10,  /* in the search for the latest; msg says why */
	SHEAF_REPORT_SET_ASIDE = 11
};
const char *sheaf_report_kind_name(int32_t kind);       /* "missing"; NULL: none such */
struct sheaf_report {                   /* callbacks run in the caller's thread, on the rank
	                                 * whose slice or file it is */
	uint32_t size;
	uint32_t peers;                 /* 1: of memory_bytes some are copies that another node
	                                 * kept */
	/* kind: enum sheaf_report_kind. Strings live during the call */
	void (*item)(void *arg, int32_t kind, const char *family, const char *name,
	             const char *msg);
	void (*finding)(void *arg, const struct sheaf_finding *finding);
	void *arg;
	/* Tensors over all ranks, each counted once. */
	uint64_t loaded, missing, unexpected, converted, derived, ignored, mismatched, zeroed;
	uint64_t unverified;            /* read in part, or foreign: blocks at most were checked */
	uint64_t findings, files;       /* verify */
	uint64_t disk_bytes, node_bytes, net_bytes;     /* over all ranks: read, shared, sent */
	uint64_t held, bytes;           /* over all ranks: bytes filled; bytes of the tensors that
	                                 * were loaded, each once and whole. Derived, zeroed and
	                                 * kept ones do not count */
	uint64_t retries, plan_ns, read_ns, verify_ns;  /* ns: this rank */
	uint64_t memory_bytes;          /* over all ranks: read from the memory tier */
	int64_t step;                   /* loads: which step; -1: foreign */
	uint32_t memory;                /* 1: it was in memory */
	uint32_t passed;                /* sheaf_run_resume: how many damaged ones came before it */
};
/* Fill the state. An absent tensor is ELAYOUT unless OPTIONAL, ignored, derived or zeroed;
 * what cannot be filled is found before any byte is touched. After any other failure the
 * slices' contents are undefined. ELAYOUT if slices that share memory would be filled from tensors
 * of different types, one of them converted: see SHEAF_SLICE_SAVE_ONLY. In a run that is open for
 * writing a load counts as a try of the step, once a session, until the next save or the close (see
 * opts.resume_attempts_max), so evaluate with SHEAF_RUN_READONLY. EAGAIN from a load, verify, read
 * or copy of a step in memory: a job that goes on saving has taken that memory for a newer step;
 * open SHEAF_LATEST again. [collective] */
#define SHEAF_LOAD_STRICT  0x1000000000000ULL /* unexpected tensor in a family we hold: ELAYOUT */
#define SHEAF_LOAD_CONVERT 0x2000000000000ULL /* the stored dtype may differ from the slice's */
#define SHEAF_LOAD_DRY     0x4000000000000ULL /* plan and report; read no tensor */
/* Absent master_weights: cast up from the model. Absent tensors of family model whose slice is BF16
 * or F16, stored and in memory: their F32 masters of the same name, rounded to nearest even; so a
 * step may leave such weights out, 12 of 14 bytes with Adam, if that is how they are made. */
#define SHEAF_LOAD_DERIVE  0x8000000000000ULL
#define SHEAF_LOAD_ZERO    0x10000000000000ULL /* optimizer absent: zeros */
#define SHEAF_LOAD_LENIENT 0x20000000000000ULL /* absent, or of another shape: data is kept */
int  sheaf_checkpoint_load(struct sheaf_checkpoint *step, struct sheaf_state *state, uint64_t flags,
                           struct sheaf_report *report, struct sheaf_error *err);
#define SHEAF_LOAD_FALLBACK 0x40000000000000ULL /* a flag of sheaf_run_resume alone */
/* Opens SHEAF_LATEST and loads it, with the flags of sheaf_checkpoint_load. report->step is its
 * number, and report->memory says whether it was in memory. Returns the codes of the two calls.
 * ENOENT: the run has no checkpoint at all, and the state is as it was: start afresh. With
 * SHEAF_LOAD_FALLBACK, if the latest is damaged, an older one is loaded instead:
 * - If it was read from memory, its copy on disk is tried next, and then each older checkpoint.
 * - Damage is ECORRUPT of the open or the load, confirmed by reading the whole step again, past
 *   the page cache. After any other failure nothing else is tried. EFORMAT is no damage: a newer
 *   sheaf wrote that checkpoint, which stays where it is.
 * - The checkpoint that is loaded is proved whole, also tensors that the state does not hold.
 * - It must fill every slice that a damaged one has begun to fill. What it would keep (OPTIONAL,
 *   LENIENT, a stream whose rule is drop) would hold values of the damaged one, so that is ELAYOUT
 *   and names the slice: sheaf_run_rewind to it, and start again.
 * - Only then are the newer ones set aside, as by sheaf_run_rewind, and damaged ones in memory are
 *   given up, so that training goes on from the loaded one. With SHEAF_RUN_READONLY they stay.
 * - On rank 0 report->item is called for each of them (PASSED_OVER, SET_ASIDE); report->passed
 * counts them. What
 *   it says of tensors is of the last checkpoint that was tried alone, and comes after the load.
 * - If none can be loaded the error is that of the first.
 * - EINVAL while a save is in flight, or with SHEAF_LOAD_DRY.
 * [collective] */
int  sheaf_run_resume(struct sheaf_run *run, struct sheaf_state *state, uint64_t flags,
                      struct sheaf_report *report, struct sheaf_error *err);

/* Loading slice by slice, for a rank that has no host memory for all of its state, because its
 * tensors live on a device: begin, then each slice into one of a few buffers, from there to the
 * device, then end. Start as with sheaf_run_resume: sheaf_checkpoint_open of SHEAF_LATEST is ENOENT
 * if there is no checkpoint and training starts afresh. The values that a slice gets, and what is
 * missing, converted, derived, zeroed or kept, are those of sheaf_checkpoint_load with the same
 * flags.
 * - No device pointer enters the library. The caller copies from the buffer, and does not use it
 *   for another slice before that copy is complete (an event of the device).
 * - Buffers may be page-locked memory of the caller. Beside them a take allocates 4 MiB at most.
 * - Each rank reads what its slices need itself, in whole blocks of 1 MiB. What several ranks of a
 *   node want is read from the disk once, by the first of them, if the page cache has room for it
 *   until the others take it; so take slices in the same order on all ranks of a node. Nothing is
 *   sent between nodes: each node reads for itself. Several threads that take at once keep the disk
 *   busier than one.
 * - A step in the memory of agents is taken from there, as far as it is in the memory of this node.
 *   The rest is read from disk. If it is not on disk either, begin is EINVAL.
 */
/* Begins the load and decides for each slice what it is filled from. Slices may have NULL data.
 * - load: set on success. Free it with sheaf_load_free; step and state may be closed and freed
 *   before.
 * - flags: SHEAF_LOAD_... as sheaf_checkpoint_load takes them, without DRY.
 * - report: may be NULL. Its items are called, and its numbers are what a load with SHEAF_LOAD_DRY
 *   reports.
 * The load counts as a try of the step (opts.resume_attempts_max). Until it has ended or is freed,
 * no slice is added to the state, and no save, average or other load of the state begins: EINVAL.
 * Returns the codes of sheaf_checkpoint_load for what is found before any byte is read; EINVAL also
 * for averages whose weights have NULL data. [collective] */
int  sheaf_load_begin(struct sheaf_load **load, struct sheaf_checkpoint *step,
                      struct sheaf_state *state, uint64_t flags, struct sheaf_report *report,
                      struct sheaf_error *err);
/* Returns 1 if the slice must be taken. 0: there is nothing to take, because it is empty or keeps
 * what it has (SAVE_ONLY, opts.ignore, or absent and OPTIONAL or LENIENT). EINVAL: there is no such
 * slice. [any thread] */
int  sheaf_load_fills(const struct sheaf_load *load, int slice, struct sheaf_error *err);
/* Fills `data` with the values of one slice, and checks every block that it has bytes in. A slice
 * that is a whole tensor is compared with the digest of the tensor, too.
 * - slice: its number in the state, in any order. A slice may be taken again; the last take counts.
 *   Several threads may take at once, each into a buffer of its own.
 * - data: as sheaf_slice.data, whose other members hold: strides, origin and flat range. Bytes that
 *   are not items of the slice stay as they are. NULL: into the memory that the state had in begin.
 *   Averages, whose memory is the state's, are taken with NULL.
 * 0: the values are right as far as sums show it. Use them only once sheaf_load_end has returned 0:
 * another rank may have found damage. After a failure the bytes of `data` are undefined.
 * EINVAL: there is no such slice, it keeps what it has, there is no buffer, or the load is over;
 * nothing happened. Other failures make sheaf_load_end fail on all ranks, unless a later take of
 * that slice succeeds. [any thread] */
int  sheaf_load_take(struct sheaf_load *load, int slice, void *data, struct sheaf_error *err);
/* Ends the load: all ranks agree that they have taken what they must. Call it when all takes have
 * returned, also after a take that has failed.
 * - report: may be NULL. Its numbers are those of the whole load; `unverified` counts tensors that
 *   no rank has taken whole. An item of it is called for these alone.
 * 0: all values are valid, and the next save of the state follows this step.
 * EINVAL: a slice was not taken or is being taken, on the rank that err->rank names. The load goes
 * on: take it, and call end again on all ranks.
 * Other codes are those of a take that failed on some rank. The load is over, and the values are
 * not to be used. [collective] */
int  sheaf_load_end(struct sheaf_load *load, struct sheaf_report *report, struct sheaf_error *err);
/* Frees the load, when all takes have returned. If it has not ended it is cancelled, on this rank
 * alone: the others wait for it in sheaf_load_end, until the deadline. So a rank that gives up
 * calls that first: it is EINVAL on all ranks if a slice was not taken. [local] */
void sheaf_load_free(struct sheaf_load *load);
/* One slice, by this process alone; checks the blocks it touches. [local] */
int  sheaf_checkpoint_read(struct sheaf_checkpoint *step, const struct sheaf_slice *slice,
                           struct sheaf_error *err);
/* Every byte against its checksum, every tensor against its digest, every file against the
 * manifest. 0 all good; ECORRUPT: report.findings > 0; EFORMAT: sound, but without sums, so
 * that values cannot be proved. [collective] */
int  sheaf_checkpoint_verify(struct sheaf_checkpoint *step, struct sheaf_report *report,
                             struct sheaf_error *err);
#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
