# SPDX-License-Identifier: Apache-2.0
"""What a state dict of torch.distributed.checkpoint (DCP) contains, as Sheaf stores it.

Tensors are tensors of the checkpoint. All other values, and the structure of the state dict, are
one document of sheaf.tree, so sheaf.load returns the state dict, too. DCP names each value by the
keys that lead to it, joined by dots; this module uses DCP's functions flatten_state_dict and
set_element for that.

Ranks may have different keys. Rank 0 writes the document, and the other ranks send it what it
lacks. If a value other than a sharded tensor is on several ranks under one key, one of them writes
it, as with DCP.
"""
from __future__ import annotations

import ctypes
import hashlib
import json
import math
import struct
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional

import torch
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.checkpoint._nested_dict import flatten_state_dict, unflatten_state_dict
from torch.distributed.tensor import DTensor

from .. import dtypes, tree
from ..binding import error
from ..group import Group
from ..memory import Memory
from ..torch.layout import Box, Unsupported, held, plain
from ..torch.model import Item
from ..torch.placed import Placed
from ..torch.plan import local_of
from ..torch.ranks import SECONDS, gathered

Path = tuple[Any, ...]
Leaf = tuple[Path, Any]                 # where a value is, and its node in the document
# Digests of whole tensors and values, bytes of values, number of whole tensors, step.
HEADER = struct.Struct("<32s32sqqq")
PLAIN = (torch.Tensor, torch.nn.Parameter)
ANY = -1                                # in place of a number: the next one


def shards(family: str, name: str, t: ShardedTensor) -> list[Item]:
    """The items of a ShardedTensor: one for each shard of this rank."""
    shape = tuple(t.metadata().size)
    found = []
    for s in t.local_shards():
        local = plain(s.tensor)
        box = Box(tuple(s.metadata.shard_offsets), tuple(s.metadata.shard_sizes), 0)
        at = Placed(name, shape, (box,) if local.numel() else ())
        found.append(Item(family, name, local, at=at))
    return found


def everywhere(t: DTensor) -> bool:
    """Whether each rank of the mesh has some of a DTensor, so that all see its memory."""
    mesh = t.device_mesh
    sizes = [mesh.size(i) for i in range(mesh.ndim)]
    # No rank has less than the last one.
    return all(held(t.shape, t.placements, sizes, [n - 1 for n in sizes]))


