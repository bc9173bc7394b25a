#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small files with the real package gguf of llama.cpp, and what its reader gives back.

usage: make_gguf.py FOLDER

gguf-expected.jsonl has one line a file, as make_torch.py writes them; "refused" has the tensors
that are listed and not read, with what the refusal says. The files of this folder were made by gguf
0.19.0, NumPy 2.4.6 and Python 3.11.
"""
import hashlib
import json
import os
import sys
from importlib.metadata import version

try:
    import gguf
    import numpy as np
except ImportError:
    print("1..0 # SKIP gguf is not installed")
    sys.exit(77)

Q = gguf.GGMLQuantizationType
NAMES = {Q.F32: "F32", Q.F16: "F16", Q.BF16: "BF16", Q.F64: "F64", Q.I8: "I8", Q.I16: "I16",
         Q.I32: "I32", Q.I64: "I64"}


def write(path, quantised):
    """A file of every type that is read, or with types that are not."""
    rng = np.random.default_rng(6)
    w = gguf.GGUFWriter(path, "llama")
    w.add_name("small")
    w.add_block_count(2)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_token_list(["<s>", "a", "b\u00e9"])
    w.add_token_scores([0.0, -1.0, -2.5])
    w.add_bool("general.odd", True)
    w.add_int64("general.negative", -(2**40))
    weight = rng.standard_normal((6, 256)).astype(np.float32)
    w.add_tensor("blk.0.attn_q.weight", weight)
    w.add_tensor("output_norm.weight", rng.standard_normal(5).astype(np.float32))
    if quantised:
        for kind in (Q.Q8_0, Q.Q4_0, Q.Q5_1, Q.TQ1_0):
            w.add_tensor(f"blk.1.{kind.name}.weight", gguf.quants.quantize(weight, kind),
                         raw_dtype=kind)
    else:
        w.add_tensor("half", weight[:3].astype(np.float16))
        w.add_tensor("bf16", gguf.quants.quantize(weight[:2], Q.BF16), raw_dtype=Q.BF16)
        w.add_tensor("cube", rng.standard_normal((2, 3, 4)))
        for kind in (np.int8, np.int16, np.int32, np.int64):
            w.add_tensor(np.dtype(kind).name, rng.integers(-99, 99, (3, 7)).astype(kind))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main(folder):
    os.chdir(folder)
    lines = []
    for name, quantised in (("small.gguf", False), ("quantised.gguf", True)):
        write(name, quantised)
        tensors, refused = {}, {}
        for t in gguf.GGUFReader(name).tensors:
            shape = [int(n) for n in reversed(t.shape)]
            if t.tensor_type in NAMES:
                tensors[t.name] = [NAMES[t.tensor_type], shape,
                                   hashlib.sha256(t.data.tobytes()).hexdigest()]
            else:
                refused[t.name] = ["U8", [int(n) for n in t.data.shape],
                                   f"{t.name} is quantised ({t.tensor_type.name})"]
        lines.append({"path": name, "format": "gguf", "gguf": version("gguf"), "verify": 2,
                      "tensors": tensors, "refused": refused})
    with open("gguf-expected.jsonl", "w", encoding="utf-8") as f:
        f.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main(sys.argv[1])
