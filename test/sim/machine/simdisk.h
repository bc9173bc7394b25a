/* SPDX-License-Identifier: Apache-2.0 */
/* A disk, a clock and a node's shared memory that exist only in memory: struct shf_sys for many
 * simulated processes, with power cuts at every call, lost and torn writes, failing calls.
 *
 * What is durable is modelled apart from what is seen. Each changing call appends a record to a
 * log. A *cut* is a point right after a record; cut 0 is before the first. At a cut, a record's
 * *items* are durable when a later, successful fsync before the cut covers them. Every other item
 * is *unsynced*: a power cut may keep it or lose it, in any combination the model allows.
 * simdisk_crash builds the disk that one choice leaves.
 *
 *   item          | made by                    | durable after
 *   data          | pwrite                     | fsync of that file, by the node that wrote it
 *   size          | pwrite past the end,       | fsync of that file, by anyone
 *                 | resize, O_TRUNC            |
 *   entry added   | create, mkdir, rename      | fsync of that directory, by anyone
 *   entry removed | unlink, rmdir, rename      | fsync of that directory, by anyone
 *
 * A failed fsync leaves what it should have written unsynced for ever: the kernel has marked it
 * clean, and a later fsync returns 0 without writing it. Close and exit make nothing durable.
 *
 * Models:
 *   STRICT  Everything above, and nothing more: a rename is two items, so that after a cut a file
 *           or directory may have both names or none; the size of a write that extends is apart
 *           from its data (lost data reads as zeros, a lost size cuts the file).
 *   EXT4    A rename is one item. Entry items of one directory persist in order: one that is
 *           kept although an earlier of the same directory is lost, is lost. fsync of a file also
 *           makes its entries durable, and fsync of a directory all that came before in it. An
 *           extending write and its size are one item.
 *   NFS     Entries and resizes are durable at once (the server does them); data and the size of
 *           an extending write wait for fsync. There is no RENAME_NOREPLACE for sys to see and
 *           fsync of a directory is -EINVAL.
 *
 * Calls of several threads that take turns are fine: one mutex a disk. Everything is a function
 * of the seed and the order of calls. Out of memory stops the program: this is a test's tool, and
 * its memory does not come from shf_alloc, whose failures tests provoke.
 */
#ifndef SIMDISK_H
#define SIMDISK_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "sys.h"

struct simdisk;
enum simdisk_model { SIMDISK_STRICT, SIMDISK_EXT4, SIMDISK_NFS };

/* Makes a disk with an empty root directory, which is also SHF_CWD. */
struct simdisk *simdisk_new(uint64_t seed, enum simdisk_model model);
/* Frees the disk. Stops the program, and says why on stderr, if something was not given back: a
 * living process has a descriptor (a forked child may have what it inherited), an offer or a
 * connection, or any process has a queue, a task or shared memory. */
void simdisk_free(struct simdisk *disk);
/* The same, but kills all processes first, so that only queues, tasks and shared memory must have
 * been given back. */
void simdisk_abandon(struct simdisk *disk);

/* Makes a process. The result is owned by the disk and valid until simdisk_free. Processes on the
 * same node share memory, a boot ID and a PID namespace. */
const struct shf_sys *simdisk_process(struct simdisk *disk, uint64_t pid, int node);
/* Kills a process, as kill -9: its descriptors, locks, offers and connections are closed; what it
 * wrote stays, unsynced. Its later calls return -ESHUTDOWN (memory can still be freed), and
 * owner_is_dead finds it dead. */
void simdisk_kill(struct simdisk *disk, const struct shf_sys *process);
/* Makes a child of the process, on the same node. It has the parent's descriptors under the same
 * numbers, and each is the same open file description: its lock is held until the last descriptor
 * of it is closed, in whichever process, or until one of them unlocks it. Files that the child
 * opens are its own. Threads, queues, shared memory and connections stay the parent's. */
const struct shf_sys *simdisk_fork(struct simdisk *disk, const struct shf_sys *parent,
                                   uint64_t child_pid);
