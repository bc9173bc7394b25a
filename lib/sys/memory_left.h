/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory this process can still take before the kernel kills a process for lack of
 * memory. */
#ifndef SHF_MEMORY_LEFT_H
#define SHF_MEMORY_LEFT_H
#include "sys_shm.h"

/* Returns how many bytes the tightest limit leaves; UINT64_MAX: no limit is known. */
uint64_t shf_real_memory_left(void);
int shf_real_memory_limits(void *arg, struct shf_memory_limit rooms[SHF_MEMORY_LIMITS]);
#endif
