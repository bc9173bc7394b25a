# SPDX-License-Identifier: Apache-2.0
"""Runs, states, saves and checkpoints: the handles of the library as objects.

Each object closes its handle at the end of a `with` block, by close(), or when it is garbage
collected. Close a run with a group explicitly, because closing is a collective call. Errors are
raised as sheaf.Error.
"""
from __future__ import annotations

import ctypes
import functools
import operator
import os
from typing import Any, Iterator, Optional, Union

from .binding import Library, error, library, struct_behind
from .errors import Error, sentence
from .memory import Memory
from .messages import in_python

Path = Union[str, "os.PathLike[str]"]
LATEST = -1                             # in place of a number: the newest checkpoint
NONE = -2                               # no checkpoint has that number


def flags_of(c: Library, prefix: str, wanted: dict[str, bool]) -> int:
    """The flags whose names are given in small letters: create=True is SHEAF_RUN_CREATE."""
    bits = 0
    for name, on in wanted.items():
        if on:
            bits |= int(c.constants["SHEAF_%s_%s" % (prefix, name.upper())])
    return bits


@functools.lru_cache(maxsize=None)
def dtype_number(name: str) -> int:
    """The number of a stored type; 0: none has that name."""
    return int(library().sheaf_dtype_from_name(name.encode()))


def milliseconds(timeout: Optional[float]) -> int:
    """A time limit in seconds as the library takes it; None: that of the run."""
    return -1 if timeout is None else int(max(0, min(timeout * 1000, 2**31 - 1)))


def number_of(step: Any) -> int:
    """A step number. TypeError: it is none. sheaf.Invalid: it is too large."""
    n = int(step) if isinstance(step, str) and step.isdecimal() else operator.index(step)
    if not -2**63 <= n < 2**63:
        raise error("EINVAL", "step %d: a step number has 63 bits" % n)
    return n


def log_line(level: int, line: bytes) -> None:
    """A line of the library's log, to the logger "sheaf"."""
    import logging
    levels = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
    logging.getLogger("sheaf").log(levels[min(level, 3)], "%s",
                                   in_python(line.decode(errors="replace")))


def interruptible(stat: Any) -> int:
    """Does nothing. Waiting calls of the library call it, because Python can raise
    KeyboardInterrupt only while a Python function runs."""
    return 0


def alike(c: Library, name: str) -> str:
    """What a message about an unknown option adds: " (is it NAME?)" with the option of the most
    similar name, or nothing if no name is similar."""
    import difflib
    every = [f for s in ("sheaf_opts", *map(struct_behind, c.fields["sheaf_opts"].values()))
             for f in c.fields.get(s or "", {}) if c.place_of("sheaf_opts", f) is not None]
    near = difflib.get_close_matches(name, every, 1)
    return " (is it %s?)" % near[0] if near else ""


def options(c: Library, timeout: Optional[float], flags: int, more: dict[str, Any]) -> Any:
    """A struct sheaf_opts, with the log and Ctrl-C connected unless the caller has its own.

    TypeError: there is no option of that name.
    """
    for name in more:
        if name in ("size", "flags") or c.place_of("sheaf_opts", name) is None:
            raise TypeError("there is no option %r%s" % (name, alike(c, name)))
    more.setdefault("log", log_line)
    more.setdefault("progress", interruptible)
    if timeout is not None:
        more["timeout_ms"] = milliseconds(timeout)
    return c.new("sheaf_opts", flags=flags, **more)


class Handle:
    """A pointer to a struct of the library, and the objects that must live as long as it."""

    closes = ""                         # the function that closes it

    def __init__(self, struct: str) -> None:
        self.c = library()
        self.pointer = self.c.handle(struct)
        self.keeps: list[Any] = []
        self.collective_close = False
        self.closer = getattr(self.c, self.closes)

    def close(self) -> None:
        """Closes the handle; a second call does nothing."""
        pointer, self.pointer = self.pointer, None
        if pointer:
            self.c.held(self.closer, pointer)
        self.keeps = []                 # a handle that was made of this one may have the list

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        # All ranks must close together, and no two of them collect at the same moment.
        if getattr(self, "pointer", None) and not self.collective_close:
            self.c.raised.calls += 1        # Ctrl-C must not be raised here, where it would be lost
            try:
                self.close()
            finally:
                self.c.raised.calls -= 1


