# SPDX-License-Identifier: Apache-2.0
"""Tensors on a device, with a device that works behind the caller's back (fake_device.py)."""
from __future__ import annotations

import os
import random
import sys
import time
import weakref
from contextlib import contextmanager
from typing import Any, Callable, Iterator

import ranks
import tap
from tap import folder, needs, raises

if tap.there("torch"):
    import torch
    from torch import nn

    import sheaf
    import sheaf.memory
    import sheaf.torch
    from fake_device import Fake

SEED = int(os.environ.get("T_SEED", random.randrange(1 << 30)))
STEPS = 12
SLOW = 5 << 20                          # bytes a second that the library copies
WIDE = 64


class Momentum(torch.optim.Optimizer if tap.there("torch") else object):    # type: ignore[misc]
    """An optimizer whose step() only tells the device what to do, and counts on the host."""

    def __init__(self, device: Any, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})
        self.device = device
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {"step": torch.zeros(()), "exp_avg": torch.zeros_like(p)}

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                s = self.state[p]
                s["step"] += 1
                self.device.launch(lambda p=p, m=s["exp_avg"]: self.update(p, m))

    @torch.no_grad()
    def update(self, p: Any, m: Any) -> None:
        m.add_(1.0)
        p.sub_(m)


class Net(nn.Module if tap.there("torch") else object):     # type: ignore[misc]
    """Parameters of two optimizers, one that is frozen, a transposed one, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.ParameterList([nn.Parameter(torch.zeros(WIDE, WIDE)) for _ in range(3)])
        self.b = nn.Parameter(torch.zeros(WIDE, 2 * WIDE).t())
        self.gaps = nn.Parameter(torch.zeros(WIDE, 8)[:, ::2])
        self.frozen = nn.Parameter(torch.zeros(WIDE), requires_grad=False)
        for i in range(3):
            self.register_buffer("count%d" % i, torch.zeros(WIDE))
        self.register_buffer("none", torch.zeros(0, 3))


def is_large(t: Any) -> bool:
    """Which tensors lie on the device; the others are counts of steps."""
    return bool(t.ndim > 0)


class Job:
    """A training whose values say which step they are of."""

    def __init__(self, path: str, seed: int, broken: str = "", lies: Any = is_large,
                 **opts: Any) -> None:
        self.path, self.device = path, Fake(seed, lies, broken)
        self.net = Net()
        a, b = list(self.net.a), [self.net.b, self.net.gaps]
        self.optimizers = [Momentum(self.device, a), Momentum(self.device, b)]
        self.ckpt = sheaf.Checkpointer(path, **{"copy_rate_max": SLOW, **opts})
        self.ckpt.plan.device_of = self.device.of
        self.ckpt.track(self.net, *self.optimizers)
        self.done = 0

    def forward(self, value: float) -> None:
        """Changes buffers, and the frozen parameter as an average would be."""
        for t in (self.net.count0, self.net.count1, self.net.count2, self.net.frozen.data):
            self.device.launch(lambda t=t: t.fill_(value))

    def step(self) -> None:
        """A forward pass, and steps of the optimizers."""
        self.done += 1
        self.forward(self.done)
        for o in self.optimizers:
            o.step()

    def wrong(self, step: int) -> list[str]:
        """The tensors of a checkpoint that do not have the values of its step."""
        found = []
        with sheaf.open("%s/checkpoint-%d" % (self.path, step), framework="pt") as f:
            for name in f.keys():
                t = f.get_tensor(name)
                weight = name in ("b", "gaps") or name.startswith("a.")
                want = float(-sum(range(step + 1)) if weight else step)
                if not torch.equal(t, torch.full_like(t, want)):
                    found.append("step %d: %s is %s" % (step, name, t.unique()[:4]))
        return found


def train(path: str, seed: int, broken: str = "", **opts: Any) -> list[str]:
    """A training with a save of each step; returns what its checkpoints have wrong."""
    job = Job(path, seed, broken, **opts)
    with job.ckpt:
        for n in range(1, STEPS + 1):
            job.step()
            job.ckpt.save_async(n)
            if n % 3 == 0:
                job.forward(n + 0.5)    # at once, as a validation may do it
                job.forward(n)
    return [x for n in range(1, STEPS + 1) for x in job.wrong(n)]


@needs("torch")
def test_each_step() -> None:
    """Each save has the values of its step, whatever the device does behind the caller's back"""
    print("# T_SEED=%d" % SEED)
    for i in range(4):
        with folder() as at:
            found = train(at + "/run", SEED + i)
            assert not found, (SEED + i, found[:5])


