# SPDX-License-Identifier: Apache-2.0
"""Trees that several ranks save and load together, and records in trees. Prints TAP."""
from __future__ import annotations

import collections
import os
import sys
from typing import Any, NamedTuple

import ranks
import tap
from tap import folder, needs, raises, told

import sheaf
from sheaf import parts

ROWS, COLUMNS = 10, 7


def whole(dtype: str = "float32") -> Any:
    import numpy as np
    return np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS).astype(dtype) + 1


def cut(n: int, of: int, i: int) -> tuple[int, int]:
    """Piece i of n items in `of` pieces, as torch.chunk cuts."""
    step = -(-n // of)
    return min(n, i * step), min(n, (i + 1) * step)


def box(x: Any, dim: int, rank: int, of: int) -> sheaf.Part:
    """The rows or columns of a rank, in memory of its own."""
    a, b = cut(x.shape[dim], of, rank)
    mine = (x[a:b] if dim == 0 else x[:, a:b]).copy()
    return sheaf.Part(mine, x.shape, (a, 0) if dim == 0 else (0, a))


def tree_of(rank: int, of: int, dim: int, empty: bool = False) -> dict[str, Any]:
    import numpy as np
    found = {"u": box(whole(), dim, rank, of), "z": box(whole("complex128"), dim, rank, of),
             "same": np.arange(5), "step": 3, "names": ["a", ("b", None)]}
    if empty:
        for key in ("u", "z"):
            found[key].array[:] = 0
        found.update(same=np.zeros(5, int), step=0)
    return found


def check(tree: dict[str, Any], rank: int, of: int, dim: int) -> None:
    import numpy as np
    want = tree_of(rank, of, dim)
    for key in ("u", "z"):
        assert np.array_equal(tree[key].array, want[key].array), (key, tree[key].array)
    assert np.array_equal(tree["same"], want["same"]) and tree["step"] == 3
    assert tree["names"] == want["names"]


def round_trip(rank: int, at: str) -> Any:
    group = sheaf.group.torch_distributed()
    of = group.ranks
    for dim in (0, 1):
        tree = tree_of(rank, of, dim)
        assert sheaf.save(at, tree, group=group, notes={"by": str(of)}) == dim
        again = sheaf.load(at, tree_of(rank, of, 1 - dim, empty=True), group=group)
        check(again, rank, of, 1 - dim)
        alone = sheaf.load(at, group=group)
        assert (alone["u"] == whole()).all() and (alone["z"] == whole("complex128")).all()
    return True


def size(at: str, step: int) -> int:
    """The bytes of the tensors of a checkpoint."""
    path = os.path.join(at, "checkpoint-%d" % step)
    return sum(os.path.getsize(os.path.join(path, n)) for n in os.listdir(path)
               if n.endswith(".safetensors"))


@needs("torch", "numpy")
def test_layouts() -> None:
    """Rows of four ranks, one of them empty, are loaded as columns, in one process, and whole"""
    import numpy as np
    with folder() as at:
        ranks.results(4, round_trip, at)
        check(sheaf.load(at + "@0", tree_of(0, 1, 1, empty=True)), 0, 1, 1)
        found = sheaf.load(at)
        assert np.array_equal(found["u"], whole()) and found["u"].dtype == np.float32
        with sheaf.open(at) as f:
            assert f.metadata()["by"] == "4" and set(f.keys()) == {"u", "z", "same"}
        sheaf.save(at, {k: found[k] for k in ("u", "z", "same")})
        assert size(at, 1) == size(at, 2), "replicas are there more than once"


def outcomes(rank: int, at: str) -> list[str]:
    group = sheaf.group.torch_distributed()
    good = tree_of(rank, 2, 0)
    sheaf.save(at, good, group=group)
    said = [told(lambda: sheaf.save(at, {**good, "step": rank}, group=group)),
            told(lambda: sheaf.save(at, {**good, "x": object() if rank else 1}, group=group)),
            told(lambda: sheaf.save(at, good, group=group, files={"bad/name": b""}))]
    wrong = tree_of(rank, 2, 0, empty=True)
    if rank:
        wrong["u"] = sheaf.Part(wrong["u"].array, (ROWS, COLUMNS + 1), (5, 0))
    said.append(told(lambda: sheaf.load(at, wrong, group=group)))
    assert not wrong["z"].array.any() and wrong["step"] == 0, "something was loaded"
    high = sheaf.Part(good["u"].array, (ROWS + 1, COLUMNS), good["u"].start)
    said.append(told(lambda: sheaf.save(at, {"u": high}, group=group)))
    assert sheaf.save(at, good, group=group) == 1
    return said


@needs("torch", "numpy")
def test_what_fails_on_one_rank() -> None:
    """What fails on one rank fails on both by its sentence, nothing is saved, and the next works"""
    with folder() as at:
        first, second = ranks.results(2, outcomes, at)
        for mine, theirs in zip(first, second):
            assert mine and theirs, (first, second)
        assert "tree.json" in first[0] and "tree.json" in second[0], (first[0], second[0])
        assert second[1].startswith("TypeError: ['x']: a object cannot"), second[1]
        assert first[1].startswith("Failed") and "['x']" in first[1], first[1]
        assert first[2].startswith("Invalid") and "bad/name" in second[2], (first[2], second[2])
        assert second[3].startswith("Mismatch: ['u']"), second[3]
        assert "['u']" in first[3] and "(10, 8)" in first[3], first[3]
        assert "Mismatch" in first[4] and "u" in first[4], first[4]
        assert sorted(n for n in os.listdir(at) if n[0] == "c") == ["checkpoint-0", "checkpoint-1"]


@needs("numpy")
def test_parts() -> None:
    """A part must lie inside its tensor, be a tensor, be writable to be loaded, and be covered"""
    import numpy as np
    for shape, start in (((3, 4), (0, 1)), ((3, 4), (-1, 0)), ((3,), None), ((2, 4), (0,))):
        with raises(ValueError, "is not inside a tensor of shape"):
            sheaf.Part(np.ones((2, 4)), shape, start)
    with folder() as at:
        with raises(sheaf.Mismatch, "half"):
            sheaf.save(at, {"half": sheaf.Part(np.ones(2), (4,))})
        x = np.arange(8, dtype=np.float32)
        sheaf.save(at, {"x": sheaf.Part(x[::2].copy(), (4,)), "t": x})
        with raises(sheaf.Mismatch, "['x']: the tensor of the tree is read-only"):
            held = np.ones(2, np.float32)
            held.flags.writeable = False
            sheaf.load(at, {"x": sheaf.Part(held, (4,), (1,)), "t": x})
        two = sheaf.Part(np.zeros(2, np.float32), (4,), (1,))
        sheaf.load(at, {"x": two, "t": sheaf.Part(np.zeros((1,), np.float64), (8,), (7,))},
                   convert=True)
        assert two.array.tolist() == [2, 4] and repr(two) == "<sheaf.Part: (2,) at (1,) of (4,)>"
        with raises(sheaf.Mismatch, "convert=True"):
            sheaf.load(at, {"x": two, "t": sheaf.Part(np.zeros((1,), np.float64), (8,))})
        other = os.path.join(at, "checkpoint-0", "model.safetensors")
        if os.path.exists(other):       # as another program reads it, by name
            three = sheaf.Part(np.zeros(3, np.float32), (8,), (5,))
            sheaf.load(other, {"x": two, "t": three})
            assert three.array.tolist() == [5, 6, 7]


class Moments(NamedTuple):
    count: Any
    mu: Any
    nu: Any = None


class Empty(NamedTuple):
    pass


@needs("numpy")
def test_records() -> None:
    """A NamedTuple comes back as that of the target, and as a dict without a target"""
    import numpy as np
    with folder() as at:
        tree = {"opt": (Moments(3, {"w": np.ones(4)}), Empty()), "model": {"w": np.zeros(2)}}
        sheaf.save(at, tree)
        found = sheaf.load(at)
        assert found["opt"][0]["count"] == 3 and found["opt"][1] == {}
        assert found["opt"][0]["mu"]["w"].tolist() == [1] * 4
        mine = {"opt": (Moments(0, {"w": np.zeros(4)}), Empty()), "model": {"w": np.ones(2)}}
        w = mine["opt"][0].mu["w"]
        again = sheaf.load(at, mine)
        assert again is mine and type(mine["opt"][0]) is Moments and mine["opt"][0].count == 3
        assert mine["opt"][0].mu["w"] is w and w.all() and not mine["model"]["w"].any()
        assert type(mine["opt"][1]) is Empty
        Other = collections.namedtuple("Other", "count mu")
        mine["opt"] = (Other(0, {"w": w}), Empty())
        with raises(sheaf.Mismatch, "['opt'][0]['nu']: the checkpoint has it, but the tree does "):
            sheaf.load(at, mine)
        sheaf.load(at, mine, strict=False)
        assert mine["opt"][0].count == 3 and type(mine["opt"][0]) is Other
        with raises(TypeError, "['f']['mu']: a object cannot be stored"):
            sheaf.save(at, {"f": Moments(0, object())})


def test_names_of_fields() -> None:
    """Plain values are no records, and are not asked"""
    assert parts.fields(3) is None and parts.fields((1, 2)) is None
    pairs, again = parts.fields(Moments(1, 2, 3)) or ([], None)
    assert pairs == [("count", 1), ("mu", 2), ("nu", 3)] and again is not None
    assert again([4, 5, 6]) == Moments(4, 5, 6)


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
