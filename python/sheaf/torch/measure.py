# SPDX-License-Identifier: Apache-2.0
"""Measures what a copy to memory costs a training, by leaving half of the copies out.

For each save to memory alone, a coin flip decides whether it is made. The coin is computed from the
step number, so all ranks get the same result without communication. The duration of a step is the
time from one save_async to the next. Steps with a copy are compared with those without.
"""
from __future__ import annotations

import hashlib
import logging
import operator
import random
import time
from dataclasses import dataclass
from typing import Callable, Optional, Sequence

log = logging.getLogger("sheaf")
FIRST = 20                              # steps of either kind before the first line in the log
ENOUGH = 5                              # of either kind for the last line
DRAWS = 1000                            # of the bootstrap
SIDE = 0.1                              # of the steps are left out at either end: pauses, mostly


def heads(step: int) -> bool:
    """The coin flip of a step: the same on all ranks, and in every run of the job."""
    return hashlib.sha256(b"sheaf %d" % operator.index(step)).digest()[0] % 2 == 0


def trimmed(times: Sequence[float]) -> float:
    """The mean without the shortest and the longest tenth."""
    aside = int(SIDE * len(times))
    kept = sorted(times)[aside:len(times) - aside]
    return sum(kept) / len(kept)


@dataclass
class Cost:
    """By how much a copy lengthens a step, in seconds, with the 95 % confidence interval.

    with_copy, without  how many steps of either kind were measured
    step                how long a step without one takes
    """

    seconds: float
    low: float
    high: float
    step: float
    with_copy: int
    without: int

    def __str__(self) -> str:
        return ("a copy to memory makes a step %.3f ms longer (95 %% interval %.3f to %.3f ms), "
                "%.2f %% of the %.1f ms that a step takes without one; measured in %d steps with "
                "a copy and %d without" % (1e3 * self.seconds, 1e3 * self.low, 1e3 * self.high,
                                           100 * self.seconds / self.step, 1e3 * self.step,
                                           self.with_copy, self.without))


def compared(with_copy: Sequence[float], without: Sequence[float]) -> Cost:
    """The difference of two lists of times, with its interval by the bootstrap."""
    drawn = random.Random(len(with_copy) + len(without))
    found = sorted(trimmed(drawn.choices(with_copy, k=len(with_copy))) -
                   trimmed(drawn.choices(without, k=len(without))) for _ in range(DRAWS))
    return Cost(trimmed(with_copy) - trimmed(without), found[DRAWS // 40],
                found[DRAWS - 1 - DRAWS // 40], trimmed(without), len(with_copy), len(without))


class Measure:
    """The coin and the times of one Checkpointer on this rank.

    on     whether anything is measured
    loud   whether this rank logs what it found; set it to True on one
    """

    def __init__(self, on: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.on, self.loud, self.clock = on, False, clock
        self.times: dict[bool, list[float]] = {True: [], False: []}
        self.last: Optional[tuple[float, bool]] = None  # when a step began, and how
        self.next = FIRST
        self.told = 0

    def leaves_out(self, step: int, droppable: bool) -> bool:
        """Whether the save of this step is left out. Call it at the beginning of each save.

        droppable  whether it goes to memory alone; other saves are always made, and not measured
        """
        if not self.on:
            return False
        now, made = self.clock(), droppable and heads(step)
        if self.last is not None:
            self.times[self.last[1]].append(now - self.last[0])
            self.tell(self.next)
        self.last = (now, made) if droppable else None
        return droppable and not made

    def forget(self) -> None:
        """The step that has begun is not counted: its save was not made after all."""
        self.last = None

    def cost(self) -> Optional[Cost]:
        """The result so far; None: there are too few steps."""
        made, left = self.times[True], self.times[False]
        return compared(made, left) if min(len(made), len(left)) >= ENOUGH else None

    def tell(self, wanted: int = ENOUGH) -> None:
        """Logs the result, if there are that many steps of either kind and more than last time.

        The level is warning, because saves are left out, and because logging shows it by default.
        """
        known = min(map(len, self.times.values()))
        if not self.loud or known < wanted or known == self.told:
            return
        self.told, self.next = known, 2 * known
        log.warning("%s. measure=True leaves about half of these saves out", self.cost())
