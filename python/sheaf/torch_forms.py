# SPDX-License-Identifier: Apache-2.0
"""Compares class, type, shape, strides and device of many tensors of torch with those of others.

In a torch whose guards of torch.compile can be trusted for this, C compares many tensors in a
call. Otherwise Python does.
"""
from __future__ import annotations

import array
from typing import Any, Optional, Sequence

import torch

AT_ONCE = 96                            # tensors that are compared in one call
data_ptr = torch.Tensor.data_ptr
Addresses = Any                         # an array.array of numbers


def described(t: Any) -> tuple[Any, ...]:
    """All properties of a tensor that must stay the same, except its memory."""
    if not isinstance(t, torch.Tensor):
        return (type(t),)
    return (type(t), t.dtype, t.shape, t.stride(), t.layout, t.device, t.is_conj(), t.is_neg())


class Forms:
    """Class, type, shape and strides of a list of tensors, compared by Python."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.forms = [described(t) for t in tensors]

    def hold(self, tensors: Sequence[Any]) -> bool:
        """Whether a list of as many objects has tensors like them."""
        return [described(t) for t in tensors] == self.forms

    def addresses(self, tensors: Sequence[Any]) -> Optional[Addresses]:
        """The addresses of tensors like them; None: they differ."""
        return array.array("Q", map(data_ptr, tensors)) if self.hold(tensors) else None


class Guards:
    """The same, compared by what torch.compile guards its graphs with.

    At most AT_ONCE tensors are compared in a call. Layers repeat, so most calls use the guards of
    an earlier one: guards for each of some thousand tensors would not fit into the processor's
    cache. The addresses are read while the tensors are in the cache. A call refuses a tensor that
    it is given twice, so the second one is in the next call.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        forms = [(*described(t), t.requires_grad, torch._C._dispatch_keys(t).raw_repr())
                 for t in tensors]
        checks: dict[Any, Any] = {}
        self.parts: list[tuple[int, int, Any]] = []
        end = 0
        while end < len(tensors):
            first, seen = end, set[int]()
            while end < min(first + AT_ONCE, len(tensors)) and id(tensors[end]) not in seen:
                seen.add(id(tensors[end]))
                end += 1
            key = tuple(forms[first:end])
            if key not in checks:
                checks[key] = check_of(tensors[first:end])
            self.parts.append((first, end, checks[key]))

    def hold(self, tensors: Sequence[Any]) -> bool:
        """Whether a list of as many objects has tensors like them."""
        return all(check(*tensors[first:end]) for first, end, check in self.parts)

    def addresses(self, tensors: Sequence[Any]) -> Optional[Addresses]:
        """The addresses of tensors like them; None: they differ."""
        found = array.array("Q")
        for first, end, check in self.parts:
            part = tensors[first:end]
            if not check(*part):
                return None
            found.extend(map(data_ptr, part))
        return found


def check_of(tensors: Sequence[torch.Tensor]) -> Any:
    """A function of C that says whether its arguments are tensors like these."""
    made: Any = torch._C._dynamo.guards.TensorGuards
    return made(*tensors, dynamic_dims_sizes=[list(t.shape) for t in tensors],
                dynamic_dims_strides=[list(t.stride()) for t in tensors]).check


def trusted() -> bool:
    """Whether this torch has those guards, and they find what they are used for here."""
    try:
        t = torch.zeros(4, 6)
        others = [torch.zeros(6, 4), torch.zeros(4, 7), torch.zeros(4), torch.zeros(6, 4).t(),
                  torch.zeros(8, 6)[::2], torch.zeros(4, 6, dtype=torch.int32),
                  torch.nn.Parameter(t), torch.empty(4, 6, device="meta"), t.to_sparse(),
                  torch._neg_view(t), None, 1.0, [t]]
        c = torch.zeros(4, 6, dtype=torch.complex64)
        first, last = Guards([t, c]), Guards([c, t])
        return first.hold([t, c]) and first.hold([torch.ones(4, 6), c]) and \
            not first.hold([t, c.conj()]) and \
            not any(first.hold([x, c]) or last.hold([c, x]) for x in others)
    except (AttributeError, TypeError, RuntimeError, SystemError, ValueError):
        return False


FORMS: Any = Guards if trusted() else Forms
