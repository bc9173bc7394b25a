# SPDX-License-Identifier: Apache-2.0
"""sheaf.save: a tree of tensors and other objects as one checkpoint."""
from __future__ import annotations

import json
import os
from typing import Any, Mapping, Optional, Union

from . import place, tree
from .run import Path, Run, State, log_line

Content = Union[bytes, "os.PathLike[str]", dict[str, Any], list[Any]]


def save(path: Path, tree: Any, *, step: Optional[int] = None,
         unsupported: tree.Unsupported = "refuse", notes: Optional[Mapping[str, str]] = None,
         files: Optional[Mapping[str, Content]] = None, timeout: Optional[float] = None,
         **opts: Any) -> int:
    """Saves a tree as a checkpoint that survives a power loss, and returns its step number.

    path         a run directory, which is made if there is none; or RUN@STEP, or the folder
                 RUN/checkpoint-STEP
    tree         dicts, lists, tuples and sets of any depth with tensors (NumPy, torch, whatever
                 has __dlpack__ or a buffer), numbers, strings, bytes, None, dtypes and NumPy
                 scalars. Tensors must be in host memory; dense ones are not copied in Python.
    step         its number; None: that of the path, else the next one, or 0 in a new run
    unsupported  "refuse": an object of any other type is a TypeError. "drop": it is left out of
                 dicts and sets, is None in lists and tuples, and the log names it. A codec
                 (sheaf.Codec): asked for a tree that says the same.
    notes        short texts for the manifest
    files        files to attach, such as config.json: bytes, a path to copy, or a dict that is
                 written as JSON
    timeout      how long the run waits, in seconds; None: 600
    opts         other options of struct sheaf_opts, such as keep_last=3

    If the tree is a flat dict of a model's tensors, the checkpoint is a Hugging Face directory. If
    it has a key "model" with a container, each key with a container is a family of its own.

    TypeError, ValueError: something in the tree cannot be stored; the text says where and why.
    sheaf.Exists: the run has a checkpoint of that number.
    sheaf.Busy: another process writes to the run.
    Nothing is saved after any of these. Other codes are those of sheaf_save_commit.
    """
    made = encode(tree, unsupported)
    attached = {name: contents(name, data) for name, data in (files or {}).items()}
    where, number = place.to_save(path, step)
    if not made.leaves:                 # the library warns of a checkpoint without tensors
        opts.setdefault("log", lambda level, line: log_line(max(level, 2), line))
    with State() as state, Run(where, create=True, timeout=timeout, **opts) as run:
        for leaf in made.leaves:
            state.add(leaf.name, leaf.memory, family=leaf.family, tied_to=leaf.tied_to)
        if number is None:
            number = max(run.steps(), default=-1) + 1
        with run.begin(number, state) as begun:
            begun.attach(FILE, made.document())
            for name, data in attached.items():
                begun.attach(name, data)
            for key, value in (notes or {}).items():
                begun.note(key, value)
            begun.commit()
    return number


FILE = tree.FILE


def encode(value: Any, unsupported: tree.Unsupported) -> tree.Encoder:
    """The document and the tensors of a tree; what was dropped is logged."""
    made = tree.Encoder(value, unsupported)
    if made.dropped:
        import logging
        for what in made.dropped:
            logging.getLogger("sheaf").warning("%s was left out of the checkpoint", what)
    return made


def contents(name: str, data: Content) -> bytes:
    """What a file that is attached contains."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, (dict, list)):
        return (json.dumps(data, indent=2) + "\n").encode()
    if isinstance(data, (str, os.PathLike)):
        with open(data, "rb") as f:
            return f.read()
    raise TypeError("files[%r]: a %s; give bytes, a path or a dict" % (name, type(data).__name__))
