# SPDX-License-Identifier: Apache-2.0
"""Ranks of ranks.py as a launcher starts them: its environment, and scripts of python/examples.

The scripts run in forked processes, so that a framework, which takes seconds, is imported once.
"""
from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import sys

import ranks


def environment(rank: int, n: int) -> None:
    """Sets the environment that torchrun gives a rank; ranks.py has made the group already."""
    if n > 1:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(n),
                          LOCAL_WORLD_SIZE=str(n), MASTER_ADDR="localhost", MASTER_PORT="1")


def run(rank: int, n: int, at: str, script: str, args: tuple[str, ...]) -> str:
    """One rank: what the script prints. Its output is that of the process if it is killed."""
    environment(rank, n)
    os.chdir(at)
    examples = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples")
    sys.argv = [os.path.join(examples, script), *args]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        runpy.run_path(sys.argv[0], run_name="__main__")
    return said.getvalue()


def script(n: int, at: str, name: str, *args: str) -> str:
    """What rank 0 of a script prints."""
    return str(ranks.results(n, run, n, at, name, args)[0])


def killed(n: int, at: str, name: str, *args: str) -> None:
    """Runs a script whose ranks kill themselves."""
    for found in ranks.everywhere(n, run, n, at, name, args):
        assert isinstance(found, ranks.Ended), found


def losses(text: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+) loss ([0-9.]+)",
                                                                text)}
