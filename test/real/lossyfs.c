/* SPDX-License-Identifier: Apache-2.0 */
/* A file system in memory that loses at a cut what was not synced, for real programs to save on.
 *
 * usage: lossyfs MOUNTPOINT SEED
 *
 * SIGUSR1 is the cut: of the pages of each file that were not fsynced each is kept or lost, its
 * length too; of the changes of directories that were not fsynced each happens or not, in order and
 * never without one it needs. From then on everything is EIO until it is unmounted; then it mounts
 * itself again with what is left. Unmounted without a cut it ends.
 *
 * Always true here: `now` is what programs see, `kept` what a cut leaves for certain. A change of
 * directories (one or two of them, a rename) is a struct change, from when it is made until the
 * fsync of one of its directories applies it to `kept`, all earlier ones it needs first.
 */
#define FUSE_USE_VERSION 35
#include <errno.h>
#include <fuse_lowlevel.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "rng.h"

#define PAGE ((size_t)4096)
#define NAME_BYTES 256
#define DISK_BYTES (UINT64_C(1) << 30)

struct bytes {
	uint8_t *data;          /* owned; len rounded up to pages */
	size_t len;
};
struct entry {
	struct entry *next;
	struct inode *in;       /* borrowed */
	char name[NAME_BYTES];
};
struct inode {
	struct inode *next;     /* of all, by number downwards */
	fuse_ino_t ino;
	mode_t mode;
	struct inode *parent;   /* of a directory, now; borrowed */
	time_t mtime;
	struct bytes now, kept;
	bool *dirty;            /* owned; by page of the longer of the two */
	size_t dirty_n;
	bool seen;              /* of the walk that looks who has a name */
	struct entry *now_in, *kept_in; /* owned; of a directory */
};
struct half {                   /* what becomes of one name: in NULL, it goes */
	struct inode *dir, *in; /* dir NULL: no such half */
	char name[NAME_BYTES];
};
struct change {
	struct change *next;
	struct half half[2];
	bool mine;              /* of the walk that marks what is needed */
};
static struct inode *root, *inodes;
static fuse_ino_t last_ino;
static struct change *changes, **changes_end = &changes; /* oldest first */
static volatile sig_atomic_t cut_wanted;
static bool is_cut;
static uint64_t draws, lost_pages, lost_changes, cuts;

/* A test's disk: without memory there is no test. */
static void *must(void *p)
{
	if (!p) {
		perror("lossyfs");
		exit(1);
	}
	return p;
}

/* --- bytes -------------------------------------------------------------------------------- */

static size_t pages(size_t n)
{
	return (n + PAGE - 1) / PAGE;
}

static void set_len(struct bytes *b, size_t len)
{
	size_t have = pages(b->len) * PAGE, want = pages(len) * PAGE;

	if (want != have) {
		b->data = must(realloc(b->data, want + 1));
		if (want > have)
			memset(b->data + have, 0, want - have);
	}
	if (len < b->len && want > len)
		memset(b->data + len, 0, want - len);
	b->len = len;
}

static void soil(struct inode *in, size_t from, size_t to)
{
	size_t n = pages(in->now.len > in->kept.len ? in->now.len : in->kept.len);

	if (n > in->dirty_n) {
		in->dirty = must(realloc(in->dirty, n * sizeof(*in->dirty)));
		memset(in->dirty + in->dirty_n, 0, (n - in->dirty_n) * sizeof(*in->dirty));
		in->dirty_n = n;
	}
	for (size_t p = from / PAGE; p < pages(to) && p < in->dirty_n; p++)
		in->dirty[p] = true;
}

static void resize(struct inode *in, size_t len)
{
	size_t was = in->now.len;

	set_len(&in->now, len);
	soil(in, was < len ? was : len, was < len ? len : was);
	in->mtime = time(NULL);
}

static void keep_page(struct inode *in, size_t p)
{
	size_t at = p * PAGE;

	if (at < in->now.len && at < in->kept.len)
		memcpy(in->kept.data + at, in->now.data + at, PAGE);
}

static void sync_file(struct inode *in)
{
	set_len(&in->kept, in->now.len);
	for (size_t p = 0; p < in->dirty_n; p++)
		if (in->dirty[p])
			keep_page(in, p);
	if (in->dirty_n)
		memset(in->dirty, 0, in->dirty_n * sizeof(*in->dirty));
}

static void cut_file(struct inode *in)
{
	bool long_kept = in->now.len == in->kept.len || rng_next(&draws) & 1;

	if (long_kept)
		set_len(&in->kept, in->now.len);
	for (size_t p = 0; p < in->dirty_n; p++) {
		if (!in->dirty[p])
			continue;
		if (rng_next(&draws) & 1)
			keep_page(in, p);
		else
			lost_pages++;
		in->dirty[p] = false;
	}
	set_len(&in->now, in->kept.len);
	if (in->kept.len)
		memcpy(in->now.data, in->kept.data, pages(in->kept.len) * PAGE);
}

