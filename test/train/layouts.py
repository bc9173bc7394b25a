#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""sheaf-train on several ranks: do all layouts of a training have equal bits, also where one layout
resumes from the checkpoint of another, or after a kill? Prints TAP.

usage: layouts.py SHEAF-TRAIN WALK_LAYOUTS MPIRUN SHEAF [--seed N]
"""
import filecmp
import json
import math
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

from trainrun import MPI_ARGS, ROOT, Claims, Job, command, train

STEPS = 8
CONFIG = """# a small batch of t0, in 12 pieces
model: train/models/t0.json
seq: 19
batch: 12
steps: %d
virtual: {dp: 12, tp: 4}
lr: 0.002
warmup: 3
ema: 0.8
save-every: 2
data: %s
"""
# What all layouts of t0 compute. Few numbers divide its sizes. A third of the targets is masked.
WALK_STEPS, WALK_HALF = 20, 2
WALK = """model: train/models/t0.json
seq: 37
batch: 48
micro-batch: 5
steps: %d
virtual: {dp: 24, tp: 4}
lr: 0.002
decay: constant
warmup: 1
dropout: 0.1
attention-dropout: 0.15
ema: 0.8
save-every: %d
data: %s
"""
WALK_RANKS = 8
LAYOUTS = (
    ("one", 1, ""), ("dp2", 2, "mesh: {dp: 2}"), ("dp3", 3, "mesh: {dp: 3}, micro-batch: 1"),
    ("dp4", 4, "mesh: {dp: 4}, overlap: true"), ("tp2", 2, "mesh: {tp: 2}, micro-batch: 8"),
    ("tp4", 4, "mesh: {tp: 4}"), ("tp2sp", 2, "mesh: {tp: 2}, sp: true"),
    ("tp4sp", 4, "mesh: {tp: 4}, sp: true"), ("dp2tp2", 4, "mesh: {dp: 2, tp: 2}"),
    ("dp2tp2sp", 4, "mesh: {dp: 2, tp: 2}, sp: true, micro-batch: 1, zero: 1, zero-form: flat, "
     "recompute: block"),
    ("micro8", 1, "micro-batch: 8, recompute: block"), ("pp2", 2, "mesh: {pp: 2}"),
    ("pp3", 3, "mesh: {pp: 3}, stages: '1,3,1', micro-batch: 8, recompute: block"),
    ("interleaved", 2, "mesh: {pp: 2}, schedule: interleaved, chunks: 2"),
    ("tp2pp2sp", 4, "mesh: {tp: 2, pp: 2}, sp: true, schedule: afab, offload: AT"),
    ("dp2pp2", 4, "mesh: {dp: 2, pp: 2}, micro-batch: 1, zero: 1, zero-form: flat"),
    ("dp2tp2pp2", 8, "mesh: {dp: 2, tp: 2, pp: 2}, schedule: interleaved, chunks: 2, zero: 1, "
     "overlap: true"),
    ("zero-tensor", 2, "mesh: {dp: 2}, zero: 1, offload: AT"),
    ("zero-flat3", 3, "mesh: {dp: 3}, zero: 1, zero-form: flat, micro-batch: 1"),
    ("zero-flat8", 8, "mesh: {dp: 8}, zero: 1, zero-form: flat"),
    ("zero2", 2, "mesh: {dp: 2}, zero: 2"),
    ("zero2-flat3", 3, "mesh: {dp: 3}, zero: 2, zero-form: flat, micro-batch: 1, overlap: true"),
    ("zero2-dp2tp2", 4, "mesh: {dp: 2, tp: 2}, sp: true, zero: 2, micro-batch: 8, overlap: true"),
    ("zero2-dp2pp2", 4, "mesh: {dp: 2, pp: 2}, zero: 2, zero-form: flat, schedule: interleaved, "
     "chunks: 2, overlap: true, link-us: 10, link-gbps: 20"))

SIX = ("one", "dp3", "tp4sp", "pp3", "dp2tp2pp2", "zero-tensor")        # in bf16 with Muon, too


def text(n, seed):
    """A text of 50 invented words, so that there is something to learn."""
    rng = random.Random(seed)
    words = ["".join(rng.choice("abcdefghij") for _ in range(rng.randint(2, 7)))
             for _ in range(50)]
    return " ".join(rng.choice(words) for _ in range(n))


class World:
    def __init__(self, program, walker, mpirun, sheaf, at):
        self.program, self.walker, self.mpirun, self.at = program, walker, mpirun, at
        self.sheaf = sheaf
        self.claims = Claims()
        self.config = os.path.join(at, "config.yaml")

    def run(self, name):
        return os.path.join(self.at, name)

    def train(self, ranks, run, *args):
        return train(self.program, self.mpirun, ranks, self.config, "--run", self.run(run), *args)

    def walk(self, layouts):
        """Trains in these layouts, in one MPI job. Returns the Job of each, by name."""
        args = [self.mpirun] + MPI_ARGS + ["-n", str(WALK_RANKS), self.walker,
                                           self.run("walk.yaml"), self.at]
        args += ["%s:%d:{%s}" % (name, ranks, options.replace("AT", "'%s'" % self.at))
                 for name, ranks, options in layouts]
        done = subprocess.run(args, text=True, cwd=ROOT, capture_output=True,
                              timeout=29 * WALK_STEPS, stdin=subprocess.DEVNULL)
        results = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
        jobs = {}
        for name, _, _ in layouts:
            code, _, why = results.get(name, "-1 it did not end").partition(" ")
            events = ""
            if os.path.exists(self.run(name + ".events")):
                with open(self.run(name + ".events"), encoding="ascii") as f:
                    events = f.read()
            jobs[name] = Job(int(code), events, why + done.stderr)
        return jobs

    def same(self, job, want, claim, first=1):
        """Does the job have the steps of the undisturbed run, from `first` on?"""
        part = {step: x for step, x in want.items() if step >= first}
        self.claims.check(job.status == 0 and job.trace() == part, claim, job.err,
                          *["step %d: %s, not %s" % (s, job.trace().get(s), x)
                            for s, x in part.items() if job.trace().get(s) != x][:2])


def memory(w, jobs):
    """Has each rank of each job used the memory that the plan without the job has?"""
    ranks = {name: n for name, n, _ in LAYOUTS}
    bad = [(name, e) for name, job in jobs.items() for e in job.of("memory")
           if e["planned"] != e["used"] or min(e["used"].values()) <= 0]
    told = {name: [e["rank"] for e in job.of("memory")] for name, job in jobs.items()}
    w.claims.check(not bad and all(told[name] == list(range(ranks[name])) for name in told),
                   "all ranks use the memory that was planned, to the byte", bad[:3])
    for name, flags in (("one", []),
                        ("dp2tp2sp", ["--mesh", "dp=2,tp=2", "--sp", "--micro-batch", "1", "--zero",
                                      "1", "--zero-form", "flat", "--recompute", "block"]),
                        ("dp2tp2pp2", ["--mesh", "dp=2,tp=2,pp=2", "--schedule", "interleaved",
                                       "--chunks", "2", "--zero", "1"])):
        done = subprocess.run([w.program, "plan", w.run("walk.yaml"), "--run", "none", "--json"] +
                              flags, text=True, cwd=ROOT, capture_output=True)
        plans = [json.loads(line) for line in done.stdout.splitlines()]
        w.claims.check([(e["rank"], e["planned"]) for e in plans] ==
                       [(e["rank"], e["used"]) for e in jobs[name].of("memory")],
                       "plan prints the memory of each rank of %s" % name, plans, done.stderr)
    done = subprocess.run([w.program, "plan", w.run("walk.yaml"), "--run", "none", "--mesh",
                           "tp=2"], text=True, cwd=ROOT, capture_output=True)
    w.claims.check(len(done.stdout.splitlines()) == 3 and "activations" in done.stdout,
                   "and a table for people", done.stdout, done.stderr)


def peak_memory(w):
    """The memory of a process grows by what is planned. It is read after the first step, before
    anything is saved, and compared with that of a training with few samples."""
    with open(w.program, "rb") as f:
        if b"__asan_init" in f.read():
            return
    peak, planned = [], []
    for batch in (24, 480):
        args = ["--run", w.run("peak%d" % batch), "--batch", batch, "--micro-batch", batch,
                "--steps", 2, "--save-every", 0]
        process = subprocess.Popen(command(w.program, w.mpirun, 1, w.run("walk.yaml"), *args),
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                   cwd=ROOT)
        for line in process.stdout:
            if '"memory"' in line:
                with open("/proc/%d/status" % process.pid, encoding="ascii") as f:
                    peak += [int(x.split()[1]) * 1024 for x in f if x.startswith("VmHWM")]
                planned.append(sum(json.loads(line)["planned"].values()))
        process.wait()
    growth, plan = ([b - a for a, b in zip(x, x[1:])] for x in (peak, planned))
    w.claims.check(len(growth) == 1 and plan[0] > 80e6 and
                   0.8 * plan[0] < growth[0] <= 1.05 * plan[0] + (32 << 20),
                   "the memory of a process grows by what is planned", peak, planned)


def usage(w):
    """What is printed for a command line without a command, and for one that asks for help."""
    none, wrong, asked = (subprocess.run([w.program] + more, capture_output=True, text=True)
                          for more in ([], ["fly"], ["--help"]))
    w.claims.check(none.returncode == 2 and not none.stdout and "usage:" in none.stderr and
                   len(none.stderr.splitlines()) == 8 and wrong.returncode == 2 and
                   wrong.stderr == "sheaf-train: fly: there is no such command\n" + none.stderr,
                   "without a command the usage is on stderr, with status 2", none.stderr)
    w.claims.check(asked.returncode == 0 and not asked.stderr and "KEYs:" in asked.stdout,
                   "and --help prints all options", asked.stderr)


def complete(w, *words):
    """What bash completes the last of these words of a command line to."""
    done = subprocess.run(["bash", "-c", 'compopt() { :; }; . "$0"; COMP_WORDS=("$@"); '
                           'COMP_CWORD=$(($# - 1)); _sheaf_train; printf "%s\\n" "${COMPREPLY[@]}"',
                           os.path.join(ROOT, "completion/sheaf.bash"), w.program, *words],
                          capture_output=True, text=True, cwd=w.at)
    return sorted(done.stdout.split())


def completions(w):
    if not shutil.which("bash"):
        w.claims.skip("bash completes the options of sheaf-train", "there is no bash")
        return
    text = subprocess.run([w.program, "help"], capture_output=True, text=True).stdout
    keys = set(re.findall(r"^  (?:--)?([a-z][a-z0-9-]*) ", text, re.M))
    w.claims.check(set(re.findall(r"sheaf-train (\w+)", text.split("\n\n")[0])) <=
                   set(complete(w, "")) and len(keys) > 50 and
                   complete(w, "run", "a.yaml", "--") == sorted("--" + k for k in keys),
                   "bash completes the commands and all options of sheaf-train", keys,
                   complete(w, "run", "--"))
    os.makedirs(w.run("runs/old/checkpoint-8"))
    for words, want in ((("eval", "--dtype", ""), ["bf16", "fp32"]),
                        (("run", "--decay", "=", "li"), ["linear"]),
                        (("run", "--overlap", "="), ["false", "true"]),
                        (("run", "--resume", "n"), ["none"]), (("run", "--data", "runs/o"),
                                                                 ["runs/old"]),
                        (("run", "--resume", "runs/old@"), ["runs/old@8", "runs/old@latest"])):
        w.claims.check(complete(w, *words) == want, "and %s" % " ".join(words),
                       complete(w, *words))


def prepare(w):
    for i in range(3):
        with open(w.run("%d.txt" % i), "w", encoding="ascii") as f:
            f.write(text(700, i))
    files = [w.run("%d.txt" % i) for i in range(3)]
    data = w.run("data.safetensors")
    done = subprocess.run([w.program, "data"] + files + ["-o", data], capture_output=True)
    w.claims.check(done.returncode == 0, "text becomes a token file", done.stderr)
    with open(w.config, "w", encoding="ascii") as f:
        f.write(CONFIG % (STEPS, data))


def masked(w):
    """The data with a mask: one target in three does not count. Documents have 15 tokens on
    average, for document-attention."""
    with open(w.run("data.safetensors"), "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        data = f.read()
    n = header["tokens"]["shape"][0]
    header["mask"] = {"dtype": "U8", "shape": [n], "data_offsets": [len(data), len(data) + n]}
    rng = random.Random(7)
    begins = [0] + sorted(rng.sample(range(1, n), n // 15)) + [n]
    size = len(data) + n
    header["documents"] = {"dtype": "I64", "shape": [len(begins)],
                           "data_offsets": [size, size + 8 * len(begins)]}
    text = json.dumps(header).encode()
    with open(w.run("masked.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data +
                bytes(rng.random() < 2 / 3 for _ in range(n)) +
                struct.pack("<%dq" % len(begins), *begins))
    with open(w.run("walk.yaml"), "w", encoding="ascii") as f:
        f.write(WALK % (WALK_STEPS, WALK_HALF, w.run("masked.safetensors")))


def more(options, *others):
    """The options of a layout and further ones."""
    return ", ".join(x for x in (options,) + others if x)


def walk(w, seed):
    """One rank makes all steps, and the layouts make WALK_HALF. Then each of them makes as many
    from the checkpoint of another one, and three of them go on to the end."""
    half = [(name, ranks, options if name == "one" else more(options, "steps: %d" % WALK_HALF))
            for name, ranks, options in LAYOUTS]
    portable = ("portable", 4, "mesh: {dp: 2, tp: 2}, sp: true, isa: portable, steps: 1")
    jobs = w.walk(half + [portable])
    one = jobs["one"]
    want = one.trace()
    w.claims.check(one.status == 0 and sorted(want) == list(range(1, WALK_STEPS + 1)),
                   "one rank makes all steps", one.err)
    w.claims.check(float(one.of("step")[-1]["loss"]) < float(one.of("step")[0]["loss"]) - 0.2,
                   "and learns")
    for name, _, _ in LAYOUTS[1:]:
        w.same(jobs[name], {s: x for s, x in want.items() if s <= WALK_HALF},
               "%s has the same bits" % name)
    w.same(jobs.pop("portable"), {1: want[1]}, "portable kernels have the same bits")
    memory(w, jobs)
    for name, _, _ in LAYOUTS[1:]:
        checkpoints(w, WALK_HALF, name)
    last = [WALK_STEPS] * 3 + [2 * WALK_HALF] * (len(LAYOUTS) - 3)
    random.Random(seed).shuffle(last)
    resumed = [("from-%s-to-%s" % (LAYOUTS[i - 1][0], name), ranks, more(
        options, "steps: %d" % last[i], "resume: '%s@%d'" % (w.run(LAYOUTS[i - 1][0]), WALK_HALF)))
        for i, (name, ranks, options) in enumerate(LAYOUTS)]
    imports = [(name, ranks, more(options, "init: model", "model: '%s'" % w.run(
        "one/checkpoint-%d" % WALK_STEPS), "steps: 3"))
        for name, ranks, options in (
            ("import", 1, ""), ("import-pp", 3, "mesh: {pp: 3}"),
            ("import-tp", 4, "mesh: {dp: 2, tp: 2}, sp: true, zero: 1, zero-form: flat"))]
    documents = [("documents-" + name, ranks, more(
        options, "document-attention: true", "steps: 2"))
        for name, ranks, options in LAYOUTS if name in ("one", "dp3", "tp4sp", "pp3", "dp2tp2pp2")]
    jobs = w.walk(resumed + imports + evaluations(w) + elastic(w) + documents)
    alone = jobs["documents-one"].trace()
    w.claims.check(len(alone) == 2 and alone[1] != want[1], "documents have a loss of their own",
                   jobs["documents-one"].err)
    for name, _, _ in documents[1:]:
        w.same(jobs[name], alone, "%s has the same bits" % name)
    positions(w, jobs["elastic-4"], jobs["elastic-3"])
    for i, (name, _, _) in enumerate(resumed):
        w.same(jobs[name], {s: x for s, x in want.items() if s <= last[i]},
               "a resume %s has the same bits to step %d, seed %d" %
               (name.replace("-", " "), last[i], seed), WALK_HALF + 1)
        checkpoints(w, last[i], name)
    w.claims.check(jobs["import"].of("start")[0]["hash"] == one.of("step")[-1]["hash"],
                   "a model is read from a Hugging Face directory", jobs["import"].err)
    w.same(jobs["import-tp"], jobs["import"].trace(), "and in shards, with the same bits")
    w.same(jobs["import-pp"], jobs["import"].trace(), "and in stages")
    for name in ("eval-dp3", "eval-tp4sp", "eval-dp2tp2", "eval-pp3", "eval-dp2tp2pp2"):
        got, first = ([{k: e[k] for k in ("step", "loss_hex", "samples", "tokens")}
                       for e in jobs[n].of("eval")] for n in (name, "eval-one"))
        w.claims.check(len(got) == 2 and got == first, "%s has the same bits" % name, got, first,
                       jobs[name].err)
        w.same(jobs[name], {s: want[s] for s in (3, 4, 5)}, "and trains as without it", 3)


def mixed(w):
    """Six layouts train in bf16 with Muon, and each goes on from the checkpoint of another one."""
    kind = "dtype: bf16, optimizer: muon, save-every: 0, warmup: 0"
    six = [x for x in LAYOUTS if x[0] in SIX]
    jobs = w.walk([("mixed-" + name, ranks, more(options, kind, "steps: 2"))
                   for name, ranks, options in six])
    want = jobs["mixed-one"].trace()
    w.claims.check(sorted(want) == [1, 2], "one rank trains in bf16 with Muon",
                   jobs["mixed-one"].err)
    told = [e for job in jobs.values() for e in job.of("memory")]
    w.claims.check(len(told) == 21 and all(e["planned"] == e["used"] for e in told),
                   "in the memory that was planned", told[:3])
    for name, _, _ in six[1:]:
        w.same(jobs["mixed-" + name], want, "mixed-%s has the same bits" % name)
        checkpoints(w, 2, "mixed-" + name, "mixed-one")
    jobs = w.walk([("mixed-from-%s-to-%s" % (six[i - 1][0], name), ranks, more(
        options, kind, "steps: 3", "resume: '%s@2'" % w.run("mixed-" + six[i - 1][0])))
        for i, (name, ranks, options) in enumerate(six)])
    want = next(iter(jobs.values())).trace()
    for name, job in jobs.items():
        w.claims.check(list(want) == [3] and job.trace() == want,
                       "a resume %s has the same bits" % name.replace("-", " "), job.err)


def evaluations(w):
    """Layouts that go on from step 2, and evaluate after steps 4 and 5 on 7 samples. The ranks
    of dp 3 have different numbers of them, and the last one is short."""
    with open(w.run("eval.txt"), "w", encoding="ascii") as f:
        f.write(text(100, 5)[:6 * 37 + 20])
    subprocess.run([w.program, "data", w.run("eval.txt"), "-o", w.run("eval.safetensors")],
                   check=True, capture_output=True)
    return [("eval-" + name, ranks, more(
        options, "eval-data: '%s'" % w.run("eval.safetensors"), "eval-every: 2", "steps: 5",
        "resume: '%s@%d'" % (w.run("one"), WALK_HALF)))
            for name, ranks, options in LAYOUTS if name in ("one", "dp3", "tp4sp", "dp2tp2", "pp3",
                                                            "dp2tp2pp2")]


def elastic(w):
    """Jobs that begin with dp 4, and go on in the second half of the first epoch with dp 3, half
    the batch and other micro-batches."""
    return [("elastic-4", 4, "mesh: {dp: 4}, steps: 5, trace: samples"),
            ("elastic-3", 3, "mesh: {dp: 3}, batch: 24, micro-batch: 3, steps: 12, trace: samples, "
             "resume: '%s@5'" % w.run("elastic-4"))]


def positions(w, before, after):
    traces = [(e["step"], e["dp"], len(e["positions"]))
              for job in (before, after) for e in job.of("samples")]
    trained = [p for job in (before, after) for e in job.of("samples") for p in e["positions"]]
    last = after.of("step")[-1]["consumed_samples"]
    w.claims.check(traces == [(step, dp, 12) for step in range(1, 6) for dp in range(4)] +
                   [(step, dp, 8) for step in range(6, 13) for dp in range(3)] and
                   last == 5 * 48 + 7 * 24 and sorted(trained) == list(range(last)),
                   "each position is trained on once, also where dp, batch and micro-batch change",
                   after.err, len(trained), last)
    start = after.of("start")[0]
    w.claims.check(start["changed"] == ["batch", "steps"] and start["consumed_samples"] == 240,
                   "the place is that of the checkpoint", start)


def checkpoints(w, step, name, one="one"):
    """All files are those of one rank, but those that say how the training was run."""
    a, b = (w.run("%s/checkpoint-%d" % (run, step)) for run in (one, name))
    names = sorted(os.path.relpath(os.path.join(at, f), a) for at, _, files in os.walk(a)
                   for f in files if f not in ("sheaf.json", "sheaf.sums", "train.yaml"))
    same = filecmp.cmpfiles(a, b, names, shallow=False)[0]
    w.claims.check(len(names) >= 4 and sorted(same) == names,
                   "the checkpoint of %s has the bytes of one rank's" % name,
                   sorted(set(names) - set(same)))


def resumes(w):
    """Each job has an mpirun of its own, and resumes in its own run."""
    one = w.train(1, "one12")
    want = one.trace()
    w.claims.check(one.status == 0 and len(want) == STEPS and
                   [e["step"] for e in one.of("saved")] == [2, 4, 6, 8],
                   "a run saves the steps that it should", one.err)
    before = w.train(2, "half", "--mesh", "tp=2", "--steps", 4)
    after = w.train(4, "half", "--mesh", "dp=2,tp=2", "--sp", "--steps", STEPS)
    w.claims.check(before.status == 0 and after.status == 0 and
                   after.of("start")[0]["step"] == 4 and
                   after.of("start")[0]["hash"] == before.of("step")[-1]["hash"] and
                   after.of("start")[0]["mesh"] == {"dp": 2, "tp": 2, "pp": 1} and
                   after.of("start")[0]["virtual"] == {"dp": 12, "tp": 4},
                   "dp 2, tp 2 goes on with the weights of tp 2", before.err, after.err)
    w.claims.check(after.of("start")[0]["changed"] == ["steps"], "and says what was changed",
                   after.of("start")[0]["changed"])
    old = w.train(2, "one12", "--resume", w.run("one12") + "@4")
    w.claims.check(old.status == 2 and "rewind" in old.err,
                   "an older step is not taken without rewind", old.err)
    job = w.train(2, "one12", "--mesh", "tp=2", "--resume", w.run("one12") + "@4", "--rewind")
    w.same(job, want, "with it, training goes on from there", 5)
    return want


def averages(w):
    """The loss of an average is that of the model into which it is exported. A run that begins to
    have an average says so."""
    evals = ["--eval-data", w.run("data.safetensors"), "--resume", "none"]
    job = w.train(4, "averaged", "--mesh", "dp=2,pp=2", "--zero", 1, "--overlap", "--eval-ema",
                  "--dtype", "bf16", "--steps", 3, *evals)
    done = subprocess.run([w.sheaf, "convert", w.run("averaged@3"), w.run("exported"), "--family",
                           "ema", "--dtype", "BF16"], capture_output=True, text=True)
    other = w.train(1, "from-average", "--model", w.run("exported"), "--init", "model", "--lr", 0,
                    "--min-lr", 0, "--warmup", 0, "--steps", 1, "--dtype", "bf16", "--ema", 0,
                    *evals)
    told, want = (j.of("eval") or [{}] for j in (job, other))
    w.claims.check(told[-1].get("ema") is True and want[0].get("ema") is False and
                   told[-1]["loss_hex"] == want[0]["loss_hex"],
                   "the loss of an average is that of the model into which it is exported",
                   told, want, job.err, done.stderr, other.err)
    before = w.train(1, "begins", "--ema", 0, "--steps", 4)
    after = w.train(2, "begins", "--zero", 1, "--steps", 6)
    again = w.train(1, "begins", "--steps", 8)
    changed = [e["changed"] for job in (before, after, again) for e in job.of("start")]
    w.claims.check(changed == [[], ["steps", "ema"], ["steps"]] and
                   not os.path.exists(w.run("begins/checkpoint-4/ema")) and
                   os.path.exists(w.run("begins/checkpoint-6/ema")),
                   "a run that begins to have an average says so", changed, after.err)


def printed(w):
    """What --print-config prints reproduces the run."""
    flags = ["--mesh", "tp=2", "--sp", "--steps", "3", "--dtype", "bf16", "--lr=0.003", "--warmup",
             "1", "--ema", "0", "--stages", "5"]
    first = w.train(2, "first", *flags)
    texts = []
    for path, args in ((w.config, flags + ["--run", w.run("it's: a #run")]),
                       (w.run("printed.yaml"), [])):
        done = subprocess.run([w.program, "run", path, "--print-config"] + args, text=True,
                              cwd=ROOT, capture_output=True)
        texts.append(done.stdout)
        with open(w.run("printed.yaml"), "w", encoding="utf-8") as f:
            f.write(done.stdout)
    again = train(w.program, w.mpirun, 2, w.run("printed.yaml"))
    w.claims.check(texts[0] == texts[1] and "mesh: {dp: 1, tp: 2, pp: 1}" in texts[0] and
                   first.status == again.status == 0 and len(first.trace()) == 3 and
                   first.trace() == again.trace() and os.path.isdir(w.run("it's: a #run")),
                   "the options that are printed reproduce the run", *texts, again.err)


def refused(w):
    for ranks, args, words in (
            (2, ["--mesh", "tp=2", "--virtual", "dp=12"], ("mesh tp=2", "virtual tp=1")),
            (1, ["--virtual", "dp=12,tp=3"], ("virtual tp=3", "num_key_value_heads 4")),
            (2, ["--mesh", "dp=2,tp=2"], ("mesh dp=2, tp=2, pp=1", "2; use mpirun -n 4")),
            (2, ["--mesh", "pp=2", "--stages", "3,3"],
             ("stages has 6 layers", "model train/models/t0.json has 5")),
            (2, ["--mesh", "pp=2", "--schedule", "interleaved", "--chunks", 3],
             ("mesh pp=2 with chunks 3", "5 layers of model")),
            (1, ["--zero-form", "flat"], ("zero-form flat", "zero is 0")),
            (1, ["--sp"], ("sp", "mesh has tp=1"))):
        job = w.train(ranks, "refused", *args)
        w.claims.check(job.status == 2 and all(x in job.err for x in words) and
                       not os.path.exists(w.run("refused/checkpoint-2")),
                       "%s is refused" % " ".join(map(str, args)), job.status, job.err)


def killed(w, ranks, config, run, rng, *args):
    """A job whose ranks are killed at a drawn moment after the first or the second step, so that
    there are steps left for three kills."""
    process = subprocess.Popen(command(w.program, w.mpirun, ranks, config, "--run", w.run(run),
                                       "--save-every", "1", *args),
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                               start_new_session=True, cwd=ROOT)
    out, moment = "", rng.randint(1, 2)
    for line in process.stdout:
        out += line
        if '"event":"step"' in line and out.count('"event":"step"') == moment:
            time.sleep(rng.random() * 0.02)
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    rest = subprocess.run(["pgrep", "-f", w.run(run)], capture_output=True, text=True)
    for pid in rest.stdout.split():
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            pass
    return Job(process.returncode, out, "")


def kill(w, want, seed):
    """Kills three jobs. The next one, in another layout, resumes. All of them set ZeRO 1; where dp
    is 1, it is the same as 0."""
    rng = random.Random(seed)
    jobs = []
    for mesh in ("tp=2", "dp=2,pp=2", "pp=3", "dp=2,tp=2"):
        ranks = math.prod(int(axis[3:]) for axis in mesh.split(","))
        args = ["--mesh", mesh, "--zero", "1", "--zero-form", "flat"]
        if len(jobs) < 3:
            jobs.append(killed(w, ranks, w.config, "killed", rng, *args))
        else:
            jobs.append(w.train(ranks, "killed", "--save-every", "1", *args))
    w.claims.check([job.status == 0 for job in jobs] == [False] * 3 + [True] and
                   goes_on(jobs) == want,
                   "seed %d: after 3 kills the steps are those of a run that was not killed" % seed,
                   *[(job.status, sorted(job.trace())) for job in jobs])
    checkpoints(w, STEPS, "killed", "one12")


def goes_on(jobs):
    """The steps of jobs of one run, or None if a step that was computed twice has other bits."""
    steps = {}
    for job in jobs:
        for step, x in job.trace().items():
            if steps.setdefault(step, x) != x:
                return None
    return steps


def readers(w, want):
    """The first rank of tp in the first and the last stage have the data in their working
    directories, the others do not."""
    config = w.run("readers.yaml")
    with open(w.config, encoding="ascii") as f, open(config, "w", encoding="ascii") as to:
        to.write(f.read().replace(w.run("data.safetensors"), "data.safetensors").replace(
            "train/models", os.path.join(ROOT, "train/models")))
    os.mkdir(w.run("empty"))
    for name, mesh, dirs, code in (
            ("readers", "tp=2,pp=3", (w.at, "empty", "empty", "empty", w.at, "empty"), 0),
            ("no-reader", "dp=2,tp=2", (w.at, w.at, "empty", w.at), 2)):
        args = [w.mpirun] + MPI_ARGS
        for i, where in enumerate(dirs):
            args += ([":"] if i else []) + ["-n", "1", "-wdir", w.run(where)] + command(
                w.program, w.mpirun, 1, config, "--run", w.run(name), "--mesh", mesh)
        done = subprocess.run(args, capture_output=True, text=True, timeout=240,
                              stdin=subprocess.DEVNULL)
        job = Job(done.returncode, done.stdout, done.stderr)
        if code == 0:
            w.same(job, want, "ranks that do not read need no data")
        else:
            error = (job.of("error") or [{}])[0]
            w.claims.check(job.status == 2 and error.get("rank") == 2 and
                           "rank 2: data.safetensors: No such file" in job.err,
                           "a rank that does not find the data is named", job.err)


def opened(w):
    """Which of 8 ranks open the data? strace says it, where it is installed."""
    claim = "only two of 8 ranks of pp 4, tp 2 open the data"
    strace = shutil.which("strace")
    trace = w.run("trace")
    if not strace or subprocess.run([strace, "-o", trace, "true"],
                                    capture_output=True).returncode:
        w.claims.skip(claim, "strace is not installed, or may trace nothing here")
        return
    job = command(w.program, w.mpirun, 1, w.config, "--run", w.run("opened"), "--mesh",
                  "tp=2,pp=4", "--steps", 3, "--warmup", 0)
    shell = 'exec "%s" -f -e trace=openat -o "%s.$OMPI_COMM_WORLD_RANK" "$@"' % (strace, trace)
    done = subprocess.run([w.mpirun] + MPI_ARGS + ["-n", "8", "sh", "-c", shell, "sh"] + job,
                          capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL,
                          timeout=240)
    ranks = []
    for rank in range(8):
        with open("%s.%d" % (trace, rank), encoding="utf-8", errors="replace") as f:
            ranks += [rank] if "data.safetensors" in f.read() else []
    w.claims.check(done.returncode == 0 and ranks == [0, 6], claim, ranks, done.stderr)


def stopped(w):
    """Rank 3 is stopped. The others end with its number, and rank 0 writes that as an event."""
    process = subprocess.Popen(command(w.program, w.mpirun, 4, w.config, "--run", w.run("stopped"),
                                       "--mesh", "dp=2,tp=2", "--timeout-ms", "3000", "--steps",
                                       "100000", "--epochs", "100000"),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    out = "".join(process.stdout.readline() for _ in range(3))
    rank_3 = [pid for pid in pids_of(process.pid) if "OMPI_COMM_WORLD_RANK=3" in environ(pid)]
    for pid in rank_3:
        os.kill(pid, signal.SIGSTOP)
    if not rank_3:
        process.terminate()
    start = time.monotonic()
    more, err = process.communicate()
    seconds = time.monotonic() - start
    last = Job(process.returncode, out + more, err).events[-1]
    w.claims.check(process.returncode == 2 and last["event"] == "error" and seconds < 30 and
                   (last["code"], last["rank"]) == ("ELOST", 3),
                   "a rank that is stopped is named in an event", last, seconds, err)


def pids_of(parent):
    """The processes that a process has started."""
    with open("/proc/%d/task/%d/children" % (parent, parent), encoding="ascii") as f:
        return [int(pid) for pid in f.read().split()]


def environ(pid):
    with open("/proc/%d/environ" % pid, encoding="utf-8", errors="replace") as f:
        return f.read().split("\0")


def unset(w, seed):
    """Without virtual the bits depend on the layout, and a resume in the same layout has them, also
    after a kill."""
    with open(w.config, encoding="ascii") as f:
        config = f.read()
    with open(w.run("unset.yaml"), "w", encoding="ascii") as f:
        f.write(config.replace("virtual: {dp: 12, tp: 4}\n", ""))
    whole = train(w.program, w.mpirun, 2, w.run("unset.yaml"), "--run", w.run("unset"),
                  "--mesh", "tp=2")
    first = killed(w, 2, w.run("unset.yaml"), "unset2", random.Random(seed), "--mesh", "tp=2")
    then = train(w.program, w.mpirun, 2, w.run("unset.yaml"), "--run", w.run("unset2"),
                 "--mesh", "tp=2")
    w.claims.check(whole.status == 0 and len(whole.trace()) == STEPS and first.status != 0 and
                   len(then.trace()) > 1 and goes_on([first, then]) == whole.trace(),
                   "seed %d: without virtual a resume in the same layout has the same bits, after "
                   "a kill" % seed, first.status, then.err)
    other = train(w.program, w.mpirun, 1, w.run("unset.yaml"), "--run", w.run("unset3"))
    pairs = [(a["loss"], b["loss"]) for a, b in zip(whole.of("step"), other.of("step"))]
    w.claims.check(len(pairs) == STEPS and all(abs(a - b) < 1e-4 * a for a, b in pairs),
                   "and another layout has the same losses but for rounding", pairs)


def ends(w):
    job = w.train(2, "epochs", "--epochs", 1, "--steps", 1000000, "--batch", 120, "--micro-batch",
                  20)
    steps = [(e["step"], e["consumed_samples"]) for e in job.of("step")]
    w.claims.check(job.status == 0 and job.of("end")[0]["reason"] == "data" and
                   steps == [(i, 120 * i) for i in range(1, len(steps) + 1)] and
                   [e["step"] for e in job.of("saved")][-1:] == [len(steps)],
                   "at the end of the data all ranks stop and save", job.err, steps)
    job = w.train(2, "nan", "--lr", 1000, "--clip", 0, "--warmup", 0, "--save-every", 1)
    steps, saved = sorted(job.trace()), [e["step"] for e in job.of("saved")]
    w.claims.check(job.status == 1 and job.of("error")[0]["code"] == "ENAN" and
                   set(saved) <= set(steps), "NaN stops before a save, with status 1", job.err)


def epochs(w):
    """Without steps the rate falls until the data ends, also after a resume with another batch, and
    other data begins with its first sample."""
    config = w.run("epochs.yaml")
    with open(w.config, encoding="ascii") as f, open(config, "w", encoding="ascii") as to:
        to.write(f.read().replace("steps: %d\n" % STEPS, "epochs: 1\n"))

    def job(ranks, run, *args):
        return train(w.program, w.mpirun, ranks, config, "--run", w.run(run), "--warmup", 0, *args)
    whole = job(1, "ends", "--batch", 120)
    steps = sorted(whole.trace())
    samples = whole.of("step")[-1]["consumed_samples"]
    w.claims.check(whole.status == 0 and steps[-1] >= 4 and steps[-1] == samples // 120,
                   "an epoch is trained without steps", whole.err, steps)
    for name, batch in ("wider", 240), ("narrower", 36):
        got = job(2, name, "--batch", batch, "--resume", w.run("ends") + "@2")
        last = 2 + (got.of("step")[-1]["consumed_samples"] - 240) // batch
        want = job(1, name + "-steps", "--batch", batch, "--resume", w.run("ends") + "@2",
                   "--steps", last)
        rates = [float.fromhex(e["lr_hex"]) for e in got.of("step")]
        w.claims.check(got.status == 0 and got.of("end")[0] == {"event": "end", "reason": "data",
                       "step": last} and got.trace() == want.trace() and
                       rates == sorted(set(rates), reverse=True) and rates[-1] > 0,
                       "the rate of a %s batch falls until the data ends" % name, rates, got.err)
    with open(w.run("other.txt"), "w", encoding="ascii") as f:
        f.write(text(300, 9))
    subprocess.run([w.program, "data", w.run("other.txt"), "-o", w.run("other.safetensors")],
                   check=True, capture_output=True)
    alone = job(1, "other-alone", "--data", w.run("other.safetensors"), "--trace", "samples")
    got = job(2, "other", "--data", w.run("other.safetensors"), "--trace", "samples", "--resume",
              w.run("ends") + "@%d" % steps[-1])
    w.claims.check(got.status == 0 and got.of("start")[0]["changed"] == ["batch", "data"] and
                   len(alone.of("step")) > 2 and
                   [(e["step"] - steps[-1], e["consumed_samples"]) for e in got.of("step")] ==
                   [(e["step"], e["consumed_samples"]) for e in alone.of("step")] and
                   sorted(p for e in got.of("samples") for p in e["positions"]) ==
                   sorted(p for e in alone.of("samples") for p in e["positions"]),
                   "with other data it begins with the first sample of these", got.of("start"),
                   got.err)


def main():
    seed = int(sys.argv[sys.argv.index("--seed") + 1]) if "--seed" in sys.argv else \
        random.SystemRandom().randrange(10 ** 6)
    with tempfile.TemporaryDirectory(prefix="sheaf-train-") as at:
        w = World(os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), sys.argv[3],
                  os.path.abspath(sys.argv[4]), at)
        usage(w)
        completions(w)
        prepare(w)
        masked(w)
        walk(w, seed)
        peak_memory(w)
        mixed(w)
        want = resumes(w)
        averages(w)
        printed(w)
        refused(w)
        readers(w, want)
        opened(w)
        stopped(w)
        unset(w, seed)
        kill(w, want, seed)
        ends(w)
        epochs(w)
        return w.claims.end()


if __name__ == "__main__":
    sys.exit(main())
