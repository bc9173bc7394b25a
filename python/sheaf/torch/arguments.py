# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of a Checkpointer, before a call that all ranks make together."""
from __future__ import annotations

import os
from typing import Any, Mapping, Optional

from ..errors import Error
from ..group import Group
from ..place import is_run, split
from ..run import number_of
from .layout import DTYPES
from .tracked import OWN


def is_time(timeout: Any) -> bool:
    """Whether an argument is a time limit in seconds, or None."""
    return timeout is None or isinstance(timeout, (int, float)) and 0 < timeout < 1e9


def check_arguments(keep_last: Any, keep_every: Any, best: Any, agent: Any, memory_every: Any,
                    disk_every: Any, timeout: Any, store_dtype: Any, measure: Any) -> None:
    """Raises ValueError or TypeError for an argument that makes no sense."""
    for name, n, least in (("keep_last", keep_last, 0), ("keep_every", keep_every, 0),
                           ("memory_every", memory_every, 1), ("disk_every", disk_every, 1)):
        if n is not None and (not hasattr(n, "__index__") or isinstance(n, bool) or n < least):
            raise ValueError("%s=%r: it must be a number that is at least %d, or None"
                             % (name, n, least))
    if keep_last is None and (keep_every is not None or best is not None):
        raise ValueError("keep_every and best need keep_last: without it all checkpoints are kept")
    if memory_every is not None and not agent:
        raise ValueError("memory_every needs an agent")
    if measure and memory_every is None:
        raise ValueError("measure=True needs memory_every: it leaves out saves to memory alone")
    if not isinstance(agent, (bool, str)):
        raise TypeError("agent=%r: it must be True, False, None, or the path of a socket"
                        % (agent,))
    if store_dtype is not None and store_dtype not in DTYPES:
        raise TypeError("store_dtype=%r: it must be a torch.dtype that safetensors has"
                        % (store_dtype,))
    if not is_time(timeout):
        raise ValueError("timeout=%r: it must be a number of seconds above 0, or None"
                         % (timeout,))


def check_group(group: Any) -> None:
    """Raises TypeError for what is not a group."""
    if group is not None and not isinstance(group, Group):
        raise TypeError("group=%r: it must be a group of sheaf.group, or None for all ranks of "
                        "torch.distributed" % (group,))


def check_path(path: Any) -> str:
    """The folder of the run. ValueError: the path means a step, or what another program wrote."""
    text: str = os.fspath(path)
    run, number = split(text)
    if number is not None:
        raise ValueError("%s is a step: a Checkpointer takes the run, %s, and load() the number"
                         % (text, run))
    if os.path.exists(os.path.join(text, "sheaf.json")):
        raise ValueError("%s is a checkpoint: a Checkpointer takes the run, which is the folder "
                         "that it is in, and load() the number" % text)
    if os.path.isdir(text) and not is_run(text) and \
            any(n == ".metadata" or n.endswith(".distcp") for n in os.listdir(text)):
        raise ValueError("%s is a checkpoint of torch.distributed.checkpoint, which a run there "
                         "would hide: give another folder; sheaf.load reads this one" % text)
    return text


def check_files(files: Mapping[str, bytes]) -> None:
    """Raises ValueError if a further file has the name of one that each checkpoint has, and
    TypeError if it is not bytes."""
    for name, data in files.items():
        if not isinstance(data, bytes):
            raise TypeError("files: %r is a %s; give bytes" % (name, type(data).__name__))
        if OWN.fullmatch(name):
            raise ValueError("files: %r is the name of a file of the Checkpointer itself: give it "
                             "another name" % name)


def bad_step(step: Any) -> Optional[Exception]:
    """What is wrong with the number of a step; None: nothing."""
    try:
        if step != "latest":
            number_of(step)
    except (TypeError, Error) as e:
        return e
    return None
