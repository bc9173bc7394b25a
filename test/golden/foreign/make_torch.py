#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small checkpoints with the real torch, and what its own loader gives back for each.

usage: make_torch.py FOLDER

expected.jsonl has one line a checkpoint: path, format, the version of torch, and of each tensor its
dtype, its shape and the SHA-256 of its bytes, row-major. The files of this folder were made by
torch 2.13.0 (CPU) with Python 3.11.
"""
import argparse
import collections
import hashlib
import io
import json
import os
import sys

try:
    import torch
except ImportError:
    print("1..0 # SKIP torch is not installed")
    sys.exit(77)

NAMES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
         torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
         torch.uint8: "U8", torch.bool: "BOOL", torch.complex64: "C64"}
for name, ours in (("uint16", "U16"), ("uint32", "U32"), ("uint64", "U64"),
                   ("float8_e4m3fn", "F8_E4M3"), ("float8_e5m2", "F8_E5M2"),
                   ("float8_e4m3fnuz", "F8_E4M3FNUZ"), ("float8_e5m2fnuz", "F8_E5M2FNUZ"),
                   ("float8_e8m0fnu", "F8_E8M0")):
    if hasattr(torch, name):
        NAMES[getattr(torch, name)] = ours
PAIRS = {torch.complex128: "F64", torch.complex32: "F16"}


class Scaler:                                   # a class that no reader knows
    def __init__(self):
        self.scale = torch.tensor([65536.0])
        self.steps = 3


def described(t):
    t = t.detach().resolve_conj().resolve_neg().contiguous()
    shape = list(t.shape)
    dtype = NAMES.get(t.dtype) or PAIRS[t.dtype]
    if t.dtype in PAIRS:
        shape.append(2)
    raw = t.reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""
    return [dtype, shape, hashlib.sha256(raw).hexdigest()]


def listed(value, name="", out=None):
    """The tensors of nested dictionaries and lists, by their dotted paths."""
    out = {} if out is None else out
    if isinstance(value, torch.Tensor):
        if value.device.type != "meta" and not value.is_quantized and not value.is_sparse:
            out[name or "tensor"] = described(value)
    elif isinstance(value, dict):
        for k, v in value.items():
            if isinstance(k, (str, int)):
                listed(v, f"{name}.{k}" if name else str(k), out)
    elif isinstance(value, (list, tuple)):
        for k, v in enumerate(value):
            listed(v, f"{name}.{k}" if name else str(k), out)
    elif isinstance(value, argparse.Namespace):
        listed(vars(value), name, out)
    return out


def views():
    whole = torch.arange(240, dtype=torch.float32).reshape(4, 5, 12)
    c = torch.complex(torch.arange(6.), torch.arange(6.) - 2).reshape(2, 3)
    wide = torch.arange(2 ** 10, dtype=torch.int16).reshape([2] * 10)
    return {
        "whole": whole, "part": whole[1:3], "inner": whole[:, 1:4, 2:7],
        "steps": whole[::2, :, ::3], "turned": whole.permute(2, 0, 1), "flat": whole.view(-1)[7:],
        "t": torch.arange(35, dtype=torch.bfloat16).reshape(5, 7).t(),
        "spread": torch.arange(3, dtype=torch.int32).reshape(3, 1).expand(3, 4),
        "one": torch.tensor(1.5).expand(2, 3, 4), "scalar": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.empty(0, 7), "hollow": torch.empty(3, 0, 2)[1:],
        "conj": c.conj(), "imag": c.clone().conj().imag, "real": c.clone().real,
        "conj_t": c.t().conj(),
        "conj128": c.to(torch.complex128).conj(), "neg128": c.to(torch.complex128).conj().imag,
        "wide": wide, "diagonal": torch.arange(36.).reshape(6, 6).diagonal(),
        "long": torch.arange(90000, dtype=torch.int16).reshape(300, 300).t()[3:260:2],
    }


def dtypes():
    out = {}
    for i, dtype in enumerate([*NAMES, *PAIRS]):
        raw = torch.arange(1, 97, dtype=torch.uint8) * (i + 1)
        if dtype == torch.bool:
            out[str(dtype)] = raw % 2 == 0
        else:
            out[str(dtype)] = raw.view(dtype)
    return out


def training():
    torch.manual_seed(7)
    model = torch.nn.Sequential(collections.OrderedDict(
        up=torch.nn.Linear(4, 6), norm=torch.nn.LayerNorm(6), down=torch.nn.Linear(6, 4)))
    model.head = torch.nn.Linear(4, 4, bias=False)
    model.head.weight = model.down.bias.__class__(model.up.weight[:4])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 12,
            "lr": 0.1, "name": "gpt \u00fc", "done": True, "none": None, "betas": (0.9, 0.95),
            "args": argparse.Namespace(layers=2, bias=torch.ones(3)), "size": torch.Size([2, 3]),
            "dtype": torch.bfloat16, "device": torch.device("cpu"), "many": list(range(40)),
            "scaler": Scaler(), "parameter": torch.nn.Parameter(torch.ones(2, 2)),
            "rng": torch.arange(16, dtype=torch.uint8), 5: torch.ones(1), ("a", 1): torch.ones(2),
            "meta": torch.empty(2, device="meta"), "big": 1 << 80, "bytes": b"abc",
            "sparse": torch.eye(2).to_sparse(), "list": [torch.ones(1), {"x": torch.zeros(2)}]}


STATES = {"exp_avg": "moment1_0", "exp_avg_sq": "moment2_0"}


def named(tensors):
    """The state of an optimizer that was given model.parameters(), by the names of the weights."""
    weights = [n for n in tensors if n.startswith("model.")]
    out = {}
    for name, t in tensors.items():
        if name.startswith("optimizer.state."):
            number, kind = name.split(".")[2:]
            name = f"optimizer:{weights[int(number)]}/{STATES.get(kind, kind)}"
        out[name] = t
    return out


def main(folder):
    os.makedirs(folder, exist_ok=True)
    sys.modules["user_code"] = sys.modules[__name__]    # the class is of a module no reader has
    Scaler.__module__ = "user_code"
    lines = []

    def save(path, value, **options):
        torch.save(value, os.path.join(folder, path), **options)
        back = torch.load(os.path.join(folder, path), weights_only=False)
        kind = "torch.save (legacy)" if options else "torch.save"
        tensors = listed(back)
        lines.append({"path": path, "format": kind, "torch": torch.__version__,
                      "verify": 2 if options or path == "no_crc.pt" else 0,
                      "tensors": named(tensors) if path in ("training.pt", "legacy.pt")
                      else tensors})

    save("views.pt", views())
    save("dtypes.pt", dtypes())
    save("training.pt", training())
    plain = training()                          # pickled whole, in the order of its storages
    save("legacy.pt", {k: plain[k] for k in ("model", "scaler", "optimizer", "step",
                                                 "rng")},
         _use_new_zipfile_serialization=False)
    save("legacy_views.pt", {k: v for k, v in views().items() if v.dtype != torch.complex64},
         _use_new_zipfile_serialization=False)
    save("bare.pt", torch.arange(6.).reshape(2, 3))
    if hasattr(torch.serialization, "set_crc32_options"):
        torch.serialization.set_crc32_options(False)
        save("no_crc.pt", {"w": torch.arange(100.)})
        torch.serialization.set_crc32_options(True)
    with open(os.path.join(folder, "expected.jsonl"), "w", encoding="utf-8") as f:
        for line in lines:
            f.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
