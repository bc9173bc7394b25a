# SPDX-License-Identifier: Apache-2.0
"""The StorageWriter for torch.distributed.checkpoint, and its planner and stager.

DCP plans a save by itself, and then calls write_data on each rank. With this writer the plans are
empty, so DCP sends almost no data between ranks; the library decides what each rank writes.

The ranks communicate only in write_data or in stage, never while DCP plans: a rank that fails in
planning would not reach a call in which the others wait.
"""
from __future__ import annotations

import dataclasses
import os
from types import TracebackType
from typing import Any, Optional, Sequence, Union

import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner as Planner
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from .. import place
from ..binding import error
from ..torch.pending import Pending
from .contents import ANY, Contents, contents_of
from .session import Session

Path = Union[str, "os.PathLike[str]"]
# A planner that overrides these stores other values than its state dict has.
TRANSFORMS = ("create_local_plan", "lookup_object", "resolve_data", "transform_object")
ALONE = 1                               # in SavePlan.storage_data: the number of ranks


class SavePlanner(DefaultSavePlanner):
    """A planner that plans nothing, for dcp.save(..., planner=sheaf.dcp.SavePlanner()).

    The library plans the saves. DCP's own planner would describe each tensor before, for about
    0.1 ms a tensor and without use. With use_collectives=False this planner is needed: it makes all
    ranks raise a failure of one rank. With DCP's planner, that rank alone would raise it, and the
    others would wait until their timeout.
    """

    def __init__(self) -> None:
        super().__init__()
        self.problem: Optional[BaseException] = None

    def set_up_planner(self, state_dict: dict[str, Any],
                       storage_meta: Optional[StorageMeta] = None,
                       is_coordinator: bool = False) -> None:
        self.problem = None
        try:
            super().set_up_planner(state_dict, storage_meta, is_coordinator)
        except Exception as e:
            self.problem = e

    def create_local_plan(self) -> SavePlan:
        return SavePlan([])

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        return all_plans, Metadata({})


def contents(planner: Planner) -> Contents:
    """The contents of the state dict of a planner. [local]

    TypeError: the planner would store something else.
    """
    kind = type(planner)
    if isinstance(planner, SavePlanner) and planner.problem is not None:
        raise planner.problem
    if not isinstance(planner, DefaultSavePlanner):
        raise TypeError("the planner %s is no DefaultSavePlanner, so it has no state dict that "
                        "could be saved" % kind.__name__)
    for name in TRANSFORMS:
        if getattr(kind, name) not in (getattr(DefaultSavePlanner, name),
                                       getattr(SavePlanner, name)):
            raise TypeError("the planner %s has its own %s, which would have no effect: change "
                            "the state dict in set_up_planner" % (kind.__name__, name))
    return Contents(planner.state_dict, planner.mappings if planner.flatten_state_dict else {})


def is_staged(planner: Planner) -> bool:
    """Whether DCP saves what stage() has returned: an empty state dict."""
    return not getattr(planner, "state_dict", None)


