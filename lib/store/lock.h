/* SPDX-License-Identifier: Apache-2.0 */
/* The lock of the run's writer, and the text in its file that names the holder. */
#ifndef SHF_LOCK_H
#define SHF_LOCK_H
#include "mem.h"
#include "store.h"

/* Returns whether a living job holds the run's lock, as far as locks can show it. A lock that only
 * a forked child of a dead job still has does not count. */
bool shf_lock_is_held(struct shf_store *s);
/* Locks .sheaf/lock, and .sheaf/door before it (D1), within wait_ms (EBUSY if that is too short).
 * shf_lock_write or shf_lock_visit then unlocks the door. */
int shf_lock_take(struct shf_store *s, int wait_ms, struct sheaf_error *err);
/* Reads the first text of the lock file, that of the last owner of the run. session is "" if the
 * file has no complete text, which is no error. Returns 0 or -errno. */
int shf_lock_read(struct shf_store *s, struct shf_owner *owner, char session[33]);
/* Writes our text over that of the last owner, which the caller has read into s->prev before. */
int shf_lock_write(struct shf_store *s, struct sheaf_error *err);
/* Appends our entry after that of s->prev, to hold the lock without owning the run yet (D2). */
int shf_lock_visit(struct shf_store *s, struct sheaf_error *err);
/* Reads who holds the lock, by the last text of its file (D2). session is "" if that text is torn
 * or the file has no text, which is no error. Returns 0 or -errno. */
int shf_lock_holder(struct shf_store *s, struct shf_owner *owner, char session[33]);
/* C7. Returns 0 if the lock file still names our session, else ELOST. */
int shf_lock_check(struct shf_store *s, struct sheaf_error *err);
/* Returns whether the negative errno means that the file system has no locks. Callers then go on
 * without a lock, because safety never rests on locks. */
bool shf_lock_is_absent(int rc);
/* Closes a file that this process may have locked. The lock is released for forked children,
 * too. */
void shf_lock_close(const struct shf_sys *sys, int *fd);

/* shf_owner_put appends to out, and shf_owner_get reads, the text in a lock file or an alive file
 * that names its writer. */
void shf_owner_put(struct shf_buf *out, const struct shf_owner *owner, const char *session);
bool shf_owner_get(const uint8_t *bytes, size_t n, struct shf_owner *owner, char session[33]);
#endif
