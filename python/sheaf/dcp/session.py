# SPDX-License-Identifier: Apache-2.0
"""An open run and its ranks, for the saves of a Writer."""
from __future__ import annotations

import os
import threading
from typing import Any, Mapping, Optional, Sequence

import torch
import torch.distributed as dist

from ..binding import error
from ..errors import Error
from ..group import Alone, Group, torch_distributed
from ..run import Path, Run, Save
from ..torch.background import LEAVE_SECONDS, Background
from ..torch.loading import failing, sentence
from ..torch.pending import DISK, Pending, give_up
from ..torch.plan import Plan, local_of
from ..torch.ranks import Ranks, ended, explained, leave
from ..torch.turns import Turns
from ..tree import FILE
from .contents import ANY, Contents, agree, document


class Owned:
    """An optimizer, as saves in the background see one."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def names_of(self, _p: torch.Tensor) -> list[str]:
        """No names: the names in a state dict cannot be found from its parameters."""
        return []


class Owners:
    """Which optimizer changes which tensor of a state dict: it has the same memory."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self.optimizers = [Owned(o) for o in optimizers]
        self.spans: list[range] = []
        self.ids: list[int] = []
        self.listed = 0                 # how often look() was called

    def look(self, tensors: Sequence[Any]) -> None:
        """Finds the parameter that each of these tensors is, or is the state of."""
        self.listed += 1
        whose: dict[tuple[int, int], int] = {}
        for o in self.optimizers:
            for group in o.optimizer.param_groups:
                for p in group["params"]:
                    for t in (p, *o.optimizer.state.get(p, {}).values()):
                        if hasattr(t, "data_ptr"):
                            whose[memory_of(t)] = id(p)
        self.ids = [whose.get(memory_of(t), 0) for t in tensors]


def memory_of(t: Any) -> tuple[int, int]:
    """Where the memory of a tensor begins, and how large it is."""
    local = local_of(t)
    return local.data_ptr(), local.numel() * local.element_size()


def cpu_group(pg: Optional[dist.ProcessGroup]) -> bool:
    """Whether a process group works on the CPU."""
    return "gloo" in str(dist.get_backend_config(pg))


# The open session of each run, by process and path: a run can be opened once.
_open: dict[tuple[int, str], Any] = {}


