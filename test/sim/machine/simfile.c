/* SPDX-License-Identifier: Apache-2.0 */
/* Files of the simulated disk: paths, descriptors, locks and the calls on them. Each call reads the
 * present tree and changes it only by sim_record. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "simcore.h"

#define LINKS_MAX 40

static bool spot_is_dots(const struct sim_spot *spot)
{
	return !strcmp(spot->name, ".") || !strcmp(spot->name, "..");
}

/* Returns the directory as the process still caches it, or NULL if it does not. */
static const struct sim_stale *stale_of(const struct simproc *seer, uint32_t dir)
{
	for (size_t i = 0; seer && i < SIM_STALE; i++)
		if (seer->stale[i].dir == dir && seer->disk->clock_ns < seer->stale[i].until_ns)
			return &seer->stale[i];
	return NULL;
}

static int find_stale(const struct simtree *t, const struct sim_stale *stale, struct sim_spot *spot)
{
	const struct sim_inode *f;

	spot->ino = 0;
	for (size_t i = 0; i < stale->entry_n; i++)
		if (!strcmp(stale->entries[i].name->text, spot->name))
			spot->ino = stale->entries[i].ino;
	f = simtree_inode(t, spot->ino);
	return !spot->ino || (f && f->links) ? 0 : -ESTALE;
}

/* Looks up one component in `at`: sets its name and its inode. */
static int step(const struct simtree *t, const struct simproc *seer, uint32_t at, const char *name,
                size_t n, struct sim_spot *spot)
{
	const struct sim_inode *dir = simtree_inode(t, at);
	const struct sim_stale *stale = stale_of(seer, at);

	if (!dir || dir->type != SHF_T_DIR)
		return -ENOTDIR;
	if (n > SIM_NAME_MAX)
		return -ENAMETOOLONG;
	spot->dir = at;
	memcpy(spot->name, name, n);
	spot->name[n] = '\0';
	if (!strcmp(spot->name, "."))
		spot->ino = at;
	else if (!strcmp(spot->name, ".."))
		spot->ino = dir->parent;
	else if (!stale)
		spot->ino = simtree_find(t, at, spot->name);
	else
		return find_stale(t, stale, spot);
	return 0;
}

int sim_walk(const struct simtree *t, const struct simproc *seer, uint32_t at, const char *path,
             bool follow, int depth, struct sim_spot *spot)
{
	if (depth > LINKS_MAX)
		return -ELOOP;
	if (!*path)
		return -ENOENT;
	if (*path == '/')
		at = SIM_ROOT;
	*spot = (struct sim_spot){ .dir = at, .ino = at, .name = "." };
	for (path += strspn(path, "/"); *path;) {
		size_t n = strcspn(path, "/");
		const char *rest = path + n + strspn(path + n, "/");
		const struct sim_inode *f;
		int rc = step(t, seer, at, path, n, spot);

		if (rc)
			return rc;
		f = simtree_inode(t, spot->ino);
		if (f && f->type == SHF_T_LINK && (path[n] == '/' || follow)) {
			rc = sim_walk(t, seer, at, f->target->text, true, depth + 1, spot);
			if (rc)
				return rc;
			f = simtree_inode(t, spot->ino);
		}
		if (*rest && !f)
			return -ENOENT;
		if (path[n] == '/' && f && f->type != SHF_T_DIR)
			return -ENOTDIR;
		at = spot->ino;
		path = rest;
	}
	return 0;
}

/* Returns the open description of fd, or NULL if the process has no such descriptor. */
static struct sim_open *open_of(const struct simproc *p, int fd)
{
	int i = fd == 0 && p->zero ? p->zero - 1 : fd - p->fd_first;

	return i < 0 || (size_t)i >= p->fd_n ? NULL : p->fds[i];
}

const char *sim_label(const struct simproc *p, int fd)
{
	const struct sim_open *o = open_of(p, fd);
	const struct sim_inode *f = o ? simtree_inode(&p->disk->now, o->ino) : NULL;

	if (fd == SHF_CWD)
		return "cwd";
	return !f ? "?" : f->label ? f->label->text : "/";
}

