# SPDX-License-Identifier: Apache-2.0
"""Makes transformers.Trainer save its checkpoints with Sheaf, and resume from them.

    trainer = sheaf.transformers.use(Trainer(...))
    trainer.train(resume_from_checkpoint="auto")

`use` replaces the class of the trainer by one that derives from Checkpoints below and from the
class that it had, so any subclass of Trainer works. The folder `output_dir` is the run. The Trainer
itself reads only `trainer_state.json` from a checkpoint, which is an attached file.
"""
from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import logging
import numbers
import os
import tempfile
from typing import Any, Iterator, Mapping, Optional, TypeVar

from .errors import NotFound
from .torch import rng
from .torch.checkpointer import Checkpointer
from .torch.metrics import NOTE
from .torch.pending import DISK, Pending, where_of
from .trainers import derive, is_checkpoint, named, set_aside

log = logging.getLogger("sheaf")
STATE, ARGS = "trainer_state.json", "training_args.json"
LIMITS = ("keep_last", "best")          # options that follow from settings of the Trainer
T = TypeVar("T")


def use(trainer: T, *, background: Optional[bool] = None, **opts: Any) -> T:
    """Makes a Trainer save its checkpoints with Sheaf, and resume from them. [local]

    trainer     a transformers.Trainer, before train()
    background  True: training continues while a checkpoint is written. False: each save is durable
                before on_save of the callbacks. None: False if a callback of the trainer has an
                on_save of its own, which may open the folder, and True otherwise
    opts        options of sheaf.Checkpointer: agent, memory_every, disk_every, on_sigterm,
                store_dtype, ... Not keep_last and best: the Trainer's save_total_limit and
                metric_for_best_model take their place

    Returns the trainer. ValueError, TypeError: a setting of the trainer is not supported; the text
    says which one and what to do.
    """
    kind = importlib.import_module("transformers").Trainer
    if not isinstance(trainer, kind):
        raise TypeError("sheaf.transformers.use: a %s is no transformers.Trainer"
                        % type(trainer).__name__)
    for name in LIMITS:
        if name in opts:
            raise TypeError("sheaf.transformers.use: %s is set by %s of TrainingArguments" %
                            (name, "save_total_limit" if name == "keep_last" else
                             "metric_for_best_model"))
    lacks = [n for n in vars(Checkpoints) if callable(getattr(Checkpoints, n)) and
             not hasattr(kind, n)]
    if lacks:
        raise ValueError("sheaf.transformers.use: the Trainer of transformers %s has no %s; 5.24 "
                         "has it" % (importlib.import_module("transformers").__version__, lacks[0]))
    given: Any = trainer
    check_trainer(given)
    if isinstance(given, Checkpoints):
        raise ValueError("sheaf.transformers.use: this trainer uses Sheaf already")
    given.sheaf = Session(background, opts)
    derive(given, Checkpoints)
    return trainer


def check_trainer(trainer: Any) -> None:
    """Raises ValueError for a setting that Sheaf cannot support."""
    args = trainer.args
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    wrong = {
        "deepspeed: its engine keeps parameters and optimizer state to itself; use FSDP2":
            trainer.is_deepspeed_enabled,
        "fsdp with version 1: its flat parameters are not supported; set fsdp_config="
        "{'version': 2}":
            trainer.is_fsdp_enabled and getattr(plugin, "fsdp_version", 1) != 2,
        "auto_find_batch_size=True: it begins the training anew with other objects; set "
        "per_device_train_batch_size": args.auto_find_batch_size,
        "save_on_each_node=True: all nodes write one checkpoint together, to a folder that all of "
        "them see; set save_on_each_node=False": args.save_on_each_node,
        "enable_jit_checkpoint=True: leave it out, and give on_sigterm=SECONDS to "
        "sheaf.transformers.use": getattr(args, "enable_jit_checkpoint", False),
        "push_to_hub=True with hub_strategy=%r: set hub_strategy='end', which pushes the model "
        "after the training" % str(getattr(args.hub_strategy, "value", args.hub_strategy)):
            args.push_to_hub and args.hub_strategy != "end",
        "a PeftModel: its checkpoints have the adapter alone, which Sheaf does not select; leave "
        "sheaf.transformers.use out": type(trainer.model).__name__.startswith("Peft") or
            getattr(trainer.model, "_hf_peft_config_loaded", False)}
    for what, found in wrong.items():
        if found:
            raise ValueError("sheaf.transformers.use does not support " + what)


@dataclasses.dataclass
class Source:
    """The checkpoint from which a training resumes.

    folder  passed to the Trainer
    run     the run that has the checkpoint
    step    its number
    """

    folder: str
    run: str
    step: int


