# SPDX-License-Identifier: Apache-2.0
"""What a Checkpointer saves and gives back where it is easy to miss something."""
from __future__ import annotations

import sys
from typing import Any

import tap
from tap import folder, needs, raises

if tap.there("torch"):
    import torch
    from torch import nn

    import sheaf
    import sheaf.torch


def trained(m: Any, lr: float = 0.1) -> Any:
    """An Adam of a module that took a step."""
    o = torch.optim.Adam(m.parameters(), lr)
    for p in m.parameters():
        p.grad = torch.ones_like(p)
    o.step()
    return o


def saved(path: str, *tracked: Any, **options: Any) -> None:
    """A checkpoint of these objects, as step 0."""
    with sheaf.Checkpointer(path, **options) as ckpt:
        ckpt.track(*tracked)
        ckpt.save(0)


@needs("torch")
def test_what_was_none_is_saved_later() -> None:
    """A parameter or buffer that was None is saved once it is set"""
    m = nn.Linear(2, 2)
    m.register_buffer("mean", None)
    m.register_parameter("scale", None)
    with folder() as at:
        with sheaf.Checkpointer(at) as ckpt:
            ckpt.track(m)
            ckpt.save(0)
            m.mean = torch.ones(3)
            m.scale = nn.Parameter(torch.ones(2))
            ckpt.save(1)
            assert sheaf.open(at).keys() == ["bias", "mean", "scale", "weight"]
            m.mean = None
            ckpt.save(2)
            assert sheaf.open(at).keys() == ["bias", "scale", "weight"]
            m.scale = None
            m.register_parameter("other", nn.Parameter(torch.ones(2)))
            ckpt.save(3)
            assert sheaf.open(at).keys() == ["bias", "other", "weight"]


@needs("torch")
def test_parts_of_an_optimizer() -> None:
    """only= with a pattern for optimizer state loads that, and nothing else"""
    m = nn.Linear(2, 2)
    with folder() as at:
        saved(at, m, trained(m))
        for only, keys in ("optimizer/*", "exp_avg exp_avg_sq step"), \
                ("optimizer", "exp_avg exp_avg_sq step"), ("optimizer/*/moment1_0", "exp_avg"), \
                (["optimizer/weight/*"], "exp_avg exp_avg_sq step"):
            other = nn.Linear(2, 2)
            w = other.weight.detach().clone()
            o = torch.optim.Adam(other.parameters(), 0.7)
            with sheaf.Checkpointer(at, readonly=True) as ckpt:
                ckpt.track(other, o)
                ckpt.load(only=only)
            assert " ".join(sorted(o.state[other.weight])) == keys, (only, o.state)
            assert (other.bias in o.state) == (isinstance(only, str)), only
            assert o.state[other.weight]["exp_avg"].any() and torch.equal(other.weight, w)
            assert o.param_groups[0]["lr"] == (0.1 if only in ("optimizer", "optimizer/*") else 0.7)


@needs("torch")
def test_a_pattern_must_match() -> None:
    """only= with a pattern that means nothing is an error"""
    m = nn.Linear(2, 2)
    with folder() as at:
        saved(at, m, trained(m))
        with sheaf.Checkpointer(at, readonly=True) as ckpt:
            ckpt.track(m)
            for only in "modle", "model/wieght*", "scheduler", "scheduler/x", "loader":
                with raises(sheaf.Invalid, "only=%r" % only, "model, optimizer, rng"):
                    ckpt.load(only=["model", only])
            for only in "rng", "model/b*", "optimizer", "*/bias":
                ckpt.load(only=only)


@needs("torch")
def test_state_that_only_the_job_has() -> None:
    """strict=False leaves the optimizer state of a parameter that the checkpoint lacks"""
    m = nn.Linear(2, 2)
    with folder() as at:
        saved(at, m, torch.optim.Adam(m.parameters()))
        more = nn.Linear(2, 2)
        more.register_parameter("new", nn.Parameter(torch.ones(3)))
        o = trained(more)
        with sheaf.Checkpointer(at, readonly=True) as ckpt:
            ckpt.track(more, o)
            ckpt.load(strict=False)
        assert more.new in o.state and more.weight not in o.state


class Tied(nn.Module if tap.there("torch") else object):    # type: ignore[misc]
    """Two names of one weight, in either order."""

    def __init__(self, names: tuple[str, str] = ("embed", "head")) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(3, 3, bias=False))
        self.head.weight = self.embed.weight


@needs("torch")
def test_tied_weights_and_masters() -> None:
    """Tied weights load with and without masters, in either order of their names, bit for bit"""
    for kept, store in (torch.bfloat16, None), (torch.bfloat16, torch.bfloat16), (None, None), \
            (None, torch.bfloat16):
        for names in ("embed", "head"), ("head", "embed"):
            m = Tied()
            with folder() as at:
                saved(at, m, store_dtype=kept)
                other = Tied(names)
                with sheaf.Checkpointer(at, readonly=True, store_dtype=store) as ckpt:
                    ckpt.track(other)
                    ckpt.load()
                assert torch.equal(other.head.weight, m.embed.weight), (kept, store, names)
                assert other.head.weight is other.embed.weight


@needs("torch")
def test_one_name_twice() -> None:
    """Two tensors of one name are refused, and a parameter that two optimizers have"""
    first = nn.ModuleDict({"critic": nn.Linear(2, 2)})
    second = nn.Linear(2, 2)
    with folder() as at, sheaf.Checkpointer(at) as ckpt:
        ckpt.track(first)
        ckpt.track(second, prefix="critic.")
        with raises(sheaf.torch.Unsupported, "model/critic.weight", "prefix"):
            ckpt.save(0)
    with folder() as at:
        saved(at, second, trained(second))
        with sheaf.Checkpointer(at) as ckpt:
            ckpt.track(second, torch.optim.SGD(second.parameters(), 0.1),
                       torch.optim.Adagrad(second.parameters(), 0.2))
            with raises(sheaf.torch.Unsupported, "weight is in two optimizers", "SGD", "Adagrad"):
                ckpt.save(1)
            with raises(sheaf.torch.Unsupported, "weight is in two optimizers"):
                ckpt.load()


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
