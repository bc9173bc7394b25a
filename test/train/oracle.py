#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""sheaf-train beside transformers: losses, gradients, updates, and the model that it saves with its
logits. Prints TAP; skips where torch or transformers is not installed.

usage: oracle.py SHEAF-TRAIN SHEAF EVAL-LOGITS

One rank computes the pieces of tensor parallelism, which several ranks compute with equal bits
(layouts.py). A gradient is read from a checkpoint: with beta1 0 the first moment after a step is
the gradient.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

from trainrun import ROOT, Claims, Job

try:
    import numpy as np
    import torch
    from safetensors.numpy import save_file
    from safetensors.torch import load_file
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
except ImportError as missing:
    print("1..0 # SKIP %s" % missing)
    sys.exit(0)

GRADIENT, LOSS, UPDATE, LOGITS = 3e-6, 1e-6, 1e-3, 1e-5
# With bf16: of the loss, and of each gradient, beside a model of the same weights in doubles.
BF16_LOSS, BF16_GRADIENT = 2e-4, 5e-2
ADAM = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8}


def qwen2(hidden, layers, heads, kv, ffn, vocab, tied, **more):
    return Qwen2ForCausalLM, Qwen2Config(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv, intermediate_size=ffn, vocab_size=vocab,
        tie_word_embeddings=tied, **more)


# name: model, seq, batch, how many targets in a thousand count, U32 tokens, virtual tp
SHAPES = {
    "t0": (qwen2(48, 5, 8, 4, 101, 523, True), 37, 6, 1000, False, 4),
    "untied, one kv head, long sequences": (qwen2(64, 2, 4, 1, 96, 700, False), 530, 2, 300, True,
                                            1),
    "one layer, heads of 32": (qwen2(64, 1, 2, 2, 40, 301, True), 64, 4, 30, False, 1),
    "another base of rotations": (qwen2(40, 3, 4, 2, 64, 257, False, rope_parameters={
        "rope_type": "default", "rope_theta": 5e5}), 101, 3, 1000, False, 2),
    "llama": ((LlamaForCausalLM, LlamaConfig(
        hidden_size=40, num_hidden_layers=3, num_attention_heads=5, num_key_value_heads=5,
        intermediate_size=77, vocab_size=300, tie_word_embeddings=False, head_dim=16)), 65, 4, 1000,
        False, 5),
}
# Trained with document-attention. It has no bias of keys, whose gradient is near zero in short
# documents, so that AdamW would enlarge its rounding.
DOCUMENTS = ("llama",)
MORE = ("t0", "untied, one kv head, long sequences", "llama")   # with Muon and in bf16, too