@needs("torch")
def test_each_wait_is_needed() -> None:
    """If one of the waits is left out, checkpoints are wrong"""
    def unsettled(self: Any) -> None:   # its copies are filled again before they are copied
        self.transfer.arrive()

    pending = sheaf.torch.pending.Pending
    for broken in ("follow", "hold", "wait", "settle"):
        settle, found = pending.settle, []
        for i in range(8):
            with folder() as at:
                try:
                    if broken == "settle":
                        pending.settle = unsettled      # type: ignore[method-assign]
                    found = train(at + "/run", SEED + i, broken, copy_rate_max=1 << 20)
                finally:
                    pending.settle = settle             # type: ignore[method-assign]
            if found:
                break
        print("# without %s: %s" % (broken, found[:1]))
        assert found, (SEED, broken)


@needs("torch")
def test_replaced_before_its_copy() -> None:
    """A weight that gets other memory before its copy has begun is saved as it was; so are the
    first saves in inference mode, and with another default device"""
    transfer = sheaf.torch.transfer.Transfer
    behind = transfer.behind

    def late(self: Any) -> None:
        time.sleep(0.3)
        behind(self)

    transfer.behind = late              # type: ignore[method-assign]
    try:
        with folder() as at:
            job = Job(at + "/run", SEED)
            with job.ckpt:
                for n in (1, 2):        # in the second save the state knows of new memory
                    job.step()
                    job.device.synchronize()
                    for p in job.net.a:
                        p.data = p.data.clone()
                    with torch.inference_mode(), torch.device("meta"):
                        job.ckpt.save_async(n)
                for p in job.net.a:
                    p.data = torch.full_like(p.data, -9.0)
            assert job.wrong(1) + job.wrong(2) == [], job.wrong(2)
    finally:
        transfer.behind = behind        # type: ignore[method-assign]


@needs("torch")
def test_kinds_of_gates() -> None:
    """Gates of steps wait on the device, gate() waits on the host, and a recorded graph waits for
    nothing"""
    with folder() as at:
        job = Job(at + "/run", SEED)
        with job.ckpt:
            job.step()
            first = job.ckpt.save_async(1)
            assert first.transfer is not None
            gates = [b.gate for b in first.transfer.batches]
            assert gates == sorted(gates) and set(gates) == {-1, 0, 1}, gates
            assert [len(c) for c in first.closed] == [3, 2]     # the counts of steps
            job.device.recording = True
            job.optimizers[0].step()    # is recorded; the test undoes it
            assert [len(c) for c in first.closed] == [3, 2]
            job.device.recording = False
            first.gate()
            assert first.transfer.ready == len(gates) and not any(map(len, first.closed))
            assert not first.copied     # the library still copies the copies
            job.device.synchronize()
            assert first.result(60)
            second = job.ckpt.save_async(2)
            start = time.monotonic()
            for o in job.optimizers:
                o.step()
            assert time.monotonic() - start < 1
            assert second.result(60)


