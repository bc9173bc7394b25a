# SPDX-License-Identifier: Apache-2.0
"""sheaf.load: loads a tree from a checkpoint, into new tensors or into those of the caller."""
from __future__ import annotations

import bisect
import ctypes
from typing import Any, Callable, Optional, Union

from . import dtypes, memory, parts, place, tree
from .binding import error
from .errors import Error, sentence
from .group import Group
from .memory import Memory
from .parts import Split
from .run import Checkpoint, Path, Run, State, Tensor

Names = dict[tuple[str, str], Tensor]
Box = tuple[Memory, Optional[tuple[int, ...]]]


def load(path: Path, tree: Any = None, *, group: Optional[Group] = None,
         framework: Optional[str] = None, strict: bool = True, convert: bool = False,
         codec: Optional[tree.Codec] = None, timeout: Optional[float] = None, **opts: Any) -> Any:
    """Loads a checkpoint, and returns its tree. Every byte is compared with its checksum.
    [collective]

    path       a run (its newest checkpoint), RUN@STEP, RUN@latest, the folder of a checkpoint, a
               Hugging Face directory, a directory of PyTorch DCP, of DeepSpeed, of Orbax or of a
               trainer with Paddle, a safetensors, torch.save, paddle.save, NumPy or GGUF file
    tree       None: new tensors are made. Otherwise a tree of the same structure, whose tensors
               are filled in place; its dicts and lists receive the other values, and it is
               returned. All keys, shapes and types are compared before any tensor is changed.
               Tensors of torch may lie on a device: what is loaded is copied there.
               Arrays of JAX are immutable: in the result, new ones with the same sharding replace
               them. A jax.ShapeDtypeStruct may take the place of an array. Of arrays of JAX and of
               a sheaf.Part, only the boxes of this process are read.
    group      the ranks that load together; None: this process alone
    framework  "np", "pt", "jax" or "paddle": new tensors are arrays of NumPy or JAX, or tensors of
               torch or Paddle; None: as they were saved, and NumPy if another program saved them
    strict     with `tree`: a key that only the tree or only the checkpoint has is an error. False:
               values that the checkpoint lacks stay as they are, and further ones are not loaded.
    convert    with `tree`: values are converted if the types of tensors differ
    codec      decodes what sheaf.save stored with a codec
    timeout    how long the run waits, in seconds; None: 600
    opts       other options of struct sheaf_opts, such as agent="auto"

    For a checkpoint of another program, or one that a C program saved, the result is a dict of
    tensors by name, or with several families a dict of such dicts by family.

    sheaf.NotFound: there is no such run or checkpoint.
    sheaf.Mismatch: keys, shapes or types differ; the message names each of them.
    sheaf.Corrupt: the checkpoint is damaged. The contents of `tree` are then undefined.
    sheaf.Failed: another rank could not load; the message is its reason.
    TypeError: the framework has no type for a tensor, or is not installed.
    """
    wanted = None if framework is None else dtypes.framework(framework)
    found = place.to_load(path, group, timeout=timeout, **opts)
    run = next((k for k in found.keeps if isinstance(k, Run)), None)
    try:
        with found:
            if tree is not None:
                return Filler(found, group, strict, convert, codec).fill(tree)
            return Maker(found, group, wanted, codec).make()
    finally:
        if group is not None and run is not None:
            run.close()                 # collective, so nobody else does it


FOREIGN = {"foreign": None}             # in place of a root node


def document(found: Checkpoint) -> Any:
    """The root node of a checkpoint's tree; FOREIGN: sheaf.save did not save it."""
    return tree.parse(found.file(tree.FILE)) if tree.FILE in found.files() else FOREIGN


def by_family(names: Names) -> dict[str, Any]:
    """A node for the tensors of another program, by name; of several families, by family."""
    nodes: dict[str, dict[str, Any]] = {}
    for family, name in names:
        nodes.setdefault(family, {})[name] = {"tensor": name, "family": family}
    if set(nodes) <= {"model"}:
        return {"dict": nodes.get("model", {})}
    return {"dict": {family: {"dict": n} for family, n in nodes.items()}}


def key_of(node: dict[str, Any]) -> tuple[str, str]:
    return node.get("family", "model"), node["tensor"]


