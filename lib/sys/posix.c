/* SPDX-License-Identifier: Apache-2.0 */
/* Files of the real machine. Invariants:
 * - Every descriptor is close-on-exec.
 * - Nothing waits for a peer: a FIFO where a file should be does not hang the process.
 * - An interrupted call is repeated, except fsync.
 * - A transfer is complete, or it ends at an error or at the end of the file. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include "posix.h"
#include "mute_sigxfsz.h"
#include "resident.h"

/* The most that one system call moves. A fatal signal takes effect between two calls, and no count
 * comes near the kernel's limit of 2 GiB. */
#define PIECE_BYTES ((size_t)8 << 20)

_Static_assert(SHF_CWD == AT_FDCWD, "SHF_CWD is the kernel's");
_Static_assert(sizeof(off_t) == 8, "offsets are 64 bits");

/* O_NONBLOCK has no effect on a regular file. It keeps the open of a FIFO or a device from waiting
 * for a peer. */
static int open_flags(int flags)
{
	int f = O_CLOEXEC | O_NOCTTY | O_NONBLOCK;

	f |= flags & SHF_O_WRITE ? O_RDWR : O_RDONLY;
	f |= flags & SHF_O_CREATE ? O_CREAT : 0;
	f |= flags & SHF_O_EXCL ? O_EXCL : 0;
	f |= flags & SHF_O_DIR ? O_DIRECTORY : 0;
	f |= flags & SHF_O_NOFOLLOW ? O_NOFOLLOW : 0;
	f |= flags & SHF_O_TRUNC ? O_TRUNC : 0;
	f |= flags & SHF_O_APPEND ? O_APPEND : 0;
	f |= flags & SHF_O_DIRECT ? O_DIRECT : 0;
	return f;
}

/* Returns whether a file is in memory (tmpfs). */
static bool is_in_memory(int fd)
{
	struct statfs fs;

	return !fstatfs(fd, &fs) && fs.f_type == TMPFS_MAGIC;
}

/* Three oddities are handled here:
 *   - A direct descriptor must not be 0, because 0 in shf_io.direct means that the request has no
 *     direct descriptor. So 0 is moved to another number.
 *   - O_NONBLOCK is removed from direct descriptors: io_uring would return EAGAIN for a busy disk.
 *   - With SHF_O_DIR and SHF_O_NOFOLLOW the kernel returns ENOTDIR for a symlink, too. Callers get
 *     ELOOP for it, so that they can tell it from a file that is no directory. */
int shf_real_open(void *arg, int dir, const char *name, int flags, unsigned mode)
{
	struct stat st;
	int fd;

	(void)arg;
	do
		fd = openat(dir, name, open_flags(flags), (mode_t)mode);
	while (fd < 0 && errno == EINTR);
	if (fd >= 0 && flags & SHF_O_DIRECT && is_in_memory(fd)) {
		close(fd);
		return -EINVAL;
	}
	if (fd == 0 && flags & SHF_O_DIRECT) {
		fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
		close(0);
	}
	if (fd >= 0 && flags & SHF_O_DIRECT)
		(void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
	if (fd >= 0)
		return fd;
	if (errno == ENOTDIR && (flags & SHF_O_DIR) && (flags & SHF_O_NOFOLLOW)) {
		if (!fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) && S_ISLNK(st.st_mode))
			return -ELOOP;
		return -ENOTDIR;
	}
	return -errno;
}

static int real_close(void *arg, int fd)
{
	(void)arg;
	/* After EINTR the descriptor is closed all the same. A second close could hit one that
	 * another thread has opened meanwhile. */
	if (close(fd) && errno != EINTR)
		return -errno;
	return 0;
}

static int real_mkdir(void *arg, int dir, const char *name, unsigned mode)
{
	(void)arg;
	return mkdirat(dir, name, (mode_t)mode) ? -errno : 0;
}

/* Without RENAME_NOREPLACE, as on some network file systems, the target is looked up just before.
 * Another process may slip in between; the session in the manifest shows it afterwards. A plain
 * rename alone would replace even an empty directory. */
static int real_rename(void *arg, int from_dir, const char *from, int to_dir, const char *to,
                       bool noreplace)
{
	struct stat st;

	(void)arg;
	if (noreplace) {
		if (!renameat2(from_dir, from, to_dir, to, RENAME_NOREPLACE))
			return 0;
		if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP)
			return -errno;
		if (!fstatat(to_dir, to, &st, AT_SYMLINK_NOFOLLOW))
			return -EEXIST;
		if (errno != ENOENT)
			return -errno;
	}
	return renameat(from_dir, from, to_dir, to) ? -errno : 0;
}

static int real_unlink(void *arg, int dir, const char *name, bool is_dir)
{
	(void)arg;
	return unlinkat(dir, name, is_dir ? AT_REMOVEDIR : 0) ? -errno : 0;
}

