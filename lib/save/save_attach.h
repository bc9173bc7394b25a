/* SPDX-License-Identifier: Apache-2.0 */
/* The calls sheaf_save_attach, sheaf_save_note and sheaf_save_rank_bytes. */
#ifndef SHF_SAVE_ATTACH_H
#define SHF_SAVE_ATTACH_H
#include "save.h"

int shf_save_attach(struct sheaf_save *save, const char *file, const void *bytes, size_t n,
                    struct sheaf_error *err);
int shf_save_note(struct sheaf_save *save, const char *key, const char *value,
                  struct sheaf_error *err);
int shf_save_rank_bytes(struct sheaf_save *save, const char *stream, const void *bytes, size_t n,
                        struct sheaf_error *err);
#endif
