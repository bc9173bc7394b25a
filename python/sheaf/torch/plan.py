# SPDX-License-Identifier: Apache-2.0
"""The items of a save or a load as a state of the library, kept while the layout is the same.

For each item, a save checks whether it is the same tensor as last time, with the same shape, type,
sharding and strides. If all are, the state is reused with the current addresses of the memory, so
the library keeps its plan. Otherwise a new state is made, possibly on this rank only; the other
ranks learn of it in the next begin.

For each tensor on a device there is a copy in host memory, which a save fills from the device
(transfer.py). A load first fills the copy from the device, because it may leave a part of the
tensor as it is, and copies it back at the end. Items of one tensor, such as a weight that is stored
in two types or split into several, have one copy.
"""
from __future__ import annotations

import contextlib
import ctypes
from typing import Any, Callable, Iterator, Optional, Sequence

import torch
from torch.distributed.tensor import DTensor

from ..run import State, dtype_number
from .devices import Device, Host, Plain, device_of, flat, room_of
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
        self.names: list[str] = []                  # of the tensor that each item is stored in
        # Of memory that is a copy of a tensor on a device: the device, by the number of the first
        # item that has it; that tensor, while a save or a load uses it; and for each item that
        # number.
        self.lies_on: dict[int, Device] = {}
        self.devices: dict[int, torch.Tensor] = {}
        self.home: dict[int, int] = {}
        self.copies: dict[Key, int] = {}
        self.room = Host()                          # where the copies lie
        self.device_of: Callable[[torch.Tensor], Optional[Device]] = device_of

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
        elif not self.move(self.state, [local_of(i.tensor) for i in items]):
            self.state, self.keys = None, []
            return self.update(items)
        return self.state

    def make(self, items: Sequence[Item]) -> State:
        """A new state, with slices for all boxes of all items."""
        self.slices, self.of_items, self.memory, self.devices = [], [], [], {}
        self.base, self.storages, self.names = [], [], []
        self.lies_on, self.home, self.copies = {}, {}, {}
        state = State()
        self.room.clear(self.bytes_on_devices(items))
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

    def bytes_on_devices(self, items: Sequence[Item]) -> int:
        """About how much memory the copies need; 0 if a device is refused, which make() says."""
        try:
            return sum({id(t): room_of(t) for t in (local_of(i.tensor) for i in items)
                        if self.device_of(t) is not None}.values())
        except Unsupported:
            return 0

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
        self.names.append("%s/%s" % (item.family, name))

    def host(self, t: torch.Tensor) -> torch.Tensor:
        """The tensor itself, or memory for a copy of it in host memory."""
        device, i = self.device_of(t), len(self.memory)
        if device is None:
            return t
        key = (t.data_ptr(), t.dtype, t.shape, t.stride(), t.device)
        first = self.home[i] = self.copies.setdefault(key, i) if t.numel() else i
        if first != i:
            return self.memory[first]
        self.devices[i], self.lies_on[i] = t, device
        return self.room.like(t, device)

    def move(self, state: State, tensors: Sequence[torch.Tensor]) -> bool:
        """Gives the state the addresses that the memory has now. False: items that had one tensor
        on a device have two now, so that a new state is needed."""
        memory = list(tensors)
        for i, first in self.home.items():
            if i != first and tensors[i].data_ptr() != tensors[first].data_ptr():
                return False
            memory[i] = self.memory[i]
        self.take(tensors)
        base = list(map(torch.Tensor.data_ptr, memory))
        if base != self.base:
            storages = list(map(torch.Tensor.untyped_storage, memory))
            data = (ctypes.c_void_p * len(self.slices))(*[
                None if before == EMPTY else base[i] + before for i, before in self.slices])
            state.c.call("sheaf_state_move_all", state.pointer, data, len(data))
            self.base, self.storages = base, storages
        self.memory = memory
        return True

    def take(self, tensors: Sequence[torch.Tensor]) -> None:
        """Keeps those tensors that lie on devices, for the next save.

        tensors  one for each item, of the form that it had when the state was made
        """
        self.devices = {i: tensors[i] for i in self.lies_on}

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """A save uses the tensors on devices in this block. Between saves the plan keeps none, so
        that the memory of one that the trainer replaces is freed."""
        try:
            yield
        finally:
            self.devices = {}

    def held(self) -> list[Any]:
        """The objects that must live until a save has read the memory."""
        return [self.state, self.storages]

    def fill(self) -> None:
        """Copies what lies on devices to the host, and waits for that."""
        self.copy([(d, [flat(self.memory[i]) for i in items],
                    [flat(self.devices[i]) for i in items]) for d, items in self.by_device()])

    def empty(self) -> None:
        """Copies what was loaded to the devices, and waits for that."""
        self.copy([(d, [self.devices[i] for i in items], [self.memory[i] for i in items])
                   for d, items in self.by_device()])

    def copies_behind(self) -> bool:
        """Whether there are tensors on devices, and all of these devices can copy while the
        training continues."""
        return bool(self.lies_on) and \
            not any(isinstance(d, Plain) for d in self.lies_on.values())

    def by_device(self) -> list[tuple[Device, list[int]]]:
        """The items that lie on each device."""
        found: dict[int, tuple[Device, list[int]]] = {}
        for i, device in self.lies_on.items():
            found.setdefault(id(device), (device, []))[1].append(i)
        return list(found.values())

    def copy(self, work: Sequence[tuple[Device, list[torch.Tensor], list[torch.Tensor]]]) -> None:
        for device, to, of in work:
            device.follow()
            device.copy(to, of)
        for device, event in [(device, device.mark()) for device, _, _ in work]:
            device.hold(event)
            device.wait(event)


EMPTY = -1                              # in place of an offset: the slice is empty
