/* SPDX-License-Identifier: Apache-2.0 */
/* What rank 0 writes down of a save when all ranks have said what they know: the manifest and the
 * indexes. */
#ifndef SHF_RECORD_H
#define SHF_RECORD_H
#include "manifest.h"
#include "save.h"

struct shf_record {             /* zero it; what is not owned is in the arena or the save's */
	struct shf_manifest manifest;
	struct shf_mf_file *index_files;        /* by family */
	struct shf_buf *indexes;                /* their bytes; owned */
	size_t indexes_n;
};
/* [rank 0] */
int shf_record_make(struct shf_record *r, const struct sheaf_save *save,
                    const struct shf_given *given, const struct shf_sums_out *sums,
                    struct shf_arena *arena, struct sheaf_error *err);
void shf_record_release(struct shf_record *r);
const char *shf_base_name(const char *path);
#endif
