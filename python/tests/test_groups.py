#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Groups over torch.distributed (gloo) and mpi4py, each rank a process. Prints TAP.

usage: test_groups.py                       tries all claims
       test_groups.py KIND RANKS FOLDER ACTS       one rank; started by this program
"""
from __future__ import annotations

import array
import os
import shutil
import subprocess
import sys
from typing import Any

import launched
import tap
import sheaf
from sheaf import memory
from sheaf.group import Group, Operations, starts

BIG = 2**63 + 5                             # unsigned: larger than any signed number


def make(kind: str, rank: int, ranks: int, at: str) -> Group:
    """The group of one rank."""
    if kind == "mpi":
        from mpi4py import MPI
        return sheaf.group.mpi4py(MPI.COMM_WORLD)
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks,
                            init_method="file://" + os.path.join(at, "store"))
    return sheaf.group.torch_distributed()


def numbers(values: list[int]) -> memoryview:
    return memoryview(bytearray(array.array("Q", values).tobytes()))


def operations(ops: Operations) -> None:
    """Each operation gives what the header of the library says."""
    rank, ranks = ops.rank, ops.ranks
    out = memoryview(bytearray(3 * ranks))
    ops.allgather(memoryview(bytes([rank, 7, 255])), out, 60)
    assert bytes(out) == b"".join(bytes([r, 7, 255]) for r in range(ranks))
    ops.allgather(memoryview(b""), memoryview(bytearray()), 60)
    # Rank r sends r + s bytes to rank s; to itself and to one other none.
    size = lambda r, s: 0 if (r + s) % 3 == 0 else r + s
    outs, ins = [size(rank, s) for s in range(ranks)], [size(r, rank) for r in range(ranks)]
    sent = b"".join(bytes([16 * rank + s]) * outs[s] for s in range(ranks))
    into = memoryview(bytearray(sum(ins)))
    ops.alltoallv(memoryview(sent), outs, into, ins, 60)
    assert bytes(into) == b"".join(bytes([16 * r + rank]) * ins[r] for r in range(ranks))
    for op, mine, want in (
            ("sum", lambda r: [BIG, r, 2**64 - 1], [BIG * ranks % 2**64, sum(range(ranks)),
                                                    -ranks % 2**64]),
            ("max", lambda r: [r, BIG if r == 1 else 3, 0], [ranks - 1, BIG, 0]),
            ("xor", lambda r: [1 << 63 | r, 5, 0], None)):
        x = numbers(mine(rank))
        ops.allreduce(x, op, 60)
        if want is None:
            want = [0, 0, 0]
            for r in range(ranks):
                want = [a ^ b for a, b in zip(want, mine(r))]
        assert array.array("Q", bytes(x)).tolist() == want, (op, bytes(x), want)
    assert starts([3, 0, 2]) == [0, 3, 3]


def rows(rank: int, ranks: int, n: int) -> tuple[int, int]:
    """The rows that a rank has of n, unevenly."""
    cut = [n * r * (r + 1) // (ranks * (ranks + 1)) for r in range(ranks + 1)]
    return cut[rank], cut[rank + 1]


def held(first: int, last: int, fill: bool) -> tuple[array.array, memory.Memory]:
    x = array.array("d", [float(i) if fill else -1 for i in range(8 * first, 8 * last)])
    found = memory.of(x)
    assert found is not None
    found.shape = (last - first, 8)
    return x, found


def round_trip(group: Group, at: str) -> None:
    """Ranks save rows of a tensor, and load other rows."""
    n, run = 64, os.path.join(at, "run")
    a, b = rows(group.rank, group.ranks, n)
    with sheaf.Run(run, group, create=True, timeout=60) as r, sheaf.State() as state:
        x, mem = held(a, b, True)
        state.add("x", mem, shape=(n, 8), start=(a, 0))
        with r.begin(3, state) as save:
            save.note("loss", "0.5")
            save.commit()
        a, b = rows(group.ranks - 1 - group.rank, group.ranks, n)
        with sheaf.State() as other, r.checkpoint() as c:
            y, mem = held(a, b, False)
            other.add("x", mem, shape=(n, 8), start=(a, 0))
            assert c.load(other)["loaded"] == 1
        assert y.tolist() == [float(i) for i in range(8 * a, 8 * b)]
    if group.rank == 0:                     # one process reads what four have saved
        with sheaf.open(run) as f:
            assert f["x"].shape == (n, 8) and list(f["x"][n - 1]) == list(range(8 * n - 8, 8 * n))


def fails(group: Group, at: str) -> None:
    """An exception in an operation of one rank is the cause of the error there; no rank hangs."""
    group.operations = Failing(group.operations, 5)
    try:
        round_trip(group, at)
    except sheaf.Lost as e:
        if group.rank == 1:
            assert isinstance(e.__cause__, OSError) and "cable" in str(e.__cause__), e.__cause__
        return
    raise AssertionError("no error")


def destroyed(group: Group, at: str) -> None:
    """A process group that is destroyed too early is an error, with a sentence."""
    import torch.distributed as dist
    run = sheaf.Run(os.path.join(at, "run"), group, create=True)
    dist.destroy_process_group()
    try:
        run.checkpoint()
    except sheaf.Lost as e:
        assert "was destroyed" in str(e.__cause__), repr(e.__cause__)
    else:
        raise AssertionError("no error")
    run.close()


class Failing:
    """Operations that stop working on rank 1, after some calls."""

    def __init__(self, ops: Operations, calls: int) -> None:
        self.ops, self.calls, self.rank, self.ranks = ops, calls, ops.rank, ops.ranks

    def count(self) -> None:
        self.calls -= 1
        if self.calls < 0 and self.rank == 1:
            raise OSError("the cable was cut")

    def allgather(self, mine: memoryview, out: memoryview, timeout: float) -> None:
        self.count()
        self.ops.allgather(mine, out, min(timeout, 3))

    def alltoallv(self, out: memoryview, out_bytes: list[int], into: memoryview,
                  in_bytes: list[int], timeout: float) -> None:
        self.count()
        self.ops.alltoallv(out, out_bytes, into, in_bytes, min(timeout, 3))

    def allreduce(self, x: memoryview, op: str, timeout: float) -> None:
        self.count()
        self.ops.allreduce(x, op, min(timeout, 3))


def one_rank(kind: str, ranks: str, at: str, acts: str) -> None:
    rank = os.environ["OMPI_COMM_WORLD_RANK" if kind == "mpi" else "RANK"]
    group = make(kind, int(rank), int(ranks), at)
    for act in acts.split(","):
        if act == "destroyed":
            destroyed(group, at)
            continue
        if act == "operations":
            operations(group.operations)
        else:
            {"round_trip": round_trip, "fails": fails}[act](group, at)
    print("done", flush=True)
    if "fails" in acts:                     # gloo of the others waits for this rank otherwise
        os._exit(0)
    if kind == "gloo" and "destroyed" not in acts:
        import torch.distributed as dist
        dist.destroy_process_group()


def gloo(ranks: int, acts: str) -> None:
    """Runs that many processes, and shows what those have said that went wrong."""
    with tap.folder() as at:
        with launched.Job(ranks, at, os.path.abspath(__file__), "gloo", str(ranks), at,
                          acts) as job:
            codes = job.wait()
            said = list(map(job.said, range(ranks)))
        assert not any(codes) and all("done" in s for s in said), (codes, said)


@tap.needs("torch", "numpy")
def test_gloo_operations_and_a_save_of_four_ranks() -> None:
    """Four ranks of gloo: each operation is right, and a save is loaded in another layout"""
    gloo(4, "operations,round_trip")


@tap.needs("torch")
def test_an_exception_in_an_operation() -> None:
    """An exception in an operation ends the calls of all ranks, and is the cause on its rank"""
    gloo(2, "fails")


@tap.needs("torch")
def test_a_process_group_that_is_destroyed_first() -> None:
    """A process group that is destroyed before its run is closed is an error, and no crash"""
    gloo(2, "destroyed")


@tap.needs("mpi4py", "numpy")
def test_mpi4py() -> None:
    """Three ranks of mpi4py: each operation is right, and a save is loaded in another layout"""
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        raise tap.Skip("no mpirun")
    with tap.folder() as at:
        done = subprocess.run([mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "3",
                               sys.executable, __file__, "mpi", "3", at,
                               "operations,round_trip"], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=100)
        assert done.returncode == 0 and done.stdout.count("done") == 3, done.stdout + done.stderr


def test_a_group_of_one() -> None:
    """A group whose operations are plain Python works, also if it is closed before its run"""
    class Alone:
        rank, ranks = 0, 1

        def allgather(self, mine: memoryview, out: memoryview, timeout: float) -> None:
            out[:] = mine

        def alltoallv(self, out: memoryview, out_bytes: list[int], into: memoryview,
                      in_bytes: list[int], timeout: float) -> None:
            into[:] = out

        def allreduce(self, x: memoryview, op: str, timeout: float) -> None:
            assert op in ("sum", "max", "xor") and len(x) % 8 == 0

    group: Any = Group(Alone())
    with tap.folder() as at:
        run = sheaf.Run(at, group, create=True)
        group.close()
        del group
        with sheaf.State() as state:
            x, mem = held(0, 2, True)
            state.add("x", mem)
            with run.begin(0, state) as save:
                save.commit()
        run.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        one_rank(*sys.argv[1:])
    else:
        sys.exit(tap.run(globals()))
