# SPDX-License-Identifier: Apache-2.0
"""A save in the background: what Checkpointer.save_async returns.

The library copies the state while the training continues, and a thread of the library commits the
save. The gate of an optimizer is called before the optimizer changes what it owns. At that gate
the trainer's thread waits for what lies in host memory; for what lies on a device, the current
stream waits (transfer.py).
"""
from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any, Callable, Optional, Sequence

from ..binding import error
from ..errors import Error, Failed, Invalid, NotYet
from ..run import Save
from .transfer import Transfer

log = logging.getLogger("sheaf")
DISK, MEMORY, NOWHERE = "disk", "memory", "nowhere"
PAUSE, PAUSE_MAX = 0.0002, 0.01         # seconds between two looks at the outcome


def where_of(step: int, memory_every: Optional[int], disk_every: Optional[int]) -> str:
    """Where a step is saved in the background. If it is not a number, the save fails everywhere."""
    if memory_every is None and disk_every is None or not hasattr(step, "__index__"):
        return DISK
    if disk_every is not None and step % disk_every == 0:
        return DISK
    return MEMORY if memory_every and step % memory_every == 0 else NOWHERE


def give_up(save: Save, why: str, submit: bool) -> None:
    """Ends a save that this rank cannot finish: the others get the reason.

    submit  whether the library's thread commits it; otherwise this call does. [collective]
    """
    try:
        save.abort(why)
        if submit:
            save.submit()
        else:
            save.commit()
    except Error as told:
        log.debug("the save was given up: %s", told)
    finally:
        save.close()


