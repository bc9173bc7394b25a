/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors files, and other small files, of a checkpoint that is a directory. */
#ifndef SHF_FOREIGN_ST_H
#define SHF_FOREIGN_ST_H
#include "foreign.h"
#include "safetensors.h"

/* Adds a file of the directory and reads its header into *st, whose texts are in f's arena. *file
 * gets its number. */
int shf_foreign_st_read(struct shf_foreign *f, const char *name, uint32_t *file, struct shf_st *st,
                        struct sheaf_error *err);
/* Reads the header of a file that was added. Texts are in the arena. */
int shf_foreign_st_head(struct shf_foreign *f, uint32_t file, struct shf_arena *arena,
                        struct shf_st *st, struct sheaf_error *err);
/* Reads a file of the directory, or of a folder in it (NULL: none), of at most `most` bytes, into
 * *out. It becomes one of the files of the checkpoint, which must not change while it is open.
 * EFORMAT: it is larger. */
int shf_foreign_slurp(struct shf_foreign *f, const char *folder, const char *name, uint64_t most,
                      struct shf_buf *out, struct sheaf_error *err);

/* The names in a directory, sorted: those that a plain file can have. */
struct shf_listing { struct shf_buf a; bool oom; struct shf_arena *arena; };
/* Reads them. The caller releases l->a, after a failure, too. */
int shf_listing_read(struct shf_listing *l, struct shf_arena *arena, const struct shf_sys *sys,
                     int dir, const char *path, struct sheaf_error *err);
size_t shf_listing_n(const struct shf_listing *l);
const char *shf_listing_at(const struct shf_listing *l, size_t i);
bool shf_listing_has(const struct shf_listing *l, const char *name);
/* Returns whether a file of the directory has one of the texts in its first 64 KiB. A file that is
 * missing or cannot be read has none. ENOMEM. */
int shf_begins_with_any(const struct shf_sys *sys, int dir, const char *name,
                        const char *const *texts, size_t texts_n, struct sheaf_error *err);
#endif
