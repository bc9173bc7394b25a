# SPDX-License-Identifier: Apache-2.0
"""sheaf.Checkpointer: saves and loads the training state of a PyTorch job.

A save is `begin` and `commit` with one description: a state of the library, notes and files. If the
description fails on one rank, that rank still takes part and passes on the reason, so that no other
rank waits for it, and all of them raise it. A save in the background is a lazy begin, which a
thread of the library commits over a second group of the ranks.
"""
from __future__ import annotations

import logging
import os
from types import TracebackType
from typing import Any, Mapping, Optional, Sequence, Union

import torch
from torch import nn

from ..binding import error, library
from ..errors import Error, Lost, NotFound, NotYet
from ..group import Alone, Group
from ..run import LATEST, Path, Run, Save, State, number_of, options
from .arguments import bad_step, check_arguments, check_files, check_group, check_path, is_time
from .background import LEAVE_SECONDS, Background, remember
from .leaving import Leaving, finish
from .loading import Loaded, Loading, failing, findings, sentence, tell_newer
from .measure import Measure
from .metrics import Best, Metrics, best_options, noted
from .pending import DISK, MEMORY, NOWHERE, Pending, give_up, where_of
from .placed import Parts
from .plan import Plan
from .progress import Progress
from .ranks import CHANGED, NONE, SECONDS, Writer, agreed, ended, explained, leave, of_torch, \
    start_agents
from .sources import Wanted
from .stats import Stats, stats_of
from .tracked import ADAM, STREAM, Few, Tracked
from .turns import Turns, one_at_a_time
from .unchanged import Lists

log = logging.getLogger("sheaf")
FLAGS = "buffered", "unverified", "metrics"     # arguments of Run that are not fields of sheaf_opts