class Run(Handle):
    """A run: a directory with the checkpoints of one training. [collective]

    path      its directory
    group     a sheaf.group.Group; None: this process alone
    create    makes the directory if there is none
    readonly  takes no lock and writes nothing
    timeout   how long a collective call waits for a rank, in seconds; None: 600
    buffered, unverified, metrics, replicas
              SHEAF_RUN_BUFFERED and so on
    opts      any other field of struct sheaf_opts, such as keep_last=3
    """

    closes = "sheaf_run_close"

    def __init__(self, path: Path, group: Any = None, *, create: bool = False,
                 readonly: bool = False, timeout: Optional[float] = None, buffered: bool = False,
                 unverified: bool = False, metrics: bool = False, replicas: bool = False,
                 **opts: Any) -> None:
        super().__init__("sheaf_run")
        self.path = os.fspath(path)
        self.group = group
        flags = flags_of(self.c, "RUN", {
            "create": create, "readonly": readonly, "buffered": buffered,
            "unverified": unverified, "metrics": metrics, "replicas": replicas})
        made = options(self.c, timeout, flags, opts)
        self.c.call("sheaf_run_open", ctypes.byref(self.pointer), os.fsencode(path),
                    group.pointer if group else None, ctypes.byref(made))
        self.keeps += [made, group, opts.get("commit_group")]
        self.collective_close = group is not None

    def steps(self) -> list[int]:
        """The numbers of the checkpoints on disk, in ascending order. [local]"""
        n = self.c.call("sheaf_run_steps", self.pointer, None, 0)
        while True:
            numbers = (ctypes.c_int64 * max(n, 1))()
            there = self.c.call("sheaf_run_steps", self.pointer, numbers, n)
            if there <= n:
                return list(numbers[:there])
            n = there

    def begin(self, step: int, state: State, *, lazy: bool = False, no_disk: bool = False,
              may_drop: bool = False, check: bool = False, later: bool = False,
              loss: float = 0.0) -> Save:
        """Begins a save of what the state lists, as checkpoint `step`. [collective]

        A rank whose step is not a number still takes part, so that no other rank waits for it.
        """
        problem: Optional[Exception] = None
        try:
            number = number_of(step)
        except (TypeError, Error) as e:
            problem, number, state = e, 0, State()
            state.fail(sentence(e))
        flags = flags_of(self.c, "SAVE", {"lazy": lazy, "no_disk": no_disk, "check": check,
                                          "may_drop": may_drop, "later": later})
        save = Save(self, state)
        save.later = later
        try:
            self.c.call("sheaf_save_begin", ctypes.byref(save.pointer), self.pointer, number,
                        state.pointer, ctypes.byref(self.c.new("sheaf_save_opts", flags=flags,
                                                               loss=loss)))
        except BaseException as e:
            save.close()                # Ctrl-C may have come after it had begun
            if problem is not None and isinstance(e, Error):
                raise problem from e
            raise
        return save

    def stat(self) -> dict[str, int]:
        """Totals of all saves, by the names of struct sheaf_run_stat. [any thread]"""
        stat = self.c.new("sheaf_run_stat")
        self.c.call("sheaf_run_get_stat", self.pointer, ctypes.byref(stat))
        return {f: getattr(stat, f) for f in self.c.fields["sheaf_run_stat"] if f != "size"}

    def checkpoint(self, step: int = LATEST) -> Checkpoint:
        """Opens a checkpoint of the run, by default the newest. [collective]"""
        found = Checkpoint()
        problem: Optional[Exception] = None
        try:
            number = number_of(step)
        except (TypeError, Error) as e:
            problem, number = e, NONE   # it takes part, so that no other rank waits for it
        try:
            self.c.call("sheaf_checkpoint_open", ctypes.byref(found.pointer), self.pointer, number)
        except Error as e:
            if problem is not None:
                raise problem from e
            raise
        found.keeps += [self, self.keeps]
        return found

    def mark(self, step: int, mark: str) -> None:
        """Marks a checkpoint "keep", "bad" or "none". [collective]"""
        self.c.call("sheaf_run_mark", self.pointer, number_of(step),
                    int(self.c.constants["SHEAF_MARK_" + mark.upper()]))

    def rewind(self, step: int) -> None:
        """Sets all checkpoints after `step`, which must not be marked bad, aside. [collective]"""
        self.c.call("sheaf_run_rewind", self.pointer, number_of(step))