/* --- names -------------------------------------------------------------------------------- */

static struct entry **find(struct entry **list, const char *name)
{
	while (*list && strcmp((*list)->name, name) != 0)
		list = &(*list)->next;
	return list;
}

static void put(struct entry **list, const char *name, struct inode *in)
{
	struct entry **e = find(list, name), *gone = *e;

	if (!in && gone) {
		*e = gone->next;
		free(gone);
	} else if (in && gone) {
		gone->in = in;
	} else if (in) {
		*e = must(calloc(1, sizeof(**e)));
		snprintf((*e)->name, NAME_BYTES, "%s", name);
		(*e)->in = in;
	}
}

static bool touch_alike(const struct change *a, const struct change *b)
{
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < 2; k++)
			if (a->half[i].dir && a->half[i].dir == b->half[k].dir &&
			    strcmp(a->half[i].name, b->half[k].name) == 0)
				return true;
	return false;
}

static void apply(const struct change *c)
{
	for (int i = 0; i < 2; i++)
		if (c->half[i].dir)
			put(&c->half[i].dir->kept_in, c->half[i].name, c->half[i].in);
}

/* Those that are mine go to `kept` and from the list. */
static void apply_mine(void)
{
	struct change **at = &changes;

	while (*at) {
		struct change *c = *at;

		if (!c->mine) {
			at = &c->next;
			continue;
		}
		apply(c);
		*at = c->next;
		free(c);
	}
	changes_end = at;
}

/* Those of this directory, and each earlier one that these need. */
static void sync_dir(struct inode *dir)
{
	bool more = true;

	for (struct change *c = changes; c; c = c->next)
		c->mine = c->half[0].dir == dir || c->half[1].dir == dir;
	while (more) {
		more = false;
		for (struct change *a = changes; a; a = a->next)
			for (struct change *b = a->next; b && !a->mine; b = b->next)
				if (b->mine && touch_alike(a, b))
					a->mine = more = true;
	}
	apply_mine();
}

static void cut_dirs(void)
{
	for (struct change *c = changes; c; c = c->next) {
		c->mine = rng_next(&draws) & 1;
		for (struct change *b = changes; b != c; b = b->next)
			if (!b->mine && touch_alike(b, c))
				c->mine = false;
		lost_changes += !c->mine;
	}
	apply_mine();
	while (changes) {
		struct change *c = changes;

		changes = c->next;
		free(c);
	}
	changes_end = &changes;
	for (struct inode *d = inodes; d; d = d->next) {
		while (d->now_in)
			put(&d->now_in, d->now_in->name, NULL);
		for (struct entry *e = d->kept_in; e; e = e->next) {
			put(&d->now_in, e->name, e->in);
			e->in->parent = d;
		}
	}
}

/* Every request begins here. */
static bool is_dead(void)
{
	if (cut_wanted && !is_cut) {
		is_cut = true;
		cuts++;
		for (struct inode *in = inodes; in; in = in->next)
			cut_file(in);
		cut_dirs();
	}
	return is_cut;
}

static void change(struct half a, struct half b)
{
	struct change *c = must(calloc(1, sizeof(*c)));

	c->half[0] = a;
	c->half[1] = b;
	*changes_end = c;
	changes_end = &c->next;
	for (int i = 0; i < 2; i++) {
		if (!c->half[i].dir)
			continue;
		put(&c->half[i].dir->now_in, c->half[i].name, c->half[i].in);
		c->half[i].dir->mtime = time(NULL);
		if (c->half[i].in)
			c->half[i].in->parent = c->half[i].dir;
	}
}

static struct half half(struct inode *dir, const char *name, struct inode *in)
{
	struct half h = { .dir = dir, .in = in };

	snprintf(h.name, sizeof(h.name), "%s", name);
	return h;
}

static struct inode *inode_new(mode_t mode)
{
	struct inode *in = must(calloc(1, sizeof(*in)));

	in->ino = ++last_ino;
	in->mode = mode;
	in->mtime = time(NULL);
	in->next = inodes;
	inodes = in;
	return in;
}

static struct inode *inode_of(fuse_ino_t ino)
{
	struct inode *in = inodes;

	while (in && in->ino != ino)
		in = in->next;
	return in ? in : root;
}

/* --- after a cut -------------------------------------------------------------------------- */

static void walk(struct inode *in)
{
	in->seen = true;
	for (struct entry *e = in->kept_in; e; e = e->next)
		walk(e->in);
}

