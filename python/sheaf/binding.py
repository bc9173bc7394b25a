# SPDX-License-Identifier: Apache-2.0
"""libsheaf through ctypes, generated from the description of its interface.

    c = sheaf.binding.library()         # the library that comes with this package
    c.SHEAF_LATEST                      # every constant of the headers
    c.new("sheaf_opts", flags=...)      # a struct, its size set
    c.sheaf_version()                   # every function, with the types of its parameters
    c.call("sheaf_run_open", ...)       # the same: adds the error parameter, raises sheaf.Error

All other modules of the package call the library through this one. The description is the file
sheaf_abi.json that the build makes from the headers (`pkg-config --variable=abi sheaf`), or its
short form without comments, which is in this package. So the binding always matches the headers.

The interpreter lock is released in every call.
"""
from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import threading
from typing import Any, Callable, Iterator, Mapping, Optional

from .errors import BY_NAME, Error
from .messages import in_python

Kind = dict[str, Any]                   # a type as the description spells it

FLOATS: dict[int, Any] = {4: ctypes.c_float, 8: ctypes.c_double}
SIGNED: dict[int, Any] = {1: ctypes.c_int8, 2: ctypes.c_int16, 4: ctypes.c_int32,
                          8: ctypes.c_int64}
UNSIGNED: dict[int, Any] = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32,
                            8: ctypes.c_uint64}
RAISED = "what a Python callback raised"        # prefix of the message passed to C


def is_text(kind: Kind) -> bool:
    """Whether a type is `const char *`, a text that ends with NUL."""
    to = kind.get("to", {})
    return kind["kind"] == "pointer" and to.get("name") == "char" and bool(to.get("const"))


def is_error(kind: Kind) -> bool:
    """Whether a type is `struct sheaf_error *`."""
    return struct_behind(kind) == "sheaf_error"


def is_callback(kind: Kind) -> bool:
    """Whether a type is a pointer to a function."""
    return bool(kind["kind"] == "pointer" and kind["to"]["kind"] == "function")


def struct_behind(kind: Kind) -> Optional[str]:
    """The name of the struct that a pointer leads to; None: it leads to something else."""
    if kind["kind"] == "pointer" and kind["to"]["kind"] == "struct":
        return str(kind["to"]["name"])
    return None


class Raised(threading.local):
    """What a thread knows of exceptions during calls."""

    last: Optional[BaseException] = None    # what a callback raised
    mine = False                            # whether it is a thread that has made a call
    held = False                            # whether Ctrl-C is only noted, by Library.held
    interrupted = False                     # whether Ctrl-C came, and is not raised yet
    calls = 0                               # depth of several_calls()

    def interrupt(self) -> None:
        """Raises KeyboardInterrupt if Ctrl-C came."""
        if self.interrupted:
            self.interrupted = False
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def several_calls(self) -> Iterator[None]:
        """A block of several collective calls. If Ctrl-C comes in one that succeeds, a callback of
        the next one fails, so that the ranks stay in step; it is raised at the end at the
        latest."""
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1
            if not self.calls:
                self.interrupt()


