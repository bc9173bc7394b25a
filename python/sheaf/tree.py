# SPDX-License-Identifier: Apache-2.0
"""Trees of Python objects as one typed JSON document, and the tensors in them.

A node of the document is a JSON value that means itself (null, true, a string, a number, an array
for a list), or an object with one tag:

    {"dict": {"lr": 0.1}}               a dict whose keys are all strings
    {"items": [[1, "a"], ...]}          a dict with other keys, in its order
    {"ordered": NODE}                   a collections.OrderedDict
    {"counter": NODE}                   a collections.Counter
    {"record": [NAME, {"dict": ...}]}   the fields of a NamedTuple, or of a node of a pytree of JAX
                                        whose type has that name: a dict, if no target has another
    {"tuple": [...]}, {"set": [...]}, {"frozenset": [...]}
    {"tensor": NAME, "family": F, "as": "torch", "special": "complex128"}
    {"int": "0x..."}                    of more than 63 bits
    {"float": "nan"}                    also "inf", "-inf", and "0x..." for other bits of a NaN
    {"complex": [1.0, NODE]}            real and imaginary part
    {"bytes": BASE64}, {"bytearray": BASE64}; of more than 64 KiB {"bytes": NODE of a tensor}
    {"jax.key": [NAME, NODE]}           keys of jax.random for that algorithm, and their numbers
    {"numpy": [DTYPE, HEX]}             a NumPy scalar
    {"numpy.dtype": "float32"}, {"numpy.type": "float32"}
    {"torch.dtype": "bfloat16"}, {"torch.Size": [2, 3]}, {"torch.device": "cpu"}
    {"codec": TAG, "value": NODE}       what the caller's codec made of an object

Nothing is pickled, and reading a document runs no code of its own.
"""
from __future__ import annotations

import base64
import collections
import ctypes
import json
import math
import re
import struct
from typing import Any, Callable, Iterator, Optional, Protocol, Union

from . import dtypes, memory, parts
from .binding import error
from .memory import Memory
from .parts import Split

FORMAT, VERSION = "sheaf.tree", 1
FILE = "tree.json"                      # its name in a checkpoint
BYTES_MAX = 1 << 16                     # longer bytes are stored as a tensor
FAMILY = re.compile(r"[a-z][a-z0-9_]{0,31}\Z")
GAP = "\x00"                            # in a document, in place of a value that is filled in later
RESERVED = ("ranks", "other")           # families that no key of a tree names


class Codec(Protocol):
    """Given by the caller to store objects of types that a tree does not know."""

    def encode(self, value: Any) -> Optional[tuple[str, Any]]:
        """Returns a tag and a tree that represents the object; None: refuse the object."""

    def decode(self, tag: str, value: Any) -> Any:
        """Returns the object."""


Unsupported = Union[str, Codec]
DROPPED = object()


class Leaf:
    """A tensor of a tree: its name in the checkpoint, and its memory, or its boxes here."""

    __slots__ = ("family", "name", "memory", "tied_to")

    def __init__(self, family: str, name: str, memory: Union[Memory, Split]) -> None:
        self.family, self.name, self.memory = family, name, memory
        self.tied_to: Optional[str] = None


def shown(place: tuple[Any, ...]) -> str:
    """A place in a tree for people: ['optimizer'][0]."""
    return "".join("[%r]" % (key,) for key in place) or "the tree"


def plain_name(place: tuple[Any, ...]) -> str:
    """The name of a tensor from the keys that lead to it, joined by dots."""
    name = ".".join(k if isinstance(k, str) else re.sub(r"\s+", "", str(k)) for k in place)
    if name.isascii() and name.isprintable() and 0 < len(name) <= 1000 and \
            name != "__metadata__":
        return name
    name = "".join(c if c >= " " and not "\x7f" <= c <= "\x9f" and not "\ud800" <= c <= "\udfff"
                   else "_" for c in name)
    name = name.encode()[:1000].decode(errors="ignore")
    return "tensor" if name in ("", "__metadata__") else name


