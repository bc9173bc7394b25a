/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks over an MPI communicator. */
#ifndef RANKS_MPI_H
#define RANKS_MPI_H
#include <mpi.h>

#include "ranks.h"

/* Makes a group of all ranks of a communicator, which is duplicated. MPI_THREAD_FUNNELED is enough.
 * [collective] */
int tr_ranks_mpi(struct tr_ranks *g, MPI_Comm comm, int timeout_ms, struct tr_error *err);
#endif
