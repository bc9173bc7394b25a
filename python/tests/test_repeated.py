# SPDX-License-Identifier: Apache-2.0
"""Trees of one layout that sheaf.save saves one after another: a later one is not described anew.

Each change here is made between two saves, and the next checkpoint must be that of the tree that
is saved then. Flaws are planted in the comparison, one for each thing that it looks at: every flaw
must make some checkpoint wrong. Prints TAP.
"""
from __future__ import annotations

import collections
import sys
import time
import weakref
from typing import Any, Callable

import flaws
import ranks
import tap
from tap import folder, needs

import sheaf
from sheaf import saving, template, tree as trees

if tap.there("torch", "numpy"):
    import numpy
    import torch
    from sheaf import torch_forms

Change = Callable[[Any], Any]           # gives the next tree, from one like those before
BEFORE = 3                              # saves before the change: the third uses the template


def base(number: int) -> Any:
    """A tree of new tensors, which are other ones for each number."""
    torch.manual_seed(number)
    w, c = torch.randn(4, 6), torch.randn(3)
    model = collections.OrderedDict(
        w=w, b=torch.randn(4), tied=w, c=c, d=c.clone(), empty=torch.zeros(0, 3),
        part=torch.randn(6, 8)[:, ::2], waves=torch.randn(3, dtype=torch.complex128))
    state = {i: {"step": torch.tensor(float(number)), "exp_avg": torch.randn(4, 6)}
             for i in range(2)}
    return {"model": model, "epoch": number, "note": "\x00 %d" % number,
            "optimizer": {"state": state, "param_groups": [
                {"lr": 0.1 * number, "betas": (0.9, number), "params": [0, 1]}]},
            "more": [torch.randn(2), [torch.randn(2), number], (torch.randn(2), None)],
            "arrays": {"a": numpy.full((2, 3), number, numpy.float32),
                       "none": numpy.zeros((0, 2)), "kept": numpy.arange(4) * number}}


