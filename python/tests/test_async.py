# SPDX-License-Identifier: Apache-2.0
"""Saves in the background: each checkpoint has the values of its step, whatever comes after."""
from __future__ import annotations

import os
import random
import sys
import time
from typing import Any, Iterator

import ranks
import tap
from tap import folder, needs, raises

if tap.there("torch"):
    import torch
    from torch import nn

    import sheaf
    import sheaf.torch

LONG = bool(os.environ.get("T_LONG"))
SAVES, DELAY = (1000, 2.0) if LONG else (60, 0.03)
SLOW = 1 << 20                          # bytes a second: nothing is copied before its gate


def late(ckpt: Any, seconds: float, part: float = 1.0) -> None:
    """Operations of commits in the background begin late on this rank, or a part of them."""
    operations, drawn = ckpt.commit_group.operations, random.Random(7)

    def delayed(work: Any) -> Any:
        def tried(*args: Any) -> None:
            if drawn.random() < part:
                time.sleep(seconds * drawn.random())
            work(*args)
        return tried

    for name in ("allgather", "alltoallv", "allreduce"):
        setattr(operations, name, delayed(getattr(type(operations), name).__get__(operations)))


def model(rank: int, wide: int = 64) -> Any:
    """A module of which all ranks have the same layer, and each one more; with buffers."""
    torch.manual_seed(0)
    same = nn.Sequential(nn.Linear(wide, wide), nn.BatchNorm1d(wide))
    torch.manual_seed(1 + rank)
    return nn.ModuleDict({"same": same, "own%d" % rank: nn.Linear(wide, wide)})


def step(m: Any, rank: int, optimizers: list[Any], number: int) -> None:
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(number))
    m["same"](x).square().mean().backward()
    m["own%d" % rank](x).square().mean().backward()
    for o in optimizers:
        o.step()
        o.zero_grad()


def copies(m: Any, optimizers: list[Any]) -> dict[str, Any]:
    """All tensors by the names of a checkpoint, copied."""
    found = {n: t.detach().clone() for n, t in m.state_dict().items()}
    names = {id(p): n for n, p in m.named_parameters()}
    keys = {"exp_avg": "moment1_0", "exp_avg_sq": "moment2_0"}
    for o in optimizers:
        for p, state in o.state.items():
            for k, v in state.items():
                found["optimizer/%s/%s" % (names[id(p)], keys.get(k, k))] = v.clone()
    return found


def differing(path: str, number: int, want: dict[str, Any]) -> Iterator[str]:
    with sheaf.open("%s/checkpoint-%d" % (path, number), framework="pt") as f:
        for name, t in want.items():
            if not torch.equal(f.get_tensor(name), t):
                yield "step %d: %s" % (number, name)


def each_step(rank: int, path: str) -> int:
    m = model(rank)
    optimizers = [torch.optim.AdamW(m["same"].parameters(), 0.01),
                  torch.optim.AdamW(m["own%d" % rank].parameters(), 0.01)]

    def changes(*_: Any) -> None:       # stands before step(), and is older than the gate
        m["same"][0].bias.data.add_(1.0)

    optimizers[0].register_step_pre_hook(changes)
    wanted: dict[int, dict[str, Any]] = {}
    with sheaf.Checkpointer(path, timeout=30 + 30 * DELAY, copy_rate_max=SLOW) as ckpt:
        ckpt.track(m, *optimizers)
        if rank == 1:
            late(ckpt, DELAY, 0.1)
        for number in range(SAVES):
            step(m, rank, optimizers, number)
            wanted[number] = copies(m, optimizers)
            handle = ckpt.save_async(number, {"loss": number})
            if number % 7 == 3:         # buffers change in a forward pass, without a gate
                m["same"](torch.ones(3, 64) * number)
        assert handle.result() and handle.done() and ckpt.stats().failed == 0
        made = ckpt.plan.made
    odd = [x for number, want in wanted.items() for x in differing(path, number, want)]
    assert not odd, odd[:5]
    return int(made)


@needs("torch")
def test_each_step() -> None:
    """Saves of every step, while one rank commits late, have the values of their steps"""
    with folder() as at:
        ranks.SECONDS = 1800 if LONG else 60
        found = ranks.results(2, each_step, at + "/run")
        assert found == [1, 1], found   # planned once
        assert len(os.listdir(at + "/run")) >= SAVES


