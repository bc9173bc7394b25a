/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the manifest and the index files, on rank 0, from what was gathered from all ranks. */
#ifndef SHF_SAVE_RECORD_H
#define SHF_SAVE_RECORD_H
#include "manifest.h"
#include "mem.h"
#include "sums.h"

struct sheaf_run;
struct sheaf_save;
struct sheaf_state;
struct shf_layout;
struct shf_given {              /* attached files and notes of all ranks; strings are in the
                                 * arena */
	struct shf_mf_file *files; size_t files_n;      /* those that ranks attached, sorted by
	                                                 * name; then those that rank 0 made of
	                                                 * their opaque bytes */
	size_t attached_n;                              /* number of the first kind */
	struct shf_mf_note *notes; size_t notes_n;      /* sorted by key */
	const uint8_t **data;                           /* by file: its bytes, if they were
	                                                 * gathered or made */
};
/* Data that is the same in every save of a plan, so rank 0 makes it in the first save and keeps it
 * with the plan: the index files, and the table sheaf.sums before the checksums are filled in. What
 * is larger than SHF_RECORD_CACHE_MAX is made anew each time. */
#define SHF_RECORD_CACHE_MAX (UINT64_C(8) << 20) /* the largest buffer that is kept, in bytes */
/* The index.json of one family. */
struct shf_index_cache {
	struct shf_buf text;            /* contents of the file; len 0: not made yet */
	uint64_t crc;                   /* of text */
};
struct shf_record_cache {              /* kept with a plan; zeroed: nothing is kept */
	struct shf_buf table;           /* sheaf.sums without checksums; len 0: not made yet */
	struct shf_sums_head head;      /* where the parts of table are */
	struct shf_index_cache *indexes;        /* owned; by family; NULL: none was made */
	size_t indexes_n;
};
/* Frees what is kept, and zeroes *stock. */
void shf_record_cache_release(struct shf_record_cache *stock);
/* The checksums of a step. */
struct shf_save_sums_out {
	struct shf_buf table;           /* owned; the contents of sheaf.sums */
	uint64_t crc;                   /* CRC of the table's header and page checksums, which the
	                                 * manifest records */
	uint64_t *file_crc;             /* in the arena; by file: CRC of the whole file */
};
struct shf_save_record {             /* zero it first; what is not marked owned is in the arena or
                                 * belongs to the save */
	struct shf_manifest manifest;   /* ready to be encoded */
	struct shf_mf_file *index_files;        /* by family: name, size and CRC */
	struct shf_buf *indexes;                /* owned; their contents */
	size_t indexes_n;
};
/* Fills *r. arena must outlive it. [rank 0] */
int shf_save_record_make(struct shf_save_record *r, const struct sheaf_save *save,
                         const struct shf_given *given, const struct shf_save_sums_out *sums,
                         struct shf_arena *arena, struct sheaf_error *err);
void shf_save_record_release(struct shf_save_record *r);
/* Computes an upper bound for the size of the manifest under this plan, without notes and attached
 * files. EINVAL if even this is more than a manifest may have. [local] */
int shf_save_record_bound(const struct sheaf_run *run, const struct shf_layout *l,
                          const struct sheaf_state *state, size_t *bytes, struct sheaf_error *err);
/* Checks that the manifest has room for more notes or attached files: that many of this key and
 * value. *bytes: how many bytes they take there. EINVAL if the manifest would become too long.
 * [local] */
int shf_save_record_takes(const struct sheaf_save *save, size_t n, const char *key,
                          const char *value, size_t *bytes, struct sheaf_error *err);
#endif
