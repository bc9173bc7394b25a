#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Power cuts under a job: what was not synced is kept or lost, page by page and name by name.
Prints TAP and counts.

usage: lossy.py BUILD [--seed N] [--seconds S]

A job of 1, 2 or 4 ranks saves on lossyfs, a file system in memory that at a cut loses what no fsync
made durable. The cut comes anywhere in a save. After the remount every step that was told as
committed is there and verifies (I7), so does every other that is seen (I8), the newest loads in
another layout with the values it had, and the next job saves on.
"""
import json
import os
import signal
import subprocess
import time

import ground
from ground import Broken, Skip, kill

LAYOUTS = [(1, "dp=1"), (2, "tp=2"), (4, "dp=2,tp=2"), (2, "dp=2")]
KEEP = 6


class Disk:
    def __init__(self, g):
        self.at = g.room("lossy")
        self.server = subprocess.Popen([g.args.lossyfs, self.at, str(g.draw.getrandbits(60))],
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT)
        self.mounted()

    def mounted(self):
        """Until it is there again."""
        if not kill.until(lambda: os.path.ismount(self.at) or self.server.poll() is not None,
                          10) or self.server.poll() is not None:
            self.server.kill()
            raise Broken("lossyfs does not mount: %s" % self.server.stdout.read().decode())

    def cut(self):
        self.server.send_signal(signal.SIGUSR1)

    def back(self):
        """What was lost so far, after the remount."""
        ground.unmount(self.at)
        told = json.loads(self.server.stdout.readline())
        self.mounted()
        return told


def needs_fuse(args):
    if not os.path.exists(args.lossyfs):
        raise Skip("built without libfuse3")
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as why:
        raise Skip(str(why)) from why


def loses(g, disk):
    """The disk itself: files with an fsync and a synced name stay, of others some go."""
    folder = os.path.join(disk.at, "files")
    for k in range(64):
        os.makedirs(folder, exist_ok=True)
        fd = os.open(os.path.join(folder, str(k)), os.O_WRONLY | os.O_CREAT)
        os.write(fd, b"x" * 5000)
        if k == 31:
            for path in (folder, disk.at):
                at = os.open(path, os.O_DIRECTORY)
                os.fsync(at)
                os.close(at)
        if k < 32:
            os.fsync(fd)
        os.close(fd)
    disk.cut()
    try:
        os.listdir(disk.at)
        dead = False
    except OSError:
        dead = True
    disk.back()
    whole = set()
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as f:
            if f.read() == b"x" * 5000:
                whole.add(int(name))
    g.claim(dead and set(range(32)) <= whole and len(whole) < 64,
            "lossyfs keeps what was synced and loses some of the rest", sorted(whole))
    ground.shutil.rmtree(folder)


def start(g, b, newest):
    """A job that saves on, and where it tells."""
    ranks, mesh = g.draw.choice(LAYOUTS)
    b.started += 1
    told = os.path.join(b.at, "events-%d" % b.started)
    argv = b.argv("save", ranks, mesh, "--zero", str(g.draw.randrange(3)), "--step",
                  str(newest + 1), "--steps", "1000", "--keep-last", str(KEEP), "--io",
                  g.draw.choice(["auto", "buffered"]), "--timeout-ms", "5000", "--events", told)
    with open(os.path.join(b.at, "log-%d" % b.started), "wb") as log:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log), told


def one_cut(g, b, disk, newest):
    """A job and a cut somewhere in it; the newest step there is then."""
    job, told = start(g, b, newest)
    wanted = g.draw.randint(1, 4)
    kill.until(lambda: len(kill.events(told, "begin")) >= wanted or job.poll() is not None,
               ground.PATIENCE_S)
    saved = kill.events(told, "saved")
    late = g.draw.uniform(0, 1.3 * (saved[-1]["seconds"] if saved else 0.05))
    time.sleep(late)
    alive = job.poll() is None
    disk.cut()
    # It may look once more at the disk that is gone: then it ends by itself, else we end it.
    kill.until(lambda: job.poll() is not None, g.draw.choice([0, 3]))
    pids = kill.children(job.pid)
    ended = kill.end(job)
    what = "cut %.0f ms into save %d" % (late * 1e3, wanted)
    g.claim(alive and ended, what, "alive %s, ended %s\n%s\n%s" %
            (alive, ended, ground.states(pids), b.log()))
    lost = disk.back()
    g.most("pages lost", lost["lost_pages"])
    g.most("changes of directories lost", lost["lost_changes"])
    g.count("cuts")
    said = [e["step"] for e in kill.events(told, "committed")]
    g.count("saves committed", len(said))
    return after(g, b, [newest] * (newest > 0) + said, what)


def after(g, b, said, what):
    """I7, I8 and the values."""
    seen, listed = b.committed(), b.listed()
    newest = max(said, default=0)
    kept = {s for s in said if s > newest - KEEP + 1}
    g.claim(kept <= set(seen), what + ": every step that was told is there (I7)",
            "told %s, seen %s\n%s" % (said, seen, b.log()))
    damaged = [e for e in listed if e["state"] in ("damaged", "foreign", "unread")]
    g.claim(not damaged, what + ": what is seen is whole (I8)", damaged)
    if not seen:
        return 0
    proof = b.call([g.args.sheaf, "verify", b.run_dir])
    g.claim(proof.returncode == 0, what + ": and verifies", proof.stdout)
    g.count("steps verified", len(seen))
    load = b.call(b.argv("load", *g.draw.choice(LAYOUTS), "--step", "latest", "--json"))
    read = [json.loads(x) for x in load.stdout.splitlines() if x.startswith("{")]
    good = read and read[-1]["event"] == "loaded" and read[-1]["step"] == max(seen)
    g.claim(load.returncode == 0 and good, what + ": the newest loads elsewhere", load.stdout)
    return max(seen)


def work(g):
    ground.needs_mpi(g.args)
    needs_fuse(g.args)
    disk = Disk(g)
    loses(g, disk)
    b = kill.Bench(g.args.sheaf, g.args.bench, g.args.mpirun, [], g.room("jobs"))
    b.run_dir = os.path.join(disk.at, "run")
    newest, cuts = 0, 0
    while cuts < 2 or g.left() > 0:
        newest = one_cut(g, b, disk, newest)
        cuts += 1
    one = b.call(b.argv("save", 3, "dp=3", "--step", str(newest + 1)))
    g.claim(one.returncode == 0, "the next job saves on", one.stdout)
    ground.unmount(disk.at)
    g.claim(disk.server.wait(10) == 0, "lossyfs ends well")


if __name__ == "__main__":
    ground.main("lossy", " ".join(__doc__.splitlines()[:2]), work)
