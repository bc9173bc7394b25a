#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of transformers, exported as GGUF: the package gguf reads the files, transformers computes
the same logits from them, and so does llama.cpp where llama-cpp-python is installed.

Prints TAP.

usage: test_gguf_export.py SHEAF, the command
"""
from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Any

import tap

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEXT = "the quick brown fox jumps over the lazy dog, isn't it? 12345 the the quick\n\n  brown"
SIZES: dict[str, Any] = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "eos_token_id": 1}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3", "rope_theta": 50000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def tokenizer(folder: str, kind: str) -> int:
    """Writes a small tokenizer of the kind of Llama 3 or Qwen2. Returns how many tokens it has."""
    from tokenizers import (Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                            processors, trainers)
    import transformers
    make: Any = transformers.PreTrainedTokenizerFast
    llama = kind == "llama"
    t = Tokenizer(models.BPE(ignore_merges=llama))
    if not llama:
        t.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(WORDS + (r"\p{N}{1,3}" if llama else r"\p{N}") + REST),
                                 "isolated")
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator([TEXT] * 3, trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|begin|>", "<|end|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    if llama:
        t.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
    else:
        t.post_processor = processors.ByteLevel(trim_offsets=False)
    fast = make(tokenizer_object=t, bos_token="<|begin|>" if llama else None,
                eos_token="<|end|>", chat_template="{{ messages }}")
    fast.add_tokens(["extra"])
    fast.save_pretrained(folder)
    return len(fast)


def model(folder: str, kind: str, **more: Any) -> Any:
    """Writes a small model with its tokenizer. All weights differ."""
    import torch
    import transformers
    rows = tokenizer(folder, kind) + 3          # of no token
    name = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[kind]
    config = getattr(transformers, name + "Config")(vocab_size=rows, **{**SIZES, **more})
    torch.manual_seed(5)
    out = getattr(transformers, name + "ForCausalLM")(config).eval()
    with torch.no_grad():
        for p in out.parameters():
            p.copy_(torch.randn(p.shape) * (0.3 if p.ndim == 2 else 1))
    out.save_pretrained(folder)
    return out


def convert(source: str, target: str, *more: str) -> None:
    subprocess.run([sys.argv[1], "convert", source, target, "--format", "gguf", *more],
                   capture_output=True, timeout=120, check=True)


def logits(m: Any, ids: list[int]) -> Any:
    import torch
    with torch.no_grad():
        return m(torch.tensor([ids])).logits[0].float().numpy()


def close(got: Any, want: Any, most: float) -> None:
    import numpy
    worst = float(numpy.abs(got - want).max() / numpy.abs(want).max())
    assert worst <= most, f"the logits differ by {worst}"


IDS = [5, 90, 3, 260, 17, 44, 2, 131, 131, 7]


@tap.needs("gguf", "torch", "transformers")
def test_transformers_computes_the_same() -> None:
    """transformers computes the same logits from the file, in each type"""
    import transformers
    for kind in ("llama", "qwen2", "qwen3"):
        with tap.folder() as at:
            more = {"head_dim": 128} if kind == "qwen3" else {}
            want = logits(model(at, kind, tie_word_embeddings=kind == "qwen2", **more), IDS)
            for dtype, most in (("F32", 1e-5), ("F16", 1e-2), ("BF16", 0.1)):
                convert(at, f"{at}/{dtype}.gguf", "--dtype", dtype)
                m = transformers.AutoModelForCausalLM.from_pretrained(
                    at, gguf_file=dtype + ".gguf", dtype="float32")
                close(logits(m, IDS), want, most)


@tap.needs("gguf", "torch", "transformers")
def test_gguf_reads_what_was_written() -> None:
    """The package gguf reads the metadata, the vocabulary and the tensors"""
    import gguf
    import numpy
    with tap.folder() as at:
        m = model(at, "llama", rope_parameters=LLAMA3)
        convert(at, at + "/a.gguf")
        r = gguf.GGUFReader(at + "/a.gguf")
        fields = {key: f.contents() for key, f in r.fields.items()}
        assert fields["general.architecture"] == "llama"
        assert fields["llama.attention.head_count_kv"] == 2
        assert fields["tokenizer.ggml.pre"] == "llama-bpe"
        assert fields["tokenizer.ggml.tokens"][:2] == ["<|begin|>", "<|end|>"]
        assert len(fields["tokenizer.ggml.tokens"]) == m.config.vocab_size
        assert fields["tokenizer.ggml.add_bos_token"] is True
        tensors = {t.name: t for t in r.tensors}
        state = {k: v.numpy() for k, v in m.state_dict().items()}
        down = tensors["blk.1.ffn_down.weight"].data
        assert numpy.array_equal(down, state["model.layers.1.mlp.down_proj.weight"])
        q = state["model.layers.0.self_attn.q_proj.weight"].reshape(6, 2, 4, 48)
        assert numpy.array_equal(tensors["blk.0.attn_q.weight"].data,
                                 q.swapaxes(1, 2).reshape(48, 48))
        inverse = m.model.rotary_emb.inv_freq.numpy()
        plain = 50000.0 ** -(numpy.arange(0, 8, 2) / 8)
        numpy.testing.assert_allclose(tensors["rope_freqs.weight"].data, plain / inverse, 1e-6)


@tap.needs("llama_cpp", "torch", "transformers")
def test_llama_cpp_computes_the_same() -> None:
    """llama.cpp has the same tokens of a text, and computes the same logits"""
    import llama_cpp
    import transformers
    for kind in ("llama", "qwen2", "qwen3"):
        with tap.folder() as at:
            more: dict[str, Any] = {"rope_parameters": LLAMA3} if kind == "llama" else {}
            m = model(at, kind, **more)
            convert(at, at + "/a.gguf")
            ids = transformers.PreTrainedTokenizerFast.from_pretrained(at)(TEXT)["input_ids"]
            c = llama_cpp.Llama(at + "/a.gguf", n_ctx=256, logits_all=True, verbose=False)
            got = c.tokenize(TEXT.encode())
            assert got == ids, (got, ids)
            c.eval(ids)
            close(c.scores[:len(ids)], logits(m, ids), 1e-2)


if __name__ == "__main__":
    if importlib.util.find_spec("torch"):
        os.environ["HF_HUB_OFFLINE"] = "1"
    sys.exit(tap.run(globals()))
