# SPDX-License-Identifier: Apache-2.0
"""The memory of a tensor: of NumPy, torch, JAX, Paddle, DLPack or a buffer.

Only read-only buffers are copied.
"""
from __future__ import annotations

import array
import ctypes
import functools
import math
from typing import Any, Optional

from . import dtypes

DIMS_MAX = 8                            # SHEAF_DIMS_MAX: of a tensor as it is stored
CPU = (1, 3)                            # DLPack's devices of host memory: plain and pinned
# Kind and bits of DLPack: the stored type.
DLPACK = {(0, 8): "I8", (0, 16): "I16", (0, 32): "I32", (0, 64): "I64", (1, 8): "U8",
          (1, 16): "U16", (1, 32): "U32", (1, 64): "U64", (2, 16): "F16", (2, 32): "F32",
          (2, 64): "F64", (4, 16): "BF16", (5, 64): "C64", (6, 8): "BOOL", (10, 8): "F8_E4M3",
          (11, 8): "F8_E4M3FNUZ", (12, 8): "F8_E5M2", (13, 8): "F8_E5M2FNUZ", (14, 8): "F8_E8M0"}


class Unfit(ValueError):
    """A tensor that cannot be stored or filled as it is; the text says why."""


class NoType(TypeError):
    """The framework has no type for a tensor; the text says which."""


class Memory:
    """The items of one tensor in host memory.

    address    of item 0, in bytes; 0 if there are no items
    dtype      the type that is stored, such as "BF16"
    shape      as it is stored
    strides    in items; None: dense and row-major
    framework  "torch", "numpy", "jax" or "paddle"; "bytes" for long bytes
    special    the type of the object itself, if that has no name on disk; else ""
    owner      the object, which must live as long as its memory is used
    writable   whether a load may fill it
    home       the tensor on a device whose copy this is: fetch() before a save, and put_back()
               after a load; None: it is no copy
    """

    __slots__ = ("address", "dtype", "shape", "strides", "framework", "special", "owner",
                 "writable", "home")

    def __init__(self, address: int, dtype: str, shape: tuple[int, ...],
                 strides: Optional[tuple[int, ...]], framework: str, owner: Any,
                 special: str = "", writable: bool = True) -> None:
        self.address, self.dtype, self.shape, self.strides = address, dtype, shape, strides
        self.framework, self.owner, self.special = framework, owner, special
        self.writable = writable
        self.home: Any = None

    def fetch(self) -> None:
        """Copies the tensor from its device."""
        if self.home is not None:
            self.owner.copy_(self.home.detach())

    def put_back(self) -> None:
        """Copies what was loaded to the device of the tensor."""
        if self.home is not None:
            self.home.detach().copy_(self.owner)

    def key(self) -> Optional[tuple[Any, ...]]:
        """Equal for two tensors that are the same items of the same memory; None: it has none."""
        if not self.address:
            return None
        if self.home is not None:
            return (str(self.home.device), self.home.data_ptr(), self.dtype, self.shape,
                    tuple(self.home.stride()))
        return self.address, self.dtype, self.shape, self.strides

    def described(self) -> str:
        """The dtype and the shape for people: "F32 of shape (2, 3)"."""
        return "%s of shape %s" % (self.special or self.dtype, self.shape)


def laid_out(shape: tuple[int, ...], strides: tuple[int, ...], copy: str
             ) -> Optional[tuple[int, ...]]:
    """Strides in items as the library takes them; None: dense."""
    if 0 in shape:
        return None
    dense, step = True, 1
    for n, s in zip(reversed(shape), reversed(strides)):
        if n > 1:
            if s < 0:
                raise Unfit("a view with a negative stride; make it dense with %s" % copy)
            if s == 0:
                raise Unfit("an expanded view, whose items share memory (stride 0); make it dense "
                            "with %s" % copy)
            dense = dense and s == step
        step *= n
    far = 0                             # the last item that smaller strides reach
    for s, n in sorted((s, n) for n, s in zip(shape, strides) if n > 1):
        if s <= far:
            raise Unfit("a view whose items share memory (strides %s); make it dense with %s" %
                        (strides, copy))
        far += s * (n - 1)
    return None if dense else tuple(s if n > 1 else 0 for n, s in zip(shape, strides))


def finished(address: int, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...],
             framework: str, owner: Any, special: str, writable: bool) -> Memory:
    """The last checks that all kinds of tensors share."""
    copy = ".contiguous()" if framework in ("torch", "paddle") else ".copy()"
    if special in dtypes.PAIRS:
        shape, strides = shape + (2,), tuple(2 * s for s in strides) + (1,)
        dtype = dtypes.PAIRS[special]
    if len(shape) > DIMS_MAX:
        raise Unfit("%d dimensions, of which at most %d can be stored" % (len(shape), DIMS_MAX))
    laid = laid_out(shape, strides, copy)
    if special == "float4_e2m1fn_x2":
        if laid is not None or not shape:
            raise Unfit("memory of float4_e2m1fn_x2 must be dense; use %s" % copy)
        shape = shape[:-1] + (2 * shape[-1],)
    return Memory(address if math.prod(shape) else 0, dtype, shape, laid, framework, owner,
                  special, writable)


