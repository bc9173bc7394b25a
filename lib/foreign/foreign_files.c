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

/* Adds a file. x: name, where, leaf, dir and fd. st: its state. */
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
		.leaf = slash ? slash + 1 : f->path, .dir = -1, .fd = fd };
	struct shf_stat st;
	int rc = shf_sys_fstat(f->in, fd, &st);

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

/* Adds a file by its name. plain: how many bytes of the name come before its name in the directory
 * `dir`: those of a folder and a slash, or none. */
static int add_named(struct shf_foreign *f, const char *name, size_t n, size_t plain, int dir,
                     uint32_t *file, struct sheaf_error *err)
{
	struct shf_foreign_file x = { .dir = dir, .fd = -1 };
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
	if (own && (strlen(own) != n || !shf_plain_is_valid(own + plain)))
		return shf_fail(err, SHEAF_EFORMAT, "%s: names the file %.*s, which is not a file "
		                "directly in it", f->path, shf_name_show(shown), shown);
	shf_buf_addf(&where, "%s/%s", f->path, own ? own : "");
	if (!where.oom)
		path = shf_arena_strdup(&f->arena, (const char *)where.data, where.len);
	shf_buf_release(&where);
	if (!own || !shown || !path)
		return files_no_memory(f, err);
	x.name = own;
	x.leaf = own + plain;
	x.where = path;
	rc = shf_sys_stat(f->in, dir, x.leaf, true, &st);
	if (rc == -ENOENT)
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
	return add_named(f, name, n, 0, f->dir, file, err);
}

/* Returns a descriptor of a folder, which stays open, or a negative code. */
static int folder_open(struct shf_foreign *f, const char *name, struct sheaf_error *err)
{
	int fd, i = 0;

	while (i < f->folders_n && strcmp(f->folders[i].name, name))
		i++;
	if (i < f->folders_n)
		return f->folders[i].fd;
	if (!always(i < SHF_FOREIGN_FOLDERS_MAX))
		return shf_fail(err, SHEAF_EBUG, "%s: too many folders", f->path);
	f->folders[i].name = shf_arena_strdup(&f->arena, name, strlen(name));
	if (!f->folders[i].name)
		return files_no_memory(f, err);
	fd = shf_sys_open(f->in, f->dir, name, SHF_O_DIR, 0);
	if (fd < 0)
		return shf_fail_sys(err, -fd, "%s/%s", f->path, name);
	f->folders[f->folders_n++].fd = fd;
	return fd;
}

int shf_foreign_add_file_in(struct shf_foreign *f, const char *folder, const char *name, size_t n,
                            uint32_t *file, struct sheaf_error *err)
{
	struct shf_buf whole = SHF_BUF_INIT;
	int dir, rc;

	if (!folder)
		return shf_foreign_add_file(f, name, n, file, err);
	dir = folder_open(f, folder, err);
	if (dir < 0)
		return dir;
	shf_buf_addf(&whole, "%s/", folder);
	shf_buf_add(&whole, name, n);
	rc = whole.oom ? files_no_memory(f, err)
	   : add_named(f, (const char *)whole.data, whole.len, strlen(folder) + 1, dir, file, err);
	shf_buf_release(&whole);
	return rc;
}

/* ---- opening them ---- */

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
		x->fd = shf_sys_open(f->in, x->dir, x->leaf, 0, 0);
	}
	fd = x->fd;
	x->users += fd >= 0;
	pthread_mutex_unlock(&f->lock);
	if (fd < 0)
		return shf_fail_sys(err, -fd, "%s", x->where);
	*r = (struct shf_region){ f->in, fd, 0, x->bytes, x->where };
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
	for (uint32_t i = 0; i < shf_foreign_files(f); i++) {
		struct shf_foreign_file *x = shf_foreign_file(f, i);
		struct shf_stat st;
		int rc;

		pthread_mutex_lock(&f->lock);
		rc = x->fd >= 0 ? shf_sys_fstat(f->in, x->fd, &st)
		                : shf_sys_stat(f->in, x->dir, x->leaf, true, &st);
		pthread_mutex_unlock(&f->lock);
		if (rc < 0 && rc != -ENOENT)
			return shf_fail_sys(err, -rc, "%s", x->where);
		if (rc < 0 || !shf_stat_is_same(&st, &x->seen))
			return shf_fail(err, SHEAF_EAGAIN, "%s: was changed while it was being "
			                "read; open it again when it is complete", x->where);
	}
	return 0;
}