/* Makes `process` the one that makes the calls through `view`; NULL: view itself again. A handle
 * keeps the view with which it was opened: in this way a forked child uses and frees the handles
 * that it has inherited. */
void simdisk_act_as(const struct shf_sys *view, const struct shf_sys *process);
/* Simulates the name cache of a network file system's client: from now on the process looks up and
 * lists the directory at `path` as it is at this moment, whatever other processes do there. That
 * ends after ms milliseconds, or with simdisk_fresh (-1: only with that). The server executes what
 * the process itself creates, renames or removes, with the real names. A name whose file is gone is
 * -ESTALE. At most 4 directories in a process. */
void simdisk_stale(struct simdisk *disk, const struct shf_sys *process, const char *path,
                   int64_t ms);
void simdisk_fresh(struct simdisk *disk, const struct shf_sys *process);
/* Returns the number of open descriptors of the process. */
size_t simdisk_open_n(const struct shf_sys *process);
bool simdisk_is_dead(const struct shf_sys *process);
/* Sets a function that is called before each counted call and each sleep, by the calling thread and
 * without locks, so that other ranks can run there. NULL: none. */
void simdisk_set_turn(struct simdisk *disk, void (*turn)(void *arg), void *arg);

/* Calls that are counted, traced and can fail. A queue's requests are counted as PREAD, PWRITE,
 * FSYNC when they are performed. Not counted: pid, clocks, sleep, complete, frees. */
enum simdisk_kind {
	SIMDISK_ANY, SIMDISK_OPEN, SIMDISK_CLOSE, SIMDISK_MKDIR, SIMDISK_RENAME, SIMDISK_UNLINK,
	SIMDISK_FSYNC, SIMDISK_RESIZE, SIMDISK_PREAD, SIMDISK_PWRITE, SIMDISK_STAT, SIMDISK_FSTAT,
	SIMDISK_LIST, SIMDISK_READLINK, SIMDISK_LOCK, SIMDISK_UNLOCK, SIMDISK_FREE_BYTES,
	SIMDISK_RANDOM, SIMDISK_OWNER, SIMDISK_QUEUE_NEW, SIMDISK_SUBMIT, SIMDISK_TASK_NEW,
	SIMDISK_SHM_NEW, SIMDISK_SHM_OFFER, SIMDISK_SHM_CONNECT,
	SIMDISK_SHM_SERVE, SIMDISK_SHM_TAKE, SIMDISK_KEEP, SIMDISK_KINDS
};
enum simdisk_how {
	SIMDISK_INSTEAD,                /* returns the error and does nothing; fsync: the unsynced
	                                 * data never becomes durable; close: the descriptor is
	                                 * closed */
	SIMDISK_AFTER,                  /* does the call, returns the error (as NFS may) */
	SIMDISK_PART,                   /* pwrite: writes the first half, then returns the error;
	                                 * pread: returns half of the data, as for a file that has
	                                 * just become shorter */
	SIMDISK_KILL,                   /* the process dies before the call */
	SIMDISK_JUMP,                   /* the wall clock jumps by jump_s before the call */
	SIMDISK_ZERO                    /* open: done, and the descriptor is 0, as if standard input
	                                 * was closed; otherwise no descriptor is 0 */
};
struct simdisk_fault {
	int nth;                        /* the nth matching call from now on; 1: the next */
	int error;                      /* errno, positive */
	enum simdisk_kind kind;
	enum simdisk_how how;
	bool always;                    /* also every later matching call */
	const struct shf_sys *process;  /* may be a copy of the view; NULL: any */
	const char *name;               /* part of the file's last name; copied; NULL: any */
	int64_t jump_s;
};
void simdisk_fault(struct simdisk *disk, const struct simdisk_fault *fault);
void simdisk_fail_at(struct simdisk *disk, int nth, int error); /* any kind, any process */
int simdisk_fired(const struct simdisk *disk);  /* number of calls that met a fault */
void simdisk_faults_clear(struct simdisk *disk);        /* also resets simdisk_fired */

