# SPDX-License-Identifier: Apache-2.0
"""The saves in the background of a Checkpointer, and the gates of its optimizers.

Only what an optimizer changes in step() is copied while the training continues: the parameters in
its param_groups and its state. Its gate is a hook before step(), before all other such hooks.
Everything else may change at any moment, such as buffers in a forward pass. It is copied before
save_async returns. What lies on a device is copied before the work that its current stream is given
afterwards.
"""
from __future__ import annotations

import atexit
import logging
import os
import sys
import time
import weakref
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Protocol, Sequence

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..errors import Error
from ..run import Save
from .accumulated import Watched, check_accumulated, keeps_gradients
from .devices import flat
from .loading import sentence
from .optimizer import Optimizer
from .pending import Pending, give_up
from .plan import Plan
from .ranks import together
from .tracked import Tracked
from .transfer import BATCH, FREE, Batch, Transfer, numbers
from .turns import Turns

log = logging.getLogger("sheaf")
LEAVE_SECONDS = 5.0                     # how long a rank that leaves waits for the others


class Optimizing(Protocol):
    """An optimizer whose step() is a gate."""

    @property
    def optimizer(self) -> Any: ...

    def names_of(self, p: torch.Tensor) -> Sequence[str]:
        """The names of the stored tensors of which a parameter has a part, if they are known."""


class Objects(Protocol):
    """What is saved: `ids` has the id() of each item's parameter or buffer, `spans` says which
    items are the state of which optimizer. `listed` differs from one list to the next."""

    ids: list[int]
    spans: list[range]

    @property
    def listed(self) -> Any: ...

    @property
    def optimizers(self) -> Sequence[Optimizing]: ...


def has_gate(o: Optimizing) -> bool:
    """Whether an optimizer calls hooks before step(), as those of torch.optim do."""
    return isinstance(getattr(o.optimizer, "_optimizer_step_pre_hooks", None), dict)


@dataclass
class Shares:
    """Which gate protects what a plan lists.

    gated    of each optimizer: the slices in host memory that its gate opens
    at_once  the slices in host memory that no gate protects
    host     all slices in host memory
    batches  what lies on devices
    """

    gated: list[Any]
    at_once: Any
    host: Any
    batches: list[Batch] = field(default_factory=list)