class Contents(tree.Encoder):
    """The tensors of a state dict as items, and its other values as nodes. [local]

    items   sharded tensors, and those that only this rank has
    whole   tensors that other ranks have as well, under the same names: one of them stores each
    values  all values by their place, as nodes of the document, the tensors too

    TypeError, ValueError: something cannot be stored; the text says where and why.
    """

    def __init__(self, state_dict: Mapping[str, Any], paths: Mapping[str, Path]) -> None:
        self.items: list[Item] = []
        self.whole: list[Item] = []
        self.first: dict[Any, str] = {}
        self.keeps: list[Any] = []
        nested = unflatten_state_dict(dict(state_dict), dict(paths)) if paths else state_dict
        self.flat = {paths.get(k, (k,)): v for k, v in state_dict.items()}
        super().__init__(nested)

    def node(self, x: Any, place: Path) -> Any:
        if place == ():
            self.values: list[Leaf] = [(p, self.node(v, p)) for p, v in self.flat.items()]
            return None
        if not isinstance(x, torch.Tensor):
            return super().node(x, place)
        family, name = self.names.of(place)
        try:
            self.describe(x, family, name)
        except Unsupported as e:
            raise Unsupported("%s: %s" % (tree.shown(place), e)) from None
        special = {"special": "complex128"} if x.dtype == torch.complex128 else {}
        return named(family, name, "torch", special)

    def describe(self, x: Any, family: str, name: str) -> None:
        """The items of a tensor of torch."""
        if isinstance(x, ShardedTensor):
            self.items += shards(family, name, x)
            return
        if isinstance(x, DTensor):
            if x.device_mesh.get_coordinate() is not None:
                tied = self.tie(family, name, x) if everywhere(x) else None
                self.items.append(Item(family, name, x, tied_to=tied))
            return
        local = plain(x)
        self.whole.append(Item(family, name, local, tied_to=self.tie(family, name, local)))

    def tie(self, family: str, name: str, t: torch.Tensor) -> Optional[str]:
        """The name of a tensor that has the same memory: its bytes are stored once."""
        local = local_of(t)
        if local.numel() == 0:
            return None
        key = (family, local.data_ptr(), local.shape, local.stride(), local.dtype, t.shape,
               t.placements if isinstance(t, DTensor) else None)
        first = self.first.setdefault(key, name)
        return first if first != name else None

    def tensor(self, found: Memory, place: Path) -> Any:
        """A tensor not of torch, such as an array of NumPy, or long bytes."""
        if found.strides is not None:
            dense = found.owner.copy()
            return super().node(dense, place)
        family, name = self.names.of(place)
        n = math.prod(found.shape) * dtypes.BYTES[found.dtype]
        kind = dtypes.dtype_in("torch", found.dtype, tree.shown(place))
        held = (ctypes.c_char * n).from_address(found.address) if n else bytearray()
        flat = torch.frombuffer(held, dtype=torch.uint8) if n else torch.empty(0, dtype=torch.uint8)
        self.whole.append(Item(family, name, flat.view(kind).reshape(found.shape)))
        self.keeps.append(found.owner)
        return named(family, name, found.framework, {"special": found.special}
                     if found.special else {})

    # ---- what the ranks agree on ----

    def digests(self) -> tuple[bytes, bytes]:
        """Equal on ranks with the same tensors, and on ranks with the same document."""
        layout = [(i.family, i.name, i.tied_to, tuple(i.tensor.shape), str(i.tensor.dtype))
                  for i in self.whole]
        values = json.dumps(self.values, allow_nan=False)
        return (hashlib.sha256(repr(layout).encode()).digest(),
                hashlib.sha256(values.encode()).digest())

    def roots(self) -> dict[tuple[str, str], int]:
        """The whole tensors by family and name, but tied ones, and the bytes of each."""
        return {(i.family, i.name): i.tensor.numel() * i.tensor.element_size()
                for i in self.whole if i.tied_to is None}

    def of(self, rank: int, owners: Mapping[tuple[str, str], int]) -> list[Item]:
        """What a rank stores, if the whole tensors have these owners."""
        return self.items + [i for i in self.whole
                             if owners[i.family, i.tied_to or i.name] == rank]


def shared_out(roots: Mapping[tuple[str, str], int], ranks: int) -> dict[tuple[str, str], int]:
    """Owners of whole tensors that all ranks have: each goes to the rank with the fewest bytes."""
    loads = [0] * ranks
    owners = {}
    for key, n in roots.items():
        owners[key] = r = loads.index(min(loads))
        loads[r] += n
    return owners


def found_out(roots: Mapping[tuple[str, str], int], group: Group, most: int,
              timeout: Optional[float]) -> dict[tuple[str, str], int]:
    """Owners where ranks have different whole tensors. [collective]

    most  how many a rank has at most
    """
    def number(key: tuple[str, str]) -> int:
        return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "little")

    mine = b"".join(number(k).to_bytes(8, "little") for k in roots).ljust(8 * most, b"\0")
    holders: dict[int, list[int]] = {}
    for r, data in enumerate(gathered(group, mine, timeout)):
        for at in range(0, len(data), 8):
            holders.setdefault(int.from_bytes(data[at:at + 8], "little"), []).append(r)
    owners = {}
    for key in roots:
        n = number(key)
        owners[key] = holders[n][n % len(holders[n])]
    return owners


def named(family: str, name: str, framework: str, more: dict[str, str]) -> dict[str, str]:
    """The node of a tensor."""
    node = {"tensor": name, "as": framework, **more}
    if family != "model":
        node["family"] = family
    return node


def contents_of(state_dict: Mapping[str, Any]) -> Contents:
    """The contents of a nested state dict, called by the names that DCP's planners give."""
    return Contents(*flatten_state_dict(dict(state_dict)))


@dataclass
class Agreed:
    """What a rank knows before a save.

    number  of the checkpoint
    items   what this rank stores
    values  of all ranks, if this one writes the document
    """

    number: int
    items: list[Item] = field(default_factory=list)
    values: list[list[Leaf]] = field(default_factory=list)


