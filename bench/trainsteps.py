# SPDX-License-Identifier: Apache-2.0
"""Contestants that are jobs of sheaf-train, and the text that they train on."""
import json
import os
import random
import subprocess

from contestants import Contestant
from harness import ROOT


def sizes(b):
    """Returns the model's config.json, the steps of a job and the tokens of a sample."""
    model, steps, seq = ("t1", 3, 32) if b.quick else ("s12", 6, 256)
    return "train/models/%s.json" % model, steps, seq


def train(b, ranks, config, *flags):
    """Returns the command of a job."""
    program = os.path.join(b.build, "train", "sheaf-train")
    job = [program, "run", config, "--json", "--resume", "none", *flags]
    return job if ranks == 1 else [b.program("mpirun"), "--allow-run-as-root", "--oversubscribe",
                                   "--bind-to", "none", "-n", str(ranks)] + job


class Steps(Contestant):
    """The median step of a job, without the first one. Several copies of a job run at once, and the
    slowest counts."""

    def __init__(self, b, name, *flags, ranks=2, copies=1):
        super().__init__(name)
        self.b, self.flags, self.ranks, self.copies = b, flags, ranks, copies
        self.losses = []                # of the last round

    def round(self):
        runs = [os.path.join(self.b.dir, "run%d" % i) for i in range(self.copies)]
        jobs = [subprocess.Popen(train(self.b, self.ranks, "/dev/null", "--run", run, *self.flags),
                                 cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 stdin=subprocess.DEVNULL, text=True) for run in runs]
        medians = []
        for job in jobs:
            out, err = job.communicate()
            if job.returncode:
                raise RuntimeError("sheaf-train: " + err.strip())
            steps = [e for e in map(json.loads, out.splitlines()) if e["event"] == "step"]
            self.losses = [e["loss"] for e in steps]
            seconds = sorted(e["seconds"] for e in steps if e["step"] > 1)
            medians.append(seconds[len(seconds) // 2])
        subprocess.run(["rm", "-rf", *runs], check=True)
        return {"seconds": max(medians)}


def planned(b, *flags):
    """Returns the bytes that `sheaf-train plan` plans for the first rank, by kind."""
    done = subprocess.run([os.path.join(b.build, "train", "sheaf-train"), "plan", "/dev/null",
                           "--json", "--run", "none", *flags], check=True, cwd=ROOT,
                          capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[0])["planned"]


def make_data(b):
    """Writes a token file of random words, b.dir/data."""
    text = os.path.join(b.dir, "text")
    drawn = random.Random(1).choices(("sheaf", "of", "wheat", "is", "bound"), k=9999)
    with open(text, "w", encoding="ascii") as f:
        f.write(" ".join(drawn))
    subprocess.run([os.path.join(b.build, "train", "sheaf-train"), "data", text, "-o",
                    os.path.join(b.dir, "data")], check=True, capture_output=True)
