/* SPDX-License-Identifier: Apache-2.0 */
#include "export_dir.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "run_files.h"
#include "valid.h"

static int fail_dir(int rc, const char *path, struct sheaf_error *err)
{
	return rc < 0 ? shf_fail_io(err, -rc, "%s", path) : 0;
}

/* Splits the path, and opens the directory that DIR is to lie in. */
static int open_parent(struct shf_export_dir *d, const char *path, struct sheaf_error *err)
{
	size_t n = strlen(path);
	char *slash;
	int rc;

	while (n > 1 && path[n - 1] == '/')
		n--;
	d->path = shf_alloc(n + 1, 1);
	d->partial = shf_alloc(n + sizeof(".partial"), 1);
	if (!d->path || !d->partial)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for a path", path);
	memcpy(d->path, path, n);
	d->path[n] = '\0';
	memcpy(d->partial, path, n);
	memcpy(d->partial + n, ".partial", sizeof(".partial"));
	slash = strrchr(d->path, '/');
	d->base = slash ? slash + 1 : d->path;
	d->partial_base = d->partial + (d->base - d->path);
	if (!*d->base || !strcmp(d->base, ".") || !strcmp(d->base, ".."))
		return shf_fail(err, SHEAF_EINVAL, "%s: an export makes a new directory, and this "
		                "names none", path);
	if (!slash) {
		rc = d->parent = shf_sys_open(d->sys, SHF_CWD, ".", SHF_O_DIR, 0);
	} else {
		char kept = d->base[0];
		char *base = slash + 1;

		*base = '\0';           /* "a/", or "/" */
		rc = d->parent = shf_sys_open(d->sys, SHF_CWD, d->path, SHF_O_DIR, 0);
		*base = kept;
	}
	return rc < 0 ? shf_fail_io(err, -rc, "%s: the directory that it is to lie in", d->path)
	              : 0;
}

static int fail_exists(const struct shf_export_dir *d, struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_EEXIST, "%s: exists; move it away, or export to another "
	                "directory", d->path);
}

static int is_absent(const struct shf_export_dir *d, struct sheaf_error *err)
{
	struct shf_stat st;
	int rc = shf_sys_stat(d->sys, d->parent, d->base, false, &st);

	if (rc == -ENOENT)
		return 0;
	return rc < 0 ? fail_dir(rc, d->path, err) : fail_exists(d, err);
}

/* Stops the list of a directory at the first name. */
static int stop_at_once(void *arg, const char *name)
{
	(void)arg;
	(void)name;
	return 1;
}

/* Opens the mark of the directory, and locks it. A directory without a mark was left by an export
 * only if it is empty: that export was killed before it made the mark. The name of the mark becomes
 * durable before any other name, so that a power cut cannot leave files without it. */
static int take_mark(struct shf_export_dir *d, bool is_new, struct sheaf_error *err)
{
	int rc = d->mark = shf_sys_open(d->sys, d->dir, SHF_EXPORT_MARK,
	                                SHF_O_WRITE | SHF_O_NOFOLLOW, 0);

	if (rc == -ENOENT && !is_new) {
		rc = shf_sys_list(d->sys, d->dir, stop_at_once, NULL);
		if (rc == 1)
			return shf_fail(err, SHEAF_EEXIST, "%s: is not what an export has left; "
			                "move it away", d->partial);
		is_new = rc == 0;
	}
	if (is_new)
		rc = d->mark = shf_sys_open(d->sys, d->dir, SHF_EXPORT_MARK,
		                            SHF_O_WRITE | SHF_O_CREATE | SHF_O_NOFOLLOW, 0666);
	if (rc >= 0 && is_new)
		rc = shf_dir_fsync(d->sys, d->dir);
	if (rc < 0)
		return fail_dir(rc, d->partial, err);
	rc = shf_sys_lock(d->sys, d->mark, true);
	/* The process that had the lock may have renamed the directory meanwhile. */
	if (rc == -EAGAIN ||
	    (rc >= 0 && shf_dir_has_gone(d->sys, d->parent, d->partial_base, false, d->dir)))
		return shf_fail(err, SHEAF_EBUSY, "%s: another process is writing this export",
		                d->partial);
	return fail_dir(rc, d->partial, err);
}

int shf_export_dir_open(struct shf_export_dir *d, const struct shf_sys *sys, const char *path,
                        struct sheaf_error *err)
{
	bool is_new;
	int rc;

