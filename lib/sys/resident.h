/* SPDX-License-Identifier: Apache-2.0 */
/* What the page cache holds of a file, and which pages of memory are present. */
#ifndef SHF_RESIDENT_H
#define SHF_RESIDENT_H
#include <stdbool.h>
#include <stdint.h>

int64_t shf_real_resident(void *arg, int fd, uint64_t off, uint64_t n);
void shf_real_forget(void *arg, int fd, uint64_t off, uint64_t n);
bool shf_real_touched(void *arg, const void *at);
void shf_real_touch(void *arg, const void *at, uint64_t n, bool write);
#endif