@functools.lru_cache(maxsize=None)
def stored_of(dtype: Any) -> tuple[str, str]:
    """The stored type of a dtype of torch or NumPy, and its own name if that is special; "": it
    cannot be stored."""
    if type(dtype).__module__ == "torch":
        name = str(dtype)[len("torch."):]
        special = name if name in dtypes.PAIRS or name == "float4_e2m1fn_x2" else ""
        return dtypes.FROM_TORCH.get(name, "F4" if special else ""), special
    if dtype.kind in "Mm":
        return "I64", str(dtype.name)
    special = dtype.name if dtype.name in dtypes.PAIRS else ""
    return dtypes.PAIRS.get(special) or dtypes.FROM_NUMPY.get(dtype.name, ""), special


def of_torch(t: Any, torch: Any, devices: bool = False) -> Memory:
    if type(t) not in (torch.Tensor, torch.nn.Parameter):
        raise Unfit("a %s, which is no plain tensor" % type(t).__name__)
    if t.layout != torch.strided:
        raise Unfit("a tensor with layout %s; use .to_dense()" % t.layout)
    if t.device.type == "meta" or t.device.type != "cpu" and not devices:
        raise Unfit("a tensor on device %s; move it to the CPU first" % t.device)
    if t.is_conj() or t.is_neg():
        raise Unfit("a view that conjugates or negates its memory; use .resolve_conj() or "
                    ".resolve_neg()")
    dtype, special = stored_of(t.dtype)
    if not dtype:
        raise Unfit("type %s has no place in a safetensors file" % t.dtype)
    if t.device.type != "cpu":
        copy = of_torch(torch.empty(t.shape, dtype=t.dtype, device="cpu"), torch)
        copy.home = t
        return copy
    if not special and t.is_contiguous() and t.dim() <= DIMS_MAX:
        return Memory(t.data_ptr(), dtype, tuple(t.shape), None, "torch", t)
    return finished(t.data_ptr(), dtype, tuple(t.shape), tuple(t.stride()), "torch", t, special,
                    True)


