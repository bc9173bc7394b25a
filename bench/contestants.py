# SPDX-License-Identifier: Apache-2.0
"""Those who take part: fio, Sheaf as sheaf-bench drives it, plain reads, bare fsyncs."""
import json
import os
import shutil
import subprocess
import threading

from harness import ROOT, now

PEER = os.path.join(ROOT, "bench", "peer")
MPIRUN = ["--allow-run-as-root", "--oversubscribe", "-n"]
FIO_LIMIT = ["ioengine=io_uring", "iodepth=8", "thread"]
FIO_REQUEST = 8 << 20


def drop(files):
    """Writes the files back and drops them from the page cache, which needs no root."""
    for name in files:
        fd = os.open(name, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def warm(files):
    """Reads the files completely into the page cache."""
    for name in files:
        with open(name, "rb", buffering=0) as f:
            while f.read(8 << 20):
                pass


def tensor_files(step):
    """Returns the safetensors files of a step, and their sizes."""
    found = []
    for at, _, names in os.walk(step):
        found += [os.path.join(at, n) for n in names if n.endswith(".safetensors")]
    return sorted(found)


class Contestant:
    def __init__(self, name):
        self.name = name

    def before(self):
        pass

    def close(self):
        pass


class Again(Contestant):
    """The same contestant once more in each round: A' beside A."""

    def __init__(self, of, name=None):
        super().__init__(name or of.name + " again")
        self.of = of

    def before(self):
        self.of.before()

    def round(self):
        return self.of.round()


class Fio(Contestant):
    """fio: writes new preallocated files of given sizes, one job each, or reads existing files."""

    def __init__(self, bench, name, folder, files, direct=True, reads=False, cold=True):
        super().__init__(name)
        self.program = bench.program("fio")
        self.folder, self.files, self.reads = folder, files, reads
        self.direct, self.cold = direct, cold

    def before(self):
        if self.reads and self.cold:
            drop(self.files)
        elif not self.reads:
            shutil.rmtree(self.folder, ignore_errors=True)
            os.makedirs(self.folder)

    def job(self):
        how = "read" if self.reads else "write"
        lines = ["[global]", "rw=" + how, "direct=%d" % self.direct] + FIO_LIMIT
        if self.reads:
            lines += ["invalidate=0", "allow_file_create=0"]
        else:
            lines += ["fallocate=native", "end_fsync=1"]
        for i, f in enumerate(self.files):
            n = os.path.getsize(f) if self.reads else f
            # Direct reads are of whole sectors, direct writes of whole pages.
            n = n // 4096 * 4096 if self.reads and self.direct else (n + 4095) // 4096 * 4096
            name = f if self.reads else os.path.join(self.folder, "f%d" % i)
            if n:
                lines += ["[f%d]" % i, "filename=" + name.replace(":", "\\:"), "size=%d" % n,
                          "bs=%d" % min(n, FIO_REQUEST)]
        return "\n".join(lines)

    def round(self):
        command = [self.program, "--output-format=json"] + ["--readonly"] * self.reads + ["-"]
        done = subprocess.run(command, input=self.job(), text=True, capture_output=True)
        if not self.reads:
            shutil.rmtree(self.folder, ignore_errors=True)
        if done.returncode:
            raise RuntimeError("fio: " + (done.stderr or done.stdout).strip()[:300])
        how = "read" if self.reads else "write"
        jobs = json.loads(done.stdout[done.stdout.index("{"):])["jobs"]
        ms = max(j["job_runtime"] for j in jobs)
        return {"seconds": max(ms, 1) / 1e3, "bytes": sum(j[how]["io_bytes"] for j in jobs),
                "cpu_s": sum((j["usr_cpu"] + j["sys_cpu"]) / 100 * j["job_runtime"] / 1e3
                             for j in jobs)}

    def close(self):
        if not self.reads:
            shutil.rmtree(self.folder, ignore_errors=True)


class Lines(Contestant):
    """A program that waits for a line, runs a round, and prints JSON lines."""

    def __init__(self, name, command, events):
        super().__init__(name)
        self.events = events
        self.start(command)

    def start(self, command):
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True)
        self.said = []
        self.listener = threading.Thread(target=self.listen, daemon=True)
        self.listener.start()

    def listen(self):
        for line in self.child.stderr:
            self.said = (self.said + [line])[-20:]

    def await_event(self, names):
        for line in self.child.stdout:
            if not line.startswith("{"):
                continue
            event = json.loads(line)
            if event.get("event") in names:
                return event
            if event.get("event") == "error":
                raise RuntimeError("%s: %s" % (self.name, event["message"]))
        self.child.wait()
        self.listener.join()
        raise RuntimeError("%s ended: %s" % (self.name, "".join(self.said).strip()[-600:]))

    def round(self):
        self.child.stdin.write("round\n")
        self.child.stdin.flush()
        return self.await_event(self.events)

    def close(self):
        try:
            self.child.stdin.close()
        except OSError:
            pass
        try:
            self.child.wait(60)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


