# SPDX-License-Identifier: Apache-2.0
"""Makes save_state and load_state of an accelerate.Accelerator use Sheaf.

    accelerator = sheaf.accelerate.use(Accelerator(), keep_last=3)
    ...
    accelerator.load_state("runs/x")                    # the newest checkpoint
    accelerator.save_state("runs/x/checkpoint-500")     # step 500 of the run

`use` replaces the class of the accelerator by one that derives from Checkpoints below and from the
class that it had.
"""
from __future__ import annotations

import importlib
import os
from typing import Any, Iterable, Mapping, Optional, TypeVar

import torch

from .binding import error
from .torch.checkpointer import Checkpointer
from .trainers import OneRun, derive, is_checkpoint, is_run, named, set_aside

ENGINES = ("DEEPSPEED", "MEGATRON_LM", "XLA")
T = TypeVar("T")


def use(accelerator: T, *, background: bool = False, **opts: Any) -> T:
    """Makes save_state and load_state of an Accelerator use Sheaf. [local]

    accelerator  an accelerate.Accelerator
    background   True: save_state returns at once, and the checkpoint is written while the training
                 continues; end_training() waits for all saves
    opts         options of sheaf.Checkpointer: keep_last, agent, store_dtype, ...

    Returns the accelerator. ValueError, TypeError: a setting of the accelerator is not supported;
    the text says which one and what to do.
    """
    kind = importlib.import_module("accelerate").Accelerator
    if not isinstance(accelerator, kind):
        raise TypeError("sheaf.accelerate.use: a %s is no accelerate.Accelerator"
                        % type(accelerator).__name__)
    if isinstance(accelerator, Checkpoints):
        raise ValueError("sheaf.accelerate.use: this accelerator uses Sheaf already")
    given: Any = accelerator
    engine = str(getattr(given.distributed_type, "value", given.distributed_type))
    if engine in ENGINES:
        raise ValueError("sheaf.accelerate.use does not support %s: its engine keeps parameters "
                         "and optimizer state to itself; use FSDP2 or DDP" % engine)
    if engine == "FSDP" and not given.is_fsdp2:
        raise ValueError("sheaf.accelerate.use does not support FSDP version 1: give "
                         "FullyShardedDataParallelPlugin(fsdp_version=2)")
    if given.project_configuration.save_on_each_node:
        raise ValueError("sheaf.accelerate.use does not support save_on_each_node=True: all nodes "
                         "write one checkpoint together, to a folder that all of them see")
    limit = given.project_configuration.total_limit
    if limit is not None:
        if opts.get("keep_last", limit) != limit:
            raise ValueError("keep_last=%r, and total_limit=%r of ProjectConfiguration: leave one "
                             "of them out" % (opts["keep_last"], limit))
        opts["keep_last"] = limit
    given.sheaf = Session(given, background, opts)
    derive(given, Checkpoints)
    return accelerator


