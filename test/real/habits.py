#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What people do to runs: start a job twice, delete and rename by hand. Prints TAP and counts.

usage: habits.py BUILD [--seed N] [--seconds S]
"""
import os
import shutil
import time

import ground
from ground import CODES, Trainer, is_sentence


def name_of(got):
    return CODES.get(got["code"], "no answer")


def two_writers(g, run):
    """The second hears who the first is; when the first is gone, however, the second goes on."""
    with Trainer(g, run) as a, Trainer(g, run) as b:
        g.claim(a.do("save 1")["code"] == 0, "one writes")
        got = b.do("save 2")
        g.claim(name_of(got) == "EBUSY" and "pid %d" % a.pid in got["message"],
                "the second is told EBUSY and who has it", got)
        g.claim(a.do("save 2")["code"] == 0, "the first goes on")
        if g.draw.random() < 0.5:
            a.begin("save 3")
            time.sleep(g.draw.uniform(0, 0.05))
            a.kill()
        else:
            a.close()
        got = b.do("load -1")
        last = got["step"]
        g.claim(got["code"] == 0 and last in (2, 3), "when it is gone the second reads", got)
        got = b.do("save %d" % (last + 1))
        g.claim(got["code"] == 0, "and saves", got)
        g.count("second writers")


def deleted(g, run, verb):
    """Something is removed while a trainer reads or writes it."""
    with Trainer(g, run) as t:
        for step in (1, 2):
            t.do("save %d" % step)
        begin = time.monotonic()
        t.do("%s %d" % (verb, 3 if verb == "save" else 2))
        took = time.monotonic() - begin
        t.begin("%s %d" % (verb, 4 if verb == "save" else 2))
        time.sleep(g.draw.uniform(0, took))
        victim = os.path.join(run, g.draw.choice([".sheaf", "."]) if verb == "save"
                              else "checkpoint-2")
        shutil.rmtree(victim, ignore_errors=True)
        got = t.reply()
        good = name_of(got) in ("OK", "EIO", "ENOENT", "ECORRUPT", "EFORMAT", "ELOST",
                                "EINDOUBT", "EEXIST")
        g.claim(good and (got["code"] == 0 or is_sentence(got)),
                "%s while %s is removed" % (verb, os.path.basename(victim)), got)
        g.count("deleted under a " + verb)
        g.count("of these, told", got["code"] != 0)
        got = t.do("load 1" if verb != "save" else "verify 1")
        g.claim(got["code"] is not None and (got["code"] == 0 or verb == "save"),
                "and the trainer lives", got)
        t.close()
    shutil.rmtree(run, ignore_errors=True)
    with Trainer(g, run) as t:
        got = t.do("save 1")
        g.claim(got["code"] == 0, "a new run in its place", got)


def renamed(g, run):
    """A step under another number is not that step, and a run may lie anywhere."""
    with Trainer(g, run) as t:
        for step in (1, 2, 3):
            t.do("save %d" % step)
    os.rename(os.path.join(run, "checkpoint-2"), os.path.join(run, "checkpoint-9"))
    with Trainer(g, run) as t:
        got = t.do("load 9")
        g.claim(name_of(got) == "ECORRUPT" and "9" in got["message"],
                "a step renamed by hand is not the step of that number", got)
        got = t.do("save 9")
        g.claim(name_of(got) == "EEXIST", "and is never written over", got)
        got = t.do("load 3")
        g.claim(got["code"] == 0, "the others load", got)
        got = t.do("save 4")
        g.claim(name_of(got) == "EINVAL" and " 9 " in got["message"] + " ",
                "saving below it is refused, and says what it is below", got)
    rc, out = ground.call([g.args.sheaf, "verify", run + "@9"])
    g.claim(rc == 1, "verify by number: no", out)
    rc, out = ground.call([g.args.sheaf, "verify", os.path.join(run, "checkpoint-9")])
    g.claim(rc == 0, "verify by its path: its bytes are good", out)
    rc, out = ground.call([g.args.sheaf, "rewind", run + "@3"])
    with Trainer(g, run) as t:
        got = t.do("load -1")
        got = t.do("save 4") if got["code"] == 0 else got
        g.claim(rc == 0 and got["code"] == 0, "a rewind makes room", (rc, out, got))
    ground.must(["cp", "-a", run, run + "-copy"])
    os.rename(run, run + "-moved")
    for where in (run + "-copy", run + "-moved"):
        with Trainer(g, where) as t:
            last = t.do("load -1")
            got = t.do("save 20")
            g.claim(last["code"] == 0 and got["code"] == 0,
                    "a run that was %s goes on" % where.rsplit("-", 1)[1], (last, got))
    g.count("renamed by hand")


def work(g):
    while True:
        two_writers(g, os.path.join(g.room("two"), "run"))
        for verb in ("load", "verify", "save"):
            deleted(g, os.path.join(g.room("deleted"), "run"), verb)
        renamed(g, os.path.join(g.room("renamed"), "run"))
        if g.left() <= 0:
            break


if __name__ == "__main__":
    ground.main("habits", __doc__.splitlines()[0], work)
