# SPDX-License-Identifier: Apache-2.0
"""Loads into trees whose memory is shared, and values that a load decodes."""
from __future__ import annotations

import collections
import sys
from fractions import Fraction
from typing import Any, Optional

import tap
import sheaf


class Fractions:
    """A codec for fractions, which may fail."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def encode(self, value: Any) -> Optional[tuple[str, Any]]:
        if isinstance(value, Fraction):
            return "fraction", [value.numerator, value.denominator]
        return None

    def decode(self, tag: str, value: Any) -> Any:
        if self.fails:
            raise KeyError("a mistake of the codec")
        return Fraction(*value)


@tap.needs("torch", "numpy")
def test_types_of_shared_memory() -> None:
    """Objects of different kinds in one memory are stored once, and come back as they were"""
    import numpy as np
    import torch
    a = np.arange(4.0)
    raw = bytes(range(256)) * 300
    with tap.folder() as at:
        sheaf.save(at, {"a": a, "b": torch.from_numpy(a), "c": a, "raw": raw,
                        "view": np.frombuffer(raw, np.uint8)})
        found = sheaf.load(at)
        assert [type(found[k]) for k in found] == [np.ndarray, torch.Tensor, np.ndarray, bytes,
                                                   np.ndarray]
        assert found["a"] is found["c"] and found["raw"] == raw
        assert found["b"].tolist() == [0, 1, 2, 3] and found["view"].tobytes() == raw
        assert type(sheaf.load(at, framework="np")["b"]) is np.ndarray


@tap.needs("numpy")
def test_one_target_for_two_values() -> None:
    """A tensor that is in a tree twice is filled if both values are the same"""
    import numpy as np
    with tap.folder() as at:
        sheaf.save(at, {"a": np.full(4, 1.0), "b": np.full(4, 2.0), "c": np.full(4, 1.0)})
        x, y = np.zeros(4), np.zeros(4)
        with tap.raises(sheaf.Mismatch, "['b']", "model/a", "different values"):
            sheaf.load(at, {"a": x, "b": x, "c": y})
        assert not x.any()
        sheaf.load(at, {"a": x, "b": y, "c": x})
        assert (x == 1).all() and (y == 2).all()


@tap.needs("numpy")
def test_values_are_decoded_before_any_byte() -> None:
    """What cannot be decoded is found before any byte is written, and is no damage"""
    import numpy as np
    with tap.folder() as at:
        sheaf.save(at, {"w": np.ones(2), "long": bytes(70000), "f": [bytes(70000), Fraction(1, 3)],
                        "g": Fraction(1, 2)}, unsupported=Fractions())
        mine: dict[str, Any] = {"w": np.zeros(2), "long": b"", "f": [b"", None], "g": None}
        with tap.raises(sheaf.Invalid, "give the codec"):
            sheaf.load(at, mine)
        with tap.raises(KeyError, "a mistake of the codec"):
            sheaf.load(at, mine, codec=Fractions(True))
        assert not mine["w"].any() and mine["g"] is None
        with tap.raises(KeyError, "a mistake of the codec"):
            sheaf.load(at, codec=Fractions(True))
        sheaf.load(at, mine, codec=Fractions())
        assert mine["w"].all() and mine["g"] == Fraction(1, 2) and mine["f"][1] == Fraction(1, 3)


@tap.needs("torch", "numpy")
def test_kinds_of_torch() -> None:
    """A torch.Size and a Counter are filled, and NumPy lacks a type without damage"""
    import torch
    with tap.folder() as at:
        sheaf.save(at, {"s": torch.Size([2, 3]), "n": collections.Counter("aab"),
                        "x": torch.ones(2)})
        mine = {"s": torch.Size([1]), "n": collections.Counter("ab"), "x": torch.zeros(2)}
        sheaf.load(at, mine)
        assert mine["s"] == torch.Size([2, 3]) and type(mine["s"]) is torch.Size
        assert mine["n"] == {"a": 2, "b": 1} and mine["x"].all()
        sheaf.save(at, {"c": torch.zeros(2, dtype=torch.complex32)})
        with tap.raises(TypeError, "complex32"):
            sheaf.load(at, framework="np")


@tap.needs("torch", "numpy")
def test_a_file_that_is_mapped_to_be_read() -> None:
    """A torch tensor of a file that is mapped to be read is refused, not written to"""
    import numpy as np
    import torch
    with tap.folder() as at:
        sheaf.save(at, {"x": torch.ones(4096)})
        np.zeros(4096, np.float32).tofile(at + "/file")
        x = torch.from_numpy(np.memmap(at + "/file", np.float32, "r"))
        with tap.raises(sheaf.Mismatch, "['x']", "read-only"):
            sheaf.load(at, {"x": x})
        x = torch.from_numpy(np.memmap(at + "/file", np.float32, "r+"))
        sheaf.load(at, {"x": x})
        assert x.all() and np.fromfile(at + "/file", np.float32).all()


@tap.needs("numpy")
def test_names_that_collide_in_a_reader() -> None:
    """sheaf.open has all tensors, also if a name looks like that of another family"""
    import numpy as np
    with tap.folder() as at:
        sheaf.save(at, {"model": {"other/x": np.full(2, 1)}, "other": {"x": np.full(2, 2)},
                        "x": np.full(2, 3)}, timeout=float("inf"))
        with sheaf.open(at) as f:
            found = {name: int(f[name][0]) for name in f}
        assert sorted(found.values()) == [1, 2, 3] and found["other/x"] == 1, found


@tap.needs("numpy")
def test_dtypes_of_another_byte_order() -> None:
    """A dtype of NumPy keeps its byte order"""
    import numpy as np
    with tap.folder() as at:
        kinds = [np.dtype(name) for name in (">f4", "<f4", ">i8", "bool", ">U3")]
        sheaf.save(at, kinds)
        assert [d.str for d in sheaf.load(at)] == [d.str for d in kinds]


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
