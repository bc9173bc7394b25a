# SPDX-License-Identifier: Apache-2.0
"""Makes Lightning save with Sheaf: a CheckpointIO, and a strategy for sharded models.

    trainer = Trainer(plugins=[sheaf.lightning.CheckpointIO()])
    trainer = Trainer(strategy=sheaf.lightning.ModelParallelStrategy())

Each path that Lightning names, such as epoch=0-step=10.ckpt, is a run of its own with one
checkpoint: it can be moved and removed like a file. A new run is created under another name in the
same directory and then renamed, so that no path exists before its checkpoint is complete. If the
path exists, the run gets a further step, and the previous one is removed.
"""
from __future__ import annotations

import importlib
import os
import shutil
import sys
from typing import Any, Mapping, Optional, Union

import torch

from .loading import load
from .saving import save
from .torch.checkpointer import Checkpointer
from .trainers import Value, is_run

Path = Union[str, "os.PathLike[str]"]
OLD = {"lightning.pytorch": "pytorch_lightning", "lightning.fabric": "lightning_fabric"}


def framework(package: str, module: str) -> Any:
    """A module of Lightning, of the package `lightning`, or of the older ones if these are used."""
    old = "pytorch_lightning" in sys.modules and "lightning" not in sys.modules
    return importlib.import_module("%s.%s" % (OLD[package] if old else package, module))


def local(path: Path) -> str:
    """A local path. ValueError: it is a URL of an object store."""
    text = os.fspath(path)
    if "://" in text:
        raise ValueError("%s: Sheaf writes to file systems alone; mount the store, or give "
                         "ModelCheckpoint a dirpath of this machine" % text)
    return os.path.normpath(text)


def made_at(path: str) -> str:
    """Where the next save of a path is made: there, or beside it if the path does not exist."""
    if is_run(path):
        return path
    if os.path.lexists(path):
        raise FileExistsError("%s is no checkpoint of Sheaf: remove it, or give ModelCheckpoint "
                              "another dirpath" % path)
    return os.path.join(os.path.dirname(path), ".%s.part" % os.path.basename(path))


def shown(made: str, path: str) -> None:
    """Renames what was made to its path, durably."""
    if made == path:
        return
    os.rename(made, path)
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def moved(x: Any, device: Any) -> Any:
    """A tree with its tensors on that device."""
    if isinstance(x, torch.Tensor):
        return x.to(device)
    if type(x) in (list, tuple):
        return type(x)(moved(v, device) for v in x)
    if isinstance(x, dict):
        same = x.copy()
        for key, value in x.items():
            same[key] = moved(value, device)
        return same
    return x


Plugin: Any = framework("lightning.fabric", "plugins").CheckpointIO
Parallel: Any = framework("lightning.pytorch", "strategies").ModelParallelStrategy


class CheckpointIO(Plugin):             # type: ignore[misc]
    """A plugin of Lightning that saves its checkpoints by sheaf.save, without pickle.

    opts  options of sheaf.save: unsupported, timeout, ...

    The weights are in family `model`, by the names of the module, and everything else is in a typed
    tree. A value that a tree cannot hold is a TypeError that names its place. Lightning loads the
    checkpoints that it wrote itself.
    """

    def __init__(self, **opts: Any) -> None:
        self.opts = opts

    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: Path,
                        storage_options: Any = None) -> None:
        """Saves what Lightning collected. When it returns, the checkpoint is durable. [local]"""
        refuse_storage(storage_options)
        at = local(path)
        made = made_at(at)
        os.makedirs(os.path.dirname(at) or ".", exist_ok=True)
        rest = dict(checkpoint)
        weights = rest.pop("state_dict", {})
        tree = moved({"model": dict(weights), "lightning": rest}, "cpu")
        try:
            save(made, tree, keep_last=1, **self.opts)
        except TypeError as e:
            raise TypeError("%s: %s; leave it out of the checkpoint, for hyperparameters by "
                            "save_hyperparameters(ignore=[...])" % (at, e)) from None
        shown(made, at)

    def load_checkpoint(self, path: Path, map_location: Any = None,
                        weights_only: Optional[bool] = None) -> dict[str, Any]:
        """Loads a checkpoint. Nothing in it can run code, with any weights_only. [local]"""
        at = local(path)
        if os.path.exists(at) and not is_run(at):
            other = framework("lightning.fabric", "plugins").TorchCheckpointIO()
            found: dict[str, Any] = other.load_checkpoint(path, weights_only=weights_only)
            return found
        tree = load(at, codec=codec_of(self.opts))
        if isinstance(map_location, (str, torch.device)):
            tree = moved(tree, map_location)
        return dict(tree["lightning"], state_dict=tree["model"])

    def remove_checkpoint(self, path: Path) -> None:
        """Removes a checkpoint. [local]"""
        at = local(path)
        if os.path.isdir(at):
            shutil.rmtree(at)
        elif os.path.lexists(at):
            os.remove(at)


