/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf.h - saves and loads the training state of a job that runs on many ranks.
 *
 * A checkpoint holds whole tensors in safetensors files. A job with any other number of ranks and
 * any other parallel layout can load it (resharding). A checkpoint exists completely or not at all,
 * and every byte of it has a checksum. This program makes one and loads it:
 *
 *     float weight[2 * 3] = { 1, 2, 3, 4, 5, 6 };
 *     struct sheaf_slice all = { .size = sizeof(all), .name = "layer.0.weight",
 *         .dtype = SHEAF_F32, .ndim = 2, .shape = { 2, 3 }, .count = { 2, 3 },
 *         .data = weight };
 *     struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE };
 *     struct sheaf_state *state = sheaf_state_new();
 *     struct sheaf_run *run = NULL;
 *     struct sheaf_save *save = NULL;
 *     struct sheaf_checkpoint *checkpoint = NULL;
 *     struct sheaf_error err = { 0 };
 *
 *     sheaf_state_add(state, &all, NULL);
 *     if (sheaf_run_open(&run, "run", NULL, &opts, &err) == 0 &&
 *         sheaf_save_begin(&save, run, 1000, state, NULL, &err) == 0 &&
 *         sheaf_save_commit(save, -1, &err) == 0 &&
 *         sheaf_checkpoint_open(&checkpoint, run, SHEAF_LATEST, &err) == 0)
 *         sheaf_checkpoint_load(checkpoint, state, 0, NULL, &err);
 *     printf("%s\n", err.code ? err.msg : "saved, and loaded back");
 *     sheaf_checkpoint_close(checkpoint);
 *     sheaf_save_free(save);
 *     sheaf_run_close(run);
 *     sheaf_state_free(state);
 *
 * With many ranks, make a group (sheaf-mpi.h), pass it to sheaf_run_open instead of NULL, and let
 * each rank add what it holds: `shape` is the whole tensor, `start` and `count` the part of this
 * rank. For an asynchronous save see SHEAF_SAVE_LAZY.
 *
 * Words of this header
 *
 * Run         A directory with the checkpoints of one training run.
 * Checkpoint  What one save has stored. It never changes afterwards.
 * Step        The number of a checkpoint, normally the number of the training step. At most one
 *             checkpoint of a run has it.
 * State       The list of what this rank holds. The same state is used to save and to load.
 * Slice       One entry of a state: a box of a tensor, and where it is in the memory of this rank.
 * Family      The group of files that a tensor is stored in: "model", "master_weights",
 *             "optimizer", "ema", or any other name. Each has its own folder, except model, whose
 *             files are in the folder of the checkpoint.
 * Group       The ranks (processes) that save and load together.
 * Node        A set of ranks that share memory.
 * Replica     A copy: of a tensor, on another rank; or of a checkpoint, in the memory of another
 *             node (sheaf_memory_tier.copies in sheaf-opts.h).
 * Staging     A save copies the state into a staging buffer in host memory, from which it is
 *             written to disk in the background. Each save in flight has a buffer of its own.
 * Gate        The call of sheaf_save_wait_copied for a slice, before its memory changes.
 * Digest      The checksum of a whole tensor. Besides, each block (1 MiB) of a file has a checksum.
 * Publish     A commit ends by renaming the finished checkpoint to its place in the run.
 * Manifest    The file sheaf.json of a checkpoint, with its list of tensors, files and notes.
 * Parent      The checkpoint that the training had loaded or saved before it saved this one. A
 *             checkpoint descends from its parent and from the ancestors of its parent.
 * Set aside   Moved to .sheaf/aside. Such a checkpoint is complete, but no call finds it under its
 *             number any more (sheaf-admin.h).
 * Session     A string that is new for each save. It distinguishes checkpoints that were saved
 *             under the same number.
 * Agent       A process on each node that keeps checkpoints in memory (the memory tier), so that a
 *             later job resumes from there: sheaf-agent.h.
 *
 * Rules for all calls
 *
 * Ranks       [collective]: all ranks of the group call the function, in the same order. A rank
 *             calls it even after an error of its own, and even if its state is NULL. All ranks
 *             return the same code. The exception is SHEAF_ELOST: a rank has died or missed the
 *             deadline, and only _free and _close may be called from then on. If ranks are in
 *             different calls, or in the same call with different handles, all of them return
 *             EINVAL with a message that names two of them, and nothing has happened.
 *             [local]: the call does not communicate. Its failure is remembered in the handle, and
 *             the next collective call on that handle returns it on all ranks, unless the comment
 *             of the call says otherwise. So its result need not be checked, and must not decide
 *             whether this rank makes a collective call: the others would wait for it. Calls that
 *             only look something up, such as those on an open checkpoint, remember nothing.
 * Threads     One thread at a time may call functions on a run and on what was opened, begun or
 *             loaded through it. The same holds for a state. Different runs are independent. A call
 *             marked [any thread] may be made at any time before the handle is released. Two
 *             checkpoints of one run must not be loaded at the same time. The threads of sheaf
 *             block all signals. They use no group, except sheaf_opts.commit_group and
 *             sheaf_memory_tier.copies_group.
 * Callbacks   They run inside calls of sheaf, on the thread of the caller, and must return. A C++
 *             exception, a longjmp or a panic of another language must not leave a callback: the
 *             library would keep its locks, and the other ranks would wait. Catch it inside. If
 *             the callback has a result, return non-zero.
 * Results     0 or a positive count, or a negative enum sheaf_code. The last parameter of a
 *             function that can fail is a struct sheaf_error. It receives the message and may be
 *             NULL. Outputs are set only on success, except the memory that a load fills.
 * Ownership   Whatever a function _open, _new or _begin returns, release once with _close or _free,
 *             in any order. Both accept NULL. Names and structs are copied. Data of slices is
 *             borrowed.
 * Fork        In a forked child _free and _close release only the memory and descriptors of the
 *             child. The _close of the parent gives up its locks even if a child calls neither. If
 *             the parent was killed, a checkpoint that it had open is not pruned until the children
 *             that it forked meanwhile have exited.
 * Time        The parameter timeout_ms is how long a call waits at most, in milliseconds. 0: the
 *             call does not wait and reports the present state. Negative: the sheaf_opts.timeout_ms
 *             of the run. When the time is up the call returns EAGAIN. Nothing is lost, and it may
 *             be called again.
 * Structs     Set `size` to the sizeof of the struct. 0 in any other field is its default. If a
 *             caller's struct is larger than this version of the library knows, and its unknown
 *             fields are not 0, the call is EINVAL. Structs that callbacks get have `size` set.
 * Flags       No two flags of this library have the same bit. So a flag that belongs to another
 *             call is EINVAL, and the message names the flag.
 * */
#ifndef SHEAF_H
#define SHEAF_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)    /* libsheaf.so exports exactly what is declared here */
#endif

struct sheaf_group;                     /* the ranks that act together */
struct sheaf_run;                       /* an open run */
struct sheaf_checkpoint;                /* an open checkpoint; no prune deletes it */
struct sheaf_state;                     /* what this rank holds */
struct sheaf_save;                      /* a save in progress */
struct sheaf_finding;                   /* something a verification found: sheaf-inspect.h */
struct sheaf_report;                    /* what a load or a verification found, see below */
struct sheaf_stat;                      /* progress of a save or load: sheaf-stat.h */

