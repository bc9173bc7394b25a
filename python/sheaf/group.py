# SPDX-License-Identifier: Apache-2.0
"""Groups: the ranks that save and load together, and the operations by which they communicate.

    group = sheaf.group.torch_distributed()         # all ranks of torch.distributed, by gloo
    group = sheaf.group.mpi4py(MPI.COMM_WORLD)
    with sheaf.Run("runs/gpt", group, create=True) as run:
        ...

A single process needs no group. The operations run inside calls of the library, on the thread
that makes the call (those of opts.commit_group on a thread of the library), and receive memory of
the library as memoryviews. If one of them raises an exception, the call on this rank raises
sheaf.Lost with that exception as the cause, and the group can no longer be used.
"""
from __future__ import annotations

import ctypes
import weakref
from datetime import timedelta
from typing import Any, Protocol

from .dtypes import module
from .run import Handle

MASK = (1 << 64) - 1


class Operations(Protocol):
    """What a group needs: the ranks, and three operations that all of them call together.

    Each waits at most `timeout` seconds, and raises an exception if it fails or waits longer.
    """

    rank: int
    ranks: int

    def allgather(self, mine: memoryview, out: memoryview, timeout: float) -> None:
        """Collects the bytes of each rank in `out`, in order of ranks; all have as many."""

    def alltoallv(self, out: memoryview, out_bytes: list[int], into: memoryview,
                  in_bytes: list[int], timeout: float) -> None:
        """Sends out_bytes[r] bytes to rank r, and receives in_bytes[r] from it, both packed."""

    def allreduce(self, x: memoryview, op: str, timeout: float) -> None:
        """Reduces unsigned numbers of 64 bits over all ranks, in place, by "sum" (modulo 2**64),
        "max" or "xor"."""


def view(address: Any, n: int) -> memoryview:
    """Memory of the library as writable bytes."""
    if not n:
        return memoryview(bytearray())
    return memoryview((ctypes.c_char * n).from_address(address)).cast("B")


class Group(Handle):
    """A group of the library, made of operations. [local]

    node  0: the library finds out which ranks share memory; n > 0: this rank shares no memory with
          ranks that have another n

    Close it after all runs that use it, or leave that to the garbage collector: the library keeps
    it as long as a run needs it.
    """

    closes = "sheaf_group_free"

    def __init__(self, operations: Operations, node: int = 0) -> None:
        super().__init__("sheaf_group")
        self.operations, self.rank, self.ranks = operations, operations.rank, operations.ranks
        ops = self.c.new("sheaf_group_ops", rank=self.rank, ranks=self.ranks, node=node,
                         allgather=self.allgather, alltoallv=self.alltoallv,
                         allreduce=self.allreduce)
        self.names = {int(self.c.constants["SHEAF_" + n.upper()]): n for n in
                      ("sum", "max", "xor")}
        self.c.call("sheaf_group_new", ctypes.byref(self.pointer), ctypes.byref(ops))
        self.ops = ops                      # the library copied it; the callbacks must stay

    def allgather(self, mine: Any, out: Any, n: int, ms: int) -> None:
        self.operations.allgather(view(mine, n), view(out, n * self.ranks), ms / 1000)

    def alltoallv(self, out: Any, out_bytes: Any, into: Any, in_bytes: Any, ms: int) -> None:
        outs, ins = out_bytes[:self.ranks], in_bytes[:self.ranks]
        self.operations.alltoallv(view(out, sum(outs)), outs, view(into, sum(ins)), ins, ms / 1000)

    def allreduce(self, x: Any, n: int, op: int, ms: int) -> None:
        address = ctypes.cast(x, ctypes.c_void_p).value
        self.operations.allreduce(view(address, 8 * n), self.names[op], ms / 1000)

    # A rank must not leave these because of Ctrl-C (binding.py): the others would wait for it.
    for of_group in (allgather, alltoallv, allreduce):
        setattr(of_group, "collective", True)


class Alone:
    """The operations of one process, for a call that needs a group."""

    rank, ranks = 0, 1

    def allgather(self, mine: memoryview, out: memoryview, timeout: float) -> None:
        out[:] = mine

    def alltoallv(self, out: memoryview, out_bytes: list[int], into: memoryview,
                  in_bytes: list[int], timeout: float) -> None:
        into[:] = out

    def allreduce(self, x: memoryview, op: str, timeout: float) -> None:
        pass


