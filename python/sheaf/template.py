# SPDX-License-Identifier: Apache-2.0
"""What the trees of one layout have in common, so that sheaf.save need not describe each anew.

A training saves a tree of the same containers, keys, shapes and types again and again. A Template
has what all of these trees share: the list of their tensors in the library, and their document
with a gap for each value that is no tensor. For the next tree only the addresses of its tensors
are passed to the library, and the gaps are filled. A tree that differs in anything else has
another layout and is described anew.
"""
from __future__ import annotations

import array
import collections
import ctypes
from itertools import chain, compress, zip_longest
from typing import Any, Optional, Sequence

from . import dtypes
from .memory import Memory
from .run import State
from .tree import GAP, Encoder, Names, Unsupported, envelope, written

DICTS = (dict, collections.OrderedDict)

Place = tuple[Any, ...]


class Unsuited(Exception):
    """The trees of this layout are described anew each time."""


class Value:
    """A part of a tree without tensors: it may be any other such value in the next tree."""

    __slots__ = ("place",)

    def __init__(self, place: Place) -> None:
        self.place = place


class Container:
    """A dict, list or tuple with tensors in it.

    kind    its class
    keys    those of a dict, in its order; None: it is no dict
    key     a set of the one class that all keys have
    parts   what is in it, in its order
    plain   whether all parts are tensors
    """

    __slots__ = ("kind", "keys", "key", "parts", "plain")

    def __init__(self, kind: type, keys: Optional[list[Any]], parts: list[Part]) -> None:
        self.kind, self.keys, self.parts = kind, keys, parts
        self.plain = all(p is None for p in parts)
        self.key = {type(keys[0])} if keys else set()
        if keys and (set(map(type, keys)) != self.key or not self.key <= {str, int}):
            raise Unsuited              # keys such as 1 and True are equal, and written differently


Part = Optional["Container | Value"]    # None: a tensor


def outlined(x: Any, place: Place, tensors: list[Any]) -> Part:
    """The outline of a tree; appends its tensors in the order in which an Encoder lists them."""
    kind = type(x)
    if kind in tensor_kinds():
        tensors.append(x)
        return None
    if kind not in (*DICTS, list, tuple):
        return Value(place)
    before = len(tensors)
    keys = list(x) if kind in DICTS else None
    inside = x if keys is None else x.values()
    parts = [outlined(v, place + (k,), tensors)
             for k, v in zip(range(len(x)) if keys is None else keys, inside)]
    return Value(place) if len(tensors) == before else Container(kind, keys, parts)


def tensor_kinds() -> tuple[type, ...]:
    """The classes of tensors that are compared here."""
    torch, numpy = dtypes.loaded("torch"), dtypes.loaded("numpy")
    return (*((torch.Tensor, torch.nn.Parameter) if torch else ()),
            *((numpy.ndarray,) if numpy else ()))


def matches(part: Part, x: Any, tensors: list[Any], values: list[Any]) -> bool:
    """Whether an object has that outline; appends its tensors, which are not looked at, and its
    other values."""
    if part is None:
        tensors.append(x)
        return True
    if isinstance(part, Value):
        values.append(x)
        return True
    if type(x) is not part.kind:
        return False
    inside: Any = x
    if part.keys is not None:
        if list(inside) != part.keys or set(map(type, inside)) != part.key:
            return False
        inside = inside.values()
    elif len(inside) != len(part.parts):
        return False
    if part.plain:
        tensors += inside
        return True
    return all([matches(p, v, tensors, values) for p, v in zip(part.parts, inside)])


def gapped(part: Part, node: Any) -> Any:
    """The node of a document with GAP in place of the nodes of values."""
    if part is None:
        return node
    if isinstance(part, Value):
        return GAP
    if part.kind is collections.OrderedDict:
        return {"ordered": gapped(Container(dict, part.keys, part.parts), node["ordered"])}
    if part.kind is tuple:
        return {"tuple": gapped(Container(list, None, part.parts), node["tuple"])}
    if part.kind is list:
        return list(map(gapped, part.parts, node))
    if "dict" in node:
        return {"dict": dict(zip(node["dict"], map(gapped, part.parts, node["dict"].values())))}
    return {"items": [[k, gapped(p, v)] for p, (k, v) in zip(part.parts, node["items"])]}


def places(part: Part) -> list[Place]:
    """Where the values of a tree are."""
    if isinstance(part, Value):
        return [part.place]
    return [] if part is None else list(chain.from_iterable(map(places, part.parts)))


def form(a: Any) -> tuple[Any, ...]:
    """All properties of an array of NumPy that must stay the same, except its memory."""
    return (a.dtype, a.shape, a.strides)