class Session:
    """The run that a Writer saves to, from its first save until close(). [collective]

    When a session opens a run, it closes any other session of that run in this process. A writer
    that was dropped leaves its run open, because only all ranks together can close it.

    path           of the run
    process_group  of torch.distributed; None: all ranks
    optimizers     what they own is copied while the training continues
    timeout        how long a call waits for another rank, in seconds
    opts           as for sheaf.Run
    """

    def __init__(self, path: Path, process_group: Optional[dist.ProcessGroup],
                 optimizers: Sequence[Any], timeout: Optional[float],
                 opts: Mapping[str, Any]) -> None:
        self.path, self.process_group, self.timeout = path, process_group, timeout
        self.opts = dict(opts)
        self.plan = Plan()
        self.owners = Owners(optimizers)
        self.background = Background()
        self.turns = Turns()            # steps of other threads wait while a save begins
        self.run: Optional[Run] = None
        self.group: Optional[Group] = None
        self.commit_group: Optional[Group] = None
        self.alone = False
        self.number = ANY               # of the last save
        self.key = (os.getpid(), os.path.abspath(path))
        self.lock = threading.RLock()   # close() may come from the thread of DCP

    # ---- ranks ----

    def open(self, alone: bool, background: bool) -> Run:
        """Opens the run, unless it is open for the same ranks. [collective]

        alone       this process saves by itself, even if torch.distributed is initialised
        background  saves are committed by a thread of the library, which needs its own group
        """
        with self.lock:
            return self.opened(alone or not dist.is_available() or not dist.is_initialized(),
                               background)

    def opened(self, alone: bool, background: bool) -> Run:
        if self.run is not None and (self.alone != alone or
                                     background and self.commit_group is None):
            self.close()
        if self.run is not None:
            return self.run
        other = _open.get(self.key)
        if other is not None:
            other.close()
        opts = dict(self.opts)
        self.alone = alone
        _open[self.key] = self
        try:
            self.group, self.commit_group = self.groups(alone, background)
            if self.commit_group is not None:
                opts["commit_group"] = self.commit_group
            with explained():
                self.run = Run(self.path, self.group, create=True, timeout=self.timeout, **opts)
        except BaseException:
            self.close()
            raise
        return self.run

    def check_ranks(self, plans: Optional[int], alone: bool) -> None:
        """Checks that DCP has the ranks of the session: others would never arrive. [local]"""
        if plans is not None and not alone and plans != dist.get_world_size(self.process_group):
            raise error("EINVAL", "%s: DCP saves on %d ranks, and the writer has a process_group "
                        "of %d: give both the same" % (self.path, plans, dist.get_world_size(
                            self.process_group)))

    def groups(self, alone: bool, background: bool) -> tuple[Optional[Group], Optional[Group]]:
        """The group of the ranks, and the one of the library's thread.

        A save that begins while another is being committed needs groups of its own, because torch
        uses the caller's group on the thread of its future.
        """
        if alone:
            return None, Group(Alone()) if background else None
        pg = self.process_group
        if background:
            return Group(Ranks(self.timeout, pg)), Group(Ranks(self.timeout, pg))
        return torch_distributed(pg) if cpu_group(pg) else Group(Ranks(self.timeout, pg)), None

    # ---- saves ----

    def begin(self, contents: Optional[Contents], problem: Optional[BaseException], number: int,
              **flags: bool) -> Save:
        """Begins a save. A rank that has failed takes part, and all ranks raise its message.

        contents  None: this rank has failed, and `problem` says why
        """
        run = self.run
        assert run is not None
        self.background.settle()
        try:
            if number == ANY and run.group is None or number == ANY and run.group.rank == 0:
                number = max(run.steps(), default=-1) + 1
        except Error as e:
            problem, contents = problem or e, None
        with explained():
            agreed = agree(contents, number, self.group, self.timeout)
        tree = None
        try:
            if problem is not None:
                raise problem
            state = self.plan.update(agreed.items)
            flags["later"] = flags.get("lazy", False) and self.plan.copies_behind() and \
                not self.opts.get("bytes_max")
            if not flags["later"]:
                self.plan.fill()
            if agreed.values:
                tree = document(agreed.values)
        except BaseException as e:
            problem, state = e, failing(e)
        try:
            with explained():
                save = run.begin(agreed.number, state, **flags)
        except Error as e:
            if problem is not None:
                raise problem from e
            raise
        try:
            if tree is not None:
                save.attach(FILE, tree)
        except BaseException as e:
            give_up(save, sentence(e), flags.get("lazy", False))
            raise
        self.number = agreed.number
        return save

    def save(self, contents: Optional[Contents], problem: Optional[BaseException],
             number: int) -> None:
        """Saves; when this returns, the checkpoint survives a power loss."""
        with explained(), self.plan.in_use():
            with self.begin(contents, problem, number) as save:
                save.commit()

    def submit(self, contents: Optional[Contents], problem: Optional[BaseException],
               number: int) -> Pending:
        """Begins a save in the background, and copies at once what no optimizer owns."""
        self.background.watch(self.owners, self.turns)
        with self.turns.still() as late, self.plan.in_use():
            return self.copied(contents, problem or late, number)

    def copied(self, contents: Optional[Contents], problem: Optional[BaseException],
               number: int) -> Pending:
        """The same, while no optimizer steps on another thread."""
        save = self.begin(contents, problem, number, lazy=True)
        devices, home = self.plan.devices, self.plan.home
        self.owners.look([devices[home[i]] if i in home else t
                          for i, t in enumerate(self.plan.memory)])
        return self.background.carry(save, self.number, DISK, self.owners, self.plan)

    # ---- the end ----

    def leave(self, e: BaseException) -> None:
        """Aborts the saves of this rank, which ends by an exception, and sends the reason to the
        others. [local]"""
        why = sentence(e)
        self.background.abort(why, LEAVE_SECONDS)
        for group in (self.group, self.commit_group):
            if group is not None:
                leave(group, why)

    def close(self) -> None:
        """Waits for the saves in flight, and closes the run. Another save opens it again."""
        with self.lock:
            self.end()
            if _open.get(self.key) is self:
                del _open[self.key]

    def end(self) -> None:
        self.background.drain()
        self.background.free()
        run, self.run = self.run, None
        groups, self.group, self.commit_group = (self.group, self.commit_group), None, None
        try:
            if run is not None:
                run.close()
        finally:
            for group in groups:
                if group is not None:
                    ended(group)
