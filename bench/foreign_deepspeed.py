# SPDX-License-Identifier: Apache-2.0
"""A save of DeepSpeed, and its own conversion, for bench/foreign.

usage: foreign_deepspeed.py make FOLDER BYTES
       foreign_deepspeed.py rounds FOLDER OUT

make writes a save of ZeRO 3 on two ranks, whose weights have BYTES, as DeepSpeed writes it, with
random values. rounds converts it to a Hugging Face directory with zero_to_fp32, again and again
(foreign_rounds.py).
"""
import collections
import os
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed                                                            # noqa: E402
import torch                                                                # noqa: E402
from deepspeed.runtime.zero.config import ZeroStageEnum                     # noqa: E402
from deepspeed.utils import zero_to_fp32                                    # noqa: E402

from foreign_rounds import rounds                                           # noqa: E402

RANKS = 2
WIDTH = 1023                    # odd, so that parts begin within rows


def shapes(items):
    """Returns shapes of parameters with at most 16 Mi items."""
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
    rounds(lambda: zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict(
        folder, out, safe_serialization=True))


if __name__ == "__main__":
    {"make": make, "rounds": convert}[sys.argv[1]](*sys.argv[2:])
