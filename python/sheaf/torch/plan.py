# SPDX-License-Identifier: Apache-2.0
"""The items of a save or a load as a state of the library, kept while the layout is the same.

For each item, a save checks whether it is the same tensor as last time, with the same shape, type,
sharding and strides. If all are, the state is reused with the current addresses of the memory, so
the library keeps its plan. Otherwise a new state is made, possibly on this rank only; the other
ranks learn of it in the next begin.

For each tensor on a device there is a copy in host memory, which is filled from the device before
a save and copied to the device after a load.
"""
from __future__ import annotations

import ctypes
from typing import Any, Callable, Optional, Sequence

import torch
from torch.distributed.tensor import DTensor

from ..run import State, dtype_number
from .layout import Layout, Unsupported, layout, parts
from .model import Item

Key = tuple[Any, ...]


def local_of(t: torch.Tensor) -> torch.Tensor:
    """The local tensor of a DTensor without the cost of to_local(), which autograd records."""
    return t._local_tensor if isinstance(t, DTensor) else t


def key_of(item: Item) -> Key:
    """Equal for two items that need the same slices, except for their addresses."""
    t = item.tensor
    local = local_of(t)
    spec = (t.device_mesh, t.placements, t.shape) if isinstance(t, DTensor) else None
    return (item.family, item.name, item.at, item.store, item.tied_to, item.save_only,
            item.optional, item.copy, type(t), type(local), local.shape, local.stride(),
            local.dtype, local.device, local.is_conj(), local.is_neg(), spec)


def is_plain(item: Item) -> bool:
    """Whether the address of the item's memory is all that can have changed, if its key has not."""
    t = item.tensor
    return type(t) in KNOWN and type(local_of(t)) in KNOWN[:2]


KNOWN = (torch.Tensor, torch.nn.Parameter, DTensor)