class Session:
    """The state of a trainer that uses Sheaf, as the attribute `trainer.sheaf`.

    background  as given to use()
    opts        as given to use()
    ckpt        the Checkpointer, during train()
    last        the last save
    """

    def __init__(self, background: Optional[bool], opts: Mapping[str, Any]) -> None:
        self.background, self.opts = background, dict(opts)
        self.ckpt: Optional[Checkpointer] = None
        self.source: Optional[Source] = None
        self.last: Optional[Pending] = None
        self.streams: Optional[dict[str, Any]] = None   # random streams that were loaded
        self.evaluated: tuple[int, dict[str, Any]] = (-1, {})
        self.best: Optional[float] = None               # metric of the best checkpoint on disk
        self.waits = False                              # whether a save ends before on_save
        self.tracks = False

    @property
    def checkpointer(self) -> Checkpointer:
        """The Checkpointer, which exists only during train()."""
        assert self.ckpt is not None
        return self.ckpt

    # ---- the beginning ----

    @contextlib.contextmanager
    def opened(self, trainer: Any, resume: Any) -> Iterator[Any]:
        """Opens the run for one training, and yields what the Trainer is to resume from."""
        args = trainer.args
        base = importlib.import_module("transformers").TrainerCallback.on_save
        own = [cb for cb in trainer.callback_handler.callbacks if type(cb).on_save is not base]
        self.waits = bool(own) if self.background is None else not self.background
        self.source, self.last, self.streams, self.best = None, None, None, None
        self.tracks = False
        with Checkpointer(args.output_dir, **self.opts, **limits(args)) as ckpt, \
                tempfile.TemporaryDirectory() as spare:
            self.ckpt = ckpt
            try:
                found = self.look(args.output_dir, resume, spare)
                if self.last is None:
                    ckpt.files.update(side_files(trainer) if ckpt.rank == 0 else {})
                yield found
                self.settle()
            finally:
                self.ckpt = None

    def look(self, output: str, resume: Any, spare: str) -> Any:
        """What the Trainer is to resume from: a folder with its state, or what it was given."""
        ckpt = self.checkpointer
        there = ckpt.steps
        if resume is None or resume is False:
            if there:
                raise ValueError("%s has checkpoints, the newest of step %d, and none is "
                                 "overwritten: go on by trainer.train(resume_from_checkpoint="
                                 "True), or give another output_dir" % (output, there[-1]))
            return resume
        if resume is True or resume == "auto":
            self.source = self.newest(output, spare)
            if self.source is not None:
                return self.source.folder
            return True if resume is True or last_of(output) else None
        folder = os.fspath(resume)
        found = named(folder)
        if found is None or not is_checkpoint(folder):
            return resume               # another program wrote it: the Trainer itself loads it
        run, step = found
        self.source = Source(folder, run, step)
        if os.path.realpath(run) == os.path.realpath(output):
            set_aside(ckpt, step)
        elif there:
            raise ValueError("%s has checkpoints, the newest of step %d, and %s is a checkpoint of "
                             "another run: give another output_dir" % (output, there[-1], folder))
        return folder

    def newest(self, output: str, spare: str) -> Optional[Source]:
        """The newest checkpoint of the run, on disk or in memory; None: there is none, or one
        that the Trainer itself wrote is newer."""
        ckpt = self.checkpointer
        try:
            with ckpt.opened().checkpoint() as found:
                step = found.number
                state = found.file(STATE) if STATE in found.files() else None
        except NotFound:
            return None
        other = last_of(output)
        if other is not None and int(other.rpartition("-")[2]) > step:
            return None
        folder = os.path.join(output, "checkpoint-%d" % step)
        if state is None:
            raise ValueError("%s has no %s: it was not saved by a Trainer" % (folder, STATE))
        if not os.path.exists(os.path.join(folder, STATE)):     # it is only in memory
            folder = os.path.join(spare, "checkpoint-%d" % step)
            os.mkdir(folder)
            with open(os.path.join(folder, STATE), "wb") as f:
                f.write(state)
        return Source(folder, output, step)

    def track(self, trainer: Any) -> None:
        """Tracks the objects that the Trainer has made; a second call does nothing."""
        if self.tracks:
            return
        self.tracks = True
        self.tracked_by(self.checkpointer, trainer)

    def tracked_by(self, ckpt: Checkpointer, trainer: Any) -> None:
        if trainer.args.save_only_model:
            ckpt.track(trainer.model)
            return
        optimizer = trainer.optimizer
        ckpt.track(trainer.model, getattr(optimizer, "optimizer", optimizer),
                   scheduler=trainer.lr_scheduler,
                   scaler=getattr(trainer.accelerator, "scaler", None))

    # ---- loading ----

    def loads(self, folder: Optional[str]) -> bool:
        """Whether the Trainer asks for what Sheaf loads."""
        return self.source is not None and folder == self.source.folder

    def load(self, trainer: Any) -> None:
        """Loads all tracked objects. The random streams are restored later, at the point at which
        the Trainer does so."""
        assert self.source is not None
        self.track(trainer)
        before = rng.read({})
        ckpt, source = self.checkpointer, self.source
        # No optimizer is tracked then.
        only = ["model", "rng"] if trainer.args.save_only_model else None
        if os.path.realpath(source.run) == os.path.realpath(ckpt.path):
            ckpt.load(source.step, only=only)
        else:
            with Checkpointer(source.run, readonly=True, timeout=ckpt.timeout) as other:
                self.tracked_by(other, trainer)
                other.load(source.step, only=only)
        self.streams = rng.read({})
        rng.write(before, {})
        self.best = best_of(trainer)

    # ---- saving ----

    def save(self, trainer: Any) -> None:
        """Saves a checkpoint of the step that the Trainer is at."""
        self.track(trainer)
        ckpt, state, step = self.checkpointer, trainer.state, int(trainer.state.global_step)
        if self.last is not None and self.last.step == step:
            return
        key = metric_of(trainer.args)
        metrics = self.metrics(trainer)
        where = where_of(step, ckpt.memory_every, ckpt.disk_every)
        if key is not None and key in metrics and where == DISK and \
                better(metrics[key], self.best, trainer.args.greater_is_better):
            self.best = metrics[key]
            state.best_model_checkpoint = os.path.join(trainer.args.output_dir,
                                                       "checkpoint-%d" % step)
        state.stateful_callbacks = callback_states(trainer)
        ckpt.files[STATE] = (json.dumps(dataclasses.asdict(state), indent=2, sort_keys=True)
                             + "\n").encode()
        self.last = ckpt.save_async(step, metrics)
        if self.waits:
            self.last.result()
        if ckpt.leaving:
            trainer.control.should_training_stop = True

    def metrics(self, trainer: Any) -> dict[str, Any]:
        """The metrics of this step: those of its evaluation, and of the last line of the log."""
        step, found = self.evaluated
        known = dict(found) if step == trainer.state.global_step else {}
        key = metric_of(trainer.args)
        last = trainer.state.log_history[-1] if trainer.state.log_history else {}
        for name, value in last.items():
            if name != key and name != "step":
                known.setdefault(name, value)
        return {name: value for name, value in known.items() if isinstance(value, numbers.Real) and
                (name == key or NOTE.fullmatch(name) and not name.startswith("ranks."))}

    def leaves(self) -> bool:
        """Whether a rank received SIGTERM (on_sigterm): then this step is saved. [collective]"""
        ckpt = self.checkpointer
        return ckpt.told is not None and not ckpt.leaving and \
            ckpt.told.agree(ckpt.group, ckpt.timeout or 600.0)

    def settle(self) -> None:
        """Waits for the last save, and raises its failure."""
        if self.last is not None:
            self.last.result()