def gates(rank: int, path: str) -> None:
    m = model(0)
    a, b = [torch.optim.AdamW(m[n].parameters(), 0.01) for n in ("same", "own0")]
    step(m, 0, [a, b], 0)
    with sheaf.Checkpointer(path, copy_rate_max=SLOW) as ckpt:
        ckpt.track(m, a, b)
        h = ckpt.save_async(1)
        assert len(h.closed) == 2 and len(h.closed[0]) == 4 * 4 and len(h.closed[1]) == 2 * 4
        a.step()
        assert not h.copied and not h.closed[0] and h.closed[1]
        b.step()
        assert h.copied and not h.held
        assert h.result(30) and "in disk" in repr(h), h
        frozen = next(m["same"].parameters()).requires_grad_(False)
        c = torch.optim.SGD([p for p in m.parameters() if p is not frozen], 0.1)
    with sheaf.Checkpointer(path + "2", copy_rate_max=SLOW) as ckpt:
        ckpt.track(m, c)
        h = ckpt.save_async(1)
        assert len(h.closed[0]) == 5    # the frozen one was copied at once
        h.gate()
        assert h.copied and h.result()
    with sheaf.Checkpointer(path + "3", copy_rate_max=SLOW) as ckpt:
        ckpt.track(m)                   # no optimizer: all was copied at once
        h = ckpt.save_async(1)
        assert h.copied and h.result()
    assert not c._optimizer_step_pre_hooks


@needs("torch")
def test_gates() -> None:
    """A gate opens what its optimizer owns; all else is copied at once; the end removes gates"""
    with folder() as at:
        ranks.results(1, gates, at + "/run")


def by_hand(rank: int, path: str, gate: bool) -> str:
    m = model(rank)
    o = torch.optim.SGD(m.parameters(), 0.1)
    told = ""
    try:
        with sheaf.Checkpointer(path, timeout=20, check=True, copy_rate_max=SLOW) as ckpt:
            ckpt.track(m, o)
            h = ckpt.save_async(1)
            if gate:
                h.gate()
            if rank == 1:
                m["own1"].weight.data.mul_(2)
            try:
                h.result()
            except sheaf.Diverged as e:
                told = str(e)
            h = ckpt.save_async(2)
            step(m, rank, [o], 0)
            h.result()
            told += " %s" % ckpt.steps
    except sheaf.Error as e:
        told += "; closed: %s" % e
    return told


@needs("torch")
def test_ungated() -> None:
    """check=True finds a change without a gate, and names the tensor; with a gate it is right"""
    with folder() as at:
        for told in ranks.results(2, by_hand, at + "/a", False):
            assert "own1.weight" in told and told.endswith(" [2]"), told
        assert ranks.first(ranks.results(2, by_hand, at + "/b", True)) == " [1, 2]"


def cancelled(rank: int, path: str) -> list[str]:
    m = model(rank)
    told = []
    with sheaf.Checkpointer(path, timeout=20) as ckpt:
        ckpt.track(m, torch.optim.SGD(m.parameters(), 0.1))
        ckpt.save_async(1)
        late(ckpt, 0.1)
        h = ckpt.save_async(2)
        if rank == 1:
            assert h.cancel("not wanted")
        for wait in (0.0, None):
            try:
                h.result(wait)
            except sheaf.Error as e:
                told.append("%s: %s" % (type(e).__name__, e))
        late(ckpt, 0)
        h = ckpt.save_async(3)
        h.result()
        assert not h.cancel()           # too late
        try:                            # the first step again: only the writing finds it
            ckpt.save_async(1).result()
        except sheaf.Error as e:
            told.append(type(e).__name__)
        told.append("%s, %d failed" % (ckpt.steps, ckpt.stats().failed))
    return told


@needs("torch")
def test_cancel() -> None:
    """cancel() gives a save up on all ranks, with the sentence, and others go on"""
    with folder() as at:
        for told in ranks.results(2, cancelled, at + "/run"):
            assert told[0].startswith("NotYet: step 2: its outcome is not known"), told
            assert told[1].startswith("Failed: ") and "not wanted" in told[1], told
            assert told[2:] == ["Exists", "[1, 3], 2 failed"], told


@needs("torch")
def test_arguments() -> None:
    """Options that make no sense are refused, and steps that are in no rhythm are left out"""
    m = nn.Linear(2, 2)
    with folder() as at:
        for wrong in ({"memory_every": 0}, {"disk_every": 0}, {"memory_every": 1, "agent": False},
                      {"on_sigterm": 0}):
            with raises(ValueError, list(wrong)[0]):
                sheaf.Checkpointer(at + "/run", **wrong)
        with sheaf.Checkpointer(at + "/run", sheaf.group.Group(sheaf.group.Alone())) as ckpt:
            ckpt.track(m)
            with raises(sheaf.Invalid, "commit_group"):
                ckpt.save_async(1)
        with sheaf.Checkpointer(at + "/run", disk_every=4, memory_every=2,
                                agent=at + "/none") as ckpt:
            ckpt.track(m)
            where = [ckpt.save_async(n).where for n in range(5)]
            assert where == ["disk", "nowhere", "nowhere", "nowhere", "disk"], where
            assert ckpt.save_async(6).result() is False
            assert ckpt.stats().left_out == 2
            assert "%-10s %10d" % ("left out", 2) in str(ckpt.stats()).splitlines()
        with sheaf.Checkpointer(at + "/run", readonly=True) as ckpt:
            assert ckpt.steps == [0, 4]
            with raises(sheaf.Invalid, "readonly"):
                ckpt.save_async(8)


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
