#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""sheaf-train on several ranks: do all layouts of a training have equal bits, also where one layout
resumes from the checkpoint of another, or after a kill? Prints TAP.

usage: layouts.py SHEAF-TRAIN MPIRUN [--seed N]
"""
import filecmp
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

from trainrun import ROOT, Claims, Job, command, train

STEPS = 8
CONFIG = """# a small batch of t0, in 12 pieces
model: train/models/t0.json
seq: 19
batch: 12
steps: %d
virtual: {dp: 12}
lr: 0.002
warmup: 3
save-every: 2
data: %s
"""


def text(n, seed):
    """A text of 50 invented words, so that there is something to learn."""
    rng = random.Random(seed)
    words = ["".join(rng.choice("abcdefghij") for _ in range(rng.randint(2, 7)))
             for _ in range(50)]
    return " ".join(rng.choice(words) for _ in range(n))


class World:
    def __init__(self, program, mpirun, at):
        self.program, self.mpirun, self.at = program, mpirun, at
        self.claims = Claims()
        self.config = os.path.join(at, "config.yaml")

    def run(self, name):
        return os.path.join(self.at, name)

    def train(self, ranks, run, *args):
        return train(self.program, self.mpirun, ranks, self.config, "--run", self.run(run), *args)

    def same(self, job, want, claim, first=1):
        """Does the job have the steps of the undisturbed run, from `first` on?"""
        part = {step: x for step, x in want.items() if step >= first}
        self.claims.check(job.status == 0 and job.trace() == part, claim, job.err,
                          *["step %d: %s, not %s" % (s, job.trace().get(s), x)
                            for s, x in part.items() if job.trace().get(s) != x][:2])


def usage(w):
    """What is printed for a command line without a command, and for one that asks for help."""
    none, wrong, asked = (subprocess.run([w.program] + more, capture_output=True, text=True)
                          for more in ([], ["fly"], ["--help"]))
    w.claims.check(none.returncode == 2 and not none.stdout and "usage:" in none.stderr and
                   len(none.stderr.splitlines()) == 4 and wrong.returncode == 2 and
                   wrong.stderr == "sheaf-train: fly: there is no such command\n" + none.stderr,
                   "without a command the usage is on stderr, with status 2", none.stderr)
    w.claims.check(asked.returncode == 0 and not asked.stderr and "KEYs:" in asked.stdout,
                   "and --help prints all options", asked.stderr)


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


def layouts(w):
    one = w.train(1, "one")
    want = one.trace()
    w.claims.check(one.status == 0 and sorted(want) == list(range(1, STEPS + 1)),
                   "one rank makes all steps", one.err)
    w.claims.check(float(one.of("step")[-1]["loss"]) < float(one.of("step")[0]["loss"]) - 0.2,
                   "and learns")
    saved = [e["step"] for e in one.of("saved")]
    w.claims.check(saved == [2, 4, 6, 8], "and saves the steps that it should", saved)
    for ranks, micro in ((2, 5), (3, 1), (4, 12)):
        job = w.train(ranks, "dp%d" % ranks, "--micro-batch", micro)
        w.same(job, want, "dp %d with micro-batches of %d has the same bits" % (ranks, micro))
    for micro in (1, 5):
        job = w.train(1, "micro%d" % micro, "--micro-batch", micro)
        w.same(job, want, "micro-batches of %d have the same bits" % micro)
    job = w.train(1, "portable", "--isa", "portable", "--steps", STEPS)
    w.same(job, want, "portable kernels have the same bits")
    return want


def tensor_files(folder):
    return sorted(os.path.relpath(os.path.join(at, f), folder)
                  for at, _, files in os.walk(folder) for f in files
                  if f.endswith(".safetensors"))


def checkpoints(w):
    a, b = w.run("one/checkpoint-8"), w.run("dp3/checkpoint-8")
    names = tensor_files(a)
    same = filecmp.cmpfiles(a, b, names, shallow=False)[0]
    w.claims.check(len(names) >= 2 and names == tensor_files(b) and sorted(same) == names,
                   "checkpoints of one rank and of three have the same files of tensors", names)


def resumes(w, want):
    for first, second in ((1, 2), (2, 1), (3, 4)):
        run = "from%dto%d" % (first, second)
        before = w.train(first, run, "--steps", 4, "--decay", "constant")
        after = w.train(second, run, "--steps", STEPS, "--decay", "constant")
        w.claims.check(before.status == 0 and after.status == 0 and
                       after.of("start")[0]["step"] == 4 and
                       after.of("start")[0]["hash"] == before.of("step")[-1]["hash"],
                       "dp %d goes on with the weights of dp %d" % (second, first),
                       before.err, after.err)
        w.claims.check(after.of("start")[0]["changed"] == ["steps"],
                       "and says what was changed", after.of("start")[0]["changed"])
        steps = dict(before.trace())
        steps.update(after.trace())
        w.constant = getattr(w, "constant", steps)
        w.claims.check(steps == w.constant and sorted(steps) == list(range(1, STEPS + 1)),
                       "with the bits of the other pairs")
    job = w.train(1, "constant", "--decay", "constant")
    w.same(job, w.constant, "which are those of a run that nothing disturbed")
    old = w.train(2, "one", "--resume", w.run("one") + "@4")
    w.claims.check(old.status == 2 and "rewind" in old.err,
                   "an older step is not taken without rewind", old.err)
    job = w.train(2, "one", "--resume", w.run("one") + "@4", "--rewind")
    w.same(job, want, "with it, training goes on from there", 5)
    job = w.train(2, "elsewhere", "--resume", w.run("dp2") + "@6")
    w.same(job, want, "a run may go on with a step of another run", 7)


def kill(w, want, seed):
    """Kills jobs at a drawn moment. The next job, on other ranks, resumes, until all steps are
    done."""
    rng = random.Random(seed)
    sizes = [2, 3, 1, 2, 4, 1, 3, 2]
    steps, kills = {}, 0
    for ranks in sizes:
        process = subprocess.Popen(command(w.program, w.mpirun, ranks, w.config, "--run",
                                           w.run("killed"), "--save-every", "1"),
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                   start_new_session=True, cwd=ROOT)
        out = ""
        moment = rng.randint(2, 4)
        for line in process.stdout:
            out += line
            if out.count('"event":"step"') == moment and kills < 3:
                time.sleep(rng.random() * 0.02)
                kills += 1
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for step, x in Job(0, out, "").trace().items():
            if steps.setdefault(step, x) != x:
                w.claims.check(False, "seed %d: a step is computed again with other bits" % seed)
        if process.returncode == 0:
            break
        rest = subprocess.run(["pgrep", "-f", w.run("killed")], capture_output=True, text=True)
        for pid in rest.stdout.split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
    w.claims.check(steps == want and kills == 3,
                   "seed %d: after %d kills the steps are those of a run that was not killed" %
                   (seed, kills), sorted(steps))


def unset(w):
    """Without virtual the bits depend on the layout, and a resume in the same layout has them."""
    with open(w.config, encoding="ascii") as f:
        config = f.read()
    with open(w.run("unset.yaml"), "w", encoding="ascii") as f:
        f.write(config.replace("virtual: {dp: 12}\n", ""))
    whole = train(w.program, w.mpirun, 2, w.run("unset.yaml"), "--run", w.run("unset"))
    part = train(w.program, w.mpirun, 2, w.run("unset.yaml"), "--run", w.run("unset2"),
                 "--resume", w.run("unset") + "@4")
    want = {s: x for s, x in whole.trace().items() if s > 4}
    w.claims.check(whole.status == 0 and len(want) == 4 and part.trace() == want,
                   "without virtual a resume in the same layout has the same bits", part.err)
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


def main():
    seed = int(sys.argv[sys.argv.index("--seed") + 1]) if "--seed" in sys.argv else \
        random.SystemRandom().randrange(10 ** 6)
    with tempfile.TemporaryDirectory(prefix="sheaf-train-") as at:
        w = World(os.path.abspath(sys.argv[1]), sys.argv[2], at)
        usage(w)
        prepare(w)
        want = layouts(w)
        checkpoints(w)
        resumes(w, want)
        unset(w)
        kill(w, want, seed)
        ends(w)
        return w.claims.end()


if __name__ == "__main__":
    sys.exit(main())