def codec_of(opts: Mapping[str, Any]) -> Any:
    """The codec with which trees are saved; None: there is none."""
    found = opts.get("unsupported")
    return None if isinstance(found, str) else found


def refuse_storage(options: Any) -> None:
    """Raises TypeError for options of a storage."""
    if options is not None:
        raise TypeError("save_checkpoint: storage_options has no meaning for a checkpoint of "
                        "Sheaf: leave it out")


class ModelParallelStrategy(Parallel):  # type: ignore[misc]
    """Lightning's strategy for FSDP2 and tensor parallelism, whose checkpoints are Sheaf's.

    opts  options of Lightning's strategy; checkpoint={...}: options of sheaf.Checkpointer, such as
          store_dtype

    Lightning's own strategy bypasses the CheckpointIO, and its checkpoints must be converted before
    other programs can read them. With this one, any number of ranks loads what any other number
    saved, and `from_pretrained` opens a checkpoint if the names are those of transformers. The
    random streams of each rank are saved, too.
    """

    def __init__(self, *args: Any, checkpoint: Optional[Mapping[str, Any]] = None,
                 **opts: Any) -> None:
        if not opts.get("save_distributed_checkpoint", True):
            raise ValueError("save_distributed_checkpoint=False has no meaning here: a checkpoint "
                             "of Sheaf has whole tensors, written by all ranks; leave it out")
        above: Any = super()
        above.__init__(*args, **opts)
        self.sheaf = dict(checkpoint or {})

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Nothing: the tensors are saved where they are."""
        return {}

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Nothing, as above."""
        return {}

    def save_checkpoint(self, checkpoint: Mapping[str, Any], filepath: Path,
                        storage_options: Any = None) -> None:
        """Saves model, optimizers and what Lightning collected. [collective]"""
        refuse_storage(storage_options)
        own: Any = self
        at = local(own.broadcast(filepath))
        made = own.broadcast(told(made_at, at))
        if isinstance(made, Exception):
            raise made
        rest = dict(checkpoint)
        trains = "optimizer_states" in rest
        if rest.pop("state_dict", None):
            raise ValueError("on_save_checkpoint added to state_dict, which is empty there: the "
                             "tensors are saved where they are; add to the checkpoint itself")
        rest.pop("optimizer_states", None)
        os.makedirs(os.path.dirname(at) or ".", exist_ok=True)
        with Checkpointer(made, keep_last=1, **self.sheaf) as ckpt:
            ckpt.track(own.model, *(own.optimizers if trains else ()), lightning=Value(rest))
            ckpt.save(max(ckpt.steps, default=-1) + 1, {"global_step": rest["global_step"],
                                                        "epoch": rest["epoch"]})
        failed = own.broadcast(told(shown, made, at) if own.is_global_zero else None)
        if isinstance(failed, Exception):
            raise failed

    def load_checkpoint(self, checkpoint_path: Path,
                        weights_only: Optional[bool] = None) -> dict[str, Any]:
        """Loads a checkpoint of Sheaf or of Lightning. [collective]"""
        own: Any = self
        above: Any = super()
        at = local(own.broadcast(checkpoint_path))
        if os.path.exists(at) and not is_run(at):
            found: dict[str, Any] = above.load_checkpoint(checkpoint_path, weights_only)
            return found
        rest = Value()
        only = None if own.optimizers else ["model", "lightning"]
        with Checkpointer(at, readonly=True, timeout=self.sheaf.get("timeout")) as ckpt:
            ckpt.track(own.model, *own.optimizers, lightning=rest)
            if ckpt.load(strict=own.lightning_module.strict_loading, only=only) is None:
                raise FileNotFoundError("%s has no checkpoint" % at)
        return dict(rest.value or {}, state_dict={}, optimizer_states=[])


def told(work: Any, *args: Any) -> Any:
    """The result of a call, or the exception that it raises, to send to the other ranks."""
    try:
        return work(*args)
    except Exception as e:
        return e
