#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of a job, or all, killed or stopped anywhere in a save. Prints TAP and counts.

usage: kills.py BUILD [--seed N] [--seconds S]

Four ranks on MPI save step after step. Then nothing that was told as committed is gone, the newest
verifies, loads with the same values in another layout, and the next job saves on. Where MPI lets
the survivors of a death live (--enable-recovery), they end by themselves within the deadline, with
ELOST.
"""
import os
import signal
import time

import ground
from ground import kill

RANKS, SLACK_S = 4, 8
TIMEOUT_MS = 1500
KINDS = ["all killed", "one killed", "one killed, the others live", "one stopped"]


class Round:
    """A job, until somebody dies."""

    def __init__(self, g, b, newest, kind):
        self.g, self.b, self.kind = g, b, kind
        self.live = kind in KINDS[2:]
        mpi = ["--enable-recovery"] if self.live else []
        self.job, self.told = b.start(newest + 1, "--timeout-ms", str(TIMEOUT_MS), mpi=mpi)
        # Into the second save or a later one, anywhere in it.
        wanted = g.draw.randint(2, 4)
        kill.until(lambda: len(kill.events(self.told, "begin")) >= wanted or
                   self.job.poll() is not None, ground.PATIENCE_S)
        saved = kill.events(self.told, "saved")
        late = g.draw.uniform(0, 1.5 * (saved[-1]["seconds"] if saved else 0.1))
        time.sleep(late)
        self.pids = {kill.rank_of(pid): pid for pid in kill.children(self.job.pid)}
        self.ready = self.job.poll() is None and all(r in self.pids for r in range(RANKS))
        self.victim = g.draw.randrange(RANKS)
        self.what = "%s%s, %.0f ms into save %d" % (
            kind, "" if kind == KINDS[0] else " (rank %d)" % self.victim, late * 1e3, wanted)

    def strike(self):
        for rank, pid in self.pids.items():
            if rank == self.victim or (rank >= 0 and self.kind == KINDS[0]):
                os.kill(pid, signal.SIGSTOP if self.kind == KINDS[3] else signal.SIGKILL)

    def survivors(self):
        """They end by themselves in time; rank 0, where it lives, says why."""
        begin = time.monotonic()
        others = [p for r, p in self.pids.items() if r >= 0 and r != self.victim]
        left = kill.until(lambda: all(map(kill.is_gone, others)), TIMEOUT_MS / 1e3 + SLACK_S)
        took = time.monotonic() - begin
        stacks = "" if left else ground.stacks(others)
        self.g.claim(left, self.what + ": the others end by themselves",
                     "after %.1f s\n%s\n%s" % (took, self.b.log(), stacks))
        self.g.most("longest wait of survivors, ms", int(took * 1e3))
        errors = kill.events(self.told, "error")
        if self.victim:
            self.g.claim(kill.is_lost(errors), self.what + ": told as ELOST, of a rank that "
                         "nobody knows", "%s\n%s" % (errors, self.b.log()))
            self.g.count("ELOST told")

    def end(self):
        self.g.claim(self.ready, self.what, self.b.log())
        if self.ready:
            self.strike()
            if self.live:
                self.survivors()
        elif self.job.poll() is None:
            print("# " + ground.stacks(kill.children(self.job.pid)))
        if self.kind == KINDS[1]:       # mpirun ends the others
            kill.until(lambda: self.job.poll() is not None, ground.PATIENCE_S)
        self.g.claim(kill.end(self.job), self.what + ": nothing is left of the job")
        self.g.count("jobs: " + self.kind)
        self.g.count("saves committed", len(kill.events(self.told, "committed")))
        newest = kill.prove(self.g, self.b, self.told, self.what)
        self.g.count("steps proved and loaded elsewhere")
        return newest


def work(g):
    ground.needs_mpi(g.args)
    b = kill.Bench(g.args.sheaf, g.args.bench, g.args.mpirun, [], g.room("kills"))
    newest, kinds = 0, g.draw.sample(KINDS[1:], 1)
    while kinds or g.left() > 0:
        newest = Round(g, b, newest, kinds.pop() if kinds else g.draw.choice(KINDS)).end()
        if newest > 200:
            b = kill.Bench(g.args.sheaf, g.args.bench, g.args.mpirun, [], g.room("kills"))
            newest = 0
    one = b.call(b.argv("save", 3, "dp=3", "--step", str(newest + 1)))
    g.claim(one.returncode == 0, "the next job saves on", one.stdout)
    states = {e["state"] for e in b.listed()}
    g.claim(states == {"committed"}, "nothing half made is left", states)
    proof = b.call([g.args.sheaf, "verify", b.run_dir])
    g.claim(proof.returncode == 0, "every step of the run verifies", proof.stdout)


if __name__ == "__main__":
    ground.main("kills", __doc__.splitlines()[0], work)
