#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Heat in a plate, by NumPy and mpi4py, that goes on where it ended with any number of ranks.

    mpirun -n 4 python mpi_numpy.py runs/heat --steps 200
    mpirun -n 3 python mpi_numpy.py runs/heat --steps 400        # other rows for each rank

Each rank has some rows of the plate. A checkpoint has the whole plate:
sheaf.open("runs/heat")["u"][10:20].
"""
import argparse

import numpy as np
from mpi4py import MPI

import sheaf

ROWS, COLUMNS = 64, 48


def halo(comm: MPI.Comm, u: np.ndarray) -> None:
    """Fills the rows above and below those of this rank: with those of its neighbours, or copies
    of its own at the edges of the plate."""
    rank, ranks = comm.Get_rank(), comm.Get_size()
    up = rank - 1 if rank > 0 else MPI.PROC_NULL
    down = rank + 1 if rank < ranks - 1 else MPI.PROC_NULL
    u[0], u[-1] = u[1], u[-2]
    comm.Sendrecv(u[1], up, recvbuf=u[-1], source=down)
    comm.Sendrecv(u[-2], down, recvbuf=u[0], source=up)


def step_of(u: np.ndarray) -> None:
    wide = np.pad(u, ((0, 0), (1, 1)), mode="edge")
    u[1:-1] += 0.2 * (u[:-2] + u[2:] + wide[1:-1, :-2] + wide[1:-1, 2:] - 4 * u[1:-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=50)
    args = parser.parse_args()

    comm = MPI.COMM_WORLD
    rank, ranks = comm.Get_rank(), comm.Get_size()
    first, end = ROWS * rank // ranks, ROWS * (rank + 1) // ranks
    u = np.zeros((end - first + 2, COLUMNS))
    u[1:-1, 20:28] = 100.0

    group = sheaf.group.mpi4py(comm)
    state = {"u": sheaf.Part(u[1:-1], (ROWS, COLUMNS), (first, 0)), "step": 0}
    try:
        sheaf.load(args.run, state, group=group)
        if rank == 0:
            print("goes on after step %d" % state["step"], flush=True)
    except sheaf.NotFound:
        pass
    for step in range(state["step"] + 1, args.steps + 1):
        halo(comm, u)
        step_of(u)
        if step % args.every == 0:
            state["step"] = step
            sheaf.save(args.run, state, group=group, step=step, keep_last=2)
    heat = comm.allreduce(float((u[1:-1] ** 2).sum()))
    if rank == 0:
        print("after step %d: %.9f" % (args.steps, heat), flush=True)


if __name__ == "__main__":
    main()