class Library:
    """The interface that a description lists, of one library.

    path  the shared library
    abi   the description: sheaf_abi.json, or its short form
    name  which library of the description: "sheaf" or "sheaf-mpi"
    """

    def __init__(self, path: str, abi: str, name: str = "sheaf") -> None:
        with open(abi, encoding="utf-8") as f:
            self.abi = json.load(f)
        self.path = path
        self.shared = ctypes.CDLL(path)
        self.raised = Raised()
        self.noting = self.note_interrupt   # one object, to be compared
        self.constants: dict[str, Any] = {c["name"]: c["value"] for c in self.abi["constants"]}
        self.__dict__.update(self.constants)
        self.described = {s["name"]: s for s in self.abi["structs"]}
        self.fields: dict[str, dict[str, Kind]] = {
            s["name"]: {f["name"]: f["type"] for f in s.get("fields", [])}
            for s in self.abi["structs"]}
        self.structs: dict[str, Any] = {n: type(n, (ctypes.Structure,), {}) for n in self.fields}
        for n, fields in self.fields.items():
            if fields:
                self.structs[n]._fields_ = [(f, self.type_of(k)) for f, k in fields.items()]
        self.check_layout()
        self.functions = {f["name"]: f for f in self.abi["functions"] if f["library"] == name}

    def __getattr__(self, name: str) -> Any:
        """A function of the library, when it is first used."""
        function = self.__dict__.get("functions", {}).get(name)
        if function is None:
            raise AttributeError(name)
        found = getattr(self.shared, name)
        found.restype = self.type_of(function["returns"])
        found.argtypes = [self.type_of(p["type"]) for p in function["parameters"]]
        setattr(self, name, found)
        return found

    def type_of(self, kind: Kind) -> Any:
        """The ctypes type of a type in the description."""
        what = kind["kind"]
        if what == "void":
            return None
        if what == "float":
            return FLOATS[kind["bytes"]]
        if what == "foreign":           # an opaque handle: passed as an integer of its size
            return UNSIGNED[kind["bytes"]]
        if what == "struct":
            return self.structs[kind["name"]]
        if what == "array":
            of = kind["of"]
            item = ctypes.c_char if of.get("name") == "char" else self.type_of(of)
            return item * kind["length"]
        if what == "function":
            return ctypes.CFUNCTYPE(self.type_of(kind["returns"]),
                                    *(self.type_of(p["type"]) for p in kind["parameters"]))
        if what == "pointer":
            return self.pointer_to(kind)
        return (SIGNED if kind["signed"] else UNSIGNED)[kind["bytes"]]

    def pointer_to(self, kind: Kind) -> Any:
        to = kind["to"]
        if to["kind"] == "void":
            return ctypes.c_void_p
        if to["kind"] == "function":
            return self.type_of(to)
        return ctypes.c_char_p if is_text(kind) else ctypes.POINTER(self.type_of(to))

    def check_layout(self) -> None:
        """Checks that sizes and offsets of ctypes are those of the compiler."""
        for name, s in self.described.items():
            made = self.structs[name]
            odd = [f["name"] for f in s.get("fields", [])
                   if getattr(made, f["name"]).offset != f["offset"] or
                   getattr(made, f["name"]).size != f["bytes"]]
            if odd or not s.get("opaque") and ctypes.sizeof(made) != s["bytes"]:
                raise TypeError("struct %s: the file is of another machine %s" % (name, odd))

    def new(self, struct: str, /, **fields: Any) -> Any:
        """A struct whose other fields are 0, and whose size is set.

        Values are converted: a str to bytes, a list of str to an array that ends with NULL, a
        function to a callback, a dict to a struct that the field points to, and an object such as
        sheaf.group.Group to its pointer. A field of such a struct may also be given directly:
        `keep_last=3` is found wherever it is in sheaf_opts. The struct keeps all of these alive.

        TypeError: the struct has no such field.
        """
        known = self.fields[struct]
        inner: dict[str, dict[str, Any]] = {}
        made = self.structs[struct]()
        if "size" in known:
            made.size = ctypes.sizeof(made)
        for name, value in fields.items():
            place = self.place_of(struct, name)
            if place is None:
                raise TypeError("struct %s has no field %r" % (struct, name))
            if place != name:
                inner.setdefault(place, {})[name] = value
                continue
            try:
                setattr(made, name, self.converted(known[name], value))
            except TypeError as e:
                raise TypeError("%s=%r: %s" % (name, value, e)) from None
        for name, values in inner.items():
            setattr(made, name, self.converted(known[name], values))
        return made

    def place_of(self, struct: str, name: str) -> Optional[str]:
        """The field of a struct that has that name, or that points to a struct with such a field.
        None: there is none, or the caller may not set it."""
        known = self.fields[struct]
        if name in known:
            return name if name != "size" else None
        inside = [f for f, k in known.items() if name in self.fields.get(struct_behind(k) or
                                                                         "", {})]
        return inside[0] if len(inside) == 1 and name != "size" else None

    def converted(self, kind: Kind, value: Any) -> Any:
        """A Python value as ctypes takes it for that type."""
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, os.PathLike):
            return os.fsencode(value)
        if is_callback(kind):
            return value if isinstance(value, self.type_of(kind)) else self.guarded(kind, value)
        if hasattr(value, "pointer"):       # an object of run.py or group.py
            return value.pointer
        if isinstance(value, Mapping) and struct_behind(kind):
            return ctypes.pointer(self.new(struct_behind(kind) or "", **value))
        if isinstance(value, (list, tuple)) and kind["kind"] == "pointer":
            texts = [v.encode() if isinstance(v, str) else v for v in value]
            return ctypes.cast((ctypes.c_char_p * (len(texts) + 1))(*texts, None),
                               self.type_of(kind))
        return value

    def handle(self, name: str) -> Any:
        """A NULL pointer to an opaque struct, for a call to fill through ctypes.byref."""
        return ctypes.POINTER(self.structs[name])()

    def guarded(self, kind: Kind, function: Callable[..., Any]) -> Any:
        """A Python function as a callback in C. The caller keeps it alive while C may call it.

        The function is called without `void *arg` and without the struct sheaf_error that some
        callbacks have. A result of None counts as 0. ctypes would drop an exception that leaves a
        callback, so C gets -1 and its text, and `call` raises it as the cause.
        """
        names = [p["name"] for p in kind["to"]["parameters"]]
        first = 1 if names[:1] == ["arg"] else 0
        told = is_error(kind["to"]["parameters"][-1]["type"]) if names else False
        last = len(names) - (1 if told else 0)
        void = kind["to"]["returns"]["kind"] == "void"
        stops = not void and not getattr(function, "collective", False)

        def called(*args: Any) -> Any:
            try:
                if stops:
                    self.raised.interrupt()
                result = function(*args[first:last])
                return None if void else result or 0
            except BaseException as e:      # it must not leave
                # Only for a thread that is in `call`. One of the library has a state of Python's
                # as long as a callback runs, and its end would free the exception: that crashed.
                if self.raised.mine:
                    self.raised.last = e
                if void:
                    self.report(e)
                    return None
                if told and args[-1]:
                    self.tell(args[-1].contents, e)
                return -1

        return self.type_of(kind)(called)

    def report(self, e: BaseException) -> None:
        """Logs the failure of a callback without a result, which cannot return it."""
        import logging
        logging.getLogger("sheaf").error("a callback raised an exception", exc_info=e)

    def tell(self, error: Any, e: BaseException) -> None:
        error.code = self.constants["SHEAF_EFAILED"]
        error.rank = -1
        text = "%s: %s: %s" % (RAISED, type(e).__name__, e)
        error.msg = text.encode(errors="replace")[:499]

    def callback(self, struct: str, field: str, function: Callable[..., Any]) -> Any:
        """A Python function as that field of a struct takes it; see guarded."""
        return self.guarded(self.fields[struct][field], function)

    def parameter(self, name: str, parameter: str, function: Callable[..., Any]) -> Any:
        """A Python function as that parameter of a function takes it; see guarded."""
        kinds = {p["name"]: p["type"] for p in self.functions[name]["parameters"]}
        return self.guarded(kinds[parameter], function)

    def call(self, name: str, *args: Any) -> int:
        """The result of a function that returns a code; the error parameter is added.

        Raises sheaf.Error, or one of its subclasses, for a negative code. If a callback raised an
        exception meanwhile, that is the cause; KeyboardInterrupt and SystemExit are raised as they
        are, even if the call succeeded.
        """
        parameters = self.functions[name]["parameters"]
        error = self.structs["sheaf_error"]()
        if len(parameters) == len(args) + 1 and is_error(parameters[-1]["type"]):
            args += (ctypes.byref(error),)
        self.raised.last, self.raised.mine = None, True
        code = int(self.held(getattr(self, name), *args))
        if code < 0:
            self.fail(code, error)
        cause, self.raised.last = self.raised.last, None
        if isinstance(cause, (KeyboardInterrupt, SystemExit)):
            raise cause
        return code

    def held(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function of C. Ctrl-C is only noted meanwhile, and raised at the end, unless the
        program has a handler of its own.

        Python would raise KeyboardInterrupt at the beginning of a callback, before the callback can
        catch it, and ctypes would drop it. Instead the next callback fails that may, which ends the
        call. A handler of another signal may raise an exception anywhere, also here; if that leaves
        our handler behind, the next call takes it away.
        """
        raised = self.raised
        if raised.held or threading.current_thread() is not threading.main_thread() or \
                signal.getsignal(signal.SIGINT) not in (signal.default_int_handler, self.noting):
            return function(*args)
        try:
            raised.held = True
            signal.signal(signal.SIGINT, self.noting)
            return function(*args)
        finally:
            raised.held = False
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if not raised.calls:
                raised.interrupt()

    def note_interrupt(self, *_: Any) -> None:
        """The handler of SIGINT during a call."""
        self.raised.interrupted = True

    def fail(self, code: int, error: Any) -> None:
        """Raises the exception of a result code."""
        cause, self.raised.last = self.raised.last, None
        if isinstance(cause, (KeyboardInterrupt, SystemExit)):
            raise cause
        text = error.msg or self.sheaf_strerror(code)
        kind = BY_NAME.get((self.sheaf_code_name(code) or b"").decode(), Error)
        raise kind(code, error.rank if error.msg else -1, error.sys,
                   in_python(text.decode(errors="replace"))) from cause


def error(name: str, message: str) -> Error:
    """An exception of this package's own, of that code: error("ELAYOUT", "...")."""
    return BY_NAME[name](int(library().constants["SHEAF_" + name]), -1, 0, message)


HERE = os.path.dirname(os.path.abspath(__file__))
_loaded: list[Library] = []
_lock = threading.Lock()


def library() -> Library:
    """The library that comes with the package, loaded when it is first used."""
    if not _loaded:
        with _lock:
            if not _loaded:
                _loaded.append(Library(os.path.join(HERE, "libsheaf.so"),
                                       os.path.join(HERE, "abi.json")))
    return _loaded[0]
