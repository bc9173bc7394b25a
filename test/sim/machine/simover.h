/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces calls of one simulated process by functions of the test:
 *
 *      static int fsync_slowly(void *arg, int fd)
 *      {
 *              simdisk_advance(disk, 1);
 *              return simover_real()->fsync(arg, fd);
 *      }
 *      simover(sys)->fsync = fsync_slowly;
 *
 * A replacement gets the arg of the process (sys->arg). It does not see what a queue does, but for
 * submit and complete. Where a call should only fail, come to half, take longer or be left out, use
 * simdisk_fault, simdisk_set_takes or simdisk_skip_fsync (simdisk.h) instead. */
#ifndef SIMOVER_H
#define SIMOVER_H
#include "sys.h"

/* The calls of the process, which the test may change. sys: of simdisk_process, or a copy of it.
 * Valid as long as the process. */
struct shf_sys_ops *simover(const struct shf_sys *sys);
/* The calls that no test has replaced; the same for all processes. */
const struct shf_sys_ops *simover_real(void);
#endif
