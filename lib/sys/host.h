/* SPDX-License-Identifier: Apache-2.0 */
/* Time, randomness and the identity of this process. */
#ifndef SHF_HOST_H
#define SHF_HOST_H
#include "sys_host.h"

extern const struct shf_host_ops shf_real_host;

int shf_real_random(void *arg, void *buf, size_t n);
int64_t shf_real_mono_ns(void *arg);
/* Reads the beginning of a small file of /proc or /sys into buf as NUL-terminated text. False if
 * the file is missing, empty or unreadable. */
bool shf_real_text(const char *path, char *buf, size_t n);
#endif