class Background:
    """The saves in flight, oldest first."""

    def __init__(self) -> None:
        self.pending: list[Pending] = []
        self.failure: Optional[Error] = None    # the first that no result() has reported
        self.left_out = 0
        self.watched = Watched()
        self.wrappers: list[Any] = []           # modules whose gradients may wait
        self.seen = -1                          # how often items were listed before that
        self.hooks: dict[int, Any] = {}         # before step(), by the number of the optimizer
        self.ends: list[Any] = []               # other hooks that are removed at the end
        self.others: Any = None                 # one before step() of any optimizer
        self.key: Any = None
        self.listed: Any = None
        self.found = Shares([], (), ())

    # ---- gates ----

    def watch(self, tracked: Objects, turns: Turns) -> None:
        """Puts a gate before step() of each optimizer that has none yet."""
        for i, o in enumerate(tracked.optimizers):
            if i not in self.hooks and has_gate(o):
                self.hooks[i] = hook = o.optimizer.register_step_pre_hook(opens(self, i, turns))
                o.optimizer._optimizer_step_pre_hooks.move_to_end(hook.id, last=False)
                self.ends.append(o.optimizer.register_step_post_hook(ends(self, turns)))
        if tracked.optimizers and self.others is None:
            self.others = register_optimizer_step_pre_hook(opens_all(self, tracked))
            self.ends.append(self.others)

    def open(self, optimizer: int) -> None:
        """The gate of one optimizer, in all saves in flight."""
        for p in tuple(self.pending):           # another thread may forget some meanwhile
            p.open(optimizer)

    def shares(self, tracked: Objects, plan: Plan) -> Shares:
        """Which slices the gate of each optimizer opens, and which must be copied at once."""
        listed = (plan.made, tracked.listed, len(self.hooks))
        if listed == self.listed:
            return self.found
        self.listed = listed
        key = (plan.made, sorted(self.hooks), tracked.ids,
               [[list(map(id, g["params"])) for g in o.optimizer.param_groups]
                for o in tracked.optimizers])
        if key == self.key:
            return self.found
        owners: dict[int, list[int]] = {}       # of a parameter, by its id()
        for i in self.hooks:
            for group in tracked.optimizers[i].optimizer.param_groups:
                for p in group["params"]:
                    owners.setdefault(id(p), []).append(i)
        gated: list[list[int]] = [[] for _ in tracked.optimizers]
        at_once: list[int] = []
        state_of = {n: [i] for i, span in enumerate(tracked.spans) if i in self.hooks
                    for n in span}
        gates: dict[int, int] = {}              # of what lies on a device
        for n, slices in enumerate(plan.of_items):
            whose = state_of.get(n) or owners.get(tracked.ids[n]) or []
            for k in slices:
                at = plan.home.get(plan.slices[k][0])
                if at is not None:
                    gates[at] = min(gates.get(at, len(gated)), min(whose, default=FREE))
                    continue
                for i in whose:
                    gated[i].append(k)
                if not whose:
                    at_once.append(k)
        host = sorted({*at_once, *(k for some in gated for k in some)})
        self.key = key
        self.found = Shares(list(map(numbers, gated)), numbers(at_once), numbers(host),
                            batches(plan, gates))
        return self.found

    # ---- saves in flight ----

    def carry(self, save: Save, step: int, where: str, tracked: Objects, plan: Plan,
              check: bool = False) -> Pending:
        """Lets a lazy save that has begun go on in the background, and copies at once what no gate
        protects. If that fails, the save is aborted."""
        transfer: Optional[Transfer] = None
        try:
            shares = self.shares(tracked, plan)
            if save.later:
                save.slices_ready(shares.host)
                transfer = Transfer(save, shares.batches, plan.devices, check)
            pending = Pending(step, where, save, shares.gated, plan.held(), check, transfer)
            pending.names = plan.names.__getitem__
            if any(shares.gated) or plan.lies_on:
                pending.wait_slices(shares.at_once)
            else:
                pending.gate()
            if transfer is not None:
                transfer.start()
            save.submit()
        except BaseException as e:
            if transfer is not None:
                transfer.end()
            give_up(save, sentence(e), True)
            raise
        self.pending.append(pending)
        return pending

    def check_step(self, step: Any, tracked: Tracked) -> None:
        """Raises sheaf.Invalid if a save is seen to be between micro-batches, and warns if it only
        seems so."""
        if self.seen != tracked.listed:         # looked at anew when the items were
            self.seen = tracked.listed
            self.wrappers = [m for model in tracked.models for m in model.given.modules()
                             if keeps_gradients(m)]
        check_accumulated(step, self.wrappers)
        if len(tracked.optimizers) == 1 and not tracked.parts.get("scaler"):
            self.watched.look(step, tracked.optimizers[0].optimizer)

    def gate(self) -> None:
        """Waits until all tensors may change."""
        for p in tuple(self.pending):
            p.gate()

    def settle(self) -> None:
        """Before another save or a load: waits until no save reads memory any more."""
        for p in tuple(self.pending):
            p.settle()
        self.reap()

    def reap(self) -> None:
        """Forgets the saves that have ended; a failure is logged."""
        for p in [p for p in tuple(self.pending) if p.done()]:
            try:
                self.pending.remove(p)
            except ValueError:                  # another thread did
                continue
            if p.error is None or p.asked:
                continue
            log.log(logging.WARNING if p.harmless else logging.ERROR,
                    "the save of step %d to %s failed: %s", p.step, p.where, p.error)
            if not p.harmless and self.failure is None:
                self.failure = p.error

    def drain(self) -> None:
        """Waits until all saves in flight have ended. Failures are kept for close()."""
        for p in list(self.pending):
            asked = p.asked
            try:
                p.result()
            except Error:
                p.asked = asked
        self.reap()

    def abort(self, why: str, seconds: float) -> None:
        """Aborts all saves in flight on all ranks, and waits a little for that."""
        for p in tuple(self.pending):
            p.cancel(why)
        end = time.monotonic() + seconds
        while not all([p.done() for p in tuple(self.pending)]) and time.monotonic() < end:
            time.sleep(0.002)

    def free(self) -> None:
        """At the end of the run: removes the gates, and frees all saves."""
        for hook in [*self.hooks.values(), *self.ends]:
            hook.remove()
        self.hooks.clear()
        self.ends.clear()
        self.others = None
        for p in self.pending:
            with p.lock:
                p.end()
        self.pending.clear()


def batches(plan: Plan, gates: dict[int, int]) -> list[Batch]:
    """What lies on devices, in batches.

    gates  the optimizer that each of it belongs to, or FREE
    """
    slices: dict[int, list[int]] = {i: [] for i in gates}
    for k, (i, _) in enumerate(plan.slices):
        if i in plan.home:
            slices[plan.home[i]].append(k)
    found: list[Batch] = []
    open_now: dict[tuple[int, int], Batch] = {}     # by gate and device
    for i in sorted(gates, key=lambda i: gates[i]):
        device = plan.lies_on[i]
        batch = open_now.get((gates[i], id(device)))
        if batch is None or batch.bytes >= BATCH:
            batch = open_now[gates[i], id(device)] = Batch(device, gates[i])
            found.append(batch)
        batch.items.append(i)
        batch.bytes += plan.memory[i].numel() * plan.memory[i].element_size()
    for batch in found:
        batch.copies = [plan.memory[i] for i in batch.items]
        with torch.inference_mode(False):       # the thread of the copies writes to these views
            batch.to = list(map(flat, batch.copies))
        batch.slices = numbers([k for i in batch.items for k in slices[i]])
    return found


