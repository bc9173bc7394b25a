/* SPDX-License-Identifier: Apache-2.0 */
/* Marking steps as good to keep or bad. */
#ifndef SHF_MARKS_H
#define SHF_MARKS_H
#include "store.h"

/* Marks a step. mark: 'k' (keep), 'b' (bad), or 0, which removes the mark and the tries. */
int shf_store_mark(struct shf_store *s, int64_t step, char mark, struct sheaf_error *err);
/* Writes the file `name` of .sheaf/marks, durably. mark: k or b. Returns 0 or a negative errno. */
int shf_mark_write(struct shf_store *s, const char *name, char mark, const char *session);
/* Returns 1 if this save is marked bad on disk; then its copy in memory is bad as well. 0 if not.
 * EIO: its mark cannot be read, or is invalid. */
int  shf_store_is_bad(struct shf_store *s, int64_t step, const char *session,
                      struct sheaf_error *err);
/* Returns whether this save was set aside, by a rewind or because its number was saved again. */
bool shf_store_is_aside(struct shf_store *s, int64_t step, const char *session);
/* Returns 1 if `is` returns true for some save that was set aside, 0 if not, or -errno if the
 * directory cannot be read. */
int  shf_asides_some(struct shf_store *s, bool (*is)(void *arg, int64_t step, const char *session),
                     void *arg);
#endif
