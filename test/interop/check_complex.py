#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Complex numbers that sheaf saved, in NumPy: complex64 as it is, complex128 as pairs of float64.

usage: check_complex.py SAVE_COMPLEX
Exit 0: all right; 1: not; 77: no NumPy here. The library of safetensors, if it is here, reads them,
too, and is asked whether it knows a type of 128 bits by now: then doc/format.md, section 2, is to
be changed.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)
try:
    import safetensors
    from safetensors.numpy import load_file
except ImportError:
    safetensors = None

I, J = np.meshgrid(np.arange(3), np.arange(4), indexing="ij")
WANT = {"z": I + 10 * J - (I - 0.5) * 1j, "c": (np.arange(3) * (1 - 2j)).astype(np.complex64)}
NUMPY = {"F64": "<f8", "C64": "<c8"}


def read(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    header.pop("__metadata__")
    return {name: np.frombuffer(data[slice(*e["data_offsets"])], NUMPY[e["dtype"]])
            .reshape(e["shape"]) for name, e in header.items()}


def right(tensors):
    z = tensors["z"]
    return (z.dtype == np.float64 and z.shape == (3, 4, 2) and tensors["c"].dtype == np.complex64
            and np.array_equal(np.ascontiguousarray(z).view(np.complex128)[..., 0], WANT["z"])
            and np.array_equal(tensors["c"], WANT["c"]))


def knows_c128(at):
    header = b'{"a":{"dtype":"C128","shape":[1],"data_offsets":[0,16]}}'
    path = os.path.join(at, "c128.safetensors")
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + bytes(16))
    try:
        with safetensors.safe_open(path, "np"):
            return True
    except safetensors.SafetensorError:
        return False


def main():
    with tempfile.TemporaryDirectory() as at:
        subprocess.run([sys.argv[1], os.path.join(at, "run")], check=True)
        path = os.path.join(at, "run", "checkpoint-1", "model-00001-of-00001.safetensors")
        good = right(read(path))
        print("NumPy:", "right" if good else read(path))
        if safetensors and safetensors.__version__ >= "0.7":    # the first that knows C64
            theirs = right(load_file(path))
            print("safetensors %s:" % safetensors.__version__, "right" if theirs else "other")
            print("it knows C128:", knows_c128(at))
            good &= theirs and not knows_c128(at)
    return not good


if __name__ == "__main__":
    sys.exit(main())
