#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes small models, and says by loops what maps must make of them.

usage: maps.py page PAGE        prints the map that is the worked example of a page
       maps.py make MODEL DIR [KEY...]  a Hugging Face directory; KEY: state of the optimizer, too
       maps.py check MAP HF DIR         compares DIR, which the map made of HF, with what is
                                        said here: names, shapes, types and every item

No dimension of a weight is that of another, and all items of a model are different.
"""
import json
import os
import struct
import sys

from foreign import st

# hidden, heads, kv heads, head dim, intermediate, vocabulary, layers
C, H, G, D, F, V, L = 10, 6, 2, 4, 14, 22, 3
BASE = {"hidden_size": C, "num_attention_heads": H, "num_key_value_heads": G,
        "intermediate_size": F, "vocab_size": V, "num_hidden_layers": L, "head_dim": D}


def layer(n, bias, norms):
    at = "model.layers.%d." % n
    out = {at + "input_layernorm.weight": [C], at + "post_attention_layernorm.weight": [C],
           at + "self_attn.q_proj.weight": [H * D, C], at + "self_attn.k_proj.weight": [G * D, C],
           at + "self_attn.v_proj.weight": [G * D, C], at + "self_attn.o_proj.weight": [C, H * D]}
    for k, heads in (("q", H), ("k", G), ("v", G)):
        if bias:
            out[at + "self_attn.%s_proj.bias" % k] = [heads * D]
    for k in "qk" if norms else "":
        out[at + "self_attn.%s_norm.weight" % k] = [D]
    return out


def mlp(at, f):
    return {at + "gate_proj.weight": [f, C], at + "up_proj.weight": [f, C],
            at + "down_proj.weight": [C, f]}


def dense(bias=False, norms=False):
    out = {"model.embed_tokens.weight": [V, C], "model.norm.weight": [C], "lm_head.weight": [V, C]}
    for n in range(L):
        out.update(layer(n, bias, norms))
        out.update(mlp("model.layers.%d.mlp." % n, F))
    return out


def worked():
    """The model of the worked example in doc/mapping.md."""
    out = {"model.embed_tokens.weight": [V, C], "model.norm.weight": [C], "model.norm.bias": [C],
           "rotary.inv_freq": [D]}
    for n in range(L):
        at = "model.layers.%d." % n
        out.update({at + "self_attn.q_proj.weight": [H * D, C], at + "mlp.up_proj.weight": [F, C],
                    at + "self_attn.k_proj.weight": [G * D, C],
                    at + "self_attn.v_proj.weight": [G * D, C]})
    return out


MODELS = {"qwen2": (dense(bias=True), {}), "worked": (worked(), {})}


def write(path, shapes, more, keys):
    os.makedirs(path)
    tensors, at = [], 0
    for name in sorted(shapes):
        items = 1
        for n in shapes[name]:
            items *= n
        values = range(at, at + items)
        at += items
        tensors.append((name, "BF16", shapes[name], struct.pack("<%dH" % items, *values)))
        for i, key in enumerate(keys):
            tensors.append((name + "/" + key, "F32", shapes[name],
                            struct.pack("<%df" % items, *[v + (i + 1) * 100000 for v in values])))
    st(os.path.join(path, "model.safetensors"), tensors)
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
        json.dump(dict(BASE, **more), f)


def read(path):
    """name: (dtype, shape, items)"""
    out = {}
    with open(os.path.join(path, "model.safetensors"), "rb") as f:
        data = f.read()
    n, = struct.unpack("<Q", data[:8])
    for name, e in json.loads(data[8:8 + n]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + n + x for x in e["data_offsets"])
        code, size = {"BF16": ("H", 2), "F32": ("f", 4)}[e["dtype"]]
        out[name] = (e["dtype"], e["shape"],
                     struct.unpack("<%d%s" % ((end - begin) // size, code), data[begin:end]))
    return out


def indices(shape):
    out = [()]
    for n in shape:
        out = [i + (k,) for i in out for k in range(n)]
    return out


def offset(shape, index):
    at = 0
    for n, i in zip(shape, index):
        at = at * n + i
    return at


def same(index):
    return index


def turned(index):
    return index[::-1]


class Wanted:
    """What a map must make: name: (shape, index -> (name, index) in the source)."""

    def __init__(self, config):
        self.config, self.tensors = config, {}

    def put(self, name, shape, of):
        assert name not in self.tensors, name
        self.tensors[name] = (shape, of)

    def rename(self, name, source, shapes):
        self.put(name, shapes[source], lambda i: (source, i))

    def turn(self, name, source, shapes):
        self.put(name, shapes[source][::-1], lambda i: (source, turned(i)))


def paddle(shapes, prefix):
    """PaddleNLP: other names, and weights of linear layers are [in, out]."""
    want = Wanted(BASE)
    for name in shapes:
        to = name.replace("model.", prefix, 1) if name.startswith("model.") else name
        linear = name.endswith("proj.weight") or name == "lm_head.weight"
        (want.turn if linear else want.rename)(to, name, shapes)
    return want


def grouped(row):
    """The tensor (q, k or v) and its row, of a row of the fused ones of Megatron."""
    group, rest = divmod(row, (H // G + 2) * D)
    head, d = divmod(rest, D)
    if head < H // G:
        return "q", (group * (H // G) + head) * D + d
    return "kv"[head - H // G], group * D + d


def fused(at, tail=""):
    """index -> source of a fused tensor of queries, keys and values of a layer."""
    def of(i):
        which, row = grouped(i[0])
        return (at + "self_attn.%s_proj.%s" % (which, tail), (row,) + i[1:])
    return of


def worked_example(shapes):
    want, rows = Wanted(BASE), (H + 2 * G) * D
    want.put("embedding.weight", [V + -V % 8, C],
             lambda i: ("model.embed_tokens.weight", i) if i[0] < V else None)
    want.put("decoder.qkv.weight", [L, rows, C],
             lambda i: fused("model.layers.%d." % i[0], "weight")(i[1:]))
    for n in range(L):
        want.turn("decoder.%d.up.weight" % n, "model.layers.%d.mlp.up_proj.weight" % n, shapes)
    for tail in ("weight", "bias"):
        want.rename("decoder.final_norm." + tail, "model.norm." + tail, shapes)
    return want


CHECKS = {"worked": worked_example,
          "qwen2-hf-paddle": lambda shapes: paddle(shapes, "qwen2.")}


def check(kind, hf, path):
    have, got = read(hf), read(path)
    shapes = {name: t[1] for name, t in have.items() if "/" not in name}
    keys = sorted({name.split("/")[1] for name in have if "/" in name})
    want = CHECKS[kind](shapes).tensors
    names = sorted(name + tail for name in want for tail in [""] + ["/" + k for k in keys])
    if names != sorted(got):
        sys.exit("names: %s" % sorted(set(names) ^ set(got)))
    for name in names:
        base, _, key = name.partition("/")
        tail = "/" + key if key else ""
        shape, of = want[base]
        if got[name][1] != list(shape):
            sys.exit("%s has shape %s, want %s" % (name, got[name][1], shape))
        for i in indices(shape):
            source = of(i)
            dtype, value = "F32" if key else "BF16", 0
            if source:
                dtype, whole, items = have[source[0] + tail]
                value = items[offset(whole, source[1])]
            if got[name][0] != dtype or got[name][2][offset(shape, i)] != value:
                sys.exit("%s %s: %s %s, want %s %s" % (name, i, got[name][0],
                                                       got[name][2][offset(shape, i)], dtype,
                                                       value))


def main():
    if sys.argv[1] == "page":
        with open(sys.argv[2], encoding="utf-8") as f:
            sys.stdout.write(f.read().split("```map\n")[1].split("```")[0])
    elif sys.argv[1] == "make":
        shapes, more = MODELS[sys.argv[2]]
        write(sys.argv[3], shapes, more, sys.argv[4:])
    else:
        check(*sys.argv[2:5])


if __name__ == "__main__":
    main()
