# SPDX-License-Identifier: Apache-2.0
"""Scripts as torchrun starts them, and the examples of the pages.

The processes of a script are forked from the test program, because importing a framework takes
longer than most scripts. The test program imports what the scripts need before it starts one.
"""
from __future__ import annotations

import atexit
import gc
import os
import re
import runpy
import signal
import socket
import sys
import time
import traceback
from typing import Callable, Optional

SECONDS = 250                           # a script that takes longer hangs
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EXAMPLES = os.path.join(ROOT, "python", "examples")


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as s:
        s.bind(("localhost", 0))
        port: int = s.getsockname()[1]
    return port


def environment(rank: int, ranks: int, port: int = 1) -> None:
    """Sets the environment that torchrun gives a rank; one rank alone is started by `python`.

    port  of rank 0. In a rank of ranks.py the process group exists already, so nobody connects
    """
    gc.freeze()                         # or a collection takes 1 s, for a framework is large
    if ranks > 1:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks),
                          LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR="localhost",
                          MASTER_PORT=str(port))


def use_fsdp2() -> None:
    """Makes the Accelerator that was constructed use FSDP2, which accelerate allows on devices
    alone."""
    import accelerate
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType
    os.environ.update(ACCELERATE_USE_FSDP="true", FSDP_VERSION="2")
    plugin = accelerate.FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap")
    PartialState._shared_state["distributed_type"] = DistributedType.FSDP
    AcceleratorState._shared_state.update(fsdp_plugin=plugin,
                                          distributed_type=DistributedType.FSDP)


def child(rank: int, ranks: int, port: int, at: str, script: str, args: tuple[str, ...],
          out: str) -> None:
    """One process: runs the script as Python would, and exits."""
    code = 1
    try:
        for number in (1, 2):
            os.dup2(os.open("%s.%d" % (out, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        os.chdir(at)
        environment(rank, ranks, port)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
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
    """The processes of a script; at the end of `with` none of them is left.

    script  of python/examples, or an absolute path
    """

    def __init__(self, ranks: int, at: str, script: str, *args: str) -> None:
        self.out = os.path.join(at, "said-%d" % time.monotonic_ns())
        port = free_port()
        self.codes: dict[int, Optional[int]] = {}       # of each process; None: it runs
        for rank in range(ranks):
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                child(rank, ranks, port, at, os.path.join(EXAMPLES, script), args, self.out)
            self.codes[pid] = None

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

    def ended(self) -> bool:
        """Whether all processes have ended."""
        for pid, code in self.codes.items():
            if code is None:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    self.codes[pid] = os.waitstatus_to_exitcode(status)
        return None not in self.codes.values()

    def until(self, done: Callable[[], bool]) -> None:
        """Waits until that is true."""
        end = time.monotonic() + SECONDS
        while not done():
            assert time.monotonic() < end, "it hangs: " + self.said()
            time.sleep(0.01)

    def wait_for(self, words: str) -> None:
        """Waits until rank 0 has printed that."""
        self.until(lambda: words in self.said() or self.ended())
        assert words in self.said(), self.said()

    def wait(self) -> list[int]:
        """The exit codes of all processes, -9 for one that was killed."""
        self.until(self.ended)
        return [code or 0 for code in self.codes.values()]

    def kill(self) -> None:
        """Kills all processes that have not ended."""
        for pid, code in self.codes.items():
            if code is None:
                os.kill(pid, signal.SIGKILL)


def run(ranks: int, at: str, script: str, *args: str, killed: bool = False) -> str:
    """What rank 0 prints. All ranks must succeed.

    killed  all ranks must kill themselves, or fail because another rank is gone
    """
    with Job(ranks, at, script, *args) as job:
        codes = job.wait()
        assert -9 in codes and 0 not in codes if killed else not any(codes), \
            (codes, *map(job.said, range(ranks)))
        return job.said()


def losses(text: str) -> dict[int, float]:
    """The losses that a script has printed, by step."""
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+) loss ([0-9.]+)",
                                                                text)}


def resumed(ranks: int, at: str, script: str, steps: int,
            kill: int) -> tuple[dict[int, float], str]:
    """The losses of a script that runs through, and what it prints when it is run again after all
    ranks have killed themselves before step `kill`."""
    last = "--steps", str(steps)
    whole = losses(run(ranks, at, script, "runs/whole", *last))
    run(ranks, at, script, "runs/cut", *last, "--kill", str(kill), killed=True)
    return whole, run(ranks, at, script, "runs/cut", *last)


# ---- pages ----

def blocks(page: str) -> list[tuple[str, str]]:
    """The examples in Python of a page, each with the comment above it; "": it has none."""
    with open(os.path.join(ROOT, page), encoding="utf-8") as f:
        text = f.read()
    return re.findall(r"(?:<!-- ([^\n]*?) -->\n)?```python\n(.*?)```", text, re.S)


def page(at: str, mark: str) -> None:
    """Runs the example of doc/python-trainers.md that has this comment above it, and again."""
    code, = [code for m, code in blocks("doc/python-trainers.md") if m == mark]
    script = os.path.join(at, mark + "_example.py")
    with open(script, "w", encoding="utf-8") as f:
        f.write(code)
    for _ in range(2):
        run(1, at, script)
