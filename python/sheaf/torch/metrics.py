# SPDX-License-Identifier: Apache-2.0
"""The metrics of a save as notes of the checkpoint, and which checkpoint is the best by one."""
from __future__ import annotations

import numbers
import re
from typing import Any, Mapping, Optional, Union

import torch

from .tracked import ADAM

NOTE = re.compile(r"[A-Za-z0-9._/-]{1,64}")
Metrics = Mapping[str, Any]
Best = Union[None, str, tuple[str, str]]


def noted(metrics: Optional[Metrics]) -> dict[str, str]:
    """Metrics as notes. ValueError, TypeError: a key or a value cannot be one."""
    found: dict[str, str] = {}
    if not isinstance(metrics, (Mapping, type(None))):
        raise TypeError("metrics=%r: it must be a dict of numbers and strings" % (metrics,))
    for key, value in (metrics or {}).items():
        if not isinstance(key, str) or not NOTE.fullmatch(key) or key.startswith("ranks.") or \
                key == ADAM:
            raise ValueError("metrics: the key %r does not match [A-Za-z0-9._/-]{1,64}, or is "
                             "reserved" % (key,))
        if isinstance(value, torch.Tensor):
            value = value.item()
        if isinstance(value, str):
            found[key] = value
        elif isinstance(value, numbers.Real):
            found[key] = repr(int(value) if isinstance(value, numbers.Integral) else float(value))
        else:
            raise TypeError("metrics[%r]: a %s is neither a number nor a string"
                            % (key, type(value).__name__))
    return found


def best_options(best: Best) -> dict[str, Any]:
    """The options of a run for `best`: a note, or a note and "min" or "max"."""
    if best is None:
        return {}
    if not isinstance(best, str) and not (isinstance(best, (tuple, list)) and len(best) == 2):
        raise TypeError("best=%r: it must be the name of a metric, or a pair of it and 'min' or "
                        "'max'" % (best,))
    note, which = (best, "min") if isinstance(best, str) else best
    if which not in ("min", "max"):
        raise ValueError("best=(%r, %r): the second must be 'min' or 'max'" % (note, which))
    return {"keep_best": 1, "best_note": note, "best_largest": int(which == "max")}
