# SPDX-License-Identifier: Apache-2.0
"""Writes databases OCDBT as TensorStore does, uncompressed, with holes as large values."""
import json
import os
import struct


def crc32c(data):
    table = []
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (0x82f63b78 if i & 1 else 0)
        table.append(i)
    c = 0xffffffff
    for byte in data:
        c = c >> 8 ^ table[(c ^ byte) & 255]
    return c ^ 0xffffffff


def varint(v):
    out = b""
    while v >= 128:
        out += bytes([v & 127 | 128])
        v >>= 7
    return out + bytes([v])


def column(values):
    return b"".join(map(varint, values))


def coded(magic, body):
    data = struct.pack(">I", magic) + struct.pack("<Q", len(body) + 18) + b"\0\0" + body
    return data + struct.pack("<I", crc32c(data))


DATA = b"d/0"
FILES = varint(1) + varint(len(DATA)) + varint(0) + DATA


def write(folder, arrays):
    """Writes arrays of bytes; arrays: the size of each, by name. All but the last 4 KiB is a
    hole."""
    os.makedirs(os.path.join(folder, "d"))
    keys, places = [], []
    with open(os.path.join(folder, "d", "0"), "wb") as f:
        for name in sorted(arrays):
            meta = {"chunks": [arrays[name]], "compressor": None, "dtype": "|u1",
                    "fill_value": None, "filters": None, "order": "C", "shape": [arrays[name]],
                    "zarr_format": 2}
            for key, value in ((".zarray", json.dumps(meta).encode()), ("0", bytes(4096))):
                size = len(value) if key != "0" else arrays[name]
                keys.append(f"{name}/{key}".encode())
                places.append((f.tell(), size))
                f.seek(size - len(value), os.SEEK_CUR)
                f.write(value)
        root = f.tell()
        n = len(keys)
        f.write(coded(0x0cdb20de, b"\0" + FILES + varint(n) + bytes(n - 1) +
                      column(map(len, keys)) + b"".join(keys) + column(s for _, s in places) +
                      b"\1" * n + bytes(n) + column(at for at, _ in places)))
        size = f.tell() - root
    with open(os.path.join(folder, "manifest.ocdbt"), "wb") as f:
        f.write(coded(0x0cdb3a2a, bytes(16) + b"\0" + varint(100) + varint(8 << 20) + b"\4\0" +
                      FILES + b"\1\1\0\0" + varint(root) + varint(size) + bytes(3) + bytes(8) +
                      b"\0"))