/* The library uses only one component relative to a descriptor. A disk that accepted more would
 * hide calls that do not. */
static int walk_seen(const struct simproc *p, const struct simproc *seer, int dir,
                     const char *name, bool follow, struct sim_spot *spot)
{
	const struct sim_open *o;

	if (dir == SHF_CWD)
		return sim_walk(&p->disk->now, seer, SIM_ROOT, name, follow, 0, spot);
	o = open_of(p, dir);
	if (!o)
		return -EBADF;
	if (strchr(name, '/'))
		return -EINVAL;
	return sim_walk(&p->disk->now, seer, o->ino, name, follow, 0, spot);
}

/* For calls that change something: the server executes them, so the client's cached names do not
 * matter. */
static int walk_from(const struct simproc *p, int dir, const char *name, bool follow,
                     struct sim_spot *spot)
{
	return walk_seen(p, NULL, dir, name, follow, spot);
}

void sim_unused(struct simdisk *d, uint32_t ino)
{
	struct sim_inode *f = simtree_inode(&d->now, ino);

	if (!f || f->links || f->opens || ino == SIM_ROOT)
		return;
	if (f->type == SHF_T_FILE)
		d->used -= (f->size + SIM_PAGE - 1) / SIM_PAGE * SIM_PAGE;
	simtree_drop(&d->now, ino);
}

int sim_create(struct simdisk *d, const struct sim_spot *spot, int type, const char *target,
               int node, uint32_t *ino)
{
	const struct sim_inode *dir = simtree_inode(&d->now, spot->dir);
	struct simrec r = { .kind = REC_CREATE, .type = type, .node = node, .dir = spot->dir };

	if (d->read_only)
		return -EROFS;
	if (!dir || !dir->links)
		return -ENOENT;
	r.parts = PART_ADD;
	r.ino = d->next_ino++;
	r.name = sim_name_new(spot->name);
	r.to_name = target ? sim_name_new(target) : NULL;
	*ino = r.ino;
	sim_record(d, &r);
	return 0;
}

int sim_unlink_at(struct simdisk *d, const struct sim_spot *spot, bool is_dir, int node)
{
	const struct sim_inode *f = simtree_inode(&d->now, spot->ino);
	struct simrec r = { .kind = REC_REMOVE, .node = node, .dir = spot->dir, .ino = spot->ino,
	                    .parts = PART_DEL };

	if (!f)
		return -ENOENT;
	if (spot_is_dots(spot))
		return -EINVAL;
	if (is_dir && f->type != SHF_T_DIR)
		return -ENOTDIR;
	if (!is_dir && f->type == SHF_T_DIR)
		return -EISDIR;
	if (is_dir && f->entry_n)
		return -ENOTEMPTY;
	if (d->read_only)
		return -EROFS;
	r.name = sim_name_new(spot->name);
	sim_record(d, &r);
	sim_unused(d, spot->ino);
	return 0;
}

static uint64_t room_of(const struct simdisk *d)
{
	return d->space > d->used ? d->space - d->used : 0;
}

static uint64_t pages_bytes(uint64_t size)
{
	return (size + SIM_PAGE - 1) / SIM_PAGE * SIM_PAGE;
}

int sim_resize(struct simdisk *d, uint32_t ino, uint64_t bytes, int node)
{
	const struct sim_inode *f = simtree_inode(&d->now, ino);
	struct simrec r = { .kind = REC_SIZE, .node = node, .ino = ino, .size = bytes,
	                    .parts = PART_SIZE };
	uint64_t old = f->size;

	if (bytes > INT64_MAX - SIM_PAGE)
		return -EFBIG;
	if (d->read_only)
		return -EROFS;
	if (bytes == old)
		return 0;
	if (bytes > old && pages_bytes(bytes) - pages_bytes(old) > room_of(d))
		return -ENOSPC;
	r.shrinks = bytes < old;
	d->used += pages_bytes(bytes) - pages_bytes(old);
	sim_record(d, &r);
	return 0;
}

