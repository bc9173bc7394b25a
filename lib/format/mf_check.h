/* SPDX-License-Identifier: Apache-2.0 */
/* The rules that every manifest keeps, shared by its encoder and its decoder. */
#ifndef SHF_MF_CHECK_H
#define SHF_MF_CHECK_H
#include "manifest.h"
#include "valid.h"

#define SHF_NOTE_MAX  ((size_t)64 << 10)        /* value of one note */
#define SHF_NOTES_MAX ((size_t)512 << 10)       /* keys and values of all */

/* 0, or code (or SHEAF_ENOMEM) with a sentence. No pointer of m but config and mesh is NULL,
 * arrays of no items excepted. */
int shf_manifest_check(const struct shf_manifest *m, int code, const char *where,
		       struct sheaf_error *err);
bool shf_hex_is_valid(const char *s, size_t n);         /* lower-case hex digits only */
#endif
