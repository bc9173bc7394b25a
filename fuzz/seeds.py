#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes fuzz/corpus/<target>/: small inputs, sound and almost sound. Deterministic.

usage: seeds.py [FOLDER]     default: corpus beside this file
"""
import json
import os
import pickle
import struct
import sys

from seeds_arrays import ARRAYS
from seeds_deepspeed import DEEPSPEED
from seeds_map import MAP
from seeds_paddle import PADDLE
from seeds_tokenizer import TOKENIZER

POLY, ALL = 0x9A6C9329AC4BC9B5, 2**64 - 1


def crc(data):
    c = ALL
    for b in data:
        c ^= b
        for _ in range(8):
            c = c >> 1 ^ (c & 1) * POLY
    return c ^ ALL


JSON = [
    b'{}', b'[]', b'null', b'true', b'false', b'0', b'-0', b'1.5e-7', b'18446744073709551615',
    b'18446744073709551616', b'""', b'"a"', b'"\\u0000"', b'"\\ud83d\\ude00"', b'"\\ud83d"',
    b'"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"', b'"\xed\xa0\x80"', b'"\\"\\\\\\/\\b\\f\\n\\r\\t"',
    b' \t\r\n{ "a" : [ 1 , 2.0 , { "b" : null } ] } ', b'{"a":1,"a":2}', b'[' * 64 + b']' * 64,
    b'[' * 65 + b']' * 65, b'{"a":' * 63 + b'1' + b'}' * 63, b'[1,]', b'{"a":}', b'01', b'1.', b'-',
    b'"\x01"', b'"a', b'tru', b'{} {}', b'{"k":"v","n":[true,false,null,1e9,"x"]}', b'',
]


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def st(obj, eights, pad=0):
    """A header and the byte that says how long the data is, in units of 8."""
    text = obj if isinstance(obj, bytes) else \
        json.dumps(obj, separators=(",", ":"), ensure_ascii=False).encode()
    return text + b" " * pad + bytes([eights])


PT = {"__metadata__": {"format": "pt"}}
SAFETENSORS = [
    st({}, 0), st(PT, 0, 5), st({**PT, "a": entry("F32", [2], 0, 8)}, 1),
    st({**PT, "a": entry("F32", [2, 2], 0, 16), "b": entry("U8", [8], 16, 24)}, 3),
    st({"b": entry("U8", [8], 16, 24), "a": entry("F32", [2, 2], 0, 16)}, 3),
    st({"e": entry("U8", [0], 0, 0), "a": entry("I64", [], 0, 8), "z": entry("F64", [3, 0], 8,
                                                                             8)}, 1),
    st({"a": entry("F4", [2, 8], 0, 8)}, 1), st({"a": entry("F6_E2M3", [32], 0, 24)}, 3),
    st({"a": entry("F6_E3M2", [3], 0, 8)}, 1), st({"a": entry("U8", [1] * 9 + [8], 0, 8)}, 1),
    st({"a": entry("U8", [8], 0, 8), "b": entry("U8", [8], 4, 12)}, 1),
    st({"a": entry("U8", [8], 8, 16)}, 2), st({"a": entry("U8", [8], 0, 8)}, 2),
    st({"a": entry("U8", [2**62, 2**62, 0], 0, 0)}, 0), st({"a": entry("U8", [2**63 - 1, 0], 0,
                                                                       0)}, 0),
    st({"a": entry("F128", [1], 0, 16)}, 2), st({"": entry("U8", [8], 0, 8)}, 1),
    st({"é\"\\": entry("BF16", [4], 0, 8)}, 1), st({"a": {**entry("U8", [8], 0, 8), "x": 1}}, 1),
    st(b'{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"\\u0061":{"dtype":"U8",'
       b'"shape":[0],"data_offsets":[8,8]}}', 1),
    st(b'{"__metadata__":{"a":"b","a":"c"}}', 0), st(b'{"__metadata__":null}', 0),
    st(b'{"a":["U8",[8],[0,8]]}', 1),
    st(b'{"a":{"dtype":{"U8":null},"shape":[8],"data_offsets":[0,8]}}', 1),
    st(b'{}\t', 0), st(b' {}', 0), st(b'{"a":{"shape":[8],"data_offsets":[0,8]}}', 1),
    st(b'{"a":{"dtype":"U8","shape":[8.0],"data_offsets":[0,8]}}', 1),
    st({d: entry(d, [8], 8 * i * w, 8 * (i + 1) * w) for i, (d, w) in enumerate(
        [(d, 1) for d in "BOOL U8 I8 F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ".split()])},
        8),
    st({d: entry(d, [4], 16 * i, 16 * (i + 1)) for i, d in enumerate("F32 U32 I32".split())}, 6),
    st({"l.%d" % i: entry("U16", [4], 8 * i, 8 * i + 8) for i in range(30)}, 30),
]


def index(names, total=8, **more):
    return json.dumps({"metadata": {"total_size": total}, "weight_map": names, **more},
                      indent=2).encode()


INDEX = [
    index({}), index({"a": "model-00001-of-00001.safetensors"}),
    index({"l.%d" % i: "m-%d.safetensors" % (i // 4) for i in range(12)}),
    index({"a": "f"}, total=1.5e9), index({"a": "f"}, total=None), index({"a": "f"},
                                                                         master_weights=True),
    index({"a": "../f"}), index({"a": "/f"}), index({"a": ""}), index({"": "f"}), index({"a": 1}),
    index({"é\"\\": "é f"}), b'{"weight_map":{}}', b'{"weight_map":{"a":"f","a":"f"}}', b'{}',
    b'[]',
    b'{"metadata":null,"weight_map":{"a":"f"}}', b'{"weight_map":{"a":"f"},"weight_map":{}}',
    b'{"metadata":{},"metadata":{},"weight_map":{}}', b'{"weight_map":{"a\\u0000":"f"}}',
    b'{"weight_map":[1]}', b'{"x":[[{"weight_map":{}}]],"weight_map":{"a":"."}}',
    b'{"weight_map":{"a":"f"}}x',
]


def text(v):
    return json.dumps(v, ensure_ascii=False, separators=(", ", ": "))


def rows(v):
    return "[" + ",".join("\n  " + text(x) for x in v) + "]"


def file(name, n=4096):
    return {"name": name, "bytes": n, "crc": "%016x" % crc(name.encode())}


def manifest(drop=(), **change):
    fields = {
        "sheaf": "1", "needs": "[]", "step": "1000", "session": text("0123456789abcdef" * 2),
        "run": text("fedcba9876543210" * 2),
        "parent": text({"step": 900, "session": "00112233445566778899aabbccddeeff"}),
        "created": text("2026-01-31T12:00:00Z"),
        "writer": text({"version": "0.1.0", "commit": "abc", "compiler": "gcc 12"}),
        "config": "null", "flags": "[]", "page": "4096", "block": "1048576",
        "sum": text("crc64nvme"),
        "file_bytes_max": "5000000000", "ranks": "4", "mesh": text("dp=2,tp=2"),
        "plan": text("0011223344556677"),
        "families": rows([{"name": "model", "dir": ".", "files": 1, "tensors": 2, "bytes": 24},
                          {"name": "ema", "dir": "ema", "files": 1, "tensors": 1, "bytes": 8}]),
        "files": rows([file("model-00001-of-00001.safetensors"),
                       file("ema/ema-00001-of-00001.safetensors")]),
        "attached": rows([file("config.json", 2), file("ema/ema.safetensors.index.json"),
                          file("model.safetensors.index.json")]),
        "tied": rows([["model", "a", "b"]]), "notes": text({"adam.step": "1000", "x": "\n\"é"}),
        "sums": text(file("sheaf.sums", 136)), **change}
    body = "{" + ",\n ".join('"%s": %s' % (k, v) for k, v in fields.items() if k not in drop)
    body = body.encode()
    return body + b',\n "self": "%016x"}\n' % crc(body)


MANIFEST = [
    manifest(), manifest(drop=("mesh",)), manifest(parent="null", config=text("c0ffee")),
    manifest(families="[]", files="[]", attached="[]", tied="[]", notes="{}"), manifest(sheaf="2"),
    manifest(needs='["zstd"]'), manifest(x='[{"y": 1.5}]'), manifest(flags='["no-dir-fsync", "x"]'),
    manifest(step="-1"), manifest(drop=("plan",)), manifest(session=text("../x")),
    manifest(tied="[[1]]"),
    manifest(files=rows([file("../x.safetensors"), file("ema/y.safetensors")])),
    manifest(attached=rows([file("../../x")])), manifest(attached=rows([file("a"), file("a")])),
    manifest(notes='{"a": "b", "a": "c"}'), manifest(tied=rows([["model", "a", "b"], ["model",
                                                                                      "b", "c"]])),
    manifest(parent=text({"step": 1, "session": "ab" * 16, "run": "cd" * 16})),
    manifest(page="8192"),
    manifest().upper(), manifest()[:-1], manifest() + b"\n", manifest()[:100], b"{}", b"",
]


def sums(files, head=None, patch=None):
    """files: (family, header bytes, [(name, dtype number, bytes an item, items)])."""
    recs, tensors, blocks, names = [], [], 0, b""
    for number, (family, at, items) in enumerate(files):
        first, pos = len(tensors), at
        for name, dtype, size, n in items:
            key = family.encode() + b"\0" + name.encode()
            tensors.append([pos, size * n, number, len(key), len(names), crc(key),
                            7 if size * n else 0,
                            dtype, 1, 0, 0, n])
            names += key + b"\0"
            pos += size * n
        n = -(-pos // (1 << 20))
        recs.append(struct.pack("<3Q2I", pos, blocks, first, len(items), at))
        blocks += n
    for i, k in enumerate(sorted(range(len(tensors)), key=lambda i: (tensors[i][5], i))):
        tensors[i][10] = k
    parts = [b"".join(recs), b"".join(struct.pack("<2Q2I3QH2BIQ", *t) for t in tensors),
             b"".join(struct.pack("<Q", 99 + i) for i in range(blocks)), names]
    offs = [128]
    body = b""
    for part in parts:
        body += part + bytes(-len(part) % 64)
        offs.append(128 + len(body))
    counts = [len(recs), len(tensors), blocks, len(names)]
    top = b"SHEAFSUM" + struct.pack("<2I9Q", *(head or (1, 0)), *counts, *offs) + bytes(32)
    data = bytearray(top + struct.pack("<Q", crc(top)) + body)
    for at, value in (patch or {}).items():
        data[at] = value
    pages = b"".join(struct.pack("<Q", crc(data[i:i + 65536])) for i in range(0, len(data), 65536))
    return bytes(data) + pages


ONE = [("model", 4096, [("a", 12, 4, 6), ("b", 2, 1, 3)])]
TWO = ONE + [("optimizer", 4096, [("a/moment1_0", 12, 4, 6), ("e", 2, 1, 0), ("b/moment1_0", 12,
                                                                              4, 1)])]
SUMS = [
    sums([]), sums(ONE), sums(TWO), sums([("model", 4096, [])]), sums(ONE + [("ema", 4096,
                                                                              [])] + TWO[1:]),
    sums([("model", 4096, [("big", 12, 4, 1 << 19), ("c", 2, 1, 1)])]), sums(ONE, head=(2, 0)),
    sums(ONE, head=(1, 1)), sums([("model", 4096, [("a", 2, 1, 1), ("a", 2, 1, 1)])]),
    sums([("Model", 4096, [("a", 2, 1, 1)])]), sums([("model", 4096, [("\n", 2, 1, 1)])]),
    sums([("model", 4096, [("a", 99, 1, 1)])]), sums([("model", 4096, [("l.%d" % i, 11, 2,
                                                                        i) for i in range(40)])]),
    sums(TWO)[:-1], sums(TWO) + b"\0", sums(TWO)[:128], b"SHEAFSUM", b"",
] + [sums(TWO, patch={at: 1}) for at in (16, 24, 40, 48, 88, 128, 136, 144, 152, 192, 193, 212,
                                         216, 224, 242, 244)]

OWNER = b"sheaf-owner 1\nhost node\nboot 0-0\npid_ns 1\npid 2\nstart 3\nsession " + \
    b"0123456789abcdef" * 2 + b"\n"
JOURNAL = b"sheaf-rewind 1\nto 6\nmove 8 0123456789abcdef\nmove 7 ----------------\n"
TEXT = [
    b"\0sheaf-run 1\n" + b"0f" * 16 + b"\n", b"\0sheaf-run 2\nx\n", b"\0", b"\0sheaf-run 1\n",
    b"\2" + OWNER, b"\2" + OWNER + b"sum %016x\n" % crc(OWNER), b"\2" + OWNER.replace(b"2", b"-1"),
    b"\1" + JOURNAL, b"\1" + JOURNAL + b"sum %016x\n" % crc(JOURNAL), b"\1sheaf-rewind 1\nto 1\n",
    b"\3k", b"\3b\n", b"\3x", b"\3kk", b"\4checkpoint-7", b"\4checkpoint-9223372036854775807",
    b"\4checkpoint-9223372036854775808", b"\4checkpoint-007", b"\0047-" + b"0123456789abcdef" * 2,
]


def described(*tensors, **more):
    return json.dumps({"tensors": [dict({"dtype": "F32"}, **t) for t in tensors], **more}).encode()


STATE = [
    described({"name": "a", "shape": [4, 6], "tp_axis": 0}, {"name": "s", "shape": []}),
    described({"name": "a", "shape": [5, 7], "tp_axis": 1, "stage": 0}, adam=True),
    described({"name": "a", "shape": [3]}, {"name": "b", "shape": [3], "tied_to": "a"}),
    described({"name": "e", "shape": [2, 2], "expert": 0, "experts": 4}),
    described({"name": "a", "shape": [2**40, 2**40]}), described({"name": "a", "shape": [0, 9]}),
    described({"name": "q", "dtype": "F4", "shape": [6, 4], "tp_axis": 0}),
    described({"name": "a", "shape": [1] * 9}), described({"name": "", "shape": [1]}),
    described({"name": "a", "shape": [-1]}), described({"name": "a", "shape": [1], "tp_axis": 1}),
    b'{"tensors": {}}', b'{}', b'[]', b'{"tensors": [], "x": 1}', b'{"tensors": [1]}',
]



def card(segs, smalls, rank=1, ranks=3, step=7, image=5000):
    """As lib/memory/image_card.c has it."""
    out = b"0123456789abcdef" * 2 + b"fedcba9876543210" * 2
    out += struct.pack("<qIIQQ", step, rank, ranks, image, len(segs))
    out += b"".join(struct.pack("<IQQQ", *s) for s in segs) + struct.pack("<I", len(smalls))
    out += b"".join(struct.pack("<H", len(n)) + n + struct.pack("<Q", len(b)) for n, b in smalls)
    return out + b"".join(b for _, b in smalls)


ID = b"0123456789abcdef" * 2
CARD = [card([], []), card([(0, 0, 4096, 0), (1, 100, 300, 4096)], [(b"sheaf.json", b"{}")]),
        card([], [(b"a/b", b""), (b"", b"xyz")]), card([(0, 0, 5001, 0)], []),
        card([(0, 9, 9, 0)], []), card([], [], rank=3), card([], [], step=-1), card([], [])[:-1],
        ID + b".12.65.card", ID + b".0.3.image", ID + b".2147483648.1.card", ID + b".1.x.image"]

HAVE_LINE = ID + b" 7 1 3 1f 2e 3d 1 0 5000\n"
HAVE = [b"", HAVE_LINE, HAVE_LINE + b"sum %016x\n" % crc(HAVE_LINE), b"sum %016x\n" % crc(b""),
        ID + b" 9223372036854775807 0 1 ffffffffffffffff 0 0 0 18446744073709551615 0\n",
        HAVE_LINE + ID + b" 8 0 16777216 0 0 0 0 0 0\n", ID + b" 8 0 16777217 0 0 0 0 0 0\n",
        HAVE_LINE + b"x\n", HAVE_LINE[1:], HAVE_LINE[:-1], HAVE_LINE.replace(b"1 3", b"3 3"),
        HAVE_LINE.replace(b" 7 ", b" -7 "), HAVE_LINE + b"sum", HAVE_LINE + b" " * 400 + b"\n",
        HAVE_LINE.replace(b"5000", b"50\x00 0"), HAVE_LINE[:-6] + b"\n", HAVE_LINE[:-1] + b" 9\n"]

# Directories: what it is, how it is loaded, then bends of 8 bytes (fuzz/world.h).
BENDS = 43
DIR = [bytes([what, use]) for what in (2, 4, 9, 16, 22, 24, 1) for use in (0, 5, 32)]
DIR += [bytes([(0, 18, 1)[kind % 3], 1]) + struct.pack("<4BI", kind, which, part, how, value)
        for kind in range(BENDS)
        for which, part, how, value in ((0, 1, 0, 1), (3, 7, 3, 9), (6, 4, 2, 2**32 - 1))]

# Tables that say that they are longer than memory.
DIR += [bytes([0, 1]) + struct.pack("<4BI", BENDS - 1, 0, part, 1, 0xE0000000)
        for part in range(3)]


def text(s):
    s = s.encode()
    return b"X" + struct.pack("<I", len(s)) + s


def number(v):
    return b"\x8a\x08" + struct.pack("<q", v)


def tensor(dims=(2, 3), strides=(3, 1), at=0, items=16, of="Float", key="0", tail=b"", func="_v2"):
    """A tensor as torch pickles it."""
    return (b"ctorch._utils\n_rebuild_tensor" + func.encode() + b"\n((" + text("storage") +
            b"ctorch\n" + of.encode() + b"Storage\n" + text(key) + text("cpu") + number(items) +
            b"tQ" + number(at) + b"(" + b"".join(map(number, dims)) + b"t(" +
            b"".join(map(number, strides)) + b"t\x89ccollections\nOrderedDict\n)R" + tail + b"tR")


def entries(*pairs):
    return b"\x80\x02}(" + b"".join(text(k) + v for k, v in pairs) + b"u."


def call(name, args=b")"):
    return b"c" + name.replace(".", "\n").encode() + b"\n" + args + b"R"


def short(s):
    return b"\x8c" + bytes([len(s)]) + s.encode()


BOMB = b"\x80\x02]q\x00" + b"".join(b"](" + b"h%c" % (i,) * 9 + b"eq%c" % (i + 1,)
                                   for i in range(20)) + b"."
PICKLES = [
    entries(("a", tensor())), entries(("a", tensor()), ("b", tensor(at=3, key="1"))),
    entries(("t", tensor((3, 2), (1, 3)))), entries(("x", tensor((4, 4), (0, 0)))),
    entries(("c", tensor((2,), (1,), of="ComplexFloat", items=8,
                         tail=b"}" + text("conj") + b"\x88s"))),
    entries(("z", tensor((2,), (1,), of="ComplexDouble", items=4))),
    entries(("e", tensor((0, 5), (5, 1), at=99))),
    entries(("s", tensor((), (), of="Double", items=8))),
    entries(("far", tensor((2,), (2**62,)))), entries(("big", tensor((2**62, 2**62), (0, 0)))),
    entries(("neg", tensor((2,), (-1,)))), entries(("at", tensor(at=-1))),
    entries(("lie", tensor(items=17))), entries(("none", tensor(key="9"))),
    entries(("d", b"}(" + text("a") + tensor() + text("b") + b"](K\x01K\x02eu")),
    entries(("d.a", tensor()), ("d", b"}(" + text("a") + tensor() + b"u")),
    entries(("w", tensor((1,) * 12, (1,) * 12))), entries(("v3", tensor(
        func="_v3", of="Byte", items=64, tail=b"ctorch\nuint16\n"))),
    entries(("q", tensor(func="_qtensor"))), tensor() + b".", b"\x80\x02N.",
    entries(("n", b"N"), ("i", b"K\x07"), ("f", b"G" + struct.pack(">d", 0.1)), ("b", b"\x88"),
            ("l", b"\x8a\x09" + b"\x01" * 9), ("t", text("x") + text("y") + b"\x86")),
    b"\x80\x02" + call("os.system", text("id") + b"\x85") + b".",
    b"\x80\x02" + call("posix.system", text("id") + b"\x85") + b".",
    b"\x80\x04" + short("os") + short("system") + b"\x93" + short("id") + b"\x85R.",
    b"\x80\x04" + short("torch") + short("os.system") + b"\x93" + short("id") + b"\x85R.",
    b"(ios\nsystem\n.", b"(cos\nsystem\n" + text("id") + b"o.",
    b"\x80\x02ccopy_reg\n_reconstructor\n(cm\nC\nc__builtin__\nobject\nNtR}" + text("k") +
    tensor() + b"sb.", b"\x80\x02cm\nC\n)\x81}" + text("k") + b"K\x01sb.",
    b"\x80\x02cm\nC\n)}\x92.", b"\x80\x02]q\x00h\x00a.", BOMB,
    b"]" + b"](" * 200 + b"e" * 200 + b".",
    b"\x80\x02" + b"\x85" * 3 + b".", b"N" + b"\x85" * 300 + b".", b"\x80\x06N.",
    b"\x82\x01.", b"\x97.",
    b"I1\n.", b"I01\n.", b"L5L\n.", b"F1.5\n.", b"S'a'\n.", b"Va\n.", b"(lp0\nI1\na.",
    b"(dp0\nVa\nI1\ns.", b"(Va\nI1\nd.", b"N0N.", b"((1N.", b"N2\x86.",
    b"\x8f(K\x01\x90.", b"(K\x01\x91.",
    b"X\xff\xff\xff\x7f.", b"\x8d" + b"\xff" * 8 + b".", b"\x8b\xff\xff\xff\xff.",
    b"q\xff.", b"Nr\xff\xff\xff\xff.",
    b"h\x00.", b"u.", b"t.", b"b.", b"N}b.", b"NR.", b"", b".", b"\x95" + b"\0" * 8 + b"N.",
    b"c\n\n.", b"c" + b"a" * 1001 + b"\nb\n.", b"PX\n.", b"\x8ePK",
]
TORCH = [b"\1" + p for p in PICKLES]
# Files of before torch 1.6: what follows the magic number and the version.
LEGACY = (b"\x80\x02}(" + text("little_endian") + b"\x88" + text("protocol_version") +
          b"M\xe9\x03" + text("type_sizes") + b"}u.")
OLD = [entries(("a", tensor().replace(b"tQ", b"NtQ"))), entries(("a", tensor().replace(
    b"tQ", b"(" + text("7") + number(2) + number(8) + b"ttQ")))]
KEYS = b"\x80\x02](" + text("0") + b"e."
TORCH += [b"\2" + LEGACY + p + KEYS + struct.pack("<q", 16) + b"\7" * 64 for p in OLD]
TORCH += [b"\2" + LEGACY + OLD[0] + KEYS + struct.pack("<q", 2**62) + b"\7" * 64,
          b"\2" + LEGACY.replace(b"\x88", b"\x89") + OLD[0] + KEYS, b"\2" + LEGACY + OLD[0],
          b"\2" + LEGACY + OLD[0] + b"\x80\x02](" + text("0") + text("0") + b"e.",
          b"\2N.N."]


def archive(records, **lies):
    out, table = b"", b""
    for name, data in records:
        at = len(out)
        out += struct.pack("<IHHHHHIIIHH", 0x04034b50, 0, 0x808, 0, 0, 0, 0, 0, 0, len(name), 0)
        out += name + data
        table += struct.pack("<IHHHHHHIIIHHHHHII", 0x02014b50, 0, 0, lies.get("flags", 0x808),
                             lies.get("method", 0), 0, 0, 1, len(data), len(data), len(name), 0, 0,
                             0, 0, 0, lies.get("at", at)) + name
    n = lies.get("n", len(records))
    return out + table + struct.pack("<IHHHHIIH", 0x06054b50, 0, 0, n, n, len(table),
                                     lies.get("dir", len(out)), 0) + lies.get("tail", b"")


ONE = [(b"x/data.pkl", PICKLES[0]), (b"x/data/0", b"\7" * 64)]
TORCH += [b"\0" + z for z in (
    archive(ONE), archive(ONE + ONE[1:]), archive(ONE, flags=1), archive(ONE, method=8),
    archive(ONE, n=9), archive(ONE, at=5), archive(ONE, dir=2**32 - 1), archive(ONE, tail=b"x"),
    archive(ONE + [(b"x/byteorder", b"big")]), archive(ONE + [(b"x/constants.pkl", b"N.")]),
    archive([(b"../x/data.pkl", PICKLES[0]), (b"../x/data/0", b"\7" * 64)]), archive([]),
    archive(ONE[1:]), archive(ONE) + archive(ONE), archive(ONE)[:-1])]


def made(name, state=b""):
    return b"ctorch.distributed.checkpoint." + name.encode() + b"\n)\x81" + state


def fields(**values):
    return b"}(" + b"".join(text(k) + v for k, v in values.items()) + b"ub"


def sized(*dims):
    return b"ctorch\nSize\n(" + b"".join(map(number, dims)) + b"t\x85R"


def chunk(start, count):
    return made("metadata\nChunkStorageMetadata", fields(offsets=sized(*start),
                                                         sizes=sized(*count)))


def stored(size, *chunks, dtype=b"float32"):
    return made("metadata\nTensorStorageMetadata", fields(
        properties=made("metadata\nTensorProperties", b"(ctorch\n" + dtype + b"\nNNNNtb"),
        size=sized(*size), chunks=b"](" + b"".join(chunks) + b"e"))


def placed(name, offset, at, length, path="__0_0.distcp", more=b""):
    return (made("metadata\nMetadataIndex", fields(fqn=text(name), offset=offset)) +
            made("filesystem\n_StorageInfo", b"}(" + text("relative_path") + text(path) +
                 text("offset") + number(at) + text("length") + number(length) + more + b"ub"))


def metadata(tensors, places):
    return b"\x80\x02" + made("metadata\nMetadata", fields(
        state_dict_metadata=b"}(" + b"".join(text(k) + v for k, v in tensors) + b"u",
        storage_data=b"}(" + b"".join(places) + b"u")) + b"."


WHOLE = ("w", stored((2, 3), chunk((0, 0), (2, 3))))
AT = placed("w", sized(0, 0), 0, 338)
BYTE = ("n", made("metadata\nBytesStorageMetadata"))
DCP = [
    metadata([WHOLE], [AT]), metadata([WHOLE, BYTE], [AT, placed("n", b"N", 338, 123)]),
    metadata([("w", stored((4, 3), chunk((0, 0), (2, 3)), chunk((2, 0), (2, 3))))],
             [AT, placed("w", sized(2, 0), 0, 338)]),
    metadata([("w", stored((2, 3), chunk((0, 0), (2, 3)), chunk((2, 0), (0, 3))))], [AT]),
    metadata([("w", stored((2, 3), chunk((0, 0), (2, 3)), chunk((0, 0), (1, 3))))], [AT]),
    metadata([("w", stored((3, 3), chunk((0, 0), (2, 3))))], [AT]),
    metadata([("w", stored((2, 3), chunk((0, 0), (2, 3)), dtype=b"int32"))], [AT]),
    metadata([WHOLE], [placed("w", sized(0, 0), 2**62, 338)]),
    metadata([WHOLE], [placed("w", sized(0, 0), 0, 337)]), metadata([WHOLE], []),
    metadata([WHOLE, WHOLE], [AT]), metadata([("w", stored((2**62, 4)))], []),
    metadata([WHOLE], [placed("w", sized(0, 0), 0, 338, "../__0_0.distcp")]),
    metadata([WHOLE], [placed("w", sized(0, 0), 0, 338, "nothing")]),
    metadata([WHOLE], [placed("w", sized(0, 0), 0, 338,
                              more=text("transform_descriptors") + b"](" + text("zstd") + b"e")]),
]
TORCH += [b"\3" + m for m in DCP]
# Values that are shared very often, and keys that are no names.
MANY = [
    b"\x80\x02}" + text("k" * 4000) + b"q\x00Ns" + b"h\x00Ns" * 300 + b".",
    b"\x80\x02]((" + b"K\x01" * 1000 + b"lq\x00" + b"h\x00" * 500 + b"e.",
    b"\x80\x02](" + tensor() + b"q\x01" + b"h\x01" * 1000 + b"e.",
    b"\x80\x02}(" + text("k" * 5000) + tensor() + text("__metadata__") + tensor() +
    b"K\x01\x85" + tensor() + text("a") + tensor() + b"u.",
    b"\x80\x02ctorch._utils\n_rebuild_device_tensor_from_cpu_tensor\n(" + tensor() +
    b"ctorch\nint32\n" + text("xpu") + b"\x89tR.",
]
MODEL = (b"\x80\x02(" + text("module") + b"cm\nNet\n" + text("f") + text("s") + b"tQ)\x81}" +
         text("w") + tensor().replace(b"tQ", b"NtQ") + b"sb.")
TORCH += [b"\1" + p for p in MANY] + [
    b"\2" + LEGACY + MODEL + KEYS + struct.pack("<q", 16) + b"\7" * 64,
    b"\3" + metadata([WHOLE], [AT, placed("w", sized(0, 0), 1, 337)])]


def transformed(*names, at=461, n=347):
    return b"\3" + metadata([WHOLE], [placed(
        "w", sized(0, 0), at, n, more=text("transform_descriptors") + b"](" +
        b"".join(map(text, names)) + b"e")])


TORCH += [transformed("stream.zstd/1"), transformed("stream.zstd/1", n=346),
          transformed("stream.zstd/1", at=0), transformed("stream.zstd/1.5"),
          transformed("stream.zstd/1", "aes/1")]


def shared(shape=(4, 3), mesh=(2,), ranks=(0, 1), cut=({"type": "Shard", "dim": 0},), **more):
    """metadata.pkl of torch_checkpointing."""
    data = {"global_shape": list(shape), "dtype": "torch.float32", "stride": [3, 1],
            "mesh_spec": {"device_type": "cpu", "mesh_shape": mesh, "mesh_data": ranks,
                          "mesh_dim_names": None}, "placements": list(cut)}
    boxes = {"global_shape": list(shape), "global_offsets": [[0, 0]], "local_offsets": [[0, 0]],
             "local_sizes": [[2, 3]], "dtype": "torch.float32"}
    said = [{"type": "default_tensor_v1", "data": {**boxes, "global_offsets": [[2 * i, 0]]}}
            for i in range(2)] if not cut else [{"type": "DTensorShardingMetadata", "data": data}]
    return b"\5" + pickle.dumps({"metadata": {"m": {
        "nested_path_to_metadata": {'["w"]': [{"sharding_metadata": x, "ranks": (i,)}
                                              for i, x in enumerate(said)]},
        "rank_to_layout_info": {0: None, 1: {"file_path": "m_1.pt", "serialization_format": {
            "type": "TorchSerialization"}}}}}, "world_size": 2, "version": "2.0", **more}, 4)


SS = {"type": "StridedShard", "dim": 0, "split_factor": 2}
TORCH += [shared(), shared(cut=()), shared(cut=(SS,)), shared((2, 3), cut=({"type": "Replicate"},)),
          shared((4, 3), ranks=(0, 0)), shared((3, 3)), shared(version="1.0"),
          shared(world_size=1), shared((2**62, 2**62)), shared(mesh=(2**40,)),
          shared((2, 6), cut=({"type": "Shard", "dim": 1},)),
          shared(cut=({"type": "Shard", "dim": 2},)), shared(ranks=(0, 7)),
          shared((1, 3), mesh=(1, 2), cut=(SS, {"type": "Shard", "dim": 0}))]

# The decoders alone, from the seeds of whole checkpoints.
PICKLE = [bytes([i % 4]) + p for i, p in enumerate(
    p for p in PICKLES + MANY + [s[1:] for s in TORCH if s[0] in (3, 5)] + [
        s[1:] for s in PADDLE if s[1:2] == b"\x80"] if len(p) < 600)]
ZIP = [s[1:] for s in TORCH if s[0] == 0] + [s[1:] for s in ARRAYS if s[0] == 1]
ZARR = [bytes([s[0] - 7]) + s[1:] for s in ARRAYS if s[0] in (7, 8)]
OCDBT = [bytes([s[0] - 3]) + s[1:] for s in ARRAYS if s[0] in (3, 4, 5)]


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "corpus")
    for target, inputs in (("json", JSON), ("safetensors", SAFETENSORS), ("index", INDEX),
                           ("manifest", MANIFEST), ("sums", SUMS), ("dir", DIR),
                           ("text", TEXT), ("state", STATE), ("card", CARD),
                           ("have", HAVE), ("pickle", PICKLE), ("zip", ZIP),
                           ("zarr", ZARR), ("ocdbt", OCDBT), ("torch", TORCH),
                           ("arrays", ARRAYS), ("paddle", PADDLE),
                           ("deepspeed", DEEPSPEED), ("map", MAP), ("tokenizer", TOKENIZER)):
        folder = os.path.join(root, target)
        os.makedirs(folder, exist_ok=True)
        for i, data in enumerate(inputs):
            with open(os.path.join(folder, "%02d" % i), "wb") as f:
                f.write(data)


if __name__ == "__main__":
    main()
