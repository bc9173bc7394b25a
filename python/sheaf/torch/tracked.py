# SPDX-License-Identifier: Apache-2.0
"""The objects that a Checkpointer tracks, as the tensors and documents that it saves and loads.

In addition to tensors a checkpoint has:

    param_groups.json   the options of the optimizers, with parameters by name (doc/format.md)
    trainer.json        the document of what is the same on all ranks: schedulers, the gradient
                        scaler, what optimizers have beside tensors, extra state of modules
    stream "trainer"    a document of each rank: its random streams and its loaders, as bytes of
                        ranks (sheaf_save_rank_bytes)

If a rank has other parameters than rank 0, as with pipeline stages, it writes the first two for its
own parameters, with its number in the name: param_groups-<r>.json, trainer-<r>.json.
"""
from __future__ import annotations

import ctypes
import fnmatch
import hashlib
import json
import logging
import re
from dataclasses import replace
from typing import Any, Iterable, Mapping, Optional, Protocol, Sequence, Union

import torch
from torch import nn

from ..binding import error
from ..errors import NotFound
from ..run import Checkpoint, Tensor
from ..tree import GAP
from . import document, rng
from .layout import Unsupported
from .model import Item, Model
from .optimizer import FAMILY, Group, Optimizer, groups_of
from .placed import Parts, Placed
from .sources import Wanted, check_tied_states, check_ties, from_stored

log = logging.getLogger("sheaf")
GROUPS, TRAINER = "param_groups", "trainer"
OWN = re.compile(r"(%s|%s)(-[0-9]+)?\.json" % (GROUPS, TRAINER))
STREAM = "trainer"
ADAM = "adam.step"                      # a note of doc/format.md, section 13
COUNT = re.compile(r"[0-9]{1,15}")


class Stateful(Protocol):
    """Anything with a state_dict, as schedulers, scalers and loaders have it."""

    def state_dict(self) -> Any:
        """The state: anything that a document can hold."""

    def load_state_dict(self, state: Any) -> Any:
        """Takes the state back."""


Few = Union[None, Stateful, Iterable[Stateful]]


def few(what: str, given: Few) -> list[Stateful]:
    """One object or several as a list. TypeError: one has no state_dict."""
    if given is None:
        return []
    found: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given]
    for x in found:
        if not hasattr(x, "state_dict") or not hasattr(x, "load_state_dict"):
            more = "; use torchdata's StatefulDataLoader, or sheaf.torch.CountedLoader(loader), " \
                "which counts the batches that were taken" if what == "loader" else ""
            raise TypeError("%s: a %s has no state_dict() and load_state_dict()%s"
                            % (what, type(x).__name__, more))
    return found


