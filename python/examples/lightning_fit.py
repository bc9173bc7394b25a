#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small Qwen2 by Lightning, whose checkpoints are Sheaf's.

    python lightning_fit.py runs/tiny --epochs 2
    torchrun --nproc_per_node 2 lightning_fit.py runs/tiny --epochs 4       # FSDP2

The text is this file. Kill it, and run it again: it goes on from the last checkpoint, also with
another number of ranks. One process saves by the CheckpointIO, and several by the strategy, so
only what the strategy saved changes its number of ranks.
"""
import argparse
import os

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.distributed.fsdp import fully_shard
from transformers import Qwen2Config, Qwen2ForCausalLM

import sheaf

LENGTH = 64


class Text(lightning.LightningModule):
    """A language model, sharded if there are several ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Qwen2ForCausalLM(Qwen2Config(
            vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH,
            attention_dropout=0.1, tie_word_embeddings=True))

    def configure_model(self) -> None:
        if self.device_mesh is not None:
            for layer in self.net.model.layers:
                fully_shard(layer, mesh=self.device_mesh["data_parallel"])
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, i):
        loss = self.net(input_ids=batch, labels=batch).loss
        self.log("loss", loss)
        if self.global_rank == 0:
            print("step %d loss %.4f" % (self.global_step, loss.item()), flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def rows() -> torch.Tensor:
    """Rows of the text of this file."""
    with open(os.path.abspath(__file__), "rb") as f:
        text = torch.tensor(list(f.read()))
    return torch.stack([text.roll(-29 * i)[:LENGTH] for i in range(32)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    torch.manual_seed(0)
    if ranks == 1:
        how = {"plugins": [sheaf.lightning.CheckpointIO()]}
    else:
        how = {"strategy": sheaf.lightning.ModelParallelStrategy(data_parallel_size=ranks,
                                                                 tensor_parallel_size=1)}
    trainer = lightning.Trainer(
        max_epochs=args.epochs, devices=ranks, logger=False, enable_progress_bar=False,
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        callbacks=[ModelCheckpoint(args.run, monitor="loss", save_top_k=2, save_last=True)], **how)
    last = os.path.join(os.path.abspath(args.run), "last.ckpt")
    trainer.fit(Text(), torch.utils.data.DataLoader(rows(), batch_size=4, shuffle=True),
                ckpt_path=last if os.path.exists(last) else None)


if __name__ == "__main__":
    main()