def same(a: Any, b: Any) -> bool:
    """Whether two trees have the same types, keys and bits. A parameter is loaded as a tensor."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and \
            torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(map(repr, a)) == list(map(repr, b)) and all(map(same, a.values(), b.values()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, numpy.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    return bool(a == b)


def wrong(change: Change, make: Callable[[int], Any] = base) -> str:
    """What is wrong in the checkpoint after a change; "": nothing."""
    with folder() as at:
        try:
            for number in range(BEFORE):
                sheaf.save(at, make(number))
            tree = change(make(BEFORE))
            want = saving.encode(tree, "refuse")
            sheaf.save(at, tree)
            with open("%s/checkpoint-%d/tree.json" % (at, BEFORE), "rb") as f:
                if f.read() != want.document():
                    return "the document is another one"
            with sheaf.Run(at, readonly=True).checkpoint() as found:
                if {(x.family, x.name): x.tied_to for x in found.tensors()} != \
                        {(x.family, x.name): x.tied_to for x in want.leaves}:
                    return "others are tied"
            return "" if same(sheaf.load(at), tree) else "the values are others"
        except Exception as e:
            return "%s: %s" % (type(e).__name__, e)
        finally:
            saving._repeated.clear()


def at(*keys: Any, value: Callable[[Any], Any]) -> Change:
    """Replaces what is at a place of the tree."""
    def change(tree: Any) -> Any:
        x = tree
        for k in keys[:-1]:
            x = x[k]
        x[keys[-1]] = value(x[keys[-1]])
        return tree
    return change


def renamed(x: Any) -> Any:
    return type(x)(("late" if k == "b" else k, v) for k, v in x.items())


def tied(tree: Any) -> Any:
    tree["model"]["d"] = tree["model"]["c"].view(3)
    return tree


def tied_otherwise(tree: Any) -> Any:
    """Two that were tied are two now, and two others are tied: as many as before."""
    tree["model"]["tied"] = torch.randn(4, 6)
    state = tree["optimizer"]["state"]
    state[1]["exp_avg"] = state[0]["exp_avg"].view(4, 6)
    return tree


MODEL, STATE = ("model",), ("optimizer", "state")
CHANGES: dict[str, Change] = {
    "none": lambda t: t,
    "a key": at("model", value=renamed),
    "the order of keys": at("model", value=lambda x: type(x)(reversed(x.items()))),
    "one key more": lambda t: t["model"].update(late=torch.ones(2)) or t,
    "one key less": lambda t: t["model"].pop("b") is None or t,
    "keys of another class": at(*STATE, value=lambda x: {bool(k): v for k, v in x.items()}),
    "keys of texts": at(*STATE, value=lambda x: {str(k): v for k, v in x.items()}),
    "another dict": at("arrays", value=collections.OrderedDict),
    "a tuple": at("more", value=tuple),
    "a longer list": at("more", value=lambda x: x + [torch.ones(2)]),
    "a shorter list": at("more", value=lambda x: x[:-1]),
    "another type": at("model", "b", value=lambda x: x.double()),
    "another type of one size": at("model", "b", value=lambda x: x.view(torch.int32)),
    "another shape": at("model", "w", value=lambda x: torch.randn(6, 4)),
    "transposed": at("model", "b", value=lambda x: torch.randn(8)[::2]),
    "a parameter": at("model", "b", value=lambda x: torch.nn.Parameter(x)),
    "not tied": at("model", "tied", value=lambda x: torch.randn(4, 6)),
    "tied": tied,
    "tied otherwise": tied_otherwise,
    "nothing for a tensor": at("model", "b", value=lambda x: None),
    "a list for a tensor": at("model", "b", value=lambda x: x.tolist()),
    "a tensor for a number": at("epoch", value=lambda x: torch.tensor(x)),
    "a dict for a number": at("epoch", value=lambda x: {"x": torch.ones(2)}),
    "other values": at("optimizer", "param_groups", 0, value=lambda x: {"lr": None, "x": {1, 2}}),
    "another array": at("arrays", "a", value=lambda x: x.astype(numpy.float64)),
    "a transposed array": at("arrays", "a", value=lambda x:
                             numpy.arange(6, dtype=x.dtype).reshape(3, 2).T),
    "a tensor for an array": at("arrays", "a", value=lambda x: torch.from_numpy(x)),
    "an array for a tensor": at("model", "b", value=lambda x: x.numpy())}


def no_model(number: int) -> Any:
    """A tree whose key "model" has a container without tensors."""
    return {"model": [], "other": {"a": torch.full((3,), float(number))}}


def two_families(tree: Any) -> Any:
    tree["model"] = 0
    return tree


def odd_key(number: int) -> Any:
    """A tree with a key that is called like a gap in a document."""
    return {template.GAP: torch.ones(2), "n": number}


def dropping(number: int) -> Any:
    """A tree with something that is left out."""
    return {"a": torch.full((2,), float(number)), "b": object()}


@needs("torch", "numpy")
def test_changes() -> None:
    """What changes between two trees is in the second, whichever way tensors are compared"""
    try:
        for forms in "Guards", "Forms":
            torch_forms.FORMS = getattr(torch_forms, forms)
            for name, change in CHANGES.items():
                assert not wrong(change), (forms, name, wrong(change))
            assert not wrong(two_families, no_model), wrong(two_families, no_model)
            assert not wrong(CHANGES["none"], odd_key), wrong(CHANGES["none"], odd_key)
            said = wrong(at("model", "waves", value=lambda x: x.conj()))
            assert "resolve_conj" in said, (forms, said)
    finally:
        torch_forms.FORMS = torch_forms.Guards


FLAWS: list[tuple[str, str]] = [
    ("type(x) is not part.kind", "another dict"), ("type(x) is not part.kind", "a tuple"),
    ("len(inside) != len(part.parts)", "a longer list"),
    ("list(inside) != part.keys", "a key"),
    ("set(map(type, inside)) != part.key", "keys of another class"),
    ("addresses is None", "another shape"),
    ("set(map(type, arrays)) != self.kinds", "a tensor for an array"),
    ("list(map(form, arrays)) != self.forms", "another array"),
    ("list(map(form, arrays)) != self.forms", "a transposed array"),
    ("self.tied(addresses) != self.firsts", "tied otherwise"),
    ("self.tied(addresses) != self.firsts", "not tied"),
    ("self.tied(addresses) != self.firsts", "tied"),
    ("encoder.leaves or encoder.dropped", "a tensor for a number")]


@needs("torch", "numpy")
def test_flaws() -> None:
    """Without any one of the comparisons some checkpoint is wrong"""
    right = template.Template
    try:
        for check, change in FLAWS:
            made = flaws.flawed(template, check)
            saving.Template, made.Unsuited = made.Template, template.Unsuited
            assert wrong(CHANGES[change]), (check, change)
        saving.Template = flaws.flawed(template, "Names(tree).families != self.families").Template
        assert wrong(two_families, no_model)
        made = flaws.flawed(template, "len(self.text) != len(self.places) + 1")
        saving.Template = made.Template
        assert wrong(CHANGES["none"], odd_key)
    finally:
        saving.Template = right


def later(at: str) -> Any:
    """Whether a run has a template."""
    return saving._repeated[at].template


@needs("torch", "numpy")
def test_template() -> None:
    """The template is made from the second tree, used from the third, and holds no tensor"""
    with folder() as at:
        for number in range(5):
            tree = base(number)
            gone = [weakref.ref(tree["model"]["w"]), weakref.ref(tree["arrays"]["a"])]
            sheaf.save(at, tree)
            made = later(at)
            assert (made is not None) == (number > 0), number
            if number == 1:
                first = made
            assert number < 2 or made is first, number
            del tree
            assert [w() for w in gone] == [None, None], number
            assert same(sheaf.load(at), base(number)), number
        sheaf.save(at, CHANGES["tied"](base(5)))
        assert later(at) is not first
        for i in range(saving.MOST):
            sheaf.save("%s/%d" % (at, i), {"a": torch.ones(2)})
        assert at not in saving._repeated and len(saving._repeated) == saving.MOST
        saving._repeated.clear()


@needs("torch", "numpy")
def test_failures() -> None:
    """After a save that failed, and with what cannot be kept, trees are saved right"""
    with folder() as at:
        for number in range(4):
            sheaf.save(at, base(number))
        try:
            sheaf.save(at, base(9), step=2)
        except sheaf.Error:
            pass
        else:
            raise AssertionError("step 2 was saved twice")
        try:
            sheaf.save(at, dropping(4))
        except TypeError as e:
            assert "['b']: a object" in str(e), e
        for number in range(4, 8):
            sheaf.save(at, dropping(number), unsupported="drop")
            assert same(sheaf.load(at), {"a": torch.full((2,), float(number))}), number
        assert later(at) is None
        for number in range(8, 12):
            sheaf.save(at, base(number))
            assert same(sheaf.load(at), base(number)), number
        bad = base(12)
        bad["epoch"] = object()
        try:
            sheaf.save(at, bad)
        except TypeError as e:
            assert "['epoch']: a object" in str(e), e
        else:
            raise AssertionError("an object was saved")
        sheaf.save(at, base(12))
        assert same(sheaf.load(at), base(12))
        saving._repeated.clear()


def on_ranks(rank: int, path: str) -> list[str]:
    """Saves trees on several ranks; one of them fails once, and begins anew then."""
    group = sheaf.group.torch_distributed()
    told = []
    for number in range(7):
        tree = base(number)
        if rank == 1 and number == 4:
            tree["epoch"] = object()
        told.append(tap.told(lambda: sheaf.save(path, tree, group=group, step=number)))
        template = saving._repeated[path].template if path in saving._repeated else None
        assert (template is not None) == (number in (1, 2, 3, 6)), number
        assert told[-1] or same(sheaf.load(path), base(number)), number
    return told


@needs("torch", "numpy")
def test_ranks() -> None:
    """Several ranks save trees of one layout, also after one of them failed"""
    with folder() as at:
        one, two = ranks.results(2, on_ranks, at + "/run")
        assert one[4].startswith("Failed: TypeError: ['epoch']"), one
        assert two[4].startswith("TypeError: ['epoch']"), two
        assert not any(one[:4] + one[5:] + two[:4] + two[5:]), (one, two)


@needs("torch", "numpy")
def test_time() -> None:
    """A later tree of 1,500 tensors takes a small part of the time of the first"""
    def fresh() -> Any:
        return {"model": {"w%d" % i: torch.ones(2) for i in range(500)},
                "state": {i: {"a": torch.ones(2), "b": torch.ones(2)} for i in range(500)}}

    kept = saving.Repeated()
    kept.described(fresh(), "refuse")
    kept.saw()
    times: dict[str, list[float]] = {"again": [], "anew": []}
    for _ in range(10):
        for how in times:
            tree = fresh()
            if how == "anew":
                kept.close()
            start = time.thread_time()
            kept.described(tree, "refuse")
            times[how].append(time.thread_time() - start)
            kept.saw()
    assert 4 * min(times["again"]) < min(times["anew"]), times
    kept.close()


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
