/* SPDX-License-Identifier: Apache-2.0 */
/* The machine behind a small vtable: files, clock, shared memory. The only room with system
 * calls; tests put a disk in its place that loses, tears, reorders and fails.
 *
 * Every function returns >= 0, or a negative errno. Short counts and EINTR are handled here.
 * Paths are one component under a directory descriptor, or any path under SHF_CWD.
 * Descriptors are small integers of this sys (the kernel's own in the real one), close-on-exec.
 */
#ifndef SHF_SYS_H
#define SHF_SYS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHF_CWD (-100)
enum {                                  /* flags of open */
	SHF_O_WRITE = 1,                /* read and write; else read only */
	SHF_O_CREATE = 2,
	SHF_O_EXCL = 4,
	SHF_O_DIR = 8,                  /* must be a directory */
	SHF_O_NOFOLLOW = 16,            /* last component must not be a symlink: -ELOOP */
	SHF_O_TRUNC = 32,
	SHF_O_APPEND = 64,
	SHF_O_DIRECT = 128              /* past the page cache; -EINVAL where this file cannot.
	                                 * Never descriptor 0 */
};
#define SHF_ALIGN 4096                  /* of offsets, lengths and memory of direct requests */
#define SHF_KEEP_NAME 112               /* bytes of a name that an agent keeps, its end too */
#define SHF_PINS 9                      /* stretches that a queue keeps pinned at once */
enum { SHF_T_FILE = 1, SHF_T_DIR, SHF_T_LINK, SHF_T_OTHER };
struct shf_stat {
	int type;                       /* SHF_T_... */
	uint64_t bytes, ino, dev;
	int64_t mtime_s;
};

/* Who wrote something, and whether he can still be alive. */
struct shf_owner {
	char host[65], boot[37];        /* host name and boot id, text */
	uint64_t pid_ns, pid, start;    /* inode of the pid namespace, pid, start time in ticks */
	uint64_t time_ns;               /* inode of the time namespace, by whose clock start is;
	                                 * 0: unknown, or the kernel has none */
	uint64_t dev;                   /* of the file that this stands in; 0: not told */
};

/* I/O that is submitted and completed, never called and awaited. A request and its buffer
 * belong to the queue from submit until complete returns it. */
enum {
	SHF_IO_READ = 1, SHF_IO_WRITE,
	SHF_IO_FSYNC,                   /* of these two the result is 0, and off is yours */
	SHF_IO_RESIZE,                  /* to len bytes; what is written meanwhile stays */
};
static inline bool shf_io_moves(int op)
{
	return op == SHF_IO_READ || op == SHF_IO_WRITE;
}
struct shf_part {                       /* the queue's own: a stretch of a request */
	struct shf_part *next;
	struct shf_io *io;
	uint64_t at, end;               /* of the file, not yet handed out */
	uint64_t redo_at, redo_end;     /* to be done again, buffered; empty: nothing */
	uint32_t out;                   /* pieces handed out and not back */
	bool direct;
};
struct shf_io {
	int op, fd;
	int direct;                     /* the same file, opened with SHF_O_DIRECT: the aligned part
	                                 * of the request goes through it, the rest, and all of it
	                                 * where the kernel refuses, through fd; 0: none */
	void *buf;
	size_t len;
	uint64_t off;
	int64_t result;                 /* set on completion: bytes (reads may be short at the end
	                                 * of the file only), or a negative errno */
	int64_t done_ns;                /* the same: when, by mono_ns, whoever asks how late */
	void *user;                     /* yours */
	struct shf_io *next;            /* from here on the queue's while it owns the request */
	struct shf_part part[3];
	uint64_t reached;
	uint32_t left;
	int error;
};
/* What carried the bytes of a queue so far. */
struct shf_queue_stat {
	bool ring;                      /* direct requests go through io_uring */
	uint64_t direct_bytes, buffered_bytes;
	uint32_t refused;               /* requests of which the kernel refused the direct part */
};
struct shf_queue;                       /* opaque; one per open run or step */

struct shf_task;                        /* opaque */

/* A bound on the memory that this process may take: the machine's, or a control group's. */
struct shf_room {
	uint64_t of;                    /* whose: one number for all processes of a node under it */
	uint64_t left;                  /* bytes, at this moment */
};
#define SHF_ROOMS 6

/* Memory that ranks of one node share. */
struct shf_shm {
	void *base;
	size_t bytes;
	int fd;                         /* this sys's */
};

