# SPDX-License-Identifier: Apache-2.0
"""Tensors of Paddle in trees, and those of paddle.distributed by placements. Prints TAP."""
from __future__ import annotations

import os
import subprocess
import sys
import warnings
from typing import Any

import tap
from tap import folder, needs, raises

warnings.filterwarnings("ignore", module="paddle")

import sheaf                                                                   # noqa: E402

if tap.there("paddle"):
    os.environ.setdefault("GLOG_minloglevel", "3")
    import numpy as np
    import paddle
    import paddle.distributed as dist

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
          "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2")


def bits(t: Any) -> bytes:
    """The items of a tensor in host memory, as they lie."""
    import ctypes
    n = int(np.prod(t.shape)) * t.element_size()
    return ctypes.string_at(t.contiguous().data_ptr(), n) if n else b""


def filled(t: Any, seed: int) -> Any:
    """The tensor, with drawn bits."""
    import ctypes
    n = int(np.prod(t.shape)) * t.element_size()
    data = np.random.default_rng(seed).integers(0, 256, n, dtype=np.uint8)
    if t.dtype == paddle.bool:
        data %= 2
    ctypes.memmove(t.data_ptr(), data.tobytes(), n)
    return t


@needs("paddle")
def test_types() -> None:
    """Tensors of each type are saved from where they lie, and come back as they were"""
    from sheaf import memory
    tree = {d: filled(paddle.zeros([3, 5], dtype=d), i) for i, d in enumerate(DTYPES)}
    tree["view"] = tree["float32"].transpose([1, 0])
    tree["rows"] = tree["float64"][1:]
    tree["none"] = paddle.zeros([0, 3])
    for name, t in tree.items():
        held = memory.of(t)
        assert held is not None and held.address == (t.data_ptr() if name != "none" else 0), name
    with folder() as at:
        sheaf.save(at, tree)
        found = sheaf.load(at)
        target = {k: paddle.zeros(t.shape, dtype=t.dtype) for k, t in tree.items()}
        places = {k: t.data_ptr() for k, t in target.items() if k != "none"}
        assert sheaf.load(at, target) is target
        for k, t in tree.items():
            for again in (found[k], target[k]):
                assert again.dtype == t.dtype and again.shape == t.shape and bits(again) == bits(t)
        assert places == {k: target[k].data_ptr() for k in places}
        plain = sheaf.load(at, framework="np")
        assert plain["float32"].tobytes() == bits(tree["float32"])
        sheaf.save(at, {"x": np.arange(4, dtype=np.int32)})
        as_paddle = sheaf.load(at, framework="paddle")["x"]
        assert isinstance(as_paddle, paddle.Tensor) and as_paddle.tolist() == [0, 1, 2, 3]
        with sheaf.open(at, framework="paddle") as f:
            assert f["x"][1:3].tolist() == [1, 2]
        sheaf.save(at, {"x": np.arange(4, dtype=np.uint32)})
        with raises(TypeError, "paddle has no type for U32"):
            sheaf.load(at, framework="paddle")


def trained(seed: int, steps: int) -> tuple[Any, Any]:
    paddle.seed(seed)
    model = paddle.nn.Sequential(paddle.nn.Linear(4, 8), paddle.nn.Tanh(), paddle.nn.Linear(8, 2))
    rate = paddle.optimizer.lr.StepDecay(0.05, 2)
    optimizer = paddle.optimizer.AdamW(rate, parameters=model.parameters())
    train(model, optimizer, 0, steps)
    return model, optimizer


def train(model: Any, optimizer: Any, first: int, end: int) -> None:
    for step in range(first, end):
        x = paddle.to_tensor(np.random.default_rng(step).normal(size=(8, 4)).astype("float32"))
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.clear_grad()
        optimizer._learning_rate.step()