int64_t sim_write(struct simdisk *d, uint32_t ino, const void *buf, size_t n, uint64_t off,
                  int node)
{
	const struct sim_inode *f = simtree_inode(&d->now, ino);
	struct simrec r = { .kind = REC_WRITE, .node = node, .ino = ino, .off = off, .len = n };
	uint64_t end = off + n, room = pages_bytes(f->size) + room_of(d);
	int64_t rc = (int64_t)n;

	if (d->read_only)
		return -EROFS;
	if (n > INT64_MAX - SIM_PAGE || off > INT64_MAX - SIM_PAGE - n)
		return -EFBIG;
	if (!n)
		return 0;
	if (end > f->size && end > room) {
		/* What still fits is written, as in the kernel. */
		rc = -ENOSPC;
		if (off >= room)
			return rc;
		end = room;
		r.len = end - off;
	}
	r.size = end > f->size ? end : f->size;
	r.parts = end > f->size ? PART_DATA | PART_SIZE : PART_DATA;
	d->used += pages_bytes(r.size) - pages_bytes(f->size);
	simtree_pages(&d->now, &r, buf);
	sim_record(d, &r);
	return rc;
}

static int fd_new(struct simproc *p, uint32_t ino, int flags)
{
	size_t i = 0;

	while (i < p->fd_n && p->fds[i])
		i++;
	if (i >= SIM_FD_MAX)
		return -EMFILE;
	if (i == p->fd_n) {
		p->fds = sim_grow(p->fds, &p->fd_cap, p->fd_n + 1, sizeof(*p->fds));
		p->fd_n++;
	}
	p->fds[i] = sim_alloc(1, sizeof(*p->fds[i]));
	*p->fds[i] = (struct sim_open){ .ino = ino, .flags = flags, .refs = 1 };
	simtree_inode(&p->disk->now, ino)->opens++;
	return p->fd_first + (int)i;
}

void sim_open_put(struct simdisk *d, struct sim_open *o)
{
	uint32_t ino = o->ino;

	if (--o->refs)
		return;
	free(o);
	simtree_inode(&d->now, ino)->opens--;
	sim_unused(d, ino);
}

static int fd_close(struct simproc *p, int fd)
{
	struct sim_open *o = open_of(p, fd);

	if (!o)
		return -EBADF;
	p->fds[fd ? fd - p->fd_first : p->zero - 1] = NULL;
	p->zero = fd ? p->zero : 0;
	sim_open_put(p->disk, o);
	return 0;
}

static int do_open(struct simproc *p, int dir, const char *name, int flags)
{
	bool excl = (flags & SHF_O_CREATE) && (flags & SHF_O_EXCL);
	struct simdisk *d = p->disk;
	const struct sim_inode *f;
	struct sim_spot spot;
	int rc = walk_seen(p, flags & SHF_O_CREATE ? NULL : p, dir, name,
	                   !(flags & SHF_O_NOFOLLOW) && !excl, &spot);

	if (rc)
		return rc;
	if (spot.ino && excl)
		return -EEXIST;
	if (!spot.ino) {
		if (!(flags & SHF_O_CREATE))
			return -ENOENT;
		if (flags & SHF_O_DIR)
			return -EINVAL;
		rc = sim_create(d, &spot, SHF_T_FILE, NULL, p->node, &spot.ino);
		if (rc)
			return rc;
	}
	f = simtree_inode(&d->now, spot.ino);
	if (f->type == SHF_T_LINK)
		return -ELOOP;
	if ((flags & SHF_O_DIR) && f->type != SHF_T_DIR)
		return -ENOTDIR;
	if (f->type == SHF_T_DIR && (flags & (SHF_O_WRITE | SHF_O_CREATE | SHF_O_TRUNC)))
		return -EISDIR;
	if (d->read_only && (flags & SHF_O_WRITE))
		return -EROFS;
	if ((flags & SHF_O_TRUNC) && f->size) {
		rc = sim_resize(d, spot.ino, 0, p->node);
		if (rc)
			return rc;
	}
	return fd_new(p, spot.ino, flags);
}

