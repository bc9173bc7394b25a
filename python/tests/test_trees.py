#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""sheaf.save and sheaf.load of whole trees: what comes back is what was saved. Prints TAP."""
from __future__ import annotations

import array
import collections
import ctypes
import glob
import json
import logging
import math
import os
import struct
import sys
from typing import Any, Optional

import tap
import sheaf
from sheaf import memory, tree as trees
from sheaf.binding import Library

SCALARS: list[Any] = [
    None, True, False, 0, -1, 2**63 - 1, -2**63, 2**63, -3**200, 0.1, -0.0, 5e-324, 1.5,
    math.inf, -math.inf, "", "text", "\u00e9\u4e2d\U0001f600", "\ud800", "\x00\n", b"", b"\x00\xff",
    bytearray(b"ab"), 1 + 2j, complex(-0.0, math.inf), (), (1,), [], [1, [2, (3, "x")]], {}, set(),
    {1, 2}, frozenset({"a", "b"}), {1: "a", "1": "b", None: 2, (1, 2): 3, 1.5: 4, b"k": 5},
    {"tensor": "a", "dict": {"items": [1]}, "float": "nan"}, [{"tensor": {"codec": 1}}],
    collections.OrderedDict([("b", 1), ("a", collections.OrderedDict())])]


def same(a: Any, b: Any) -> bool:
    """Whether two objects are equal in value and type, also in the bits of floats."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(map(repr, a)) == list(map(repr, b)) and \
            all(same(x, y) for x, y in zip(a.values(), b.values()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    return bool(a == b)


def test_scalars_and_containers() -> None:
    """Numbers, texts, bytes and containers come back with their types and bits"""
    with tap.folder() as at:
        nan = struct.unpack("<d", struct.pack("<Q", 0xfff8000000000123))[0]
        saved = {"all": SCALARS, "nan": [math.nan, nan]}
        assert sheaf.save(at, saved) == 0
        found = sheaf.load(at)
        for a, b in zip(SCALARS, found["all"]):
            assert same(a, b), (a, b)
        assert same(found["nan"], saved["nan"]), found["nan"]
        for x in SCALARS:                   # also alone, as the root
            sheaf.save(at, x)
            assert same(sheaf.load(at), x), x


def test_long_bytes_need_no_numpy() -> None:
    """Bytes longer than 64 KiB are stored as tensors, and no module is imported for them"""
    import subprocess
    code = """if True:
        import sheaf, sys
        x = bytes(range(256)) * 1000
        sheaf.save(sys.argv[1], {"a": x, "b": bytearray(x)})
        f = sheaf.load(sys.argv[1])
        assert f == {"a": x, "b": x} and type(f["b"]) is bytearray and type(f["a"]) is bytes
        g = {"a": b"", "b": None}
        assert sheaf.load(sys.argv[1], g) is g and g == f
        assert "numpy" not in sys.modules and "pickle" not in sys.modules
    """
    with tap.folder() as at:
        subprocess.run([sys.executable, "-c", code, at], check=True)


def test_floats_of_a_document_are_json() -> None:
    """The document is strict JSON, and any reader finds the values in it"""
    with tap.folder() as at:
        sheaf.save(at, {"lr": 0.1, "nan": math.nan})
        def refuse(name: str) -> None:
            raise AssertionError(name)
        with open(os.path.join(at, "checkpoint-0", "tree.json"), encoding="utf-8") as f:
            made = json.load(f, parse_constant=refuse)
        assert made == {"format": "sheaf.tree", "version": 1,
                        "tree": {"dict": {"lr": 0.1, "nan": {"float": "nan"}}}}, made


@tap.needs("numpy")
def test_numpy_objects() -> None:
    """NumPy arrays, scalars, dtypes and dates come back with type, shape and bits"""
    import numpy as np
    rng = np.random.default_rng(7)
    kinds = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16",
             "M8[ns]", "m8[D]"]
    arrays: list[Any] = []
    for k in kinds:
        for shape in ((), (0,), (3,), (2, 0, 4), (3, 4), (1, 2, 1, 3)):
            bits = rng.integers(0, 2 if k == "?" else 256, math.prod(shape) *
                                np.dtype(k).itemsize, dtype=np.uint8)
            arrays.append(np.frombuffer(bits.tobytes(), dtype=k).reshape(shape))
    scalars = [np.float32(0.1), np.int8(-3), np.bool_(True), np.complex128(1 - 2j), np.str_("x"),
               np.datetime64("2026-01-31"), np.float64(math.nan)]
    types = [np.dtype("f4"), np.dtype("M8[s]"), np.float32, np.uint16, np.complex128]
    with tap.folder() as at:
        sheaf.save(at, [arrays, scalars, types])
        found = sheaf.load(at)
    assert found[2] == types, found[2]
    for a, b in zip(arrays + scalars, found[0] + found[1]):
        assert type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape, (a, b)
        assert a.tobytes() == b.tobytes(), (a, b)


@tap.needs("numpy", "ml_dtypes")
def test_types_that_numpy_lacks() -> None:
    """bfloat16 and fp8 of ml_dtypes come back, as arrays and as scalars"""
    import ml_dtypes
    import numpy as np
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz",
                 "float8_e5m2fnuz"):
        x = np.arange(12, dtype=np.uint8).view(getattr(ml_dtypes, name))
        with tap.folder() as at:
            sheaf.save(at, [x, x[1], x.dtype])
            y = sheaf.load(at)
        assert y[0].dtype == x.dtype and y[0].tobytes() == x.tobytes()
        assert type(y[1]) is type(x[1]) and y[1].tobytes() == x[1].tobytes() and y[2] == x.dtype


def torch_types() -> list[Any]:
    import torch
    names = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
             "float16", "bfloat16", "float32", "float64", "complex64", "complex128", "complex32",
             "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz",
             "float8_e5m2fnuz"]
    return [getattr(torch, n) for n in names if hasattr(torch, n)]


def bits(t: Any) -> Any:
    """The bytes of a tensor in row-major order."""
    import torch
    dense = t.detach().clone(memory_format=torch.contiguous_format)
    return bytes(dense.reshape(-1).view(torch.uint8).numpy()) if dense.numel() else b""


def drawn(dtype: Any, shape: tuple[int, ...], seed: int) -> Any:
    import torch
    size = torch.empty(0, dtype=dtype).element_size()
    g = torch.Generator().manual_seed(seed)
    most = 2 if dtype == torch.bool else 256
    raw = torch.randint(0, most, (math.prod(shape) * size,), dtype=torch.uint8, generator=g)
    return raw.view(dtype).reshape(shape)


@tap.needs("torch", "numpy")
def test_torch_tensors() -> None:
    """Torch tensors of every type, 0-dim, empty, transposed and cut, come back bit for bit"""
    import torch
    made: dict[str, Any] = {}
    for i, dtype in enumerate(torch_types()):
        for shape in ((), (0, 3), (5,), (4, 6)):
            made["%s%s" % (dtype, shape)] = drawn(dtype, shape, i)
        whole = drawn(dtype, (4, 6, 2), i + 100)
        made["%s permuted" % dtype] = whole.permute(2, 0, 1)
        made["%s cut" % dtype] = whole[1:, ::2, 1]
    made["channels_last"] = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    made["parameter"] = torch.nn.Parameter(torch.randn(3))
    made["types"] = [torch.bfloat16, torch.Size([2, 3]), torch.device("cpu")]
    with tap.folder() as at:
        sheaf.save(at, made)
        found = sheaf.load(at)
    assert found.pop("types") == made.pop("types")
    for name, t in made.items():
        f = found[name]
        assert f.dtype == t.dtype and f.shape == t.shape and bits(f) == bits(t), name


@tap.needs("torch")
def test_packed_four_bits() -> None:
    """float4_e2m1fn_x2 of torch is stored as F4, two items for each byte"""
    import torch
    if not hasattr(torch, "float4_e2m1fn_x2"):
        raise tap.Skip("no float4_e2m1fn_x2 in this torch")
    raw = torch.arange(24, dtype=torch.uint8).reshape(3, 8)
    with tap.folder() as at:
        sheaf.save(at, {"x": raw.view(torch.float4_e2m1fn_x2)})
        with sheaf.open(at, "pt") as f:
            assert f["x"].dtype == "F4" and f["x"].tensor.shape == (3, 16), f["x"]
        found = sheaf.load(at)["x"]
    assert found.dtype == torch.float4_e2m1fn_x2 and torch.equal(found.view(torch.uint8), raw)


def addresses(tree: Any, at: str) -> dict[str, int]:
    """Where the library is told that each tensor is, when a tree is saved."""
    seen: dict[str, int] = {}
    call = Library.call

    def watched(self: Library, name: str, *args: Any) -> int:
        if name == "sheaf_state_add":
            seen[args[1]._obj.name.decode()] = args[1]._obj.data or 0
        return call(self, name, *args)

    Library.call = watched                  # type: ignore[method-assign]
    try:
        sheaf.save(at, tree)
    finally:
        Library.call = call                 # type: ignore[method-assign]
    return seen


@tap.needs("torch", "numpy")
def test_nothing_is_copied() -> None:
    """The library reads dense and strided tensors where they are, and fills them there"""
    import numpy as np
    import torch
    t, a, b = torch.randn(8, 8), np.arange(10.), array.array("d", [1, 2, 3])
    tree = {"t": t, "cut": t[2:, 1::2], "a": a, "back": a[3:], "b": b, "p": torch.nn.Parameter(t)}
    with tap.folder() as at:
        seen = addresses(tree, at)
        assert seen == {"t": t.data_ptr(), "cut": t.data_ptr() + (16 + 1) * 4,
                        "a": a.ctypes.data, "back": a.ctypes.data + 24,
                        "b": b.buffer_info()[0], "p": t.data_ptr()}, seen
        kept, wanted = t.clone(), t.data_ptr()
        t.zero_()
        assert sheaf.load(at, tree) is tree and tree["t"] is t
        assert t.data_ptr() == wanted and torch.equal(t, kept)


@tap.needs("numpy")
def test_what_has_dlpack_or_a_buffer() -> None:
    """Objects with __dlpack__, array.array and memoryview are saved as tensors"""
    import numpy as np

    class Foreign:
        def __init__(self, a: Any) -> None:
            self.a = a

        def __dlpack__(self, **more: Any) -> Any:
            return self.a.__dlpack__()

        def __dlpack_device__(self) -> Any:
            return self.a.__dlpack_device__()

    a = np.arange(12, dtype=np.int16).reshape(3, 4)
    buffers = [array.array("f", [1, 2]), memoryview(bytearray(b"abc")), memoryview(b"ro"),
               (ctypes.c_uint32 * 3)(1, 2, 3)]
    with tap.folder() as at:
        sheaf.save(at, {"x": Foreign(a), "y": Foreign(a.T), "c": Foreign(np.array([1j])),
                        "buffers": buffers})
        found = sheaf.load(at)
    assert np.array_equal(found["x"], a) and np.array_equal(found["y"], a.T)
    assert found["x"].dtype == np.int16 and found["c"][0] == 1j
    for x, y in zip(buffers, found["buffers"]):
        assert bytes(memoryview(x)) == y.tobytes(), (x, y)  # type: ignore[arg-type]
    assert found["buffers"][0].dtype == np.float32 and found["buffers"][3].dtype == np.uint32


@tap.needs("torch", "numpy")
def test_tied_weights_are_stored_once() -> None:
    """Two names of one memory are one tensor on disk, and one object after the load"""
    import torch
    w = torch.randn(100, 100)
    with tap.folder() as at:
        sheaf.save(at, {"embed": w, "head": w, "part": w[:50]})
        size = sum(os.path.getsize(f) for f in
                   glob.glob(os.path.join(at, "checkpoint-0", "*.safetensors")))
        assert 60000 < size < 70000, size    # and not 100,000
        found = sheaf.load(at)
        assert found["embed"] is found["head"] and torch.equal(found["part"], w[:50])
        a, b = torch.zeros(100, 100), torch.zeros(100, 100)
        sheaf.load(at, {"embed": a, "head": b, "part": torch.zeros(50, 100)})
        assert torch.equal(a, w) and torch.equal(b, w)
        with sheaf.open(at, "pt") as f:
            assert torch.equal(f["head"][3:5], w[3:5])


@tap.needs("torch", "numpy")
def test_what_cannot_be_stored_is_refused() -> None:
    """Each object that cannot be stored is refused with a sentence, and nothing is saved"""
    import numpy as np
    import torch
    t = torch.arange(6.)

    class Own(torch.Tensor):
        pass

    cases: list[tuple[Any, type[Exception], tuple[str, ...]]] = [
        ({"a": t.expand(3, 6)}, ValueError, ("['a']", "expanded", ".contiguous()")),
        ({"a": np.broadcast_to(np.float32(1), (5,))}, ValueError, ("expanded", ".copy()")),
        ({"a": [np.arange(4)[::-1]]}, ValueError, ("['a'][0]", "negative stride")),
        (np.arange(4).astype(">i4"), ValueError, ("the tree", "byte order")),
        (np.array(["x"]), ValueError, ("type",)),
        (np.array([None]), ValueError, ("type object",)),
        (np.zeros(2, dtype="i2,i4")["f1"], ValueError, ("no whole items",)),
        (np.ma.zeros(2), ValueError, ("MaskedArray",)),
        (np.zeros((1,) * 9), ValueError, ("9 dimensions",)),
        (torch.zeros((1,) * 8, dtype=torch.complex128), ValueError, ("9 dimensions",)),
        (t.to_sparse(), ValueError, ("layout", ".to_dense()")),
        (torch.empty(2, device="meta"), ValueError, ("device meta",)),
        (torch.tensor([1j]).conj(), ValueError, ("resolve_conj",)),
        (t.as_subclass(Own), ValueError, ("Own",)),
        ({"f": lambda: 0}, TypeError, ("['f']", "function", "unsupported='drop'")),
        ([object()], TypeError, ("[0]", "object")),
        ({object(): 1}, TypeError, ("object",)),
        (torch.as_strided(t, (3, 3), (1, 1)), ValueError, ("share memory", "(1, 1)"))]
    loop: list[Any] = []
    loop.append({"again": loop})
    cases.append((loop, ValueError, ("[0]['again']", "inside itself")))
    with tap.folder() as at:
        for tree, kind, words in cases:
            with tap.raises(kind, *words):
                sheaf.save(os.path.join(at, "run"), tree)
        assert not os.listdir(at) or sheaf.Run(os.path.join(at, "run")).steps() == []
        with tap.raises(ValueError, "unsupported"):
            sheaf.save(at, 1, unsupported="ignore")


@tap.needs("torch", "numpy")
def test_unsupported_objects_are_dropped() -> None:
    """unsupported="drop" leaves objects out, keeps places in lists, and names them in the log"""
    import torch
    lines: list[str] = []

    class Take(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    taken = Take()
    logging.getLogger("sheaf").addHandler(taken)
    try:
        with tap.folder() as at:
            sheaf.save(at, {"f": print, "l": [1, object(), 3], "s": {1, print},
                            "t": torch.zeros(3).expand(2, 3)}, unsupported="drop")
            assert sheaf.load(at) == {"l": [1, None, 3], "s": {1}}, sheaf.load(at)
    finally:
        logging.getLogger("sheaf").removeHandler(taken)
    dropped = [x for x in lines if "left out" in x]
    assert len(dropped) == 4 and any("['l'][1]" in x for x in dropped), lines


class Fractions:
    """A codec for fractions, with a tensor inside for the test."""

    def encode(self, value: Any) -> Optional[tuple[str, Any]]:
        from fractions import Fraction
        if not isinstance(value, Fraction):
            return None
        return "fraction", (value.numerator, memoryview(bytearray([value.denominator])))

    def decode(self, tag: str, value: Any) -> Any:
        from fractions import Fraction
        assert tag == "fraction"
        return Fraction(value[0], int(value[1][0]))


@tap.needs("numpy")
def test_a_codec_stores_other_objects() -> None:
    """A codec turns objects into trees and back; without it a load says what is missing"""
    from fractions import Fraction
    tree = {"f": Fraction(1, 3), "n": [Fraction(5, 7)]}
    with tap.folder() as at:
        sheaf.save(at, tree, unsupported=Fractions())
        assert sheaf.load(at, codec=Fractions()) == tree
        mine = {"f": 0, "n": [0]}
        assert sheaf.load(at, mine, codec=Fractions()) == tree
        with tap.raises(sheaf.Invalid, "'fraction'", "codec"):
            sheaf.load(at)
        with tap.raises(TypeError, "['x']", "function"):
            sheaf.save(at, {"x": print}, unsupported=Fractions())


def test_nothing_is_pickled() -> None:
    """No module of the package names pickle, marshal or eval, and objects are never called"""
    import re
    paths = glob.glob(os.path.join(os.path.dirname(sheaf.__file__), "**", "*.py"), recursive=True)
    assert any(os.path.basename(p) == "checkpointer.py" for p in paths), paths
    for path in paths:
        with open(path, encoding="utf-8") as f:
            text = re.sub(r'"""(.|\n)*?"""|#.*', "", f.read())
        found = re.search(r"pickle|marshal|\beval\(|\bexec\(|__reduce_ex__|print\(", text)
        assert not found, (path, found)

    class Evil:
        def __reduce__(self) -> Any:
            raise AssertionError("was reduced")

    with tap.folder() as at, tap.raises(TypeError, "Evil"):
        sheaf.save(at, [Evil()])


def test_documents_that_mean_no_good() -> None:
    """A document that is damaged, foreign, newer or hostile is an error, and never more"""
    decoder = trees.Decoder(lambda node: b"")
    for data in (b"", b"[]", b"{}", b'{"format": "sheaf.tree"}', b"\xff", b"[" * 100000):
        with tap.raises(sheaf.Corrupt, "tree.json"):
            trees.parse(data)
    for change in ({"format": "other"}, {"version": 2}):
        with tap.raises(sheaf.UnknownFormat, "newer"):
            trees.parse(json.dumps(dict({"format": "sheaf.tree", "version": 1, "tree": 0},
                                        **change)).encode())
    with tap.raises(sheaf.UnknownFormat, "'later'"):
        decoder.value({"later": 1})
    bad: list[Any] = [{}, {"int": 5}, {"int": "x"}, {"items": [1]}, {"bytes": "*"},
                      {"dict": 1}, {"complex": [1]}, {"float": "0x00"}, {"set": [{"dict": {}}]},
                      {"dict": {"a": 1}, "set": []}, {"items": [[{"dict": {}}, 1]]}]
    if tap.there("numpy"):
        bad += [{"numpy": ["f4", "00"]}, {"numpy": ["O", "00"]}, {"numpy.dtype": "no"}]
    if tap.there("torch"):
        bad += [{"torch.dtype": "load"}, {"torch.device": "x y"}]
    for node in bad:
        with tap.raises(sheaf.Corrupt, "a node is wrong"):
            decoder.value(node)


def test_names_of_tensors() -> None:
    """Names are the keys joined by dots; families are those of a training state; all differ"""
    def named(tree: Any) -> list[tuple[str, str]]:
        return [(leaf.family, leaf.name) for leaf in trees.Encoder(tree).leaves]
    t = [array.array("f", [i]) for i in range(9)]
    assert named({"a.b": t[0], "a": {"b": t[1]}, "c": [t[2], (t[3],)]}) == [
        ("model", "a.b"), ("model", "a.b~2"), ("model", "c.0"), ("model", "c.1.0")]
    assert named({"model": {"w": t[0]}, "optimizer": {0: {"m": t[1]}}, "x": t[2],
                  "ranks": {"y": t[3]}, "Bad": {"z": t[4]}}) == [
        ("model", "w"), ("optimizer", "0.m"), ("other", "x"), ("other", "ranks.y"),
        ("other", "Bad.z")]
    assert named(t[0]) == [("model", "tensor")]
    assert named({"__metadata__": t[0], "": t[1], "a\nb\ud800": t[2], "x" * 2000: t[3]}) == [
        ("model", "tensor"), ("model", "tensor~2"), ("model", "a_b_"), ("model", "x" * 1000)]


def test_memory_of_many_shapes() -> None:
    """Strides of memory that is dense are left out, and sizes of 1 may have any stride"""
    assert memory.laid_out((2, 3), (3, 1), "x") is None
    assert memory.laid_out((2, 1, 3), (3, -7, 1), "x") is None
    assert memory.laid_out((2, 3), (1, 2), "x") == (1, 2)
    assert memory.laid_out((0, 3), (-1, 0), "x") is None
    assert memory.laid_out((1, 3), (0, 2), "x") == (0, 2)
    assert memory.laid_out((2, 3), (7, 2), "x") == (7, 2)
    for strides in ((0, 1), (-3, 1), (2, 1), (1, 1), (4, 2)):
        with tap.raises(memory.Unfit):
            memory.laid_out((2, 3), strides, "x")


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
