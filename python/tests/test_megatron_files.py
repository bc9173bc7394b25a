#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that the Megatron-Core which is installed writes are read with its own values, and
those of before become models and steps of runs. Prints TAP.

usage: test_megatron_files.py SHEAF, the command
"""
from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys

import tap
from megatron_saves import GOLDEN, LLAMA, NEEDS, expected, run, sheaf

SAVES = ("megatron-dist", "megatron-flat", "megatron-buckets", "megatron-ranks")


def rows(tensor: bytes, width: int, *ranges: tuple[int, int]) -> bytes:
    """These rows of a tensor, whose rows have that many bytes."""
    return b"".join(tensor[width * a:width * b] for a, b in ranges)


@tap.needs(*NEEDS)
def test_written_anew() -> None:
    """What Megatron-Core writes now has the tensors and values that its own loader gives"""
    with tap.folder() as at:
        subprocess.run([sys.executable, "-W", "ignore", os.path.join(GOLDEN, "make_megatron.py"),
                        at, "megatron-dist"], capture_output=True, timeout=280, check=True)
        done = subprocess.run([sys.executable, os.path.join(GOLDEN, "check_foreign.py"),
                               sys.argv[1], at], capture_output=True, text=True, timeout=240,
                              check=False)
        bad = [line for line in done.stdout.splitlines() if line.startswith("not ok")]
        assert done.returncode == 0 and not bad, bad


def test_hugging_face() -> None:
    """A save of Megatron-Core becomes a step with the names of Hugging Face, moments and all"""
    for save in ("megatron-dist", "megatron-flat"):
        source = os.path.join(GOLDEN, save)
        with tap.folder() as at:
            with open(at + "/config.json", "w", encoding="utf-8") as f:
                json.dump(LLAMA, f)
            sheaf("import", source, at + "/run", "--map", "llama-hf-megatron", "--to", "hf",
                  "--config", at + "/config.json", "--set", "pad=1")
            for family, key, item in (("model", "", 2), ("master_weights", "", 4),
                                      ("optimizer", "/moment1_0", 4),
                                      ("optimizer", "/moment2_0", 4)):
                fc1, qkv = (sheaf("cat", source, f"decoder.layers.{name}.weight{key}", "--family",
                                  family) for name in ("mlp.linear_fc1",
                                                       "self_attention.linear_qkv"))
                # Layer 1: its gate and up projections have 6 rows each; a kv head has 4 rows of
                # queries, 2 of the key and 2 of the value.
                width = 8 * item
                for name, of, ranges in (
                        ("mlp.gate_proj", rows(fc1, width, (12, 24)), [(0, 6)]),
                        ("mlp.up_proj", rows(fc1, width, (12, 24)), [(6, 12)]),
                        ("self_attn.q_proj", rows(qkv, width, (16, 32)), [(0, 4), (8, 12)]),
                        ("self_attn.k_proj", rows(qkv, width, (16, 32)), [(4, 6), (12, 14)]),
                        ("self_attn.v_proj", rows(qkv, width, (16, 32)), [(6, 8), (14, 16)])):
                    got = sheaf("cat", at + "/run", f"model.layers.1.{name}.weight{key}",
                                "--family", family)
                    assert got == rows(of, width, *ranges), (save, family, name)


def test_import() -> None:
    """A save becomes a step of a run, with its number and all families"""
    with tap.folder() as at:
        sheaf("import", os.path.join(GOLDEN, "megatron-flat"), at + "/run")
        for name, (_, _, digest) in expected("megatron-flat").items():
            family, _, own = name.rpartition(":")
            values = sheaf("cat", at + "/run@2", own, "--family", family or "model")
            assert hashlib.sha256(values).hexdigest() == digest, name


def broken(path: str, name: str) -> None:
    """It is refused with a sentence that names a file of it, and nothing is written."""
    done = run("import", path, path + ".run")
    said = done.stderr.decode()
    assert done.returncode in (1, 2) and said.startswith("sheaf: ") and path in said, (name, done)
    assert said.count("\n") == 1 and not os.path.exists(path + ".run/checkpoint-2"), (name, done)


def test_missing_and_cut_files() -> None:
    """If any file of a save is missing, or ends too early, the save is refused with a sentence"""
    for save in SAVES:
        with tap.folder() as at:
            path = os.path.join(at, "save")
            shutil.copytree(os.path.join(GOLDEN, save), path)
            for folder, _, files in list(os.walk(path)):
                for file in files:
                    name = os.path.join(folder, file)
                    if file == "latest_checkpointed_iteration.txt" or file == "distrib_optim.pt":
                        continue
                    with open(name, "rb") as f:
                        whole = f.read()
                    os.remove(name)
                    broken(path, name)
                    for n in {0, 1, len(whole) // 2, len(whole) - 1}:
                        with open(name, "wb") as f:
                            f.write(whole[:n])
                        broken(path, f"{name}: {n} bytes")
                    with open(name, "wb") as f:
                        f.write(whole)


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