def last_of(output: str) -> Optional[str]:
    """The folder of the newest checkpoint on disk, whoever wrote it; None: there is none."""
    found: Optional[str] = importlib.import_module("transformers.trainer_utils"
                                                   ).get_last_checkpoint(output)
    return found


def callback_states(trainer: Any) -> dict[str, Any]:
    """The states of the callbacks that have one, by their types; a list where there are several."""
    kind = importlib.import_module("transformers.trainer_callback").ExportableState
    found: dict[str, list[Any]] = {}
    for cb in trainer.callback_handler.callbacks + [trainer.control]:
        if isinstance(cb, kind):
            name, value = type(cb).__name__, cb.state()
            try:
                json.dumps(value)
            except (TypeError, ValueError) as e:
                raise TypeError("the state() of the callback %s cannot be in %s: %s; return "
                                "numbers, strings, lists and dicts there" % (name, STATE, e)
                                ) from None
            found.setdefault(name, []).append(value)
    return {name: states if len(states) > 1 else states[0] for name, states in found.items()}


def limits(args: Any) -> dict[str, Any]:
    """Which checkpoints are kept: save_total_limit counts the best one, if there is a metric."""
    limit, key = args.save_total_limit, metric_of(args)
    if limit is None or limit <= 0:
        return {}
    if key is None:
        return {"keep_last": limit}
    return {"keep_last": max(limit - 1, 1),
            "best": (key, "max" if args.greater_is_better else "min")}


