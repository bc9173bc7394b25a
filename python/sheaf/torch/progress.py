# SPDX-License-Identifier: Apache-2.0
"""The progress of a call, shown in a terminal or a notebook.

A bar appears on rank 0 when a save, a load or a verification takes longer than a second. It is
tqdm's if tqdm is installed, and otherwise a line of text. Nothing is written to a file or a pipe.
"""
from __future__ import annotations

import importlib
import logging
import sys
import time
from typing import Any, Callable, Optional, Union

from ..binding import library
from ..group import Group
from .ranks import interrupted

log = logging.getLogger("sheaf")
SECONDS = 1.0                           # a call that is shorter shows nothing
Shown = Union[None, bool, Callable[[Any], Any]]


def is_watched() -> bool:
    """Whether this process prints to a terminal or a notebook."""
    return "ipykernel" in sys.modules or bool(sys.stderr and sys.stderr.isatty())


class Line:
    """A bar without tqdm: a line that is overwritten."""

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.n, self.began = what, total, 0, time.monotonic()

    def update(self, more: int) -> None:
        self.n += more
        seconds = max(time.monotonic() - self.began, 1e-3)
        sys.stderr.write("\r%s: %3d %%, %.1f of %.1f GB, %.2f GB/s " % (
            self.what, 100 * self.n // self.total, self.n / 1e9, self.total / 1e9,
            self.n / 1e9 / seconds))
        sys.stderr.flush()

    def close(self) -> None:
        sys.stderr.write("\n")
        sys.stderr.flush()


def made(what: str, total: int) -> Any:
    """A bar of tqdm, or a line of text."""
    try:
        bar = importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        return Line(what, total)
    return bar(total=total, desc=what, unit="B", unit_scale=True, leave=False, file=sys.stderr)


class Progress:
    """The function opts.progress of a run: shows a bar, and raises what Ctrl-C could not.

    shown  None: shows a bar in a terminal or a notebook; True: always; False: never; otherwise a
           function of the caller, which is called as well
    """

    def __init__(self, path: str, group: Optional[Group], shown: Shown) -> None:
        self.path, self.group = path, group
        self.own = shown if callable(shown) else None
        self.on = bool(is_watched() if shown is None else shown) and self.own is None and \
            (group is None or group.rank == 0)
        c = library()
        self.phases = {c.SHEAF_PHASE_READING: "loading", c.SHEAF_PHASE_VERIFYING: "verifying"}
        self.bar: Any = None
        self.done = 0
        self.began: Optional[float] = None

    def __call__(self, stat: Any) -> Any:
        interrupted(self.group)
        if self.own is not None:
            return self.own(stat)
        if self.on:
            try:
                self.show(stat.contents)
            except Exception as e:      # a call must not fail because nothing can be shown
                self.on = False
                log.debug("no progress is shown: %s", e)
        return 0

    def show(self, stat: Any) -> None:
        """Creates a bar, or advances it."""
        done, total = (stat.written, stat.to_write) if stat.to_write else (stat.copied, stat.held)
        now = time.monotonic()
        self.began = now if self.began is None else self.began
        if self.bar is None and total and now - self.began >= SECONDS:
            what = "%s: %s" % (self.path, self.phases.get(stat.phase, "saving"))
            self.bar, self.done = made(what, total), 0
        if self.bar is not None and done > self.done:
            self.bar.update(min(done, total) - self.done)
            self.done = min(done, total)

    def end(self) -> None:
        """At the end of a call: removes the bar."""
        bar, self.bar, self.began = self.bar, None, None
        if bar is not None:
            bar.close()
