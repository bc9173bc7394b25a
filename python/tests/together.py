#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs test programs that need torch, each in a process of its own, and prints TAP.

An import of torch takes seconds of a core, and of its optimizers a second more. Here one process
imports them, and forks: as many programs run at once as there are cores.

usage: together.py NAME[,ARGUMENT]...

NAME      of test_NAME.py in this folder
ARGUMENT  of that program
"""
from __future__ import annotations

import gc
import os
import runpy
import sys
import tempfile
import traceback
from typing import Any

import tap

HERE = os.path.dirname(os.path.abspath(__file__))


def import_torch() -> None:
    """Imports what several programs use, and starts no thread."""
    if tap.there("torch", "numpy"):
        import torch._dynamo            # torch.optim imports it, each rank by itself
        import torch.distributed.checkpoint
        import torch.distributed.fsdp
        import torch.distributed.tensor.parallel
        import sheaf.dcp                # noqa: F401
        if tap.there("transformers"):
            import transformers.models.qwen2.modeling_qwen2


def program(name: str, arguments: list[str], out: int) -> None:
    """Runs one program in this process, as a shell would, and exits."""
    status: Any = 1
    try:
        os.dup2(out, 1)
        path = os.path.join(HERE, "test_%s.py" % name)
        sys.argv = [path, *arguments]
        runpy.run_path(path, run_name="__main__")
    except SystemExit as e:
        status = e.code
    except BaseException:
        print("# " + traceback.format_exc().replace("\n", "\n# "))
    sys.stdout.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))


class Report:
    """What the programs print, as the report of one."""

    def __init__(self) -> None:
        self.claims = 0
        self.failed = False

    def claim(self, good: bool, text: str) -> None:
        self.claims += 1
        self.failed |= not good
        print("%s %d - %s" % ("ok" if good else "not ok", self.claims, text))

    def add(self, name: str, lines: list[str], status: int) -> None:
        """Adds the report of one program. It must have as many claims as it has said."""
        wanted, before, failed = 0, self.claims, self.failed
        self.failed = False
        for line in lines:
            word, _, text = line.partition(" - ")
            if line.startswith("1.."):
                wanted = int(line[3:])
            elif word.startswith(("ok ", "not ok ")):
                self.claim(word.startswith("ok "), "%s: %s" % (name, text))
            else:
                print(line if line.startswith("#") else "# " + line)
        if self.claims - before != wanted or not wanted or (status != 0 and not self.failed):
            self.claim(False, "%s: %d of %d claims, and wait status %d" %
                       (name, self.claims - before, wanted, status))
        self.failed |= failed
        sys.stdout.flush()


def main(programs: list[str]) -> int:
    # A collection in a fork visits all objects of torch, and with that copies the pages that they
    # are in: half of the time of a short program. What is frozen is not visited.
    gc.disable()
    import_torch()
    gc.freeze()
    gc.enable()
    report, left = Report(), list(reversed(programs))
    running: dict[int, tuple[str, Any]] = {}
    while left or running:
        while left and len(running) < len(os.sched_getaffinity(0)):
            name, *arguments = left.pop().split(",")
            out = tempfile.TemporaryFile("w+")
            pid = os.fork()
            if pid == 0:
                program(name, arguments, out.fileno())
            running[pid] = name, out
        pid, status = os.wait()
        name, out = running.pop(pid)
        out.seek(0)
        report.add(name, out.read().splitlines(), status)
        out.close()
    print("1..%d" % report.claims)
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
