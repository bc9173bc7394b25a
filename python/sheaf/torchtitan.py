# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of torchtitan by Sheaf: a CheckpointManager with the interface of torchtitan's own.

    from sheaf.torchtitan import CheckpointManager      # in place of torchtitan's
    ...
    checkpoint=CheckpointManager.Config(enable=True, interval=500, async_mode="async")

The folder `checkpoint.folder` is the run. What torchtitan itself wrote there, a checkpoint of DCP
that is named as `initial_load_path`, and weights of Hugging Face are loaded by torchtitan.
"""
from __future__ import annotations

import copy
import dataclasses
import importlib
import logging
import os
import sys
from typing import Any, Iterator, Mapping, Optional, Sequence

import torch
from torch import nn

from .binding import error
from .errors import Error, NotFound
from .torch.checkpointer import Checkpointer
from .torch.pending import Pending
from .trainers import is_run, named, opened, set_aside

log = logging.getLogger("sheaf")
LAST_SECONDS = 30.0                     # how long close() waits for a save after an exception
GROUPS = "param_groups.json"            # a checkpoint without it has no optimizers
# Parameters of Checkpointer.track, so no state can be tracked under these names.
TAKEN = ("model", "optimizers", "scheduler", "loader", "scaler", "rng", "prefix", "parts")


def framework() -> Any:
    """torchtitan's module of checkpoint managers. ImportError: this version has another one."""
    try:
        found = importlib.import_module("torchtitan.components.checkpointer")
        found.BaseCheckpointManager._save
        return found
    except (ModuleNotFoundError, AttributeError) as e:
        if isinstance(e, ModuleNotFoundError) and e.name == "torchtitan":
            raise
        raise ImportError("sheaf.torchtitan needs torchtitan 0.3, whose checkpoint managers have "
                          "a base class: install torchtitan>=0.3") from e


class Parts(nn.Module):
    """The parts of a model that this rank has, as pipeline stages are, as one module."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        """The modules of all parts, by the names that the parts give them."""
        for part in self.parts:
            yield from part.named_modules(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The tensors of all parts. ValueError: two parts have one name."""
        found: dict[str, Any] = {}
        for part in self.parts:
            for name, value in part.state_dict(*args, **kwargs).items():
                if name in found:
                    raise ValueError("two model parts have a tensor that is called %s: a model "
                                     "must be split into parts with names of their own" % name)
                found[name] = value
        return found


class Weights(nn.Module):
    """Tensors by their names, for a checkpoint that has only the weights."""

    def __init__(self, tensors: Mapping[str, Any], dtype: torch.dtype) -> None:
        super().__init__()
        made: dict[int, Any] = {}
        for name, t in tensors.items():
            if not isinstance(t, torch.Tensor):
                raise ValueError("last_save_model_only: %s of the model is no tensor; set "
                                 "checkpoint.last_save_model_only=False" % name)
            if id(t) not in made:
                made[id(t)] = t.detach().to(dtype) if t.is_floating_point() else t.detach()
            self._buffers[name] = made[id(t)]       # register_buffer allows no dots


