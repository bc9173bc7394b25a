/* SPDX-License-Identifier: Apache-2.0 */
/* Attached files and notes of a save: what each rank sends to rank 0, what rank 0 makes of it, and
 * who writes which file. All [local]. */
#ifndef SHF_SAVE_ATTACH_H
#define SHF_SAVE_ATTACH_H
#include "save.h"

/* Appends what this rank was given; carry: with the bytes of the files. */
void shf_attach_put(const struct sheaf_save *save, bool carry, struct shf_buf *b);
struct shf_one_given;
struct shf_attach_in {          /* of all ranks; zero it */
	struct shf_one_given *a;        /* owned */
	size_t n;
};
/* For rank 0: adds what that rank has put. Texts are copied to the arena; bytes of files stay where
 * c reads them. ENOMEM, or EBUG if it cannot be read. */
int shf_attach_take(struct shf_attach_in *in, uint32_t rank, bool carry, struct shf_arena *arena,
                    struct shf_cur *c);
/* For rank 0: the lists for the manifest, and in `owners` the rank that writes each file. EINVAL if
 * ranks give different contents under one name. */
int shf_attach_unite(struct shf_attach_in *in, struct shf_arena *arena, struct shf_given *out,
                     struct shf_buf *owners, struct sheaf_error *err);
void shf_attach_free(struct shf_attach_in *in);
/* Writes and syncs those of the files that are this rank's to write. */
int shf_attach_write(struct sheaf_save *save, const struct shf_buf *owners,
                     struct sheaf_error *err);
#endif
