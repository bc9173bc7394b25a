#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small files with the real NumPy, and what numpy.load gives back for each.

usage: make_numpy.py FOLDER

numpy-expected.jsonl has one line a file, as make_torch.py writes them. The files of this folder
were made by NumPy 2.4.6 and Python 3.11.
"""
import hashlib
import json
import os
import sys

try:
    import numpy as np
except ImportError:
    print("1..0 # SKIP numpy is not installed")
    sys.exit(77)

NAMES = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32",
         "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16",
         "uint8": "U8", "bool": "BOOL", "complex64": "C64", "complex128": "F64"}


def described(a):
    """What sheaf must list of an array, and the digest of its items in C's order."""
    shape = list(a.shape) + ([2] if a.dtype == np.complex128 else [])
    return [NAMES[a.dtype.name], shape, hashlib.sha256(a.tobytes("C")).hexdigest()]


def typed():
    """An array of 5 x 3 of every type that is read."""
    rng = np.random.default_rng(1)
    out = {}
    for name in NAMES:
        bits = rng.integers(0, 256, 15 * np.dtype(name).itemsize, dtype=np.uint8)
        if name == "bool":
            bits &= 1
        out[name] = bits.view(name).reshape(5, 3)
    return out


def main(folder):
    os.chdir(folder)
    rng = np.random.default_rng(2)
    big = np.cumsum(rng.integers(0, 3, 9000), dtype=np.int32).reshape(90, 100)
    files = {"array.npy": (np.save, rng.standard_normal((7, 5)).astype(np.float32)),
             "fortran.npy": (np.save, np.asfortranarray(rng.standard_normal((6, 4, 3)))),
             "scalar.npy": (np.save, np.array(-7, np.int16))}
    for name, (save, value) in files.items():
        save(name, value)
    unread = {"big_endian": np.arange(4, dtype=">i4"), "texts": np.array(["a", "bc"]),
              "structured": np.zeros(3, [("x", "<f4"), ("y", "<i2", 2)]),
              "objects": np.array([{"a": 1}, None], object)}
    np.savez("arrays.npz", **typed(), **unread, nothing=np.zeros((3, 0), np.float32),
             scalar=np.float64(2.5), turned=np.asfortranarray(big[:9, :11]),
             **{"layer/0.weight": big[:3, :3]})
    np.savez_compressed("deflated.npz", **typed(), big=big, turned=np.asfortranarray(big))
    with open("numpy-expected.jsonl", "w", encoding="utf-8") as f:
        for name in [*files, "arrays.npz", "deflated.npz"]:
            value = np.load(name, allow_pickle=True)
            arrays = {"array": value} if name.endswith(".npy") else \
                {n: value[n] for n in value.files if n not in unread}
            line = {"path": name, "format": name[-3:], "numpy": np.__version__,
                    "verify": 0 if name.endswith(".npz") else 2,
                    "tensors": {n: described(a) for n, a in arrays.items()}}
            f.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
