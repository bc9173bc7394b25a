#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The kernel says no to one of four ranks on MPI, in the middle of a save. Prints TAP and counts.

usage: ranks.py BUILD [--seed N] [--seconds S]

strace lets the N-th call of a kind that one rank makes in a save end with an error. The save ends
on all ranks alike, by itself: it is committed, or every rank returns the same code, nobody is lost
and rank 0 tells one sentence. The step is there if and only if it was told, the run verifies and
loads in another layout, and the next job saves on.
"""
import os
import subprocess

import ground
import inject
from ground import Broken, kill

RANKS, SHORT = 4, 2
CALLS = ["pwrite64", "fsync", "fallocate", "openat", "io_uring_enter", "close"]
FIRST_CALLS = ["mkdirat", "unlinkat", "renameat2", "newfstatat", "memfd_create", "fcntl"] # rank 0


class Job:
    """Four ranks that save a step for each line they are given."""

    def __init__(self, g, b, step):
        b.started += 1
        self.b, self.told = b, os.path.join(b.at, "events-%d" % b.started)
        argv = b.argv("save", RANKS, g.draw.choice(["dp=2,tp=2", "tp=4", "pp=2,dp=2"]), "--zero",
                      str(g.draw.randrange(3)), "--step", str(step), "--rounds", "3", "--io",
                      g.draw.choice(["auto", "buffered"]), "--on-line", "--timeout-ms", "20000",
                      "--events", self.told)
        with open(os.path.join(b.at, "log-%d" % b.started), "wb") as log:
            self.job = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=log, stderr=log)

    def heard(self, name, n):
        """Until so many such events, or the end of the job."""
        return kill.until(lambda: len(kill.events(self.told, name)) >= n or
                          self.job.poll() is not None, ground.PATIENCE_S)

    def line(self):
        try:
            self.job.stdin.write(b"\n")
            self.job.stdin.flush()
        except OSError:
            pass

    def rank(self, r):
        ranks = {kill.rank_of(pid): pid for pid in kill.children(self.job.pid)}
        if r not in ranks:
            raise Broken("no rank %d: %s" % (r, self.b.log()))
        return ranks[r]


def one(g, b, newest):
    """A job, a save or two, a refusal in the last; the newest step then."""
    job, rounds = Job(g, b, newest + 1), g.draw.randint(1, 2)
    for k in range(rounds):
        job.heard("ready", k + 1)
        if k + 1 < rounds:
            job.line()
    rank, nth = g.draw.randrange(RANKS), min(g.draw.randint(1, 10), g.draw.randint(1, 10))
    call = g.draw.choice(CALLS + FIRST_CALLS * (rank == 0))
    error = g.draw.choice(inject.ERRORS[call])
    what = "rank %d, save %d, call %d of %s is %s" % (rank, rounds, nth, call, error)
    with inject.Fault(g.at, call, error, nth) as fault:
        fault.attach(job.rank(rank))
        job.line()
        ended = job.heard("ready", rounds + 1)      # of the next round, when all is over
        stuck = "" if ended else ground.stacks(kill.children(job.job.pid))
        hit = fault.detach().count("(INJECTED)")
    job.job.stdin.close()
    ended = kill.until(lambda: job.job.poll() is not None, ground.PATIENCE_S) and ended
    g.claim(kill.end(job.job) and ended, what + ": it ends by itself", stuck)
    g.count("refusals tried")
    g.count("refusals that hit", hit > 0)
    said = [e["step"] for e in kill.events(job.told, "committed")]
    errors = kill.events(job.told, "error")
    g.count("answered " + (errors[-1]["code"] if errors else "OK"))
    good = job.job.returncode == (2 if errors else 0) and len(errors) <= 1 and \
        (hit > 0 or not errors)
    if errors:
        good = good and errors[0]["code"] in ("EIO", "ENOMEM", "EINDOUBT") and \
            errors[0]["rank"] == rank and \
            errors[0]["message"] and "\n" not in errors[0]["message"]
    elif good:
        good = newest + rounds in said
    g.claim(good, what + ": one answer", "exit %s, %s\n%s" % (job.job.returncode, errors, b.log()))
    return after(g, b, said, newest, errors, what)


def after(g, b, said, newest, errors, what):
    seen = b.committed()
    doubt = errors and errors[0]["code"] == "EINDOUBT"
    beyond = [s for s in seen if s > max(said, default=newest)]
    g.claim(set(said) <= set(seen) and len(beyond) <= bool(doubt),
            what + ": what was told is there, and nothing else", (said, seen))
    if not seen:
        return 0
    proof = b.call([g.args.sheaf, "verify", "%s@%d" % (b.run_dir, max(seen))])
    if max(seen) == newest:
        g.claim(proof.returncode == 0, what + ": the newest verifies", proof.stdout)
        return newest
    # A job saves the values of its first step again and again.
    first = newest + 1
    load = b.call(b.argv("load", 2, "tp=2", "--step", str(first)))
    same = b.call([g.args.sheaf, "diff"] + ["%s@%d" % (b.run_dir, s) for s in (first, max(seen))])
    g.claim(proof.returncode == load.returncode == same.returncode == 0,
            what + ": the newest verifies, and the values are right elsewhere",
            proof.stdout + load.stdout + same.stdout)
    return max(seen)


def work(g):
    ground.needs_mpi(g.args)
    ground.needs_strace()
    b = kill.Bench(g.args.sheaf, g.args.bench, g.args.mpirun, [], g.room("ranks"))
    newest, n = 0, 0
    while n < SHORT or g.left() > 0:
        newest = one(g, b, newest)
        n += 1
    last = b.call(b.argv("save", 3, "dp=3", "--step", str(newest + 1)))
    g.claim(last.returncode == 0, "the next job saves on", last.stdout)
    states = {e["state"] for e in b.listed()}
    g.claim(states == {"committed"}, "nothing half made is left", states)


if __name__ == "__main__":
    ground.main("ranks", __doc__.splitlines()[0], work)