/* Nothing is open and `now` is `kept`: what has no name there is gone. */
static void sweep(void)
{
	struct inode **at = &inodes;

	walk(root);
	while (*at) {
		struct inode *in = *at;

		if (in->seen) {
			in->seen = false;
			at = &in->next;
			continue;
		}
		*at = in->next;
		while (in->now_in)
			put(&in->now_in, in->now_in->name, NULL);
		while (in->kept_in)
			put(&in->kept_in, in->kept_in->name, NULL);
		free(in->now.data);
		free(in->kept.data);
		free(in->dirty);
		free(in);
	}
}

/* --- requests ----------------------------------------------------------------------------- */

static struct stat stat_of(const struct inode *in)
{
	return (struct stat){ .st_ino = in->ino, .st_mode = in->mode, .st_nlink = 1,
			      .st_size = (off_t)in->now.len, .st_blksize = (blksize_t)PAGE,
			      .st_blocks = (blkcnt_t)(pages(in->now.len) * PAGE / 512),
			      .st_mtim.tv_sec = in->mtime, .st_ctim.tv_sec = in->mtime };
}

static struct fuse_entry_param entry_of(struct inode *in)
{
	return (struct fuse_entry_param){ .ino = in->ino, .attr = stat_of(in) };
}

static void do_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param e;
	struct entry *found;

	if (is_dead()) {
		fuse_reply_err(req, EIO);
		return;
	}
	found = *find(&inode_of(parent)->now_in, name);
	if (!found) {
		fuse_reply_err(req, ENOENT);
		return;
	}
	e = entry_of(found->in);
	fuse_reply_entry(req, &e);
}

static void do_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct stat st;

	(void)fi;
	if (is_dead()) {
		fuse_reply_err(req, EIO);
		return;
	}
	st = stat_of(inode_of(ino));
	fuse_reply_attr(req, &st, 0);
}

static void do_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *to, int what,
		       struct fuse_file_info *fi)
{
	struct inode *in = inode_of(ino);

	(void)fi;
	if (is_dead()) {
		fuse_reply_err(req, EIO);
		return;
	}
	if (what & FUSE_SET_ATTR_SIZE)
		resize(in, (size_t)to->st_size);
	if (what & FUSE_SET_ATTR_MODE)
		in->mode = (in->mode & S_IFMT) | (to->st_mode & 07777);
	do_getattr(req, ino, NULL);
}

/* A new name of this kind, or NULL with the answer given. */
static struct inode *make(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	struct inode *dir = inode_of(parent), *in;
	int rc = is_dead() ? EIO : strlen(name) >= NAME_BYTES ? ENAMETOOLONG :
		 *find(&dir->now_in, name) ? EEXIST : 0;

	if (rc) {
		fuse_reply_err(req, rc);
		return NULL;
	}
	in = inode_new(mode);
	change(half(dir, name, in), (struct half){ .dir = NULL });
	return in;
}

static void do_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	struct inode *in = make(req, parent, name, S_IFDIR | mode);
	struct fuse_entry_param e;

	if (!in)
		return;
	e = entry_of(in);
	fuse_reply_entry(req, &e);
}

static void do_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
		      struct fuse_file_info *fi)
{
	struct inode *in = make(req, parent, name, S_IFREG | mode);
	struct fuse_entry_param e;

	if (!in)
		return;
	e = entry_of(in);
	fuse_reply_create(req, &e, fi);
}

static void do_remove(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct inode *dir = inode_of(parent);
	struct entry *e = is_dead() ? NULL : *find(&dir->now_in, name);
	int rc = is_cut ? EIO : !e ? ENOENT : e->in->now_in ? ENOTEMPTY : 0;

	if (rc == 0)
		change(half(dir, name, NULL), (struct half){ .dir = NULL });
	fuse_reply_err(req, rc);
}

static void do_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t to,
		      const char *to_name, unsigned flags)
{
	struct inode *dir = inode_of(parent), *to_dir = inode_of(to);
	struct entry *from = is_dead() ? NULL : *find(&dir->now_in, name);
	struct entry *there = is_cut ? NULL : *find(&to_dir->now_in, to_name);
	int rc = is_cut ? EIO : !from ? ENOENT : flags & ~1u ? EINVAL :
		 there && flags & 1u /* RENAME_NOREPLACE */ ? EEXIST :
		 there && there->in->now_in ? ENOTEMPTY : 0;

	if (rc == 0)
		change(half(dir, name, NULL), half(to_dir, to_name, from->in));
	fuse_reply_err(req, rc);
}

static void do_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	if (is_dead())
		fuse_reply_err(req, EIO);
	else
		fuse_reply_open(req, fi);
}

static void do_read(fuse_req_t req, fuse_ino_t ino, size_t n, off_t off,
		    struct fuse_file_info *fi)
{
	const struct bytes *b = &inode_of(ino)->now;
	size_t at = (size_t)off;

