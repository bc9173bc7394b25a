/* SPDX-License-Identifier: Apache-2.0 */
/* What an export writes: the tensors of one family under new names and in new types, or those of
 * all families, and the file and offset of each tensor, which the format determines. */
#ifndef SHF_EXPORT_PLAN_H
#define SHF_EXPORT_PLAN_H
#include "crc32.h"
#include "export_step.h"

/* Four bytes of a file that get the CRC-32 of a record of a zip archive, which is known when its
 * tensor has been read. */
struct shf_export_hole {
	uint64_t at;                    /* in the file */
	uint32_t tensor;                /* of `out`; it has bytes, and they end the record */
	uint32_t more;                  /* what the bytes before the tensor add (by XOR) */
};
struct shf_export_file {
	const char *name;               /* in the arena of the layout, or static */
	struct shf_buf header;          /* owned; of a safetensors file, whose first bytes it is; of
	                                 * other formats: all bytes that are of no tensor, in order,
	                                 * with 0 in the holes */
	struct shf_buf holes;           /* owned; struct shf_export_hole, in order of place */
	uint64_t bytes;                 /* of the whole file */
};
#define SHF_EXPORT_PART "part-" /* begins the names of files that an export has not finished */
struct shf_export_small {       /* a small file that is written before the files of tensors */
	const char *name;               /* in the arena of the layout, or static */
	struct shf_buf bytes;           /* owned */
};
struct shf_export_item {        /* a part of a file */
	uint64_t at, bytes;
};
struct shf_export_plan {
	const struct shf_export_format *format; /* that of the options, or the default */
	struct shf_layout out;
	uint32_t *from;                 /* owned; by tensor of `out`: the tensor of the step */
	struct shf_export_file *files;  /* owned; out.files_n of them */
	uint64_t *before;               /* owned; by position in out.by_place: bytes of the tensors
	                                 * that are placed before it in its file */
	struct shf_buf smalls;          /* owned; a struct shf_export_small for each small file.
	                                 * Attached files of the same names are not copied */
	struct shf_export_item *items;  /* in the arena of `out`; by tensor: the archive in its file
	                                 * that has only this tensor; NULL: the format has none */
	struct shf_crc32 *crc;          /* owned; tables, if a file has holes; else NULL */
	uint64_t bytes;                 /* of all files together */
	uint64_t steps_n;               /* how many tensors <parameter>/step are not written: the
	                                 * format stores the number of updates elsewhere */
};
/* Returns the holes of a file, and sets *n to their number. */
static inline const struct shf_export_hole *shf_export_holes(const struct shf_export_file *file,
                                                             size_t *n)
{
	*n = file->holes.len / sizeof(struct shf_export_hole);
	return (const struct shf_export_hole *)(const void *)file->holes.data;
}
/* Adds a small file. Takes over its bytes, also on failure. name: may begin with folders that files
 * of the plan are in; NULL: there was no memory for it. */
int shf_export_small_add(struct shf_export_plan *plan, const char *name, struct shf_buf *bytes,
                         struct sheaf_error *err);
/* Returns the small file of that number, counted from 0, or NULL if there are no more. */
const struct shf_export_small *shf_export_small(const struct shf_export_plan *plan, size_t i);
/* Makes the plan. The step must be awake. ELAYOUT: the step has no such family, or no tensor in it
 * whose name begins with the prefix. EINVAL: a tensor has a name or a number of dimensions that
 * Sheaf does not write, or options for one family were given for several. The caller releases *plan
 * after a failure, too. */
int shf_export_plan_make(struct shf_export_plan *plan, struct sheaf_checkpoint *step,
                         const struct shf_export_opts *opts, struct sheaf_error *err);
void shf_export_plan_release(struct shf_export_plan *plan);
#endif
