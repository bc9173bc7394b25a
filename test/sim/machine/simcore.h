/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of the simulated disk: trees, the log, and declarations that its files share.
 *
 * Only one function, simtree_apply, changes trees. The present tree is the result of all records
 * applied completely; the tree after a power cut is the result of the same records applied in part.
 * So the two cannot disagree. Trees, the log and crashed disks share pages and names by reference
 * counts, and never change them.
 */
#ifndef SIMCORE_H
#define SIMCORE_H
#include <pthread.h>
#include <stdarg.h>
#include "simdisk.h"
#include "sys_tables.h"

#define SIM_PAGE 4096u
#define SIM_LEAF 64u            /* pages of a leaf */
#define SIM_ROOT 1u
#define SIM_NAME_MAX 255u
#define SIM_FD_MAX 4000

struct sim_page {
	_Atomic unsigned refs;
	uint8_t bytes[SIM_PAGE];
};
struct sim_name {
	_Atomic unsigned refs;
	char text[];
};
struct sim_leaf {               /* NULL: zeros */
	struct sim_page *pages[SIM_LEAF];
};
struct sim_entry {
	struct sim_name *name;
	uint32_t ino;
};
struct sim_inode {
	int type;                       /* SHF_T_... */
	uint64_t size;                  /* of a file */
	struct sim_leaf **leafs;
	size_t leaf_n;
	struct sim_entry *entries;      /* of a directory */
	size_t entry_n, entry_cap;
	struct sim_name *target;        /* of a link */
	struct sim_name *label;         /* the last name it was given; may be NULL */
	uint32_t parent;                /* of a directory */
	uint32_t links;                 /* number of its names */
	uint32_t opens;                 /* number of open descriptions; only in the present tree */
	int64_t mtime;
	bool seen;                      /* used by a tree walk */
};
struct simtree {
	struct sim_inode **inodes;      /* by number; NULL: deleted */
	size_t n;
	bool dir_once;                  /* if a directory gets a second name, it loses the first */
};

/* A record of a change. Parts are the items of a record, as bits. */
enum simrec_kind { REC_CREATE, REC_REMOVE, REC_RENAME, REC_WRITE, REC_SIZE, REC_SYNC };
enum { PART_DATA = 1, PART_SIZE = 2, PART_ADD = 4, PART_DEL = 8 };
struct simrec {
	enum simrec_kind kind;
	int type;                       /* CREATE: type of the inode */
	bool failed;                    /* SYNC */
	bool shrinks;                   /* SIZE */
	uint8_t parts;                  /* its items */
	int node;                       /* the node that made the change */
	uint32_t ino;
	uint32_t dir, to_dir;           /* CREATE, REMOVE: dir, name; RENAME: from and to */
	struct sim_name *name, *to_name; /* CREATE of a link: to_name is its target */
	uint64_t off, len, size;        /* WRITE: where; WRITE, SIZE: the size afterwards */
	struct sim_page **pages;        /* WRITE: the pages it touches, as they were afterwards */
	int64_t mtime;
	size_t call;                    /* number of calls made before it, plus its own */
};
struct sim_tear {
	unsigned unit;                  /* 0: not torn */
	uint64_t seed;
};

/* simtree.c */
void *sim_alloc(size_t n, size_t size);
void *sim_grow(void *p, size_t *cap, size_t want, size_t size);
uint64_t sim_mix(uint64_t x);
struct sim_name *sim_name_new(const char *text);
struct sim_name *sim_name_get(struct sim_name *name);
void sim_name_put(struct sim_name *name);
void simrec_release(struct simrec *r);
void simtree_init(struct simtree *t);
void simtree_copy(struct simtree *t, const struct simtree *from);
void simtree_release(struct simtree *t);
struct sim_inode *simtree_inode(const struct simtree *t, uint32_t ino);
uint32_t simtree_find(const struct simtree *t, uint32_t dir, const char *name);
void simtree_apply(struct simtree *t, const struct simrec *r, unsigned parts,
                   const struct sim_tear *tear);