struct shf_sys_ops {
	int (*open)(void *arg, int dir, const char *name, int flags, unsigned mode);
	int (*close)(void *arg, int fd);
	int (*mkdir)(void *arg, int dir, const char *name, unsigned mode);
	/* Never replaces when noreplace: -EEXIST. Falls back to a check just before where the
	 * file system lacks RENAME_NOREPLACE. */
	int (*rename)(void *arg, int from_dir, const char *from, int to_dir, const char *to,
	              bool noreplace);
	int (*unlink)(void *arg, int dir, const char *name, bool is_dir);
	/* Of a file or directory. -EINVAL and -ENOTSUP on a directory mean that the file system
	 * has none. A failed fsync is final: never ask again. */
	int (*fsync)(void *arg, int fd);
	/* Make the file this long and reserve its space where the file system can. */
	int (*resize)(void *arg, int fd, uint64_t bytes);
	int64_t (*pread)(void *arg, int fd, void *buf, size_t n, uint64_t off); /* short: at EOF */
	/* All, or an error. */
	int64_t (*pwrite)(void *arg, int fd, const void *buf, size_t n, uint64_t off);
	int (*stat)(void *arg, int dir, const char *name, bool follow, struct shf_stat *st);
	int (*fstat)(void *arg, int fd, struct shf_stat *st);
	/* Calls item for each entry but . and .. in any order; its non-zero result ends it. */
	int (*list)(void *arg, int fd, int (*item)(void *arg, const char *name), void *item_arg);
	/* Bytes of a symlink's target into buf, NUL-ended; -ERANGE if it does not fit. */
	int (*readlink)(void *arg, int dir, const char *name, char *buf, size_t n);
	/* Open-file-description lock on the whole file. Never waits: -EAGAIN when held. It ends
	 * when the last descriptor of the description is closed, and forked children have one too.
	 * So a lock is given back by unlock, which takes it from all processes that have it. */
	int (*lock)(void *arg, int fd, bool exclusive);
	int (*unlock)(void *arg, int fd);
	int (*free_bytes)(void *arg, int fd, uint64_t *bytes);  /* of the file system, for us */
	/* Which of the file systems mounted on this machine the file is on. A remount does not
	 * change the number where the file system is on a block device or has an id of its own
	 * (btrfs, tmpfs, ZFS, Lustre); the number of NFS and FUSE may change. */
	int (*fs_id)(void *arg, int fd, uint64_t *id);

	int (*random)(void *arg, void *buf, size_t n);
	int64_t (*mono_ns)(void *arg);
	int64_t (*wall_s)(void *arg);   /* seconds since 1970, UTC */
	void (*sleep_ms)(void *arg, int ms);
	int (*owner)(void *arg, struct shf_owner *self);
	bool (*owner_is_dead)(void *arg, const struct shf_owner *owner); /* proven, else false */
	uint64_t (*pid)(void *arg);     /* this process, for handles in a forked child */
	int (*cpus)(void *arg);         /* processors that this process may use; at least 1 */

	int (*queue_new)(void *arg, struct shf_queue **queue, int threads);
	void (*queue_free)(void *arg, struct shf_queue *queue);  /* waits for what is submitted */
	int (*submit)(void *arg, struct shf_queue *queue, struct shf_io *io);
	/* The next finished request: 1 and *io; 0 when nothing is under way; -EAGAIN when nothing
	 * finished within timeout_ms (< 0: for ever). */
	int (*complete)(void *arg, struct shf_queue *queue, struct shf_io **io, int timeout_ms);
	/* Memory that requests will use again and again, so that the kernel need not look it up
	 * each time. A hint. Stretches are numbered; NULL: that one is none any more. It must stay
	 * mapped until then, and nothing of it may be under way at either call. */
	void (*queue_pin)(void *arg, struct shf_queue *queue, int i, void *base, size_t bytes);
	void (*queue_stat)(void *arg, struct shf_queue *queue, struct shf_queue_stat *stat);
	/* How many bytes of [off, off + n) of the file are in memory already, about (whole pages,
	 * less what is beyond the end); -ENOTSUP where nobody knows. */
	int64_t (*resident)(void *arg, int fd, uint64_t off, uint64_t n);
	/* They need not stay there. A hint. */
	void (*forget)(void *arg, int fd, uint64_t off, uint64_t n);
	/* Has the page of this byte of memory been used, or does nobody know? */
	bool (*touched)(void *arg, const void *at);
	/* The pages of memory that will be read, or written, are there when it returns, about; no
	 * byte of them changes, whoever writes them meanwhile. A hint. */
	void (*touch)(void *arg, const void *at, uint64_t n, bool write);

