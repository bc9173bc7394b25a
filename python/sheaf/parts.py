# SPDX-License-Identifier: Apache-2.0
"""Tensors of a tree of which this process has boxes: sheaf.Part, arrays of JAX with a sharding, and
tensors of paddle.distributed.

Each of them is represented by a Split: the shape of the whole tensor, and the boxes that this
process has. A tree to load into may hold such tensors, and then only these boxes are read.
"""
from __future__ import annotations

from typing import Any, Callable, Optional

from . import dtypes, memory
from .memory import Memory, Unfit

Box = tuple[Memory, tuple[int, ...]]    # where it lies, and the index at which it starts


class Part:
    """The box of a tensor that this rank has, as a leaf of a tree.

        sheaf.save("runs/heat", {"u": sheaf.Part(u, (64, 32), (16 * rank, 0))}, group=group)

    array  its items: anything that a tree may hold as a tensor. A load fills it
    shape  of the whole tensor
    start  index of the first item in each dimension; None: 0 in each

    The boxes of all ranks must cover the tensor. Items that several ranks have are written by one
    of them. A rank that has no part of the tensor gives an array with 0 items.

    ValueError: the box is not inside the tensor.
    """

    __slots__ = ("array", "shape", "start")

    def __init__(self, array: Any, shape: Any, start: Any = None) -> None:
        self.array = array
        self.shape = tuple(int(n) for n in shape)
        box = tuple(int(n) for n in array.shape)
        self.start = (0,) * len(box) if start is None else tuple(int(n) for n in start)
        if not len(self.shape) == len(box) == len(self.start) or \
                any(s < 0 or s + b > n for s, b, n in zip(self.start, box, self.shape)):
            raise ValueError("a box of shape %s at %s is not inside a tensor of shape %s" %
                             (box, self.start, self.shape))

    def __repr__(self) -> str:
        return "<sheaf.Part: %s at %s of %s>" % (tuple(self.array.shape), self.start, self.shape)


class Split:
    """A tensor, of which some boxes are in this process.

    framework, dtype, special, shape  as of Memory, of the whole tensor
    boxes     the boxes, which are made on first use
    given     what takes its place in a tree after a load
    single    whether this process has all of the tensor, so that tied tensors are recognised
    writable  whether a load may fill the boxes
    """

    single, writable = False, True

    def __init__(self, framework: str, dtype: str, special: str, shape: tuple[int, ...]) -> None:
        self.framework, self.dtype, self.special = framework, dtype, special
        self.shape = shape + (2,) if special in dtypes.PAIRS else shape
        if len(self.shape) > memory.DIMS_MAX:
            raise Unfit("%d dimensions, of which at most %d can be stored" %
                        (len(self.shape), memory.DIMS_MAX))

    def boxes(self) -> list[Box]:
        raise NotImplementedError

    def given(self) -> Any:
        raise NotImplementedError

    def start(self, first: tuple[int, ...]) -> tuple[int, ...]:
        """Where a box starts, in the dimensions that are stored."""
        return first + (0,) if self.special in dtypes.PAIRS else first

    def described(self) -> str:
        """The dtype and the shape for people."""
        return "%s of shape %s" % (self.special or self.dtype, self.shape)

    def key(self) -> Optional[tuple[Any, ...]]:
        """Equal for two that are the same items of the same memory; None: that is unknown."""
        if not self.single or not all(m.address for m, _ in self.boxes()):
            return None
        return (self.shape, *((m.key(), start) for m, start in self.boxes()))


class OfPart(Split):
    """A sheaf.Part."""

    def __init__(self, part: Part) -> None:
        held = memory.of(part.array, devices=True)
        if held is None:
            raise Unfit("a sheaf.Part of a %s, which is no tensor" % type(part.array).__name__)
        if held.special == "float4_e2m1fn_x2":
            raise Unfit("a sheaf.Part of float4_e2m1fn_x2, whose items share bytes")
        super().__init__(held.framework, held.dtype, held.special, part.shape)
        self.part, self.held, self.writable = part, held, held.writable

    def boxes(self) -> list[Box]:
        return [(self.held, self.start(self.part.start))]

    def given(self) -> Any:
        return self.part


def of(x: Any) -> Optional[Split]:
    """What a leaf is that is saved; None: it is no such tensor. Raises Unfit."""
    if type(x) is Part:
        return OfPart(x)
    if dtypes.loaded("jax") is not None:
        from . import jax_array
        found = jax_array.saved(x)
        if found is not None:
            return found
    return placed(x)


def target(x: Any) -> Optional[Split]:
    """What a leaf is that is loaded into; None: it is no such tensor. Raises Unfit."""
    if type(x) is Part:
        return OfPart(x)
    if dtypes.loaded("jax") is not None:
        from . import jax_array
        found = jax_array.loaded(x)
        if found is not None:
            return found
    return placed(x)


def placed(x: Any) -> Optional[Split]:
    """A tensor of paddle.distributed; None: it is none. Raises Unfit."""
    if dtypes.loaded("paddle") is None:
        return None
    from . import paddle_tensor
    return paddle_tensor.placed(x)


def given(where: str, x: Any, what: str) -> Any:
    """A new tensor of a framework, from the array that was loaded for it."""
    if where == "jax":
        from . import jax_array
        return jax_array.made(x, what)
    return x


HANDED = ("jax",)                       # frameworks whose tensors are made of loaded arrays


def key_target(x: Any) -> Any:
    """A place for the numbers of keys of jax.random; None: `x` has no keys."""
    if dtypes.loaded("jax") is None:
        return None
    from . import jax_array
    return jax_array.key_target(x)


def same_algorithm(x: Any, impl: str) -> bool:
    """Whether keys of that algorithm have the type of `x`."""
    from . import jax_array
    return jax_array.same_algorithm(x, impl)


def key_again(x: Any, impl: str, data: Any) -> Any:
    """Keys in place of `x`, of their numbers."""
    from . import jax_array
    return jax_array.key_again(x, impl, data)


Fields = tuple[list[tuple[str, Any]], Callable[[list[Any]], Any]]
NO_RECORD = {type(None), bool, int, float, complex, str, bytes, bytearray, dict, list, tuple, set,
             frozenset, Part}


def fields(x: Any) -> Optional[Fields]:
    """The fields of a record, which is a NamedTuple or another node of a pytree of JAX, such as a
    flax.struct.dataclass, and what makes another one of new values; None: it is no record."""
    kind = type(x)
    if kind in NO_RECORD:
        return None
    if isinstance(x, tuple) and isinstance(getattr(kind, "_fields", None), tuple):
        return list(zip(kind._fields, x)), lambda values: kind._make(values)
    jax = dtypes.loaded("jax")
    if jax is None or isinstance(x, type):
        return None
    found, made = jax.tree_util.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)
    if any(len(path) != 1 for path, _ in found):
        return None                     # a leaf
    pairs = [(key_of(path[0]), v) for path, v in found]
    if len({k for k, _ in pairs}) < len(pairs):
        raise Unfit("a %s two of whose keys are the same text" % kind.__name__)
    return pairs, lambda values: jax.tree_util.tree_unflatten(made, values)


def key_of(entry: Any) -> str:
    """The name of a field from an entry of a path in a pytree."""
    for attribute in ("name", "key", "idx"):
        found = getattr(entry, attribute, None)
        if found is not None:
            return str(found)
    return str(entry)
