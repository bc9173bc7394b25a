# SPDX-License-Identifier: Apache-2.0
"""Which parts of a checkpoint a load wants, and from which stored tensors it fills weights."""
from __future__ import annotations

import fnmatch
from dataclasses import replace
from typing import Iterable, Mapping, Sequence, Union

import torch

from ..binding import error
from ..run import Tensor
from .layout import TORCH_DTYPES
from .model import Item

WEIGHTS = ("model", "master_weights")


class Wanted:
    """Which parts of a checkpoint are loaded: all, or those that a pattern names.

    A pattern is a part ("model", "optimizer", "scheduler", "rng", ...), or a shell pattern for
    "family/name": "model/layers.0.*". Weights are in "model", even if they are loaded from
    master_weights.
    """

    def __init__(self, only: Union[None, str, Sequence[str]]) -> None:
        self.patterns = [only] if isinstance(only, str) else only

    def __call__(self, part: str, name: str = "") -> bool:
        """Whether a part is loaded, or that name of it."""
        return self.patterns is None or any(chosen(p, part, name) for p in self.patterns)

    def some(self, part: str) -> bool:
        """Whether any of a part may be loaded."""
        return self(part) or any(fnmatch.fnmatchcase(part, p.partition("/")[0])
                                 for p in self.patterns or ())

    def check_patterns(self, parts: Iterable[str], names: Mapping[str, Iterable[str]]) -> None:
        """Each pattern must mean something. Raises sheaf.Invalid.

        parts  what can be loaded as a whole
        names  what can be loaded by name, by family
        """
        for p in self.patterns or ():
            if not any(chosen(p, part, "") for part in parts) and \
                    not any(chosen(p, part, n) for part, some in names.items() for n in some):
                raise error("EINVAL", "only=%r: neither a part that is tracked (%s) nor a name "
                            "in the checkpoint matches it" % (p, ", ".join(sorted(parts))))


def chosen(pattern: str, part: str, name: str) -> bool:
    """Whether a pattern means a part, or that name of it."""
    parts = {part, "model"} if part in WEIGHTS else {part}
    return any(pattern in (x, x + "/*") or
               name and fnmatch.fnmatchcase("%s/%s" % (x, name), pattern) for x in parts)


def tie_as_stored(items: list[Item], model: Mapping[str, Tensor]) -> None:
    """Ties names to the one under which the checkpoint has the bytes, if this model has it too."""
    other: dict[str, str] = {}
    for i in items:
        first = model.get(i.tied_to or "")
        if i.family == "model" and first is not None and first.tied_to == i.name:
            other[first.name] = i.name
    for i in items:
        root = other.get(i.tied_to or i.name)
        if root is not None and i.family == "model":
            i.tied_to = None if i.name == root else root
        elif root is not None and i.family == "master_weights":
            i.name = root


def check_ties(items: list[Item], model: Mapping[str, Tensor], wanted: Wanted) -> None:
    """Raises sheaf.Mismatch if two names are one tensor here, and two in the checkpoint."""
    for i in items:
        mine, first = model.get(i.name), model.get(i.tied_to or "")
        if i.family != "model" or mine is None or first is None or not wanted("model", i.name):
            continue
        if (mine.tied_to or mine.name) != (first.tied_to or first.name):
            raise error("ELAYOUT", "model/%s is tied to %s in the model, and in the checkpoint %s: "
                        "it would get the values of another tensor (strict=False loads those)"
                        % (i.name, i.tied_to, "to " + mine.tied_to if mine.tied_to else "it is a "
                           "tensor of its own"))


def check_tied_states(items: list[Item], model: Mapping[str, Tensor],
                      states: Mapping[str, Tensor], updated: set[str]) -> None:
    """Raises sheaf.Mismatch if two names are two tensors here, and one in the checkpoint, of which
    an optimizer has state: the second tensor would get none.

    updated  the names of the parameters that an optimizer has here
    """
    own = {i.name: i.tied_to or i.name for i in items if i.family == "model"}
    have = {name.rpartition("/")[0] for name in states}
    for name, root in own.items():
        tied = model[name].tied_to if name in model else None
        if tied in own and own[tied] != root and tied in have and name not in have and \
                name in updated:
            raise error("ELAYOUT", "model/%s is tied to %s in the checkpoint, and a tensor of its "
                        "own in the model, for which an optimizer would get no state: tie them, "
                        "after to_empty() if the model was on the meta device (strict=False loads "
                        "both)" % (name, tied))


def from_stored(items: list[Item], stored: Mapping[str, Mapping[str, Tensor]],
                wanted: Wanted) -> list[Item]:
    """The items of models for a load; those that are wanted, by any name of the tensor.

    F32 weights are filled from their masters if the checkpoint has them, and from family model
    otherwise, whatever this training stores. Names that are tied in the checkpoint share a master,
    from which several tensors are filled if this model does not tie them.
    """
    masters, model = stored.get("master_weights", {}), stored.get("model", {})
    tie_as_stored(items, model)
    names: dict[str, list[str]] = {}    # of each tensor of the models, by its first name
    for i in items:
        if i.family == "model":
            names.setdefault(i.tied_to or i.name, []).append(i.name)
    found: list[Item] = []
    used: set[str] = set()              # masters from which a tensor is filled

    def fill(item: Item, master: str) -> None:
        if any(wanted("master_weights", n) for n in names[item.name]):
            found.append(replace(item, family="master_weights", name=master, copy=master in used))
            used.add(master)

    for item in items:
        first = item.tied_to or item.name
        there = model.get(first)
        root = there.tied_to if there is not None else None
        master = next((n for n in (first, root) if n in masters), None)
        if item.family == "master_weights":
            if master is None:
                found.append(replace(item, family="model"))
            else:
                fill(item, master)
        elif item.save_only:
            if master is not None:
                found.append(item)
            elif item.tied_to is not None:
                found.append(replace(item, store=None, save_only=False))
        elif there is None or master is None or item.tensor.dtype != torch.float32 or \
                TORCH_DTYPES.get(there.dtype) == torch.float32:
            found.append(item)
        else:
            found.append(replace(item, store=there.dtype, save_only=True))
            if item.tied_to is None:
                fill(item, master)
    return [i for i in found if i.family == "master_weights" or wanted(i.family, i.name)]
