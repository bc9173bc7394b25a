#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small Qwen2 in a loop of accelerate, whose checkpoints are Sheaf's.

    python accelerate_loop.py runs/tiny --steps 20
    torchrun --nproc_per_node 2 accelerate_loop.py runs/tiny --steps 40

The text is this file. Kill it, and run it again: it goes on from the newest checkpoint.
transformers opens each checkpoint: from_pretrained("runs/tiny/checkpoint-20").
"""
import argparse
import os
import signal

import torch
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
from transformers import Qwen2Config, Qwen2ForCausalLM

import sheaf

LENGTH = 64


class Done:
    """How many steps were done: an object that accelerate saves because it is registered."""

    def __init__(self) -> None:
        self.steps = 0

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]


def rows() -> torch.Tensor:
    """Rows of the text of this file."""
    with open(os.path.abspath(__file__), "rb") as f:
        text = torch.tensor(list(f.read()))
    return torch.stack([text.roll(-29 * i)[:LENGTH] for i in range(96)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--kill", type=int, help="the step before which each rank kills itself")
    args = parser.parse_args()

    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    accelerator = sheaf.accelerate.use(accelerator, keep_last=3, background=args.kill is None)

    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH,
        tie_word_embeddings=True))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    loader = torch.utils.data.DataLoader(rows(), batch_size=4, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    done = Done()
    accelerator.register_for_checkpointing(done)

    if os.path.isdir(args.run):
        accelerator.load_state(args.run)                # the newest checkpoint
        accelerator.print("goes on after step %d" % done.steps, flush=True)
    while done.steps < args.steps:
        loader.set_epoch(done.steps // len(loader))
        for batch in skip_first_batches(loader, done.steps % len(loader)):
            if done.steps == args.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            done.steps += 1
            mean = accelerator.reduce(loss.detach(), "mean").item()
            accelerator.print("step %d loss %.4f" % (done.steps, mean), flush=True)
            if done.steps % 4 == 0:
                accelerator.save_state(os.path.join(args.run, "checkpoint-%d" % done.steps))
            if done.steps == args.steps:
                break
    accelerator.end_training()


if __name__ == "__main__":
    main()
