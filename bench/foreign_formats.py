# SPDX-License-Identifier: Apache-2.0
"""Parts of bench/foreign: an export to each format and an import of each, beside fio, and imports
of large sparse files."""
import json
import os
import random
import struct
import subprocess

import contestants as c
import ocdbt
from harness import now

# Options of sheaf export for each format. Without --all, only weights are exported.
ALL = ["--all"]
ADAM = ALL + ["--step", "100", "--betas", "0.9,0.95"]
FORMATS = {"hf": [], "torch": ALL, "dcp": ALL, "npz": ALL, "paddle": ALL, "paddle-uc": ADAM,
           "paddle-fc": ADAM, "sharding-io": ADAM, "deepspeed-universal": ADAM, "megatron": ALL}
SMALL = 1 << 20                 # fio skips smaller files


class Command(c.Contestant):
    """A command. Its files are dropped from the page cache before each round. env: its environment,
    if it is not that of the bench."""

    def __init__(self, name, command, files, size, after=None, env=None):
        super().__init__(name)
        self.command, self.files, self.size = command, files, size
        self.after, self.env = after, env

    def before(self):
        c.drop(self.files)
        if self.after:
            self.after()

    def close(self):
        if self.after:
            self.after()

    def round(self):
        start = now()
        child = subprocess.Popen(self.command, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL, env=self.env)
        _, status, used = os.wait4(child.pid, 0)
        seconds = now() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise RuntimeError("%s: exit %d" % (self.command, child.returncode))
        return {"seconds": seconds, "bytes": self.size, "cpu_s": used.ru_utime + used.ru_stime,
                "peak_bytes": used.ru_maxrss * 1024}


class ReadThenWrite(c.Contestant):
    """fio reads files, and then writes new ones of their sizes. again_s: the seconds if the new
    files were read, too, as fast as the old ones."""

    def __init__(self, bench, folder, files):
        super().__init__("fio, read then write")
        sizes = [os.path.getsize(f) for f in files]
        self.turns = [c.Fio(bench, "", "", files, reads=True),
                      c.Fio(bench, "", folder, sizes)]
        self.size = sum(sizes)

    def round(self):
        seconds = []
        for turn in self.turns:
            turn.before()
            seconds.append(turn.round()["seconds"])
        return {"seconds": sum(seconds), "bytes": self.size, "again_s": seconds[0] + sum(seconds)}

    def close(self):
        for turn in self.turns:
            turn.close()


def removed(path):
    subprocess.run(["rm", "-rf", path, path + ".partial"], check=True)


def files_of(path):
    """Returns all files of a file or a directory."""
    if os.path.isfile(path):
        return [path]
    return [os.path.join(at, n) for at, _, names in os.walk(path) for n in names]


def compared(b, what, path, to, command, scratch, reads=lambda file: True):
    """Runs a command that reads the checkpoint at `path` and writes another one, beside fio.
    reads(file): whether the command reads this file."""
    files = [f for f in files_of(path) if reads(f)]
    large = [f for f in files if os.path.getsize(f) >= SMALL] or files
    name = "sheaf " + command[0]
    who = [ReadThenWrite(b, scratch, large),
           Command(name, [b.program("sheaf")] + command + ["--mem", "128M"], files,
                   sum(map(os.path.getsize, large)), lambda: removed(to))]
    t = b.measure(what + ", cold", who, "fio, read then write")
    s, fio = t.series[name], t.series["fio, read then write"]
    t.claim("speed / fio's, reading plus writing, best of the rounds", fio.best() / s.best(), 0.6,
            True)
    t.claim("speed / fio's, reading, writing and reading back, best of the rounds",
            min(r["again_s"] / r["bytes"] for r in fio.rounds) / s.best(), 0.8, True)
    t.claim("memory, MiB", s.most("peak_bytes") / (1 << 20), 512, False, timed=False)


# ---- each format ----

