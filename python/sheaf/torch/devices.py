# SPDX-License-Identifier: Apache-2.0
"""Devices with memory of their own, and the copies of their tensors in host memory.

Copies run on a stream of their own beside the stream that the training uses (the current stream).
All waiting is between streams, so neither save_async nor the gate of an optimizer blocks the
trainer's thread:

    side     waits for what the current stream has been given, so that the step is complete
    side     copies what no gate protects, such as buffers
    current  waits for that, because the next forward pass may change it
    side     copies what optimizers own
    current  waits for that at the gate of the optimizer

A device without streams copies at once, and the trainer's thread waits.
"""
from __future__ import annotations

import ctypes
import functools
import logging
from dataclasses import dataclass
from typing import Any, Optional, Protocol, Sequence

import torch

from .layout import Unsupported

log = logging.getLogger("sheaf")
BLOCK = 1 << 30                         # bytes of an allocation; torch rounds up to a power of 2
ALIGN = 256                             # of a tensor in such a block, in bytes
RELAXED = 2                             # cudaStreamCaptureModeRelaxed, and that of HIP


class Device(Protocol):
    """What is needed of a device. An event is complete when all that was given to the stream of
    the copies before it is done."""

    def follow(self) -> None:
        """Makes the stream of the copies wait for what the current stream has been given."""

    def copy(self, to: Sequence[torch.Tensor], of: Sequence[torch.Tensor]) -> None:
        """Gives copies to the stream of the copies, in either direction."""

    def mark(self) -> Any:
        """An event, after what the stream of the copies has been given."""

    def hold(self, event: Any) -> None:
        """Makes the current stream wait for an event."""

    def wait(self, event: Any) -> None:
        """Waits for an event on this thread."""

    def captures(self) -> bool:
        """Whether the current stream records a graph, so that nothing runs now."""

    def relax(self) -> None:
        """Makes it the current device of this thread, and lets the thread call it while another
        thread records a graph, which such calls would spoil otherwise."""

    def host(self, size: int, rest: int) -> torch.Tensor:
        """New host memory to which the device copies quickly: at least `size` bytes, of `rest` that
        will be needed."""


def copy_all(to: Sequence[torch.Tensor], of: Sequence[torch.Tensor]) -> None:
    """Copies tensors without waiting for that, in one call of torch if it can."""
    with torch.no_grad():
        try:
            torch._foreach_copy_(list(to), list(of), non_blocking=True)
        except (NotImplementedError, RuntimeError):
            for a, b in zip(to, of):
                a.copy_(b, non_blocking=True)


class Plain:
    """A device whose copies are made at once, such as mps."""

    def __init__(self, device: torch.device) -> None:
        self.module = getattr(torch, device.type, None)
        if not hasattr(self.module, "synchronize"):
            raise Unsupported("it lies on a device of kind %s, and without torch.%s.synchronize() "
                              "nothing can be copied from there" % (device.type, device.type))

    def follow(self) -> None:
        pass

    def copy(self, to: Sequence[torch.Tensor], of: Sequence[torch.Tensor]) -> None:
        copy_all(to, of)
        self.module.synchronize()       # type: ignore[union-attr]

    def mark(self) -> Any:
        return None

    def hold(self, event: Any) -> None:
        pass

    def wait(self, event: Any) -> None:
        pass

    def captures(self) -> bool:
        return False

    def relax(self) -> None:
        pass

    def host(self, size: int, rest: int) -> torch.Tensor:
        return torch.empty(max(size, rest), dtype=torch.uint8, device="cpu")


