# SPDX-License-Identifier: Apache-2.0
"""A load of a Checkpointer: which checkpoint, which tensors, and the documents afterwards.

If one rank fails to read a document or to restore an object, the next collective call fails on all
ranks, so that all of them raise the error.
"""
from __future__ import annotations

import ctypes
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional, Union

from .. import agent, errors
from ..errors import Corrupt, Error
from ..messages import in_python
from ..run import LATEST, Checkpoint, Run, State, flags_of, number_of
from .plan import Plan
from .ranks import anywhere
from .sources import Wanted
from .tracked import ADAM, Restore

if TYPE_CHECKING:
    from .checkpointer import Checkpointer

log = logging.getLogger("sheaf")
DAMAGE = "damaged: "                    # begins the sentence of a rank that found damage


def sentence(e: BaseException) -> str:
    """What an exception says to other ranks, which must know whether it is damage."""
    return (DAMAGE if isinstance(e, Corrupt) else "") + errors.sentence(e)


@dataclass
class Loaded:
    """The result of a load.

    step        number of the checkpoint
    metrics     those of save(): numbers and strings
    missing, unexpected, converted
                names of tensors, as "family/name", that this rank knows of
    """

    step: int
    metrics: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    converted: list[str] = field(default_factory=list)


def measured(notes: Mapping[str, str]) -> dict[str, Any]:
    """Metrics from the notes of a checkpoint: numbers where the text is how a number prints."""
    found: dict[str, Any] = {}
    for key, text in notes.items():
        if key == ADAM or key.startswith("ranks."):
            continue
        found[key] = text
        for kind in (int, float):
            try:
                number = kind(text)
            except ValueError:
                continue
            if repr(number) == text:    # not a name such as "00123" or "12345e6"
                found[key] = number
                break
    return found


def failing(e: BaseException) -> State:
    """A state with which the next collective call fails on all ranks, with that reason."""
    state = State()
    state.fail(sentence(e))
    return state