def written(node: Any) -> str:
    """A node as JSON."""
    return json.dumps(node, allow_nan=False, separators=(",", ":"))


def envelope(form: str, node: Any) -> str:
    """The document with that root node."""
    return written({"format": form, "version": VERSION, "tree": node})


class Names:
    """Gives each tensor of a tree a family and a name, both unique.

    If the tree is a dict with a key "model" that has a container, each key of it that can be the
    name of a family and has a container is a family, and other tensors are in the family "other".
    Else all tensors are in the family "model".
    """

    def __init__(self, tree: Any) -> None:
        self.families = isinstance(tree, dict) and isinstance(tree.get("model"),
                                                              (dict, list, tuple))
        self.taken: set[tuple[str, str]] = set()
        self.tree = tree

    def of(self, place: tuple[Any, ...]) -> tuple[str, str]:
        family, rest = "model", place
        if self.families:
            first = place[0]
            if len(place) > 1 and isinstance(first, str) and FAMILY.match(first) and \
                    first not in RESERVED and isinstance(self.tree[first], (dict, list, tuple)):
                family, rest = first, place[1:]
            else:
                family = "other"
        name = plain_name(rest)
        unique, n = name, 1
        while (family, unique) in self.taken:
            n += 1
            unique = "%s~%d" % (name, n)
        self.taken.add((family, unique))
        return family, unique


