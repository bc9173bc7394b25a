#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real signals to jobs of sheaf-train: one process, ranks under mpirun, one rank alone. Prints TAP.

usage: signals.py SHEAF-TRAIN MPIRUN
"""
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time

from trainrun import ROOT, Claims, Job, command, train

CONFIG = """model: train/models/t0.json
seq: 19
batch: 12
steps: %d
virtual: {dp: 12, tp: 4}
lr: 0.002
data: %s
"""
STEPS = 25


def of_a_terminal(how=signal.SIG_DFL):
    """Signals of a terminal may be ignored where this program runs, and jobs would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, how)


class Running:
    """A job that is running. Its events are read one by one.
    more: how it is started otherwise"""

    def __init__(self, w, ranks, run, *args, **more):
        self.process = subprocess.Popen(
            command(w.program, w.mpirun, ranks, w.config, "--run", w.at(run), *args),
            **{"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": ROOT,
               "stdin": subprocess.DEVNULL, "preexec_fn": of_a_terminal, **more})
        self.out = ""

    def until(self, text):
        # Unbuffered: communicate() would not see what was read ahead.
        line = b""
        while c := os.read(self.process.stdout.fileno(), 1):
            line += c
            if c == b"\n":
                self.out += line.decode()
                if text in line.decode():
                    return
                line = b""
        raise SystemExit("the job ended before %s: %s" % (text, self.process.stderr.read()))

    def send(self, sig):
        os.kill(self.process.pid, sig)

    def rank(self, rank):
        """The process of a rank that mpirun has started."""
        with open("/proc/%d/task/%d/children" % ((self.process.pid,) * 2), encoding="ascii") as f:
            for pid in f.read().split():
                with open("/proc/%s/environ" % pid, encoding="utf-8", errors="replace") as e:
                    if "OMPI_COMM_WORLD_RANK=%d" % rank in e.read().split("\0"):
                        return int(pid)
        raise SystemExit("there is no rank %d" % rank)

    def end(self):
        more, err = self.process.communicate(timeout=120)
        return Job(self.process.returncode, self.out + more, err)


class World:
    def __init__(self, program, mpirun, folder):
        self.program, self.mpirun, self.folder = program, mpirun, folder
        self.claims, self.config = Claims(), self.at("config.yaml")
        rng = random.Random(1)
        words = ["".join(rng.choice("abcdefghij") for _ in range(5)) for _ in range(50)]
        with open(self.at("text"), "w", encoding="ascii") as f:
            f.write(" ".join(rng.choice(words) for _ in range(2000)))
        subprocess.run([program, "data", self.at("text"), "-o", self.at("data")], check=True,
                       capture_output=True)
        with open(self.config, "w", encoding="ascii") as f:
            f.write(CONFIG % (STEPS, self.at("data")))

    def at(self, name):
        return os.path.join(self.folder, name)


def saves(w, want):
    """SIGUSR1 to mpirun, which passes it on to all ranks, and then to one rank alone."""
    job = Running(w, 3, "saves", "--mesh", "pp=3")
    job.until('"step":2,')
    job.send(signal.SIGUSR1)
    job.until('"event":"saved"')
    os.kill(job.rank(2), signal.SIGUSR1)
    done = job.end()
    saved = [e["step"] for e in done.of("saved")]
    w.claims.check(done.status == 0 and done.trace() == want, "with SIGUSR1 training goes on",
                   done.err)
    w.claims.check(len(saved) in (2, 3, 4) and saved[0] >= 3 and saved[-1] == STEPS and
                   saved == sorted(set(saved)), "and steps are saved that no option names", saved)


def stops(w, want):
    """A job that is stopped, and the next one, end with the steps of one that was not stopped."""
    for name, ranks, args, sig, rank in (
            ("process", 1, (), signal.SIGTERM, None),
            ("terminal", 1, (), signal.SIGINT, None),
            ("closed-terminal", 1, (), signal.SIGHUP, None),
            ("mpirun", 4, ("--mesh", "dp=2,tp=2"), signal.SIGUSR2, None),
            ("rank", 2, ("--mesh", "dp=2", "--zero", "1", "--overlap"), signal.SIGUSR2, 1)):
        job = Running(w, ranks, name, *args)
        job.until('"step":2,')
        if rank is None:
            job.send(sig)
        else:
            os.kill(job.rank(rank), sig)
        first = job.end()
        last = first.events[-1]
        w.claims.check(first.status == 0 and (last["event"], last["reason"]) == ("end", "signal")
                       and 3 <= last["step"] < STEPS and
                       [e["step"] for e in first.of("saved")] == [last["step"]],
                       "%s to a %s saves and stops, with status 0" % (sig.name, name), last,
                       first.err)
        then = train(w.program, w.mpirun, ranks, w.config, "--run", w.at(name), *args)
        both = {**first.trace(), **then.trace()}
        w.claims.check(then.of("start")[0]["step"] == last["step"] and both == want,
                       "and the next job goes on as if nothing had been", last,
                       then.of("start"), then.events[-1],
                       ["step %d: %s, not %s" % (s, both.get(s), x) for s, x in want.items()
                        if both.get(s) != x][:3], then.err)


