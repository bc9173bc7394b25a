# SPDX-License-Identifier: Apache-2.0
"""Ranks for tests: real processes that talk over gloo, forked so that torch is imported once."""
from __future__ import annotations

import datetime
import gc
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from typing import Any, Callable, Union

SECONDS = 60                            # a rank that takes longer hangs


class Ended:
    """A rank that gave no result: the signal that killed it, or its traceback."""

    def __init__(self, why: Union[int, str]) -> None:
        self.why = why

    def __repr__(self) -> str:
        return "ended: %s" % self.why


def child(rank: int, ranks: int, store: str, pipe: int, work: Callable[..., Any],
          args: tuple[Any, ...]) -> None:
    """One rank: sends its result, or its traceback, and exits without the parent's cleanup."""
    result: Any
    try:
        import logging
        import torch
        import torch.distributed as dist
        logging.getLogger("torch").setLevel(logging.CRITICAL)
        torch.set_num_threads(1)
        if ranks > 1:
            dist.init_process_group("gloo", init_method="file://" + store, rank=rank,
                                    world_size=ranks, timeout=datetime.timedelta(seconds=SECONDS))
        result = work(rank, *args)
    except BaseException:
        result = Ended(traceback.format_exc())
    with os.fdopen(pipe, "wb") as f:
        pickle.dump(result, f)
    sys.stdout.flush()
    os._exit(0)


def everywhere(ranks: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """What work(rank, *args) returned on each rank, or an Ended. None of them outlives the call."""
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        gc.freeze()                     # see together.py
        pids: list[int] = []
        ends: list[int] = []
        for rank in range(ranks):
            mine, theirs = os.pipe()
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                os.close(mine)
                child(rank, ranks, store, theirs, work, args)
            os.close(theirs)
            pids.append(pid)
            ends.append(mine)
        try:
            return [received(end, time.monotonic() + SECONDS) for end in ends]
        finally:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                os.waitpid(pid, 0)


def received(end: int, deadline: float) -> Any:
    """What a rank sends before its end, or before the deadline."""
    import select
    data = b""
    with os.fdopen(end, "rb", buffering=0) as f:
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([f], [], [], left)[0]:
                return Ended("it hangs")
            more = f.read(1 << 16)
            if not more:
                break
            data += more
    return pickle.loads(data) if data else Ended("it was killed")


def results(ranks: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """The same, where no rank may end otherwise than by its result."""
    found = everywhere(ranks, work, *args)
    for rank, x in enumerate(found):
        assert not isinstance(x, Ended), "rank %d %s" % (rank, x)
    return found


def first(found: list[Any]) -> Any:
    """The first result, which all ranks must have."""
    assert all(x == found[0] for x in found), found
    return found[0]
