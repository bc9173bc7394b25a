#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small checkpoints with the real Orbax and TensorStore, and what they give back for each.

usage: make_orbax.py FOLDER [NAME ...], the names of those to be made; all

orbax-expected.jsonl has one line a checkpoint, as make_torch.py writes them. The values of those of
Orbax are what it restores itself, under the names of its arrays: keys joined by dots. The values of
the others are what TensorStore reads. The files of this folder were made by Orbax 0.12.8,
TensorStore 0.1.86 and JAX 0.10.2 (CPU, 4 devices) with Python 3.11.
"""
import hashlib
import json
import os
import shutil
import sys

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
try:
    import jax
    import jax.numpy as jnp
    import ml_dtypes
    import numpy as np
    import orbax.checkpoint as ocp
    import tensorstore as ts
except ImportError:
    print("1..0 # SKIP orbax is not installed")
    sys.exit(77)

NAMES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64",
         "int32": "I32", "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32",
         "uint16": "U16", "uint8": "U8", "bool": "BOOL", "complex64": "C64", "complex128": "F64",
         "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "int4": "I8"}
STEPS = (5, 10)


def described(a):
    """What sheaf must list of an array, and the digest of its items."""
    a = np.asarray(a)
    shape = list(a.shape) + ([2] if a.dtype == np.complex128 else [])
    if a.dtype == ml_dtypes.int4:
        a = a.astype(np.int8)
    return [NAMES[a.dtype.name], shape, hashlib.sha256(a.tobytes("C")).hexdigest()]


def listed(tree, prefix=""):
    """The leaves that are arrays, by their names."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    out = {}
    for path, leaf in leaves:
        name = ".".join(str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k))))
                        for k in path)
        if not isinstance(leaf, str):
            out[prefix + name] = described(leaf)
    return out


