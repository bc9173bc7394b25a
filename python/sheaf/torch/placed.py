# SPDX-License-Identifier: Apache-2.0
"""Which parts of the stored tensors a plain tensor of this rank has.

A DTensor describes its part itself. Trainers that split tensors by hand declare it:

    tp = {"rank": tp_rank, "ranks": tp_size}
    ckpt.track(model, optimizer, parts={
        "*.qkv.weight": sheaf.torch.QKV(heads=32, kv_heads=8, **tp),
        "*.gate_up.weight": sheaf.torch.GateUp(**tp),
        "*.o_proj.weight": sheaf.torch.Split(1, **tp)})         # row parallel

Optimizer state of such a parameter is split like the parameter. Nothing here communicates or
copies.
"""
from __future__ import annotations

import fnmatch
import math
from dataclasses import dataclass, replace
from operator import mul
from typing import Callable, Mapping, Optional, Protocol, Sequence, Union

import torch

from .layout import DTYPES, Box, Layout, Unsupported, plain

Shape = tuple[int, ...]
PLAIN: Shape = (-1,)                    # in place of a shape: nothing was declared of the tensor


@dataclass(frozen=True)
class Placed:
    """The part of one stored tensor that a local tensor has.

    name   of the stored tensor
    shape  of the whole stored tensor
    boxes  the boxes of it that are in the local tensor
    flat   instead of boxes, a range of the stored tensor in row-major order: its first item, the
           number of items, and where they begin in the local tensor, which must be dense
    """

    name: str
    shape: Shape
    boxes: tuple[Box, ...] = ()
    flat: Optional[tuple[int, int, int]] = None

    def layout(self, t: torch.Tensor) -> Layout:
        """The layout of that tensor of this rank. Raises Unsupported."""
        local = plain(t)
        dtype = DTYPES[local.dtype]
        if self.flat is None:
            for b in self.boxes:
                check_box(b, self.shape, local)
            return Layout(self.shape, dtype, self.boxes, tuple(local.stride()), local)
        first, count, origin = self.flat
        if not local.is_contiguous():
            raise Unsupported("a range of items needs dense memory")
        if min(first, count, origin) < 0 or origin + count > local.numel() or \
                first + count > math.prod(self.shape):
            raise Unsupported("%d items from item %d on of a tensor of shape %s cannot be in %d "
                              "items here, from item %d on"
                              % (count, first, self.shape, local.numel(), origin))
        box = Box((0,) * len(self.shape), self.shape, origin)
        return Layout(self.shape, dtype, (box,) if count else (), (), local, (first, count))

    def on(self, t: torch.Tensor, other: torch.Tensor) -> Placed:
        """The same part for another tensor of the same shape, which may have other strides.

        t  the tensor of which this is the part
        """
        if not self.boxes or t.stride() == other.stride():
            return self
        boxes = []
        for b in self.boxes:
            index = index_of(b, t)
            if index is None:
                return self             # layout() refuses it for `t`
            boxes.append(replace(b, origin=sum(map(mul, index, other.stride()))))
        return replace(self, boxes=tuple(boxes))


def index_of(box: Box, local: torch.Tensor) -> Optional[Shape]:
    """The index in a local tensor at which a box begins; None: the box is not inside the tensor."""
    rest, inside = box.origin, local.ndim == len(box.count) and box.origin >= 0
    index = [0] * local.ndim
    # Strides of a tensor of dense rows are each a multiple of the next smaller one. A dimension of
    # one item has any stride.
    for step, n, size, d in sorted(zip(local.stride(), box.count, local.shape, range(local.ndim)),
                                   reverse=True):
        index[d] = rest // step if size > 1 and step > 0 else 0
        rest -= index[d] * step
        inside = inside and index[d] + n <= size
    return tuple(index) if inside and not rest else None


def check_box(box: Box, shape: Shape, local: torch.Tensor) -> None:
    """Raises Unsupported unless the box is inside the stored tensor, and inside the local one."""
    if not len(box.start) == len(box.count) == len(shape) or \
            any(a < 0 or n < 0 or a + n > whole
                for a, n, whole in zip(box.start, box.count, shape)):
        raise Unsupported("its box of %s items from index %s on is not inside the stored tensor of "
                          "shape %s" % (tuple(box.count), tuple(box.start), tuple(shape)))
    if index_of(box, local) is None:
        raise Unsupported("its box of %s items, %d items after the first one, is not inside the "
                          "tensor of this rank, which has shape %s and stride %s"
                          % (tuple(box.count), box.origin, tuple(local.shape),
                             tuple(local.stride())))