/* Not repeated on EINTR: the kernel reports a write error once, and the interrupted call may have
 * been the one that got it. */
int shf_real_fsync(void *arg, int fd)
{
	(void)arg;
	return fsync(fd) ? -errno : 0;
}

/* Reserves the space if the file system can, so that a full disk is an error now and not in the
 * middle of a write. fallocate only lengthens a file, so a longer one is truncated afterwards. */
static int resize(int fd, uint64_t bytes)
{
	struct stat st;
	int rc;

	if (bytes > INT64_MAX)
		return -EFBIG;
	if (bytes && !is_in_memory(fd)) {
		do
			rc = fallocate(fd, 0, 0, (off_t)bytes);
		while (rc && errno == EINTR);
		/* With these errnos the file system cannot reserve space, and ftruncate must do. */
		if (rc && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL)
			return -errno;
		if (!rc) {
			if (fstat(fd, &st))
				return -errno;
			if ((uint64_t)st.st_size == bytes)
				return 0;
		}
	}
	do
		rc = ftruncate(fd, (off_t)bytes);
	while (rc && errno == EINTR);
	return rc ? -errno : 0;
}

int shf_real_resize(void *arg, int fd, uint64_t bytes)
{
	struct shf_mute mute;

	(void)arg;
	shf_mute_begin(&mute);
	return (int)shf_mute_end(&mute, resize(fd, bytes));
}

static bool file_range_fits(size_t n, uint64_t off)
{
	return n <= INT64_MAX && off <= (uint64_t)INT64_MAX - n;
}

/* Reads until n bytes are read or the file ends. */
int64_t shf_real_pread(void *arg, int fd, void *buf, size_t n, uint64_t off)
{
	uint8_t *p = buf;
	size_t done = 0;

	(void)arg;
	if (!file_range_fits(n, off))
		return -EINVAL;
	while (done < n) {
		size_t want = n - done < PIECE_BYTES ? n - done : PIECE_BYTES;
		ssize_t got = pread(fd, p + done, want, (off_t)(off + done));

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (!got)
			break;
		done += (size_t)got;
	}
	return (int64_t)done;
}

#ifndef RWF_DONTCACHE
#define RWF_DONTCACHE 0x80              /* since Linux 6.14 */
#endif

/* An older kernel, or a file system that cannot do it, refuses the flag, and then the rest is read
 * as usual. */
static int64_t real_pread_once(void *arg, int fd, void *buf, size_t n, uint64_t off)
{
	uint8_t *p = buf;
	size_t done = 0;
	int64_t rest;

	if (!file_range_fits(n, off))
		return -EINVAL;
	while (done < n) {
		struct iovec part = { p + done, n - done < PIECE_BYTES ? n - done : PIECE_BYTES };
		ssize_t got = preadv2(fd, &part, 1, (off_t)(off + done), RWF_DONTCACHE);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			break;
		if (!got)
			return (int64_t)done;
		done += (size_t)got;
	}
	rest = done < n ? shf_real_pread(arg, fd, p + done, n - done, off + done) : 0;
	return rest < 0 ? rest : (int64_t)done + rest;
}

/* Writes all n bytes and returns n, or a negative errno. A pwrite that returns 0 without an error
 * is EIO, since repeating it could loop for ever. */
static int64_t write_all(int fd, const void *buf, size_t n, uint64_t off)
{
	const uint8_t *p = buf;
	size_t done = 0;

	if (!file_range_fits(n, off))
		return -EFBIG;
	while (done < n) {
		size_t want = n - done < PIECE_BYTES ? n - done : PIECE_BYTES;
		ssize_t put = pwrite(fd, p + done, want, (off_t)(off + done));

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return -errno;
		if (!put)
			return -EIO;
		done += (size_t)put;
	}
	return (int64_t)done;
}

int64_t shf_real_pwrite(void *arg, int fd, const void *buf, size_t n, uint64_t off)
{
	struct shf_mute mute;

	(void)arg;
	shf_mute_begin(&mute);
	return shf_mute_end(&mute, write_all(fd, buf, n, off));
}

/* Converts the kernel's struct into ours. */
static void stat_from(struct shf_stat *out, const struct stat *st)
{
	memset(out, 0, sizeof(*out));
	switch (st->st_mode & S_IFMT) {
	case S_IFREG:
		out->type = SHF_T_FILE;
		break;
	case S_IFDIR:
		out->type = SHF_T_DIR;
		break;
	case S_IFLNK:
		out->type = SHF_T_LINK;
		break;
	default:
		out->type = SHF_T_OTHER;
	}
	out->bytes = (uint64_t)st->st_size;
	out->ino = (uint64_t)st->st_ino;
	out->dev = (uint64_t)st->st_dev;
	out->mtime_ns = st->st_mtim.tv_sec * INT64_C(1000000000) + st->st_mtim.tv_nsec;
	out->ctime_ns = st->st_ctim.tv_sec * INT64_C(1000000000) + st->st_ctim.tv_nsec;
}

