# SPDX-License-Identifier: Apache-2.0
"""FSDP1's flat parameters, ZeRO, and ranges and splits that a trainer makes by hand."""
from __future__ import annotations

import sys
import warnings
from typing import Any

import ranks
import tap
from tap import folder, needs

if tap.there("torch"):
    import torch
    from torch import nn

    import sheaf
    import sheaf.torch
    from small_model import bits, digests


class Net(nn.Module):
    """Layers of odd sizes, a buffer and a tied weight."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(5, 7)
        self.norm = nn.BatchNorm1d(7)
        self.first = nn.Linear(7, 3)
        self.second = nn.Sequential(nn.Linear(3, 11, bias=False), nn.Linear(11, 7))
        self.head = nn.Linear(7, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Any) -> Any:
        return self.head(self.second(self.first(self.norm(self.embed(x)))))


def wrapped(layout: str, seed: int) -> Any:
    """The model as "one", in "fsdp1" with or without "original" parameters, or in "fsdp2"."""
    m: Any = Net(seed)
    if layout.startswith("fsdp1"):
        from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
        strategy = ShardingStrategy.NO_SHARD if "whole" in layout else \
            ShardingStrategy.SHARD_GRAD_OP if "grad" in layout else ShardingStrategy.FULL_SHARD

        warnings.simplefilter("ignore")

        def wrap(x: Any) -> Any:
            return FullyShardedDataParallel(x, use_orig_params="original" in layout,
                                            sharding_strategy=strategy,
                                            device_id=torch.device("cpu"))
        m.second = wrap(m.second)
        m = wrap(m)
    elif layout == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        fully_shard(m.second, mesh=mesh)
        fully_shard(m, mesh=mesh)
    elif layout == "ddp":
        m = nn.parallel.DistributedDataParallel(m)
    return m


def adam(layout: str, m: Any) -> Any:
    if layout == "ddp":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        return ZeroRedundancyOptimizer(m.parameters(), optimizer_class=torch.optim.AdamW, lr=0.1)
    return torch.optim.AdamW(m.parameters(), 0.1)


def step(m: Any, o: Any, number: int) -> None:
    x = torch.randint(0, 5, (8,), generator=torch.Generator().manual_seed(number))
    m(x).square().mean().backward()
    o.step()
    o.zero_grad()


def gathered(m: Any, o: Any, original: bool) -> dict[str, str]:
    """Digests of all tensors, as torch itself gathers them from FSDP1. [collective]

    For original parameters torch 2.13 gives the values of exp_avg_sq as exp_avg, on the CPU. So
    the pieces of the ranks are put together here, which are in the order of the ranks.
    """
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    with FSDP.summon_full_params(m, writeback=False):
        found = {"model/" + n.replace("_fsdp_wrapped_module.", ""): bits(p.detach().clone())
                 for n, p in m.named_parameters()}
    if not original:
        for name, values in FSDP.optim_state_dict(m, o)["state"].items():
            found.update({"0/%s/%s" % (name, k): bits(v) for k, v in values.items()})
        return found
    mine = {"0/%s/%s" % (n.replace("_fsdp_wrapped_module.", ""), k): v
            for n, p in m.named_parameters() for k, v in o.state.get(p, {}).items()}
    every: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(every, mine)
    for name in {name for x in every for name in x}:
        pieces = [x[name] for x in every if name in x]
        found[name] = bits(pieces[0] if name.endswith("/step") else torch.cat(pieces))
    return found


def saves(rank: int, path: str, layout: str, store: Any) -> dict[str, str]:
    m = wrapped(layout, 1)
    o = adam(layout, m)
    with sheaf.Checkpointer(path, timeout=30, store_dtype=store, check=True) as ckpt:
        ckpt.track(m, o)
        ckpt.save(0)                    # before the first step there is no state
        for number in range(1, 4):
            step(m, o, number)
        ckpt.save(3)
        for number in range(4, 6):
            step(m, o, number)
            ckpt.save_async(number)
        want = gathered(m, o, "original" in layout) if "fsdp1" in layout else {}
        made = ckpt.plan.made
        step(m, o, 6)
        ckpt.save(6)
        assert ckpt.plan.made == made   # the same memory, planned once
    return want


def loads(rank: int, path: str, layout: str, store: Any) -> dict[str, str]:
    """What a plain process has after a load of step 5, and after it was saved again."""
    m = wrapped(layout, 2)
    o = adam(layout, m)
    if layout != "one":
        with torch.no_grad():
            m.eval()(torch.arange(5))   # FSDP1 leaves gathered parameters behind
            m.train()
    with sheaf.Checkpointer(path, timeout=30, store_dtype=store) as ckpt:
        ckpt.track(m, o)
        found = ckpt.load(5)
        assert found is not None and not found.missing and not found.unexpected, found
        if layout != "one":
            ckpt.rewind(5)
            ckpt.save(10)
            step(m, o, 6)               # with what was loaded
            ckpt.save(11)
            return {}
        return digests(m, [o])


def goes_round(at: str, saver: str, n: int, loaders: list[tuple[str, int]],
               store: Any = None) -> None:
    """Saved by `saver` on n ranks; loaded elsewhere, saved there, and compared in one process."""
    import shutil
    there = ranks.results(n, saves, at + "/run", saver, store)[0]
    want = ranks.results(1, loads, at + "/run", "one", store)[0]
    assert len(want) == 12 + 3 * 8, sorted(want)
    assert len(there) in (0, 8 + 3 * 8) and there.items() <= want.items(), \
        [x for x in there if want.get(x) != there[x]]
    for loader, k in loaders:
        other = "%s/%s-%d" % (at, loader, k)
        shutil.copytree(at + "/run", other)
        ranks.results(k, loads, other, loader, store)
        got = ranks.results(1, again, other, store)[0]
        assert got == want, (loader, [x for x in want if got.get(x) != want[x]])


def again(rank: int, path: str, store: Any) -> dict[str, str]:
    m = wrapped("one", 3)
    o = adam("one", m)
    with sheaf.Checkpointer(path, readonly=True, store_dtype=store) as ckpt:
        ckpt.track(m, o)
        ckpt.load(10)
        return digests(m, [o])


@needs("torch")
def test_fsdp1() -> None:
    """FSDP1 on 4 ranks is loaded by FSDP1 on 2 and 3, by FSDP2 and by one process, bit for bit"""
    with folder() as at:
        goes_round(at, "fsdp1", 4, [("fsdp1", 2), ("fsdp1 original", 3), ("fsdp2", 2),
                                    ("fsdp1 whole", 2)])


@needs("torch")
def test_fsdp1_with_original_parameters() -> None:
    """So it is with use_orig_params=True, with masters beside BF16"""
    with folder() as at:
        goes_round(at, "fsdp1 original", 4, [("fsdp1 original grad", 2), ("fsdp1", 3)],
                   torch.bfloat16)


@needs("torch")
def test_fsdp2_to_fsdp1() -> None:
    """FSDP1 loads what FSDP2 and DDP with ZeRO have saved, and ZeRO what FSDP1 has"""
    with folder() as at:
        goes_round(at + "/a", "fsdp2", 2, [("fsdp1", 4)])
        goes_round(at + "/b", "ddp", 3, [("fsdp1 original", 2), ("ddp", 2)])


def counts(rank: int, path: str, layout: str) -> dict[str, int]:
    """What an optimizer keeps beside tensors, which each rank has for other parameters."""
    class Counts(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            super().step()
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        self.state[p]["count"] = self.state[p].get("count", 0) + p.shape[0]

    m = wrapped(layout, 1)
    if layout == "ddp":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        o: Any = ZeroRedundancyOptimizer(m.parameters(), optimizer_class=Counts, lr=0.1)
    else:
        o = Counts(m.parameters(), 0.1)
    with sheaf.Checkpointer(path, timeout=30) as ckpt:
        ckpt.track(m, o)
        if layout == "one":
            ckpt.load()
            return {n: o.state[p]["count"] for n, p in m.named_parameters()}
        step(m, o, 1)
        ckpt.save(1)
    return {}


@needs("torch")
def test_what_is_no_tensor() -> None:
    """State that is no tensor is saved by each rank that has it, with ZeRO and with FSDP1"""
    for layout in ("ddp", "fsdp1 original"):
        with folder() as at:
            ranks.results(3, counts, at + "/run", layout)
            found = ranks.results(1, counts, at + "/run", "one")[0]
            assert len(found) == 8 and all(found.values()), found


if __name__ == "__main__":
    if tap.there("torch"):
        torch.set_num_threads(1)
    sys.exit(tap.run(globals()))
