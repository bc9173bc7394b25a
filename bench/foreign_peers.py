# SPDX-License-Identifier: Apache-2.0
"""Parts of bench/foreign that run the software which wrote a checkpoint, on the same checkpoint: a
load by torch's DCP, and conversions by DeepSpeed and by Megatron-Core."""
import importlib.util
import json
import os
import shutil
import subprocess
import sys

import contestants as c
from foreign_formats import Command, files_of, removed
from harness import ROOT


def python(script, *arguments):
    """Returns the command that runs a script; one without a path is in this folder."""
    return [sys.executable, "-W", "ignore", os.path.join(ROOT, "bench", script), *arguments]


class Child(c.Contestant):
    """A Python program of this folder that keeps running. For each line that it reads, it runs a
    round, and prints the measurements."""

    def __init__(self, name, script, arguments, **how):
        super().__init__(name)
        self.child = subprocess.Popen(python(script, *arguments), stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True, **how)

    def round(self):
        self.child.stdin.write("\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        if not line:
            raise RuntimeError("%s: it has ended" % self.name)
        return json.loads(line)

    def close(self):
        self.child.stdin.close()
        self.child.wait()


class Ranks(Child):
    """Two ranks that load a directory of DCP."""

    def __init__(self, bench, name, what, folder, size):
        super().__init__(name, "foreign_ranks.py", [what, folder, str(size)], env=dict(
            os.environ, PYTHONPATH=os.path.join(bench.build, "python"),
            PYTHONDONTWRITEBYTECODE="1"))


def resharded(b):
    if importlib.util.find_spec("torch") is None:
        return b.skip("a directory of DCP: this Python has no torch")
    if not os.path.isdir(os.path.join(b.build, "python", "sheaf")):
        return b.skip("a directory of DCP: %s has no Python package" % b.build)
    size = int(min(b.gb, 1) * 1e9)
    folder = os.path.join(b.dir, "dcp")
    maker = Ranks(b, "", "save", folder, size)
    maker.close()
    who = [Ranks(b, "dcp.load", "dcp", folder, size), Ranks(b, "sheaf", "sheaf", folder, size)]
    t = b.measure("rows of DCP loaded as columns, 2 ranks, warm", who, "dcp.load")
    s = t.series["sheaf"]
    t.claim("time of dcp.load / time of sheaf, median", t.series["dcp.load"].median() / s.median(),
            1, True)
    t.claim("bytes read / bytes needed, by the kernel's count", s.middle("disk_bytes") /
            s.middle("bytes"), 1.1, False, timed=False)
    return None


# ---- conversions to Hugging Face ----

LIMIT = "fio, write"


def compiled(b):
    """Returns an environment in which Python modules are compiled only once. If they were installed
    without byte code, or it cannot be written, each start would compile all of them."""
    env = dict(os.environ, PYTHONPYCACHEPREFIX=os.path.join(b.dir, "bytecode"))
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env


class Conversion(Command):
    """A command that writes a directory, which is removed before each round. The last one stays."""

    def __init__(self, name, command, files, size, out, env=None):
        super().__init__(name, command, files, size, env=env)
        self.out = out

    def before(self):
        removed(self.out)
        super().before()


class Started(Child):
    """A conversion in rounds, in a Python process that has already imported everything."""

    def __init__(self, script, folder, files, size, out, env):
        super().__init__("without its start", script, ["rounds", folder, out],
                         stderr=subprocess.DEVNULL, env=env)
        self.files, self.size, self.out = files, size, out
        self.child.stdout.readline()

    def before(self):
        removed(self.out)
        c.drop(self.files)

    def round(self):
        return dict(super().round(), bytes=self.size)


def conversions(b, what, name, command, started, folder, size, options=()):
    """Compares `sheaf convert` of a checkpoint to a Hugging Face directory with the conversion by
    the software that wrote it, from the page cache and from the disk. Both must give the same
    result. fio, which only writes as many bytes, shows the limit of the disk. command(out): the
    command of that software. started: a script that does the same in rounds. size: the bytes of the
    weights."""
    theirs, ours = os.path.join(b.dir, "theirs"), os.path.join(b.dir, "ours")
    sheaf, env, files = b.program("sheaf"), compiled(b), files_of(folder)
    # Not in this process: the peak memory of a command is at least that of its parent.
    subprocess.run(["cat", *files], check=True, stdout=subprocess.DEVNULL)
    for cold in (True,) if b.quick else (False, True):
        dropped = files if cold else []
        who = [c.Fio(b, LIMIT, os.path.join(b.dir, "fio"), [size]),
               Conversion(name, command(theirs), dropped, size, theirs, env),
               Started(started, folder, dropped, size, theirs, env),
               Conversion("sheaf convert", [sheaf, "convert", folder, ours, "--mem", "32M",
                                            *options], dropped, size, ours)]
        t = b.measure("%s to Hugging Face, %s" % (what, "cold" if cold else "warm"), who, LIMIT,
                      rounds=1 if b.quick else None)
        s, z = t.series["sheaf convert"], t.series[name]
        t.claim("time of %s / time of sheaf, median" % name, z.median() / s.median(), 5, True)
        t.claim("time of that without its start / time of sheaf, median",
                t.series["without its start"].median() / s.median(), 1, True)
        t.claim("memory of %s / that of sheaf" % name, z.most("peak_bytes") /
                s.most("peak_bytes"), 10, True, timed=False)
    subprocess.run([sheaf, "diff", theirs, ours], check=True, stdout=sys.stderr)
    for path in (folder, theirs, ours):
        removed(path)


def made(b, name, folder):
    """Runs a script that writes its checkpoint."""
    done = subprocess.run(python(name, "make", folder, str(int(b.gb * 1e9))), env=compiled(b),
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError("%s: %s" % (name, (done.stderr.strip().splitlines() or [""])[-1]))


def zero(b):
    found = importlib.util.find_spec("deepspeed")
    if found is None:
        return b.skip("a save of DeepSpeed: this Python has no DeepSpeed")
    folder = os.path.join(b.dir, "zero")
    made(b, "foreign_deepspeed.py", folder)
    # DeepSpeed copies it into the directory of the saves.
    own = shutil.copy(os.path.join(found.submodule_search_locations[0], "utils",
                                   "zero_to_fp32.py"), folder)
    return conversions(b, "ZeRO 3 of DeepSpeed", "zero_to_fp32", lambda out: python(
        own, folder, out, "--safe_serialization"), "foreign_deepspeed.py", folder,
        int(b.gb * 1e9))


def megatron(b):
    for module, called in ("megatron", "Megatron-Core"), ("transformers", "transformers"):
        if importlib.util.find_spec(module) is None:
            return b.skip("a save of Megatron-Core: this Python has no " + called)
    folder, name = os.path.join(b.dir, "megatron"), "foreign_megatron.py"
    made(b, name, folder)
    size = sum(map(os.path.getsize, files_of(folder)))
    # Megatron pads the vocabulary to a multiple of 128 on each of the two ranks.
    return conversions(b, "Megatron-Core", "dist_checkpointing.load", lambda out: python(
        name, "convert", folder, out), name, folder, size, (
        "--map", "qwen2-hf-megatron", "--to", "hf", "--set", "pad=256", "--config",
        os.path.join(folder, "config.json")))
