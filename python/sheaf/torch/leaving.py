# SPDX-License-Identifier: Apache-2.0
"""SIGTERM: the scheduler ends the process, and the ranks agree on a last step to save."""
from __future__ import annotations

import logging
import os
import signal
import threading
import time
from types import FrameType
from typing import Any, Optional

from ..binding import error
from ..errors import NotYet
from ..group import Group
from .pending import Pending

log = logging.getLogger("sheaf")


class Leaving:
    """What a Checkpointer does when SIGTERM arrives, on any rank. [main thread]

    The handler only records the time. In the next save_async all ranks learn of the signal, and
    that save is the last. A second SIGTERM has the effect that it had before.

    seconds  between the signal and the end of the process, as set by the scheduler
    """

    def __init__(self, seconds: float) -> None:
        if isinstance(seconds, bool) or seconds <= 0:
            raise ValueError("on_sigterm=%r: give the seconds that a process has after SIGTERM"
                             % (seconds,))
        if threading.current_thread() is not threading.main_thread():
            raise error("EINVAL", "on_sigterm needs the main thread, which alone gets signals")
        self.seconds = seconds
        self.told: Optional[float] = None       # when this rank got the signal
        self.left: Optional[float] = None       # seconds, once all ranks have agreed
        self.before: Any = signal.signal(signal.SIGTERM, self.got)

    def got(self, number: int, frame: Optional[FrameType]) -> None:
        """The handler."""
        if self.told is not None:
            self.restore()
            os.kill(os.getpid(), number)
            return
        self.told = time.monotonic()

    def agree(self, group: Optional[Group], timeout: float) -> bool:
        """Whether any rank received SIGTERM; the same on all ranks. [collective]

        Takes one small operation of the group. Raises sheaf.Lost.
        """
        mine = 0 if self.told is None else 1 + int(1000 * (time.monotonic() - self.told))
        if group is not None:
            x = bytearray(mine.to_bytes(8, "little"))
            try:
                group.operations.allreduce(memoryview(x), "max", timeout)
            except Exception as e:
                raise error("ELOST", "the ranks could not agree whether one was told to leave"
                            ) from e
            mine = int.from_bytes(x, "little")
        if mine:
            self.left = max(0.0, self.seconds - (mine - 1) / 1000)
        return mine > 0

    def restore(self) -> None:
        """Restores the previous handler of SIGTERM."""
        if signal.getsignal(signal.SIGTERM) == self.got and \
                threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self.before is None else self.before)


def finish(pending: Pending, seconds: float) -> None:
    """Waits for the last save after SIGTERM, at most until its deadline. [local]"""
    try:
        pending.result(seconds)
        log.info("step %d is saved, and the job was told to leave", pending.step)
    except NotYet:
        log.warning("step %d: the time after SIGTERM was too short for it; it goes on",
                    pending.step)
