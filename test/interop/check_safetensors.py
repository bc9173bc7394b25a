#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Our reader of safetensors headers against the reference library, on files made here: random
ones, random ones damaged, ones the library wrote, ones it takes by accident.

What we take the library must take, with the same names, dtypes, shapes and bytes; what the library
writes we must take; what we write anew it must take, with the same contents.

usage: check_safetensors.py ST_DUMP [SEED]
Exit 0: all agree; 1: not; 77: no safetensors or NumPy here.
"""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import safetensors
    from safetensors.numpy import save
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

BITS = {"BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64,
        "I64": 64, "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64, "F8_E4M3": 8,
        "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6,
        "F6_E3M2": 6}


NAMES = ("a", "w.", "é", "x/", "\\\"", "\\u00e9", "\\ud83d\\ude00") * 5 + ("\\n", "\x7f")


def pack(text, data):
    text = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype, shape, begin, end):
    return '{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}' % (dtype, shape, begin, end)


def prod(shape):
    n = 1
    for d in shape:
        n *= d
    return n


def random_file(rng):
    members, pos = [], 0
    for i in range(rng.randrange(6)):
        dtype = rng.choice(list(BITS))
        shape = [rng.choice((0, 1, 2, 3, 4, 8)) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 9)))]
        if prod(shape) * BITS[dtype] % 8:
            dtype = "U16"
        n = prod(shape) * BITS[dtype] // 8
        name = rng.choice(NAMES)
        members.append('"%s%d":%s' % (name, i, entry(dtype, shape, pos, pos + n)))
        pos += n
    if rng.random() < 0.7:
        members.append('"__metadata__":%s' % rng.choice(('{}', '{"format":"pt"}', '{"a":"b"}')))
    rng.shuffle(members)
    text = ("{" + ",".join(members) + "}").encode()
    return pack(text + b" " * rng.randrange(9), rng.randbytes(pos))


def damaged(rng, good):
    data = bytearray(good)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data))
        kind = rng.randrange(5)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at >= 8:
            data[at] = rng.choice(b'{}[]",:0123456789.-eE\\u ')
        elif kind == 2:
            del data[max(at, 8):]
        elif kind == 3:
            data += b"\0"
        elif at >= 8:
            data[at:at] = rng.choice((b" ", b"0", b"1", b"-", b".0", b"\\", b'"x":1,', b"[", b"\n"))
    if rng.random() < 0.8 and len(data) >= 8:   # mostly keep the length of the header true
        end = data.find(b"}}", 8)
        data[:8] = struct.pack("<Q", (end + 2 - 8) if end > 0 else 2)
    return bytes(data)


def accidents():
    """What the library takes and a careful reader refuses, and what only looks odd."""
    one = entry("F32", "[2]", 0, 8)
    for text, n in (
            ('{"a":["F32",[2],[0,8]]}', 8), ('{"a":{"dtype":{"F32":null},"shape":[2],'
                                             '"data_offsets":[0,8]}}', 8),
            ('{"__metadata__":null}', 0), (' {}', 0), ('{}\t', 0), ('{}\n', 0), ('{}\0', 0),
            ('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}}', 8),
            ('{"a":%s,"a":%s}' % (one, one), 8), ('{"a":%s,"\\u0061":%s}' % (one, one), 8),
            ('{"__metadata__":{"a":"b","a":"c"}}', 0), ('{"__metadata__":{},"__metadata__":{}}', 0),
            ('{"":%s}' % one, 8), ('{"\\u0000":%s}' % one, 8), ('{"\x7f":%s}' % one, 8),
            ('{"a":%s}' % entry("U8", "[0,4611686018427387904,4611686018427387904]", 0, 0), 0),
            ('{"a":%s}' % entry("U8", "[4611686018427387904,4611686018427387904,0]", 0, 0), 0),
            ('{"a":%s}' % entry("U8", "[0,18446744073709551615]", 0, 0), 0),
            ('{"a":%s}' % entry("U8", str([1] * 10000).replace(" ", ""), 0, 1), 1),
            ('{"a":%s}' % entry("F4", "[2,3]", 0, 3), 3),
            ('{"a":%s}' % entry("F4", "[3]", 0, 2), 2),
            ('{"a":%s}' % entry("U8", "[-0]", 0, 0), 0),
            ('{"a":%s}' % entry("U8", "[2.0]", 0, 2), 2),
            ('{"a":%s,"e":%s}' % (entry("U8", "[2]", 0, 2), entry("U8", "[0]", 1, 1)), 2),
            ('{"a":%s,"e":%s}' % (entry("U8", "[2]", 0, 2), entry("U8", "[0]", 0, 0)), 2),
            ('{"a":%s,"e":%s}' % (entry("U8", "[2]", 0, 2), entry("U8", "[0]", 2, 2)), 2),
            ('{"__metadata__":{"a":%s}}' % ("[" * 100 + "]" * 100), 0), ('{}', 0), ('{}', 1)):
        yield pack(text, bytes(n))


def written_by_the_library(rng):
    for i in range(40):
        tensors = {}
        for k in range(rng.randrange(5)):
            shape = [rng.randrange(4) for _ in range(rng.randrange(4))]
            dtype = rng.choice(("float32", "float16", "uint8", "int64", "bool", "complex64"))
            tensors["t%d.é\"%d" % (k, i)] = np.full(shape, rng.randrange(2), dtype)
        yield save(tensors, rng.choice((None, {}, {"format": "pt"})))


def theirs(data):
    """{name: (dtype, shape, bytes)} or None where the library refuses."""
    try:
        return {n: (t["dtype"], list(t["shape"]), bytes(t["data"]))
                for n, t in safetensors.deserialize(data)}
    except safetensors.SafetensorError:
        return None


def ours(line, data):
    """The same; the shape of a tensor of more dimensions than ours is their number."""
    if not line["ok"]:
        return None
    return {n: (d, s, data[at:at + k]) for n, d, s, at, k in line["tensors"]}


def shown(name):
    """A name with control characters escaped."""
    return "".join("\\u%04x" % ord(c) if ord(c) < 0x20 or 0x7f <= ord(c) < 0xa0 else c
                   for c in name)


def shortened(tensors):
    return {shown(n): (d, s if len(s) <= 8 else len(s), b) for n, (d, s, b) in tensors.items()}


def whatever_it_reads():
    """What the library takes and no program of today writes: we take it, too."""
    for name in ("", "n" * 1025, "n" * 70000, "a\\u0000b", "\\u001b[31m", "\x7f", "\u0085",
                 "/", ".."):
        yield pack('{"%s":%s}' % (name, entry("U8", "[2]", 0, 2)), bytes(2))
    for n in (9, 64, 65, 3000):
        yield pack('{"a":%s}' % entry("U8", "[%s]" % ",".join("1" * n), 0, 1), bytes(1))
    for x in ("1", "null", '"x"', "{}", "[" * 125 + "]" * 125, '{"dtype":"U8"}'):
        yield pack('{"a":{"x":%s,"dtype":"U8","shape":[2],"data_offsets":[0,2]}}' % x, bytes(2))
    for before, after in ((" ", ""), ("\n\t\r ", ""), ("", "\n"), ("", "\t\r\n  ")):
        yield pack('%s{"a":%s}%s' % (before, entry("U8", "[2]", 0, 2), after), bytes(2))
    yield pack('{"__metadata__":null,"a":%s}' % entry("U8", "[2]", 0, 2), bytes(2))


def compare(i, data, line, again, must_take):
    mine, lib = ours(line, data), theirs(data)
    if mine is None:                # of no tensors and no metadata the library writes no JSON
        wrong = must_take and lib is not None
        return [f"{i}: refused: {line['why']}: {data[:200]!r}"] if wrong else []
    if lib is None:
        return [f"{i}: taken, but the library refuses it: {data[:200]!r}"]
    if mine != shortened(lib):
        return [f"{i}: {mine} differs from {lib}"]
    if not os.path.exists(again):
        return []                   # more than 8 dimensions: not written anew
    with open(again, "rb") as f:
        if theirs(f.read()) != {shown(n): t for n, t in lib.items()}:
            return [f"{i}: written anew it differs: {data[:200]!r}"]
    return []


def main():
    rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    files = [(f, True) for f in written_by_the_library(rng)]
    files += [(f, True) for f in whatever_it_reads()]
    files += [(f, False) for f in accidents()]
    for _ in range(600):
        good = random_file(rng)
        files += [(good, False)] + [(damaged(rng, good), False) for _ in range(4)]
    with tempfile.TemporaryDirectory(prefix="sheaf-interop-") as root:
        paths = [os.path.join(root, "in%d" % i) for i in range(len(files))]
        for path, (data, _) in zip(paths, files):
            with open(path, "wb") as f:
                f.write(data)
        done = subprocess.run([sys.argv[1], root], input="\n".join(paths) + "\n", text=True,
                              capture_output=True, check=False)
        lines = [json.loads(x) for x in done.stdout.splitlines()]
        if done.returncode or len(lines) != len(files):
            sys.exit(f"{sys.argv[1]}: exit {done.returncode}: {done.stderr}")
        wrong = []
        for i, ((data, must_take), line) in enumerate(zip(files, lines)):
            wrong += compare(i, data, line, os.path.join(root, str(i)), must_take)
        taken = sum(line["ok"] for line in lines)
        both = sum(theirs(data) is not None for data, _ in files)
    for line in wrong[:20]:
        print(line)
    print(f"{len(files)} files, {taken} taken by us, {both} by the library, {len(wrong)} wrong")
    sys.exit(1 if wrong or taken < 400 else 0)


main()
