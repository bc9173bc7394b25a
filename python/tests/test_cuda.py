# SPDX-License-Identifier: Apache-2.0
"""Saves and loads of tensors on a GPU, with real CUDA. Skipped where there is none."""
from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from typing import Any, Callable

import tap
from tap import Skip, folder, needs, raises

if tap.there("torch"):
    import torch
    from torch import nn

    import sheaf
    import sheaf.torch

STEPS = 8
GPU = "cuda"


def cuda(claim: Callable[[], None]) -> Callable[[], None]:
    """Marks a claim that needs a GPU."""
    def tried() -> None:
        if not torch.cuda.is_available():
            raise Skip("no CUDA device")
        claim()
    tried.__doc__ = claim.__doc__
    return needs("torch")(tried)


class Net(nn.Module if tap.there("torch") else object):     # type: ignore[misc]
    """Linear layers, buffers that a forward pass changes, and a transposed parameter."""

    def __init__(self, width: int = 64, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(width, width),
                                                    nn.BatchNorm1d(width), nn.ReLU())
                                      for _ in range(layers)])
        self.turned = nn.Parameter(torch.randn(width, 2 * width).t().contiguous().t())
        self.scale = nn.Parameter(torch.randn(()))

    def forward(self, x: Any) -> Any:
        return (self.layers(x) @ self.turned).sum() * self.scale


def made(seed: int = 0, width: int = 64, **opts: Any) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    m = Net(width).to(GPU)
    return m, torch.optim.AdamW(m.parameters(), 1e-3, **opts)


def step(m: Any, o: Any, n: int, scaler: Any = None) -> Any:
    """One step on batch n, without waiting for the GPU."""
    g = torch.Generator().manual_seed(n)
    loss = m(torch.randn(8, m.turned.shape[0], generator=g).to(GPU, non_blocking=True)).square()
    if scaler is None:
        loss.backward()
        o.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(o)
        scaler.update()
    o.zero_grad()
    return loss.detach()


def copies(m: Any, o: Any) -> dict[str, Any]:
    """What a checkpoint must have, copied on the GPU in the order of the stream."""
    found = {n: t.detach().clone() for n, t in m.state_dict().items()}
    names = {id(p): n for n, p in m.named_parameters()}
    keys = {"exp_avg": "moment1_0", "exp_avg_sq": "moment2_0"}
    for p, state in o.state.items():
        for k, v in state.items():
            found["optimizer/%s/%s" % (names[id(p)], keys.get(k, k))] = v.detach().clone()
    return found


def differing(path: str, number: int, want: dict[str, Any]) -> list[str]:
    with sheaf.open("%s/checkpoint-%d" % (path, number), framework="pt") as f:
        return ["step %d: %s" % (number, n) for n, t in want.items()
                if not torch.equal(f.get_tensor(n), t.cpu())]


def busy(ms: float) -> None:
    """Keeps the current stream busy for about that long."""
    torch.cuda._sleep(int(ms * 1.5e6))


def each_step(path: str, between: Callable[[Any, int], None] = lambda m, n: None,
              scaled: bool = False, **opts: Any) -> None:
    m, o = made(**opts)
    scaler = torch.amp.GradScaler(GPU, init_scale=4.0) if scaled else None
    wanted: dict[int, dict[str, Any]] = {}
    with sheaf.Checkpointer(path) as ckpt:
        ckpt.track(m, o, scaler=scaler)
        for n in range(STEPS):
            busy(5)
            step(m, o, n, scaler)
            wanted[n] = copies(m, o)
            busy(5)
            ckpt.save_async(n)
            between(m, n)               # changes buffers at once
        made_ = ckpt.plan.made
    odd = [x for n, want in wanted.items() for x in differing(path, n, want)]
    assert not odd and made_ <= 2, (odd[:5], made_)