def tree():
    """Sharded over two axes, and of every type that is read; numbers, a list, a text, zeros."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    cut = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a", "b"))
    rng = np.random.default_rng(3)
    kinds = {}
    for name in ("float32", "float16", "bfloat16", "int32", "int16", "int8", "uint32", "uint16",
                 "uint8", "bool", "complex64", "float8_e4m3fn", "float8_e5m2"):
        bits = rng.integers(0, 2, 21, np.uint8) if name == "bool" else rng.integers(0, 100, 21)
        kinds[name] = jnp.asarray(bits.astype(name)).reshape(3, 7)
    return {"params": {"dense": {"kernel": jax.device_put(
        jnp.asarray(rng.standard_normal((8, 6)), jnp.float32), cut),
        "bias": jnp.arange(6, dtype=jnp.bfloat16)}},
        "opt_state": [{"mu": jnp.ones((3, 5))}, {"count": jnp.int32(3)}],
        "kinds": kinds, "zeros": jnp.zeros((4, 4)), "step": 7, "rate": 2.5,
        "wide": np.arange(5)}


def restored(path):
    return ocp.PyTreeCheckpointer().restore(os.path.abspath(path))


def make_item(name, ocdbt, zarr3):
    """One tree, in the folder itself."""
    value = tree()
    if not ocdbt:
        value["text"] = "words"
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt, use_zarr3=zarr3)
    with ocp.Checkpointer(handler) as saver:
        saver.save(os.path.abspath(name), value)
    return listed(restored(name))


def make_run(name):
    """A run of CheckpointManager, whose saves have one item."""
    with ocp.CheckpointManager(os.path.abspath(name)) as run:
        for step in STEPS:
            value = tree()
            value["step"] = step
            run.save(step, args=ocp.args.StandardSave(value), metrics={"loss": 1.0 / step})
        run.wait_until_finished()
    return listed(restored(f"{name}/{STEPS[-1]}/default"))


def make_items(name):
    """A save with several items, one of them JSON."""
    value = tree()
    with ocp.CheckpointManager(os.path.abspath(name)) as run:
        run.save(3, args=ocp.args.Composite(
            state=ocp.args.StandardSave(value["params"]), ema=ocp.args.PyTreeSave(value["params"]),
            extra=ocp.args.JsonSave({"epoch": 3, "dataset": "small"})))
        run.wait_until_finished()
    return {**listed(restored(f"{name}/3/state"), "state."),
            **listed(restored(f"{name}/3/ema"), "ema.")}


def codecs_3(*after, inner=None):
    """The codecs of Zarr 3 of an array, or of shards of chunks of this shape."""
    plain = [{"name": "bytes", "configuration": {"endian": "little"}}, *after]
    index = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    return [{"name": "sharding_indexed", "configuration": {
        "chunk_shape": inner, "codecs": plain, "index_codecs": index}}] if inner else plain


ZSTD = {"name": "zstd", "configuration": {"level": 3}}
CRC = {"name": "crc32c"}


def turned_3(order):
    return {"name": "transpose", "configuration": {"order": order}}


def blosc_2(cname, shuffle):
    return {"compressor": {"id": "blosc", "cname": cname, "clevel": 5, "shuffle": shuffle}}


BLOSC_3 = {"name": "blosc", "configuration": {"cname": "zstd", "clevel": 5, "shuffle": "shuffle",
                                              "typesize": 4, "blocksize": 0}}
# Arrays of 23 x 17: chunks at the border are not whole. name: driver, metadata.
KINDS = {
    "plain": ("zarr", {"compressor": None}),
    "zlib": ("zarr", {"compressor": {"id": "zlib", "level": 6}}),
    "zstd": ("zarr", {"compressor": {"id": "zstd", "level": 3}}),
    "blosc_lz4": ("zarr", blosc_2("lz4", 1)), "blosc_zstd": ("zarr", blosc_2("zstd", 2)),
    "blosc_zlib": ("zarr", blosc_2("zlib", 0)), "blosc_snappy": ("zarr", blosc_2("snappy", 1)),
    "fortran": ("zarr", {"compressor": None, "order": "F"}),
    "fortran_zstd": ("zarr", {"compressor": {"id": "zstd", "level": 3}, "order": "F"}),
    "slashes": ("zarr", {"compressor": None, "dimension_separator": "/"}),
    "plain_3": ("zarr3", {"codecs": codecs_3()}),
    "zstd_3": ("zarr3", {"codecs": codecs_3(ZSTD)}),
    "gzip_3": ("zarr3", {"codecs": codecs_3({"name": "gzip", "configuration": {"level": 5}})}),
    "blosc_3": ("zarr3", {"codecs": codecs_3(BLOSC_3)}),
    "crc_3": ("zarr3", {"codecs": codecs_3(CRC)}),
    "crc_zstd_3": ("zarr3", {"codecs": codecs_3(ZSTD, CRC)}),
    "zstd_crc_3": ("zarr3", {"codecs": codecs_3(CRC, ZSTD)}),
    "turned_3": ("zarr3", {"codecs": [turned_3([1, 0]), *codecs_3(ZSTD)]}),
    "dots_3": ("zarr3", {"codecs": codecs_3(), "chunk_key_encoding": {
        "name": "v2", "configuration": {"separator": "."}}}),
    "shards_3": ("zarr3", {"codecs": codecs_3(ZSTD, inner=[4, 3])}),
    "shards_plain_3": ("zarr3", {"codecs": codecs_3(inner=[4, 3])}),
    "shards_crc_3": ("zarr3", {"codecs": codecs_3(CRC, inner=[4, 3])}),
}


def array_of(store, name, driver, metadata, shape, chunk, dtype, fill=None):
    grid = {"chunks": chunk} if driver == "zarr" else {"chunk_grid": {
        "name": "regular", "configuration": {"chunk_shape": chunk}}}
    if fill is not None:
        grid["fill_value"] = fill
        grid["dtype" if driver == "zarr" else "data_type"] = "<i2" if driver == "zarr" \
            else dtype.name
    return ts.open({"driver": driver, "kvstore": {**store, "path": name + "/"}
                    if store["driver"] == "ocdbt" else {**store, "path": f"{store['path']}{name}/"},
                    "metadata": {**metadata, **grid}}, create=True, dtype=dtype,
                   shape=shape).result()


def make_arrays(name, kinds, ocdbt):
    """Arrays of TensorStore: one for each way to make a chunk, and some that are not full."""
    path = os.path.abspath(name) + "/"
    rng = np.random.default_rng(4)
    store = {"driver": "file", "path": path}
    if ocdbt:
        # Small nodes make a tree of several levels, and each write a version.
        store = {"driver": "ocdbt", "base": "file://" + path, "config": {
            "max_decoded_node_bytes": 300, "max_inline_value_bytes": 30, "version_tree_arity_log2":
            2, "compression": {"id": "zstd"} if ocdbt == "zstd" else None,
            "manifest_kind": "numbered" if ocdbt == "numbered" else "single"}}
    made = {}
    for kind in kinds:
        driver, metadata = KINDS[kind]
        made[kind] = array_of(store, kind, driver, metadata, [23, 17], [16, 12], ts.float32)
        made[kind][...] = rng.integers(0, 50, (23, 17)).astype(np.float32)
    made["holes"] = array_of(store, "holes", "zarr", {"compressor": None}, [10, 9], [4, 4],
                             ts.int16, -3)
    made["holes"][4:8, 2:9] = np.arange(28, dtype=np.int16).reshape(4, 7)
    made["unwritten"] = array_of(store, "unwritten", "zarr3", {"codecs": codecs_3(ZSTD)}, [3],
                                 [2], ts.float32, "NaN")
    made["half"] = array_of(store, "half", "zarr3", {"codecs": codecs_3(inner=[2])}, [9], [4],
                            ts.bfloat16, 1.5)
    made["half"][2:5] = np.array([2, 3, 4], ml_dtypes.bfloat16)
    made["cube"] = array_of(store, "cube", "zarr3", {"codecs": [turned_3([2, 0, 1]), *codecs_3()]},
                            [5, 4, 3], [2, 3, 2], ts.complex128)
    made["cube"][...] = (np.arange(60) + 1j * np.arange(60)[::-1]).reshape(5, 4, 3)
    made["nibbles"] = array_of(store, "nibbles", "zarr3", {"codecs": codecs_3()}, [6], [4],
                               ts.int4)
    made["nibbles"][...] = np.arange(-3, 3).astype(ml_dtypes.int4)
    # Items of less than a byte are not read.
    return {n: described(a.read().result()) for n, a in made.items() if n != "nibbles"}


def make_single(name):
    """One array that is the whole directory."""
    a = ts.open({"driver": "zarr", "kvstore": "file://" + os.path.abspath(name) + "/"},
                create=True, dtype=ts.float32, shape=[70, 50]).result()
    a[...] = np.random.default_rng(5).integers(0, 9, (70, 50)).astype(np.float32)
    return {"array": described(a.read().result())}


FEW = ("plain", "zstd", "blosc_lz4", "shards_3", "zstd_3")
MAKERS = {
    "orbax-ocdbt": lambda n: make_item(n, True, False),
    "orbax-ocdbt3": lambda n: make_item(n, True, True),
    "orbax-zarr": lambda n: make_item(n, False, False),
    "orbax-zarr3": lambda n: make_item(n, False, True),
    "orbax-run": make_run,
    "orbax-items": make_items,
    "zarr-arrays": lambda n: make_arrays(n, KINDS, None),
    "zarr-ocdbt": lambda n: make_arrays(n, FEW, "zstd"),
    "zarr-ocdbt-plain": lambda n: make_arrays(n, FEW, "none"),
    "zarr-ocdbt-numbered": lambda n: make_arrays(n, ("zstd",), "numbered"),
    "zarr-single": make_single,
}


def main(folder, *names):
    os.chdir(folder)
    lines = {}
    if names and os.path.exists("orbax-expected.jsonl"):
        with open("orbax-expected.jsonl", encoding="utf-8") as f:
            lines = {json.loads(line)["path"]: line for line in f}
    for name in names or MAKERS:
        shutil.rmtree(name, ignore_errors=True)
        tensors = MAKERS[name](name)
        lines[name] = json.dumps({"path": name, "format": name.split("-", maxsplit=1)[0],
                                  "orbax": ocp.__version__, "verify": 2,
                                  "tensors": tensors}) + "\n"
    with open("orbax-expected.jsonl", "w", encoding="utf-8") as f:
        f.writelines(lines[n] for n in MAKERS if n in lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