class Streams:
    """A device of a kind with streams: cuda (also ROCm) and xpu."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.module: Any = getattr(torch, device.type)
        self.side = self.module.Stream(device)
        self.capturing = getattr(self.module, "is_current_stream_capturing", lambda: False)

    def follow(self) -> None:
        self.side.wait_stream(self.module.current_stream(self.device))

    def copy(self, to: Sequence[torch.Tensor], of: Sequence[torch.Tensor]) -> None:
        with self.module.stream(self.side):
            copy_all(to, of)

    def mark(self) -> Any:
        try:
            event = self.module.Event(blocking=True)    # waits without using a processor
        except TypeError:
            event = self.module.Event()
        event.record(self.side)
        return event

    def hold(self, event: Any) -> None:
        self.module.current_stream(self.device).wait_event(event)

    def wait(self, event: Any) -> None:
        event.synchronize()

    def captures(self) -> bool:
        return bool(self.capturing())

    def relax(self) -> None:
        # The current device of a new thread is device 0. The end of `with stream(...)` returns to
        # it, which would make a context there.
        self.module.set_device(self.device)
        exchange = exchange_of(self.device.type)
        if exchange is not None:
            exchange(ctypes.byref(ctypes.c_int(RELAXED)))

    def host(self, size: int, rest: int) -> torch.Tensor:
        most = max(size, min(BLOCK, power_of_two(rest)))
        try:
            return torch.empty(most, dtype=torch.uint8, pin_memory=True, device="cpu")
        except RuntimeError as e:
            log.warning("%d bytes of host memory cannot be page-locked, so that copies from %s are "
                        "slow and block: %s", most, self.device, str(e).partition("\n")[0])
            return torch.empty(most, dtype=torch.uint8, device="cpu")


@functools.lru_cache(maxsize=None)
def exchange_of(kind: str) -> Any:
    """cudaThreadExchangeStreamCaptureMode of the runtime that torch has loaded; None: it is not
    found. torch does not export it."""
    if kind != "cuda":
        return None
    hip = getattr(torch.version, "hip", None)
    major = str(torch.version.cuda).partition(".")[0]
    name = "hip" if hip else "cuda"
    for library in ("libamdhip64.so" if hip else "libcudart.so." + major, None):
        try:
            return getattr(ctypes.CDLL(library), name + "ThreadExchangeStreamCaptureMode")
        except (OSError, AttributeError):
            pass
    log.debug("no %sThreadExchangeStreamCaptureMode: a graph must not be recorded while a save is "
              "copied from a device", name)
    return None


@functools.lru_cache(maxsize=None)
def of_kind(device: torch.device) -> Device:
    """The one object of a device."""
    module = getattr(torch, device.type, None)
    if hasattr(module, "Stream") and hasattr(module, "Event") and hasattr(module, "current_stream"):
        return Streams(device)
    return Plain(device)


def device_of(t: torch.Tensor) -> Optional[Device]:
    """The device that a tensor lies on; None: host memory. Raises Unsupported."""
    return None if t.device.type == "cpu" else of_kind(t.device)


def span(t: torch.Tensor) -> int:
    """How many items lie between the first and the last of a tensor, both included."""
    return 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride())) if t.numel() else 0


def room_of(t: torch.Tensor) -> int:
    """How many bytes of a block a copy of a tensor takes."""
    return -(-span(t) * t.element_size() // ALIGN) * ALIGN


def flat(t: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor from its first to its last item: one copy is enough for it, whatever
    the strides are."""
    return t if t.is_contiguous() else t.detach().as_strided((span(t),), (1,))


@dataclass
class Block:
    """An allocation, and how many of its bytes are in use."""

    memory: torch.Tensor
    used: int = 0


class Host:
    """Host memory for the copies of a plan, in few large blocks, because each takes long to make
    and torch rounds its size up. It is kept for the next plan."""

    def __init__(self) -> None:
        self.rest = 0
        self.blocks: dict[int, list[Block]] = {}        # of each device

    def clear(self, total: int) -> None:
        """All memory is free again. total: about how many bytes are needed now."""
        self.rest = total
        for block in (b for blocks in self.blocks.values() for b in blocks):
            block.used = 0
            self.rest -= block.memory.numel()

    def like(self, t: torch.Tensor, device: Device) -> torch.Tensor:
        """Memory for a copy of a tensor, with its shape and strides."""
        size = room_of(t)
        blocks = self.blocks.setdefault(id(device), [])
        block = next((b for b in blocks if b.memory.numel() - b.used >= size), None)
        with torch.inference_mode(False):       # tensors of that mode cannot be filled outside it
            if block is None:
                block = Block(device.host(size, max(self.rest, size)))
                self.rest -= block.memory.numel()
                blocks.append(block)
            at, block.used = block.used, block.used + size
            return block.memory[at:at + size].view(t.dtype).as_strided(t.size(), t.stride())


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()
