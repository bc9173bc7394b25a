#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The kernel says no to the N-th call of the command. Prints TAP and counts.

usage: command.py BUILD [--seed N] [--seconds S]

Each verb runs under strace with one call refused, or all from some call on. It ends, with 0 and the
answer it gives without, or with 2, could not tell, and a line `sheaf: ...` of each thing it could
not look at. Never with 1, which would be a verdict on the checkpoint, and never by a signal.

What a verb that changes the run leaves behind is what doc/reliability.md says of its errors: a mark
is the old one or the new one, of the steps that may be pruned some went and of the others none, and
of a rewind the later steps are aside, newest first, or its journal says that they will be. The next
job finishes what was begun, the newest step loads with its values, and every step verifies.
"""
import json
import os
import re
import shutil

import ground
import inject
from ground import Broken, Trainer

CALLS = ["openat", "pread64", "newfstatat", "getdents64", "close", "fcntl", "mmap", "clone3",
         "io_uring_setup", "io_uring_enter", "eventfd2", "madvise", "read", "fstatfs", "readlinkat",
         "pwrite64", "fsync", "renameat2", "unlinkat", "mkdirat", "write"]
ERRORS = dict(inject.ERRORS, read=["EIO"], write=["EIO", "ENOSPC"], readlinkat=["EIO"])
SHORT = 24
STEPS = {1, 2, 3, 4, 5}         # 1 is marked keep, and 2 bad
MAY_GO, BACK_TO = {2, 3}, 3     # by --keep-last 2; what is rewound to


def verbs(run):
    """Those that only look, then those that change a copy of the run."""
    looks = [["verify", run], ["ls", run], ["show", run], ["cat", run + "@2", "layers.2.up"],
             ["diff", run + "@2", run + "@2"], ["verify", run, "--json"], ["ls", run, "--json"]]
    return looks, [["mark", run + "@2", "keep"], ["mark", run + "@2", "none"],
                   ["prune", run, "--keep-last", "2", "--apply"],
                   ["rewind", "%s@%d" % (run, BACK_TO)]]


def numbers(folder):
    """The steps in a run, or in a folder of its .sheaf."""
    if not os.path.isdir(folder):
        return set()
    found = [re.match(r"(?:checkpoint-)?(\d+)(?:-\w+)?$", name) for name in os.listdir(folder)]
    return {int(m.group(1)) for m in found if m}


def text_of(path):
    if not os.path.exists(path):
        return ""
    with open(path, encoding="ascii") as f:
        return f.read()


class Command:
    def __init__(self, g):
        self.g, self.log = g, os.path.join(g.at, "strace")
        self.run, self.spare = os.path.join(g.at, "run"), os.path.join(g.at, "spare")
        with Trainer(g, self.run) as t:
            for step in sorted(STEPS):
                got = t.do("save %d" % step)
                if got["code"] != 0:
                    raise Broken("no run to look at: %s" % got)
            t.close()
        for step, mark in (("1", "keep"), ("2", "bad")):
            ground.must([g.args.sheaf, "mark", self.run + "@" + step, mark])
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
            why = self.wrong(verb, call, rc, out) or verb in self.changes and \
                (self.left(verb, rc, out) or self.goes_on(verb))
            if why:
                g.claim(False, "%s: call %s of %s is %s" % (" ".join(verb), when, call, error),
                        why)
        self.fresh(verb)
        return hit

    def same(self, verb, out):
        """As without faults; but ls may say that it could not look at a step, a mark, a count."""
        lines, clean = out.splitlines(), self.clean[" ".join(verb)].splitlines()
        return len(lines) == len(clean) and all(
            a == b or verb[0] == "ls" and re.search(r'"unread"|"tries":null| unread | [?] ', a)
            for a, b in zip(lines, clean))

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

    def left(self, verb, rc, out):
        """What a change left that it may not, or ""."""
        seen, dot = numbers(self.run), os.path.join(self.run, ".sheaf")
        if verb[0] == "mark":
            old, new = "b", "k" if verb[2] == "keep" else ""
            mark, *session = text_of(os.path.join(dot, "marks", "2")).split() or [""]
            with open(os.path.join(self.run, "checkpoint-2", "sheaf.json"), encoding="utf-8") as f:
                of_step = [json.load(f)["session"]]
            good = seen == STEPS and (mark == new or rc and mark == old) and \
                session in ([], of_step)
            self.g.count("marks that are " + ("the new one" if mark == new else "the old one"))
            return "" if good else "of %s the mark is %r of %s" % (sorted(seen), mark, session)
        if verb[0] == "prune":
            went, trash = STEPS - seen, numbers(os.path.join(dot, "trash"))
            self.g.count("steps that prunes took", len(went))
            # What could not be looked at stays, and with exit 0 it was said why.
            kept = {int(n) for n in re.findall(r"^ *(\d+)  keep +\S", out, re.M)}
            good = trash == went <= MAY_GO and (rc or MAY_GO - went <= kept)
            return "" if good else "%s went, in the trash: %s: %s" % (
                sorted(went), sorted(trash), out)
        aside, journal = numbers(os.path.join(dot, "aside")), text_of(os.path.join(dot, "rewind"))
        part = self.part_of_a_rewind(aside)
        self.g.count("rewinds that moved " + part)
        good = seen == STEPS - aside and bool(part) and \
            (not journal if rc == 0 else journal or part != "some") and (rc or part == "all")
        return "" if good else "aside %s, here %s, the journal: %s" % (
            sorted(aside), sorted(seen), journal or "none")

    @staticmethod
    def part_of_a_rewind(aside):
        """Newest first."""
        later = sorted(STEPS - set(range(BACK_TO + 1)), reverse=True)
        for n in range(len(later) + 1):
            if aside == set(later[:n]):
                return "some" if 0 < n < len(later) else "all" if n else "none"
        return ""

    def goes_on(self, verb):
        """"" when the next job does: it opens the run to write, and so ends a rewind."""
        journal = os.path.join(self.run, ".sheaf", "rewind")
        want = numbers(self.run)
        if os.path.exists(journal):
            want = set(range(1, BACK_TO + 1))
            self.g.count("rewinds that the next job ended")
        with Trainer(self.g, self.run) as t:
            got = t.do("load -1")
            saved = t.do("save %d" % (max(want) + 1))
            t.close()
        if got["code"] != 0 or got["step"] != max(want):
            return "the newest of %s: %s" % (sorted(want), got)
        if saved["code"] != 0:
            return "then %s" % saved
        if os.path.exists(journal) or numbers(self.run) != want | {max(want) + 1}:
            return "then there are %s, not %s" % (sorted(numbers(self.run)), sorted(want))
        rc, out = ground.call([self.g.args.sheaf, "verify", self.run])
        self.g.count("runs that went on after a change")
        return "%s: then verify: %s" % (verb[0], out) if rc else ""


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
            g.claim("(INJECTED)" in f.read() and rc in (0, 2) and "missing" not in out,
                    "a manifest that is %s is not gone" % error, (rc, out))


def each_read_of_ls(g, c):
    """One read of ls fails, or all from it on: nothing is taken for absent that was not read."""
    before, verb, call = g.bad, ["ls", c.run, "--json"], "pread64"
    most = c.made(verb)[call]
    for nth in range(c.before.get(call, 0) + 1, most + 1):
        for on in (False, True):
            c.one(verb, call, "EIO", nth, on)
    g.claim(g.bad == before and most > len(STEPS), "whichever read of ls fails, it says so")


def work(g):
    ground.needs_strace()
    c = Command(g)
    unread_is_not_gone(g, c)
    each_read_of_ls(g, c)
    before, all_verbs = g.bad, c.looks + c.changes
    if not g.args.seconds:
        all_verbs = g.draw.sample(c.looks, 2) + c.changes
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
