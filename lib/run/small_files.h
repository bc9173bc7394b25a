/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the small files of a step in its stage. Each is written when its bytes are known, and all
 * are fsynced at the same time, which on a file system with a journal costs about as much as one
 * fsync. If there are more than SHF_SMALL_FILES_MAX files, they are fsynced in groups of that
 * size. */
#ifndef SHF_SMALL_FILES_H
#define SHF_SMALL_FILES_H
#include "run_io.h"

#define SHF_SMALL_FILES_MAX 32
/* A small file, open until it is fsynced. */
struct shf_small_file {
	int fd;
	char name[128];                 /* for error messages */
	size_t bytes;
	struct shf_io io;               /* the request for its fsync */
};
/* The small files of one step that one rank is writing. The caller sets run and step, and zeroes
 * the rest. */
struct shf_small_files {
	struct sheaf_run *run;          /* borrowed */
	int64_t step;                   /* for error messages */
	struct shf_io_owner owner;
	struct shf_small_file files[SHF_SMALL_FILES_MAX];
	int n;                          /* files written and not yet fsynced */
};
/* Creates the file `name` in dir with n bytes; it must not exist. It is durable only after
 * shf_small_files_sync. [local] */
int shf_small_files_put(struct shf_small_files *smalls, int dir, const char *name,
                        const void *bytes, size_t n, struct sheaf_error *err);
/* Fsyncs and closes all files. Returns the first failure. rc: 0, or an earlier failure of the
 * caller; then the files are only closed, and rc is returned. [local] */
int shf_small_files_sync(struct shf_small_files *smalls, int rc, struct sheaf_error *err);
#endif
