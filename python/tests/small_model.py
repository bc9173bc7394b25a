# SPDX-License-Identifier: Apache-2.0
"""A tiny Qwen2 for tests, in any layout of FSDP2 and tensor parallelism, trained on made-up text.

All ranks take the same batch, so every layout computes the same losses, up to rounding; and the
same layout computes the same bits.
"""
from __future__ import annotations

import hashlib
from typing import Any, Optional

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                               parallelize_module)
from transformers import Qwen2Config, Qwen2ForCausalLM

VOCABULARY = 61
HEADS = {"self_attn.q_proj": ColwiseParallel, "self_attn.k_proj": ColwiseParallel,
         "self_attn.v_proj": ColwiseParallel, "self_attn.o_proj": RowwiseParallel}
WIDE = {"mlp.gate_proj": ColwiseParallel, "mlp.up_proj": ColwiseParallel,
        "mlp.down_proj": RowwiseParallel}


def model(layout: str, tied: bool = False, seed: int = 0, hidden: int = 36) -> Any:
    """The model on this rank. layout: "one", "fsdp", "tp", "2x2" (FSDP2 x TP) or "hsdp"."""
    torch.manual_seed(seed)
    made = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=68, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=32,
        tie_word_embeddings=tied, attn_implementation="eager")).float()
    sharding: Optional[Any] = None
    tensor: Optional[Any] = None
    if layout == "fsdp":
        sharding = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    elif layout == "tp":
        tensor = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    elif layout == "hsdp":
        sharding = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "dp"))
    elif layout == "2x2":
        both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        sharding, tensor = both["dp"], both["tp"]
    if tensor is not None:
        # Two key and value heads: four ranks cut the wide layers alone.
        plan = dict(WIDE, **(HEADS if tensor.size() == 2 else {}))
        for layer in made.model.layers:
            parallelize_module(layer, tensor, {k: style() for k, style in plan.items()})
    if sharding is not None:
        for layer in made.model.layers:
            fully_shard(layer, mesh=sharding)
        fully_shard(made, mesh=sharding)
    return made


def train(m: Any, optimizers: list[Any], step: int) -> float:
    """One step; returns the loss."""
    g = torch.Generator().manual_seed(1000 + step)
    x = torch.randint(0, VOCABULARY, (2, 16), generator=g)
    loss = m(input_ids=x, labels=x).loss
    loss.backward()
    for o in optimizers:
        o.step()
        o.zero_grad()
    return float(loss.item())


def whole(t: torch.Tensor) -> torch.Tensor:
    """All of a tensor, on every rank. [collective]"""
    return t.full_tensor() if isinstance(t, DTensor) else t


def bits(t: torch.Tensor) -> str:
    """A digest of all of a tensor. [collective]"""
    data = whole(t).detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data).hexdigest()


def digests(m: Any, optimizers: list[Any]) -> dict[str, str]:
    """A digest of each tensor of a model and its optimizers, by name. [collective]"""
    found = {"model/" + n: bits(t) for n, t in m.state_dict().items()}
    names = {id(p): n for n, p in m.named_parameters()}
    for i, o in enumerate(optimizers):
        for p, state in o.state.items():
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    found["%d/%s/%s" % (i, names[id(p)], key)] = bits(value)
    return found