class Encoder:
    """Makes the document of a tree, and the list of its tensors.

    records  whether it may have NamedTuples and other records, sheaf.Part, and arrays of JAX that
             stay such
    """

    format = FORMAT

    def __init__(self, tree: Any, unsupported: Unsupported = "refuse",
                 records: bool = False) -> None:
        if isinstance(unsupported, str) and unsupported not in ("refuse", "drop"):
            raise ValueError("unsupported=%r: it must be 'refuse', 'drop' or a codec" %
                             (unsupported,))
        self.unsupported, self.records = unsupported, records
        self.names = Names(tree)
        self.leaves: list[Leaf] = []
        self.dropped: list[str] = []
        self.inside: set[int] = set()
        self.stored: dict[tuple[Any, ...], Leaf] = {}
        node = self.node(tree, ())
        self.tree = None if node is DROPPED else node

    def document(self) -> bytes:
        """The document as bytes."""
        return envelope(self.format, self.tree).encode()

    def node(self, x: Any, place: tuple[Any, ...]) -> Any:
        """The node of an object; DROPPED: it has none, and that is wanted."""
        kind = type(x)
        if x is None or kind is bool or kind is str:
            return x
        if kind is int:
            return x if -2**63 <= x < 2**63 else {"int": hex(x)}
        if kind is float:
            return float_node(x)
        if kind in CONTAINERS:
            return self.container(x, place)
        found: Union[Memory, Split, None] = None
        try:
            if self.records:
                keys = key_parts(x)
                if keys is not None:
                    return {"jax.key": [keys[0], self.node(keys[1], place)]}
                found = parts.of(x)
            if found is None:
                found = memory.of(x, devices=True)
        except memory.Unfit as e:
            if self.unsupported == "refuse":
                raise memory.Unfit("%s: %s" % (shown(place), e)) from None
            found = None
        if found is not None:
            return self.tensor(found, place)
        made = self.scalar(x, place)
        return self.other(x, place) if made is None else made

    def container(self, x: Any, place: tuple[Any, ...]) -> Any:
        if id(x) in self.inside:
            raise ValueError("%s: the container is inside itself" % shown(place))
        self.inside.add(id(x))
        try:
            if isinstance(x, dict):
                return self.mapping(x, place)
            if isinstance(x, (set, frozenset)):
                nodes = [self.node(v, place + (v,)) for v in x]
                kept = [n for n in nodes if n is not DROPPED]
                return {type(x).__name__: sorted(kept, key=lambda n: json.dumps(n))}
            if set(map(type, x)) == {int} and -2**63 <= min(x) and max(x) < 2**63:
                nodes = list(x)         # as random.getstate() has hundreds of them
            else:
                nodes = [self.node(v, place + (i,)) for i, v in enumerate(x)]
            # The others must keep their places.
            nodes = [None if n is DROPPED else n for n in nodes]
            return nodes if isinstance(x, list) else {"tuple": nodes}
        finally:
            self.inside.discard(id(x))

    def mapping(self, x: dict[Any, Any], place: tuple[Any, ...]) -> Any:
        made: Any
        if all(type(k) is str for k in x):
            nodes = {k: self.node(v, place + (k,)) for k, v in x.items()}
            made = {"dict": {k: n for k, n in nodes.items() if n is not DROPPED}}
        else:
            pairs = [(self.node(k, place + (k,)), self.node(v, place + (k,)))
                     for k, v in x.items()]
            made = {"items": [[k, n] for k, n in pairs if k is not DROPPED and n is not DROPPED]}
        if isinstance(x, collections.Counter):
            return {"counter": made}
        return {"ordered": made} if isinstance(x, collections.OrderedDict) else made

    def tensor(self, found: Any, place: tuple[Any, ...]) -> Any:
        """The node of a tensor, which is a Memory or a Split."""
        family, name = self.names.of(place)
        leaf = Leaf(family, name, found)
        key = found.key()
        if key is not None:
            first = self.stored.setdefault((family, *key), leaf)
            leaf.tied_to = None if first is leaf else first.name
        self.leaves.append(leaf)
        node = {"tensor": name, "as": found.framework}
        if family != "model":
            node["family"] = family
        if found.special:
            node["special"] = found.special
        return node

    def scalar(self, x: Any, place: tuple[Any, ...]) -> Any:
        """The node of a value that is neither a container nor a tensor; None: it has none."""
        kind = type(x)
        if kind is complex:
            return {"complex": [float_node(x.real), float_node(x.imag)]}
        if kind in (bytes, bytearray):
            if len(x) > BYTES_MAX:
                return {kind.__name__: self.tensor(of_bytes(x), place)}
            return {kind.__name__: base64.b64encode(x).decode()}
        return numpy_node(x) or torch_node(x)

    def record(self, x: Any, place: tuple[Any, ...]) -> Any:
        """The node of a NamedTuple and the like; None: it is none."""
        found = parts.fields(x) if self.records else None
        if found is None:
            return None
        nodes = {k: self.node(v, place + (k,)) for k, v in found[0]}
        # As in tuples, all fields must be there.
        nodes = {k: None if n is DROPPED else n for k, n in nodes.items()}
        return {"record": [type(x).__name__, {"dict": nodes}]}

    def other(self, x: Any, place: tuple[Any, ...]) -> Any:
        what = "%s: a %s" % (shown(place), type(x).__name__)
        if not isinstance(self.unsupported, str):
            made = self.unsupported.encode(x)
            if made is not None:
                return {"codec": made[0], "value": self.node(made[1], place)}
        node = self.record(x, place)
        if node is not None:
            return node
        if self.unsupported == "drop":
            self.dropped.append(what)
            return DROPPED
        raise TypeError("%s cannot be stored; convert it, or give unsupported='drop' or a codec"
                        % what)


CONTAINERS = (dict, list, tuple, set, frozenset, collections.OrderedDict, collections.Counter)


def key_parts(x: Any) -> Optional[tuple[str, Any]]:
    """The algorithm and the numbers of keys of jax.random; None: it is none. Raises Unfit."""
    if dtypes.loaded("jax") is None:
        return None
    from . import jax_array
    return jax_array.key_parts(x)


def keys_of(impl: str, data: Any) -> Any:
    """Keys of jax.random again."""
    from . import jax_array
    return jax_array.keys(impl, data)


def float_node(x: float) -> Any:
    if math.isfinite(x):
        return x
    bits = struct.pack(">d", x).hex()
    return {"float": {"7ff8000000000000": "nan", "7ff0000000000000": "inf",
                      "fff0000000000000": "-inf"}.get(bits, "0x" + bits)}


