# SPDX-License-Identifier: Apache-2.0
"""sheaf.open: the tensors of a checkpoint by name, read when they are asked for."""
from __future__ import annotations

import builtins
import functools
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Optional, Union

from . import dtypes, memory, parts, place, tree
from .loading import document
from .maps import Map, mapped
from .run import Checkpoint, Path, Tensor


def open(path: Path, framework: str = "np", device: str = "cpu", *,
         map: Union[Path, Map, None] = None, timeout: Optional[float] = None,
         **opts: Any) -> Reader:
    """Opens a checkpoint to read tensors, or parts of them, by name. Nothing is read yet.

    path       as for sheaf.load
    framework  "np" or "numpy", "pt" or "torch", "jax", "paddle": the kind of tensors to return
    device     with torch: the device that they are moved to, such as "cuda:0"
    map        shows the tensors under the names and in the shapes of another program: a sheaf.Map,
               the path of a map, or the name of one that comes with sheaf; see doc/mapping.md.
               The numbers that it needs come from config.json of the checkpoint
    timeout    how long the run waits, in seconds; None: 600
    opts       other options of struct sheaf_opts

        with sheaf.open("runs/gpt") as f:
            rows = f["model.embed_tokens.weight"][0:4]
        with sheaf.open("qwen2-paddle", map=sheaf.Map("qwen2-hf-paddle", to="hf")) as f:
            q = f["model.layers.0.self_attn.q_proj.weight"][...]

    Only the blocks of 1 MiB that are needed are read, and each is compared with its checksum. The
    result can be used in place of that of safetensors.safe_open.

    sheaf.NotFound: the path does not exist.
    sheaf.UnknownFormat: the path is not a checkpoint that Sheaf can read.
    sheaf.Mismatch: the map does not fit the checkpoint.
    sheaf.Invalid: the map is not right, or does not fit config.json.
    """
    return Reader(path, framework, device, map=map, timeout=timeout, **opts)


def shown(path: Path, how: Union[Path, Map, None], **opts: Any) -> tuple[Checkpoint, int]:
    """Opens a checkpoint, by a map if one is given. Also returns its number."""
    found = place.to_load(path, **opts)
    return (found if how is None else mapped(found, how)), found.number


class Reader(Mapping[str, "Slice"]):
    """The tensors of an open checkpoint, by name. Threads may share it; reads are serialized.

    A tensor of the family "model" has its own name; others are called FAMILY/NAME. If that name is
    already in use, "~2" is appended, or "~3" and so on.

    step  the number of the checkpoint; -1: another program wrote it
    """

    def __init__(self, path: Path, framework: str = "np", device: str = "cpu",
                 map: Union[Path, Map, None] = None, timeout: Optional[float] = None,
                 **opts: Any) -> None:
        self.framework = dtypes.framework(framework)
        self.device = str(device)
        if self.framework != "torch" and self.device != "cpu":
            raise ValueError("device=%r: only tensors of torch are moved to a device" % device)
        dtypes.module(self.framework)
        self.again = functools.partial(shown, path, map, timeout=timeout, **opts)
        (self.checkpoint, self.step), self.pid = self.again(), os.getpid()
        self.locks = {self.pid: threading.Lock()}
        self.tensors: dict[str, Tensor] = {}
        for t in self.checkpoint.tensors():
            self.tensors[self.name_of(t)] = t
        node = document(self.checkpoint)
        self.special = {(n.get("family", "model"), n["tensor"]): n["special"]
                        for n in tree.tensors_of(node) if "special" in n}

    def name_of(self, t: Tensor) -> str:
        """The name of a tensor among those that are there."""
        name = t.name if t.family == "model" else t.family + "/" + t.name
        found, n = name, 1
        while found in self.tensors:
            n += 1
            found = "%s~%d" % (name, n)
        return found

    def keys(self) -> list[str]:                    # type: ignore[override]
        """The names of all tensors."""
        return list(self.tensors)

    def offset_keys(self) -> list[str]:
        """The names of all tensors; for safetensors."""
        return self.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __getitem__(self, name: str) -> Slice:
        """The tensor of that name, of which nothing is read yet. KeyError: there is none."""
        return Slice(self, name, self.tensors[name])

    def get_slice(self, name: str) -> Slice:
        """The same; for safetensors."""
        return self[name]

    def get_tensor(self, name: str) -> Any:
        """A whole tensor, as an array or tensor of the framework."""
        return self[name][...]

    def metadata(self) -> dict[str, str]:
        """The notes of the checkpoint, and "format": "pt", as safetensors' header has it."""
        return {"format": "pt", **self.checkpoint.notes()}

    def files(self) -> dict[str, int]:
        """The attached files, and their sizes in bytes."""
        return self.checkpoint.files()

    def file(self, name: str) -> bytes:
        """The contents of an attached file."""
        with self.lock:
            return self.here(name).file(name)

    @property
    def lock(self) -> threading.Lock:
        """The lock of this process: a thread may have held another one as it was forked."""
        return self.locks.setdefault(os.getpid(), threading.Lock())

    def here(self, what: str) -> Checkpoint:
        """The checkpoint, opened again in a process that was forked, such as the workers of a
        data loader: the same step, even if there is a newer one. The caller has the lock."""
        if not self.checkpoint.pointer:
            raise ValueError("%s: the checkpoint is closed" % what)
        if self.pid != os.getpid():
            (self.checkpoint, self.step), self.pid = self.again(step=self.step), os.getpid()
        return self.checkpoint

    def close(self) -> None:
        """Closes the checkpoint. What was read stays."""
        with self.lock:
            self.checkpoint.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return "<sheaf.open: step %d, %d tensors>" % (self.step, len(self.tensors))


