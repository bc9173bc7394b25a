# SPDX-License-Identifier: Apache-2.0
"""The parameters of DeepSpeed's ZeRO, stages 1 and 2.

Each rank has all parameters, as views of one flat tensor for each group of the optimizer. Beside
it, it has a partition: an equal share of that flat tensor in the type of the masters, which is all
that its optimizer sees. So a rank has consecutive items, in row-major order, of the masters and
moments of some parameters, and none of others. Padding belongs to no parameter, and is never
stored.

The position of a parameter in the flat tensor is computed from its address, and not read from a
table of DeepSpeed. So it is right also with round_robin_gradients, which orders the parameters in
another way.
"""
from __future__ import annotations

from typing import Any, Iterator, NamedTuple

import torch
from torch import nn

from .layout import DTYPES, Unsupported
from .model import Held, Item, Model
from .placed import Placed


class Share(NamedTuple):
    """What the partition of this rank has of a parameter: items [first, first + n), from item
    `origin` of the partition on."""

    flat: torch.Tensor
    first: int
    n: int
    origin: int


def share(p: torch.Tensor, whole: torch.Tensor, flat: torch.Tensor, rank: int) -> Share:
    """The part of a parameter, a view of a flat tensor, that is in partition `rank`.

    Raises Unsupported if it is not a dense view.
    """
    bytes_before = p.data_ptr() - whole.data_ptr()
    at = bytes_before // whole.element_size()
    if p.dtype != whole.dtype or not p.is_contiguous() or bytes_before < 0 or \
            bytes_before % whole.element_size() or at + p.numel() > whole.numel():
        raise Unsupported("a parameter of shape %s lies outside of the flat tensor of its group: "
                          "move the model to its device before deepspeed.initialize, and leave "
                          "its memory to DeepSpeed afterwards" % (tuple(p.shape),))
    begin = rank * flat.numel()
    first, last = max(at, begin), min(at + p.numel(), begin + flat.numel())
    if first >= last:
        return Share(flat, 0, 0, 0)
    return Share(flat, first - at, last - first, first - begin)


class ZeroModel(Model):
    """The module of an engine, whose masters are in the partitions of a ZeRO optimizer.

    zero  a DeepSpeedZeroOptimizer
    """

    def __init__(self, module: nn.Module, zero: Any) -> None:
        super().__init__(module)
        self.zero = zero

    def shares(self) -> dict[int, Share]:
        """The parameters that the optimizer has, by their id()."""
        z = self.zero
        found: dict[int, Share] = {}
        for params, whole, flat, group in zip(z.bit16_groups, z.bit16_groups_flat,
                                              z.single_partition_of_fp32_groups,
                                              z.real_dp_process_group):
            rank = torch.distributed.get_rank(group)
            found.update((id(p), share(p, whole, flat, rank)) for p in params if p.numel())
        return found

    def placed(self) -> Iterator[tuple[Held, torch.Tensor, Any, Any]]:
        """What the module has, each with its share, and which part of the parameter that is.

        Both are None for a buffer, and for a parameter that the optimizer does not have.
        """
        shares = self.shares()
        for h in self.held:
            t = h.place[h.key]
            mine = shares.get(id(t)) if h.parameter else None
            yield h, t, mine, mine and Placed(h.name, tuple(t.shape), (),
                                              (mine.first, mine.n, mine.origin))

    def described(self) -> Iterator[Item]:
        first: dict[int, str] = {}
        for h, t, mine, at in self.placed():
            name = first.setdefault(id(t), h.name)
            tied = name if name != h.name else None
            if mine is None:
                yield Item("model", h.name, t, tied_to=tied)
            elif mine.flat.dtype == t.dtype:
                yield Item("model", h.name, mine.flat, tied_to=tied, at=at)
            else:                       # a load makes it of its master
                yield Item("model", h.name, t, tied_to=tied, save_only=True)
                if tied is None:
                    yield Item("master_weights", h.name, mine.flat, at=at)

    def parameters(self) -> dict[int, tuple[Placed, ...]]:
        """What each partition has of which tensors, by its id()."""
        names: dict[int, tuple[Placed, ...]] = {}
        seen: set[int] = set()
        for _, t, mine, at in self.placed():
            if mine is not None and id(t) not in seen:
                seen.add(id(t))
                names[id(mine.flat)] = names.get(id(mine.flat), ()) + (at,)
        return names

    def files(self) -> dict[str, bytes]:
        """config.json with the type in which the parameters are stored."""
        types = {p.dtype for p in self.module.parameters() if p.is_floating_point()}
        self.store = DTYPES[types.pop()] if len(types) == 1 else None
        return super().files()
