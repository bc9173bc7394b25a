# SPDX-License-Identifier: Apache-2.0
"""Processes that a trainer forks, such as the workers of its data loader, with saves in flight.

usage: test_forks.py SHEAF, the command
"""
from __future__ import annotations

import gc
import os
import signal
import sys
import time
from typing import Any

import ranks
import tap
from tap import folder, needs, told

if tap.there("torch"):
    import torch

    import sheaf
    import sheaf.agent
    from test_async import late, model, step
    from test_in_flight import trained


class Asks:
    """A data set whose items are what the calls of a Checkpointer say in a worker."""

    def __init__(self, ckpt: Any, handle: Any, m: Any, o: Any) -> None:
        self.ckpt, self.handle, self.m, self.o = ckpt, handle, m, o

    def __len__(self) -> int:
        return 1

    def __getitem__(self, i: int) -> str:
        start = time.monotonic()
        self.o.step()                   # of this process's copy: no gate keeps it waiting
        self.handle.gate()
        said = [told(self.handle.result), told(self.handle.done), told(self.handle.cancel)]
        said += [told(lambda: self.ckpt.save(9)), told(lambda: self.ckpt.save_async(9)),
                 told(lambda: self.ckpt.load()), told(lambda: self.ckpt.stats())]
        with self.ckpt:                 # its end closes nothing here
            said.append(repr(self.ckpt) + repr(self.handle))
        self.ckpt = self.handle = self.o = None
        gc.collect()
        said.append("%.1f" % (time.monotonic() - start))
        return "\n".join(said)


def workers(rank: int, path: str) -> list[str]:
    ckpt, m, o = trained(path, rank, 1, copy_rate_max=1 << 20)
    with ckpt:
        step(m, rank, [], 2)
        late(ckpt, 0.05)
        h = ckpt.save_async(2)
        from torch.utils.data import DataLoader
        data: Any = Asks(ckpt, h, m, o)
        loader = DataLoader(data, num_workers=1, batch_size=None, persistent_workers=True,
                            multiprocessing_context="fork")
        said = [text for text in loader]
        o.step()
        assert h.result()
        ckpt.save(3)                    # while the worker lives
        assert ckpt.steps == [1, 2, 3]
    return str(said[0]).split("\n")


class Fails:
    """A data set whose items cannot be read."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, i: int) -> str:
        raise sheaf.NotFound(-4, 0, 0, "there is no such checkpoint")


def reads(rank: int) -> str:
    from torch.utils.data import DataLoader
    data: Any = Fails()
    try:
        list(DataLoader(data, num_workers=1, multiprocessing_context="fork"))
    except sheaf.NotFound as e:
        return str(e)
    return ""


@needs("torch")
def test_errors_of_workers() -> None:
    """An error in a worker of a loader keeps its text"""
    assert "there is no such checkpoint" in ranks.results(1, reads)[0]


@needs("torch")
def test_workers_of_a_loader() -> None:
    """In a forked worker gates open at once, other calls are Invalid, and its end harms nothing"""
    with folder() as at:
        for said in ranks.results(2, workers, at + "/run"):
            for text in said[:7]:
                assert text.startswith("Invalid: ") and "was forked" in text, said
            assert "in another process" in said[7] and float(said[8]) < 5, said


def outlived(rank: int, path: str, memory: bool) -> None:
    """A trainer that is killed with a save in flight, and has forked a process that lives on."""
    options = {"memory_every": 1, "disk_every": 100} if memory else {}
    ckpt, m, o = trained(path, rank, 0, **options)
    h = ckpt.save_async(1)
    child = os.fork()
    if child == 0:
        for fd in range(3, 1000):       # but for the pipe of the test it keeps what it inherited
            if os.path.exists("/proc/self/fd/%d" % fd) and \
                    os.readlink("/proc/self/fd/%d" % fd).startswith("pipe:"):
                os.close(fd)
        time.sleep(60)
        os._exit(0)
    with open("%s.child%d" % (path, rank), "w", encoding="utf-8") as f:
        f.write(str(child))
    while not h.result():               # memory was in use
        h = ckpt.save_async(1)
    torch.distributed.barrier()
    late(ckpt, 0.2)
    ckpt.save_async(2)
    os.kill(os.getpid(), signal.SIGKILL)


def again(rank: int, path: str, memory: bool) -> tuple[int, float]:
    start = time.monotonic()
    options: dict[str, Any] = {"memory_every": 1, "disk_every": 100} if memory else {}
    m = model(rank)
    o = torch.optim.AdamW(m.parameters(), 0.01)
    with sheaf.Checkpointer(path, timeout=20, **options) as ckpt:
        ckpt.track(m, o)
        found = ckpt.load()
        took = time.monotonic() - start
        assert found is not None
        ckpt.save(found.step + 1)
        return found.step, took


def lives_on(at: str, memory: bool) -> None:
    path = at + "/run"
    try:
        killed = ranks.everywhere(2, outlived, path, memory)
        assert "it was killed" in str(killed), killed
        step, took = ranks.results(2, again, path, memory)[0]
        assert step in (1, 2) and took < 15, (step, took)
    finally:
        for rank in range(2):
            with open("%s.child%d" % (path, rank), encoding="utf-8") as f:
                child = int(f.read())
            os.kill(child, 0)           # it lived all the time
            os.kill(child, signal.SIGKILL)


@needs("torch")
def test_a_child_outlives_the_trainer() -> None:
    """A process that was forked, and outlives a killed trainer, keeps no later job waiting"""
    with folder() as at:
        lives_on(at, False)


@needs("torch")
def test_a_child_outlives_a_trainer_with_an_agent() -> None:
    """So it is with an agent, whose memory the next job takes"""
    os.environ["PATH"] = os.path.dirname(os.path.abspath(sys.argv[1])) + ":" + os.environ["PATH"]
    with folder() as at:
        try:
            lives_on(at, True)
        finally:
            sheaf.agent.stop(at + "/run")


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
