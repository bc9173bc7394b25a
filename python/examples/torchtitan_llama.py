#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains torchtitan's small Llama 3 on GPUs; its checkpoints are Sheaf's.

    torchrun --nproc_per_node 8 torchtitan_llama.py runs/llama --steps 200 --assets TOKENIZER

TOKENIZER is a folder with tokenizer.json, such as tests/assets/tokenizer of torchtitan's sources.
It needs GPUs: torchtitan's trainer and its kernels do. Kill it, and run it again: it goes on from
the last checkpoint.
"""
import argparse
import os

import torch
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.tools.logging import init_logger

from sheaf.torchtitan import CheckpointManager          # in place of torchtitan's


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--assets", required=True)
    args = parser.parse_args()

    init_logger()
    config = llama3_debugmodel()
    config.hf_assets_path = args.assets
    config.dump_folder = os.path.abspath(args.run)
    config.training.steps = args.steps
    config.validator.enable = False
    config.checkpoint = CheckpointManager.Config(
        enable=True, interval=args.every, async_mode="async", keep_latest_k=3,
        last_save_model_only=False)
    trainer = config.build()
    try:
        trainer.train()
    except Exception:
        trainer.close()
        raise
    trainer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
