# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of Megatron-Core in test/golden/foreign, and the command, for tests of both."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

NEEDS = ("megatron", "torch")
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "test", "golden",
                      "foreign")
# The config.json of the model in these checkpoints.
LLAMA = {"hidden_size": 8, "intermediate_size": 6, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 22}


def run(*args: str) -> subprocess.CompletedProcess[bytes]:
    """Runs the command, which is the first argument of the test program."""
    return subprocess.run([sys.argv[1], *args], capture_output=True, timeout=120, check=False)


def sheaf(*args: str) -> bytes:
    """What the command prints. It must succeed."""
    done = run(*args)
    assert done.returncode == 0, done
    return done.stdout


def expected(name: str) -> dict[str, Any]:
    """The type, shape and digest of each tensor, as Megatron-Core loaded it from its checkpoint."""
    with open(os.path.join(GOLDEN, "megatron-expected.jsonl"), encoding="utf-8") as f:
        found: list[dict[str, Any]] = [line for line in map(json.loads, f) if line["path"] == name]
    tensors: dict[str, Any] = found[0]["tensors"]
    return tensors
