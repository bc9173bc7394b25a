# SPDX-License-Identifier: Apache-2.0
"""Small state as one typed JSON document, tensors included: schedulers, loaders, generators.

The nodes are those of sheaf.tree. Tensors are in the document itself, as base64, because they are
small: large ones belong in a module or an optimizer that is tracked. Nothing is pickled.
"""
from __future__ import annotations

import base64
import math
from typing import Any

import torch

from .. import dtypes, tree
from ..memory import Memory, of

BYTES_MAX = 32 << 20                    # attached files have at most 64 MiB
FORMAT = "sheaf.document"


class Encoder(tree.Encoder):
    """Makes a document that contains its tensors."""

    format = FORMAT
    total = 0

    def tensor(self, found: Memory, place: tuple[Any, ...]) -> Any:
        if found.strides is not None:
            dense = of(found.owner.contiguous() if found.framework == "torch"
                       else found.owner.copy())
            assert dense is not None
            found = dense
        bits = 8 * dtypes.BYTES.get(found.dtype, 1) if found.dtype != "F4" else 4
        n = math.prod(found.shape) * bits // 8
        self.total += n
        if self.total > BYTES_MAX:
            raise ValueError("%s: its tensors have more than %d MiB together: too much for a "
                             "document. Track the module that has them, or give a name in a "
                             "module's persistent buffers" % (tree.shown(place), BYTES_MAX >> 20))
        import ctypes
        data = ctypes.string_at(found.address, n) if n else b""
        return {"tensor": base64.b64encode(data).decode(), "dtype": found.dtype,
                "shape": list(found.shape), "as": found.framework, "special": found.special}

    def node(self, x: Any, place: tuple[Any, ...]) -> Any:
        if isinstance(x, torch.Tensor):
            x = x.detach()
            if hasattr(x, "full_tensor"):
                raise TypeError("%s: a DTensor cannot stand in a document: track the module or "
                                "the optimizer that has it" % tree.shown(place))
            if x.device.type != "cpu":
                x = x.cpu()
        return super().node(x, place)


def tensor_of(node: dict[str, Any]) -> Any:
    """The tensor of a node, in memory of its own."""
    data = bytearray(base64.b64decode(node["tensor"], validate=True))
    stored = tuple(int(n) for n in node["shape"])
    flat = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    kind = dtypes.dtype_in("torch", node["dtype"], "a tensor of a document")
    if node["dtype"] == "F4":
        stored = stored[:-1] + (stored[-1] // 2,)
    made: Any = flat.view(kind).reshape(stored)
    if node["as"] == "numpy":
        name = dtypes.TABLE[node["dtype"]][0]
        if name:
            dtype = dtypes.numpy_dtype(name)    # first: it says so where there is no NumPy
            made = flat.numpy().view(dtype).reshape(stored)
    from ..memory import restored
    return restored(made, node["special"])


def encoded(value: Any, what: str) -> Encoder:
    """The nodes of a value. TypeError or ValueError: something in it cannot be stored."""
    try:
        return Encoder(value)
    except (TypeError, ValueError) as e:
        raise type(e)("%s: %s" % (what, e)) from None


def dumps(value: Any, what: str) -> bytes:
    """The document of a value. Raises what encoded() raises."""
    return encoded(value, what).document()


def text(value: Any, what: str) -> bytes:
    """How a value is written in a document. Raises what encoded() raises."""
    return tree.written(encoded(value, what).tree).encode()


def loads(data: bytes, what: str) -> Any:
    """The value of a document. Raises sheaf.Corrupt or sheaf.UnknownFormat."""
    return tree.Decoder(tensor_of, what=what).value(tree.parse(data, what, FORMAT))
