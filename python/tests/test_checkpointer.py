# SPDX-License-Identifier: Apache-2.0
"""sheaf.Checkpointer in one process: what it saves, gives back, and refuses."""
from __future__ import annotations

import json
import os
import random
import sys
from typing import Any, Callable

import ranks
import tap
from tap import folder, needs, raises

if tap.there("torch", "numpy"):
    import numpy
    import torch
    from torch import nn

    import sheaf
    import sheaf.torch
    from sheaf import memory


def model(seed: int = 0, width: int = 8) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 3))


def train(m: Any, optimizers: list[Any], step: int) -> float:
    g = torch.Generator().manual_seed(step)
    loss = m(torch.randn(6, 4, generator=g)).square().mean()
    loss.backward()
    for o in optimizers:
        o.step()
        o.zero_grad()
    return float(loss)


def equal(a: Any, b: Any) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def optimizers() -> dict[str, Callable[[Any], list[Any]]]:
    o = torch.optim
    return {
        "AdamW amsgrad": lambda m: [o.AdamW(m.parameters(), 0.01, amsgrad=True, foreach=False)],
        "Adam foreach": lambda m: [o.Adam(m.parameters(), 0.01, foreach=True)],
        "AdamW fused": lambda m: [o.AdamW(m.parameters(), 0.01, fused=True)],
        "SGD momentum": lambda m: [o.SGD(m.parameters(), 0.01, momentum=0.9)],
        "Adafactor": lambda m: [o.Adafactor(m.parameters(), 0.01)],
        "NAdam": lambda m: [o.NAdam(m.parameters(), 0.01)],
        "RMSprop": lambda m: [o.RMSprop(m.parameters(), 0.01, centered=True, momentum=0.5)],
        "Adamax": lambda m: [o.Adamax(m.parameters(), 0.01)],
        "Adagrad": lambda m: [o.Adagrad(m.parameters(), 0.01)],
        "tensor lr": lambda m: [o.Adam(m.parameters(), torch.tensor(0.01), foreach=False)],
        "two": lambda m: [o.AdamW(m[0].parameters(), 0.01),
                          o.SGD([*m[1].parameters(), *m[2].parameters()], 0.01, momentum=0.9)]}


@needs("torch", "numpy")
def test_optimizers_go_on() -> None:
    """Training goes on with the same bits, for each optimizer, with its state made by the load."""
    for name, make in optimizers().items():
        with folder() as at:
            m = model()
            made = make(m)
            with sheaf.Checkpointer(at + "/run") as ckpt:
                ckpt.track(m, *made)
                for step in range(3):
                    train(m, made, step)
                ckpt.save(2)
                losses = [train(m, made, step) for step in range(3, 6)]
            again = model(seed=5)
            fresh = make(again)
            with sheaf.Checkpointer(at + "/run") as ckpt:
                ckpt.track(again, *fresh)
                start = ckpt.load()
            assert start is not None and start.step == 2, name
            assert [train(again, fresh, step) for step in range(3, 6)] == losses, name
            assert equal(m.state_dict(), again.state_dict()), name
            for a, b in zip(made, fresh):
                assert [{k: type(v) for k, v in s.items()} for s in a.state.values()] == \
                    [{k: type(v) for k, v in s.items()} for s in b.state.values()], name


@needs("torch", "numpy")
def test_no_step_is_taken() -> None:
    """A save before the first step leaves optimizer and weights alone, and so does its load."""
    with folder() as at:
        m = model()
        o = torch.optim.AdamW(m.parameters(), 0.1)
        before = {k: v.clone() for k, v in m.state_dict().items()}
        with sheaf.Checkpointer(at + "/run") as ckpt:
            ckpt.track(m, o)
            ckpt.save(0)
            assert not o.state and equal(before, m.state_dict())
            train(m, [o], 0)
            ckpt.save(1)
            ckpt.load(0)
            assert not o.state and equal(before, m.state_dict())
            ckpt.load(1)
            assert len(o.state) == 6 and ckpt.plan.made == 2