@needs("torch")
def test_host_memory() -> None:
    """The copies lie in few blocks, which later saves use again"""
    with folder() as at:
        job = Job(at + "/run", SEED)
        with job.ckpt:
            for n in range(1, 4):
                job.step()
                job.ckpt.save_async(n).gate()
                assert job.device.blocks == 1 and job.ckpt.plan.made == 1
            job.ckpt.save(4)
            assert job.device.blocks == 1
            held = job.ckpt.plan.memory
            places = sorted((t.data_ptr(), t.data_ptr() +
                             sheaf.torch.devices.span(t) * t.element_size())
                            for i, t in enumerate(held) if i in job.ckpt.plan.lies_on)
            assert all(a[1] <= b[0] for a, b in zip(places, places[1:]))


@needs("torch")
def test_no_tensor_is_kept() -> None:
    """After a save nothing keeps a tensor on a device that the trainer replaces"""
    with folder() as at:
        job = Job(at + "/run", SEED)

        def moves(name: str, change: Callable[[Any], Any], save: Callable[[], Any]) -> None:
            """Saves, and replaces the momentum of all parameters."""
            save()
            job.device.synchronize()
            gone = []
            for o in job.optimizers:
                for s in o.state.values():
                    gone.append(weakref.ref(s["exp_avg"]))
                    s["exp_avg"] = change(s["exp_avg"])
            assert not any(x() is not None for x in gone), name

        with job.ckpt:
            for n, save in enumerate((job.ckpt.save, job.ckpt.save_async) * 2):
                for i, change in enumerate((None, torch.clone, torch.detach)):
                    job.step()
                    number = 3 * n + i + 1
                    if change is None:  # the next two saves find all tensors as they were
                        save(number)
                        continue
                    moves("%s of step %d" % (save.__name__, number), change,
                          lambda: getattr(save(number), "result", lambda: None)())
            with raises(sheaf.Exists):
                job.ckpt.save(3)
            assert not job.ckpt.plan.devices and job.ckpt.plan.lies_on
        assert not [x for n in range(1, 13) for x in job.wrong(n)]


@contextmanager
def lying(device: Any) -> Iterator[None]:
    """Loads find tensors on the device, too."""
    plan = sheaf.torch.plan.Plan
    found = plan.__init__

    def made(self: Any) -> None:
        found(self)
        self.device_of = device.of

    plan.__init__ = made                # type: ignore[method-assign]
    try:
        yield
    finally:
        plan.__init__ = found           # type: ignore[method-assign]
        device.synchronize()


@needs("torch")
def test_a_device_without_streams() -> None:
    """What lies on a device without streams is copied before the save begins, for DCP, too"""
    import torch.distributed.checkpoint as dcp

    class Slow(sheaf.torch.devices.Plain):
        """Such a device."""

        def __init__(self) -> None:
            self.module = torch.cpu     # has synchronize()

        def of(self, t: Any) -> Any:
            return self if is_large(t) else None

        def synchronize(self) -> None:
            pass

    with folder() as at, lying(Slow()):
        w = torch.ones(5)
        with sheaf.Checkpointer(at + "/run") as ckpt:
            ckpt.track(nn.ParameterList([w]))
            pending = [ckpt.save_async(1)]
        with sheaf.dcp.Writer(at + "/dcp") as writer:
            future = dcp.async_save({"w": w}, storage_writer=writer.at(1), no_dist=True)
            pending += writer.opened().background.pending
            future.result()
            assert writer.opened().plan.lies_on and not writer.opened().plan.devices
        assert [p.transfer for p in pending] == [None, None]
        assert torch.equal(sheaf.load(at + "/dcp")["w"], w)


@needs("torch")
def test_dcp_of_one_tensor_with_two_names() -> None:
    """The optimizer of a tensor on a device is found under each name that a state dict has for
    it"""
    import torch.distributed.checkpoint as dcp
    device = Fake(SEED, is_large)
    w = nn.Parameter(torch.ones(5))
    o = Momentum(device, [w])
    with folder() as at, lying(device):
        with sheaf.dcp.Writer(at + "/run", optimizers=[o]) as writer:
            future = dcp.async_save({"w": w, "tied": w, "m": o.state[w]["exp_avg"]},
                                    storage_writer=writer.at(1), no_dist=True)
            pending, = writer.opened().background.pending
            o.step()
            future.result()
            assert [(b.gate, len(b.items)) for b in pending.transfer.batches] == [(0, 2)]
        found = sheaf.load(at + "/run")
        assert all(torch.equal(found[name], torch.ones(5)) for name in ("w", "tied"))
        assert not found["m"].any()


