# SPDX-License-Identifier: Apache-2.0
"""Arrays of JAX in a tree: the shards that this process can address, and where they are.

Shards in host memory are saved without a copy; shards on an accelerator are copied to the host.
Arrays are immutable, so a load makes new ones: each distinct shard is read once, into memory that
JAX on the CPU uses without a copy.
"""
from __future__ import annotations

from typing import Any, Optional

from . import dtypes, memory
from .memory import NoType, Unfit
from .parts import Box, Split

ALIGN = 64                              # JAX adopts memory without a copy only at multiples of this


def is_key(x: Any, jax: Any) -> bool:
    """Whether an array has the keys of random streams."""
    return bool(jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key))


def stored_of(x: Any) -> tuple[str, str]:
    """The stored type and the special type of an array."""
    numpy = dtypes.module("numpy")
    dtype = numpy.dtype(x.dtype)
    found = memory.stored_of(dtype)
    if not found[0]:
        raise Unfit("type %s of JAX has no place in a safetensors file" % dtype.name)
    return found


class Saved(Split):
    """An array that is saved: one replica of each shard."""

    def __init__(self, x: Any) -> None:
        super().__init__("jax", *stored_of(x), tuple(x.shape))
        self.single = bool(x.is_fully_addressable)
        self.held = [self.box(s) for s in x.addressable_shards if s.replica_id == 0]

    def box(self, shard: Any) -> Box:
        numpy = dtypes.module("numpy")
        held = memory.of_numpy(numpy.asarray(shard.data), numpy)
        return held, self.start(tuple(s.start or 0 for s in shard.index))

    def boxes(self) -> list[Box]:
        return self.held


class Loaded(Split):
    """A place for an array that is loaded: each distinct shard of its sharding once.

    x         an array, or a jax.ShapeDtypeStruct
    sharding  of the new array; None: the default device, to which it is not committed
    """

    def __init__(self, x: Any, sharding: Any) -> None:
        super().__init__("jax", *stored_of(x), tuple(x.shape))
        check_width(dtypes.module("numpy").dtype(x.dtype))
        self.x, self.sharding = x, sharding
        self.held: dict[tuple[Any, ...], tuple[Any, Box]] = {}

    def keys(self) -> list[tuple[Any, tuple[Any, ...]]]:
        """The devices of this process, and the range that each has in each dimension."""
        shape = tuple(self.x.shape)
        if self.sharding is None:
            return [(None, tuple((0, n) for n in shape))]
        found = self.sharding.addressable_devices_indices_map(shape)
        return [(device, tuple(s.indices(n)[:2] for s, n in zip(index, shape)))
                for device, index in found.items()]

    def boxes(self) -> list[Box]:
        numpy = dtypes.module("numpy")
        if not self.held:
            for _, key in self.keys():
                if key not in self.held:
                    made = aligned(tuple(b - a for a, b in key), numpy.dtype(self.x.dtype))
                    self.held[key] = made, (memory.of_numpy(made, numpy),
                                            self.start(tuple(a for a, _ in key)))
        return [box for _, box in self.held.values()]

    def given(self) -> Any:
        jax = dtypes.module("jax")
        if self.sharding is None:
            return jax.numpy.asarray(next(iter(self.held.values()))[0])
        kind = self.sharding.memory_kind
        found = [jax.device_put(self.held[key][0], jax.sharding.SingleDeviceSharding(
            device, memory_kind=kind)) for device, key in self.keys()]
        return jax.make_array_from_single_device_arrays(tuple(self.x.shape), self.sharding, found)


def aligned(shape: tuple[int, ...], dtype: Any) -> Any:
    """A new array of NumPy, aligned so that JAX can use it without a copy."""
    numpy = dtypes.module("numpy")
    n = dtype.itemsize
    for length in shape:
        n *= length
    whole = numpy.empty(n + ALIGN, numpy.uint8)
    at = -whole.ctypes.data % ALIGN
    return whole[at:at + n].view(dtype).reshape(shape)


def check_width(dtype: Any) -> None:
    """Raises if JAX would truncate 64-bit values to 32 bits, which it does by default."""
    jax = dtypes.module("jax")
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise NoType("JAX makes %s of %s here; set jax_enable_x64, or load with framework='np'" %
                     (jax.dtypes.canonicalize_dtype(dtype), dtype))


def saved(x: Any) -> Optional[Split]:
    """An array that is saved; None: `x` is not an array, or holds keys."""
    jax = dtypes.module("jax")
    if not isinstance(x, jax.Array):
        return None
    if isinstance(x, jax.core.Tracer):
        raise Unfit("an array inside a function that JAX traces; save outside of jit")
    if is_key(x, jax):
        return None
    if x.is_deleted():
        raise Unfit("an array of JAX that was deleted or donated")
    return Saved(x)


def loaded(x: Any) -> Optional[Split]:
    """A place for an array that is loaded; None: `x` is not an array, or is for keys."""
    jax = dtypes.module("jax")
    if not isinstance(x, (jax.Array, jax.ShapeDtypeStruct)) or is_key(x, jax):
        return None
    committed = isinstance(x, jax.ShapeDtypeStruct) or getattr(x, "committed", True)
    return Loaded(x, x.sharding if committed else None)


def made(x: Any, what: str) -> Any:
    """A new array on the default device."""
    try:
        check_width(x.dtype)
    except NoType as e:
        raise NoType("%s: %s" % (what, e)) from None
    return dtypes.module("jax").numpy.asarray(x)


# ---- keys of random streams ----

def key_parts(x: Any) -> Optional[tuple[str, Any]]:
    """The name of the algorithm and the numbers of an array of keys; None: it is none."""
    jax = dtypes.loaded("jax")
    if jax is None or not isinstance(x, jax.Array) or not is_key(x, jax):
        return None
    impl = jax.random.key_impl(x)
    if not isinstance(impl, str):
        raise Unfit("keys of jax.random whose algorithm has no name")
    return impl, jax.random.key_data(x)


def keys(impl: str, data: Any) -> Any:
    """An array of keys from its numbers. Numbers that are not a JAX array stay numbers."""
    jax = dtypes.loaded("jax")
    if jax is None or not isinstance(data, jax.Array):
        return data
    return jax.random.wrap_key_data(data, impl=impl)


def key_target(x: Any) -> Optional[Any]:
    """A place for the numbers of an array of keys that is loaded; None: it is none."""
    jax = dtypes.loaded("jax")
    if jax is None or not isinstance(x, (jax.Array, jax.ShapeDtypeStruct)) or not is_key(x, jax):
        return None
    if isinstance(x, jax.Array):
        return jax.random.key_data(x)
    return jax.eval_shape(jax.random.key_data, x)


def key_again(x: Any, impl: str, data: Any) -> Any:
    """The keys in place of `x`."""
    jax = dtypes.module("jax")
    made = jax.random.wrap_key_data(data, impl=impl)
    if isinstance(x, jax.ShapeDtypeStruct) and x.sharding is not None:
        made = jax.device_put(made, x.sharding)
    return made


def same_algorithm(x: Any, impl: str) -> bool:
    """Whether keys of that algorithm have the type of `x`."""
    jax = dtypes.module("jax")
    shape = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), x.dtype)).shape
    try:
        data = dtypes.module("numpy").zeros(shape, "uint32")
        return bool(jax.random.wrap_key_data(data, impl=impl).dtype == x.dtype)
    except (ValueError, TypeError):
        return False
