# SPDX-License-Identifier: Apache-2.0
"""Whether what is tracked is laid out as it was when its items were listed.

Listing thousands of tensors takes tens of milliseconds, and the list is nearly always that of the
save before. So a save compares what the list was made from, in a few calls that each process all of
it: the classes and the dicts of all modules with their contents, the parameter groups, the dicts of
the optimizers' state, and class, type, shape, strides and sharding of each tensor. If anything
differs, the items are listed again. Addresses may differ: see plan.Plan.move.
"""
from __future__ import annotations

import collections
import ctypes
from itertools import chain, compress
from operator import attrgetter, is_, itemgetter
from typing import Any, Callable, Iterable, Optional, Sequence

import torch
from torch.distributed.tensor import DTensor

from ..run import State
from ..torch_forms import FORMS, Addresses
from .model import Item, Model
from .optimizer import Optimizer
from .plan import Plan, is_plain
from .tracked import Tracked

DICTS = (dict, collections.OrderedDict, collections.defaultdict)
MISSES = 8                              # listed again so often in a row: comparing does not pay

of_module = attrgetter("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set",
                       "_state_dict_hooks", "_state_dict_pre_hooks")
spec_of = attrgetter("_spec")
sharding_of = attrgetter("mesh", "placements", "tensor_meta")
local_of = attrgetter("_local_tensor")
values_of: Callable[[Any], Any] = dict.values


def same(now: Iterable[Any], before: Sequence[Any]) -> bool:
    """Whether two lists have the same length and hold the same objects."""
    return all(map(is_, now, before))


class Modules:
    """What all modules of a model hold, and in which order."""

    def __init__(self, model: Model) -> None:
        self.model, self.root = model, model.module
        self.modules = list(model.modules)
        self.kinds = list(map(type, self.modules))
        self.parts: list[Any] = list(chain.from_iterable(map(of_module, self.modules)))
        self.hooks = [(m, d) for m, d in zip(self.modules, self.parts[5::6]) if d]
        self.sizes = list(map(len, self.parts))
        self.filled = list(filter(None, self.parts))
        self.keys = list(chain.from_iterable(self.filled))
        self.dicts = [d for d in self.filled if isinstance(d, dict)]
        self.values = self.held()
        self.known = all(type(d) in (*DICTS, set) for d in self.parts) and not model.fsdp1

    def held(self) -> list[Any]:
        """All that the dicts hold."""
        return list(chain.from_iterable(map(values_of, self.dicts)))

    def hold(self) -> bool:
        """Whether they still hold the same; brings sharded parameters back first, like
        Model.settle."""
        if not self.known or self.model.module is not self.root or \
                not same(map(type, self.modules), self.kinds) or \
                not same(chain.from_iterable(map(of_module, self.modules)), self.parts):
            return False
        for m, hooks in self.hooks:
            for hook in list(hooks.values()):
                hook(m, "", True)
        return list(map(len, self.parts)) == self.sizes and \
            list(chain.from_iterable(self.filled)) == self.keys and \
            same(self.held(), self.values)


class States:
    """The parameters of an optimizer, and which values its state has for each."""

    def __init__(self, optimizer: Optimizer, n: int) -> None:
        self.optimizer, self.inner = optimizer, optimizer.optimizer
        groups = self.grouped()
        self.group_sizes, self.params = list(map(len, groups)), list(chain.from_iterable(groups))
        state = self.inner.state
        self.known = optimizer.local is self.inner and type(state) in DICTS and \
            all(type(d) is dict for d in state.values())
        if not self.known:
            return
        self.owners, inner = list(state), list(state.values())
        self.sizes = list(map(len, inner))
        self.keys = list(chain.from_iterable(inner))
        values = list(chain.from_iterable(map(values_of, inner)))
        self.plain = [not isinstance(v, torch.Tensor) for v in values]
        places = {(id(p), k): i for i, (p, k) in enumerate(
            (p, k) for p, d in zip(self.owners, inner) for k in d)}
        order = [places[id(p), k] for p in self.params for k, v in state.get(p, {}).items()
                 if isinstance(v, torch.Tensor)]
        self.known = len(order) == n
        self.order = None if order == list(range(len(values))) else chosen(order)
        steps = chosen([i for i, k in enumerate(self.keys) if k == "step"])
        self.steps = steps if all(map(is_count, steps(values))) else None
        self.counted: Sequence[torch.Tensor] = []
        self.counts: Optional[list[Any]] = None     # see Optimizer.counts

    def grouped(self) -> list[list[Any]]:
        """The parameters of each group."""
        return [g["params"] for g in self.inner.param_groups]

    def tensors(self) -> Optional[Sequence[Any]]:
        """What is in place of the tensors of the state, in the order of the items; None: other
        parameters or keys."""
        if not self.known or self.optimizer.optimizer is not self.inner:
            return None
        state, groups = self.inner.state, self.grouped()
        if type(state) not in DICTS or not same(state, self.owners) or \
                list(map(len, groups)) != self.group_sizes or \
                not same(chain.from_iterable(groups), self.params):
            return None
        inner = list(state.values())
        if set(map(type, inner)) - {dict} or list(map(len, inner)) != self.sizes or \
                list(chain.from_iterable(inner)) != self.keys:
            return None
        values = list(chain.from_iterable(map(values_of, inner)))
        if any(isinstance(v, torch.Tensor) for v in compress(values, self.plain)):
            return None
        found: Sequence[Any] = values if self.order is None else self.order(values)
        self.counted = [] if self.steps is None else self.steps(values)
        return found

    def count(self, moved: bool) -> None:
        """Gives the optimizer its step counts. moved: they may have other addresses than before."""
        if self.steps is not None and (moved or self.counts is None):
            self.counts = [CELLS[t.dtype].from_address(t.data_ptr()) for t in self.counted]
        self.optimizer.counts = self.counts


