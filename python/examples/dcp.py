#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small model with FSDP2 and torch.distributed.checkpoint, which saves to Sheaf.

    torchrun --nproc_per_node 4 dcp.py runs/tiny --steps 20
    torchrun --nproc_per_node 2 dcp.py runs/tiny --steps 40         # 2 ranks go on
    python dcp.py runs/tiny --steps 60                              # and so does one process

Three lines differ from a trainer that uses DCP's own files: those with `sheaf.dcp` and `writer`.
The text is this file.
"""
import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import sheaf

LENGTH = 64


class Block(nn.Module):
    """Adds to each position what the positions before it say."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Conv1d(width, 4 * width, 8, padding=7)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.mix(self.norm(x).transpose(1, 2))[..., :x.shape[1]]
        return x + self.down(torch.relu(h).transpose(1, 2))


class Model(nn.Module):
    """Predicts the next byte of a text. The head is the embedding."""

    def __init__(self, width: int = 64, blocks: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.embed(text)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build(ranks: int) -> Model:
    """The model, sharded over the ranks."""
    torch.manual_seed(0)
    model = Model().to("cuda" if torch.cuda.is_available() else "cpu")
    if ranks > 1:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return model


class Text:
    """Batches of a text, the same on all ranks. Its position is the state of a loader."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as f:
            self.text = torch.tensor(list(f.read()))
        self.at = 0

    def batch(self) -> torch.Tensor:
        self.at += 1
        starts = torch.arange(8) * 977 + self.at * 131
        return torch.stack([self.text.roll(-int(s))[:LENGTH + 1] for s in starts])

    def state_dict(self) -> dict:
        return {"at": self.at}

    def load_state_dict(self, state: dict) -> None:
        self.at = state["at"]


class App:
    """What DCP saves and loads: the model, the optimizer, and the position of the job."""

    def __init__(self, model, optimizer, scheduler, text) -> None:
        self.model, self.optimizer = model, optimizer
        self.parts = {"scheduler": scheduler, "text": text}
        self.step = -1

    def state(self) -> dict:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step,
                **{k: v.state_dict() for k, v in self.parts.items()}}

    def load(self, state: dict) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"],
                       optim_state_dict=state["optimizer"])
        self.step = state["step"]
        for k, v in self.parts.items():
            v.load_state_dict(state[k])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=5)
    args = parser.parse_args()

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    rank = int(os.environ.get("RANK", "0"))
    model = build(ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    text = Text(__file__)
    app = App(model, optimizer, scheduler, text)

    if os.path.isdir(args.run):
        state = app.state()
        dcp.load(state, storage_reader=sheaf.dcp.Reader(args.run))
        app.load(state)
        if rank == 0:
            print("goes on after step %d" % app.step, flush=True)

    saving = None
    group = dist.new_group(backend="gloo") if ranks > 1 else None   # for DCP's own thread
    with sheaf.dcp.Writer(args.run, optimizers=[optimizer], keep_last=3) as writer:
        for app.step in range(app.step + 1, args.steps):
            batch = text.batch().to(next(model.parameters()).device)
            loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1),
                                               batch[:, 1:].flatten())
            loss.backward()
            optimizer.step()                    # waits for what is not copied yet
            optimizer.zero_grad()
            scheduler.step()
            if rank == 0:
                print("step %d loss %.4f" % (app.step, loss.item()), flush=True)
            if app.step % args.every == args.every - 1:
                if saving is not None:
                    saving.result()             # one save in flight, as DCP wants it
                saving = dcp.async_save(app.state(), storage_writer=writer.at(app.step),
                                        process_group=group)
        if saving is not None:
            saving.result()

    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