enum sheaf_code {                       /* result codes; numbers never change */
	SHEAF_OK = 0,                   /* success */
	SHEAF_EINVAL = -1,              /* the call was wrong; nothing happened */
	SHEAF_ENOMEM = -2,              /* out of memory */
	SHEAF_EIO = -3,                 /* I/O error or no space; err->sys is the errno. If
	                                 * a call on a save returns it, the save has failed */
	SHEAF_ENOENT = -4,              /* no such run, checkpoint or file; never a tensor */
	SHEAF_EEXIST = -5,              /* the number is taken; err->msg says how to free it */
	SHEAF_EBUSY = -6,               /* another process has the run open for writing or, in
	                                 * sheaf_agent_serve, is its agent already */
	SHEAF_EAGAIN = -7,              /* not yet: nothing is lost, and the call may be repeated */
	SHEAF_ELAYOUT = -8,             /* a tensor is absent or has gaps, or slices do not match
	                                 * what is stored */
	SHEAF_ECORRUPT = -9,            /* bytes do not match their checksum or digest */
	SHEAF_EFORMAT = -10,            /* not a checkpoint of sheaf, or one that only a
	                                 * newer version can read */
	SHEAF_EINDOUBT = -11,           /* the checkpoint exists and is complete, but a power loss
	                                 * may still remove it, until a later save is committed */
	SHEAF_EBUG = -12,               /* sheaf found an error of its own */
	SHEAF_ELOST = -13,              /* a rank died or was too late, or the lock was lost */
	SHEAF_EDIVERGED = -14,          /* replicas differ, or a slice changed before its gate */
	SHEAF_EFAILED = -15,            /* aborted by the caller or by opts.progress, or the save
	                                 * holds what cannot be stored; err->msg is the reason */
	SHEAF_EEND = -16                /* the list has no item at that index */
};
struct sheaf_error {                    /* filled by a call that fails; needs no initial value */
	int code;                       /* enum sheaf_code */
	int sys;                        /* errno; 0: none */
	int rank;                       /* the rank that failed first; -1: unknown */
	char msg[500];                  /* one line: what failed, where and why */
};
/* Returns a human-readable description of a code. Static, never NULL. [any thread] */
const char *sheaf_strerror(int code);
/* Returns the name of a code: "EINVAL" for SHEAF_EINVAL, "OK" for 0. Static; NULL if there is no
 * such code. [any thread] */
const char *sheaf_code_name(int code);
/* Version of this header: 10000 * major + 100 * minor + patch. The library that a program runs with
 * may be newer: see sheaf_version. */
#define SHEAF_VERSION 100
#define SHEAF_VERSION_STRING "0.1.0"
/* Returns the version of the library, as a number like SHEAF_VERSION. [any thread] */
int sheaf_version(void);

/* Types of tensor items, with the names that safetensors has for them. Numbers never change. */
enum sheaf_dtype {
	SHEAF_BOOL = 1, SHEAF_U8, SHEAF_I8, SHEAF_U16, SHEAF_I16, SHEAF_U32, SHEAF_I32,
	SHEAF_U64, SHEAF_I64, SHEAF_F16, SHEAF_BF16, SHEAF_F32, SHEAF_F64, SHEAF_C64,
	SHEAF_F8_E4M3, SHEAF_F8_E5M2, SHEAF_F8_E8M0, SHEAF_F8_E4M3FNUZ, SHEAF_F8_E5M2FNUZ,
	SHEAF_F4, SHEAF_F6_E2M3, SHEAF_F6_E3M2,
	/* Two F64, real and imaginary part; for slices only. safetensors has no such type, so the
	 * tensor is stored as F64 with one more dimension of 2. Such a slice has at most 7
	 * dimensions and is never converted. */
	SHEAF_C128
};
/* Returns the name that safetensors uses for a type, or NULL for an unknown one. Static.
 * [any thread] */
const char *sheaf_dtype_name(int dtype);
/* Returns the size of one item in bits, or 0 for an unknown type. [any thread] */
int sheaf_dtype_bits(int dtype);
/* Returns the type that has this safetensors name, or 0. [any thread] */
int sheaf_dtype_from_name(const char *name);

#define SHEAF_DIMS_MAX 8                /* maximum number of dimensions of a slice */
/* One part of one tensor, and where this rank has it in memory. The part is a box: `count[d]` items
 * from index `start[d]` on in each dimension d of a tensor with that `shape`. Normally that is all:
 * `data` points to the first item of the box, and the others follow in row-major order.
 *
 * With strides or an origin, item (i, j, ...) of the box is item
 *     origin + i * stride[0] + j * stride[1] + ...
 * of the memory, and `data` points to item 0 of the memory. Examples: a transposed matrix; fused
 * q-k-v weights, which are one slice for each of the three stored tensors, with another origin in
 * the same memory. If only the origin is set, the strides are those of a dense array of
 * size `count`.
 *
 * With SHEAF_SLICE_FLAT this rank has only a range of that memory, as with ZeRO and FSDP: see that
 * flag.
 *
 * A slice with a count of 0 is empty. It is allowed on ranks that have nothing of a tensor, may
 * have NULL data, and never means "all". For F4 and F6 memory must be dense, and boxes must begin
 * and end at whole bytes. */
struct sheaf_slice {
	uint32_t size;
	int32_t memory;                 /* 0: host memory; other values are reserved (EINVAL) */
	uint64_t flags;                 /* SHEAF_SLICE_... */
	const char *family;             /* family of the tensor; NULL: "model" */
	/* Name of the tensor. Any name will do, but other programs understand these, which Paddle
	 * uses, too: master weights have the name of their weight (SHEAF_LOAD_DERIVE needs that),
	 * and its moments, as Adam has them, are <name>/moment1_0 and <name>/moment2_0 in family
	 * optimizer. doc/format.md lists more. */
	const char *name;
	/* NULL, or the name of the tensor of this family that has the same bytes (tied weights).
	 * Some rank adds that tensor, too. The bytes are stored once, under that name, and
	 * loaded from there. */
	const char *tied_to;
	int32_t dtype;                  /* type in the checkpoint: enum sheaf_dtype */
	int32_t data_dtype;             /* type in memory; 0: dtype. Otherwise saves and loads
	                                 * convert */
	int32_t ndim;                   /* number of dimensions; 0: a scalar */
	int32_t reserved;
	int64_t shape[SHEAF_DIMS_MAX];  /* shape of the whole tensor */
	int64_t start[SHEAF_DIMS_MAX];  /* first index of the box in each dimension */
	int64_t count[SHEAF_DIMS_MAX];  /* size of the box in each dimension */
	int64_t stride[SHEAF_DIMS_MAX]; /* in items, not negative; all 0: dense and row-major,
	                                 * unless SHEAF_SLICE_STRIDED is set */
	int64_t origin;                 /* which item of the memory is the first of the box */
	int64_t flat_start;             /* SHEAF_SLICE_FLAT: first item of the memory that this
	                                 * rank has */
	int64_t flat_count;             /* SHEAF_SLICE_FLAT: number of items that this rank has */
	void *data;                     /* the memory; borrowed as long as the state exists */
};
/* The other fields describe a box in a buffer that is cut over several ranks. This rank has only
 * the items [flat_start, flat_start + flat_count) of the buffer, possibly none, and `data` points
 * to the first of these. `origin` is counted from the beginning of the whole buffer. Examples:
 * - ZeRO cuts the 12 items of a [3, 4] matrix over two ranks. Both have start {0, 0} and count
 *   {3, 4}. Rank 0 has flat_start 0, rank 1 has 6, and both have flat_count 6.
 * - FSDP1 puts several parameters one after another into a flat buffer, and each rank has a range
 *   of it. Each parameter is a slice whose origin is where it begins in the buffer. All of them
 *   have the same flat_start, flat_count and data: those of the rank's range.
 * - With tensor parallelism too, cut the box first (sheaf_slice_shard), then set the origin and the
 *   range in the flat buffer of the tensor-parallel rank. */
