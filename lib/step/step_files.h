/* SPDX-License-Identifier: Apache-2.0 */
/* The files of an open step: descriptors, opened when first wanted. */
#ifndef SHF_STEP_FILES_H
#define SHF_STEP_FILES_H
#include "step.h"

/* Before memory is taken for all of a table of sums, open as fd, that says it is large: is it one,
 * of these files, and not much longer than they are? [local] */
int shf_step_sums_fit(const struct sheaf_step *step, int fd, struct sheaf_error *err);
/* Descriptor of file f, opened when first wanted. Negative code. [local] */
int shf_step_fd(struct sheaf_step *step, uint32_t f, struct sheaf_error *err);
/* Reads n bytes at `off` of file f on this thread, through the page cache. EIO, or ECORRUPT if the
 * file ends too early. retries: as in shf_read_now. [local] */
int shf_step_file_read(struct sheaf_step *step, uint32_t f, void *to, uint64_t n, uint64_t off,
                       uint64_t *retries, struct sheaf_error *err);
/* What such a read of n bytes returned: 0, or the code and the message of its failure. */
int shf_step_file_got(const struct sheaf_step *step, uint32_t f, uint64_t off, uint64_t n,
                      int64_t got, struct sheaf_error *err);
/* SHF_O_NOFOLLOW, or 0 for what was opened by its path: that may be a hub cache, whose files are
 * links. */
int shf_step_follow(const struct sheaf_step *step);
/* Another descriptor of it, past the page cache, or 0: there is none. [local] */
int shf_step_direct(struct sheaf_step *step, uint32_t f);
/* Those of the files before `end`, of which nothing is under way. They open again when wanted. */
void shf_step_direct_close(struct sheaf_step *step, uint32_t end);
/* rc, which is the same on all ranks, after a read. ECORRUPT becomes EAGAIN on all of them if the
 * memory that held the step has been taken for another step on some rank (shf_view_moved): then the
 * bytes were not damaged. [collective] */
int shf_step_doubt(const struct sheaf_step *step, int rc, struct sheaf_error *err);
/* A descriptor of a file of the step, or a negative errno and, where that is not the file's, the
 * path it is about. */
int shf_step_file_open(const struct sheaf_step *step, const char *name, int flags, char where[64]);
#endif
