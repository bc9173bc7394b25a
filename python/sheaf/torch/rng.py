# SPDX-License-Identifier: Apache-2.0
"""The random streams of this rank: torch, its device, NumPy, Python's, and those that are tracked.

A tracked stream is a torch.Generator, a numpy.random.Generator, a random.Random, or a tracker as
model-parallel trainers have it, with get_states() and set_states().
"""
from __future__ import annotations

import random
import sys
from typing import Any, Mapping, Optional

import torch

Streams = Mapping[str, Any]


def device_module() -> Optional[Any]:
    """The module of the accelerator that is in use, such as torch.cuda; None: there is none, or
    nothing has used it. Asking it then would begin to use it, and fail in a forked process."""
    if not hasattr(torch, "accelerator") or not torch.accelerator.is_available():
        return None
    found = torch.accelerator.current_accelerator()
    module = None if found is None else getattr(torch, found.type, None)
    if not getattr(module, "is_initialized", lambda: True)():
        return None
    return module if hasattr(module, "get_rng_state") else None


def read_one(name: str, stream: Any) -> Any:
    """The state of a tracked stream."""
    if hasattr(stream, "get_states"):
        return stream.get_states()
    if isinstance(stream, torch.Generator):
        return stream.get_state()
    if hasattr(stream, "bit_generator"):
        return stream.bit_generator.state
    if isinstance(stream, random.Random):
        return stream.getstate()
    raise TypeError("rng=%r: a %s is no random stream: it has no get_states(), and is no "
                    "torch.Generator, numpy.random.Generator or random.Random"
                    % (name, type(stream).__name__))


def write_one(name: str, stream: Any, state: Any) -> None:
    """Restores the state of a tracked stream."""
    if hasattr(stream, "set_states"):
        stream.set_states(state)
    elif isinstance(stream, torch.Generator):
        stream.set_state(state)
    elif hasattr(stream, "bit_generator"):
        stream.bit_generator.state = state
    else:
        stream.setstate(state)


def read(streams: Streams) -> dict[str, Any]:
    """The states of all streams of this rank."""
    found: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        found["numpy"] = numpy.random.get_state()
    device = device_module()
    if device is not None:
        found["device"] = device.get_rng_state()
    if streams:
        found["tracked"] = {name: read_one(name, s) for name, s in streams.items()}
    return found


def write(states: Mapping[str, Any], streams: Streams) -> None:
    """Restores the streams of this rank; those that are not stored stay as they are."""
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "numpy" in states:
        import numpy
        numpy.random.set_state(states["numpy"])
    device = device_module()
    if device is not None and "device" in states:
        device.set_rng_state(states["device"])
    for name, state in states.get("tracked", {}).items():
        if name in streams:
            write_one(name, streams[name], state)
