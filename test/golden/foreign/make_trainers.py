#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small folders as trainers write them, by the real software, and what its own loaders give
back for each.

usage: make_trainers.py FOLDER

trainers-expected.jsonl has one line a checkpoint, as make_torch.py writes them. Names in another
family than "model" are <family>:<name>. The files of this folder were made by accelerate 1.15.0
with torch 2.13.0 (CPU) and Python 3.11.
"""
import json
import os
import shutil
import sys

try:
    import accelerate
    import torch
except ImportError:
    print("1..0 # SKIP accelerate is not installed")
    sys.exit(77)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from make_torch import described                # noqa: E402


class Net(torch.nn.Module):
    """Weights of two types, a buffer, and one weight under two names."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(31, 7)
        self.up = torch.nn.Linear(7, 11)
        self.down = torch.nn.Linear(11, 7).to(torch.bfloat16)
        self.norm = torch.nn.BatchNorm1d(5)
        self.head = torch.nn.Linear(7, 31, bias=False)
        self.head.weight = self.embed.weight


def weights_in(folder):
    """What accelerate's loader finds in a directory of files of torch.save."""
    net = Net()
    for p in net.parameters():
        p.data.zero_()
    accelerate.load_checkpoint_in_model(net, folder)
    return {n: described(t) for n, t in net.state_dict().items()}


def shards(folder):
    """pytorch_model.bin in several files, with an index."""
    torch.manual_seed(1)
    shutil.rmtree(folder, ignore_errors=True)
    accelerate.Accelerator(cpu=True).save_model(Net(), folder, max_shard_size="1KB",
                                                safe_serialization=False)
    return {"format": "torch.save (hf)", "accelerate": accelerate.__version__,
            "tensors": weights_in(folder)}


KINDS = {"hf-bin": shards}


def main(folder):
    lines = [{"path": name, **make(os.path.join(folder, name))} for name, make in KINDS.items()]
    with open(os.path.join(folder, "trainers-expected.jsonl"), "w", encoding="utf-8") as f:
        f.writelines(json.dumps(x, separators=(",", ":")) + "\n" for x in lines)


if __name__ == "__main__":
    main(sys.argv[1])
