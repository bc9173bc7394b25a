#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The kernel says no to the N-th call of the command. Prints TAP and counts.

usage: command.py BUILD [--seed N] [--seconds S]

Each verb runs under strace with one call refused, or all from some call on. It ends, with 0 and the
answer it gives without, or with 2, could not tell, and a line `sheaf: ...` of each thing it could
not look at. Never with 1, which would be a verdict on the checkpoint, and never by a signal.
"""
import json
import os
import re
import shutil

import ground
import inject
from ground import Skip, Trainer

CALLS = ["openat", "pread64", "newfstatat", "getdents64", "close", "fcntl", "mmap", "clone3",
         "io_uring_setup", "io_uring_enter", "eventfd2", "madvise", "read", "fstatfs", "readlinkat",
         "pwrite64", "fsync", "renameat2", "unlinkat", "mkdirat", "write"]
ERRORS = dict(inject.ERRORS, read=["EIO"], write=["EIO", "ENOSPC"], readlinkat=["EIO"])
SHORT = 14


def verbs(run):
    """Those that only look, then those that change a copy of the run."""
    looks = [["verify", run], ["ls", run], ["show", run], ["cat", run + "@2", "layers.2.up"],
             ["diff", run + "@2", run + "@2"], ["verify", run, "--json"], ["ls", run, "--json"]]
    return looks, [["mark", run + "@2", "keep"], ["prune", run, "--keep-last", "1", "--apply"],
                   ["rewind", run + "@2"]]


class Command:
    def __init__(self, g):
        self.g, self.log = g, os.path.join(g.at, "strace")
        self.run, self.spare = os.path.join(g.at, "run"), os.path.join(g.at, "spare")
        with Trainer(g, self.run) as t:
            for step in (1, 2, 3):
                if t.do("save %d" % step)["code"] != 0:
                    raise Skip("no run to look at")
            t.close()
        shutil.copytree(self.run, self.spare)
        self.looks, self.changes = verbs(self.run)
        # Before main there is nothing of ours.
        self.before = self.made(["--version"])
        self.before.pop("write", None)
        self.clean = {}
        for verb in self.looks:
            rc, out = ground.call([g.args.sheaf] + verb)
            g.claim(rc == 0, "sheaf " + " ".join(verb[:1] + verb[2:]) + ": without faults", out)
            self.clean[" ".join(verb)] = out

    def strace(self, more, verb):
        return ground.call(["strace", "-f", "-o", self.log] + more + [self.g.args.sheaf] + verb)

    def made(self, verb):
        """How often each call is made."""
        self.strace(["-e", "trace=" + ",".join(CALLS)], verb)
        with open(self.log, encoding="utf-8", errors="replace") as f:
            said = re.findall(r"^\d+ +(\w+)\(", f.read(), re.M)
        self.fresh(verb)
        return {call: said.count(call) for call in CALLS if call in said}

    def fresh(self, verb):
        if verb in self.changes:
            shutil.rmtree(self.run)
            shutil.copytree(self.spare, self.run)

    def one(self, verb, call, error, nth, on):
        g, when = self.g, "%d%s" % (nth, "+" * on)
        rc, out = self.strace(["-e", "trace=" + call, "-e", "inject=%s:error=%s:when=%s" %
                               (call, error, when)], verb)
        with open(self.log, encoding="utf-8", errors="replace") as f:
            hit = "(INJECTED)" in f.read()
        g.count("refusals tried")
        g.count("refusals that hit", hit)
        if hit:
            g.count("exit %d" % rc)
            why = self.wrong(verb, call, rc, out)
            if why:
                g.claim(False, "%s: call %s of %s is %s" % (" ".join(verb), when, call, error),
                        why)
        self.fresh(verb)
        return hit

    def same(self, verb, out):
        """As without faults; a step that ls cannot look at is among the damaged ones."""
        lines, clean = out.splitlines(), self.clean[" ".join(verb)].splitlines()
        return len(lines) == len(clean) and all(
            a == b or verb[0] == "ls" and "damaged" in a for a, b in zip(lines, clean))

    def wrong(self, verb, call, rc, out):
        if rc == 0:
            same = verb in self.changes or self.same(verb, out)
            return "" if same else "exit 0, and another answer: " + out
        if rc != 2:
            return "exit %d: %s" % (rc, out)
        told = [line for line in out.splitlines() if line.startswith("sheaf: ")]
        if "--json" in verb:
            told = [line for line in out.splitlines() if is_error(line)]
        # Where nothing can be written, or no memory had to write it, nothing is.
        return "" if told or call in ("write", "mmap") else "no sentence: " + out


def is_error(line):
    try:
        return "error" in json.loads(line) or "code" in json.loads(line)
    except ValueError:
        return line.startswith("sheaf: ")


def unread_is_not_gone(g, c):
    """No stat of a manifest is answered: that is not a manifest that is gone."""
    path = os.path.join(c.run, "checkpoint-2", "sheaf.json")
    for error in ("EIO", "EACCES", "ESTALE"):
        rc, out = c.strace(["-P", path, "-e", "trace=newfstatat,stat,statx", "-e",
                            "inject=newfstatat,stat,statx:error=" + error], ["verify", c.run])
        with open(c.log, encoding="utf-8", errors="replace") as f:
            g.claim("(INJECTED)" in f.read() and rc in (0, 2) and "gone" not in out,
                    "a manifest that is %s is not gone" % error, (rc, out))


def work(g):
    if not shutil.which("strace"):
        raise Skip("strace is not installed")
    c = Command(g)
    unread_is_not_gone(g, c)
    before, all_verbs = g.bad, c.looks + c.changes
    if not g.args.seconds:
        all_verbs = g.draw.sample(all_verbs, 3)
    made = {" ".join(verb): c.made(verb) for verb in all_verbs}
    cases = [(verb, call, error, on) for verb in all_verbs for call in made[" ".join(verb)]
             for error in ERRORS[call] for on in (False, True)
             if inject.stays(call, error) or not on]
    g.draw.shuffle(cases)
    for verb, call, error, on in cases[:None if g.args.seconds else SHORT]:
        least, most = c.before.get(call, 0) + 1, made[" ".join(verb)][call]
        if most < least:
            continue
        nths = range(least, most + 2) if g.args.seconds else [g.draw.randint(least, most)]
        for nth in nths:
            if g.args.seconds and g.left() < 0:
                g.count("cut short")
                break
            if not c.one(verb, call, error, nth, on):
                break
    g.claim(g.bad == before, "no refusal was more than `could not tell`")
    rc, out = ground.call([g.args.sheaf, "verify", c.run])
    g.claim(rc == 0, "every step verifies", out)


if __name__ == "__main__":
    ground.main("command", __doc__.splitlines()[0], work)
