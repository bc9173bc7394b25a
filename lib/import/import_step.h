/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a step of any kind, native or foreign, as a new step of a run. [local]
 *
 * The room lib/import owns struct shf_import, an import in progress. It reads and writes tensors by
 * the passes of lib/export, with the stage of the run as the directory that is written, and
 * publishes the stage as every save does. */
#ifndef SHF_IMPORT_STEP_H
#define SHF_IMPORT_STEP_H
#include "export_pass.h"
#include "export_beside.h"
#include "publish.h"

/* struct sheaf_import of sheaf-admin.h, with the defaults filled in. */
struct shf_import_opts {
	struct shf_export_opts how;     /* is_step is true */
	int64_t number;                 /* of the new step; -1: the one that the source has */
};
struct shf_import {
	struct sheaf_checkpoint *step;  /* borrowed; the source */
	const struct shf_import_opts *opts;
	int64_t number;
	struct shf_store dst;
	struct shf_stage stage;
	int *dirs;                      /* owned; by family: descriptor of its folder in the stage;
	                                 * -1: not open */
	char part[24];                  /* what the names of unfinished files begin with */
	char name[SHF_STEP_NAME];       /* of the new step's folder */
	struct shf_buf path, where;     /* owned; of the new step, and of the stage; NUL-ended */
	struct shf_export x;
	struct shf_export_beside beside;
	struct shf_arena arena;
	struct shf_manifest manifest;   /* in the arena, in the plan and in the source */
};
/* Writes the step into the run at `path`, which is created if it does not exist. report (may be
 * NULL) gets files, tensors, bytes and the number of the step. report->held becomes the number of
 * bytes that this call wrote: without the files that an earlier import finished. report->ignored
 * becomes the number of notes of the source that the step cannot have, and report->unexpected that
 * of the attached files. [local] */
int shf_step_import(struct sheaf_checkpoint *step, const char *path,
                    const struct shf_import_opts *opts, struct sheaf_report *report,
                    struct sheaf_error *err);
#endif