def metric_of(args: Any) -> Optional[str]:
    """The metric of the best checkpoint, as evaluate() calls it."""
    key: Optional[str] = args.metric_for_best_model
    return key if key is None or key.startswith("eval_") else "eval_" + key


def better(value: Any, than: Optional[float], greater: bool) -> bool:
    """Whether a checkpoint takes the place of the best; of two that are equal, the newer does."""
    if value != value:
        return False
    return than is None or (value >= than if greater else value <= than)


def best_of(trainer: Any) -> Optional[float]:
    """The metric of the best checkpoint, from the log of the evaluations."""
    best, key = trainer.state.best_model_checkpoint, metric_of(trainer.args)
    if best is None or key is None:
        return None
    at = named(best)
    found = [entry[key] for entry in trainer.state.log_history
             if key in entry and at is not None and entry.get("step") == at[1]]
    return found[-1] if found else None


def side_files(trainer: Any) -> dict[str, bytes]:
    """Further files of a checkpoint: the tokenizer, and the arguments as JSON."""
    found = {ARGS: (trainer.args.to_json_string() + "\n").encode()}
    holder = trainer.processing_class
    if holder is None:
        holder = getattr(trainer.data_collator, "tokenizer", None)
    if holder is None:
        return found
    with tempfile.TemporaryDirectory() as at:
        holder.save_pretrained(at)
        for folder, _, names in os.walk(at):
            for name in names:
                path = os.path.join(folder, name)
                inside = os.path.relpath(path, at)
                if os.sep in inside:
                    log.warning("%s of the tokenizer is not in the checkpoints: attached files "
                                "have no folders", inside)
                    continue
                with open(path, "rb") as f:
                    found[inside] = f.read()
    return found


class Checkpoints:
    """The base class that is put before that of a Trainer: saves and loads checkpoints."""

    sheaf: Session
    args: Any
    state: Any
    control: Any

    def train(self, resume_from_checkpoint: Any = None, trial: Any = None, *args: Any,
              **kwargs: Any) -> Any:
        """As Trainer.train; a checkpoint of Sheaf is loaded by Sheaf, and any other by the Trainer.

        resume_from_checkpoint  as there; "auto": True if there is a checkpoint, on disk or in the
                                memory of the nodes, and None otherwise

        Raises ValueError if output_dir has checkpoints and resume_from_checkpoint is not given.
        """
        above: Any = super()
        if trial is not None:
            raise ValueError("sheaf.transformers.use does not support hyperparameter_search, "
                             "whose trials have no run of their own: use a Trainer without it")
        with self.sheaf.opened(self, resume_from_checkpoint) as resume:
            return above.train(resume, trial, *args, **kwargs)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        above: Any = self
        above.store_flos()
        self.sheaf.save(self)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        above: Any = super()
        if not self.sheaf.loads(resume_from_checkpoint):    # else all is loaded at once, below
            above._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: Optional[str]) -> None:
        above: Any = super()
        if self.sheaf.loads(checkpoint):
            self.sheaf.load(self)
        else:
            above._load_optimizer_and_scheduler(checkpoint)
            self.sheaf.best = best_of(self)

    def _load_scaler(self, checkpoint: Optional[str]) -> None:
        above: Any = super()
        if not self.sheaf.loads(checkpoint):
            above._load_scaler(checkpoint)

    def _load_rng_state(self, checkpoint: Optional[str]) -> None:
        above: Any = super()
        if not self.sheaf.loads(checkpoint):
            above._load_rng_state(checkpoint)
        elif self.sheaf.streams is not None:
            rng.write(self.sheaf.streams, {})

    def _load_best_model(self) -> None:
        above: Any = super()
        best = self.state.best_model_checkpoint
        at = named(best)
        if at is not None and is_checkpoint(best):
            self.sheaf.checkpointer.load(at[1], only="model")
        else:
            above._load_best_model()

    def _determine_best_metric(self, metrics: Any, trial: Any) -> Any:
        above: Any = super()
        self.sheaf.evaluated = (self.state.global_step, dict(metrics or {}))
        return above._determine_best_metric(metrics, trial)

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        above: Any = super()
        if self.sheaf.leaves():
            self.control.should_save = True
        above._maybe_log_save_evaluate(*args, **kwargs)

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        above: Any = super()
        self.sheaf.settle()             # the best model may be the last, and on_train_end sees it
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:                            # nothing but the library deletes checkpoints of a run
            return above._finalize_training(*args, **kwargs)
        finally:
            self.args.save_total_limit = limit
