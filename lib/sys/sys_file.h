/* SPDX-License-Identifier: Apache-2.0 */
/* Files and directories, in two tables: what a reader needs, and what changes the file system. A
 * checkpoint in memory that is shown as a directory replaces the first table only.
 *
 * Every function returns >= 0, or a negative errno. Short counts and EINTR are handled inside.
 * A path is one component below a directory descriptor, or any path below SHF_CWD. Descriptors
 * are small integers (the kernel's own in the real machine), close-on-exec. */
#ifndef SHF_SYS_FILE_H
#define SHF_SYS_FILE_H
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
	SHF_O_DIRECT = 128              /* bypasses the page cache; -EINVAL if this file cannot. The
	                                 * descriptor is never 0 */
};
enum { SHF_T_FILE = 1, SHF_T_DIR, SHF_T_LINK, SHF_T_OTHER };
struct shf_stat {
	int type;                       /* SHF_T_... */
	uint64_t bytes, ino, dev;
	int64_t mtime_ns;               /* when the bytes were changed last, since 1970 */
	int64_t ctime_ns;               /* when the bytes or the inode were changed last */
};
static inline int64_t shf_stat_mtime_s(const struct shf_stat *st)
{
	return st->mtime_ns / INT64_C(1000000000);
}
/* Returns whether two stats are of the same file, and it was not changed between them. */
static inline bool shf_stat_is_same(const struct shf_stat *a, const struct shf_stat *b)
{
	return a->type == b->type && a->bytes == b->bytes && a->ino == b->ino && a->dev == b->dev &&
	       a->mtime_ns == b->mtime_ns && a->ctime_ns == b->ctime_ns;
}

struct shf_file_ops {
	int (*open)(void *arg, int dir, const char *name, int flags, unsigned mode);
	int (*close)(void *arg, int fd);
	/* Returns how many bytes were read: fewer than n only at the end of the file. */
	int64_t (*pread)(void *arg, int fd, void *buf, size_t n, uint64_t off);
	/* As pread, for bytes that are read only once: leaves nothing in the page cache that was
	 * not there before. NULL: pread is used. */
	int64_t (*pread_once)(void *arg, int fd, void *buf, size_t n, uint64_t off);
	/* follow: if the name is a symlink, stats its target. */
	int (*stat)(void *arg, int dir, const char *name, bool follow, struct shf_stat *st);
	int (*fstat)(void *arg, int fd, struct shf_stat *st);
	/* Calls item for each entry except . and .. in any order, until it returns non-zero. */
	int (*list)(void *arg, int fd, int (*item)(void *arg, const char *name), void *item_arg);
	/* Copies the target of a symlink into buf, NUL-terminated; -ERANGE if it does not fit. */
	int (*readlink)(void *arg, int dir, const char *name, char *buf, size_t n);
	/* Takes an open-file-description lock on the whole file. Never waits: -EAGAIN if another
	 * process holds the lock. A forked child shares the lock, and closing a descriptor gives it
	 * up only when that is the last one. unlock gives it up at once, for all processes that
	 * share it. */
	int (*lock)(void *arg, int fd, bool exclusive);
	int (*unlock)(void *arg, int fd);
	/* Roughly how many bytes of [off, off + n) of the file are in the page cache (in whole
	 * pages, not counting what is beyond the end); -ENOTSUP if unknown. */
	int64_t (*resident)(void *arg, int fd, uint64_t off, uint64_t n);
	/* Hint: the page cache may drop these bytes. */
	void (*forget)(void *arg, int fd, uint64_t off, uint64_t n);
};

struct shf_disk_ops {
	int (*mkdir)(void *arg, int dir, const char *name, unsigned mode);
	/* With noreplace an existing target is never replaced: -EEXIST. On a file system without
	 * RENAME_NOREPLACE the target is looked up just before the rename; a target that appears in
	 * between may be replaced. */
	int (*rename)(void *arg, int from_dir, const char *from, int to_dir, const char *to,
	              bool noreplace);
	/* is_dir: removes an empty directory, else a file or a symlink. */
	int (*unlink)(void *arg, int dir, const char *name, bool is_dir);
	/* Syncs a file or a directory. -EINVAL and -ENOTSUP on a directory mean that the file
	 * system cannot sync directories. A failed fsync is final: do not call it again, because
	 * the kernel may have dropped the pages that it could not write. */
	int (*fsync)(void *arg, int fd);
	/* Sets the length of the file and reserves its space if the file system can. */
	int (*resize)(void *arg, int fd, uint64_t bytes);
	/* Writes all n bytes, or fails. */
	int64_t (*pwrite)(void *arg, int fd, const void *buf, size_t n, uint64_t off);
	/* Free space of the file system that this user may take, in bytes. */
	int (*free_bytes)(void *arg, int fd, uint64_t *bytes);
	/* A number for the mounted file system that the file is on. It survives a remount if the
	 * file system is on a block device or has an identity of its own (btrfs, tmpfs, ZFS,
	 * Lustre); on NFS and FUSE it may change. */
	int (*fs_id)(void *arg, int fd, uint64_t *id);
};
#endif
