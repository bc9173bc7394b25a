# SPDX-License-Identifier: Apache-2.0
"""Parts of bench/foreign that run the software which wrote a checkpoint, on the same checkpoint: a
load by torch's DCP, and a conversion by DeepSpeed."""
import importlib.util
import json
import os
import shutil
import subprocess
import sys

import contestants as c
from foreign_formats import Command, removed
from harness import ROOT


class Child(c.Contestant):
    """A Python program of this folder that stays. For each line that it gets, it makes a round, and
    prints what it has measured."""

    def __init__(self, name, script, arguments, **how):
        super().__init__(name)
        self.child = subprocess.Popen([sys.executable, "-W", "ignore", os.path.join(
            ROOT, "bench", script)] + arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, **how)

    def round(self):
        self.child.stdin.write("\n")
        self.child.stdin.flush()
        return json.loads(self.child.stdout.readline())

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


class ZeroToFp32(Child):
    """DeepSpeed's own conversion. files: dropped from the page cache before each round."""

    def __init__(self, folder, out, files, size):
        super().__init__("without its start", "foreign_deepspeed.py", ["convert", folder, out],
                         stderr=subprocess.DEVNULL)
        self.files, self.size = files, size

    def before(self):
        c.drop(self.files)

    def round(self):
        return dict(super().round(), bytes=self.size)


def zero(b):
    found = importlib.util.find_spec("deepspeed")
    if found is None:
        return b.skip("a save of DeepSpeed: this Python has no DeepSpeed")
    folder, size = os.path.join(b.dir, "zero"), int(b.gb * 1e9)
    subprocess.run([sys.executable, "-W", "ignore", os.path.join(ROOT, "bench",
                    "foreign_deepspeed.py"), "make", folder, str(size)], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    files = [os.path.join(at, n) for at, _, names in os.walk(folder) for n in names]
    # DeepSpeed puts it into the directory of the saves.
    script = shutil.copy(os.path.join(found.submodule_search_locations[0], "utils",
                                      "zero_to_fp32.py"), folder)
    theirs, ours = os.path.join(b.dir, "theirs"), os.path.join(b.dir, "ours")
    for cold in (False, True):
        dropped = files if cold else []
        who = [Command("zero_to_fp32", [sys.executable, "-W", "ignore", script, folder, theirs,
                                        "--safe_serialization"], dropped, size),
               ZeroToFp32(folder, theirs, dropped, size),
               Command("sheaf convert", [b.program("sheaf"), "convert", folder, ours, "--mem",
                                         "32M"], dropped, size, lambda: removed(ours))]
        t = b.measure("ZeRO 3 of DeepSpeed to Hugging Face, %s" % ("cold" if cold else "warm"),
                      who, "zero_to_fp32")
        s, z = t.series["sheaf convert"], t.series["zero_to_fp32"]
        t.claim("time of zero_to_fp32 / time of sheaf, median", z.median() / s.median(), 5, True)
        t.claim("time of that without its start / time of sheaf, median",
                t.series["without its start"].median() / s.median(), 1, True)
        t.claim("memory of zero_to_fp32 / that of sheaf", z.most("peak_bytes") /
                s.most("peak_bytes"), 10, True, timed=False)
    subprocess.run([b.program("sheaf"), "convert", folder, ours], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    subprocess.run([b.program("sheaf"), "diff", theirs, ours], check=True)
    for path in (folder, theirs, ours):
        removed(path)
    return None
