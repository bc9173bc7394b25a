/* SPDX-License-Identifier: Apache-2.0 */
/* What lies at a path: a step of ours, a Hugging Face directory, one safetensors file. Rank 0
 * looks, everyone is told. */
#ifndef SHF_STEP_FIND_H
#define SHF_STEP_FIND_H
#include "index.h"
#include "manifest.h"
#include "run.h"

struct shf_found {              /* in the arena of decode, but for manifest: borrowed */
	bool sound, single, in_run, has_index;
	int64_t step;                   /* in_run: its number */
	uint64_t ino;                   /* of the directory that rank 0 has read; 0: not known */
	const char *path, *dir, *name;  /* for sentences; to open; its name in the run */
	struct shf_buf manifest;        /* raw bytes */
	const char **files; size_t files_n;
	struct shf_mf_file *plain; size_t plain_n;
	struct shf_index index;
};
/* Both append what was found, for decode on every rank. [rank 0] */
/* Puts "dir/name" into out, however long it is, and returns it; NULL: no memory. */
const char *shf_path_in(struct shf_buf *out, const char *dir, const char *name);
/* Looks for step n of the run. ENOENT: it is not there, or has just gone. [rank 0] */
int shf_found_step(struct sheaf_run *run, int64_t n, struct shf_buf *told, struct sheaf_error *err);
/* Looks what is at a path. [rank 0] */
int shf_found_path(struct sheaf_run *run, const char *path, struct shf_buf *told,
                   struct sheaf_error *err);
/* Of a step whose manifest is at hand: dir is where to open it. */
int shf_found_bytes(const char *path, const char *dir, const uint8_t *manifest, size_t n,
                    struct shf_buf *told, struct sheaf_error *err);
/* Reads what one of the others wrote. */
int shf_found_decode(struct shf_found *found, struct shf_arena *arena, const struct shf_buf *told,
                     struct sheaf_error *err);
/* Is dir the directory that was read? Another one may have its name by now. [rank 0: for others the
 * file system may have other numbers] */
bool shf_found_is_this(const struct shf_found *found, const struct shf_sys *sys, int dir);
#endif
