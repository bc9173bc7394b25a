#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The recipes of train/configs, small: that of the King James Bible on a text of its form, with the
data that train/kjv.py makes of it, and the fine-tuning of Qwen2-0.5B on a tiny model. Prints TAP;
what needs the Python package tokenizers is left out by name where it is not installed.

usage: recipes.py SHEAF-TRAIN [--whole]

--whole   fine-tunes a model of the size of Qwen2-0.5B, with random weights, for one step of 256
          tokens; it takes about 10 GiB of memory and 4 GB in the folder of temporary files
"""
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile

from trainrun import ROOT, Claims, train

KJV = os.path.join(ROOT, "train/kjv.py")
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 300}
WHOLE = {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
         "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936}


class World:
    def __init__(self, program, at):
        self.program, self.at, self.claims = program, at, Claims()

    def path(self, name):
        return os.path.join(self.at, name)

    def kjv(self, *args):
        return subprocess.run([sys.executable, KJV, self.path("kjv"), *args], capture_output=True,
                              text=True)


def read_safetensors(path):
    """The header, and a function that gives the bytes of a tensor."""
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(n))

    def bytes_of(name, most=None):
        begin, end = header[name]["data_offsets"]
        with open(path, "rb") as f:
            f.seek(8 + n + begin)
            return f.read(min(end - begin, most or end - begin))
    return header, bytes_of


# ---- kjv ----

def verses():
    rng = random.Random(7)
    words = ["and", "the", "of", "it came to pass", "in those days,", "seven", "sheaves", "bowed",
             "down", "unto", "\u00c6neas"]
    return ["".join(rng.choice(words) + " " for _ in range(rng.randint(3, 12))).strip() + "."
            for _ in range(2850)]


def check_kjv(w):
    try:
        import tokenizers
    except ImportError:
        w.claims.skip("the data of kjv", "the package tokenizers is not installed")
        return
    text = verses()
    with open(w.path("bible"), "w", encoding="utf-8") as f:
        f.writelines("Ge%d:%d %s\n" % (i // 50 + 1, i % 50 + 1, v) for i, v in enumerate(text))
    done = w.kjv("--text", w.path("bible"))
    w.claims.check(done.returncode == 0, "train/kjv.py makes the data", done.stdout, done.stderr)
    want = {"held-out": [text[700:800], text[2700:2800]],
            "train": [text[:700], text[800:2700], text[2800:]]}
    tokenizer = tokenizers.Tokenizer.from_file(w.path("kjv/tokenizer.json"))
    end = tokenizer.token_to_id("<|endoftext|>")
    for name, documents in want.items():
        documents = ["".join(v + "\n" for v in d) for d in documents]
        header, data = read_safetensors(w.path("kjv/%s.safetensors" % name))
        n = header["tokens"]["shape"][0]
        tokens = list(struct.unpack("<%dH" % n, data("tokens")))
        begins = struct.unpack("<%dq" % (len(documents) + 2), data("documents"))
        parts = [tokenizer.decode(tokens[a:b - 1]) for a, b in zip(begins[1:], begins[2:])]
        with open(w.path("kjv/%s.txt" % name), encoding="utf-8") as f:
            same = f.read() == "".join(documents)
        w.claims.check(parts == documents and same and tokens[0] == end and
                       tokens.count(end) == len(documents) + 1,
                       "%s has these verses, and begins with the end of a document" % name)
    check_kjv_training(w)
    with open(w.path("bible"), "w", encoding="utf-8") as f:
        f.writelines("Ge1:%d %s\n" % (i, v) for i, v in enumerate(text[:300]))
    done = w.kjv("--text", w.path("bible"))
    w.claims.check(done.returncode == 2 and "there are 300 verses" in done.stderr,
                   "a text without verses that are held out is refused", done.stderr)


def check_kjv_training(w):
    job = train(w.program, None, 1, "train/configs/kjv.yaml", "--run", w.path("run"), "--data",
                w.path("kjv/train.safetensors"), "--eval-data", w.path("kjv/held-out.safetensors"),
                "--steps", 6, "--warmup", 1, "--batch", 4, "--seq", 64, "--eval-every", 0)
    loss = [e["loss"] for e in job.of("step")]
    w.claims.check(job.status == 0 and len(loss) == 6 and loss[-1] < loss[0] - 0.5,
                   "the recipe kjv trains", loss, job.err)
    done = w.kjv("--bits", w.path("run/events.jsonl"))
    e, size = job.of("eval")[-1], os.path.getsize(w.path("kjv/held-out.txt"))
    header, _ = read_safetensors(w.path("kjv/held-out.safetensors"))
    bits = e["loss"] * (header["tokens"]["shape"][0] - 1) / size / math.log(2)
    w.claims.check("step 6: %.4f bits per held-out byte" % bits in done.stdout,
                   "bits are those of all tokens over all bytes", done.stdout, done.stderr, bits)


# ---- a model of Hugging Face ----

def write_model(at, shape):
    """A Qwen2 in bf16 as on a hub: matrices between 2^-7 and 2^-5, norms 1, biases 0."""
    h, kv = shape["hidden_size"], shape["num_key_value_heads"] * shape["hidden_size"] // \
        shape["num_attention_heads"]
    f, tensors = shape["intermediate_size"], {"model.norm.weight": [h],
                                              "model.embed_tokens.weight": [shape["vocab_size"], h]}
    for i in range(shape["num_hidden_layers"]):
        for name, size in (("input_layernorm.weight", [h]),
                           ("post_attention_layernorm.weight", [h]),
                           ("self_attn.q_proj.weight", [h, h]), ("self_attn.q_proj.bias", [h]),
                           ("self_attn.k_proj.weight", [kv, h]), ("self_attn.k_proj.bias", [kv]),
                           ("self_attn.v_proj.weight", [kv, h]), ("self_attn.v_proj.bias", [kv]),
                           ("self_attn.o_proj.weight", [h, h]), ("mlp.gate_proj.weight", [f, h]),
                           ("mlp.up_proj.weight", [f, h]), ("mlp.down_proj.weight", [h, f])):
            tensors["model.layers.%d.%s" % (i, name)] = size
    header, end = {}, 0
    for name, size in sorted(tensors.items()):
        begin, end = end, end + 2 * math.prod(size)
        header[name] = {"dtype": "BF16", "shape": size, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng, signs = random.Random(5), bytes(0x3C if i % 2 else 0xBC for i in range(256))
    os.mkdir(at)
    with open(os.path.join(at, "model.safetensors"), "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, size in sorted(tensors.items()):
            n = math.prod(size)
            items = bytearray(2 * n)
            if len(size) == 2:
                items[0::2], items[1::2] = rng.randbytes(n), rng.randbytes(n).translate(signs)
            elif "norm" in name:
                items[0::2], items[1::2] = b"\x80" * n, b"\x3f" * n
            out.write(items)
    with open(os.path.join(at, "config.json"), "w", encoding="utf-8") as out:
        json.dump(dict(shape, model_type="qwen2", architectures=["Qwen2ForCausalLM"],
                       tie_word_embeddings=True, hidden_act="silu", rms_norm_eps=1e-6,
                       rope_theta=1e6, max_position_embeddings=131072, torch_dtype="bfloat16"), out)


def write_tokens(path, vocab):
    tokens = [random.Random(9).randrange(vocab) for _ in range(257)]
    header = json.dumps({"documents": {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]},
                         "tokens": {"dtype": "U32", "shape": [257],
                                    "data_offsets": [16, 16 + 4 * 257]}}).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + struct.pack("<2q", 0, 257) +
                struct.pack("<257I", *tokens))


def check_qwen2(w, shape):
    write_model(w.path("hf"), shape)
    write_tokens(w.path("tokens"), shape["vocab_size"])
    job = train(w.program, None, 1, "train/configs/qwen2-0.5b.yaml", "--run", w.path("tuned"),
                "--model", w.path("hf"), "--data", w.path("tokens"), "--seq", 256, "--batch", 1,
                "--steps", 1, "--warmup", 0, timeout=6000)
    w.claims.check(job.status == 0 and [e["tokens"] for e in job.of("step")] == [256],
                   "a step of 256 tokens of the recipe qwen2-0.5b", job.out[-300:], job.err)
    if job.status:
        return
    lr = float.fromhex(job.of("step")[0]["lr_hex"])
    old, was = read_safetensors(w.path("hf/model.safetensors"))
    found = []
    for at, _, names in os.walk(w.path("tuned/checkpoint-1")):
        found += [os.path.join(at, n) for n in names if n.endswith(".safetensors")]
    kept = {}
    for path in found:
        header, data = read_safetensors(path)
        for name in set(old) & set(header):
            if header[name]["dtype"] == "F32":
                kept[name] = data(name, 40000)
    moved = []
    for name, now in kept.items():
        n = len(now) // 4
        halves = was(name, 2 * n)
        before = [struct.unpack("<f", b"\0\0" + halves[i:i + 2])[0] for i in range(0, 2 * n, 2)]
        moved += [abs(a - b) for a, b in zip(struct.unpack("<%df" % n, now), before)]
    # A first step of AdamW is lr for each item, and a weight decays by much less.
    w.claims.check(len(kept) == len(old) and 0.9 * lr < max(moved) < 1.1 * lr,
                   "the masters are the weights of the directory, moved by one step",
                   len(kept), len(old), lr, max(moved, default=None))


def main():
    with tempfile.TemporaryDirectory(prefix="sheaf-recipes-") as at:
        w = World(os.path.abspath(sys.argv[1]), at)
        if sys.argv[2:] == ["--whole"]:
            check_qwen2(w, WHOLE)
        else:
            check_kjv(w)
            check_qwen2(w, TINY)
        return w.claims.end()


if __name__ == "__main__":
    sys.exit(main())
