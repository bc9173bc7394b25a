/* SPDX-License-Identifier: Apache-2.0 */
#include "export_dir.h"
#include <errno.h>
#include <string.h>
#include "err.h"
#include "export_format.h"
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

/* Returns the folder of family i, or NULL if its files are in the directory itself. */
static const char *own_folder(const struct shf_export_plan *plan, size_t i)
{
	const char *folder = plan->out.families[i].dir;

	return plan->format->folders && strcmp(folder, ".") ? folder : NULL;
}

/* Whether the plan has a file of that name in the folder, or in the directory itself (NULL). */
static bool is_planned(const struct shf_export_plan *plan, const char *folder, const char *name)
{
	size_t n = folder ? strlen(folder) : 0;

	for (size_t f = 0; f < plan->out.files_n; f++) {
		const char *planned = plan->files[f].name;

		if (folder && (strncmp(planned, folder, n) || planned[n] != '/'))
			continue;
		if (strcmp(folder ? planned + n + 1 : planned, name) == 0)
			return true;
	}
	for (size_t i = 0; !folder && i < plan->out.families_n; i++)
		if (own_folder(plan, i) && strcmp(own_folder(plan, i), name) == 0)
			return true;
	return !folder && strcmp(name, SHF_EXPORT_MARK) == 0;
}

/* Deletes what is in a folder, or in the directory itself (NULL), and not in the plan. */
static int dir_sweep(const struct shf_export_dir *d, int dir, const struct shf_export_plan *plan,
                     const char *folder)
{
	struct shf_names names = { SHF_BUF_INIT };
	int rc = shf_names_read(d->sys, dir, &names);

	for (const char *n = shf_names_next(&names, NULL); n && rc >= 0;
	     n = shf_names_next(&names, n))
		if (!is_planned(plan, folder, n))
			rc = shf_tree_remove(d->sys, dir, n);
	shf_names_release(&names);
	return rc;
}

int shf_export_dir_ready(struct shf_export_dir *d, const struct shf_export_plan *plan,
                         struct sheaf_error *err)
{
	int rc = dir_sweep(d, d->dir, plan, NULL);

	d->dirs = shf_alloc(plan->out.families_n, sizeof(*d->dirs));
	if (!d->dirs)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu families",
		                plan->out.families_n);
	for (size_t i = 0; rc >= 0 && i < plan->out.families_n; i++) {
		const char *folder = own_folder(plan, i);

		rc = d->dirs[i] = folder ? shf_dir_make(d->sys, d->dir, folder) : d->dir;
		d->dirs_n = i + 1;
		if (rc >= 0 && folder)
			rc = dir_sweep(d, d->dirs[i], plan, folder);
	}
	return fail_dir(rc, d->partial, err);
}

int shf_export_dir_put(struct shf_export_dir *d, size_t family, const char *name,
                       const void *bytes, size_t n, struct sheaf_error *err)
{
	const char *slash = strrchr(name, '/');
	int dir = d->dirs[family];
	int rc = shf_text_put(d->sys, dir, dir, slash ? slash + 1 : name, bytes, n, true);

	return rc < 0 ? shf_fail_io(err, -rc, "%s/%s", d->partial, name) : 0;
}

/* Renames `name` in the directory `from` to DIR, and makes that durable. */
static int rename_to_dir(struct shf_export_dir *d, int from, const char *name,
                         struct sheaf_error *err)
{
	int rc = shf_dir_fsync(d->sys, d->dir);         /* all names in it */

	for (size_t i = 0; rc >= 0 && i < d->dirs_n; i++)
		if (d->dirs[i] != d->dir)
			rc = shf_dir_fsync(d->sys, d->dirs[i]);
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
	for (size_t i = 0; i < d->dirs_n; i++)
		if (d->dirs[i] != d->dir)
			shf_fd_close(d->sys, &d->dirs[i]);
	shf_free(d->dirs);
	shf_fd_close(d->sys, &d->mark);
	shf_fd_close(d->sys, &d->dir);
	shf_fd_close(d->sys, &d->parent);
	shf_free(d->path);
	shf_free(d->partial);
}
