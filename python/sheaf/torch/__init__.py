# SPDX-License-Identifier: Apache-2.0
"""Sheaf for PyTorch: tensors of any layout as slices. Importing this imports torch."""
from __future__ import annotations

from .layout import Box, Layout, Unsupported, layout

__all__ = ["Box", "Layout", "Unsupported", "layout"]
