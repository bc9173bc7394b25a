/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a checkpoint. A directory may have one for each piece of a tensor, so they do not
 * all stay open: only SHF_FOREIGN_OPEN_MAX of them, and those that are being read. */
#include <errno.h>
#include <string.h>
#include "crc64.h"
#include "err.h"
#include "foreign.h"
#include "valid.h"

size_t shf_foreign_files(const struct shf_foreign *f)
{
	return f->files.len / sizeof(struct shf_foreign_file);
}

static int files_no_memory(const struct shf_foreign *f, struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of files", f->path);
}

/* Adds a file. x: name, where and fd. st: its state. */
static int file_add(struct shf_foreign *f, struct shf_foreign_file *x, const struct shf_stat *st,
                    struct sheaf_error *err)
{
	x->kept = x->fd >= 0;
	x->bytes = st->bytes;
	x->seen = *st;
	if (st->type != SHF_T_FILE)
		return shf_fail(err, SHEAF_EFORMAT, "%s: is not a regular file", x->where);
	shf_buf_add(&f->files, x, sizeof(*x));
	return f->files.oom ? files_no_memory(f, err) : 0;
}

int shf_foreign_add_self(struct shf_foreign *f, int fd, struct sheaf_error *err)
{
	const char *slash = strrchr(f->path, '/');
	struct shf_foreign_file x = { .name = slash ? slash + 1 : f->path, .where = f->path,
		.fd = fd };
	struct shf_stat st;
	int rc = shf_sys_fstat(f->in, fd, &st);

	x.shown = x.name;
	rc = rc < 0 ? shf_fail_sys(err, -rc, "%s", f->path) : file_add(f, &x, &st, err);
	if (rc < 0)
		shf_sys_close(f->in, fd);
	return rc;
}

static uint32_t name_hash(const char *name, size_t n)
{
	uint64_t x = shf_crc64_raw(n, name, n);

	return (uint32_t)(x ^ x >> 32);
}

/* Makes the table of hashes large enough for one more file. */
static bool hashes_grow(struct shf_foreign *f)
{
	struct shf_foreign_file *all = shf_foreign_file(f, 0);
	size_t n = f->hashes.len / sizeof(uint32_t), files = shf_foreign_files(f);
	uint32_t *first;

	if (files < n)
		return true;
	shf_buf_reset(&f->hashes);
	n = n ? 2 * n : 64;
	if (!shf_buf_extend(&f->hashes, n * sizeof(*first)))
		return false;
	first = (uint32_t *)(void *)f->hashes.data;
	memset(first, 0, n * sizeof(*first));
	for (size_t i = 0; i < files; i++) {
		uint32_t *of = &first[name_hash(all[i].name, strlen(all[i].name)) & (n - 1)];

		all[i].next = *of;
		*of = (uint32_t)i + 1;
	}
	return true;
}

/* Finds a file by its name. Returns its number + 1, or 0. *of: the entry of its hash in the
 * table. */
static uint32_t file_find(struct shf_foreign *f, const char *name, size_t n, uint32_t **of)
{
	const struct shf_foreign_file *all = shf_foreign_file(f, 0);
	size_t size = f->hashes.len / sizeof(uint32_t);
	uint32_t i;

	*of = (uint32_t *)(void *)f->hashes.data + (name_hash(name, n) & (size - 1));
	for (i = **of; i; i = all[i - 1].next)
		if (strlen(all[i - 1].name) == n && memcmp(all[i - 1].name, name, n) == 0)
			break;
	return i;
}

/* Takes the first folder off a path: its name. Returns false if there is none left, or it is not a
 * name that a folder can have. */
static bool path_part(const char **path, char part[256])
{
	size_t n = strcspn(*path, "/");

	if (!(*path)[n] || n >= 256)
		return false;
	memcpy(part, *path, n);
	part[n] = '\0';
	*path += n + 1;
	return shf_plain_is_valid(part);
}

/* Whether each part of the path is a name that a file can have. */
static bool is_plain_path(const char *path)
{
	char part[256];

	while (strchr(path, '/'))
		if (!path_part(&path, part))
			return false;
	return shf_plain_is_valid(path);
}

/* Opens the folder that has the file of this path, which is f->dir itself if the path has no other.
 * *leaf: the name of the file in it. The caller closes it with parent_close. */