def of_numpy(a: Any, numpy: Any) -> Memory:
    if type(a) not in (numpy.ndarray, numpy.memmap):
        raise Unfit("a %s, which is no plain array" % type(a).__name__)
    dtype = a.dtype
    if not dtype.isnative:
        raise Unfit("an array in the byte order of another machine; use "
                    ".astype(a.dtype.newbyteorder('='))")
    stored, special = stored_of(dtype)
    address, writable = a.__array_interface__["data"][0], bool(a.flags.writeable)
    if stored and not special and a.flags.c_contiguous and a.ndim <= DIMS_MAX:
        return Memory(address if a.size else 0, stored, a.shape, None, "numpy", a, "", writable)
    if not stored:
        raise Unfit("type %s has no place in a safetensors file" % dtype)
    if any(s % dtype.itemsize for s, n in zip(a.strides, a.shape) if n > 1):
        raise Unfit("a view whose strides are no whole items; make it dense with .copy()")
    strides = tuple(s // dtype.itemsize for s in a.strides)
    return finished(address, stored, tuple(a.shape), strides, "numpy", a, special, writable)


class DLTensor(ctypes.Structure):
    """struct DLTensor of dlpack.h, the first member of what a capsule "dltensor" has."""

    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("index", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


def of_dlpack(x: Any) -> Memory:
    """Of anything with __dlpack__, such as a JAX array in host memory. It is not filled by loads,
    because many such objects are constants."""
    device = x.__dlpack_device__()[0]
    if int(device) not in CPU:
        raise Unfit("a %s on a device (%d of DLPack); move it to the CPU first" %
                    (type(x).__name__, device))
    capsule = x.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    t = ctypes.cast(pointer(capsule, b"dltensor"), ctypes.POINTER(DLTensor)).contents
    shape = tuple(t.shape[:t.ndim]) if t.ndim else ()
    strides = tuple(t.strides[:t.ndim]) if t.strides and t.ndim else dense(shape)
    special = "complex128" if (t.code, t.bits) == (5, 128) else ""
    stored = "F64" if special else DLPACK.get((t.code, t.bits), "")
    if not stored or t.lanes != 1:
        raise Unfit("a %s whose type has no place in a safetensors file" % type(x).__name__)
    return finished((t.data or 0) + t.byte_offset, stored, shape, strides, "numpy", capsule,
                    special, False)


def dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides in items of row-major memory."""
    return tuple(math.prod(shape[i + 1:]) for i in range(len(shape)))


def of_buffer(x: Any) -> Memory:
    """Of an object with the buffer protocol: array.array, memoryview, an array of ctypes."""
    view = memoryview(x)
    formats = {"?": "BOOL", "f": "F32", "d": "F64", "e": "F16"}
    plain = view.format.lstrip("@=<")
    stored = formats.get(plain, "")
    if plain in tuple("bhilqn"):
        stored = "I%d" % (8 * view.itemsize)
    elif plain in tuple("BHILQN"):
        stored = "U%d" % (8 * view.itemsize)
    if not stored:
        raise Unfit("a buffer of format %r has no place in a safetensors file" % view.format)
    if not view.c_contiguous:
        raise Unfit("a buffer that is not dense")
    keep, address = view, 0
    if view.nbytes and view.readonly:
        keep, address = readonly_address(view)
    elif view.nbytes:
        address = ctypes.addressof((ctypes.c_char * view.nbytes).from_buffer(view))
    shape = tuple(view.shape or ())
    return finished(address, stored, shape, dense(shape), "numpy", keep, "", not view.readonly)


def readonly_address(view: memoryview) -> tuple[Any, int]:
    """ctypes gives the address only of a writable buffer. A read-only one is copied, once."""
    copied = (ctypes.c_char * view.nbytes).from_buffer_copy(view)
    return copied, ctypes.addressof(copied)


def of(x: Any, devices: bool = False) -> Optional[Memory]:
    """The memory of a tensor; None: the object is no tensor. Raises Unfit.

    devices  whether a tensor of torch may lie on a device: the memory is then that of a copy
    """
    torch, numpy = dtypes.loaded("torch"), dtypes.loaded("numpy")
    if torch is not None and isinstance(x, torch.Tensor):
        return of_torch(x, torch, devices)
    if numpy is not None and isinstance(x, numpy.ndarray):
        return of_numpy(x, numpy)
    if numpy is not None and isinstance(x, numpy.generic):
        return None
    paddle = dtypes.loaded("paddle")
    if paddle is not None and isinstance(x, getattr(paddle, "Tensor", ())):
        from .paddle_tensor import of_paddle
        return of_paddle(x)
    if isinstance(x, (memoryview, array.array, ctypes.Array)):
        return of_buffer(x)
    if hasattr(x, "__dlpack__") and not isinstance(x, type):
        return of_dlpack(x)
    return None


def mapped_readonly() -> list[tuple[int, int]]:
    """The address ranges that are mapped read-only, in ascending order."""
    found = []
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as f:
            for line in f:
                at, mode = line.split(" ", 2)[:2]
                if "w" not in mode:
                    first, _, end = at.partition("-")
                    found.append((int(first, 16), int(end, 16)))
    except OSError:                     # no such file: nothing is known
        pass
    return found


def empty(where: str, stored: str, shape: tuple[int, ...], what: str) -> tuple[Any, Memory]:
    """A new tensor of "numpy" or "torch" with that stored type and shape, and its memory. For
    "jax" it is an array of NumPy, which parts.given hands over."""
    if where == "bytes" and stored == "U8" and len(shape) == 1:
        held = (ctypes.c_char * shape[0])()
        return held, Memory(ctypes.addressof(held), "U8", shape, None, "bytes", held)
    if len(shape) > DIMS_MAX:
        raise Unfit("%s: %d dimensions, of which at most %d can be loaded" %
                    (what, len(shape), DIMS_MAX))
    dtype = dtypes.dtype_in(where, stored, what)
    if stored == "F4":
        shape = shape[:-1] + (shape[-1] // 2,)
    if where == "torch":
        torch = dtypes.module("torch")
        made = torch.empty(shape, dtype=dtype, device="cpu", requires_grad=False)
        return made, of_torch(made, torch)
    if where == "paddle":
        from .paddle_tensor import empty as empty_paddle
        return empty_paddle(shape, dtype)
    numpy = dtypes.module("numpy")
    if where == "jax":
        dtypes.module("jax")
        from .jax_array import aligned
        made = aligned(shape, dtype)
    else:
        made = numpy.empty(shape, dtype=dtype)
    return made, of_numpy(made, numpy)


def restored(x: Any, special: str) -> Any:
    """A tensor as it was saved, from what is stored: pairs as complex numbers, and so on."""
    if not special or special == "float4_e2m1fn_x2":
        return x
    torch = dtypes.loaded("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        if special not in dtypes.PAIRS:
            return x                    # torch has no dates: they stay numbers
        return torch.view_as_complex(x)
    paddle = dtypes.loaded("paddle")
    if paddle is not None and isinstance(x, getattr(paddle, "Tensor", ())):
        if special == "complex128":
            return paddle.as_complex(x)
        return x                        # Paddle has neither complex32 nor dates
    if special == "complex32":
        raise NoType("NumPy has no type complex32; load with framework='pt'")
    if special in dtypes.PAIRS:
        return x.view(special)[..., 0]
    return x.view(special)
