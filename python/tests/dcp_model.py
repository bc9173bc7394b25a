# SPDX-License-Identifier: Apache-2.0
"""A small module in any layout, for tests of sheaf.dcp: tied, uneven, with buffers."""
from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                               parallelize_module)


class Net(nn.Module):
    """Sizes that no number of ranks divides; the head is the embedding."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 12)
        self.up = nn.Linear(12, 10)
        self.down = nn.Linear(10, 12)
        self.norm = nn.BatchNorm1d(12)
        self.head = nn.Linear(12, 13, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x: Any) -> Any:
        h = self.embed(x)
        return self.head(self.norm(h + self.down(torch.relu(self.up(h)))))


def model(layout: str, seed: int = 0, tied: bool = True) -> Any:
    """layout: "one", "ddp", "fsdp", "hsdp" (2 x 2) or "2x2" (FSDP2 x tensor parallelism)."""
    torch.manual_seed(seed)
    made = Net(tied)
    if layout in ("one", "ddp"):
        return made
    ranks = torch.distributed.get_world_size()
    if layout == "fsdp":
        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp",))
    elif layout == "hsdp":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "dp"))
    else:
        both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(made, both["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        mesh = both["dp"]
    fully_shard(made, mesh=mesh)
    return made


def optimizer(m: Any) -> Any:
    return torch.optim.AdamW(m.parameters(), lr=1e-2)


def train(m: Any, o: Any, step: int) -> None:
    """One step; all ranks take the same batch."""
    g = torch.Generator().manual_seed(step)
    x = torch.randint(0, 13, (6,), generator=g)
    nn.functional.cross_entropy(m(x), x).backward()
    o.step()
    o.zero_grad()


def state_of(m: Any, o: Any, **more: Any) -> dict[str, Any]:
    """The state dict that a trainer gives DCP."""
    model_state, optim_state = get_state_dict(m, o)
    return {"model": model_state, "optim": optim_state, **more}


def give_back(m: Any, o: Any, state: dict[str, Any]) -> None:
    set_state_dict(m, o, model_state_dict=state["model"], optim_state_dict=state["optim"])


def bits(t: torch.Tensor) -> str:
    """A digest of all of a tensor. [collective]"""
    whole = t.full_tensor() if isinstance(t, DTensor) else t
    data = whole.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data).hexdigest()[:16]


def digests(m: Any, o: Any) -> dict[str, str]:
    """A digest of each tensor of a model and its optimizer, by name. [collective]"""
    found = {"model/" + n: bits(t) for n, t in m.state_dict().items()}
    names = {id(p): n for n, p in m.named_parameters()}
    for p, state in o.state.items():
        for key, value in state.items():
            found["%s/%s" % (names[id(p)], key)] = bits(value)
    return found
