/* SPDX-License-Identifier: Apache-2.0 */
/* Records and reports the findings of a verification, and opens and reads files so that a missing
 * or short file becomes a finding. */
#ifndef SHF_VERIFY_FINDINGS_H
#define SHF_VERIFY_FINDINGS_H
#include "verify.h"

/* Records and reports a finding. kind: an enum sheaf_finding_kind; e: its message. */
void shf_verify_find(struct shf_verify *v, int32_t kind, const struct shf_verify_at *at,
                     const struct sheaf_error *e);
/* Records a failure rc, with message e, because of which a part of the step could not be checked.
 * Such a failure decides the result only if no rank has a finding. */
void shf_verify_blind(struct shf_verify *v, int rc, const struct sheaf_error *e);
/* Returns the size that file f should have: the manifest's, or for a step without a manifest its
 * size on disk, which may be SHF_GONE. */
uint64_t shf_verify_want(const struct shf_verify *v, uint32_t f);
/* Opens the directory that the file `name` of the step lies in. *base: the last part of the name.
 * Returns a descriptor, to be closed with shf_verify_leave, or a negative errno. */
int shf_verify_enter(const struct shf_verify *v, const char *name, const char **base);
/* Closes the directory that shf_verify_enter returned. dir: its result; if that is an error,
 * nothing is closed. */
void shf_verify_leave(const struct shf_verify *v, int dir);
int shf_verify_follow(const struct shf_verify *v);      /* flag to open with: 0 or SHF_O_NOFOLLOW */
/* Reads n bytes at `off`, and retries after EIO; retries are counted in v->retries. Returns the
 * number of bytes, or a negative errno. */
int64_t shf_verify_read(struct shf_verify *v, int fd, void *buf, uint64_t n, uint64_t off);
/* Whether `base` in directory dir is a regular file of `want` bytes (UINT64_MAX: of any size);
 * *bytes: its size. If not, records a finding, or a failure if the file could not be examined, and
 * returns false. dir: what shf_verify_enter returned, also if that was an error. name: the file's
 * name in the step, for the report. */
bool shf_verify_plain(struct shf_verify *v, int dir, const char *base, const char *name,
                      uint64_t want, uint64_t *bytes);
#endif
