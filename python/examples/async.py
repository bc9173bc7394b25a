#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the model of fsdp2.py, and saves every step in the background.

    torchrun --nproc_per_node 4 async.py runs/tiny --steps 200
    sheaf agent runs/tiny --stop

Each step goes to the memory of the node, and every tenth to disk. Kill all ranks (SIGKILL), and run
it again: it goes on after the last step, from memory, with any number of ranks. SIGTERM ends it
after a last save to disk.
"""
import argparse
import os

import torch
import torch.distributed as dist
from fsdp2 import Text, build

import sheaf


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--kill", type=int, help="the step after which each rank kills itself")
    args = parser.parse_args()

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group()
    model = build(ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    text = Text(os.path.join(os.path.dirname(os.path.abspath(__file__)), "fsdp2.py"))

    with sheaf.Checkpointer(args.run, keep_last=3, memory_every=1, disk_every=10, buffers_max=3,
                            on_sigterm=30) as ckpt:
        ckpt.track(model, optimizer, scheduler=scheduler, loader=text)
        start = ckpt.load()
        if ckpt.rank == 0 and start is not None:
            print("goes on after step %d" % start.step, flush=True)
        for step in range(start.step + 1 if start else 0, args.steps):
            batch = text.batch().to(next(model.parameters()).device)
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            optimizer.step()                    # waits for what is not copied yet
            optimizer.zero_grad()
            scheduler.step()
            handle = ckpt.save_async(step, metrics={"loss": loss.item()})
            if ckpt.rank == 0:
                print("step %d loss %.4f" % (step, loss.item()), flush=True)
            if ckpt.leaving:
                break
            if step == args.kill:
                handle.result()
                if ranks > 1:
                    dist.barrier()
                os.kill(os.getpid(), 9)
        if ckpt.rank == 0:
            print(ckpt.stats(), flush=True)

    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
