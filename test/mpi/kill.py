#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs that die or hang while they save, over real MPI. Prints TAP.

usage: kill.py SHEAF BENCH MPIRUN [SEED] [-- ARG...]     (ARG: for every mpirun)

Nothing that was announced as committed may be lost, everything that is seen must be whole, and
the next job goes on.
"""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROUNDS, STEPS, RANKS = 4, 1000, 4
TIMEOUT_MS, SLACK_S, PATIENCE_S = 3000, 6, 60
STATE = {"adam": True, "tensors": [
    {"name": "emb.weight", "dtype": "BF16", "shape": [2053, 517], "tp_axis": 0},
    {"name": "layers.2.up", "dtype": "BF16", "shape": [1031, 517], "tp_axis": 1},
    {"name": "layers.10.up", "dtype": "F32", "shape": [129, 257], "tp_axis": 0},
    {"name": "layers.10.bias", "dtype": "BF16", "shape": [257]},
    {"name": "ids", "dtype": "I64", "shape": [11]}]}


class Tap:
    def __init__(self):
        self.n = self.bad = 0

    def claim(self, true, what, why=""):
        self.n += 1
        self.bad += not true
        print("%s %d - %s" % ("ok" if true else "not ok", self.n, what), flush=True)
        if not true:
            print("".join("# %s\n" % line[:300] for line in str(why).splitlines()[:12]), end="")


def children(pid):
    """Processes below pid, deepest last; a process that ends meanwhile has none."""
    found = []
    try:
        for task in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, task), encoding="ascii") as f:
                found += [int(child) for child in f.read().split()]
    except OSError:
        return []
    return found + [below for child in found for below in children(child)]


def rank_of(pid):
    try:
        with open("/proc/%d/environ" % pid, "rb") as f:
            for entry in f.read().split(b"\0"):
                if entry.startswith(b"OMPI_COMM_WORLD_RANK="):
                    return int(entry.split(b"=")[1])
    except OSError:
        pass
    return -1


def is_gone(pid):
    try:
        with open("/proc/%d/stat" % pid, encoding="ascii", errors="replace") as f:
            return f.read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def until(true, seconds):
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def events(path, name):
    try:
        with open(path, encoding="utf-8") as f:
            lines = [line for line in f.read().split("\n")[:-1] if line]
    except OSError:
        return []
    return [e for e in map(json.loads, lines) if e["event"] == name]


class Bench:
    def __init__(self, sheaf, bench, mpirun, args, at):
        self.sheaf, self.bench, self.at = sheaf, bench, at
        # What Open MPI leaves when it is killed goes with the test's own directory.
        self.mpirun = [mpirun, "--allow-run-as-root", "--oversubscribe",
                       "--mca", "orte_tmpdir_base", at,
                       "--mca", "btl_vader_backing_directory", at] + args
        self.state = os.path.join(at, "state.json")
        self.run_dir = os.path.join(at, "run")
        self.started = 0
        with open(self.state, "w", encoding="utf-8") as f:
            json.dump(STATE, f)

    def argv(self, verb, ranks, mesh, *more, mpi=()):
        return self.mpirun + list(mpi) + ["-n", str(ranks), self.bench, verb, "--run", self.run_dir,
                                          "--state", self.state, "--mesh", mesh, *more]

    def start(self, step, *more, mpi=()):
        """A job that saves step after step until it is stopped; its events' file."""
        self.started += 1
        told = os.path.join(self.at, "events-%d" % self.started)
        with open(os.path.join(self.at, "log-%d" % self.started), "wb") as log:
            job = subprocess.Popen(self.argv("save", RANKS, "dp=2,tp=2", "--zero", "1", "--step",
                                             str(step), "--steps", str(STEPS), "--events", told,
                                             *more, mpi=mpi),
                                   stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return job, told

    def log(self):
        with open(os.path.join(self.at, "log-%d" % self.started), errors="replace",
                  encoding="utf-8") as f:
            return f.read()

    def call(self, argv):
        return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.STDOUT, timeout=PATIENCE_S * 2, check=False)

    def listed(self):
        out = self.call([self.sheaf, "ls", self.run_dir, "--json"])
        if out.returncode:
            return []
        return [json.loads(line) for line in out.stdout.splitlines()]

    def committed(self):
        return [e["step"] for e in self.listed() if e["state"] == "committed"]


def end(job):
    """Every process of a job that is ours and still there."""
    pids = children(job.pid) + [job.pid]
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    job.wait()
    return until(lambda: all(map(is_gone, pids)), PATIENCE_S)


