#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Are the values that sheaf-bench stored those of the published rule? NumPy and nothing of ours.

usage: check_values.py STEP-DIR [--seed N] [--step N] [--skip FAMILY,...]

Reads every safetensors file of a step (the model's beside sheaf.json, the other families' in their
folders), makes each tensor again from (seed, step, family, name) and compares bytes.
Exit 0 equal, 1 not, 77 without NumPy.
"""
import argparse
import json
import os
import struct
import sys

try:
    import numpy as np
except ImportError:
    sys.exit(77)

BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8,
        "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "U16": 16, "I16": 16,
        "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64,
        "C64": 64}
CHUNK = 1 << 20


def crc64(data):
    crc = (1 << 64) - 1
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x9A6C9329AC4BC9B5 if crc & 1 else 0)
    return crc ^ ((1 << 64) - 1)


def items(h, start, n):
    """u(start) ... u(start + n - 1)"""
    i = np.arange(start + 1, start + n + 1, dtype=np.uint64)
    z = np.uint64(h) + i * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def f32(u):
    return (((u >> np.uint64(40)).astype(np.int64) - (1 << 23)) * 2.0 ** -23).astype(np.float32)


def stored(dtype, u):
    if dtype == "F32":
        return f32(u).astype("<f4").tobytes()
    if dtype == "F64":
        return (((u >> np.uint64(11)).astype(np.int64) - (1 << 52)) * 2.0 ** -52).astype(
            "<f8").tobytes()
    if dtype == "F16":
        return f32(u).astype("<f2").tobytes()
    if dtype == "BF16":
        x = f32(u).view(np.uint32)
        x = (x + np.uint32(0x7fff) + ((x >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return x.astype("<u2").tobytes()
    if dtype == "BOOL":
        return (u & np.uint64(1)).astype(np.uint8).tobytes()
    width = max(BITS[dtype] // 8, 1)
    return u.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].tobytes()


def check_tensor(f, base, family, name, entry, seed, step):
    dtype, (start, end) = entry["dtype"], entry["data_offsets"]
    of = "master_weights" if dtype in ("BF16", "F16") else family
    h = crc64(("%d:%d:%s:%s" % (seed, step, of, name)).encode())
    width = max(BITS[dtype] // 8, 1)
    count = 1
    for d in entry["shape"]:
        count *= d
    if (end - start) * 8 != count * BITS[dtype]:
        return "%d bytes for %d items of %s" % (end - start, count, dtype)
    for at in range(0, (end - start) // width, CHUNK):
        n = min(CHUNK, (end - start) // width - at)
        f.seek(base + start + at * width)
        if f.read(n * width) != stored(dtype, items(h, at, n)):
            return "differs in items %d to %d" % (at, at + n)
    return None


def check_file(path, family, seed, step):
    wrong = []
    with open(path, "rb") as f:
        n, = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(n))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            why = check_tensor(f, 8 + n, family, name, entry, seed, step)
            if why:
                wrong.append("%s: %s/%s: %s" % (path, family, name, why))
    return len(header), wrong


def main():
    p = argparse.ArgumentParser()
    p.add_argument("dir")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--step", type=int)
    p.add_argument("--skip", default="")
    o = p.parse_args()
    step = o.step
    if step is None:
        with open(os.path.join(o.dir, "sheaf.json"), encoding="utf-8") as f:
            step = json.load(f)["step"]
    tensors, wrong = 0, []
    for at, dirs, files in os.walk(o.dir):
        dirs.sort()
        family = os.path.relpath(at, o.dir)
        family = "model" if family == "." else family
        if family in o.skip.split(","):
            continue
        for name in sorted(files):
            if name.endswith(".safetensors"):
                n, bad = check_file(os.path.join(at, name), family, o.seed, step)
                tensors += n
                wrong += bad
    print("\n".join(wrong[:20] + ["%d tensors, %d wrong" % (tensors, len(wrong))]))
    return 1 if wrong or not tensors else 0


if __name__ == "__main__":
    np.seterr(over="ignore")
    sys.exit(main())
