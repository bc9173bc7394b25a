# SPDX-License-Identifier: Apache-2.0
"""How jobs end with saves in the background, and where the next one goes on.

usage: test_endings.py SHEAF, the command
"""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import ranks
import tap
from tap import folder, needs, raises, told

if tap.there("torch"):
    import torch

    import sheaf
    import sheaf.agent
    import sheaf.torch
    from test_async import late, model, step
    from test_in_flight import trained
    from test_measure import Heard


END = """
import os, sys, logging
logging.basicConfig(stream=sys.stdout)
sys.path.insert(0, sys.argv[3])
import torch
import torch.distributed as dist
from test_async import late, model
import sheaf
rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1] + ".store", rank=rank,
                        world_size=2)
m = model(rank)
ckpt = sheaf.Checkpointer(sys.argv[1], timeout=20)
ckpt.track(m, torch.optim.SGD(m.parameters(), 0.1))
late(ckpt, 0.02)
ckpt.save_async(7)
"""


def ends(path: str) -> list[tuple[int, str]]:
    """Two processes that end with a save in flight: their exit codes, and what they print."""
    here = os.path.dirname(os.path.abspath(__file__))
    begun = [subprocess.Popen([sys.executable, "-c", END, path, str(rank), here],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
             for rank in range(2)]
    said = [p.communicate(timeout=200)[0] for p in begun]
    return [(p.returncode, text) for p, text in zip(begun, said)]


def raised(rank: int, path: str) -> str:
    """A process that an exception ends with a save in flight, on rank 1."""
    ckpt, m, o = trained(path, rank, 1)
    late(ckpt, 0.05)
    h = ckpt.save_async(2)
    if rank == 1:
        sys.last_value = ValueError("my own")
        sheaf.torch.background.at_exit()
        return "%s %s" % (ckpt.run, told(lambda: ckpt.save_async(3)))
    return told(h.result)


@needs("torch")
def test_the_process_ends() -> None:
    """A process that ends without close() commits what is in flight, unless an exception ends it"""
    with folder() as at:
        for code, text in ends(at + "/a"):
            assert code == 0 and "close() is missing" in text and "Error" not in text, text
        assert os.path.isdir(at + "/a/checkpoint-7")
        found = ranks.results(2, raised, at + "/b")
        assert "my own" in found[0] and found[1].startswith("None Invalid: "), found
        assert not os.path.isdir(at + "/b/checkpoint-2")


def interrupted(rank: int, path: str) -> list[str]:
    ckpt, m, o = trained(path, rank, 1)
    with ckpt:
        late(ckpt, 0.03)
        h = ckpt.save_async(2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        said = [told(h.result)]
        said.append("%s %s" % (h.result(), ckpt.steps))
    return said


@needs("torch")
def test_ctrl_c() -> None:
    """Ctrl-C ends the waiting in result(), and the save goes on"""
    with folder() as at:
        for said in ranks.results(2, interrupted, at + "/run"):
            assert said[0].startswith("KeyboardInterrupt") and said[1] == "True [1, 2]", said


def terminated(rank: int, path: str) -> list[Any]:
    ckpt, m, o = trained(path, rank, 0, disk_every=100, on_sigterm=15)
    with ckpt:
        for number in range(1, 50):
            step(m, rank, [o], number)
            if rank == 1 and number == 5:
                os.kill(os.getpid(), signal.SIGTERM)
            h = ckpt.save_async(number)
            if ckpt.leaving:
                break
        assert h.done() and h.result()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    return [number, ckpt.leaving]


@needs("torch")
def test_sigterm() -> None:
    """After SIGTERM on one rank all ranks save the same step, and leave"""
    with folder() as at:
        number, leaving = ranks.first(ranks.results(2, terminated, at + "/run"))
        assert number == 5 and leaving
        assert sorted(os.listdir(at + "/run"))[1:] == ["checkpoint-0", "checkpoint-5"]


def to_memory(rank: int, path: str, last: int) -> None:
    """Every step to memory, and every fifth to disk; all ranks are killed at the end."""
    m = model(rank)
    o = torch.optim.AdamW(m.parameters(), 0.01)
    ckpt = sheaf.Checkpointer(path, timeout=20, memory_every=1, disk_every=5)
    ckpt.track(m, o)
    assert ckpt.load() is None
    for number in range(last + 1):
        step(m, rank, [o], number)
        h = ckpt.save_async(number)
    while not h.result():               # it was left out, for the memory was in use
        time.sleep(0.01)
        h = ckpt.save_async(number)
    torch.save(m.state_dict(), "%s.%d" % (path, rank))
    torch.distributed.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def from_memory(rank: int, path: str) -> tuple[int, list[int], bool]:
    m = model(rank + 5)
    m["own%d" % rank] = m.pop("own%d" % (rank + 5))
    o = torch.optim.AdamW(m.parameters(), 0.01)
    with sheaf.Checkpointer(path, timeout=20, memory_every=1, disk_every=5) as ckpt:
        ckpt.track(m, o)
        there = ckpt.steps
        start = ckpt.load()
        assert start is not None
        want = torch.load("%s.%d" % (path, rank))
        same = all(torch.equal(t, want[n]) for n, t in m.state_dict().items())
        step(m, rank, [o], 0)
        ckpt.save_async(start.step + 1)
    return start.step, there, same


@needs("torch")
def test_memory() -> None:
    """All ranks are killed; the next job goes on from memory, after the last step"""
    os.environ["PATH"] = os.path.dirname(os.path.abspath(sys.argv[1])) + ":" + os.environ["PATH"]
    with folder() as at:
        try:
            killed = ranks.everywhere(2, to_memory, at + "/run", 8)
            assert "it was killed" in str(killed), killed
            step, there, same = ranks.first(ranks.results(2, from_memory, at + "/run"))
            assert step == 8 and same and max(there) == 5, (step, there, same)
        finally:
            with raises(sheaf.NotFound):    # no agent is left
                sheaf.agent.stop(at + "/run")
                sheaf.agent.stop(at + "/run")


@needs("torch")
def test_without_an_agent() -> None:
    """A job that uses no agent loads from disk, and logs that one has a newer step in memory"""
    os.environ["PATH"] = os.path.dirname(os.path.abspath(sys.argv[1])) + ":" + os.environ["PATH"]
    heard = Heard()

    def loads(path: str, **options: Any) -> tuple[int, list[str]]:
        heard.lines.clear()
        m = torch.nn.Linear(2, 2)
        with sheaf.Checkpointer(path, **options) as ckpt:
            ckpt.track(m)
            found = ckpt.load()
        said = [line for line in heard.lines if "in memory: give memory_every=" in line]
        return -1 if found is None else found.step, said

    with folder() as at:
        try:
            for path, every, there in (at + "/none", 100, -1), (at + "/some", 2, 2):
                with sheaf.Checkpointer(path, memory_every=1, disk_every=every) as ckpt:
                    ckpt.track(torch.nn.Linear(2, 2))
                    for number in range(1, 4):
                        ckpt.save_async(number).result()
                step, said = loads(path)
                assert step == there and len(said) == 1 and "has step 3 in" in said[0], said
                assert loads(path, agent=True) == (3, []), path
                assert loads(path, memory_every=1) == (3, []), path
                sheaf.agent.stop(path)
                assert loads(path) == (there, []), path
        finally:
            for path in at + "/none", at + "/some":
                with raises(sheaf.NotFound):    # no agent is left
                    sheaf.agent.stop(path)
                    sheaf.agent.stop(path)


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
