/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf-mpi.h - makes a group from an MPI communicator. Link libsheaf-mpi.
 *
 * The rules at the head of sheaf.h apply to this call, too.
 *
 * Threads    MPI_THREAD_FUNNELED is enough for the group of a run. A group for
 *            sheaf_opts.commit_group or sheaf_memory_tier.copies_group is used by threads of
 *            sheaf and needs MPI_THREAD_MULTIPLE. The caller requests that level from
 *            MPI_Init_thread, and must check the level that was provided.
 * Waiting    A rank that waits for others polls MPI, with sleeps between that grow to 1 ms. It
 *            never waits longer than the deadline of the call.
 * Exit       After SHEAF_ELOST a program should print its messages, flush its files and call
 *            _exit, because MPI_Finalize would wait for dead ranks.
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

/* Makes a group of all ranks of a communicator. The communicator is duplicated, so the caller may
 * free its own at any time.
 * group   receives the group. Free it with sheaf_group_free; it lives until the
 *         last run that uses it is closed, which must be before MPI_Finalize.
 * comm    the communicator.
 * node    number of this rank's node, as in sheaf_group_ops; 0: sheaf finds out which ranks share
 *         memory.
 * Returns 0 or an error code. [collective] */
int sheaf_group_mpi(struct sheaf_group **group, MPI_Comm comm, int32_t node,
                    struct sheaf_error *err);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
