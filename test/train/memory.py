#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs of sheaf-train that save to the memory of an agent: all ranks are killed, or the agent is.
Prints TAP.

usage: memory.py SHEAF-TRAIN MPIRUN SHEAF [--seed N]
"""
import os
import random
import re
import signal
import subprocess
import sys
import tempfile

from signals import STEPS, Running, World
from trainrun import train


def agent(sheaf, *args):
    return subprocess.run([sheaf, "agent"] + list(args), text=True, capture_output=True,
                          timeout=60, check=True, stdin=subprocess.DEVNULL).stdout


def kill_all(job):
    """Kills mpirun and its ranks, which get no time for anything."""
    pid = job.process.pid
    with open("/proc/%d/task/%d/children" % (pid, pid), encoding="ascii") as f:
        ranks = [int(p) for p in f.read().split()]
    for p in [pid] + ranks:
        os.kill(p, signal.SIGKILL)
    job.process.communicate(timeout=60)


def killed(w, sheaf, want, seed):
    """All ranks are killed when nothing is on disk yet. The next job has another layout."""
    last = random.Random(seed).randint(3, 8)
    agent(sheaf, w.at("killed"), "--detach", "--no-flush")
    job = Running(w, 4, "killed", "--mesh", "dp=2,tp=2", "--save-memory-every", "1")
    job.until('"event":"saved","step":%d,"to":"memory"' % last)
    kill_all(job)
    on_disk = [name for name in os.listdir(w.at("killed")) if name.startswith("checkpoint-")]
    done = train(w.program, w.mpirun, 3, w.config, "--run", w.at("killed"), "--mesh", "pp=3",
                 "--save-memory-every", "1")
    start = done.of("start")[0]
    w.claims.check(done.status == 0 and not on_disk and last <= start["step"] < STEPS,
                   "seed %d: after a kill of all ranks the next job resumes from memory" % seed,
                   on_disk, start, done.err)
    w.claims.check(done.trace() == {s: x for s, x in want.items() if s > start["step"]},
                   "in another layout, with the steps of a job that was not killed")


def without_agent(w, sheaf, want):
    """The agent is killed, and the job goes on without it."""
    agent(sheaf, w.at("lost"), "--detach", "--no-flush")
    pid = int(re.search(r"agent (\d+) ", agent(sheaf, w.at("lost"), "--status")).group(1))
    job = Running(w, 2, "lost", "--mesh", "tp=2", "--save-memory-every", "1")
    job.until('"step":3,"to":"memory"')
    os.kill(pid, signal.SIGKILL)
    done = job.end()
    errors, saved = done.of("error"), done.of("saved")
    w.claims.check(done.status == 0 and done.trace() == want and len(errors) == 1 and
                   errors[0]["code"] in ("EAGAIN", "EFAILED") and
                   (saved[-1]["to"], saved[-1]["step"]) == ("disk", STEPS),
                   "a job whose agent is killed goes on, and says so once", errors, done.err)


def main():
    seed = int(sys.argv[sys.argv.index("--seed") + 1]) if "--seed" in sys.argv else \
        random.SystemRandom().randrange(10 ** 6)
    sheaf = os.path.abspath(sys.argv[3])
    with tempfile.TemporaryDirectory(prefix="sheaf-memory-") as folder:
        w = World(os.path.abspath(sys.argv[1]), sys.argv[2], folder)
        want = train(w.program, w.mpirun, 1, w.config, "--run", w.at("plain")).trace()
        w.claims.check(sorted(want) == list(range(1, STEPS + 1)), "a job makes its steps")
        try:
            killed(w, sheaf, want, seed)
            without_agent(w, sheaf, want)
        finally:
            for run in ("killed", "lost"):
                subprocess.run([sheaf, "agent", w.at(run), "--stop"], capture_output=True)
        return w.claims.end()


if __name__ == "__main__":
    sys.exit(main())
