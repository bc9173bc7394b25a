# SPDX-License-Identifier: Apache-2.0
"""Tensors of Paddle in a tree, those of paddle.distributed by their placements, and its ranks."""
from __future__ import annotations

import math
import secrets
import socket
import time
from typing import Any, Optional

from . import dtypes, memory
from .memory import Memory, Unfit
from .parts import Box, Split

SECONDS = 600.0                         # how long a new group waits for its ranks


def dtype_of(t: Any) -> tuple[str, str]:
    """The stored type and the special type of a tensor. Raises Unfit."""
    name = str(t.dtype).rpartition(".")[2]
    stored = dtypes.FROM_TORCH.get(name) or dtypes.PAIRS.get(name)
    if not stored:
        raise Unfit("type %s of Paddle has no place in a safetensors file" % name)
    return stored, name if name in dtypes.PAIRS else ""


def of_paddle(t: Any) -> Memory:
    """The memory of a tensor, or of what this rank has of one. Raises Unfit."""
    if t.is_dist():
        raise Unfit("a tensor of paddle.distributed inside of something else; put it into the tree "
                    "itself")
    if not t.is_dense():
        raise Unfit("a sparse tensor of Paddle; use .to_dense()")
    stored, special = dtype_of(t)
    shape = tuple(int(n) for n in t.shape)
    if not math.prod(shape):
        return memory.finished(0, stored, shape, memory.dense(shape), "paddle", t, special, True)
    if not t._is_initialized():
        raise Unfit("a tensor of Paddle that has no memory yet")
    if not t.place.is_cpu_place():
        raise Unfit("a tensor on %s; use .cpu() first" % t.place)
    return memory.finished(t.data_ptr(), stored, shape, tuple(int(n) for n in t.strides), "paddle",
                           t, special, True)


class Placed(Split):
    """A tensor of paddle.distributed: the box of this rank, by mesh and placements."""

    def __init__(self, t: Any) -> None:
        super().__init__("paddle", *dtype_of(t), tuple(int(n) for n in t.shape))
        self.t = t
        first, count = box_of(t)
        self.held: list[Box] = []
        if count is None:               # this rank is not in the mesh
            return
        local = t._local_value()
        if tuple(int(n) for n in local.shape) != count:
            raise Unfit("a tensor of shape %s with placements %s, of which rank %d has %s, and not "
                        "%s as the placements say" % (t.shape, t.placements, rank_of(),
                                                     local.shape, list(count)))
        self.held.append((of_paddle(local), self.start(first)))

    def boxes(self) -> list[Box]:
        return self.held

    def given(self) -> Any:
        return self.t


def rank_of() -> int:
    return int(dtypes.module("paddle").distributed.get_rank())