class Declared(Protocol):
    """A declaration: which parts of which stored tensors the tensor of that name has."""

    def placed(self, name: str, t: torch.Tensor) -> tuple[Placed, ...]:
        """One for each stored tensor. Raises Unsupported if the shape does not fit."""


def rank_of(what: str, rank: int, ranks: int) -> None:
    """Raises ValueError unless it is one of the ranks."""
    if not 0 <= rank < ranks:
        raise ValueError("%s(rank=%r, ranks=%r): rank must be one of 0 to ranks - 1"
                         % (what, rank, ranks))


def rows(t: torch.Tensor, shape: Shape, here: int, there: int, n: int) -> Box:
    """A box of n rows: they begin at row `here` of the local tensor, and `there` of the whole."""
    rest = shape[1:]
    return Box((there,) + (0,) * len(rest), (n,) + rest, here * t.stride(0))


def renamed(name: str, module: str) -> str:
    """The name with another module: `layers.0.qkv.weight` becomes `layers.0.q_proj.weight`."""
    names = name.split(".")
    names[max(0, len(names) - 2)] = module
    return ".".join(names)


@dataclass(frozen=True)
class Split:
    """A tensor that is split along a dimension into equal parts, one for each rank.

    dim    0: the weight and the bias of a column-parallel layer, and an embedding that is split
           along the vocabulary; 1: the weight of a row-parallel layer
    rank, ranks
           of the tensor-parallel group
    size   of the whole dimension, without padding at the end, which the last ranks may have; None:
           there is no padding
    name   of the stored tensor; None: the name that the model has for it
    """

    dim: int
    rank: int
    ranks: int
    size: Optional[int] = None
    name: Optional[str] = None

    def __post_init__(self) -> None:
        rank_of("Split", self.rank, self.ranks)

    def placed(self, name: str, t: torch.Tensor) -> tuple[Placed, ...]:
        """The box of this rank."""
        if not -t.ndim <= self.dim < t.ndim:
            raise Unsupported("it has shape %s and is declared as cut along dimension %d"
                              % (tuple(t.shape), self.dim))
        d = self.dim % t.ndim
        each = int(t.shape[d])
        size = each * self.ranks if self.size is None else self.size
        first = min(self.rank * each, size)
        n = min(each, size - first)
        if size > each * self.ranks:
            raise Unsupported("it has %d of %d in dimension %d, and %d ranks do not have all"
                              % (each, size, d, self.ranks))
        shape = tuple(t.shape[:d]) + (size,) + tuple(t.shape[d + 1:])
        start = (0,) * d + (first,) + (0,) * (t.ndim - d - 1)
        count = tuple(t.shape[:d]) + (n,) + tuple(t.shape[d + 1:])
        return (Placed(self.name or name, shape, (Box(start, count, 0),) if math.prod(count)
                       else ()),)


@dataclass(frozen=True)
class Flat:
    """A one-dimensional tensor that has the items [first, first + its size) of a tensor of that
    shape, in row-major order, as a partition of ZeRO does.

    last   number of items at its end that are padding
    name   of the stored tensor; None: the name that the model has for it
    """

    shape: Shape
    first: int
    last: int = 0
    name: Optional[str] = None

    def placed(self, name: str, t: torch.Tensor) -> tuple[Placed, ...]:
        """The range of this rank."""
        if t.ndim != 1:
            raise Unsupported("it has shape %s and is declared as a range of items"
                              % (tuple(t.shape),))
        return (Placed(self.name or name, tuple(self.shape), (),
                       (self.first, int(t.shape[0]) - self.last, 0)),)


