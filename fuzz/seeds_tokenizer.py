# SPDX-License-Identifier: Apache-2.0
"""Seeds of fuzz_tokenizer: tokenizer.json, tokenizer.model and the files beside them, each behind
the byte that says which it is."""
import json
import struct

REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
SPECIAL = [{"id": 0, "content": "<s>", "special": True},
           {"id": 5, "content": "a\u2581b", "special": False}]


def sequence(number):
    return {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": SPLIT + number + REST}},
        {"type": "ByteLevel", "use_regex": False}]}


def tokenizer(pre, model, **more):
    text = json.dumps(dict({"added_tokens": SPECIAL, "pre_tokenizer": pre, "model": model}, **more),
                      separators=(",", ":"))
    return b"\0" + text.encode()


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def piece(text, score, kind=None):
    more = b"" if kind is None else b"\x18" + varint(kind)
    return field(1, field(1, text) + b"\x15" + struct.pack("<f", score) + more)


BPE = {"type": "BPE", "vocab": {"<s>": 0, "a": 1, "b.c": 2}, "merges": ["a b", ["a c", "d"]]}
TEMPLATE = {"type": "TemplateProcessing", "single": [
    {"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]}
SPM = piece(b"<unk>", 0, 2) + piece("\u2581a".encode(), -1.5) + piece(b"<0x0A>", -2, 6) + field(
    2, b"\x18\x02")
TOKENIZER = [
    b"", tokenizer(sequence(r"\p{N}"), BPE),
    tokenizer(sequence(r"\p{N}{1,3}"), dict(BPE, ignore_merges=True), post_processor=TEMPLATE),
    tokenizer({"type": "ByteLevel"}, BPE, post_processor={"type": "ByteLevel"}),
    tokenizer({"type": "Sequence", "pretokenizers": [{"type": "Digits"}, {"type": "ByteLevel"}]},
              BPE), tokenizer({"type": "ByteLevel"}, dict(BPE, vocab={"a": 99})),
    tokenizer({"type": "ByteLevel"}, dict(BPE, byte_fallback=True)),
    tokenizer({"type": "ByteLevel"}, dict(BPE, merges=[["a"], 7])),
    tokenizer(None, {"type": "Unigram", "vocab": [["a", -1.0]]}), b"\1" + SPM, b"\1" + SPM[:-4],
    b"\1" + SPM[:-1], b"\1" + piece(b"x", 1, 9), b"\1" + field(1, b"\x0a\xff\xff\xff\xff\x0f"),
    b"\1\x0b" + b"\xff" * 11, b'\2{"added_tokens_decoder":{"0":{"content":"<s>","special":true},'
    b'"7":{"content":"<|x|>"},"99":{"special":false}},"bos_token":{"content":"<s>"},'
    b'"add_bos_token":true}', b'\3{"a.b":3,"c":{"d":4},"e":-1,"f":7.5}',
]
