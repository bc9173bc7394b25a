/* SPDX-License-Identifier: Apache-2.0 */
/* Describes the file system of a directory, and warns of problems. */
#include "device.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/quota.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

/* Magic numbers from statfs(2) */
#define TMPFS 0x01021994U
#define RAMFS 0x858458f6U
#define OVERLAY 0x794c7630U
#define NFS 0x6969U
#define LUSTRE 0x0bd00bd0U
#define EXT4 0xef53U
#define XFS 0x58465342U
#define BTRFS 0x9123683eU
#define ZFS 0x2fc12fc1U
#define F2FS 0xf2f52010U
#define GPFS 0x47504653U
#define FUSE 0x65735546U
#define CIFS 0xff534d42U
#define SMB2 0xfe534d42U
#define CEPH 0x00c36400U
#define NINEP 0x01021997U

static const struct {
	uint32_t number;
	const char *name;
} kinds[] = {
	{ TMPFS, "tmpfs" }, { RAMFS, "ramfs" }, { OVERLAY, "overlay" }, { NFS, "nfs" },
	{ LUSTRE, "lustre" }, { EXT4, "ext4" }, { XFS, "xfs" }, { BTRFS, "btrfs" },
	{ ZFS, "zfs" }, { F2FS, "f2fs" }, { GPFS, "gpfs" }, { FUSE, "fuse" },
	{ CIFS, "cifs" }, { SMB2, "smb" }, { CEPH, "ceph" }, { NINEP, "9p" },
};

/* Reads a small text file, at most n - 1 bytes. Returns false if it is empty or cannot be read. */
static bool read_text(const char *path, char *text, size_t n)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? -1 : read(fd, text, n - 1);

	if (fd >= 0)
		close(fd);
	text[got > 0 ? got : 0] = '\0';
	return got > 0;
}

static bool number_after(const char *path, const char *key, int base, uint64_t *out)
{
	char text[8192];
	const char *at = read_text(path, text, sizeof(text)) ? strstr(text, key) : NULL;

	if (at)
		*out = strtoull(at + strlen(key), NULL, base);
	return at != NULL;
}

/* Returns the bytes that the user's quota leaves, if the kernel reports it (quotactl_fd, Linux
 * 5.14). */
static uint64_t quota_left(int fd)
{
#ifdef SYS_quotactl_fd
	/* QCMD shifts a signed number out of its range, so it is not used. */
	const unsigned command = (unsigned)Q_GETQUOTA << SUBCMDSHIFT | USRQUOTA;
	struct dqblk q = { 0 };
	uint64_t limit;

	if (syscall(SYS_quotactl_fd, fd, command, getuid(), &q) < 0)
		return UINT64_MAX;
	limit = q.dqb_bsoftlimit ? q.dqb_bsoftlimit : q.dqb_bhardlimit;
	if (!(q.dqb_valid & QIF_BLIMITS) || !limit)
		return UINT64_MAX;
	limit *= 1024; /* the kernel counts limits in KiB, but used space in bytes */
	return limit > q.dqb_curspace ? limit - q.dqb_curspace : 0;
#else
	(void)fd;
	return UINT64_MAX;
#endif
}

/* O_DIRECT can fail at open or at the first write; this tries both. */
int device_direct(const char *dir, bool *direct)
{
	char path[PATH_MAX];
	void *page = NULL;
	int fd, bad = 0;

	snprintf(path, sizeof(path), "%s/direct", dir);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0)
		return -errno;
	close(fd);
	fd = open(path, O_WRONLY | O_DIRECT | O_CLOEXEC);
	*direct = fd >= 0;
	if (fd >= 0 && posix_memalign(&page, 4096, 4096) == 0) {
		memset(page, 0, 4096);
		if (pwrite(fd, page, 4096, 0) < 0) {
			bad = errno == ENOSPC || errno == EDQUOT || errno == EIO ? errno : 0;
			*direct = false;
		}
		free(page);
	}
	if (fd >= 0)
		close(fd);
	unlink(path);
	return -bad;
}

