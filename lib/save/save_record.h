/* SPDX-License-Identifier: Apache-2.0 */
/* What rank 0 knows of a save when all ranks have said what they know, and writes down: the
 * manifest and the indexes. */
#ifndef SHF_SAVE_RECORD_H
#define SHF_SAVE_RECORD_H
#include "manifest.h"
#include "mem.h"

struct sheaf_run;
struct sheaf_save;
struct sheaf_state;
struct shf_layout;
struct shf_given {              /* strings in the arena */
	struct shf_mf_file *files; size_t files_n;      /* by name */
	struct shf_mf_note *notes; size_t notes_n;      /* by key */
	const uint8_t **data;                           /* of files, if they were carried */
};
struct shf_sums_out {
	struct shf_buf table;           /* the whole of sheaf.sums; owned */
	uint64_t crc;                   /* of its header and page table */
	uint64_t *file_crc;             /* by file; in the arena */
};
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
/* The most bytes that the manifest of this plan can have without notes and attached files. EINVAL:
 * that is too long already. [local] */
int shf_record_bound(const struct sheaf_run *run, const struct shf_layout *l,
                     const struct sheaf_state *state, size_t *bytes, struct sheaf_error *err);
/* Has the manifest room for one more note or attached file? *bytes: what it takes there. EINVAL: it
 * would be too long. [local] */
int shf_record_takes(const struct sheaf_save *save, const char *key, const char *value,
                     size_t *bytes, struct sheaf_error *err);
const char *shf_base_name(const char *path);
#endif