#define SHEAF_SLICE_FLAT      0x1ULL
/* In a load, the checkpoint may lack the tensor. The memory is then left as it is. */
#define SHEAF_SLICE_OPTIONAL  0x2ULL
/* Writes this slice to disk straight from the caller's memory ("in place"), without a copy in the
 * staging buffer. Set it for state that is too large to hold twice, such as an optimizer state that
 * was offloaded to host memory or to a mapped file. It has a price:
 * - The caller waits for the disk: in sheaf_save_wait_copied for a lazy save, in sheaf_save_begin
 *   otherwise. The data passes through at most 48 MiB of memory of the library.
 * - sheaf_save_begin creates the files. If the save before is just being published, it waits for
 *   that first.
 * - The checkpoint is never kept in the memory tier.
 *
 * Some bytes are staged all the same: averages of the slice; with SHEAF_RUN_REPLICAS all replicas;
 * and each piece of a file (16 MiB or less) that also has bytes of other ranks, or of slices
 * without this flag. */
#define SHEAF_SLICE_IN_PLACE  0x4ULL
/* Uses the strides as they are, even if all are 0. Without this flag strides that are all 0 mean
 * dense memory. Set it if the strides come from the tensors of another program: a scalar that was
 * expanded to 5 items has strides that are all 0, and without the flag sheaf would read 5 items of
 * memory. With it that slice is EINVAL, like every slice that has several items in one place. */
#define SHEAF_SLICE_STRIDED   0x8ULL
/* Saves the slice but does not load it: the memory is left as it is, and the report says ignored.
 * Meant for memory that is saved twice, such as F32 master weights that are also saved as the BF16
 * model: set it on the slice of the model, so that a load fills the memory from the masters.
 * Without this flag a load would fill that memory from two tensors of different types, which is
 * ELAYOUT. If both have memory of their own, the flag is not needed. sheaf_checkpoint_read fills
 * the slice nevertheless, and sheaf_plan counts it as read. */
#define SHEAF_SLICE_SAVE_ONLY 0x10ULL
/* This rank has the same items a second time, in other memory, and both always have the same
 * values. One of the two is saved, and a load fills both. Without this flag on at least one of them
 * such a state is EINVAL, because two tensors that have one name by mistake look the same, and one
 * of them would be lost. Replicas on different ranks do not need it. */
#define SHEAF_SLICE_COPY      0x20ULL
/* Narrows a slice to piece i of n along one dimension: changes its start and count. Use it to get
 * the box of this rank from the whole tensor, with one call for each axis of the mesh of devices
 * that cuts the tensor, the outermost first. Cuts as torch.chunk does: pieces have ceil(count / n)
 * items, and the last ones are shorter or empty. EINVAL if SHEAF_SLICE_FLAT is set already.
 * - Without strides, the memory of the slice must be the dense memory of the piece.
 * - With strides, `data` stays the memory of the box before the cut, and origin is moved.
 *
 * [local] */
int sheaf_slice_shard(struct sheaf_slice *slice, int dim, int64_t i, int64_t n,
                      struct sheaf_error *err);

/* Reductions of sheaf_group_ops.allreduce: sum, largest value, bitwise exclusive or. */
enum sheaf_op { SHEAF_SUM = 0, SHEAF_MAX = 1, SHEAF_XOR = 2 };
/* How sheaf communicates: the operations of a group, given by the caller. They are called on the
 * thread that called sheaf, in the same order on all ranks; those of commit_group and copies_group
 * are called on a thread of sheaf.
 * - Each returns 0, or non-zero if it failed or if it would wait longer than timeout_ms, which is
 *   always above 0 here. All buffers are in host memory. After one failure the group is not used
 *   any more.
 * - An operation that fails writes the reason to *err, which is never NULL: one line to err->msg,
 *   and, if it knows them, an errno to err->sys and the rank that it could not reach to err->rank.
 *   The calls that return SHEAF_ELOST show this text. If it writes nothing, the message says how
 *   long the operation took, or that its time ran out.
 * - Python's ctypes lets a callback that raised an exception return 0, which means success: catch
 *   every exception inside. */
struct sheaf_group_ops {
	uint32_t size;
	int32_t rank;                   /* this rank, from 0 */
	int32_t ranks;                  /* number of ranks */
	int32_t node;                   /* 0, normally: sheaf finds out which ranks share memory. A
	                                 * number above 0 keeps it from sharing memory with ranks
	                                 * whose number differs */
	/* Collects `bytes` bytes of each rank in `all`, in order of ranks (ranks * bytes). */
	int (*allgather)(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms,
	                 struct sheaf_error *err);
	/* Sends out_bytes[r] bytes to rank r, and receives in_bytes[r] bytes from rank r. `out` and
	 * `in` are packed in order of ranks. Both sides know the sizes. */
	int (*alltoallv)(void *arg, const void *out, const size_t *out_bytes, void *in,
	                 const size_t *in_bytes, int timeout_ms, struct sheaf_error *err);
	/* Reduces n numbers over all ranks, in place. op: enum sheaf_op. */
	int (*allreduce)(void *arg, uint64_t *x, size_t n, int op, int timeout_ms,
	                 struct sheaf_error *err);
	void (*free)(void *arg);        /* called by sheaf_group_free; may be NULL */
	void *arg;                      /* passed to the functions above */
};
/* Makes a group from operations of the caller; sheaf-mpi.h makes one from a communicator. A single
 * process needs no group: pass NULL for it. The operations must work until all runs and checkpoints
 * that use the group are closed. [local] */
int  sheaf_group_new(struct sheaf_group **group, const struct sheaf_group_ops *ops,
                     struct sheaf_error *err);
/* Frees a group. If a run or a checkpoint still uses it, it is freed when the last of them is
 * closed. [local] */
void sheaf_group_free(struct sheaf_group *group);

/* Levels of sheaf_opts.log. */
enum sheaf_log_level {
	SHEAF_LOG_ERROR = 0,            /* something failed */
	SHEAF_LOG_WARNING = 1,          /* something needs attention, but the run goes on */
	SHEAF_LOG_INFO = 2,             /* what was done to checkpoints */
	SHEAF_LOG_DEBUG = 3             /* details */
};
/* Options of a run. A field that is 0 or NULL has its default. Fields marked "same on all ranks"
 * must be equal everywhere. */