def of_bytes(x: Union[bytes, bytearray]) -> Memory:
    """Long bytes as a tensor of U8."""
    if isinstance(x, bytes):
        address = ctypes.cast(ctypes.c_char_p(x), ctypes.c_void_p).value or 0
        return Memory(address, "U8", (len(x),), None, "bytes", x, "", False)
    held = (ctypes.c_char * len(x)).from_buffer(x)
    return Memory(ctypes.addressof(held), "U8", (len(x),), None, "bytes", held)


def numpy_node(x: Any) -> Any:
    numpy = dtypes.loaded("numpy")
    if numpy is None:
        return None
    if isinstance(x, numpy.generic) and x.dtype.kind not in "VO" or \
            isinstance(x, numpy.generic) and x.dtype.name in dtypes.FROM_NUMPY:
        name = x.dtype.name if x.dtype.name in dtypes.FROM_NUMPY else x.dtype.str
        return {"numpy": [name, x.tobytes().hex()]}
    if isinstance(x, numpy.dtype) and (x.name in dtypes.FROM_NUMPY or x.kind not in "VO"):
        native = x.name in dtypes.FROM_NUMPY and x.isnative
        return {"numpy.dtype": x.name if native else x.str}
    if isinstance(x, type) and issubclass(x, numpy.generic):
        try:
            name = str(numpy.dtype(x).name)
        except TypeError:               # a type that only groups others
            return None
        return {"numpy.type": name} if name in dtypes.FROM_NUMPY or name in dtypes.PAIRS else None
    return None


def torch_node(x: Any) -> Any:
    torch = dtypes.loaded("torch")
    if torch is None:
        return None
    if isinstance(x, torch.dtype):
        return {"torch.dtype": str(x)[len("torch."):]}
    if isinstance(x, torch.Size):
        return {"torch.Size": list(x)}
    if isinstance(x, torch.device):
        return {"torch.device": str(x)}
    return None


def parse(data: bytes, what: str = FILE, form: str = FORMAT) -> Any:
    """The root node of a document. Raises sheaf.Corrupt or sheaf.UnknownFormat.

    what  names the document in messages
    form  the format that it must have
    """
    try:
        made = json.loads(data)
        kind, version, node = made["format"], made["version"], made["tree"]
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise error("ECORRUPT", "%s: this is no document of a tree: %s" % (what, e)) from None
    if kind != form or version != VERSION:
        raise error("EFORMAT", "%s: format %.40r, version %.40r: a newer sheaf wrote it" %
                    (what, kind, version))
    return node