/* Makes the nth fsync from now on (1: the next) do nothing and return 0; 0: none. A queue's fsyncs
 * are counted when they are submitted. The next two functions return how many there were since
 * then, and the last name of the file that the skipped one should have synced ("": none was
 * skipped). */
void simdisk_skip_fsync(struct simdisk *disk, long nth);
long simdisk_fsyncs(const struct simdisk *disk);
const char *simdisk_skipped(const struct simdisk *disk);

size_t simdisk_calls(const struct simdisk *disk);       /* counted calls so far */
/* Text of call i < simdisk_calls: "7 openat(/run, \"lock\", wc) = 4099". */
const char *simdisk_call_text(const struct simdisk *disk, size_t i);
/* Sets whether calls are traced, which is the default, or only counted. */
void simdisk_set_trace(struct simdisk *disk, bool trace);
void simdisk_print(struct simdisk *disk, FILE *out);    /* the calls, then the tree */

/* Limits and properties; may be changed at any time. */
void simdisk_set_space(struct simdisk *disk, uint64_t bytes);   /* for all files, in pages */
uint64_t simdisk_used(const struct simdisk *disk);
void simdisk_set_read_only(struct simdisk *disk, bool read_only);       /* -EROFS */
void simdisk_set_locks(struct simdisk *disk, bool work);        /* false: each lock succeeds */
/* Makes nodes containers on one machine: they have the same boot ID, but each has its own PID
 * namespace and memory. */
void simdisk_set_one_kernel(struct simdisk *disk, bool one);
void simdisk_set_dir_fsync(struct simdisk *disk, bool works);   /* false: -EINVAL */
void simdisk_set_shm(struct simdisk *disk, bool connects, uint64_t bytes_max);
/* Limits the memory of a node; 0, the default: no limit. A process that allocates more is killed,
 * as by a kernel that overcommits. shm_new fails only if the memory would not fit if this process
 * were alone on the node: it does not see what other processes take. */
void simdisk_set_memory(struct simdisk *disk, int node, uint64_t bytes);
/* Gives each node an agent for each run directory in which a process looks for one. Each agent
 * keeps its own names, up to bytes_max (0, the default: there are no agents). `run` below is the
 * identity of a run directory (shf_store_identity). A process that names none gets the first agent
 * of its node. */
void simdisk_set_agents(struct simdisk *disk, uint64_t bytes_max);
/* Sets how many steps a job may keep, as the agents of a node report; 0, the default: no limit. */
void simdisk_set_agent_steps(struct simdisk *disk, int node, int steps);
/* Kills all agents of a node, or one of them, as kill -9. An empty one replaces each. */
void simdisk_kill_agent(struct simdisk *disk, int node);
void simdisk_kill_agent_of(struct simdisk *disk, int node, const char *run);
size_t simdisk_agents(const struct simdisk *disk, int node);    /* number of agents of a node */
size_t simdisk_kept(const struct simdisk *disk, int node);      /* number of names that they keep */
/* Returns the largest number of jobs that one agent has names of. */
size_t simdisk_kept_jobs(const struct simdisk *disk);
/* Returns the number of names that one agent keeps. */
size_t simdisk_kept_by(const struct simdisk *disk, int node, const char *run);
/* The largest number of names and bytes in the agents of a node since the last call */
struct simdisk_held {
	size_t names;
	uint64_t bytes;
};
struct simdisk_held simdisk_held_most(struct simdisk *disk, int node);
/* Unmounts the file system and mounts it again, with other device numbers. No process may have a
 * descriptor. Its fs_id stays, unless a new one is drawn at each mount, as for NFS. */
void simdisk_remount(struct simdisk *disk);
void simdisk_set_fs_drawn(struct simdisk *disk, bool drawn);
/* Only for STRICT. true, the default: half a rename may leave a directory with two names, as one
 * inode. false: only the later name, as after a repair. */
void simdisk_set_dir_twice(struct simdisk *disk, bool twice);
void simdisk_advance(struct simdisk *disk, int64_t seconds);    /* both clocks */
int64_t simdisk_clock_ms(const struct simdisk *disk);   /* since it was made; not counted */
/* Sets how long each call of that kind takes. */
void simdisk_set_takes(struct simdisk *disk, enum simdisk_kind kind, int ms);
/* Sets how many steps of a task are done when a process asks whether it is over; -1, the default: a
 * few, at random. */