static int op_open(void *arg, int dir, const char *name, int flags, unsigned mode)
{
	struct simproc *p = sim_proc(arg);
	struct sim_call c;
	int rc = sim_begin(&c, p, SIMDISK_OPEN, dir, name, "\"%s\", %s%s%s%s%s", name,
	                   flags & SHF_O_WRITE ? "w" : "r",
	                   flags & SHF_O_CREATE ? "c" : "", flags & SHF_O_EXCL ? "x" : "",
	                   flags & SHF_O_TRUNC ? "t" : "", flags & SHF_O_DIR ? "d" : "");

	(void)mode;
	if (!rc)
		rc = do_open(p, dir, name, flags);
	if (rc >= 0 && c.after)
		fd_close(p, rc);
	else if (rc >= 0 && c.zero && !p->zero) {
		p->zero = rc - p->fd_first + 1;
		rc = 0;
	}
	return (int)sim_end(&c, rc);
}

static int op_close(void *arg, int fd)
{
	struct simproc *p = sim_proc(arg);
	struct sim_call c;
	int rc = sim_begin(&c, p, SIMDISK_CLOSE, fd, NULL, "%s", "");

	/* A close that fails has closed the descriptor, too. */
	if (!p->dead) {
		int closed = fd_close(p, fd);

		rc = rc ? rc : closed;
	}
	return (int)sim_end(&c, rc);
}

static int op_mkdir(void *arg, int dir, const char *name, unsigned mode)
{
	struct simproc *p = sim_proc(arg);
	struct sim_spot spot;
	struct sim_call c;
	uint32_t ino;
	int rc = sim_begin(&c, p, SIMDISK_MKDIR, dir, name, "\"%s\"", name);

	(void)mode;
	if (!rc)
		rc = walk_from(p, dir, name, false, &spot);
	if (!rc && spot.ino)
		rc = -EEXIST;
	if (!rc)
		rc = sim_create(p->disk, &spot, SHF_T_DIR, NULL, p->node, &ino);
	return (int)sim_end(&c, rc);
}

static bool is_below(const struct simtree *t, uint32_t ino, uint32_t above)
{
	while (ino != SIM_ROOT && ino != above)
		ino = simtree_inode(t, ino)->parent;
	return ino == above;
}

static int rename_allowed(const struct simdisk *d, const struct sim_spot *from,
                          const struct sim_spot *to, bool noreplace)
{
	const struct sim_inode *f = simtree_inode(&d->now, from->ino);
	const struct sim_inode *g = simtree_inode(&d->now, to->ino);
	const struct sim_inode *dir = simtree_inode(&d->now, to->dir);

	if (!f || !dir || !dir->links)
		return -ENOENT;
	if (spot_is_dots(from) || spot_is_dots(to))
		return -EBUSY;
	if (g && noreplace)
		return -EEXIST;
	if (d->read_only)
		return -EROFS;
	if (f->type == SHF_T_DIR && is_below(&d->now, to->dir, from->ino))
		return -EINVAL;
	if (!g)
		return 0;
	if (f->type == SHF_T_DIR && g->type != SHF_T_DIR)
		return -ENOTDIR;
	if (f->type != SHF_T_DIR && g->type == SHF_T_DIR)
		return -EISDIR;
	return g->type == SHF_T_DIR && g->entry_n && f != g ? -ENOTEMPTY : 0;
}

static int do_rename(struct simproc *p, const struct sim_spot *from, const struct sim_spot *to,
                     bool noreplace)
{
	struct simrec r = { .kind = REC_RENAME, .node = p->node, .ino = from->ino,
	                    .dir = from->dir, .to_dir = to->dir,
	                    .parts = PART_DEL | PART_ADD };
	int rc = rename_allowed(p->disk, from, to, noreplace);

	if (rc || from->ino == to->ino)
		return rc;
	r.name = sim_name_new(from->name);
	r.to_name = sim_name_new(to->name);
	sim_record(p->disk, &r);
	sim_unused(p->disk, to->ino);
	return 0;
}

