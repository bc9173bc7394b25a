# SPDX-License-Identifier: Apache-2.0
"""Arrays of JAX with named sharding in trees, over eight devices of one process. Prints TAP."""
from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, NamedTuple

import launched
import tap
from tap import folder, needs, raises

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import sheaf                                                                   # noqa: E402
from sheaf import parts                                                    # noqa: E402

if tap.there("jax"):
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec as P

DTYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "bfloat16",
          "float32", "complex64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu",
          "float8_e4m3fnuz", "float8_e5m2fnuz")


def sharding(shape: tuple[int, ...], *spec: Any) -> Any:
    """On a mesh of that shape, whose axes are a and b."""
    return NamedSharding(jax.make_mesh(shape, ("a", "b")), P(*spec))


def shardings() -> list[Any]:
    return [sharding((4, 2), "a", "b"), sharding((2, 4), "b", None), sharding((8, 1), None, "a"),
            sharding((4, 2), ("a", "b"), None), sharding((4, 2), None, ("b", "a")),
            sharding((2, 4)), jax.sharding.SingleDeviceSharding(jax.devices()[5])]


def bits(x: Any) -> bytes:
    return np.asarray(x).tobytes()


def values(dtype: str) -> Any:
    """An array of 16 x 16 with drawn bits."""
    kind = np.dtype(getattr(jnp, dtype) if dtype != "bool" else "bool")
    drawn = np.random.default_rng(7).integers(0, 256, 256 * kind.itemsize, dtype=np.uint8)
    return (drawn % 2 == 1 if dtype == "bool" else drawn.view(kind)).reshape(16, 16)


def same(a: Any, b: Any) -> bool:
    """Whether two pytrees have the same structure and the same bits."""
    x, xs = jax.tree.flatten(a)
    y, ys = jax.tree.flatten(b)
    return xs == ys and all(bits(u) == bits(v) for u, v in zip(x, y))


@needs("jax")
def test_in_place() -> None:
    """Each shard is saved from where it lies, and one replica of it"""
    assert len(jax.devices()) == 8
    for dtype in DTYPES:
        for where in shardings():
            x = jax.device_put(values(dtype), where)
            seen = parts.of(x)
            assert seen is not None and seen.shape == (16, 16)
            found = sorted((start, m.address) for m, start in seen.boxes())
            want = sorted((tuple(s.start or 0 for s in shard.index),
                           shard.data.unsafe_buffer_pointer())
                          for shard in x.addressable_shards if shard.replica_id == 0)
            assert found == want, (dtype, where, found, want)
            assert sum(np.prod(m.shape) for m, _ in seen.boxes()) == 256


@needs("jax")
def test_any_sharding() -> None:
    """An array of any sharding and type is loaded with any other, bit for bit"""
    tree = {d: {str(i): jax.device_put(values(d), s) for i, s in enumerate(shardings())}
            for d in DTYPES}
    n = len(shardings())
    with folder() as at:
        sheaf.save(at, tree)
        for turn in range(n):
            target = {d: {str(i): jax.ShapeDtypeStruct((16, 16), tree[d]["0"].dtype, sharding=
                                                       shardings()[(i + turn) % n])
                          for i in range(n)} for d in DTYPES}
            found = sheaf.load(at, target)
            for d in DTYPES:
                for i in range(n):
                    x = found[d][str(i)]
                    assert x.sharding == shardings()[(i + turn) % n] and x.dtype.name == d
                    assert bits(x) == values(d).tobytes(), (d, i, turn)
                    for s in x.addressable_shards:
                        assert bits(s.data) == values(d)[s.index].tobytes(), (d, i, turn)
        plain = sheaf.load(at, framework="np")
        assert all(type(v["3"]) is np.ndarray and bits(v["3"]) == bits(values(d))
                   for d, v in plain.items())
        with sheaf.open(at, framework="jax") as f:
            part = f["bfloat16.2"][3:5, 1]
            assert isinstance(part, jax.Array) and bits(part) == bits(values("bfloat16")[3:5, 1])


