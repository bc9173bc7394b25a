# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism that a trainer makes by hand, as Megatron does: plain tensors on each rank."""
from __future__ import annotations

import os
import sys
from typing import Any

import ranks
import tap
from tap import folder, needs, raises

if tap.there("torch"):
    import torch
    from torch import nn

    import sheaf
    import sheaf.torch
    from sheaf.torch import Flat, GateUp, Placed, QKV, Split
    from sheaf.torch.layout import Box, Unsupported

HIDDEN, HEADS, PAIRS, SIZE, WIDE, WORDS = 12, 8, 2, 3, 20, 26
PADDED = 28                             # words on four ranks: 7 each, and 2 of them are padding


def whole(seed: int) -> dict[str, Any]:
    """All tensors of a model as transformers names them."""
    g = torch.Generator().manual_seed(seed)
    shapes = {"embed.weight": (WORDS, HIDDEN), "norm.weight": (HIDDEN,),
              "attn.q_proj.weight": (HEADS * SIZE, HIDDEN), "attn.q_proj.bias": (HEADS * SIZE,),
              "attn.o_proj.weight": (HIDDEN, HEADS * SIZE),
              "mlp.gate_proj.weight": (WIDE, HIDDEN), "mlp.up_proj.weight": (WIDE, HIDDEN),
              "mlp.down_proj.weight": (HIDDEN, WIDE)}
    for x in "kv":
        shapes["attn.%s_proj.weight" % x] = (PAIRS * SIZE, HIDDEN)
        shapes["attn.%s_proj.bias" % x] = (PAIRS * SIZE,)
    return {n: torch.randn(shape, generator=g) for n, shape in shapes.items()}