	(void)fi;
	if (is_dead()) {
		fuse_reply_err(req, EIO);
		return;
	}
	at = at < b->len ? at : b->len;
	n = n < b->len - at ? n : b->len - at;
	fuse_reply_buf(req, n ? (const char *)b->data + at : NULL, n);
}

static void do_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t n, off_t off,
		     struct fuse_file_info *fi)
{
	struct inode *in = inode_of(ino);
	size_t at = (size_t)off;

	(void)fi;
	if (is_dead()) {
		fuse_reply_err(req, EIO);
		return;
	}
	if (at + n > in->now.len)
		resize(in, at + n);
	memcpy(in->now.data + at, buf, n);
	soil(in, at, at + n);
	in->mtime = time(NULL);
	fuse_reply_write(req, n);
}

static void do_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len,
			 struct fuse_file_info *fi)
{
	struct inode *in = inode_of(ino);

	(void)fi;
	if (!is_dead() && mode == 0 && (size_t)(off + len) > in->now.len)
		resize(in, (size_t)(off + len));
	fuse_reply_err(req, is_cut ? EIO : mode ? EOPNOTSUPP : 0);
}

static void do_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	(void)datasync;
	(void)fi;
	if (!is_dead())
		sync_file(inode_of(ino));
	fuse_reply_err(req, is_cut ? EIO : 0);
}

static void do_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	(void)datasync;
	(void)fi;
	if (!is_dead())
		sync_dir(inode_of(ino));
	fuse_reply_err(req, is_cut ? EIO : 0);
}

static void do_readdir(fuse_req_t req, fuse_ino_t ino, size_t room, off_t off,
		       struct fuse_file_info *fi)
{
	char *out = must(malloc(room));
	off_t i = 0;
	size_t n = 0;

	(void)fi;
	if (is_dead()) {
		fuse_reply_err(req, EIO);
		free(out);
		return;
	}
	for (struct entry *e = inode_of(ino)->now_in; e; e = e->next) {
		struct stat st = stat_of(e->in);
		size_t took;

		if (i++ < off)
			continue;
		took = fuse_add_direntry(req, out + n, room - n, e->name, &st, i);
		if (took > room - n)
			break;
		n += took;
	}
	fuse_reply_buf(req, out, n);
	free(out);
}

static void do_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct statvfs v = { .f_bsize = PAGE, .f_frsize = PAGE, .f_blocks = DISK_BYTES / PAGE,
			     .f_bfree = DISK_BYTES / PAGE, .f_bavail = DISK_BYTES / PAGE,
			     .f_namemax = NAME_BYTES - 1 };

	(void)ino;
	fuse_reply_statfs(req, &v);
}

static const struct fuse_lowlevel_ops ops = {
	.lookup = do_lookup, .getattr = do_getattr, .setattr = do_setattr, .mkdir = do_mkdir,
	.create = do_create, .unlink = do_remove, .rmdir = do_remove, .rename = do_rename,
	.open = do_open, .read = do_read, .write = do_write, .fallocate = do_fallocate,
	.fsync = do_fsync, .fsyncdir = do_fsyncdir, .readdir = do_readdir, .statfs = do_statfs,
};

static void cut(int sig)
{
	(void)sig;
	cut_wanted = 1;
}

/* From mount to unmount; 0 or -1. */
static int serve(const char *at)
{
	char *argv[] = { "lossyfs", "-o", "fsname=lossyfs" };
	struct fuse_args args = FUSE_ARGS_INIT(3, argv);
	struct fuse_session *s = fuse_session_new(&args, &ops, sizeof(ops), NULL);
	int rc = -1;

	if (s && fuse_session_mount(s, at) == 0) {
		rc = fuse_session_loop(s);
		fuse_session_unmount(s);
	}
	if (s)
		fuse_session_destroy(s);
	fuse_opt_free_args(&args);
	return rc < 0 ? -1 : 0;
}

int main(int argc, char **argv)
{
	struct sigaction sa = { .sa_handler = cut };

	if (argc != 3) {
		fputs("usage: lossyfs MOUNTPOINT SEED\n", stderr);
		return 2;
	}
	draws = strtoull(argv[2], NULL, 10);
	sigaction(SIGUSR1, &sa, NULL);
	root = inode_new(S_IFDIR | 0755);
	do {
		is_cut = false;
		cut_wanted = 0;
		sweep();
		if (serve(argv[1]) < 0)
			return 1;
		printf("{\"cuts\": %llu, \"lost_pages\": %llu, \"lost_changes\": %llu}\n",
		       (unsigned long long)cuts, (unsigned long long)lost_pages,
		       (unsigned long long)lost_changes);
		fflush(stdout);
	} while (is_cut);
	return 0;
}
