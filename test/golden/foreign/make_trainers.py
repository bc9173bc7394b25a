#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small folders as trainers write them, by the real software, and what its own loaders give
back for each.

usage: make_trainers.py FOLDER [NAME ...]      makes these checkpoints, or all

trainers-expected.jsonl has one line a checkpoint, as make_torch.py writes them. Names in another
family than "model" are <family>:<name>. The files of this folder were made by transformers 5.24.0,
accelerate 1.15.0, PEFT 0.21.2, PyTorch Lightning 2.6.6 and sentence-transformers 6.2.0 with torch
2.13.0 (CPU) and Python 3.11.
"""
import json
import os
import shutil
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
try:
    import accelerate
    import peft
    import pytorch_lightning
    import sentence_transformers
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as e:
    print(f"1..0 # SKIP {e}")
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
    """What accelerate's loader finds in a directory of torch.save files."""
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


STATES = {"exp_avg": "moment1_0", "exp_avg_sq": "moment2_0", "step": "step"}


def states_of(state, names=None):
    """The state of an optimizer; names: of its parameters by number, where they are known."""
    return {f"optimizer:{names[i] if names else i}/{STATES[k]}": described(t)
            for i, of in state["state"].items() for k, t in of.items()}


def read(*path):
    return torch.load(os.path.join(*path), map_location="cpu", weights_only=False)


def small_qwen():
    torch.manual_seed(1)
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        vocab_size=31, hidden_size=8, intermediate_size=12, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False,
        max_position_embeddings=16))


def trainer(folder):
    """A checkpoint of transformers.Trainer: nothing says which parameter has which number."""
    data = [{"input_ids": torch.randint(0, 31, (6,)), "labels": torch.randint(0, 31, (6,))}
            for _ in range(8)]
    with tempfile.TemporaryDirectory() as at:
        transformers.Trainer(small_qwen(), transformers.TrainingArguments(
            at, max_steps=2, save_steps=2, per_device_train_batch_size=2, use_cpu=True,
            report_to=[], disable_tqdm=True, logging_strategy="no"), train_dataset=data).train()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.move(os.path.join(at, "checkpoint-2"), folder)
    os.remove(os.path.join(folder, "training_args.bin"))
    return {"format": "hf.trainer", "transformers": transformers.__version__, "verify": 2,
            "tensors": {**{n: described(t) for n, t in load_file(
                os.path.join(folder, "model.safetensors")).items()},
                **states_of(read(folder, "optimizer.pt"))}}


class Odd(torch.nn.Module):
    """No two parameters have one shape."""

    def __init__(self):
        super().__init__()
        self.second = torch.nn.Linear(7, 11)
        self.first = torch.nn.Linear(5, 7)

    def forward(self, x):
        return self.second(self.first(x))


def stepped(net, optimizer, step):
    torch.manual_seed(5)
    for _ in range(2):
        step(net(torch.randn(3, 5)).square().sum())
        optimizer.step()
        optimizer.zero_grad()


def accelerated(folder, safe, named):
    """What accelerate's save_state writes. safe: as safetensors; named: the optimizer was given the
    names of its parameters."""
    torch.manual_seed(2)
    shutil.rmtree(folder, ignore_errors=True)
    net = Odd()
    if named:
        net.third = torch.nn.Linear(5, 7)       # two parameters have one shape, but a name
    which = list(net.named_parameters())
    given = which if named else [p for _, p in which]
    a = accelerate.Accelerator(cpu=True)
    net, optimizer = a.prepare(net, torch.optim.AdamW(given, lr=0.1))
    stepped(net, optimizer, a.backward)
    a.save_state(folder, safe_serialization=safe)
    weights = load_file(os.path.join(folder, "model.safetensors")) if safe else \
        read(folder, "pytorch_model.bin")
    return {"format": "hf.trainer", "accelerate": accelerate.__version__,
            "verify": 2 if safe else 0,
            "tensors": {**{n: described(t) for n, t in weights.items()}, **states_of(
                read(folder, "optimizer.bin"), [n for n, _ in which])}}