/* Sets the pages of r (off, len) to those of the tree, overwritten by bytes. */
void simtree_pages(const struct simtree *t, struct simrec *r, const uint8_t *bytes);
size_t simtree_read(const struct sim_inode *f, void *buf, size_t n, uint64_t off);
void simtree_drop(struct simtree *t, uint32_t ino);     /* frees an inode without names and users */
void simtree_sweep(struct simtree *t);  /* after a cut: deletes what no path reaches */
uint64_t simtree_used(const struct simtree *t);

struct simproc;
struct sim_open {               /* an open file description, of one descriptor or, after a fork, of
	                         * one in each of several processes */
	uint32_t ino;
	int flags;                      /* SHF_O_... */
	int lock;                       /* 0, 1 shared, 2 exclusive */
	int refs;                       /* descriptors */
};
struct sim_stale {              /* a directory as a process still caches it; dir 0: free */
	uint32_t dir;
	struct sim_entry *entries;
	size_t entry_n;
	int64_t until_ns;               /* by the disk's clock */
};
#define SIM_STALE 4
struct simproc {
	struct shf_sys sys;
	struct sys_tables ops;          /* the tables of sys */
	struct simdisk *disk;
	struct simproc *acts;           /* process that makes the calls of sys; NULL: this */
	struct sim_open **fds;          /* NULL: free */
	size_t fd_n, fd_cap;
	struct sim_stale stale[SIM_STALE];
	int index, node, fd_first;
	int zero;                       /* 1 + index in fds of the descriptor called 0; 0: none */
	uint64_t pid, start, draws;
	int queues, tasks;              /* not freed yet */
	bool dead, forked, forks;       /* forked: it is a child; forks: it has one */
};
struct sim_fault {
	struct simdisk_fault f;
	const struct simproc *process;  /* NULL: any */
	char name[64];
	bool used;
};
struct sim_mem {                /* shared or private memory; refs 0: free */
	void *base;                     /* freed by its last user */
	size_t bytes;
	int refs, node, owner;          /* owner: index of the process that made it */
};
struct sim_line {               /* an offer (peer 0) or a connection to one */
	int id, peer, node, owner;      /* owner: process index */
	uint8_t token[16];
	bool served, gone;
	void *base;
	size_t bytes;
};
#define SIM_NODES 64
struct sim_agent {
	int node;
	char run[SHF_KEEP_NAME];        /* identity of a run directory; "": not used yet */
	char socket[SHF_KEEP_NAME];     /* "": the automatic path for that run */
	unsigned life;                  /* number of times that it was killed */
};
struct sim_kept {               /* memory that an agent keeps */
	char name[SHF_KEEP_NAME];
	void *base;                     /* NULL: free */
	size_t bytes;
	int agent, owner;               /* indices; owner: of the process that gave it */
};
#define SIM_FAULTS 32
struct simdisk {
	pthread_mutex_t lock;           /* guards everything below */
	uint64_t seed;
	enum simdisk_model model;
	struct simtree now;
	struct simtree base;            /* at cut 0; empty (n == 0): nothing has changed since */
	uint32_t next_ino;
	struct simrec *log;
	size_t log_n, log_cap;
	struct simproc **procs;
	size_t proc_n, proc_cap;
	struct sim_fault faults[SIM_FAULTS];
	int fired;
	long fsyncs, skip_at;           /* fsync number skip_at does nothing */
	char skipped[80];
	char *trace;
	size_t trace_n, trace_cap, calls, call_cap;
	size_t *call_at;                /* offset of each call's text in trace */
	uint64_t space, used, shm_max, shm_used;
	bool read_only, locks, dir_fsync, shm_connects, dir_twice, one_kernel, traces, fs_drawn;
	int boots, mounts;
	void (*turn)(void *arg);
	void *turn_arg;
	int64_t clock_ns, wall_s;       /* wall_s: at clock 0 */
	long task_steps;
	int resident;
	uint64_t draws, starts;
	struct sim_mem *mems;
	size_t mem_n, mem_cap;
	struct sim_line *lines;
	size_t line_n, line_cap;
	int line_next;
	struct sim_kept *kept;
	size_t kept_n, kept_cap;
	int takes_ms[SIMDISK_KINDS];    /* time of a call, besides a microsecond */
	uint64_t memory[SIM_NODES];     /* of a node, for all its processes; 0: no limit */
	uint64_t agents_bytes;          /* limit of each agent; 0: no agents */
	struct sim_agent *agents;
	size_t agent_n, agent_cap;
	int agent_steps[SIM_NODES];     /* limit that the agents of a node report; 0: none */
	struct simdisk_held agent_most[SIM_NODES];
	/* cached data about one cut (simcrash.c) */
	struct simcut *cut;
};

