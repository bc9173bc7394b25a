# SPDX-License-Identifier: Apache-2.0
"""Sheaf: checkpoints of training state that any layout loads.

See doc/python.md. Importing this package imports neither NumPy nor torch, and loads no library:
that is done by the first call that needs them.
"""
from __future__ import annotations

from .errors import (Bug, Busy, Corrupt, Diverged, End, Error, Exists, Failed, InDoubt,
                     InputOutput, Invalid, Lost, Mismatch, NotFound, NotYet, OutOfMemory,
                     UnknownFormat)

__all__ = ["Bug", "Busy", "Corrupt", "Diverged", "End", "Error", "Exists", "Failed", "InDoubt",
           "InputOutput", "Invalid", "Lost", "Mismatch", "NotFound", "NotYet", "OutOfMemory",
           "UnknownFormat"]
