/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of an export, DIR. Its files are written in DIR.partial, which is renamed to DIR
 * when everything in it is durable. If a format has one file, DIR is that file. */
#ifndef SHF_EXPORT_DIR_H
#define SHF_EXPORT_DIR_H
#include "export_pass.h"

struct shf_export_dir {
	const struct shf_sys *sys;      /* borrowed */
	char *path, *partial;           /* owned; DIR without slashes at its end, and DIR.partial */
	const char *base, *partial_base;        /* their last components */
	/* Descriptors; -1: not open. */
	int parent;                     /* the directory in which both lie */
	int dir;                        /* DIR.partial */
	int mark;                       /* SHF_EXPORT_MARK in it, which is locked */
	const char **names;             /* owned; of the planned files, sorted; after the sweep */
	size_t names_n;
};
/* Makes DIR.partial, or opens the one that an earlier export has left. EEXIST: DIR exists, or no
 * export has left DIR.partial. EBUSY: another process writes it. The caller closes *d after a
 * failure, too. */
int shf_export_dir_open(struct shf_export_dir *d, const struct shf_sys *sys, const char *path,
                        struct sheaf_error *err);
/* Deletes everything in DIR.partial that is not in the plan, except for the mark, and makes the
 * folders that files of the plan are in. */
int shf_export_dir_sweep(struct shf_export_dir *d, const struct shf_export_plan *plan,
                         struct sheaf_error *err);
/* Writes a small file into DIR.partial and syncs it. name: may begin with folders that files of the
 * plan are in. EEXIST: there is a file of that name. */
int shf_export_dir_put(struct shf_export_dir *d, const char *name, const void *bytes, size_t n,
                       struct sheaf_error *err);
/* Renames DIR.partial to DIR. EEXIST: DIR exists now. EINDOUBT: it was renamed, but a power cut may
 * undo that. */
int shf_export_dir_publish(struct shf_export_dir *d, struct sheaf_error *err);
/* Renames the file of this name in DIR.partial to DIR, and deletes DIR.partial. Fails as
 * shf_export_dir_publish does. */
int shf_export_dir_publish_file(struct shf_export_dir *d, const char *name,
                                struct sheaf_error *err);
void shf_export_dir_close(struct shf_export_dir *d);
#endif
