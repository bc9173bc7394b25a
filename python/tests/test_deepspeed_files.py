#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that the DeepSpeed which is installed writes are read with its own values, and those
of before become models and steps of runs. Prints TAP.

usage: test_deepspeed_files.py SHEAF, the command
"""
from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from typing import Any

import tap

NEEDS = ("deepspeed", "torch")
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "test", "golden",
                      "foreign")


def sheaf(*args: str) -> bytes:
    return subprocess.run([sys.argv[1], *args], capture_output=True, timeout=120, check=True).stdout


def expected(name: str) -> dict[str, Any]:
    """What DeepSpeed itself gave for a checkpoint of before."""
    with open(os.path.join(GOLDEN, "deepspeed-expected.jsonl"), encoding="utf-8") as f:
        found: list[dict[str, Any]] = [line for line in map(json.loads, f) if line["path"] == name]
    tensors: dict[str, Any] = found[0]["tensors"]
    return tensors


def held(path: str, wanted: dict[str, Any]) -> None:
    """It has these tensors, in their families, with their values."""
    shown = json.loads(sheaf("show", path, "--json"))["tensors"]
    found = {("" if t["family"] == "model" else t["family"] + ":") + t["name"]: t for t in shown}
    assert {n: [t["dtype"], t["shape"]] for n, t in found.items()} == {
        n: t[:2] for n, t in wanted.items()}, found
    for name, (_, _, digest) in wanted.items():
        family, _, own = name.rpartition(":")
        values = sheaf("cat", path, own, "--family", family or "model")
        assert hashlib.sha256(values).hexdigest() == digest, name


@tap.needs(*NEEDS)
def test_written_anew() -> None:
    """What DeepSpeed writes now has the tensors and values that its own converters give"""
    with tap.folder() as at:
        subprocess.run([sys.executable, "-W", "ignore", os.path.join(GOLDEN, "make_deepspeed.py"),
                        at, "deepspeed-z1", "deepspeed-z3"], capture_output=True, timeout=280,
                       check=True)
        done = subprocess.run([sys.executable, os.path.join(GOLDEN, "check_foreign.py"),
                               sys.argv[1], at], capture_output=True, text=True, timeout=240,
                              check=False)
        bad = [line for line in done.stdout.splitlines() if line.startswith("not ok")]
        assert done.returncode == 0 and not bad, bad


def test_conversion() -> None:
    """A save of ZeRO 3 becomes a Hugging Face directory with the values of zero_to_fp32"""
    with tap.folder() as at:
        sheaf("convert", os.path.join(GOLDEN, "deepspeed-z3"), at + "/model")
        held(at + "/model", {n: t for n, t in expected("deepspeed-z3").items() if ":" not in n})


def test_masters() -> None:
    """The fp32 masters of ZeRO 1 become a Hugging Face directory"""
    with tap.folder() as at:
        sheaf("convert", os.path.join(GOLDEN, "deepspeed-z1"), at + "/model", "--family",
              "master_weights")
        held(at + "/model", {n.partition(":")[2]: t for n, t in expected("deepspeed-z1").items()
                             if n.startswith("master_weights:")})


def test_missing_files() -> None:
    """If any file of a save is missing, the save is refused with a sentence"""
    for name in ("z1", "bf16", "z2", "z3", "pipe", "experts", "tp"):
        with tap.folder() as at:
            shutil.copytree(os.path.join(GOLDEN, "deepspeed-" + name), at + "/save")
            # layer_00 has nothing but a weight that two stages of the pipeline share, and no file
            # says which layer stores it, so that its absence cannot be noticed.
            for file in set(os.listdir(at + "/save/global_step3")) - {"layer_00-model_states.pt"}:
                path = os.path.join(at, "save", "global_step3", file)
                os.rename(path, at + "/away")
                done = subprocess.run([sys.argv[1], "show", at + "/save"], capture_output=True,
                                      text=True, timeout=120, check=False)
                assert done.returncode == 1 and at in done.stderr, (file, done)
                assert any(x in done.stderr for x in ("missing", "of the model")), done
                os.rename(at + "/away", path)


def test_import() -> None:
    """A save becomes a step of a run, with its number and all families"""
    for name in ("deepspeed-z1", "deepspeed-z3", "deepspeed-u1"):
        with tap.folder() as at:
            sheaf("import", os.path.join(GOLDEN, name), at + "/run")
            held(at + "/run@3", expected(name))


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
