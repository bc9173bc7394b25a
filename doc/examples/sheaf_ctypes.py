# SPDX-License-Identifier: Apache-2.0
"""libsheaf by Python's ctypes, made from sheaf_abi.json alone.

    sheaf = Sheaf(library, abi)         # paths of libsheaf.so and sheaf_abi.json
    sheaf.SHEAF_LATEST                  # every constant of the headers
    sheaf.new("sheaf_opts", flags=...)  # a struct, its size set
    sheaf.sheaf_version()               # every function, with the types of its parameters
    sheaf.call("sheaf_run_open", ...)   # the same: adds the error parameter, raises SheafError

`pkg-config --variable=abi sheaf` names the installed file.
"""
import ctypes
import json
import traceback

FLOATS = {4: ctypes.c_float, 8: ctypes.c_double}
SIGNED = {1: ctypes.c_int8, 2: ctypes.c_int16, 4: ctypes.c_int32, 8: ctypes.c_int64}
UNSIGNED = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}


class SheafError(Exception):
    """A call that returned a negative code; `code` is one of SHEAF_E..."""

    def __init__(self, code, message):
        super().__init__("%s (%d)" % (message, code))
        self.code = code


def guarded(kind, function, failed=None):
    """A Python function as a callback in C, which the caller keeps alive while C may call it.

    An exception must not leave a callback: ctypes would drop it, and what C is given then is
    neither success nor failure. Here `failed` gets it, by default to print it, and C gets -1. If
    the last parameter of the callback is a struct sheaf_error, the text is written to it as well.
    """
    def called(*args):
        try:
            return function(*args)
        except BaseException as e:
            (failed or (lambda e: traceback.print_exception(type(e), e, e.__traceback__)))(e)
            if args and getattr(kind._argtypes_[-1], "_type_", int).__name__ == "sheaf_error":
                args[-1].contents.msg = repr(e).encode()[:499]
            return None if kind._restype_ is None else -1

    return kind(called)


class Sheaf:
    """The interface that sheaf_abi.json describes, of one library."""

    def __init__(self, library, abi, name="sheaf"):
        with open(abi, encoding="utf-8") as f:
            self.abi = json.load(f)
        self.library = ctypes.CDLL(library)
        for c in self.abi["constants"]:
            setattr(self, c["name"], c["value"])
        self.structs = {s["name"]: type(s["name"], (ctypes.Structure,), {})
                        for s in self.abi["structs"]}
        for s in self.abi["structs"]:
            if not s.get("opaque"):
                self.structs[s["name"]]._fields_ = [(f["name"], self.type_of(f["type"]))
                                                    for f in s["fields"]]
        self.prove_layout()
        self.functions = {f["name"]: f for f in self.abi["functions"] if f["library"] == name}
        for f in self.functions.values():
            called = getattr(self.library, f["name"])
            called.restype = self.type_of(f["returns"])
            called.argtypes = [self.type_of(p["type"]) for p in f["parameters"]]
            setattr(self, f["name"], called)

    def type_of(self, kind):
        """The ctypes type of a type in the file."""
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
            item = ctypes.c_char if kind["of"].get("name") == "char" else self.type_of(kind["of"])
            return item * kind["length"]
        if what == "function":
            return ctypes.CFUNCTYPE(self.type_of(kind["returns"]),
                                    *(self.type_of(p["type"]) for p in kind["parameters"]))
        if what == "pointer":
            return self.pointer_to(kind["to"])
        return (SIGNED if kind["signed"] else UNSIGNED)[kind["bytes"]]

    def pointer_to(self, to):
        if to["kind"] == "void":
            return ctypes.c_void_p
        if to["kind"] == "function":
            return self.type_of(to)
        if to.get("name") == "char" and to.get("const"):
            return ctypes.c_char_p      # a text that ends with NUL
        return ctypes.POINTER(self.type_of(to))

    def prove_layout(self):
        """The compiler's sizes and offsets must be those of ctypes."""
        for s in self.abi["structs"]:
            made = self.structs[s["name"]]
            odd = [f["name"] for f in s.get("fields", [])
                   if getattr(made, f["name"]).offset != f["offset"] or
                   getattr(made, f["name"]).size != f["bytes"]]
            if odd or not s.get("opaque") and ctypes.sizeof(made) != s["bytes"]:
                raise TypeError("struct %s: the file is of another machine %s" % (s["name"], odd))

    def new(self, struct, /, **fields):
        """A struct whose other fields are zero; those that have a size are told theirs."""
        made = self.structs[struct](**fields)
        if hasattr(made, "size") and "size" not in fields:
            made.size = ctypes.sizeof(made)
        return made

    def handle(self, name):
        """A NULL pointer to an opaque struct, for a call to fill through ctypes.byref."""
        return ctypes.POINTER(self.structs[name])()

    def callback(self, struct, field, function, failed=None):
        """A Python function as that field of a struct takes it; see guarded."""
        return guarded(dict(self.structs[struct]._fields_)[field], function, failed)

    def parameter(self, name, parameter, function, failed=None):
        """A Python function as that parameter of a function takes it; see guarded."""
        names = [p["name"] for p in self.functions[name]["parameters"]]
        return guarded(getattr(self, name).argtypes[names.index(parameter)], function, failed)

    def call(self, name, *args):
        """The result of a function that returns a code; the error is added and raised."""
        last = self.functions[name]["parameters"][-1]["type"]["c"]
        error = self.new("sheaf_error")
        wants = len(self.functions[name]["parameters"]) == len(args) + 1
        if wants and last == "struct sheaf_error *":
            args += (ctypes.byref(error),)
        code = getattr(self, name)(*args)
        if code < 0:
            text = error.msg or self.sheaf_strerror(code)
            raise SheafError(code, "%s: %s" % (name, text.decode(errors="replace")))
        return code
