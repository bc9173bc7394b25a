#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Conversions of sheaf against those of ml_dtypes, bit for bit; any NaN equals any NaN of its sign.

usage: check_dtypes.py DTYPE_DUMP
Exit 0: all equal; 1: not; 77: no ml_dtypes or NumPy here.
"""
import struct
import subprocess
import sys

try:
    import ml_dtypes
    import numpy as np
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

TYPES = {
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": getattr(ml_dtypes, "float8_e8m0fnu", None),
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}
SIGNED_NAN = ("F16", "BF16", "F8_E4M3", "F8_E5M2")


def sections(data):
    at = 0
    while at < len(data):
        name = data[at:at + 24].rstrip(b"\0").decode()
        n, = struct.unpack_from("<Q", data, at + 24)
        width = 4 if name.endswith("F32") else np.dtype(np.uint16 if name in (
            "F32>F16", "F32>BF16") else np.uint8).itemsize
        at += 32
        yield name, np.frombuffer(data, f"<u{width}", n, at)
        at += n * width


def differences(got, want, dtype, signed_nan):
    """Indices where bits differ and not both are NaN (of one sign, where NaN has one)."""
    bits = want.view(got.dtype)
    nan = np.isnan(want.astype(np.float32)) & np.isnan(got.view(dtype).astype(np.float32))
    if signed_nan:
        top = got.dtype.type(1 << (8 * got.dtype.itemsize - 1))
        nan &= (bits & top) == (got & top)
    return np.flatnonzero((bits != got) & ~nan)


def main():
    dump = subprocess.run([sys.argv[1]], stdout=subprocess.PIPE, check=True).stdout
    patterns, bad, seen = None, 0, 0
    for name, got in sections(dump):
        if name == "F32":
            patterns = got
            continue
        source, target = name.split(">")
        narrow = TYPES[source if target == "F32" else target]
        if narrow is None:
            print(f"{name}: this ml_dtypes has no such type")
            continue
        with np.errstate(all="ignore"):
            if target == "F32":
                codes = np.arange(got.size, dtype=f"<u{np.dtype(narrow).itemsize}")
                wrong = differences(got, codes.view(narrow).astype(np.float32), np.float32, False)
                inputs = codes
            else:
                want = patterns.view(np.float32).astype(narrow)
                wrong = differences(got, want, narrow, target in SIGNED_NAN)
                inputs = patterns
        seen += 1
        print(f"{name}: {got.size} items, {wrong.size} differ")
        for i in wrong[:5]:
            print(f"  {inputs[i]:#x} became {got[i]:#x}")
        bad += wrong.size
    if seen < 2 * (len(TYPES) - 1):
        print(f"only {seen} sections: the dump is cut")
        bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