@cuda
def test_each_step() -> None:
    """Each save has the bits of its step: foreach, fused, capturable, one by one, scaled"""
    def forward(m: Any, n: int) -> None:
        m(torch.ones(8, 64, device=GPU) * n)

    for opts in ({"foreach": True}, {"fused": True}, {"capturable": True, "foreach": True},
                 {"foreach": False}, {"scaled": True}, {"scaled": True, "fused": True}):
        with folder() as at:
            each_step(at + "/run", forward, **opts)     # type: ignore[arg-type]


@cuda
def test_another_stream() -> None:
    """The training may run on a stream of its own"""
    with folder() as at, torch.cuda.stream(torch.cuda.Stream()):
        each_step(at + "/run")


@cuda
def test_nothing_blocks() -> None:
    """save_async and the gate of step() return before a large copy is done"""
    m = nn.Linear(16384, 16384, bias=False, device=GPU)     # 1 GiB, and 3 with its moments
    o = torch.optim.AdamW(m.parameters(), 1e-3, fused=True)
    m.weight.grad = torch.ones_like(m.weight)
    with folder() as at, sheaf.Checkpointer(at + "/run", keep_last=1) as ckpt:
        ckpt.track(m, o)
        for n in range(3):
            o.step()
            torch.cuda.synchronize()
            busy(20)
            start = time.perf_counter()
            handle = ckpt.save_async(n)
            saved = time.perf_counter() - start
            done = handle.transfer.ready == len(handle.transfer.batches)
            start = time.perf_counter()
            o.step()
            gated = time.perf_counter() - start
            late = handle.transfer.ready < len(handle.transfer.batches)
            start = time.perf_counter()
            handle.gate()
            arrived = time.perf_counter() - start
            assert handle.result(300)
            print("# save_async %.2f ms, step() %.2f ms, then gate() %.1f ms"
                  % (1e3 * saved, 1e3 * gated, 1e3 * arrived))
        assert not done and late, (done, late)
        assert saved < 0.5 * arrived and gated < 0.5 * arrived, (saved, gated, arrived)
        want = float(m.weight.detach()[0, 0])
        ckpt.load()
        torch.cuda.synchronize()
        assert float(m.weight.detach()[0, 0]) != want    # the one of before the last step


def graphs(at: str) -> None:
    """Records a graph while the thread of a save works, and saves between replays."""
    streams, recording = sheaf.torch.devices.Streams, threading.Event()
    assert sheaf.torch.devices.exchange_of("cuda") is not None
    relax = streams.relax

    def held(self: Any) -> None:
        recording.wait(30)
        relax(self)

    streams.relax = held                # type: ignore[method-assign]
    m, o = made(capturable=True)
    x = torch.randn(8, 64, device=GPU)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            o.zero_grad()
            m(x).square().backward()
            o.step()
    torch.cuda.current_stream().wait_stream(side)
    wanted: dict[int, dict[str, Any]] = {}
    with sheaf.Checkpointer(at + "/run") as ckpt:
        ckpt.track(m, o)
        for n in range(100, 104):       # the later ones copy into memory that is there
            wanted[n] = copies(m, o)
            handle = ckpt.save_async(n)
            o.zero_grad()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                before = handle.transfer.ready
                m(x).square().backward()
                recording.set()         # all that the thread does comes now
                time.sleep(0.1)
                o.step()
            assert not before and handle.transfer.ready == len(handle.transfer.batches)
            recording.clear()
        recording.set()
        for n in range(104, 110):
            handle.gate()
            graph.replay()
            wanted[n] = copies(m, o)
            handle = ckpt.save_async(n)
    odd = [y for n, want in wanted.items() for y in differing(at + "/run", n, want)]
    assert not odd, odd[:5]


