#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Evaluates the checkpoints of finetune.py in one process, while it trains or later.

    python held_out.py runs/tuned MODEL TEXT... --until 100

It waits for each new checkpoint on disk, loads the model from it, and prints the loss on all
samples that are held out. It takes no lock, so it never disturbs the training.
"""
import argparse
import time

import torch
from finetune import Text, build, held_out_loss

import sheaf


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("model")
    parser.add_argument("text", nargs="+")
    parser.add_argument("--until", type=int, default=0, help="the step after which it ends")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, _, _ = build(args.model, 1)
    text = Text(args.text, args.model)
    seen = -1
    while True:
        try:
            with sheaf.Checkpointer(args.run, readonly=True) as ckpt:
                ckpt.track(model)
                found = ckpt.load(only="model") if ckpt.steps and ckpt.steps[-1] > seen else None
        except sheaf.NotFound:
            found = None                # no run yet
        if found is not None:
            seen = found.step
            loss = held_out_loss(model, text, len(text.held_out))
            print("step %d held-out loss %.4f" % (seen, loss), flush=True)
        if seen >= args.until:
            return
        time.sleep(0.5)


if __name__ == "__main__":
    main()
