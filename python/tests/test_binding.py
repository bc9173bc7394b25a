#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The low-level binding, the exceptions and the import of the package. Prints TAP."""
from __future__ import annotations

import ctypes
import os
import pickle
import re
import statistics
import subprocess
import sys
import threading

import tap
from launched import ROOT
import sheaf
from sheaf import binding, memory
from sheaf.errors import BY_NAME
from sheaf.messages import in_python

IMPORT_MS = 300.0           # ten times what is wanted: machines are busy


def test_each_code_has_a_class() -> None:
    """Each result code of the library has an exception of its own"""
    c = binding.library()
    codes = [k for k in c.abi["enums"] if k["name"] == "sheaf_code"][0]["constants"]
    assert {k[len("SHEAF_"):] for k in codes} - {"OK"} == set(BY_NAME), codes
    for name in BY_NAME:
        assert c.sheaf_code_name(c.constants["SHEAF_" + name]) == name.encode()
    assert len(set(BY_NAME.values())) == len(BY_NAME)
    assert issubclass(sheaf.NotFound, FileNotFoundError)
    assert issubclass(sheaf.NotYet, TimeoutError)


# Names of C. What these messages complain of cannot be given in Python: the size of a struct, a
# reserved field, a mark that is a number, the number of a type, a state that is NULL.
NAMES_OF_C = re.compile(r"SHEAF_[A-Z]|\bsheaf_[a-z]|opts\.|sizeof|\bNULL\b")
ONLY_IN_C = re.compile(r"size is %|sizeof|reserved is %|opts\.%s is|mark is %d|enum sheaf_dtype|"
                       r"struct sheaf_%s to fill|agent_opts")


def test_messages_name_what_python_has() -> None:
    """No message of the library that Python can provoke names an option or a function of C"""
    with open(os.path.join(ROOT, "test", "messages.txt"), encoding="utf-8") as f:
        every = [line.rstrip("\n") for line in f if not line.startswith(("#", "==", "~"))]
    named = [x for x in every if NAMES_OF_C.search(x) and not ONLY_IN_C.search(x)]
    assert len(every) > 1000 and len(named) > 100, (len(every), len(named))
    for message in named:
        assert not NAMES_OF_C.search(in_python(message)), in_python(message)
    for text in "a/opts.lr: 3", "/x/sheaf_run_1/y", "family/SHEAF_RUN_CREATE.w", "NULLs":
        assert in_python(text) == text


def test_sentences_in_python() -> None:
    """What is raised names the arguments of Python"""
    import array
    with tap.folder() as at:
        tree = {"a": array.array("f", [1, 2])}
        for options, words in (
                ({"grace_s": -5}, "grace_s is -5"), ({"best_note": "x"}, "keep_best is 0"),
                ({"keep_every": 3}, "keep_every needs keep_last: without it")):
            with tap.raises(sheaf.Invalid, words) as seen:
                sheaf.save(at, tree, **options)
            assert not NAMES_OF_C.search(str(seen[0])), seen[0]
        for name in "size", "reserved", "keep_lats", "nothing_like_it":
            with tap.raises(TypeError, "there is no option %r" % name):
                sheaf.save(at, tree, **{name: 1})
        with tap.raises(TypeError, "is it keep_last?"):
            sheaf.save(at, tree, keep_lats=1)
        with tap.raises(TypeError, "keep_last='many': "):
            sheaf.save(at, tree, keep_last="many")
        with tap.raises(sheaf.NotFound, "create=True makes"):
            sheaf.Run(at + "/none")
        with sheaf.State() as state, tap.raises(sheaf.Invalid, "a: dtype='F23'"):
            held = memory.of(tree["a"])
            assert held is not None
            state.add("a", held, dtype="F23")


def test_errors_carry_what_the_library_says() -> None:
    """An exception has the code, the rank, the errno and the sentence, also when pickled"""
    c = binding.library()
    run = c.handle("sheaf_run")
    with tap.raises(sheaf.NotFound, "/no/such/run") as seen:
        c.call("sheaf_run_open", ctypes.byref(run), b"/no/such/run", None, None)
    e = seen[0]
    assert isinstance(e, sheaf.Error) and e.code == c.SHEAF_ENOENT and e.rank == 0, vars(e)
    again = pickle.loads(pickle.dumps(e))
    assert type(again) is sheaf.NotFound and vars(again) == vars(e) and str(again) == str(e)


def test_structs_take_keywords() -> None:
    """Structs are made of keywords: texts, lists, functions; an unknown one is a TypeError"""
    c = binding.library()
    opts = c.new("sheaf_opts", timeout_ms=5, keep_last=3, ignore=["a*", "b"], folder="step-{n}",
                 log=lambda level, line: None)
    assert opts.size == ctypes.sizeof(opts) and opts.timeout_ms == 5 and opts.log
    assert opts.retention.contents.keep_last == 3
    assert [opts.ignore[i] for i in range(3)] == [b"a*", b"b", None]
    with tap.raises(TypeError, "kep_last"):
        c.new("sheaf_opts", kep_last=3)