def box_of(t: Any) -> tuple[tuple[int, ...], Optional[tuple[int, ...]]]:
    """Where the box of this rank starts, and its shape; None: it has none. Raises Unfit.

    Each axis of the mesh that has Shard cuts as torch.chunk does: pieces of ceil(n / ranks) items,
    of which the last ones are shorter or empty.
    """
    mesh, shape = t.process_mesh, [int(n) for n in t.shape]
    ids, rank = list(mesh.process_ids), rank_of()
    start, cut = [0] * len(shape), set()
    if rank not in ids:
        return tuple(start), None
    at, inner = ids.index(rank), math.prod(mesh.shape)
    for n, placement in zip(mesh.shape, t.placements):
        inner //= n
        i, at = at // inner, at % inner
        if placement.is_partial():
            raise Unfit("a tensor that has partial sums; use paddle.distributed.reshard first")
        if not placement.is_shard():
            continue
        dim = placement.get_dim()
        if dim in cut:
            raise Unfit("dimension %d is cut by two axes of the mesh: placements %s" %
                        (dim, t.placements))
        cut.add(dim)
        piece = -(-shape[dim] // n)
        start[dim] = min(i * piece, shape[dim])
        shape[dim] = min((i + 1) * piece, shape[dim]) - start[dim]
    return tuple(start), tuple(shape)


def placed(x: Any) -> Optional[Split]:
    """A tensor of paddle.distributed; None: it is none. Raises Unfit."""
    kind: Any = getattr(dtypes.module("paddle"), "Tensor", ())
    return Placed(x) if isinstance(x, kind) and x.is_dist() else None


def empty(shape: tuple[int, ...], dtype: Any) -> tuple[Any, Memory]:
    """A new tensor in host memory, and its memory."""
    paddle = dtypes.module("paddle")
    made = paddle.empty(list(shape), dtype=dtype).cpu()
    return made, of_paddle(made)


class Meeting:
    """A barrier with a timeout of its own, over connections to rank 0.

    The store of paddle.distributed could serve as one, too, but each of its calls takes 40 ms.
    """

    def __init__(self, rank: int, ranks: int, store: Any, key: str, host: str) -> None:
        self.ends: list[socket.socket] = []
        if ranks == 1:
            return
        if rank:
            port, _, token = store.get(key).decode().partition(" ")
            self.ends.append(socket.create_connection((host, int(port)), SECONDS))
            self.ends[0].sendall(token.encode())
        else:
            token = secrets.token_hex(16)
            with socket.create_server((host, 0), backlog=ranks) as server:
                store.set(key, "%d %s" % (server.getsockname()[1], token))
                server.settimeout(SECONDS)
                while len(self.ends) < ranks - 1:
                    end, _ = server.accept()
                    end.settimeout(SECONDS)
                    if received(end, len(token)) == token.encode():
                        self.ends.append(end)
                    else:               # not a rank of this job
                        end.close()
        for end in self.ends:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def wait(self, rank: int, timeout: float) -> None:
        """Returns when all ranks are here. TimeoutError: not all came in time."""
        until = time.monotonic() + timeout
        for end in self.ends:
            end.settimeout(max(until - time.monotonic(), 0.001))
            if rank:
                end.sendall(b".")
            try:
                came = received(end, 1)
            except TimeoutError:
                raise TimeoutError("not all ranks came within %g s" % timeout) from None
            if not came:
                raise ConnectionError("a rank has closed its connection")
        for end in () if rank else self.ends:
            end.sendall(b".")


def received(end: socket.socket, n: int) -> bytes:
    """So many bytes from a connection, or fewer if it was closed."""
    found = b""
    while len(found) < n:
        more = end.recv(n - len(found))
        if not more:
            break
        found += more
    return found


class PaddleDistributed:
    """The operations of paddle.distributed over gloo. [collective]

    Paddle's gloo waits at most 30 s, and a rank may write for longer. So the ranks first meet at a
    barrier, with the time limit of the library. Operations that Paddle's gloo lacks are composed of
    those that it has. It numbers messages by counting the operations of each rank, so all ranks
    must make equally many: in each turn of an exchange each rank sends and receives one message.
    """

    made = 0                            # groups of this process; all ranks make as many

    def __init__(self) -> None:
        self.paddle, self.numpy = dtypes.module("paddle"), dtypes.module("numpy")
        self.dist = self.paddle.distributed
        self.rank, self.ranks = self.dist.get_rank(), self.dist.get_world_size()
        # Uses init_parallel_env's group if it is gloo: making a second one sometimes fails in
        # Paddle 3.3 (connection refused).
        self.group = self.dist.get_group(0)
        if self.dist.get_backend(self.group).upper() != "GLOO":
            self.group = self.dist.new_group(list(range(self.ranks)), backend="gloo")
        PaddleDistributed.made += 1
        store = self.paddle.base.core.create_or_get_global_tcp_store()
        host = self.dist.ParallelEnv().trainer_endpoints[0].rpartition(":")[0]
        self.meeting = Meeting(self.rank, self.ranks, store, "sheaf/%d" % PaddleDistributed.made,
                               host)

    def meet(self, timeout: float) -> None:
        self.meeting.wait(self.rank, timeout)

    def tensor(self, data: Any, kind: str = "uint8") -> Any:
        """A tensor with a copy of bytes, for gloo."""
        return self.paddle.to_tensor(self.numpy.frombuffer(data, kind).copy(),
                                     place=self.paddle.CPUPlace())

    def gathered(self, mine: memoryview) -> Any:
        out = self.paddle.to_tensor(self.numpy.empty(len(mine) * self.ranks, "uint8"),
                                    place=self.paddle.CPUPlace())
        self.dist.stream.all_gather(out, self.tensor(mine), group=self.group)
        return out.numpy()

    def allgather(self, mine: memoryview, out: memoryview, timeout: float) -> None:
        self.meet(timeout)
        if len(mine):
            out[:] = self.gathered(mine).data.cast("B")

    def alltoallv(self, out: memoryview, out_bytes: list[int], into: memoryview,
                  in_bytes: list[int], timeout: float) -> None:
        self.meet(timeout)
        outs, ins = starts(out_bytes), starts(in_bytes)
        parts = [out[a:a + n] for a, n in zip(outs, out_bytes)]
        places = [into[a:a + n] for a, n in zip(ins, in_bytes)]
        places[self.rank][:] = parts[self.rank]
        if self.ranks % 2:
            self.all_to_all(parts, places, in_bytes)
            return
        for turn in range(self.ranks - 1):
            other = partner(self.rank, self.ranks, turn)
            if self.rank < other:
                self.send(parts[other], other)
                self.receive(places[other], other)
            else:
                self.receive(places[other], other)
                self.send(parts[other], other)

    def send(self, data: memoryview, other: int) -> None:
        self.dist.send(self.tensor(bytes(data) + b"."), other, group=self.group)

    def receive(self, into: memoryview, other: int) -> None:
        t = self.tensor(bytes(len(into) + 1))
        self.dist.recv(t, other, group=self.group)
        into[:] = t.numpy().data.cast("B")[:-1]

    def all_to_all(self, parts: list[memoryview], places: list[memoryview],
                   in_bytes: list[int]) -> None:
        """For an odd number of ranks, which form no pairs: each broadcasts all that it sends."""
        sizes = self.numpy.array([len(p) for p in parts], "int64")
        table = self.gathered(memoryview(sizes).cast("B")).view("int64").reshape(self.ranks, -1)
        for source in range(self.ranks):
            total = int(table[source].sum()) - int(table[source, source])
            if not total:
                continue
            mine = b"".join(p for r, p in enumerate(parts) if r != self.rank)
            t = self.tensor(mine if source == self.rank else bytes(total))
            self.dist.broadcast(t, source, group=self.group)
            if source != self.rank:
                a = sum(int(n) for r, n in enumerate(table[source, :self.rank]) if r != source)
                places[source][:] = t.numpy().data.cast("B")[a:a + in_bytes[source]]

    def allreduce(self, x: memoryview, op: str, timeout: float) -> None:
        self.meet(timeout)
        found = self.gathered(x).view("uint64").reshape(self.ranks, -1)
        made = {"sum": self.numpy.add, "max": self.numpy.maximum,
                "xor": self.numpy.bitwise_xor}[op].reduce(found, axis=0)
        x[:] = made.astype("uint64").data.cast("B")


def partner(rank: int, ranks: int, turn: int) -> int:
    """The rank with which a rank exchanges data in a turn, for an even number of ranks. In
    ranks - 1 turns each rank meets each of the others."""
    last = ranks - 1
    if rank == last:
        return turn * (ranks // 2) % last   # the one that is its own partner below
    other = (turn - rank) % last
    return last if other == rank else other


def starts(sizes: list[int]) -> list[int]:
    """Where each part begins of parts that are packed."""
    return [sum(sizes[:i]) for i in range(len(sizes))]
