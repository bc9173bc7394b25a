# SPDX-License-Identifier: Apache-2.0
"""What the tests of sheaf-train share: claims in TAP, and jobs of it."""
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MPI_ARGS = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]


class Claims:
    def __init__(self):
        self.n = self.bad = 0

    def check(self, good, claim, *why):
        self.n += 1
        self.bad += not good
        print("%sok %d - %s" % ("" if good else "not ", self.n, claim))
        for line in () if good else why:
            for part in str(line).splitlines()[:20]:
                print("# " + part[:300])
        sys.stdout.flush()
        return good

    def skip(self, claim, why):
        self.check(True, "%s # SKIP %s" % (claim, why))

    def end(self):
        print("1..%d" % self.n)
        return 1 if self.bad else 0


class Job:
    """A job of sheaf-train that has ended: its exit status, its events and its stderr."""

    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err
        self.events = []
        for line in out.splitlines():
            if line.startswith("{"):
                self.events.append(json.loads(line))

    def of(self, event):
        return [e for e in self.events if e["event"] == event]

    def trace(self):
        """What must be equal in all layouts, by step."""
        return {e["step"]: (e["loss_hex"], e["grad_norm_hex"], e["lr_hex"], e["hash"],
                            e["tokens"], e["consumed_samples"]) for e in self.of("step")}


def command(program, mpirun, ranks, config, *args):
    job = [program, "run", config, "--json"] + [str(a) for a in args]
    return job if ranks == 1 else [mpirun] + MPI_ARGS + ["-n", str(ranks)] + job


def train(program, mpirun, ranks, config, *args, timeout=240):
    done = subprocess.run(command(program, mpirun, ranks, config, *args), text=True, cwd=ROOT,
                          capture_output=True, timeout=timeout, stdin=subprocess.DEVNULL)
    return Job(done.returncode, done.stdout, done.stderr)