static int op_rename(void *arg, int from_dir, const char *from, int to_dir, const char *to,
                      bool noreplace)
{
	struct simproc *p = sim_proc(arg);
	struct sim_spot a, b;
	struct sim_call c;
	int rc = sim_begin(&c, p, SIMDISK_RENAME, from_dir, from, "\"%s\", \"%s\"%s", from, to,
	                   noreplace ? ", noreplace" : "");

	if (!rc)
		rc = walk_from(p, from_dir, from, false, &a);
	if (!rc)
		rc = walk_from(p, to_dir, to, false, &b);
	if (!rc)
		rc = do_rename(p, &a, &b, noreplace);
	return (int)sim_end(&c, rc);
}

static int op_unlink(void *arg, int dir, const char *name, bool is_dir)
{
	struct simproc *p = sim_proc(arg);
	struct sim_spot spot;
	struct sim_call c;
	int rc = sim_begin(&c, p, SIMDISK_UNLINK, dir, name, "\"%s\"%s", name,
	                   is_dir ? ", dir" : "");

	if (!rc)
		rc = walk_from(p, dir, name, false, &spot);
	if (!rc)
		rc = sim_unlink_at(p->disk, &spot, is_dir, p->node);
	return (int)sim_end(&c, rc);
}

static void record_sync(struct simproc *p, uint32_t ino, bool failed)
{
	struct simrec r = { .kind = REC_SYNC, .node = p->node, .ino = ino, .failed = failed };

	sim_record(p->disk, &r);
}

int sim_fsync(struct simproc *p, int fd, bool queued)
{
	struct sim_call c;
	int rc = sim_begin(&c, p, SIMDISK_FSYNC, fd, NULL, "%s", "");
	const struct sim_open *o = open_of(p, fd);

	if (!o || p->dead) {
		rc = rc ? rc : -EBADF;
	} else if (!queued && sim_skips_fsync(p, fd)) {
		rc = 0;
	} else if (rc) {
		record_sync(p, o->ino, true);
	} else if (simtree_inode(&p->disk->now, o->ino)->type == SHF_T_DIR &&
	           !p->disk->dir_fsync) {
		rc = -EINVAL;
	} else {
		record_sync(p, o->ino, false);
	}
	return (int)sim_end(&c, rc);
}

static int op_fsync(void *arg, int fd)
{
	return sim_fsync(sim_proc(arg), fd, false);
}

/* Finds a file, which must be writable if `write`. */
static int file_of(const struct simproc *p, int fd, bool write, uint32_t *ino)
{
	const struct sim_open *o = open_of(p, fd);

	if (!o || (write && !(o->flags & SHF_O_WRITE)))
		return -EBADF;
	if (simtree_inode(&p->disk->now, o->ino)->type == SHF_T_DIR)
		return -EISDIR;
	*ino = o->ino;
	return 0;
}

static int op_resize(void *arg, int fd, uint64_t bytes)
{
	struct simproc *p = sim_proc(arg);
	struct sim_call c;
	uint32_t ino;
	int rc = sim_begin(&c, p, SIMDISK_RESIZE, fd, NULL, "%llu", (unsigned long long)bytes);

	if (!rc)
		rc = file_of(p, fd, true, &ino);
	if (!rc)
		rc = sim_resize(p->disk, ino, bytes, p->node);
	return (int)sim_end(&c, rc);
}

static int64_t op_pread(void *arg, int fd, void *buf, size_t n, uint64_t off)
{
	struct simproc *p = sim_proc(arg);
	struct sim_call c;
	uint32_t ino;
	int64_t rc = sim_begin(&c, p, SIMDISK_PREAD, fd, NULL, "%zu at %llu", n,
	                       (unsigned long long)off);

	if (!rc)
		rc = file_of(p, fd, false, &ino);
	if (!rc)
		rc = (int64_t)simtree_read(simtree_inode(&p->disk->now, ino), buf, n, off);
	if (rc > 0 && c.part)
		rc /= 2;
	return sim_end(&c, rc);
}

