/* SPDX-License-Identifier: Apache-2.0 */
/* The run directory: one rank's view of it. The commit lives here; agreement does not: the
 * engine calls these on one rank and agrees on the outcome.
 *
 *   <run>/checkpoint-<step>/           committed
 *   <run>/.sheaf/run                   "sheaf-run 1\n<32 hex run id>\n"
 *               /lock                  held by the writer (OFD lock); text: who and which session
 *               /door                  locked for a moment by a process that wants lock (lock.c)
 *               /lock.next             a new lock, about to replace one of a dead owner
 *               /stage/<step>-<session>/     alive-<node> inside while it is being made
 *               /stage/copy-<step>-<session>/        a step being copied, which says session
 *               /trash/<step>-<session>/     a pruned step, until the grace is over, or the rest
 *                              of a stage that could not be deleted at once
 *               /aside/<step>-<session>/     rewound
 *               /rewind                journal of a rewind in progress
 *               /marks/<step>          k or b, and the session of the save that was marked
 *               /descent               of steps whose parents were pruned, older ancestors
 *               /tries/<step>-<session>      how many sessions loaded it and came no further
 *               /rewinds               how many rewinds were begun
 *               /metrics.jsonl, metrics.1.jsonl      of saves that are over, if asked for
 * /flush-<job>/, due-<job>/    agents of several nodes write a step (engine/flush_nodes.h)
 * /proof-<token>         while ranks prove that they see one file system               /tmp-<32
 * hex>          a text that is being written, renamed to its name
 */
#ifndef SHF_STORE_H
#define SHF_STORE_H
#include <stdatomic.h>
#include "decimal.h"
#include "manifest.h"
#include "mem.h"
#include "sheaf.h"
#include "sys.h"

#define SHF_TRIED_MAX 8
struct shf_tried {              /* a step that this session loaded, and counted */
	int64_t step;
	char session[33];
};
struct shf_store {
	const struct shf_sys *sys;      /* borrowed */
	char *path;                     /* owned; for sentences */
	int dir, dot, stage, lock, door; /* descriptors; -1: not open */
	bool writer;                    /* holds the lock */
	bool rewinding;                 /* a rewind failed and its journal stands */
	int clear_ms;                   /* how long a call may delete old files while other ranks
	                                 * wait for it; 0: as long as it takes */
	bool late;                      /* recovery or the last prune ran out of that time */
	atomic_bool no_dir_fsync;       /* the file system has none (recorded in the manifest) */
	char run[33], session[33];      /* hex; session "" without the lock */
	struct shf_owner self;
	struct shf_owner prev;          /* who held the lock before, as its text said */
	char prev_session[33];          /* "": unknown */
	bool prev_gone;                 /* he is dead, or our kernel let go of his lock */
	struct shf_tried tried[SHF_TRIED_MAX];  /* more than these are not counted */
	int tried_n;
	int attempts_max;               /* this many failed resumes condemn a step (tries.c); 0: no
	                                 * number does. Set by the caller after opening */
};
/* Open for reading: the directory must exist (ENOENT); .sheaf need not. Any rank. */
int shf_store_open(struct shf_store *s, const struct shf_sys *sys, const char *path,
                   struct sheaf_error *err);
/* A reader may come before the job that makes .sheaf: looks for it again, and for the identity of
 * the run in it, until they are there. Lists do. */
int shf_store_see(struct shf_store *s, struct sheaf_error *err);
#define SHF_RUN_TEXT_MAX 128    /* bytes of .sheaf/run */
/* Reads the id of the run from .sheaf/run into s->run. */
int shf_run_id_read(struct shf_store *s, struct sheaf_error *err);
/* One rank (0) then becomes the writer: makes directory and .sheaf when create, takes the lock
 * within wait_ms (EBUSY naming the holder), draws a session, writes the lock file, recovers. */
int shf_store_own(struct shf_store *s, const struct shf_sys *sys, const char *path, bool create,
                  int wait_ms, struct sheaf_error *err);
/* The same; a run that has no identity yet gets `run`, unless that is NULL. clear_ms: of the
 * store. */
int shf_store_own_as(struct shf_store *s, const struct shf_sys *sys, const char *path, bool create,
                     int wait_ms, int clear_ms, const char *run, struct sheaf_error *err);
/* Another rank of the writing job: opens what rank 0 made, with its run id and session. */
int shf_store_join(struct shf_store *s, const struct shf_sys *sys, const char *path,
                   const char *run, const char *session, struct sheaf_error *err);