class Judge(torch.nn.Module):
    """Another model, with a weight of the same name and shape as one of Odd."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(5, 7)
        self.last = torch.nn.Linear(7, 1)

    def forward(self, x):
        return self.last(self.first(x))


def two_models(folder):
    """What accelerate's save_state writes for two models with an optimizer and a scheduler each."""
    torch.manual_seed(3)
    shutil.rmtree(folder, ignore_errors=True)
    nets = [Odd(), Judge()]
    optimizers = [torch.optim.AdamW(n.parameters(), lr=0.1) for n in nets]
    plans = [torch.optim.lr_scheduler.StepLR(o, 10) for o in optimizers]
    a = accelerate.Accelerator(cpu=True)
    *nets, one, two, _, _ = a.prepare(*nets, *optimizers, *plans)
    for net, optimizer in zip(nets, (one, two)):
        stepped(net, optimizer, a.backward)
    a.save_state(folder)
    tensors = {}
    for i, net in enumerate(nets):
        end, name = f"_{i}" if i else "", f"model_{i}." if i else ""
        tensors.update({name + n: described(t) for n, t in load_file(
            os.path.join(folder, f"model{end}.safetensors")).items()})
        tensors.update(states_of(read(folder, f"optimizer{end}.bin"),
                                 [name + n for n, _ in net.named_parameters()]))
    return {"format": "hf.trainer", "accelerate": accelerate.__version__, "verify": 2,
            "tensors": tensors}


def adapter(folder):
    """An adapter of PEFT."""
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(3)
    model = peft.get_peft_model(small_qwen(), peft.LoraConfig(
        r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "README.md"))
    return {"format": "hf", "peft": peft.__version__, "verify": 2,
            "tensors": {n: described(t) for n, t in load_file(
                os.path.join(folder, "adapter_model.safetensors")).items()}}


def lightning(path):
    """A checkpoint of PyTorch Lightning."""
    class Module(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Odd()

        def training_step(self, batch, _):
            return self.net(batch).square().sum()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.1)

    torch.manual_seed(4)
    module = Module()
    with tempfile.TemporaryDirectory() as at:
        fit = pytorch_lightning.Trainer(max_steps=2, accelerator="cpu", logger=False,
                                        enable_checkpointing=False, default_root_dir=at,
                                        enable_progress_bar=False, enable_model_summary=False)
        fit.fit(module, torch.utils.data.DataLoader(torch.randn(8, 5), batch_size=4))
        fit.save_checkpoint(path)
    state = read(path)
    return {"format": "lightning", "lightning": pytorch_lightning.__version__,
            "tensors": {**{n: described(t) for n, t in state["state_dict"].items()},
                        **states_of(state["optimizer_states"][0],
                                    [n for n, _ in module.named_parameters()])}}


def sentences(folder):
    """A model of sentence-transformers: modules.json names its parts, of which one has weights."""
    shutil.rmtree(folder, ignore_errors=True)
    words = {w: i for i, w in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])}
    with tempfile.TemporaryDirectory() as at:
        with open(os.path.join(at, "vocab.txt"), "w", encoding="utf-8") as f:
            f.writelines(w + "\n" for w in words)
        torch.manual_seed(6)
        transformers.BertModel(transformers.BertConfig(
            vocab_size=len(words), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=12, max_position_embeddings=16)).save_pretrained(at)
        transformers.BertTokenizer(os.path.join(at, "vocab.txt")).save_pretrained(at)
        sentence_transformers.SentenceTransformer(at, device="cpu").save(folder)
    os.remove(os.path.join(folder, "README.md"))
    return {"format": "hf", "sentence-transformers": sentence_transformers.__version__, "verify": 2,
            "tensors": {n: described(t) for n, t in load_file(
                os.path.join(folder, "model.safetensors")).items()}}


KINDS = {"hf-bin": shards, "hf-trainer": trainer,
         "hf-accelerate": lambda at: accelerated(at, True, False),
         "hf-accelerate-bin": lambda at: accelerated(at, False, True),
         "hf-accelerate-two": two_models, "hf-adapter": adapter,
         "lightning.ckpt": lightning, "hf-sentences": sentences}


def main(folder, *names):
    transformers.logging.disable_progress_bar()
    path, lines = os.path.join(folder, "trainers-expected.jsonl"), {}
    if names and os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            lines = {json.loads(line)["path"]: json.loads(line) for line in f}
    for name in names or KINDS:
        lines[name] = {"path": name, **KINDS[name](os.path.join(folder, name))}
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(lines[name], separators=(",", ":")) + "\n" for name in KINDS
                     if name in lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
