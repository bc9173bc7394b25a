# SPDX-License-Identifier: Apache-2.0
"""Detects gradients that are being accumulated over micro-batches.

A step is a step of the optimizer, and a checkpoint between two micro-batches would lose the
gradients of the first.
"""
from __future__ import annotations

import logging
import weakref
from typing import Any, Iterable, Optional

import torch
from torch import nn

from ..binding import error
from .fsdp1 import is_fsdp1

log = logging.getLogger("sheaf")
WAITS = 3                               # saves of a training that may wait for a device here


def waiting(m: nn.Module) -> Optional[str]:
    """The sign that a module accumulates gradients over micro-batches; None: there is none.

    m  one module, without those inside of it
    """
    if isinstance(m, nn.parallel.DistributedDataParallel) and not m.require_backward_grad_sync:
        return "no_sync() of DistributedDataParallel has not ended"
    if is_fsdp1(m) and not getattr(m, "_sync_gradients", True):
        return "no_sync() of FullyShardedDataParallel has not ended"
    state: Any = getattr(m, "_get_fsdp_state", lambda: None)()
    group = getattr(state, "_fsdp_param_group", None)
    if any(getattr(p, "unsharded_accumulated_grad", None) is not None or
           getattr(getattr(p, "_unsharded_param", None), "grad", None) is not None
           for p in getattr(group, "fsdp_params", ())):
        return "set_requires_gradient_sync(False) has kept gradients that are not reduced yet"
    return None


def keeps_gradients(m: nn.Module) -> bool:
    """Whether a module is a wrapper that waiting() knows."""
    return isinstance(m, nn.parallel.DistributedDataParallel) or is_fsdp1(m) or \
        hasattr(m, "_get_fsdp_state")


def check_accumulated(step: Any, modules: Iterable[nn.Module]) -> None:
    """Raises sheaf.Invalid if these modules show that they accumulate gradients."""
    for m in modules:
        why = waiting(m)
        if why is not None:
            raise error("EINVAL", "step %s: a save between micro-batches, whose gradients would be "
                        "lost: %s; save after step() of the optimizer" % (step, why))


class Watched:
    """What the gradients of optimizers were after their last step()."""

    def __init__(self) -> None:
        self.after: dict[int, tuple[Any, int]] = {}     # of the first parameter that has one
        self.said = False
        self.waits = 0                  # how often look() waited for a device

    def first(self, optimizer: Any) -> Optional[torch.Tensor]:
        """The gradient of the first parameter that has one."""
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    grad: torch.Tensor = p.grad
                    return grad
        return None

    def stepped(self, optimizer: Any) -> None:
        """After step() of an optimizer."""
        grad = self.first(optimizer)
        self.after[id(optimizer)] = (None, 0) if grad is None else \
            (weakref.ref(grad), grad._version)

    def look(self, step: Any, optimizer: Any) -> None:
        """Before a save: warns, once, if gradients came after the last step(). It may be well: the
        gradient scaler may have left a step out, or another loss may have gradients here, too."""
        if self.said or id(optimizer) not in self.after:
            return
        grad = self.first(optimizer)
        before, version = self.after[id(optimizer)]
        if grad is None or before is not None and before() is grad and grad._version == version:
            return
        if grad.device.type != "cpu":   # its values come after all that the device has to do
            self.waits += 1
            if self.waits > WAITS:
                return
        if grad.is_meta or not bool(grad.isfinite().all()) or not bool(grad.any()):
            return
        self.said = True
        log.warning("step %s is saved between micro-batches: gradients came after the last step() "
                    "of the %s, and are not saved; save after step()", step,
                    type(optimizer).__name__)
