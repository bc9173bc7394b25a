# SPDX-License-Identifier: Apache-2.0
"""Which boxes of a whole torch tensor this rank has in memory, and where.

    layout(weight)          # a tensor, a parameter or a DTensor
    Layout(shape=(8, 4), dtype="F32", boxes=(Box(start=(2, 0), count=(2, 4), origin=0),), ...)

A plain tensor is one box, the whole. A DTensor on a mesh of any number of dimensions is a product
of ranges: Shard cuts as torch.chunk does, _StridedShard cuts each of `split_factor` pieces, and
Replicate cuts nothing, so replicas are described by every rank that has one. Nothing here
communicates, and nothing copies.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator, Optional, Sequence
from weakref import WeakValueDictionary

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from .. import dtypes
from ..memory import DIMS_MAX

Ranges = list[tuple[int, int]]          # half-open, ascending

PLAIN = (torch.Tensor, torch.nn.Parameter)
# The types that safetensors has a name for, and F64 pairs. Some names are not in every torch.
NAMES = dict(dtypes.FROM_TORCH, complex128="C128")
DTYPES: dict[torch.dtype, str] = {getattr(torch, n): s for n, s in NAMES.items()
                                  if hasattr(torch, n)}
TORCH_DTYPES: dict[str, torch.dtype] = {s: d for d, s in DTYPES.items()}


class Unsupported(TypeError):
    """A tensor that cannot be described as boxes of plain memory; the text says why."""


@dataclass(frozen=True)
class Box:
    """One box: its first index and its size in each dimension, and where it begins in memory."""

    start: tuple[int, ...]
    count: tuple[int, ...]
    origin: int                         # items after the first item of the local tensor


@dataclass(frozen=True)
class Layout:
    """What this rank has of a tensor.

    shape   of the whole tensor
    dtype   as safetensors calls it
    boxes   none: this rank has nothing of the tensor
    stride  of the local tensor, in items
    local   the tensor that owns the memory; its data_ptr() is where item 0 lies
    flat    the first item in row-major order, and the number of items: this rank has only these
            items of its box, contiguously from the origin of the box. None: the whole box
    """

    shape: tuple[int, ...]
    dtype: str
    boxes: tuple[Box, ...]
    stride: tuple[int, ...]
    local: torch.Tensor
    flat: Optional[tuple[int, int]] = None


def chunk(ranges: Ranges, pieces: int, i: int) -> Ranges:
    """Piece i of what torch.chunk makes of these ranges, taken one after another."""
    total = sum(stop - first for first, stop in ranges)
    each = -(-total // pieces)
    low, high = min(i * each, total), min((i + 1) * each, total)
    found: Ranges = []
    at = 0
    for first, stop in ranges:
        a, b = max(low, at), min(high, at + stop - first)
        if a < b:
            found.append((first + a - at, first + b - at))
        at += stop - first
    return found


def cut(ranges: Ranges, placement: Any, size: int, i: int) -> Ranges:
    """What rank i of a mesh dimension of that size has of these ranges."""
    if isinstance(placement, _StridedShard):
        factor = int(placement.split_factor)
        return [r for k in range(factor) for r in chunk(chunk(ranges, factor, k), size, i)]
    return chunk(ranges, size, i)


def joined(ranges: Ranges) -> Ranges:
    """The same ranges, with those that touch made one."""
    out: Ranges = []
    for first, stop in ranges:
        if out and out[-1][1] == first:
            out[-1] = (out[-1][0], stop)
        else:
            out.append((first, stop))
    return out


def held(shape: Sequence[int], placements: Sequence[Any], sizes: Sequence[int],
         where: Sequence[int]) -> list[Ranges]:
    """The ranges of each dimension that the rank at `where` of a mesh has of a DTensor.

    Raises Unsupported for a partial sum, and for a placement that is unknown here.
    """
    dims: list[Ranges] = [[(0, n)] if n else [] for n in shape]
    for placement, size, i in zip(placements, sizes, where):
        if isinstance(placement, Partial):
            raise Unsupported("it is a partial sum (Partial), which is no value yet: "
                              "redistribute it first")
        if isinstance(placement, (Shard, _StridedShard)):
            d = placement.dim % len(shape) if shape else 0
            dims[d] = cut(dims[d], placement, size, i)
        elif not isinstance(placement, Replicate):
            raise Unsupported("its placement %s is not one of Shard, _StridedShard and Replicate"
                              % (placement,))
    return [joined(r) for r in dims]


def boxes_of(dims: list[Ranges], stride: Sequence[int]) -> Iterator[Box]:
    """The boxes of a product of ranges, and where each begins in a local tensor of that stride."""
    sofar: list[tuple[tuple[int, ...], tuple[int, ...], int]] = [((), (), 0)]
    for ranges, step in zip(dims, stride):
        grown = []
        at = 0
        for first, stop in ranges:
            grown += [(s + (first,), n + (stop - first,), o + at * step) for s, n, o in sofar]
            at += stop - first
        sofar = grown
    for start, count, origin in sofar:
        yield Box(start, count, origin)


def plain(t: torch.Tensor) -> torch.Tensor:
    """The plain tensor that owns the memory; raises Unsupported where there is none."""
    if hasattr(t, "trigger_wait"):          # the result of an asynchronous collective
        t = t.trigger_wait()
    t = t.detach()
    if type(t) not in PLAIN:
        raise Unsupported("a %s has no plain memory" % type(t).__name__)
    if t.layout != torch.strided:
        raise Unsupported("it is %s, not dense" % str(t.layout)[6:])
    if t.device.type == "meta":
        raise Unsupported("it is on the meta device and has no memory")
    if t.is_conj() or t.is_neg():
        raise Unsupported("it is a lazy conjugate or negative: call resolve_conj or resolve_neg")
    if t.ndim > DIMS_MAX:
        raise Unsupported("it has %d dimensions, and at most %d can be stored"
                          % (t.ndim, DIMS_MAX))
    if t.dtype not in DTYPES:
        raise Unsupported("its type %s has no name in safetensors" % t.dtype)
    if any(step == 0 and n > 1 for n, step in zip(t.shape, t.stride())) and t.numel():
        raise Unsupported("it is expanded: several of its items share memory (stride %s)"
                          % (tuple(t.stride()),))
    return t


# Meshes on which this rank is known to have one place, by id(): hashing a mesh would take longer.
_checked: WeakValueDictionary[int, Any] = WeakValueDictionary()


def check_place(mesh: Any, where: Sequence[int]) -> None:
    """Refuses a mesh whose ranks do not ascend in each dimension, such as DeviceMesh([1, 0]).

    For such a mesh torch splits and gathers tensors by the rank in the group of a dimension, but
    computes offsets by the coordinate in the mesh, so it is undefined which box this rank has.
    """
    if _checked.get(id(mesh)) is mesh:
        return
    in_groups = [mesh.get_local_rank(i) for i in range(mesh.ndim)]
    if list(where) != in_groups:
        raise Unsupported("its mesh %s has ranks that do not ascend: this rank is at %s of the "
                          "mesh, and at %s of the groups by which torch cuts tensors; make the "
                          "mesh of ascending ranks" % (mesh, tuple(where), tuple(in_groups)))
    _checked[id(mesh)] = mesh


def layout(t: torch.Tensor) -> Layout:
    """What this rank has of a tensor, and where. [local]

    Raises Unsupported, with the reason, for a tensor that has no plain memory.
    """
    if not isinstance(t, DTensor):
        local = plain(t)
        shape = tuple(local.shape)
        whole = (Box((0,) * len(shape), shape, 0),) if local.numel() else ()
        return Layout(shape, DTYPES[local.dtype], whole, tuple(local.stride()), local)
    local = plain(t.to_local())
    shape = tuple(t.shape)
    mesh = t.device_mesh
    where: Optional[Sequence[int]] = mesh.get_coordinate()
    if where is None:                   # this rank is not in the mesh of the tensor
        return Layout(shape, DTYPES[local.dtype], (), tuple(local.stride()), local)
    check_place(mesh, where)
    dims = held(shape, t.placements, [mesh.size(i) for i in range(mesh.ndim)], where)
    have = tuple(sum(stop - first for first, stop in r) for r in dims)
    if local.numel() == 0 and 0 in have:
        return Layout(shape, DTYPES[local.dtype], (), tuple(local.stride()), local)
    if have != tuple(local.shape):
        raise Unsupported("its placements %s of shape %s mean %s on this rank, and it has %s: "
                          "this uneven split has no exact placement in torch; pad the dimension"
                          % (tuple(t.placements), shape, have, tuple(local.shape)))
    return Layout(shape, DTYPES[local.dtype], tuple(boxes_of(dims, local.stride())),
                  tuple(local.stride()), local)


def parts(name: str, t: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """The plain tensors of a tensor, and a name for each.

    A tensor subclass is decomposed by its __tensor_flatten__: torchao's and other quantized
    tensors become `<name>:<attribute>`. Raises Unsupported, with the name of the class, if that is
    not possible.
    """
    kind = type(t)
    if kind in PLAIN or isinstance(t, DTensor) or hasattr(t, "trigger_wait"):
        return [(name, t)]
    flatten = getattr(t, "__tensor_flatten__", None)
    if flatten is None:
        raise Unsupported("%s is a %s, which has no __tensor_flatten__ to take it apart"
                          % (name, kind.__name__))
    found: list[tuple[str, torch.Tensor]] = []
    for attribute in flatten()[0]:
        found += parts("%s:%s" % (name, attribute), getattr(t, attribute))
    return found
