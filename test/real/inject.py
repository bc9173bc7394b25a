#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The kernel says no to the N-th call of a save, a load or a verify. Prints TAP and counts.

usage: inject.py BUILD [--seed N] [--seconds S]

strace lets a running trainer's N-th openat, pwrite64, fsync, ... end with an error, or all from the
N-th on, in every thread that comes so far. Whatever the call and the error: no crash, no hang, a
code of the contract with one sentence; a step that was reported failed does not exist, one reported
saved verifies; a read that failed is never called corruption. Afterwards the same process saves,
loads and verifies.

The long form takes every N until nothing is hit any more, for each call that a verb makes and each
error; the short one draws a few of these.
"""
import collections
import os
import re
import shutil
import signal
import subprocess

import ground
from ground import CODES, Broken, Trainer, is_sentence

# What the kernel may well answer. EINTR and EAGAIN are no failures where asking again is the rule.
ERRORS = {call: errors.split() for call, errors in {
    "openat": "EMFILE EIO EACCES EINTR", "close": "EIO", "fcntl": "ENOLCK EINVAL",
    "pwrite64": "EIO ENOSPC EDQUOT EINTR", "pread64": "EIO EINTR", "fsync": "EIO ENOSPC EINTR",
    "ftruncate": "EIO ENOSPC", "fallocate": "ENOSPC EOPNOTSUPP EINTR EIO",
    "renameat2": "EIO EINVAL EXDEV", "renameat": "EIO", "mkdirat": "ENOSPC EIO EACCES",
    "unlinkat": "EIO EPERM", "newfstatat": "EIO EACCES", "statx": "EIO", "fstatfs": "EIO",
    "getdents64": "EIO", "memfd_create": "EMFILE ENOSYS", "mmap": "ENOMEM", "munmap": "EINVAL",
    "madvise": "EINVAL", "clone3": "EAGAIN", "getrandom": "ENOSYS", "eventfd2": "EMFILE",
    "io_uring_setup": "ENOSYS EPERM ENOMEM", "io_uring_enter": "EINTR EAGAIN EBUSY ENOMEM EPERM",
    "io_uring_register": "ENOMEM EINVAL"}.items()}
# Nothing else is true of a call that was refused; ENOENT would start a training afresh.
ALLOWED = ("OK", "EIO", "ENOMEM")
VERBS = ("save", "open", "load", "verify")      # open: the run, then save
SHORT_FAULTS = 10
# Asking again is right after these, so that answering nothing else for ever is no answer.
PASSING = ("EINTR", "EAGAIN", "EBUSY")


class Fault:
    """An error (None: none) for the nth call of each thread, or for all from then on, while the
    trainer does one thing."""

    def __init__(self, at, call, error, nth, on=False):
        self.log, self.what = os.path.join(at, "strace"), (call, error, "%d%s" % (nth, "+" * on))
        self.tracer = None

    def __enter__(self):
        return self

    def attach(self, pid):
        call, error, nth = self.what
        inject = ["-e", "inject=%s:error=%s:when=%s" % (call, error, nth)] if error else []
        self.tracer = subprocess.Popen(
            ["strace", "-f", "-o", self.log, "-e", "trace=" + call, *inject, "-p", str(pid)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        said = self.tracer.stderr.readline().decode()   # "Process N attached"
        if "attached" not in said:
            self.tracer.kill()
            raise Broken("strace cannot attach: " + said.strip())

    def detach(self):
        """What strace wrote."""
        try:
            self.tracer.send_signal(signal.SIGINT)
            self.tracer.wait(10)
        except subprocess.TimeoutExpired:
            self.tracer.kill()
        self.tracer.wait()
        self.tracer.stderr.close()
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return f.read()

    def __exit__(self, *_):
        if self.tracer and self.tracer.poll() is None:
            self.tracer.kill()
            self.tracer.wait()


class Victim:
    """One trainer after another in one run; a fresh one where the last did not live."""

    def __init__(self, g, *words):
        self.g, self.words, self.step = g, words, 0
        self.run, self.one = os.path.join(g.room("inject"), "run"), None

    def ready(self):
        """A trainer that has saved and whose run is open, or None: it should have."""
        if self.one and self.one.job.poll() is None:
            return self.one
        self.one = Trainer(self.g, self.run, *self.words, patience=30)
        return self.one

    def there(self, step):
        return os.path.exists(os.path.join(self.run, "checkpoint-%d" % step))

    def afterwards(self):
        """The process is good: "" or why not."""
        self.step += 1
        for verb in ("save", "load", "verify"):
            got = self.one.do("%s %d" % (verb, self.step))
            if got["code"] != 0:
                return "then %s %d: %s" % (verb, self.step, got)
        return ""

    def fresh_run(self):
        """Steps take space, and old ones say nothing."""
        self.one.do("close")
        shutil.rmtree(self.run, ignore_errors=True)
        self.step = 1
        return self.one.do("save 1")["code"] == 0


def wrong(v, verb, got, before):
    """What is wrong with this reply under a fault, or ""."""
    code = got["code"]
    if code is None:
        return got["message"]
    if code not in CODES:
        return "code %s" % got
    if code < 0 and not is_sentence(got):
        return "no sentence: %r" % got
    if CODES[code] not in ALLOWED + ("EINDOUBT",) * (verb == "save") or got["findings"]:
        return "what the kernel refused is called %s: %s" % (CODES[code], got["message"])
    if verb == "save":
        there = v.there(before)
        if code == 0 and not there:
            return "saved, and is not there"
        if code < 0 and CODES[code] != "EINDOUBT" and there:
            return "%s, and the step is there: %s" % (CODES[code], got["message"])
    return ""


def words_of(v, verb):
    """What the trainer is told; the run is closed before an open."""
    if verb in ("save", "open"):
        if verb == "open":
            v.one.do("close")
        v.step += 1
        return "save %d" % v.step
    return "%s %d" % (verb, v.step)


def census(g, v, verb):
    """How often each call is made, by the thread that makes most."""
    v.ready()
    words = words_of(v, verb)
    with Fault(g.at, ",".join(ERRORS), None, 0) as fault:
        fault.attach(v.one.pid)
        v.one.do(words)
        said = collections.Counter(re.findall(r"^(\d+) +(\w+)\(", fault.detach(), re.M))
    found = {}
    for (_, call), n in said.items():       # strace gives new calls numbers
        if call in ERRORS:
            found[call] = max(n, found.get(call, 0))
    return found


def one(g, v, verb, call, error, nth, on):
    """One fault; how often it hit."""
    t = v.ready()
    words = words_of(v, verb)
    with Fault(g.at, call, error, nth, on) as fault:
        fault.attach(t.pid)
        got = t.do(words)
        hit = fault.detach().count("(INJECTED)")
    g.count("faults tried")
    if hit:
        g.count("faults that hit")
        g.count("answered " + (CODES.get(got["code"], "?") if got["code"] is not None else "not"))
    what = "%s: call %d of %s%s is %s" % (verb, nth, call, " and all later ones" * on, error)
    bad = wrong(v, "save" if verb == "open" else verb, got, v.step) or \
        (v.afterwards() if t.job.poll() is None else "the trainer is gone")
    if bad:
        g.claim(False, what, bad)
        t.kill()
    elif v.step > 40 and not v.fresh_run():
        g.claim(False, what + ": then a new run")
    return hit


def stays(call, error):
    """Can it be the answer from some time on? The kernel is not short of memory for ever."""
    return error not in PASSING and (call != "io_uring_enter" or error == "EPERM")


def sweep(g, v, verb, call, error, on):
    """Every N until one hits nothing."""
    nth = 1
    while g.left() > 0 and one(g, v, verb, call, error, nth, on):
        nth += 1
    g.count("sweeps to the end" if g.left() > 0 else "sweeps cut short")


def faults(g, v):
    made = {verb: census(g, v, verb) for verb in VERBS}
    cases = [(verb, call, error) for verb in VERBS for call in made[verb]
             for error in ERRORS[call]]
    if not g.args.seconds:
        for verb, call, error in g.draw.choices(cases, k=SHORT_FAULTS):
            one(g, v, verb, call, error, g.draw.randint(1, made[verb][call]),
                stays(call, error) and g.draw.random() < 0.5)
        return
    cases = [c + (on,) for c in cases for on in (False, True) if stays(*c[1:]) or not on]
    g.draw.shuffle(cases)
    for case in cases:
        if g.left() > 0:
            sweep(g, v, *case)


def work(g):
    ground.needs_strace()
    seconds = g.args.seconds
    for words in ([], ["buffered"]):
        g.args.seconds = seconds if words else seconds / 2
        v = Victim(g, *words)
        v.ready()
        v.step = 1
        g.claim(v.one.do("save 1")["code"] == 0, "a first save" + " buffered" * bool(words))
        before = g.bad
        faults(g, v)
        g.claim(g.bad == before, "no fault%s was more than an answer" %
                (" of buffered files" if words else ""))
        rc, out = ground.call([g.args.sheaf, "verify", v.run])
        g.claim(rc == 0, "every step of the run verifies", out)
        g.claim(v.one.close() == 0, "and the trainer ends well")


if __name__ == "__main__":
    ground.main("inject", __doc__.splitlines()[0], work)
