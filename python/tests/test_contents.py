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


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