struct sheaf_opts {
	uint32_t size;
	/* How long a collective call waits for another rank, in milliseconds. 0: 600000. If a
	 * rank has not joined the call after this time, the call is ELOST, whatever its timeout_ms
	 * is. The timeout_ms of a call only limits how long it waits for work to be finished
	 * (EAGAIN). If it is negative, that limit is this one. */
	int32_t timeout_ms;
	uint64_t flags;                 /* SHEAF_RUN_... */
	/* Names of the checkpoints' folders; NULL: the names that the run has, or "checkpoint-{n}"
	 * for a new run. Otherwise a prefix and "{n}", such as "step-{n}". The prefix has at most
	 * 40 characters of [A-Za-z0-9._-], does not begin with a dot and does not end with a digit.
	 * It is stored when the run is created and never changes: another one is EINVAL, and the
	 * message names both. Same on all ranks. */
	const char *folder;
	/* Patterns for "family/name", NULL at the end: such tensors are neither saved nor loaded,
	 * and reports list them. A star matches any characters, also slashes (fnmatch(3) without
	 * flags). */
	const char *const *ignore;
	uint64_t file_bytes_max;        /* limit on the size of a tensor file; 0: 5e9. A larger
	                                 * tensor gets a file of its own */
	/* I/O threads of this rank; 0: 4. They do disk I/O where io_uring is not available, and
	 * copy from memory or the page cache in loads, where at most one runs per processor. If
	 * there is more than one, one of them touches the destination memory ahead of the reads of
	 * a load, so that page faults do not delay these. */
	int32_t io_threads;
	/* Failed resume attempts after which a checkpoint is skipped; 0: no limit. If this many
	 * jobs have loaded a checkpoint and none of them got further, and there is an older one,
	 * then SHEAF_LATEST skips it, and sheaf_run_open marks it bad. Loads from memory and
	 * from disk count together. The value of rank 0 is used. A job got further if one of these
	 * is true:
	 * - The files of its next save to disk were created; that save need not be committed.
	 * - Its next save to memory only is committed.
	 * - It closed the run. */
	int32_t resume_attempts_max;
	/* Called with each line of the log; NULL: none. level: enum sheaf_log_level. */
	void (*log)(void *arg, int level, const char *line);
	/* Called again and again by calls that wait, to report how far they are: loads,
	 * verifications and sheaf_save_result (every 100 ms), and commits (every 250 ms, and when
	 * the ranks meet). Non-zero ends the call with EFAILED on all ranks, and aborts the save.
	 * It must not call sheaf. */
	int  (*progress)(void *arg, const struct sheaf_stat *stat);
	void *arg;                      /* passed to log and progress */
	/* One more group of the same ranks, for commits in the background (sheaf_save_submit);
	 * NULL: none. On all ranks or on none. A thread of sheaf on each rank uses this group at
	 * any time, so nothing else may use it. Keep the group until the run is closed. That thread
	 * also calls log and sheaf_notify.committed, which must not call sheaf then. log is called
	 * by one thread at a time. */
	struct sheaf_group *commit_group;
	/* Options that only some runs set, in structs of sheaf-opts.h. NULL: their defaults. They
	 * are read when the run is opened, and are not needed afterwards. */
	const struct sheaf_staging *staging;            /* memory and threads of saves */
	const struct sheaf_retention *retention;        /* which checkpoints are kept; NULL: all */
	const struct sheaf_memory_tier *memory_tier;    /* checkpoints in memory; NULL: none */
	const struct sheaf_notify *notify;              /* announces checkpoints; NULL: no
	                                                 * announcements */
};
/* Creates the run directory if there is none. */
#define SHEAF_RUN_CREATE     0x10000ULL
/* Opens the run for reading: takes no lock, writes nothing and cleans nothing up. */
#define SHEAF_RUN_READONLY   0x20000ULL
/* Compares the replicas of different ranks at each save. EDIVERGED names a tensor and a rank where
 * they differ. Slices of one and the same rank are not compared with each other. */
#define SHEAF_RUN_REPLICAS   0x40000ULL
/* Reads and writes only through the page cache, never with O_DIRECT. */
#define SHEAF_RUN_BUFFERED   0x80000ULL
/* Loads and reads without checking, so the contents of damaged blocks are loaded as they are. Meant
 * to get values out of a damaged checkpoint, not for training. */
#define SHEAF_RUN_UNVERIFIED 0x100000ULL
/* Records the times of each finished save: rank 0 appends a line of JSON to .sheaf/metrics.jsonl,
 * which `sheaf stats` reads. The files take at most 2 MiB. Costs one more small collective per
 * commit. A failure here is logged and fails no save. */
#define SHEAF_RUN_METRICS    0x200000ULL

/* Opens a run. For writing it takes the lock of the run, checks that all ranks see the same file
 * system, and deletes what dead jobs left in .sheaf/stage. It waits for the lock for 30 s, or half
 * of opts->timeout_ms if that is less.
 * run    receives the run. Close it with sheaf_run_close.
 * dir    directory of the run.
 * group  the ranks; NULL: this process alone.
 * opts   NULL: defaults.
 * ENOENT: there is no such directory, and SHEAF_RUN_CREATE is not set.
 * EBUSY: another process has the run open for writing.
 * [collective] */
int  sheaf_run_open(struct sheaf_run **run, const char *dir, struct sheaf_group *group,
                    const struct sheaf_opts *opts, struct sheaf_error *err);
/* Closes a run. It first waits until all saves that were submitted on all ranks are committed or
 * have failed. Other uncommitted saves are aborted. A save that is being published is completed if
 * the disk allows it, but is not announced (sheaf_notify). The lock is released when the last
 * handle of the run is closed or freed. [collective] */
void sheaf_run_close(struct sheaf_run *run);
/* Lists the numbers of the checkpoints on disk, in ascending order. Stores at most n of them in
 * steps, and returns how many there are. [local] */
int  sheaf_run_steps(struct sheaf_run *run, int64_t *steps, size_t n, struct sheaf_error *err);

/* Makes an empty state. Returns NULL if there is no memory; every call accepts that NULL, and the
 * next collective call returns ENOMEM on all ranks. Free the state with sheaf_state_free.
 * [local] */
struct sheaf_state *sheaf_state_new(void);
/* Adds a slice to a state, and returns its number: 0, 1, ... Call it for all that this rank holds,
 * before the first sheaf_save_begin of the state; after that it is EINVAL.
 * - One tensor may be added many times, as pieces, or by several ranks as replicas. Pieces of one
 *   rank may overlap if the common items have the same values. Only two slices of exactly the
 *   same items, in different memory, need SHEAF_SLICE_COPY.
 * - The result need not be checked: after a failure the next collective call that uses the state
 *   returns its code. ENOMEM if the state is NULL.
 *
 * [local] */
int  sheaf_state_add(struct sheaf_state *state, const struct sheaf_slice *slice,
                     struct sheaf_error *err);
/* Gives a slice other memory: `data` replaces sheaf_slice.data. Call it when a tensor has moved,
 * such as an optimizer state that was allocated again. EINVAL while a lazy save may still read the
 * old memory, because sheaf_save_wait_copied has not returned 0 for the slice. Then call that, and
 * this again. Until it has succeeded, saves and loads of the state fail. [local] */
int  sheaf_state_move(struct sheaf_state *state, int slice, void *data, struct sheaf_error *err);
/* Gives all slices of a state other memory, as sheaf_state_move does for one. data[i] belongs to
 * slice i, and n is the number of slices. n counts the averages that sheaf_state_ema has added,
 * too; their entries are not used. If one slice cannot be moved, none is. [local] */
