# SPDX-License-Identifier: Apache-2.0
"""Seeds of fuzz_arrays: NumPy and GGUF files, stores of Zarr, sound and almost sound."""
import json
import struct
import zlib


def npy(header, data=b"d" * 24, version=1):
    text = header.encode() + b"\n"
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + data


def head(descr="'<f4'", order="False", shape="(2, 3)"):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


NPY = [npy(head()), npy(head(order="True")), npy(head(), version=2), npy(head(), version=3),
       npy(head(shape="()"), b"d" * 4), npy(head(shape="(6,)")), npy(head(shape="(0, 3)"), b""),
       npy(head("'<c16'", shape="(1,)"), b"c" * 16), npy(head("'>f4'")), npy(head("'|O'")),
       npy(head("[('x', '<f4'), ('y', '<i2', (2,))]")), npy(head(shape="(2, 4)")),
       npy(head(shape="(4611686018427387904, 8)")), npy(head()[:-1]), npy(head(), version=9)]


def archive(*records):
    """A zip archive; a record is compressed if it comes with True."""
    out, entries = b"", b""
    for name, data, packed in records:
        body = zlib.compress(data, 6)[2:-4] if packed else data
        same = struct.pack("<HHHIIIHH", 8 if packed else 0, 0, 0, zlib.crc32(data), len(body),
                           len(data), len(name), 0)
        entries += struct.pack("<IHHH", 0x02014b50, 20, 20, 0) + same + \
            struct.pack("<HHHII", 0, 0, 0, 0, len(out)) + name
        out += struct.pack("<IHH", 0x04034b50, 20, 0) + same + name + body
    return out + entries + struct.pack("<IHHHHIIH", 0x06054b50, 0, 0, len(records), len(records),
                                       len(entries), len(out), 0)


ARRAY = npy(head())
NPZ = [archive((b"a.npy", ARRAY, False), (b"b.npy", ARRAY, True)), archive((b"a.npy", ARRAY, True)),
       archive((b"a.npy", ARRAY, False), (b"x", b"x", False)),
       archive((b"a.npy", npy(head("'|O'")), True)), archive((b"a.npy", ARRAY, True))[:-1],
       archive((b"a.npy", b"", True), (b"b.npy", ARRAY * 2, True))]


def words(s):
    return struct.pack("<Q", len(s)) + s


