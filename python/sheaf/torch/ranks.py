# SPDX-License-Identifier: Apache-2.0
"""The ranks of torch.distributed as a Checkpointer uses them: a gloo group of its own.

A rank that leaves because of an exception writes the reason to the store of torch.distributed, and
closes its connections. The next operation of the other ranks fails, and they read the reason.
"""
from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import time
from typing import Any, Callable, Iterator, Optional

import torch
import torch.distributed as dist

from .. import agent as agents
from ..binding import error
from ..errors import Error, Failed, Lost, sentence
from ..group import Group, TorchDistributed
from ..run import Path

log = logging.getLogger("sheaf")
SECONDS = 600.0                         # of operations of the group; the library has its own limit
LEFT = "left"
NONE = b"\0" * 32                       # in place of the digest of a rank that failed
CHANGED = "parameters, their groups or extra state have changed: the ranks begin again"
LOOK = 0.5                              # seconds between checks whether this rank has left


class Left(RuntimeError):
    """Another rank left, or this one; the text has its reason."""


class Ranks(TorchDistributed):
    """The operations of a new gloo group of the ranks of a process group. [collective]

    of  that process group; None: all ranks
    """

    def __init__(self, timeout: Optional[float], of: Optional[dist.ProcessGroup] = None) -> None:
        some = None if of is None or of is dist.group.WORLD else dist.get_process_group_ranks(of)
        pg = dist.new_group(some, backend="gloo", use_local_synchronization=some is not None,
                            timeout=datetime.timedelta(seconds=timeout or SECONDS))
        super().__init__(pg)
        self.mine: Optional[str] = None
        self.busy = False               # whether an operation is in progress
        self.interrupted = False        # by Ctrl-C, which is raised when the operation has ended
        name = "sheaf/%s" % getattr(pg, "group_name", "group")
        self.store = torch._C._distributed_c10d.PrefixStore(
            name, dist.distributed_c10d._get_default_store())

    def reason(self) -> Optional[str]:
        """Why a rank left; None: no rank left, or the store is no longer available."""
        try:
            return str(self.store.get(LEFT).decode()) if self.store.check([LEFT]) else None
        except Exception as e:
            log.debug("the store of torch.distributed does not answer: %s", e)
            return None

    def tried(self, operation: Callable[..., None], *args: Any) -> None:
        """An operation, whose failure is explained if a rank has said why it left."""
        if self.mine is not None:
            raise Left(self.mine)
        self.busy = True
        try:
            operation(*args)
            self.busy = False
        except Exception as e:
            self.busy = isinstance(e, Left)     # that one goes on
            why = self.reason()
            if why is None:
                raise
            raise Left(why) from e

    def wait(self, work: Any, timeout: float) -> None:
        """Waits for an operation, but not after this rank has left on another thread."""
        end = time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            try:
                super().wait(work, min(left, LOOK))
                return
            except KeyboardInterrupt:   # an aborted operation would end the group
                self.interrupted = True
                continue
            except Exception:
                if work.is_completed():
                    work.wait()         # its own result: it may have ended just now
                    return
                if left <= LOOK:
                    raise
            if self.mine is not None:
                raise Left(self.mine)

    def allgather(self, *args: Any) -> None:
        self.tried(super().allgather, *args)

    def alltoallv(self, *args: Any) -> None:
        self.tried(super().alltoallv, *args)

    def allreduce(self, *args: Any) -> None:
        self.tried(super().allreduce, *args)

    def leave(self, why: str) -> None:
        """From now on every operation fails, here and on the other ranks. [local]"""
        self.mine = "rank %d left: %s" % (self.rank, why)
        try:
            self.store.compare_set(LEFT, "", self.mine)     # the first reason stays
        except Exception as e:
            log.debug("the store of torch.distributed does not answer: %s", e)
        self.close()

    def close(self) -> None:
        """Ends the group on this rank, unless that would wait for an operation. [local]"""
        pg = self.weak()
        if pg is not None and dist.is_initialized() and not self.busy:
            dist.destroy_process_group(pg)


def gathered(group: Group, mine: bytes, timeout: Optional[float]) -> list[bytes]:
    """The bytes of each rank, as many as there are here. Raises sheaf.Lost. [collective]"""
    out = bytearray(len(mine) * group.ranks)
    try:
        group.operations.allgather(memoryview(bytearray(mine)), memoryview(out),
                                   timeout or SECONDS)
    except Exception as e:
        raise error("ELOST", "the ranks could not agree on the call") from e
    return [bytes(out[i:i + len(mine)]) for i in range(0, len(out), len(mine))]


def start_agents(path: Path, folder: Optional[str], group: Optional[Group],
                 timeout: Optional[float]) -> None:
    """Starts the agent of this node; returns when those of all nodes are there. [collective]"""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        agents.started(path, folder)
    if group is not None:
        gathered(group, b"1", timeout)


SAID = 512                              # bytes of what a rank says in agreed()