	/* Work that goes on behind the caller's back: step is called again and again, always by one
	 * and the same thread that takes no signals and gives way to others, until it says false.
	 * Steps are short. over: did it, and is all it wrote to be seen? A machine without threads
	 * does some steps then. again: there is more to do, also where it was over; by one thread
	 * at a time. free: no other step begins, and the one under way is waited for. cpus: the
	 * processors it may run on (cpulist.h), kept, NULL: any; 1: it runs, but on any. */
	int (*task_new)(void *arg, struct shf_task **task, bool (*step)(void *work), void *work,
	                const char *cpus);
	bool (*task_over)(void *arg, struct shf_task *task);
	void (*task_again)(void *arg, struct shf_task *task);
	void (*task_free)(void *arg, struct shf_task *task);

	/* Page-aligned zeroed memory, all of it reserved (-ENOSPC, -ENOMEM rather than SIGBUS),
	 * not inherited by forked children. shared: another process may take it. */
	int (*shm_new)(void *arg, struct shf_shm *shm, size_t bytes, bool shared);
	void (*shm_free)(void *arg, struct shf_shm *shm);
	/* Fills in the tightest bounds on memory and returns how many; 0: unknown. shm_new checks
	 * them too, but only for this process: several that allocate at the same moment may
	 * exceed a bound together, and then the kernel kills one of them. */
	int (*rooms)(void *arg, struct shf_room rooms[SHF_ROOMS]);
	/* Hand shm to ranks that ask by token (16 random bytes, chosen by offer). offer, then the
	 * others connect, then serve n of them who connected, then they take. In that order, with
	 * the group's agreement between, nothing blocks longer than timeout_ms. The memory need not
	 * be there before serve. */
	int (*shm_offer)(void *arg, uint8_t token[16], int *handle);
	int (*shm_connect)(void *arg, const uint8_t token[16], int *handle); /* -ECONNREFUSED: no */
	int (*shm_serve)(void *arg, int offer, const struct shf_shm *shm, int n, int timeout_ms);
	int (*shm_take)(void *arg, int connection, struct shf_shm *shm, int timeout_ms);
	void (*shm_drop)(void *arg, int handle);        /* an offer or a connection; -1 is fine */

	/* The agent of this node, behind a socket: it keeps shared memory under names when all who
	 * made it are gone. socket: its path, or auto/<run>. run: the identity of the run directory
	 * whose memory it should keep; -EXDEV: it keeps another one's. job: what this process is
	 * part of; "" for one that only looks.
	 * -ENOENT, -ECONNREFUSED: there is none; -EACCES: it is another user's; -EPROTO...: of
	 * another version. steps, unless NULL: so many steps of a job it is to keep; 0: it does not
	 * say. A put replaces what had the name: -ENOSPC where the agent's bound does not allow it.
	 * get maps it here as well; -ENOENT. Answers are waited for some seconds; -EPIPE,
	 * -ETIMEDOUT: the agent is lost. */
	int (*keep_open)(void *arg, const char *socket, const char *run, const char *job,
	                 int *keep, int *steps);
	int (*keep_put)(void *arg, int keep, const char *name, const struct shf_shm *shm);
	int (*keep_get)(void *arg, int keep, const char *name, struct shf_shm *shm);
	int (*keep_drop)(void *arg, int keep, const char *name);
	int (*keep_tell)(void *arg, int keep, const char *text);        /* to who started it */
	/* Tells the agent the path that the run's directory (dir) has now. */
	int (*keep_at)(void *arg, int keep, int dir);
	int (*keep_list)(void *arg, int keep, int (*item)(void *arg, const char *name),
	                 void *item_arg);
	int (*keep_lives)(void *arg, int keep); /* 0, or -EPIPE; asks nobody */
	/* bye: and that was in order; else the agent takes this process for dead. */
	void (*keep_close)(void *arg, int keep, bool bye);
};
struct shf_sys {
	const struct shf_sys_ops *ops;
	void *arg;
};

/* The real one. No state of its own; valid for ever. */
const struct shf_sys *shf_sys_real(void);
#endif
