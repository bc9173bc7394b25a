#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `sheaf convert` writes is opened by transformers and safetensors. Prints TAP.

usage: test_convert.py SHEAF, the command
"""
from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from typing import Any

import ranks
import tap

if tap.there("torch", "transformers", "safetensors"):
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

    import sheaf
    import sheaf.memory

NEEDS = ("torch", "transformers", "safetensors")


def convert(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([sys.argv[1], "convert", *arguments, "--json"], capture_output=True,
                          text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def trained() -> Any:
    """A tiny Qwen2 with odd sizes, without tied weights."""
    torch.manual_seed(5)
    config = Qwen2Config(vocab_size=61, hidden_size=24, intermediate_size=40, num_hidden_layers=3,
                         num_attention_heads=4, num_key_value_heads=2,
                         tie_word_embeddings=False)
    return Qwen2ForCausalLM(config).eval()


def opens(model: Any, path: str) -> None:
    """transformers finds every weight, bit for bit, and computes the same."""
    again, said = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    assert not any(said.values()), said
    have, want = again.state_dict(), model.state_dict()
    assert have.keys() == want.keys()
    for name, t in want.items():
        assert have[name].dtype == t.dtype and torch.equal(have[name], t), name
    text = torch.arange(30).reshape(2, 15)
    with torch.no_grad():
        assert torch.equal(again.eval()(text).logits, model(text).logits)


@tap.needs(*NEEDS)
def test_a_file_of_torch_save() -> None:
    """A training checkpoint of torch.save becomes a model that transformers opens"""
    model = trained()
    with tap.folder() as at:
        model.config.save_pretrained(at)
        torch.save({"model": model.state_dict(), "step": 7,
                    "optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}}}, at + "/ck.pt")
        said = convert(at + "/ck.pt", at + "/hf", "--prefix", "model.")
        assert said["tensors"] == len(model.state_dict()) and said["files"] == 1
        assert sorted(os.listdir(at + "/hf")) == ["config.json", "model.safetensors"]
        opens(model, at + "/hf")


@tap.needs(*NEEDS)
def test_a_directory_of_dcp() -> None:
    """So does a directory of torch.distributed.checkpoint, in several files"""
    model = trained()
    with tap.folder() as at:
        dcp.save({"model": model.state_dict()}, checkpoint_id=at + "/dcp", no_dist=True)
        model.config.save_pretrained(at + "/dcp")
        said = convert(at + "/dcp", at + "/hf", "--prefix", "model.", "--max-shard-size", "8K")
        assert said["files"] > 3
        opens(model, at + "/hf")


def with_state() -> tuple[Any, Any]:
    made = trained()
    return made, torch.optim.AdamW(made.parameters(), lr=1e-3, amsgrad=True)


def train(made: Any, optimizer: Any, seed: int) -> None:
    torch.manual_seed(seed)
    made(torch.randint(0, 61, (2, 15))).logits.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def same(one: Any, other: Any) -> None:
    for p, q in zip(one[0].parameters(), other[0].parameters()):
        assert torch.equal(p, q)
        assert one[1].state[p].keys() == other[1].state[q].keys()
        for key, t in one[1].state[p].items():
            assert torch.equal(t, other[1].state[q][key]), key


@tap.needs(*NEEDS)
def test_training_moves_from_dcp_and_back() -> None:
    """Training goes on from DCP by `sheaf import`, and in DCP from what `sheaf export` writes"""
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    there, back = with_state(), with_state()
    for seed in range(2):
        train(*there, seed)
    with tap.folder() as at:
        whole = dict(zip(("model", "optim"), get_state_dict(*there)))
        for path, tree in (("flat", whole), ("app", {"app": whole})):
            dcp.save(tree, checkpoint_id=os.path.join(at, path), no_dist=True)
        for path, prefix in (("flat", "model."), ("app", "app.model.")):
            run, here = os.path.join(at, "run-" + path), with_state()
            subprocess.run([sys.argv[1], "import", os.path.join(at, path), run + "@2", "--prefix",
                            prefix], check=True)
            with sheaf.Checkpointer(run, readonly=True) as ckpt:
                ckpt.track(*here)
                assert ckpt.load().step == 2
            same(here, there)
        subprocess.run([sys.argv[1], "export", run + "@2", at + "/out", "--format", "dcp",
                        "--all"], check=True)
        state = dict(zip(("model", "optimizer"), get_state_dict(*back)))
        dcp.load(state, checkpoint_id=at + "/out", no_dist=True,
                 planner=dcp.DefaultLoadPlanner(allow_partial_load=True))
        set_state_dict(*back, model_state_dict=state["model"],
                       optim_state_dict=state["optimizer"])
        for one in (there, here, back):
            train(*one, 7)
        same(here, there)
        same(back, there)


@tap.needs(*NEEDS)
def test_a_run_loses_a_prefix() -> None:
    """A step whose names lose a prefix has no documents with the old names, and can be loaded"""
    made, here = with_state(), with_state()
    train(*made, 0)
    with tap.folder() as at:
        with sheaf.Checkpointer(at + "/old") as ckpt:
            ckpt.track(*made, prefix="model.")
            ckpt.save(1)
        done = subprocess.run([sys.argv[1], "import", at + "/old@1", at + "/new", "--prefix",
                               "model."], check=True, capture_output=True, text=True)
        assert "attached files of the source that the step does not have" in done.stderr, done
        with sheaf.Checkpointer(at + "/new", readonly=True) as ckpt:
            ckpt.track(*here)
            ckpt.load()
        same(here, made)


@tap.needs(*NEEDS)
def test_what_a_file_of_torch_save_does_not_say() -> None:
    """That names are assumed, and options stay those of the job, is said when it is imported"""
    made, optimizer = with_state()
    train(made, optimizer, 0)
    with tap.folder() as at:
        torch.save({"model": made.state_dict(), "optimizer": optimizer.state_dict()},
                   at + "/old.pt")
        done = subprocess.run([sys.argv[1], "import", at + "/old.pt", at + "/run@0", "--prefix",
                               "model."], check=True, capture_output=True, text=True)
        assert "the state of the optimizer are assumed, not proven" in done.stderr, done.stderr
        heard: list[str] = []
        logger, hears = logging.getLogger("sheaf"), logging.Handler()
        hears.emit = lambda record: heard.append(record.getMessage())   # type: ignore[assignment]
        logger.addHandler(hears)
        try:
            here = with_state()
            with sheaf.Checkpointer(at + "/run", readonly=True) as ckpt:
                ckpt.track(*here)
                ckpt.load()
        finally:
            logger.removeHandler(hears)
        same(here, (made, optimizer))
        assert any("stay those of this job" in x for x in heard), heard
        assert any("optimizer are assumed, not proven: from the order" in x for x in heard), heard


MAPS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "maps")
MAPPED: dict[str, tuple[dict[str, int], list[str]]] = {
    "qwen2": ({}, ["qwen2-hf-paddle", "qwen2-hf-megatron"]),
    "llama": ({}, ["llama-hf-paddle", "llama-hf-megatron", "llama-hf-meta"]),
    "qwen3": ({"head_dim": 8}, ["qwen3-hf-paddle", "qwen3-hf-megatron"]),
    "qwen2_moe": ({"num_experts": 4, "moe_intermediate_size": 12,
                   "shared_expert_intermediate_size": 20, "num_experts_per_tok": 2},
                  ["qwen2moe-hf-paddle", "hf-paddleformers", "qwen2moe-hf-megatron"]),
    "deepseek_v2": ({"num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 8,
                     "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6,
                     "n_routed_experts": 4, "n_shared_experts": 2, "moe_intermediate_size": 12,
                     "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_group": 1,
                     "topk_group": 1}, ["deepseek2-hf-megatron"]),
    "ernie4_5_moe": ({"moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 2,
                      "moe_intermediate_size": 12, "moe_layer_start_index": 1},
                     ["ernie45moe-hf-paddle"])}


@tap.needs(*NEEDS)
def test_maps() -> None:
    """Models of transformers are mapped to other programs and back, and compute the same"""
    for kind, (more, maps) in MAPPED.items():
        torch.manual_seed(5)
        sizes = {"vocab_size": 61, "hidden_size": 24, "intermediate_size": 40,
                 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
        config = AutoConfig.for_model(kind, **{**sizes, **more}, tie_word_embeddings=False)
        model = AutoModelForCausalLM.from_config(config).eval()
        with tap.folder() as at:
            model.save_pretrained(at + "/hf")
            want = load_file(at + "/hf/model.safetensors")
            for name in maps:
                there, back = os.path.join(at, name), os.path.join(at, name + "-back")
                how = ["--map", os.path.join(MAPS, name + ".map")]
                convert(at + "/hf", there, *how)
                convert(there, back, *how, "--to", "hf")
                have = load_file(back + "/model.safetensors")
                assert have.keys() == want.keys(), name
                for key, t in want.items():
                    assert torch.equal(have[key], t), (name, key)
            opens(model, back)


def sharded(rank: int, path: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (2, 2))
    whole = parts()
    cuts = {"rows": [Shard(0), Replicate()], "both": [Shard(0), Shard(1)],
            "columns": [Shard(1), Shard(1)]}
    state = {k: distribute_tensor(t, mesh, cuts[k]) if k in cuts else t
             for k, t in whole.items()}
    writer = dcp.HuggingFaceStorageWriter(path, fqn_to_index_mapping={
        "rows": 1, "both": 1, "columns": 2, "alone": 2}, save_distributed=True)
    dcp.save(state, storage_writer=writer)


def parts() -> dict[str, Any]:
    torch.manual_seed(8)
    return {"rows": torch.randn(9, 4), "both": torch.randn(7, 11).bfloat16(),
            "columns": torch.randn(3, 13).double(), "alone": torch.arange(6)}


@tap.needs(*NEEDS)
def test_files_of_ranks() -> None:
    """The files of each rank, which DCP's Hugging Face writer leaves, become whole tensors"""
    whole = parts()
    with tap.folder() as at:
        assert ranks.everywhere(4, sharded, at + "/dcp") == [None] * 4
        assert len([f for f in os.listdir(at + "/dcp") if "shard-" in f]) > 4
        convert(at + "/dcp", at + "/hf")
        have = load_file(at + "/hf/model.safetensors")
        assert have.keys() == whole.keys()
        for key, t in whole.items():
            assert have[key].dtype == t.dtype and torch.equal(have[key], t), key
        lost = [f for f in sorted(os.listdir(at + "/dcp")) if f.startswith("shard-00001")]
        os.unlink(os.path.join(at, "dcp", lost[0]))
        done = subprocess.run([sys.argv[1], "show", at + "/dcp"], capture_output=True, text=True,
                              timeout=60, check=False)
        assert done.returncode == 1 and "is in no chunk" in done.stderr, done.stderr


