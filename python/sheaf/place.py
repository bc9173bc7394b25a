# SPDX-License-Identifier: Apache-2.0
"""Which run and which checkpoint a path means, by the rules of the command `sheaf`."""
from __future__ import annotations

import os
import re
from typing import Any, Optional

from .binding import error
from .run import LATEST, Checkpoint, Path, Run, open_path

AT = re.compile(r"(.+)@(\d+|latest)\Z", re.S)
FOLDER = re.compile(r"checkpoint-(\d+)\Z")
WEIGHTS = (".safetensors", ".safetensors.index.json", ".distcp", "_states.pt")
WHOLE = ("sheaf.json", "sheaf.sums", ".metadata", "metadata.pkl", "model_meta.json", "model_state",
         "optimizer_state", "master_weight", "ema_state", "latest", "latest_universal",
         "latest_checkpointed_iteration.txt", "common.pt")
HEADS = ("global_step", "pytorch_model", "adapter_model", "mp_rank_")


def split(path: Path) -> tuple[str, Optional[int]]:
    """RUN@STEP as the run and the number; a path that exists as it stands is that path."""
    text = os.fspath(path)
    found = None if os.path.lexists(text) else AT.match(text)
    if not found:
        return text, None
    return found[1], LATEST if found[2] == "latest" else int(found[2])


def is_run(path: str) -> bool:
    """Whether a directory is a run: it has .sheaf, or nothing that can be loaded by itself."""
    names = os.listdir(path)
    weights = any(n in WHOLE or n.endswith(WEIGHTS) or n.startswith(HEADS) for n in names)
    hub = "snapshots" in names and ("blobs" in names or "refs" in names)    # its cache
    return ".sheaf" in names or not (weights or hub)


def to_save(path: Path, step: Optional[int]) -> tuple[str, Optional[int]]:
    """The run and the number that a save to `path` means; None: the next number.

    path  a run, RUN@STEP, or the folder RUN/checkpoint-STEP
    """
    run, at = split(path)
    folder = FOLDER.match(os.path.basename(os.path.normpath(run)))
    if at is None and folder and not os.path.isdir(os.path.join(run, ".sheaf")):
        run, at = os.path.dirname(os.path.normpath(run)) or ".", int(folder[1])
    if at == LATEST:
        raise error("EINVAL", "%s: a save needs a number after the @" % os.fspath(path))
    if at is not None and step is not None and at != step:
        raise error("EINVAL", "%s: the path says step %d, and step=%d was given" %
                    (os.fspath(path), at, step))
    return run, step if at is None else at


def in_run(path: Path, step: int = LATEST) -> Optional[tuple[str, int]]:
    """The run and the number that a load from `path` means; None: it is no path of a run.

    step  which checkpoint of a run, if the path does not say it
    """
    run, at = split(path)
    if at is None and not (os.path.isdir(run) and is_run(run)):
        return None
    return run, step if at is None or at == LATEST else at


def to_load(path: Path, group: Any = None, *, step: int = LATEST, **opts: Any) -> Checkpoint:
    """Opens the checkpoint that a path means.

    path  a run, RUN@STEP or RUN@latest, the folder of a checkpoint, a Hugging Face directory, a
          directory of PyTorch DCP, of DeepSpeed, of Orbax or of a trainer with Paddle, a
          safetensors, torch.save, paddle.save, NumPy or GGUF file
    step  which checkpoint of a run, if the path does not say it
    """
    found = in_run(path, step)
    if found is not None:
        return Run(found[0], group, readonly=True, **opts).checkpoint(found[1])
    return open_path(path, group, **opts)