void simdisk_set_task_steps(struct simdisk *disk, long steps);
/* Sets whether data is in the page cache. 1: all; 0: none; -1, the default: all or none, at
 * random. */
void simdisk_set_resident(struct simdisk *disk, int resident);

/* Cuts have numbers 0 .. simdisk_cut_n - 1; the last one is now. To refer to this moment later,
 * keep simdisk_cut_n(disk) - 1. */
size_t simdisk_cut_n(const struct simdisk *disk);
size_t simdisk_cut_call(const struct simdisk *disk, size_t cut); /* number of calls before it */
/* Returns the number of items that are unsynced at the cut, and the text of item i. */
size_t simdisk_unsynced(struct simdisk *disk, size_t cut);
void simdisk_item_text(struct simdisk *disk, size_t cut, size_t i, char *buf, size_t n);

struct simdisk_choice {
	const uint64_t *kept;           /* bit i of word i / 64: item i is kept; NULL: none */
	unsigned tear;                  /* 0; 512 or 4096: of each data item that is kept, only some
	                                 * units of that size persist (a prefix, a suffix or any),
	                                 * by seed */
	uint64_t seed;
};
/* Returns the disk after a power cut there: a new disk of the same model, with everything durable,
 * rebooted, without processes and faults, an hour later. choice NULL: all unsynced items are
 * lost. */
struct simdisk *simdisk_crash(struct simdisk *disk, size_t cut,
                              const struct simdisk_choice *choice);
/* Returns the disk after a power cut now, with everything kept; NULL: too much is unsynced. */
struct simdisk *simdisk_twin(struct simdisk *disk);

/* The sets of n items to try: all of them up to all_max; for more, all sets of up to small_max
 * items, their complements, and `seeded` random ones. Each of the three may be lowered between
 * begin and the first next.
 *
 *      for (simdisk_sets_begin(&s, n, seed); simdisk_sets_next(&s);)
 *              ... simdisk_crash(disk, cut, &(struct simdisk_choice){ .kept = s.kept });
 *      simdisk_sets_end(&s);
 */
struct simdisk_sets {
	unsigned all_max, small_max;    /* 12, 3 */
	uint64_t seeded;                /* 2000 */
	uint64_t *kept;                 /* owned; the current set */
	size_t n;
	uint64_t seed, count;           /* count: number of sets so far */
	/* state of the iteration */
	int phase;
	bool complement;
	unsigned k;
	size_t pick[8];
	uint64_t drawn;
};
void simdisk_sets_begin(struct simdisk_sets *s, size_t n, uint64_t seed);
bool simdisk_sets_next(struct simdisk_sets *s);
void simdisk_sets_end(struct simdisk_sets *s);

/* For tests: reads and changes without a process. They are not counted and never meet a fault. They
 * take a path from the root and return 0 or a negative errno. */
void simdisk_settle(struct simdisk *disk);      /* makes all durable; cuts begin at 0 again */
/* Writes a file with these bytes, and makes the directories above it. */
int simdisk_put(struct simdisk *disk, const char *path, const void *bytes, size_t n);
int simdisk_symlink(struct simdisk *disk, const char *target, const char *path);
int simdisk_remove(struct simdisk *disk, const char *path);     /* a directory with its contents */
/* Copies a tree as cp -a does, with its times, to a path that does not exist. */
int simdisk_copy(struct simdisk *disk, const char *from, const char *to);
int simdisk_flip(struct simdisk *disk, const char *path, uint64_t bit); /* of the data on disk */
bool simdisk_exists(struct simdisk *disk, const char *path);
void *simdisk_get(struct simdisk *disk, const char *path, size_t *n); /* malloc'ed, or NULL */
/* Returns a hash of the names, types, sizes and bytes below the path, or 0 if it does not exist. */
uint64_t simdisk_hash(struct simdisk *disk, const char *path);
#endif