int  sheaf_state_move_all(struct sheaf_state *state, void *const *data, size_t n,
                          struct sheaf_error *err);
/* Makes the next collective call with this state fail with EFAILED and this reason on all ranks.
 * Call it if this rank cannot describe what it holds, and then make that collective call all the
 * same (sheaf_save_begin or a load), because the other ranks wait in it. The state is of no use
 * afterwards. [local] */
int  sheaf_state_fail(struct sheaf_state *state, const char *why, struct sheaf_error *err);
/* Adds opaque bytes of this rank, such as the state of a random generator. They are stored as the
 * U8 tensor <stream>/<rank> of family "ranks".
 * stream      name of the stream.
 * rule        what a load on another number of ranks does. The rule that was saved with the bytes
 *             counts, not that of the job that loads:
 *             NULL or "strict": ELAYOUT. "drop": leaves the memory as it is. "modulo": rank r
 *             loads the bytes of rank r modulo the number of ranks that saved.
 * rank        this rank.
 * ranks       number of ranks of this job's group, even if the state is only loaded.
 * data        the memory, borrowed as that of a slice.
 * bytes       its size.
 * Returns the number of the slice, as sheaf_state_add does. To load the rest of a checkpoint
 * without the stream, put "ranks/<stream>/" followed by a star into sheaf_opts.ignore. [local] */
int  sheaf_state_rank_bytes(struct sheaf_state *state, const char *stream, const char *rule,
                            int32_t rank, int32_t ranks, void *data, size_t bytes,
                            struct sheaf_error *err);
/* Frees a state. Allowed during a save. Keep the memory of slices that a lazy save has not copied
 * yet. [local] */
void sheaf_state_free(struct sheaf_state *state);

/* Options of sheaf_save_begin. */
struct sheaf_save_opts {
	uint32_t size;
	uint32_t reserved;
	uint64_t flags;                 /* SHEAF_SAVE_... */
	double loss;                    /* loss of this step, for averages (sheaf-state.h); same
	                                 * on all ranks */
};
/* Asynchronous checkpoint: begin returns before anything is copied, and threads of sheaf copy the
 * slices in the background. Before the memory of a slice changes, call sheaf_save_wait_copied for
 * it. Do not load into the state before that.
 * - Slices are copied in the order in which the gates were called in the save before; in the first
 *   save in the order in which they were added.
 * - If sheaf_staging.bytes_max is set and cannot hold the whole state, begin copies everything
 *   after all, and sheaf_stat.at_once is 1.
 * - From the second lazy save of a state on, begin costs one small collective and does not touch
 *   the disk, unless there are slices in place (SHEAF_SLICE_IN_PLACE). The files are created by the
 *   first sheaf_save_advance or sheaf_save_commit of the save, or after its sheaf_save_submit, and
 *   nothing is written to disk before. So call one of them soon after begin. They also report what
 *   is wrong with the save (EEXIST, no space). */
#define SHEAF_SAVE_LAZY     0x100000000ULL
/* Saves to the memory tier only, and updates averages. Nothing is written to disk. After the commit
 * a later job finds the checkpoint in memory. Needs two staging buffers, which lazy saves have by
 * default; otherwise set sheaf_staging.buffers_max to 2. With fewer, begin is EINVAL. Such saves
 * are committed in the order in which they began, independently of saves to disk. Two errors mean
 * that this checkpoint is not kept and training goes on: EAGAIN from begin, if some node has no
 * agent; and EFAILED from commit, if an agent has ended since or has no memory left. */
#define SHEAF_SAVE_NO_DISK  0x200000000ULL
/* Back-pressure: if no staging buffer is free, begin returns EAGAIN instead of waiting. */
#define SHEAF_SAVE_MAY_DROP 0x400000000ULL
/* For a lazy save: finds slices that change before their gate. Begin computes a checksum of all
 * that this rank copies (with SHEAF_SAVE_LATER: sheaf_save_slice_ready does), and each gate
 * computes it again. EDIVERGED names a slice that changed. Slow, because the caller reads all
 * memory twice more; meant for the first runs of a trainer. */
#define SHEAF_SAVE_CHECK    0x800000000ULL
/* For a lazy save: a slice is not read before sheaf_save_slice_ready was called for it, and its
 * data may be NULL until then. Some ranks may set this flag and others not. EINVAL with averages,
 * with slices in place, or if sheaf_staging.bytes_max does not hold the whole state. */
#define SHEAF_SAVE_LATER    0x2000000000ULL
/* Begins a save of the state of all ranks. It copies the state to staging buffers, and when it
 * returns, the tensors may change (with SHEAF_SAVE_LAZY: each of them after its gate). Threads of
 * sheaf write the copies to disk in the background. Go on training, call sheaf_save_commit later to
 * complete the checkpoint, and then sheaf_save_free.
 * - Saves are committed in the order in which they began.
 * - If no staging buffer is free, begin carries the oldest save on until it is written, however
 *   long that takes. That save must still be committed.
 *
 * save   receives the save. Free it with sheaf_save_free.
 * step   number of the checkpoint.
 * state  what this rank holds.
 * opts   NULL: defaults.
 * EAGAIN: this save was not started, and training goes on. This happens only with
 *    SHEAF_SAVE_MAY_DROP, if no staging buffer is free, and with SHEAF_SAVE_NO_DISK.
 * EEXIST: the run has a checkpoint of that number.
 * EINVAL: an argument is wrong; the message names it.
 * ELAYOUT: the message names the tensor, and the box that is missing or does not fit.
 * [collective] */
int  sheaf_save_begin(struct sheaf_save **save, struct sheaf_run *run, int64_t step,
                      struct sheaf_state *state, const struct sheaf_save_opts *opts,
                      struct sheaf_error *err);
/* Adds a file to the checkpoint, such as config.json. The bytes are copied.
 * file    a plain name: [A-Za-z0-9._-]{1,128}, not sheaf.*, rank-bytes.* or *.safetensors*, and not
 *         the name of a family that has a folder in the checkpoint. If two ranks give the same
 *         name, the bytes must be equal.
 * bytes   the contents.
 * n       their size, at most 64 MiB.
 * EINVAL: not allowed, given twice, or too late: call it before the first commit, advance or
 *         submit of the save. The save goes on without the file, and log has a warning with the
 *         reason.
 * ENOMEM: the save fails.
 * [local] */
int  sheaf_save_attach(struct sheaf_save *save, const char *file, const void *bytes, size_t n,
                       struct sheaf_error *err);