@needs("torch")
def test_one_tensor_of_several_items() -> None:
    """A weight that is stored in two types, or as several tensors, has one copy; a load leaves what
    it does not fill as it was"""
    with folder() as at:
        m = nn.ParameterList([torch.randn(12, 8), torch.randn(8, 8), torch.randn(8)])
        m.append(m[1])                  # tied
        want = [p.detach().clone() for p in m]
        device = Fake(SEED, is_large)
        with sheaf.Checkpointer(at + "/run", store_dtype=torch.bfloat16) as ckpt:
            ckpt.plan.device_of = device.of
            ckpt.track(m)
            ckpt.save_async(1).gate()
            assert len(ckpt.plan.lies_on) == 3 and len(ckpt.plan.memory) > 6
            assert len(set(map(torch.Tensor.data_ptr, ckpt.plan.memory))) == 3
            with torch.no_grad():
                for p in m:
                    p.zero_()
            with lying(device):
                ckpt.load()
            assert all(torch.equal(a, b) for a, b in zip(m, want))
            m[3] = nn.Parameter(want[3].clone())        # not tied any more
            ckpt.save_async(2).gate()
            assert len(ckpt.plan.lies_on) == 4
        more = nn.ParameterList([*map(torch.zeros_like, want), torch.full((5,), 9.0)])
        with sheaf.Checkpointer(at + "/run") as ckpt, lying(device):
            ckpt.track(more)
            ckpt.load(1, strict=False)
        assert torch.equal(more[4], torch.full((5,), 9.0))
        assert all(torch.equal(a, b) for a, b in zip(more, want))


@needs("torch")
def test_loads() -> None:
    """A load fills tensors on a device, also those with gaps, and what lies between stays"""
    with folder() as at:
        job = Job(at + "/run", SEED)
        with job.ckpt:
            for n in range(1, 3):
                job.step()
                job.ckpt.save(n)
            wide = torch.full((WIDE, 8), 7.0)
            job.net.gaps.data = wide[:, ::2]
            with lying(job.device):
                job.ckpt.load(1)
            assert torch.equal(wide[:, ::2], torch.full((WIDE, 4), -1.0))
            assert torch.equal(wide[:, 1::2], torch.full((WIDE, 4), 7.0))
            assert torch.equal(job.net.b, torch.full_like(job.net.b, -1.0))
            assert torch.equal(job.net.count1, torch.ones(WIDE))


@needs("torch")
def test_a_copy_that_fails() -> None:
    """A device that cannot copy fails that save, and not the next one"""
    for where in ("rest", "wait", "free"):
        with folder() as at:
            job = Job(at + "/run", SEED)
            with job.ckpt:
                job.step()
                good, calls = job.device, [0]
                copy, wait = good.copy, good.wait

                def bad_copy(to: Any, of: Any) -> None:
                    calls[0] += 1
                    if calls[0] == (1 if where == "free" else 2):
                        raise RuntimeError("the device is gone")
                    copy(to, of)

                def bad_wait(event: Any) -> None:
                    raise RuntimeError("the device is gone")

                if where == "wait":
                    good.wait = bad_wait        # type: ignore[method-assign]
                else:
                    good.copy = bad_copy        # type: ignore[method-assign]
                if where == "free":
                    with raises(RuntimeError, "the device is gone"):
                        job.ckpt.save_async(1)
                else:
                    handle = job.ckpt.save_async(1)
                    job.step()
                    with raises(sheaf.Failed, "the device is gone"):
                        handle.result(60)
                good.copy, good.wait = copy, wait       # type: ignore[method-assign]
                job.device.synchronize()
                if where == "free":
                    job.step()
                job.ckpt.save_async(2)
            assert not job.wrong(2) and job.ckpt.background.failure is None


