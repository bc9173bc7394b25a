# SPDX-License-Identifier: Apache-2.0
"""Seeds of fuzz_paddle: checkpoints of Paddle, sound and almost sound."""
import json
import pickle
import struct


def text(s):
    return b"X" + struct.pack("<I", len(s)) + s.encode()


def number(v):
    return b"\x8a\x08" + struct.pack("<q", v)


def row(numbers):
    return b"(" + b"".join(map(number, numbers)) + b"t"


def array(dims=(2, 3), dtype="f4", data=b"d" * 24, order="<", fortran=False, encoded=False):
    """An array as NumPy pickles it; encoded: by protocol 2."""
    out = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR(K\x01"
    out += row(dims) + b"cnumpy\ndtype\n(" + text(dtype) + b"\x89\x88tR(K\x03" + text(order)
    out += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb" + (b"\x88" if fortran else b"\x89")
    if encoded:
        out += b"c_codecs\nencode\n(" + text(data.decode("latin1")) + text("latin1") + b"tR"
    else:
        out += b"\x8e" + struct.pack("<Q", len(data)) + data
    return out + b"tb"


def entries(*pairs, protocol=4):
    return b"\x80" + bytes([protocol]) + b"}(" + b"".join(text(k) + v for k, v in pairs) + b"u."


def parts(shape, slices, *pairs):
    info = b"}" + text("w") + b"}(" + text("OriginShape") + row(shape) + text("slices") + b"(" + \
        b"".join(map(text, slices)) + b"lus"
    return entries(*pairs, ("UnpackBigParamInfor@@", info), protocol=3)


LATIN = bytes(range(116, 140))
PARTS = ("p", array((4,), data=b"p" * 16)), ("q", array((2,), data=b"q" * 8))
SAVED = [
    entries(("a", array()), ("StructuredToParameterName@@", b"}" + text("a") + text("w_0") + b"s")),
    entries(("t", b"cbuiltins\ntuple\n(" + text("n") + array() + b"t\x85R")),
    entries(("e", b"cbuiltins\neval\n(" + text("data") + b"}" + text("data") + array() + b"stR")),
    entries(("e", b"cbuiltins\neval\n(" + text("id") + b"}tR"), ("a", array())),
    entries(("a", array(encoded=True, data=LATIN)), protocol=2),
    entries(("a", array(encoded=True, data=LATIN[:23])), protocol=2),
    entries(("a", array(fortran=True)), ("b", array((4, 3), "u2"))),
    entries(("a", array((2, 2**62)))), entries(("a", array((2**62, 2**62, 0), data=b""))),
    entries(("a", array((-1,)))), entries(("a", array(order=">"))),
    entries(("a", array(dtype="V2"))),
    entries(("c", array((3,), "c8")), ("z", array((1,), "c16", b"z" * 16))),
    entries(("s", array((), "f8", b"s" * 8)), ("b", array((8,), "b1", b"\0\1" * 4, "|"))),
    entries(("d", b"}" + text("a") + array() + b"s"), ("l", b"](" + array() + b"K\x01e")),
    parts((2, 3), ("p", "q"), *PARTS), parts((2, 4), ("p", "q"), *PARTS),
    parts((2**62, 4), ("p",), ("p", array((6,)))), parts((2, 3), ("p", "p"), ("p", array((6,)))),
    array() + b".", entries(("a", array()))[:-9], entries(("a", array())) + b"x",
    entries(("x", b"cos\nsystem\n" + text("id") + b"\x85R"), ("a", array())),
]

MODULE = b"cpaddle.distributed.flex_checkpoint.dcp.metadata\n"


def made(name, *pairs):
    return MODULE + name.encode() + b"\n)\x81}(" + b"".join(text(k) + v for k, v in pairs) + b"ub"


def place(key, offset, shape, flat, *more):
    flat = b"\x88" + row(flat) if flat else b"\x89N"
    return [*([("tensor_key", text(key))] if key else []), ("global_offset", row(offset)),
            ("local_shape", row(shape)), ("is_flattened", flat[:1]),
            ("flattened_range", flat[1:]), *more]


def metadata(*tensors, file="0_0.distcp", replica=()):
    """Tensors of (key, whole shape, [(offset, shape, range)])."""
    said = b"".join(text(k) + b"](" + b"".join(
        made("LocalTensorMetadata", *place(None, *p, ("dtype", text("float32")),
                                           ("global_shape", row(whole)))) for p in cut) + b"e"
        for k, whole, cut in tensors)
    places = b"".join(made("LocalTensorIndex", *place(k, *p, *replica)) + text(file)
                      for k, _, cut in tensors for p in cut)
    return b"\x80\x04" + made("Metadata", ("state_dict_metadata", b"}(" + said + b"u"),
                              ("storage_metadata", b"}(" + places + b"u")) + b"."


FLEX = [
    metadata(("a", (2, 3), [((0, 0), (2, 3), None)])),
    metadata(("b", (2, 3), [((0, 0), (2, 3), (0, 6))])),
    metadata(("a", (2, 3), [((0, 0), (2, 3), None)]), ("b", (6,), [((0,), (6,), None)])),
    metadata(("b", (2, 4), [((0, 0), (2, 4), (1, 7))])), metadata(("a", (4, 3), [
        ((0, 0), (2, 3), None)])), metadata(("a", (2, 3), [((1, 0), (2, 3), None)])),
    metadata(("b", (2, 3), [((0, 0), (2, 3), (0, 2**62))])), metadata(("c", (1,), [
        ((0,), (1,), None)])), metadata(("a", (2, 3), [((0, 0), (2, 3), None)]), file="../x"),
    metadata(("a", (2, 3), [((0, 0), (2, 3), None)]), replica=[("replica_id", number(1))]),
    metadata(("a", (2**62, 2**62), [((0, 0), (2**62, 2**62), None)])), metadata(("a", (), [
        ((), (), None)])), metadata(("a", (0, 3), [((0, 0), (0, 3), None)])),
]
FLEX_FILES = [entries(("a", array())), entries(("a", array((3, 2)))), entries(("b", array())),
              entries(("a", array(encoded=True, data=LATIN)), protocol=2),
              pickle.dumps({"a": [1, 2]}, 4)]

STATE = "optimizer-00001-of-00001.safetensors"
INDEXES = [json.dumps(x).encode() for x in (
    {"weight_map": {"w/moment1_0": STATE}, "master_weights": True},
    {"weight_map": {"w/moment1_0": STATE, "w/moment2_0": STATE}, "ckpt_quant_stage": "O1"},
    {"weight_map": {"w/moment2_0": STATE}}, {"weight_map": {"w/moment1_0": "x"}}, {"weight_map": 1},
    {"weight_map": {"w/moment1_0": "model-00001-of-00001.safetensors"}}, {"type": "lora",
                                                                       "weight_map": {}},
    {"quant_ckpt_resume_times": 0}, [1, "\"weight_map\""])]


def meta(shape=(2, 3), split=False, names=None, key="tp00_pp00"):
    return json.dumps({"parallel_config": {}, "sharding_metas": {key: {
        "structure_name_mapping": names or {"w": "linear_0"},
        "param_meta": {"w": [shape, 2, split, 0]}, "sharding_strategy": "ShardingV2"}}}).encode()


METAS = [meta(), meta(split=True), meta([2, 2]), meta([2, 4]), meta([2**62, 2**62]), meta([]),
         meta([0, 3]), meta(names={"w": "linear_0", "v": "linear_0"}), meta(names={"w": 1}),
         meta(key="tp00"), meta(key="tp01_pp00_ep00"), meta("x"), meta([1] * 9),
         meta(names={"w": "linear"})]


def header(**tensors):
    at, out = 0, {}
    for k, (dtype, shape, n) in tensors.items():
        out[k.replace("__", "/")] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n]}
        at += n
    return json.dumps(out).encode()


HEADERS = [header(w__moment1_0=("F32", [6], 24)), header(w__moment1_0=("F32", [2, 3], 24)),
           header(w__moment1_0=("F32", [3, 2], 24)), header(w__moment1_0=("F32", [5], 20),
                                                            w__beta1_pow_acc_0=("F32", [1], 4)),
           header(x__moment1_0=("U16", [12], 24)), header(w__moment1_0=("F32", [1] * 9 + [6], 24)),
           header(w__moment1_0=("F4", [48], 24))]

PADDLE = [bytes([kind]) + x for kind, inputs in enumerate((SAVED, FLEX, FLEX_FILES, INDEXES, METAS,
                                                           HEADERS)) for x in inputs]
