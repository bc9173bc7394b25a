#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ext4, xfs, btrfs and tmpfs: the same bytes, past the page cache and through it. Prints TAP and
counts.

usage: disks.py BUILD [--seed N] [--seconds S]

On each file system a trainer is killed anywhere in a save. What it told is there after an unmount
and a mount, loads, verifies, and the next trainer saves on. The same state makes the same files on
all of them.
"""
import os
import time

import ground
from ground import Skip, Trainer

KINDS = ["ext4", "xfs", "btrfs", "tmpfs"]


class Disk:
    def __init__(self, g, kind):
        self.kind, self.at = kind, os.path.join(g.at, kind)
        self.image = g.image(kind + ".image")
        if kind == "tmpfs":
            ground.mount_tmpfs(self.at, ground.LOOP_BYTES)
        else:
            ground.mount_loop(kind, self.at, self.image, ground.LOOP_BYTES)

    def again(self):
        """Nothing of it is in the page cache any more."""
        if self.kind == "tmpfs":
            return
        ground.unmount(self.at)
        ground.must(["mount", "-t", self.kind, "-o", "loop", self.image, self.at])


def killed_save(g, run, words, step):
    """The last step that was told, of a trainer that is killed some way into its next save."""
    with Trainer(g, run, *words) as t:
        begin = time.monotonic()
        got = t.do("save %d" % step)
        took = time.monotonic() - begin
        if got["code"] != 0:
            return 0, str(got)
        t.begin("save %d" % (step + 1))
        time.sleep(g.draw.uniform(0, 1.2 * took))
        t.kill()
        g.count("trainers killed in a save")
    return step, ""


def one_round(g, disk, words, step):
    """"" or what went wrong."""
    run = os.path.join(disk.at, "run" + "-".join(words))
    told, why = killed_save(g, run, words, step)
    if why:
        return why
    disk.again()
    rc, out = ground.call([g.args.sheaf, "verify", run])
    g.count("runs verified after a mount")
    if rc:
        return "verify: " + out
    with Trainer(g, run, *words) as t:
        got = t.do("load -1")
        if got["code"] != 0 or got["step"] not in (told, told + 1):
            return "told %d, load: %s" % (told, got)
        for verb in ("save", "load", "verify"):
            got = t.do("%s %d" % (verb, told + 2))
            if got["code"] != 0:
                return "%s: %s" % (verb, got)
        g.count("trainers that went on")
        if t.close() != 0:
            return "the trainer ends badly"
    return ""


def on_disk(g, kind, rounds):
    """sha256 of the files of step 1, by how it was written."""
    found = {}
    disk = Disk(g, kind)
    for words in ([], ["buffered"]):
        bad = []
        for k in range(rounds):
            why = one_round(g, disk, words, 3 * k + 1)
            bad += [why] if why else []
            if k == 0:
                step = os.path.join(disk.at, "run" + "-".join(words), "checkpoint-1")
                found[kind + " " + "".join(words)] = ground.sums_of(step)
            if why:
                break
        g.claim(not bad, "%s%s: killed, mounted again, and it goes on" %
                (kind, " (buffered)" * bool(words)), "\n".join(bad))
    ground.unmount(disk.at)
    return found


def here(g):
    """The kinds there are here."""
    found = []
    for kind in KINDS:
        try:
            if kind != "tmpfs":
                ground.needs_loop(g, kind)
            found.append(kind)
        except Skip as why:
            g.skip(kind, why)
    return found


def work(g):
    rounds, kinds = 1, here(g)
    while True:
        found = {}
        for kind in kinds:
            found.update(on_disk(g, kind, rounds))
        first = next(iter(found.values()), {})
        g.claim(first and all(f == first for f in found.values()),
                "the same bytes on all of them", found)
        g.count("sets of files compared", len(found))
        if g.left() <= 0:
            break
        rounds = 8


if __name__ == "__main__":
    ground.main("disks", " ".join(__doc__.splitlines()[:2]), work)
