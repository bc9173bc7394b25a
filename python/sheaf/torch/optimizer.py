# SPDX-License-Identifier: Apache-2.0
"""The state of torch optimizers, by the names of their parameters (doc/format.md, section 13).

Only existing state is saved: nothing here makes an optimizer take a step, unlike torch's
get_state_dict before the first one. A load creates missing state from what is stored. A value that
the optimizer keeps for each item of a sharded parameter gets the parameter's sharding.
"""
from __future__ import annotations

import json
import math
import re
from operator import attrgetter
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

import torch
from torch.distributed.tensor import DTensor, Replicate

from ..binding import error
from .layout import DTYPES, TORCH_DTYPES, Unsupported
from .model import Item
from .placed import PLAIN, Placed

FAMILY = "optimizer"
STORED = {"exp_avg": "moment1_0", "exp_avg_sq": "moment2_0", "max_exp_avg_sq": "moment2_max_0"}
OURS = {stored: key for key, stored in STORED.items()}
MOMENTS = {"exp_avg", "exp_avg_sq"}
COUNTING = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam,
            torch.optim.SparseAdam)     # their step() needs a count for each parameter
KEY = re.compile(r"[A-Za-z0-9_.-]+")
NAMES = ("params", "param_names")       # of a group: which parameters it has, and no options

Shape = tuple[int, ...]
Stored = Mapping[str, tuple[str, Shape]]    # dtype and shape of the tensors of family optimizer


class Absent(LookupError):
    """A parameter of an optimizer is in no model that is tracked."""


class Group(dict[str, Any]):
    """A stored group: its options, and its parameters by name.

    at  number of its optimizer, its own number there, and how many groups that has; None: unknown
    """

    at: Optional[tuple[int, int, int]] = None


def groups_of(data: bytes) -> list[Group]:
    """The groups in a file param_groups.json."""
    value = json.loads(data)
    found = [Group(g) for g in value["param_groups"]]
    places = [(o, g, kind["groups"]) for o, kind in enumerate(value.get("optimizers", []))
              for g in range(kind["groups"])]
    for group, at in zip(found, places):
        group.at = at
    return found


def whole_step(value: Any) -> Optional[int]:
    """A step count as an integer; None: it is none, or it lies on a device."""
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu" or value.numel() != 1:
            return None
        value = value.item()
    if isinstance(value, float) and not value.is_integer():
        return None
    return int(value) if isinstance(value, (int, float)) else None


