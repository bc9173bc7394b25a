# SPDX-License-Identifier: Apache-2.0
"""Models of Megatron-Core, whose layers are split by hand, on ranks of gloo. Prints TAP.

Megatron-Core has its layers for CUDA, and runs on the CPU but for two calls: it asks for the
number of the current device, and draws dropout from random streams of the device. Both are
replaced here; the model has no dropout.
"""
from __future__ import annotations

import contextlib
import sys
import types
from typing import Any

import ranks
import tap
from tap import folder, needs

NEEDED = ("torch", "megatron")
if tap.there(*NEEDED):
    import warnings
    warnings.simplefilter("ignore")

    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    import sheaf
    from sheaf.torch import GateUp, QKV, Split

HIDDEN, HEADS, GROUPS, WIDE, WORDS, TOKENS = 32, 8, 4, 48, 64, 12
STEPS, CUT = 6, 3


def model(n: int) -> Any:
    """A GPTModel over all ranks, with grouped queries and a gate. Its first weights are those of
    any other number of ranks."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.cuda.current_device = lambda: "cpu"   # type: ignore
    still = types.SimpleNamespace(fork=lambda *args: contextlib.nullcontext())
    tensor_parallel.get_cuda_rng_tracker = lambda *args, **more: still
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=n)
    torch.manual_seed(0)
    config = TransformerConfig(
        num_layers=2, hidden_size=HIDDEN, num_attention_heads=HEADS, num_query_groups=GROUPS,
        ffn_hidden_size=WIDE, gated_linear_unit=True, activation_func=torch.nn.functional.silu,
        add_bias_linear=False, add_qkv_bias=True, use_cpu_initialization=True,
        tensor_model_parallel_size=n, hidden_dropout=0.0, attention_dropout=0.0,
        bias_activation_fusion=False, masked_softmax_fusion=False, bias_dropout_fusion=False,
        gradient_accumulation_fusion=False, normalization="RMSNorm")
    return GPTModel(config, get_gpt_layer_local_spec(normalization="RMSNorm"), vocab_size=WORDS,
                    max_sequence_length=TOKENS, position_embedding_type="learned_absolute")


def parts(rank: int, n: int) -> dict[str, Any]:
    """What the parameters of Megatron's layers are parts of."""
    tp = {"rank": rank, "ranks": n}
    return {"*linear_qkv.*": QKV(heads=HEADS, kv_heads=GROUPS, **tp),
            "*linear_proj.weight": Split(1, **tp), "*linear_fc1.weight": GateUp(**tp),
            "*linear_fc2.weight": Split(1, **tp),
            "embedding.word_embeddings.weight": Split(0, **tp),
            "output_layer.weight": Split(0, **tp)}


def train(rank: int, path: str, n: int, last: int) -> list[float]:
    """Trains from the newest checkpoint up to that step, and returns the losses."""
    m = model(n)
    optimizer = torch.optim.AdamW(m.parameters(), lr=1e-2)
    at = torch.arange(TOKENS)[None]
    mask = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool).triu(1)
    losses = []
    with sheaf.Checkpointer(path, check=True, timeout=50) as ckpt:
        ckpt.track(m, optimizer, parts=parts(rank, n))
        start = ckpt.load()
        for step in range(start.step + 1 if start else 0, last):
            x = torch.randint(0, WORDS, (4, TOKENS), generator=torch.Generator().manual_seed(step))
            loss = m(x, at.expand(4, -1), mask, labels=x).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            ckpt.save(step, {"loss": loss.item()})
    return losses


def loaded(rank: int, path: str, n: int) -> dict[str, Any]:
    """What a rank has after a load: each parameter, its moment, and how Megatron says that it is
    split; None: it is not. Checks what the first layer computes from its fused weight."""
    m = model(n)
    optimizer = torch.optim.AdamW(m.parameters(), lr=1e-2)
    with sheaf.Checkpointer(path, readonly=True, timeout=50) as ckpt:
        ckpt.track(m, optimizer, parts=parts(rank, n))
        ckpt.load()
    x = torch.randn(5, 1, HIDDEN, generator=torch.Generator().manual_seed(1))
    layer = m.decoder.layers[0].self_attention
    q, k, v = layer.get_query_key_value_tensors(x)
    at = "decoder.layers.0.self_attention.%s_proj.%s"
    with sheaf.open(path, framework="pt") as f:
        for name, got in ("q", q), ("k", k), ("v", v):
            want = torch.nn.functional.linear(x, f.get_tensor(at % (name, "weight")),
                                              f.get_tensor(at % (name, "bias")))
            want = want.chunk(n, -1)[rank]
            assert torch.allclose(got.flatten(2), want, atol=1e-5), (name, n)
    return {name: (p.detach().numpy(), optimizer.state[p]["exp_avg"].numpy(),
                   p.partition_dim if getattr(p, "tensor_model_parallel", False) else None)
            for name, p in m.named_parameters()}


def cut(name: str, whole: Any, dim: Any, rank: int, n: int) -> Any:
    """The part that Megatron gives a rank of a whole parameter."""
    t = torch.from_numpy(whole)
    if dim is None:
        return t
    if name.endswith("linear_fc1.weight"):      # a gate and an up projection, each split by itself
        return torch.cat([half.chunk(n, dim)[rank] for half in t.chunk(2, dim)], dim)
    return t.chunk(n, dim)[rank]


@needs(*NEEDED)
def test_a_training_goes_on() -> None:
    """A GPTModel on two tensor-parallel ranks goes on bit for bit, and on 1 and 4 ranks as well"""
    with folder() as at:
        whole = ranks.first(ranks.results(2, train, at + "/whole", 2, STEPS))
        assert len(whole) == STEPS and whole[-1] < whole[0], whole
        first = ranks.first(ranks.results(2, train, at + "/cut", 2, CUT))
        import shutil
        for n in 1, 4:
            shutil.copytree(at + "/cut", "%s/%d" % (at, n))
        assert first + ranks.first(ranks.results(2, train, at + "/cut", 2, STEPS)) == whole
        for n in 1, 4:              # sums of other numbers of ranks are rounded otherwise
            there = ranks.first(ranks.results(n, train, "%s/%d" % (at, n), n, STEPS))
            assert len(there) == STEPS - CUT
            assert all(abs(a - b) < 1e-4 for a, b in zip(there, whole[CUT:])), (n, there, whole)


@needs(*NEEDED)
def test_each_rank_has_its_part() -> None:
    """What 2 ranks saved is on 1, 2 and 4 ranks what Megatron's own split of the whole gives"""
    with folder() as at:
        ranks.results(2, train, at + "/run", 2, 2)
        (whole,) = ranks.results(1, loaded, at + "/run", 1)
        for n in 2, 4:
            for rank, mine in enumerate(ranks.results(n, loaded, at + "/run", n)):
                assert mine.keys() == whole.keys()
                for name, (weight, moment, dim) in mine.items():
                    for got, want in zip((weight, moment), whole[name]):
                        assert torch.equal(torch.from_numpy(got),
                                           cut(name, want, dim, rank, n)), (name, rank, n)
        with sheaf.open(at + "/run") as f:
            shape = f["decoder.layers.1.self_attention.k_proj.weight"].shape
            assert shape == (GROUPS * HIDDEN // HEADS, HIDDEN), shape
            assert f["decoder.layers.0.mlp.gate_proj.weight"].shape == (WIDE, HIDDEN)
            assert not any("linear_fc1" in name or "linear_qkv" in name for name in f.keys())


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
