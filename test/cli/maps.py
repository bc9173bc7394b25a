#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes small models, and says by loops what maps must make of them.

usage: maps.py page PAGE        prints the map that is the worked example of a page
       maps.py big DIR ROWS COLS SPARSE  a directory with one tensor w; SPARSE 1: of zeros
       maps.py most BYTES CMD...   runs it; fails if it takes more memory
       maps.py make MODEL DIR [KEY...]  a Hugging Face directory; KEY: state of the optimizer, too
       maps.py check MAP HF DIR         compares DIR, which the map made of HF, with what is
                                        said here: names, shapes, types and every item

No dimension of a weight is that of another, and all items of a model are different.
"""
import json
import os
import resource
import struct
import subprocess
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


E, M, S = 5, 7, 9                       # experts, their size, that of the shared one


def experts(at, shared, size):
    out = {at + "gate.weight": [E, C]}
    for e in range(E):
        out.update(mlp(at + "experts.%d." % e, M))
    out.update(mlp(at + shared, size))
    return out


def qwen2moe():
    out = {"model.embed_tokens.weight": [V, C], "model.norm.weight": [C], "lm_head.weight": [V, C]}
    for n in range(L):
        at = "model.layers.%d.mlp." % n
        out.update(layer(n, True, False))
        out.update(experts(at, "shared_expert.", S))
        out[at + "shared_expert_gate.weight"] = [1, C]
    return out


def deepseek(ernie=False):
    """DeepSeek-V2: one dense layer, then experts. Or ERNIE, with other attention."""
    out = {"model.embed_tokens.weight": [V, C], "model.norm.weight": [C], "lm_head.weight": [V, C]}
    for n in range(L):
        at = "model.layers.%d." % n
        out.update(layer(n, False, False))
        if not ernie:
            for k in "qkv":
                del out[at + "self_attn.%s_proj.weight" % k]
            out.update({at + "self_attn.q_a_proj.weight": [9, C],
                        at + "self_attn.q_a_layernorm.weight": [9],
                        at + "self_attn.q_b_proj.weight": [H * 5, 9],
                        at + "self_attn.kv_a_proj_with_mqa.weight": [8 + 3, C],
                        at + "self_attn.kv_a_layernorm.weight": [8],
                        at + "self_attn.kv_b_proj.weight": [H * 6, 8]})
        if n == 0:
            out.update(mlp(at + "mlp.", F))
        else:
            out.update(experts(at + "mlp.", "shared_experts.", 2 * M))
            if ernie:
                out[at + "mlp.moe_statics.e_score_correction_bias"] = [1, E]
            else:
                out[at + "mlp.gate.e_score_correction_bias"] = [E]
    return out


MODELS = {
    "worked": (worked(), {}), "qwen2": (dense(bias=True), {}), "llama": (dense(), {}),
    "qwen3": (dense(norms=True), {}),
    "qwen2moe": (qwen2moe(), {"num_experts": E, "moe_intermediate_size": M,
                              "shared_expert_intermediate_size": S}),
    "deepseek2": (deepseek(), {"first_k_dense_replace": 1, "n_routed_experts": E,
                               "n_shared_experts": 2, "moe_intermediate_size": M}),
    "ernie45moe": (deepseek(ernie=True), {"moe_layer_start_index": 1, "moe_num_experts": E,
                                          "moe_num_shared_experts": 2,
                                          "moe_intermediate_size": M})}


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


def big(path, rows, cols, sparse):
    os.makedirs(path)
    text = json.dumps({"w": {"dtype": "BF16", "shape": [rows, cols],
                             "data_offsets": [0, 2 * rows * cols]}}).encode()
    with open(os.path.join(path, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        if not sparse:
            f.write(os.urandom(2 * rows * cols))
        f.truncate(8 + len(text) + 2 * rows * cols)


def most(limit, command):
    rc = subprocess.call(command)
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    if used > limit:
        sys.exit("it took %d bytes" % used)
    sys.exit(rc)


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
        linear = len(shapes[name]) == 2 and "embed_tokens" not in name
        (want.turn if linear else want.rename)(to, name, shapes)
    return want


def ernie(shapes):
    """Paddle's ERNIE-4.5: fused weights besides, queries, keys and values one after the other."""
    want = Wanted(BASE)
    for name in shapes:
        to = name.replace("model.", "ernie.", 1)
        linear = name.endswith("proj.weight") or ".gate.weight" in name or name == "lm_head.weight"
        if not any(k + "_proj." in name for k in ("q", "k", "v", "gate", "up")):
            (want.turn if linear else want.rename)(to, name, shapes)
    for name in shapes:
        to = name.replace("model.", "ernie.", 1)
        if name.endswith("q_proj.weight"):
            rows = [H * D, G * D, G * D]
            want.put(to.replace("q_proj", "qkv_proj"), [C, sum(rows)], joined(name, "qkv", rows))
        if name.endswith("gate_proj.weight"):
            rows = [shapes[name][0]] * 2
            want.put(to.replace("gate_proj", "up_gate_proj"), [C, sum(rows)],
                     joined(name, ["gate", "up"], rows))
    return want