class Slice:
    """A tensor of a checkpoint. An index of integers, ranges and `...` reads a part of it.

    shape  its shape
    dtype  its type, by the name that safetensors has for it
    """

    def __init__(self, reader: Reader, name: str, tensor: Tensor) -> None:
        self.reader, self.name, self.tensor = reader, name, tensor
        self.special = reader.special.get((tensor.family, tensor.name), "")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape[:-1] if self.special in dtypes.PAIRS else self.tensor.shape

    @property
    def dtype(self) -> str:
        return self.tensor.dtype

    def get_shape(self) -> list[int]:
        """The shape as a list; for safetensors."""
        return list(self.shape)

    def get_dtype(self) -> str:
        """The name of the type; for safetensors."""
        return self.dtype

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("%s: a tensor without dimensions has no length" % self.name)
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        """Reads a part. IndexError: it is outside. ValueError: it is not a box."""
        picked = pick(self.name, self.shape, index)
        start = tuple(p.start for p in picked)
        count = tuple(len(range(p.start, p.stop)) for p in picked)
        read = self.read(start, count)
        # Steps and single indices apply to the box that was read.
        return read[tuple(builtins.slice(None, None, p.step) if p.step else 0 for p in picked)] \
            if any(p.step != 1 for p in picked) else read

    def read(self, start: tuple[int, ...], count: tuple[int, ...]) -> Any:
        """The box of the tensor that begins at `start` and has `count` items a dimension."""
        t, where = self.tensor, self.reader.framework
        shape = t.shape
        if self.special in dtypes.PAIRS:
            start, count = start + (0,), count + (2,)
        made, held = memory.empty(where, t.dtype, count, self.name)
        if held.address:
            with self.reader.lock:
                self.reader.here(self.name).read(t.tied_to or t.name, held, family=t.family,
                                                 shape=shape, start=start)
        made = parts.given(where, memory.restored(made, self.special), self.name)
        if where == "torch" and self.reader.device != "cpu":
            made = made.to(self.reader.device)
        return made

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        whole = self[...]
        numpy = dtypes.module("numpy")
        return numpy.asarray(whole, dtype=dtype)

    def __repr__(self) -> str:
        return "<%s: %s of shape %s>" % (self.name, self.special or self.dtype, self.shape)


class Picked:
    """The part of one dimension that an index means: [start, stop), each `step`-th of it; 0: one
    item, without the dimension."""

    __slots__ = ("start", "stop", "step")

    def __init__(self, start: int, stop: int, step: int) -> None:
        self.start, self.stop, self.step = start, stop, step


def pick(name: str, shape: tuple[int, ...], index: Any) -> list[Picked]:
    """What an index means in each dimension."""
    parts = list(index) if isinstance(index, tuple) else [index]
    dots = [i for i, p in enumerate(parts) if p is Ellipsis]
    if len(dots) > 1:
        raise IndexError("%s: an index has one '...' at most" % name)
    if len(parts) - len(dots) > len(shape):
        raise IndexError("%s: %d indices for %d dimensions" %
                         (name, len(parts) - len(dots), len(shape)))
    at = dots[0] if dots else len(parts)
    rest = [builtins.slice(None)] * (len(shape) - len(parts) + len(dots))
    parts[at:at + 1] = rest
    return [pick_one(name, d, n, p) for d, (n, p) in enumerate(zip(shape, parts))]


def pick_one(name: str, dim: int, n: int, part: Any) -> Picked:
    if isinstance(part, builtins.slice):
        start, stop, step = part.indices(n)
        if step < 0:
            raise ValueError("%s: a range with a negative step cannot be read" % name)
        return Picked(start, max(start, stop), step)
    if not hasattr(part, "__index__") or isinstance(part, bool):
        raise TypeError("%s: an index is an integer, a range or '...', not a %s" %
                        (name, type(part).__name__))
    i = part.__index__()
    if not -n <= i < n:
        raise IndexError("%s: index %d is outside of dimension %d, which has %d items" %
                         (name, i, dim, n))
    i %= n
    return Picked(i, i + 1, 0)