def cut(full: dict[str, Any], rank: int, n: int, interleaved: bool) -> dict[str, Any]:
    """The tensors of a rank, by another way than the package goes: one head after another."""
    def heads(x: str, kind: str) -> list[Any]:
        t = full["attn.%s_proj.%s" % (x, kind)]
        return list(t.split(SIZE))

    found = {"norm.weight": full["norm.weight"].clone(),
             "attn.o_proj.weight": full["attn.o_proj.weight"].chunk(n, 1)[rank].clone(),
             "mlp.down_proj.weight": full["mlp.down_proj.weight"].chunk(n, 1)[rank].clone(),
             "mlp.gate_up.weight": torch.cat([full["mlp.%s_proj.weight" % x].chunk(n)[rank]
                                              for x in ("gate", "up")])}
    words = torch.cat([full["embed.weight"], torch.full((PADDED - WORDS, HIDDEN), 7.0)])
    found["embed.weight"] = words.chunk(n)[rank].clone()
    own = [h for h in range(HEADS) if h * n // HEADS == rank]
    per = HEADS // PAIRS
    pairs = sorted({h // per for h in own})
    for kind in ("weight", "bias"):
        q, k, v = heads("q", kind), heads("k", kind), heads("v", kind)
        if interleaved:
            rows = [t for p in pairs for t in [q[h] for h in own if h // per == p] + [k[p], v[p]]]
        else:
            rows = [q[h] for h in own] + [k[p] for p in pairs] + [v[p] for p in pairs]
        found["attn.qkv." + kind] = torch.cat(rows)
    return found


class Local(nn.Module):
    """Parameters with dots in their names, as submodules have them."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        super().__init__()
        for name, t in tensors.items():
            at: Any = self
            for part in name.split(".")[:-1]:
                if not hasattr(at, part):
                    at.add_module(part, nn.Module())
                at = getattr(at, part)
            at.register_parameter(name.split(".")[-1], nn.Parameter(t.clone()))


def declared(rank: int, n: int, interleaved: bool) -> dict[str, Any]:
    tp = {"rank": rank, "ranks": n}
    return {"embed.weight": Split(0, size=WORDS, **tp), "*.qkv.*":
            QKV(heads=HEADS, kv_heads=PAIRS, interleaved=interleaved, **tp),
            "*.o_proj.weight": Split(1, **tp), "*.gate_up.weight": GateUp(**tp),
            "*.down_proj.weight": Split(1, **tp)}


def trains(rank: int, path: str, n: int, interleaved: bool, steps: list[int]) -> list[str]:
    """Loads what is there, and trains on; the gradients are parts of the same whole ones."""
    m = Local(cut(whole(0 if 0 in steps else 99), rank, n, interleaved))
    o = torch.optim.AdamW(m.parameters(), 0.01)
    said: list[str] = []
    with sheaf.Checkpointer(path, timeout=30, check=True) as ckpt:
        ckpt.track(m, o, parts=declared(rank, n, interleaved))
        start = ckpt.load()
        assert (start is None) == (0 in steps) and (start is None or not start.missing)
        for step in steps:
            grads = cut(whole(1000 + step), rank, n, interleaved)
            for name, p in m.named_parameters():
                p.grad = grads[name].clone()
            o.step()
            ckpt.save_async(step).result()
        want = cut(reference(steps[-1])[0], rank, n, interleaved)
        for name, p in m.named_parameters():
            words = p[:max(0, WORDS - rank * p.shape[0])] if name == "embed.weight" else p
            if not torch.equal(words, want[name][:words.shape[0]]):
                said.append(name)
    return said


def reference(last: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What one process without any split has after the last step, and its first moments."""
    m = Local(whole(0))
    o = torch.optim.AdamW(m.parameters(), 0.01)
    for step in range(last + 1):
        for name, p in m.named_parameters():
            p.grad = whole(1000 + step)[name]
        o.step()
    return ({n: p.detach() for n, p in m.named_parameters()},
            {n: o.state[p]["exp_avg"] for n, p in m.named_parameters()})


def goes_on(at: str, interleaved: bool) -> None:
    last = -1
    for n in (2, 1, 4, 2):
        steps = [last + 1, last + 2]
        said = ranks.results(n, trains, at + "/run", n, interleaved, steps)
        assert not any(said), (n, said)
        last = steps[-1]
        weights, moments = reference(last)
        with sheaf.open("%s/run@%d" % (at, last), framework="pt") as f:
            names = {x for x in f.keys() if "/" not in x}
            assert names == set(weights), names ^ set(weights)
            for name, t in weights.items():
                assert torch.equal(f.get_tensor(name), t), (n, name)
                moment = f.get_tensor("optimizer/%s/moment1_0" % name)
                assert torch.equal(moment, moments[name]), (n, name)


@needs("torch")
def test_megatron() -> None:
    """Split by hand over 2, 1, 4 and 2 ranks, fused and with shared key and value heads, a job goes
    on bit for bit, and the checkpoint has the names and the tensors of a model without splits"""
    with folder() as at:
        goes_on(at, True)


@needs("torch")
def test_blocks() -> None:
    """So it is where queries, keys and values of a rank are in blocks"""
    with folder() as at:
        goes_on(at, False)


def ranged(rank: int, path: str, n: int, save: bool) -> list[Any]:
    """ZeRO by hand: a buffer of all ranks, padded, of which each has a part."""
    whole = torch.arange(35.0) + 1
    each = -(-35 // n)
    mine = torch.cat([whole, torch.full((each * n - 35,), -1.0)])[rank * each:(rank + 1) * each]
    m = nn.Module()
    m.weight = nn.Parameter(mine.clone() if save else torch.zeros(each))
    o = torch.optim.AdamW(m.parameters(), 0.1)
    padding = max(0, min(each, (rank + 1) * each - 35))
    with sheaf.Checkpointer(path, timeout=30) as ckpt:
        ckpt.track(m, o, parts={"weight": Flat((5, 7), rank * each, last=padding)})
        if save:
            m.weight.grad = m.weight.detach().clone()
            o.step()
            ckpt.save(1)
        else:
            ckpt.load()
    there = each - padding
    return [m.weight.detach()[:there].tolist(), o.state[m.weight]["exp_avg"][:there].tolist()]


@needs("torch")
def test_ranges_by_hand() -> None:
    """A range of a tensor, declared by hand, is loaded as other ranges; padding is not stored"""
    with folder() as at:
        saved = ranks.results(4, ranged, at + "/run", 4, True)
        for n in (3, 1):
            loaded = ranks.results(n, ranged, at + "/run", n, False)
            for i in (0, 1):
                assert sum((x[i] for x in loaded), []) == sum((x[i] for x in saved), []), n
        with sheaf.open(at + "/run", framework="pt") as f:
            assert f["weight"].shape == (5, 7)


@needs("torch")
def test_declarations_that_do_not_fit() -> None:
    """A declaration that fits no tensor is refused with its name"""
    with folder() as at, sheaf.Checkpointer(at + "/run") as ckpt:
        for parts, words in (({"q.weight": Split(0, 0, 1)}, ("no tensor", "q.weight")),
                             ({"weight": Split(2, 0, 1)}, ("weight: it has shape", "dimension 2")),
                             ({"weight": QKV(0, 1, heads=4, kv_heads=2)}, ("4 heads",)),
                             ({"weight": GateUp(0, 1)}, ("2 projections",)),
                             ({"weight": Split(0, 0, 1, size=4)}, ("3 of 4",)),
                             ({"weight": Flat((9,), 0)}, ("range of items",))):
            ckpt.tracked = sheaf.torch.tracked.Tracked()
            ckpt.track(nn.Linear(3, 3), parts=parts)        # type: ignore[arg-type]
            with raises(Exception, *words):
                ckpt.save(1)
        for wrong in (lambda: Split(0, 2, 2), lambda: QKV(0, 3, heads=8, kv_heads=2),
                      lambda: GateUp(-1, 2)):
            with raises(ValueError, "ranks"):
                wrong()


@needs("torch")
def test_another_shape() -> None:
    """What is declared of a tensor is asked again when its shape or its strides have changed"""
    m: Any = nn.Module()
    m.w = nn.Parameter(torch.arange(8.0).reshape(4, 2))
    m.register_buffer("b", torch.arange(4.0))
    m.register_buffer("mlp", torch.arange(8.0).reshape(4, 2))
    with folder() as at, sheaf.Checkpointer(at) as ckpt:
        ckpt.track(m, parts={"[wb]": Split(0, 0, 1), "mlp": GateUp(0, 1)})

        def proven(step: int) -> None:
            ckpt.save(step)
            with sheaf.open("%s@%d" % (at, step), framework="pt") as f:
                assert torch.equal(f["w"][...], m.w) and torch.equal(f["b"][...], m.b), step
                both = torch.cat([f["gate_proj"][...], f["up_proj"][...]])
                assert torch.equal(both, m.mlp), step

        proven(1)
        m.w.data = torch.arange(100.0, 116.0).reshape(8, 2)     # a larger vocabulary
        m.b = torch.arange(50.0, 60.0)
        proven(2)
        m.mlp = torch.arange(8.0).reshape(2, 4).t()
        proven(3)
        around = torch.zeros(16)
        m.b = around[:2]                # what lies behind it is not part of it
        with raises(Exception, "b"):
            ckpt.load(1)
        assert not around.any()
        proven(4)


@needs("torch")
def test_tied() -> None:
    """One tensor under two names is the same parts of as many stored tensors, or is refused"""
    m: Any = nn.Module()
    for name in "xy":
        m.add_module(name, nn.Linear(2, 4, bias=False))
    m.y.weight = m.x.weight
    first, second = (GateUp(0, 1, names=(x + "1", x + "2")) for x in "xy")
    with folder() as at, sheaf.Checkpointer(at) as ckpt:
        for one, other in (first, None), (None, second), (first, Split(0, 0, 1)):
            ckpt.tracked = sheaf.torch.tracked.Tracked()
            ckpt.track(m, parts=lambda n, t: one if n[0] == "x" else other)
            with raises(Unsupported, "y.weight", "parts="):
                ckpt.save(1)
        ckpt.tracked = sheaf.torch.tracked.Tracked()
        ckpt.track(m, parts={"x.weight": first, "y.weight": second})
        ckpt.save(1)
        with sheaf.open(at, framework="pt") as f:
            for x in "xy":
                both = torch.cat([f["%s%d.weight" % (x, i)][...] for i in (1, 2)])
                assert torch.equal(both, m.x.weight), x


@needs("torch")
def test_other_strides() -> None:
    """State of an optimizer may have other strides than its parameter, which is a view of rows"""
    def made(fill: float) -> Any:
        m: Any = nn.Module()
        m.register_parameter("abc", nn.Parameter(torch.full((6, 8), fill)[:, :4]))
        return m, torch.optim.Adam(m.parameters(), 0.1)

    parts = {"abc": GateUp(0, 1, names=("a", "b", "c"))}
    m, o = made(1.0)
    m.abc.grad = torch.arange(24.0).reshape(6, 4)
    o.step()
    with folder() as at, sheaf.Checkpointer(at) as ckpt:
        for step in 1, 2:
            state = o.state[m.abc]
            if step == 2:
                state["exp_avg"] = state["exp_avg"].t().contiguous().t()
            assert state["exp_avg"].stride() != m.abc.stride()
            ckpt.tracked = sheaf.torch.tracked.Tracked()
            ckpt.track(m, o, parts=parts)
            ckpt.save(step)
            with sheaf.open(at, framework="pt") as f:
                found = torch.cat([f["optimizer/%s/moment1_0" % x][...] for x in "abc"])
                assert torch.equal(found, state["exp_avg"]), step
            m2, o2 = made(0.0)
            ckpt.tracked = sheaf.torch.tracked.Tracked()
            ckpt.track(m2, o2, parts=parts)
            ckpt.load()
            assert torch.equal(o2.state[m2.abc]["exp_avg"], state["exp_avg"]), step
            assert torch.equal(m2.abc, m.abc), step


class Says:
    """A declaration that returns these parts of any tensor."""

    def __init__(self, *placed: Any) -> None:
        self.said = placed

    def placed(self, name: str, t: Any) -> Any:
        return self.said


@needs("torch")
def test_outside() -> None:
    """No box and no range is outside of the tensor that it is declared of, or of the stored one"""
    def one(shape: Any, *box: Any) -> Any:
        return Says(Placed("w", shape, (Box(*box),)))

    memory = torch.arange(16.0)
    rows = memory.view(4, 4)[:, :2]
    for t, how, words in (
            (memory[:8], one((16,), (0,), (16,), 0), ("of this rank",)),
            (memory[4:12], one((8,), (0,), (8,), -4), ("of this rank",)),
            (memory[4:12], one((8,), (0,), (8,), 1), ("of this rank",)),
            (memory[:8], one((4, 2), (0, 0), (4, 2), 0), ("of this rank",)),
            (memory[:8], one((8,), (-1,), (8,), 0), ("stored tensor",)),
            (memory[:8], one((6,), (0,), (8,), 0), ("stored tensor",)),
            (rows, one((4, 2), (0, 0), (4, 2), 4), ("of this rank",)),
            (rows, one((3, 2), (0, 0), (3, 2), 2), ("of this rank",)),      # between two rows
            (rows, one((2, 4), (0, 0), (2, 4), 0), ("of this rank",)),
            (memory[4:12], Says(Placed("w", (8,), (), (0, 8, -4))), ("8 items", "item -4")),
            (memory[:8], Flat((8,), -2, last=2), ("item -2",)),
            (memory[:8], Flat((8,), 0, last=20), ("-12 items",))):
        m: Any = nn.Module()
        m.register_buffer("w", t)
        with folder() as at, sheaf.Checkpointer(at + "/run") as ckpt:
            ckpt.track(m, parts={"w": how})
            with raises(Unsupported, "w (family model)", *words):
                ckpt.save(1)
            ckpt.tracked = sheaf.torch.tracked.Tracked()
            ckpt.track(m, parts={"w": Split(0, 0, 1)})
            ckpt.save(2)


if __name__ == "__main__":
    if tap.there("torch"):
        torch.set_num_threads(1)
    sys.exit(tap.run(globals()))
