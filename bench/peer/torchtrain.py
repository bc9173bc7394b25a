# SPDX-License-Identifier: Apache-2.0
"""Trains a model in torch, step by step, for bench/train.

usage: torchtrain.py SPEC

SPEC is JSON: model (a Hugging Face directory, made here of config if that is given), tokens (a
token file), batch, seq, steps, threads, lr, compile, bf16. For each line of stdin the training
begins anew, and prints a line of JSON: the median of the seconds of a step without the first one,
and all losses.
"""
import json
import struct
import sys
import time

import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM


def read_tokens(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        f.seek(header["tokens"]["data_offsets"][0], 1)
        n = header["tokens"]["shape"][0]
        return torch.tensor(struct.unpack("<%dH" % n, f.read(2 * n)))


class Training:
    def __init__(self, spec):
        self.spec, self.tokens = spec, read_tokens(spec["tokens"])
        self.model = AutoModelForCausalLM.from_pretrained(
            spec["model"], dtype=torch.bfloat16 if spec["bf16"] else torch.float32)
        self.start = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.loss = torch.compile(self.forward) if spec["compile"] else self.forward

    def forward(self, inputs, targets):
        # Computes the loss here: transformers would shift the targets, which are shifted already.
        hidden = self.model.model(input_ids=inputs, use_cache=False).last_hidden_state
        logits = torch.nn.functional.linear(hidden, self.model.lm_head.weight)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def optimizer(self):
        decayed = [p for p in self.model.parameters() if p.ndim > 1]
        rest = [p for p in self.model.parameters() if p.ndim == 1]
        return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1},
                                  {"params": rest, "weight_decay": 0.0}], lr=self.spec["lr"],
                                 betas=(0.9, 0.95), eps=1e-8, fused=True)

    def run(self):
        self.model.load_state_dict(self.start)
        optimizer, seconds, losses = self.optimizer(), [], []
        n = self.spec["batch"] * self.spec["seq"]
        for i in range(self.spec["steps"]):
            inputs, targets = (self.tokens[i * n + s:(i + 1) * n + s].view(-1, self.spec["seq"])
                               for s in (0, 1))
            began = time.monotonic()
            loss = self.loss(inputs, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
            seconds.append(time.monotonic() - began)
        seconds = sorted(seconds[1:])
        return {"seconds": seconds[len(seconds) // 2], "losses": losses}


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        spec = json.load(f)
    torch.set_num_threads(spec["threads"])
    if spec.get("config"):
        torch.manual_seed(1)
        with open(spec["config"], encoding="utf-8") as f:
            Qwen2ForCausalLM(Qwen2Config(**json.load(f))).save_pretrained(spec["model"])
        return
    training = Training(spec)
    for _ in sys.stdin:
        print(json.dumps(training.run()), flush=True)


if __name__ == "__main__":
    main()