def chosen(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that picks the items at these places."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: [values[i] for i in places]


CELLS: dict[torch.dtype, Any] = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double,
                                 torch.int64: ctypes.c_int64}


def is_count(value: Any) -> bool:
    """Whether a value is a step count that can be read at no cost."""
    return type(value) is torch.Tensor and value.dtype in CELLS and value.numel() == 1 and \
        value.device.type == "cpu"


class Unchanged:
    """Compares the objects that are tracked with what they were. [local]

    models, optimizers  what is tracked
    items               their tensors, in the order of Tracked.items
    spans               which of the items each optimizer has
    """

    def __init__(self, models: Sequence[Model], optimizers: Sequence[Optimizer],
                 items: Sequence[Item], spans: Sequence[range]) -> None:
        tensors = [i.tensor for i in items]
        self.models = [Modules(m) for m in models]
        self.states = [States(o, len(span)) for o, span in zip(optimizers, spans)]
        self.tracked = models, optimizers
        self.sizes = len(models), len(optimizers)
        self.known = all(map(is_plain, items)) and all(m.known for m in self.models) and \
            all(s.known for s in self.states)
        if not self.known:
            return
        self.weights = tensors[:spans[0].start if spans else len(tensors)]
        self.sharded = [isinstance(t, DTensor) for t in tensors]
        shards = list(compress(tensors, self.sharded))
        self.shardings = list(map(sharding_of, map(spec_of, shards)))
        memory = self.local(tensors, shards)
        self.forms = FORMS(memory)
        self.addresses: Optional[Addresses] = self.forms.addresses(memory)

    def local(self, found: Sequence[Any], shards: Sequence[Any]) -> Sequence[Any]:
        """The memory of these tensors, of which some are shards."""
        if not shards:
            return found
        each = iter(map(local_of, shards))
        return [next(each) if s else t for s, t in zip(self.sharded, found)]

    def memory(self) -> Optional[tuple[Sequence[torch.Tensor], Addresses]]:
        """The memory of all items as it is now, one tensor each, and their addresses, to compare
        with `addresses`. None: list the items again."""
        models, optimizers = self.tracked
        if not self.known or self.sizes != (len(models), len(optimizers)) or \
                not all(m.hold() for m in self.models):
            return None
        found: list[Any] = list(self.weights)
        for s in self.states:
            more = s.tensors()
            if more is None:
                return None
            found += more
        if len(found) != len(self.sharded):
            return None
        shards = list(compress(found, self.sharded)) if self.shardings else []
        if set(map(type, shards)) - {DTensor} or \
                not list(map(sharding_of, map(spec_of, shards))) == self.shardings:
            return None
        memory = self.local(found, shards)
        addresses = self.forms.addresses(memory)
        return None if addresses is None else (memory, addresses)


class Lists:
    """The state of all that is tracked for the next save. [local]"""

    def __init__(self) -> None:
        self.unchanged: Optional[Unchanged] = None
        self.misses = 0                 # saves in a row for which it was of no use

    def state(self, tracked: Tracked, plan: Plan) -> State:
        """A state of the library, from a plan for these objects.

        The items are listed anew if anything but their memory has changed since the last save.
        """
        now = None if self.unchanged is None else self.unchanged.memory()
        if self.unchanged is not None and now is not None and plan.state is not None:
            memory, addresses = now
            moved: bool = addresses != self.unchanged.addresses
            if not moved:
                plan.take(memory)
            if not moved or plan.move(plan.state, memory):
                self.unchanged.addresses = addresses
                for s in self.unchanged.states:
                    s.count(moved)
                self.misses = 0
                return plan.state
        self.forget()
        made, items = plan.made, tracked.items()
        state = plan.update(items)
        self.misses = self.misses + 1 if made == plan.made else 0
        if self.misses < MISSES or self.misses & (self.misses - 1) == 0:    # and now and then
            self.unchanged = Unchanged(tracked.models, tracked.optimizers, items, tracked.spans)
        return state

    def forget(self) -> None:
        """The next save lists the items anew."""
        self.unchanged = None
