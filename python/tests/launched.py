# SPDX-License-Identifier: Apache-2.0
"""Ranks of ranks.py as a launcher starts them: its environment, scripts, and the page.

The scripts run in forked processes, so that a framework, which takes seconds, is imported once.
"""
from __future__ import annotations

import contextlib
import gc
import io
import os
import re
import runpy
import sys

import ranks

HERE = os.path.dirname(os.path.abspath(__file__))


def environment(rank: int, n: int) -> None:
    """Sets the environment that torchrun gives a rank; ranks.py has made the group already."""
    gc.freeze()                         # frameworks collect, which takes 1 s in a forked process
    if n > 1:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(n),
                          LOCAL_WORLD_SIZE=str(n), MASTER_ADDR="localhost", MASTER_PORT="1")


def run(rank: int, n: int, at: str, script: str, args: tuple[str, ...]) -> str:
    """One rank: what the script prints. Its output is that of the process if it is killed."""
    environment(rank, n)
    os.chdir(at)
    sys.argv = [os.path.join(HERE, "..", "examples", script), *args]
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


def block(rank: int, at: str, mark: str) -> None:
    environment(0, 1)
    os.chdir(at)
    with open(os.path.join(HERE, "..", "..", "doc", "python-trainers.md"), encoding="utf-8") as f:
        found = re.findall(r"<!-- %s -->\n```python\n(.*?)```" % mark, f.read(), re.S)
    assert len(found) == 1, (mark, len(found))
    with contextlib.redirect_stdout(io.StringIO()):
        exec(found[0], {"__name__": "__main__"})


def page(at: str, mark: str) -> None:
    """Runs the example of doc/python-trainers.md that has this mark above it, and again."""
    for _ in range(2):
        ranks.results(1, block, at, mark)


def losses(text: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+) loss ([0-9.]+)",
                                                                text)}
