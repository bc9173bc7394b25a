/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out what lies at a path: a step of this library, a Hugging Face directory, or one
 * safetensors file. Only rank 0 reads the directory, and its result is broadcast to all ranks. */
#ifndef SHF_STEP_FIND_H
#define SHF_STEP_FIND_H
#include "index.h"
#include "manifest.h"
#include "run.h"

/* What rank 0 found. Lives in the arena given to shf_step_find_decode, except `manifest`, which
 * borrows the encoded bytes. */
struct shf_step_found {
	bool sound, single, in_run, has_index;  /* it has a manifest; it is a single file; it is a
	                                         * step of the run; `index` is filled in */
	bool foreign;                   /* lib/foreign opens it, by `path` */
	int64_t step;                   /* number of the step, if in_run */
	uint64_t ino;                   /* inode of the directory in which rank 0 read; 0: not
	                                 * known */
	const char *path, *dir, *name;  /* path: of the step, for messages; dir: the directory to
	                                 * open; name: the name of the directory in the run, if
	                                 * in_run */
	struct shf_buf manifest;        /* raw bytes of sheaf.json */
	const char **files; size_t files_n;
	struct shf_mf_file *plain; size_t plain_n;
	struct shf_index index;
	const char *index_name;         /* of the index of a directory without a manifest, as it is
	                                 * or would be named; "": it needs none */
	const char *index_flaw;         /* why it cannot be read; "": it can, as far as is known */
};
/* Writes "dir/name" to out, of any length, and returns the string; NULL: no memory. */
const char *shf_path_join(struct shf_buf *out, const char *dir, const char *name);
/* Reads a whole regular file of at most `max` bytes into out, which must be empty. Returns 0 or a
 * negative errno: -EFBIG if the file is larger, -EINVAL if it is no regular file. */
int shf_file_slurp(const struct shf_sys *sys, int dir, const char *name, int flags, uint64_t max,
                   struct shf_buf *out);

/* The functions marked [rank 0] append their result to `told`; shf_step_find_decode reads it on
 * every rank. */
/* Looks for step n of the run on disk. ENOENT: there is no such step, or it was removed meanwhile.
 * [rank 0] */
int shf_step_find_number(struct sheaf_run *run, int64_t n, struct shf_buf *told,
                         struct sheaf_error *err);
/* Finds out what is at a path. [rank 0] */
int shf_step_find_path(struct sheaf_run *run, const char *path, struct shf_buf *told,
                       struct sheaf_error *err);
/* Encodes what shf_step_find_path would find, for a step that the caller shows as a foreign one.
 * [rank 0] */
int shf_step_find_shown(const char *path, struct shf_buf *told, struct sheaf_error *err);
/* Encodes what shf_step_find_path would find, for a step in memory whose manifest the caller has
 * already. dir: where every rank opens the step. [rank 0] */
int shf_step_find_memory(const char *path, const char *dir, const uint8_t *manifest, size_t n,
                         struct shf_buf *told, struct sheaf_error *err);
/* Decodes the result of one of the functions above. [local] */
int shf_step_find_decode(struct shf_step_found *found, struct shf_arena *arena,
                         const struct shf_buf *told, struct sheaf_error *err);
/* Whether the open directory `dir` is the one that rank 0 has read; another one may have its name
 * by now. [rank 0, because other machines may see other inode numbers] */
bool shf_step_find_is_same(const struct shf_step_found *found, const struct shf_sys *sys, int dir);
#endif
