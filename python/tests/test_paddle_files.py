#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that the Paddle which is installed writes are read with its own values. Prints TAP.

usage: test_paddle_files.py SHEAF, the command
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import tap

NEEDS = ("paddle", "safetensors", "ml_dtypes")
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "test", "golden",
                      "foreign")


def shown(path: str) -> dict[str, Any]:
    done = subprocess.run([sys.argv[1], "show", path, "--json"], capture_output=True, text=True,
                          timeout=120, check=True)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def written(at: str) -> None:
    subprocess.run([sys.executable, "-W", "ignore", os.path.join(GOLDEN, "make_paddle.py"), at],
                   capture_output=True, timeout=240, check=True)


@tap.needs(*NEEDS)
def test_written_anew() -> None:
    """What Paddle writes now has the tensors and values that its own loader gives"""
    with tap.folder() as at:
        written(at)
        done = subprocess.run([sys.executable, os.path.join(GOLDEN, "check_foreign.py"),
                               sys.argv[1], at], capture_output=True, text=True, timeout=240,
                              check=False)
        bad = [line for line in done.stdout.splitlines() if line.startswith("not ok")]
        assert done.returncode == 0 and not bad, bad


@tap.needs(*NEEDS)
def test_files_of_before() -> None:
    """paddle.load gives what sheaf.load gives, of each protocol"""
    import numpy as np
    import paddle

    import sheaf
    for name in ("paddle.pdparams", "paddle2.pdparams", "paddle3.pdparams", "paddle.pdopt"):
        path = os.path.join(GOLDEN, name)
        wanted, found = paddle.load(path), sheaf.load(path)
        for k, v in found.items():
            if k in wanted and not k.startswith("LR_"):
                a = np.array(wanted[k])
                assert np.asarray(v).tobytes() == np.ascontiguousarray(a).tobytes(), (name, k)


def test_conversion() -> None:
    """A unified checkpoint becomes a Hugging Face directory with the names and shapes it has"""
    with tap.folder() as at:
        source = os.path.join(GOLDEN, "paddle-uc")
        subprocess.run([sys.argv[1], "convert", source, at + "/model"], capture_output=True,
                       timeout=120, check=True)
        wanted = {t["name"]: (t["dtype"], t["shape"]) for t in shown(source)["tensors"]
                  if t["family"] == "model"}
        found = shown(at + "/model")
        assert found["format"] == "hf"
        assert {t["name"]: (t["dtype"], t["shape"]) for t in found["tensors"]} == wanted
        for name in wanted:
            values = [subprocess.run([sys.argv[1], "cat", path, name], capture_output=True,
                                     timeout=120, check=True).stdout
                      for path in (source, at + "/model")]
            assert values[0] == values[1], name


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
