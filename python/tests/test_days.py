# SPDX-License-Identifier: Apache-2.0
"""Bad input and bad days: each has an outcome and a sentence on every rank, and nothing hangs."""
from __future__ import annotations

import os
import signal
import sys
import threading
import time
import types
from typing import Any

import ranks
import tap
from tap import folder, needs

if tap.there("torch"):
    import torch
    from torch import nn

    import sheaf
    import sheaf.torch
    from test_async import late


def opens(path: str, wrong: bool, **options: Any) -> str:
    """What a constructor raises, with options that only this rank has."""
    return tap.told(lambda: sheaf.Checkpointer(path, timeout=20).close() if not wrong else
                    sheaf.Checkpointer(path, **dict({"timeout": 20}, **options)).close())


def wrong_options(rank: int, path: str) -> tuple[list[str], float]:
    """Rank 1 alone gives what is no option, and then one that is."""
    told = []
    start = time.monotonic()
    for options in ({"keep_last": -1}, {"keep_lats": 3}, {"best": "loss"}, {"timeout": "soon"},
                    {"store_dtype": "bf16"}, {"on_sigterm": -1}, {"files": 5}, {"agent": 7},
                    {"buffers_max": "many"}, {"readonly": True}, {"disk_every": 5},
                    {"folder": "{x}"}):
        told.append(opens(path, rank == 1, **options))
    told.append(tap.told(lambda: sheaf.Checkpointer(5 if rank == 1 else path)))  # type: ignore
    told.append(opens(path, False))
    return told, time.monotonic() - start


@needs("torch")
def test_wrong_options_of_one_rank() -> None:
    """A wrong option of one rank is raised there, and its sentence on the others; no rank waits"""
    with folder() as at:
        (theirs, _), (mine, took) = ranks.results(2, wrong_options, at + "/run")
        assert took < 25, took
        for i, want in enumerate([
                "ValueError: keep_last=-1",
                "TypeError: there is no option 'keep_lats' (is it keep_last?)",
                "ValueError: keep_every and best", "ValueError: timeout='soon'",
                "TypeError: store_dtype='bf16'", "ValueError: on_sigterm=-1", "TypeError: 'int'",
                "TypeError: agent=7", "TypeError: "]):
            assert mine[i].startswith(want), (i, mine[i])
            assert theirs[i] == "Failed: " + mine[i], (i, theirs[i])
        for i, words in ((9, "rank 1 has readonly=True"), (10, "disk_every=5")):
            assert mine[i] == theirs[i] and mine[i].startswith("Invalid: ranks differ: rank 0 has "
                                                               ), mine[i]
            assert words in mine[i], mine[i]
        assert mine[12].startswith("TypeError") and theirs[12].startswith("Failed: TypeError")
        assert mine[13] == theirs[13] == "", (mine[13], theirs[13])
        assert mine[11] == theirs[11] and "different folder" in mine[11], mine[11]


def wrong_calls(rank: int, path: str) -> tuple[list[str], float]:
    told = []
    with sheaf.Checkpointer(path, timeout=20) as ckpt:
        ckpt.track(nn.Linear(3, 3))
        ckpt.save(1)
        ckpt.save(2)
        start = time.monotonic()
        odd = rank == 0
        bad: Any = "one" if odd else 1
        told.append(tap.told(lambda: ckpt.mark(bad, "keep")))
        told.append(tap.told(lambda: ckpt.mark(1, "kept" if odd else "keep")))
        told.append(tap.told(lambda: ckpt.mark(1, None if odd else "keep")))
        told.append(tap.told(lambda: ckpt.rewind(bad)))
        told.append(tap.told(lambda: ckpt.rewind(1 if odd else 2)))
        told.append(tap.told(lambda: ckpt.verify(bad)))
        told.append(tap.told(lambda: ckpt.load(bad)))
        told.append(tap.told(lambda: ckpt.load(1 if odd else "latest", fallback=True)))
        told.append(tap.told(lambda: ckpt.load(1 if odd else 2)))
        told.append(tap.told(lambda: ckpt.load(only=7 if odd else None)))   # type: ignore
        told.append(tap.told(lambda: ckpt.save_async(bad).result()))
        ckpt.mark(1, "keep")
        ckpt.rewind(1)
        told.append("%s %s" % (ckpt.steps, ckpt.verify()))
        return told, time.monotonic() - start


@needs("torch")
def test_wrong_arguments_of_one_rank() -> None:
    """So is a wrong argument of mark, rewind, verify, load and save_async"""
    with folder() as at:
        (mine, _), (theirs, took) = ranks.results(2, wrong_calls, at + "/run")
        assert took < 20, took
        for i, want in enumerate([
                "TypeError: 'str' object cannot", "ValueError: mark='kept'",
                "Invalid: ranks differ: rank 0 marks step 1 as None, and rank 1 marks step 1 as k",
                "TypeError: 'str' object", "Invalid: ranks differ: rank 0 rewinds to step 1, and",
                "TypeError: 'str' object", "TypeError: 'str' object", "ValueError: fallback=True",
                "Invalid: ranks differ: rank 0 loads step 1", "TypeError: ",
                "TypeError: 'str' object"]):
            assert mine[i].startswith(want), (i, mine[i])
            assert theirs[i] == (mine[i] if want[0] == "I" else "Failed: " + mine[i]), \
                (i, theirs[i])
        assert mine[-1] == theirs[-1] == "[1] []", (mine, theirs)


def interrupts(rank: int, path: str, call: str) -> tuple[list[str], float]:
    """Ctrl-C on rank 0 while it waits for rank 1, in a save or in a load."""
    m = nn.Linear(3, 3)
    with sheaf.Checkpointer(path, timeout=20) as ckpt:
        ckpt.track(m)
        ckpt.save(1)
        if rank == 1:
            late(types.SimpleNamespace(commit_group=ckpt.group), 0.3)
        start = time.monotonic()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if rank == 0:
            threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        said = [tap.told(lambda: getattr(ckpt, call)(*[2] * (call == "save")))]
        took = time.monotonic() - start
        late(types.SimpleNamespace(commit_group=ckpt.group), 0)
        ckpt.save(3)
        ckpt.load(3)
        said.append(str(ckpt.steps))
    return said, took


@needs("torch")
def test_ctrl_c() -> None:
    """Ctrl-C in a save or a load ends it on all ranks, and the next one succeeds"""
    with folder() as at:
        for call in ("save", "load"):
            (mine, took), (theirs, _) = ranks.results(2, interrupts, at + "/" + call, call)
            assert mine[0].startswith("KeyboardInterrupt") and took < 15, (mine, took)
            assert theirs[0].startswith("Failed: ") and "Ctrl-C on a rank" in theirs[0], theirs
            assert mine[1] == theirs[1] == "[1, 3]", (mine, theirs)


if __name__ == "__main__":
    if tap.there("torch"):
        torch.set_num_threads(1)
    sys.exit(tap.run(globals()))