def sheaf_bench(bench, ranks, *args):
    head = [bench.program("mpirun")] + MPIRUN + [str(ranks)] if ranks > 1 else []
    return head + [bench.program("sheaf-bench")] + list(args)


class Save(Lines):
    """Saves in one process group, as in training; each step is deleted after its save. The first
    save, which touches the staging buffers for the first time, is made here and not counted, unless
    it is cold."""

    def __init__(self, bench, name, ranks, state, *args, run=None, cold=False):
        self.run = run or os.path.join(bench.dir, "run-" + name.replace(" ", "-"))
        self.step, self.state = 0, state
        super().__init__(name, sheaf_bench(
            bench, ranks, "save", "--run", self.run, "--step", "1", "--rounds", "1000000",
            "--on-line", "--json", "--state", state, *args), ("saved",))
        try:
            self.await_event(("ready",))
            if not cold:
                self.round()
        except BaseException:
            self.close()
            raise

    def round(self):
        event = super().round()
        shutil.rmtree(os.path.join(self.run, "checkpoint-%d" % event["step"]))
        return told(event)

    def close(self):
        super().close()
        shutil.rmtree(self.run, ignore_errors=True)


class FreshSave(Contestant):
    """A process group for each save: its time includes first touches and the start of threads."""

    def __init__(self, bench, name, ranks, state, *args):
        super().__init__(name)
        self.bench, self.ranks, self.state, self.args = bench, ranks, state, args
        self.run = os.path.join(bench.dir, "fresh-" + name.replace(" ", "-"))

    def round(self):
        event = once(self.bench, self.ranks, "saved", "save", "--run", self.run, "--step", "1",
                     "--rounds", "1", "--state", self.state, *self.args)
        shutil.rmtree(self.run)
        return told(event)


