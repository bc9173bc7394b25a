# SPDX-License-Identifier: Apache-2.0
"""Objects that change, are replaced or are collected while a Checkpointer has them, and ranks
that stand still or lose their group."""
from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import signal
import sys
import time
import warnings
from typing import Any, Iterator

import ranks
import tap
from tap import folder, needs, raises, told

if tap.there("torch"):
    import torch
    from torch import nn

    import sheaf
    import sheaf.torch
    from sheaf import memory
    from sheaf.torch import devices
    from test_async import late
    from test_in_flight import trained

SLOW = 1 << 20                          # bytes a second: nothing is copied before its gate


def small() -> tuple[Any, Any]:
    m = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    o = torch.optim.AdamW(m.parameters(), 0.01)
    m(torch.ones(2, 64)).sum().backward()
    o.step()
    return m, o


@needs("torch")
def test_state_that_changes_before_the_commit() -> None:
    """What is replaced between save_async and its commit is stored as it was"""
    with folder() as at, sheaf.Checkpointer(at + "/run", copy_rate_max=SLOW) as ckpt:
        m, o = small()
        schedule = torch.optim.lr_scheduler.StepLR(o, 1)
        ckpt.track(m, o, scheduler=schedule)
        want = {n: t.clone() for n, t in m.state_dict().items()}
        moment = o.state[m[0].weight]["exp_avg"].clone()
        h = ckpt.save_async(1)
        old, m[1] = m[1], nn.Linear(3, 3)               # a module, and all of its memory
        m[0].weight = nn.Parameter(torch.zeros(5, 5))   # a parameter
        o.load_state_dict(o.state_dict())               # the state of the optimizer
        o.state.clear()
        warnings.simplefilter("ignore")
        schedule.step()
        del old
        gc.collect()
        filled = [torch.full((64, 64), 9.0) for _ in range(8)]      # may get the memory
        assert h.result() and filled
        with sheaf.open(at + "/run", framework="pt") as f:
            for name, t in want.items():
                assert torch.equal(f.get_tensor(name), t), name
            assert torch.equal(f.get_tensor("optimizer/0.weight/moment1_0"), moment)
        with raises(LookupError, "in no model that is tracked"):
            ckpt.save(2)                # the optimizer has parameters that the model lost


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """The warnings that the package logs meanwhile."""
    found: list[str] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler = Keeps(logging.WARNING)
    logging.getLogger("sheaf").addHandler(handler)
    try:
        yield found
    finally:
        logging.getLogger("sheaf").removeHandler(handler)


@needs("torch")
def test_an_optimizer_that_was_replaced() -> None:
    """An optimizer that is not tracked, but steps parameters of one that is, waits at all gates,
    and the log says so, once"""
    with folder() as at, logged() as said:
        m, o = small()
        with sheaf.Checkpointer(at + "/run", copy_rate_max=SLOW) as ckpt:
            ckpt.track(m, o)
            ckpt.save(1)
            other = torch.optim.SGD(m.parameters(), 0.1)
            want = m[0].weight.detach().clone()
            h = ckpt.save_async(2)
            other.step()                # it has no gate of its own
            assert h.copied and h.result()
            other.step()
            with sheaf.open(at + "/run@2", framework="pt") as f:
                assert torch.equal(f.get_tensor("0.weight"), want)
            assert len(said) == 1 and "0.weight is stepped by the optimizer SGD" in said[0] \
                and "AdamW, which is" in said[0], said
            torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1).step()
        with sheaf.Checkpointer(at + "/weights") as ckpt:
            ckpt.track(m)               # without an optimizer, any may train it
            other.step()
            ckpt.save(1)
        assert len(said) == 1, said
    with folder() as at, logged() as said, sheaf.Checkpointer(at + "/run") as ckpt:
        class Wraps(torch.optim.SGD):
            """An optimizer around another one, as SAM and others are."""

            def step(self, closure: Any = None) -> None:
                self.base.step()

        m, base = small()
        outer = Wraps(m.parameters(), 0.1)
        outer.base = base
        outer.state = base.state
        ckpt.track(m, outer)
        outer.step()
        ckpt.save_async(1)
        outer.step()
        assert not said, said