class Plan:
    """A state of the library for a list of items. [local]

    state  the state; None: nothing was planned yet
    made   how often a state was made
    """

    def __init__(self) -> None:
        self.state: Optional[State] = None
        self.made = 0
        self.keys: list[Key] = []
        self.slices: list[tuple[int, int]] = []     # its memory, and bytes before its box
        self.of_items: list[range] = []             # the slices of each item
        self.memory: list[torch.Tensor] = []        # what each item is read from and filled in
        self.base: list[int] = []                   # the addresses that the state has
        self.storages: list[Any] = []               # who has that memory
        self.devices: dict[int, torch.Tensor] = {}  # items whose memory is a copy of this
        self.on_host: Callable[[torch.Tensor], bool] = lambda t: t.device.type == "cpu"

    def update(self, items: Sequence[Item]) -> State:
        """The state for these items, as their memory is now.

        Raises Unsupported with the name of a tensor that cannot be stored.
        """
        keys = [key_of(i) for i in items]
        if self.state is None or keys != self.keys or not all(map(is_plain, items)):
            self.state, self.keys = None, []
            self.state = self.make(items)
            self.keys = keys
            self.made += 1
        else:
            self.move(self.state, [local_of(i.tensor) for i in items])
        return self.state

    def make(self, items: Sequence[Item]) -> State:
        """A new state, with slices for all boxes of all items."""
        self.slices, self.of_items, self.memory, self.devices = [], [], [], {}
        self.base, self.storages = [], []
        state = State()
        for item in items:
            before = len(self.slices)
            try:
                if item.at is not None:
                    self.add(state, item, item.name, item.at.layout(item.tensor))
                else:
                    for name, t in parts(item.name, item.tensor):
                        self.add(state, item, name, layout(t))
            except Unsupported as e:
                raise Unsupported("%s (family %s): %s" % (item.name, item.family, e)) from None
            self.of_items.append(range(before, len(self.slices)))
        self.base = list(map(torch.Tensor.data_ptr, self.memory))
        self.storages = list(map(torch.Tensor.untyped_storage, self.memory))
        return state

    def add(self, state: State, item: Item, name: str, at: Layout) -> None:
        """The slices of one tensor: one for each box, and an empty one if there is none."""
        host = self.host(at.local)
        c, n, bytes_each = state.c, len(at.shape), host.element_size()
        for box in at.boxes or (None,):
            s = c.structs["sheaf_slice"]()
            s.size, s.ndim = ctypes.sizeof(s), n
            s.family, s.name = item.family.encode(), name.encode()
            s.dtype = dtype_number(item.store or at.dtype)
            s.data_dtype = dtype_number(at.dtype)
            if item.tied_to is not None:
                s.tied_to = (item.tied_to + name[len(item.name):]).encode()
            if item.save_only:
                s.flags |= c.SHEAF_SLICE_SAVE_ONLY
            if item.optional:
                s.flags |= c.SHEAF_SLICE_OPTIONAL
            if item.copy:
                s.flags |= c.SHEAF_SLICE_COPY
            s.shape[:n] = at.shape
            before = EMPTY
            if box is not None and at.flat is not None:
                s.flags |= c.SHEAF_SLICE_FLAT
                s.count[:n] = box.count
                s.flat_start, s.flat_count = at.flat
                before = bytes_each * box.origin
                s.data = host.data_ptr() + before
            elif box is not None:
                s.flags |= c.SHEAF_SLICE_STRIDED
                s.start[:n], s.count[:n] = box.start, box.count
                s.stride[:n] = [step if k > 1 else 0 for step, k in zip(at.stride, box.count)]
                before = bytes_each * box.origin
                s.data = host.data_ptr() + before
            c.call("sheaf_state_add", state.pointer, ctypes.byref(s))
            self.slices.append((len(self.memory), before))
        self.memory.append(host)

    def host(self, t: torch.Tensor) -> torch.Tensor:
        """The tensor itself, or a copy of it in host memory, which fill() fills."""
        if self.on_host(t):
            return t
        copier(t.device.type)
        copy = torch.empty_strided(t.size(), t.stride(), dtype=t.dtype,
                                   pin_memory=t.device.type == "cuda")
        self.devices[len(self.memory)] = t
        return copy

    def move(self, state: State, tensors: Sequence[torch.Tensor]) -> None:
        """Gives the state the addresses that the memory has now."""
        memory = list(tensors)
        for i in self.devices:
            self.devices[i], memory[i] = memory[i].detach(), self.memory[i]
        base = list(map(torch.Tensor.data_ptr, memory))
        if base != self.base:
            storages = list(map(torch.Tensor.untyped_storage, memory))
            data = (ctypes.c_void_p * len(self.slices))(*[
                None if before == EMPTY else base[i] + before for i, before in self.slices])
            state.c.call("sheaf_state_move_all", state.pointer, data, len(data))
            self.base, self.storages = base, storages
        self.memory = memory

    def held(self) -> list[Any]:
        """The objects that must live until a save has read the memory."""
        return [self.state, self.storages]

    def fill(self) -> None:
        """Copies what lies on a device to the host, before a save."""
        for i, t in self.devices.items():
            self.memory[i].copy_(t, non_blocking=True)
        self.wait()

    def empty(self) -> None:
        """Copies what was loaded to the device."""
        for i, t in self.devices.items():
            t.copy_(self.memory[i], non_blocking=True)
        self.wait()

    def wait(self) -> None:
        for kind in {t.device.type for t in self.devices.values()}:
            copier(kind).synchronize()


def copier(kind: str) -> Any:
    """The module of a kind of device, whose synchronize() waits for copies.

    Raises Unsupported if there is none.
    """
    module = getattr(torch, kind, None)
    if not hasattr(module, "synchronize"):
        raise Unsupported("it lies on a device of kind %s, and without torch.%s.synchronize() "
                          "nothing can be copied from there" % (kind, kind))
    return module


EMPTY = -1                              # in place of an offset: the slice is empty
