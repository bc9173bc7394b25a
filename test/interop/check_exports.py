#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Has the command export checkpoints, and the software whose format it is open them.

usage: check_exports.py SHEAF
Prints TAP. Skips all where torch is not installed.
"""
import subprocess
import sys
import tempfile
import zipfile

try:
    import torch
except ImportError:
    print("1..0 # SKIP torch is not installed")
    sys.exit(77)

done = [0, 0]
sheaf = sys.argv[1]


def result(ok, claim, why=""):
    done[0] += 1
    done[1] += not ok
    print(f"{'ok' if ok else 'not ok'} {done[0]} - {claim}" + (f" # {why}" if why else ""))


def run(*command):
    return subprocess.run([sheaf, *command], capture_output=True, text=True, timeout=120,
                          check=False)


def tensors():
    """One of each type that torch saves, and of each odd shape."""
    torch.manual_seed(3)
    names = ("float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 "
             "uint16 uint32 uint64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz "
             "float8_e8m0fnu").split()
    made = {}
    for name in names:
        dtype = getattr(torch, name)
        size = torch.empty((), dtype=dtype).element_size()
        raw = torch.randint(0, 2 if name == "bool" else 120, (5, 7 * size), dtype=torch.uint8)
        made[f"layers.0.{name}"] = raw.bool() if name == "bool" else raw.view(dtype)
    made["scalar"] = torch.tensor(3.5, dtype=torch.bfloat16)
    made["empty"] = torch.zeros(3, 0, 2)
    made["größe.τ"] = torch.arange(4)
    made["long"] = torch.randn(1100, 1009)      # in two chunks
    made["last"] = torch.randn(3000001).bfloat16()
    return made


def differs(have, want):
    """The first name of which the tensors differ, or None."""
    if have.keys() != want.keys():
        return str(sorted(have.keys() ^ want.keys()))
    for name, x in want.items():
        y = have[name]
        if x.dtype != y.dtype or x.shape != y.shape:
            return f"{name}: {y.dtype} {tuple(y.shape)}"
        raw = [t.contiguous().reshape(-1).view(torch.uint8) for t in (x, y) if t.numel()]
        if raw and not torch.equal(raw[0], raw[1]):
            return name
    return None


def check_torch(at, source, want):
    path = f"{at}/out.pt"
    made = run("convert", source, path, "--format", "torch", "--mem", "1")
    result(made.returncode == 0, "a file for torch.load is written", made.stderr.strip())
    bad = differs(torch.load(path, weights_only=True), want)
    result(bad is None, "torch.load(weights_only=True) gives each tensor", bad or "")
    bad = differs(torch.load(path, weights_only=True, mmap=True), want)
    result(bad is None, "and so it does when it maps the file into memory", bad or "")
    with zipfile.ZipFile(path) as z:
        bad = z.testzip()
    result(bad is None, "Python's zipfile finds each CRC-32 right", bad or "")
    result(run("verify", path).returncode == 0, "and so does sheaf verify")
    result(run("diff", source, path).returncode == 0, "sheaf diff finds no difference")


def main():
    with tempfile.TemporaryDirectory() as at:
        want = tensors()
        torch.save(want, f"{at}/source.pt")
        check_torch(at, f"{at}/source.pt", want)
    print(f"1..{done[0]}")
    return 1 if done[1] else 0


if __name__ == "__main__":
    sys.exit(main())