@needs("torch", "numpy")
def test_groups_by_name() -> None:
    """Parameter groups are found by the names of their parameters, in any order."""
    with folder() as at:
        m = model()
        o = torch.optim.AdamW([{"params": m[0].parameters(), "lr": 0.1, "betas": (0.8, 0.9)},
                               {"params": [*m[1].parameters(), *m[2].parameters()], "lr": 0.2}])
        with sheaf.Checkpointer(at + "/run") as ckpt:
            ckpt.track(m, o)
            train(m, [o], 0)
            ckpt.save(1)
            with open(at + "/run/checkpoint-1/param_groups.json", encoding="utf-8") as f:
                groups = json.load(f)["param_groups"]
            assert groups[0]["params"] == ["0.weight", "0.bias"] and groups[0]["lr"] == 0.1
            p = torch.optim.AdamW([{"params": [*m[2].parameters(), *m[1].parameters()]},
                                   {"params": list(reversed([*m[0].parameters()]))}])
            q = torch.optim.AdamW(m.parameters())
        with sheaf.Checkpointer(at + "/run") as ckpt:
            ckpt.track(m, p)
            ckpt.load()
            assert [g["lr"] for g in p.param_groups] == [0.2, 0.1]
            assert p.param_groups[1]["betas"] == (0.8, 0.9)
            assert torch.equal(p.state[m[0].bias]["exp_avg"], o.state[m[0].bias]["exp_avg"])
        with sheaf.Checkpointer(at + "/run") as ckpt:
            ckpt.track(m, q)
            with raises(TypeError, "0.weight", "1.weight", "in two with different options"):
                ckpt.load()


@needs("torch")
def test_groups_with_names() -> None:
    """Groups that torch gave the names of their parameters can be joined, and divided"""
    def groups(model: Any, few: bool) -> Any:
        named = list(model.named_parameters())
        return torch.optim.AdamW(named if few else [{"params": named[:1]}, {"params": named[1:]}],
                                 lr=0.1)

    with folder() as at:
        for few in (False, True):
            model = torch.nn.Linear(2, 3)
            with sheaf.Checkpointer("%s/%s" % (at, few)) as ckpt:
                ckpt.track(model, groups(model, few))
                ckpt.save(1)
            other = groups(model, not few)
            names = [g["param_names"] for g in other.param_groups]
            assert names == ([["weight"], ["bias"]] if few else [["weight", "bias"]]), names
            other.param_groups[0]["lr"] = 0.5
            with sheaf.Checkpointer("%s/%s" % (at, few)) as ckpt:
                ckpt.track(model, other)
                assert ckpt.load() is not None
            assert names == [g["param_names"] for g in other.param_groups]
            assert {g["lr"] for g in other.param_groups} == {0.1}


@needs("torch", "numpy")
def test_plan_is_kept() -> None:
    """The state of the library is kept while the layout is the same, also if memory moves."""
    with folder() as at:
        m = model()
        with sheaf.Checkpointer(at + "/run") as ckpt:
            ckpt.track(m)
            ckpt.save(1)
            ckpt.save(2)
            m[0].weight.data = m[0].weight.data + 1
            ckpt.save(3)
            assert ckpt.plan.made == 1
            moved = m[0].weight.clone()
            m[0].weight.data = m[0].weight.data.t().contiguous().t()    # other strides
            ckpt.save(4)
            assert ckpt.plan.made == 2
            m[2] = nn.Linear(8, 5)
            ckpt.save(5)
            assert ckpt.plan.made == 3
            m[2] = nn.Linear(8, 3)
            for step in (3, 4):
                m[0].weight.data.zero_()
                ckpt.load(step)
                assert torch.equal(m[0].weight, moved)
            with raises(sheaf.Mismatch, "2."):
                ckpt.load(5)


