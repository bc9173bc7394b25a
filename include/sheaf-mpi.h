/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf-mpi.h - a group over an MPI communicator. Link libsheaf-mpi.
 *
 * MPI_THREAD_FUNNELED is enough. A commit_group and a copies_group are called by other
 * threads: they need MPI_THREAD_MULTIPLE, which the caller asks of MPI_Init_thread and looks
 * at. The communicator is duplicated; the caller may free his. Waiting tests with sleeps growing to
 * 1 ms, never longer than the deadline. After SHEAF_ELOST a program prints, flushes and leaves by
 * _exit: MPI_Finalize would wait for the dead.
 */
#ifndef SHEAF_MPI_H
#define SHEAF_MPI_H
#include <mpi.h>
#include "sheaf.h"
#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* node: as in sheaf_group_ops (0: found by proof). [collective] */
int sheaf_group_mpi(struct sheaf_group **group, MPI_Comm comm, int32_t node,
                    struct sheaf_error *err);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