class Counters:
    """The counters of an Accelerator, as an object with a state_dict."""

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator

    def state_dict(self) -> dict[str, int]:
        """Micro-batches that were seen since the last update."""
        return {"step": int(self.accelerator.step)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continues counting from there."""
        self.accelerator.step = state["step"]


class Session(OneRun):
    """The state of an accelerator that uses Sheaf, as the attribute `accelerator.sheaf`."""

    def __init__(self, accelerator: Any, background: bool, opts: Mapping[str, Any]) -> None:
        super().__init__(opts, self.track_all)
        self.accelerator, self.background = accelerator, background
        self.counters = Counters(accelerator)
        self.objects: list[Any] = []

    def opened(self, run: str) -> Checkpointer:
        """The Checkpointer of a run, which tracks all objects of the accelerator. [collective]"""
        ckpt = super().opened(run)
        if [id(x) for x in self.objects] != [id(x) for x in objects(self.accelerator)]:
            raise ValueError("objects were prepared or registered after the first call of "
                             "save_state or load_state: call accelerator.sheaf.close() before "
                             "the next")
        return ckpt

    def track_all(self, ckpt: Checkpointer) -> None:
        """Tracks the objects of prepare() and of register_for_checkpointing()."""
        a = self.accelerator
        if not a._models and not a._custom_objects:
            raise ValueError("the accelerator has no model yet: call save_state and load_state "
                             "after accelerator.prepare")
        self.objects = objects(a)
        optimizers = [getattr(o, "optimizer", o) for o in a._optimizers]
        modules = [x for x in a._custom_objects if isinstance(x, torch.nn.Module)]
        others = [x for x in a._custom_objects if not isinstance(x, torch.nn.Module)]
        loaders = [x for x in a._dataloaders if getattr(x, "use_stateful_dataloader", False)]
        for what, found in (("model", a._models), ("registered", modules)):
            for i, module in enumerate(found):
                ckpt.track(module, prefix="" if (what, i) == ("model", 0) else "%s_%d." % (what, i))
        ckpt.track(None, *optimizers, scheduler=a._schedulers, loader=loaders, scaler=a.scaler,
                   accelerator=self.counters, registered=others)

    def close(self) -> None:
        """Waits for all saves and closes the run; the next call opens it again. [collective]"""
        self.objects = []
        super().close()


def objects(accelerator: Any) -> list[Any]:
    """All objects whose state is saved."""
    return [*accelerator._models, *accelerator._optimizers, *accelerator._schedulers,
            *accelerator._dataloaders, *accelerator._custom_objects]


def which(accelerator: Any, path: Any, what: str) -> tuple[str, Optional[int]]:
    """The run and the number that a path means; None: the newest, or the next one."""
    if path is None:
        if not accelerator.project_configuration.automatic_checkpoint_naming:
            raise ValueError("%s: give the folder, as RUN/checkpoint-NUMBER, or a "
                             "ProjectConfiguration with automatic_checkpoint_naming=True" % what)
        return os.path.join(accelerator.project_dir, "checkpoints"), None
    folder = os.path.normpath(os.path.expanduser(os.fspath(path)))
    return named(folder) or (folder, None)


def refused(what: str, given: Iterable[str]) -> None:
    """Raises TypeError for arguments that are not supported."""
    names = sorted(given)
    if names:
        raise TypeError("%s: %s has no meaning for a checkpoint of Sheaf: leave it out"
                        % (what, ", ".join(names)))


class Checkpoints:
    """The base class that is put before that of an Accelerator: saves and loads states."""

    sheaf: Session

    def save_state(self, output_dir: Any = None, safe_serialization: bool = True,
                   **kwargs: Any) -> str:
        """Saves models, optimizers, schedules, the scaler, random streams and registered objects.

        output_dir  RUN/checkpoint-NUMBER; None with automatic_checkpoint_naming: the next number
                    of the run PROJECT_DIR/checkpoints

        Returns the folder of the checkpoint. Raises sheaf.Exists if the number is already used. But
        if load_state loaded an older checkpoint, later ones are set aside. [collective]
        """
        own: Any = self
        refused("save_state", kwargs)
        if not safe_serialization:
            raise ValueError("save_state: safe_serialization=False asks for torch.save, and "
                             "nothing is written by it here: leave it out")
        if own._save_model_state_pre_hook:
            raise ValueError("save_state: a hook of register_save_state_pre_hook would write into "
                             "a folder that is not there before the checkpoint is whole; register "
                             "an object by register_for_checkpointing instead")
        run, step = which(own, output_dir, "save_state")
        if step is None and output_dir is not None:
            raise ValueError("save_state(%r): name the folder RUN/checkpoint-NUMBER, such as %s"
                             % (output_dir, os.path.join(os.path.dirname(run), "checkpoint-500")))
        ckpt = self.sheaf.opened(run)
        number = int(own.save_iteration) if step is None else step
        set_aside(ckpt, self.sheaf.loaded)
        pending = ckpt.save_async(number)
        if not self.sheaf.background:
            pending.result()
        self.sheaf.loaded = None
        own.project_configuration.iteration += 1
        return os.path.join(run, "checkpoint-%d" % number)

    def load_state(self, input_dir: Any = None, load_kwargs: Any = None, **kwargs: Any) -> None:
        """Loads the state of all objects. accelerate loads the checkpoints that it wrote itself.

        input_dir  RUN/checkpoint-NUMBER, or RUN: its newest checkpoint, on disk or in memory; None
                   with automatic_checkpoint_naming: the newest of PROJECT_DIR/checkpoints

        Raises sheaf.NotFound if there is no such checkpoint. [collective]
        """
        above: Any = super()
        own: Any = self
        run, step = which(own, input_dir, "load_state")
        folder = run if step is None else os.path.join(run, "checkpoint-%d" % step)
        if os.path.isdir(folder) and not (is_run if step is None else is_checkpoint)(folder):
            above.load_state(input_dir, load_kwargs, **kwargs)
            return
        kwargs.pop("map_location", None)        # tensors are filled where they are
        refused("load_state", [*kwargs, *(load_kwargs or ())])
        if own._load_model_state_pre_hook:
            raise ValueError("load_state: a hook of register_load_state_pre_hook would read files "
                             "that Sheaf does not write; register an object by "
                             "register_for_checkpointing instead")
        if not os.path.isdir(run):
            raise error("ENOENT", "%s: there is no such run" % run)
        ckpt = self.sheaf.opened(run)
        found = ckpt.load("latest" if step is None else step)
        if found is None:
            raise error("ENOENT", "%s: there is no checkpoint yet" % run)
        self.sheaf.loaded = found.step
        own.project_configuration.iteration = found.step + 1

    def end_training(self) -> None:
        """Waits for all saves, and does what the Accelerator does at the end."""
        above: Any = super()
        self.sheaf.close()
        above.end_training()
