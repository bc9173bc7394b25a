# SPDX-License-Identifier: Apache-2.0
"""Bad days of a Checkpointer on four ranks: each ends with a sentence, and nothing is lost."""
from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import ranks
import tap
from tap import folder, needs

if tap.there("torch"):
    import torch
    from torch import nn

    import sheaf
    import sheaf.torch


class Told(Exception):
    """An exception of a test."""


class Bad:
    """A scheduler whose state cannot be taken, or given back, on one rank."""

    def __init__(self, take: bool = False, give: bool = False) -> None:
        self.take, self.give, self.text = take, give, "lr"

    def state_dict(self) -> dict[str, int]:
        if self.take:
            raise Told(self.text) if self.text != "lr" else KeyError("lr")
        return {"a": 1}

    def load_state_dict(self, state: Any) -> None:
        if self.give:
            raise RuntimeError("the state is of another scheduler")


def one_rank_fails(rank: int, path: str) -> list[str]:
    told = []
    m = nn.Linear(3, 3)
    bad = Bad()
    with sheaf.Checkpointer(path, timeout=20) as ckpt:
        ckpt.track(m, other=bad)
        ckpt.save(1)
        bad.take = rank == 0
        told.append(tap.told(lambda: ckpt.save(2)))
        bad.take = False
        if rank == 1:
            m.register_buffer("odd", torch.ones(2, 1).expand(2, 2))
        told.append(tap.told(lambda: ckpt.save(3)))
        if rank == 1:
            del m.odd
        told.append(tap.told(lambda: ckpt.save(4, {"bad key": 1} if rank == 2 else None)))
        told.append(tap.told(lambda: ckpt.save(5 + rank)))
        ckpt.files = {"no name": b""} if rank == 0 else {}
        told.append(tap.told(lambda: ckpt.save(6)))
        ckpt.files = {}
        m.register_buffer("odd", torch.ones(3 if rank == 2 else 2))
        told.append(tap.told(lambda: ckpt.save(7)))
        del m.odd
        bad.give = rank == 3
        told.append(tap.told(lambda: ckpt.load()))
        bad.give = False
        ckpt.save(9)
        told.append(str(ckpt.steps))
    return told


@needs("torch")
def test_one_rank_fails() -> None:
    """What fails on one rank fails on all, with its sentence, and the next save succeeds."""
    with folder() as at:
        found = ranks.results(4, one_rank_fails, at + "/run")
        for i, (who, own, others) in enumerate([
                (0, "KeyError: 'lr'", "Failed: KeyError: 'lr'"),
                (1, "Unsupported: odd (family model): it is expanded", "Failed: Unsupported: odd"),
                (2, "ValueError: metrics: the key 'bad key'", "Failed: ValueError: metrics"),
                (None, "", "Invalid: "),
                (0, "Invalid: attached file 'no name'", "Failed: step 6: attached file 'no name'"),
                (None, "", "Mismatch: "),
                (3, "RuntimeError: the state is of another", "Failed: RuntimeError: the state")]):
            for rank, told in enumerate(found):
                want = own if rank == who else others
                assert told[i].startswith(want), (i, rank, told[i])
        assert ranks.first([told[-1] for told in found]) == "[1, 9]"


def parallel(rank: int, path: str) -> list[Any]:
    m = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    both = nn.parallel.DistributedDataParallel(m)
    o = torch.optim.SGD(both.parameters(), 0.1, momentum=0.9)
    both(torch.randn(5, 4)).square().sum().backward()
    o.step()
    for b in m.buffers():
        torch.distributed.broadcast(b, 0)
    with sheaf.Checkpointer(path, timeout=20, check=True) as ckpt:
        ckpt.track(both, o)
        ckpt.save(1)
        if rank == 1:
            with torch.no_grad():
                m[0].bias[2] += 1
        told = tap.told(lambda: ckpt.save(2))
        assert told.startswith("Diverged: ") and "0.bias" in told, told
    return [v.tolist() for v in m.state_dict().values()]


def alone(rank: int, path: str) -> list[Any]:
    m = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with sheaf.Checkpointer(path, timeout=20) as ckpt:
        ckpt.track(m, torch.optim.SGD(m.parameters(), 0.1, momentum=0.9))
        ckpt.load()
    return [v.tolist() for v in m.state_dict().values()]