class State(Handle):
    """The list of what this rank holds. It keeps the objects whose memory it lists."""

    closes = "sheaf_state_free"

    def __init__(self) -> None:
        super().__init__("sheaf_state")
        self.pointer = self.c.sheaf_state_new()

    def add(self, name: str, memory: Memory, *, family: str = "model",
            tied_to: Optional[str] = None, shape: Optional[tuple[int, ...]] = None,
            start: Optional[tuple[int, ...]] = None, dtype: Optional[str] = None,
            optional: bool = False, in_place: bool = False, save_only: bool = False,
            copy: bool = False) -> int:
        """Adds a slice, and returns its number: 0, 1, ... [local]

        name, family  of the tensor
        memory        the box that this rank has, and where
        tied_to       the name of the tensor that has the same bytes
        shape         of the whole tensor; None: the box is the whole tensor
        start         first index of the box in each dimension; None: 0
        dtype         type in the checkpoint, such as "BF16"; None: that of the memory
        optional, in_place, save_only, copy
                      SHEAF_SLICE_OPTIONAL and so on
        """
        c, n = self.c, len(memory.shape)
        here = dtype_number(memory.dtype)
        stored = dtype_number(dtype) if dtype else here
        if stored == 0:
            raise error("EINVAL", "%s: dtype=%r: there is no such type" % (name, dtype))
        flags = 0
        if optional or in_place or save_only or copy or memory.strides is not None:
            flags = flags_of(c, "SLICE", {"optional": optional, "in_place": in_place,
                                          "save_only": save_only, "copy": copy,
                                          "strided": memory.strides is not None})
        # Filled field by field: this is the inner loop of a save.
        s = c.structs["sheaf_slice"]()
        s.size, s.flags, s.ndim = ctypes.sizeof(s), flags, n
        s.family, s.name = family.encode(), name.encode(errors="surrogateescape")
        if tied_to is not None:
            s.tied_to = tied_to.encode(errors="surrogateescape")
        s.dtype, s.data_dtype, s.data = stored, here, memory.address
        s.count[:n] = memory.shape
        s.shape[:n] = memory.shape if shape is None else shape
        if start is not None:
            s.start[:n] = start
        if memory.strides is not None:
            s.stride[:n] = memory.strides
        self.keeps.append(memory)
        return c.call("sheaf_state_add", self.pointer, ctypes.byref(s))

    def fail(self, why: str) -> None:
        """Makes the next collective call with this state fail on all ranks. [local]"""
        self.c.call("sheaf_state_fail", self.pointer, why.encode(errors="replace"))


class Save(Handle):
    """A save in progress, from Run.begin. Leaving `with` without a commit aborts it.

    later  whether slices are copied only after slices_ready()
    """

    closes = "sheaf_save_free"
    later = False

    def __init__(self, run: Run, state: State) -> None:
        super().__init__("sheaf_save")
        self.keeps += [run, run.keeps, state, state.keeps]

    def attach(self, name: str, data: bytes) -> None:
        """Adds a file to the checkpoint, at most 64 MiB. [local]"""
        self.c.call("sheaf_save_attach", self.pointer, name.encode(), data, len(data))

    def note(self, key: str, value: str) -> None:
        """Adds a note to the manifest. [local]"""
        self.c.call("sheaf_save_note", self.pointer, key.encode(), value.encode())

    def wait_copied(self, slice: Optional[int] = None, timeout: Optional[float] = None) -> None:
        """The gate of one slice or of all: call it before the memory changes. [any thread]"""
        which = self.c.SHEAF_ALL_SLICES if slice is None else slice
        self.c.call("sheaf_save_wait_copied", self.pointer, which, milliseconds(timeout))

    def slices_copied(self, slices: Any, timeout: Optional[float] = None) -> None:
        """The gates of several slices, whose numbers are in an array of ctypes. [any thread]"""
        self.c.call("sheaf_save_slices_copied", self.pointer, slices, len(slices),
                    milliseconds(timeout))

    def slices_ready(self, slices: Any) -> None:
        """With later=True: these slices may be copied from now on. [any thread]"""
        self.c.call("sheaf_save_slices_ready", self.pointer, slices, len(slices))

    def abort(self, why: str) -> None:
        """Aborts the save; this rank must still call commit. [any thread]"""
        self.c.call("sheaf_save_abort", self.pointer, why.encode(errors="replace"))

    def commit(self, timeout: Optional[float] = None) -> None:
        """Waits until the checkpoint survives a power loss. timeout in seconds. [collective]"""
        self.c.call("sheaf_save_commit", self.pointer, milliseconds(timeout))

    def submit(self) -> None:
        """Passes the save to the thread that commits (opts.commit_group). [local]"""
        self.c.call("sheaf_save_submit", self.pointer)

    def result(self, timeout: Optional[float] = None) -> None:
        """Waits for the outcome of a submitted save. sheaf.NotYet: it is still unknown.
        [any thread]"""
        self.c.call("sheaf_save_result", self.pointer, milliseconds(timeout))


class Tensor:
    """What a checkpoint says of a tensor: family, name, dtype, shape, tied_to, verified, bytes."""

    __slots__ = ("family", "name", "dtype", "shape", "tied_to", "verified", "bytes")

    def __init__(self, c: Library, t: Any) -> None:
        dims = t.shape if not t.dims else t.dims
        self.family = str(t.family.decode())
        self.name = str(t.name.decode(errors="surrogateescape"))
        self.dtype = str(c.sheaf_dtype_name(t.dtype).decode())
        self.shape = tuple(int(n) for n in dims[:t.ndim])
        self.tied_to = t.tied_to.decode(errors="surrogateescape") if t.tied_to else None
        self.verified = bool(t.verified)
        self.bytes = int(t.bytes)