@cuda
def test_load() -> None:
    """What was saved on a CPU loads on a GPU, and back, with its random streams"""
    with folder() as at:
        m, o = made()
        for n in range(3):
            step(m, o, n)
        with sheaf.Checkpointer(at + "/run") as ckpt:
            ckpt.track(m, o)
            ckpt.save(1)
            drawn = torch.rand(5, device=GPU)
            after = [float(step(m, o, n)) for n in range(3, 6)]
        again, fresh = made(seed=4)
        with sheaf.Checkpointer(at + "/run") as ckpt:
            ckpt.track(again, fresh)
            ckpt.load()
            assert torch.equal(drawn, torch.rand(5, device=GPU))
            assert [float(step(again, fresh, n)) for n in range(3, 6)] == after
            ckpt.load()
        host = Net()
        cpu = torch.optim.AdamW(host.parameters(), 1e-3)
        with sheaf.Checkpointer(at + "/run") as ckpt:
            ckpt.track(host, cpu)
            ckpt.load()
            assert all(torch.equal(a, b.cpu()) for a, b in
                       zip(host.state_dict().values(), again.state_dict().values()))
            assert all(t.device.type == "cpu" for s in cpu.state.values() for t in s.values())
            ckpt.save(2)
        third, new = made(seed=5)
        with sheaf.Checkpointer(at + "/run") as ckpt:
            ckpt.track(third, new)
            assert ckpt.load().step == 2
            assert all(torch.equal(a, b) for a, b in
                       zip(third.state_dict().values(), again.state_dict().values()))


@cuda
def test_memory_that_cannot_be_locked() -> None:
    """Without page-locked memory saves are slow and right"""
    said: list[Any] = []
    real = torch.empty

    def refused(*args: Any, **opts: Any) -> Any:
        if opts.get("pin_memory"):
            raise RuntimeError("CUDA error: out of memory")
        return real(*args, **opts)

    handler = logging.Handler()
    handler.emit = said.append          # type: ignore[method-assign]
    logging.getLogger("sheaf").addHandler(handler)
    torch.empty = refused               # type: ignore[assignment]
    try:
        with folder() as at:
            each_step(at + "/run")
    finally:
        torch.empty = real
        logging.getLogger("sheaf").removeHandler(handler)
    assert any("page-locked" in r.getMessage() for r in said)


@cuda
def test_a_large_save_at_each_step() -> None:
    """Saves follow one another faster than they can be copied"""
    m, o = made(width=2048, fused=True)
    wanted: dict[int, dict[str, Any]] = {}
    with folder() as at:
        with sheaf.Checkpointer(at + "/run") as ckpt:
            ckpt.track(m, o)
            for n in range(6):
                step(m, o, n)
                wanted[n] = copies(m, o)
                ckpt.save_async(n)
        odd = [x for n, want in wanted.items() for x in differing(at + "/run", n, want)]
        assert not odd, odd[:5]


@cuda
def test_tree() -> None:
    """sheaf.save takes tensors on a GPU, and sheaf.load fills them"""
    with folder() as at:
        w = torch.randn(64, 48, device=GPU)
        tree = {"w": w, "tied": w, "t": w.t(), "half": w.to(torch.bfloat16), "n": 3,
                "c": torch.randn(4, dtype=torch.complex64, device=GPU),
                "list": [torch.arange(5, device=GPU), torch.zeros(0, device=GPU)]}
        sheaf.save(at + "/run", tree)
        found = sheaf.load(at + "/run")
        assert found["w"].device.type == "cpu" and torch.equal(found["w"], w.cpu())
        assert found["tied"] is found["w"]
        into = {"w": torch.zeros_like(w), "t": torch.zeros(64, 48, device=GPU).t(),
                "half": torch.zeros_like(tree["half"]), "n": 0, "c": torch.zeros_like(tree["c"]),
                "list": [torch.zeros(5, dtype=torch.int64, device=GPU), torch.ones(0, device=GPU)]}
        into["tied"] = into["w"]
        sheaf.load(at + "/run", into)
        assert into["n"] == 3 and into["w"].device.type == GPU
        for k in ("w", "t", "half", "c"):
            assert torch.equal(into[k], tree[k]), k
        assert torch.equal(into["list"][0], tree["list"][0])
        with sheaf.open(at + "/run", framework="pt", device="cuda:0") as f:
            assert torch.equal(f["w"][3:9], w[3:9])