@needs("torch")
def test_replicas() -> None:
    """DDP saves without its prefix, and check=True finds replicas that differ."""
    with folder() as at:
        found = ranks.results(2, parallel, at + "/run")
        assert ranks.results(1, alone, at + "/run")[0] == found[0]


def stages(rank: int, path: str) -> list[Any]:
    """Pipeline stages: each rank has other parameters, and state that appears on some later."""
    torch.manual_seed(rank // 2)
    m = nn.ModuleDict({"stage%d" % (rank // 2): nn.Linear(4, 4)})
    o = torch.optim.AdamW(m.parameters(), 0.1 + rank // 2)
    with sheaf.Checkpointer(path, timeout=20) as ckpt:
        ckpt.track(m, o)
        ckpt.save(0)
        if rank >= 2:                   # the others have no gradient yet
            m["stage1"](torch.ones(1, 4)).sum().backward()
            o.step()
        ckpt.save(1)
        plans = ckpt.plan.made
        ckpt.save(2)
        assert ckpt.plan.made == plans == (2 if rank >= 2 else 1)
    return [v.tolist() for v in m.state_dict().values()]


def all_stages(rank: int, path: str) -> tuple[list[Any], list[Any], int]:
    m = nn.ModuleDict({"stage0": nn.Linear(4, 4), "stage1": nn.Linear(4, 4)})
    o = torch.optim.AdamW([{"params": m["stage0"].parameters()},
                           {"params": m["stage1"].parameters()}])
    with sheaf.Checkpointer(path, timeout=20) as ckpt:
        ckpt.track(m, o)
        ckpt.load()
    return ([v.tolist() for v in m.state_dict().values()], [g["lr"] for g in o.param_groups],
            len(o.state))


@needs("torch")
def test_stages() -> None:
    """Ranks with different parameters save together, and one process loads all of them."""
    with folder() as at:
        found = ranks.results(4, stages, at + "/run")
        weights, rates, states = ranks.results(1, all_stages, at + "/run")[0]
        assert weights == found[0] + found[2] and rates == [0.1, 1.1] and states == 2


class Place:
    """A loader whose state is a number."""

    def __init__(self, at: int) -> None:
        self.at = at

    def state_dict(self) -> int:
        return self.at

    def load_state_dict(self, state: int) -> None:
        self.at = state


def placed(rank: int, path: str) -> list[Any]:
    """Saves loaders at the same position, then at different ones; draws a random number."""
    place = Place(5)
    torch.manual_seed(rank)
    with sheaf.Checkpointer(path, timeout=20) as ckpt:
        ckpt.track(nn.Linear(2, 2), loader=place)
        torch.manual_seed(rank)
        ckpt.save(1)
        drawn = float(torch.rand(1))
        place.at = rank
        ckpt.save(2)
        ckpt.load()
        assert place.at == rank
    return [drawn]


def moved(rank: int, path: str) -> list[Any]:
    place = Place(0)
    with sheaf.Checkpointer(path, timeout=20) as ckpt:
        ckpt.track(nn.Linear(2, 2), loader=place)
        told = tap.told(lambda: ckpt.load())
        assert told.startswith("Mismatch: ") and "loaders of the 4 ranks" in told, told
        ckpt.load(only=["model", "rng"])
        assert place.at == 0
        ckpt.load(1)
        assert place.at == 5
    return [float(torch.rand(1))]


@needs("torch")
def test_other_number_of_ranks() -> None:
    """Another number of ranks takes streams in turn, and loaders if all were at one position."""
    with folder() as at:
        found = ranks.results(4, placed, at + "/run")
        assert ranks.results(1, moved, at + "/run") == found[:1]
        assert ranks.results(2, moved, at + "/run") == found[:2]


def left(rank: int, path: str) -> tuple[str, float]:
    """Rank 2 leaves `with` by an exception, and the others save."""
    start = 0.0

    def work() -> None:
        nonlocal start
        with sheaf.Checkpointer(path, timeout=50) as ckpt:
            ckpt.track(nn.Linear(3, 3))
            ckpt.save(1)
            start = time.monotonic()
            if rank == 2:
                raise ZeroDivisionError("the loss is nan")
            ckpt.save(2)

    told = tap.told(work)
    waited = time.monotonic() - start
    if rank == 2:
        time.sleep(3)                   # it lives on, as in a notebook
    return told, waited


@needs("torch")
def test_left_by_an_exception() -> None:
    """A rank that leaves by an exception waits for nobody, and the others get its sentence."""
    with folder() as at:
        found = ranks.results(4, left, at + "/run")
        for rank, (told, waited) in enumerate(found):
            want = "ZeroDivisionError: the loss is nan"
            assert told == want if rank == 2 else told.startswith("Lost") and want in told, found
            assert waited < 10, found
        assert sheaf.Run(at + "/run", readonly=True).steps() == [1]


def killed(rank: int, path: str, n: int) -> tuple[str, str, float]:
    """Rank 3 is killed in its n-th save, or before the first."""
    m = nn.Linear(3, 3)
    ckpt = sheaf.Checkpointer(path, timeout=30)
    ckpt.track(m, loader=Killer(n) if rank == 3 else Bad())
    if n == 0 and rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if n > 1:
        ckpt.save(1)
    start = time.monotonic()
    told = tap.told(lambda: ckpt.save(2))
    again = tap.told(lambda: ckpt.save(3))
    ckpt.close()
    return told, again, time.monotonic() - start


class Killer(Bad):
    """State whose taking kills the process the n-th time."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.left = n

    def state_dict(self) -> dict[str, int]:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"a": 1}


@needs("torch")
def test_killed_rank() -> None:
    """When a rank is killed the others get Lost, and what was committed stays."""
    with folder() as at:
        found = ranks.everywhere(4, killed, at + "/first", 0)
        for told, again, waited in found[:3]:
            assert told.startswith("Lost: ") and again.startswith("Lost: ") and waited < 20, found
        found = ranks.everywhere(4, killed, at + "/run", 2)
        assert isinstance(found[3], ranks.Ended) and "killed" in repr(found[3]), found
        for told, again, waited in found[:3]:
            assert told.startswith("Lost: ") and again.startswith("Lost: ") and waited < 20, found
        m = nn.Linear(3, 3)
        with sheaf.Checkpointer(at + "/run") as ckpt:       # the lock is free again
            ckpt.track(m, loader=Bad())
            start = ckpt.load()
            assert start is not None and start.step == 1 and ckpt.verify() == []


def odd_arguments(rank: int, path: str) -> tuple[list[str], float]:
    """Rank 0 alone gives what is no step, or raises a text that is no UTF-8."""
    odd = rank == 0
    m = nn.Linear(3, 3)
    bad = Bad()
    told = []
    ckpt = sheaf.Checkpointer(path, timeout=30)     # without `with`, no rank ever leaves
    ckpt.track(m, other=bad)
    ckpt.save(0)
    start = time.monotonic()
    bad.text = "caf\udce9"
    bad.take = odd
    told.append(tap.told(lambda: ckpt.save(1)))
    bad.take = False
    told.append(tap.told(lambda: ckpt.save("x" if odd else 1)))     # type: ignore[arg-type]
    told.append(tap.told(lambda: ckpt.save(2**64 + 1 if odd else 1)))
    told.append(tap.told(lambda: ckpt.load("x" if odd else 0)))
    ckpt.save(7)
    took = time.monotonic() - start
    ckpt.close()
    return told, took


@needs("torch")
def test_odd_arguments_on_one_rank() -> None:
    """A rank whose argument or exception is odd keeps no other rank waiting"""
    with folder() as at:
        (mine, took), (theirs, _) = ranks.results(2, odd_arguments, at + "/run")
        assert took < 15, took
        for i, (own, others) in enumerate([
                ("Told: caf\udce9", "Failed: Told: caf?"),
                ("TypeError: 'str' object cannot", "Failed: TypeError: 'str' object"),
                ("Invalid: step 18446744073709551617: ", "Failed: step 18446744"),
                ("TypeError: 'str' object cannot", "")]):
            assert mine[i].startswith(own), (i, mine[i])
            assert theirs[i].startswith(others) and theirs[i], (i, theirs[i])


if __name__ == "__main__":
    if tap.there("torch"):
        torch.set_num_threads(1)
    sys.exit(tap.run(globals()))