@needs("paddle")
def test_training() -> None:
    """A model and its optimizer go on with the same bits as those that did not stop"""
    model, optimizer = trained(0, 3)
    with folder() as at:
        sheaf.save(at, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        again, other = trained(1, 1)
        saved = sheaf.load(at)
        again.set_state_dict(saved["model"])
        other.set_state_dict({k.replace("linear_0", "linear_2").replace("linear_1", "linear_3"): v
                              for k, v in saved["optimizer"].items()})
        third, _ = trained(2, 0)
        sheaf.load(at, {"model": third.state_dict()}, strict=False)     # its own memory
    for m, o in ((model, optimizer), (again, other)):
        train(m, o, 3, 6)
    for a, b in zip(model.parameters(), again.parameters()):
        assert bits(a) == bits(b)
    assert bits(third.parameters()[0]) != bits(model.parameters()[0])


@needs("paddle")
def test_refusals() -> None:
    """What has no place on disk is refused by its name"""
    with folder() as at:
        x = paddle.sparse.sparse_coo_tensor([[0, 1]], [1.0, 2.0], [3])
        with raises(ValueError, "['x']: a sparse tensor of Paddle; use .to_dense()"):
            sheaf.save(at, {"x": x})
        with raises(ValueError, "['x']", "expanded", ".contiguous()"):
            t = paddle.ones([1, 3]).as_strided([4, 3], [0, 1])
            sheaf.save(at, {"x": t})
        sheaf.save(at, {"x": paddle.ones([2])})
        with raises(sheaf.Mismatch, "['x']: the tree has F32 of shape (3,)"):
            sheaf.load(at, {"x": paddle.ones([3])})


# ---- ranks ----

def meshes(ranks: int) -> list[tuple[Any, list[Any]]]:
    """Meshes over as many ranks, with placements."""
    S, R = dist.Shard, dist.Replicate
    line = dist.ProcessMesh(list(range(ranks)), dim_names=["x"])
    found = [(line, [S(0)]), (line, [S(1)]), (line, [R()])]
    if ranks == 4:
        square = dist.ProcessMesh([[0, 1], [2, 3]], dim_names=["x", "y"])
        found += [(square, [S(0), S(1)]), (square, [S(1), S(0)]), (square, [R(), S(0)]),
                  (square, [S(1), R()]), (dist.ProcessMesh([1, 2], dim_names=["x"]), [S(0)])]
    return found


SHAPE = (9, 6)                          # uneven on four ranks, whose last one has no rows


def whole(seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=SHAPE).astype("float32")


def tree_of(ranks: int, count: int, empty: bool = False, turn: int = 0) -> dict[str, Any]:
    places = meshes(ranks)
    return {"t%d" % i: dist.shard_tensor(paddle.to_tensor(whole(i) * (0 if empty else 1)),
                                         *places[(i + turn) % len(places)])
            for i in range(count)}


def check(tree: dict[str, Any]) -> None:
    from sheaf import parts
    for i in range(len(tree)):
        t = tree["t%d" % i]
        seen = parts.of(t)
        assert seen is not None
        for held, start in seen.boxes():
            box = tuple(slice(s, s + n) for s, n in zip(start, held.shape))
            assert np.array_equal(t._local_value().numpy(), whole(i)[box]), (i, t.placements)


def operations(group: Any) -> None:
    """Each operation of the group, against what NumPy says."""
    ops, rank, n = group.operations, group.rank, group.ranks
    for size in (0, 1, 1000):
        mine, out = bytearray([rank] * size), bytearray(size * n)
        ops.allgather(memoryview(mine), memoryview(out), 60.0)
        assert out == b"".join(bytes([r] * size) for r in range(n))
    sizes = np.random.default_rng(3).integers(0, 4, (n, n)) * 7
    sent = b"".join(bytes([16 * rank + r]) * sizes[rank, r] for r in range(n))
    into = bytearray(int(sizes[:, rank].sum()))
    ops.alltoallv(memoryview(sent), sizes[rank].tolist(), memoryview(into),
                  sizes[:, rank].tolist(), 60.0)
    assert into == b"".join(bytes([16 * r + rank]) * sizes[r, rank] for r in range(n))
    numbers = np.random.default_rng(4).integers(0, 2**64, (n, 5), dtype=np.uint64)
    for op, want in (("sum", numbers.sum(0)), ("max", numbers.max(0)),
                     ("xor", np.bitwise_xor.reduce(numbers))):
        x = bytearray(numbers[rank].tobytes())
        ops.allreduce(memoryview(x), op, 60.0)
        assert x == want.tobytes(), op


def one_rank(what: str, at: str) -> None:
    dist.init_parallel_env()
    group = sheaf.group.paddle_distributed()
    if what == "save":
        operations(group)
        tree = {**tree_of(4, 8), "step": 5, "lr": 0.5}
        sheaf.save(at, tree, group=group)
        for turn in range(1, 8, 3):
            target = {**tree_of(4, 8, True, turn), "step": 0, "lr": 0.0}
            sheaf.load(at, target, group=group)
            assert target.pop("step") == 5 and target.pop("lr") == 0.5
            check(target)
        mesh = dist.ProcessMesh([0, 1, 2, 3], dim_names=["x"])
        partial = dist.shard_tensor(paddle.ones([4]), mesh, [dist.Partial()])
        with raises(ValueError, "['p']: a tensor that has partial sums; use paddle.distributed"):
            sheaf.save(at, {"p": partial}, group=group)
        with raises((TypeError, sheaf.Failed), "['o']: a object cannot be stored"):
            sheaf.save(at, {"o": object() if group.rank == 2 else 1}, group=group)
        assert sheaf.save(at, tree, group=group) == 1
    else:
        target = {**tree_of(2, 8, True), "step": 0, "lr": 0.0}
        sheaf.load(at, target, group=group)
        assert target.pop("step") == 5 and target.pop("lr") == 0.5
        check(target)
        found = sheaf.load(at, group=group)
        assert np.array_equal(found["t1"].numpy(), whole(1))
    print("done", flush=True)


def launched(ranks: int, what: str, at: str) -> None:
    """Runs one_rank on as many ranks, as paddle.distributed.launch starts them."""
    logs = os.path.join(at, "logs-" + what)
    done = subprocess.run([sys.executable, "-m", "paddle.distributed.launch",
                           "--nproc_per_node", str(ranks), "--backend", "gloo", "--log_dir", logs,
                           __file__, what, os.path.join(at, "run")], capture_output=True,
                          text=True, timeout=250, stdin=subprocess.DEVNULL,
                          env=dict(os.environ, OMP_NUM_THREADS="1"))
    said = ""
    for name in sorted(os.listdir(logs)):
        with open(os.path.join(logs, name), encoding="utf-8", errors="replace") as f:
            said += name + "\n" + f.read()
    assert done.returncode == 0 and said.count("\ndone") == ranks, said[-3000:] + done.stderr


@needs("paddle")
def test_placements() -> None:
    """Four ranks of gloo save by placements, and load by others; then two ranks, and one process"""
    with folder() as at:
        launched(4, "save", at)
        launched(2, "load", at)
        found = sheaf.load(os.path.join(at, "run"), framework="np")
        for i in range(8):
            assert np.array_equal(found["t%d" % i], whole(i)), i
        assert found["step"] == 5


if __name__ == "__main__":
    if len(sys.argv) > 1:
        one_rank(*sys.argv[1:])
    else:
        sys.exit(tap.run(globals()))