@dataclass(frozen=True)
class QKV:
    """The fused weight or bias of queries, keys and values, stored as three tensors.

    rank, ranks  of the tensor-parallel group
    heads        number of query heads in the whole model
    kv_heads     number of heads of keys and values, which several query heads may share. If there
                 are more ranks than kv_heads, several ranks have the same one
    names        of the modules that the stored tensors belong to
    interleaved  True: as in Megatron, the key and the value of each kv head follow its queries;
                 False: all queries of the rank, then its keys, then its values
    """

    rank: int
    ranks: int
    heads: int
    kv_heads: int
    names: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj")
    interleaved: bool = True

    def __post_init__(self) -> None:
        rank_of("QKV", self.rank, self.ranks)
        few, many = sorted((self.kv_heads, self.ranks))
        if self.heads % self.ranks or self.heads % self.kv_heads or many % few:
            raise ValueError("QKV: %d heads with %d kv_heads cannot be split over %d ranks"
                             % (self.heads, self.kv_heads, self.ranks))

    def placed(self, name: str, t: torch.Tensor) -> tuple[Placed, ...]:
        """The boxes of queries, keys and values of this rank."""
        heads, pairs = self.heads // self.ranks, max(1, self.kv_heads // self.ranks)
        if t.ndim == 0 or t.shape[0] % (heads + 2 * pairs):
            raise Unsupported("it has shape %s, which %d heads and %d pairs of keys and values "
                              "cannot share" % (tuple(t.shape), heads, pairs))
        size = int(t.shape[0]) // (heads + 2 * pairs)
        rest = tuple(t.shape[1:])
        shapes = [(n * size,) + rest for n in (self.heads, self.kv_heads, self.kv_heads)]
        first = self.rank * self.kv_heads // self.ranks
        boxes: list[list[Box]] = [[], [], []]
        each = heads // pairs           # queries of one pair
        for i in range(pairs if self.interleaved else 1):
            n = each if self.interleaved else heads
            k = 1 if self.interleaved else pairs
            at = i * (each + 2)
            for which, (here, there, many) in enumerate((
                    (at, self.rank * heads + i * each, n), (at + n, first + i, k),
                    (at + n + k, first + i, k))):
                boxes[which].append(rows(t, shapes[which], here * size, there * size,
                                         many * size))
        return tuple(Placed(renamed(name, module), shape, tuple(b))
                     for module, shape, b in zip(self.names, shapes, boxes))


@dataclass(frozen=True)
class GateUp:
    """The fused weight of a gate and an up projection, stored as two tensors: each rank has its
    rows of the first, then its rows of the second.

    names  of the modules that the stored tensors belong to
    """

    rank: int
    ranks: int
    names: tuple[str, ...] = ("gate_proj", "up_proj")

    def __post_init__(self) -> None:
        rank_of("GateUp", self.rank, self.ranks)

    def placed(self, name: str, t: torch.Tensor) -> tuple[Placed, ...]:
        """The rows of each on this rank."""
        if t.ndim == 0 or t.shape[0] % len(self.names):
            raise Unsupported("it has shape %s, which %d projections cannot share"
                              % (tuple(t.shape), len(self.names)))
        n = int(t.shape[0]) // len(self.names)
        shape = (n * self.ranks,) + tuple(t.shape[1:])
        return tuple(Placed(renamed(name, module), shape,
                            (rows(t, shape, i * n, self.rank * n, n),))
                     for i, module in enumerate(self.names))


Parts = Union[None, Mapping[str, Declared], Callable[[str, torch.Tensor], Optional[Declared]]]


def declared(parts: Parts, names: Sequence[tuple[str, torch.Tensor]]
             ) -> dict[str, tuple[Placed, ...]]:
    """The declarations of tensors, by their names.

    Raises Unsupported if a declaration does not fit its tensor, and ValueError if a pattern means
    no tensor.
    """
    found: dict[str, tuple[Placed, ...]] = {}
    unused = set() if parts is None or callable(parts) else set(parts)
    for name, t in names:
        how: Optional[Declared] = None
        if callable(parts):
            how = parts(name, t)
        elif parts is not None:
            pattern = next((p for p in parts if fnmatch.fnmatchcase(name, p)), None)
            if pattern is not None:
                how = parts[pattern]
                unused.discard(pattern)
        if how is not None:
            try:
                found[name] = how.placed(name, t)
            except Unsupported as e:
                raise Unsupported("%s: %s" % (name, e)) from None
    if unused:
        raise ValueError("parts=: no tensor of the model is called %s"
                         % " or ".join(sorted(unused)))
    return found
