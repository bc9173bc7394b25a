# SPDX-License-Identifier: Apache-2.0
"""The agent of a run on this node, which keeps checkpoints in memory (doc/async.md)."""
from __future__ import annotations

import ctypes
import logging
import os
import shutil
import subprocess
import sysconfig
from typing import Any, Optional

from .binding import HERE, error, library
from .errors import Error, NotFound
from .run import Path

log = logging.getLogger("sheaf")


def command() -> str:
    """The path of the command `sheaf`: that of the wheel, or else the one in $PATH.

    Raises sheaf.NotFound if there is none.
    """
    scripts = sysconfig.get_path("scripts")
    mine = os.path.join(scripts, "sheaf")
    if os.path.dirname(HERE) in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")) \
            and os.access(mine, os.X_OK):
        return mine
    found = shutil.which("sheaf")
    if found is None:
        raise error("ENOENT", "the command sheaf is neither in %s nor on PATH" % scripts)
    return found


def is_there(path: Path, socket: Optional[str] = None) -> bool:
    """Whether an agent of that run answers on this node. [local]"""
    c = library()
    info = c.new("sheaf_agent_info")
    try:
        c.call("sheaf_agent_get_info", os.fsencode(path), socket.encode() if socket else None,
               ctypes.byref(info))
    except NotFound:
        return False
    return True


def start(path: Path, *options: str) -> None:
    """Starts the agent of a run on this node, unless there is one. It outlives this process.

    options  further options of `sheaf agent`, such as "--memory-max", "64G"

    Raises sheaf.Failed with the message of the command. [local]
    """
    if is_there(path):
        return
    done = subprocess.run([command(), "agent", os.fspath(path), "--detach", *options],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise error("EFAILED", "the agent of %s did not start: %s"
                    % (os.fspath(path), done.stderr.strip() or "exit %d" % done.returncode))
    log.info("%s: started an agent", os.fspath(path))


def started(path: Path, folder: Optional[str] = None) -> bool:
    """Starts the agent of a run if it can; otherwise logs why not. [local]

    Without an agent the training continues, and its memory-only saves are left out.
    """
    try:
        start(path, *(["--folder", folder] if folder else []))
    except (Error, OSError) as e:
        log.warning("%s: there is no agent on this node: %s", os.fspath(path), e)
        return False
    return True


def newest(path: Path) -> int:
    """The number of the newest checkpoint that the agent of this node has in memory, of those that
    a job with an agent would load; -1: it has none, or there is no agent. [local]"""
    numbers = [-1]

    def item(memory: Any) -> None:
        if not memory.contents.lost:
            numbers.append(memory.contents.step)

    c = library()
    try:
        c.call("sheaf_agent_list", os.fsencode(path), None,
               c.parameter("sheaf_agent_list", "item", item), None)
    except Error as e:
        log.debug("%s: no agent lists its checkpoints: %s", os.fspath(path), e)
    return max(numbers)


def stop(path: Path, socket: Optional[str] = None) -> None:
    """Ends the agent of a run on this node; what it kept is lost. Raises sheaf.NotFound if there is
    none. [local]"""
    library().call("sheaf_agent_stop", os.fsencode(path), socket.encode() if socket else None)