class Checkpoint(Handle):
    """An open checkpoint, from Run.checkpoint or open_path."""

    closes = "sheaf_checkpoint_close"

    def __init__(self) -> None:
        super().__init__("sheaf_checkpoint")

    @property
    def number(self) -> int:
        """Its step number; -1: another program wrote it."""
        return int(self.c.sheaf_checkpoint_number(self.pointer))

    def tensors(self) -> Iterator[Tensor]:
        """All tensors, by family, then by name in natural order. [local]"""
        t = self.c.new("sheaf_tensor")
        for _ in self.each("sheaf_checkpoint_tensor", t):
            yield Tensor(self.c, t)

    def find(self, name: str, family: str = "model") -> Tensor:
        """The tensor of that name. Raises sheaf.Mismatch if it is absent. [local]"""
        t = self.c.new("sheaf_tensor")
        self.c.call("sheaf_checkpoint_find", self.pointer, family.encode(),
                    name.encode(errors="surrogateescape"), ctypes.byref(t))
        return Tensor(self.c, t)

    def notes(self) -> dict[str, str]:
        """All notes. [local]"""
        key: Any = ctypes.c_char_p()
        value: Any = ctypes.c_char_p()
        return {key.value.decode(): value.value.decode()
                for _ in self.each("sheaf_checkpoint_note_at", key, value)}

    def files(self) -> dict[str, int]:
        """The names of all attached files, and their sizes in bytes. [local]"""
        name: Any = ctypes.c_char_p()
        size = ctypes.c_uint64()
        return {name.value.decode(): size.value
                for _ in self.each("sheaf_checkpoint_file_at", name, size)}

    def each(self, call: str, *filled: Any) -> Iterator[None]:
        """Calls a function of a list for its items 0, 1, ...; each call fills these objects."""
        look, i = getattr(self.c, call), 0
        error = self.c.structs["sheaf_error"]()
        at = [ctypes.byref(x) for x in filled + (error,)]
        while True:
            code = look(self.pointer, i, *at)
            if code == self.c.SHEAF_EEND:
                return
            if code < 0:
                self.c.fail(code, error)
            yield
            i += 1

    def file(self, name: str) -> bytes:
        """The contents of an attached file, compared with its checksum. [local]"""
        at, n = ctypes.c_void_p(), ctypes.c_size_t()
        self.c.call("sheaf_checkpoint_file", self.pointer, name.encode(), ctypes.byref(at),
                    ctypes.byref(n))
        return ctypes.string_at(at, n.value) if n.value else b""

    def load(self, state: State, *, strict: bool = False, convert: bool = False,
             lenient: bool = False, dry: bool = False) -> dict[str, int]:
        """Fills the memory of a state. Returns the numbers of struct sheaf_report. [collective]"""
        flags = flags_of(self.c, "LOAD", {"strict": strict, "convert": convert, "dry": dry,
                                          "lenient": lenient})
        report = self.c.new("sheaf_report")
        self.c.call("sheaf_checkpoint_load", self.pointer, state.pointer, flags,
                    ctypes.byref(report))
        return {f: getattr(report, f) for f, k in self.c.fields["sheaf_report"].items()
                if k["kind"] == "integer" and f != "size"}

    def read(self, name: str, memory: Memory, *, family: str = "model",
             shape: Optional[tuple[int, ...]] = None,
             start: Optional[tuple[int, ...]] = None) -> None:
        """Reads one box of a tensor into memory, and checks the blocks that it needs. [local]"""
        n, kind = len(memory.shape), dtype_number(memory.dtype)
        s = self.c.new("sheaf_slice", family=family, name=name.encode(errors="surrogateescape"),
                       dtype=kind, ndim=n, count=memory.shape, data=memory.address,
                       shape=memory.shape if shape is None else shape, start=start or (0,) * n)
        self.c.call("sheaf_checkpoint_read", self.pointer, ctypes.byref(s))


def open_path(path: Path, group: Any = None, *, timeout: Optional[float] = None,
              **opts: Any) -> Checkpoint:
    """Opens a checkpoint by its own path. [collective]

    path  the folder of a checkpoint, a Hugging Face directory, a directory of PyTorch DCP, of
          DeepSpeed, of Orbax or of a trainer with Paddle, a safetensors, torch.save,
          paddle.save, NumPy or GGUF file
    """
    found = Checkpoint()
    made = options(found.c, timeout, 0, opts)
    found.c.call("sheaf_checkpoint_open_path", ctypes.byref(found.pointer), os.fsencode(path),
                 group.pointer if group else None, ctypes.byref(made))
    found.keeps += [made, group]
    return found