def root_of(t: Tensor) -> tuple[str, str]:
    """The family and the name under which a tensor's bytes are stored."""
    return t.family, t.tied_to or t.name


class Loader:
    """What both ways share: the checkpoint, its tensors, and the state that is loaded."""

    def __init__(self, found: Checkpoint, group: Optional[Group],
                 codec: Optional[tree.Codec]) -> None:
        self.found, self.group, self.codec = found, group, codec
        self.names: Names = {(t.family, t.name): t for t in found.tensors()}
        self.state = State()
        self.added: set[tuple[str, str]] = set()
        self.copies: list[Memory] = []  # of tensors on devices

    def stored(self, node: dict[str, Any]) -> Tensor:
        """What the checkpoint says of a node's tensor."""
        found = self.names.get(key_of(node))
        if found is None:
            raise error("ECORRUPT", "%s names a tensor %s/%s that the checkpoint lacks" %
                        ((tree.FILE,) + key_of(node)))
        return found

    def add(self, node: dict[str, Any], *boxes: Box) -> None:
        """Adds a tensor to what is loaded, whole or some boxes of it. A tied tensor is filled from
        the stored one."""
        t = self.stored(node)
        key = root_of(t)
        for held, start in boxes:
            if held.home is not None:
                self.copies.append(held)
            self.state.add(key[1], held, family=key[0], copy=key in self.added, shape=t.shape,
                           start=start, dtype=t.dtype if t.dtype != held.dtype else None)
        self.added.add(key)

    def run(self, plan: Callable[[Any], Any], convert: bool = False) -> Any:
        """Loads what a plan lists of the document. If a plan fails, all ranks raise that."""
        problem: Optional[BaseException] = None
        made = None
        try:
            made = plan(document(self.found))
        except BaseException as e:
            if self.group is None:
                raise
            problem = e
            self.state.fail(sentence(e))
        try:
            if self.state.keeps or self.group is not None:
                self.found.load(self.state, convert=convert)
        except Error as e:
            if problem is not None:
                raise problem from e
            raise
        for held in self.copies:
            held.put_back()
        return made


class Maker(Loader):
    """Loads into new tensors."""

    def __init__(self, found: Checkpoint, group: Optional[Group], framework: Optional[str],
                 codec: Optional[tree.Codec]) -> None:
        super().__init__(found, group, codec)
        self.framework = framework
        self.made: dict[tuple[str, str, str], Any] = {}
        self.given: dict[tuple[str, ...], Any] = {}

    def make(self) -> Any:
        with self.state:
            root = self.run(self.plan)
        return tree.Decoder(self.tensor, self.codec).value(root)

    def plan(self, node: Any) -> Any:
        """Lists all tensors: an object of a codec may be made of them, so they come first."""
        root = by_family(self.names) if node is FOREIGN else node
        for n in tree.tensors_of(root):
            self.prepare(n)
        return root

    def key(self, node: dict[str, Any]) -> tuple[str, str, str]:
        """Equal for nodes that are one object: tied, and of one framework."""
        t, saved = self.stored(node), node.get("as", "numpy")
        where = saved if saved == "bytes" or self.framework is None else self.framework
        return (*root_of(t), where)

    def prepare(self, node: dict[str, Any]) -> None:
        """Makes the tensor of a node, once for all that are tied."""
        t, key = self.stored(node), self.key(node)
        if key not in self.made:
            self.made[key], held = memory.empty(key[2], t.dtype, t.shape, "%s/%s" % key[:2])
            self.add(node, (held, None))

    def tensor(self, node: dict[str, Any]) -> Any:
        key, special = self.key(node), node.get("special", "")
        if key[2] not in parts.HANDED:
            return memory.restored(self.made[key], special)
        # All that are tied are one array.
        one = (*key, special)
        if one not in self.given:
            whole = memory.restored(self.made[key], special)
            self.given[one] = parts.given(key[2], whole, "%s/%s" % key[:2])
        return self.given[one]


