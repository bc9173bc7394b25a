/* SPDX-License-Identifier: Apache-2.0 */
/* Publishes a complete stage of a dead writer, because a person asks for it. */
#ifndef SHF_SALVAGE_H
#define SHF_SALVAGE_H
#include "mem.h"
#include "stage.h"

/* Takes the lock, changes nothing else, and opens the stage S of the step. ENOENT: the step has no
 * stage; EBUSY: the writer of such a stage may be alive; EEXIST: the step is published; ECORRUPT:
 * the stage has no manifest; EINVAL: several stages of the step are complete. */
int shf_salvage_begin(struct shf_store *s, struct shf_stage *g, const struct shf_sys *sys,
                      const char *path, int wait_ms, int64_t step, struct sheaf_error *err);
/* Publishes, after the caller has checked every byte: C5 and C7 to C9, with the text and the run of
 * the manifest in S. The caller then closes the stage and never discards it. */
int shf_salvage_finish(struct shf_store *s, struct shf_stage *g, const struct shf_buf *text,
                       const char *run, struct sheaf_error *err);
#endif