@needs("torch")
def test_saves_that_are_given_up() -> None:
    """A save may be cancelled, and a run be left, before its tensors have arrived"""
    with folder() as at:
        job = Job(at + "/run", SEED)
        with job.ckpt:
            job.step()
            handle = job.ckpt.save_async(1)
            assert handle.cancel()
            with raises(sheaf.Failed, "cancelled"):
                handle.result(60)
            job.step()
            job.ckpt.save_async(2)
        assert not job.wrong(2)
        job = Job(at + "/left", SEED)
        with raises(KeyError):
            with job.ckpt:
                job.step()
                job.ckpt.save_async(1)
                raise KeyError("the trainer")
        job = Job(at + "/left", SEED)
        with job.ckpt:
            for _ in range(2):
                job.step()
            job.ckpt.save_async(2)
        assert not job.wrong(2)


@needs("torch")
def test_check() -> None:
    """check=True names a tensor on a device that changes before its gate; and a staging that is too
    small for all is enough"""
    with folder() as at:
        assert not train(at + "/run", SEED, check=True)
        for way in ("step", "gate", "result"):
            job = Job(at + "/" + way, SEED, check=True)
            with job.ckpt:
                job.step()
                handle = job.ckpt.save_async(1)
                handle.transfer.arrive()
                with torch.no_grad():
                    job.net.a[1][3, 3] += 1     # without gate()
                {"step": job.step, "gate": handle.gate, "result": lambda: None}[way]()
                with raises(sheaf.Diverged, "step 1: model/a.1", "changed before its gate"):
                    handle.result(60)
        assert not train(at + "/small", SEED, bytes_max=1 << 17)


@needs("torch")
def test_trees() -> None:
    """Trees with tensors on a device are saved again and again, and filled where they are"""
    real = sheaf.memory.of_torch

    def of_torch(t: Any, torch: Any, devices: bool = False) -> Any:
        if not devices or not getattr(t, "far", False):
            return real(t, torch, devices)
        copy = real(torch.empty(t.shape, dtype=t.dtype), torch)
        copy.home = t                   # as of a tensor whose device is not the CPU
        return copy

    def far(t: Any) -> Any:
        t.far = True
        return t

    def tree(n: float) -> dict[str, Any]:
        w = far(torch.full((4, 3), n))
        return {"w": w, "tied": w, "t": far(torch.full((6, 4), n).t()), "n": n,
                "part": sheaf.Part(far(torch.full((2, 2), n)), (2, 2)), "near": torch.full((3,), n)}

    sheaf.memory.of_torch = of_torch
    try:
        with folder() as at:
            for n in range(4):
                sheaf.save(at + "/run", tree(n))
            found, into = sheaf.load(at + "/run"), tree(9)
            assert found["tied"] is found["w"] and torch.equal(found["w"], torch.full((4, 3), 3.0))
            held = dict(into)
            sheaf.load(at + "/run", into)
            assert into["n"] == 3 and all(into[k] is held[k] for k in ("w", "tied", "t", "near"))
            for t in (into["w"], into["t"], into["part"].array, into["near"]):
                assert torch.equal(t, torch.full_like(t, 3.0))
    finally:
        sheaf.memory.of_torch = real


def ranks_train(rank: int, path: str) -> list[str]:
    """Rank 1 has nothing on its device."""
    job = Job(path, SEED, lies=is_large if rank == 0 else lambda t: False)
    with job.ckpt:
        for n in range(1, 5):
            job.step()
            job.device.synchronize()
            job.ckpt.save_async(n)
    return [x for n in range(1, 5) for x in job.wrong(n)]


@needs("torch")
def test_ranks() -> None:
    """Ranks need not all have tensors on a device"""
    with folder() as at:
        found = ranks.results(2, ranks_train, at + "/run")
        assert found == [[], []], found


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