class Filler(Loader):
    """Loads into a tree that the caller has. All differences are found before any byte is read."""

    MOST = 8                            # differences that a message names

    def __init__(self, found: Checkpoint, group: Optional[Group], strict: bool, convert: bool,
                 codec: Optional[tree.Codec]) -> None:
        super().__init__(found, group, codec)
        self.strict, self.convert = strict, convert
        self.wrong: list[str] = []
        self.setters: list[Callable[[], Any]] = []
        self.filled: dict[int, Any] = {}
        self.bytes: dict[tuple[str, str], Any] = {}
        self.targets: dict[tuple[Any, ...], Tensor] = {}
        self.readonly: Optional[list[tuple[int, int]]] = None

    def fill(self, target: Any) -> Any:
        def plan(node: Any) -> Callable[[], Any]:
            made = self.match_names(target) if node is FOREIGN else self.match(target, node, ())
            self.refuse()
            return made

        with self.state:
            made: Callable[[], Any] = self.run(plan, self.convert)
        return made()

    def refuse(self) -> None:
        if self.wrong:
            more = len(self.wrong) - self.MOST
            text = "; ".join(self.wrong[:self.MOST])
            raise error("ELAYOUT", text + ("; and %d more" % more if more > 0 else ""))

    def missing(self, at: tuple[Any, ...]) -> None:
        if self.strict:
            self.wrong.append("%s: the checkpoint lacks it; strict=False leaves it as it is" %
                              tree.shown(at))

    def unexpected(self, at: tuple[Any, ...]) -> None:
        if self.strict:
            self.wrong.append("%s: the checkpoint has it, but the tree does not; strict=False "
                              "ignores it" % tree.shown(at))

    def match(self, target: Any, node: Any, at: tuple[Any, ...]) -> Callable[[], Any]:
        """Compares a part of the tree with its node. Returns what gives its value after the
        load."""
        if isinstance(node, dict) and "torch.Size" in node:
            return self.value(node)
        special = self.match_special(target, node, at)
        if special is not None:
            return special
        ordered = node
        if isinstance(node, dict):
            ordered = node.get("ordered", node.get("counter", node))
            if "record" in node:
                ordered = node["record"][1]
        if isinstance(target, dict) and isinstance(ordered, dict) and \
                ("dict" in ordered or "items" in ordered):
            return self.match_dict(target, ordered, at)
        nodes = node["tuple"] if isinstance(node, dict) and "tuple" in node else node
        if isinstance(target, (list, tuple)) and isinstance(nodes, list):
            return self.match_list(target, nodes, at)
        held = self.memory(target, at)
        is_tensor = isinstance(node, dict) and "tensor" in node
        if held is not None or is_tensor:
            self.match_tensor(held, node if is_tensor else None, at)
            return lambda: target
        if isinstance(target, (dict, list, tuple)) or isinstance(nodes, list) or \
                isinstance(ordered, dict) and ("dict" in ordered or "items" in ordered):
            self.wrong.append("%s: the tree has a %s, and the checkpoint something else" %
                              (tree.shown(at), type(target).__name__))
            return lambda: target
        return self.value(node)

    def value(self, node: Any) -> Callable[[], Any]:
        """A value of the checkpoint; long bytes, and tensors of a codec, are loaded first."""
        tensors = list(tree.tensors_of(node))
        if not tensors or self.codec is None and tree.has_codec(node):
            value = tree.Decoder(lambda n: b"", self.codec).value(node)
            return lambda: value        # what is wrong was found before any byte is written
        for n in tensors:
            t = self.stored(n)
            made, held = memory.empty(n.get("as", "numpy"), t.dtype, t.shape, t.name)
            self.bytes[key_of(n)] = memory.restored(made, n.get("special", ""))
            self.add(n, (held, None))
        return lambda: tree.Decoder(lambda n: self.bytes[key_of(n)], self.codec).value(node)

    def match_special(self, target: Any, node: Any, at: tuple[Any, ...]
                      ) -> Optional[Callable[[], Any]]:
        """The same for what is split, for keys of JAX, and for records; None: it is none."""
        is_node = isinstance(node, dict)
        try:
            split = parts.target(target)
            numbers = parts.key_target(target) if split is None else None
            record = parts.fields(target)
        except (memory.Unfit, memory.NoType) as e:
            raise type(e)("%s: %s" % (tree.shown(at), e)) from None
        if split is not None:
            return self.match_split(split, node if is_node and "tensor" in node else None, at)
        if numbers is not None:
            return self.match_keys(target, numbers, node, at)
        if record is not None and is_node:
            inner = node["record"][1] if "record" in node else node
            if "dict" in inner:
                return self.match_record(target, record, inner["dict"], at)
            if "tuple" in inner and isinstance(target, tuple):
                names = (k for k, _ in record[0])
                return self.match_record(target, record, dict(zip(names, inner["tuple"])), at)
        return None

    def match_record(self, target: Any, record: parts.Fields, nodes: dict[str, Any],
                     at: tuple[Any, ...]) -> Callable[[], Any]:
        made = self.match_dict(dict(record[0]), {"dict": nodes}, at)
        return give_record(target, record, lambda: list(made().values()))

    def match_split(self, split: Split, node: Optional[dict[str, Any]], at: tuple[Any, ...]
                    ) -> Callable[[], Any]:
        if self.fits(split, node, at) and node is not None:
            if split.writable:
                self.add(node, *split.boxes())
            else:
                self.wrong.append("%s: the tensor of the tree is read-only" % tree.shown(at))
        return split.given

    def match_keys(self, target: Any, numbers: Any, node: Any, at: tuple[Any, ...]
                   ) -> Callable[[], Any]:
        if not isinstance(node, dict) or "jax.key" not in node:
            self.wrong.append("%s: the tree has keys of jax.random there, and the checkpoint none"
                              % tree.shown(at))
            return lambda: target
        impl, inner = node["jax.key"]
        if not parts.same_algorithm(target, impl):
            self.wrong.append("%s: the tree has keys %s there, and the checkpoint keys for %s" %
                              (tree.shown(at), target.dtype, impl))
            return lambda: target
        made = self.match(numbers, inner, at)
        return lambda: parts.key_again(target, impl, made())

    def match_dict(self, target: dict[Any, Any], node: dict[str, Any],
                   at: tuple[Any, ...]) -> Callable[[], Any]:
        pairs: dict[Any, Any]
        if "dict" in node:
            pairs = node["dict"]
        else:
            keys = tree.Decoder(lambda n: None, self.codec)
            pairs = {keys.value(k): n for k, n in node["items"]}
        made = {}
        for key, n in pairs.items():
            if key in target:
                made[key] = self.match(target[key], n, at + (key,))
            else:
                self.unexpected(at + (key,))
        for key in target:
            if key not in pairs:
                self.missing(at + (key,))
        return give_dict(target, made)

    def match_list(self, target: Any, nodes: list[Any], at: tuple[Any, ...]
                   ) -> Callable[[], Any]:
        made = [self.match(v, n, at + (i,)) for i, (v, n) in enumerate(zip(target, nodes))]
        for i in range(len(target), len(nodes)):
            self.unexpected(at + (i,))
        for i in range(len(nodes), len(target)):
            self.missing(at + (i,))
        return give_list(target, made)

    def memory(self, target: Any, at: tuple[Any, ...]) -> Optional[Memory]:
        try:
            return memory.of(target, devices=True)
        except memory.Unfit as e:
            raise memory.Unfit("%s: %s" % (tree.shown(at), e)) from None

    def fits(self, held: Union[Memory, Split, None], node: Optional[dict[str, Any]],
             at: tuple[Any, ...]) -> bool:
        """Whether a tensor of the tree can be filled from that node; notes why not."""
        where = tree.shown(at)
        if held is None or node is None:
            self.wrong.append("%s: %s has a tensor there, and %s has none" % (
                (where, "the checkpoint", "the tree") if held is None else
                (where, "the tree", "the checkpoint")))
            return False
        t, special = self.stored(node), node.get("special", "")
        there = "%s of shape %s" % (special or t.dtype, t.shape)
        if held.shape != t.shape or held.special != special:
            self.wrong.append("%s: the tree has %s, and the checkpoint %s" %
                              (where, held.described(), there))
        elif held.dtype != t.dtype and not self.convert:
            self.wrong.append("%s: the tree has %s, and the checkpoint %s; convert=True converts "
                              "the values" % (where, held.described(), there))
        else:
            return True
        return False

    def match_tensor(self, held: Optional[Memory], node: Optional[dict[str, Any]],
                     at: tuple[Any, ...]) -> None:
        if not self.fits(held, node, at) or held is None or node is None:
            return
        where, t = tree.shown(at), self.stored(node)
        if not held.writable or held.framework == "torch" and self.mapped_readonly(held):
            self.wrong.append("%s: the tensor of the tree is read-only" % where)
        else:
            key = held.key()
            first = t if key is None else self.targets.setdefault(key, t)
            if root_of(first) != root_of(t) and self.differ(first, t):
                self.wrong.append("%s: the tree has the memory of another tensor there, %s/%s, and "
                                  "the checkpoint two with different values" %
                                  (where, first.family, first.name))
                return
            self.add(node, (held, None))

    def mapped_readonly(self, held: Memory) -> bool:
        """Whether a tensor is a file that is mapped to be read: torch does not know that."""
        if self.readonly is None:
            self.readonly = memory.mapped_readonly()
        at = bisect.bisect_right(self.readonly, (held.address, 1 << 64)) - 1
        return at >= 0 and held.address < self.readonly[at][1]

    def differ(self, a: Tensor, b: Tensor) -> bool:
        """Whether two stored tensors have different bytes."""
        found = []
        for t in (a, b):
            held = (ctypes.c_char * t.bytes)()
            self.found.read(t.tied_to or t.name, Memory(
                ctypes.addressof(held), t.dtype, t.shape, None, "bytes", held), family=t.family)
            found.append(held.raw)
        return a.dtype != b.dtype or found[0] != found[1]

    def match_names(self, target: Any) -> Callable[[], Any]:
        """Compares a tree with the tensors of another program, by name."""
        names, seen = tree.Names(target), set()

        def leaf(x: Any, at: tuple[Any, ...]) -> Callable[[], Any]:
            split = parts.target(x)
            held = self.memory(x, at) if split is None else None
            if split is None and held is None:
                return lambda: x
            key = names.of(at)
            seen.add(key)
            if key not in self.names:
                self.missing(at)
                return lambda: x
            node = {"tensor": key[1], "family": key[0]}
            special = (split or held).special   # type: ignore[union-attr]
            if special:
                node["special"] = special
            if split is not None:
                return self.match_split(split, node, at)
            self.match_tensor(held, node, at)
            return lambda: x

        def walk(x: Any, at: tuple[Any, ...]) -> Callable[[], Any]:
            if isinstance(x, dict):
                return give_dict(x, {k: walk(v, at + (k,)) for k, v in x.items()})
            record = parts.fields(x)
            if record is not None:
                made = [walk(v, at + (k,)) for k, v in record[0]]
                return give_record(x, record, lambda: [f() for f in made])
            if isinstance(x, (list, tuple)):
                return give_list(x, [walk(v, at + (i,)) for i, v in enumerate(x)])
            return leaf(x, at)

        found = walk(target, ())
        for family, name in self.names:
            if (family, name) not in seen:
                self.unexpected((name,) if family == "model" else (family, name))
        return found


def give_dict(target: dict[Any, Any], made: dict[Any, Callable[[], Any]]) -> Callable[[], Any]:
    """What puts values into a dict, and returns it."""
    def give() -> Any:
        for key, f in made.items():
            value = f()
            if value is not target[key]:
                target[key] = value
        return target
    return give


def give_list(target: Any, made: list[Callable[[], Any]]) -> Callable[[], Any]:
    """What puts values at the beginning of a list, or makes a tuple of them."""
    def give() -> Any:
        values = [f() for f in made]
        if isinstance(target, list):
            target[:len(values)] = values
            return target
        whole = values + list(target[len(values):])
        return target if all(a is b for a, b in zip(whole, target)) else tuple(whole)
    return give


def give_record(target: Any, record: parts.Fields, made: Callable[[], list[Any]]
                ) -> Callable[[], Any]:
    """Returns a function that makes a record of the values, or keeps target if it has them."""
    def give() -> Any:
        values = made()
        same = all(a is b for a, (_, b) in zip(values, record[0]))
        return target if same else record[1](values)
    return give
