# SPDX-License-Identifier: Apache-2.0
"""The parameters of FSDP1, torch's FullyShardedDataParallel.

FSDP1 concatenates the parameters of a module in a flat buffer, of which each rank has a range. So
a rank has a contiguous range, in row-major order, of some parameters, and nothing of others.
Padding between parameters and at the end belongs to none of them, and is never stored.

With use_orig_params=False the optimizer's parameter is the flat buffer. With True, its parameters
are views of the range, one for each parameter of the module.
"""
from __future__ import annotations

from typing import Any, Iterator, NamedTuple, Optional

import torch
from torch import nn

from .layout import Unsupported
from .placed import Placed

WRAPPED = "_fsdp_wrapped_module."


class Shard(NamedTuple):
    """What this rank has of a parameter.

    placed  where it lies in the memory of this rank
    owner   the parameter that an optimizer has
    memory  the range of the flat buffer
    state   where the optimizer's state of `owner` has it
    tied_to the name of the parameter that it shares
    """

    placed: Placed
    owner: torch.Tensor
    memory: torch.Tensor
    state: Placed
    tied_to: Optional[str]


def is_fsdp1(m: nn.Module) -> bool:
    """Whether a module is FullyShardedDataParallel, without an import of it."""
    return any(k.__name__ == "FullyShardedDataParallel" and k.__module__.startswith("torch.")
               for k in type(m).__mro__)


def inner(m: nn.Module) -> nn.Module:
    """The module that was wrapped."""
    while is_fsdp1(m):
        m = m._fsdp_wrapped_module  # type: ignore[assignment]
    return m


def settle(m: nn.Module) -> None:
    """Frees gathered parameters, which remain after a forward pass without a backward pass: a load
    changes only the range of this rank."""
    handle: Any = m._handle
    if handle is None or not handle.uses_sharded_strategy:
        return
    if hasattr(handle.flat_param, "_local_shard") and not handle.is_sharded(handle.flat_param):
        from torch.distributed.fsdp import _runtime_utils
        _runtime_utils._reshard(m, handle, True)


def shards(prefix: str, m: nn.Module) -> Iterator[Shard]:
    """The parameters in the flat buffer of a module, and their names.

    prefix  of the names of its parameters
    """
    handle: Any = m._handle
    if handle is None:                  # it has no parameters of its own
        return
    flat = handle.flat_param
    memory = getattr(flat, "_local_shard", None)
    memory = flat.detach() if memory is None else memory
    views = flat._params if handle._use_orig_params else None
    names: dict[tuple[int, str], str] = {}
    for i, (at, shape, info) in enumerate(zip(flat._param_infos, flat._shapes,
                                              flat._shard_param_infos)):
        name = prefix + flat._fqns[i].replace(WRAPPED, "")
        names[id(at.module), at.param_name] = name
        if flat._param_extensions[i] is not None:
            raise Unsupported("%s is a DTensor inside of FSDP1: use fully_shard (FSDP2)" % name)
        if not getattr(flat, "_contiguities", [True] * (i + 1))[i]:
            raise Unsupported("%s is not dense, and FSDP1 has its items in another order" % name)
        first, n, origin = (info.intra_param_start_idx, info.numel_in_shard,
                            info.offset_in_shard) if info.in_shard else (0, 0, 0)
        placed = Placed(name, tuple(shape), (), (first, n, origin))
        state = placed if views is None else Placed(name, tuple(shape), (), (first, n, 0))
        yield Shard(placed, flat if views is None else views[i], memory, state, None)
    for k, at in enumerate(flat._shared_param_infos):
        first_name = names[id(at.prim_module), at.prim_param_name]
        module = at.module_name + "." if at.module_name else ""
        name = prefix + (module + at.param_name).replace(WRAPPED, "")
        i = list(names.values()).index(first_name)
        info = flat._shard_param_infos[i]
        span = (info.intra_param_start_idx, info.numel_in_shard,
                info.offset_in_shard) if info.in_shard else (0, 0, 0)
        placed = Placed(name, tuple(flat._shapes[i]), (), span)
        yield Shard(placed, flat if views is None else flat._shared_params[k], memory, placed,
                    first_name)