class Writer(StorageWriter, AsyncStager):
    """Saves state dicts of torch.distributed.checkpoint as checkpoints of Sheaf.

        dcp.save(state_dict, storage_writer=sheaf.dcp.Writer("runs/gpt@7"))

        with sheaf.dcp.Writer("runs/gpt", keep_last=3) as writer:
            dcp.save(state_dict, storage_writer=writer.at(7))
            future = dcp.async_save(state_dict, storage_writer=writer.at(8))

    path           a run, which is made if there is none; RUN@STEP, or RUN/checkpoint-STEP. None:
                   the checkpoint_id of dcp.save
    process_group  the one that is passed to dcp.save; None: all ranks
    optimizers     of torch.optim, for dcp.async_save: what they own is copied while the training
                   continues, and their step() waits for what is not copied yet
    timeout        how long a call waits for another rank, in seconds; None: 600
    opts           other options of struct sheaf_opts, such as keep_last=3

    The run stays open from the first save until close() or the end of `with`, which all ranks must
    reach. If the path has a number, the run is closed after that save. dcp.save raises
    sheaf.Exists and so on, or a CheckpointException that contains them.
    """

    _synchronize_after_execute = False

    def __init__(self, path: Optional[Path] = None, *,
                 process_group: Optional[dist.ProcessGroup] = None,
                 optimizers: Sequence[Any] = (), timeout: Optional[float] = None,
                 **opts: Any) -> None:
        self.given = (process_group, optimizers, timeout, opts)
        self.session: Optional[Session] = None
        self.number = ANY
        self.one = False                # the run is closed after one save
        self.pending: Optional[Pending] = None
        self.elsewhere = ""             # what checkpoint_id names instead of what is being saved
        self.collectives = True
        if path is not None:
            self.go_to(path)

    def go_to(self, path: Path) -> None:
        """Sets the path of the next save."""
        run, number = place.to_save(path, None)
        if self.session is None or self.session.path != run:
            if self.session is not None:
                self.session.close()
            self.session = Session(run, *self.given)
            self.one = number is not None
        self.number = ANY if number is None else number

    def at(self, step: int) -> Writer:
        """A writer that saves to the same open run, as checkpoint `step`. [local]"""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.number, made.pending, made.elsewhere = step, None, ""
        if self.one and self.session is not None:
            made.session = Session(self.session.path, *self.given)
        return made

    def opened(self) -> Session:
        """The session. sheaf.Invalid: no path is known."""
        if self.session is None:
            raise error("EINVAL", "sheaf.dcp.Writer: give a path to the writer, or checkpoint_id "
                        "to dcp.save")
        return self.session

    # ---- StorageWriter ----

    def reset(self, checkpoint_id: Optional[Path] = None) -> None:
        """Called by dcp.save if it has a checkpoint_id, and by async_save after staging."""
        if checkpoint_id is None:
            return
        if self.pending is None:
            self.go_to(checkpoint_id)
            return
        run, number = place.to_save(checkpoint_id, None)
        if (run, number) != (self.opened().path, self.pending.step):
            self.elsewhere = ("checkpoint_id=%s was given, and the writer saves step %d of %s"
                              % (checkpoint_id, self.pending.step, self.opened().path))
            self.pending.cancel(self.elsewhere)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self.collectives = kwargs.get("use_collectives", True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return dataclasses.replace(plan, items=[], storage_data=None, planner_data=None
                                   if plan.planner_data is None else {})

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [dataclasses.replace(p, storage_data=len(plans)) for p in plans]

    def write_data(self, plan: SavePlan, planner: Planner) -> Future[list[WriteResult]]:
        """Saves. When it returns, the checkpoint is durable. [collective]"""
        session = self.opened()
        try:
            pending, self.pending = self.pending, None
            if pending is not None and is_staged(planner):
                pending.result()
                if self.elsewhere:      # it was saved before it could be cancelled
                    raise error("EINVAL", self.elsewhere + ", which exists now")
            else:                       # dcp.save; an async_save before it may not have ended
                session.background.drain()
                self.save(session, planner, plan.storage_data if self.collectives else None)
        finally:
            if self.one:
                session.close()
        done: Future[list[WriteResult]] = Future()
        done.set_result([])
        return done

    def save(self, session: Session, planner: Planner, plans: Optional[int]) -> None:
        """Saves before it returns. If one rank cannot save, all ranks raise its reason.

        plans  how many ranks DCP has; None: it does not say
        """
        alone = plans == ALONE
        problem: Optional[BaseException] = None
        found: Optional[Contents] = None
        try:
            found = contents(planner)
        except Exception as e:
            problem = e
        session.check_ranks(plans, alone)
        session.open(alone, False)
        session.save(found, problem, self.number)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        pass

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Path) -> bool:
        return isinstance(checkpoint_id, (str, os.PathLike))

    # ---- AsyncStager ----

    def stage(self, state_dict: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Begins a save in the background: what dcp.async_save calls first. [collective]

        It returns when everything is copied except what `optimizers` own. DCP's thread then only
        waits for the outcome.
        """
        session = self.opened()
        if self.number == ANY:
            raise error("EINVAL", "dcp.async_save: give the number of the checkpoint to the writer "
                        "(storage_writer=writer.at(7), or Writer(\"RUN@7\")), for DCP stages "
                        "before it says the checkpoint_id")
        problem: Optional[BaseException] = None
        found: Optional[Contents] = None
        try:
            found = contents_of(state_dict)
        except Exception as e:
            problem = e
        try:
            session.open(False, True)
            self.pending = session.submit(found, problem, self.number)
        except BaseException:
            if self.one:
                session.close()
            raise
        return {}

    def synchronize_staging(self) -> None:
        """The gate: returns when all is copied, and any tensor may change. [local]

        The optimizers that were given to the writer call it themselves, in step().
        """
        if self.session is not None:
            self.session.background.gate()

    # ---- the end ----

    def close(self) -> None:
        """Waits for the saves in the background, and closes the run. [collective]"""
        if self.session is not None:
            self.session.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], e: Optional[BaseException],
                 where: Optional[TracebackType]) -> None:
        if self.session is not None and e is not None:
            self.session.leave(e)
        self.close()

    def __reduce__(self) -> Any:
        if self.pending is not None:
            self.pending.cancel("it was begun for another process")
        raise TypeError("a sheaf.dcp.Writer cannot be sent to another process: give dcp.async_save "
                        "AsyncCheckpointerType.THREAD. The library copies and writes on threads of "
                        "its own, without the interpreter lock")
