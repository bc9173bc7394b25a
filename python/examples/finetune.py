#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a BERT of transformers on a text, with FSDP2 and tensor parallelism, and resumes.

    torchrun --nproc_per_node 4 finetune.py runs/tuned MODEL TEXT... --steps 100
    torchrun --nproc_per_node 2 finetune.py runs/tuned MODEL TEXT... --steps 100

MODEL is a Hugging Face directory with a tokenizer, TEXT any text files. Every step goes to the
memory of the node, and every twentieth to disk, where the last two and the best are kept. Kill all
ranks, and run it again with any number of them: it goes on after the last step. The losses are the
same for any number of ranks, but for rounding. runs/tuned/losses.jsonl has the loss of each step;
curve.py draws it, and held_out.py evaluates the checkpoints meanwhile.
"""
import argparse
import json
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import AutoTokenizer, BertForMaskedLM

import sheaf

LENGTH = 64                             # tokens of a sample
HIDDEN = 10                             # of these, how many the model must guess
BATCH = 16                              # samples of a step, on all ranks together


class Text:
    """Samples of texts. One in eight is held out. Its position is the state of a loader."""

    def __init__(self, paths: list[str], model: str) -> None:
        tokenizer = AutoTokenizer.from_pretrained(model)
        tokens: list[int] = []
        for path in paths:
            with open(path, encoding="utf-8") as f:
                for part in f.read().split("\n\n"):
                    tokens += tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"]
        n = len(tokens) // LENGTH
        samples = torch.tensor(tokens[:n * LENGTH]).view(n, LENGTH)
        is_held_out = torch.arange(n) % 8 == 7
        self.samples, self.held_out = samples[~is_held_out], samples[is_held_out]
        self.mask = tokenizer.mask_token_id
        self.at = 0

    def masked(self, samples: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs, in which HIDDEN tokens of each sample are hidden, and labels: these tokens."""
        draw = torch.rand(samples.shape, generator=torch.Generator().manual_seed(seed))
        hidden = torch.zeros(samples.shape, dtype=torch.bool)
        hidden.scatter_(1, draw.topk(HIDDEN, dim=1).indices, True)
        return samples.masked_fill(hidden, self.mask), samples.masked_fill(~hidden, -100)

    def batch(self, part: int, parts: int) -> tuple[torch.Tensor, torch.Tensor]:
        """This part of the next batch. What is drawn depends on the position alone."""
        draw = torch.Generator().manual_seed(self.at)
        chosen = torch.randint(len(self.samples), (BATCH,), generator=draw)
        inputs, labels = self.masked(self.samples[chosen], self.at)
        self.at += 1
        return inputs.chunk(parts)[part], labels.chunk(parts)[part]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def build(path: str, ranks: int) -> tuple[BertForMaskedLM, int, int]:
    """The model, cut over the ranks, and which part of each batch this rank takes, of how many."""
    torch.manual_seed(0)                # for the head, which a model for embeddings lacks
    model = BertForMaskedLM.from_pretrained(path, hidden_dropout_prob=0.0,
                                            attention_probs_dropout_prob=0.0,
                                            dtype=torch.float32)
    model.train()
    if ranks == 1:
        return model, 0, 1
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tensor = 2 - ranks % 2
    mesh = init_device_mesh(device, (ranks // tensor, tensor), mesh_dim_names=("dp", "tp"))
    cut(model.to(device), mesh)
    return model, mesh["dp"].get_local_rank(), ranks // tensor


def cut(model: BertForMaskedLM, mesh: DeviceMesh) -> None:
    """Tensor parallelism in each layer, and FSDP over the rest of the ranks."""
    for layer in model.bert.encoder.layer:
        parallelize_module(layer, mesh["tp"], {
            "attention.self.query": ColwiseParallel(), "attention.self.key": ColwiseParallel(),
            "attention.self.value": ColwiseParallel(), "attention.output.dense": RowwiseParallel(),
            "intermediate.dense": ColwiseParallel(), "output.dense": RowwiseParallel()})
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])


@torch.no_grad()
def held_out_loss(model: BertForMaskedLM, text: Text, samples: int = 32) -> float:
    """The loss on samples that no step trains on."""
    inputs, labels = text.masked(text.held_out[:samples], 1)
    return float(model(input_ids=inputs.to(model.device), labels=labels.to(model.device)).loss)


def average(loss: torch.Tensor, ranks: int) -> float:
    """The mean over all ranks."""
    if ranks > 1:
        dist.all_reduce(loss)
    return loss.item() / ranks


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("model")
    parser.add_argument("text", nargs="+")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--disk-every", type=int, default=20)
    args = parser.parse_args()

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group()
    model, part, parts = build(args.model, ranks)
    text = Text(args.text, args.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
    files = {}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if os.path.exists(os.path.join(args.model, name)):
            with open(os.path.join(args.model, name), "rb") as f:
                files[name] = f.read()

    with sheaf.Checkpointer(args.run, keep_last=2, best="eval/loss", memory_every=1,
                            disk_every=args.disk_every, buffers_max=3, files=files) as ckpt:
        ckpt.track(model, optimizer, scheduler=scheduler, loader=text)
        start = ckpt.load()
        if ckpt.rank == 0:
            print("begins" if start is None else "goes on after step %d" % start.step, flush=True)
        for step in range(start.step + 1 if start else 1, args.steps + 1):
            inputs, labels = text.batch(part, parts)
            loss = model(input_ids=inputs.to(model.device), labels=labels.to(model.device)).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            evaluates = step % args.disk_every == 0
            ckpt.save_async(step, {"eval/loss": held_out_loss(model, text)} if evaluates else None)
            mean = average(loss.detach(), ranks)
            if ckpt.rank == 0:
                with open(os.path.join(args.run, "losses.jsonl"), "a", encoding="utf-8") as f:
                    f.write(json.dumps({"step": step, "loss": mean, "ranks": ranks}) + "\n")
                print("step %d loss %.4f" % (step, mean), flush=True)
        if ckpt.rank == 0:
            print(ckpt.stats(), flush=True)

    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
