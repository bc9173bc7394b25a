/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into a program, it makes MPI one that was built without threads. */
#include <mpi.h>

int MPI_Query_thread(int *provided)
{
	*provided = MPI_THREAD_SINGLE;
	return MPI_SUCCESS;
}