class Pending:
    """A save in the background. [any thread]

    step   its number
    where  "disk", "memory" or "nowhere": the save was left out, because the step is not a multiple
           of disk_every or memory_every, no buffer was free, or a node had no agent
    error  why it failed; None: it did not fail, or has not ended yet
    """

    def __init__(self, step: int, where: str, save: Optional[Save] = None,
                 gated: Sequence[Any] = (), held: Sequence[Any] = (),
                 check: bool = False, transfer: Optional[Transfer] = None) -> None:
        self.step, self.where, self.save, self.check = step, where, save, check
        self.transfer = transfer        # None: nothing lies on a device
        self.closed = list(gated)       # slices in host memory, of each optimizer, not open yet
        self.held = list(held)          # memory that may still be read must not be freed
        self.copied = save is None
        self.error: Optional[Error] = None
        self.changed: Optional[Error] = None    # what compare() found
        self.names: Callable[[int], str] = str  # of what lies on a device, by its number
        self.asked = save is None       # whether the caller has seen the outcome
        self.lock = threading.RLock()   # the save is not freed while another thread uses it
        self.pid = os.getpid()

    def gate(self) -> None:
        """Waits until everything is copied; after that any tensor may change. [local]

        Tracked optimizers do this themselves in step(). Call it before a CUDA graph
        is replayed, before weights are changed by hand, and before an optimizer that runs inside
        the backward pass.
        """
        if self.pid != os.getpid():     # a forked process changes its own memory
            return
        with self.lock:
            if self.copied:
                return
            if self.transfer is None:
                self.settle()
                return
            self.transfer.arrive()
            self.compare(len(self.closed))
            for i in range(len(self.closed)):
                self.open_host(i)

    def settle(self) -> None:
        """Waits until the save reads no memory any more, neither that of tensors nor the copies
        that it has of those on devices. [local]"""
        if self.pid != os.getpid():
            return
        with self.lock:
            if self.copied:
                return
            self.compare(len(self.closed))
            if self.transfer is None or self.transfer.arrive():
                self.wait(None)
            else:                       # it will never have all: it is over soon
                while not self.done():
                    time.sleep(PAUSE)
            self.copied, self.held, self.closed = True, [], []

    def open(self, optimizer: int) -> None:
        """The gate of one optimizer, by its number: waits for what it changes. [local]"""
        if self.pid != os.getpid():
            return
        with self.lock:
            if self.copied or optimizer >= len(self.closed):
                return
            if self.transfer is None and sum(map(bool, self.closed)) == 1:
                if self.closed[optimizer]:
                    self.settle()       # one call for all
                return
            if self.transfer is None or self.transfer.gate(optimizer):
                self.compare(optimizer)
                self.open_host(optimizer)

    def compare(self, gate: int) -> None:
        """With check=True: the save fails if a tensor on a device has changed before its gate."""
        if self.transfer is None or not self.check or self.changed is not None:
            return
        item = self.transfer.compare(gate)
        if item is not None and self.save is not None:
            self.changed = error("EDIVERGED", "step %d: %s changed before its gate"
                                 % (self.step, self.names(item)))
            try:
                self.save.abort(self.changed.message)
            except Invalid as late:
                log.debug("step %d: %s", self.step, late)

    def open_all(self) -> None:
        """The gates of all optimizers. [local]"""
        for i in range(len(self.closed)):
            self.open(i)

    def open_host(self, optimizer: int) -> None:
        """The gate of one optimizer, for what lies in host memory."""
        self.wait_slices(self.closed[optimizer])
        self.closed[optimizer] = ()

    def wait_slices(self, slices: Any) -> None:
        """The gates of some slices."""
        if slices:
            self.wait(slices)

    def wait(self, slices: Any) -> None:
        """The gates of some slices, or of all (None). A save that has failed no longer reads
        memory."""
        assert self.save is not None
        try:
            if slices is None:
                self.save.wait_copied()
            else:
                self.save.slices_copied(slices)
        except (Invalid, NotYet):
            raise
        except Error as e:
            log.debug("step %d: at its gate: %s", self.step, e)

    def check_process(self) -> None:
        """Raises sheaf.Invalid in a forked process, in which no thread works on the save."""
        if self.pid != os.getpid():
            raise error("EINVAL", "step %d: this process was forked while the save was in flight, "
                        "and only process %d knows its outcome" % (self.step, self.pid))

    def done(self) -> bool:
        """Whether the outcome is known. Never waits; other ranks may learn the outcome later."""
        self.check_process()
        with self.lock:
            if self.save is None:
                return True
            try:
                self.save.result(0)
            except NotYet:
                return False
            except Error as e:
                self.error = self.changed or e
            self.end()
        return True

    def end(self) -> None:
        """Frees the save, whose outcome is known."""
        save, self.save = self.save, None
        self.copied, self.held, self.closed = True, [], []
        if self.transfer is not None:
            self.transfer.end()
        if save is not None:
            save.close()

    def result(self, timeout: Optional[float] = None) -> bool:
        """Waits for the outcome. [local]

        timeout  in seconds; None: no limit

        Returns True if the checkpoint survives a power loss (where is "disk"), or the death of all
        ranks (where is "memory"), and False if the save was left out. Ctrl-C ends the wait, not the
        save. Raises sheaf.NotYet if the timeout passes, and otherwise what Checkpointer.save would
        have raised.
        """
        if self.check:
            self.settle()               # the library compares at the gates, and waits for them
        end = None if timeout is None else time.monotonic() + timeout
        pause = PAUSE
        while not self.done():
            left = PAUSE_MAX if end is None else end - time.monotonic()
            if left <= 0:
                raise error("EAGAIN", "step %d: its outcome is not known after %g s"
                            % (self.step, timeout or 0))
            time.sleep(min(pause, left))
            pause = min(2 * pause, PAUSE_MAX)
        self.asked = True
        if self.error is not None:
            raise self.error
        return self.where != NOWHERE

    def cancel(self, why: str = "it was cancelled") -> bool:
        """Aborts the save on all ranks; result() then raises sheaf.Failed. [local]

        Returns False if it is too late: the checkpoint exists, or is being published.
        """
        self.check_process()
        with self.lock:
            if self.save is None:
                return False
            try:
                self.save.abort(why)
            except Invalid:
                return False
            self.asked = True           # the caller knows
        return True

    @property
    def harmless(self) -> bool:
        """Whether the failure is only logged, and not raised by close(): a memory-only save
        found no room, or lost its agent."""
        return self.where == MEMORY and isinstance(self.error, Failed)

    def __repr__(self) -> str:
        if self.where == NOWHERE:
            said = "left out"
        elif self.pid != os.getpid():
            said = "to %s, in another process" % self.where
        elif self.save is not None:
            said = "to %s, %s" % (self.where, "copied" if self.copied else "being copied")
        else:
            said = "in %s" % self.where if self.error is None else "failed: %s" % self.error
        return "<save of step %d, %s>" % (self.step, said)
