#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A library and an agent with nothing to do: they sleep until somebody asks. Prints TAP and counts.

usage: idle.py BUILD [--seed N] [--seconds S]

A trainer has saved, copying behind, and its agent keeps the steps; then nobody asks for anything,
for four seconds or S. strace writes down every call that any of their threads makes meanwhile.
"""
import json
import os
import signal
import subprocess
import sys
import time

import ground
from ground import Broken, Trainer, call

SHORT_S = 4
ATTACHED_S = 1                          # until strace has come and told what is under way


def calls_of(g, pid, seconds):
    """What its threads ask of the kernel after the first second."""
    log = os.path.join(g.at, "strace-%d" % pid)
    tracer = subprocess.Popen(["strace", "-f", "-ttt", "-o", log, "-p", str(pid)],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE)
    said = tracer.stderr.readline().decode()
    if "attached" not in said:
        tracer.kill()
        raise Broken("strace cannot attach: " + said.strip())
    time.sleep(ATTACHED_S)
    begin = time.time()
    time.sleep(seconds)
    end = time.time()
    tracer.send_signal(signal.SIGINT)
    try:
        tracer.wait(30)
    finally:
        tracer.kill()
    tracer.stderr.close()
    with open(log, encoding="utf-8", errors="replace") as f:
        lines = [line.split(None, 2) for line in f]
    return [line for line in lines if len(line) == 3 and begin < float(line[1]) < end]


def quiet(g, who, pid, seconds):
    calls = calls_of(g, pid, seconds)
    g.count("calls of " + who, len(calls))
    g.claim(not calls, "%s: no call in %d s" % (who, seconds), "\n".join(map(str, calls[:10])))


def work(g):
    seconds = max(SHORT_S, g.args.seconds or 0)
    sheaf = g.args.sheaf
    run = os.path.join(g.room("idle"), "run")
    if call(["strace", "-V"])[0]:
        raise ground.Skip("no strace")
    # It starts no processes: strace that attaches in the middle of a vfork may never come back.
    with subprocess.Popen([sys.executable, "-c",
                           "import time\nwhile True:\n    time.sleep(0.1)"]) as restless:
        try:
            g.claim(calls_of(g, restless.pid, 1), "one that does not sleep is seen")
        finally:
            restless.kill()             # else leaving this block would wait for it for ever
    rc, said = call([sheaf, "agent", run, "--detach"])
    g.claim(rc == 0, "an agent", said)
    with Trainer(g, run, "agent") as t:
        for step in (1, 2, 3):
            got = t.do("save %d" % step)
            g.claim(got["code"] == 0, "step %d is saved" % step, got)
        rc, said = call([sheaf, "agent", run, "--status", "--json"])
        g.claim(rc == 0, "the agent answers", said)
        time.sleep(0.5)                 # what was asked is over
        quiet(g, "a trainer", t.pid, seconds)
        quiet(g, "its agent", json.loads(said.splitlines()[0])["pid"], seconds)
        got = t.do("save 4")
        g.claim(got["code"] == 0, "and both wake when they are asked", got)
    rc, said = call([sheaf, "agent", run, "--stop"])
    g.claim(rc == 0, "the agent ends", said)


if __name__ == "__main__":
    ground.main("idle", __doc__.splitlines()[0], work)
