# SPDX-License-Identifier: Apache-2.0
"""measure=True: a coin leaves out half of the saves to memory alone, and the log says what one
costs.

usage: test_measure.py SHEAF, the command
"""
from __future__ import annotations

import logging
import os
import random
import sys
import time
from typing import Any

import ranks
import tap
from tap import folder, needs, raises

if tap.there("torch"):
    import torch

    import sheaf
    import sheaf.agent
    import sheaf.torch
    from sheaf.torch import measure


class Heard(logging.Handler):
    """The lines that were logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        logging.getLogger("sheaf").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def steps(cost: float, noise: float, seed: int, n: int = 400) -> Any:
    """What is measured where a copy costs so much of a step of 100 ms, by a clock of its own."""
    now, drawn = [0.0], random.Random(seed)
    m = measure.Measure(True, lambda: now[0])
    for step in range(n):
        droppable = step % 10 != 0
        left = m.leaves_out(step, droppable)
        now[0] += 0.1 + drawn.gauss(0, noise) + (0 if left else cost)
        now[0] += 5 if drawn.random() < 0.02 else 0     # evaluations
        if not droppable:
            now[0] += 1                                 # a save to disk
    return m


@needs("torch")
def test_cost() -> None:
    """The interval has the true cost, pauses and saves to disk do not count, and none is none"""
    within = 0
    for seed in range(20):
        found = steps(0.004, 0.003, seed).cost()
        within += found.low <= 0.004 <= found.high
        assert found.low > 0.002 and found.high < 0.006 and 0.098 < found.step < 0.102, found
        found = steps(0.0, 0.003, seed).cost()
        within += found.low <= 0 <= found.high
        assert found.with_copy + found.without in (359, 360), found
    assert within >= 34, within         # 95 % of 40 are 38
    few = steps(0.004, 0.003, 1, 8)
    assert few.cost() is None


@needs("torch")
def test_coin() -> None:
    """The coin is fair, has no rhythm, and only saves to memory alone are left out"""
    drawn = [measure.heads(n) for n in range(10000)]
    assert 4850 < sum(drawn) < 5150
    for k in 2, 3, 5, 7, 10:
        assert 0.44 < sum(drawn[::k]) / len(drawn[::k]) < 0.56, k
    assert 4850 < sum(a == b for a, b in zip(drawn, drawn[1:])) < 5150
    m = measure.Measure(True)
    assert [m.leaves_out(n, True) for n in range(100)] == [not h for h in drawn[:100]]
    assert not any(m.leaves_out(n, False) for n in range(100))
    off = measure.Measure(False)
    assert not any(off.leaves_out(n, True) for n in range(100)) and not any(off.times.values())


def trained(rank: int, path: str) -> tuple[list[str], list[str], Any]:
    heard = Heard()
    torch.manual_seed(rank)
    m = torch.nn.ModuleDict({"own%d" % rank: torch.nn.Linear(8, 8)})
    o = torch.optim.SGD(m.parameters(), 0.1)
    where = []
    with sheaf.Checkpointer(path, timeout=20, memory_every=1, disk_every=8, measure=True) as ckpt:
        ckpt.track(m, o)
        for step in range(48):
            for p in m.parameters():
                p.grad = torch.ones_like(p)
            o.step()
            time.sleep(0.002)
            handle = ckpt.save_async(step)
            handle.result()
            where.append(handle.where)
        ckpt.save(100)
        made = ckpt.stats().committed
        steps = ckpt.steps
    return where, heard.lines, (made, steps)


@needs("torch")
def test_ranks() -> None:
    """All ranks leave the same saves out, none that goes to disk, and rank 0 says what one costs"""
    os.environ["PATH"] = os.path.dirname(os.path.abspath(sys.argv[1])) + ":" + os.environ["PATH"]
    with folder() as at:
        try:
            found = ranks.results(2, trained, at + "/run")
        finally:
            with raises(sheaf.NotFound):    # no agent is left
                sheaf.agent.stop(at + "/run")
                sheaf.agent.stop(at + "/run")
    want = ["disk" if n % 8 == 0 else "memory" if measure.heads(n) else "nowhere"
            for n in range(48)]
    for where, _, (made, steps) in found:
        assert where == want and made == 49 - want.count("nowhere"), (where, made)
        assert steps == [*range(0, 48, 8), 100], steps
    said = [[x for x in lines if "makes a step" in x] for _, lines, _ in found]
    assert len(said[0]) == 1 and not said[1], said
    assert "95 % interval" in said[0][0] and "leaves about half" in said[0][0], said


@needs("torch")
def test_options() -> None:
    """measure=True needs saves that may be left out"""
    with folder() as at:
        for options in ({}, {"disk_every": 2}, {"agent": True}):
            with raises(ValueError, "measure=True needs memory_every"):
                sheaf.Checkpointer(at + "/run", measure=True, **options)


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