class Optimizer:
    """One optimizer: anything with the `state` and the `param_groups` of torch.optim.Optimizer.

    placed_of  what a parameter has of which stored tensors, by its id(), from the models that are
               tracked
    number     how many optimizers are tracked before it
    """

    def __init__(self, optimizer: Any,
                 placed_of: Callable[[int], Optional[tuple[Placed, ...]]],
                 number: int = 0) -> None:
        self.number = number
        self.optimizer = optimizer
        self.placed_of = placed_of
        self.pending: dict[int, dict[str, Any]] = {}
        self.others: list[tuple[str, torch.Tensor, str]] = []   # what items() saw beside tensors
        self.listed: list[str] = []     # JSON of the names in each group
        # The step counts as ctypes has them, which are read in a tenth of the time of item().
        self.counts: Optional[Sequence[Any]] = None

    @property
    def local(self) -> Any:
        """The optimizer that has the state of this rank: of ZeRO the one that it wraps, which
        has the parameters that this rank updates."""
        if any(k.__name__ == "ZeroRedundancyOptimizer" for k in type(self.optimizer).__mro__):
            if getattr(self.optimizer, "_overlap_with_ddp", False):
                raise Unsupported("ZeroRedundancyOptimizer with overlap_with_ddp=True updates "
                                  "parameters in the backward pass, in an order of its own")
            return self.optimizer.optim
        return self.optimizer

    def names_of(self, p: torch.Tensor) -> list[str]:
        """The names of the stored tensors of which a parameter has a part."""
        return [x.name for x in self.placed_of(id(p)) or ()]

    def params(self) -> Iterator[tuple[tuple[Placed, ...], torch.Tensor]]:
        """The parameters, and what they have of which tensors, in the order of the groups."""
        for g, group in enumerate(self.optimizer.param_groups):
            for p in group["params"]:
                placed = self.placed_of(id(p))
                if placed is None:
                    raise Absent("a parameter of shape %s in group %d of %s is in no model that "
                                 "is tracked: track the module that has it as well"
                                 % (tuple(p.shape), g, type(self.optimizer).__name__))
                yield placed, p

    def named(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The parameters with all their names, in the order of the groups."""
        for placed, p in self.params():
            for x in placed:
                yield x.name, p

    def held(self) -> list[str]:
        """The names of the parameters whose state this rank has: not the same on all ranks with
        ZeRO, and with views of FSDP1's buffers."""
        return [x.name for group in self.local.param_groups for p in group["params"]
                for x in self.placed_of(id(p)) or () if not is_nothing((x,))]

    def items(self) -> list[Item]:
        """The tensors that the optimizer has now; notes what else its state has."""
        found: list[Item] = []
        self.others, self.listed, self.counts = [], [], None
        state = self.local.state
        for k in state:
            if not isinstance(k, torch.Tensor):
                raise Unsupported("the state of %s has %r, which belongs to no parameter and "
                                  "would be lost: track an object with state_dict() that has it"
                                  % (type(self.optimizer).__name__, k))
        for placed, p in self.params():
            for key, value in state.get(p, {}).items():
                if isinstance(value, torch.Tensor):
                    self.check_value(placed[0].name, key, p, value)
                    found += items_of(placed, STORED.get(key, key), p, value)
                else:
                    self.others += [(x.name, p, key) for x in placed]
        return found

    def check_value(self, name: str, key: str, p: torch.Tensor, value: torch.Tensor) -> None:
        """Checks that another layout can load its part of a value."""
        if not KEY.fullmatch(key) or key in OURS:
            raise Unsupported("the optimizer's state %r of %s has no name in a checkpoint"
                              % (key, name))
        if isinstance(p, DTensor) and not isinstance(value, DTensor) and value.numel() > 1 and \
                not all(isinstance(x, Replicate) for x in p.placements):
            raise Unsupported("the optimizer's state %s of %s is a plain tensor of this rank, and "
                              "the parameter is sharded (%s): what the others have of it cannot "
                              "be known" % (key, name, tuple(p.placements)))

    def plain(self) -> dict[str, dict[str, Any]]:
        """What the state has beside the tensors of items(), by name and key."""
        found: dict[str, dict[str, Any]] = {}
        for name, p, key in self.others:
            found.setdefault(name, {})[key] = self.local.state[p][key]
        return found

    def steps(self) -> set[Optional[int]]:
        """The step counts that parameters have."""
        if self.counts is not None:
            return set(map(whole_step, set(map(attrgetter("value"), self.counts))))
        return {whole_step(v["step"]) for v in list(self.local.state.values()) if "step" in v}

    def groups(self) -> str:
        """param_groups as JSON, with the names that items() saw in place of parameters."""
        groups = self.optimizer.param_groups
        if not self.listed:
            list(self.params())         # all of them must have names
            self.listed = [json.dumps([n for p in g["params"] for n in self.names_of(p)])
                           for g in groups]
        made = []
        for listed, group in zip(self.listed, groups):
            options = json.dumps({k: jsonable(k, v) for k, v in group.items() if k not in NAMES},
                                 allow_nan=False)
            made.append('{"params": %s%s%s' % (listed, ", " if len(options) > 2 else "",
                                               options[1:]))
        return "[%s]" % ", ".join(made)

    # ---- loading ----

    def prepare(self, stored: Stored) -> list[Item]:
        """The tensors to load into, for what is stored of each parameter.

        Tensors that the optimizer has are filled in place, and others are created. The optimizer
        gets them only in accept(), so a load that fails leaves it as it was.
        """
        keys: dict[str, list[str]] = {}
        for full in stored:
            name, _, key = full.rpartition("/")
            keys.setdefault(name, []).append(key)
        self.pending = {}
        found: list[Item] = []
        for group in self.local.param_groups:
            for p in group["params"]:
                placed = self.placed_of(id(p)) or ()
                now = self.local.state.get(p, {})
                values: dict[str, Any] = {}
                there = {key: x.name for x in reversed(placed) for key in keys.get(x.name, [])}
                if is_nothing(placed):          # other ranks have all of it
                    there = {}
                for key in sorted(there):
                    ours = OURS.get(key, key)
                    value = now.get(ours)
                    if not isinstance(value, torch.Tensor):
                        dtype, shape = stored["%s/%s" % (there[key], key)]
                        if shape and placed[0].shape != PLAIN:
                            shape = tuple(p.shape)
                        value = made(p, group, ours, dtype, shape)
                    values[ours] = value
                    found += items_of(placed, key, p, value)
                self.pending[id(p)] = values
        return found

    def accept(self, groups: Sequence[Group], plain: Mapping[str, Mapping[str, Any]],
               strict: bool = True, updates: Optional[int] = None) -> None:
        """Gives the optimizer what was loaded: its state, and the options of its groups.

        plain    what the state has beside tensors, by name and key
        strict   False: the state of a parameter that the checkpoint lacks stays as it is
        updates  see count()
        """
        known = {name for group in groups for name in group["params"]}
        state_of = self.local.state
        for group in self.local.param_groups:
            for p in group["params"]:
                names = self.names_of(p) or [""]
                values = self.pending.get(id(p), {})
                if not is_nothing(self.placed_of(id(p)) or ()):
                    values.update(plain.get(names[0], {}))
                self.count(p, group, values, updates)
                if values:
                    state = state_of[p]
                    for key in [k for k in state if k not in values]:
                        del state[key]
                    state.update(values)
                elif p in state_of and (strict or names[0] in known):
                    del state_of[p]
        self.pending = {}
        for old, options in list(self.matched(groups)):
            for key, value in options.items():
                if key not in NAMES:
                    old[key] = restored(value, old.get(key))

    def count(self, p: torch.Tensor, group: Mapping[str, Any], values: dict[str, Any],
              updates: Optional[int]) -> None:
        """Adds the count of updates to both moments of Adam that were stored without one.

        updates  what the checkpoint says for all parameters; None: nothing, so the optimizer keeps
                 the count that it has
        """
        old = self.local.state.get(p, {}).get("step")
        if not MOMENTS <= values.keys() or "step" in values:
            return
        if updates is not None and (old is not None or isinstance(self.local, COUNTING)):
            values["step"] = counted(p, group, old, updates)
        elif old is not None:
            values["step"] = old

    def accept_some(self, plain: Mapping[str, Mapping[str, Any]], updates: Optional[int]) -> None:
        """Gives the optimizer those values of its state that were loaded, and leaves the rest."""
        for group in self.local.param_groups:
            for p in group["params"]:
                values = self.pending.get(id(p), {})
                for name in self.names_of(p)[:1]:
                    values.update(plain.get(name, {}))
                self.count(p, group, values, updates)
                if values:
                    self.local.state[p].update(values)
        self.pending = {}

    def check_groups(self, stored: Sequence[Group], strict: bool) -> None:
        """Raises unless every group was stored; accept() needs their options."""
        for _ in self.params() if strict else ():       # all of them must have names
            pass
        known = [id(group) for group, _ in self.matched(stored)]
        for group in self.optimizer.param_groups:
            if strict and group["params"] and id(group) not in known:
                raise Unsupported("no options are stored for the parameter group that begins with "
                                  "%s; strict=False keeps those that it has"
                                  % self.names_of(group["params"][0])[0])

    def check_counts(self, stored: Stored, plain: Mapping[str, Mapping[str, Any]],
                     strict: bool) -> None:
        """Raises sheaf.Mismatch if Adam of torch would get moments of a parameter without a count
        of its updates, with which its next step would fail.

        strict  False: the count that the optimizer has will do
        """
        if not isinstance(self.local, COUNTING):
            return
        for name, p in ((n, p) for g in self.local.param_groups for p in g["params"]
                        for n in self.names_of(p)):
            if "%s/moment1_0" % name in stored and "%s/step" % name not in stored and \
                    "step" not in plain.get(name, {}) and \
                    (strict or "step" not in self.local.state.get(p, {})):
                raise error("ELAYOUT", "the checkpoint has moments of %s and does not say how many "
                            "updates were made: it has neither optimizer/%s/step nor the note "
                            "adam.step; only='model' loads the weights alone" % (name, name))

    def matched(self, stored: Sequence[Group]) -> Iterator[tuple[dict[str, Any], Group]]:
        """Each group of the optimizer, and the stored group that has its parameters. One without
        parameters gets the stored group of its number, if there were as many.

        Raises Unsupported if its parameters were stored in groups with different options.
        """
        where = {name: i for i, group in enumerate(stored) for name in group["params"]}
        used: set[int] = set()
        for group in self.optimizer.param_groups:
            names = [n for p in group["params"] for n in self.names_of(p)]
            known: dict[int, str] = {}
            for n in names:
                if n in where:
                    known.setdefault(where[n], n)
            if len(known) > 1 and len({options_of(stored[i]) for i in known}) > 1:
                raise Unsupported("%s and %s are in one parameter group, and were stored in two "
                                  "with different options" % tuple(list(known.values())[:2]))
            if known:
                used.add(min(known))
                yield group, stored[min(known)]
        many = len(self.optimizer.param_groups)
        for g, group in enumerate(self.optimizer.param_groups):
            alike = [s for i, s in enumerate(stored) if s.at == (self.number, g, many) and
                     (i not in used or not s["params"])]
            if alike and not group["params"]:
                yield group, min(alike, key=lambda s: len(s["params"]) > 0)


def is_nothing(placed: Sequence[Placed]) -> bool:
    """Whether a parameter has no item of any tensor, as views of FSDP1's buffers may."""
    return bool(placed) and all(x.flat is not None and x.flat[1] == 0 for x in placed)


def items_of(placed: Sequence[Placed], key: str, p: torch.Tensor,
             value: torch.Tensor) -> list[Item]:
    """A value of the state of a parameter as it is stored: for each tensor of which the parameter
    has a part. One number, such as a step, is stored for each of them, and loaded for the first."""
    names = ["%s/%s" % (x.name, key) for x in placed]
    if placed[0].shape == PLAIN:
        return [Item(FAMILY, names[0], value)]
    if value.shape == p.shape:
        return [Item(FAMILY, n, value, at=x.on(p, value)) for n, x in zip(names, placed)]
    if value.numel() == 1:
        return [Item(FAMILY, n, value, save_only=i > 0) for i, n in enumerate(names)]
    raise Unsupported("the optimizer's state %s has shape %s and its parameter, which is a part of "
                      "a tensor, has %s: what the others have of it cannot be known"
                      % (names[0], tuple(value.shape), tuple(p.shape)))


def options_of(group: Mapping[str, Any]) -> str:
    """The options of a group as a text to compare."""
    return repr(sorted((k, repr(v)) for k, v in group.items() if k not in NAMES))


def made(p: torch.Tensor, group: Mapping[str, Any], key: str, dtype: str,
         shape: Shape) -> torch.Tensor:
    """A tensor of zeros for a value that is stored and that the optimizer lacks."""
    if dtype not in TORCH_DTYPES:
        raise Unsupported("the optimizer's state %s is stored as %s, which torch lacks"
                          % (key, dtype))
    kind = TORCH_DTYPES[dtype]
    if key == "step":                   # as torch.optim places it
        device = p.device if group.get("capturable") or group.get("fused") else "cpu"
        return torch.zeros(shape, dtype=kind, device=device)
    p = p.detach()
    if tuple(p.shape) == shape:
        return torch.zeros_like(p, dtype=kind)
    if p.dtype == torch.complex128 and kind == torch.float64 and shape == (*p.shape, 2):
        return torch.zeros_like(p)      # it is stored as pairs
    if not shape:
        return torch.zeros((), dtype=kind, device=p.device)
    return p.new_zeros(shape, dtype=kind)   # of a DTensor: on every rank


def counted(p: torch.Tensor, group: Mapping[str, Any], old: Any, updates: int) -> Any:
    """The step count of a parameter, in the form of the one that the optimizer has, if any."""
    if isinstance(old, (int, float)):
        return type(old)(updates)
    if isinstance(old, torch.Tensor):
        return torch.full_like(old, updates)
    return made(p, group, "step", "F32", ()).fill_(updates)


def jsonable(key: str, value: Any) -> Any:
    """An option of a parameter group as JSON has it; tensors of one item become numbers."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [jsonable(key, v) for v in value]
    if isinstance(value, torch.dtype) and value in DTYPES:
        return str(value)[6:]
    raise Unsupported("the option %s of a parameter group is a %s, which JSON cannot hold"
                      % (key, type(value).__name__))


def restored(value: Any, old: Any) -> Any:
    """An option from JSON, of the type that the group has for it now."""
    if value in ("inf", "-inf", "nan") and not isinstance(old, str):
        value = float(value)
    if isinstance(old, torch.Tensor):
        return old.fill_(value)
    if isinstance(old, torch.dtype):
        return getattr(torch, value)
    if isinstance(value, list):
        items = [restored(v, None) for v in value]
        return items if isinstance(old, list) else tuple(items)
    return value