@needs("jax")
def test_what_is_read() -> None:
    """A load reads each distinct shard once, and JAX takes its memory over"""
    with folder() as at:
        x = jax.device_put(values("float32"), sharding((4, 2), "a", None))
        sheaf.save(at, {"x": x})
        place = parts.target(x)
        assert place is not None and sorted(s for _, s in place.boxes()) == [
            (0, 0), (4, 0), (8, 0), (12, 0)]
        held = {start: m.address for m, start in place.boxes()}
        made = place.given()
        mine = [s.data.unsafe_buffer_pointer() == held[(s.index[0].start or 0, 0)]
                for s in made.addressable_shards]
        assert all(mine), mine
        # A function to which it is donated must not write there: replicas share that memory.
        whole = jax.device_put(x, sharding((4, 2)))
        first = sheaf.load(at, {"x": whole})["x"]
        assert len({s.data.unsafe_buffer_pointer() for s in first.addressable_shards}) == 1
        again = jax.jit(lambda v: v + 1, donate_argnums=0)(first)
        for s in again.addressable_shards:
            assert bits(s.data) == bits(values("float32") + 1)


class Stats(NamedTuple):
    mean: Any
    count: Any


def state_of(shape: tuple[int, int], seed: int, cut: bool = True) -> Any:
    """A training state: flax, optax, keys, plain values; with two arrays that are one."""
    import flax
    import optax

    @flax.struct.dataclass
    class State:
        step: int
        params: Any
        opt: Any
        key: Any
        stats: Stats
        apply: Any = flax.struct.field(pytree_node=False, default=None)

    rng = np.random.default_rng(seed)
    put = (lambda x, *spec: jax.device_put(x, sharding(shape, *spec))) if cut else \
        (lambda x, *spec: jnp.asarray(x))
    params = {"dense": {"kernel": put(rng.normal(size=(16, 8)).astype(np.float32), "a", "b"),
                        "bias": put(rng.normal(size=8).astype(np.float32), "b")},
              "embed": put(rng.normal(size=(32, 16)).astype(jnp.bfloat16), ("a", "b"), None)}
    params["head"] = params["embed"]
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    return State(step=seed, params=params, opt=tx.init({"dense": params["dense"]}),
                 key=jax.random.split(jax.random.key(seed), 3),
                 stats=Stats(jnp.float32(seed), seed), apply=tx.update)


@needs("jax", "flax", "optax")
def test_training_state() -> None:
    """A state of flax and optax is loaded on another mesh, on one device, and as plain dicts"""
    saved = state_of((4, 2), 5)
    with folder() as at:
        sheaf.save(at, saved)
        for shape, cut in (((2, 4), True), ((8, 1), True), ((1, 1), False)):
            target = state_of(shape, 1, cut)
            found = sheaf.load(at, target)
            assert same(found.params, saved.params) and same(found.opt, saved.opt)
            assert type(found.opt[1][0]) is type(saved.opt[1][0])
            assert found.step == 5 and found.stats.count == 5 and found.apply is target.apply
            assert type(found.stats) is Stats and bits(found.stats.mean) == bits(np.float32(5))
            assert (found.key == saved.key).all() and found.key.dtype == saved.key.dtype
            jax.tree.map(lambda x, y: x.sharding == y.sharding or 1 / 0,
                         (found.params, found.opt), (target.params, target.opt))
            # What was committed to no device may still go anywhere.
            jax.jit(lambda a, b: a + b)(found.stats.mean, found.params["dense"]["kernel"])
        plain = sheaf.load(at)
        assert set(plain) == {"step", "params", "opt", "key", "stats"}
        assert bits(plain["opt"][1][0]["count"]) == bits(np.int32(0))
        assert plain["params"]["head"] is plain["params"]["embed"]
        with sheaf.open(at) as f:
            assert "params.dense.kernel" in f and "opt.1.0.mu.dense.bias" in f


