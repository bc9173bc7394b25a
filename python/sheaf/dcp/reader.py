# SPDX-License-Identifier: Apache-2.0
"""The StorageReader for torch.distributed.checkpoint.

DCP asks for the metadata on each rank, and plans what each tensor needs. Then the ranks load
together, so that what several of them need is read from disk once. Each tensor is one chunk here,
whatever layout it was saved in.
"""
from __future__ import annotations

import contextlib
import dataclasses
import io
import os
from typing import Any, Iterator, Optional, Union

import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from .. import place
from ..binding import error
from ..errors import Error
from ..group import Group, torch_distributed
from ..run import LATEST, Checkpoint, Run, State, flags_of, open_path
from ..torch.layout import Box, Unsupported, plain
from ..torch.loading import failing
from ..torch.model import Item
from ..torch.placed import Placed
from ..torch.plan import Plan
from ..torch.ranks import Ranks, ended, explained
from .contents import shards
from .names import Names
from .session import cpu_group

Path = Union[str, "os.PathLike[str]"]
# A planner that overrides one of these fills other tensors than its state dict has.
TENSORS = ("resolve_tensor", "commit_tensor", "lookup_tensor", "transform_tensor")


class Reader(StorageReader):
    """Loads checkpoints of Sheaf into state dicts of torch.distributed.checkpoint, in any layout.

        dcp.load(state_dict, storage_reader=sheaf.dcp.Reader("runs/gpt"))

    path           a run (its newest checkpoint), RUN@STEP, RUN/checkpoint-STEP, or another path
                   that sheaf.load takes. None: the checkpoint_id of dcp.load
    process_group  the one that is passed to dcp.load; None: all ranks
    convert        whether a tensor may have another dtype in the checkpoint, as with DCP; False:
                   another dtype raises sheaf.Mismatch
    timeout        how long a call waits for another rank, in seconds; None: 600
    opts           other options of struct sheaf_opts, such as agent="auto"

    number         of the checkpoint that was loaded last

    All bytes are compared with their checksums. A checkpoint of a Checkpointer is loaded as
    {"model": ..., "optimizer": ...}, with the keys of get_state_dict. In any other checkpoint
    without the document of a state dict, tensors are called FAMILY.NAME if there are several
    families, and NAME otherwise.
    """

    def __init__(self, path: Optional[Path] = None, *,
                 process_group: Optional[dist.ProcessGroup] = None, convert: bool = True,
                 timeout: Optional[float] = None, **opts: Any) -> None:
        self.path = path
        self.process_group, self.convert, self.timeout = process_group, convert, timeout
        self.opts = opts
        self.number = LATEST
        self.names: Optional[Names] = None

    def reset(self, checkpoint_id: Optional[Path] = None) -> None:
        self.path = self.path if checkpoint_id is None else checkpoint_id

    @contextlib.contextmanager
    def open(self, group: Optional[Group], step: int) -> Iterator[Checkpoint]:
        """The checkpoint; with a group, on all ranks. [collective]"""
        if self.path is None:
            raise error("EINVAL", "sheaf.dcp.Reader: give a path to the reader, or checkpoint_id "
                        "to dcp.load")
        found = place.in_run(self.path, step)
        if found is None:
            with open_path(self.path, group, timeout=self.timeout, **self.opts) as checkpoint:
                yield checkpoint
            return
        with Run(found[0], group, readonly=True, timeout=self.timeout, **self.opts) as run:
            with run.checkpoint(found[1]) as checkpoint:
                yield checkpoint

    def read_metadata(self) -> Metadata:
        """Names, shapes and dtypes of all that the checkpoint has. [local]"""
        with self.open(None, LATEST) as checkpoint:
            self.names = Names(checkpoint)
        return self.names.metadata()

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any,
                              **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Makes all ranks load the checkpoint that the first one saw, not a newer one."""
        assert self.names is not None
        told = (self.names.number, len(plans))
        return [dataclasses.replace(p, storage_data=told) for p in plans]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Loads what the plan asks for. [collective]"""
        number, ranks = plan.storage_data
        group = self.group(ranks)
        try:
            with explained():
                self.load(plan, planner, number, group)
        finally:
            if group is not None:
                ended(group)
        self.number = number
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def group(self, ranks: int) -> Optional[Group]:
        """A group of the ranks that load; None: only this process. [collective]"""
        if ranks == 1 or not dist.is_initialized():
            return None
        pg = self.process_group
        if ranks != dist.get_world_size(pg):
            raise error("EINVAL", "%s: DCP loads on %d ranks, and the reader has a process_group "
                        "of %d: give both the same" % (self.path, ranks, dist.get_world_size(pg)))
        return torch_distributed(pg) if cpu_group(pg) else Group(Ranks(self.timeout, pg))

    def load(self, plan: LoadPlan, planner: LoadPlanner, number: int,
             group: Optional[Group]) -> None:
        """Opens the checkpoint, fills tensors, and gives the planner the other values."""
        held = Plan()
        with self.open(group, number if number >= 0 else LATEST) as checkpoint:
            problem: Optional[BaseException] = None
            try:
                if self.names is None or self.names.number != number:
                    self.names = Names(checkpoint)
                state = held.update(self.items(self.names, plan, planner))
                held.fill()
            except BaseException as e:
                problem, state = e, failing(e)
            try:
                self.fill(checkpoint, state)
            except Error as e:
                if problem is not None:
                    raise problem from e
                raise
            assert self.names is not None
            held.empty()
            self.give(self.names, checkpoint, plan, planner)

    def fill(self, checkpoint: Checkpoint, state: State) -> None:
        c = checkpoint.c
        flags = flags_of(c, "LOAD", {"convert": self.convert, "derive": self.convert})
        c.call("sheaf_checkpoint_load", checkpoint.pointer, state.pointer, flags, None)

    def items(self, names: Names, plan: LoadPlan, planner: LoadPlanner) -> list[Item]:
        """The tensors to fill."""
        found: list[Item] = []
        seen: dict[Any, int] = {}

        def add(key: str, t: torch.Tensor, at: Optional[Placed] = None) -> None:
            stored = names.of(names.tensors[key])
            try:
                made = shards("", "", t) if isinstance(t, ShardedTensor) else \
                    [Item("", "", t if at is not None else t.detach(), at=at)]
            except Unsupported as e:
                raise Unsupported("%s: %s" % (key, e)) from None
            for i in made:
                i.family, i.name = stored.family, stored.tied_to or stored.name
                i.copy = seen.setdefault((i.family, i.name), len(found)) != len(found)
                found.append(i)

        wanted = [r for r in plan.items if r.type == LoadItemType.TENSOR]
        if overridden(planner, TENSORS):
            for r in wanted:
                t = plain(planner.resolve_tensor(r))
                add(r.storage_index.fqn, t, part(r, names, t))
        else:
            for key in dict.fromkeys(r.dest_index.fqn for r in wanted):
                add(key, planner.state_dict[key])   # type: ignore[attr-defined]
        return found

    def give(self, names: Names, checkpoint: Checkpoint, plan: LoadPlan,
             planner: LoadPlanner) -> None:
        """Gives the planner what was loaded."""
        commit = overridden(planner, TENSORS)
        for r in plan.items:
            if r.type == LoadItemType.TENSOR:
                if commit:
                    planner.commit_tensor(r, planner.resolve_tensor(r))
                continue
            value = names.value(checkpoint, r.storage_index.fqn)
            if not isinstance(planner, DefaultLoadPlanner) or overridden(planner, ("load_bytes",)):
                data = io.BytesIO()     # this planner expects torch.save's bytes, in memory
                torch.save(value, data)
                data.seek(0)
                planner.load_bytes(r, data)
            elif planner.flatten_state_dict:
                set_element(planner.original_state_dict, planner.mappings[r.dest_index.fqn], value)
            else:
                planner.state_dict[r.dest_index.fqn] = value

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Path) -> bool:
        return isinstance(checkpoint_id, (str, os.PathLike))


def overridden(planner: LoadPlanner, names: tuple[str, ...]) -> bool:
    """Whether a planner has methods of its own in place of those of DCP's planner."""
    return not isinstance(planner, DefaultLoadPlanner) or \
        any(getattr(type(planner), n) is not getattr(DefaultLoadPlanner, n) for n in names)


def part(r: ReadItem, names: Names, t: torch.Tensor) -> Placed:
    """Where a part that DCP asks for lies in the whole tensor."""
    shape = tuple(names.shapes[r.storage_index.fqn][1])
    box = Box(tuple(r.storage_offsets), tuple(r.lengths), 0)
    return Placed(r.storage_index.fqn, shape, (box,) if t.numel() else ())