@needs("torch", "numpy")
def test_store_dtype() -> None:
    """F32 masters come back exactly with and without store_dtype, and from a plain checkpoint."""
    with folder() as at:
        m = model()
        with sheaf.Checkpointer(at + "/both", store_dtype=torch.bfloat16) as ckpt:
            ckpt.track(m)
            ckpt.save(1)
        with sheaf.Checkpointer(at + "/plain") as ckpt:
            ckpt.track(m)
            ckpt.save(1)
        for path in ("/both", "/plain"):
            for kind in (None, torch.bfloat16, torch.float32):
                again = model(seed=3)
                with sheaf.Checkpointer(at + path, store_dtype=kind, readonly=True) as ckpt:
                    ckpt.track(again)
                    ckpt.load()
                assert equal(m.state_dict(), again.state_dict()), (path, kind)
        with sheaf.Run(at + "/both", readonly=True).checkpoint() as c:
            assert c.find("0.weight").dtype == "BF16" and c.find("1.running_mean").dtype == "F32"
        half = model(seed=3).to(torch.bfloat16)
        with sheaf.Checkpointer(at + "/both", readonly=True) as ckpt:
            ckpt.track(half)
            with raises(sheaf.Mismatch, "1.running_mean", "F32", "BF16"):
                ckpt.load()
            found = ckpt.load(convert=True)
            assert found is not None and "model/1.running_mean" in found.converted
            assert torch.equal(half[0].weight, m[0].weight.to(torch.bfloat16))


