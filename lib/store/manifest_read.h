/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the manifest of a step, and checking that it belongs there. */
#ifndef SHF_MANIFEST_READ_H
#define SHF_MANIFEST_READ_H
#include "manifest.h"
#include "store.h"

/* Reads the manifest of a committed step. ENOENT: no such step; EFORMAT: foreign; ECORRUPT:
 * damaged, or that of another step or run. */
int shf_store_manifest(struct shf_store *s, int64_t step, struct shf_manifest *m,
                       struct shf_arena *arena, struct sheaf_error *err);
/* Reads the manifest in the directory dir. where: the path of dir for messages. ENOENT: dir has no
 * manifest. */
int shf_manifest_read(const struct shf_sys *sys, int dir, const char *where,
                      struct shf_manifest *m, struct shf_arena *arena, struct sheaf_error *err);
/* Checks that the manifest is of that step and of this run. If not, ECORRUPT: the step was copied
 * or renamed by hand. */
int shf_manifest_is_of(struct shf_store *s, const struct shf_manifest *m, int64_t step,
                       const char *where, struct sheaf_error *err);
#endif