int device_look(struct device_place *p, const char *dir)
{
	struct device_place made = { .kind = "", .quota_bytes = UINT64_MAX };
	struct statfs fs;
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc;

	if (fd < 0)
		return -errno;
	if (fstatfs(fd, &fs) < 0) {
		rc = -errno;
		close(fd);
		return rc;
	}
	made.quota_bytes = quota_left(fd);
	close(fd);
	made.kind_number = (uint32_t)fs.f_type;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (kinds[i].number == made.kind_number)
			made.kind = kinds[i].name;
	made.free_bytes = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
	if (made.quota_bytes < made.free_bytes)
		made.free_bytes = made.quota_bytes;
	made.memory_bytes = UINT64_MAX;
	if (number_after("/proc/meminfo", "MemAvailable:", 10, &made.memory_bytes))
		made.memory_bytes *= 1024;
	*p = made;
	return 0;
}

/* --- warnings --------------------------------------------------------------------------------- */

/* Returns the stripe count for new files in this directory; 0: the default of the file system. The
 * value of the xattr begins with magic, pattern, 16 bytes of object ID, stripe size and stripe
 * count (struct lov_user_md_v1 of Lustre's user headers). */
static unsigned lustre_stripes(const char *dir)
{
	unsigned char x[4096];
	ssize_t n = getxattr(dir, "lustre.lov", x, sizeof(x));

	/* Versions 1 and 3 have a stripe count. A composite layout was set on purpose. */
	if (n < 32 || x[0] != 0xd0 || x[1] != 0x0b || (x[2] != 0xd1 && x[2] != 0xd3))
		return n > 0 ? UINT32_MAX : 0;
	return x[28] | (unsigned)x[29] << 8;
}

/* A bench that was killed by SIGKILL leaves its directory. */
static void warn_left(const char *dir, const char *own, void (*say)(void *arg, const char *text),
		      void *arg)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	char text[512];

	while (d && (e = readdir(d))) {
		if (strncmp(e->d_name, "sheaf-bench.", 12) != 0 || strcmp(e->d_name, own) == 0)
			continue;
		snprintf(text, sizeof(text), "%.255s was left by another bench, which was killed "
		         "or is running; delete it if none is running",
			 e->d_name);
		say(arg, text);
	}
	if (d)
		closedir(d);
}

static void warn_kind(const struct device_place *p, const char *dir,
		      void (*say)(void *arg, const char *text), void *arg)
{
	unsigned stripes;

	switch (p->kind_number) {
	case TMPFS:
	case RAMFS:
		say(arg, "this is a file system in memory: nothing in it survives a reboot");
		break;
	case OVERLAY:
		say(arg, "this is an overlay, as in a container: mount a volume for checkpoints");
		break;
	case NFS:
		say(arg, "NFS: all ranks must mount it with the same options");
		break;
	case FUSE:
		say(arg, "FUSE: make sure that its fsync and rename are as durable as on a disk");
		break;
	case CIFS:
	case SMB2:
		say(arg, "SMB: rename and fsync may not be as durable as a commit needs; use "
		    "another file system");
		break;
	case LUSTRE:
		stripes = lustre_stripes(dir);
		if (stripes < 2)
			say(arg, "Lustre without striping: each file is on one target (lfs "
				 "setstripe -c -1 on the run)");
		break;
	default:
		break;
	}
}

void device_warn(const struct device_place *p, const char *dir, const char *own,
		 void (*say)(void *arg, const char *text), void *arg)
{
	struct rlimit files;
	struct stat st;
	uint64_t mask;
	char text[200];

	warn_kind(p, dir, say, arg);
	if (!p->direct)
		say(arg, "O_DIRECT is refused here: writes go through the page cache");
	if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < 1024) {
		snprintf(text, sizeof(text), "only %llu file descriptors are allowed for a process "
		         "(raise ulimit -n)",
			 (unsigned long long)files.rlim_cur);
		say(arg, text);
	}
	if (stat(dir, &st) == 0 && (st.st_mode & S_IWGRP) &&
	    number_after("/proc/self/status", "Umask:", 8, &mask) && (mask & 020)) {
		snprintf(text, sizeof(text), "the group may write here, but umask %04llo keeps it "
			 "out of what is made (umask 0002)", (unsigned long long)mask);
		say(arg, text);
	}
	if (p->quota_bytes != UINT64_MAX) {
		snprintf(text, sizeof(text), "your quota has %llu MiB left",
			 (unsigned long long)(p->quota_bytes >> 20));
		say(arg, text);
	}
	warn_left(dir, own, say, arg);
}