class Extra(nn.Module if tap.there("torch", "numpy") else object):    # type: ignore[misc]
    """A module with extra state, a buffer that is not persistent, and a tied parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.calls: Any = {"n": 0}

    def get_extra_state(self) -> Any:
        return self.calls

    def set_extra_state(self, state: Any) -> None:
        self.calls = state


@needs("torch", "numpy")
def test_names() -> None:
    """Tied weights are stored once, wrappers leave no trace, and extra state comes back."""
    with folder() as at:
        m = Extra()
        m.calls = {"n": 4, "seen": (1, 2), "t": torch.arange(3)}
        with sheaf.Checkpointer(at + "/run") as ckpt:
            ckpt.track(torch.compile(m))
            ckpt.save(1)
        with sheaf.Run(at + "/run", readonly=True).checkpoint() as c:
            there = {t.name: t.tied_to for t in c.tensors()}
        assert there == {"a.weight": None, "a.bias": None, "b.weight": "a.weight",
                         "b.bias": None}, there
        again = Extra()
        with sheaf.Checkpointer(at + "/run") as ckpt:
            ckpt.track(again)
            ckpt.load()
        assert again.calls["n"] == 4 and again.calls["seen"] == (1, 2)
        assert torch.equal(again.calls["t"], torch.arange(3)) and again.b.weight is again.a.weight
        assert equal(m.state_dict(keep_vars=True) | {"_extra_state": torch.zeros(1)},
                     again.state_dict(keep_vars=True) | {"_extra_state": torch.zeros(1)})


class Plain(torch.Tensor if tap.there("torch", "numpy") else object):    # type: ignore[misc]
    """A subclass that cannot be taken apart."""


@needs("torch")
def test_wrong_things_are_refused_at_once() -> None:
    """A step or a directory of DCP in place of a run, a dict in place of a model, a bare metric"""
    import torch.distributed.checkpoint as dcp
    with folder() as at:
        with raises(ValueError, "run@5 is a step", "takes the run"):
            sheaf.Checkpointer(at + "/run@5")
        dcp.save({"w": torch.ones(2)}, checkpoint_id=at + "/dcp", no_dist=True)
        with raises(ValueError, "torch.distributed.checkpoint", "another folder"):
            sheaf.Checkpointer(at + "/dcp")
        assert not os.path.exists(at + "/dcp/.sheaf")
        with sheaf.Checkpointer(at + "/run") as ckpt:
            for wrong in ({"a": torch.ones(1)}, 3):
                with raises(TypeError, type(wrong).__name__, "torch.nn.Module"):
                    ckpt.track(wrong)                   # type: ignore[arg-type]
            ckpt.track(model())
            with raises(TypeError, "metrics=0.5", "dict"):
                ckpt.save(1, 0.5)                       # type: ignore[arg-type]


@needs("torch", "numpy")
def test_tensors_that_are_refused() -> None:
    """What has no plain memory is refused by name; subclasses are taken apart."""
    from torch.testing._internal.two_tensor import TwoTensor
    with folder() as at:
        m = nn.Module()
        m.p = nn.Parameter(TwoTensor(torch.ones(2, 3), torch.zeros(2, 3)))
        with sheaf.Checkpointer(at + "/two") as ckpt:
            ckpt.track(m)
            ckpt.save(1)
            m.p.data.a.fill_(7)
            ckpt.load()
            assert torch.equal(m.p.data.a, torch.ones(2, 3))
        cases: list[tuple[Any, str]] = [
            (torch.ones(3, 1).expand(3, 4), "expanded"), (torch.ones(2, 2).to_sparse(), "sparse"),
            (torch.empty(2, device="meta"), "meta"), (torch.ones((1,) * 9), "9 dimensions"),
            (torch.ones(2, dtype=torch.complex64).conj(), "resolve_conj"),
            (torch.ones(2).as_subclass(Plain), "Plain"),
            (torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8), "qint8")]
        with sheaf.Checkpointer(at + "/run") as ckpt:
            bad = nn.Module()
            ckpt.track(bad)
            for t, word in cases:
                bad.register_buffer("odd", t)
                with raises(TypeError, "odd", word):
                    ckpt.save(1)
            bad.register_buffer("odd", torch.ones(4))
            ckpt.save(1)


@needs("torch", "numpy")
def test_sentences() -> None:
    """Whatever is wrong is said with the name of the tensor, the object or the argument."""
    with folder() as at:
        m = model()
        o = torch.optim.AdamW(m.parameters())
        with sheaf.Checkpointer(at + "/run") as ckpt:
            ckpt.track(m)
            assert ckpt.load() is None and "no checkpoint" in repr(ckpt)
            with raises(sheaf.NotFound):
                ckpt.load(5)
            with raises(ValueError, "train loss"):
                ckpt.save(1, {"train loss": 1})
            with raises(TypeError, "list"):
                ckpt.save(1, {"x": []})
            ckpt.save(1, {"x": 1, "y": torch.tensor(0.5), "z": "abc", "n": float("nan")})
            found = ckpt.load()
            assert found is not None
            assert str(found.metrics) == "{'n': nan, 'x': 1, 'y': 0.5, 'z': 'abc'}"
            with raises(sheaf.Exists, "1"):
                ckpt.save(1)
            with raises(TypeError, "no state_dict", "CountedLoader"):
                ckpt.track(loader=[1, 2])
            with raises(TypeError, "first argument is an optimizer"):
                ckpt.track(o)
            with raises(TypeError, "no optimizer"):
                ckpt.track(None, m)
            with raises(ValueError, "prefix"):
                ckpt.track(model())
            with raises(ValueError, "latest"):
                ckpt.load(1, fallback=True)
        with raises(sheaf.Invalid, "closed"):
            ckpt.save(2)
        with raises(ValueError, "keep_last"):
            sheaf.Checkpointer(at + "/run", best="x")
        wide = model(width=9)
        with sheaf.Checkpointer(at + "/run", readonly=True) as ckpt:
            ckpt.track(wide)
            with raises(sheaf.Mismatch, "0.", "[8"):
                ckpt.load()
            with raises(sheaf.Invalid, "readonly"):
                ckpt.save(3)
        more = nn.Sequential(*model(), nn.Linear(3, 3))
        with sheaf.Checkpointer(at + "/run", readonly=True) as ckpt:
            ckpt.track(more)
            with raises(sheaf.Mismatch, "model/3.bias", "model/3.weight", "strict=False"):
                ckpt.load()
            kept = more[3].weight.clone()
            found = ckpt.load(strict=False)
            assert found is not None and len(found.missing) == 2
            assert torch.equal(more[3].weight, kept)
        with sheaf.Checkpointer(at + "/run", readonly=True) as ckpt:
            ckpt.track(model()[:2])
            with raises(sheaf.Mismatch, "model/2.bias", "strict=False", "ignore="):
                ckpt.load()
            found = ckpt.load(strict=False)
            assert found is not None and len(found.unexpected) == 2
        with sheaf.Checkpointer(at + "/run", readonly=True) as ckpt:
            other = model()
            ckpt.track(other, torch.optim.AdamW(other.parameters()))
            with raises(sheaf.Mismatch, "no state of an optimizer", "only='model'"):
                ckpt.load()
            assert ckpt.load(only="model") is not None
            assert ckpt.load(only=["model/0.*"]) is not None
        with sheaf.Checkpointer(at + "/run") as ckpt:
            ckpt.track(model(), o)
            with raises(LookupError, "in no model that is tracked"):
                ckpt.save(4)


@needs("torch", "numpy")
def test_failed_load_leaves_the_optimizer() -> None:
    """A load that fails leaves the optimizer as it was, also where it had to build its state."""
    with folder() as at:
        m = model()
        o = torch.optim.AdamW(m.parameters(), 0.1)
        with sheaf.Checkpointer(at + "/run") as ckpt:
            ckpt.track(m, o)
            train(m, [o], 0)
            ckpt.save(1)
        again = nn.Sequential(*model(), nn.Linear(3, 3))
        fresh = torch.optim.AdamW(again.parameters(), 0.2)
        with sheaf.Checkpointer(at + "/run") as ckpt:
            ckpt.track(again, fresh)
            with raises(sheaf.Mismatch, "3.bias"):
                ckpt.load()
        assert not fresh.state and fresh.param_groups[0]["lr"] == 0.2


def taken(t: Any) -> Any:
    found = memory.of(t.detach())
    assert found is not None
    return found


def put(at: str, optimizer: dict[str, Any], notes: dict[str, str], m: Any) -> None:
    """Saves step 1 as another program does: a model, tensors of an optimizer, and notes."""
    with sheaf.Run(at, create=True) as run, sheaf.State() as state:
        for name, t in m.state_dict().items():
            state.add(name, taken(t))
        for name, t in optimizer.items():
            state.add(name, taken(t), family="optimizer")
        with run.begin(1, state) as save:
            for key, text in notes.items():
                save.note(key, text)
            save.commit()


def moments(names: list[tuple[str, Any]]) -> dict[str, Any]:
    return {"%s/%s" % (n, kind): torch.full_like(p, 0.5) for n, p in names
            for kind in ("moment1_0", "moment2_0")}


@needs("torch", "numpy")
def test_state_of_other_parameters() -> None:
    """The state of an optimizer whose names are none of the parameters' is not passed over."""
    with folder() as at:
        m = nn.Linear(4, 3)
        put(at + "/run", moments([("0", m.weight), ("1", m.bias)]), {"adam.step": "7"}, m)
        o = torch.optim.AdamW(m.parameters())
        with sheaf.Checkpointer(at + "/run", readonly=True) as ckpt:
            ckpt.track(m, o)
            for only in (None, ["model", "optimizer"], ["optimizer"]):
                with raises(sheaf.Mismatch, "optimizer/0/moment1_0", "only='model'"):
                    ckpt.load(only=only)
            assert not o.state and ckpt.load(only="model") is not None
            assert ckpt.load(strict=False) is not None and not o.state