def agreed(group: Optional[Group], problem: Optional[BaseException], timeout: Optional[float],
           mine: str = "") -> None:
    """Checks arguments on all ranks, before a call that a rank with a wrong one must not make.

    problem  why this rank cannot go on; None: it can
    mine     what must be the same on all ranks, in words

    Raises the problem on its rank, and sheaf.Failed with its message on the others. Raises
    sheaf.Invalid if `mine` differs between ranks. [collective]
    """
    if group is None:
        if problem is not None:
            raise problem
        return
    text = ("=" + mine if problem is None else sentence(problem)).encode()[:SAID]
    try:
        every = gathered(group, text.ljust(SAID, b"\0"), timeout)
    except Error:
        if problem is not None:         # more useful than that another rank is lost
            raise problem
        raise
    if problem is not None:
        raise problem
    said = [x.rstrip(b"\0").decode(errors="ignore") for x in every]
    for rank, other in enumerate(said):
        if not other.startswith("="):
            c = group.c
            raise Failed(int(c.SHEAF_EFAILED), rank, 0, other)
    for rank, other in enumerate(said):
        if other != said[0]:
            raise error("EINVAL", "ranks differ: rank 0 %s, and rank %d %s"
                        % (said[0][1:], rank, other[1:]))


class Writer:
    """Decides which of the ranks that track the same names writes the documents for all of them.

    The ranks agree in their first save. If the names of a rank change later, the others cannot
    know. That rank lets its begin fail with CHANGED, so that begin fails on all ranks, and all of
    them agree anew and begin again. Saves in which nothing has changed exchange nothing.

    changes  how often that has happened
    """

    def __init__(self) -> None:
        self.writes: Optional[bool] = None  # None: the ranks agree in the next save
        self.digest = NONE                  # of the names of this rank when they agreed
        self.changes = 0

    def agreed(self, group: Optional[Group], digest: bytes, timeout: Optional[float]
               ) -> Optional[bool]:
        """Whether this rank writes; None: its names have changed, and begin must fail with CHANGED.
        [collective]

        digest  the same on ranks that track the same names; NONE: this rank cannot save
        """
        if self.writes is None or group is None:
            every = [digest] if group is None else gathered(group, digest, timeout)
            first = every.index(digest) == (group.rank if group else 0)
            if NONE in every:               # nothing is saved, and they agree in the next save
                return first
            self.writes, self.digest = first, digest
        return self.writes if digest in (NONE, self.digest) else None

    def has_changed(self, e: Error) -> bool:
        """Whether that is why begin failed: all ranks begin again then."""
        if not isinstance(e, Failed) or CHANGED not in e.message:
            return False
        self.writes = None
        self.changes += 1
        return True


def anywhere(group: Optional[Group], names: Optional[set[str]], timeout: Optional[float]
             ) -> Optional[set[str]]:
    """The names that any rank gives; None: a rank failed, and gave None. [collective]"""
    if group is None:
        return names
    mine = b"!" if names is None else json.dumps(sorted(names)).encode()
    sizes = gathered(group, len(mine).to_bytes(8, "little"), timeout)
    longest = max(int.from_bytes(n, "little") for n in sizes)
    every = [x.strip() for x in gathered(group, mine.ljust(longest), timeout)]
    return None if b"!" in every else set().union(*map(json.loads, every))


def ended(group: Group) -> None:
    """Closes a group of this module, after all runs that use it. [local]"""
    group.close()
    if isinstance(group.operations, Ranks):
        group.operations.close()


def interrupted(group: Optional[Group]) -> None:
    """Raises KeyboardInterrupt if Ctrl-C came while an operation of the group waited. [local]"""
    operations = None if group is None else group.operations
    if isinstance(operations, Ranks) and operations.interrupted:
        operations.interrupted = False
        raise KeyboardInterrupt


class Gone:
    """The operations of a group that this rank has left: all of them fail."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __getattr__(self, name: str) -> Any:
        raise Left(self.why)


def leave(group: Group, why: str) -> None:
    """Makes all further operations of the group fail on this rank. [local]

    If it is a group of this module, the other ranks learn the reason. Otherwise they wait until
    this process ends, or until their timeout.
    """
    if isinstance(group.operations, Ranks):
        group.operations.leave(why)
    else:
        group.operations = Gone("this rank left: " + why)


def together(group: Optional[Group], seconds: float) -> None:
    """Waits for all ranks, within limits, because some may have exited. [local]

    So the connections of a rank that exits do not break while another still needs its last reply.
    """
    operations = None if group is None else group.operations
    if not isinstance(operations, Ranks):
        return
    try:
        operations.store.set("exit/%d" % operations.rank, "1")
        operations.store.wait(["exit/%d" % r for r in range(operations.ranks)],
                              datetime.timedelta(seconds=seconds))
    except Exception as e:
        log.debug("not all ranks end at this time: %s", e)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Adds the reason to an error about a lost rank."""
    try:
        yield
    except Lost as e:
        cause = e.__cause__
        if cause is None or isinstance(cause, Error):
            raise
        why = str(cause).split("\n")[0][:400]
        text = why if isinstance(cause, Left) else "%s: %s" % (e.message, why)
        raise Lost(e.code, e.rank, e.sys, text) from cause


def of_torch(timeout: Optional[float]) -> Optional[Group]:
    """A group of all ranks of torch.distributed; None: that is not initialised. [collective]"""
    if not dist.is_available() or not dist.is_initialized():
        return None
    return Group(Ranks(timeout))
