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

/* An empty root directory, which is also where SHF_CWD is. */
struct simdisk *simdisk_new(uint64_t seed, enum simdisk_model model);
/* Frees the disk. Stops the program, and says why on stderr, if something was not given back: a
 * living process has a descriptor (a forked child may have what it inherited), an offer or a
 * connection, or any process has a queue, a task or shared memory. */
void simdisk_free(struct simdisk *disk);
/* The same, but kills all processes first, so that only queues, tasks and shared memory must have
 * been given back. */
void simdisk_abandon(struct simdisk *disk);

/* Processes. The view is the disk's and valid until simdisk_free. node: who shares memory, has
 * one boot id and one pid namespace. */
const struct shf_sys *simdisk_process(struct simdisk *disk, uint64_t pid, int node);
/* kill -9: descriptors, locks, offers and connections go; what was written stays, unsynced. Its
 * later calls are -ESHUTDOWN (memory can still be freed), and to owner_is_dead it is dead. */
void simdisk_kill(struct simdisk *disk, const struct shf_sys *process);
/* A child of the process, on the same node. It has the parent's descriptors under the same numbers,
 * and each is the same open file description: its lock is held until the last descriptor of it is
 * closed, in whichever process, or until one of them unlocks it. What it opens from now on is its
 * own. Threads, queues, shared memory and connections stay the parent's. */
const struct shf_sys *simdisk_fork(struct simdisk *disk, const struct shf_sys *parent,
                                   uint64_t child_pid);
/* From now on the calls through `view` are made by `process`, until they are made by `view` again.
 * A handle keeps the view that it was opened with: so a forked child uses what it has inherited,
 * and so it may free it. NULL: by itself. */
void simdisk_act_as(const struct shf_sys *view, const struct shf_sys *process);
/* The client of a network file system keeps names for a while: from now on the process looks up and
 * lists the directory at `path` as it is at this moment, whatever others do there. That ends after
 * ms milliseconds, or with simdisk_fresh (-1: only so). What the process itself creates, renames or
 * removes is done by the server, with the names as they are. A name whose file is gone is -ESTALE.
 * At most 4 directories a process. */
void simdisk_stale(struct simdisk *disk, const struct shf_sys *process, const char *path,
                   int64_t ms);
void simdisk_fresh(struct simdisk *disk, const struct shf_sys *process);
/* Descriptors the process has open: 0 when it gave everything back. */
size_t simdisk_open_n(const struct shf_sys *process);
bool simdisk_is_dead(const struct shf_sys *process);
/* Called before each counted call and each sleep, by whoever makes it and without locks: to let
 * others have a turn there. NULL: nobody has. */
void simdisk_set_turn(struct simdisk *disk, void (*turn)(void *arg), void *arg);

/* Calls that are counted, traced and can fail. Work of a queue is counted as PREAD, PWRITE, FSYNC
 * when it is performed. Not counted: pid, clocks, sleep, complete, frees. */
enum simdisk_kind {
	SIMDISK_ANY, SIMDISK_OPEN, SIMDISK_CLOSE, SIMDISK_MKDIR, SIMDISK_RENAME, SIMDISK_UNLINK,
	SIMDISK_FSYNC, SIMDISK_RESIZE, SIMDISK_PREAD, SIMDISK_PWRITE, SIMDISK_STAT, SIMDISK_FSTAT,
	SIMDISK_LIST, SIMDISK_READLINK, SIMDISK_LOCK, SIMDISK_UNLOCK, SIMDISK_FREE_BYTES,
	SIMDISK_RANDOM, SIMDISK_OWNER, SIMDISK_QUEUE_NEW, SIMDISK_SUBMIT, SIMDISK_TASK_NEW,
	SIMDISK_SHM_NEW, SIMDISK_SHM_OFFER, SIMDISK_SHM_CONNECT,
	SIMDISK_SHM_SERVE, SIMDISK_SHM_TAKE, SIMDISK_KEEP, SIMDISK_KINDS
};
enum simdisk_how {
	SIMDISK_INSTEAD,                /* the error, and nothing done; fsync: what was unsynced is
	                                 * never made durable; close: the descriptor goes */
	SIMDISK_AFTER,                  /* done, and reported as the error (NFS renames do that) */
	SIMDISK_PART,                   /* pwrite: the first half is done, then the error; pread:
	                                 * half of what is there, and no error, as of a file that
	                                 * has just become shorter */
	SIMDISK_KILL,                   /* the process dies before the call */
	SIMDISK_JUMP,                   /* done as ever, but the wall clock jumps by jump_s first */
	SIMDISK_ZERO                    /* open: done, and the descriptor is 0, as it may be where
	                                 * standard input is closed; else no descriptor is */
};
struct simdisk_fault {
	int nth;                        /* the nth matching call from now on; 1: the next */
	int error;                      /* errno, positive */
	enum simdisk_kind kind;
	enum simdisk_how how;
	bool always;                    /* and every matching call after it */
	const struct shf_sys *process;  /* it, or a copy of it; NULL: any */
	const char *name;               /* part of the file's last name; NULL: any; copied */
	int64_t jump_s;
};
void simdisk_fault(struct simdisk *disk, const struct simdisk_fault *fault);
void simdisk_fail_at(struct simdisk *disk, int nth, int error); /* any kind, any process */
int simdisk_fired(const struct simdisk *disk);  /* how many calls a fault has met */
void simdisk_faults_clear(struct simdisk *disk);        /* and fired becomes 0 */

