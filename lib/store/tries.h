/* SPDX-License-Identifier: Apache-2.0 */
/* The counts of failed resumes. */
#ifndef SHF_TRIES_H
#define SHF_TRIES_H
#include "store.h"

/* Counts that this session is about to load the step. Returns the count; 0 if this session has
 * counted the step already or is not the writer; or a code, and then the caller loads without
 * counting. */
int shf_tries_add(struct shf_store *s, int64_t step, const char *session,
                  struct sheaf_error *err);
/* Removes what this session counted, because it made progress. Returns a code if that could not be
 * made durable. */
int shf_tries_forget(struct shf_store *s, struct sheaf_error *err);
/* Was the step, on disk or in memory, tried attempts_max times by other sessions? */
bool shf_tries_spent(struct shf_store *s, int64_t step, const char *session);
/* Is the step condemned: tried that often, and an older step is left to load? */
bool shf_tries_condemn(struct shf_store *s, int64_t step, const char *session);
/* Returns the count: 0 if there is none; -1 if it cannot be read. */
int shf_tries_read(struct shf_store *s, int64_t step, const char *session);
/* Removes the counts of all saves that had this number, durably. 0 or -errno. */
int shf_tries_clear(struct shf_store *s, int64_t step);
/* Opens .sheaf/tries. Returns a descriptor or a negative errno. */
int shf_tries_open(struct shf_store *s);
/* Reads the count in a file of .sheaf/tries. A text that is no number counts as 0. A negative
 * errno: it cannot be read. */
int shf_tries_count(const struct shf_sys *sys, int dir, const char *name);
/* Removes a name. Returns 1 if it existed, 0 if not, or a negative errno. */
int shf_name_remove(struct shf_store *s, int dir, const char *name);
#endif