/* Adds a note, a key with a value, to the manifest of the checkpoint. Both are copied. The notes of
 * a checkpoint are at most 512 KiB together. They also count for the manifest, which must stay
 * below 1 MiB; a control character in a note takes 6 bytes there.
 * key     [A-Za-z0-9._/-]{1,64}, not ranks.*.
 * value   a string of at most 64 KiB. One rank may give a note, or several ranks the same value.
 * EINVAL: as for sheaf_save_attach.
 * ENOMEM: the save fails.
 * [local] */
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
/* The gate of a slice in a lazy save: call it before the slice's memory changes, for example just
 * before the optimizer step. It copies or waits for what is not copied yet. Does not communicate.
 * slice       the number of the slice, or SHEAF_ALL_SLICES.
 * timeout_ms  how long it waits at most; negative: as long as the run allows.
 * 0: the memory of the slice may change. This save does not read it any more, neither for this
 *    slice nor for another one in the same memory: a tied tensor, a slice that was added twice,
 *    pieces that overlap, F32 masters that are also stored as a BF16 model. The gate of each waits
 *    until all of them are copied and their averages are made. Slices count as in the same memory
 *    if the bytes from the first to the last item of one overlap with those of another.
 * EAGAIN: not yet, after timeout_ms.
 * EINVAL: there is no such slice, or it is not ready yet (SHEAF_SAVE_LATER).
 * Any other code: the save has failed. It does not read the memory any more either.
 *
 * - The gate is open at once in a save that is not lazy, and where this save reads nothing of the
 *   memory because another rank writes the same bytes.
 * - Each save has its own gates: memory that two saves read may change after the gates of both.
 * - sheaf_save_commit copies what is left. When it has returned 0, no gate needs to be called.
 * - All threads must have returned from it before the save is freed.
 *
 * [any thread] */
int  sheaf_save_wait_copied(struct sheaf_save *save, int slice, int timeout_ms,
                            struct sheaf_error *err);
/* The gates of several slices in one call, in the order of the list: does what
 * sheaf_save_wait_copied does for each of them, with one timeout for all.
 * slices      the numbers of the slices.
 * n           how many there are.
 * timeout_ms  how long it waits at most; negative: as long as the run allows.
 * 0: the memory of all of them may change.
 * EAGAIN: one of them is not copied yet, after timeout_ms.
 * EINVAL: there is no slice of one of these numbers, or one is not ready yet (SHEAF_SAVE_LATER).
 * Any other code: the save has failed. [any thread] */
int  sheaf_save_slices_copied(struct sheaf_save *save, const int *slices, size_t n, int timeout_ms,
                              struct sheaf_error *err);
/* In sheaf_save_wait_copied: all slices of the state, for a caller that changes all of them at
 * once. No code of sheaf_state_add has this value, so an error that was overlooked does not mean
 * "all". */
#define SHEAF_ALL_SLICES INT32_MIN
/* Says, in a save with SHEAF_SAVE_LATER, that a slice now holds the values of the step and may be
 * copied until its gate. Two uses: a layer is copied as soon as it is final, while others are still
 * computed; and state on a device or in a file is sent through a few host buffers: fill a buffer,
 * call this, call the gate (sheaf_save_wait_copied), and fill the buffer again.
 *
 * Until all slices are ready, commit is refused and names one that is not, no other save begins
 * (EINVAL), and sheaf_save_wait_copied is EINVAL for slices that are not ready. The gate of a slice
 * waits only for slices in the same memory that are ready when the gate is called, so one buffer
 * can serve one slice after another.
 * slice  its number. Each slice once, in any order; an empty slice may be left out.
 * data   where the slice is in this save, with the strides, origin and flat range of the state;
 *        NULL: the memory of the state.
 * EINVAL: the slice is ready already, or the save has no SHEAF_SAVE_LATER. The error is not
 *    remembered.
 * [any thread] */
int  sheaf_save_slice_ready(struct sheaf_save *save, int slice, const void *data,
                            struct sheaf_error *err);
/* Does in one call what sheaf_save_slice_ready does for each slice of a list, with data NULL: all
 * of them lie in the memory of the state.
 * slices  the numbers of the slices.
 * n       how many there are.
 * EINVAL: one of them was ready already, and those before it in the list are ready now; or the call
 *    was wrong in another way, and nothing happened. The error is not remembered.
 * [any thread] */
int  sheaf_save_slices_ready(struct sheaf_save *save, const int *slices, size_t n,
                             struct sheaf_error *err);
/* Returns whether this rank has done its part of the save: all that it copies is copied, and all
 * that it writes without bytes of other nodes is written and synced. Pieces that need bytes of
 * other nodes are written later, in sheaf_save_advance or sheaf_save_commit. Use it for displays
 * and logs. Does not communicate, so the answer must not decide whether a [collective] call is
 * made.
 * 0: its part is done. Nothing is durable before the commit, all the same.
 * EAGAIN: not yet.
 * Any other code: the save has failed. [any thread] */
int  sheaf_save_ready(struct sheaf_save *save, struct sheaf_error *err);
/* Estimates in how many milliseconds a commit could return 0, as far as this rank is concerned and
 * if the job did nothing else from now on. Use it to decide whether there is time for a save before
 * a deadline. The estimate is based on the speed of this save, or of the earlier saves of the run.
 * It covers this rank only: the save takes as long as the rank with the largest value.
 * 0: The save is committed; never returned before that.
 * -1: The save has failed, or nothing is known yet, as in the first save of a run until part of it
 *    is written.
 * [any thread] */
int64_t sheaf_save_eta_ms(struct sheaf_save *save);
/* Aborts a save whose state is no good. The next advance or commit returns EFAILED on all ranks,
 * and so does a call that another thread has in progress. Agents do not keep the checkpoint either.
 * Unless the save was submitted, this rank must still call sheaf_save_commit and then
 * sheaf_save_free, because the other ranks wait in the commit and get the error there. (Otherwise a
 * replica on another node might keep the checkpoint in memory.)
 * why    the reason, which becomes the message of EFAILED; copied.
 * EINVAL: too late: the save is committed, or all ranks have agreed to publish it. Nothing
 *    happened.
 * [any thread] */
int  sheaf_save_abort(struct sheaf_save *save, const char *why, struct sheaf_error *err);
/* Completes a save: waits until every rank has written its part, and publishes the checkpoint.
 * Every save needs it once, unless sheaf_save_advance has returned 0 or the save was submitted. To
 * keep the wait short, call it some training steps after begin, for example before the next
 * sheaf_save_begin. Nothing of a lazy save is written before the first call; start it with
 * sheaf_save_advance. What is left of a lazy save is copied by this call, so a trainer whose
 * tensors no longer change, as at its end, need not call the gates.
 * timeout_ms  how long it waits at most; the shortest of all ranks counts. With 0 it does not wait,
 *             as sheaf_save_advance. Negative: as long as the run allows.
 * 0: the checkpoint is complete and survives a power loss.
 * EAGAIN: it is not committed after timeout_ms. What was begun goes on; call again.
 * EINVAL: a save that was begun before this one is not committed, or with SHEAF_SAVE_LATER a slice
 *    is not ready; msg names it. Nothing happened; call again.
 * EFAILED: the save was aborted, or the notes and attached files of its ranks differ or do not fit
 *    into one manifest.
 * EDIVERGED: replicas differ, or with SHEAF_SAVE_CHECK a slice changed before it was copied.
 * EINDOUBT: the checkpoint exists and is complete, but a power loss may still remove it. Save the
 *    next step soon.
 * ELOST: a rank was lost. sheaf_run_steps, after opening the run again, says whether the checkpoint
 *    is there.
 * Any other code: the checkpoint does not exist and never will.
 *
 * With a deadline, as after SIGTERM, begin that save with SHEAF_SAVE_LAZY, so that the copy is a
 * part of the commit. Pass the time that is left, or 0 if there is none, because a negative number
 * means the default, which is minutes:
 * - Copies, writes and transfers end when the time is up. The call may last longer by one small
 *   collective and one chunk of a transfer (4 MiB at first, later as much as takes 0.1 s).
 * - Creating the files and publishing cannot be interrupted. If less time is left for one of the
 *   two than it took in the last two saves, the call returns EAGAIN and does not begin it. The next
 *   call begins it all the same, and may then overrun its timeout_ms. In the first save since the
 *   run was opened there is nothing to compare with, and both are always begun.
 * - After EAGAIN with no time left call sheaf_save_free, which waits for what is being written, or
 *   exit at once. The next sheaf_run_open removes what is left, and the checkpoint never appears,
 *   unless it was being published: then it may appear, whole.
 * - With a memory tier the checkpoint may be in memory. Then msg ends in "it is in memory", and the
 *   next job or the agent can still write it to disk.
 * [collective] */