def gguf(values, tensors, data=b"d" * 64, version=3):
    body = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values))
    body += b"".join(words(k) + v for k, v in values)
    for name, dims, kind, at in tensors:
        body += words(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        body += struct.pack("<IQ", kind, at)
    return body + b"\0" * (-len(body) % 32) + data


def value(kind, form, *v):
    return struct.pack("<I" + form, kind, *v)


VALUES = [(b"t", struct.pack("<I", 8) + words(b"text")), (b"u", value(4, "I", 7)),
          (b"f", value(6, "f", 1.5)), (b"b", value(7, "B", 1)), (b"i", value(11, "q", -1)),
          (b"a", value(9, "IQ", 8, 2) + words(b"x") + words(b"")),
          (b"n", value(9, "IQIII", 4, 3, 1, 2, 3)), (b"general.alignment", value(4, "I", 32))]
GGUF = [gguf(VALUES, [(b"w", (3, 2), 0, 0), (b"h", (4,), 30, 32)]), gguf([], []),
        gguf([], [(b"q", (32,), 2, 0)]), gguf([], [(b"q", (33,), 2, 0)]),
        gguf([], [(b"w", (2**40, 2**40), 0, 0)]), gguf([], [(b"w", (3,), 99, 0)]),
        gguf([], [(b"w", (3,), 0, 33)]), gguf([], [(b"w", (300,), 0, 0)]), gguf([], [], version=1),
        gguf([(b"x", value(9, "IQ", 9, 1))], []), gguf([(b"x", value(13, "I", 1))], []),
        gguf([(b"general.alignment", value(4, "I", 0))], []),
        gguf([(b"x", value(9, "IQ", 8, 2**60))], [])]


def varint(v):
    out = b""
    while v >= 128:
        out += bytes([v & 127 | 128])
        v >>= 7
    return out + bytes([v])


def files(*names):
    """A table of data files without common prefixes: (base, rest)."""
    return varint(len(names)) + b"\0" * (len(names) - 1) + \
        b"".join(varint(len(a + b)) for a, b in names) + \
        b"".join(varint(len(a)) for a, _ in names) + b"".join(a + b for a, b in names)


CONFIG = b"0123456789abcdef" + b"\0\x64\x80\x40\x04\x00"


def manifest(versions, table=files((b"", b"v")), config=CONFIG):
    columns = [varint(v[0]) for v in versions], [bytes([v[1]]) for v in versions], \
        *([varint(v[i]) for v in versions] for i in (2, 3, 4))
    return config + table + varint(len(versions)) + b"".join(b"".join(c) for c in columns) + \
        b"\0" * 3 * len(versions) + b"\1" * 8 * len(versions) + b"\0"


META_2 = {"chunks": [6], "compressor": None, "dtype": "|u1", "fill_value": None, "filters": None,
          "order": "C", "shape": [6], "zarr_format": 2}


def js(value, **more):
    return json.dumps({**value, **more}, separators=(",", ":")).encode()


def leaf(entries, height=0, table=files((b"", b"v")), values=None):
    """Of (key, value) pairs, a value is bytes, or a place of (file, offset, length)."""
    keys = [k for k, _ in entries]
    out = bytes([height]) + table + varint(len(keys)) + b"\0" * (len(keys) - 1)
    out += b"".join(varint(len(k)) for k in keys) + b"".join(keys)
    here = [isinstance(v, bytes) for _, v in entries]
    out += b"".join(varint(len(v) if h else v[2]) for h, (_, v) in zip(here, entries))
    out += bytes(0 if h else 1 for h in here)
    for i in (0, 1):
        out += b"".join(varint(v[i]) for h, (_, v) in zip(here, entries) if not h)
    return out + b"".join(v for h, (_, v) in zip(here, entries) if h) + (values or b"")


LEAF = leaf([(b"a/.zarray", js(META_2)), (b"a/0", (0, 3, 6))])
SIZE = 162                      # of the leaf that the target has
MANIFESTS = [manifest([(1, 0, 0, 64, 155)]), manifest([(1, 0, 0, 64, SIZE)]),
             manifest([(1, 0, 0, 2**64 - 1, 2**64 - 1), (2, 0, 0, 64, SIZE)]),
             manifest([(2, 0, 0, 0, 9), (1, 0, 0, 64, SIZE)]), manifest([(1, 3, 0, 64, SIZE)]),
             manifest([(1, 0, 1, 64, SIZE)]),
             manifest([(1, 0, 0, 64, SIZE)], files((b"../", b"v"))),
             manifest([]), manifest([(1, 0, 0, 64, SIZE)], files((b"", b"v"), (b"p/", b"d/x"))),
             manifest([(1, 0, 0, 2**40, 9)]), manifest([(1, 0, 0, 64, SIZE)], config=CONFIG[:16] +
                                                       b"\1" + CONFIG[17:])]
LEAVES = [LEAF, leaf([(b"a/.zarray", js(META_2)), (b"a/0", b"inline")]),
          leaf([(b"a/.zarray", js(META_2, compressor={"id": "zstd"})), (b"a/0", (0, 0, 20))]),
          leaf([(b"zarr.json", b"{}")]), leaf([(b"b", b""), (b"a", b"")]), leaf([]),
          leaf([(b"a", (1, 0, 1))]), leaf([(b"a", (0, 2**40, 1))]), leaf([(b"a", b"x")], 1),
          leaf([(b"a", b"x")], values=b"tail"), leaf([(b"\1", b"x")]), LEAF[:-1],
          bytes([1]) + files((b"", b"v")) + b"\1\1\1a\0\x40\x40\1\1\1"]
BELOW = [leaf([(b".zarray", js(META_2)), (b"0", (0, 3, 6))]), leaf([(b"x", b"y")])]
META_3 = {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
          "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
          "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
          "data_type": "uint16", "fill_value": 3, "node_type": "array", "shape": [7],
          "zarr_format": 3}
SHARDS = {"name": "sharding_indexed", "configuration": {
    "chunk_shape": [2], "codecs": ["bytes"], "index_codecs": ["bytes", "crc32c"],
    "index_location": "start"}}
TURNED = {"name": "transpose", "configuration": {"order": [1, 0]}}
METAS_2 = [js(META_2, chunks=[8], shape=[9]), js(META_2, chunks=[4, 4], shape=[7, 5]),
           js(META_2, chunks=[], shape=[], dtype="<f8"),
           js(META_2, dtype="<f4", chunks=[2], shape=[3]),
           js(META_2, dtype="<f4", chunks=[2], shape=[30], fill_value="NaN"), js({}),
           js(META_2, chunks=[4, 4], shape=[7, 5], order="F", dimension_separator="/"),
           js(META_2, compressor={"id": "blosc", "cname": "lz4"}),
           js(META_2, shape=[2**62, 2**62], chunks=[2**62, 2**62]),
           js(META_2, dtype=[["x", "<f4"]]), js(META_2, shape=[0], chunks=[0])]
METAS_3 = [js(META_3), js(META_3, codecs=["bytes", "zstd"]), js(META_3, codecs=[SHARDS]),
           js(META_3, codecs=[TURNED, "bytes"], shape=[7, 5], chunk_grid={
               "name": "regular", "configuration": {"chunk_shape": [4, 2]}}),
           js(META_3, data_type="complex128", fill_value=[0.0, 0.0]),
           js(META_3, data_type="bfloat16", fill_value="-Infinity", shape=[40]),
           js(META_3, codecs=["bytes", "crc32c", "zstd", "crc32c"]), js({"zarr_format": 3,
                                                                        "node_type": "group"}),
           js(META_3, codecs=[]), js(META_3, shape=[1] * 9), js(META_3, node_type=3)]


def zstd(data):
    """A frame with one raw block."""
    return b"\x28\xb5\x2f\xfd\x00\x50" + struct.pack("<I", len(data) << 3 | 1)[:3] + data


GZIP = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
ITEMS = bytes(range(16))
BLOSC = b"\x02\x01\x02\x02" + struct.pack("<III", 16, 16, 32) + ITEMS
INDEX = struct.pack("<4Q", 0, 17, 17, 17)
CHUNKS = [b"\0" + zstd(ITEMS), b"\0" + zstd(ITEMS + b"x"), b"\0" + zstd(ITEMS)[:-1],
          b"\1" + GZIP + zlib.compress(ITEMS)[2:-4] + struct.pack("<II", zlib.crc32(ITEMS), 16),
          b"\2" + BLOSC + b"0000", b"\2" + BLOSC[:-1] + b"0000", b"\3" + zstd(ITEMS + b"0000"),
          b"\4" + zstd(ITEMS[:8]) + zstd(ITEMS[8:]) + INDEX,
          b"\4" + zstd(ITEMS[:8]) + struct.pack("<4Q", 0, 17, 2**64 - 1, 2**64 - 1),
          b"\4" + struct.pack("<4Q", 2**63, 2**63, 0, 99)]


def node(keys, kind="jax.Array"):
    return {"key_metadata": [{"key": k, "key_type": 2} for k in keys],
            "value_metadata": {"value_type": kind, "skip_deserialize": False}}


TREES = [js({"tree_metadata": {"('a', 'b')": node(["a", "b"])}, "use_ocdbt": False}),
         js({"tree_metadata": {"('a', 'b')": node(["a", "b"]), "x": node(["x"], "None")},
             "store_array_data_equal_to_fill_value": True}),
         js({"tree_metadata": {"x": node(["x"])}}), js({"tree_metadata": {}}), js({}),
         js({"tree_metadata": {"x": {"key_metadata": 3}}}), b'{"tree_metadata":{"x":{']
ARRAYS = [bytes([k]) + seed for k, seeds in enumerate(
    [NPY, NPZ, GGUF, MANIFESTS, LEAVES, BELOW,
     [b"\x0c\xdb\x3a\x2a" + struct.pack("<QBB", 18, 0, 0) + b"0000"], METAS_2, METAS_3, CHUNKS,
     TREES]) for seed in seeds]