class Loader:
    """The data loader of torchtitan, whose own state_dict() makes a pickle. The state here is what
    that pickle contains."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        module = importlib.import_module("torchtitan.components.dataloader")
        known = module.ParallelAwareDataloader
        self.base: Any = module.StatefulDataLoader if isinstance(loader, known) and \
            type(loader).state_dict is known.state_dict and \
            type(loader).load_state_dict is known.load_state_dict else None

    def state_dict(self) -> Any:
        """The position in the data."""
        if self.base is None:
            return self.loader.state_dict()
        return {"rank": self.loader.dp_rank, "ranks": self.loader.dp_world_size,
                "state": self.base.state_dict(self.loader)}

    def load_state_dict(self, state: Any) -> None:
        """Continues at a position. ValueError: it is that of another data-parallel rank."""
        if self.base is None:
            self.loader.load_state_dict(state)
            return
        mine = {"rank": self.loader.dp_rank, "ranks": self.loader.dp_world_size}
        if mine != {"rank": state["rank"], "ranks": state["ranks"]}:
            raise ValueError("the data loader is that of data-parallel rank %d of %d, and the "
                             "position that is stored for it is of rank %d of %d: train with the "
                             "same data-parallel degree, or set checkpoint.exclude_from_loading="
                             "[\"dataloader\"] to begin the data anew"
                             % (*mine.values(), state["rank"], state["ranks"]))
        self.base.load_state_dict(self.loader, state["state"])


Titan: Any = framework()
Own: Any = Titan.CheckpointManager
PARTS = {Titan.DATALOADER: "loader"}    # what torchtitan's names of states are called here


class CheckpointManager(Own):           # type: ignore[misc]
    """The checkpoint manager of torchtitan, whose checkpoints are Sheaf's.

    torchtitan's Trainer constructs it by `Config.build`. ValueError: a setting is not supported;
    the text says which one and what to do. [collective]

    ckpt    the Checkpointer of the run; None: it is closed, or load_only is set and there is no run
    loaded  the step that was loaded since the last save; None: none
    """

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(Own.Config):           # type: ignore[misc]
        """The settings of torchtitan, and one more."""

        memory_every: int = 0
        """Steps between checkpoints in the memory of the nodes, which survive the death of all
        ranks. Zero: none are made."""

        def __post_init__(self) -> None:
            Own.Config.__post_init__(self)
            if self.memory_every < 0:
                raise ValueError("checkpoint.memory_every=%d: it must be a number of steps, or 0"
                                 % self.memory_every)

    def __init__(self, config: Any, *, model_parts: list[nn.Module], optimizers: Any,
                 lr_schedulers: Any, dataloader: Any, states: dict[str, Any], sd_adapter: Any,
                 base_folder: str = "") -> None:
        self.ckpt: Optional[Checkpointer] = None
        self.save_future: Any = None
        self.staged: Optional[Pending] = None
        self.loaded: Optional[int] = None
        # Otherwise the base class makes a process group, and a thread that deletes checkpoints.
        given = copy.copy(config)
        given.async_mode, given.keep_latest_k = "disabled", 0
        super().__init__(given, model_parts=model_parts, optimizers=optimizers,
                         lr_schedulers=lr_schedulers, dataloader=dataloader, states=states,
                         sd_adapter=sd_adapter, base_folder=base_folder)
        if not self.enable:
            return
        self.check_settings()
        self.model = model_parts[0] if len(model_parts) == 1 else Parts(model_parts)
        self.background = config.async_mode != "disabled"
        self.memory_every, self.keep = config.memory_every, config.keep_latest_k
        self.opened()

    def __del__(self) -> None:
        """Does nothing, in place of the base class: only all ranks together can close the run, and
        they do not collect garbage at the same time."""

    def check_settings(self) -> None:
        """Raises ValueError for a setting that is not supported."""
        if "://" in self.folder:
            raise ValueError("checkpoint.folder=%s: Sheaf writes to file systems alone; mount the "
                             "store, and give its path" % self.folder)
        for name in self.states:
            if name in TAKEN and name != Titan.MODEL:
                raise ValueError("the state %r has a name that sheaf.Checkpointer gives to "
                                 "something else: give it another name in states" % name)
        for name in self.exclude_from_loading:
            if name not in self.states:
                raise ValueError("checkpoint.exclude_from_loading has %r, and the states are %s"
                                 % (name, ", ".join(sorted(self.states))))

    # ---- the run ----

    def others(self) -> dict[str, Any]:
        """The states beside model, optimizers and data loader, by name."""
        return {name: x for name, x in self.states.items()
                if name not in (Titan.MODEL, Titan.OPTIMIZER, Titan.DATALOADER)}

    def track(self, ckpt: Checkpointer) -> None:
        """Tracks all states."""
        loader = self.states[Titan.DATALOADER]
        ckpt.track(self.model, *self.states[Titan.OPTIMIZER],
                   loader=None if loader is None else Loader(loader), **self.others())

    def limits(self) -> dict[str, Any]:
        """The options of the Checkpointer that say what is saved and kept."""
        found: dict[str, Any] = {"keep_last": self.keep or None}
        if self.memory_every:
            found.update(memory_every=self.memory_every, disk_every=self.interval)
        return found

    def opened(self) -> Optional[Checkpointer]:
        """The Checkpointer of the run; None: load_only is set, and there is no run."""
        if self.ckpt is None and (not self.load_only or is_run(self.folder)):
            opts = {"readonly": True} if self.load_only else self.limits()
            self.ckpt = opened(self.folder, self.track, **opts)
        return self.ckpt

    # ---- loading ----

    def _load(self, step: int = -1) -> bool:
        """Loads that step, or the newest of the run; without one, what initial_load_path names."""
        ckpt = self.opened()
        found = None if ckpt is None else newest(ckpt, step)
        theirs = self._find_load_step()
        if found is not None and (step != -1 or theirs <= found):
            assert ckpt is not None
            # torchtitan, too, loads only the weights of step 0.
            self.load_from(ckpt, found, found == 0)
            self.loaded = found
            return True
        start = initial(self.initial_load_path) \
            if self.initial_load_path and not self.initial_load_in_hf else None
        if step == -1 and theirs == -1 and start is not None:
            with Checkpointer(start[0], readonly=True) as other:
                self.track(other)
                first = newest(other, start[1])
                if first is None:
                    raise error("ENOENT", "checkpoint.initial_load_path=%s: there is no such "
                                "checkpoint" % self.initial_load_path)
                self.load_from(other, first, self.initial_load_model_only)
            return True
        if step != -1 and not os.path.isdir(self._create_checkpoint_id(step)):
            raise error("ENOENT", "checkpoint.load_step=%d: %s has no such checkpoint"
                        % (step, self.folder))
        went = theirs if step == -1 else step
        if went != -1 and ckpt is not None and any(s > went for s in ckpt.steps):
            raise ValueError("%s has checkpoints of Sheaf after step %d, which torchtitan wrote: "
                             "copy that one elsewhere, and give it as checkpoint."
                             "initial_load_path with another folder" % (self.folder, went))
        loaded: bool = super()._load(step)
        return loaded

    def load_from(self, ckpt: Checkpointer, step: int, model_only: bool) -> None:
        """Loads a checkpoint of Sheaf."""
        only: Optional[list[str]] = None
        if model_only:
            only = ["model"]
        elif self.exclude_from_loading:
            only = ["rng", *(PARTS.get(name, name) for name, x in self.states.items()
                             if x is not None and name not in self.exclude_from_loading)]
        if (only is None or "optimizer" in only) and not has_optimizer(ckpt, step):
            raise error("ELAYOUT", "step %d of %s has the weights alone, because "
                        "last_save_model_only was set, so a training cannot continue from it: set "
                        "checkpoint.load_step to an earlier step, or give this one as "
                        "checkpoint.initial_load_path with another folder; "
                        "last_save_model_only=False saves all" % (step, ckpt.path))
        ckpt.load(step, only=only)

    # ---- saving ----

    def _should_save(self, curr_step: int, last_step: bool = False) -> bool:
        if super()._should_save(curr_step, last_step):
            return True
        return bool(self.memory_every and curr_step % self.memory_every == 0 and
                    not self.load_only)

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        """Saves this step if it is time for it."""
        if not self._should_save(curr_step, last_step):
            return False
        ckpt = self.opened()
        assert ckpt is not None
        to_disk = super()._should_save(curr_step, last_step)
        if to_disk:
            self.maybe_wait_for_saving()
        set_aside(ckpt, self.loaded)
        self.loaded = None
        if last_step:
            self._save_last_step(curr_step)
        elif to_disk and (not self.background or self.memory_every and curr_step % self.interval):
            ckpt.save(curr_step)
        else:
            self.staged = ckpt.save_async(curr_step)
            self.save_future = self.staged if to_disk else self.save_future
        return True

    def _save_last_step(self, curr_step: int) -> None:
        """Saves everything, or only the weights: in export_dtype, under the names of torchtitan or
        of Hugging Face. When it returns, the checkpoint is durable."""
        ckpt = self.opened()
        assert ckpt is not None
        if not self.last_save_model_only:
            ckpt.save(curr_step)
            return
        ckpt.close()                    # one Checkpointer at a time may write
        self.ckpt = None
        tensors = self.states[Titan.MODEL].state_dict()
        if self.last_save_in_hf:
            tensors = self.sd_adapter.to_hf(tensors)
        with Checkpointer(self.folder, keep_last=self.keep or None) as weights:
            weights.track(Weights(tensors, self.export_dtype))
            weights.save(curr_step)

    def _maybe_wait_for_staging(self) -> None:
        """Called before the optimizers' step: waits until everything is copied."""
        staged, self.staged = self.staged, None
        if staged is not None:
            staged.gate()

    def _wait_for_saving(self) -> None:
        pending, self.save_future = self.save_future, None
        pending.result()

    # ---- the end ----

    def _close(self) -> None:
        """Waits for all saves, and closes the run. While an exception is handled, it closes the run
        only on this rank, because other ranks may not come here."""
        ckpt, self.ckpt = self.ckpt, None
        pending, self.save_future, self.staged = self.save_future, None, None
        e = sys.exc_info()[1]
        if ckpt is None:
            return
        if e is None:
            ckpt.close()
            return
        try:
            if pending is not None:
                pending.result(LAST_SECONDS)
        except Error as told:
            log.error("step %d: %s", pending.step, told)
        ckpt.leave(e)


def newest(ckpt: Checkpointer, step: int) -> Optional[int]:
    """The number of a checkpoint; None: there is none. [collective]

    step  its number; -1: the newest one, on disk or in memory
    """
    try:
        with (ckpt.opened().checkpoint() if step == -1 else
              ckpt.opened().checkpoint(step)) as found:
            return int(found.number)
    except NotFound:
        return None


def has_optimizer(ckpt: Checkpointer, step: int) -> bool:
    """Whether a checkpoint has more than weights. [collective]"""
    with ckpt.opened().checkpoint(step) as found:
        return GROUPS in found.files()


def initial(path: str) -> Optional[tuple[str, int]]:
    """The run and the step, -1 for the newest, that a path means; None: it is not Sheaf's."""
    if is_run(path):
        return path, -1
    found = named(path)
    return found if found is not None and is_run(found[0]) else None