static int parent_open(const struct shf_foreign *f, const char *path, const char **leaf)
{
	char part[256];
	int fd = f->dir;

	for (*leaf = path; fd >= 0 && path_part(leaf, part);) {
		int in = shf_sys_open(f->in, fd, part, SHF_O_DIR, 0);

		if (fd != f->dir)
			shf_sys_close(f->in, fd);
		fd = in;
	}
	return fd;
}

static void parent_close(const struct shf_foreign *f, int fd)
{
	if (fd >= 0 && fd != f->dir)
		shf_sys_close(f->in, fd);
}

/* Stats, or opens, a file by its path in the directory. */
static int path_stat(const struct shf_foreign *f, const char *path, struct shf_stat *st)
{
	const char *leaf;
	int dir = parent_open(f, path, &leaf), rc;

	rc = dir < 0 ? dir : shf_sys_stat(f->in, dir, leaf, true, st);
	parent_close(f, dir);
	return rc;
}

static int path_open(const struct shf_foreign *f, const char *path, int flags)
{
	const char *leaf;
	int dir = parent_open(f, path, &leaf), fd;

	fd = dir < 0 ? dir : shf_sys_open(f->in, dir, leaf, flags, 0);
	parent_close(f, dir);
	return fd;
}

int shf_foreign_folder(const struct shf_foreign *f, const char *path)
{
	return path_open(f, path, SHF_O_DIR);
}

int shf_foreign_enter(struct shf_foreign *f, const char *folder, struct sheaf_error *err)
{
	struct shf_buf path = SHF_BUF_INIT;
	const char *own = NULL;
	int fd = shf_foreign_folder(f, folder);

	shf_buf_addf(&path, "%s/%s", f->path, folder);
	if (!path.oom)
		own = shf_arena_strdup(&f->arena, (const char *)path.data, path.len);
	shf_buf_release(&path);
	if (fd < 0)
		return shf_fail_sys(err, -fd, "%s/%s", f->path, folder);
	shf_sys_close(f->in, f->dir);
	f->dir = fd;
	if (!own)
		return files_no_memory(f, err);
	f->path = own;
	f->entered = own + strlen(own) - strlen(folder);
	return 0;
}

/* Returns the name of a file for reports: with the folder that was entered. */
static const char *shown_name(struct shf_foreign *f, const char *name)
{
	struct shf_buf text = SHF_BUF_INIT;
	const char *own = NULL;

	if (!f->entered)
		return name;
	shf_buf_addf(&text, "%s/%s", f->entered, name);
	if (!text.oom)
		own = shf_arena_strdup(&f->arena, (const char *)text.data, text.len);
	shf_buf_release(&text);
	return own;
}

/* Adds a file by its path in the directory. plain: how many bytes of it come before its name. */
static int add_path(struct shf_foreign *f, const char *name, size_t n, size_t plain,
                    uint32_t *file, struct sheaf_error *err)
{
	struct shf_foreign_file x = { .fd = -1 };
	struct shf_buf where = SHF_BUF_INIT;
	char *own, *path = NULL;
	const char *shown;
	struct shf_stat st;
	uint32_t *of, found;
	int rc;

	if (!hashes_grow(f))
		return files_no_memory(f, err);
	found = file_find(f, name, n, &of);
	if (found) {
		*file = found - 1;
		return 0;
	}
	own = shf_arena_strdup(&f->arena, name, n);
	shown = shf_name_escape(&f->arena, name, n);
	if (own && (strlen(own) != n || strchr(own + plain, '/') || !is_plain_path(own)))
		return shf_fail(err, SHEAF_EFORMAT, "%s: names the file %.*s, which is not a file "
		                "directly in it", f->path, shf_name_show(shown), shown);
	shf_buf_addf(&where, "%s/%s", f->path, own ? own : "");
	if (!where.oom)
		path = shf_arena_strdup(&f->arena, (const char *)where.data, where.len);
	shf_buf_release(&where);
	if (!own || !shown || !path)
		return files_no_memory(f, err);
	x.name = own;
	x.shown = shown_name(f, own);
	x.where = path;
	if (!x.shown)
		return files_no_memory(f, err);
	rc = path_stat(f, own, &st);
	/* ENOTDIR: the path leads through a file. */
	if (rc == -ENOENT || rc == -ENOTDIR)
		return shf_fail(err, SHEAF_EFORMAT, "%s: missing, but the metadata names it", path);
	*file = (uint32_t)shf_foreign_files(f);
	rc = rc < 0 ? shf_fail_sys(err, -rc, "%s", path) : file_add(f, &x, &st, err);
	if (rc == 0) {
		shf_foreign_file(f, *file)->next = *of;
		*of = *file + 1;
	}
	return rc;
}

