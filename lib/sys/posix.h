/* SPDX-License-Identifier: Apache-2.0 */
/* Files and directories of the kernel. The functions declared here are those that other files of
 * lib/sys call directly. */
#ifndef SHF_POSIX_H
#define SHF_POSIX_H
#include "sys_file.h"

extern const struct shf_file_ops shf_real_file;
extern const struct shf_disk_ops shf_real_disk;

int shf_real_open(void *arg, int dir, const char *name, int flags, unsigned mode);
int shf_real_readlink(void *arg, int dir, const char *name, char *buf, size_t n);
int shf_real_fsync(void *arg, int fd);
int shf_real_resize(void *arg, int fd, uint64_t bytes);
int64_t shf_real_pread(void *arg, int fd, void *buf, size_t n, uint64_t off);
int64_t shf_real_pwrite(void *arg, int fd, const void *buf, size_t n, uint64_t off);
#endif
