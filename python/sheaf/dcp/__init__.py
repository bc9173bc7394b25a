# SPDX-License-Identifier: Apache-2.0
"""Sheaf as the storage of torch.distributed.checkpoint (DCP), torch 2.9 or newer.

    import torch.distributed.checkpoint as dcp

    dcp.save(state_dict, storage_writer=sheaf.dcp.Writer("runs/gpt@7"))
    dcp.load(state_dict, storage_reader=sheaf.dcp.Reader("runs/gpt"))

What is written is a checkpoint of Sheaf, which survives a power loss when dcp.save returns: no
.distcp files, and nothing pickled. Importing this imports torch.
"""
from __future__ import annotations

from .reader import Reader
from .writer import SavePlanner, Writer

__all__ = ["Reader", "SavePlanner", "Writer"]
