/* SPDX-License-Identifier: Apache-2.0 */
/* Tells the findings of a verify, and reads files so that what is wrong with them becomes one. */
#ifndef SHF_VERIFY_FIND_H
#define SHF_VERIFY_FIND_H
#include "verify.h"

/* Tells a finding; e: its sentence. */
void shf_verify_find(struct shf_verify *v, const char *what, const struct shf_verify_at *at,
                     const struct sheaf_error *e);
/* Something could not be looked at: rc and e say why. It only counts if nothing was found anywhere.
 */
void shf_verify_blind(struct shf_verify *v, int rc, const struct sheaf_error *e);
/* Bytes the file should have: of the manifest, else what is there, SHF_GONE too. */
uint64_t shf_verify_want(const struct shf_verify *v, uint32_t f);
/* Directory that `name`, relative to the step, is in, and its last part. Close it with
 * shf_verify_leave. A negative errno. */
int shf_verify_enter(const struct shf_verify *v, const char *name, const char **base);
/* Closes what enter has opened; dir may be an error. */
void shf_verify_leave(const struct shf_verify *v, int dir);
int shf_verify_follow(const struct shf_verify *v);      /* 0 or SHF_O_NOFOLLOW */
/* Tries again what fails with EIO; counted. Bytes, or a negative errno. */
int64_t shf_verify_read(struct shf_verify *v, int fd, void *buf, uint64_t n, uint64_t off);
/* A name that is there, plain and of `want` bytes (UINT64_MAX: any), else finds what it is
 * instead. dir: what enter returned, also when that was an error. */
bool shf_verify_plain(struct shf_verify *v, int dir, const char *base, const char *name,
                      uint64_t want, uint64_t *bytes);
#endif
