#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hours of saves, kills, full disks and refusals; is anything lost, does anything grow? Prints TAP
and counts.

usage: soak.py BUILD [--seed N] [--saves N] [--seconds S] [--dir D]

Two runs live on one small disk (ext4 on a loop device, or a tmpfs). One belongs to a trainer that
never ends: it saves, with the N-th call of a kind refused (strace), with no room on the disk, with
a limit of file size, and must answer and go on. On the other jobs of 1 to 4 ranks save states that
change from job to job, in layouts that change, and are killed, stopped, out of room; what was told
stays, verifies, and loads in another layout. Between them runs are pruned and rewound. Jobs of a
third run save each step to the memory of an agent and each fifth to the disk, and are killed, with
the agent or without: the next one finds what was told, or what of it had come to the disk.

Memory, descriptors and threads of the trainer, the files of the runs and the processes of the test
are measured as it goes: the last quarter must be like the first, and of steps there are never more
than it keeps. With --dir the disk, and what was done so far, are kept there: started again it goes
on, and what was told before it was interrupted is there. --saves counts the commits of both; with
--seconds it goes on at least so long.
"""
import glob
import json
import os
import resource
import shutil
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "real"))
import ground  # noqa: E402
import inject  # noqa: E402
from ground import CODES, Skip, Trainer, kill  # noqa: E402

DISK_BYTES, KEEP, MEASURE_EVERY = 320 << 20, 3, 10
LAYOUTS = [(1, "dp=1", 0), (2, "tp=2", 0), (2, "dp=2", 1), (4, "dp=2,tp=2", 1),
           (4, "dp=4", 3), (3, "dp=3", 2), (4, "tp=2,pp=2", 0)]
SHAPES = [[513, 257], [1031, 517], [64, 64], [2053, 129]]
RSS_SLACK = 6 << 20
CALLS = ["openat", "close", "pwrite64", "fsync", "fallocate", "ftruncate", "renameat2", "mkdirat",
         "unlinkat", "newfstatat", "fcntl", "io_uring_enter", "mmap"]


def state_file(at, k):
    """State k: some tensors, of several types and sizes."""
    path = os.path.join(at, "state-%d.json" % k)
    tensors = [{"name": "layers.%d.w" % i, "dtype": ["BF16", "F32", "F16"][(i + k) % 3],
                "shape": SHAPES[(i * 3 + k) % 4], "tp_axis": (i + k) % 2, "stage": i % 2}
               for i in range(2 + k)]
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"adam": k % 2 == 0, "tensors": tensors}, f)
    return path


class Soak:
    def __init__(self, g):
        self.g, self.dir = g, g.args.dir or g.room("soak")
        os.makedirs(self.dir, exist_ok=True)
        self.note = os.path.join(self.dir, "soak.json")
        self.at = os.path.join(g.at, "disk")
        self.mount()
        self.states = [state_file(g.at, k) for k in range(4)]
        self.jobs_run = os.path.join(self.at, "jobs")
        self.own_run = os.path.join(self.at, "own")
        self.memory_run = os.path.join(self.at, "memory")
        self.told = os.path.join(self.dir, "told")
        # own: the last step the trainer was asked for; own_told: the last it committed. now: the
        # state of the job that runs; going: what may go of the run of the jobs.
        self.done = {"iteration": 0, "saves": 0, "step": 0, "states": {}, "own": 0,
                     "own_told": 0, "now": 0, "going": [],
                     "memory": {"step": 0, "told": 0, "disk": 0, "state": 2}}
        self.measured, self.trainer, self.unclosed, self.traced = [], None, 0, True
        try:
            ground.needs_strace()
        except Skip as why:
            self.traced = False
            g.skip("calls refused", why)
        self.resume()

    def mount(self):
        image = os.path.join(self.dir if self.g.args.dir else "/dev/shm", "disk.image")
        try:
            ground.needs_loop(self.g, "ext4")
        except Skip as why:
            if self.g.args.dir:
                raise
            print("# on a tmpfs: %s" % why)
            return ground.mount_tmpfs(self.at, DISK_BYTES)
        if os.path.exists(image):
            os.makedirs(self.at)
            return ground.must(["mount", "-t", "ext4", "-o", "loop", image, self.at])
        return ground.mount_loop("ext4", self.at, image, DISK_BYTES)

    def resume(self):
        if not os.path.exists(self.note):
            return
        with open(self.note, encoding="utf-8") as f:
            kept = json.load(f)
        self.done, self.g.counts = kept["done"], kept["counts"]
        if os.path.exists(os.path.join(self.at, "filler")):     # interrupted without room
            os.remove(os.path.join(self.at, "filler"))
        self.g.args.seed = kept["seed"]
        self.g.count("resumed")
        # It may have been in the middle of a job, a prune or a rewind.
        seen, known = self.seen(), self.done["states"]
        said = {e["step"] for e in kill.events(self.told, "committed")}
        lost = ({int(s) for s in known} | said) - set(seen) - set(self.done["going"])
        self.g.claim(not lost, "nothing that was told before the interruption is gone",
                     "%s of %s and %s, seen %s" % (sorted(lost), sorted(known), said, seen))
        self.done["states"] = {str(s): known.get(str(s), self.done["now"]) for s in seen}
        self.done["step"] = max(seen, default=0)
        self.going([])
        print("# goes on after %d saves, seed %s" % (self.done["saves"], kept["seed"]))

    def keep(self):
        with open(self.note + ".new", "w", encoding="utf-8") as f:
            json.dump({"seed": self.g.args.seed, "done": self.done, "counts": self.g.counts}, f)
        os.replace(self.note + ".new", self.note)

    def going(self, steps):
        """An interruption may find these gone. What the last job told is known by now."""
        self.done["going"] = steps
        self.keep()
        if os.path.exists(self.told):
            os.remove(self.told)

    def saved(self, n, what):
        self.done["saves"] += n
        self.g.count(what, n)

    # --- the trainer that never ends ---

    def own(self):
        """It, alive."""
        if self.trainer is None:
            self.trainer, self.unclosed = Trainer(self.g, self.own_run, "keep"), 0
            got = self.trainer.do("load -1")
            here = got["step"] if got["code"] == 0 else 0
            self.g.claim(here >= self.done["own_told"], "what the trainer was told is there",
                         "%d: %s" % (self.done["own_told"], got))
            self.done["own"] = max(self.done["own"], here)
            # It has all the threads it will ever have.
            why = self.own_goes_on({"code": 0})
            self.g.claim(not why, "a trainer begins", why)
        return self.trainer

    def good(self, got, codes=("OK",)):
        """"" or why this is no such answer."""
        if CODES.get(got["code"]) in codes and (got["code"] == 0 or ground.is_sentence(got)):
            return ""
        return str(got)

    def own_save(self):
        """The answer to the next save."""
        self.done["own"] += 1
        got = self.trainer.do("save %d" % self.done["own"])
        if got["code"] == 0:
            self.done["own_told"] = self.done["own"]
            self.saved(1, "saves of the trainer")
        return got

    def own_saves(self):
        self.own()
        for _ in range(self.g.draw.randint(1, 30)):
            why = self.good(self.own_save())
            if why:
                return why
        return ""

    def own_goes_on(self, got):
        """After a fault: what it answered, then a save, a load and a verify."""
        why = self.good(got, ("OK", "EIO", "ENOMEM", "EINDOUBT"))
        self.g.count("answered " + CODES.get(got["code"], "not"))
        why = why or self.good(self.own_save())
        for verb in ("load", "verify"):
            why = why or self.good(self.trainer.do("%s %d" % (verb, self.done["own"])))
        return why

    def own_refused(self):
        t = self.own()
        call = self.g.draw.choice(CALLS)
        error = self.g.draw.choice(inject.ERRORS[call])
        if self.g.draw.random() < 0.3:
            t.do("close")
        with inject.Fault(self.g.at, call, error, self.g.draw.randint(1, 9)) as fault:
            fault.attach(t.pid)
            got = self.own_save()
            hit = fault.detach().count("(INJECTED)")
        self.g.count("calls refused", hit)
        # strace suppresses a refused close, but the kernel would have freed the descriptor.
        self.unclosed += hit * (call == "close")
        return self.own_goes_on(got)

    def own_no_room(self):
        self.own()
        filler = ground.fill(self.at)
        try:
            os.truncate(filler, max(0, os.path.getsize(filler) -
                                    self.g.draw.choice([0, 4096, 1 << 20, 4 << 20, 8 << 20])))
            got = self.own_save()
        finally:
            os.remove(filler)
        self.g.count("full disks")
        return self.own_goes_on(got)

    def own_limit(self):
        t = self.own()
        _, hard = resource.prlimit(t.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(t.pid, resource.RLIMIT_FSIZE, (self.g.draw.randint(0, 2 << 20), hard))
        got = self.own_save()
        resource.prlimit(t.pid, resource.RLIMIT_FSIZE, (hard, hard))
        self.g.count("limits of file size")
        return self.own_goes_on(got)

    # --- jobs ---

    def argv(self, verb, layout, state, *more, mpi=(), run=None):
        ranks, mesh, zero = layout
        return [self.g.args.mpirun, "--allow-run-as-root", "--oversubscribe", *mpi, "-n",
                str(ranks), self.g.args.bench, verb, "--run", run or self.jobs_run, "--state",
                self.states[state], "--mesh", mesh, "--zero", str(zero), "--timeout-ms", "30000",
                *more]

    def job(self):
        """A job that saves, and perhaps does not come far; then all that was told is there."""
        g, d = self.g, self.done
        layout, state = g.draw.choice(LAYOUTS), g.draw.randrange(len(self.states))
        steps, told = g.draw.randint(1, 6), self.told
        fate = g.draw.choice(["ends", "ends", "killed", "one killed", "no room"])
        d["now"] = state
        self.going([])
        filler = ground.fill(self.at) if fate == "no room" else None
        if filler:
            os.truncate(filler, max(0, os.path.getsize(filler) - g.draw.randint(0, 24 << 20)))
        with open(os.path.join(g.at, "log"), "wb") as log:
            job = kill.subprocess.Popen(
                self.argv("save", layout, state, "--step", str(d["step"] + 1), "--steps",
                          str(steps), "--io", g.draw.choice(["auto", "buffered"]), "--events",
                          told),
                stdin=kill.subprocess.DEVNULL, stdout=log, stderr=log)
        self.strike(job, fate, told, steps)
        if filler:
            os.remove(filler)
        said = [e["step"] for e in kill.events(told, "committed")]
        g.count("jobs: " + fate)
        self.saved(len(said), "saves of jobs")
        whole = job.returncode == 0 and len(said) == steps
        errors = kill.events(told, "error")
        if fate == "ends" and not whole or \
                fate == "no room" and not whole and [e["code"] for e in errors] != ["EIO"]:
            with open(os.path.join(g.at, "log"), encoding="utf-8", errors="replace") as f:
                return "a job that %s: exit %s, told %s, %s\n%s" % (
                    fate, job.returncode, said, errors, f.read())
        return self.job_after(said, state)

    def strike(self, job, fate, told, steps):
        g = self.g
        if "killed" in fate:
            wanted = g.draw.randint(1, steps)
            kill.until(lambda: len(kill.events(told, "begin")) >= wanted or
                       job.poll() is not None, 30)
            time.sleep(g.draw.uniform(0, 0.2))
            ranks = [p for p in kill.children(job.pid) if kill.rank_of(p) >= 0]
            for pid in ranks if fate == "killed" else g.draw.sample(ranks, min(1, len(ranks))):
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
        if not kill.until(lambda: job.poll() is not None, ground.PATIENCE_S):
            g.claim(False, "a job hangs", ground.stacks(kill.children(job.pid)))
        kill.end(job)

    def listed(self):
        rc, out = ground.call([self.g.args.sheaf, "ls", self.jobs_run, "--json"])
        rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        return rows if rc == 0 else []

    def seen(self):
        return [e["step"] for e in self.listed() if e["state"] == "committed"]

    def job_after(self, said, state):
        """"" or what is wrong with the run."""
        g, d = self.g, self.done
        known = {int(s) for s in d["states"]}
        seen = self.seen()
        new = [s for s in seen if s not in known]
        if not known | set(said) <= set(seen) or len(set(new) - set(said)) > 1:
            return "told %s, known %s, seen %s" % (said, sorted(known), seen)
        d["states"].update({str(s): state for s in new})
        d["step"] = max([d["step"]] + seen)
        if not seen:
            return ""
        rc, out = ground.call([g.args.sheaf, "verify", "%s@%d" % (self.jobs_run, max(seen))])
        g.count("steps verified")
        if rc:
            return "verify %d: %s" % (max(seen), out)
        which = g.draw.choice(seen)
        rc, out = ground.call(self.argv("load", g.draw.choice(LAYOUTS), d["states"][str(which)],
                                        "--step", str(which)))
        g.count("steps loaded elsewhere, every value right")
        return "load %d: %s" % (which, out) if rc else ""

    # --- jobs with an agent ---

    def agent(self, *more):
        return ground.call([self.g.args.sheaf, "agent", self.memory_run, *more])

    def memory(self):
        """Every step to memory, every fifth to the disk, until it ends or is killed."""
        g, m, told = self.g, self.done["memory"], self.told
        rc, out = self.agent("--detach")
        if rc:
            return "an agent: %s" % out
        first, steps = m["step"] + 1, g.draw.randint(2, 6)
        fate = g.draw.choice(["ends", "killed", "killed", "one killed", "agent killed",
                              "killed with its agent"])
        self.going([])
        with open(os.path.join(g.at, "log"), "wb") as log:
            job = kill.subprocess.Popen(
                self.argv("save", g.draw.choice(LAYOUTS), m["state"], "--step", str(first),
                          "--steps", str(steps), "--every", "5", "--memory-every", "1",
                          "--async", "--lazy", "--images", "3", "--agent", "auto",
                          "--events", told, run=self.memory_run),
                stdin=kill.subprocess.DEVNULL, stdout=log, stderr=log)
        if "agent" in fate:
            kill.until(lambda: len(kill.events(told, "begin")) >= g.draw.randint(1, 9) or
                       job.poll() is not None, 30)
            self.kill_agent()
        self.strike(job, "ends" if fate == "agent killed" else fate.replace(" with its agent", ""),
                    told, steps)
        said = [e["step"] for e in kill.events(told, "committed")]
        g.count("jobs with an agent: " + fate)
        self.saved(len(said), "saves of jobs with an agent")
        m["told"] = max(said + [m["told"]])
        m["disk"] = max([s for s in said if (s - first) % 5 == 0] + [m["disk"]])
        m["step"] = first + 5 * steps
        if "agent" in fate:
            m["told"] = m["disk"]
        ground.call([g.args.sheaf, "prune", self.memory_run, "--keep-last", str(KEEP), "--apply",
                     "--grace", "0"])
        if fate in ("ends", "agent killed") and job.returncode:
            with open(os.path.join(g.at, "log"), encoding="utf-8", errors="replace") as f:
                return "a job that %s: exit %s\n%s" % (fate, job.returncode, f.read())
        return self.memory_after()

    def kill_agent(self):
        rc, out = self.agent("--status", "--json")
        if rc == 0:
            told = [json.loads(line) for line in out.splitlines()]
            os.kill([e["pid"] for e in told if "pid" in e][0], signal.SIGKILL)

    def memory_after(self):
        """"" or why the next job does not find what was told."""
        g, m = self.g, self.done["memory"]
        if not m["told"]:
            return ""
        rc, out = ground.call(self.argv("load", g.draw.choice(LAYOUTS), m["state"], "--step",
                                        "latest", "--agent", "auto", "--json",
                                        run=self.memory_run))
        found = [json.loads(l) for l in out.splitlines() if l.startswith("{")]
        found = [e for e in found if e["event"] == "loaded"]
        if rc or not found or found[0]["step"] < m["told"]:
            return "told %s: exit %d, %s" % (m, rc, out)
        g.count("restarts from " + found[0]["source"])
        return ""

    def prune(self):
        may_go = sorted(map(int, self.done["states"]))[:-KEEP]
        self.going(may_go)
        rc, out = ground.call([self.g.args.sheaf, "prune", self.jobs_run, "--keep-last",
                               str(KEEP), "--apply", "--grace", "0"])
        self.g.count("prunes")
        return self.forget("prune: %s" % out if rc else "", may_go)

    def forget(self, why, may_go):
        """What the run no longer has, on purpose."""
        seen = set(self.seen())
        known = set(map(int, self.done["states"]))
        if not why and not known - seen <= set(may_go):
            why = "of %s there are %s, and %s might go" % (sorted(known), sorted(seen), may_go)
        self.done["states"] = {s: k for s, k in self.done["states"].items() if int(s) in seen}
        return why

    def rewind(self):
        if len(self.done["states"]) < 2:
            return ""
        *_, back, last = sorted(map(int, self.done["states"]))
        self.going([last])
        rc, out = ground.call([self.g.args.sheaf, "rewind", "%s@%d" % (self.jobs_run, back)])
        self.g.count("rewinds")
        shutil.rmtree(os.path.join(self.jobs_run, ".sheaf", "aside"), ignore_errors=True)
        self.done["step"] = back
        why = "rewind: %s" % out if rc else ""
        if not why and max(self.seen(), default=0) != back:
            why = "rewound to %d, and there are %s" % (back, self.seen())
        return self.forget(why, [last])

    # --- what may not grow ---

    def settled(self):
        """The steps of the trainer once it has had time to let older ones go: the newest is read
        again behind the training, and on a busy machine further ones are committed meanwhile.
        Each save deletes what may go by then."""
        self.own()

        def here():
            return len(glob.glob(os.path.join(self.own_run, "checkpoint-*")))
        end = time.monotonic() + ground.PATIENCE_S
        while here() > KEEP + 2 and time.monotonic() < end and not self.good(self.own_save()):
            time.sleep(0.05)
        return here()

    def measure(self):
        steps = self.settled()
        rss, fds, threads = ground.usage_of(self.own().pid)
        files = sum(len(f) + len(d) for _, d, f in os.walk(os.path.join(self.own_run, ".sheaf")))
        staged = sum(len(os.listdir(os.path.join(run, ".sheaf", "stage")))
                     for run in (self.own_run, self.jobs_run)
                     if os.path.isdir(os.path.join(run, ".sheaf", "stage")))
        processes = len([p for p in os.listdir("/proc") if p.isdigit()])
        self.measured.append({"rss": rss, "descriptors": fds - self.unclosed, "threads": threads,
                              "files beside the steps": files, "staged": staged,
                              "steps": steps, "processes": processes,
                              "shm": len(os.listdir("/dev/shm"))})

    def flat(self):
        """The most of the last quarter, beside the most of the first."""
        n = max(1, len(self.measured) // 4)
        for what in [w for w in self.measured[0] if w != "steps"]:
            first = max(m[what] for m in self.measured[:n])
            last = max(m[what] for m in self.measured[-n:])
            slack = RSS_SLACK if what == "rss" else max(2, first // 10)
            if what == "processes":         # an agent, and who writes what a job left
                slack += 4
            if what == "rss" and ground.is_sanitized(self.g.args.trainer):
                slack = 512 << 20       # what was freed is kept
            self.g.counts["%s, first quarter" % what] = first
            self.g.counts["%s, last quarter" % what] = last
            self.g.claim(last <= first + slack, "%s: no growth" % what, (first, last))
        most = max(m["steps"] for m in self.measured)
        self.g.claim(most <= KEEP + 2, "in the end no more than %d steps, of which %d are kept" %
                     (KEEP + 2, KEEP), most)
        self.g.count("measurements", len(self.measured))

    # --- all of it ---

    def turn(self):
        g, d = self.g, self.done
        d["iteration"] += 1
        g.draw = ground.random.Random("%s/%d" % (g.args.seed, d["iteration"]))
        own = [self.own_saves, self.own_saves, self.own_no_room, self.own_limit] + \
            [self.own_refused] * self.traced
        jobs = [self.job, self.job, self.prune, self.rewind] if os.path.isdir(self.jobs_run) else \
            [self.job]
        jobs += [self.memory] * 2
        what = g.draw.choice(own if g.draw.random() < 0.6 or not g.args.mpirun else jobs)
        why = what()
        if self.trainer and self.trainer.job.poll() is not None:
            self.trainer = None
        if not why:
            self.room()
        if why:
            g.claim(False, "turn %d: %s" % (d["iteration"], what.__name__), why)
        if d["iteration"] % MEASURE_EVERY == 1:
            self.measure()
        self.going([])

    def room(self):
        """Jobs are pruned when the disk is half full."""
        v = os.statvfs(self.at)
        if v.f_bavail * 2 < v.f_blocks and self.done["states"]:
            why = self.prune()
            if why:
                self.g.claim(False, "a prune for room", why)

    def end(self):
        self.measure()
        self.g.claim(self.own().close() == 0, "the trainer ends well")
        if os.path.isdir(self.memory_run):
            self.agent("--stop", "--force")
        for run in (self.own_run, self.jobs_run, self.memory_run):
            if glob.glob(os.path.join(run, "checkpoint-*")):
                rc, out = ground.call([self.g.args.sheaf, "verify", run])
                self.g.claim(rc == 0, "every step of %s verifies" % os.path.basename(run), out)
        self.flat()
        self.keep()
        ground.unmount(self.at)


def work(g):
    if not os.path.exists(g.args.bench):
        g.args.mpirun = None
    s = Soak(g)
    while (s.done["saves"] < g.args.saves or g.left() > 0) and g.bad < 5:
        s.turn()
    g.claim(g.bad == 0, "%d saves, %d turns: nothing lost, every answer one of the contract" %
            (s.done["saves"], s.done["iteration"]))
    s.end()


if __name__ == "__main__":
    ground.main("soak", " ".join(__doc__.splitlines()[:2]), work, [
        ("--saves", int, 20, "so many (20)"), ("--dir", str, None, "goes on from what is there")])