/* The nth fsync from now on (1: the next) does nothing and returns 0; 0: none. Those of a queue are
 * counted when they are submitted. Then how many there were since, and the last name of what the
 * skipped one was to sync ("": none was skipped). */
void simdisk_skip_fsync(struct simdisk *disk, long nth);
long simdisk_fsyncs(const struct simdisk *disk);
const char *simdisk_skipped(const struct simdisk *disk);

size_t simdisk_calls(const struct simdisk *disk);       /* counted calls so far */
/* Text of call i < simdisk_calls: "7 openat(/run, \"lock\", wc) = 4099". */
const char *simdisk_call_text(const struct simdisk *disk, size_t i);
/* Whether calls are written down, as they are to begin with, or counted only. */
void simdisk_set_trace(struct simdisk *disk, bool trace);
void simdisk_print(struct simdisk *disk, FILE *out);    /* the calls, then the tree */

/* Limits and habits; may be changed at any time. */
void simdisk_set_space(struct simdisk *disk, uint64_t bytes);   /* of all files, in pages */
uint64_t simdisk_used(const struct simdisk *disk);
void simdisk_set_read_only(struct simdisk *disk, bool read_only);       /* -EROFS */
void simdisk_set_locks(struct simdisk *disk, bool work);        /* false: each lock succeeds */
/* Nodes are containers of one machine: one boot id, but each its PID namespace and its memory. */
void simdisk_set_one_kernel(struct simdisk *disk, bool one);
void simdisk_set_dir_fsync(struct simdisk *disk, bool works);   /* false: -EINVAL */
void simdisk_set_shm(struct simdisk *disk, bool connects, uint64_t bytes_max);
/* Bounds the memory of a node as a whole; 0, the default: no bound. A process that allocates beyond
 * it is killed, as by a kernel that has promised more than there is. shm_new refuses only what
 * would not fit if the process were alone: it does not see what others take at the same moment, and
 * here nothing that they have. */
void simdisk_set_memory(struct simdisk *disk, int node, uint64_t bytes);
/* Gives each node an agent for each run directory whose processes look for one. Each agent keeps
 * names of its own, up to bytes_max (0, the default: there are no agents). `run` below is the
 * identity of a run directory (shf_store_identity). A process that names none gets the first agent
 * of its node. */
void simdisk_set_agents(struct simdisk *disk, uint64_t bytes_max);
/* Sets how many steps a job may keep, as the agents of a node say; 0, the default: no bound. */
void simdisk_set_agent_steps(struct simdisk *disk, int node, int steps);
/* kill -9 of all agents of a node, or of one; another one that knows nothing takes its place. */
void simdisk_kill_agent(struct simdisk *disk, int node);
void simdisk_kill_agent_of(struct simdisk *disk, int node, const char *run);
size_t simdisk_agents(const struct simdisk *disk, int node);    /* how many a node has */
size_t simdisk_kept(const struct simdisk *disk, int node);      /* names that all of them keep */
/* The most jobs that any one agent has names of. */
size_t simdisk_kept_jobs(const struct simdisk *disk);
/* Names that one of them keeps. */
size_t simdisk_kept_by(const struct simdisk *disk, int node, const char *run);
/* The most names and bytes that the agents of a node had at any moment since the last call. */
struct simdisk_held {
	size_t names;
	uint64_t bytes;
};
struct simdisk_held simdisk_held_most(struct simdisk *disk, int node);
/* Unmounts the file system and mounts it again, with other device numbers. No process may have a
 * descriptor. Its fs_id stays, unless that is drawn at each mount, as for NFS. */