def prove(tap, b, told, what):
    """After a job that ended badly: what was told is there, what is there is whole."""
    seen, said = b.committed(), [e["step"] for e in events(told, "committed")]
    tap.claim(said and set(said) <= set(seen), what + ": no announced step is gone",
              "announced %s, seen %s\n%s" % (said, seen, b.log()))
    # At most the one between its rename and its announcement.
    tap.claim(seen and len([s for s in seen if s > max(said, default=0)]) <= 1,
              what + ": no step beyond the next", seen)
    newest = max(seen, default=0)
    proof = b.call([b.sheaf, "verify", "%s@%d" % (b.run_dir, newest)])
    tap.claim(proof.returncode == 0, what + ": the newest verifies", proof.stdout)
    load = b.call(b.argv("load", 2, "tp=2", "--step", "latest", "--json"))
    read = [json.loads(x) for x in load.stdout.splitlines() if x.startswith("{")]
    good = read and read[-1]["event"] == "loaded" and read[-1]["step"] == newest
    tap.claim(load.returncode == 0 and good and read[-1]["checked_items"] > 1e6,
              what + ": and loads elsewhere, every value right", load.stdout)
    return newest


def kill_rounds(tap, b, draw):
    newest = 0
    for _ in range(ROUNDS):
        job, told = b.start(newest + 1)
        wanted, late = draw.randint(1, 3), draw.uniform(0, 0.4)
        reached = until(lambda: len(events(told, "committed")) >= wanted or
                        job.poll() is not None, PATIENCE_S)
        time.sleep(late)
        alive = job.poll() is None
        what = "killed %.0f ms after commit %d" % (late * 1e3, wanted)
        tap.claim(end(job) and reached and alive, what, b.log())
        newest = prove(tap, b, told, what)
    return newest


def is_lost(errors):
    """Told once: that a rank is lost, and that nobody knows which."""
    return len(errors) == 1 and errors[0]["code"] == "ELOST" and errors[0]["rank"] == -1 and \
        "which" in errors[0]["message"]


def stop_round(tap, b, draw, newest):
    """A rank that hangs: the others say so in time, and leave."""
    job, told = b.start(newest + 1, "--timeout-ms", str(TIMEOUT_MS), mpi=["--enable-recovery"])
    until(lambda: events(told, "committed") or job.poll() is not None, PATIENCE_S)
    time.sleep(draw.uniform(0, 0.2))
    victim = draw.randint(1, RANKS - 1)
    pids = {rank_of(pid): pid for pid in children(job.pid)}
    what = "rank %d stopped" % victim
    ready = all(r in pids for r in range(RANKS))
    if ready:
        os.kill(pids[victim], signal.SIGSTOP)
    begin = time.monotonic()
    heard = ready and until(lambda: events(told, "error"), TIMEOUT_MS / 1e3 + SLACK_S)
    took = time.monotonic() - begin
    tap.claim(heard and is_lost(events(told, "error")), what + ": told as ELOST in time",
              "%s after %.1f s\n%s" % (events(told, "error"), took, b.log()))
    others = [pid for rank, pid in pids.items() if rank >= 0 and rank != victim]
    tap.claim(ready and until(lambda: all(map(is_gone, others)), SLACK_S),
              what + ": the others leave", b.log())
    if ready:
        os.kill(pids[victim], signal.SIGKILL)
    tap.claim(end(job), what + ": nothing is left of the job")
    return prove(tap, b, told, what)


def main(argv):
    more = argv[argv.index("--") + 1:] if "--" in argv else []
    argv = argv[:argv.index("--")] if "--" in argv else argv
    if len(argv) not in (3, 4):
        print(__doc__, file=sys.stderr)
        return 2
    seed = argv[3] if len(argv) > 3 else str(random.SystemRandom().randrange(2**32))
    tap, draw = Tap(), random.Random(seed)
    at = tempfile.mkdtemp(prefix="sheaf-kill-")
    print("# seed %s" % seed, flush=True)
    try:
        b = Bench(argv[0], argv[1], argv[2], more, at)
        newest = stop_round(tap, b, draw, kill_rounds(tap, b, draw))
        one = b.call(b.argv("save", 3, "dp=3", "--step", str(newest + 1)))
        tap.claim(one.returncode == 0, "the next job saves on", one.stdout)
        states = {e["state"] for e in b.listed()}
        tap.claim(states == {"committed"}, "nothing half made is left", states)
        proof = b.call([b.sheaf, "verify", b.run_dir])
        tap.claim(proof.returncode == 0, "every step of the run verifies", proof.stdout)
    finally:
        shutil.rmtree(at, ignore_errors=True)
    print("1..%d" % tap.n)
    return tap.bad != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
