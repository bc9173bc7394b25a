#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small Qwen2 with FSDP2 and tensor parallelism, and goes on where it ended.

    torchrun --nproc_per_node 4 fsdp2.py runs/tiny --steps 20
    torchrun --nproc_per_node 2 fsdp2.py runs/tiny --steps 40        # another mesh goes on
    python fsdp2.py runs/tiny --steps 60                             # and so does one process

The text is this file. transformers opens each checkpoint:
from_pretrained("runs/tiny/checkpoint-19").
"""
import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import Qwen2Config, Qwen2ForCausalLM

import sheaf

LENGTH = 64


def build(ranks: int) -> torch.nn.Module:
    """The model, cut over the ranks: tensor parallelism of 2 if their number is even, and FSDP."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH,
        tie_word_embeddings=True))
    if ranks == 1:
        return model
    tensor = 2 - ranks % 2
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = init_device_mesh(device, (ranks // tensor, tensor), mesh_dim_names=("dp", "tp"))
    model.to(device)
    for layer in model.model.layers:
        parallelize_module(layer, mesh["tp"], {
            "self_attn.q_proj": ColwiseParallel(), "self_attn.k_proj": ColwiseParallel(),
            "self_attn.v_proj": ColwiseParallel(), "self_attn.o_proj": RowwiseParallel(),
            "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(),
            "mlp.down_proj": RowwiseParallel()})
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return model


class Text:
    """Batches of a text, the same on all ranks. Its position is the state of a loader."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as f:
            self.text = torch.tensor(list(f.read()))
        self.at = 0

    def batch(self) -> torch.Tensor:
        self.at += 1
        starts = torch.arange(4) * 977 + self.at * 131
        return torch.stack([self.text.roll(-int(s))[:LENGTH] for s in starts])

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=5)
    args = parser.parse_args()

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group()
    model = build(ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    text = Text(__file__)

    with sheaf.Checkpointer(args.run, keep_last=3, best="loss",
                            store_dtype=torch.bfloat16) as ckpt:
        ckpt.track(model, optimizer, scheduler=scheduler, loader=text)
        start = ckpt.load()
        if ckpt.rank == 0 and start is not None:
            print("goes on after step %d" % start.step, flush=True)
        for step in range(start.step + 1 if start else 0, args.steps):
            batch = text.batch().to(next(model.parameters()).device)
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            if ckpt.rank == 0:
                print("step %d loss %.4f" % (step, loss.item()), flush=True)
            if step % args.every == args.every - 1:
                ckpt.save(step, metrics={"loss": loss.item()})

    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
