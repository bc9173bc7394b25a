# SPDX-License-Identifier: Apache-2.0
"""sheaf.Checkpointer: saves and loads the training state of a PyTorch job.

A save is `begin` and `commit` over one description: a state of the library, notes and files. A
rank whose description fails takes part all the same, with the reason, so no other rank waits for
it, and all of them raise it.
"""
from __future__ import annotations

import ctypes
import logging
import numbers
import re
from types import TracebackType
from typing import Any, Mapping, Optional, Sequence, Union

import torch
from torch import nn

from ..binding import error
from ..errors import Corrupt, Error, Lost, NotFound
from ..run import LATEST, Path, Run, Save
from .loading import ADAM, Loaded, Loading, failing, sentence
from .plan import Plan
from .ranks import ended, explained, gathered, leave, of_torch
from .tracked import STREAM, Few, Tracked, Wanted

log = logging.getLogger("sheaf")
NONE = b"\0" * 32                       # in place of the digest of a rank that failed
NOTE = re.compile(r"[A-Za-z0-9._/-]{1,64}")
Metrics = Mapping[str, Any]
Best = Union[None, str, tuple[str, str]]


def noted(metrics: Optional[Metrics]) -> dict[str, str]:
    """Metrics as notes. ValueError, TypeError: a key or a value cannot be one."""
    found: dict[str, str] = {}
    for key, value in (metrics or {}).items():
        if not isinstance(key, str) or not NOTE.fullmatch(key) or key.startswith("ranks.") or \
                key == ADAM:
            raise ValueError("metrics: the key %r does not match [A-Za-z0-9._/-]{1,64}, or is "
                             "reserved" % (key,))
        if isinstance(value, torch.Tensor):
            value = value.item()
        if isinstance(value, str):
            found[key] = value
        elif isinstance(value, numbers.Real):
            found[key] = repr(int(value) if isinstance(value, numbers.Integral) else float(value))
        else:
            raise TypeError("metrics[%r]: a %s is neither a number nor a string"
                            % (key, type(value).__name__))
    return found


def best_options(best: Best) -> dict[str, Any]:
    """The options of a run for `best`: a note, or a note and "min" or "max"."""
    if best is None:
        return {}
    note, which = (best, "min") if isinstance(best, str) else best
    if which not in ("min", "max"):
        raise ValueError("best=(%r, %r): the second must be 'min' or 'max'" % (note, which))
    return {"keep_best": 1, "best_note": note, "best_largest": int(which == "max")}