class TorchDistributed:
    """The operations of a process group of torch.distributed on the CPU (gloo).

    All data are copied: an operation that timed out may still write to its memory later, which
    must not be the library's. gloo has no unsigned 64-bit numbers. Sums and exclusive ors are the
    same for signed ones, and for maxima the highest bit is flipped, which keeps the order.

    This class holds no reference to the process group, so that destroy_process_group ends it. The
    threads of the process group release tensors, for which they need the interpreter, and abort the
    process if that happens while the interpreter is shutting down.
    """

    def __init__(self, pg: Any) -> None:
        self.torch, self.dist = module("torch"), module("torch").distributed
        self.weak = weakref.ref(pg)
        self.rank, self.ranks = self.dist.get_rank(pg), self.dist.get_world_size(pg)

    @property
    def pg(self) -> Any:
        found = self.weak()
        if found is None:
            raise RuntimeError("the process group was destroyed before the run was closed")
        return found

    def options(self, kind: str, timeout: float) -> Any:
        made = getattr(self.torch._C._distributed_c10d, kind)()
        made.timeout = timedelta(seconds=timeout)
        return made

    def wait(self, work: Any, timeout: float) -> None:
        if work.wait(timedelta(seconds=max(timeout, 0.001))) is False:
            raise TimeoutError("torch.distributed did not finish within %g s" % timeout)

    def copied(self, data: memoryview) -> Any:
        t = self.torch.empty(len(data), dtype=self.torch.uint8, device="cpu")
        if len(data):
            t.copy_(self.torch.frombuffer(data, dtype=self.torch.uint8))
        return t

    def given(self, t: Any, into: memoryview) -> None:
        if len(into):
            self.torch.frombuffer(into, dtype=self.torch.uint8).copy_(t)

    def allgather(self, mine: memoryview, out: memoryview, timeout: float) -> None:
        got = self.torch.empty(len(out), dtype=self.torch.uint8, device="cpu")
        self.wait(self.pg._allgather_base(got, self.copied(mine),
                                          self.options("AllgatherOptions", timeout)), timeout)
        self.given(got, out)

    def alltoallv(self, out: memoryview, out_bytes: list[int], into: memoryview,
                  in_bytes: list[int], timeout: float) -> None:
        got = self.torch.empty(len(into), dtype=self.torch.uint8, device="cpu")
        self.wait(self.pg.alltoall_base(got, self.copied(out), in_bytes, out_bytes,
                                        self.options("AllToAllOptions", timeout)), timeout)
        self.given(got, into)

    def allreduce(self, x: memoryview, op: str, timeout: float) -> None:
        t = self.copied(x).view(self.torch.int64)
        options = self.options("AllreduceOptions", timeout)
        options.reduceOp = {"sum": self.dist.ReduceOp.SUM, "max": self.dist.ReduceOp.MAX,
                            "xor": self.dist.ReduceOp.BXOR}[op]
        flip = -2**63 if op == "max" else 0
        t ^= flip
        self.wait(self.pg.allreduce([t], options), timeout)
        t ^= flip
        self.given(t.view(self.torch.uint8), x)


def torch_distributed(pg: Any = None, *, timeout: float = 600.0, node: int = 0) -> Group:
    """A group of the ranks of torch.distributed. [collective]

    pg       a process group; None: all ranks
    timeout  of a new process group, in seconds
    node     as for Group

    If the process group cannot work on the CPU (nccl), a gloo group of the same ranks is made.
    Call destroy_process_group when all runs that use this group are closed, and before
    the program ends.
    """
    dist = module("torch").distributed
    if pg is None:
        pg = dist.group.WORLD
    if "gloo" not in str(dist.get_backend_config(pg)) if hasattr(dist, "get_backend_config") \
            else dist.get_backend(pg) != "gloo":
        pg = dist.new_group(dist.get_process_group_ranks(pg), backend="gloo",
                            timeout=timedelta(seconds=timeout))
    return Group(TorchDistributed(pg), node)


def paddle_distributed(*, node: int = 0) -> Group:
    """A group of all ranks of paddle.distributed, by gloo; call init_parallel_env first.
    [collective]"""
    from .paddle_tensor import PaddleDistributed
    alone = module("paddle").distributed.get_world_size() == 1  # then Paddle has no group either
    return Group(Alone() if alone else PaddleDistributed(), node)


class Mpi4py:
    """Group operations on a duplicate of an mpi4py communicator.

    They poll, with pauses that grow to 1 ms, so that a time limit can be kept.
    """

    def __init__(self, comm: Any) -> None:
        self.mpi = module("mpi4py.MPI")
        self.comm = comm.Dup()
        self.late: list[Any] = []       # what an operation that gave up may still use
        self.rank, self.ranks = self.comm.Get_rank(), self.comm.Get_size()

    def wait(self, request: Any, timeout: float, *used: Any) -> None:
        import time
        end, pause = time.monotonic() + timeout, 1e-6
        while not request.Test():
            if time.monotonic() > end:
                self.late.append((request, used))
                raise TimeoutError("MPI did not finish within %g s" % timeout)
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)

    def allgather(self, mine: memoryview, out: memoryview, timeout: float) -> None:
        sent, got, byte = bytes(mine), bytearray(len(out)), self.mpi.BYTE
        self.wait(self.comm.Iallgather([sent, len(sent), byte], [got, len(sent), byte]), timeout,
                  sent, got)
        out[:] = got

    def alltoallv(self, out: memoryview, out_bytes: list[int], into: memoryview,
                  in_bytes: list[int], timeout: float) -> None:
        sent, got, byte = bytes(out), bytearray(len(into)), self.mpi.BYTE
        self.wait(self.comm.Ialltoallv([sent, (out_bytes, starts(out_bytes)), byte],
                                       [got, (in_bytes, starts(in_bytes)), byte]), timeout,
                  sent, got)
        into[:] = got

    def allreduce(self, x: memoryview, op: str, timeout: float) -> None:
        sent, got, n = bytes(x), bytearray(len(x)), len(x) // 8
        kind = {"sum": self.mpi.SUM, "max": self.mpi.MAX, "xor": self.mpi.BXOR}[op]
        self.wait(self.comm.Iallreduce([sent, n, self.mpi.UINT64_T],
                                       [got, n, self.mpi.UINT64_T], kind), timeout, sent, got)
        x[:] = got


def starts(sizes: list[int]) -> list[int]:
    """Where each part begins of parts that are packed."""
    return [sum(sizes[:i]) for i in range(len(sizes))]


def mpi4py(comm: Any, *, node: int = 0) -> Group:
    """A group of the ranks of a communicator of mpi4py, which is duplicated. [collective]"""
    return Group(Mpi4py(comm), node)