void shf_store_close(struct shf_store *s);
/* In a forked child: closes what it inherited. The lock stays with the parent. */
void shf_store_leave(struct shf_store *s);
/* Does a living job hold the run's lock, as far as locks tell? A lock that only the forked child of
 * a dead job still has does not count. */
bool shf_lock_is_held(struct shf_store *s);
/* Identifies the run's directory among all that this machine sees: "<run id>-<file system>-<inode
 * of .sheaf>", the last two in hex. Renaming the directory does not change it, and any copy has
 * another one. On another machine the number of the file system may differ. */
#define SHF_IDENTITY 72
int shf_store_identity(const struct shf_store *s, char out[SHF_IDENTITY],
                       struct sheaf_error *err);
/* Same file system? 0: writes token under .sheaf; others see it; 0 removes it. */
int shf_store_proof_write(struct shf_store *s, const char token[33], struct sheaf_error *err);
int shf_store_proof_read(struct shf_store *s, const char token[33], struct sheaf_error *err);
void shf_store_proof_remove(struct shf_store *s, const char token[33]);

struct shf_stage {              /* a step being made */
	int dir;                        /* descriptor of S */
	int alive;                      /* descriptor of S/alive-<node>, locked; -1 */
	int64_t step;
	char name[64];                  /* <step>-<session of this save>; of a copy, copy-<step>-
	                                 * <session of the step> */
	char session[33];               /* of the run's writer */
};
/* C0 on rank 0: T must not exist, else EEXIST; but remains of a step, and a step that is marked bad
 * or condemned, are set aside. Makes S and its folders (NULL-ended; "." needs none). Then the other
 * ranks join by name. */
int shf_stage_new(struct shf_store *s, struct shf_stage *g, int64_t step,
                  const char *const *folders, struct sheaf_error *err);
/* C0 of a copy: the same, but S is taken up if it is there. Closed and not discarded, it waits
 * SHF_COPY_S for the next one. */
int shf_stage_copy(struct shf_store *s, struct shf_stage *g, int64_t step, const char *session,
                   const char *const *folders, struct sheaf_error *err);
int shf_stage_join(struct shf_store *s, struct shf_stage *g, int64_t step, const char *name,
                   struct sheaf_error *err);
/* The node's mark that S is alive: an OFD lock on S/alive-<node>. One rank a node. */
int shf_stage_alive(struct shf_store *s, struct shf_stage *g, int node, struct sheaf_error *err);
/* C5: removes alive-*, checks that S holds exactly the named files with the named sizes, fsyncs S
 * and its folders. C6: manifest written, fsynced, renamed into place, S fsynced again. C7: the
 * lock still names this session, else ELOST. C8, C9: rename, fsync both parents. The manifest's
 * created, session, run are filled by the caller. Returns 0, EINDOUBT (perhaps published), or
 * another code: T never appears. */
int shf_stage_publish(struct shf_store *s, struct shf_stage *g, const struct shf_manifest *m,
                      struct sheaf_error *err);
/* The same with a manifest that is kept byte for byte. there: S has it already, whole and fsynced,
 * so that only its name is made durable again before C7. */
int shf_stage_publish_as(struct shf_store *s, struct shf_stage *g, const struct shf_buf *text,
                         bool there, struct sheaf_error *err);
/* The done files of a published step of that session, in the folder `where`, which is made if it is
 * not there: <family>.<step>.done of each family, and whole-step.<step>.done last (done.c). Done
 * again it changes nothing. Only the writer, after its publish; a failure harms no step. */
int shf_done_put(struct shf_store *s, const char *where, int64_t step, const char *session,
                 struct sheaf_error *err);
/* The same of the newest step, if it has all its files: its writer may have died before. */
int shf_done_put_newest(struct shf_store *s, const char *where, struct sheaf_error *err);
/* Delete S as far as possible (a failed save), within clear_ms; never fails. Then close. */
void shf_stage_discard(struct shf_store *s, struct shf_stage *g);
/* The error of a call for a name below S, as shf_fail_sys makes it. But a name that is gone is EIO,
 * because ENOENT means that there is no such run or step, and the sentence says that somebody
 * removed it. */
