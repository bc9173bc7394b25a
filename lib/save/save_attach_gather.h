/* SPDX-License-Identifier: Apache-2.0 */
/* Attached files, notes and opaque bytes in a commit: encodes what each rank was given for rank 0,
 * merges it on rank 0, and writes the files. (The calls that give them are in save_attach.c.) All
 * functions are [local]. */
#ifndef SHF_SAVE_ATTACH_GATHER_H
#define SHF_SAVE_ATTACH_GATHER_H
#include "save.h"

/* Appends to b the attached files, notes and streams that this rank was given. carry: includes the
 * bytes of the files, and not only size and checksum. */
void shf_save_attach_put(const struct sheaf_save *save, bool carry, struct shf_buf *b);
struct shf_save_attach_entry;
struct shf_save_attach_in {          /* the entries of all ranks, on rank 0; zero it first */
	struct shf_save_attach_entry *a;        /* owned */
	size_t n;
};
/* On rank 0: decodes what shf_save_attach_put made on that rank, and adds it. Names and values are
 * copied to the arena; bytes of files stay in the buffer that c reads, which must outlive *in.
 * ENOMEM, or EBUG if it cannot be decoded. */
int shf_save_attach_take(struct shf_save_attach_in *in, uint32_t rank, bool carry,
                         struct shf_arena *arena, struct shf_cur *c);
/* On rank 0: merges the entries. *out gets the lists for the manifest, `owners` the encoded list of
 * which rank writes which attached file. EINVAL if ranks give different contents under one name, or
 * if all notes are too long together. */
int shf_save_attach_unite(struct shf_save_attach_in *in, struct shf_arena *arena,
                          struct shf_given *out, struct shf_buf *owners, struct sheaf_error *err);
void shf_save_attach_free(struct shf_save_attach_in *in);
/* Writes and fsyncs the attached files that `owners` assigns to this rank. */
int shf_save_attach_write(struct sheaf_save *save, const struct shf_buf *owners,
                          struct sheaf_error *err);
#endif