def too_late(w):
    """A rank is stopped, so no step ends any more, and stop-seconds end the others."""
    job = Running(w, 2, "late", "--stop-seconds", "1", "--events", w.at("late-events"))
    job.until('"step":2,')
    os.kill(job.rank(1), signal.SIGSTOP)
    before = time.monotonic()
    os.kill(job.rank(0), signal.SIGUSR2)
    done = job.end()
    with open(w.at("late-events"), encoding="ascii") as f:
        kept = f.read()
    last = done.events[-1]
    w.claims.check(kept == done.out and (last["event"], last["code"], last["rank"]) ==
                   ("error", "EAGAIN", 0) and "stop-seconds are over" in last["message"],
                   "where stop-seconds run out, the last event says so", kept[-500:], last)
    w.claims.check(done.status == 2 and not done.of("saved") and not done.of("end") and
                   "stop-seconds are over before the last step was saved" in done.err and
                   time.monotonic() - before < 60,
                   "where a rank hangs, the others leave after stop-seconds, and say so", done.err)


def interrupts(w, want):
    """Ctrl-C twice, with a rank that is stopped; and SIGHUP under nohup."""
    job = Running(w, 2, "twice", "--stop-seconds", "600")
    job.until('"step":2,')
    os.kill(job.rank(1), signal.SIGSTOP)
    before = time.monotonic()
    rank = job.rank(0)
    os.kill(rank, signal.SIGINT)
    time.sleep(1.5)
    os.kill(rank, signal.SIGINT)
    done = job.end()
    w.claims.check(done.status == 2 and not done.of("end") and time.monotonic() - before < 60,
                   "a second SIGINT ends a rank at once", done.status, done.err)
    job = Running(w, 1, "nohup", preexec_fn=lambda: of_a_terminal(signal.SIG_IGN))
    job.until('"step":2,')
    job.send(signal.SIGHUP)
    done = job.end()
    w.claims.check(done.status == 0 and done.trace() == want, "SIGHUP stays ignored under nohup",
                   done.err)


def lost(w):
    """A rank is stopped while saves are in flight. The lowest of the others writes an event."""
    for rank in (0, 2):
        job = Running(w, 3, "lost%d" % rank, "--save-every", "1", "--timeout-ms", "2000",
                      "--events", w.at("events%d" % rank))
        job.until('"step":3,')
        os.kill(job.rank(rank), signal.SIGSTOP)
        before = time.monotonic()
        done = job.end()
        last = done.events[-1]
        with open(w.at("events%d" % rank), encoding="ascii") as f:
            line = f.read().splitlines()[-1]
        w.claims.check(done.status == 2 and time.monotonic() - before < 60 and
                       (last["event"], last["code"], last["rank"]) == ("error", "ELOST", rank) and
                       json.loads(line) == last,
                       "while saves are in flight, the others leave rank %d, and name it" % rank,
                       last, line, done.err)


def reader_leaves(w, want):
    """The program that reads the events ends after one line: of stdout, and of a FIFO."""
    job = Running(w, 1, "left")
    job.until('"start"')
    job.process.stdout.close()
    err = job.process.stderr.read()
    job.process.stderr.close()
    again = train(w.program, w.mpirun, 1, w.config, "--run", w.at("left"))
    w.claims.check(job.process.wait(60) == 0 and again.of("start")[0]["step"] == STEPS and
                   err.count("an event could not be written: Broken pipe; the training "
                             "continues") == 1,
                   "where the reader of stdout leaves, the training goes on, and says so", err)
    os.mkfifo(w.at("fifo"))
    process = subprocess.Popen(command(
        w.program, w.mpirun, 2, w.config, "--run", w.at("fifo-run"), "--mesh", "dp=2", "--events",
        w.at("fifo")), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
        stdin=subprocess.DEVNULL)
    with open(w.at("fifo"), encoding="ascii") as f:
        f.readline()
    out, err = process.communicate(timeout=120)
    done = Job(process.returncode, out, err)
    w.claims.check(done.status == 0 and done.trace() == want and "Broken pipe" in err,
                   "and where the reader of a FIFO leaves, on two ranks", done.status, err)


def large_files(w, want):
    """No file may be as large as a checkpoint (ulimit -f), from a moment on, as MPI needs some."""
    job = Running(w, 1, "limited", "--save-every", "2")
    job.until('"step":1,')
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.prlimit(job.process.pid, resource.RLIMIT_FSIZE, (60000, hard))
    done = job.end()
    codes = [e["code"] for e in done.of("error")]
    w.claims.check(done.status == 2 and done.trace() == want and len(codes) > 1 and
                   set(codes) == {"ENOSPC"} and "File too large" in done.err,
                   "where files may not become so large, the training goes on as on a full disk",
                   done.status, codes, done.err)


def main():
    with tempfile.TemporaryDirectory(prefix="sheaf-signals-") as folder:
        w = World(os.path.abspath(sys.argv[1]), sys.argv[2], folder)
        want = train(w.program, w.mpirun, 1, w.config, "--run", w.at("plain")).trace()
        w.claims.check(sorted(want) == list(range(1, STEPS + 1)), "a job makes its steps")
        saves(w, want)
        stops(w, want)
        too_late(w)
        interrupts(w, want)
        lost(w)
        reader_leaves(w, want)
        large_files(w, want)
        return w.claims.end()


if __name__ == "__main__":
    sys.exit(main())