class Outside(Exception):
    """An exception of a codec, which is not a fault of the document."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Decoder:
    """Makes the objects of a document again.

    tensor  gives the tensor of a node
    codec   decodes what the caller's codec stored
    what    names the document in messages
    """

    def __init__(self, tensor: Callable[[dict[str, Any]], Any],
                 codec: Optional[Codec] = None, what: str = FILE) -> None:
        self.tensor, self.codec, self.what = tensor, codec, what

    def value(self, node: Any) -> Any:
        """The object of a node. Raises sheaf.Corrupt or sheaf.UnknownFormat."""
        try:
            return self.of(node)
        except Outside as e:
            raise e.error from e.error.__cause__
        except (KeyError, ValueError, TypeError, AttributeError, IndexError, struct.error,
                RuntimeError) as e:
            if isinstance(e, (memory.Unfit, memory.NoType)) or hasattr(e, "code"):
                raise
            raise error("ECORRUPT", "%s: a node is wrong: %s: %s" %
                        (self.what, type(e).__name__, e)) from e

    def of(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.of(n) for n in node]
        if not isinstance(node, dict):
            return node
        if "tensor" in node:
            return self.tensor(node)
        if "codec" in node:
            return self.decoded(node)
        (tag, inner), = node.items()
        made = MAKERS.get(tag)
        if made is None:
            raise error("EFORMAT", "%s: a node has tag %.40r: a newer sheaf wrote it" %
                        (self.what, tag))
        return made(self, inner)

    def decoded(self, node: dict[str, Any]) -> Any:
        if self.codec is None:
            raise error("EINVAL", "%s: an object was stored by a codec as %.80r; give the codec" %
                        (self.what, node["codec"]))
        tag, value = node["codec"], self.of(node["value"])
        try:
            return self.codec.decode(tag, value)
        except Exception as e:
            raise Outside(e) from e

    def raw(self, inner: Any) -> bytes:
        if isinstance(inner, str):
            return base64.b64decode(inner, validate=True)
        return bytes(self.tensor(inner))


def float_of(inner: Any) -> float:
    """A float from a number, from {"float": TEXT}, or from that text."""
    text = inner["float"] if isinstance(inner, dict) else inner
    if isinstance(text, str) and text.startswith("0x"):
        return float(struct.unpack(">d", bytes.fromhex(text[2:]))[0])
    return float(text)


def numpy_scalar(inner: Any) -> Any:
    numpy = dtypes.module("numpy")
    dtype, data = dtypes.numpy_dtype(inner[0]), bytes.fromhex(inner[1])
    if dtype.itemsize == 0:
        return dtype.type()
    return numpy.frombuffer(data, dtype=dtype, count=1)[0]


def torch_named(name: str, kind: str) -> Any:
    torch = dtypes.module("torch")
    made = getattr(torch, name, None) if kind == "dtype" else torch.device(name)
    if not isinstance(made, getattr(torch, kind)):
        raise ValueError("torch has no %s %.40r" % (kind, name))
    return made


MAKERS: dict[str, Callable[[Decoder, Any], Any]] = {
    "dict": lambda d, v: {k: d.of(n) for k, n in v.items()},
    "items": lambda d, v: {d.of(k): d.of(n) for k, n in v},
    "ordered": lambda d, v: collections.OrderedDict(d.of(v)),
    "counter": lambda d, v: collections.Counter(d.of(v)),
    "tuple": lambda d, v: tuple(d.of(n) for n in v),
    "set": lambda d, v: {d.of(n) for n in v},
    "frozenset": lambda d, v: frozenset(d.of(n) for n in v),
    "int": lambda d, v: int(v, 16),
    "float": lambda d, v: float_of(v),
    "complex": lambda d, v: complex(float_of(v[0]), float_of(v[1])),
    "bytes": lambda d, v: d.raw(v),
    "bytearray": lambda d, v: bytearray(d.raw(v)),
    "record": lambda d, v: d.of(v[1]),
    "jax.key": lambda d, v: keys_of(v[0], d.of(v[1])),
    "numpy": lambda d, v: numpy_scalar(v),
    "numpy.dtype": lambda d, v: dtypes.numpy_dtype(v),
    "numpy.type": lambda d, v: dtypes.numpy_dtype(v).type,
    "torch.dtype": lambda d, v: torch_named(v, "dtype"),
    "torch.Size": lambda d, v: dtypes.module("torch").Size(v),
    "torch.device": lambda d, v: torch_named(v, "device")}


def has_codec(node: Any) -> bool:
    """Whether a codec stored an object below a node."""
    if isinstance(node, list):
        return any(map(has_codec, node))
    if not isinstance(node, dict) or "tensor" in node:
        return False
    inner = node["dict"] if "dict" in node else node
    return "codec" in node or any(map(has_codec, inner.values()))


def tensors_of(node: Any) -> Iterator[dict[str, Any]]:
    """All nodes of tensors below a node."""
    if isinstance(node, list):
        for n in node:
            yield from tensors_of(n)
    elif isinstance(node, dict) and "tensor" in node:
        yield node
    elif isinstance(node, dict):
        # The keys of a dict are the caller's, and may look like tags.
        inner: Any = node["value"] if "codec" in node else list(node.values())
        yield from tensors_of(list(node["dict"].values()) if "dict" in node else inner)