@needs("torch", "numpy")
def test_count_from_the_note() -> None:
    """Moments without a count of their own have that of the note adam.step; without that they are
    refused, because torch's next step would fail."""
    with folder() as at:
        m = nn.Linear(4, 3)
        named = list(m.named_parameters())
        put(at + "/run", moments(named), {"adam.step": "7"}, m)
        put(at + "/uncounted", moments(named), {}, m)
        for fused in (False, True):
            o = torch.optim.AdamW(m.parameters(), fused=fused)
            for trained in (False, True):
                if trained:
                    m(torch.ones(2, 4)).sum().backward()
                    o.step()
                with sheaf.Checkpointer(at + "/run", readonly=True) as ckpt:
                    ckpt.track(m, o)
                    assert ckpt.load() is not None
                for p in m.parameters():
                    step = o.state[p]["step"]
                    assert step.dtype == torch.float32 and step.item() == 7
                    assert (o.state[p]["exp_avg"] == 0.5).all()
        with sheaf.Checkpointer(at + "/uncounted", readonly=True) as ckpt:
            ckpt.track(m, o)
            with raises(sheaf.Mismatch, "weight/step", "adam.step", "only='model'"):
                ckpt.load()
            assert o.state[m.bias]["step"].item() == 7
            o.state[m.weight]["step"].fill_(3)
            assert ckpt.load(strict=False) is not None
            assert o.state[m.weight]["step"].item() == 3 and o.state[m.bias]["step"].item() == 7
        for only in (["model", "optimizer/*"], ["optimizer/weight/*"]):
            o = torch.optim.AdamW(m.parameters())
            with sheaf.Checkpointer(at + "/run", readonly=True) as ckpt:
                ckpt.track(m, o)
                assert ckpt.load(only=only) is not None
            assert o.state[m.weight]["step"].item() == 7
        s = torch.optim.SGD(m.parameters(), 0.1)
        with sheaf.Checkpointer(at + "/run", readonly=True) as ckpt:
            ckpt.track(m, s)
            assert ckpt.load() is not None and "step" not in s.state[m.weight]
        own = nn.Parameter(torch.ones(2))
        o = torch.optim.AdamW([*m.parameters(), own])
        with sheaf.Checkpointer(at + "/uncounted", readonly=True) as ckpt:
            ckpt.track(m, o)
            with raises(sheaf.Mismatch, "weight/step"):
                ckpt.load()



