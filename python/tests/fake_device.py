# SPDX-License-Identifier: Apache-2.0
"""A device for tests that works behind the caller's back, as a GPU does, in host memory.

It has two streams: `now`, on which the training runs, and `side`, for the copies of saves. Each is
a thread that does what it was given in that order, with pauses from a seed. launch() gives a
function to `now` and returns at once. So a copy that does not wait for what it needs, or a step
that does not wait for a copy, makes a checkpoint with wrong bytes.

    broken  leaves one of the waits out: a test shows that each of them is needed
"""
from __future__ import annotations

import queue
import random
import threading
import time
from typing import Any, Callable, Optional, Sequence

import torch

PAUSE = 0.004                           # seconds at most, before each piece of work
SECONDS = 60                            # an event that takes longer never comes


class Event:
    """Complete when a stream has come to it."""

    def __init__(self) -> None:
        self.reached = threading.Event()

    def wait(self) -> None:
        assert self.reached.wait(SECONDS), "an event is never complete"


class Stream:
    """Work that is done in order, on a thread."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.work: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        while True:
            work = self.work.get()
            if self.random.random() < 0.7:
                time.sleep(PAUSE * self.random.random())
            work()

    def give(self, work: Callable[[], Any]) -> None:
        self.work.put(work)

    def record(self) -> Event:
        event = Event()
        self.give(event.reached.set)
        return event

    def wait(self, event: Event) -> None:
        self.give(event.wait)


class Fake:
    """The device of tensors that `lies` says are on it."""

    def __init__(self, seed: int, lies: Callable[[torch.Tensor], bool], broken: str = "") -> None:
        self.lies, self.broken = lies, broken
        self.now, self.side = Stream(seed), Stream(seed + 1)
        self.blocks = 0                 # how much memory was asked for
        self.recording = False
        self.relaxed = 0                # how many threads asked for that

    def of(self, t: torch.Tensor) -> Optional[Any]:
        """In place of plan.device_of."""
        return self if self.lies(t) else None

    def launch(self, work: Callable[[], Any]) -> None:
        """Gives work to the stream of the training."""
        self.now.give(work)

    def synchronize(self) -> None:
        """Waits until all is done."""
        for stream in (self.now, self.side):
            stream.record().wait()

    def follow(self) -> None:
        if self.broken != "follow":
            self.side.wait(self.now.record())

    def copy(self, to: Sequence[torch.Tensor], of: Sequence[torch.Tensor]) -> None:
        for a, b in zip(to, of):
            self.side.give(lambda a=a, b=b: a.copy_(b.detach()))

    def mark(self) -> Event:
        return self.side.record()

    def hold(self, event: Event) -> None:
        if self.broken != "hold":
            self.now.wait(event)

    def wait(self, event: Event) -> None:
        if self.broken != "wait":
            event.wait()

    def captures(self) -> bool:
        return self.recording

    def relax(self) -> None:
        self.relaxed += 1

    def host(self, size: int, rest: int) -> torch.Tensor:
        self.blocks += 1
        return torch.empty(max(size, rest), dtype=torch.uint8, device="cpu")