void simdisk_remount(struct simdisk *disk);
void simdisk_set_fs_drawn(struct simdisk *disk, bool drawn);
/* STRICT only. true (as it begins): a directory may be left under two names by half a rename, as
 * one inode. false: as after a repair, the later name alone. */
void simdisk_set_dir_twice(struct simdisk *disk, bool twice);
void simdisk_advance(struct simdisk *disk, int64_t seconds);    /* both clocks */
int64_t simdisk_clock_ms(const struct simdisk *disk);   /* since it was made; nobody is asked */
/* Each call of that kind takes so long from now on. */
void simdisk_set_takes(struct simdisk *disk, enum simdisk_kind kind, int ms);
/* How many steps of a task are done when somebody asks whether it is over; -1 (as it begins): a
 * drawn few. */
void simdisk_set_task_steps(struct simdisk *disk, long steps);
/* Does the page cache have what somebody asks for? 1: all of it; 0: nothing; -1 (as it begins): all
 * or nothing, drawn. */
void simdisk_set_resident(struct simdisk *disk, int resident);

/* Cuts: numbers 0 .. simdisk_cut_n - 1; the last one is now. To know later what was promised at a
 * moment, keep simdisk_cut_n(disk) - 1 of that moment. */
size_t simdisk_cut_n(const struct simdisk *disk);
size_t simdisk_cut_call(const struct simdisk *disk, size_t cut); /* calls made before it */
/* How many items are unsynced at the cut, and item i's text. */
size_t simdisk_unsynced(struct simdisk *disk, size_t cut);
void simdisk_item_text(struct simdisk *disk, size_t cut, size_t i, char *buf, size_t n);

struct simdisk_choice {
	const uint64_t *kept;           /* bit i of word i / 64: item i persisted; NULL: none */
	unsigned tear;                  /* 0; 512 or 4096: of each kept data item only some units of
	                                 * that size persist (a prefix, a suffix or any), by seed */
	uint64_t seed;
};
/* What a power cut right there leaves: a new disk of the same model, all of it durable, rebooted,
 * without processes and faults, an hour later. choice NULL: nothing unsynced persisted. */
struct simdisk *simdisk_crash(struct simdisk *disk, size_t cut,
                              const struct simdisk_choice *choice);
/* Now, and all that is seen persisted. NULL: so much is unsynced that nobody tried. */
struct simdisk *simdisk_twin(struct simdisk *disk);

/* The sets worth trying of n items: all of them up to all_max; beyond it, all of up to small_max
 * items, their complements, and `seeded` drawn ones. Each of the three may be lowered between
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
	uint64_t seed, count;           /* count: how many were given */
	/* where it is */
	int phase;
	bool complement;
	unsigned k;
	size_t pick[8];
	uint64_t drawn;
};
void simdisk_sets_begin(struct simdisk_sets *s, size_t n, uint64_t seed);
bool simdisk_sets_next(struct simdisk_sets *s);
void simdisk_sets_end(struct simdisk_sets *s);

/* For tests: looking and meddling without a process. Not counted, never failing by a fault; they
 * take a path from the root and return 0 or a negative errno. */
void simdisk_settle(struct simdisk *disk);      /* all is durable now; cuts begin at 0 again */
/* A file with these bytes, and the directories above it. */
int simdisk_put(struct simdisk *disk, const char *path, const void *bytes, size_t n);
int simdisk_symlink(struct simdisk *disk, const char *target, const char *path);
int simdisk_remove(struct simdisk *disk, const char *path);     /* a directory with all it holds */
/* cp -a: all below it, file by file, with its times, to a path that is not there yet. */
int simdisk_copy(struct simdisk *disk, const char *from, const char *to);
int simdisk_flip(struct simdisk *disk, const char *path, uint64_t bit); /* on the disk, unnoticed */
bool simdisk_exists(struct simdisk *disk, const char *path);
void *simdisk_get(struct simdisk *disk, const char *path, size_t *n); /* malloc'ed, or NULL */
/* Names, types, sizes and bytes below the path; equal trees, equal numbers. 0: no such path. */
uint64_t simdisk_hash(struct simdisk *disk, const char *path);
#endif