class Load(Lines):
    """Loads of one step into memory that was touched. On some machines, where a process has its
    memory makes a difference of one half, for as long as the process lives. So several processes
    run, one after another."""

    def __init__(self, bench, name, ranks, run, step, state, *args, rounds, cold=True, lives=3):
        self.files = tensor_files(os.path.join(run, "checkpoint-%d" % step))
        self.cold, self.rounds = cold, -(-rounds // lives)
        self.command = sheaf_bench(
            bench, ranks, "load", "--run", run, "--step", str(step), "--rounds",
            str(self.rounds), "--on-line", "--json", "--state", state, *args)
        super().__init__(name, self.command, ("loaded",))

    def start(self, command):
        super().start(command)
        self.left = self.rounds
        self.await_event(("ready",))

    def before(self):
        if self.left == 0:
            self.close()
            self.start(self.command)
        self.left -= 1
        (drop if self.cold else warm)(self.files)

    def round(self):
        event = super().round()
        told_event = told(event)
        # Opening the step is part of loading it.
        told_event["seconds"] += event["open_s"]
        return told_event


class Read(Lines):
    """Plain reads in threads: sheaf-bench-read."""

    def __init__(self, bench, name, how, threads, files):
        self.files = files
        super().__init__(name, [bench.program("sheaf-bench-read"), how, str(threads)] + files,
                         ("read",))

    def before(self):
        warm(self.files)


class Verify(Contestant):
    """sheaf verify, in a new process each time."""

    def __init__(self, bench, name, run, step):
        super().__init__(name)
        self.command = [bench.program("sheaf"), "verify", "%s@%d" % (run, step), "--json"]
        self.files = tensor_files(os.path.join(run, "checkpoint-%d" % step))

    def before(self):
        drop(self.files)

    def round(self):
        start = now()
        child = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        out = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        seconds = now() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        child.stdout.close()
        if child.returncode:
            raise RuntimeError("sheaf verify says %d: %s" % (child.returncode, out[-300:]))
        return {"seconds": seconds, "bytes": json.loads(out.splitlines()[-1])["bytes"],
                "cpu_s": used.ru_utime + used.ru_stime, "peak_bytes": used.ru_maxrss * 1024,
                "disk_bytes": used.ru_inblock * 512}


def told(event):
    """Converts an event of sheaf-bench to a round."""
    keep = ("seconds", "bytes", "cpu_s", "peak_bytes", "grown_bytes", "rss_bytes", "begin_s",
            "open_s", "checked_items", "held", "faults")
    r = {k: event[k] for k in keep if k in event}
    if event["event"] == "loaded":
        r["disk_bytes"], r["io_read_bytes"] = event["disk_bytes"], event["io_read_bytes"]
    return r


def once(bench, ranks, name, *args):
    """Runs sheaf-bench once, and returns its event of that name."""
    done = subprocess.run(sheaf_bench(bench, ranks, *args, "--json"), capture_output=True,
                          text=True, stdin=subprocess.DEVNULL)
    found = [json.loads(l) for l in done.stdout.splitlines() if l.startswith("{")]
    found = [e for e in found if e["event"] == name]
    if done.returncode or not found:
        raise RuntimeError("sheaf-bench %s: %s" % (args[0], done.stderr.strip()[-600:]))
    return found[-1]


def state_file(bench, how="mixed", adam=True, gb=None):
    """Writes a description like Qwen2's, of about `gb` GB: embedding, layers, norm; bf16 weights
    and, with adam, fp32 masters and moments. `how`: how all matrices are cut, "inner", "outer" or,
    as in tensor parallelism, "mixed". Returns its path."""
    gb = gb or bench.gb
    per = 14 if adam else 2
    hidden, inner, vocab = (896, 4864, 32768) if gb >= 1 else (128, 512, 2048)
    kv = hidden // 7 if hidden == 896 else 32
    tensors = []

    def add(name, rows, columns, axis, stage):
        t = {"name": name, "dtype": "BF16", "shape": [rows, columns] if columns else [rows]}
        if columns:
            t["tp_axis"] = {"inner": 1, "outer": 0}.get(how, axis)
        if stage is not None:
            t["stage"] = stage
        tensors.append(t)

    layer = 2 * hidden * hidden + 2 * kv * hidden + 3 * inner * hidden + 2 * hidden
    layers = max(4, round((gb * 1e9 / per - vocab * hidden) / layer))
    add("model.embed_tokens.weight", vocab, hidden, 0, 0)
    for i in range(layers):
        p = "model.layers.%d." % i
        for name, rows, columns, axis in (
                ("self_attn.q_proj", hidden, hidden, 0), ("self_attn.k_proj", kv, hidden, 0),
                ("self_attn.v_proj", kv, hidden, 0), ("self_attn.o_proj", hidden, hidden, 1),
                ("mlp.gate_proj", inner, hidden, 0), ("mlp.up_proj", inner, hidden, 0),
                ("mlp.down_proj", hidden, inner, 1), ("input_layernorm", hidden, 0, None),
                ("post_attention_layernorm", hidden, 0, None)):
            add(p + name + ".weight", rows, columns, axis, i)
    add("model.norm.weight", hidden, 0, None, layers - 1)
    path = os.path.join(bench.dir, "state-%s-%g.json" % (how, gb))
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"tensors": tensors, "adam": adam}, f)
    return path


def make_step(bench, ranks, state, *args, name="made"):
    """Commits a step 1, to be read. Returns (run, step directory, event)."""
    run = os.path.join(bench.dir, name)
    event = once(bench, ranks, "saved", "save", "--run", run, "--step", "1", "--state", state,
                 *args)
    return run, os.path.join(run, "checkpoint-1"), event


def step_sizes(bench, state):
    """Returns the sizes of the files of a step of this state. The step is made and removed."""
    run, step, _ = make_step(bench, 1, state, name="sizes")
    sizes = [os.path.getsize(f) for f in tensor_files(step)]
    shutil.rmtree(run)
    return sizes