/* Returns the process that makes a call through the view of arg. */
static inline struct simproc *sim_proc(void *arg)
{
	struct simproc *p = arg;

	return p->acts ? p->acts : p;
}

/* simdisk.c: a counted call. sim_begin locks. It returns 0, or an error that must be returned
 * through sim_end, which writes the trace and unlocks. name NULL: the last name of fd; fd -1:
 * none. */
struct sim_call {
	struct simproc *p;
	enum simdisk_kind kind;
	int after;                      /* returns this error although the call is done */
	int part;                       /* does half of the call, then returns this error */
	bool zero;                      /* the new descriptor is called 0 */
	bool counted;
	char text[200];
};
int sim_begin(struct sim_call *c, struct simproc *p, enum simdisk_kind kind, int fd,
              const char *name, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
int64_t sim_end(struct sim_call *c, int64_t rc);
void sim_record(struct simdisk *d, struct simrec *r);   /* applies and logs r; takes ownership */
void sim_kill(struct simproc *p);
bool sim_skips_fsync(struct simproc *p, int fd);        /* counts the fsync */
uint64_t sim_draw(struct simdisk *d);
int64_t sim_wall(struct simdisk *d);

/* simfile.c */
struct sim_spot {               /* the result of a path lookup */
	uint32_t dir, ino;              /* ino 0: does not exist */
	char name[SIM_NAME_MAX + 1];    /* last component; "." if there is none */
};
/* seer: the process whose cached names are used; NULL: none. */
int sim_walk(const struct simtree *t, const struct simproc *seer, uint32_t at, const char *path,
             bool follow, int depth, struct sim_spot *spot);
int sim_create(struct simdisk *d, const struct sim_spot *spot, int type, const char *target,
               int node, uint32_t *ino);
int sim_unlink_at(struct simdisk *d, const struct sim_spot *spot, bool is_dir, int node);
int64_t sim_write(struct simdisk *d, uint32_t ino, const void *buf, size_t n, uint64_t off,
                  int node);
int sim_resize(struct simdisk *d, uint32_t ino, uint64_t bytes, int node);
/* queued: sim_skips_fsync was called when it was submitted. */
int sim_fsync(struct simproc *p, int fd, bool queued);
const char *sim_label(const struct simproc *p, int fd);
void sim_unused(struct simdisk *d, uint32_t ino);
void sim_open_put(struct simdisk *d, struct sim_open *o);       /* drops one descriptor */
void sim_stale_end(struct sim_stale *stale);
void sim_files_bind(struct sys_tables *ops);
/* simipc.c */
struct sim_mem *sim_mem_of(struct simdisk *d, const void *base);
void sim_mem_put(struct simdisk *d, struct sim_mem *m); /* drops one user */
struct sim_mem *sim_mem_copy(struct simdisk *d, const struct sim_mem *of);      /* has one user */
void sim_agents_part(struct simdisk *d, int owner);
void sim_ipc_bind(struct sys_tables *ops);
void sim_ipc_kill(struct simproc *p);
/* simagent.c */
void sim_agents_bind(struct sys_tables *ops);
void sim_agents_release(struct simdisk *d);
/* simcrash.c */
void sim_cut_forget(struct simdisk *d);
/* simdisk.c */
struct simdisk *sim_disk_like(const struct simdisk *d, struct simtree *tree); /* takes tree */
#endif
