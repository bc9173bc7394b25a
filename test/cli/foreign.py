#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes checkpoints as others write them, with struct alone.

usage: foreign.py KIND PATH

hf      a directory: config.json, two files, an index     qwen    a tiny Qwen2 model, whole
single  one file                                          link    hf, as a hub cache of links
and of one file: short (its data are cut), hole (offsets leave a gap), overlap, long (bytes after
the data), header (its length runs out of the file), json (no JSON), twice (a name twice), dtype
(an unknown one), deep (a thousand brackets), name (control characters), bidi (one that turns the
line around); and nine, turned (the same from behind), ninety: so many dimensions
"""
import json
import os
import struct
import sys


def st(path, tensors, header=None, tail=b""):
    """tensors: (name, dtype, shape, bytes)"""
    entries, data = {"__metadata__": {"format": "pt"}}, b""
    for name, dtype, shape, raw in tensors:
        entries[name] = {"dtype": dtype, "shape": shape,
                         "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(entries).encode() if header is None else header
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data + tail)


def f32(n, start=0.0, by=0.5):
    return struct.pack("<%df" % n, *[start + by * i for i in range(n)])


def index(path, weight_map):
    with open(os.path.join(path, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"metadata": {"total_size": 0}, "weight_map": weight_map}, f)


def config(path, **more):
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
        json.dump(dict({"architectures": ["BertModel"], "model_type": "bert"}, **more), f)


def hf(path, where=None):
    os.makedirs(path)
    where = where or path
    os.makedirs(where, exist_ok=True)
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    st(os.path.join(where, one), [("a.weight", "F32", [4, 3], f32(12)),
                                  ("a.bias", "F32", [3], f32(3, 7))])
    st(os.path.join(where, two), [("b.weight", "F16", [2, 2], struct.pack("<4H", 1, 2, 3, 4)),
                                  ("b.ids", "I64", [3], struct.pack("<3q", -1, 0, 1 << 40))])
    if where != path:
        for name in (one, two):
            os.symlink(os.path.join(os.path.abspath(where), name), os.path.join(path, name))
    index(path, {"a.weight": one, "a.bias": one, "b.weight": two, "b.ids": two})
    config(path)


def qwen(path):
    os.makedirs(path)
    v, c, h, k, d, f = 11, 8, 2, 1, 4, 12
    shapes = {"model.embed_tokens.weight": [v, c], "model.norm.weight": [c]}
    for n in range(2):
        at = "model.layers.%d." % n
        shapes.update({
            at + "input_layernorm.weight": [c], at + "post_attention_layernorm.weight": [c],
            at + "self_attn.q_proj.weight": [h * d, c], at + "self_attn.q_proj.bias": [h * d],
            at + "self_attn.k_proj.weight": [k * d, c], at + "self_attn.k_proj.bias": [k * d],
            at + "self_attn.v_proj.weight": [k * d, c], at + "self_attn.v_proj.bias": [k * d],
            at + "self_attn.o_proj.weight": [c, h * d], at + "mlp.gate_proj.weight": [f, c],
            at + "mlp.up_proj.weight": [f, c], at + "mlp.down_proj.weight": [c, f]})
    tensors = []
    for name in sorted(shapes):
        items = 1
        for n in shapes[name]:
            items *= n
        tensors.append((name, "F32", shapes[name], f32(items)))
    st(os.path.join(path, "model.safetensors"), tensors)
    config(path, architectures=["Qwen2ForCausalLM"], model_type="qwen2", vocab_size=v,
           hidden_size=c, num_hidden_layers=2, num_attention_heads=h, num_key_value_heads=k,
           intermediate_size=f, tie_word_embeddings=True)
    with open(os.path.join(path, "tokenizer.json"), "w", encoding="utf-8") as out:
        out.write("{}")


ONE = [("w", "F32", [2, 3], f32(6)), ("b", "F32", [3], f32(3, 9))]


def entry(dtype, shape, start, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def broken(kind, path):
    if kind == "short":
        st(path, ONE)
        os.truncate(path, os.path.getsize(path) - 4)
    elif kind == "long":
        st(path, ONE, tail=b"\0\0\0\0")
    elif kind == "header":
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", 1 << 40) + b"{}")
    elif kind == "json":
        st(path, [], b'{"w": ')
    elif kind == "twice":
        st(path, [("w", "U8", [1], b"1")], b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
           b'"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}')
    elif kind == "deep":
        st(path, [], b'{"w":' + b"[" * 1000 + b"]" * 1000 + b"}")
    else:
        header = {
            "hole": {"w": entry("U8", [2], 0, 2), "b": entry("U8", [2], 3, 5)},
            "overlap": {"w": entry("U8", [3], 0, 3), "b": entry("U8", [3], 2, 5)},
            "dtype": {"w": entry("F31", [5], 0, 5)},
            "name": {"w\u001b[31m\u0085": entry("U8", [5], 0, 5)},
            "longname": {"n" * 5000: entry("U8", [5], 0, 5)},
            "empty": {"": entry("U8", [5], 0, 5)},
            "unknown": {"w": dict(entry("U8", [5], 0, 5), note={"by": [[["somebody"]]]})},
            "bidi": {"w\u202ez": entry("U8", [5], 0, 5)},
            "nine": {"w": entry("U8", [1] * 8 + [5], 0, 5)},
            "turned": {"w": entry("U8", [5] + [1] * 8, 0, 5)},
            "ninety": {"w": entry("U8", [1] * 89 + [5], 0, 5)},
        }[kind]
        st(path, [("x", "U8", [5], b"12345")], json.dumps(header).encode())


def main():
    kind, path = sys.argv[1:3]
    if kind == "hf":
        hf(path)
    elif kind == "link":
        hf(path, path + ".blobs")
    elif kind == "qwen":
        qwen(path)
    elif kind == "single":
        st(path, ONE)
    elif kind == "other":               # as single, with one value another
        st(path, [("w", "F32", [2, 3], f32(5) + f32(1, 2.75)), ONE[1]])
    elif kind == "f64":                 # as single, in F64
        st(path, [("w", "F64", [2, 3], struct.pack("<6d", *[0.5 * i for i in range(6)])),
                  ("b", "F64", [3], struct.pack("<3d", 9, 9.5, 10))])
    elif kind == "nan":                 # two NaN of other bits, an infinity
        st(path, [("w", "F32", [3], struct.pack("<3I", 0x7fc00000, 0x7fc00001, 0x7f800000))])
    elif kind == "nan2":
        st(path, [("w", "F32", [3], struct.pack("<3I", 0x7fc00000, 0x7fc00000, 0x7f7fffff))])
    else:
        broken(kind, path)


if __name__ == "__main__":
    main()
