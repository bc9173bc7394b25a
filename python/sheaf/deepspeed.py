# SPDX-License-Identifier: Apache-2.0
"""Makes save_checkpoint and load_checkpoint of an engine of DeepSpeed use Sheaf.

    engine, _, _, _ = deepspeed.initialize(...)
    engine = sheaf.deepspeed.use(engine, keep_last=3)
    ...
    engine.load_checkpoint("runs/x")                    # the newest checkpoint
    engine.save_checkpoint("runs/x")                    # step engine.global_steps of the run

`use` replaces the class of the engine by one that derives from Checkpoints below and from the class
that it had.
"""
from __future__ import annotations

import importlib
import os
import re
from typing import Any, Mapping, Optional, TypeVar

import torch

from .torch.checkpointer import Checkpointer
from .torch.zero import ZeroModel
from .trainers import OneRun, Value, derive, is_run, set_aside

TAG = re.compile(r"(?:global_step|checkpoint-|step_?)?([0-9]+)")
T = TypeVar("T")


def use(engine: T, **opts: Any) -> T:
    """Makes save_checkpoint and load_checkpoint of a DeepSpeed engine use Sheaf. [local]

    engine  the first result of deepspeed.initialize
    opts    options of sheaf.Checkpointer: keep_last, keep_every, files, ...

    Returns the engine. ValueError, TypeError: a setting of the engine is not supported; the text
    says which one and what to do.
    """
    kind = importlib.import_module("deepspeed").DeepSpeedEngine
    if not isinstance(engine, kind):
        raise TypeError("sheaf.deepspeed.use: a %s is no engine of deepspeed.initialize"
                        % type(engine).__name__)
    if isinstance(engine, Checkpoints):
        raise ValueError("sheaf.deepspeed.use: this engine uses Sheaf already")
    given: Any = engine
    why = refused(given)
    if why is not None:
        raise ValueError("sheaf.deepspeed.use does not support %s" % why)
    given.sheaf = Session(given, opts)
    derive(given, Checkpoints)
    return engine


def refused(engine: Any) -> Optional[str]:
    """What an engine uses that is not supported, and what to do; None: everything is supported."""
    above = {k.__name__ for k in type(engine).__mro__}
    if "PipelineEngine" in above:
        return "pipelines: their stages name the layers by numbers; use ZeRO without PipelineModule"
    stage = int(engine.zero_optimization_stage())
    if stage == 3:
        return "ZeRO stage 3, with which no rank has a whole parameter: set \"stage\" to 1 or 2, " \
            "or use FSDP2"
    if engine.mp_world_size != 1 or engine.sequence_parallel_size != 1:
        return "parallel models and sequences inside of the engine: set \"stage\" to 1 or 2 " \
            "without mpu, tensor_parallel and sequence_parallel_size"
    if engine.has_moe_layers:
        return "layers with experts, which are not the same on all ranks: use FSDP2"
    if engine.curriculum_learning_enabled() or engine.random_ltd_enabled():
        return "curriculum learning and random_ltd, whose samplers are not saved: leave " \
            "\"curriculum_learning\" and \"data_efficiency\" out"
    optimizer = engine.optimizer
    if stage and (getattr(optimizer, "cpu_offload", False) or
                  engine.zero_nvme_offload_optimizer()):
        return "offload_optimizer, whose states are elsewhere: leave it out"
    names = {k.__name__ for k in type(optimizer).__mro__}
    if not stage and optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer) or \
            stage and "DeepSpeedZeroOptimizer" not in names or \
            stage and not isinstance(optimizer.optimizer, torch.optim.Optimizer):
        return "a %s with ZeRO stage %d: set \"stage\" to 1 or 2, with an optimizer of " \
            "torch.optim" % (type(optimizer).__name__, stage)
    return None


class Counters:
    """The counters of an engine and its loss scaler, as an object with a state_dict."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    @property
    def scaler(self) -> Any:
        """The loss scaler; None: the engine has none."""
        return getattr(self.engine.optimizer, "loss_scaler", None)

    def state_dict(self) -> dict[str, Any]:
        """Steps, samples, skipped steps, and the numbers of the loss scaler."""
        e, scaler = self.engine, self.scaler
        numbers = {} if scaler is None else {k: v for k, v in vars(scaler).items()
                                             if type(v) in (bool, int, float)}
        return {"global_steps": e.global_steps, "global_samples": e.global_samples,
                "skipped_steps": e.skipped_steps,
                "loss_scaler": {"type": type(scaler).__name__, "numbers": numbers}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues counting from there. The state of a loss scaler of another type is ignored."""
        e = self.engine
        for key in ("global_steps", "global_samples", "skipped_steps"):
            setattr(e, key, state[key])
        e.micro_steps = e.global_steps * e.gradient_accumulation_steps()
        if state["loss_scaler"]["type"] == type(self.scaler).__name__ != "NoneType":
            vars(self.scaler).update(state["loss_scaler"]["numbers"])


