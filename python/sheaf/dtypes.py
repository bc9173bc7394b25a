# SPDX-License-Identifier: Apache-2.0
"""Types of tensor items: the names that safetensors has, and those of NumPy and torch.

A few types have no name of their own on disk. They are stored as another type, perhaps with one
more dimension, and the checkpoint's document says which (`special`):

    complex128, complex32   pairs of F64 or F16, in a last dimension of 2
    datetime64[ns] and so on, timedelta64[...]   I64
    float4_e2m1fn_x2 of torch   F4, twice as many items in the last dimension
"""
from __future__ import annotations

import importlib
import sys
from typing import Any

# Stored name: (NumPy or ml_dtypes, torch); "": it has none.
TABLE: dict[str, tuple[str, str]] = {
    "BOOL": ("bool", "bool"), "U8": ("uint8", "uint8"), "I8": ("int8", "int8"),
    "U16": ("uint16", "uint16"), "I16": ("int16", "int16"), "U32": ("uint32", "uint32"),
    "I32": ("int32", "int32"), "U64": ("uint64", "uint64"), "I64": ("int64", "int64"),
    "F16": ("float16", "float16"), "BF16": ("bfloat16", "bfloat16"),
    "F32": ("float32", "float32"), "F64": ("float64", "float64"),
    "C64": ("complex64", "complex64"), "F8_E4M3": ("float8_e4m3fn", "float8_e4m3fn"),
    "F8_E5M2": ("float8_e5m2", "float8_e5m2"), "F8_E8M0": ("float8_e8m0fnu", "float8_e8m0fnu"),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", "float8_e5m2fnuz"), "F4": ("", "float4_e2m1fn_x2")}
BYTES: dict[str, int] = {
    "BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8,
    "F16": 2, "BF16": 2, "F32": 4, "F64": 8, "C64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1}
FROM_NUMPY = {n: k for k, (n, _) in TABLE.items() if n}
FROM_TORCH = {t: k for k, (_, t) in TABLE.items() if t and k != "F4"}
PAIRS = {"complex128": "F64", "complex32": "F16"}
ML = ("bfloat16", "float8_")            # begin the names that ml_dtypes adds to NumPy
FRAMEWORKS = {"np": "numpy", "numpy": "numpy", "pt": "torch", "torch": "torch", "jax": "jax",
              "flax": "jax", "paddle": "paddle"}


def framework(name: str) -> str:
    """"numpy", "torch", "jax" or "paddle", from a name as safetensors takes it: "np" and so on."""
    if name not in FRAMEWORKS:
        raise ValueError("framework=%r: it must be 'np', 'pt', 'jax' or 'paddle'" % (name,))
    return FRAMEWORKS[name]


def module(name: str) -> Any:
    """NumPy, torch or ml_dtypes, imported when it is needed."""
    found = sys.modules.get(name)
    if found is None:
        try:
            found = importlib.import_module(name)
        except ImportError as e:
            raise ImportError("this needs %s, which is not installed" % name) from e
    return found


def loaded(name: str) -> Any:
    """The same, or None if nobody has imported it: then no object can be of it."""
    return sys.modules.get(name)


def numpy_dtype(name: str) -> Any:
    """The dtype of NumPy with that name, by ml_dtypes where NumPy has none itself."""
    if name.startswith(ML):
        return module("numpy").dtype(getattr(module("ml_dtypes"), name))
    return module("numpy").dtype(name)


def dtype_in(where: str, stored: str, what: str) -> Any:
    """The dtype of "numpy", "torch" or "paddle" for a stored type. `what` names the tensor. Those
    of JAX are those of NumPy."""
    names = TABLE.get(stored, ("", ""))
    name = names[1] if where in ("torch", "paddle") else names[0]
    if where in ("torch", "paddle"):
        found = getattr(module(where), name, None) if name else None
        if not isinstance(found, module(where).dtype) or \
                where == "paddle" and stored in ("U16", "U32", "U64"):
            raise TypeError("%s: %s has no type for %s" % (what, where, stored))
        return found
    module("numpy")
    if not name:
        raise TypeError("%s: NumPy has no type for %s" % (what, stored))
    try:
        return numpy_dtype(name)
    except ImportError:
        raise TypeError("%s: NumPy has no type for %s; install ml_dtypes, or load with "
                        "framework='pt'" % (what, stored)) from None


