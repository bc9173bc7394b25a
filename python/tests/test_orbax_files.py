#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that the installed Orbax, NumPy and gguf write are read with their values.

Prints TAP.

usage: test_orbax_files.py SHEAF, the command
"""
from __future__ import annotations

import json
import os
import subprocess
import sys

import tap

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "test", "golden",
                      "foreign")


def run(*command: str) -> bytes:
    return subprocess.run([sys.argv[1], *command], capture_output=True, timeout=120,
                          check=True).stdout


def written_anew(script: str) -> None:
    with tap.folder() as at:
        subprocess.run([sys.executable, "-W", "ignore", os.path.join(GOLDEN, script), at],
                       capture_output=True, timeout=240, check=True)
        done = subprocess.run([sys.executable, os.path.join(GOLDEN, "check_foreign.py"),
                               sys.argv[1], at], capture_output=True, text=True, timeout=240,
                              check=False)
        bad = [line for line in done.stdout.splitlines() if line.startswith("not ok")]
        assert done.returncode == 0 and not bad, bad


@tap.needs("numpy")
def test_numpy_written_anew() -> None:
    """What NumPy writes now has the tensors and values that its own loader gives"""
    written_anew("make_numpy.py")


@tap.needs("orbax", "jax", "tensorstore")
def test_orbax_written_anew() -> None:
    """What Orbax and TensorStore write now has the tensors and values that they give"""
    written_anew("make_orbax.py")


@tap.needs("gguf")
def test_gguf_written_anew() -> None:
    """What gguf writes now has the tensors and values that its own reader gives"""
    written_anew("make_gguf.py")


def test_import() -> None:
    """A run of Orbax becomes a step of a run, with the number of its newest save and all values"""
    with tap.folder() as at:
        source = os.path.join(GOLDEN, "orbax-run")
        run("import", source, at + "/run")
        said = json.loads(run("show", at + "/run@10", "--json"))
        names = [t["name"] for t in said["tensors"]]
        assert len(names) == 21, names
        run("verify", at + "/run")
        for name in ("params.dense.kernel", "kinds.bfloat16", "zeros"):
            assert run("cat", source, name, "--npy") == run("cat", at + "/run@10", name, "--npy")


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