@needs("torch", "numpy")
def test_wrong_arguments() -> None:
    """A wrong argument is named with its value, and with what it must be."""
    with folder() as at:
        for given, kind, *words in (
                ({"flags": 1}, TypeError, "no option 'flags'"),
                ({"keep_lst": 1}, TypeError, "keep_last"),
                ({"keep_last": True}, ValueError, "keep_last=True", "at least 0"),
                ({"keep_last": 2, "best": 3}, TypeError, "best=3", "'max'"),
                ({"group": "x"}, TypeError, "group='x'", "sheaf.group"),
                ({"files": {"a": 3}}, TypeError, "files: 'a' is a int", "bytes"),
                ({"on_sigterm": True}, ValueError, "on_sigterm=True", "seconds")):
            with raises(kind, *words):
                sheaf.Checkpointer(at + "/run", **given)
        with sheaf.Checkpointer(at + "/run") as ckpt:
            with raises(sheaf.Invalid, "nothing is tracked", "track(model, optimizer)"):
                ckpt.save(1)
            ckpt.track(model())
            ckpt.save(1)
        with sheaf.Checkpointer(at + "/run", readonly=True) as ckpt:
            with raises(sheaf.Invalid, "nothing is tracked"):
                ckpt.load()
        with sheaf.Checkpointer(at + "/run", metrics=True) as ckpt:
            ckpt.track(model())
            ckpt.save(2)
        assert os.path.getsize(at + "/run/.sheaf/metrics.jsonl") > 100


class Tracker:
    """Random streams as model-parallel trainers keep them."""

    def __init__(self, seed: int) -> None:
        self.states = {"model": torch.Generator().manual_seed(seed).get_state()}

    def get_states(self) -> Any:
        return self.states

    def set_states(self, states: Any) -> None:
        self.states = states


def drawn(g: Any, n: Any) -> list[Any]:
    return [random.random(), numpy.random.rand(), float(torch.rand(1)),
            float(torch.rand(1, generator=g)), float(n.random())]


@needs("torch", "numpy")
def test_random_streams() -> None:
    """Random streams go on where they were: torch, NumPy, Python, and those that are tracked."""
    with folder() as at:
        g, n, t = torch.Generator().manual_seed(3), numpy.random.default_rng(4), Tracker(5)
        with sheaf.Checkpointer(at + "/run") as ckpt:
            ckpt.track(model(), rng={"g": g, "n": n, "t": t})
            drawn(g, n)
            ckpt.save(1)
            want = drawn(g, n)
            state = t.states["model"]
            t.states = Tracker(6).states
            ckpt.load()
            assert drawn(g, n) == want and torch.equal(t.states["model"], state)
            ckpt.load(only="model")
            assert drawn(g, n) != want
            with raises(TypeError, "rng='x'"):
                ckpt.track(rng={"x": 3})


