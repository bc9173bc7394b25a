# SPDX-License-Identifier: Apache-2.0
"""Calls of a Checkpointer from several threads: one at a time, and not while an optimizer steps.

Only one thread at a time may use a run. Another thread may train the tensors that a save describes
and copies. So step() of an optimizer waits until the save has what it needs, and a save waits until
step() has ended.
"""
from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from typing import Any, Callable, Iterator, Optional, TypeVar

from ..binding import error, library
from .ranks import interrupted

STEP_SECONDS = 10.0                     # how long a save waits for step() on another thread
Call = TypeVar("Call", bound=Callable[..., Any])


def is_alive(thread: int) -> bool:
    """Whether the thread with that identifier is still alive."""
    return any(t.ident == thread for t in threading.enumerate())


class Turns:
    """Which thread makes a call, and which ones are in step(). [any thread]"""

    def __init__(self) -> None:
        self.calls = threading.RLock()
        self.caller: Optional[int] = None
        self.name = ""                          # of the call
        self.changed = threading.Condition()    # guards what follows
        self.copying: Optional[int] = None
        self.stepping: set[int] = set()

    @contextlib.contextmanager
    def taken(self, name: str, seconds: float = -1) -> Iterator[bool]:
        """Takes this thread's turn for a call of that name. Yields False if it timed out.

        Raises sheaf.Invalid within another call of this thread, as in the handler of a signal.
        """
        me = threading.get_ident()
        if self.caller == me:
            raise error("EINVAL", "%s() was called within %s(), by the handler of a signal or by "
                        "an object that is saved: call it afterwards" % (name, self.name))
        got = self.calls.acquire(timeout=seconds)
        try:
            if got:
                self.caller, self.name = me, name
            yield got
        finally:
            if got:
                self.caller = None
                self.calls.release()

    @contextlib.contextmanager
    def still(self) -> Iterator[Optional[Exception]]:
        """Keeps other threads out of step(). Yields the reason if a step() does not end."""
        me, end = threading.get_ident(), time.monotonic() + STEP_SECONDS
        with self.changed:
            self.stepping.discard(me)           # an exception may have ended its step()
            while True:
                others = [t for t in self.stepping if t != me and is_alive(t)]
                left = end - time.monotonic()
                if not others or left <= 0:
                    break
                self.changed.wait(min(left, 1.0))
            self.copying = me
        try:
            yield None if not others else error(
                "EFAILED", "step() of an optimizer on another thread did not end within %g s"
                % STEP_SECONDS)
        finally:
            with self.changed:
                self.copying = None
                self.changed.notify_all()

    def before_step(self) -> None:
        """Waits while another thread describes and copies."""
        me = threading.get_ident()
        with self.changed:
            while self.copying not in (None, me):
                self.changed.wait()
            self.stepping.add(me)

    def after_step(self) -> None:
        """Lets saves of other threads go on."""
        with self.changed:
            self.stepping.discard(threading.get_ident())
            self.changed.notify_all()


def one_at_a_time(method: Call) -> Call:
    """A method of a Checkpointer that waits for calls of other threads."""
    @functools.wraps(method)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.pid != os.getpid():     # a forked process must not wait for threads it lacks
            return method(self, *args, **kwargs)
        with self.turns.taken(method.__name__), library().raised.several_calls():
            try:
                found = method(self, *args, **kwargs)
            finally:
                if self.shown is not None:
                    self.shown.end()
            interrupted(self.group)
            return found
    return called  # type: ignore[return-value]