def opens(background: Background, optimizer: int, turns: Turns) -> Callable[..., None]:
    """A hook before step() that is the gate of that optimizer."""
    weak, pid = weakref.ref(background), os.getpid()

    def gate(*_: Any) -> None:
        found = weak()
        if found is not None and pid == os.getpid():
            turns.before_step()
            if found.pending:
                found.open(optimizer)
    return gate


# ---- the end of the process ----

_open: weakref.WeakSet[Any] = weakref.WeakSet()     # checkpointers that may have saves in flight
_pid = os.getpid()


def remember(checkpointer: Any) -> None:
    """Ends the saves of a Checkpointer when the process exits before it was closed."""
    global _pid
    if _pid != os.getpid():             # a forked process inherits none
        _pid = os.getpid()
        _open.clear()
    _open.add(checkpointer)


def ends(background: Background, turns: Turns) -> Callable[..., None]:
    """A hook after step()."""
    weak = weakref.ref(background)

    def ended(optimizer: Any, *_: Any) -> None:
        found = weak()
        turns.after_step()
        if found is not None:
            found.watched.stepped(optimizer)
    return ended


def owner(tracked: Objects, optimizer: Any) -> Optional[tuple[str, Any]]:
    """The name of a parameter that an optimizer shares with a tracked one, and the tracked one.
    None: it shares none, or is the tracked one itself."""
    if any(o.optimizer is optimizer for o in tracked.optimizers):
        return None
    mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for o in tracked.optimizers:
        for group in o.optimizer.param_groups:
            for p in group["params"]:
                if id(p) in mine:
                    return next(iter(o.names_of(p)), "a parameter"), o.optimizer
    return None


def is_wrapped(outer: Any, inner: Any) -> bool:
    """Whether one of two optimizers works for the other, by its state, its groups or as a part."""
    groups = {id(group) for group in inner.param_groups}
    return outer.state is inner.state or any(x is inner for x in vars(outer).values()) or \
        any(id(group) in groups for group in outer.param_groups)


def opens_all(background: Background, tracked: Objects) -> Callable[..., None]:
    """A hook before step() of any optimizer. If it is not tracked and changes what a tracked one
    owns, it waits at all gates. Such an optimizer is a part of the tracked one that a trainer steps
    by itself, or has replaced it, by design or by mistake."""
    weak, known = weakref.ref(background), weakref.ref(tracked)
    pid = os.getpid()
    # What each optimizer owned when it was looked at, and whether a tracked one owns some of it.
    seen: weakref.WeakKeyDictionary[Any, tuple[Any, bool]] = weakref.WeakKeyDictionary()

    def gate(optimizer: Any, *_: Any) -> None:
        found, mine = weak(), known()
        if found is None or mine is None or pid != os.getpid():
            return
        if any(o.optimizer is optimizer for o in mine.optimizers):
            return
        owned = len(mine.optimizers), [id(p) for g in optimizer.param_groups for p in g["params"]]
        before, shares = seen.get(optimizer, (None, False))
        if before != owned:
            common = owner(mine, optimizer)
            if common is not None and not shares and not is_wrapped(common[1], optimizer):
                log.warning("%s is stepped by the optimizer %s, which is not tracked, and %s, "
                            "which is, is saved as it is: if it was replaced, make another "
                            "Checkpointer", common[0], type(optimizer).__name__,
                            type(common[1]).__name__)
            shares = common is not None
            seen[optimizer] = owned, shares
        if shares:
            for p in tuple(found.pending):
                p.open_all()
    return gate


def exits(checkpointer: Any, e: Optional[BaseException]) -> None:
    """Commits what is in flight of a Checkpointer that was not closed. [local]

    e  the exception that ends the process, if one does
    """
    background = checkpointer.background
    if checkpointer.run is None or not background.pending:
        return
    if e is None:
        log.warning("%s: the process ends, and %d saves are in flight: close() is missing",
                    checkpointer.path, len(background.pending))
        background.drain()
        together(checkpointer.group, LEAVE_SECONDS)
        e = SystemExit("the process ended")
    checkpointer.leave(e)


@atexit.register
def at_exit() -> None:
    """Commits the saves in flight of Checkpointers that were not closed, and says so."""
    if _pid != os.getpid():
        return
    failed: Optional[BaseException] = getattr(sys, "last_value", None)
    for checkpointer in list(_open):
        try:
            exits(checkpointer, failed)
        except Exception as e:
            log.error("%s: at the end of the process: %s", checkpointer.path, e)
