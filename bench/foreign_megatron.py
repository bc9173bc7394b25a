# SPDX-License-Identifier: Apache-2.0
"""A save of Megatron-Core, and a script that converts it, for bench/foreign.

usage: foreign_megatron.py make FOLDER BYTES
       foreign_megatron.py convert FOLDER OUT
       foreign_megatron.py rounds FOLDER OUT

make writes what two tensor-parallel ranks save with dist_checkpointing: the weights of a GPTModel
of Qwen2's kind, which have about BYTES in BF16, with random values. Beside them is the config.json
of the same model in transformers. convert writes that model with transformers, and rounds does so
again and again (foreign_rounds.py).
"""
import os
import sys

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from transformers import Qwen2Config, Qwen2ForCausalLM

from foreign_rounds import rounds

RANKS = 2                       # the same number as in make_megatron.py
PAD = 128 * RANKS               # the vocabulary is padded to a multiple of it: of 128 on each rank
KV_HEADS = 2


def shape(size):
    """Returns the configuration of a model whose weights have about `size` bytes: as many layers of
    Qwen2.5-1.5B as are needed, or smaller ones."""
    vocab, wide, inner, heads = (151936, 1536, 8960, 12) if size >= 1e9 else (1000, 256, 1024, 4)
    layer = wide * (2 * wide + 2 * KV_HEADS * wide // heads + 3 * inner)
    return Qwen2Config(
        vocab_size=vocab, hidden_size=wide, intermediate_size=inner, num_attention_heads=heads,
        num_key_value_heads=KV_HEADS, tie_word_embeddings=True, dtype="bfloat16",
        num_hidden_layers=max(1, round((size / 2 - vocab * wide) / layer)))


# ---- the save ----

def save(rank, folder, config):
    """Saves the part of one rank."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "test",
                                    "golden", "foreign"))
    import make_megatron
    from megatron.core import parallel_state
    dist.init_process_group("gloo", init_method="file://" + folder + ".ranks", rank=rank,
                            world_size=RANKS)
    make_megatron.on_the_cpu()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=RANKS)
    model = make_megatron.model(
        -(-config.vocab_size // PAD) * PAD, 8, tied=True,
        num_layers=config.num_hidden_layers, hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads, num_query_groups=KV_HEADS,
        ffn_hidden_size=config.intermediate_size, add_qkv_bias=True, perform_initialization=False)
    torch.manual_seed(rank)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.02)
    dist_checkpointing.save({"model": model.sharded_state_dict(), "iteration": 10,
                             "checkpoint_version": 3.0}, os.path.join(folder, "iter_0000010"))
    dist.barrier()
    dist.destroy_process_group()


def make(folder, size):
    config = shape(int(size))
    os.makedirs(os.path.join(folder, "iter_0000010"))
    config.save_pretrained(folder)
    with open(os.path.join(folder, "latest_checkpointed_iteration.txt"), "w",
              encoding="utf-8") as f:
        f.write("10")
    # Forked ranks need not import everything again.
    torch.multiprocessing.start_processes(save, (folder, config), RANKS, start_method="fork")


# ---- its conversion ----

def apart(loaded, config):
    """Returns the weights under their Hugging Face names. loaded: the whole tensors of
    Megatron-Core."""
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    q, d = heads // groups, config.hidden_size // heads
    out = {"model.embed_tokens.weight":
           loaded["embedding.word_embeddings.weight"][:config.vocab_size],
           "model.norm.weight": loaded["decoder.final_layernorm.weight"]}
    out["lm_head.weight"] = out["model.embed_tokens.weight"]
    for i in range(config.num_hidden_layers):
        at = "model.layers.%d." % i
        attention, mlp = ({k[len(start):]: v[i] for k, v in loaded.items() if k.startswith(start)}
                          for start in ("decoder.layers.self_attention.", "decoder.layers.mlp."))
        for kind in "weight", "bias":
            # For each kv head: its queries, its key and its value.
            fused = attention["linear_qkv." + kind]
            each = fused.view(groups, q + 2, d, *fused.shape[1:])
            for name, part in zip("qkv", each.split([q, 1, 1], 1)):
                out["%sself_attn.%s_proj.%s" % (at, name, kind)] = part.reshape(
                    -1, *fused.shape[1:])
        out[at + "self_attn.o_proj.weight"] = attention["linear_proj.weight"]
        out[at + "input_layernorm.weight"] = attention["linear_qkv.layer_norm_weight"]
        gate, up = mlp["linear_fc1.weight"].chunk(2)
        out[at + "mlp.gate_proj.weight"], out[at + "mlp.up_proj.weight"] = gate, up
        out[at + "mlp.down_proj.weight"] = mlp["linear_fc2.weight"]
        out[at + "post_attention_layernorm.weight"] = mlp["linear_fc1.layer_norm_weight"]
    return out


def convert(folder, out):
    """Does only what a conversion script must do. One process loads all tensors completely, into
    tensors whose sizes it takes from the save, so it needs no model of Megatron-Core. The model of
    transformers is made without memory for its weights, takes the loaded ones, and is saved. Only
    queries, keys and values are copied, because their rows are not contiguous."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    step = os.path.join(folder, "iter_0000010")
    config = Qwen2Config.from_pretrained(folder)
    loaded = dist_checkpointing.load(dist_checkpointing.load_tensors_metadata(step), step)
    with torch.device("meta"):
        made = Qwen2ForCausalLM(config)
    made.load_state_dict(apart(loaded, config), assign=True)
    made.tie_weights()
    made.save_pretrained(out)


if __name__ == "__main__":
    {"make": make, "convert": convert, "rounds": lambda *paths: rounds(lambda: convert(*paths))}[
        sys.argv[1]](*sys.argv[2:])