class Checkpointer:
    """Saves and loads the training state of a job, in a run: a folder of checkpoints. [collective]

        with sheaf.Checkpointer("runs/gpt", keep_last=3) as ckpt:
            ckpt.track(model, optimizer, scheduler=scheduler, loader=loader)
            start = ckpt.load()                     # None: a fresh run
            for step in range(start.step + 1 if start else 0, steps):
                train(step)
                ckpt.save_async(step, metrics={"train/loss": loss})

    path         the folder; it is made if there is none
    group        the ranks: a sheaf.group.Group; None: all ranks of torch.distributed if that is
                 initialised, in two new gloo groups, else this process alone
    commit_group if group is given: a second group of the same ranks, for save_async. A thread of
                 the library uses it, so nothing else may; mpi4py needs MPI_THREAD_MULTIPLE
    keep_last    how many of the newest checkpoints to keep; None: all
    keep_every   also keep the checkpoints whose step is a multiple of it
    best         also keep the best one, by a metric: "eval/loss", or ("eval/bleu", "max")
    agent        True: checkpoints also stay in the memory of the nodes, in an agent of the run on
                 each, which is started if there is none. A path: the socket of an agent. None:
                 True if memory_every is given
    memory_every save_async saves the steps that are multiples of it to memory. None: none
    disk_every   save_async saves the steps that are multiples of it to disk. None: none if
                 memory_every is given, else all. Other steps are left out
    on_sigterm   the seconds between SIGTERM and the end of the process. The next save_async after
                 the signal goes to disk on all ranks, and then `leaving` is True
    timeout      how long a call waits for another rank, in seconds
    store_dtype  for example torch.bfloat16: F32 parameters are stored with this dtype in family
                 model, for transformers, and exactly in family master_weights. A load takes the
                 values in master_weights
    readonly     opens the run for loads only: takes no lock, and writes nothing
    check        compares replicas of different ranks at each save, and detects tensors that change
                 before their gate; slow
    measure      logs on rank 0 by how much a copy to memory lengthens a step, with the 95 %
                 confidence interval. To compare them, about half of the saves to memory alone are
                 left out, the same ones on all ranks. Saves to disk and save() are all made. With
                 memory_every=1 a job that dies may resume a few steps before its last one, so set
                 it for a trial only
    files        further files for each checkpoint, by name, such as a tokenizer's; on rank 0
    opts         any other field of struct sheaf_opts. metrics=True: the run keeps what each save
                 cost, for `sheaf stats`; buffered=True, unverified=True: see Run. progress=True
                 always shows a progress bar, and False never does

    All ranks must construct it, call its methods in the same order, and close it. Raises
    sheaf.Error: Busy if another job writes to the run.
    """

    def __init__(self, path: Path, group: Any = None, *, commit_group: Any = None,
                 keep_last: Optional[int] = None, keep_every: Optional[int] = None,
                 best: Best = None, agent: Union[bool, str, None] = None,
                 memory_every: Optional[int] = None, disk_every: Optional[int] = None,
                 on_sigterm: Optional[float] = None,
                 timeout: Optional[float] = None, store_dtype: Optional[torch.dtype] = None,
                 readonly: bool = False, check: bool = False, measure: bool = False,
                 files: Optional[Mapping[str, bytes]] = None, **opts: Any) -> None:
        check_group(group)
        self.readonly, self.check = bool(readonly), check
        self.memory_every, self.disk_every = memory_every, disk_every
        self.plan = Plan()
        self.lists = Lists()
        self.measure = Measure(bool(measure))
        self.background = Background()
        self.turns = Turns()
        self.writer = Writer()
        self.run: Optional[Run] = None
        self.pid = os.getpid()                  # a process that it forks only forgets the run
        self.group: Optional[Group] = None
        self.own: list[Group] = []              # groups that close() ends
        self.told: Optional[Leaving] = None
        self.leaving = False
        self.timeout = timeout if is_time(timeout) else None
        agent = memory_every is not None if agent is None else agent
        self.agent = bool(agent)
        shown = opts.pop("progress", None)
        self.shown: Optional[Progress] = None
        problem: Optional[BaseException] = None     # with the arguments of this rank
        try:
            check_arguments(keep_last, keep_every, best, agent, memory_every, disk_every, timeout,
                            store_dtype, measure)
            self.path = check_path(path)
            self.files = dict(files or {})
            check_files(self.files)
            self.tracked = Tracked(store_dtype, tuple(opts.get("ignore") or ()))
            opts.update(best_options(best), keep_last=keep_last or 0, keep_every=keep_every or 0)
            self.stages_all = not opts.get("bytes_max")
            if agent:
                opts["agent"] = agent if isinstance(agent, str) else "auto"
            options(library(), timeout, 0, {k: v for k, v in opts.items() if k not in FLAGS})
            self.told = None if on_sigterm is None else Leaving(on_sigterm)
        except BaseException as e:
            problem = e
        try:
            with explained():
                self.groups(group, commit_group, problem,
                            "has readonly=%s, memory_every=%s, disk_every=%s, agent=%s, "
                            "on_sigterm %s, measure=%s" % (
                                self.readonly, memory_every, disk_every, bool(agent),
                                on_sigterm is not None, bool(measure)))
                if self.commit_group is not None:
                    opts["commit_group"] = self.commit_group
                opts["progress"] = self.shown = Progress(self.path, self.group, shown)
                if agent is True and not readonly:
                    start_agents(path, opts.get("folder"), self.group, self.timeout)
                self.run = Run(path, self.group, create=not readonly, readonly=readonly,
                               timeout=timeout, replicas=check, **opts)
        except BaseException:
            self.close()
            raise
        remember(self)

    def groups(self, group: Any, commit_group: Any, problem: Optional[BaseException],
               mine: str) -> None:
        """Sets the group of the ranks, which agree that all can go on, and the one for commits in
        the background. [collective]

        problem, mine  see agreed()
        """
        made = group is None
        if made:
            group = of_torch(self.timeout)
            self.own += [group] if group else []
        self.group, self.commit_group = group, commit_group
        self.rank: int = group.rank if group else 0
        self.ranks: int = group.ranks if group else 1
        self.measure.loud = self.rank == 0
        agreed(group, problem, self.timeout, "%s, %s commit_group"
               % (mine, "no" if commit_group is None else "a"))
        if made and commit_group is None and not self.readonly:
            self.commit_group = of_torch(self.timeout) if group else Group(Alone())
            self.own.append(self.commit_group)

    # ---- what is saved ----

    def track(self, model: Optional[nn.Module] = None, *optimizers: Any, scheduler: Few = None,
              loader: Few = None, scaler: Few = None, rng: Optional[Mapping[str, Any]] = None,
              prefix: str = "", parts: Parts = None, **others: Few) -> None:
        """Adds the objects whose state is saved and loaded; each is optional. [local]

        model       a module: its parameters and persistent buffers, by the names of state_dict()
        optimizers  of these parameters
        scheduler   one or several, and so are loader and scaler
        loader      a data loader with a state_dict(), or a sheaf.torch.CountedLoader
        rng         further random number generators by name, such as a model-parallel tracker.
                    Those of torch, its device, NumPy and Python are always saved
        prefix      is put before all names of the model, for a trainer with several models
        parts       how the trainer splits tensors by hand: a dict from patterns of names to
                    sheaf.torch.Split, Flat, QKV or GateUp, or a function of name and tensor that
                    returns one of these
        others      anything with state_dict() and load_state_dict() that is the same on all ranks

        TypeError, ValueError: an object cannot be tracked; the text says why.
        """
        self.tracked.called = True
        self.tracked.add(model, optimizers, prefix, loader, rng,
                         dict(others, scheduler=scheduler, scaler=scaler), parts)
        self.background.watch(self.tracked, self.turns)

    # ---- saving ----

    @one_at_a_time
    def save(self, step: int, metrics: Optional[Metrics] = None) -> None:
        """Saves all that is tracked. When it returns, the checkpoint survives a power loss.

        step     its number: that of the optimizer step
        metrics  numbers and strings, which load() returns and `best` compares; those of rank 0 are
                 stored

        Raises sheaf.Exists if the run has that step, sheaf.Failed with the message of a rank that
        failed, and on that rank its own exception. After any of these training can continue.
        """
        self.opened()
        self.background.drain()
        with explained():
            with self.turns.still() as problem, self.plan.in_use():
                save = self.begin(step, metrics, problem)
            with save:
                save.commit()

    @one_at_a_time
    def save_async(self, step: int, metrics: Optional[Metrics] = None) -> Pending:
        """Saves all that is tracked in the background, and returns at once.

        What optimizers own is copied while the training continues; optimizer.step() waits for what
        is not copied yet. Everything else is copied before this returns. Call Pending.gate before
        updates that no optimizer makes.

        step     its number: that of the optimizer step. disk_every and memory_every decide whether
                 it is saved to disk or to memory, or is left out
        metrics  as for save

        Returns a handle. The caller may ignore it. A failure that no call of result() has reported
        is logged, and the first such failure is raised by close(). Saves to memory alone are left
        out if no buffer is free, or a node has no agent.

        Raises what save raises, except errors in writing, which result() raises.
        """
        self.opened()
        if self.commit_group is None and not self.readonly:
            raise error("EINVAL", "save_async needs commit_group=, a second group of the same "
                        "ranks, because group= was given")
        with explained():
            self.leaving = self.leaving or self.told is not None and \
                self.told.agree(self.group, self.timeout or SECONDS)
            where = DISK if self.leaving else where_of(step, self.memory_every, self.disk_every)
            if self.measure.leaves_out(step, where == MEMORY) or where == NOWHERE:
                return Pending(step, NOWHERE)
            with self.turns.still() as problem, self.plan.in_use():
                pending = self.submit(step, metrics, where, problem)
        if self.leaving and self.told is not None:
            finish(pending, self.told.left or 0.0)
        return pending

    def submit(self, step: int, metrics: Optional[Metrics], where: str,
               problem: Optional[Exception]) -> Pending:
        """Begins a save in the background, and copies at once what no gate protects."""
        memory = where == MEMORY
        try:
            save = self.begin(step, metrics, problem, lazy=True, no_disk=memory, may_drop=memory,
                              check=self.check)
        except NotYet as e:
            log.debug("step %d: left out: %s", step, e)
            self.background.left_out += 1
            self.measure.forget()
            return Pending(step, NOWHERE)
        return self.background.carry(save, step, where, self.tracked, self.plan, self.check)

    def begin(self, step: int, metrics: Optional[Metrics], problem: Optional[BaseException],
              **flags: bool) -> Save:
        """Describes all that is tracked, and begins a save with these flags. [collective]

        problem  why this rank cannot save; None: it can
        """
        run, given = self.opened(), problem
        if self.readonly:
            raise error("EINVAL", "the run was opened with readonly=True: nothing can be saved")
        self.background.settle()
        notes: dict[str, str] = {}
        files: dict[str, bytes] = {}
        mine = b""
        number, digest = 0, NONE
        try:
            if problem is not None:
                raise problem
            number = number_of(step)
            self.tracked.check_called()
            notes = noted(metrics)
            self.background.check_step(step, self.tracked)
            state = self.lists.state(self.tracked, self.plan)
            digest = self.tracked.layout_digest()
        except BaseException as e:
            problem, state = e, failing(e)
        writes = self.writer.agreed(self.group, digest, self.timeout)
        if writes is None:
            state = State()
            state.fail(CHANGED)
        elif problem is None:
            try:
                flags["later"] = flags.get("lazy", False) and self.stages_all and \
                    self.plan.copies_behind()
                if not flags["later"]:
                    self.plan.fill()
                files = self.tracked.documents(self.rank, writes)
                mine = self.tracked.rank_document()
                if self.rank == 0:
                    files.update(self.files)
                    adam = self.tracked.note()
                    notes.update({ADAM: adam} if adam else {})
            except BaseException as e:
                problem, state = e, failing(e)
        try:
            save = run.begin(number, state, **flags)
        except Error as e:
            if self.writer.has_changed(e):
                return self.begin(step, metrics, given, **flags)
            if problem is not None:
                raise problem from e
            raise
        try:
            for name, data in files.items():
                save.attach(name, data)
            run.c.call("sheaf_save_rank_bytes", save.pointer, STREAM.encode(), mine, len(mine))
            for key, text in notes.items() if self.rank == 0 else ():
                save.note(key, text)
        except BaseException as e:
            give_up(save, sentence(e), flags.get("lazy", False))
            raise
        return save

    # ---- loading ----

    @one_at_a_time
    def load(self, step: Union[int, str] = "latest", *, strict: bool = True,
             convert: bool = False, only: Union[None, str, Sequence[str]] = None,
             fallback: bool = False) -> Optional[Loaded]:
        """Loads the state of all tracked objects, whatever layout it was saved in.

        step      its number, or "latest"
        strict    the checkpoint and what is tracked must have the same tensors and documents;
                  False: what only one of them has is left as it is
        convert   a tensor may have another dtype in the checkpoint: its values are converted
        only      loads these parts alone: "model", "optimizer", "rng", "model/layers.0.*", ...
        fallback  if the latest is damaged, an older one is loaded, and those after it set aside

        Returns None if "latest" was asked for and the run has no checkpoint, else what was loaded.
        After a failed load the contents of tensors are undefined, and optimizers are unchanged,
        unless an object rejected its state. Raises sheaf.Mismatch with the name of a tensor that is
        missing, unexpected or of another dtype or shape, and sheaf.Corrupt for damage.
        """
        run = self.opened()
        self.background.drain()
        problem = ValueError("fallback=True is for step='latest'") \
            if fallback and step != "latest" else bad_step(step)
        tried = Loading(self, run, Wanted(only), strict, convert)
        try:
            with explained():
                agreed(self.group, problem, self.timeout, "loads step %s with fallback=%s, "
                       "strict=%s" % (step, bool(fallback), bool(strict)))
                found: Optional[Loaded] = tried.resume() if fallback else \
                    tried.load(LATEST if step == "latest" else step)
        except NotFound:
            if step != "latest":
                raise
            found = None
        if step == "latest" and not self.agent and self.rank == 0:
            tell_newer(self.path, -1 if found is None else found.step)
        return found

    # ---- what is there ----

    @property
    @one_at_a_time
    def steps(self) -> list[int]:
        """The numbers of the checkpoints on disk, in ascending order. [local]"""
        return self.opened().steps()

    @one_at_a_time
    def mark(self, step: int, mark: Optional[str]) -> None:
        """Marks a checkpoint "keep" or "bad"; None removes the mark. [collective]"""
        run = self.opened()
        self.background.drain()
        problem = bad_step(step)
        if mark not in (None, "keep", "bad"):
            problem = ValueError("mark=%r: it must be 'keep', 'bad' or None" % (mark,))
        with explained():
            agreed(self.group, problem, self.timeout, "marks step %s as %s" % (step, mark))
            run.mark(step, mark or "none")

    @one_at_a_time
    def rewind(self, step: int) -> None:
        """Sets all checkpoints after `step` aside, to continue from it. [collective]"""
        run = self.opened()
        self.background.drain()
        with explained():
            agreed(self.group, bad_step(step), self.timeout, "rewinds to step %s" % step)
            run.rewind(step)

    @one_at_a_time
    def verify(self, step: Union[int, str] = "latest") -> list[str]:
        """Compares all bytes of a checkpoint with their checksums. [collective]

        Returns the findings, one message each, on the rank that found them; none if all is well.
        Raises sheaf.Corrupt if the checkpoint cannot even be opened, because a file is missing or
        has another length.
        """
        run = self.opened()
        self.background.drain()
        with explained():
            agreed(self.group, bad_step(step), self.timeout, "verifies step %s" % step)
            return findings(run, step)

    def opened(self) -> Run:
        """The run; sheaf.Invalid if it was closed, or another process has it."""
        if self.run is None:
            raise error("EINVAL", "the checkpointer of %s is closed" % self.path)
        if self.pid != os.getpid():
            raise error("EINVAL", "this process was forked from %d, which has the checkpointer of "
                        "%s; make one here with readonly=True" % (self.pid, self.path))
        return self.run

    def __repr__(self) -> str:
        if self.run is None or self.pid != os.getpid():
            return "<Checkpointer %r, %s>" % (self.path, "closed" if self.run is None else
                                              "in another process")
        steps = self.run.steps()
        return "<Checkpointer %r, rank %d of %d, %s, tracks %s>" % (
            self.path, self.rank, self.ranks,
            "no checkpoint" if not steps else "%d checkpoints, the newest %d"
            % (len(steps), steps[-1]), self.tracked)

    def stats(self) -> Stats:
        """Totals of this rank's saves, and how long they blocked. print() shows a table."""
        run = self.opened()
        self.background.reap()
        return stats_of(run.stat(), len(self.background.pending), self.background.left_out,
                        self.writer.changes)

    # ---- the end ----

    @one_at_a_time
    def close(self) -> None:
        """Waits for all saves in the background, and closes the run; a second call does nothing.

        Raises the first failure that no call of result() has reported, when the run is closed.
        [collective]
        """
        if self.pid != os.getpid():
            return
        if self.run is not None:
            self.background.drain()
        self.end()
        failure, self.background.failure = self.background.failure, None
        if failure is not None:
            raise failure

    def end(self) -> None:
        """Closes the run and the groups."""
        run, self.run = self.run, None
        self.measure.tell()
        self.background.free()
        if run is not None:
            run.close()
        while self.own:
            ended(self.own.pop())
        if self.told is not None:
            self.told.restore()

    def leave(self, e: BaseException) -> None:
        """Closes the run only on this rank, because of an exception. [local]

        Saves in flight are aborted. The next call of each other rank raises Lost with the message.
        """
        if self.pid != os.getpid():
            return
        log.log(logging.INFO if isinstance(e, Lost) else logging.ERROR, "rank %d leaves %s: %s",
                self.rank, self.path, sentence(e))
        if self.run is not None:
            self.background.abort("rank %d left: %s" % (self.rank, sentence(e)), LEAVE_SECONDS)
        for group in (self.commit_group, self.group):
            if group is not None:
                leave(group, sentence(e))
        with self.turns.taken("leave", LEAVE_SECONDS) as got:
            if got:
                self.end()              # otherwise another thread still uses the run

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], e: Optional[BaseException],
                 where: Optional[TracebackType]) -> None:
        if e is None:
            self.close()
        else:
            self.leave(e)