class Session(OneRun):
    """The state of an engine that uses Sheaf, as the attribute `engine.sheaf`.

    client  the client_state of the last save or load
    """

    def __init__(self, engine: Any, opts: Mapping[str, Any]) -> None:
        super().__init__(opts, self.track_all)
        self.engine, self.client = engine, Value({})

    def track_all(self, ckpt: Checkpointer) -> None:
        """Tracks module, optimizer, schedule, counters and client_state."""
        e = self.engine
        optimizers = [] if e.optimizer is None else [e.optimizer]
        if self.zero is None:
            ckpt.track(e.module)
        else:
            optimizers = [e.optimizer.optimizer]
            ckpt.tracked.models.append(ZeroModel(e.module, e.optimizer))
        ckpt.track(None, *optimizers, scheduler=e.lr_scheduler, deepspeed=Counters(e),
                   client_state=self.client)

    @property
    def zero(self) -> Any:
        """The ZeRO optimizer; None: there is none."""
        return self.engine.optimizer if self.engine.zero_optimization_stage() else None


def number_of(what: str, tag: Any) -> int:
    """The step that a tag means. ValueError: it means none."""
    found = TAG.fullmatch(str(tag))
    if found is None:
        raise ValueError("%s: tag=%r names no step: give a number, or global_step500" % (what, tag))
    return int(found[1])


class Checkpoints:
    """The base class that is put before that of an engine: saves and loads checkpoints."""

    sheaf: Session

    def save_checkpoint(self, save_dir: Any, tag: Any = None,
                        client_state: Optional[Mapping[str, Any]] = None, save_latest: bool = True,
                        exclude_frozen_parameters: bool = False) -> bool:
        """Saves module, optimizer, schedule, loss scale, counters, random streams, client_state.

        save_dir      the run
        tag           a step: 500 or "global_step500"; None: engine.global_steps
        client_state  a dict of values that a tree may hold, the same on all ranks

        Returns True when the checkpoint is durable. Raises sheaf.Exists if the number is already
        used. But if load_checkpoint loaded an older checkpoint, later ones are set aside.
        [collective]
        """
        own: Any = self
        if not save_latest or exclude_frozen_parameters:
            raise ValueError("save_checkpoint: save_latest=False and exclude_frozen_parameters="
                             "True have no meaning for a checkpoint of Sheaf: leave them out")
        if own.micro_steps % own.gradient_accumulation_steps():
            raise ValueError("save_checkpoint between micro-batches: the gradients of %d of %d "
                             "would be lost; save when engine.is_gradient_accumulation_boundary() "
                             "was true before engine.step()" %
                             (own.micro_steps % own.gradient_accumulation_steps(),
                              own.gradient_accumulation_steps()))
        step = own.global_steps if tag is None else number_of("save_checkpoint", tag)
        run = os.fspath(save_dir)
        ckpt = self.sheaf.opened(run)
        set_aside(ckpt, self.sheaf.loaded)
        self.sheaf.client.value = dict(client_state or {})
        ckpt.save(step)
        self.sheaf.loaded = None
        return True

    def load_checkpoint(self, load_dir: Any, tag: Any = None, load_module_strict: bool = True,
                        load_optimizer_states: bool = True, load_lr_scheduler_states: bool = True,
                        load_module_only: bool = False, custom_load_fn: Any = None) -> Any:
        """Loads the state of the engine. DeepSpeed loads the checkpoints that it wrote itself.

        load_dir  the run
        tag       a step, as for save_checkpoint; None: the newest
        load_module_strict
                  False: what only one of the checkpoint and the engine has is left as it is.
                  A checkpoint that another trainer saved needs this

        Returns the folder and the client_state, or (None, None) if tag is None and there is no
        checkpoint. Raises sheaf.NotFound if there is none of that step. [collective]
        """
        above: Any = super()
        own: Any = self
        run = os.fspath(load_dir)
        if not is_run(run):
            return above.load_checkpoint(load_dir, tag, load_module_strict, load_optimizer_states,
                                         load_lr_scheduler_states, load_module_only,
                                         custom_load_fn)
        if custom_load_fn is not None:
            raise ValueError("load_checkpoint: custom_load_fn has no meaning for a checkpoint of "
                             "Sheaf: read it by sheaf.load(%r), and leave it out" % run)
        only: Optional[list[str]] = None
        if load_module_only:
            only = ["model"]
        elif not load_optimizer_states or not load_lr_scheduler_states:
            only = ["model", "rng", "deepspeed", "client_state"]
            only += ["optimizer"] if load_optimizer_states and own.optimizer is not None else []
            only += ["scheduler"] if load_lr_scheduler_states and own.lr_scheduler is not None \
                else []
        ckpt = self.sheaf.opened(run)
        self.sheaf.client.value = {}
        found = ckpt.load("latest" if tag is None else number_of("load_checkpoint", tag),
                          strict=load_module_strict, convert=True, only=only)
        if found is None:
            return None, None
        if self.sheaf.zero is not None:
            self.sheaf.zero.update_lp_params()
        self.sheaf.loaded = found.step
        return os.path.join(run, "checkpoint-%d" % found.step), dict(self.sheaf.client.value)

    def destroy(self) -> None:
        """Closes the run, and does what the engine does at the end."""
        above: Any = super()
        self.sheaf.close()
        above.destroy()
