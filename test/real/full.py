#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Disks that are full or turn read-only, processes that may not have more. Prints TAP and counts.

usage: full.py BUILD [--seed N] [--seconds S]

A save without room is EIO, its sentence says so, and nothing of it stays; when there is room again
the same process saves on, and loads. The limits of a process (file size, descriptors, memory) are
such answers too: none of them kills it, SIGXFSZ included, which nobody handles here.
"""
import errno
import json
import os
import resource

import ground
from ground import CODES, Skip, Trainer, is_sentence

DISK_BYTES = 24 << 20
STEP_BYTES = 4 << 20                    # about what a step of the trainer takes
MPI_STATE = {"adam": True, "tensors": [
    {"name": "w.%d" % i, "dtype": "BF16", "shape": [512, 1031], "tp_axis": i % 2}
    for i in range(4)]}


def tree(run):
    return sorted(os.path.relpath(os.path.join(at, f), run)
                  for at, _, files in os.walk(run) for f in files)


def allowed(got, codes, sys=None):
    """"" or why this is not the answer."""
    if got["code"] is None or CODES.get(got["code"]) not in codes:
        return str(got)
    if got["code"] and not is_sentence(got):
        return "no sentence: %s" % got
    if got["code"] and sys and got["sys"] not in sys:
        return "another errno: %s" % got
    return ""


def goes_on(t, step):
    """"" when the same process saves, loads and verifies."""
    for verb in ("save", "load", "verify"):
        got = t.do("%s %d" % (verb, step))
        if got["code"] != 0:
            return "%s %d: %s" % (verb, step, got)
    return ""


def full_rounds(g, where, at, rounds):
    """The disk has this much room left, drawn, then all of it again."""
    run, bad, step = os.path.join(at, "run"), [], 1
    with Trainer(g, run, "keep") as t:
        first = t.do("save 1")
        if first["code"] != 0:
            return g.claim(False, where + ": a first save", first)
        for _ in range(rounds):
            step += 1
            filler = ground.fill(at)
            room = g.draw.choice([0, 4096, g.draw.randint(0, STEP_BYTES),
                                  g.draw.randint(0, 2 * STEP_BYTES)])
            os.truncate(filler, max(0, os.path.getsize(filler) - room))
            before = tree(run)
            got = t.do("save %d" % step)
            why = allowed(got, ("OK", "EIO"), (errno.ENOSPC,))
            g.count("saves without room" if got["code"] else "saves with just enough room")
            if got["code"] and tree(run) != before:
                why = why or "left: %s" % sorted(set(tree(run)) ^ set(before))
            if not got["code"] or not why:
                read = t.do("load %d" % (step - (got["code"] != 0)))
                why = why or ("" if read["code"] == 0 else "load on a full disk: %s" % read)
            os.remove(filler)
            step += got["code"] == 0
            why = why or goes_on(t, step)
            g.count("disks filled and freed")
            if why:
                bad.append("%d bytes of room: %s" % (room, why))
        g.claim(not bad, where + " full: told, nothing left, and it goes on", "\n".join(bad))
        g.claim(t.close() == 0, where + ": the trainer ends well")
    rc, out = ground.call([g.args.sheaf, "verify", run])
    return g.claim(rc == 0, where + ": every step verifies", out)


def full(g, rounds):
    at = os.path.join(g.at, "tmpfs")
    ground.mount_tmpfs(at, DISK_BYTES)
    full_rounds(g, "a tmpfs", at, rounds)
    ground.unmount(at)


def full_loop(g, rounds):
    at, image = os.path.join(g.at, "loop"), g.image("loop.image")
    ground.mount_loop("ext4", at, image, DISK_BYTES + (16 << 20))
    full_rounds(g, "a loop device", at, rounds)
    ground.unmount(at)


def full_job(g):
    """Four ranks on MPI."""
    at = os.path.join(g.at, "mpi")
    ground.mount_tmpfs(at, 64 << 20)
    state, told = os.path.join(g.at, "full.json"), os.path.join(g.at, "full.events")
    with open(state, "w", encoding="utf-8") as f:
        json.dump(MPI_STATE, f)
    argv = [g.args.mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "4", g.args.bench,
            "save", "--run", os.path.join(at, "run"), "--state", state, "--mesh", "dp=2,tp=2",
            "--zero", "1", "--events", told]
    rc, out = ground.call(argv + ["--step", "1", "--steps", "100"])
    errors = ground.kill.events(told, "error")
    last = max([e["step"] for e in ground.kill.events(told, "committed")], default=0)
    g.claim(rc == 2 and len(errors) == 1 and errors[0]["code"] == "EIO" and
            ("bytes, but " in errors[0]["message"] or "No space" in errors[0]["message"]),
            "4 ranks fill a disk: exit 2, and one sentence", "%d: %s\n%s" % (rc, errors, out))
    os.rename(os.path.join(at, "run", "checkpoint-1"), os.path.join(at, "gone"))
    ground.shutil.rmtree(os.path.join(at, "gone"))
    rc, out = ground.call(argv + ["--step", str(last + 1)])
    g.claim(last > 1 and rc == 0, "with one step removed the next job saves", out)
    rc, out = ground.call([g.args.sheaf, "verify", os.path.join(at, "run")])
    g.claim(rc == 0, "and every step verifies", out)
    ground.unmount(at)


def read_only(g, rounds):
    """As ext4 does after an error: what is open for writing stays open, and no call writes."""
    at, image = os.path.join(g.at, "ro"), g.image("ro.image")
    ground.mount_loop("ext4", at, image, 64 << 20)
    ground.must(["mount", "-o", "remount,errors=remount-ro", at])
    run, bad, step, kept = os.path.join(at, "run"), [], 0, []
    for _ in range(rounds):
        with Trainer(g, run, "keep") as t:
            step += 1
            why = goes_on(t, step)
            t.begin("save %d" % (step + 1))
            ground.time.sleep(g.draw.uniform(0, 0.03))
            ground.call(["mount", "-o", "remount,abort", at])
            got = t.reply()
            why = why or allowed(got, ("OK", "EIO", "EINDOUBT"))
            kept = [step] + [step + 1] * (got["code"] == 0)
            for verb in ("load", "verify"):
                read = t.do("%s %d" % (verb, kept[-1]))
                why = why or ("" if read["code"] == 0 else "then %s: %s" % (verb, read))
            again = t.do("save %d" % (step + 2))
            why = why or allowed(again, ("EIO", "EINDOUBT"))
            g.count("disks turned read-only")
            t.close()
        ground.unmount(at)
        ground.call(["e2fsck", "-fy", image])
        ground.must(["mount", "-t", "ext4", "-o", "loop,errors=remount-ro", image, at])
        for s in kept:
            rc, out = ground.call([g.args.sheaf, "verify", "%s@%d" % (run, s)])
            why = why or (out if rc else "")
        step += 2
        if why:
            bad.append(why)
    with Trainer(g, run, "keep") as t:
        why = goes_on(t, step + 1)
    g.claim(not bad and not why, "a disk that turns read-only: told, still read, and after the "
            "repair it goes on", "\n".join(bad + [why]))
    ground.unmount(at)


LIMITS = {
    "file size": (resource.RLIMIT_FSIZE, ("EIO",), (errno.EFBIG,),
                  lambda g, pid: g.draw.choice([0, 1, 4096, 1 << 16, 1 << 20,
                                                g.draw.randint(0, 2 << 20)])),
    "descriptors": (resource.RLIMIT_NOFILE, ("OK", "EIO"), (errno.EMFILE,),
                    lambda g, pid: g.draw.randint(3, 24)),
    "memory": (resource.RLIMIT_AS, ("OK", "ENOMEM", "EIO"), (errno.ENOMEM, errno.EAGAIN, 0),
               lambda g, pid: vm_bytes(pid) + g.draw.randint(0, 8 << 20)),
}


def vm_bytes(pid):
    with open("/proc/%d/statm" % pid, encoding="ascii") as f:
        return int(f.read().split()[0]) * os.sysconf("SC_PAGESIZE")


def limits(g, rounds):
    """A limit comes and goes while the trainer lives."""
    sanitized = ground.is_sanitized(g.args.trainer)
    for name, (which, codes, sys, draw) in LIMITS.items():
        if sanitized and name == "memory":
            g.skip("a limit of memory", "the sanitizer wants all there is")
            continue
        for words in (["keep"], ["keep", "buffered"]):
            run, bad, step = os.path.join(g.room("limit"), "run"), [], 0
            with Trainer(g, run, *words) as t:
                t.do("close")           # it is up
                for k in range(rounds):
                    step += 1
                    most = draw(g, t.pid)
                    _, hard = resource.prlimit(t.pid, which)
                    resource.prlimit(t.pid, which, (most, hard))
                    got = t.do("save %d" % step)
                    read = t.do("verify %d" % (step - 1)) if k else {"code": 0}
                    why = allowed(got, codes, sys)
                    g.count("limits of " + name)
                    g.count("saves refused by them", got["code"] != 0)
                    if t.job.poll() is None:
                        resource.prlimit(t.pid, which, (hard, hard))
                        if why == "" and CODES.get(read["code"]) not in ("OK", "EIO", "ENOMEM"):
                            why = "verify: %s" % read
                        step += got["code"] == 0
                        why = why or goes_on(t, step)
                    if why:
                        bad.append("at most %d: %s" % (most, why))
                        break
                    if g.draw.random() < 0.5:
                        t.do("close")
                g.claim(not bad, "a limit of %s%s: told, survived, and it goes on" %
                        (name, " (buffered)" * (len(words) > 1)), "\n".join(bad))


def can(g, what, *asked):
    """Ask; where the answer is no, what is not done is told."""
    try:
        asked[0](*asked[1:])
        return True
    except Skip as why:
        g.skip(what, why)
        return False


def work(g):
    rounds = 3
    loop = can(g, "a full loop device", ground.needs_loop, g, "ext4")
    fsck = loop and can(g, "a disk that turns read-only", ground.needs, "e2fsck")
    while True:
        full(g, rounds)
        if loop:
            full_loop(g, rounds)
        if fsck:
            read_only(g, 1 + rounds // 5)
        limits(g, rounds)
        if g.left() <= 0:
            break
        rounds = 20
    if can(g, "4 ranks fill a disk", ground.needs_mpi, g.args):
        full_job(g)


if __name__ == "__main__":
    ground.main("full", __doc__.splitlines()[0], work)
