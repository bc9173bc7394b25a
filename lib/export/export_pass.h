/* SPDX-License-Identifier: Apache-2.0 */
/* The passes of an export over its files, with several threads: one that writes them, and one that
 * reads back what was written. */
#ifndef SHF_EXPORT_PASS_H
#define SHF_EXPORT_PASS_H
#include <pthread.h>
#include "export_fill.h"

enum shf_export_what {
	SHF_EXPORT_WRITE,               /* it is written */
	SHF_EXPORT_COMPARE,             /* an earlier export has finished it: it is compared */
	SHF_EXPORT_DONE                 /* it was written and read back, or compared */
};
struct shf_export_target {      /* a file that is written */
	enum shf_export_what what;
	int fd, direct;                 /* guarded by lock; -1: not open, or not possible */
	bool stale;                     /* guarded by lock; comparing it found a difference */
	uint64_t first_chunk, chunks_n;
	uint64_t left;                  /* guarded by lock; chunks of the pass that are not done */
};
struct shf_export {
	struct sheaf_checkpoint *step;  /* borrowed */
	const struct shf_export_opts *opts;
	const struct shf_sys *sys;      /* borrowed */
	const char *path;               /* of the directory that is made; for sentences */
	const char *partial;            /* path of the directory that the files are in meanwhile */
	int dir;                        /* descriptor of that directory */
	struct shf_export_plan plan;
	struct shf_export_target *targets;      /* owned; by file of the plan */
	uint64_t *sums;                 /* owned; by chunk: what it was when it was written */
	uint64_t written;               /* guarded by lock; bytes */
	/* of the present pass; guarded by lock */
	pthread_mutex_t lock;
	bool reads_back;
	uint32_t file;                  /* of the next chunk, */
	uint64_t chunk;                 /* and its number in that file */
	uint64_t done;                  /* bytes of all passes */
	int rc;                         /* of the first failure, which err has */
	struct sheaf_error err;
};
/* Makes targets and sums. Files that have their names and sizes in the directory are compared. */
int shf_export_targets_make(struct shf_export *x, struct sheaf_error *err);
/* Writes or compares all files, and reads back those that were written. After success each has its
 * name in the directory, and is durable but for that name. */
int shf_export_files(struct shf_export *x, struct sheaf_error *err);
void shf_export_targets_release(struct shf_export *x);
#endif
