/* SPDX-License-Identifier: Apache-2.0 */
/* Structs whose size differs because the caller was compiled with another version of sheaf.h. */
#ifndef SHF_STRUCT_SIZE_H
#define SHF_STRUCT_SIZE_H
#include <stddef.h>
#include "sheaf.h"

/* Copies *from to the caller's struct *to, as much as fits; members that only the caller's version
 * has become 0. Both begin with their size, which the caller has set. EINVAL: `to` is NULL, or its
 * size is less than `least` or is not that of a struct. name: of the struct, without `sheaf_`. */
int shf_struct_out(void *to, const void *from, size_t bytes, size_t least, const char *name,
                   struct sheaf_error *err);
/* Copies the caller's struct *from to *to. Members that the caller's version does not have become
 * 0. SHEAF_EINVAL also if members that this version does not have are not 0, because they ask for
 * something that it cannot do. */
int shf_struct_in(void *to, const void *from, size_t bytes, size_t least);
/* The same, and says what is wrong. arg: what the caller calls the struct. name: of the struct,
 * without `sheaf_`. */
int shf_struct_take(void *to, const void *from, size_t bytes, size_t least, const char *arg,
                    const char *name, struct sheaf_error *err);
#endif