int  sheaf_save_commit(struct sheaf_save *save, int timeout_ms, struct sheaf_error *err);
/* Hands a save to the thread that commits in the background (sheaf_opts.commit_group), and returns
 * at once. Add all notes and files before. Call the gates as in every lazy save before memory
 * changes. Each rank submits its saves in the order in which they began.
 * - The thread commits a save when everything is copied on all ranks. A gate that nobody calls does
 *   not delay it, except with SHEAF_SAVE_CHECK, which needs all gates.
 * - Saves to memory only have an order of their own, and are committed while others are written.
 * - Other calls work as usual. A call that requires that no save is in flight, such as a rewind or
 *   a resume, is EINVAL until the save has finished. Begin waits for it if no staging buffer is
 *   free.
 *
 * EINVAL: the run has no such thread, the save was submitted already, or one that began before it
 *         was not submitted. Nothing happened.
 * ELOST: opts.commit_group is lost, and the save with it.
 * [local] */
int  sheaf_save_submit(struct sheaf_save *save, struct sheaf_error *err);
/* Waits for the outcome of a submitted save, and returns what sheaf_save_commit would have
 * returned. Ranks may get different answers at one time, so an EAGAIN must not decide whether a
 * [collective] function is called. If there is a deadline, pass the time that is left. After that
 * call sheaf_save_abort, or just exit, because sheaf_run_close would wait.
 * EAGAIN: the outcome is not known after timeout_ms.
 * EINVAL: the save was not submitted.
 * [any thread] */
int  sheaf_save_result(struct sheaf_save *save, int timeout_ms, struct sheaf_error *err);
/* Frees a save. Call it once for each save, normally after commit. What happens to the checkpoint
 * depends on how far the save is:
 * - Submitted: it is committed all the same, unless sheaf_save_abort was called.
 * - Being published: this call waits until the checkpoint is published or has failed. Which of the
 *   two is then unknown, so all saves that were begun later fail. To avoid that, commit first.
 * - Otherwise, if not committed: it is aborted. If commit said that it is in memory, it stays
 *   there.
 *
 * NULL is accepted. [local] */
void sheaf_save_free(struct sheaf_save *save);

/* In place of a number: the newest checkpoint, on disk or in memory. Checkpoints that are marked
 * bad, were set aside (sheaf-admin.h) or are skipped by opts.resume_attempts_max do not count.
 * - If the newest one is damaged, no older one is taken instead. The message names the damage and
 *   the command that helps. sheaf_run_resume can fall back to an older one.
 * - ENOENT means that the run has no checkpoint at all. If all are marked bad, it is ECORRUPT.
 * - A directory checkpoint-<n> without sheaf.json is no checkpoint. It is skipped, with a warning
 *   in log and in the report of the load. If there is nothing else, and the directory has a
 *   sheaf.sums, it was a checkpoint once: that is ECORRUPT, too. */
#define SHEAF_LATEST (-1)
/* Opens a checkpoint of a run, to load it, to read its notes and tensors (sheaf-inspect.h), or to
 * verify it. No prune deletes it while it is open.
 * checkpoint  receives the checkpoint. Close it with sheaf_checkpoint_close.
 * n           its number, or SHEAF_LATEST.
 * ENOENT: there is no such checkpoint.
 * ECORRUPT: the manifest is damaged or names another number.
 * [collective] */
int  sheaf_checkpoint_open(struct sheaf_checkpoint **checkpoint, struct sheaf_run *run, int64_t n,
                           struct sheaf_error *err);
/* Closes a checkpoint. [local] */
void sheaf_checkpoint_close(struct sheaf_checkpoint *checkpoint);
/* Returns the number of a checkpoint, or -1 if another program wrote it. [local] */
int64_t sheaf_checkpoint_number(const struct sheaf_checkpoint *checkpoint);
/* Returns the value of a note, or NULL if there is no such note. Valid until the checkpoint is
 * closed. [local] */
const char *sheaf_checkpoint_note(struct sheaf_checkpoint *checkpoint, const char *key);
/* What a load reports about a tensor or a checkpoint, see sheaf_report.item. */
enum sheaf_report_kind {
	SHEAF_REPORT_MISSING = 1,       /* a tensor of the state is not in the checkpoint */
	SHEAF_REPORT_UNEXPECTED = 2,    /* a tensor of the checkpoint is not in the state */
	SHEAF_REPORT_CONVERTED = 3,     /* the checkpoint has another dtype: converted */
	SHEAF_REPORT_UNVERIFIED = 4,    /* not compared as a whole with its digest, see
	                                 * sheaf_report.unverified */
	SHEAF_REPORT_DERIVED = 5,       /* made from another family: SHEAF_LOAD_DERIVE */
	SHEAF_REPORT_IGNORED = 6,       /* by opts.ignore or SHEAF_SLICE_SAVE_ONLY */
	SHEAF_REPORT_MISMATCHED = 7,    /* the checkpoint has another shape: memory left as it is */
	SHEAF_REPORT_ZEROED = 8,        /* filled with zeros: SHEAF_LOAD_ZERO */
	SHEAF_REPORT_STREAM = 9,        /* bytes of ranks (sheaf_state_rank_bytes) saved by another
	                                 * number of ranks; msg names the rule that was applied */
	/* A checkpoint was skipped in the search for the latest; msg says why. On rank 0 only.
	 * family is "", name is like "checkpoint-8". */
	SHEAF_REPORT_PASSED_OVER = 10,
	/* A checkpoint was set aside. On rank 0 only. family is "", name is like "checkpoint-8". */
	SHEAF_REPORT_SET_ASIDE = 11
};
/* Returns the name of a kind, such as "missing", or NULL if there is no such kind. Static.
 * [any thread] */
const char *sheaf_report_kind_name(int32_t kind);
/* What a load or a verification found. The caller sets size, item, finding and arg; the call sets
 * the rest. Callbacks run on the thread of the caller, on the rank that has the slice or the file.
 * Tensors are counted over all ranks, each of them once. */