@needs("torch")
def test_a_part_of_an_optimizer() -> None:
    """A trainer that steps the optimizer inside a tracked one waits at all gates, without a word;
    so does an optimizer that gets a tracked parameter after it has stepped others"""
    with folder() as at, logged() as said, \
            sheaf.Checkpointer(at + "/run", copy_rate_max=SLOW) as ckpt:
        m, base = small()
        outer = torch.optim.SGD(m.parameters(), 0.1)
        outer.base = base               # as SAM has one, and steps it by itself
        x = nn.Parameter(torch.ones(1))
        x.grad = torch.ones(1)
        other = torch.optim.SGD([x], 0.1)
        ckpt.track(m, outer)
        other.step()
        h = ckpt.save_async(1)
        base.step()
        assert h.copied and h.result() and not said, said
        other.add_param_group({"params": [m[0].weight]})
        h = ckpt.save_async(2)
        other.step()
        assert h.copied and h.result() and len(said) == 1, said


@needs("torch")
def test_a_device_without_a_copier() -> None:
    """A tensor on a device from which nothing can be copied is refused by its name"""
    with folder() as at, sheaf.Checkpointer(at + "/run") as ckpt:
        m = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, device="meta"))
        ckpt.track(m)
        with raises(TypeError, "1.weight", "meta"):
            ckpt.save(1)
        m[1] = nn.Linear(3, 3)
        ckpt.save(1)
    with raises(TypeError, "vulkan", "synchronize"):
        devices.Plain(torch.device("vulkan"))
    with folder() as at, raises(memory.Unfit, "['x']", "meta"):
        sheaf.save(at, {"x": torch.ones(2, device="meta")})


def stands(rank: int, path: str) -> tuple[list[str], float]:
    """Rank 1 is stopped in a save, and goes on later."""
    m = nn.Linear(3, 3)
    ckpt = sheaf.Checkpointer(path, timeout=4)
    ckpt.track(m)
    ckpt.save(1)
    start = time.monotonic()
    if rank == 1:
        me = os.getpid()
        if os.fork() == 0:              # continues it, after the others have given up
            time.sleep(9)
            os.kill(me, signal.SIGCONT)
            os._exit(0)
        os.kill(me, signal.SIGSTOP)
    said = [told(lambda: ckpt.save(2)), told(lambda: ckpt.save(3)), told(ckpt.close)]
    return said, time.monotonic() - start


@needs("torch")
def test_a_stopped_rank() -> None:
    """A rank that is stopped in a save is Lost for the others when the time is up, and so are they
    for it when it goes on; what was committed stays"""
    with folder() as at:
        found = ranks.results(3, stands, at + "/run")
        for rank, (said, took) in enumerate(found):
            assert said[0].startswith("Lost: ") and said[1].startswith("Lost: "), found
            assert took < 30, found
        with sheaf.open(at + "/run", framework="pt") as f:
            assert f.step == 1


def destroyed(rank: int, path: str) -> list[str]:
    """The process groups are destroyed while a save is in flight."""
    ckpt, m, o = trained(path, rank, 1)
    late(ckpt, 0.05)
    h = ckpt.save_async(2)
    torch.distributed.destroy_process_group()
    said = [told(lambda: h.result(20)), told(lambda: ckpt.save(3)), told(ckpt.close)]
    return said + [repr(ckpt)]


@needs("torch")
def test_a_group_that_is_destroyed_first() -> None:
    """After destroy_process_group() saves are Lost or were committed; nothing aborts or hangs"""
    with folder() as at:
        for said in ranks.results(2, destroyed, at + "/run"):
            assert said[0] == "" or said[0].startswith("Lost: "), said
            assert said[1].startswith("Lost: ") and "destroyed" in said[1], said
            assert said[3].endswith("closed>"), said
        with sheaf.open(at + "/run", framework="pt") as f:
            assert f.step in (1, 2)


