# SPDX-License-Identifier: Apache-2.0
"""A save of DeepSpeed, and its own conversion, for bench/foreign.

usage: foreign_deepspeed.py make FOLDER BYTES
       foreign_deepspeed.py convert FOLDER OUT

make writes a save of ZeRO 3 on two ranks, whose weights have BYTES, as DeepSpeed writes it, with
random values. convert waits for a line, runs zero_to_fp32 into a Hugging Face directory, and prints
how long that took and how much memory the process has had; and so on.
"""
import collections
import contextlib
import json
import os
import resource
import shutil
import sys
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed                                                            # noqa: E402
import torch                                                                # noqa: E402
from deepspeed.runtime.zero.config import ZeroStageEnum                     # noqa: E402
from deepspeed.utils import zero_to_fp32                                    # noqa: E402

RANKS = 2
WIDTH = 1023                    # odd, so that parts begin inside rows


def shapes(items):
    """Parameters of at most 16 Mi items."""
    out, rows = collections.OrderedDict(), items // WIDTH
    while rows:
        some = min(rows, 16 << 10)
        out["model.layers.%d.mlp.weight" % len(out)] = torch.Size((some, WIDTH))
        rows -= some
    return out


def make(folder, size):
    params = shapes(int(size) // 4)
    tag = os.path.join(folder, "global_step10")
    os.makedirs(tag)
    part = sum(-(-s.numel() // RANKS) for s in params.values())
    torch.manual_seed(1)
    for rank in range(RANKS):
        name = os.path.join(tag, "zero_pp_rank_%d_mp_rank_00_" % rank)
        torch.save({"module": {k: torch.empty(0, dtype=torch.bfloat16) for k in params},
                    "buffer_names": [], "optimizer": None, "param_shapes": [params],
                    "frozen_param_shapes": None, "shared_params": {},
                    "frozen_param_fragments": None, "global_steps": 10,
                    "ds_version": deepspeed.__version__}, name + "model_states.pt")
        flat, first, second = (torch.rand(part) for _ in range(3))
        torch.save({"optimizer_state_dict": {
            "zero_stage": ZeroStageEnum.weights, "partition_count": RANKS,
            "optimizer_state_dict": {"state": {0: {
                "step": torch.tensor(10.0), "exp_avg": first, "exp_avg_sq": second}},
                "param_groups": [{"lr": 0.1, "params": [0]}]},
            "fp32_flat_groups": [flat]}, "ds_version": deepspeed.__version__},
            "%s/bf16_zero_pp_rank_%d_mp_rank_00_optim_states.pt" % (tag, rank))
    with open(os.path.join(folder, "latest"), "w", encoding="utf-8") as f:
        f.write("global_step10")


def convert(folder, out):
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    for _ in sys.stdin:
        shutil.rmtree(out, ignore_errors=True)
        with open(os.devnull, "w", encoding="utf-8") as quiet, contextlib.redirect_stdout(quiet), \
                contextlib.redirect_stderr(quiet):
            start = time.perf_counter()
            zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict(folder, out,
                                                                    safe_serialization=True)
            seconds = time.perf_counter() - start
        told.write(json.dumps({"seconds": seconds, "peak_bytes": 1024 * resource.getrusage(
            resource.RUSAGE_SELF).ru_maxrss}) + "\n")
        told.flush()


if __name__ == "__main__":
    {"make": make, "convert": convert}[sys.argv[1]](*sys.argv[2:])