class Case:
    def __init__(self, program, sheaf, at, index, shape, documents):
        (self.kind, config), self.seq, self.batch, part, wide, self.pieces = shape
        self.program, self.sheaf = program, sheaf
        self.hf = os.path.join(at, "hf%d" % index)
        self.run = os.path.join(at, "run%d" % index)
        self.data = os.path.join(at, "data%d.safetensors" % index)
        torch.manual_seed(index)
        model = self.kind(config).float()
        with torch.no_grad():           # further from zero than a fresh model
            for p in model.parameters():
                if p.ndim == 1:
                    p.add_(torch.randn_like(p) * 0.1)
                else:
                    p.mul_(4)
        model.save_pretrained(self.hf)
        rng = np.random.default_rng(index)
        n = self.seq * self.batch * 4 + 1
        self.tokens = rng.integers(0, config.vocab_size, n).astype(np.uint32 if wide else np.uint16)
        self.mask = (rng.integers(0, 1000, n) < part).astype(np.uint8)
        begins = np.sort(rng.integers(1, n, n // 20)) if documents else []
        self.documents = np.array([0, *begins, n], dtype=np.int64)
        self.options = ["--document-attention"] if documents else []
        tensors = {"tokens": self.tokens, "documents": self.documents}
        if part < 1000:
            tensors["mask"] = self.mask
        save_file(tensors, self.data)

    def train(self, *args):
        done = subprocess.run([self.program, "run", "/dev/null", "--json", "--run", self.run,
                               "--model", self.hf, "--init", "model", "--data", self.data,
                               "--shuffle", "false", "--seq", str(self.seq), "--batch",
                               str(self.batch), "--micro-batch", "2", "--resume", "none",
                               "--virtual", "dp=1,tp=%d" % self.pieces] + self.options +
                              list(args), text=True, capture_output=True, cwd=ROOT)
        return Job(done.returncode, done.stdout, done.stderr)

    def saved(self, step, family):
        folder = os.path.join(self.run, "checkpoint-%d" % step, family)
        tensors = {}
        for name in sorted(os.listdir(folder)):
            if name.endswith(".safetensors"):
                tensors.update(load_file(os.path.join(folder, name)))
        return tensors

    def model(self, dtype, path=None):
        """The model in a type; None: that in which it was saved."""
        model = self.kind.from_pretrained(path or self.hf, attn_implementation="eager")
        return model.to(dtype) if dtype else model

    def loss(self, model, step):
        """The mean over the targets that count."""
        n = self.seq * self.batch
        tokens = torch.from_numpy(self.tokens[step * n:(step + 1) * n + 1].astype(np.int64))
        weight = torch.from_numpy(self.mask[step * n + 1:(step + 1) * n + 1]).to(model.dtype)
        if self.options:
            return self.loss_alone(model, step * n, tokens, weight)
        logits = model(tokens[:-1].view(self.batch, self.seq)).logits
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[1:],
                                                   reduction="none")
        return (losses * weight).sum() / weight.sum()

    def loss_alone(self, model, first, tokens, weight):
        """The same, with a call for what each sample has of each document."""
        n = self.seq * self.batch
        ends = {d - first - 1 for d in self.documents.tolist()}
        weight = weight * torch.tensor([i not in ends for i in range(n)])
        losses = [torch.nn.functional.cross_entropy(model(tokens[None, a:b]).logits[0],
                                                    tokens[a + 1:b + 1], reduction="none")
                  for a, b in self.parts(first, n)]
        return (torch.cat(losses) * weight).sum() / weight.sum()

    def parts(self, first, n):
        """What the samples have of each document, in the n tokens from `first` on."""
        cuts = {*range(0, n, self.seq), n}
        if self.options:
            cuts |= {d - first for d in self.documents.tolist() if 0 <= d - first <= n}
        return zip(sorted(cuts), sorted(cuts)[1:])

    def logits(self, model):
        """A row for each token but the last one."""
        tokens = torch.from_numpy(self.tokens.astype(np.int64))
        with torch.no_grad():
            return torch.cat([model(tokens[None, a:b]).logits[0]
                              for a, b in self.parts(0, len(tokens) - 1)])

    def optimizer(self, model, without=(), **more):
        """AdamW of the parameters, but for those whose names are in `without`."""
        rest = [p for n, p in model.named_parameters() if n not in without]
        split = [[p for p in rest if p.ndim == 2], [p for p in rest if p.ndim != 2]]
        return torch.optim.AdamW([{"params": split[0], "weight_decay": 0.1},
                                  {"params": split[1], "weight_decay": 0.0}], **{**ADAM, **more})

    def steps(self, model, steps, optimizers=None):
        """Trains, and returns the losses."""
        optimizers, losses = optimizers or [self.optimizer(model)], []
        for step in range(steps):
            loss = self.loss(model, step)
            model.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for o in optimizers:
                o.step()
            losses.append(loss.item())
        return losses


def apart(x, y):
    return ((x.double() - y.double()).norm() / y.double().norm()).item()


def gradients(c, case, name):
    job = case.train("--steps", "1", "--beta1", "0", "--clip", "0", "--lr", "0")
    model = case.model(torch.float64)
    loss = case.loss(model, 0)
    loss.backward()
    if not c.check(job.status == 0, "%s: a step is made" % name, job.err):
        return
    got = case.saved(1, "optimizer")
    worst = max((apart(got[n + "/moment1_0"], p.grad), n) for n, p in model.named_parameters())
    c.check(worst[0] <= GRADIENT, "%s: gradients of all tensors within %g" % (name, GRADIENT),
            worst)
    c.check(len(got) == 2 * len(list(model.named_parameters())),
            "%s: two moments of each parameter are saved, and no others" % name)


def compare(c, case, name, job, model, first, want):
    """Compares four losses of a job, and its weights after three steps, with those of a model."""
    got = [e["loss"] for e in job.of("step")]
    c.check(len(got) == 4 and all(abs(a - b) <= LOSS * b for a, b in zip(got, want)),
            "%s: losses of four steps within %g" % (name, LOSS), got, want, job.err)
    ours = case.saved(3, "")
    worst = (0, "")
    for n, p in model.named_parameters():
        update = (p.detach() - first[n]).double().norm().item()
        worst = max(worst, ((ours[n].double() - p.detach().double()).norm().item() / update, n))
    c.check(worst[0] <= UPDATE, "%s: weights after three within %g of the update" % (name, UPDATE),
            worst)


def updates(c, case, name):
    args = ["--decay", "constant", "--lr", "1e-3", "--save-every", "1"]
    shutil.rmtree(case.run)
    job = case.train("--steps", "4", *args)
    model = case.model(torch.float32)
    first = {n: p.detach().clone() for n, p in model.named_parameters()}
    want = case.steps(model, 3)
    want.append(case.loss(model, 3).item())
    compare(c, case, name, job, model, first, want)
    return job


def goes_on(c, case, name):
    """transformers opens our checkpoint, and its loss there is that of our next step."""
    path = os.path.join(case.run, "checkpoint-3")
    double = case.model(torch.float64, path)
    events = [json.loads(line) for line in case.train(
        "--resume", case.run + "@3", "--rewind", "--steps", "4", "--decay", "constant", "--lr",
        "1e-3").out.splitlines()]
    got = [e["loss"] for e in events if e["event"] == "step"]
    c.check(len(got) == 1 and abs(got[0] - case.loss(double, 3).item()) <= LOSS * got[0],
            "%s: a step that goes on in transformers has our loss" % name, got, events)


def logits(c, case, name, program):
    """The logits of our checkpoint beside those of transformers, as it opens it, and in doubles."""
    path, out = os.path.join(case.run, "checkpoint-3"), case.run + "-logits"
    options = {"run": case.run, "resume": case.run + "@3", "eval-data": case.data,
               "micro-batch": 3}
    done = subprocess.run([program, json.dumps(options), out], capture_output=True, text=True,
                          cwd=ROOT)
    wants = [case.logits(case.model(dtype, path)).double() for dtype in (None, torch.float64)]
    ours = np.fromfile(out, np.float32)
    if not c.check(done.returncode == 0 and ours.size == wants[0].numel(),
                   "%s: each token has its logits" % name, ours.size, done.stderr):
        return
    ours = torch.from_numpy(ours).view(wants[0].shape)
    worst = [((ours - want).norm(dim=1) / want.norm(dim=1)).max().item() for want in wants]
    c.check(max(worst) <= LOGITS, "%s: logits of the checkpoint in transformers, in fp32 and in "
            "doubles, are ours within %g" % (name, LOGITS), worst)


def average(c, case, name, dtype):
    """The average of four steps, which transformers opens where it was exported."""
    shutil.rmtree(case.run)
    job = case.train("--ema", "0.6", "--dtype", dtype, "--decay", "constant", "--lr", "1e-3",
                     "--save-every", "1", "--steps", "4")
    path = case.run + "-average"
    done = subprocess.run([case.sheaf, "convert", case.run + "@4", path, "--family", "ema"],
                          capture_output=True, text=True)
    if not c.check(job.status == 0 and done.returncode == 0,
                   "%s, %s: an average is exported" % (name, dtype), job.err, done.stderr):
        return
    want = {n: p.detach() for n, p in case.model(torch.float32).named_parameters()}
    for step in range(1, 5):
        weights = case.saved(step, "master_weights" if dtype == "bf16" else "")
        want = {n: torch.lerp(e, weights[n], 0.4) for n, e in want.items()}
    opened = case.kind.from_pretrained(path, dtype=torch.float32)
    worst = max((apart(p.detach(), want[n]), n) for n, p in opened.named_parameters())
    c.check(worst[0] <= 1e-7,
            "%s, %s: transformers opens the average, which is that of torch" % (name, dtype), worst)
    shutil.rmtree(path)


def muon(c, case, name):
    """Muon beside that of torch, which here computes in fp32 what it rounds to bf16 otherwise."""
    if not hasattr(torch.optim, "Muon"):
        return
    shutil.rmtree(case.run)
    job = case.train("--optimizer", "muon", "--decay", "constant", "--lr", "1e-3", "--save-every",
                     "1", "--steps", "4")
    model = case.model(torch.float32)
    first = {n: p.detach().clone() for n, p in model.named_parameters()}
    matrices = {n: p for n, p in model.named_parameters() if p.ndim == 2 and ".layers." in n}
    theirs = torch.optim.Muon(matrices.values(), lr=1e-3, weight_decay=0.1, momentum=0.9,
                              adjust_lr_fn="match_rms_adamw")
    rounding, torch.Tensor.bfloat16 = torch.Tensor.bfloat16, torch.Tensor.clone
    want = case.steps(model, 3, [theirs, case.optimizer(model, without=matrices)])
    torch.Tensor.bfloat16 = rounding
    want.append(case.loss(model, 3).item())
    compare(c, case, name + ", muon", job, model, first, want)
    got = case.saved(3, "optimizer")
    worst = max((apart(got[n + "/velocity_0"], theirs.state[p]["momentum_buffer"]), n)
                for n, p in matrices.items())
    c.check(worst[0] <= 1e-4 and len(got) == 2 * len(first) - len(matrices),
            "%s: momenta of muon are saved as velocity_0" % name, worst)


def bf16(c, case, name):
    """Training in bf16 beside transformers in bf16 and in doubles. The weights of all three are
    equal. The error of transformers says how large one has to be."""
    shutil.rmtree(case.run)
    args = ["--dtype", "bf16", "--beta1", "0", "--clip", "0", "--decay", "constant", "--lr", "1e-3",
            "--save-every", "1", "--steps", "2"]
    job = case.train(*args)
    theirs, exact = case.model(torch.bfloat16), case.model(torch.bfloat16).double()
    losses = [case.loss(m, 0) for m in (theirs, exact)]
    for loss in losses:
        loss.backward()
    if not c.check(job.status == 0, "%s: bf16: steps are made" % name, job.err):
        return
    got, loss = case.saved(1, "optimizer"), losses[1].item()
    c.check(abs(job.of("step")[0]["loss"] - loss) <= BF16_LOSS * loss,
            "%s: bf16: the loss is that of doubles within %g" % (name, BF16_LOSS),
            job.of("step")[0]["loss"], loss, losses[0].item())
    grads = {n: (apart(got[n + "/moment1_0"], p.grad), apart(q.grad, p.grad))
             for (n, p), (_, q) in zip(exact.named_parameters(), theirs.named_parameters())}
    ratios = sorted(ours / other for ours, other in grads.values())
    worst = max((ours, n) for n, (ours, _) in grads.items())
    c.check(worst[0] <= BF16_GRADIENT and ratios[-1] <= 4 and ratios[len(ratios) // 2] <= 1,
            "%s: bf16: gradients are as exact as those of transformers in bf16" % name, worst,
            ratios)
    masters(c, case, name)
    next_loss = case.loss(case.model(None, os.path.join(case.run, "checkpoint-1")).double(), 1)
    c.check(abs(job.of("step")[1]["loss"] - next_loss.item()) <= BF16_LOSS * next_loss.item(),
            "%s: bf16: the loss of the saved model is that of the next step" % name,
            job.of("step")[1]["loss"], next_loss.item())


def masters(c, case, name):
    """The first update, from our gradients, beside that of torch in fp32; and the saved model."""
    model, grads = case.model(torch.float32), case.saved(1, "optimizer")
    first = {n: p.detach().clone() for n, p in model.named_parameters()}
    for n, p in model.named_parameters():
        p.grad = grads[n + "/moment1_0"]
    case.optimizer(model, betas=(0.0, 0.95)).step()
    saved, weights = case.saved(1, "master_weights"), case.saved(1, "")
    worst = max(((saved[n] - p).norm() / (p - first[n]).norm(), n)
                for n, p in model.named_parameters())
    c.check(worst[0] <= 1e-4 and len(saved) == len(first),
            "%s: bf16: the masters get the update in fp32" % name, worst)
    opened = case.model(None, os.path.join(case.run, "checkpoint-1"))
    c.check(all(p.dtype == torch.bfloat16 and torch.equal(p, weights[n]) and
                torch.equal(p, saved[n].bfloat16()) for n, p in opened.named_parameters()),
            "%s: bf16: transformers opens the masters, rounded" % name)


def main():
    torch.set_num_threads(1)
    c = Claims()
    with tempfile.TemporaryDirectory(prefix="sheaf-oracle-") as at:
        for i, (name, shape) in enumerate(SHAPES.items()):
            program, sheaf, eval_logits = map(os.path.abspath, sys.argv[1:4])
            case = Case(program, sheaf, at, i, shape, name in DOCUMENTS)
            gradients(c, case, name)
            updates(c, case, name)
            logits(c, case, name, eval_logits)
            goes_on(c, case, name)
            if name in MORE:
                muon(c, case, name)
                average(c, case, name, "fp32")
                average(c, case, name, "bf16")
                bf16(c, case, name)
    return c.end()


if __name__ == "__main__":
    sys.exit(main())
