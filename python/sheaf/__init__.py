# SPDX-License-Identifier: Apache-2.0
"""Sheaf: checkpoints of training state that any layout loads.

    sheaf.save("runs/gpt", {"model": model.state_dict(), "epoch": 3})
    tree = sheaf.load("runs/gpt")
    rows = sheaf.open("runs/gpt")["embed.weight"][0:4]

See doc/python.md. Importing this package imports neither NumPy nor torch, and loads no library:
the first call that needs them does.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import (Bug, Busy, Corrupt, Diverged, End, Error, Exists, Failed, InDoubt,
                     InputOutput, Invalid, Lost, Mismatch, NotFound, NotYet, OutOfMemory,
                     UnknownFormat)

if TYPE_CHECKING:
    from . import accelerate as accelerate, agent as agent, dcp as dcp, deepspeed as deepspeed, \
        group as group, lightning as lightning, torch as torch, torchtitan as torchtitan, \
        transformers as transformers
    from .loading import load as load
    from .maps import Map as Map
    from .parts import Part as Part
    from .reading import open as open
    from .run import LATEST as LATEST, Checkpoint as Checkpoint, Run as Run, Save as Save, \
        State as State
    from .saving import save as save
    from .torch import Checkpointer as Checkpointer
    from .tree import Codec as Codec

# What is imported when it is first used, and from where.
_LATER = {"save": "saving", "load": "loading", "open": "reading", "Codec": "tree",
          "LATEST": "run", "Checkpoint": "run", "Checkpointer": "torch", "Map": "maps",
          "Part": "parts", "Run": "run",
          "Save": "run", "State": "run"}
__all__ = ["Bug", "Busy", "Checkpoint", "Checkpointer", "Codec", "Corrupt", "Diverged", "End",
           "Error", "Exists", "Failed", "InDoubt", "InputOutput", "Invalid", "LATEST", "Lost",
           "Map", "Mismatch", "NotFound", "NotYet", "OutOfMemory", "Part", "Run", "Save", "State",
           "UnknownFormat", "agent", "dcp", "group", "load", "open", "save", "torch", "version"]


def __getattr__(name: str) -> Any:
    import importlib
    if name in ("accelerate", "agent", "dcp", "deepspeed", "group", "lightning", "torch",
                "torchtitan", "transformers"):
        return importlib.import_module("." + name, __name__)
    if name not in _LATER:
        raise AttributeError("module 'sheaf' has no attribute %r" % name)
    found = getattr(importlib.import_module("." + _LATER[name], __name__), name)
    globals()[name] = found
    return found


def version() -> str:
    """The version of the library, such as "0.1.0"."""
    from .binding import library
    number = library().sheaf_version()
    return "%d.%d.%d" % (number // 10000, number // 100 % 100, number % 100)
