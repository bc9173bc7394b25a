# SPDX-License-Identifier: Apache-2.0
"""How often a Checkpointer has saved, and for how long that blocked the training."""
from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Mapping


@dataclass(frozen=True)
class Stats:
    """Totals of this rank since the run was opened; str() is a table. Times are in seconds.

    committed   saves that are complete, on disk or in memory
    in_flight   saves in the background whose outcome is not known
    left_out    saves that were left out: memory had no room, or a node had no agent
    failed      saves that failed or were given up
    gigabytes   of tensors in the saves that are complete, over all ranks
    begin       time in which begins blocked
    buffers     the part of `begin` in which no buffer was free
    gates       time in which gates blocked
    gate_max    time of the longest gate
    commit      time in which commits blocked; those in the background do not
    """

    committed: int
    in_flight: int
    left_out: int
    failed: int
    gigabytes: float
    begin: float
    buffers: float
    gates: float
    gate_max: float
    commit: float

    def __str__(self) -> str:
        rows = [(f.name.replace("_", " "), getattr(self, f.name)) for f in fields(self)]
        return "\n".join("%-10s %10s" % (name, value) if isinstance(value, int) else
                         "%-10s %10.3f%s" % (name, value, "" if name == "gigabytes" else " s")
                         for name, value in rows)


def stats_of(run: Mapping[str, int], in_flight: int, left_out: int, again: int) -> Stats:
    """The totals of struct sheaf_run_stat, and of what the library does not count.

    again  how many begins failed on purpose, and were made again
    """
    return Stats(run["committed"], in_flight, left_out, run["failed"] - again, run["bytes"] / 1e9,
                 run["begin_ns"] / 1e9, run["buffer_ns"] / 1e9, run["gates_ns"] / 1e9,
                 run["gate_ns_max"] / 1e9, run["commit_ns"] / 1e9)
