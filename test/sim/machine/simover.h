/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces calls of one simulated process by functions of the test:
 *
 *      static int fsync_slowly(void *arg, int fd)
 *      {
 *              simdisk_advance(disk, 1);
 *              return simover_real()->disk.fsync(arg, fd);
 *      }
 *      simover(sys)->disk.fsync = fsync_slowly;
 *
 * A replacement gets the arg of the process (sys->file.arg). It does not see what a queue does, but
 * for submit and complete. Where a call should only fail, come to half, take longer or be left out,
 * use simdisk_fault, simdisk_set_takes or simdisk_skip_fsync (simdisk.h) instead. */
#ifndef SIMOVER_H
#define SIMOVER_H
#include "sys_tables.h"

/* Returns the calls of a process, for a test to change. sys: of simdisk_process, or a copy of it.
 * Valid as long as the process. */
struct sys_tables *simover(const struct shf_sys *sys);
/* Returns the original calls, which are the same for all processes. */
const struct sys_tables *simover_real(void);
#endif