@needs("jax")
def test_keys() -> None:
    """Keys of jax.random keep their algorithm, and another one is refused"""
    with folder() as at:
        tree = {"k": jax.random.key(3), "many": jax.random.split(jax.random.key(4, impl="rbg"), 6),
                "old": jax.random.PRNGKey(5)}
        sheaf.save(at, tree)
        for found in (sheaf.load(at), sheaf.load(at, dict(tree)), sheaf.load(at, {
                "k": jax.eval_shape(lambda: jax.random.key(0)), "old": jax.random.PRNGKey(0),
                "many": jax.random.split(jax.random.key(0, impl="rbg"), 6)})):
            for name in ("k", "many"):
                assert found[name].dtype == tree[name].dtype and (found[name] == tree[name]).all()
            assert bits(jax.random.normal(found["many"][2])) == \
                bits(jax.random.normal(tree["many"][2]))
            assert bits(found["old"]) == bits(tree["old"])
        with raises(sheaf.Mismatch, "['k']: the tree has keys key<rbg> there, and the checkpoint "
                                    "keys for threefry2x32"):
            sheaf.load(at, {**tree, "k": jax.random.key(0, impl="rbg")})
        with raises(sheaf.Mismatch, "['many']", "(6, 4)"):
            sheaf.load(at, {**tree, "many": jax.random.split(jax.random.key(0, impl="rbg"), 5)})
        with raises(sheaf.Mismatch, "['old']: the tree has keys of jax.random there, and"):
            sheaf.load(at, {**tree, "old": jax.random.key(0)})
        numbers = sheaf.load(at, framework="np")
        assert numbers["k"].tolist() == jax.random.key_data(tree["k"]).tolist()


@needs("jax")
def test_refusals() -> None:
    """What has no place on disk, or would change silently, is refused with a sentence"""
    with folder() as at:
        for dtype in ("int4", "float8_e4m3b11fnuz"):
            with raises(ValueError, "['x']: type %s of JAX has no place" % dtype):
                sheaf.save(at, {"x": jnp.zeros(4, getattr(jnp, dtype))})
        gone = jnp.ones(4)
        gone.delete()
        with raises(ValueError, "['x']: an array of JAX that was deleted or donated"):
            sheaf.save(at, {"x": gone})
        with raises(ValueError, "['x']: an array inside a function that JAX traces"):
            jax.jit(lambda x: sheaf.save(at, {"x": x}))(jnp.ones(4))
        sheaf.save(at, {"x": np.arange(4.0), "y": jnp.arange(4)})
        with raises(sheaf.Mismatch, "['x']", "F32", "F64", "convert=True"):
            sheaf.load(at, {"x": jnp.zeros(4), "y": jnp.zeros(4, int)})
        with raises(sheaf.Mismatch, "['y']: the tree has I32 of shape (5,), and the checkpoint"):
            sheaf.load(at, {"x": np.zeros(4), "y": jnp.zeros(5, int)})
        assert sheaf.load(at, {"x": jnp.zeros(4), "y": jnp.zeros(4, int)},
                          convert=True)["x"].tolist() == [0, 1, 2, 3]
        with raises(TypeError, "JAX makes float32 of float64 here; set jax_enable_x64"):
            sheaf.load(at, framework="jax")
        with raises(TypeError, "['x']: JAX makes float32 of float64"):
            sheaf.load(at, {"x": jax.ShapeDtypeStruct((4,), np.float64), "y": jnp.zeros(4, int)})
        assert sheaf.load(at)["x"].dtype == np.float64