class Tracked:
    """The objects of one training on this rank.

    ignored  patterns of tensors, family/name, that loads leave out
    """

    def __init__(self, store_dtype: Optional[torch.dtype] = None,
                 ignored: Sequence[str] = ()) -> None:
        self.store_dtype, self.ignored = store_dtype, ignored
        self.models: list[Model] = []
        self.optimizers: list[Optimizer] = []
        self.parts: dict[str, list[Stateful]] = {}      # same on all ranks: scheduler, scaler, ...
        self.loaders: list[Stateful] = []
        self.streams: dict[str, Any] = {}
        self.names: dict[int, tuple[Placed, ...]] = {}  # of each parameter, by its id()
        self.ids: list[int] = []                        # of the tensors that items() listed
        self.spans: list[range] = []                    # of items: those of each optimizer
        self.python: tuple[Any, bytes] = None, b""      # Python's random stream as it is written
        self.listed = 0                                 # how often items() was called
        self.called = False                             # whether track() was called
        self.digest = 0, b""                            # of the layout, when it was so often

    def add(self, model: Optional[nn.Module], optimizers: Sequence[Any], prefix: str,
            loader: Few, streams: Optional[Mapping[str, Any]], parts: Mapping[str, Few],
            split: Parts = None) -> None:
        """Adds objects; TypeError or ValueError: one of them cannot be tracked."""
        if isinstance(model, torch.optim.Optimizer):
            raise TypeError("track(model, *optimizers): the first argument is an optimizer; "
                            "give None in place of the model")
        if model is not None and not isinstance(model, nn.Module):
            raise TypeError("track(model): a %s is no torch.nn.Module" % type(model).__name__)
        if model is not None and prefix in [m.prefix for m in self.models]:
            raise ValueError("a model with prefix %r is tracked already: give another prefix, "
                             "which goes before all names" % prefix)
        for o in optimizers:
            if not hasattr(o, "param_groups") or not hasattr(o, "state"):
                raise TypeError("a %s is no optimizer: it lacks param_groups or state"
                                % type(o).__name__)
        found = {what: few(what, given) for what, given in parts.items()}
        loaders = few("loader", loader)
        for name, stream in (streams or {}).items():
            rng.read_one(name, stream)
        if model is not None:
            self.models.append(Model(model, prefix, self.store_dtype, split))
        self.optimizers += [Optimizer(o, self.names.get, i) for i, o in
                            enumerate(optimizers, len(self.optimizers))]
        for what, objects in found.items():
            if objects:
                self.parts.setdefault(what, []).extend(objects)
        self.loaders += loaders
        self.streams.update(streams or {})

    def check_called(self) -> None:
        """Raises sheaf.Invalid if track() was never called."""
        if not self.called:
            raise error("EINVAL", "nothing is tracked: call track(model, optimizer) first")

    def __str__(self) -> str:
        words = [type(m.module).__name__ for m in self.models]
        words += [type(o.optimizer).__name__ for o in self.optimizers]
        words += [type(x).__name__ for found in self.parts.values() for x in found]
        words += [type(x).__name__ for x in self.loaders]
        return ", ".join(words) or "nothing"

    # ---- saving ----

    def items(self) -> list[Item]:
        """All tensors as they are now: those of models first, then those of optimizers."""
        self.listed += 1
        found = self.weights()
        self.check_optimizers()
        self.spans = []
        for o in self.optimizers:
            before = len(found)
            found += o.items()
            self.spans.append(range(before, len(found)))
        check_names(found)
        self.ids = [id(i.tensor if i.owner is None else i.owner) for i in found]
        return found

    def check_optimizers(self) -> None:
        """Refuses a parameter of two optimizers: names and groups would be ambiguous."""
        owner: dict[int, Optimizer] = {}
        for o in self.optimizers if len(self.optimizers) > 1 else ():
            for name, p in o.named():
                if owner.setdefault(id(p), o) is not o:
                    raise Unsupported("%s is in two optimizers that are tracked, a %s and a %s: "
                                      "their state would have one name" %
                                      (name, type(owner[id(p)].optimizer).__name__,
                                       type(o.optimizer).__name__))

    def weights(self) -> list[Item]:
        """The tensors of the models; refreshes the names of the parameters, too."""
        found: list[Item] = []
        self.names.clear()
        for m in self.models:
            found += m.items()
            self.names.update(m.parameters())
        return found

    def name_as_stored(self, model: Mapping[str, Tensor]) -> None:
        """Calls parameters by the names that are stored, where another of their names is tied to
        them in the checkpoint: state of optimizers has these."""
        taken = {x.name for placed in self.names.values() for x in placed}
        roots = {t.name: t.tied_to for t in model.values()
                 if t.tied_to is not None and t.tied_to not in taken}
        for key, placed in self.names.items() if roots else ():
            self.names[key] = tuple(replace(x, name=roots.get(x.name, x.name)) for x in placed)

    def layout_digest(self) -> bytes:
        """The same on ranks whose optimizers have the same parameters, groups and state, and models
        the same extra state: one of them writes the documents for all."""
        if self.digest[0] != self.listed:
            names = [[[n for n, _ in o.named()], o.held(),
                      [len(g["params"]) for g in o.optimizer.param_groups]]
                     for o in self.optimizers]
            text = json.dumps([names, sorted(self.extra())])
            self.digest = self.listed, hashlib.sha256(text.encode()).digest()
        return self.digest[1]

    def extra(self) -> set[str]:
        """The names of the extra state that modules of this rank have."""
        return {n for m in self.models for n in m.extra}

    def documents(self, rank: int, writes: bool) -> dict[str, bytes]:
        """The files that this rank attaches.

        writes  whether it is the first of the ranks with its parameters
        """
        found: dict[str, bytes] = {}
        numbered = "" if rank == 0 else "-%d" % rank
        if writes and self.optimizers:
            groups = [text for text in (o.groups()[1:-1] for o in self.optimizers) if text]
            kinds = [{"type": type(o.optimizer).__name__,
                      "groups": len(o.optimizer.param_groups)} for o in self.optimizers]
            found["%s%s.json" % (GROUPS, numbered)] = (
                '{"param_groups": [%s], "optimizers": %s}'
                % (", ".join(groups), json.dumps(kinds))).encode()
        if writes:
            plain: dict[str, Any] = {}
            for o in self.optimizers:
                plain.update(o.plain())
            extra = {n: v for m in self.models for n, v in m.extra_state().items()}
            parts = {what: [x.state_dict() for x in objects]
                     for what, objects in self.parts.items()} if rank == 0 else {}
            value = {"optimizer": plain, "extra_state": extra, "parts": parts}
            if rank == 0 or plain or extra:
                name = "%s%s.json" % (TRAINER, numbered)
                found[name] = document.dumps(value, name)
        if rank == 0:
            for m in self.models:
                found.update(m.files())
        return found

    def rank_document(self) -> bytes:
        """The document of this rank only.

        The 625 numbers of Python's random stream, which most trainers do not use, are written anew
        only if they have changed.
        """
        streams = rng.read(self.streams)
        if streams["python"] != self.python[0]:
            self.python = streams["python"], document.text(streams["python"], STREAM)
        streams["python"] = GAP         # the first key, so this gap is the first one
        made = document.dumps({"rng": streams, "loader": [x.state_dict() for x in self.loaders]},
                              STREAM)
        return made.replace(document.text(GAP, STREAM), self.python[1], 1)

    def note(self) -> Optional[str]:
        """The step that all parameters have, for the note adam.step; None: they have not, or it
        lies on a device and would have to be waited for."""
        steps: set[Optional[int]] = set().union(*(o.steps() for o in self.optimizers))
        only = steps.pop() if len(steps) == 1 else None
        return None if only is None else str(only)

    # ---- loading ----

    def to_load(self, checkpoint: Checkpoint, wanted: Wanted, strict: bool, rank: int,
                ranks: int) -> Restore:
        """What a load of that checkpoint fills, and the documents to give back afterwards.

        Raises sheaf.Mismatch if the checkpoint lacks a document of something that is tracked.
        """
        self.check_called()
        stored: dict[str, dict[str, Tensor]] = {}
        for t in checkpoint.tensors():
            stored.setdefault(t.family, {})[t.name] = t
        weights = self.weights()
        check_names(weights)
        if strict:
            check_ties(weights, stored.get("model", {}), wanted)
            check_stored(weights, stored, wanted)
        items = from_stored(weights, stored, wanted)
        self.name_as_stored(stored.get("model", {}))
        restore = Restore(self, wanted, strict)
        restore.read(checkpoint, rank, ranks)
        restore.check_wanted(stored)
        there = stored.get(FAMILY, {})
        restore.states = sorted(n for n in there if wanted(FAMILY, n) and not any(
            fnmatch.fnmatchcase("%s/%s" % (FAMILY, n), x) for x in self.ignored))
        if wanted.some("optimizer") and self.optimizers:
            if not there and not restore.groups and strict:
                raise error("ELAYOUT", "the checkpoint has no state of an optimizer; only='model' "
                            "loads the weights alone")
            tensors = {n: (t.dtype, t.shape) for n, t in there.items() if wanted(FAMILY, n)}
            self.check_optimizers()
            if strict and wanted(FAMILY):
                check_tied_states(weights, stored.get("model", {}), there,
                                  {n for o in self.optimizers for n in o.held()})
            for o in self.optimizers:
                if restore.groups and wanted(FAMILY):
                    o.check_groups(restore.groups, strict)
                if restore.updates is None:
                    o.check_counts(tensors, restore.plain, strict and wanted(FAMILY))
                items += [i for i in o.prepare(tensors) if wanted(i.family, i.name)]
        restore.items = items
        for item in restore.items:
            item.optional = not strict
        return restore