	*d = (struct shf_export_dir){ .sys = sys, .parent = -1, .dir = -1, .mark = -1 };
	rc = open_parent(d, path, err);
	if (rc == 0)
		rc = is_absent(d, err);
	if (rc < 0)
		return rc;
	rc = shf_sys_mkdir(sys, d->parent, d->partial_base, 0777);
	is_new = rc >= 0;
	if (rc >= 0 || rc == -EEXIST)
		rc = d->dir = shf_sys_open(sys, d->parent, d->partial_base,
		                           SHF_O_DIR | SHF_O_NOFOLLOW, 0);
	if (rc < 0)
		return fail_dir(rc, d->partial, err);
	return take_mark(d, is_new, err);
}

/* ---- folders ---- */

static int planned_names_order(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sorts the names of the planned files. */
static int list_names(struct shf_export_dir *d, const struct shf_export_plan *plan)
{
	d->names = shf_alloc(plan->out.files_n, sizeof(*d->names));
	if (!d->names)
		return -ENOMEM;
	d->names_n = plan->out.files_n;
	for (size_t f = 0; f < d->names_n; f++)
		d->names[f] = plan->files[f].name;
	qsort(d->names, d->names_n, sizeof(*d->names), planned_names_order);
	return 0;
}

/* Returns the first planned name that begins with this text, or NULL. */
static const char *first_with(const struct shf_export_dir *d, const char *text)
{
	size_t lo = 0, hi = d->names_n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (strcmp(d->names[mid], text) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < d->names_n && strncmp(d->names[lo], text, strlen(text)) == 0 ? d->names[lo]
	                                                                         : NULL;
}

static int sweep_planned(struct shf_export_dir *d, int dir, struct shf_buf *path);

/* Deletes what has this name in the folder `dir`, unless it is planned. path: its path in
 * DIR.partial, with a slash and a NUL at the end. */
static int sweep_entry(struct shf_export_dir *d, int dir, const char *name, struct shf_buf *path)
{
	char *text = (char *)path->data, *slash = text + path->len - 2;
	const char *found = first_with(d, text);
	int sub = found ? shf_dir_open(d->sys, dir, name) : -ENOTDIR, rc;

	if (sub >= 0) {
		path->len--;
		rc = sweep_planned(d, sub, path);
		shf_fd_close(d->sys, &sub);
		return rc;
	}
	if (sub != -ENOTDIR && sub != -ELOOP)
		return sub;
	*slash = '\0';
	found = found ? NULL : first_with(d, text);
	return (found && strcmp(found, text) == 0) || strcmp(text, SHF_EXPORT_MARK) == 0
	       ? 0 : shf_tree_remove(d->sys, dir, name);
}

/* Sweeps a folder. path: its path in DIR.partial, with a slash at the end, or empty. */
static int sweep_planned(struct shf_export_dir *d, int dir, struct shf_buf *path)
{
	struct shf_names names = { SHF_BUF_INIT };
	size_t above = path->len;
	int rc = shf_names_read(d->sys, dir, &names);

	for (const char *n = shf_names_next(&names, NULL); n && rc >= 0;
	     n = shf_names_next(&names, n)) {
		path->len = above;
		shf_buf_addf(path, "%s/", n);
		shf_buf_u8(path, 0);
		rc = path->oom ? -ENOMEM : sweep_entry(d, dir, n, path);
	}
	shf_names_release(&names);
	return rc;
}

/* Opens what the folder at `begin` in this name lies in. */
static int folder_above(const struct shf_export_dir *d, const char *name, const char *begin)
{
	size_t n = (size_t)(begin - name);
	char *text = shf_alloc(n + 1, 1);
	int fd;

	if (!text)
		return -ENOMEM;
	memcpy(text, name, n);
	text[n] = '\0';
	fd = shf_export_folder_open(d->sys, d->dir, text);
	shf_free(text);
	return fd;
}

/* Calls a function for each folder that planned files are in, those above first, with the
 * descriptor of the one that it is in. */
static int each_folder(struct shf_export_dir *d,
                       int (*call)(const struct shf_sys *sys, int above, const char *name))
{
	const char *last = "";
	int rc = 0;

	for (size_t i = 0; i < d->names_n; last = d->names[i++]) {
		const char *name = d->names[i], *begin = name, *slash;

		for (; rc >= 0 && (slash = strchr(begin, '/')) != NULL; begin = slash + 1) {
			char folder[256];
			int above;

			if (strncmp(name, last, (size_t)(slash + 1 - name)) == 0)
				continue;
			snprintf(folder, sizeof(folder), "%.*s", (int)(slash - begin), begin);
			above = folder_above(d, name, begin);
			rc = above < 0 ? above : call(d->sys, above, folder);
			if (above != d->dir)
				shf_fd_close(d->sys, &above);
		}
	}
	return rc;
}

static int folder_make(const struct shf_sys *sys, int above, const char *name)
{
	int rc = shf_sys_mkdir(sys, above, name, 0777);

	return rc == -EEXIST ? 0 : rc;
}

static int folder_sync(const struct shf_sys *sys, int above, const char *name)
{
	int fd = shf_dir_open(sys, above, name), rc = fd < 0 ? fd : shf_dir_fsync(sys, fd);

	shf_fd_close(sys, &fd);
	return rc;
}

int shf_export_dir_sweep(struct shf_export_dir *d, const struct shf_export_plan *plan,
                         struct sheaf_error *err)
{
	struct shf_buf path = SHF_BUF_INIT;
	int rc = list_names(d, plan);

	if (rc == 0)
		rc = sweep_planned(d, d->dir, &path);
	if (rc >= 0)
		rc = each_folder(d, folder_make);
	shf_buf_release(&path);
	return fail_dir(rc, d->partial, err);
}

int shf_export_dir_put(struct shf_export_dir *d, const char *name, const void *bytes, size_t n,
                       struct sheaf_error *err)
{
	const char *slash = strrchr(name, '/');
	int dir = shf_export_folder_open(d->sys, d->dir, name);
	int rc = dir < 0 ? dir : shf_text_put(d->sys, dir, dir, slash ? slash + 1 : name, bytes, n,
	                                      true);

	if (dir != d->dir)
		shf_fd_close(d->sys, &dir);
	return rc < 0 ? shf_fail_io(err, -rc, "%s/%s", d->partial, name) : 0;
}

/* Renames `name` in the directory `from` to DIR, and makes that durable. */
static int rename_to_dir(struct shf_export_dir *d, int from, const char *name,
                         struct sheaf_error *err)
{
	int rc = each_folder(d, folder_sync);

	if (rc >= 0)
		rc = shf_dir_fsync(d->sys, d->dir);     /* all names in it */
	if (rc < 0)
		return fail_dir(rc, d->partial, err);
	rc = shf_sys_rename(d->sys, from, name, d->parent, d->base, true);
	if (rc == -EEXIST)
		return fail_exists(d, err);     /* also if DIR has been removed again */
	if (rc < 0)
		return fail_dir(rc, d->path, err);
	rc = shf_dir_fsync(d->sys, d->parent);
	if (rc < 0)
		return shf_fail(err, SHEAF_EINDOUBT, "%s: is complete, but the directory that it "
		                "lies in could not be synced, so a power cut may rename it to "
		                "%s%s%s", d->path, d->partial_base, from == d->dir ? "/" : "",
		                from == d->dir ? name : "");
	return 0;
}

/* The mark stays until the rename is durable, so that what a crash leaves can always be recognised.
 * A crash just after the rename leaves the mark in DIR, where it does no harm. */
int shf_export_dir_publish(struct shf_export_dir *d, struct sheaf_error *err)
{
	int rc = rename_to_dir(d, d->parent, d->partial_base, err);

	if (rc == 0 && shf_sys_unlink(d->sys, d->dir, SHF_EXPORT_MARK, false) >= 0)
		(void)shf_sys_fsync(d->sys, d->dir);
	return rc;
}

/* A crash just after the rename leaves DIR.partial with the mark, and with the name of the file if
 * only the new name became durable. The next export to the same place continues from it. */
int shf_export_dir_publish_file(struct shf_export_dir *d, const char *name,
                                struct sheaf_error *err)
{
	int rc = rename_to_dir(d, d->dir, name, err);

	if (rc == 0 && shf_sys_unlink(d->sys, d->dir, SHF_EXPORT_MARK, false) >= 0)
		(void)shf_sys_unlink(d->sys, d->parent, d->partial_base, true);
	return rc;
}

void shf_export_dir_close(struct shf_export_dir *d)
{
	shf_fd_close(d->sys, &d->mark);
	shf_fd_close(d->sys, &d->dir);
	shf_fd_close(d->sys, &d->parent);
	shf_free(d->path);
	shf_free(d->partial);
	shf_free(d->names);
}
