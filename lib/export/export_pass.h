/* SPDX-License-Identifier: Apache-2.0 */
/* The passes of an export over its files, with several threads: they write the files, and read back
 * what was written. */
#ifndef SHF_EXPORT_PASS_H
#define SHF_EXPORT_PASS_H
#include <pthread.h>
#include "export_fill.h"

enum shf_export_what {          /* what is to be done with a file */
	SHF_EXPORT_WRITE,               /* write it */
	SHF_EXPORT_COMPARE,             /* compare it: an earlier export has finished it */
	SHF_EXPORT_READ_BACK,           /* read it back: this export has written it */
	SHF_EXPORT_DONE                 /* nothing more: it was compared, and is right */
};
struct shf_export_target {      /* a file that is written */
	enum shf_export_what what;      /* changes only between passes */
	int top;                        /* borrowed; descriptor of the directory that path is in */
	const char *path;               /* its name, which may begin with folders */
	const char *base;               /* its name in its folder */
	int dir;                        /* guarded by lock; descriptor of the folder, which may be
	                                 * `top`; -1: not open */
	int fd, direct;                 /* guarded by lock; -1: not open, or not possible */
	bool stale;                     /* guarded by lock; the comparison found a difference */
	uint64_t chunks_n;
	uint64_t left;                  /* guarded by lock; chunks of the pass that are not done */
};
struct shf_export {
	struct sheaf_checkpoint *step;  /* borrowed */
	const struct shf_export_opts *opts;
	const struct shf_sys *sys;      /* borrowed */
	const char *path;               /* of the directory that is made; for messages */
	const char *partial;            /* path of the directory in which the files are written */
	const int *dirs;                /* borrowed; by family of the plan: descriptor of the folder
	                                 * that its files are written in */
	const char *part;               /* what the names of unfinished files begin with */
	struct shf_export_plan plan;
	struct shf_export_target *targets;      /* owned; by file of the plan */
	uint64_t *sums;                 /* owned; by block: its raw CRC when it was written */
	uint64_t *digests;              /* borrowed; by tensor of the plan: its digest when it was
	                                 * written; guarded by lock. NULL: none are needed */
	/* Owned; by tensor of the plan: the CRC-32 of its bytes when they were written; guarded by
	 * lock. NULL: none are needed. */
	uint32_t *crcs;
	uint64_t written;               /* guarded by lock; bytes */
	/* of the current pass; guarded by lock */
	pthread_mutex_t lock;
	bool reads_back;
	uint32_t file;                  /* file of the next chunk */
	uint64_t chunk;                 /* number of the next chunk in that file */
	uint64_t done;                  /* bytes of all passes */
	int rc;                         /* code of the first failure, whose message is in err */
	struct sheaf_error err;
};
/* Opens the folder of a file whose name may begin with folders in `dir`. Returns the descriptor,
 * which is `dir` itself if the name is in no folder, or a negative errno. The caller closes any
 * other one. */
int shf_export_folder_open(const struct shf_sys *sys, int dir, const char *name);
/* Checks that this process can read the whole step, and reads its list of tensors. */
int shf_export_look(struct sheaf_checkpoint *step, struct sheaf_error *err);
/* Makes targets and sums. A file that has its name and its size in the directory already was
 * finished by an earlier export, and will be compared. */
int shf_export_targets_make(struct shf_export *x, struct sheaf_error *err);
/* Writes or compares all files, and reads back those that were written. After success each file has
 * its name in the directory. Its bytes are durable, and its name is not yet. */
int shf_export_files(struct shf_export *x, struct sheaf_error *err);
void shf_export_targets_release(struct shf_export *x);
#endif
