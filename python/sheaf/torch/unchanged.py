# SPDX-License-Identifier: Apache-2.0
"""Whether what is tracked is laid out as it was when its items were listed.

Listing thousands of tensors takes tens of milliseconds, and the list is nearly always that of the
save before. So a save compares what the list was made from, in a few calls that each process all of
it: the classes and the dicts of all modules with their contents, the parameter groups, the dicts of
the optimizers' state, and class, type, shape, strides and sharding of each tensor. If anything
differs, the items are listed again. Addresses are not compared here: see plan.Plan.again.
"""
from __future__ import annotations

import collections
from itertools import chain, compress
from operator import attrgetter, is_, itemgetter
from typing import Any, Callable, Iterable, Optional, Sequence

import torch
from torch.distributed.tensor import DTensor

from ..run import State
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
        self.filled = list(filter(None, self.parts))
        self.sizes = list(map(len, self.filled))
        self.keys = list(chain.from_iterable(self.filled))
        self.dicts = [isinstance(d, dict) for d in self.filled]
        self.values = self.held(self.filled)
        self.known = all(type(d) in (*DICTS, set) for d in self.parts) and not model.fsdp1

    def held(self, filled: Sequence[Any]) -> list[Any]:
        """All that these dicts hold; those of them that are sets are left out."""
        return list(chain.from_iterable(map(values_of, compress(filled, self.dicts))))

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
        filled = list(filter(None, self.parts))
        return len(filled) == len(self.filled) and same(filled, self.filled) and \
            list(map(len, filled)) == self.sizes and \
            list(chain.from_iterable(filled)) == self.keys and \
            same(self.held(filled), self.values)


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
        steps = [i for i, k in enumerate(self.keys) if k == "step"]
        self.steps = chosen(steps) if all(map(is_count, chosen(steps)(values))) else None

    def grouped(self) -> list[list[Any]]:
        """The parameters of each group."""
        return [g["params"] for g in self.inner.param_groups]

    def tensors(self) -> Optional[Sequence[torch.Tensor]]:
        """The tensors of the state in the order of the items; None: other parameters or keys."""
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
        if not all(isinstance(t, torch.Tensor) for t in found):
            return None
        self.optimizer.counts = None if self.steps is None else self.steps(values)
        return found


def chosen(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that picks the items at these places."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: [values[i] for i in places]


def is_count(value: Any) -> bool:
    """Whether a value is a step count that can be read at no cost."""
    return isinstance(value, torch.Tensor) and value.numel() == 1 and value.device.type == "cpu"


def described(t: torch.Tensor) -> tuple[Any, ...]:
    """All properties of a tensor that must stay the same, except its memory."""
    return (type(t), t.dtype, t.shape, t.stride(), t.layout, t.device, t.is_conj(), t.is_neg())


class Forms:
    """Class, type, shape and strides of a list of tensors, compared by Python."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.forms = [described(t) for t in tensors]

    def hold(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether a list of as many tensors has them, too."""
        return [described(t) for t in tensors] == self.forms


class Guards:
    """The same, compared in one call by what torch.compile guards its graphs with.

    Such a guard refuses a tensor that is in the list twice, so that Python compares the others.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        made: Any = torch._C._dynamo.guards.TensorGuards
        seen: set[int] = set()
        self.again = []
        for t in tensors:
            self.again.append(id(t) in seen)
            seen.add(id(t))
        self.rest: Optional[Forms] = None
        if any(self.again):
            self.rest = Forms(list(compress(tensors, self.again)))
            self.once = [not twice for twice in self.again]
            tensors = list(compress(tensors, self.once))
        self.guards = made(
            *tensors, dynamic_dims_sizes=[list(t.shape) for t in tensors],
            dynamic_dims_strides=[list(t.stride()) for t in tensors])

    def hold(self, tensors: Sequence[torch.Tensor]) -> bool:
        if self.rest is None:
            return bool(self.guards.check(*tensors))
        return bool(self.guards.check(*compress(tensors, self.once))) and \
            self.rest.hold(list(compress(tensors, self.again)))


def trusted() -> bool:
    """Whether this torch has those guards, and they find what they are used for here."""
    try:
        t = torch.zeros(4, 6)
        others = [torch.zeros(6, 4), torch.zeros(4, 7), torch.zeros(4), torch.zeros(6, 4).t(),
                  torch.zeros(8, 6)[::2], torch.zeros(4, 6, dtype=torch.int32),
                  torch.nn.Parameter(t), torch.empty(4, 6, device="meta"), t.to_sparse(),
                  torch._neg_view(t)]
        c = torch.zeros(4, 6, dtype=torch.complex64)
        first, last = Guards([t, c]), Guards([c, t])
        return first.hold([t, c]) and first.hold([torch.ones(4, 6), c]) and \
            not first.hold([t, c.conj()]) and \
            not any(first.hold([x, c]) or last.hold([c, x]) for x in others)
    except (AttributeError, TypeError, RuntimeError, SystemError, ValueError):
        return False


FORMS: Any = Guards if trusted() else Forms


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
        self.weights = tensors[:spans[0].start if spans else len(tensors)]
        self.sharded = [isinstance(t, DTensor) for t in tensors]
        self.forms = FORMS(tensors)
        shards = list(compress(tensors, self.sharded))
        self.local_forms = FORMS(list(map(local_of, shards)))
        self.shardings = list(map(sharding_of, map(spec_of, shards)))
        self.known = all(map(is_plain, items)) and all(m.known for m in self.models) and \
            all(s.known for s in self.states)

    def tensors(self) -> Optional[list[torch.Tensor]]:
        """The memory of all items as it is now, one tensor each; None: list the items again."""
        models, optimizers = self.tracked
        if not self.known or self.sizes != (len(models), len(optimizers)) or \
                not all(m.hold() for m in self.models):
            return None
        found: list[torch.Tensor] = list(self.weights)
        for s in self.states:
            more = s.tensors()
            if more is None:
                return None
            found += more
        if len(found) != len(self.sharded) or not self.forms.hold(found):
            return None
        if not self.shardings:
            return found
        shards = list(compress(found, self.sharded))
        locals = list(map(local_of, shards))
        if not (self.local_forms.hold(locals) and
                list(map(sharding_of, map(spec_of, shards))) == self.shardings):
            return None
        if len(shards) == len(found):
            return locals
        each = iter(locals)
        return [next(each) if s else t for s, t in zip(self.sharded, found)]


class Lists:
    """The state of all that is tracked for the next save. [local]"""

    def __init__(self) -> None:
        self.unchanged: Optional[Unchanged] = None
        self.misses = 0                 # saves in a row for which it was of no use

    def state(self, tracked: Tracked, plan: Plan) -> State:
        """A state of the library, from a plan for these objects.

        The items are listed anew if anything but their memory has changed since the last save.
        """
        now = None if self.unchanged is None else self.unchanged.tensors()
        state = None if now is None else plan.again(now)
        if state is not None:
            self.misses = 0
            return state
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
