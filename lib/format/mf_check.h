/* SPDX-License-Identifier: Apache-2.0 */
/* The rules that every manifest keeps, shared by its encoder and its decoder. */
#ifndef SHF_MF_CHECK_H
#define SHF_MF_CHECK_H
#include "manifest.h"
#include "valid.h"

#define SHF_NOTE_MAX  ((size_t)64 << 10)        /* bytes of the value of one note */
#define SHF_NOTES_MAX ((size_t)512 << 10)       /* bytes of the keys and values of all notes */

/* Checks *m. Returns 0, SHEAF_ENOMEM, or `code` with a sentence that begins with `where`. Pointers
 * in *m must not be NULL, except config, mesh, and arrays without items. */
int shf_manifest_check(const struct shf_manifest *m, int code, const char *where,
		       struct sheaf_error *err);
bool shf_hex_is_valid(const char *s, size_t n);         /* lower-case hex digits only */
#endif