static int real_stat(void *arg, int dir, const char *name, bool follow, struct shf_stat *out)
{
	struct stat st;

	(void)arg;
	if (fstatat(dir, name, &st, follow ? 0 : AT_SYMLINK_NOFOLLOW))
		return -errno;
	stat_from(out, &st);
	return 0;
}

static int real_fstat(void *arg, int fd, struct shf_stat *out)
{
	struct stat st;

	(void)arg;
	if (fstat(fd, &st))
		return -errno;
	stat_from(out, &st);
	return 0;
}

static bool name_is_dots(const char *name)
{
	return !strcmp(name, ".") || !strcmp(name, "..");
}

/* Opens the directory again, so that the read position of the caller's descriptor does not move. */
static int real_list(void *arg, int fd, int (*item)(void *arg, const char *name), void *item_arg)
{
	int own = shf_real_open(arg, fd, ".", SHF_O_DIR, 0), rc = 0;
	struct dirent *e;
	DIR *d;

	if (own < 0)
		return own;
	d = fdopendir(own);
	if (!d) {
		rc = -errno;
		close(own);
		return rc;
	}
	while (!rc) {
		errno = 0;
		e = readdir(d);
		if (!e) {
			rc = -errno;
			break;
		}
		if (!name_is_dots(e->d_name))
			rc = item(item_arg, e->d_name);
	}
	closedir(d);
	return rc;
}

int shf_real_readlink(void *arg, int dir, const char *name, char *buf, size_t n)
{
	ssize_t got;

	(void)arg;
	if (!n)
		return -ERANGE;
	got = readlinkat(dir, name, buf, n);
	if (got < 0)
		return -errno;
	/* A target that fills the buffer may have been cut. */
	if ((size_t)got >= n)
		return -ERANGE;
	buf[got] = '\0';
	return (int)got;
}

/* Sets or releases an open-file-description lock on the whole file. EACCES and EAGAIN both mean
 * that another process has the lock; callers get EAGAIN. */
static int set_lock(int fd, short type)
{
	struct flock l = { .l_type = type, .l_whence = SEEK_SET };

	for (;;) {
		if (!fcntl(fd, F_OFD_SETLK, &l))
			return 0;
		if (errno == EACCES)
			return -EAGAIN;
		if (errno != EINTR)
			return -errno;
	}
}

static int real_lock(void *arg, int fd, bool exclusive)
{
	(void)arg;
	return set_lock(fd, exclusive ? F_WRLCK : F_RDLCK);
}

static int real_unlock(void *arg, int fd)
{
	(void)arg;
	return set_lock(fd, F_UNLCK);
}

/* f_bavail, unlike f_bfree, leaves out what is reserved for root. */
static int real_free_bytes(void *arg, int fd, uint64_t *bytes)
{
	struct statvfs v;
	uint64_t product;

	(void)arg;
	while (fstatvfs(fd, &v))
		if (errno != EINTR)
			return -errno;
	if (__builtin_mul_overflow((uint64_t)v.f_bavail, (uint64_t)v.f_frsize, &product))
		product = UINT64_MAX;
	*bytes = product;
	return 0;
}

/* A device number with major 0 is drawn anew at each mount. The id f_fsid also tells the file
 * systems of one machine apart, and does not change. For a block device the device number is better
 * than f_fsid, because a snapshot that is mounted beside its origin has the same f_fsid. */
static int real_fs_id(void *arg, int fd, uint64_t *id)
{
	struct statvfs v;
	struct stat st;

	(void)arg;
	if (fstat(fd, &st))
		return -errno;
	*id = (uint64_t)st.st_dev;
	if (major(st.st_dev) == 0 && !fstatvfs(fd, &v) && v.f_fsid)
		*id = (uint64_t)v.f_fsid;
	return 0;
}

const struct shf_file_ops shf_real_file = {
	.open = shf_real_open,
	.close = real_close,
	.pread = shf_real_pread,
	.pread_once = real_pread_once,
	.stat = real_stat,
	.fstat = real_fstat,
	.list = real_list,
	.readlink = shf_real_readlink,
	.lock = real_lock,
	.unlock = real_unlock,
	.resident = shf_real_resident,
	.forget = shf_real_forget,
};

const struct shf_disk_ops shf_real_disk = {
	.mkdir = real_mkdir,
	.rename = real_rename,
	.unlink = real_unlink,
	.fsync = shf_real_fsync,
	.resize = shf_real_resize,
	.pwrite = shf_real_pwrite,
	.free_bytes = real_free_bytes,
	.fs_id = real_fs_id,
};