def fsdp(at: str) -> None:
    """One rank of FSDP2, over nccl and gloo."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method="file://%s/store" % at, rank=0,
                            world_size=1)
    torch.cuda.set_device(0)
    torch.manual_seed(0)
    m = nn.Sequential(*[nn.Linear(128, 128) for _ in range(4)]).to(GPU)
    for layer in m:
        fully_shard(layer)
    fully_shard(m)
    o = torch.optim.AdamW(m.parameters(), 1e-3, fused=True)
    wanted: dict[int, dict[str, Any]] = {}

    def one(n: int) -> None:
        m(torch.ones(4, 128, device=GPU) * n).square().mean().backward()
        o.step()
        o.zero_grad()

    with sheaf.Checkpointer(at + "/run") as ckpt:
        ckpt.track(m, o)
        for n in range(4):
            one(n)
            wanted[n] = {k: t.full_tensor().detach().clone() for k, t in m.state_dict().items()}
            ckpt.save_async(n)
            m(torch.ones(4, 128, device=GPU))
    odd = [x for n, want in wanted.items() for x in differing(at + "/run", n, want)]
    assert not odd, odd
    with sheaf.Checkpointer(at + "/run") as ckpt:
        ckpt.track(m, o)
        ckpt.load(2)
        assert all(torch.equal(t.full_tensor(), wanted[2][k]) for k, t in m.state_dict().items())
    dist.destroy_process_group()


def killed(at: str) -> None:
    """A job that is killed in the middle of saves, until it has made all its steps."""
    m, o = made(fused=True)
    with sheaf.Checkpointer(at + "/run", keep_last=2) as ckpt:
        ckpt.track(m, o)
        start = ckpt.load()
        first = start.step + 1 if start else 0
        for n in range(first, 12):
            step(m, o, n)
            ckpt.save_async(n)
            time.sleep(0.05)
            if n == first + 4:
                os.kill(os.getpid(), 9)
    torch.save({k: t.cpu() for k, t in copies(m, o).items()}, at + "/end")


def alone(what: str, at: str) -> int:
    """Runs a function of this file in a process of its own."""
    done = subprocess.run([sys.executable, os.path.abspath(__file__), what, at],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    if done.returncode not in (0, -9):
        raise AssertionError(done.stdout[-3000:])
    return done.returncode


@cuda
def test_graphs() -> None:
    """A whole step in a CUDA graph, which is recorded while a save is in flight, with gate() before
    each replay"""
    with folder() as at:
        alone("graphs", at)


@cuda
def test_fsdp() -> None:
    """FSDP2 on one GPU, with nccl and gloo beside it"""
    with folder() as at:
        alone("fsdp", at)


@cuda
def test_killed() -> None:
    """A job that is killed again and again ends with the bits of one that was not"""
    with folder() as at:
        times = 1
        while alone("killed", at) != 0:
            times += 1
            assert times < 20
        assert times > 1
        m, o = made(fused=True)
        for n in range(12):
            step(m, o, n)
        end = torch.load(at + "/end")
        assert all(torch.equal(t.cpu(), end[k]) for k, t in copies(m, o).items())


@cuda
def test_check() -> None:
    """check=True names a tensor on a GPU that changes before its gate"""
    m, o = made()
    with folder() as at, sheaf.Checkpointer(at + "/run", check=True) as ckpt:
        ckpt.track(m, o)
        step(m, o, 0)
        assert ckpt.save_async(0).result()
        handle = ckpt.save_async(1)
        handle.transfer.arrive()
        m.turned.data.add_(1)           # by hand, and without gate()
        with raises(sheaf.Diverged, "turned"):
            handle.result()
        step(m, o, 1)
        assert ckpt.save_async(2).result()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        {"fsdp": fsdp, "graphs": graphs, "killed": killed}[sys.argv[1]](sys.argv[2])
        sys.exit(0)
    sys.exit(tap.run(globals()))
