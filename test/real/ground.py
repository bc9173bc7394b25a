# SPDX-License-Identifier: Apache-2.0
"""What the programs of this folder stand on: ground of their own, on a real machine.

A program runs in a PID and a mount namespace of its own. So what it mounts and starts is gone when
it is, whatever happened to it; its temporary directory goes with the process that waits for it
outside. Loop devices detach when their file system is unmounted.

A claim is a line of TAP. What was done is counted, and the counts end the output, as a table and as
one object.
"""
import argparse
import ctypes
import hashlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "mpi"))
import kill  # noqa: E402

INSIDE = "SHEAF_REAL_AT"
PATIENCE_S = 60
LOOP_BYTES = 320 << 20                  # xfs wants 300 MB; sparse
STATES = ("EINVAL ENOMEM EIO ENOENT EEXIST EBUSY EAGAIN ELAYOUT ECORRUPT EFORMAT EINDOUBT EBUG "
          "ELOST EDIVERGED EFAILED EEND").split()
CODES = {-1 - i: name for i, name in enumerate(STATES)}
CODES[0] = "OK"


class Skip(Exception):
    """Not possible on this machine, and why. Asked beforehand: no answer of ours is one."""


class Broken(Exception):
    """What has to work did not; a failed claim."""


class Ground:
    """Claims, counts, places and mounts of one program."""

    def __init__(self, name, args, at):
        self.name, self.args, self.at = name, args, at
        self.draw, self.counts, self.n, self.bad = random.Random(args.seed), {}, 0, 0
        self.skipped, self.started = {}, time.monotonic()

    def left(self):
        """Seconds of the long form that are left."""
        return self.args.seconds - (time.monotonic() - self.started)

    def count(self, what, n=1):
        self.counts[what] = self.counts.get(what, 0) + n

    def most(self, what, n):
        self.counts[what] = max(self.counts.get(what, 0), n)

    def claim(self, true, what, why=""):
        self.n += 1
        self.bad += not true
        print("%s %d - %s" % ("ok" if true else "not ok", self.n, what), flush=True)
        if not true:
            for line in str(why).splitlines()[:20]:
                print("# " + line[:300])
        return bool(true)

    def skip(self, what, why):
        self.n += 1
        self.skipped[what] = str(why)
        print("ok %d - %s # SKIP %s" % (self.n, what, " ".join(str(why).split())), flush=True)

    def image(self, name):
        """Where a file system in a file lies: in memory, where the test is to be quick."""
        return os.path.join(self.at if self.args.seconds else "/dev/shm", name)

    def room(self, name):
        """An empty folder."""
        path = os.path.join(self.at, name)
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path)
        return path

    def end(self):
        told = {"real": self.name, "seed": self.args.seed, "replay": replay(self.args),
                "seconds": round(time.monotonic() - self.started, 1), "counts": self.counts,
                "skipped": self.skipped, "failed": self.bad}
        wide = max(map(len, self.counts), default=0)
        for what, n in self.counts.items():
            print("# %-*s %s" % (wide, what, n))
        print("# " + json.dumps(told))
        print("1..%d" % self.n, flush=True)
        return self.bad != 0


def replay(args):
    given = [(name, getattr(args, name[2:])) for name in ["--seed", "--seconds"] + args.more]
    return " ".join([os.path.basename(sys.argv[0])] +
                    ["%s %s" % pair for pair in given if pair[1]] + [args.build])


# --- places -----------------------------------------------------------------------------------

def call(argv, timeout=PATIENCE_S, **more):
    """Both outputs, as text; the exit status, 124 where it hung."""
    job = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, **more)
    try:
        out, _ = job.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        said = stacks([job.pid] + kill.children(job.pid))
        kill.end(job)
        return 124, "hung: %s\n%s" % (" ".join(argv), said)
    return job.returncode, out.decode(errors="replace")


def stacks(pids):
    """What all threads of these processes are doing, where a debugger is installed."""
    said = ""
    for tool in (["eu-stack", "-p"], ["gdb", "-batch", "-nx", "-ex", "thread apply all bt", "-p"]):
        if not shutil.which(tool[0]):
            continue
        for pid in pids:
            got = subprocess.run(tool + [str(pid)], stdin=subprocess.DEVNULL, text=True,
                                 capture_output=True, timeout=30, check=False).stdout
            said += "\n".join(["process %d:" % pid] + [line for line in got.splitlines()
                                                      if line.startswith(("#", "Thread", "TID"))])
        return said
    return "no eu-stack and no gdb: no stacks"


