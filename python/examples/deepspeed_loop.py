#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small model by DeepSpeed with ZeRO 2 in bf16; the checkpoints are Sheaf's.

    deepspeed deepspeed_loop.py runs/tiny --steps 20
    torchrun --nproc_per_node 2 deepspeed_loop.py runs/tiny --steps 40

The text is this file. Kill it, and run it again: it goes on from the newest checkpoint, also with
another number of ranks, or with --stage 1.
"""
import argparse
import os
import signal

import deepspeed
import torch

import sheaf

LENGTH = 16


class Next(torch.nn.Module):
    """Predicts the next byte of a text from the ones before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(256, 32)
        self.mix = torch.nn.Linear(32 * LENGTH, 64)
        self.head = torch.nn.Linear(64, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.mix(self.embed(x).flatten(1))))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--kill", type=int, help="the step before which each rank kills itself")
    parser.add_argument("--local_rank", type=int, help="from the launcher")
    args = parser.parse_args()

    with open(os.path.abspath(__file__), "rb") as f:
        text = torch.tensor(list(f.read()))
    torch.manual_seed(0)
    model = Next()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    engine, _, _, _ = deepspeed.initialize(
        model=model, optimizer=optimizer,
        lr_scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100),
        config={"train_micro_batch_size_per_gpu": 8, "bf16": {"enabled": True},
                "zero_optimization": {"stage": args.stage},
                "zero_allow_untested_optimizer": True})
    engine = sheaf.deepspeed.use(engine, keep_last=3)
    rank = torch.distributed.get_rank()
    torch.manual_seed(rank)             # each rank draws rows of its own

    if os.path.isdir(args.run):
        _, state = engine.load_checkpoint(args.run)     # the newest checkpoint
        if rank == 0 and state is not None:
            print("goes on after %d rows" % state["rows"], flush=True)
    while engine.global_steps < args.steps:
        if engine.global_steps == args.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        at = torch.randint(len(text) - LENGTH, (8,))
        x = torch.stack([text[i:i + LENGTH] for i in at.tolist()]).to(engine.device)
        y = text[at + LENGTH].to(engine.device)
        loss = torch.nn.functional.cross_entropy(engine(x).float(), y)
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        torch.distributed.all_reduce(mean)
        if rank == 0:
            print("step %d loss %.4f" % (engine.global_steps,
                                         mean.item() / torch.distributed.get_world_size()),
                  flush=True)
        if engine.global_steps % 4 == 0:
            engine.save_checkpoint(args.run, client_state={"rows": engine.global_samples})
    engine.destroy()


if __name__ == "__main__":
    main()