@tap.needs(*NEEDS)
def test_conjugates_in_dcp() -> None:
    """Conjugates and negatives that DCP saved as views are read with their values"""
    torch.manual_seed(3)
    x, y = torch.randn(7, 5, dtype=torch.complex64), torch.randn(3, 4, dtype=torch.complex128)
    tensors = {"conj": x.conj(), "neg": x.conj().imag, "wide": y.conj(), "turned": y.conj().t(),
               "both": torch._neg_view(x.conj()), "plain": x}
    with tap.folder() as at:
        dcp.save(dict(tensors), checkpoint_id=at + "/dcp", no_dist=True)
        convert(at + "/dcp", at + "/hf")
        have = load_file(at + "/hf/model.safetensors")
        for key, t in tensors.items():
            want = t.resolve_conj().resolve_neg()
            if want.dtype == torch.complex128:
                want = torch.view_as_real(want)
            assert torch.equal(have[key], want), key


@tap.needs(*NEEDS)
def test_a_run_of_sheaf() -> None:
    """So does a step of a run, and its averages"""
    model = trained()
    with tap.folder() as at:
        model.config.save_pretrained(at)
        sheaf.save(at + "/run@3", {"model": model.state_dict(), "ema": model.state_dict()},
                   files={"config.json": at + "/config.json"})
        convert(at + "/run@3", at + "/hf")
        opens(model, at + "/hf")
        convert(at + "/run", at + "/ema", "--family", "ema", "--max-shard-size", "8K")
        opens(model, at + "/ema")


