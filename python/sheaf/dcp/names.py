# SPDX-License-Identifier: Apache-2.0
"""The contents of a checkpoint, by the names of torch.distributed.checkpoint (DCP)."""
from __future__ import annotations

import json
import re
from typing import Any, Mapping

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata, ChunkStorageMetadata,
                                                   Metadata, TensorProperties,
                                                   TensorStorageMetadata)

from .. import dtypes, memory, tree
from ..binding import error
from ..loading import FOREIGN, by_family, document
from ..run import Checkpoint, Tensor
from ..torch.layout import TORCH_DTYPES
from ..torch.optimizer import OURS, restored
from .contents import named, node_at

MASTERS, OPTIMIZER = "master_weights", "optimizer"      # families of doc/format.md, section 13
TRAINER = "trainer.json"                                # a file that each Checkpointer attaches
GROUPS = re.compile(r"param_groups(-\d+)?\.json")


class Array:
    """Stands for a tensor that is not one of torch: to DCP it is a value like any other."""

    def __bytes__(self) -> bytes:       # long bytes are stored as a tensor
        return b""


def root_of(checkpoint: Checkpoint, stored: Mapping[tuple[str, str], Tensor]) -> Any:
    """The root node of a checkpoint, as if a state dict had been saved."""
    root = document(checkpoint)
    files = checkpoint.files()
    if root is not FOREIGN:
        return root
    if TRAINER not in files:
        return by_family(dict(stored))
    # A Checkpointer saved it. If the weights in family model are rounded, the exact ones are in a
    # family of their own.
    weights = {}
    for (family, name), t in stored.items():
        if family == "model":
            exact = MASTERS, t.tied_to or name
            weights[name] = named(*exact if exact in stored else (family, name), "torch", {})
    state: dict[str, Any] = {}
    for family, name in stored:
        of, _, key = name.rpartition("/")
        if family == OPTIMIZER and of:
            state.setdefault(of, {"dict": {}})["dict"][OURS.get(key, key)] = \
                named(family, name, "torch", {})
    found: dict[str, Any] = {"model": {"dict": weights}}
    groups = [g for name in files if GROUPS.fullmatch(name)
              for g in json.loads(checkpoint.file(name))["param_groups"]]
    if groups:
        found["optimizer"] = {"dict": {
            "state": {"dict": state},
            "param_groups": [tree.Encoder({k: v if k == "params" else restored(v, None)
                                           for k, v in g.items()}).tree for g in groups]}}
    return {"dict": found}


class Names:
    """The contents of a checkpoint, by the names of DCP. [local]

    tensors  the node of each tensor
    paths    the keys that lead to each value, tensors too
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.number = checkpoint.number
        self.stored = {(t.family, t.name): t for t in checkpoint.tensors()}
        self.root = root_of(checkpoint, self.stored)
        self.nodes: dict[int, dict[str, Any]] = {}
        self.keeps: list[Any] = []
        nested = tree.Decoder(self.holder).value(self.root)
        if not isinstance(nested, dict):
            raise error("ELAYOUT", "the checkpoint has a %s, and a state dict is a dict"
                        % type(nested).__name__)
        flat, self.paths = flatten_state_dict(nested)
        self.tensors = {k: self.nodes[id(v)] for k, v in flat.items() if id(v) in self.nodes and
                        isinstance(v, torch.Tensor)}
        self.shapes = {k: (flat[k].dtype, flat[k].shape) for k in self.tensors}

    def holder(self, node: dict[str, Any]) -> Any:
        """A tensor without memory in place of a stored one."""
        t = self.of(node)
        special = node.get("special", "")
        if node.get("as", "torch") != "torch":
            return Array()
        shape = t.shape[:-1] if special in dtypes.PAIRS else t.shape
        if t.dtype == "F4":
            shape = shape[:-1] + (shape[-1] // 2,)
        kind = getattr(torch, special, None) if special else TORCH_DTYPES.get(t.dtype)
        kind = kind or dtypes.dtype_in("torch", t.dtype, t.name)
        made = torch.empty(shape, dtype=kind, device="meta")
        self.nodes[id(made)] = node
        self.keeps.append(made)
        return made

    def of(self, node: dict[str, Any]) -> Tensor:
        """What the checkpoint says of a node's tensor."""
        key = node.get("family", "model"), node["tensor"]
        if key not in self.stored:
            raise error("ECORRUPT", "%s names a tensor %s/%s that the checkpoint lacks"
                        % ((tree.FILE,) + key))
        return self.stored[key]

    def metadata(self) -> Metadata:
        """The names and shapes as DCP describes a checkpoint."""
        found: dict[str, Any] = {k: BytesStorageMetadata() for k in self.paths}
        for key, (dtype, shape) in self.shapes.items():
            found[key] = TensorStorageMetadata(TensorProperties(dtype=dtype), shape, [
                ChunkStorageMetadata(torch.Size([0] * len(shape)), shape)])
        return Metadata(found, planner_data=self.paths)

    def value(self, checkpoint: Checkpoint, key: str) -> Any:
        """A value other than a tensor; tensors in it are read."""
        def tensor(node: dict[str, Any]) -> Any:
            t = self.of(node)
            made, held = memory.empty(node.get("as", "torch"), t.dtype, t.shape, key)
            if held.address:
                checkpoint.read(t.tied_to or t.name, held, family=t.family)
            return memory.restored(made, node.get("special", ""))

        return tree.Decoder(tensor).value(node_at(self.root, self.paths[key]))
