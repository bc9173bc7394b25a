# SPDX-License-Identifier: Apache-2.0
"""The copy of one save from devices to host memory, while the training continues.

A plan has a copy in host memory of each tensor on a device. They are copied in batches, in the
order of the gates: first what no gate protects, then what each optimizer owns. As soon as a batch
has arrived, the library may copy its slices, which are the host copies. The next save of the plan
overwrites these, so it waits until the library has copied all of them.
"""
from __future__ import annotations

import ctypes
import logging
import threading
from dataclasses import dataclass, field
from typing import Any, Optional, Sequence

import torch

from ..errors import Error, sentence
from ..run import Save
from .devices import Device, flat

log = logging.getLogger("sheaf")
BATCH = 128 << 20                       # bytes after which the library may begin to copy
FREE = -1                               # in place of the number of an optimizer: no gate


def numbers(slices: Sequence[int]) -> Any:
    """Numbers of slices as an array that the library takes."""
    return (ctypes.c_int * len(slices))(*slices)


@dataclass
class Batch:
    """Tensors of one device that are copied together.

    gate    the number of the optimizer whose gate protects them; FREE: none does
    items   the numbers of their copies in the plan
    copies  these copies
    to      the same, as device.copy() takes them
    slices  the slices that lie in the copies
    """

    device: Device
    gate: int
    items: list[int] = field(default_factory=list)
    copies: list[torch.Tensor] = field(default_factory=list)
    to: list[torch.Tensor] = field(default_factory=list)
    slices: Any = ()
    bytes: int = 0


class Transfer:
    """One such copy. [any thread]

    save     has begun, with SHEAF_SAVE_LATER
    batches  in the order of their gates
    tensors  those on devices, by the number of the copy
    check    the tensors are kept, and compare() finds those that have changed
    """

    def __init__(self, save: Save, batches: Sequence[Batch], tensors: dict[int, torch.Tensor],
                 check: bool = False) -> None:
        self.save, self.batches, self.check = save, batches, check
        # Views keep the memory of now, whatever `p.data = other` does before it is copied.
        self.of: list[Any] = [[tensors[i].detach() for i in b.items] for b in batches]
        self.given = 0                  # how many batches their streams have
        self.events: list[Any] = []     # of each of these; dropped at the end
        self.lock = threading.Lock()
        self.ready = 0                  # how many batches the library may copy
        self.failed: Optional[BaseException] = None
        self.ended = False              # the save must not be used any more

    def start(self) -> None:
        """Gives what no gate protects to the streams, and makes a thread that does the rest."""
        devices = {id(b.device): b.device for b in self.batches}
        with self.lock:
            for d in devices.values():
                d.follow()
            self.give(FREE)
        self.hold(FREE)
        try:
            threading.Thread(target=self.behind, name="sheaf", daemon=True).start()
        except RuntimeError as e:       # no more threads, or the interpreter ends
            log.debug("copying on this thread: %s", e)
            self.arrive()

    def give(self, gate: int) -> None:
        """Gives the batches up to that gate to their streams. The caller has the lock."""
        while self.failed is None and not self.ended and self.given < len(self.batches) and \
                self.batches[self.given].gate <= gate:
            batch = self.batches[self.given]
            batch.device.copy(batch.to, list(map(flat, self.of[self.given])))
            self.events.append(batch.device.mark())
            self.given += 1

    def hold(self, gate: int) -> None:
        """Makes the current streams wait for the batches up to that gate."""
        last = {id(b.device): (b.device, e) for b, e in zip(self.batches, self.events)
                if b.gate <= gate}
        for device, event in last.values():
            device.hold(event)

    def gate(self, optimizer: int) -> bool:
        """The gate of an optimizer. False: its step is recorded in a graph, and changes nothing
        now."""
        if any(b.device.captures() for b in self.batches[:1]):
            return False
        try:
            with self.lock:
                self.give(optimizer)
            if self.ready < len(self.batches):
                self.hold(optimizer)
        except Exception as e:
            self.fail(e)
        return True

    def behind(self) -> None:
        """The work of the thread."""
        try:
            for device in {id(b.device): b.device for b in self.batches}.values():
                device.relax()
        except Exception as e:
            self.fail(e)
        self.arrive()
        with self.lock:
            self.events = []            # freed here, and not while another thread records a graph

    def arrive(self) -> bool:
        """Waits until all tensors have been copied to the host, and lets the library copy them.
        False: that has failed, and so has the save."""
        try:
            with self.lock:
                self.give(max((b.gate for b in self.batches), default=FREE))
            for n, event in enumerate(list(self.events)):
                self.batches[n].device.wait(event)
                with self.lock:
                    if n == self.ready and not self.ended and self.failed is None:
                        self.save.slices_ready(self.batches[n].slices)
                        self.ready += 1
                        self.of[n] = self.of[n] if self.check else None
        except Exception as e:
            self.fail(e)
        return self.failed is None

    def compare(self, gate: int) -> Optional[int]:
        """Before that gate opens: the number of the copy of a tensor that has changed since then;
        None: there is none. Each tensor is compared once."""
        if not self.arrive():
            return None
        for n, b in enumerate(self.batches):
            if FREE < b.gate <= gate and self.of[n] is not None:
                of, self.of[n] = self.of[n], None
                for i, item in enumerate(b.items):
                    if not same_bytes(b.copies[i], of[i]):
                        return item
        return None

    def fail(self, e: Exception) -> None:
        """The save fails on all ranks, because this rank cannot copy its tensors."""
        with self.lock:
            if self.failed is not None or self.ended:
                return
            self.failed = e
            try:
                self.save.abort(sentence(e))
            except Error as late:
                log.debug("a copy from a device failed: %s, and its save has ended: %s", e, late)

    def end(self) -> None:
        """The save will be freed: it is not used any more."""
        with self.lock:
            self.ended, self.of = True, [None] * len(self.batches)


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one type, one in host memory, have the same bytes."""
    x, y = (t.detach().cpu().contiguous().view(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(x, y)
