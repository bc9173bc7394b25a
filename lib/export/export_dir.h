/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of an export. Its files are written in DIR.partial, which is renamed to DIR when
 * all of it is durable. */
#ifndef SHF_EXPORT_DIR_H
#define SHF_EXPORT_DIR_H
#include "export_pass.h"

struct shf_export_dir {
	const struct shf_sys *sys;      /* borrowed */
	char *path, *partial;           /* owned; DIR without slashes at its end, and DIR.partial */
	const char *base, *partial_base;        /* their last components */
	int parent, dir, mark;          /* descriptors: where they lie, DIR.partial, and the file in
	                                 * it that says so and is locked; -1: not open */
};
/* Makes DIR.partial, or takes up the one that an earlier export has left. EEXIST: there is a DIR,
 * or DIR.partial is no export's. EBUSY: another process writes it. The caller closes *d after a
 * failure, too. */
int shf_export_dir_open(struct shf_export_dir *d, const struct shf_sys *sys, const char *path,
                        struct sheaf_error *err);
/* Deletes all files in it that `plan` does not name. */
int shf_export_dir_sweep(struct shf_export_dir *d, const struct shf_export_plan *plan,
                         struct sheaf_error *err);
/* Writes a small file there, durably. */
int shf_export_dir_put(struct shf_export_dir *d, const char *name, const void *bytes, size_t n,
                       struct sheaf_error *err);
/* Copies a file of the directory `from`, which is open and has that path, durably and in pieces. It
 * may be a symbolic link, as in the cache of the Hugging Face hub. Does nothing if there is no file
 * of that name. EAGAIN: it was changed meanwhile. */
int shf_export_dir_copy(struct shf_export_dir *d, int from, const char *path, const char *name,
                        struct sheaf_error *err);
/* Renames it. EEXIST: there is a DIR now. EINDOUBT: it is there, but a power cut may undo that. */
int shf_export_dir_publish(struct shf_export_dir *d, struct sheaf_error *err);
void shf_export_dir_close(struct shf_export_dir *d);
#endif
