/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of processors in the kernel's notation: "0-3,8" (cpuset(7), "List format"). */
#ifndef SHF_CPULIST_H
#define SHF_CPULIST_H
#include <stdbool.h>
#include <stdint.h>

#define SHF_CPUS_MAX 4096
#define SHF_CPUS_WORDS (SHF_CPUS_MAX / 64)
/* Reads a list: bit n of bits is set if processor n is in it. Returns false if text is no such
 * list, if it is empty, or if a number in it is SHF_CPUS_MAX or more. */
bool shf_cpulist(const char *text, uint64_t bits[SHF_CPUS_WORDS]);
#endif