class Loading:
    """One load. [collective]

    wanted   the parts that are loaded
    strict   whether a difference between the checkpoint and what is tracked is an error
    convert  whether a tensor may have another dtype in the checkpoint
    """

    def __init__(self, ckpt: Checkpointer, run: Run, wanted: Wanted, strict: bool,
                 convert: bool) -> None:
        self.ckpt, self.run, self.wanted, self.strict = ckpt, run, wanted, strict
        self.convert = convert
        self.plan = Plan()
        if not ckpt.readonly:               # the next save needs as much
            self.plan.room = ckpt.plan.room     # no save reads it during a load
        self.restore: Optional[Restore] = None

    def load(self, step: Any) -> Loaded:
        """Loads the checkpoint of that number, or LATEST."""
        with self.run.checkpoint(step) as checkpoint:
            found: Loaded = self.together(lambda: self.described(checkpoint),
                                  lambda state: self.fill(checkpoint, state, False))
            self.give_back(checkpoint, found)
        return found

    def resume(self) -> Loaded:
        """Loads the latest checkpoint, or an older one if it is damaged.

        What to load of an optimizer is decided from the newest checkpoint whose headers and
        documents can be read, because the library chooses the checkpoint only later.
        """
        first: Optional[Corrupt] = None
        for step in [LATEST, *reversed(self.run.steps())]:
            try:
                with self.run.checkpoint(step) as checkpoint:
                    self.together(lambda: self.described(checkpoint),
                                  lambda state: self.dry(checkpoint, state))
                    break
            except Corrupt as e:
                first = first or e
        else:
            assert first is not None
            raise first
        assert self.plan.state is not None
        found = self.fill(checkpoint, self.plan.state, True)
        with self.run.checkpoint(found.step) as checkpoint:
            self.give_back(checkpoint, found)
        return found

    def together(self, mine: Callable[[], State], theirs: Callable[[State], Any]) -> Any:
        """Does this rank's part, and then makes a collective call, which fails on all ranks if one
        of them could not do its part."""
        problem: Optional[BaseException] = None
        try:
            state = mine()
        except BaseException as e:
            problem, state = e, failing(e)
        try:
            return theirs(state)
        except Error as e:
            told = self.explained(e)
            # All ranks must agree whether it is damage: resume() then goes on to the next.
            if problem is not None and isinstance(problem, Corrupt) == isinstance(told, Corrupt):
                raise problem from e
            if told is e:
                raise
            raise told from e

    def explained(self, e: Error) -> Error:
        """Damage that one rank found is damage on all of them."""
        if e.code != self.run.c.SHEAF_EFAILED or not e.message.startswith(DAMAGE):
            return e
        return Corrupt(int(self.run.c.SHEAF_ECORRUPT), e.rank, e.sys, e.message[len(DAMAGE):])

    def described(self, checkpoint: Checkpoint) -> State:
        """The state to fill from that checkpoint; reads its documents. [collective]

        Every rank comes to the collective call in it, also one that fails.
        """
        ckpt = self.ckpt
        names: Optional[set[str]] = None
        try:
            self.restore = ckpt.tracked.to_load(checkpoint, self.wanted, self.strict, ckpt.rank,
                                                ckpt.ranks)
            names = self.restore.places()
        finally:
            if self.strict:
                names = anywhere(ckpt.group, names, ckpt.timeout)
        if self.strict and names is not None:
            self.restore.check_places(names)
        state = self.plan.update(self.restore.items)
        self.plan.fill()                # what the load leaves as it is stays so
        return state

    def dry(self, checkpoint: Checkpoint, state: State) -> None:
        """Plans a load without loading: all ranks agree that they can do their part."""
        c = self.run.c
        empty = state if state is not self.plan.state else State()
        c.call("sheaf_checkpoint_load", checkpoint.pointer, empty.pointer,
               flags_of(c, "LOAD", {"dry": True}), None)

    def fill(self, checkpoint: Checkpoint, state: State, resume: bool) -> Loaded:
        """Fills the state, and notes the names of which the load has something to say."""
        c = self.run.c
        said: dict[int, list[str]] = {}

        def item(kind: int, family: bytes, name: bytes, msg: bytes) -> None:
            said.setdefault(kind, []).append("%s/%s" % (family.decode(), name.decode())
                                             if family else name.decode())

        strict = self.strict and self.wanted.patterns is None
        flags = flags_of(c, "LOAD", {"strict": strict, "convert": self.convert,
                                     "derive": self.convert, "fallback": resume})
        report = c.new("sheaf_report", item=item)
        if resume:
            c.call("sheaf_run_resume", self.run.pointer, state.pointer, flags,
                   ctypes.byref(report))
        else:
            c.call("sheaf_checkpoint_load", checkpoint.pointer, state.pointer, flags,
                   ctypes.byref(report))
        return Loaded(int(report.step), {}, said.get(c.SHEAF_REPORT_MISSING, []),
                      said.get(c.SHEAF_REPORT_UNEXPECTED, []),
                      said.get(c.SHEAF_REPORT_CONVERTED, []))

    def give_back(self, checkpoint: Checkpoint, found: Loaded) -> None:
        """Restores the objects, and agrees that all ranks could."""
        restore = self.restore
        assert restore is not None

        def mine() -> State:
            if checkpoint is not restore.checkpoint:
                restore.read(checkpoint, self.ckpt.rank, self.ckpt.ranks)
            self.plan.empty()
            restore.accept()
            found.metrics = measured(checkpoint.notes())
            return State()

        self.together(mine, lambda state: self.dry(checkpoint, state))
        log.info("%s: loaded step %d", self.ckpt.path, found.step)
        if found.missing:
            log.warning("%s: step %d lacks %d of the %d tensors that are tracked here, such as %s; "
                        "they stay as they were, and load() returns all their names in `missing`",
                        self.ckpt.path, found.step, len(found.missing), len(restore.items),
                        found.missing[0])


def tell_newer(path: str, loaded: int) -> None:
    """Logs that an agent has a newer checkpoint in memory than this job, which uses no agent, has
    loaded from disk. [local]

    loaded  its number; -1: there is none on disk
    """
    newer = agent.newest(path)
    if newer > loaded:
        log.warning("%s: %s, and the agent of this node has step %d in memory: give memory_every= "
                    "or agent=True to load that", path, "there is no checkpoint on disk"
                    if loaded < 0 else "step %d was loaded from disk" % loaded, newer)


def findings(run: Run, step: Union[int, str]) -> list[str]:
    """What a verification of a checkpoint finds on this rank, a sentence each. [collective]"""
    found: list[str] = []

    def finding(at: Any) -> None:
        found.append("%s: %s" % (at.contents.file.decode(), in_python(at.contents.msg.decode())))

    with run.checkpoint(LATEST if step == "latest" else number_of(step)) as checkpoint:
        report = run.c.new("sheaf_report", finding=finding)
        try:
            run.c.call("sheaf_checkpoint_verify", checkpoint.pointer, ctypes.byref(report))
        except Corrupt as e:
            return found or [str(e)]
    return found