def put_tensors(folder, family, names, rows, fill, **more):
    """Writes a safetensors file of F32 tensors of `rows` rows of 1024 and its index, as Paddle's
    unified checkpoint has them. fill(f, n): writes the n bytes of a tensor."""
    size, header = 4096 * rows, {"__metadata__": {"format": "np"}}
    for i, name in enumerate(names):
        header[name] = {"dtype": "F32", "shape": [rows, 1024],
                        "data_offsets": [i * size, (i + 1) * size]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file = "%s-00001-of-00001.safetensors" % family
    with open(os.path.join(folder, file), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _ in names:
            fill(f, size)
    with open(os.path.join(folder, "%s.safetensors.index.json" % family), "w",
              encoding="utf-8") as f:
        json.dump({"metadata": {"total_size": size * len(names)},
                   "weight_map": {n: file for n in names}, **more}, f)


def training(b, folder):
    """Writes weights and moments of --gb gigabytes, with finite values."""
    rng = random.Random(1)
    rows = max(1, int(b.gb * 1e9) // (3 * 8 * 4096))
    names = ["layers.%d.weight" % i for i in range(8)]

    def fill(f, size):
        for at in range(0, size, 1 << 20):
            part = bytearray(rng.randbytes(min(1 << 20, size - at)))
            part[3::4] = b"\x3e" * (len(part) // 4)         # the exponents
            f.write(part)

    os.makedirs(folder)
    put_tensors(folder, "model", names, rows, fill)
    put_tensors(folder, "optimizer", ["%s/%s" % (n, kind) for n in names for kind in
                                      ("moment1_0", "moment2_0")], rows, fill,
                master_weights=False, quant_ckpt_resume_times=0)


def sheaf(b, *command):
    subprocess.run([b.program("sheaf"), *command], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)


def each_format(b):
    """Exports a step of a run to each format, and imports the exports."""
    wanted = b.args.formats.split(",") if b.args.formats else list(FORMATS)
    unknown = [f for f in wanted if f not in FORMATS]
    if unknown:
        raise SystemExit("--formats: there is no format %s; the formats are %s" % (
            unknown[0], ", ".join(FORMATS)))
    source, run = os.path.join(b.dir, "source"), os.path.join(b.dir, "run")
    scratch = os.path.join(b.dir, "fio")
    training(b, source)
    sheaf(b, "import", source, run + "@100")
    removed(source)
    os.makedirs(scratch, exist_ok=True)
    for kind in wanted:
        to, again = os.path.join(b.dir, "to"), os.path.join(b.dir, "again")
        export = ["export", run + "@100", to, "--format", kind] + FORMATS[kind]
        step = os.path.join(run, "checkpoint-100")
        # Without --all, the files of other families are not read.
        compared(b, "a step of a run as " + kind, step, to, export, scratch,
                 lambda f, some=not FORMATS[kind]: not some or "/optimizer/" not in f)
        sheaf(b, *export)
        os.sync()
        compared(b, "import of " + kind, to, again, ["import", to, again + "@1"], scratch)
        removed(to)
    removed(run)


# ---- sparse files ----

def sparse_safetensors(path, size):
    os.makedirs(path)
    put_tensors(path, "model", ["w%d" % i for i in range(8)], size // 8 // 4096,
                lambda f, n: f.seek(n, os.SEEK_CUR))
    file = os.path.join(path, "model-00001-of-00001.safetensors")
    with open(file, "r+b") as f:
        head = struct.unpack("<Q", f.read(8))[0]
        f.truncate(8 + head + size // 8 // 4096 * 4096 * 8)


def sparse_gguf(path, size):
    items = size // 4 // 8 * 8

    def text(s):
        return struct.pack("<Q", len(s)) + s
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text(b"general.architecture") + \
        struct.pack("<I", 8) + text(b"llama") + text(b"w") + \
        struct.pack("<IQIQ", 1, items, 0, 0)
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32))
        f.truncate(len(head) + -len(head) % 32 + 4 * items)


def sparse_orbax(path, size):
    ocdbt.write(path, {"w%d" % i: size // 8 // 4096 * 4096 for i in range(8)})


def sparse_files(b, others):
    """Imports sparse files of 20 GB, to measure memory. others: functions that make files, by
    format."""
    makers = {"hf": sparse_safetensors, "gguf": sparse_gguf, "orbax": sparse_orbax, **others}
    size = 20_000_000 if b.quick else 20_000_000_000
    for kind, make in makers.items():
        path, to = os.path.join(b.dir, "sparse"), os.path.join(b.dir, "sparse-run")
        make(path, size)
        who = [Command("sheaf import", [b.program("sheaf"), "import", path, to + "@1"],
                       files_of(path), size, lambda to=to: removed(to))]
        t = b.measure("import of %.3g GB of %s, sparse" % (size / 1e9, kind), who, "sheaf import",
                      rounds=1)
        t.claim("memory, MiB", t.series["sheaf import"].most("peak_bytes") / (1 << 20), 512,
                False, timed=False)
        removed(path)