int shf_stage_fail(struct sheaf_error *err, int sys, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void shf_stage_close(struct shf_store *s, struct shf_stage *g);         /* descriptors only */
void shf_stage_leave(struct shf_store *s, struct shf_stage *g);         /* in a forked child */

enum shf_step_state { SHF_COMMITTED, SHF_DAMAGED, SHF_FOREIGN, SHF_ASIDE, SHF_STAGED };
struct shf_entry {
	int64_t step;
	enum shf_step_state state;
	bool remains;                   /* damaged: no manifest, but sums, or nothing at all: what
	                                 * a removal by hand left. Nobody's latest or parent */
	bool unread;                    /* damaged, or not: the kernel would not say */
	char path[96];                  /* relative to the run */
	char session[33], created[32], parent_session[33];
	int64_t parent;                 /* -1: none */
	uint64_t bytes;
	char mark;                      /* 'k', 'b', 0, or '?': it cannot be read, so nobody knows
	                                 * whether the step is good */
	int tries;                      /* -1: it cannot be read */
	const char *note;               /* key of the note that was asked for; NULL: none */
	enum { SHF_NOTE_ABSENT, SHF_NOTE_ODD, SHF_NOTE_NUMBER } noted;
	struct shf_decimal number;      /* NUMBER: what it says, */
	char value[48];                 /* and how, for sentences: a long one is cut */
	int best;                       /* 1: the best by it, 2: the next; 0: not among them */
	bool adopted;                   /* parent is an older ancestor: those between are gone */
	bool on_branch, goes;           /* while pruning: of the verified step; is let go */
	int64_t newer_n;                /* and: good steps above it */
};
struct shf_list {
	struct shf_entry *entries;      /* owned; by step, then state, then path */
	size_t n;
};
/* Committed, and not marked bad as far as can be read. */
bool shf_entry_is_good(const struct shf_entry *e);
/* Reads every manifest. Damaged: a manifest that fails its own sum, or names files that are gone
 * or of another size, or another step. Without a manifest: foreign. If a step goes meanwhile, all
 * are listed again; if one goes each time it is EIO with sys ENOENT. */
int shf_store_list(struct shf_store *s, struct shf_list *list, struct sheaf_error *err);
void shf_list_release(struct shf_list *list);
/* What a save of `step` has to know of the steps that are there, by a listing and as few manifests
 * as tell it: mostly one. Foreign directories and remains do not count; damaged steps do. */
struct shf_newest {
	bool exists;                    /* step `step` itself */
	bool is_bad;                    /* so it does, but a save of its number sets it aside */
	int64_t newest;                 /* of those not marked bad; -1: none */
	int64_t known;                  /* the same of those whose session can be read; -1 */
	char session[33];               /* of it */
};
int shf_store_newest(struct shf_store *s, int64_t step, struct shf_newest *out,
                     struct sheaf_error *err);
/* The same, with newest and known among numbers smaller than `below`. */
int shf_store_newest_below(struct shf_store *s, int64_t below, int64_t step,
                           struct shf_newest *out, struct sheaf_error *err);
struct shf_seek {
	int64_t below, floor;           /* only numbers n with floor < n < below count */
	void (*passed)(void *arg, int64_t step, const char *why);       /* each passed over */
	void *arg;
};
/* Finds the newest step that is neither marked bad nor condemned by its tries. Foreign directories
 * and remains do not count. ENOENT: there is none, not even one that was passed over. ECORRUPT: it
 * is damaged, or all were passed over, or all that is left lost sheaf.json. To start afresh is a
 * person's decision then. EIO: it, or its mark, cannot be read, or, with sys ENOENT, a step went
 * each time that they were listed. The error names the step, and *step is its number; -1: none. */
int shf_store_seek(struct shf_store *s, const struct shf_seek *k, int64_t *step,
                   struct sheaf_error *err);
/* What a person can do if that step, the latest, is damaged, for the end of a sentence. */
#define SHF_REMEDY 180
void shf_store_remedy(struct shf_store *s, int64_t step, char out[SHF_REMEDY]);
/* shf_store_seek among all steps. Names those that are passed over to log. */
int shf_store_latest(struct shf_store *s, int64_t *step,
                     void (*log)(void *arg, int level, const char *line), void *log_arg,
                     struct sheaf_error *err);
/* Manifest of a committed step (ENOENT: no such step; EFORMAT: foreign; ECORRUPT: also one of
 * another step or run), or of a directory by descriptor (ENOENT: it has none). */
int shf_store_manifest(struct shf_store *s, int64_t step, struct shf_manifest *m,
                       struct shf_arena *arena, struct sheaf_error *err);
int shf_manifest_read(const struct shf_sys *sys, int dir, const char *where,
                      struct shf_manifest *m, struct shf_arena *arena, struct sheaf_error *err);

/* No manifest, but sums, or nothing at all. */
bool shf_dir_is_remains(const struct shf_sys *sys, int dir);

/* This session is about to load it. The count, 0 when this session had counted it already or is no
 * writer's, or a code: then it goes on uncounted. */
int shf_tries_add(struct shf_store *s, int64_t step, const char *session,
                  struct sheaf_error *err);
/* It lives: what it counted goes. A code when that could not be made durable. */
int shf_tries_forget(struct shf_store *s, struct sheaf_error *err);
/* Marks the steps on disk bad that attempts_max condemns. A mark that cannot be made is no failure.
 * -ENOMEM or 0. */
int shf_tries_settle(struct shf_store *s);
/* Was the step, on disk or in memory, tried attempts_max times? It is condemned only if an older
 * one is left. */
bool shf_tries_spent(struct shf_store *s, int64_t step, const char *session);
bool shf_tries_condemn(struct shf_store *s, int64_t step, const char *session);
/* The newest step older than this that a job could load: committed, with all its files, and not
 * marked bad; or -1. */
int64_t shf_step_older(struct shf_store *s, int64_t step);
/* Mark 0 also takes tries away. */
int shf_store_mark(struct shf_store *s, int64_t step, char mark, struct sheaf_error *err);
/* Is that save on disk and marked bad? Then its copy in memory is bad as well. */
bool shf_store_is_bad(struct shf_store *s, int64_t step, const char *session);
/* Was that save set aside, by a rewind or because its bad step's number was saved again? */
bool shf_store_is_aside(struct shf_store *s, int64_t step, const char *session);
/* Steps later than `step` -> aside, newest first, journal first. After a failure that left the
 * journal, which the next job would carry out, nothing can be saved or pruned (EINVAL) until a
 * rewind succeeds. */
int shf_store_rewind(struct shf_store *s, int64_t step, struct sheaf_error *err);
/* How many rewinds were begun. The card of a step in memory has the count of its time, and another
 * count puts the step out of reach. UINT64_MAX: cannot be told. */
uint64_t shf_store_rewinds(struct shf_store *s);
struct shf_saved {              /* a step; another save may come to have its number */
	int64_t step;                   /* -1: none */
	char session[33];               /* "": any that has the number */
};
bool shf_saved_is_same(const struct shf_saved *a, const struct shf_saved *b);
/* H2. verified: a step whose whole content was re-read since its commit: only steps older than it
 * and on its branch may go. keep: a step that must stay (the loaded one; -1). */
struct shf_prune {
	int32_t keep_last, keep_every;
	int32_t keep_best;              /* of them; best_largest: else the smallest are */
	bool best_largest;
	const char *best_note;          /* borrowed; where keep_best > 0 */
	struct shf_saved verified;
	int64_t keep;
	int grace_s;
	bool dry;
};
/* Returns how many went or would, or a code. item may be NULL. Trash older than the grace is
 * deleted (not when dry), within clear_ms. A step whose sheaf.json somebody holds a shared lock on
 * stays. */
int shf_store_prune(struct shf_store *s, const struct shf_prune *p,
                    void (*item)(void *arg, int64_t step, char what, const char *why), void *arg,
                    struct sheaf_error *err);
/* A line, without its end, that nothing relies on: written and not made durable. At 1 MiB what was
 * there before it becomes metrics.1.jsonl. */
#define SHF_METRICS_MAX (UINT64_C(1) << 20)
int shf_metrics_add(struct shf_store *s, const char *line, struct sheaf_error *err);

/* What a dead job left (recover.c), called by own. Idempotent, never creates a step. */
int shf_store_recover(struct shf_store *s, struct sheaf_error *err);

/* What a person may want to know of, as struct sheaf_left has it. Strings live during the call. */
struct shf_left {
	const char *what, *action, *why;
	int64_t step;                   /* -1: of none */
	uint64_t bytes;
	int lives;
	bool whole;
	char path[96], session[33];
};
/* All of it, the lock first; a non-zero result of item ends it and is returned. */
int shf_store_left(struct shf_store *s, int (*item)(void *arg, const struct shf_left *left),
                   void *arg, struct sheaf_error *err);
/* Publishing a whole staged step of a dead writer. begin takes the lock, leaving all as it is, and
 * finds S: ENOENT, EBUSY (a writer of such a stage may live), EEXIST, ECORRUPT (it has no
 * manifest). finish, after the caller has proved every byte: C7 to C9, with the bytes and the run
 * of its manifest. The stage is closed by the caller, never discarded. */
int shf_salvage_begin(struct shf_store *s, struct shf_stage *g, const struct shf_sys *sys,
                      const char *path, int wait_ms, int64_t step, struct sheaf_error *err);
int shf_salvage_finish(struct shf_store *s, struct shf_stage *g, const struct shf_buf *text,
                       const char *run, struct sheaf_error *err);
#endif