def must(argv, otherwise=Broken):
    rc, out = call(argv)
    if rc:
        raise otherwise("%s: %s" % (" ".join(argv[:4]), out.strip()[:200] or "exit %d" % rc))


def needs(*tools):
    for tool in tools:
        if not shutil.which(tool):
            raise Skip("%s is not installed" % tool)


def needs_strace():
    needs("strace")
    must(["strace", "-f", "-o", os.devnull, "true"], Skip)


def needs_mpi(args):
    if not args.mpirun or not os.path.exists(args.bench):
        raise Skip("no MPI")


def mount_tmpfs(at, size):
    os.makedirs(at, exist_ok=True)
    must(["mount", "-t", "tmpfs", "-o", "size=%d" % size, "sheaf-test", at])


MKFS = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"],
        "btrfs": ["mkfs.btrfs", "-q", "-f"]}


def mount_loop(kind, at, image, size, otherwise=Broken):
    """A file system of this kind in a sparse file of so many bytes."""
    with open(image, "wb") as f:
        f.truncate(size)
    must(MKFS[kind] + [image], otherwise)
    os.makedirs(at, exist_ok=True)
    must(["mount", "-t", kind, "-o", "loop", image, at], otherwise)


def needs_loop(g, kind):
    """Can an empty file system of this kind be mounted here, and be let go?"""
    needs(MKFS[kind][0])
    at, image = os.path.join(g.at, "asked"), g.image("asked.image")
    try:
        mount_loop(kind, at, image, LOOP_BYTES, Skip)
        unmount(at)
    finally:
        if os.path.exists(image):
            os.remove(image)


def unmount(at):
    """The kernel may for a moment still be ending the requests of who was killed."""
    if not kill.until(lambda: call(["umount", at])[0] == 0, 20):
        raise Broken("%s stays busy: %s" % (at, call(["fuser", "-vm", at])[1]
                                          if shutil.which("fuser") else "no fuser"))


def fill(at):
    """Take all the space there is; the path of the file that has it."""
    path = os.path.join(at, "filler")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        for piece in (1 << 20, 4096):
            try:
                while True:
                    os.write(fd, bytes(piece))
            except OSError:
                continue
    finally:
        os.close(fd)
    return path


def sums_of(step):
    """sha256 of every file of a step but its manifest, by name."""
    found = {}
    for at, _, files in os.walk(step):
        for name in files:
            path = os.path.join(at, name)
            if name != "sheaf.json":
                with open(path, "rb") as f:
                    found[os.path.relpath(path, step)] = hashlib.sha256(f.read()).hexdigest()
    return found


def states(pids):
    """Of processes that should be gone: what the kernel says they do."""
    said = []
    for pid in pids:
        try:
            for name in ("comm", "wchan", "stat"):
                with open("/proc/%d/%s" % (pid, name), encoding="ascii", errors="replace") as f:
                    said.append("%d %s: %s" % (pid, name, f.read().strip()[:80]))
        except OSError:
            continue
    return "\n".join(said)


def is_sanitized(program):
    with open(program, "rb") as f:
        return b"__asan_init" in f.read()


# --- one process that saves -------------------------------------------------------------------

class Trainer:
    """A trainer of one rank that does what its standard input says. A reply that does not come
    in time is a hang: its stacks are kept and it is killed."""

    def __init__(self, ground, run, *words, before=None, patience=PATIENCE_S):
        self.patience, self.hung = patience, ""
        self.job = subprocess.Popen(
            [ground.args.trainer, run, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, bufsize=0, preexec_fn=before)
        self.rest = b""
        self.pid = self.job.pid

    def line(self):
        end = time.monotonic() + self.patience
        while b"\n" not in self.rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.job.stdout], [], [], left)[0]:
                self.hung = stacks([self.pid])
                self.kill()
                return None
            got = os.read(self.job.stdout.fileno(), 65536)
            if not got:
                return None
            self.rest += got
        line, self.rest = self.rest.split(b"\n", 1)
        return line.decode(errors="replace")

    def begin(self, words):
        try:
            self.job.stdin.write((words + "\n").encode())
        except OSError:
            pass

    def reply(self):
        """code is None where there is no reply: message says how it ended."""
        line = self.line()
        if line is None:
            rc = self.job.wait()
            return {"code": None, "message": "hung:\n" + self.hung if self.hung else
                    "ended with %d: %s" % (rc, self.rest.decode(errors="replace"))}
        try:
            return json.loads(line)
        except ValueError:
            return {"code": None, "message": line}

    def do(self, words):
        self.begin(words)
        return self.reply()

    def kill(self):
        try:
            self.job.kill()
        except OSError:
            pass
        self.job.wait()

    def close(self):
        """The exit status, after it closed its run."""
        try:
            self.job.stdin.close()
            return self.job.wait(self.patience)
        except subprocess.TimeoutExpired:
            self.hung = stacks([self.pid])
            self.kill()
            return 124

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.job.stdin.close()
        self.job.stdout.close()


