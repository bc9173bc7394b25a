/* SPDX-License-Identifier: Apache-2.0 */
/* The counts of failed resumes. */
#ifndef SHF_TRIES_H
#define SHF_TRIES_H
#include "store.h"

/* Records an attempt of this session to load the step. Returns the count; 0 if the step is not
 * counted now, because this session has counted it before, has counted SHF_TRIED_MAX steps, or is
 * not the writer; or a code, and then the caller loads without counting. */
int shf_tries_add(struct shf_store *s, int64_t step, const char *session,
                  struct sheaf_error *err);
/* Removes what this session counted, because it made progress. Returns a code if that could not be
 * made durable. */
int shf_tries_forget(struct shf_store *s, struct sheaf_error *err);
/* Returns whether other sessions tried the step, on disk or in memory, at least attempts_max
 * times. */
bool shf_tries_spent(struct shf_store *s, int64_t step, const char *session);
/* Returns whether the step is to be marked bad: it was tried that often (shf_tries_spent), and an
 * older step is left to load. */
bool shf_tries_condemn(struct shf_store *s, int64_t step, const char *session);
/* Returns the count of a step: 0 if it has no count; -1 if the count cannot be read. */
int shf_tries_read(struct shf_store *s, int64_t step, const char *session);
/* Removes the counts of all saves that had this number, durably. Returns 0 or -errno. */
int shf_tries_clear(struct shf_store *s, int64_t step);
/* Opens .sheaf/tries. Returns a descriptor or a negative errno. */
int shf_tries_open(struct shf_store *s);
/* Reads the count in a file of .sheaf/tries. A text that is no number counts as 0. Returns the
 * count, or a negative errno if the file cannot be read. */
int shf_tries_count(const struct shf_sys *sys, int dir, const char *name);
/* Removes a name. Returns 1 if it existed, 0 if not, or a negative errno. */
int shf_name_remove(struct shf_store *s, int dir, const char *name);
#endif