struct sheaf_report {
	uint32_t size;
	uint32_t peers;                 /* 1: some of memory_bytes came from a replica on another
	                                 * node */
	/* Called for each tensor (or checkpoint) that a load reports on; may be NULL. kind: enum
	 * sheaf_report_kind. Strings are valid during the callback only. */
	void (*item)(void *arg, int32_t kind, const char *family, const char *name,
	             const char *msg);
	/* Called for each finding of a verification; may be NULL. */
	void (*finding)(void *arg, const struct sheaf_finding *finding);
	void *arg;                      /* passed to item and finding */
	uint64_t loaded;                /* tensors that were loaded */
	uint64_t missing;               /* tensors of the state that the checkpoint lacks */
	uint64_t unexpected;            /* tensors of the checkpoint that the state lacks */
	uint64_t converted;             /* tensors that were converted */
	uint64_t derived;               /* tensors made from another family */
	uint64_t ignored;               /* tensors that were ignored */
	uint64_t mismatched;            /* tensors of another shape: memory left as it is */
	uint64_t zeroed;                /* tensors filled with zeros */
	uint64_t unverified;            /* tensors that no rank has compared with their digest as a
	                                 * whole, which is normal if ranks load parts of them. Each
	                                 * block was checked all the same, unless there are no
	                                 * checksums, or SHEAF_RUN_UNVERIFIED is set */
	uint64_t findings;              /* verification: number of findings */
	uint64_t files;                 /* load: tensor files; verification: files checked */
	uint64_t disk_bytes;            /* over all ranks: read from disk */
	uint64_t node_bytes;            /* over all ranks: taken from another rank of the node */
	uint64_t net_bytes;             /* over all ranks: sent to other nodes */
	uint64_t held;                  /* over all ranks: bytes of slices that were filled */
	uint64_t bytes;                 /* over all ranks: size of the tensors that were loaded,
	                                 * each counted once and whole; without tensors that
	                                 * were derived, zeroed or left as they were */
	uint64_t retries;               /* over all ranks: reads repeated after an error */
	uint64_t plan_ns;               /* time for planning, this rank */
	uint64_t read_ns;               /* time for reading, this rank */
	uint64_t verify_ns;             /* time for checking, this rank */
	uint64_t memory_bytes;          /* over all ranks: read from the memory tier */
	int64_t step;                   /* load: number of the checkpoint; -1: written by another
	                                 * program */
	uint32_t memory;                /* 1: the checkpoint was in memory */
	uint32_t passed;                /* sheaf_run_resume: damaged checkpoints it skipped */
};

/* A tensor of the checkpoint that the state lacks, in a family that the state has, is ELAYOUT. */
#define SHEAF_LOAD_STRICT  0x1000000000000ULL
/* The type in the checkpoint may differ from sheaf_slice.dtype. Values are converted. */
#define SHEAF_LOAD_CONVERT 0x2000000000000ULL
/* Plans the load and fills the report, but reads no tensor. */
#define SHEAF_LOAD_DRY     0x4000000000000ULL
/* Makes tensors that the checkpoint lacks from the same tensors of another family:
 * - Tensors of master_weights are converted from those of model. Use it to continue training from a
 *   checkpoint that has only the model.
 * - Tensors of model whose slice has dtype and data_dtype BF16, or both F16, are made from those of
 *   master_weights in F32, rounded to nearest even. So a trainer that rounds the same way can leave
 *   the model out of its checkpoints: with Adam that is 12 bytes for a parameter instead of 14. */
#define SHEAF_LOAD_DERIVE  0x8000000000000ULL
/* Fills absent tensors of family optimizer with zeros, to start the optimizer afresh on weights
 * that were saved without it. */
#define SHEAF_LOAD_ZERO    0x10000000000000ULL
/* Leaves the memory of tensors that are absent, or have another shape, as it is. */
#define SHEAF_LOAD_LENIENT 0x20000000000000ULL
/* Fills the slices of a state from a checkpoint, whatever layout it was saved in. What cannot be
 * filled is found before any memory is changed. After another failure the contents of the slices
 * are undefined. If the run is open for writing, the first load of a job counts as a resume
 * attempt, until the job saves again or closes the run (see opts.resume_attempts_max). So open the
 * run with SHEAF_RUN_READONLY to evaluate.
 * flags   SHEAF_LOAD_..., or 0.
 * report  receives what was found; may be NULL.
 * ELAYOUT: one of these:
 * - A tensor is absent, and is not SHEAF_SLICE_OPTIONAL, ignored, derived or zeroed.
 * - A tensor has another shape, or without SHEAF_LOAD_CONVERT another type, than its slice.
 * - Slices that share memory would be filled from tensors of different types, at least one of them
 *   converted (see SHEAF_SLICE_SAVE_ONLY).
 * ECORRUPT: the checkpoint is damaged.
 * EAGAIN: the checkpoint is in memory, and a job that goes on saving has replaced it by a newer
 *    one. Open SHEAF_LATEST again. Verifications, reads, copies and exports can return this, too.
 * [collective] */
int  sheaf_checkpoint_load(struct sheaf_checkpoint *checkpoint, struct sheaf_state *state,
                           uint64_t flags, struct sheaf_report *report, struct sheaf_error *err);
/* For sheaf_run_resume only: if the latest checkpoint is damaged, loads an older one. Set it where
 * a job that loses some steps is better than one that waits for a person. */
#define SHEAF_LOAD_FALLBACK 0x40000000000000ULL
/* Loads the latest checkpoint of a run: the start of a training job. It is sheaf_checkpoint_open
 * with SHEAF_LATEST, sheaf_checkpoint_load and sheaf_checkpoint_close in one call. ENOENT means
 * that the run has no checkpoint, and the state is unchanged: then start the training afresh.
 * flags   SHEAF_LOAD_..., or 0.
 * report  receives what was found; may be NULL. report->step is the number of the checkpoint, and
 *         report->memory is 1 if it was in memory. After an error report->step is the number of
 *         the checkpoint that could not be loaded, or -1 if none was opened.
 *
 * With SHEAF_LOAD_FALLBACK, if the latest checkpoint is damaged, an older one is loaded instead:
 * - If the damaged one was read from memory, its copy on disk is tried next, and then each older
 *   checkpoint.
 * - Damaged means: ECORRUPT, confirmed by reading the whole checkpoint again, past the page cache.
 *   After any other error nothing else is tried. EFORMAT is no damage: a newer sheaf wrote that
 *   checkpoint, and it stays where it is.
 * - The checkpoint that is loaded is verified completely, including tensors that the state does not
 *   hold.
 * - It must fill every slice that the damaged one had begun to fill. Otherwise a slice that it
 *   leaves as it is (SHEAF_SLICE_OPTIONAL, SHEAF_LOAD_LENIENT, or a stream whose rule is "drop")
 *   would hold values of the damaged one. That is ELAYOUT, and the message names the slice. Then
 *   rewind to that checkpoint (sheaf_run_rewind), and start the job again.
 * - After the load the newer checkpoints are set aside, as by sheaf_run_rewind, and damaged ones in
 *   memory are discarded. With SHEAF_RUN_READONLY they stay.
 * - On rank 0 report->item is called for each checkpoint that was skipped
 *   (SHEAF_REPORT_PASSED_OVER) or set aside (SHEAF_REPORT_SET_ASIDE). report->passed counts those
 *   that were skipped because they are damaged. Items for tensors concern only the checkpoint that
 *   was tried last, and come after the load.
 *
 * Returns the codes of sheaf_checkpoint_open and sheaf_checkpoint_load. If no checkpoint can be
 * loaded, the error is that of the first.
 * EINVAL: SHEAF_LOAD_FALLBACK is set, and a save is in flight or SHEAF_LOAD_DRY is set, too.
 * [collective] */
int  sheaf_run_resume(struct sheaf_run *run, struct sheaf_state *state, uint64_t flags,
                      struct sheaf_report *report, struct sheaf_error *err);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
