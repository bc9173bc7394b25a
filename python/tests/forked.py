# SPDX-License-Identifier: Apache-2.0
"""Scripts on several processes with the environment of torchrun, forked from a process that has
imported torch and transformers already: importing them takes longer than most scripts.
"""
from __future__ import annotations

import atexit
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from typing import Optional

SECONDS = 250


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as s:
        s.bind(("localhost", 0))
        port: int = s.getsockname()[1]
    return port


def child(rank: int, ranks: int, port: int, at: str, script: str, args: tuple[str, ...],
          out: str) -> None:
    """One process: runs the script as Python would, and ends."""
    code = 1
    try:
        for number in (1, 2):
            os.dup2(os.open("%s.%d" % (out, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        os.chdir(at)
        if ranks > 1:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks),
                              LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR="localhost",
                              MASTER_PORT=str(port))
        sys.argv = [script, *args]
        sys.path.insert(0, os.path.dirname(script))
        runpy.run_path(script, run_name="__main__")
        atexit._run_exitfuncs()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Job:
    """The processes of a script; at the end of `with` none of them is left."""

    def __init__(self, ranks: int, at: str, script: str, *args: str) -> None:
        import torch
        import transformers
        torch.set_num_threads(1)
        assert transformers.__version__
        self.out = os.path.join(at, "said-%d" % time.monotonic_ns())
        port = free_port()
        self.pids: dict[int, Optional[int]] = {}        # and how each ended
        for rank in range(ranks):
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                child(rank, ranks, port, at, script, args, self.out)
            self.pids[pid] = None

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()

    def said(self, rank: int = 0) -> str:
        """What a rank has printed so far."""
        try:
            with open("%s.%d" % (self.out, rank), encoding="utf-8") as f:
                return f.read()
        except FileNotFoundError:
            return ""

    def wait_for(self, words: str) -> str:
        """Waits until rank 0 has printed that."""
        end = time.monotonic() + SECONDS
        while words not in self.said():
            assert time.monotonic() < end and not self.ended(), self.said()
            time.sleep(0.01)
        return self.said()

    def ended(self) -> bool:
        """Whether all processes have ended."""
        for pid, status in self.pids.items():
            if status is None and os.waitpid(pid, os.WNOHANG)[0] == pid:
                self.pids[pid] = 1
        return None not in self.pids.values()

    def wait(self) -> list[int]:
        """The exit codes of all processes, -9 for one that was killed."""
        for pid, status in self.pids.items():
            if status is None:
                self.pids[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return [status or 0 for status in self.pids.values()]

    def kill(self) -> None:
        """Kills all processes that have not ended."""
        for pid, status in self.pids.items():
            if status is None:
                os.kill(pid, signal.SIGKILL)


def run(ranks: int, at: str, script: str, *args: str, killed: bool = False) -> str:
    """What rank 0 prints; all ranks must succeed, or be killed."""
    with Job(ranks, at, script, *args) as job:
        codes = job.wait()
        assert codes == [-9 if killed else 0] * ranks, \
            (codes, *map(job.said, range(ranks)))
        return job.said()
