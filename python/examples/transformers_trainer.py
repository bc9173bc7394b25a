#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small Qwen2 by transformers.Trainer, whose checkpoints are Sheaf's.

    python transformers_trainer.py runs/tiny --steps 20
    torchrun --nproc_per_node 2 transformers_trainer.py runs/tiny --steps 40

The text is this file. Kill it, and run it again: it goes on from the newest checkpoint. The best
one by the loss of the evaluation is kept, and is what the trainer has at the end. transformers
opens each checkpoint: from_pretrained("runs/tiny/checkpoint-20").
"""
import argparse
import os
import signal

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, TrainerCallback, TrainingArguments

import sheaf

LENGTH = 64


def rows(first: int, n: int) -> list[dict[str, torch.Tensor]]:
    """Rows of the text of this file, as a language model is trained with."""
    with open(os.path.abspath(__file__), "rb") as f:
        text = torch.tensor(list(f.read()))
    cut = [text.roll(-37 * i)[:LENGTH] for i in range(first, first + n)]
    return [{"input_ids": row, "labels": row} for row in cut]


class Killed(TrainerCallback):
    """Kills this process before a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--kill", type=int, help="the step before which each rank kills itself")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH,
        attention_dropout=0.1, tie_word_embeddings=True))
    trainer = Trainer(
        model,
        TrainingArguments(args.run, max_steps=args.steps, per_device_train_batch_size=4,
                          learning_rate=3e-3, lr_scheduler_type="constant", logging_steps=1,
                          save_steps=4, eval_strategy="steps", eval_steps=4, save_total_limit=3,
                          load_best_model_at_end=True, report_to=[], disable_tqdm=True,
                          use_cpu=not torch.cuda.is_available()),
        train_dataset=rows(0, 64), eval_dataset=rows(64, 8),
        callbacks=[Killed(args.kill)] if args.kill is not None else [])
    trainer = sheaf.transformers.use(trainer, background=args.kill is None)
    trainer.train(resume_from_checkpoint="auto")

    if trainer.is_world_process_zero():
        for entry in trainer.state.log_history:
            if "loss" in entry:
                print("step %d loss %.4f" % (entry["step"], entry["loss"]), flush=True)
        print("the best is %s" % trainer.state.best_model_checkpoint)


if __name__ == "__main__":
    main()