class Checkpointer:
    """Saves and loads the training state of a job, in a run: a folder of checkpoints. [collective]

        with sheaf.Checkpointer("runs/gpt", keep_last=3) as ckpt:
            ckpt.track(model, optimizer, scheduler=scheduler, loader=loader)
            start = ckpt.load()                     # None: a fresh run
            for step in range(start.step + 1 if start else 0, steps):
                train(step)
                ckpt.save(step, metrics={"train/loss": loss})

    path         the folder; it is made if there is none
    group        the ranks: a sheaf.group.Group; None: those of torch.distributed if it is
                 initialised, by a group of its own over gloo, else this process alone
    keep_last    keep the newest checkpoints, so many; None: all
    keep_every   keep those as well whose step is a multiple of it
    best         keep the best one as well, by a metric: "eval/loss", or ("eval/bleu", "max")
    timeout      how long a call waits for another rank, in seconds
    store_dtype  torch.bfloat16, for example: F32 parameters are stored in it in family model,
                 for transformers, and exactly in family master_weights, from the same memory. A
                 load takes the masters
    readonly     opens the run to load alone: no lock, and nothing is written
    check        compares replicas of different ranks at each save
    files        further files for each checkpoint, by name, such as a tokenizer's; on rank 0
    opts         any other field of struct sheaf_opts

    All ranks make it, call its methods in the same order, and close it. Raises sheaf.Error: Busy
    if another job writes to the run.
    """

    def __init__(self, path: Path, group: Any = None, *, keep_last: Optional[int] = None,
                 keep_every: Optional[int] = None, best: Best = None,
                 timeout: Optional[float] = None, store_dtype: Optional[torch.dtype] = None,
                 readonly: bool = False, check: bool = False,
                 files: Optional[Mapping[str, bytes]] = None, **opts: Any) -> None:
        if keep_last is None and (keep_every is not None or best is not None):
            raise ValueError("keep_every and best need keep_last: without it all checkpoints are "
                             "kept")
        opts.update(best_options(best), keep_last=keep_last or 0, keep_every=keep_every or 0)
        self.own = of_torch(timeout) if group is None else None
        self.group = self.own if group is None else group
        self.rank: int = self.group.rank if self.group else 0
        self.ranks: int = self.group.ranks if self.group else 1
        self.readonly = readonly
        self.check = check
        self.files = dict(files or {})
        self.tracked = Tracked(store_dtype)
        self.plan = Plan()
        self.writes: Optional[bool] = None      # whether this rank writes documents for others,
        self.sizes: list[list[int]] = []        # when its optimizers had groups of these sizes
        self.timeout = timeout
        self.run: Optional[Run] = None
        try:
            with explained():
                self.run = Run(path, self.group, create=not readonly, readonly=readonly,
                               timeout=timeout, replicas=check, **opts)
        except BaseException:
            self.close()
            raise
        self.path = self.run.path

    # ---- what is saved ----

    def track(self, model: Optional[nn.Module] = None, *optimizers: Any, scheduler: Few = None,
              loader: Few = None, scaler: Few = None, rng: Optional[Mapping[str, Any]] = None,
              prefix: str = "", **others: Few) -> None:
        """Names the objects whose state is saved and loaded, any of them. [local]

        model       a module: its parameters and persistent buffers, by the names of state_dict()
        optimizers  of these parameters
        scheduler   one or several, and so are loader and scaler
        loader      of the data, with a state_dict(), or a sheaf.torch.CountedLoader
        rng         further random streams by name, such as a model-parallel tracker. Those of
                    torch, its device, NumPy and Python are always saved
        prefix      goes before all names of the model, for a trainer with several
        others      anything with state_dict() and load_state_dict() that is the same on all ranks

        TypeError, ValueError: an object cannot be tracked; the text says why.
        """
        parts = dict(others, scheduler=scheduler, scaler=scaler)
        self.tracked.add(model, optimizers, prefix, loader, rng, parts)

    # ---- saving ----

    def save(self, step: int, metrics: Optional[Metrics] = None) -> None:
        """Saves all that is tracked. When it returns, the checkpoint survives a power loss.

        step     its number: that of the optimizer step
        metrics  numbers and strings for people, for `best`, and for load(); those of rank 0 count

        Raises sheaf.Exists if the run has that step, sheaf.Failed with the sentence of a rank that
        failed, and on that rank its own exception. After any of them training can go on.
        """
        with explained(), self.begin(step, metrics) as save:
            save.commit()

    def begin(self, step: int, metrics: Optional[Metrics] = None) -> Save:
        """Copies all that is tracked, and gives it to the threads that write it. [collective]"""
        run = self.opened()
        if self.readonly:
            raise error("EINVAL", "the run was opened with readonly=True: nothing can be saved")
        problem: Optional[BaseException] = None
        notes: dict[str, str] = {}
        files: dict[str, bytes] = {}
        mine = b""
        digest = NONE
        try:
            notes = noted(metrics)
            state = self.plan.update(self.tracked.items())
            if self.writes is None:
                digest = self.tracked.layout_digest()
        except BaseException as e:
            problem, state = e, failing(e)
        writes = self.writes
        if writes is None:
            writes = self.is_first(digest)
        if problem is None:
            try:
                sizes = self.tracked.group_sizes()
                if sizes != self.sizes and digest == NONE:
                    self.writes = writes = True     # nobody else may have these groups
                self.sizes = sizes
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
            save = run.begin(step, state)
        except Error as e:
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
            self.give_up(save, e)
            raise
        return save

    def is_first(self, digest: bytes) -> bool:
        """Whether this is the first rank with that digest. [collective]

        Asked in the first save alone, and again if a rank had none.
        """
        every = [digest] if self.group is None else gathered(self.group, digest, self.timeout)
        first = every.index(digest) == self.rank
        if NONE not in every:
            self.writes = first
        return first

    def give_up(self, save: Save, e: BaseException) -> None:
        """Ends a save that this rank cannot finish: the others get its sentence. [collective]"""
        try:
            save.abort(sentence(e))
            save.commit()
        except Error as told:
            log.debug("the save was given up: %s", told)
        finally:
            save.close()

    # ---- loading ----

    def load(self, step: Union[int, str] = "latest", *, strict: bool = True,
             convert: bool = False, only: Union[None, str, Sequence[str]] = None,
             fallback: bool = False) -> Optional[Loaded]:
        """Gives all that is tracked the state of a checkpoint, whatever layout it was saved in.

        step      its number, or "latest"
        strict    the checkpoint and what is tracked must have the same tensors and documents;
                  False: what only one of them has is left as it is
        convert   a tensor may have another dtype in the checkpoint: its values are converted
        only      loads these parts alone: "model", "optimizer", "rng", "model/layers.0.*", ...
        fallback  if the latest is damaged, an older one is loaded, and those after it set aside

        Returns None if "latest" was asked for and the run has no checkpoint, else what was loaded.
        A failed load leaves tensors undefined, but optimizers as they were, unless an object
        refuses its state. Raises sheaf.Mismatch with the name of a tensor that is missing,
        unexpected or of another dtype or shape, and sheaf.Corrupt for damage.
        """
        run = self.opened()
        if fallback and step != "latest":
            raise ValueError("fallback=True is for step='latest'")
        tried = Loading(self, run, Wanted(only), strict, convert)
        try:
            with explained():
                return tried.resume() if fallback else \
                    tried.load(LATEST if step == "latest" else step)
        except NotFound:
            if step == "latest":
                return None
            raise

    # ---- what is there ----

    @property
    def steps(self) -> list[int]:
        """The numbers of the checkpoints on disk, in ascending order. [local]"""
        return self.opened().steps()

    def mark(self, step: int, mark: Optional[str]) -> None:
        """Marks a checkpoint "keep" or "bad", or None: takes the mark away. [collective]"""
        if mark not in (None, "keep", "bad"):
            raise ValueError("mark=%r: it must be 'keep', 'bad' or None" % (mark,))
        with explained():
            self.opened().mark(step, mark or "none")

    def rewind(self, step: int) -> None:
        """Sets all checkpoints after `step` aside, to go on from it. [collective]"""
        with explained():
            self.opened().rewind(step)

    def verify(self, step: Union[int, str] = "latest") -> list[str]:
        """Compares all bytes of a checkpoint with their checksums. [collective]

        Returns what is wrong, a sentence each, on the rank that found it; nothing: all is right.
        """
        run = self.opened()
        found: list[str] = []

        def finding(at: Any) -> None:
            found.append("%s: %s" % (at.contents.file.decode(), at.contents.msg.decode()))

        number = LATEST if step == "latest" else int(step)
        with explained(), run.checkpoint(number) as checkpoint:
            report = run.c.new("sheaf_report", finding=finding)
            try:
                run.c.call("sheaf_checkpoint_verify", checkpoint.pointer, ctypes.byref(report))
            except Corrupt as e:
                return found or [str(e)]
        return found

    def opened(self) -> Run:
        """The run; sheaf.Invalid if it was closed."""
        if self.run is None:
            raise error("EINVAL", "the checkpointer of %s is closed" % self.path)
        return self.run

    def __repr__(self) -> str:
        if self.run is None:
            return "<Checkpointer %r, closed>" % self.path
        steps = self.run.steps()
        return "<Checkpointer %r, rank %d of %d, %s, tracks %s>" % (
            self.path, self.rank, self.ranks,
            "no checkpoint" if not steps else "%d checkpoints, the newest %d"
            % (len(steps), steps[-1]), self.tracked)

    # ---- the end ----

    def close(self) -> None:
        """Closes the run; a second call does nothing. [collective]"""
        run, self.run = self.run, None
        if run is not None:
            run.close()
        own, self.own = self.own, None
        if own is not None:
            ended(own)

    def leave(self, e: BaseException) -> None:
        """Closes the run on this rank alone, because of an exception. [local]

        The others get Lost, with its sentence, from their next call.
        """
        if self.group is not None:
            log.log(logging.INFO if isinstance(e, Lost) else logging.ERROR, "rank %d leaves %s: %s",
                    self.rank, self.path, sentence(e))
            leave(self.group, sentence(e))
        self.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], e: Optional[BaseException],
                 where: Optional[TracebackType]) -> None:
        if e is None:
            self.close()
        else:
            self.leave(e)
