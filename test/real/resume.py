#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""doc/examples/resume.c, killed at random moments and started again. Prints TAP and counts.

usage: resume.py BUILD [--seed N] [--kills N]

With an agent and without, on one to three ranks of MPI: all processes of a job are killed at any
moment, from its start on, and the next job goes on. No job goes back behind what an earlier one
went on from, nobody has to help, and in the end the steps that were asked for are there, with the
same bytes that a job leaves which nobody killed. Four kills, or as many as --kills says. In half as
many rounds more the agent dies under the job, and at last under the job that comes to the end: it
goes on, and the steps that are due come to disk.
"""
import filecmp
import json
import os
import re
import signal
import subprocess
import time

import ground
from ground import call, kill

FEW, STARTS_S, TRAINS_S = 4, 1.0, 0.3
# What a job is told of a commit to memory under which an earlier one was killed.
CUT = r"resume: memory of checkpoint-\d+: not all of it is in memory"
NO_CARD = 64 << 10              # bytes: the image of a step, and no card beside it


class Loop:
    """The example on a run of its own, again and again."""

    def __init__(self, g, agent, at="resume"):
        self.g, self.at = g, g.room(at)
        self.run, self.more = os.path.join(self.at, "run"), ["auto"] if agent else []
        self.log, self.step = os.path.join(self.at, "log"), 0
        self.program = os.path.join(os.path.abspath(g.args.build), "doc", "resume")
        self.mpirun = [g.args.mpirun, "--allow-run-as-root", "--oversubscribe",
                       "--mca", "orte_tmpdir_base", self.at,
                       "--mca", "btl_vader_backing_directory", self.at]

    def argv(self, ranks, run, last):
        return self.mpirun + ["-n", str(ranks), self.program, run, str(last)] + self.more

    def said(self):
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return f.read()

    def goes_on(self, what):
        """Where the job went on from, if it came to say so."""
        found = re.search(r"resume from step (\d+)", self.said())
        if found:
            self.g.claim(int(found.group(1)) >= self.step, what + ": it goes on from step %s" %
                         found.group(1), "an earlier one was at %d" % self.step)
            self.step = int(found.group(1))
            self.g.count("jobs that went on", self.step > 0)
        wrong = [line for line in self.said().splitlines()
                 if line.startswith("resume: ") and not re.fullmatch(CUT, line)]
        self.g.claim(not wrong, what + ": nothing is wrong", "\n".join(wrong))

    def start(self, ranks, last, trains):
        """A job; trains: it has gone on from somewhere."""
        with open(self.log, "wb") as log:
            job = subprocess.Popen(self.argv(ranks, self.run, last), stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=log)
        if trains:
            told = kill.until(lambda: "resume from" in self.said() or job.poll() is not None,
                              ground.PATIENCE_S)
            self.g.claim(told, "a job says what it resumes from", self.said())
        return job

    def killed(self, i):
        ranks, trains = self.g.draw.randint(1, 3), self.g.draw.random() < 0.6
        late = self.g.draw.uniform(0, TRAINS_S if trains else STARTS_S)
        what = "kill %d, of %d ranks, %.0f ms after it %s" % (
            i, ranks, late * 1e3, "went on" if trains else "was started")
        job = self.start(ranks, 10**9, trains)
        time.sleep(late)
        alive = job.poll() is None
        self.g.claim(kill.end(job) and alive, what, self.said())
        self.g.count("kills")
        self.goes_on(what)

    def newest(self, where=("committed", "memory")):
        """A job that was killed while it started may have made no run yet."""
        rc, out = call([self.g.args.sheaf, "ls", self.run, "--json"])
        found = [json.loads(line) for line in out.splitlines()] if rc == 0 else []
        return max([e["step"] for e in found if e["state"] in where], default=0)

    def agent(self, *more):
        """Starts one; its process."""
        rc, out = call([self.g.args.sheaf, "agent", self.run, "--detach", "--no-flush", *more])
        self.g.claim(rc == 0, "an agent", out)
        return self.asked()["pid"]

    def asked(self):
        rc, out = call([self.g.args.sheaf, "agent", self.run, "--status", "--json"])
        return json.loads(out.splitlines()[0]) if rc == 0 else {"pid": 0, "bytes": 0}

    def agent_killed(self, i):
        """Under a job that goes on, and is killed later."""
        pid, ranks = self.agent(), self.g.draw.randint(1, 3)
        late = self.g.draw.uniform(0, TRAINS_S)
        what = "death %d of an agent, of %d ranks, after %.0f ms" % (i, ranks, late * 1e3)
        job = self.start(ranks, 10**9, True)
        time.sleep(late)
        os.kill(pid, signal.SIGKILL)
        kill.until(lambda: kill.is_gone(pid), ground.PATIENCE_S)
        at = self.newest(["committed"])
        kill.until(lambda: self.newest(["committed"]) > at + 20 or job.poll() is not None,
                   ground.PATIENCE_S)
        self.g.claim(self.newest(["committed"]) > at + 20 and job.poll() is None,
                     what + ": due steps come to disk", self.said())
        self.g.claim(kill.end(job), what + ": it is killed", self.said())
        self.g.count("agents that were killed")
        self.step = min(self.step, at)          # what was in memory alone is gone
        self.goes_on(what)

    def no_room_for_a_card(self):
        """What a commit to memory says of an agent that dies under it, it says of this one."""
        self.agent("--memory-max", str(NO_CARD))
        self.ends(1)
        self.g.claim(0 < self.asked()["bytes"] <= NO_CARD, "it took an image, and no card")
        self.stop()

    def stop(self):
        rc, out = call([self.g.args.sheaf, "agent", self.run, "--stop"])
        self.g.claim(rc == 0, "the agent ends", out)

    def ends(self, ranks=2, *, agent_dies=False):
        last = (self.newest() // 10 + 3) * 10
        pid, late = self.agent() if agent_dies else 0, self.g.draw.uniform(0, STARTS_S)
        job = self.start(ranks, last, False)
        if agent_dies:
            time.sleep(late)
            os.kill(pid, signal.SIGKILL)
            self.g.count("agents that were killed")
        try:
            rc, out = job.wait(ground.PATIENCE_S), self.said()
        except subprocess.TimeoutExpired:
            rc, out = 124, "hung:\n" + ground.stacks(kill.children(job.pid))
            kill.end(job)
        with open(self.log, "w", encoding="utf-8") as log:
            log.write(out)
        self.g.claim(rc == 0, "the last job comes to step %d" % last, out)
        self.goes_on("the last job")
        other = os.path.join(self.at, "other")
        rc, out = call(self.argv(1, other, last), timeout=600)
        self.g.claim(rc == 0, "so does one that nobody kills", out)
        for name in ("model-00001-of-00001.safetensors",
                     "optimizer/optimizer-00001-of-00001.safetensors"):
            a, b = (os.path.join(run, "checkpoint-%d" % last, name) for run in (self.run, other))
            self.g.claim(os.path.exists(a) and os.path.exists(b) and
                         filecmp.cmp(a, b, shallow=False), "and the bytes are the same: " + name)


def work(g):
    ground.needs_mpi(g.args)
    kills = g.args.kills or FEW
    for agent in (False, True):
        loop = Loop(g, agent)
        if agent:
            loop.agent()
        for i in range(1, kills // 2 + 1):
            loop.killed(i)
        loop.ends()
        if agent:
            loop.stop()
    Loop(g, True).no_room_for_a_card()
    loop = Loop(g, True, "/dev/shm/resume")     # where half of the time is not the disk's
    for i in range(1, kills // 2 + 1):
        loop.agent_killed(i)
    loop.ends(agent_dies=True)


if __name__ == "__main__":
    ground.main("resume", __doc__.splitlines()[0], work,
                [("--kills", int, 0, "so many kills of jobs, half of them with an agent; and half "
                  "as many of agents")])
