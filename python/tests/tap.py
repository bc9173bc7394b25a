# SPDX-License-Identifier: Apache-2.0
"""Runs the functions of a test program whose names begin with `test_`, and prints TAP.

The name is the claim, and its docstring may say it better. A claim fails by an exception. It is
skipped if it needs a module that is not there: @needs("torch").
"""
from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import traceback
from typing import Any, Callable, Iterator
from contextlib import contextmanager

Claim = Callable[[], None]


class Skip(Exception):
    """Raised by a claim that cannot be tried here; the text is the reason."""


def there(*modules: str) -> bool:
    """Whether all these modules are installed."""
    return all(importlib.util.find_spec(m) is not None for m in modules)


def needs(*modules: str) -> Callable[[Claim], Claim]:
    """Marks a claim that can be tried only where all these modules are installed."""
    def marked(claim: Claim) -> Claim:
        def tried() -> None:
            for m in modules:
                if importlib.util.find_spec(m) is None:
                    raise Skip("no module " + m)
            claim()
        tried.__doc__ = claim.__doc__
        return tried
    return marked


@contextmanager
def folder() -> Iterator[str]:
    """A temporary folder, in memory where there is room, that is deleted at the end."""
    at = tempfile.mkdtemp(prefix="sheaf-python-",
                          dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    try:
        yield at
    finally:
        shutil.rmtree(at, ignore_errors=True)


@contextmanager
def raises(kind: type[BaseException], *words: str) -> Iterator[list[BaseException]]:
    """The block must raise that exception, and its text must have all these words."""
    seen: list[BaseException] = []
    try:
        yield seen
    except kind as e:
        seen.append(e)
        for word in words:
            assert word in str(e), "%r is not in: %s" % (word, e)
        return
    raise AssertionError("no %s was raised" % kind.__name__)


def told(work: Callable[[], Any]) -> str:
    """What a call raises, as its type and its sentence; "": nothing."""
    try:
        work()
    except BaseException as e:          # such as KeyboardInterrupt, or DCP's CheckpointException
        return "%s: %s" % (type(e).__name__, e)
    return ""


def mpirun() -> list[str]:
    """How a command for mpirun begins. The claim is skipped where there is no mpirun."""
    found = shutil.which("mpirun")
    if found is None:
        raise Skip("no mpirun")
    return [found, "--allow-run-as-root", "--oversubscribe"]


def run(names: dict[str, Any]) -> int:
    """Tries the claims of a module, given as globals(). T_PYTHON names some of them."""
    part = os.environ.get("T_PYTHON", "").split()
    claims = [(n, f) for n, f in names.items() if n.startswith("test_") and
              (not part or n in part)]
    print("1..%d" % len(claims), flush=True)
    worst = 0
    for i, (name, claim) in enumerate(claims, 1):
        title = (claim.__doc__ or name[5:].replace("_", " ")).split("\n")[0].rstrip(".")
        try:
            claim()
            print("ok %d - %s" % (i, title), flush=True)
        except Skip as why:
            print("ok %d - %s # SKIP %s" % (i, title, why), flush=True)
        except BaseException:
            worst = 1
            print("not ok %d - %s" % (i, title))
            for line in traceback.format_exc().splitlines():
                print("# " + line)
            sys.stdout.flush()
    return worst
