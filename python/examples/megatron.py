#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a tiny transformer whose layers are split by hand over all ranks, as Megatron splits them.

    torchrun --nproc_per_node 2 python/examples/megatron.py runs/tp --steps 6
    torchrun --nproc_per_node 4 python/examples/megatron.py runs/tp --steps 9
    python python/examples/megatron.py runs/tp --steps 12

Each run goes on where the one before ended, with any number of ranks that divides the heads.
Queries, keys and values are one parameter, and so are the gate and the up projection. The
checkpoint has them as transformers names them. Needs torch; runs on the CPU.
"""
from __future__ import annotations

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import sheaf
from sheaf.torch import GateUp, QKV, Split

HIDDEN, HEADS, KV_HEADS, WIDE, WORDS, LAYERS = 32, 8, 2, 64, 64, 2
SIZE = HIDDEN // HEADS


class Sum(torch.autograd.Function):
    """Adds what the ranks have; the gradient goes to each of them."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        x = x.clone()
        if dist.is_initialized():
            dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:   # type: ignore[override]
        return grad


class Copy(torch.autograd.Function):
    """Gives each rank the same; the gradients of all ranks are added."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:   # type: ignore[override]
        grad = grad.clone()
        if dist.is_initialized():
            dist.all_reduce(grad)
        return grad


class Layer(nn.Module):
    """Attention and a gated layer; this rank has some of the heads and of the wide rows."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.heads, self.pairs = HEADS // ranks, max(1, KV_HEADS // ranks)
        rows = (self.heads + 2 * self.pairs) * SIZE
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv = nn.Linear(HIDDEN, rows, bias=False)
        self.o_proj = nn.Linear(self.heads * SIZE, HIDDEN, bias=False)
        self.gate_up = nn.Linear(HIDDEN, 2 * WIDE // ranks, bias=False)
        self.down_proj = nn.Linear(WIDE // ranks, HIDDEN, bias=False)

    def forward(self, x: Any) -> Any:
        b, n, _ = x.shape
        # For each pair of keys and values: its queries, then the keys, then the values.
        fused = self.qkv(Copy.apply(self.norm1(x))).view(b, n, self.pairs, -1, SIZE)
        q, k, v = fused.split([self.heads // self.pairs, 1, 1], 3)
        q, k, v = (t.expand(q.shape).reshape(b, n, self.heads, SIZE).transpose(1, 2)
                   for t in (q, k, v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + Sum.apply(self.o_proj(seen.transpose(1, 2).reshape(b, n, -1)))
        gate, up = self.gate_up(Copy.apply(self.norm2(x))).chunk(2, -1)
        return x + Sum.apply(self.down_proj(F.silu(gate) * up))


class Model(nn.Module):
    """Embedding, layers, and a head that shares the weight of the embedding."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, HIDDEN)
        self.layers = nn.ModuleList(Layer(ranks) for _ in range(LAYERS))
        self.head = nn.Linear(HIDDEN, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Any) -> Any:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def start(model: Model, rank: int, ranks: int) -> None:
    """The same first weights for any number of ranks: each takes its part of whole ones."""
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim < 2:
                continue                # norms begin as ones and zeros
            for placed in parts(rank, ranks)(name, p) or [None]:
                shape = tuple(p.shape) if placed is None else placed.shape
                whole = torch.randn(shape, generator=g) * 0.1
                if placed is None:
                    p.copy_(whole)
                    continue
                for box in placed.boxes:
                    there = whole[tuple(slice(s, s + c) for s, c in zip(box.start, box.count))]
                    p.as_strided(box.count, p.stride(), p.storage_offset() + box.origin
                                 ).copy_(there)


def declarations(rank: int, ranks: int) -> dict[str, Any]:
    """What the parameters of this rank are parts of."""
    tp = {"rank": rank, "ranks": ranks}
    return {"*.qkv.weight": QKV(heads=HEADS, kv_heads=KV_HEADS, **tp),
            "*.gate_up.weight": GateUp(**tp), "*.o_proj.weight": Split(1, **tp),
            "*.down_proj.weight": Split(1, **tp)}


def parts(rank: int, ranks: int) -> Any:
    """The same as a function of name and parameter."""
    import fnmatch

    def placed(name: str, p: Any) -> Any:
        for pattern, how in declarations(rank, ranks).items():
            if fnmatch.fnmatchcase(name, pattern):
                return how.placed(name, p)
        return None
    return placed


def shared_keys(model: Model, rank: int, ranks: int) -> None:
    """Adds the gradients of keys and values that several ranks have."""
    if ranks <= KV_HEADS:
        return
    mine = rank * KV_HEADS // ranks
    for layer in model.layers:
        grad: Any = layer.qkv.weight.grad
        every = torch.zeros(KV_HEADS, 2 * SIZE, HIDDEN)
        every[mine] = grad[-2 * SIZE:]
        dist.all_reduce(every)
        grad[-2 * SIZE:] = every[mine]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", help="folder of the checkpoints")
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    torch.set_num_threads(1)
    model = Model(ranks)
    start(model, rank, ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with sheaf.Checkpointer(args.run, keep_last=3) as ckpt:
        ckpt.track(model, optimizer, parts=declarations(rank, ranks))
        found = ckpt.load()
        if found and rank == 0:
            print("goes on after step %d" % found.step)
        for step in range(found.step + 1 if found else 0, args.steps):
            g = torch.Generator().manual_seed(step)
            first = torch.randint(0, WORDS, (8, 1), generator=g)
            x = (first + 3 * torch.arange(12)) % WORDS      # what there is to learn
            loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
            loss.backward()
            shared_keys(model, rank, ranks)
            optimizer.step()
            optimizer.zero_grad()
            ckpt.save_async(step, metrics={"loss": loss.item()})
            if rank == 0:
                print("step %d loss %.4f" % (step, loss.item()), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