@tap.needs(*NEEDS)
def test_tied_weights() -> None:
    """Tied weights have each of their names where torch looks for it"""
    model = torch.nn.Sequential(torch.nn.Embedding(7, 5), torch.nn.Linear(5, 7, bias=False))
    model[1].weight = model[0].weight
    want = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with tap.folder() as at:
        sheaf.save(at + "/run@3", {"model": model.state_dict()})
        convert(at + "/run@3", at + "/one.pt", "--format", "torch")
        have = torch.load(at + "/one.pt", weights_only=True)
        model.load_state_dict(have)
        convert(at + "/run@3", at + "/dcp", "--format", "dcp")
        into = {name: torch.zeros(7, 5) for name in want}
        dcp.load(into, checkpoint_id=at + "/dcp")
        for found in have, into:
            assert found.keys() == want.keys(), found.keys()
            assert all(torch.equal(found[name], want[name]) for name in want)


@tap.needs(*NEEDS)
def test_another_type() -> None:
    """--dtype converts floating-point tensors as torch does, and no others"""
    tensors = {"a": torch.randn(33, 7) * 1e5, "b": torch.randn(5).double(), "c": torch.arange(9),
               "d": torch.randn(4).bfloat16(), "e": torch.tensor([True, False]),
               "f": torch.tensor([float("nan"), float("inf"), 1e-45, 70000., -0.])}
    with tap.folder() as at:
        torch.save(tensors, at + "/t.pt")
        for name, dtype in (("BF16", torch.bfloat16), ("F16", torch.float16),
                            ("F64", torch.float64)):
            convert(at + "/t.pt", at + "/" + name, "--dtype", name)
            have = load_file(at + "/" + name + "/model.safetensors")
            for key, t in tensors.items():
                want = t.to(dtype) if t.is_floating_point() else t
                assert have[key].dtype == want.dtype, (name, key)
                assert torch.equal(torch.nan_to_num(have[key]) if t.is_floating_point()
                                   else have[key], torch.nan_to_num(want)
                                   if t.is_floating_point() else want), (name, key)