class Arrays:
    """Type, shape and strides of a list of arrays of NumPy."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        self.kinds = set(map(type, arrays))
        self.forms = list(map(form, arrays))

    def addresses(self, arrays: Sequence[Any]) -> Optional[Sequence[int]]:
        """The addresses of other arrays; None: they differ, or are no arrays."""
        if set(map(type, arrays)) != self.kinds or list(map(form, arrays)) != self.forms:
            return None
        return [a.__array_interface__["data"][0] if a.size else 0 for a in arrays]


class Tensors:
    """The same of a list of tensors of torch."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        from .torch_forms import FORMS
        self.forms = FORMS(tensors)

    def addresses(self, tensors: Sequence[Any]) -> Optional[Sequence[int]]:
        """The addresses of other tensors; None: they differ, or are no tensors."""
        found: Optional[Sequence[int]] = self.forms.addresses(tensors)
        return found


class Template:
    """The layout of a tree. [local]

    tree   a tree that was encoded
    made   its Encoder
    state  the list of its tensors in the library

    Raises Unsuited if the trees of this layout must be described anew each time.
    """

    def __init__(self, tree: Any, made: Encoder, state: State) -> None:
        tensors: list[Any] = []
        self.state, self.root = state, outlined(tree, (), tensors)
        memories = [leaf.memory for leaf in made.leaves if isinstance(leaf.memory, Memory)]
        if not tensors or made.dropped or not \
                len(tensors) == len(memories) == len(made.leaves) or \
                any(m.owner is not t and leaf.tied_to is None
                    for leaf, m, t in zip(made.leaves, memories, tensors)):
            raise Unsuited
        self.families = made.names.families
        self.places = places(self.root)
        self.text = envelope(made.format, gapped(self.root, made.tree)).split(written(GAP))
        if len(self.text) != len(self.places) + 1:
            raise Unsuited              # a key is called like the gap
        torch = dtypes.loaded("torch")
        self.torch = [torch is not None and isinstance(t, torch.Tensor) for t in tensors]
        self.numpy = [not t for t in self.torch]
        self.tensors = Tensors(list(compress(tensors, self.torch))) if any(self.torch) else None
        self.arrays = Arrays(list(compress(tensors, self.numpy))) if any(self.numpy) else None
        kinds: dict[Any, int] = {}      # two that are tied must be of one kind
        self.kinds = [kinds.setdefault((leaf.family, *(m.key() or (0,))[1:]), len(kinds))
                      for leaf, m in zip(made.leaves, memories)]
        self.firsts = self.tied([m.address for m in memories])

    def tied(self, addresses: Sequence[int]) -> list[int]:
        """Of each tensor the number of the first one that is the same memory."""
        n = len(addresses)
        if len(set(addresses)) == n:
            return list(range(n))
        seen: dict[Any, int] = {}
        return [seen.setdefault(key, i) if key[0] else i
                for i, key in enumerate(zip(addresses, self.kinds))]

    def addresses(self, tensors: Sequence[Any]) -> Optional[Sequence[int]]:
        """The addresses of the tensors of another tree; None: they differ."""
        if self.arrays is None and self.tensors is not None:
            return self.tensors.addresses(tensors)
        if self.tensors is None and self.arrays is not None:
            return self.arrays.addresses(tensors)
        assert self.tensors is not None and self.arrays is not None
        one = self.tensors.addresses(list(compress(tensors, self.torch)))
        two = self.arrays.addresses(list(compress(tensors, self.numpy)))
        if one is None or two is None:
            return None
        ones, twos = iter(one), iter(two)
        return [next(ones if t else twos) for t in self.torch]

    def again(self, tree: Any, unsupported: Unsupported) -> Optional[bytes]:
        """Gives the state the memory of another tree, and returns that tree's document.

        None: it has another layout. TypeError, ValueError: a value cannot be stored.
        """
        tensors: list[Any] = []
        values: list[Any] = []
        if not matches(self.root, tree, tensors, values) or \
                Names(tree).families != self.families:
            return None
        addresses = self.addresses(tensors)
        if addresses is None or self.tied(addresses) != self.firsts:
            return None
        encoder = Encoder(None, unsupported, records=True)
        nodes = list(map(encoder.node, values, self.places))
        if encoder.leaves or encoder.dropped:
            return None
        data = (ctypes.c_void_p * len(addresses)).from_buffer(array.array("Q", addresses))
        self.state.c.call("sheaf_state_move_all", self.state.pointer, data, len(data))
        texts = zip_longest(self.text, map(written, nodes), fillvalue="")
        return "".join(chain.from_iterable(texts)).encode()