static int64_t op_pwrite(void *arg, int fd, const void *buf, size_t n, uint64_t off)
{
	struct simproc *p = sim_proc(arg);
	struct sim_call c;
	uint32_t ino;
	int64_t rc = sim_begin(&c, p, SIMDISK_PWRITE, fd, NULL, "%zu at %llu", n,
	                       (unsigned long long)off);

	if (!rc)
		rc = file_of(p, fd, true, &ino);
	if (!rc && (open_of(p, fd)->flags & SHF_O_APPEND))
		off = simtree_inode(&p->disk->now, ino)->size; /* as Linux: ignores the offset */
	if (!rc && c.part) {
		rc = sim_write(p->disk, ino, buf, n / 2, off, p->node);
		rc = rc < 0 ? rc : -c.part;
	} else if (!rc) {
		rc = sim_write(p->disk, ino, buf, n, off, p->node);
	}
	return sim_end(&c, rc);
}

static uint64_t dev_of(const struct simdisk *d)
{
	return 1 + d->seed % 1000 + 1000 * (uint64_t)d->mounts;
}

static void stat_of(const struct simdisk *d, uint32_t ino, struct shf_stat *st)
{
	const struct sim_inode *f = simtree_inode(&d->now, ino);

	*st = (struct shf_stat){ .type = f->type, .ino = ino, .dev = dev_of(d),
	                         .mtime_ns = f->mtime * INT64_C(1000000000),
	                         .ctime_ns = f->mtime * INT64_C(1000000000) };
	st->bytes = f->type == SHF_T_FILE   ? f->size
	            : f->type == SHF_T_LINK ? strlen(f->target->text)
	                                    : SIM_PAGE;
}

static int op_stat(void *arg, int dir, const char *name, bool follow, struct shf_stat *st)
{
	struct simproc *p = sim_proc(arg);
	struct sim_spot spot;
	struct sim_call c;
	int rc = sim_begin(&c, p, SIMDISK_STAT, dir, name, "\"%s\"", name);

	if (!rc)
		rc = walk_seen(p, p, dir, name, follow, &spot);
	if (!rc && !spot.ino)
		rc = -ENOENT;
	if (!rc)
		stat_of(p->disk, spot.ino, st);
	return (int)sim_end(&c, rc);
}

static int op_fstat(void *arg, int fd, struct shf_stat *st)
{
	struct simproc *p = sim_proc(arg);
	struct sim_call c;
	int rc = sim_begin(&c, p, SIMDISK_FSTAT, fd, NULL, "%s", "");
	const struct sim_open *o = open_of(p, fd);

	if (!rc && !o)
		rc = -EBADF;
	if (!rc)
		stat_of(p->disk, o->ino, st);
	return (int)sim_end(&c, rc);
}

/* Returns the present names in a random order: the caller may change the directory. */
static int names_of(struct simproc *p, int fd, struct sim_name ***names, size_t *n)
{
	const struct sim_open *o = open_of(p, fd);
	const struct sim_inode *f = o ? simtree_inode(&p->disk->now, o->ino) : NULL;
	const struct sim_stale *stale = o ? stale_of(p, o->ino) : NULL;
	const struct sim_entry *entries;

	if (!f)
		return -EBADF;
	if (f->type != SHF_T_DIR)
		return -ENOTDIR;
	entries = stale ? stale->entries : f->entries;
	*n = stale ? stale->entry_n : f->entry_n;
	*names = sim_alloc(*n, sizeof(**names));
	for (size_t i = 0; i < *n; i++) {
		size_t k = (size_t)(sim_draw(p->disk) % (i + 1));

		(*names)[i] = (*names)[k];
		(*names)[k] = sim_name_get(entries[i].name);
	}
	return 0;
}

static int op_list(void *arg, int fd, int (*item)(void *arg, const char *name), void *item_arg)
{
	struct simproc *p = sim_proc(arg);
	struct sim_name **names = NULL;
	struct sim_call c;
	size_t n = 0;
	int rc = sim_begin(&c, p, SIMDISK_LIST, fd, NULL, "%s", "");

	if (!rc)
		rc = names_of(p, fd, &names, &n);
	rc = (int)sim_end(&c, rc);
	for (size_t i = 0; i < n; i++) {
		if (!rc)
			rc = item(item_arg, names[i]->text);
		sim_name_put(names[i]);
	}
	free(names);
	return rc;
}