@tap.needs(*NEEDS)
def test_lost_state() -> None:
    """diff misses state that was tied to other state, unless their weights are tied"""
    def put(step: int, lacks: str, ties: bool) -> None:
        made = {"a/moment1_0": None, "b/moment1_0": "a/moment1_0"}
        with sheaf.State() as state:
            for name in "a", "b":
                state.add(name, memory(w), tied_to="a" if ties and name == "b" else None)
            for name, tied_to in made.items():
                if name != lacks:
                    state.add(name, memory(zeros), family="optimizer", tied_to=tied_to)
            with run.begin(step, state) as save:
                save.commit()

    w, zeros = torch.arange(6.).reshape(2, 3), torch.zeros(2, 3)
    with tap.folder() as at, sheaf.Run(at + "/run", create=True) as run:
        for ties, status in (False, 1), (True, 0):
            put(1 + 2 * ties, "", ties)
            put(2 + 2 * ties, "b/moment1_0", ties)
            done = subprocess.run([sys.argv[1], "diff", "%s/run@%d" % (at, 1 + 2 * ties),
                                   "%s/run@%d" % (at, 2 + 2 * ties)], capture_output=True,
                                  text=True, timeout=60, check=False)
            assert done.returncode == status, done
            assert ("b/moment1_0" in done.stdout) == (not ties), done


def memory(t: Any) -> Any:
    return sheaf.memory.of(t)


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