@needs("jax")
def test_of_other_programs() -> None:
    """The tensors of a Hugging Face directory are loaded into shardings, by name"""
    with folder() as at:
        sheaf.save(at, {"w": values("bfloat16"), "b": values("float32")},
                   files={"config.json": {}})
        os.rename(os.path.join(at, "checkpoint-0"), os.path.join(at, "hf"))
        for name in ("tree.json", "sheaf.json", "sheaf.sums"):
            os.remove(os.path.join(at, "hf", name))
        target = {"w": jax.ShapeDtypeStruct((16, 16), jnp.bfloat16, sharding=sharding((4, 2), "a")),
                  "b": jnp.zeros((16, 16))}
        found = sheaf.load(os.path.join(at, "hf"), target)
        assert bits(found["w"]) == bits(values("bfloat16")) and len(found["w"].devices()) == 8
        assert bits(found["b"]) == bits(values("float32"))


@needs("jax", "flax", "optax", "orbax.checkpoint")
def test_beside_orbax() -> None:
    """The same target gives the arrays that Orbax gives, with the same sharding"""
    import orbax.checkpoint as ocp
    saved = state_of((4, 2), 9).replace(key=jnp.arange(3), stats=Stats(jnp.float32(1), 1))
    target = state_of((2, 4), 1).replace(key=jnp.arange(3), stats=Stats(jnp.float32(0), 0))
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, target)
    with folder() as at:
        with ocp.StandardCheckpointer() as theirs:
            theirs.save(os.path.join(at, "orbax"), saved)
            theirs.wait_until_finished()
            orbax = theirs.restore(os.path.join(at, "orbax"), abstract)
        sheaf.save(os.path.join(at, "sheaf"), saved)
        ours = sheaf.load(os.path.join(at, "sheaf"), abstract)
        assert same(ours.params, saved.params) and same(orbax.params, saved.params)
        assert same(ours.opt, orbax.opt) and same(ours.key, orbax.key)
        jax.tree.map(lambda x, y: x.sharding == y.sharding or 1 / 0, (ours.params, ours.opt),
                     (orbax.params, orbax.opt))


def one_of_two(rank: str, port: str, at: str) -> None:
    """One process of a job of two, each with four devices."""
    from mpi4py import MPI
    jax.config.update("jax_cpu_collectives_implementation", "mpi" if port == "mpi" else "gloo")
    jax.distributed.initialize("127.0.0.1:" + port, 2, int(rank))
    group = sheaf.group.mpi4py(MPI.COMM_WORLD)

    def put(x: Any, where: Any) -> Any:
        return jax.make_array_from_callback(x.shape, where, lambda index: x[index])

    tree = {"w": put(values("bfloat16"), sharding((4, 2), "a", "b")),
            "r": put(values("float32"), sharding((4, 2), None, "b")), "step": 4}
    assert not tree["w"].is_fully_addressable
    sheaf.save(at, tree, group=group)
    target = {"w": put(values("bfloat16") * 0, sharding((2, 4), "b", None)),
              "r": put(values("float32") * 0, sharding((8, 1), "a")), "step": 0}
    found = sheaf.load(at, target, group=group)
    for name, dtype in (("w", "bfloat16"), ("r", "float32")):
        assert found[name].sharding == target[name].sharding
        for s in found[name].addressable_shards:
            assert bits(s.data) == values(dtype)[s.index].tobytes(), name
    assert found["step"] == 4
    print("done", flush=True)


@needs("jax", "mpi4py")
def test_two_processes() -> None:
    """Two processes of four devices each save arrays that neither has whole, and load them"""
    port = launched.free_port()
    env = dict(os.environ, XLA_FLAGS="--xla_force_host_platform_device_count=4")
    with folder() as at:
        run = tap.mpirun()
        for rank in range(2):
            run += [":"] * rank + ["-n", "1", sys.executable, __file__, str(rank), str(port),
                                   at]
        done = subprocess.run(run, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=200, env=env)
        assert done.returncode == 0 and done.stdout.count("done") == 2, done.stdout + done.stderr
        found = sheaf.load(at, framework="np")
        assert bits(found["w"]) == bits(values("bfloat16"))
        assert bits(found["r"]) == bits(values("float32"))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        one_of_two(*sys.argv[1:])
    else:
        sys.exit(tap.run(globals()))
