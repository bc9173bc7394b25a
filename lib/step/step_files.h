/* SPDX-License-Identifier: Apache-2.0 */
/* The files of an open step: their descriptors, which are opened at first use, and reads from
 * them. */
#ifndef SHF_STEP_FILES_H
#define SHF_STEP_FILES_H
#include "step.h"

/* Checks a large table of sums, open as fd, before the caller allocates memory for all of it: that
 * its head is valid, that the table describes the files of the manifest, and that it is not much
 * longer than these files are together. [local] */
int shf_step_sums_fit(const struct sheaf_checkpoint *step, int fd, struct sheaf_error *err);
/* Returns the descriptor of file f, or a negative code. The file is opened at first use, and closed
 * with the step. [local] */
int shf_step_fd(struct sheaf_checkpoint *step, uint32_t f, struct sheaf_error *err);
/* Says whether all of the step is read once from here on, by this process and in the order of its
 * files. Reads then leave nothing in the page cache that was not there. Through a map parts of a
 * page are read at different times, so nothing changes for a step that is shown through one. */
void shf_step_read_once(struct sheaf_checkpoint *step, bool once);
/* Reads n bytes at `off` of file f on this thread, through the page cache. EIO, or ECORRUPT if the
 * file ends too early. retries: as in shf_read_now. [local] */
int shf_step_file_read(struct sheaf_checkpoint *step, uint32_t f, void *to, uint64_t n,
                       uint64_t off, uint64_t *retries, struct sheaf_error *err);
/* Turns `got`, the result of a read of n bytes at `off` of file f, into 0 or a code with its
 * message. A short read is ECORRUPT. */
int shf_step_file_got(const struct sheaf_checkpoint *step, uint32_t f, uint64_t off, uint64_t n,
                      int64_t got, struct sheaf_error *err);
/* Returns the flag to open files of the step with: SHF_O_NOFOLLOW, or 0 if the step was opened by
 * its path, because files in the Hugging Face hub cache are symbolic links. */
int shf_step_follow(const struct sheaf_checkpoint *step);
/* Returns a descriptor of file f for direct I/O, opened at first use; 0: direct I/O is not used for
 * this file. [local] */
int shf_step_direct(struct sheaf_checkpoint *step, uint32_t f);
/* Closes the descriptors for direct I/O of the files with numbers below `end`. No read of these
 * files may be in flight. The descriptors are opened again at the next use. */
void shf_step_direct_close(struct sheaf_checkpoint *step, uint32_t end);
/* Call it after a read, with the same rc on all ranks. Returns rc, except that ECORRUPT becomes
 * EAGAIN on all ranks if on some rank the memory that held the step was reused for another step
 * (shf_view_check_unchanged), because then the bytes were not damaged. [collective] */
int shf_step_exclude_reuse(const struct sheaf_checkpoint *step, int rc, struct sheaf_error *err);
/* Compares the files of a foreign step, which has no checksums, with what they were when it was
 * opened. EAGAIN: one has been changed or replaced. EIO. [local] */
int shf_step_check_unchanged(struct sheaf_checkpoint *step, struct sheaf_error *err);
/* Opens a file of the step by its name in the manifest. Returns the descriptor or a negative errno.
 * If the family's folder is at fault and not the file, `where` gets the name of the folder, else
 * "". */
int shf_step_file_open(const struct sheaf_checkpoint *step, const char *name, int flags,
                       char where[64]);
#endif