static int op_readlink(void *arg, int dir, const char *name, char *buf, size_t n)
{
	struct simproc *p = sim_proc(arg);
	const struct sim_inode *f;
	struct sim_spot spot;
	struct sim_call c;
	int rc = sim_begin(&c, p, SIMDISK_READLINK, dir, name, "\"%s\"", name);

	if (!rc)
		rc = walk_seen(p, p, dir, name, false, &spot);
	if (!rc) {
		f = simtree_inode(&p->disk->now, spot.ino);
		if (!f)
			rc = -ENOENT;
		else if (f->type != SHF_T_LINK)
			rc = -EINVAL;
		else if (strlen(f->target->text) >= n)
			rc = -ERANGE;
		else
			rc = (int)strlen(strcpy(buf, f->target->text));
	}
	return (int)sim_end(&c, rc);
}

static bool lock_is_held(const struct simdisk *d, const struct sim_open *mine, bool exclusive)
{
	for (size_t i = 0; i < d->proc_n; i++)
		for (size_t k = 0; k < d->procs[i]->fd_n; k++) {
			const struct sim_open *o = d->procs[i]->fds[k];

			if (o && o != mine && o->ino == mine->ino && o->lock &&
			    (exclusive || o->lock == 2))
				return true;
		}
	return false;
}

static int op_lock(void *arg, int fd, bool exclusive)
{
	struct simproc *p = sim_proc(arg);
	struct sim_call c;
	int rc = sim_begin(&c, p, SIMDISK_LOCK, fd, NULL, "%s", exclusive ? "exclusive" : "shared");
	struct sim_open *o = open_of(p, fd);

	if (!rc && (!o || (exclusive && !(o->flags & SHF_O_WRITE))))
		rc = -EBADF;
	if (!rc && p->disk->locks && lock_is_held(p->disk, o, exclusive))
		rc = -EAGAIN;
	if (!rc)
		o->lock = exclusive ? 2 : 1;
	return (int)sim_end(&c, rc);
}

static int op_unlock(void *arg, int fd)
{
	struct simproc *p = sim_proc(arg);
	struct sim_call c;
	int rc = sim_begin(&c, p, SIMDISK_UNLOCK, fd, NULL, "%s", "");
	struct sim_open *o = open_of(p, fd);

	if (!rc && !o)
		rc = -EBADF;
	if (!rc)
		o->lock = 0;
	return (int)sim_end(&c, rc);
}

static int op_free_bytes(void *arg, int fd, uint64_t *bytes)
{
	struct simproc *p = sim_proc(arg);
	struct sim_call c;
	int rc = sim_begin(&c, p, SIMDISK_FREE_BYTES, fd, NULL, "%s", "");

	if (!rc && !open_of(p, fd))
		rc = -EBADF;
	if (!rc)
		*bytes = room_of(p->disk);
	return (int)sim_end(&c, rc);
}

static int op_fs_id(void *arg, int fd, uint64_t *id)
{
	struct simproc *p = sim_proc(arg);
	struct sim_call c;
	int rc = sim_begin(&c, p, SIMDISK_FSTAT, fd, NULL, "%s", "the file system");

	if (!rc && !open_of(p, fd))
		rc = -EBADF;
	if (!rc)
		*id = p->disk->fs_drawn ? dev_of(p->disk) : sim_mix(p->disk->seed);
	return (int)sim_end(&c, rc);
}

void sim_files_bind(struct sys_tables *ops)
{
	ops->file.open = op_open;
	ops->file.close = op_close;
	ops->disk.mkdir = op_mkdir;
	ops->disk.rename = op_rename;
	ops->disk.unlink = op_unlink;
	ops->disk.fsync = op_fsync;
	ops->disk.resize = op_resize;
	ops->file.pread = op_pread;
	ops->disk.pwrite = op_pwrite;
	ops->file.stat = op_stat;
	ops->file.fstat = op_fstat;
	ops->file.list = op_list;
	ops->file.readlink = op_readlink;
	ops->file.lock = op_lock;
	ops->file.unlock = op_unlock;
	ops->disk.free_bytes = op_free_bytes;
	ops->disk.fs_id = op_fs_id;
}
