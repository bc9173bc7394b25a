#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small checkpoints with the real Paddle, and what its own loader gives back for each.

usage: make_paddle.py FOLDER

paddle-expected.jsonl has one line a checkpoint: path, format, the version of Paddle, and of each
tensor its dtype, its shape and the SHA-256 of its bytes, row-major. Names in another family than
"model" are <family>:<name>. The files of this folder were made by Paddle 3.3.1 (CPU) with NumPy
2.4.6 and Python 3.11. Two ranks (gloo) write the flex checkpoints.
"""
import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys

try:
    import numpy as np
    import paddle
    import paddle.distributed as dist
except ImportError:
    print("1..0 # SKIP paddle is not installed")
    sys.exit(77)

NAMES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64",
         "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
         "complex64": "C64", "complex128": "F64"}


def described(v):
    """Of a tensor or an array: dtype, shape, SHA-256 of the bytes."""
    name = str(v.dtype).replace("paddle.", "")
    a = np.ascontiguousarray(np.array(v)).reshape(np.shape(v))
    return [NAMES[name], list(a.shape) + ([2] if name == "complex128" else []),
            hashlib.sha256(a.tobytes()).hexdigest()]


def listed(value, name="", out=None):
    """The tensors and arrays of nested dictionaries and lists, by their dotted paths."""
    out = {} if out is None else out
    if isinstance(value, (paddle.Tensor, np.ndarray)):
        out[name or "tensor"] = described(value)
    elif isinstance(value, dict):
        for k, v in value.items():
            listed(v, f"{name}.{k}" if name else str(k), out)
    elif isinstance(value, (list, tuple)):
        for k, v in enumerate(value):
            listed(v, f"{name}.{k}" if name else str(k), out)
    return out


def numbered(shape, dtype, seed):
    a = (np.arange(int(np.prod(shape)), dtype="float32") * 0.37 + seed).reshape(shape)
    return paddle.to_tensor(a).astype(dtype)


def state():
    paddle.seed(7)
    model = paddle.nn.Sequential(paddle.nn.Linear(4, 6), paddle.nn.LayerNorm(6))
    out = dict(model.state_dict())
    for i, dtype in enumerate(n for n in NAMES if not n.startswith("complex")):
        out["type." + dtype] = numbered([3, 5], dtype, i)
    out["complex"] = paddle.to_tensor(np.array([1 + 2j, 3 - 1j], "complex64"))
    out["complex128"] = paddle.to_tensor(np.array([[1 + 2j], [3 - 1j]], "complex128"))
    out["scalar"] = paddle.to_tensor(2.5)
    out["empty"] = paddle.zeros([0, 3])
    out["turned"] = numbered([3, 4], "float32", 9).t()
    out["long"] = numbered([300, 70], "float32", 3)     # more than a frame of the pickle
    return out, model


def training():
    tensors, model = state()
    del tensors["long"]
    optimizer = paddle.optimizer.AdamW(
        learning_rate=paddle.optimizer.lr.StepDecay(0.1, 3), parameters=model.parameters(),
        multi_precision=True)
    model(paddle.ones([2, 4])).sum().backward()
    optimizer.step()
    return tensors, optimizer.state_dict()


def plain(folder, note):
    whole, _ = state()
    tensors, optimizer = training()
    path = os.path.join(folder, "paddle.pdparams")
    paddle.save(whole, path)
    note(path, "paddle.save", listed(paddle.load(path)))
    for protocol in (2, 3):
        path = os.path.join(folder, f"paddle{protocol}.pdparams")
        paddle.save(tensors, path, protocol=protocol)
        note(path, "paddle.save", listed(paddle.load(path)))
    path = os.path.join(folder, "paddle.pdopt")
    paddle.save(optimizer, path)
    note(path, "paddle.save", listed(paddle.load(path)))
    path = os.path.join(folder, "paddle_nested.pdparams")
    paddle.save({"model": tensors, "master_weights": {"w": numbered([2, 3], "float32", 1)},
                 "step": 3, "rate": np.float64(0.5), "list": [paddle.ones([1]), {"x": 1}],
                 "array": np.asfortranarray(np.arange(24, dtype="int32").reshape(2, 3, 4)),
                 ("key", 1): 2}, path)
    note(path, "paddle.save", {k: v for k, v in listed(paddle.load(path)).items()
                               if not k.startswith("(")})
    # What paddle.save does with an array of more than 1 GiB, done with small ones: its loader
    # joins parts of any size.
    whole = {"a": np.arange(35, dtype="float32").reshape(5, 7),
             "b": np.arange(12, dtype="uint16").reshape(2, 2, 3)}
    parts = {"c": np.ones(2, "float32"), "UnpackBigParamInfor@@": {}}
    for name, cuts in (("a", (0, 10, 20, 30, 35)), ("b", (0, 7, 12))):
        names = [f"{name}@@.{i}" for i in range(len(cuts) - 1)]
        parts["UnpackBigParamInfor@@"][name] = {"OriginShape": whole[name].shape, "slices": names}
        for i, part in enumerate(names):
            parts[part] = whole[name].flatten()[cuts[i]:cuts[i + 1]]
    path = os.path.join(folder, "paddle_parts.pdparams")
    with open(path, "wb") as f:
        pickle.dump(parts, f, protocol=3)
    note(path, "paddle.save", listed(paddle.load(path)))


def main(folder):
    os.makedirs(folder, exist_ok=True)
    lines = []

    def note(path, kind, tensors, **more):
        lines.append({"path": os.path.relpath(path, folder), "format": kind,
                      "paddle": paddle.__version__, "verify": 2, "tensors": tensors, **more})

    plain(folder, note)
    with open(os.path.join(folder, "paddle-expected.jsonl"), "w", encoding="utf-8") as f:
        for line in lines:
            f.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
