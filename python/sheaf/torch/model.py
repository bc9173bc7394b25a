# SPDX-License-Identifier: Apache-2.0
"""The tensors of a torch module, under the names that its state_dict has.

The names are those that `from_pretrained` of transformers looks for. Wrappers do not show in
them: DistributedDataParallel's `module.`, torch.compile's `_orig_mod.` and activation
checkpointing's `_checkpoint_wrapped_module.` are left out, so that a checkpoint loads with and
without them. A second name of a parameter is tied to the first.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from operator import is_
from typing import Any, Iterator, Optional

import torch
from torch import nn

from .fsdp1 import inner, is_fsdp1, settle, shards
from .layout import DTYPES, Unsupported
from .placed import PLAIN, Parts, Placed, declared

WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


@dataclass
class Item:
    """A tensor that is saved and loaded.

    store      its type in the checkpoint, as safetensors calls it; None: that of the memory
    tied_to    the name of this family under which the bytes are stored
    save_only  a load does not fill it, because the same memory is filled from another family
    optional   a load leaves it as it is if the checkpoint lacks it
    copy       another item is filled with the same bytes, in other memory
    at         the part of the stored tensor that it has; None: the tensor itself describes that
    owner      the parameter that an optimizer has, if that is another object
    """

    family: str
    name: str
    tensor: torch.Tensor
    store: Optional[str] = None
    tied_to: Optional[str] = None
    save_only: bool = False
    optional: bool = False
    copy: bool = False
    at: Optional[Placed] = None
    owner: Optional[torch.Tensor] = None


@dataclass
class Held:
    """Where a module keeps a tensor: looked up again at each save, because it may be replaced."""

    name: str
    place: dict[str, Any]               # _parameters or _buffers of the module
    key: str
    parameter: bool
    placed: tuple[Placed, ...] = ()     # what was declared of it


def unwrapped(module: nn.Module) -> nn.Module:
    """The module that the user wrote, inside those wrappers that hold it as their only child."""
    while True:
        if isinstance(module, nn.parallel.DistributedDataParallel):
            module = module.module
        elif hasattr(module, "_orig_mod") and isinstance(module._orig_mod, nn.Module):
            module = module._orig_mod
        else:
            return module


def shown(key: str) -> str:
    """A key of a state_dict without the parts that wrappers add."""
    for w in WRAPPERS:
        key = key.replace(w, "")
    return key


def place_of(m: Optional[nn.Module], key: str, value: Any) -> Optional[Held]:
    """Where a module has that value under that name; None: it has not."""
    if m is not None and m._parameters.get(key) is value:
        return Held("", m._parameters, key, True)
    if m is not None and m._buffers.get(key) is value:
        return Held("", m._buffers, key, False)
    return None


def contents(x: Any) -> Any:
    """Equal for two states of a configuration, or of anything else made of plain values."""
    kind = type(x)
    if x is None or kind in (bool, int, float, str):
        return kind, x
    if kind in (list, tuple):
        return kind, tuple(map(contents, x))
    if isinstance(x, dict):
        return kind, tuple((k, contents(v)) for k, v in x.items())
    if isinstance(x, torch.dtype):
        return x
    if hasattr(x, "__dict__") and not isinstance(x, type):
        return kind, contents(vars(x))
    return object()                     # equal to nothing: who knows what it holds


Keys = tuple[tuple[str, ...], ...]


def keys_of(m: nn.Module) -> Keys:
    """The names of what a module has; one that is None may be set later."""
    return (tuple(k for k, p in m._parameters.items() if p is not None),
            tuple(k for k, b in m._buffers.items() if b is not None),
            tuple(m._modules), tuple(sorted(m._non_persistent_buffers_set)))


class Model:
    """A module whose parameters and persistent buffers are saved in family model.

    module       the model; wrappers are looked through
    prefix       goes before all names, for a trainer with several models: "generator."
    parts        what its tensors have of those that are stored, where they are split by hand
    store_dtype  a torch dtype: F32 parameters are stored in it in family model, and exactly in
                 family master_weights. Both are the same memory, and a load fills it from the
                 masters.
    """

    def __init__(self, module: nn.Module, prefix: str = "",
                 store_dtype: Optional[torch.dtype] = None, parts: Parts = None) -> None:
        self.given, self.module = module, unwrapped(module)
        self.parts = parts
        self.fsdp1: list[tuple[str, nn.Module]] = []    # with the prefix of its parameters
        self.prefix = prefix
        self.store = None if store_dtype is None else DTYPES[store_dtype]
        self.modules: list[nn.Module] = []
        self.held: list[Held] = []
        self.forms: Optional[list[Any]] = None  # shapes and strides that parts were declared of
        self.extra: dict[str, nn.Module] = {}
        self.keys: list[Keys] = []
        self.written: Optional[tuple[Any, dict[str, bytes]]] = None     # by files(), from what
        self.there: list[Any] = []      # what was compared last, object by object

    def settle(self) -> None:
        """Restores the sharded parameters, as state_dict() does, and finds out whether the names
        must be looked up again.

        FSDP2 may have left gathered parameters in the modules after a forward pass; its hook
        takes them away. Names are kept while all modules have the same class, hooks of
        state_dict(), modules and parameters, and buffers of the same names. A module may be held
        twice, so the order in which they are found does not say where.
        """
        found, keys = self.walk()
        for m in found:
            if is_fsdp1(m):
                settle(m)
            for hook in list(m._state_dict_pre_hooks.values()) if not is_fsdp1(m) else ():
                hook(m, "", True)
        there: list[Any] = [x for m in found for x in (
            m, type(m), m._parameters, m._buffers, *m._state_dict_hooks.values())]
        there += [x for m in found for d in (m._parameters, m._modules) for x in d.values()]
        if keys != self.keys or len(there) != len(self.there) or \
                not all(map(is_, there, self.there)):
            self.modules, self.keys, self.there = found, keys, there
            self.held, self.fsdp1 = [], []

    def walk(self) -> tuple[list[nn.Module], list[Keys]]:
        """All modules, each once, and the names of what each has."""
        found: list[nn.Module] = []
        seen: set[int] = set()
        todo = [self.module]
        keys: list[Keys] = []
        while todo:
            m = todo.pop()
            if id(m) in seen:
                continue
            seen.add(id(m))
            found.append(m)
            keys.append(keys_of(m))
            todo += [c for c in m._modules.values() if c is not None]
        return found, keys

    def look(self) -> None:
        """Finds the names, by what the module's own state_dict says."""
        if any(map(is_fsdp1, self.modules)):
            self.look_fsdp1()
            return
        places: dict[int, Held] = {}
        for m in self.modules:
            for key, p in m._parameters.items():
                if p is not None:
                    places[id(p)] = Held("", m._parameters, key, True)
            for key, b in m._buffers.items():
                if b is not None:
                    places[id(b)] = Held("", m._buffers, key, False)
        held = []
        self.extra = {}
        named = dict(self.module.named_modules(remove_duplicate=False))
        for key, value in self.module.state_dict(keep_vars=True).items():
            name = self.prefix + shown(key)
            if key.rpartition(".")[2] == "_extra_state":
                self.extra[name] = named[key.rpartition(".")[0]]
            elif id(value) in places:
                path, _, leaf = key.rpartition(".")
                at = place_of(named.get(path), leaf, value) or places[id(value)]
                held.append(Held(name, at.place, at.key, at.parameter))
            else:
                raise Unsupported("state_dict() has %s, which is neither a parameter nor a "
                                  "persistent buffer of the model, so that no load could put it "
                                  "back" % name)
        self.held, self.forms = held, None

    def look_fsdp1(self) -> None:
        """The same for modules under FSDP1, whose state_dict() would gather all parameters. The
        names are those that it would give."""
        if self.parts is not None:
            raise Unsupported("parts= cannot be given for a model in FSDP1, which says by itself "
                              "what each rank has")
        self.fsdp1, self.held, self.extra = [], [], {}
        for name, m in self.module.named_modules(remove_duplicate=False):
            prefix = self.prefix + shown(name + "." if name else "")
            if is_fsdp1(m):
                self.fsdp1.append((prefix, m))
            if type(m).get_extra_state is not nn.Module.get_extra_state:
                self.extra[prefix + "_extra_state"] = m
            for key, p in m._parameters.items():
                if p is not None and not key.startswith("_flat_param"):
                    self.held.append(Held(prefix + key, m._parameters, key, True))
            for key, b in m._buffers.items():
                if b is not None and key not in m._non_persistent_buffers_set:
                    self.held.append(Held(prefix + key, m._buffers, key, False))
        mine = {id(s.owner) for p, m in self.fsdp1 for s in shards(p, m)}
        self.held = [h for h in self.held if id(h.place[h.key]) not in mine]

    def items(self) -> list[Item]:
        """What the model has now: parameters and persistent buffers, tied ones too."""
        self.settle()
        if not self.held and not self.fsdp1:
            self.look()
        self.place()
        return list(self.described())

    def place(self) -> None:
        """Asks again what is declared of the tensors, if the shape or the strides of one are
        others than last time."""
        if self.parts is None:
            return
        tensors = [(h.name, h.place[h.key]) for h in self.held]
        forms = [(t.shape, t.stride()) for _, t in tensors]
        if forms != self.forms:
            self.forms = None
            found = declared(self.parts, tensors)
            for h in self.held:
                h.placed = found.get(h.name, ())
            self.forms = forms

    def described(self) -> Iterator[Item]:
        first: dict[int, tuple[str, ...]] = {}
        for prefix, m in self.fsdp1:
            for s in shards(prefix, m):
                yield from self.stored(shown(s.placed.name), s.memory, True, s.tied_to and
                                       shown(s.tied_to), s.placed, s.owner)
        for h in self.held:
            t = h.place[h.key]
            names = tuple(p.name for p in h.placed) or (h.name,)
            tied = first.setdefault(id(t), names)
            if len(tied) != len(names):
                raise Unsupported("%s is the same tensor as what is stored as %s, and is declared "
                                  "as %d stored tensors in place of %d: declare the same of both "
                                  "in parts=" % (h.name, tied[0], len(names), len(tied)))
            for i, name in enumerate(names):
                yield from self.stored(name, t, h.parameter, tied[i] if tied[i] != name else None,
                                       h.placed[i] if h.placed else None)

    def stored(self, name: str, t: torch.Tensor, parameter: bool, tied_to: Optional[str],
               at: Optional[Placed], owner: Optional[torch.Tensor] = None) -> Iterator[Item]:
        """A tensor as it is stored: in family model, and the exact values of a master."""
        cast = self.store if parameter and t.dtype == torch.float32 else None
        if cast == "F32":
            cast = None
        yield Item("model", name, t, cast, tied_to, cast is not None, at=at, owner=owner)
        if cast is not None and tied_to is None:
            yield Item("master_weights", name, t, at=at, owner=owner)

    def parameters(self) -> dict[int, tuple[Placed, ...]]:
        """What each parameter has of which stored tensors, by its id(). A parameter that several
        modules have goes by its first name."""
        names: dict[int, tuple[Placed, ...]] = {}
        for prefix, m in self.fsdp1:
            for s in shards(prefix, m):
                if s.tied_to is None:
                    names[id(s.owner)] = names.get(id(s.owner), ()) + \
                        (replace(s.state, name=shown(s.state.name)),)
        for h in self.held:
            if h.parameter:
                names.setdefault(id(h.place[h.key]), h.placed or (Placed(h.name, PLAIN),))
        return names

    def extra_state(self) -> dict[str, Any]:
        """What get_extra_state of the modules says, by the name that state_dict gives it."""
        return {name: m.get_extra_state() for name, m in self.extra.items()}

    def set_extra_state(self, values: dict[str, Any]) -> None:
        """Gives the modules their extra state back."""
        for name, value in values.items():
            if name in self.extra:
                self.extra[name].set_extra_state(value)

    def files(self) -> dict[str, bytes]:
        """config.json and generation_config.json of a transformers model, else nothing."""
        config: Any = getattr(inner(self.module), "config", None)
        if self.prefix or not hasattr(config, "to_json_string"):
            return {}
        generation: Any = getattr(inner(self.module), "generation_config", None)
        now = contents(config), contents(generation)
        if self.written is None or self.written[0] != now:
            self.written = now, self.made(config, generation)
        return dict(self.written[1])

    def made(self, config: Any, generation: Any) -> dict[str, bytes]:
        """These files, which takes transformers some milliseconds."""
        found: dict[str, bytes] = {}
        import copy
        config = copy.deepcopy(config)
        written = next(k for k in type(inner(self.module)).__mro__
                       if not k.__module__.startswith("torch."))
        config.architectures = [written.__name__]
        if self.store is not None:
            config.dtype = {s: str(d)[6:] for d, s in DTYPES.items()}[self.store]
        found["config.json"] = config.to_json_string(use_diff=True).encode()
        if hasattr(generation, "to_json_string"):
            found["generation_config.json"] = generation.to_json_string().encode()
        return found