def collected(rank: int, path: str) -> list[str]:
    """Drops a Checkpointer, its handle and what it tracks, with a save in flight."""
    drawn, found = random.Random(5), []
    for i in range(8):
        at = "%s-%d" % (path, i)
        m, o = small()
        ckpt = sheaf.Checkpointer(at, copy_rate_max=SLOW)
        ckpt.track(m, o)
        held = {"m": m, "o": o, "ckpt": ckpt, "h": ckpt.save_async(1)}
        del m, o, ckpt
        for name in drawn.sample(sorted(held), 4):
            del held[name]
            if drawn.random() < 0.5:
                gc.collect()
            torch.ones(64, 64)          # may get memory that was freed
        gc.collect()
        with sheaf.Checkpointer(at, readonly=True) as again:
            found.append("%s %s" % (again.steps, again.verify() if again.steps else ""))
        sheaf.Checkpointer(at, timeout=5).close()       # the lock is free
    return found


def micro_batches(rank: int, path: str) -> list[str]:
    """Saves between micro-batches where torch keeps gradients that are not reduced, and after."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    said = []
    for i in range(3):
        m: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        if i == 0:
            fully_shard(m, mesh=init_device_mesh("cpu", (2,)))
        else:
            m = nn.parallel.DistributedDataParallel(m) if i == 1 else \
                FullyShardedDataParallel(m, device_id=torch.device("cpu"))
        o = torch.optim.SGD(m.parameters(), 0.1)
        with sheaf.Checkpointer("%s-%d" % (path, i), timeout=20) as ckpt:
            ckpt.track(m, o)
            with contextlib.nullcontext() if i == 0 else m.no_sync():
                if i == 0:
                    m.set_requires_gradient_sync(False)
                m(torch.ones(2, 4)).sum().backward()
                said.append(told(lambda: ckpt.save(1)))
            if i == 0:
                m.set_requires_gradient_sync(True)
            m(torch.ones(2, 4)).sum().backward()
            o.step()
            ckpt.save(1)
            o.zero_grad()
            ckpt.save(2)
    return said


@needs("torch")
def test_between_micro_batches() -> None:
    """A save between micro-batches is an error where gradients are seen to wait, and elsewhere the
    log warns of it"""
    with folder() as at:
        said = ranks.first(ranks.results(2, micro_batches, at + "/run"))
        for text, words in zip(said, ("set_requires_gradient_sync", "no_sync() of Distributed",
                                      "no_sync() of FullySharded")):
            assert text.startswith("Invalid: step 1: a save between mi") and words in text, text
    with folder() as at, logged() as warned, sheaf.Checkpointer(at + "/run") as ckpt:
        m, o = small()
        ckpt.track(m, o)
        for step in range(6):           # zero_grad() at the top, or at the end, or a step left out
            if step % 2:
                o.zero_grad()
            m(torch.full((2, 64), float("inf") if step == 4 else 1.0)).sum().backward()
            if step != 4:
                o.step()
            ckpt.save_async(step)
            o.zero_grad(set_to_none=step % 3 == 0)
        assert not warned, warned
        m(torch.ones(2, 64)).sum().backward()
        ckpt.save(7)
        ckpt.save(8)
        assert len(warned) == 1 and "step 7 is saved between micro-batches" in warned[0], warned


@needs("torch")
def test_gc_in_any_order() -> None:
    """A Checkpointer, its handle and what it tracks may be collected in any order"""
    with folder() as at:
        found = ranks.results(1, collected, at + "/run")[0]
        assert all(x in ("[1] []", "[] ") for x in found), found


if __name__ == "__main__":
    if tap.there("torch"):
        torch.set_num_threads(1)
    sys.exit(tap.run(globals()))