def agree(contents: Optional[Contents], number: int, group: Optional[Group],
          timeout: Optional[float]) -> Agreed:
    """Decides which rank stores what, and gives rank 0 all values. [collective]

    contents  None: this rank has failed. It takes part, and the following begin fails
    number    that of rank 0 counts
    """
    roots = {} if contents is None else contents.roots()
    if group is None:
        return Agreed(number) if contents is None else \
            Agreed(number, contents.of(0, shared_out(roots, 1)), [contents.values])
    digests = (bytes(32), bytes(32)) if contents is None else contents.digests()
    values = b"[]" if contents is None else json.dumps(contents.values).encode()
    every = [HEADER.unpack(x) for x in
             gathered(group, HEADER.pack(*digests, len(values), len(roots), number), timeout)]
    first: dict[bytes, int] = {}
    for r, header in enumerate(every):
        first.setdefault(header[1], r)
    sizes = [header[2] if r > 0 and first[header[1]] == r else 0
             for r, header in enumerate(every)]
    more = sent(group, values, sizes, timeout) if any(sizes) else []
    same = all(header[0] == every[0][0] for header in every)
    owners = shared_out(roots, group.ranks) if same else \
        found_out(roots, group, max(header[3] for header in every), timeout)
    if contents is None:
        return Agreed(every[0][4])
    return Agreed(every[0][4], contents.of(group.rank, owners),
                  [contents.values, *(json.loads(x) for x in more if x)]
                  if group.rank == 0 else [])


def sent(group: Group, values: bytes, sizes: list[int], timeout: Optional[float]) -> list[bytes]:
    """Sends the values of some ranks to rank 0, which gets them. [collective]"""
    me = group.rank
    n = sizes[me]
    out = [n if r == 0 else 0 for r in range(group.ranks)]
    into = [sizes[r] if me == 0 else 0 for r in range(group.ranks)]
    got = bytearray(sum(into))
    try:
        group.operations.alltoallv(memoryview(bytearray(values[:n])), out, memoryview(got), into,
                                   timeout or SECONDS)
    except Exception as e:
        raise error("ELOST", "rank 0 did not get the values of all ranks") from e
    at, found = 0, []
    for k in into:
        found.append(bytes(got[at:at + k]))
        at += k
    return found


def document(every: list[list[Leaf]]) -> bytes:
    """tree.json of the values of all ranks; those of the first rank that has one count."""
    root: dict[str, Any] = {}
    for leaves in every:
        for path, node in leaves:
            put(root, tuple(path), node)
    made = {"format": tree.FORMAT, "version": tree.VERSION, "tree": finished(root)}
    return json.dumps(made, allow_nan=False, separators=(",", ":")).encode()


class Inner(dict[Any, Any]):
    """A container of the document under construction: a dict, or with integer keys a list."""


def put(root: dict[Any, Any], path: Path, node: Any) -> None:
    """Puts a node at its place, if there is none yet."""
    at = root
    for key in path[:-1]:
        at = at.setdefault(key, Inner())
        if not isinstance(at, Inner):
            raise error("EFAILED", "%s: one rank has a value there, and another one a container"
                        % tree.shown(path))
    at.setdefault(path[-1], node)


def finished(root: Any) -> Any:
    """The node of a container, and of all that is in it."""
    nodes = {k: finished(v) if isinstance(v, Inner) else v for k, v in root.items()}
    if nodes and all(isinstance(k, int) for k in nodes):
        return [nodes.get(i) for i in range(max(nodes) + 1)]
    return {"dict": {str(k): v for k, v in nodes.items()}}


def node_at(root: Any, path: Path) -> Any:
    """The node of a value, in the document's tree."""
    for key in path:
        while isinstance(root, dict) and not ("dict" in root or "items" in root):
            (_, root), = root.items()   # ordered, counter
        root = root[key] if isinstance(root, list) else pairs(root)[key]
    return root


def pairs(node: Any) -> dict[Any, Any]:
    """The nodes of a dict by the keys that DCP gives them, which are strings."""
    if "dict" in node:
        return dict(node["dict"])
    keys = tree.Decoder(lambda n: None)
    return {str(keys.value(k)): n for k, n in node["items"]}