def usage_of(pid):
    """Resident bytes, descriptors, threads of a process."""
    with open("/proc/%d/statm" % pid, encoding="ascii") as f:
        rss = int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    return rss, len(os.listdir("/proc/%d/fd" % pid)), len(os.listdir("/proc/%d/task" % pid))


def is_sentence(reply):
    """One line that says something."""
    said = reply.get("message") or ""
    return bool(said.strip()) and "\n" not in said and len(said) < 500


# --- the program ------------------------------------------------------------------------------

def options(what, more):
    p = argparse.ArgumentParser(description=what)
    p.add_argument("build", help="a build folder")
    p.add_argument("--seed", default=None, help="what is drawn (printed)")
    p.add_argument("--seconds", type=float, default=0, help="the long form: about so long")
    for name, kind, default, text in more:
        p.add_argument(name, type=kind, default=default, help=text)
    args = p.parse_args()
    args.more = [name for name, *_ in more]
    if args.seed is None:
        args.seed = str(random.SystemRandom().randrange(2**32))
    build = os.path.abspath(args.build)
    args.sheaf = os.path.join(build, "cli", "sheaf")
    args.bench = os.path.join(build, "bench", "sheaf-bench")
    args.trainer = os.path.join(build, "test", "real", "trainer")
    args.lossyfs = os.path.join(build, "test", "real", "lossyfs")
    args.mpirun = shutil.which("mpirun")
    return args


def with_us():
    """A child that is killed when we are, however that happens."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc",
              "--propagation", "private"]
FIRST = ["sh", "-c", '"$@"; exit $?', "sh"]    # buries what outlives its parent


def outside(args):
    """Start the program on ground of its own, and clean up after it."""
    if os.geteuid() != 0:
        print("1..0 # SKIP needs root: it mounts file systems")
        return 0
    rc, out = call(NAMESPACES + ["true"])
    if rc:
        print("1..0 # SKIP no namespaces here: " + out.strip())
        return 0
    at = tempfile.mkdtemp(prefix="sheaf-real-")
    env = dict(os.environ, **{INSIDE: at})
    again = [sys.executable, os.path.abspath(sys.argv[0])] + sys.argv[1:] + ["--seed", args.seed]
    child = subprocess.Popen(NAMESPACES + FIRST + again, env=env, preexec_fn=with_us)
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: child.kill())
        return child.wait()
    except KeyboardInterrupt:
        child.kill()
        return child.wait()
    finally:
        shutil.rmtree(at, ignore_errors=True)


def main(name, what, work, more=()):
    """work(ground) does it all; a Skip that leaves it before the first claim skips the program."""
    args = options(what, more)
    if INSIDE not in os.environ:
        sys.exit(outside(args))
    at = os.environ.pop(INSIDE)
    g = Ground(name, args, at)
    print("# seed %s: %s" % (args.seed, replay(args)), flush=True)
    os.environ["TMPDIR"] = at
    # MPI leaks, and says so under a sanitizer; nobody looks for leaks under strace.
    os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    try:
        mount_tmpfs("/dev/shm", 1 << 30)        # of MPI: nothing of it is left
        work(g)
    except Skip as why:
        if not g.n:
            print("1..0 # SKIP %s" % why)
            sys.exit(0)
        g.claim(False, "what it needs it asks for first", why)
    except Broken as why:
        g.claim(False, "it comes to its end", why)
    sys.exit(g.end())