@needs("torch", "numpy")
def test_scheduler_scaler_loader() -> None:
    """Schedulers, a scaler, a counted loader and a model with a prefix come back as they were."""
    data = torch.utils.data.TensorDataset(torch.arange(20))

    def loader() -> Any:
        return sheaf.torch.CountedLoader(torch.utils.data.DataLoader(data, 3, shuffle=True))

    with folder() as at:
        m, n = model(), model(seed=1)
        o = torch.optim.SGD(m.parameters(), 0.1)
        warm = torch.optim.lr_scheduler.LinearLR(o, total_iters=4)
        s = torch.optim.lr_scheduler.SequentialLR(
            o, [warm, torch.optim.lr_scheduler.CosineAnnealingLR(o, 10)], [4])
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        batches = loader()
        with sheaf.Checkpointer(at + "/run", files={"note.txt": b"hello"}) as ckpt:
            ckpt.track(m, o, scheduler=s, scaler=scaler, loader=batches)
            ckpt.track(n, prefix="critic.")
            torch.manual_seed(9)
            taken = iter(batches)
            for step in range(4):
                next(taken)
                o.step()
                s.step()
            ckpt.save(3)
            rest = [b[0].tolist() for b in taken] + [float(torch.rand(1))]
            rates = []
            for step in range(3):
                s.step()
                rates.append(s.get_last_lr())
        o = torch.optim.SGD(m.parameters(), 0.1)
        warm = torch.optim.lr_scheduler.LinearLR(o, total_iters=4)
        s = torch.optim.lr_scheduler.SequentialLR(
            o, [warm, torch.optim.lr_scheduler.CosineAnnealingLR(o, 10)], [4])
        scaler, batches, other = torch.amp.GradScaler("cpu"), loader(), model(seed=8)
        with sheaf.Checkpointer(at + "/run", readonly=True) as ckpt:
            ckpt.track(m, o, scheduler=s, scaler=scaler, loader=batches)
            with raises(sheaf.Mismatch, "model/critic."):
                ckpt.load()
            ckpt.track(other, prefix="critic.")
            torch.manual_seed(1)
            ckpt.load()
        assert equal(other.state_dict(), n.state_dict())
        assert [b[0].tolist() for b in batches] + [float(torch.rand(1))] == rest
        assert scaler.get_scale() == 64.0
        after = []
        for step in range(3):
            s.step()
            after.append(s.get_last_lr())
        assert after == rates
        with open(at + "/run/checkpoint-3/note.txt", "rb") as f:
            assert f.read() == b"hello"


@needs("torch", "numpy")
def test_a_loader_with_a_generator() -> None:
    """A counted loader whose batches are drawn from a stream of its own gives the rest of them"""
    data = torch.utils.data.TensorDataset(torch.arange(20))

    def loader(seed: int) -> Any:
        return sheaf.torch.CountedLoader(torch.utils.data.DataLoader(
            data, 3, shuffle=True, generator=torch.Generator().manual_seed(seed)))

    with folder() as at, sheaf.Checkpointer(at + "/run") as ckpt:
        batches = loader(1)
        ckpt.track(model(), loader=batches)
        taken = iter(batches)
        first = [next(taken)[0].tolist() for _ in range(3)]
        ckpt.save(1)
        rest = [[b[0].tolist() for b in taken], [b[0].tolist() for b in batches]]
        for number in (1, 2):
            again = loader(5)
            with sheaf.Checkpointer(at + "/run", readonly=True) as reader:
                reader.track(model(), loader=again)
                reader.load(number)
                if number == 1:         # it is saved before the next batch
                    batches.load_state_dict(again.state_dict())
                    ckpt.save(2)
            assert [[b[0].tolist() for b in again], [b[0].tolist() for b in again]] == rest, first


