/* SPDX-License-Identifier: Apache-2.0 */
/* Small files of a step being made: each written when it is known, all fsynced at the same time,
 * which costs a file system with a journal about as much as one. Beyond SHF_SMALLS_MAX files the
 * first ones are fsynced before the next are written. */
#ifndef SHF_SMALL_FILES_H
#define SHF_SMALL_FILES_H
#include "run_io.h"

#define SHF_SMALLS_MAX 32
/* One of them: open until it is synced. */
struct shf_small {
	int fd;
	char name[128];                 /* for sentences */
	size_t bytes;
	struct shf_io io;
};
/* Those of one step that are being written by one rank. */
struct shf_smalls {
	struct sheaf_run *run;          /* borrowed; set these two, the rest is zero */
	int64_t step;                   /* for sentences */
	struct shf_io_owner owner;
	struct shf_small files[SHF_SMALLS_MAX];
	int n;
};
/* A new file `name` under dir with these bytes. ENOMEM and what the machine says. [local] */
int shf_small_put(struct shf_smalls *smalls, int dir, const char *name, const void *bytes,
                  size_t n, struct sheaf_error *err);
/* All of them are durable, or the first one's failure; closed in any case. rc: what went wrong
 * before, 0; then nothing is fsynced and it is returned. */
int shf_smalls_sync(struct shf_smalls *smalls, int rc, struct sheaf_error *err);
#endif
