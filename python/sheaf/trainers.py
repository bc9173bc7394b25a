# SPDX-License-Identifier: Apache-2.0
"""What sheaf.transformers, accelerate, lightning, torchtitan and deepspeed have in common."""
from __future__ import annotations

import logging
import os
from typing import Any, Callable, Mapping, Optional

from .place import FOLDER
from .torch.checkpointer import Checkpointer

log = logging.getLogger("sheaf")
Track = Callable[[Checkpointer], None]


def derive(x: Any, base: type) -> None:
    """Gives an object a class that derives from `base` and from the class that it had."""
    own = type(x)
    x.__class__ = type(own.__name__, (base, own), {"__doc__": own.__doc__,
                                                   "__module__": own.__module__})


def is_run(folder: str) -> bool:
    """Whether a folder is a run of Sheaf."""
    return os.path.isdir(os.path.join(folder, ".sheaf"))


def is_checkpoint(folder: str) -> bool:
    """Whether a folder is a checkpoint of Sheaf."""
    return os.path.exists(os.path.join(folder, "sheaf.json"))


def named(path: str) -> Optional[tuple[str, int]]:
    """The run and the number of a path RUN/checkpoint-NUMBER; None: it has another name."""
    folder = os.path.normpath(path)
    found = FOLDER.match(os.path.basename(folder))
    return (os.path.dirname(folder) or ".", int(found[1])) if found else None


def opened(run: str, track: Track, **opts: Any) -> Checkpointer:
    """Opens a run and calls `track`. If that fails, this rank leaves the run. [collective]"""
    ckpt = Checkpointer(run, **opts)
    try:
        track(ckpt)
    except BaseException as e:
        ckpt.leave(e)
        raise
    return ckpt


def set_aside(ckpt: Checkpointer, step: Optional[int]) -> None:
    """Sets aside the checkpoints after the step from which a training continues. [collective]

    step  the one that was loaded since the last save; None: none was loaded
    """
    if step is not None and any(s > step for s in ckpt.steps):
        log.warning("%s: the training went back to step %d; later checkpoints are set aside",
                    ckpt.path, step)
        ckpt.rewind(step)


class OneRun:
    """The run that a trainer saves to and loads from, if its calls name the run.

    opts    options of sheaf.Checkpointer
    track   tracks the objects of the trainer
    ckpt    the Checkpointer of the run that was saved to or loaded from; None: no run is open
    loaded  the step that was loaded since the last save; None: none
    """

    def __init__(self, opts: Mapping[str, Any], track: Track) -> None:
        self.opts, self.track = dict(opts), track
        self.ckpt: Optional[Checkpointer] = None
        self.loaded: Optional[int] = None

    def opened(self, run: str) -> Checkpointer:
        """The Checkpointer of a run. If another run is open, it is closed. [collective]"""
        if self.ckpt is not None and os.path.realpath(self.ckpt.path) != os.path.realpath(run):
            self.close()
        if self.ckpt is None:
            self.ckpt = opened(run, self.track, **self.opts)
        return self.ckpt

    def close(self) -> None:
        """Waits for all saves and closes the run; the next call opens it again. [collective]"""
        ckpt, self.ckpt, self.loaded = self.ckpt, None, None
        if ckpt is not None:
            ckpt.close()


class Value:
    """A value as an object with a state_dict, for Checkpointer.track."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def state_dict(self) -> Any:
        """The value that is saved."""
        return self.value

    def load_state_dict(self, state: Any) -> None:
        """Keeps the value that was loaded."""
        self.value = state