def check_stored(items: list[Item], stored: Mapping[str, Mapping[str, Tensor]],
                 wanted: Wanted) -> None:
    """Raises sheaf.Mismatch if the checkpoint has a model, and no tensor of this one: all names
    differ. The library would name one, but later than the optimizers say what they miss."""
    model, masters = stored.get("model", {}), stored.get("master_weights", {})
    mine = [i.name for i in items if i.family == "model" and wanted("model", i.name)]
    parts = {n.partition(":")[0] for n in model}        # of tensor subclasses
    if mine and model and not any(n in model or n in masters or n in parts for n in mine):
        raise error("ELAYOUT", "none of the %d names of this model is stored: it has model/%s, and "
                    "the checkpoint model/%s" % (len(mine), min(mine), min(model)))


def check_names(items: list[Item]) -> None:
    """Raises Unsupported if two tensors have one name."""
    seen: dict[tuple[str, str], torch.Tensor] = {}
    for i in items:
        if seen.setdefault((i.family, i.name), i.tensor) is not i.tensor:
            raise Unsupported("two tensors that are tracked are called %s/%s: give one model "
                              "another prefix" % (i.family, i.name))


def position(states: list[Any]) -> bytes:
    """Equal for loaders at the same position. The random streams of a CountedLoader do not count,
    because each rank has its own."""
    plain = [{k: v for k, v in s.items() if k != "start"}
             if isinstance(s, dict) and set(s) == {"consumed", "epoch", "start"} else s
             for s in states]
    return document.dumps(plain, "loader")