int shf_foreign_add_file(struct shf_foreign *f, const char *name, size_t n, uint32_t *file,
                         struct sheaf_error *err)
{
	return add_path(f, name, n, 0, file, err);
}

int shf_foreign_add_file_in(struct shf_foreign *f, const char *folder, const char *name, size_t n,
                            uint32_t *file, struct sheaf_error *err)
{
	struct shf_buf whole = SHF_BUF_INIT;
	int rc;

	if (!folder)
		return shf_foreign_add_file(f, name, n, file, err);
	shf_buf_addf(&whole, "%s/", folder);
	shf_buf_add(&whole, name, n);
	rc = whole.oom ? files_no_memory(f, err)
	   : add_path(f, (const char *)whole.data, whole.len, strlen(folder) + 1, file, err);
	shf_buf_release(&whole);
	return rc;
}

/* Makes room among the files that stay open, by closing one that no thread reads. Returns NULL if
 * all are being read. [with the lock] */
static uint32_t *open_room(struct shf_foreign *f)
{
	if (f->open_n < SHF_FOREIGN_OPEN_MAX)
		return &f->open[f->open_n++];
	for (uint32_t k = 0; k < SHF_FOREIGN_OPEN_MAX; k++) {
		uint32_t *room = &f->open[f->open_next++ % SHF_FOREIGN_OPEN_MAX];
		struct shf_foreign_file *x = shf_foreign_file(f, *room);

		if (x->users)
			continue;
		if (x->fd >= 0)
			shf_sys_close(f->in, x->fd);
		x->fd = -1;
		x->kept = false;
		return room;
	}
	return NULL;
}

int shf_foreign_region(struct shf_foreign *f, uint32_t file, struct shf_region *r,
                       struct sheaf_error *err)
{
	struct shf_foreign_file *x = shf_foreign_file(f, file);
	uint32_t *room;
	int fd;

	pthread_mutex_lock(&f->lock);
	if (x->fd < 0) {
		room = x->kept ? NULL : open_room(f);
		if (room)
			*room = file;
		x->kept |= room != NULL;
		x->fd = path_open(f, x->name, 0);
	}
	fd = x->fd;
	x->users += fd >= 0;
	pthread_mutex_unlock(&f->lock);
	if (fd < 0)
		return shf_fail_sys(err, -fd, "%s", x->where);
	*r = (struct shf_region){ f->in, fd, 0, x->bytes, x->where, NULL, false };
	return 0;
}

void shf_foreign_region_end(struct shf_foreign *f, uint32_t file)
{
	struct shf_foreign_file *x = shf_foreign_file(f, file);

	pthread_mutex_lock(&f->lock);
	x->users--;
	if (!x->users && !x->kept) {
		shf_sys_close(f->in, x->fd);
		x->fd = -1;
	}
	pthread_mutex_unlock(&f->lock);
}

int shf_foreign_check_unchanged(struct shf_foreign *f, struct sheaf_error *err)
{
	if (f->format->check_unchanged)
		return f->format->check_unchanged(f, err);
	for (uint32_t i = 0; i < shf_foreign_files(f); i++) {
		struct shf_foreign_file *x = shf_foreign_file(f, i);
		struct shf_stat st;
		int rc;

		pthread_mutex_lock(&f->lock);
		rc = x->fd >= 0 ? shf_sys_fstat(f->in, x->fd, &st)
		                : path_stat(f, x->name, &st);
		pthread_mutex_unlock(&f->lock);
		if (rc < 0 && rc != -ENOENT)
			return shf_fail_sys(err, -rc, "%s", x->where);
		if (rc < 0 || !shf_stat_is_same(&st, &x->seen))
			return shf_fail(err, SHEAF_EAGAIN, "%s: was changed while it was being "
			                "read; open it again when it is complete", x->where);
	}
	return 0;
}