def test_fields_of_inner_structs_are_found() -> None:
    """A keyword finds its field in a struct that a field points to"""
    c = binding.library()
    c.structs["outer"] = type("outer", (ctypes.Structure,), {"_fields_": [
        ("size", ctypes.c_uint32), ("opts", ctypes.POINTER(c.structs["sheaf_save_opts"]))]})
    c.fields["outer"] = {"size": {"kind": "integer"},
                         "opts": {"kind": "pointer",
                                  "to": {"kind": "struct", "name": "sheaf_save_opts"}}}
    try:
        made = c.new("outer", loss=0.25)
        inside = made.opts.contents
        assert inside.loss == 0.25 and inside.size == ctypes.sizeof(inside)
        assert not c.new("outer").opts
        assert c.new("outer", opts={"loss": 2.0}).opts.contents.loss == 2.0
    finally:
        del c.structs["outer"], c.fields["outer"]


def open_run(c: binding.Library, at: str, **opts: object) -> object:
    run = c.handle("sheaf_run")
    made = c.new("sheaf_opts", flags=c.SHEAF_RUN_CREATE, **opts)
    c.call("sheaf_run_open", ctypes.byref(run), at.encode(), None, ctypes.byref(made))
    run.keep = made
    return run


def one_tensor(c: binding.Library) -> tuple[object, object]:
    memory = (ctypes.c_float * 6)(*range(6))
    state = c.sheaf_state_new()
    c.call("sheaf_state_add", state, ctypes.byref(c.new(
        "sheaf_slice", name="w", dtype=c.SHEAF_F32, ndim=2, shape=(2, 3), count=(2, 3),
        data=ctypes.addressof(memory))))
    return memory, state


def test_an_exception_in_a_callback_is_the_cause() -> None:
    """What a callback raises ends the call, and is the cause of its error"""
    c = binding.library()
    with tap.folder() as at:
        run = open_run(c, at)
        memory, state = one_tensor(c)
        save = c.handle("sheaf_save")
        c.call("sheaf_save_begin", ctypes.byref(save), run, 7, state, None)
        c.call("sheaf_save_commit", save, -1)
        c.sheaf_save_free(save)

        def wrong(item: object) -> None:
            raise KeyError("on purpose")

        taken = c.parameter("sheaf_run_list", "item", wrong)
        with tap.raises(sheaf.Error) as seen:
            c.call("sheaf_run_list", run, taken, None)
        assert isinstance(seen[0].__cause__, KeyError), repr(seen[0].__cause__)

        def stop(item: object) -> None:
            raise KeyboardInterrupt

        taken = c.parameter("sheaf_run_list", "item", stop)
        with tap.raises(KeyboardInterrupt):
            c.call("sheaf_run_list", run, taken, None)
        c.sheaf_run_close(run)
        c.sheaf_state_free(state)


def test_a_callback_fills_the_error_that_it_gets() -> None:
    """A callback with an error parameter writes the exception's text there"""
    c = binding.library()
    kind = {"kind": "pointer", "to": {
        "kind": "function", "returns": {"kind": "integer", "bytes": 4, "signed": True},
        "parameters": [
            {"name": "arg", "type": {"kind": "pointer", "to": {"kind": "void"}}},
            {"name": "n", "type": {"kind": "integer", "bytes": 4, "signed": True}},
            {"name": "err", "type": {"kind": "pointer",
                                     "to": {"kind": "struct", "name": "sheaf_error"}}}]}}

    def wrong(n: int) -> int:
        raise RuntimeError("no answer from rank %d" % n)

    called = c.guarded(kind, wrong)
    error = c.new("sheaf_error")
    assert called(None, 3, ctypes.pointer(error)) == -1
    assert b"RuntimeError: no answer from rank 3" in error.msg, error.msg
    assert error.code == c.SHEAF_EFAILED
    assert c.guarded(kind, lambda n: None)(None, 3, ctypes.pointer(error)) == 0
    assert called(None, 3, None) == -1


def test_other_threads_run_meanwhile() -> None:
    """The interpreter lock is released in a call"""
    c = binding.library()
    entered, go, done = threading.Event(), threading.Event(), []

    def item(item: object) -> None:
        entered.set()                       # another thread must run for this call to end
        assert go.wait(60)

    def other() -> None:
        entered.wait(60)
        go.set()
        done.append(True)

    with tap.folder() as at:
        run = open_run(c, at)
        memory, state = one_tensor(c)
        save = c.handle("sheaf_save")
        c.call("sheaf_save_begin", ctypes.byref(save), run, 7, state, None)
        c.call("sheaf_save_commit", save, -1)
        c.sheaf_save_free(save)
        thread = threading.Thread(target=other)
        thread.start()
        c.call("sheaf_run_list", run, c.parameter("sheaf_run_list", "item", item), None)
        thread.join(60)
        c.sheaf_run_close(run)
        c.sheaf_state_free(state)
    assert done


def test_import_is_quick() -> None:
    """The import is quick, and brings neither NumPy nor torch"""
    code = "import sys, sheaf; print([m for m in ('numpy', 'torch', 'json') if m in sys.modules])"
    times = []
    for _ in range(9):
        done = subprocess.run([sys.executable, "-X", "importtime", "-c", code], check=True,
                              capture_output=True, text=True)
        assert done.stdout.strip() == "[]", done.stdout
        found = re.search(r"\|\s+(\d+) \| sheaf$", done.stderr, re.M)
        assert found, done.stderr
        times.append(int(found.group(1)) / 1000)
    print("# import sheaf: median %.1f ms, least %.1f ms" % (statistics.median(times), min(times)))
    assert min(times) <= IMPORT_MS, times       # other programs only make it longer


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