def joined(name, parts, rows):
    """index -> source, of transposed weights beside one another."""
    def of(i):
        at = i[1]
        for part, n in zip(parts, rows):
            if at < n:
                return name.replace(parts[0] + "_proj", part + "_proj"), (at, i[0])
            at -= n
        return None
    return of


def meta(shapes):
    """Meta's names; the halves of each head of q and k are interleaved."""
    names = {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
             "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk",
             "self_attn.v_proj": "attention.wv", "self_attn.o_proj": "attention.wo",
             "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2",
             "mlp.up_proj": "feed_forward.w3", "model.embed_tokens": "tok_embeddings",
             "model.norm": "norm", "lm_head": "output", "model.layers": "layers"}
    want = Wanted(BASE)
    for name in shapes:
        to = name
        for a, b in names.items():
            to = to.replace(a, b)

        def of(i, name=name):
            if "q_proj" not in name and "k_proj" not in name:
                return name, i
            head, at = divmod(i[0], D)
            return name, (head * D + at % 2 * (D // 2) + at // 2,) + i[1:]
        want.put(to, shapes[name], of)
    return want


def gguf(shapes, swapped):
    """llama.cpp's names; swapped: the halves of each head of q and k are interleaved."""
    names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
             "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
             "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
             "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
             "mlp.gate_proj": "ffn_gate", "mlp.down_proj": "ffn_down", "mlp.up_proj": "ffn_up",
             "model.embed_tokens": "token_embd", "model.norm": "output_norm",
             "lm_head": "output", "model.layers": "blk"}
    want = Wanted(BASE)
    for name in shapes:
        to = name
        for a, b in names.items():
            to = to.replace(a, b)

        def of(i, name=name):
            if not swapped or ("q_proj" not in name and "k_proj" not in name):
                return name, i
            head, at = divmod(i[0], D)
            return name, (head * D + at % 2 * (D // 2) + at // 2,) + i[1:]
        want.put(to, shapes[name], of)
    return want


def megatron_ends(want, pad):
    rows = V + -V % pad
    for to, name in (("embedding.word_embeddings", "model.embed_tokens"),
                     ("output_layer", "lm_head")):
        want.put(to + ".weight", [rows, C],
                 lambda i, name=name: (name + ".weight", i) if i[0] < V else None)
    want.put("decoder.final_layernorm.weight", [C], lambda i: ("model.norm.weight", i))


def gate_up(at, size, tp):
    """index -> source of a gate and an up projection: of each rank one after the other."""
    def of(i):
        rank, row = divmod(i[0], 2 * size // tp)
        which, row = divmod(row, size // tp)
        return (at + "%s_proj.weight" % ("gate", "up")[which], (rank * (size // tp) + row, i[1]))
    return of


def stacked(of):
    """index -> source of tensors of layers in one: of(layer) is that of a layer."""
    return lambda i: of(i[0])(i[1:])


def plain(name):
    return lambda i: (name, i)


def megatron(shapes, tp=1, pad=128):
    """Megatron-Core, torch_dist: all layers in one tensor."""
    want, at = Wanted(BASE), "decoder.layers."
    megatron_ends(want, pad * tp)

    def put(to, shape, of):
        want.put(at + to, [L] + shape, stacked(lambda n: of("model.layers.%d." % n)))
    rows = (H + 2 * G) * D
    put("self_attention.linear_qkv.weight", [rows, C], lambda x: fused(x, "weight"))
    if "model.layers.0.self_attn.q_proj.bias" in shapes:
        put("self_attention.linear_qkv.bias", [rows], lambda x: fused(x, "bias"))
    for k in "qk" if "model.layers.0.self_attn.q_norm.weight" in shapes else "":
        put("self_attention.%s_layernorm.weight" % k, [D],
            lambda x, k=k: plain(x + "self_attn.%s_norm.weight" % k))
    put("self_attention.linear_qkv.layer_norm_weight", [C],
        lambda x: plain(x + "input_layernorm.weight"))
    put("self_attention.linear_proj.weight", [C, H * D],
        lambda x: plain(x + "self_attn.o_proj.weight"))
    moe = "model.layers.0.mlp.gate.weight" in shapes
    put("pre_mlp_layernorm.weight" if moe else "mlp.linear_fc1.layer_norm_weight", [C],
        lambda x: plain(x + "post_attention_layernorm.weight"))
    if not moe:
        put("mlp.linear_fc1.weight", [2 * F, C], lambda x: gate_up(x + "mlp.", F, tp))
        put("mlp.linear_fc2.weight", [C, F], lambda x: plain(x + "mlp.down_proj.weight"))
        return want
    put("mlp.router.weight", [E, C], lambda x: plain(x + "mlp.gate.weight"))
    put("mlp.experts.experts.linear_fc1.weight", [E, 2 * M, C], lambda x: stacked(
        lambda e: gate_up(x + "mlp.experts.%d." % e, M, tp)))
    put("mlp.experts.experts.linear_fc2.weight", [E, C, M], lambda x: stacked(
        lambda e: plain(x + "mlp.experts.%d.down_proj.weight" % e)))
    put("mlp.shared_experts.linear_fc1.weight", [2 * S, C],
        lambda x: gate_up(x + "mlp.shared_expert.", S, tp))
    put("mlp.shared_experts.linear_fc2.weight", [C, S],
        lambda x: plain(x + "mlp.shared_expert.down_proj.weight"))
    put("mlp.shared_experts.gate_weight", [1, C],
        lambda x: plain(x + "mlp.shared_expert_gate.weight"))
    return want


def megatron_mla(shapes):
    """DeepSeek-V2 in Megatron-Core: a tensor for each layer, and experts in one."""
    names = {"input_layernorm": "input_layernorm",
             "self_attn.q_a_proj": "self_attention.linear_q_down_proj",
             "self_attn.q_a_layernorm": "self_attention.linear_q_up_proj.layer_norm_weight",
             "self_attn.q_b_proj": "self_attention.linear_q_up_proj",
             "self_attn.kv_a_proj_with_mqa": "self_attention.linear_kv_down_proj",
             "self_attn.kv_a_layernorm": "self_attention.linear_kv_up_proj.layer_norm_weight",
             "self_attn.kv_b_proj": "self_attention.linear_kv_up_proj",
             "self_attn.o_proj": "self_attention.linear_proj"}
    want = Wanted(BASE)
    megatron_ends(want, 128)
    for n in range(L):
        x, y = "model.layers.%d." % n, "decoder.layers.%d." % n
        for a, b in names.items():
            want.rename(y + b + ("" if b.endswith("_weight") else ".weight"), x + a + ".weight",
                        shapes)
        post = x + "post_attention_layernorm.weight"
        if n == 0:
            want.rename(y + "mlp.linear_fc1.layer_norm_weight", post, shapes)
            want.put(y + "mlp.linear_fc1.weight", [2 * F, C], gate_up(x + "mlp.", F, 1))
            want.rename(y + "mlp.linear_fc2.weight", x + "mlp.down_proj.weight", shapes)
            continue
        want.rename(y + "pre_mlp_layernorm.weight", post, shapes)
        want.rename(y + "mlp.router.weight", x + "mlp.gate.weight", shapes)
        want.rename(y + "mlp.router.expert_bias", x + "mlp.gate.e_score_correction_bias", shapes)
        want.put(y + "mlp.experts.experts.linear_fc1.weight", [E, 2 * M, C], stacked(
            lambda e, x=x: gate_up(x + "mlp.experts.%d." % e, M, 1)))
        want.put(y + "mlp.experts.experts.linear_fc2.weight", [E, C, M], stacked(
            lambda e, x=x: plain(x + "mlp.experts.%d.down_proj.weight" % e)))
        want.put(y + "mlp.shared_experts.linear_fc1.weight", [4 * M, C],
                 gate_up(x + "mlp.shared_experts.", 2 * M, 1))
        want.rename(y + "mlp.shared_experts.linear_fc2.weight",
                    x + "mlp.shared_experts.down_proj.weight", shapes)
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
          "qwen2-hf-paddle": lambda shapes: paddle(shapes, "qwen2."),
          "llama-hf-paddle": lambda shapes: paddle(shapes, "llama."),
          "qwen3-hf-paddle": lambda shapes: paddle(shapes, "qwen3."),
          "qwen2moe-hf-paddle": lambda shapes: paddle(shapes, "qwen2_moe."),
          "hf-paddleformers": lambda shapes: paddle(shapes, "model."),
          "ernie45moe-hf-paddle": ernie, "llama-hf-meta": meta,
          "llama-hf-gguf": lambda shapes: gguf(shapes, True),
          "qwen2-hf-gguf": lambda shapes: gguf(shapes, False),
          "qwen3-hf-gguf": lambda shapes: gguf(shapes, False),
          "qwen2-hf-megatron": lambda shapes: megatron(shapes, tp=2, pad=4),
          "llama-hf-megatron": megatron, "qwen3-hf-megatron": megatron,
          "qwen2moe-hf-megatron": megatron, "deepseek2-hf-megatron": megatron_mla}


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
    elif sys.argv[1] == "big":
        big(sys.argv[2], *map(int, sys.argv[3:6]))
    elif sys.argv[1] == "most":
        most(int(sys.argv[2]), sys.argv[3:])
    elif sys.argv[1] == "make":
        shapes, more = MODELS[sys.argv[2]]
        write(sys.argv[3], shapes, more, sys.argv[4:])
    else:
        check(*sys.argv[2:5])


if __name__ == "__main__":
    main()