def watched(rank: int, at: str, tqdm: bool, shown: Any) -> str:
    """What a terminal shows of a save that is halfway, and then ends."""
    import ctypes
    import fcntl
    import pty
    import struct
    import termios
    from sheaf.binding import library
    from sheaf.torch import progress
    theirs, mine = pty.openpty()
    fcntl.ioctl(mine, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    progress.SECONDS = 0.0
    if not tqdm:
        sys.modules["tqdm.auto"] = None     # type: ignore[assignment]
    stat = library().new("sheaf_stat", phase=library().SHEAF_PHASE_WRITING, to_write=2 * 10**9)
    with os.fdopen(mine, "w") as sys.stderr:
        bar = progress.Progress(at, None, shown)
        for stat.written in (10**9, 2 * 10**9):
            bar(ctypes.pointer(stat))
        bar.end()
    sys.stderr = sys.__stderr__
    os.set_blocking(theirs, False)
    text = b""
    try:
        while True:
            text += os.read(theirs, 1 << 16)
    except OSError:
        return text.decode()


@needs("torch")
def test_progress() -> None:
    """A terminal shows how far a call is, by tqdm or by a line of text; progress= decides"""
    assert "/a: saving:  50 %, 1.0 of 2.0 GB" in ranks.results(1, watched, "/a", False, None)[0]
    assert ranks.results(1, watched, "/a", False, False)[0] == ""
    if tap.there("tqdm"):
        assert "/a: saving: " in ranks.results(1, watched, "/a", True, None)[0]
    calls: list[int] = []
    with folder() as at, sheaf.Checkpointer(at, progress=lambda stat: calls.append(1)) as ckpt:
        ckpt.track(nn.Linear(300, 300))
        for step in range(100):
            ckpt.save(step)
            if calls:
                break
        assert calls and ckpt.shown is not None


@needs("torch", "numpy")
def test_retention() -> None:
    """The newest checkpoints, the best, and those that are marked are kept."""
    with folder() as at:
        m = model()
        with sheaf.Checkpointer(at + "/run", keep_last=2, best=("score", "max"),
                                grace_s=-1) as ckpt:
            ckpt.track(m)
            for step, score in enumerate((1.0, 9.0, 3.0, 2.0, 4.0, 5.0)):
                ckpt.save(step, {"score": score})
                if step == 2:
                    ckpt.mark(2, "keep")
        with sheaf.Checkpointer(at + "/run", readonly=True) as ckpt:
            assert ckpt.steps == [1, 2, 4, 5], ckpt.steps


@needs("torch", "numpy")
def test_damage() -> None:
    """A damaged checkpoint is named; fallback=True takes the one before, and sets it aside."""
    with folder() as at:
        m = model()
        o = torch.optim.AdamW(m.parameters(), 0.1)
        with sheaf.Checkpointer(at + "/run") as ckpt:
            ckpt.track(m, o)
            for step in (1, 2):
                train(m, [o], step)
                ckpt.save(step)
                if step == 1:
                    then = {k: v.clone() for k, v in m.state_dict().items()}
            assert ckpt.verify() == []
        name = at + "/run/checkpoint-2/model-00001-of-00001.safetensors"
        with open(name, "r+b") as f:
            f.seek(os.path.getsize(name) - 1)
            last = f.read(1)
            f.seek(-1, 1)
            f.write(bytes([last[0] ^ 1]))
        with sheaf.Checkpointer(at + "/run") as ckpt:
            ckpt.track(m, o)
            assert any("model-00001-of-00001" in x for x in ckpt.verify())
            assert ckpt.verify(1) == []
            with raises(sheaf.Corrupt, "2"):
                ckpt.load()
            found = ckpt.load(fallback=True)
            assert found is not None and found.step == 1 and ckpt.steps == [1]
            assert equal(m.state_dict(), then) and o.state[m[0].weight]["step"] == 1
            train(m, [o], 2)
            ckpt.save(2)
            ckpt.rewind(1)
            assert ckpt.steps == [1]


@needs("torch", "numpy")
def test_broken_documents() -> None:
    """A document that this version does not know is refused with its name."""
    from sheaf.torch import document
    value = {"a": [1, 2.5, None, True, "x"], "t": torch.arange(6).reshape(2, 3).t(),
             "c": 1 + 2j, "b": b"bytes", "n": numpy.float32(3), "inf": float("inf"),
             3: (torch.bfloat16, torch.zeros(0), numpy.arange(4)), "z": torch.ones(2) * 1j,
             "half": torch.ones(2, dtype=torch.bfloat16), "f8": torch.ones(1).to(
                 torch.float8_e4m3fn)}
    again = document.loads(document.dumps(value, "x"), "x")
    assert repr(again) == repr(value), again
    with raises(sheaf.UnknownFormat, "trainer.json", "newer"):
        document.loads(b'{"format": "sheaf.document", "version": 9, "tree": 1}', "trainer.json")
    with raises(sheaf.Corrupt, "trainer.json"):
        document.loads(b'{"format"', "trainer.json")
    with raises(sheaf.UnknownFormat, "trainer.json", "'later'", "newer"):
        document.loads(b'{"format": "sheaf.document", "version": 1, "tree": {"later": 1}}',
                       "trainer.json")
    with raises(TypeError, "trainer", "lambda"):
        document.dumps({"lambda": lambda: 1}, "trainer")
    with raises(ValueError, "32 MiB"):
        document.dumps([torch.zeros(9 << 20)], "trainer")


if __name__ == "__main__":
    if tap.there("torch"):
        torch.set_num_threads(1)
    sys.exit(tap.run(globals()))
