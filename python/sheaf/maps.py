# SPDX-License-Identifier: Apache-2.0
"""Checkpoints under the names and in the shapes of another program, by maps (doc/mapping.md)."""
from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional, Union

from .run import Checkpoint, Path

HERE = os.path.dirname(os.path.abspath(__file__))
# The folders that may have the maps of sheaf: of an environment of Python, of a build, of a system.
FOLDERS = (os.path.join(sys.prefix, "share", "sheaf", "maps"),
           os.path.join(HERE, "..", "..", "maps"),
           "/usr/local/share/sheaf/maps", "/usr/share/sheaf/maps")


@dataclass(frozen=True)
class Map:
    """A map, and the choices and numbers with which it is applied.

    file     path of the map, or the name of one that comes with sheaf, such as "qwen2-hf-paddle"
    to       the side of the map that is made; None: the right one
    numbers  arguments of the map, such as {"tp": 2}, and values that replace those of config.json
    config   path of a config.json; None: the one that is attached to the checkpoint or lies beside
             it
    family   only tensors of this family are taken; None: all
    prefix   only tensors whose names begin with this are taken, and it is removed before the map is
             applied
    """

    file: Path
    to: Optional[str] = None
    numbers: Mapping[str, int] = field(default_factory=dict)
    config: Optional[Path] = None
    family: Optional[str] = None
    prefix: str = ""

    def path(self) -> str:
        """The path of the map: a file as it is, and a name as that of a map of sheaf.

        SHEAF_MAPS in the environment names a directory that has the maps of sheaf.
        """
        text = os.fspath(self.file)
        if "/" in text or os.path.isfile(text):
            return text
        folders = (os.environ.get("SHEAF_MAPS") or "", *FOLDERS)
        at = (os.path.join(f, text + ".map") for f in folders if f)
        return next((p for p in at if os.path.isfile(p)), text)


def mapped(found: Checkpoint, how: Union[Path, Map]) -> Checkpoint:
    """Shows a checkpoint, which stays open, as a map says. [local]"""
    m = how if isinstance(how, Map) else Map(how)
    given = {"file": m.path(), "to": m.to, "config": m.config, "family": m.family,
             "prefix": m.prefix or None,
             "set": ["%s=%d" % (k, v) for k, v in m.numbers.items()]}
    made = Checkpoint()
    options = made.c.new("sheaf_map", **{k: v for k, v in given.items() if v})
    made.c.call("sheaf_checkpoint_map", ctypes.byref(made.pointer), found.pointer,
                ctypes.byref(options))
    made.keeps.append(found)
    return made
