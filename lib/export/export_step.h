/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a step, native or foreign, anew in a format of other software. [local]
 *
 * The room lib/export owns struct shf_export, an export in progress. It reads a step through
 * lib/step, and writes a directory that is no run, or a file. A format is a file of this room with
 * an entry in the table of export_format.c. */
#ifndef SHF_EXPORT_STEP_H
#define SHF_EXPORT_STEP_H
#include "step.h"

struct shf_export_format;
/* struct sheaf_export of sheaf-admin.h, with the defaults filled in. An import (lib/import) has the
 * same options and a few more. */
struct shf_export_opts {
	const struct shf_export_format *format; /* NULL: that of Hugging Face */
	int32_t dtype;                  /* 0: types stay */
	const char *family;             /* NULL: all families */
	const char *as;                 /* the name that the family gets; NULL: its own */
	const char *prefix;             /* "": all names */
	bool is_step;                   /* what is written is a step of a run */
	int64_t adam_step;              /* updates of AdamW; 0: the note adam.step of the step */
	double beta1, beta2;            /* of AdamW; 0: unknown */
	uint64_t file_bytes_max, memory_bytes;
	int (*progress)(void *arg, uint64_t done, uint64_t total);      /* NULL: none */
	void *arg;
};
/* Writes the directory or file `path`, which must not exist. report (may be NULL) gets files,
 * tensors and bytes, and as `ignored` the numbers of updates of single parameters that the format
 * has in another place. report->held becomes the number of bytes that this call wrote: without the
 * files that an earlier export finished. [local] */
int shf_step_export(struct sheaf_checkpoint *step, const char *path,
                    const struct shf_export_opts *opts, struct sheaf_report *report,
                    struct sheaf_error *err);
#endif
