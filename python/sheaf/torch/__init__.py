# SPDX-License-Identifier: Apache-2.0
"""Sheaf for PyTorch: sheaf.Checkpointer, and what it is made of. Importing this imports torch."""
from __future__ import annotations

from .checkpointer import Checkpointer
from .layout import Box, Layout, Unsupported, layout
from .loader import CountedLoader
from .loading import Loaded
from .placed import Declared, Flat, GateUp, Placed, QKV, Split

__all__ = ["Box", "Checkpointer", "CountedLoader", "Declared", "Flat", "GateUp", "Layout", "Loaded",
           "Placed", "QKV", "Split", "Unsupported", "layout"]
