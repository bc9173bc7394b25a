/* SPDX-License-Identifier: Apache-2.0 */
/* Which names are valid for a tensor, a family, a file, a note (doc/format.md). */
#ifndef SHF_VALID_H
#define SHF_VALID_H
#include <stdbool.h>
#include <stddef.h>
#include "mem.h"

/* Copies the name of a tensor in a file that another program may have written, where it may be any
 * UTF-8 of any length, to the arena, as a C string that is safe to show: a control character
 * becomes \u and four hex digits, as in JSON. NULL: no memory. */
const char *shf_name_escape(struct shf_arena *arena, const char *s, size_t n);
bool shf_name_is_valid(const char *s, size_t n);        /* 1..1024 bytes of UTF-8, no control
                                                         * characters, not __metadata__ */
bool shf_family_is_valid(const char *s);                /* [a-z][a-z0-9_]{0,31} */
bool shf_attached_is_valid(const char *s);              /* [A-Za-z0-9._-]{1,128}, not . .., not
                                                         * sheaf.*, alive-*, *.safetensors* */
bool shf_note_key_is_valid(const char *s);              /* [A-Za-z0-9._/-]{1,64} */
bool shf_stream_is_valid(const char *s);                /* name of a stream of opaque bytes of a
                                                         * rank: [a-z0-9._-]{1,57} */
#define SHF_EXPORT_MARK ".sheaf-export" /* a file in the directory that an export is writing; it is
                                         * no part of a checkpoint */
bool shf_plain_is_valid(const char *s);                 /* a file name: one component, 1..255, no
                                                         * control bytes, not . or .. */
/* Returns how many bytes of a name to show in a sentence, with %.*s: all of a short one, only whole
 * characters of a long one. */
int shf_name_show(const char *s);
/* Sorts names by their bytes. Returns a name that occurs twice, or NULL if all are different. */
const char *shf_names_twice(const char **names, size_t n);
#endif