class Restore:
    """The documents of a checkpoint, read before a load and restored after it."""

    def __init__(self, tracked: Tracked, wanted: Wanted, strict: bool) -> None:
        self.tracked, self.wanted, self.strict = tracked, wanted, strict
        self.items: list[Item] = []
        self.states: list[str] = []     # stored tensors of optimizers that are wanted
        self.updates: Optional[int] = None      # made by the optimizer, by a note

    def read(self, checkpoint: Checkpoint, rank: int, ranks: int) -> None:
        """Reads the documents. Raises sheaf.Mismatch if one is absent, sheaf.Corrupt for damage."""
        self.checkpoint = checkpoint
        self.groups: list[Group] = []
        self.plain: dict[str, Any] = {}
        self.extra: dict[str, Any] = {}
        self.parts: dict[str, list[Any]] = {}
        self.rank: dict[str, Any] = {}
        self.notes = checkpoint.notes()
        count = self.notes.get(ADAM, "")
        self.updates = int(count) if COUNT.fullmatch(count) else None
        for name in checkpoint.files():
            own = OWN.fullmatch(name)
            if own is not None and own[1] == GROUPS:
                self.groups += groups_of(checkpoint.file(name))
            elif own is not None:
                value = document.loads(checkpoint.file(name), name)
                self.plain.update(value["optimizer"])
                self.extra.update(value["extra_state"])
                self.parts.update(value["parts"])
        if self.strict:
            self.check_documents()
        self.read_rank(rank, ranks)

    def check_documents(self) -> None:
        """Objects and extra state must be the same. Raises sheaf.Mismatch."""
        tracked = self.tracked.parts
        for what in sorted({*tracked, *(self.parts if self.wanted.patterns is None else ())}):
            mine, there = len(tracked.get(what, [])), len(self.parts.get(what, []))
            if self.wanted(what) and there != mine:
                raise error("ELAYOUT", "%s: this job tracks %d, and the checkpoint has %d "
                            "(strict=False loads without it)" % (what, mine, there))
        for n in sorted(self.tracked.extra() - self.extra.keys()):
            if self.wanted("model", n):
                raise error("ELAYOUT", "model/%s is extra state of a module, which the checkpoint "
                            "lacks (strict=False leaves it as it is)" % n)

    def places(self) -> set[str]:
        """The extra states that this rank tracks, and FAMILY if a tensor of an optimizer that is
        stored is of one of its parameters."""
        takes = any(i.family == FAMILY for i in self.items)
        return self.tracked.extra() | ({FAMILY} if takes else set())

    def check_places(self, names: set[str]) -> None:
        """A rank must track each extra state, and a parameter of an optimizer that is stored;
        `names` are the places() of all ranks. Raises sheaf.Mismatch."""
        everything = self.wanted.patterns is None
        if self.states and not self.tracked.optimizers and FAMILY not in names and everything:
            raise error("ELAYOUT", "the checkpoint has the state of an optimizer, and no optimizer "
                        "is tracked: track it, or load with only='model'")
        if self.states and FAMILY not in names and self.tracked.optimizers:
            raise error("ELAYOUT", "the checkpoint has the state of an optimizer for other names "
                        "than those of the parameters that are tracked, such as optimizer/%s; "
                        "rename them with sheaf import --map, or load with only='model', which "
                        "leaves the optimizer as it is" % self.states[0])
        for n in sorted(self.extra.keys() - names if self.wanted.patterns is None else ()):
            raise error("ELAYOUT", "model/%s is stored, and is extra state of no module of any "
                        "rank (strict=False loads without it)" % n)

    def check_wanted(self, stored: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Raises sheaf.Invalid if a pattern of `only` matches nothing. The result is the same on
        all ranks, because a pattern may match what only some of them hold."""
        parts = {"rng", *self.tracked.parts, *(f for f in ("model", FAMILY) if f in stored)}
        parts |= {"optimizer"} if self.tracked.optimizers else set()
        parts |= {"model"} if self.tracked.models else set()
        parts |= {"loader"} if self.tracked.loaders else set()
        names: dict[str, set[str]] = {family: set(found) for family, found in stored.items()}
        names.setdefault("model", set()).update(self.extra)
        names.setdefault(FAMILY, set()).update("%s/%s" % (name, k) for name, values in
                                               self.plain.items() for k in values)
        if not self.strict:             # what the checkpoint lacks may be named as well
            names["model"].update(x.name for m in self.tracked.models
                                  for placed in m.parameters().values() for x in placed)
        self.wanted.check_patterns(parts, names)

    def read_rank(self, rank: int, ranks: int) -> None:
        """Reads what was stored for this rank, or the one that takes its place."""
        c = self.checkpoint.c
        info = c.new("sheaf_checkpoint_info")
        c.call("sheaf_checkpoint_get_info", self.checkpoint.pointer, ctypes.byref(info))
        saved = max(1, int(info.ranks))
        try:
            self.rank = self.read_one(rank % saved)
        except NotFound:
            if self.strict and (self.tracked.loaders and self.wanted("loader")):
                raise error("ELAYOUT", "the checkpoint has no state of a loader; strict=False "
                            "begins the data anew")
            return
        if rank == 0 and saved < ranks and self.wanted("rng"):
            log.warning("the checkpoint has random streams of %d rank%s, and this job has %d "
                        "ranks: rank r goes on with those of rank r %% %d, so some ranks draw the "
                        "same numbers; seed them anew after the load, or load with only=[...] "
                        "without \"rng\"", saved, "" if saved == 1 else "s", ranks, saved)
        loaders = self.tracked.loaders
        if not loaders or not self.wanted("loader"):
            return
        if self.strict and len(self.rank["loader"]) != len(loaders):
            raise error("ELAYOUT", "%d loaders are tracked, and the checkpoint has the state of %d"
                        % (len(loaders), len(self.rank["loader"])))
        if saved != ranks:
            if any(position(self.read_one(r)["loader"]) != position(self.rank["loader"])
                   for r in range(saved)):
                raise error("ELAYOUT", "the loaders of the %d ranks that saved were at different "
                            "positions, so that %d ranks cannot go on from them; load with "
                            "only=[...] without \"loader\", and set their position yourself"
                            % (saved, ranks))

    def read_one(self, rank: int) -> dict[str, Any]:
        c, at, n = self.checkpoint.c, ctypes.c_void_p(), ctypes.c_size_t()
        c.call("sheaf_checkpoint_rank_bytes", self.checkpoint.pointer, STREAM.encode(), rank,
               ctypes.byref(at), ctypes.byref(n))
        found: dict[str, Any] = document.loads(ctypes.string_at(at, n.value),
                                               "%s of rank %d" % (STREAM, rank))
        return found

    def tell_doubts(self) -> None:
        """Logs what a checkpoint of another program does not say about optimizers."""
        if not self.states or not self.tracked.optimizers:
            return
        if not self.groups:
            log.warning("the checkpoint has no options of parameter groups that can be loaded: "
                        "learning rates, weight decay and so on stay those of this job")
        names = self.notes.get("optimizer.names", "")
        if names.startswith("assumed"):
            log.warning("the names in the state of the optimizer are %s", names)

    def accept(self) -> None:
        """Restores all objects; random streams last."""
        t, wanted = self.tracked, self.wanted
        self.tell_doubts()
        for m in t.models:
            m.set_extra_state({n: v for n, v in self.extra.items() if wanted("model", n)})
        plain = {n: {k: v for k, v in values.items() if wanted(FAMILY, "%s/%s" % (n, k))}
                 for n, values in self.plain.items()}
        for o in t.optimizers if wanted(FAMILY) else ():
            o.accept(self.groups, plain, self.strict, self.updates)
        for o in t.optimizers if wanted.some(FAMILY) and not wanted(FAMILY) else ():
            o.accept_some(plain, self.updates)
        for what, objects in t.parts.items():
            if wanted(what):
                for x, state in zip(objects, self.parts.get(what, [])):
                    x.load_state_dict(state)
        if self.rank and wanted("loader"):
            for x, state in zip(t.loaders, self.rank["loader"]):
                x.load_state_dict(state)
        if self.rank and wanted("rng"):
            rng.write(self.rank["rng"], t.streams)
