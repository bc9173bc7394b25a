# SPDX-License-Identifier: Apache-2.0
"""Bad days with saves in the background: each has an outcome and a sentence, and nothing hangs."""
from __future__ import annotations

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
    from torch import nn

    import sheaf
    import sheaf.torch
    from test_async import late, model, step


def trained(path: str, rank: int, number: int, **options: Any) -> Any:
    """A Checkpointer, and what it tracks, after a save to disk in the background."""
    m = model(rank)
    o = torch.optim.AdamW(m.parameters(), 0.01)
    ckpt = sheaf.Checkpointer(path, timeout=20, **options)
    ckpt.track(m, o)
    step(m, rank, [o], number)
    ckpt.save_async(number).result()
    return ckpt, m, o


def killed_after(seconds: float) -> None:
    """Ends this process after a while, even if it stands still."""
    me = os.getpid()
    if os.fork() == 0:
        time.sleep(seconds)
        os.kill(me, signal.SIGKILL)
        os._exit(0)


def leaves(rank: int, path: str, how: str) -> tuple[list[str], float]:
    ckpt, m, o = trained(path, rank, 1)
    sheaf.torch.checkpointer.LEAVE_SECONDS = 1.0
    said = []
    try:
        with ckpt:
            late(ckpt, 0.05)
            h = ckpt.save_async(2)
            if rank == 1 and how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if rank == 1 and how == "stop":
                killed_after(6)
                os.kill(os.getpid(), signal.SIGSTOP)
            if rank == 1:
                raise KeyError("my own")
            begun = time.monotonic()
            said.append(told(lambda: h.result(1.0 if how == "stop" else None)))
            if how != "stop":
                said.append(told(lambda: ckpt.save_async(3)))
            raise IndexError("the end")
    except (KeyError, IndexError) as e:
        said.append(str(e))
    return said, time.monotonic() - begun if rank != 1 else 0.0


@needs("torch")
def test_an_exception() -> None:
    """A rank that leaves by an exception gives up its saves, and the others get its sentence"""
    with folder() as at:
        found = ranks.results(3, leaves, at + "/run", "raise")
        for said, took in (found[0], found[2]):
            assert "KeyError: 'my own'" in said[0] and said[0][:6] in ("Failed", "Lost: "), found
            assert said[1].startswith("Lost: ") and "my own" in said[1], found
            assert took < 20, found
        assert found[1][0] == ["'my own'"]
        assert "checkpoint-2" not in os.listdir(at + "/run")


@needs("torch")
def test_a_killed_rank() -> None:
    """When a rank is killed with a save in flight the others get Lost, and what is there stays"""
    with folder() as at:
        found = ranks.everywhere(3, leaves, at + "/run", "kill")
        assert isinstance(found[1], ranks.Ended)
        for said, took in (found[0], found[2]):
            assert said[0].startswith("Lost: ") and said[1].startswith("Lost: "), found
            assert len(said[0]) > 20 and took < 20, found
        with sheaf.open(at + "/run@1", framework="pt") as f:
            assert f["same.0.weight"].shape == (64, 64)


@needs("torch")
def test_a_stopped_rank() -> None:
    """A rank that stands still holds the others up only until they leave"""
    with folder() as at:
        found = ranks.everywhere(3, leaves, at + "/run", "stop")
        for said, took in (found[0], found[2]):
            assert said == ["NotYet: step 2: its outcome is not known after 1 s", "the end"], found
            assert took < 5, found


def full(rank: int, path: str) -> list[str]:
    """Saves whose failure nobody asks for."""
    ckpt, m, o = trained(path, rank, 1)
    ckpt.save_async(1)                  # the number is taken, which only the writing finds
    step(m, rank, [o], 2)
    ckpt.save_async(2)
    said = [told(ckpt.close), told(ckpt.close)]
    return said


@needs("torch")
def test_a_failure_nobody_asked_for() -> None:
    """close() raises the first failure that nobody asked for, and later saves are there"""
    with folder() as at:
        for said in ranks.results(2, full, at + "/run"):
            assert said[0].startswith("Exists: ") and said[1] == "", said
        assert os.path.isdir(at + "/run/checkpoint-2")


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
