#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Sheaf writes as a checkpoint of Megatron-Core is loaded by Megatron-Core itself: each tensor
alone, and the weights of a model on four ranks. Prints TAP.

usage: test_megatron_export.py SHEAF, the command
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import tap
from megatron_saves import GOLDEN, LLAMA, NEEDS, expected, sheaf

RANKS = 4


def loaded(folder: str, at: str) -> dict[str, Any]:
    """Loads each tensor with dist_checkpointing, in a process of its own."""
    subprocess.run([sys.executable, "-W", "ignore", os.path.join(GOLDEN, "make_megatron.py"),
                    "--rank", "load", "0", at + "/store", folder, at + "/found"],
                   capture_output=True, timeout=200, check=True)
    with open(at + "/found", encoding="utf-8") as f:
        found: dict[str, Any] = json.load(f)
    return found


def work(number: str, at: str, folder: str, out: str) -> None:
    """Rank `number` of a job that loads the weights of its model. Writes their bytes."""
    sys.path.insert(0, GOLDEN)
    import make_megatron as make
    import torch
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.dist_checkpointing.validation import StrictHandling
    torch.distributed.init_process_group("gloo", init_method="file://" + at + "/ranks",
                                         rank=int(number), world_size=RANKS)
    make.on_the_cpu()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=make.TENSOR)
    model, _ = make.trained()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(7)
    state = dist_checkpointing.load({"model": model.sharded_state_dict()}, folder,
                                    strict=StrictHandling.LOG_ALL)
    assert state["iteration"] == 2 and state["checkpoint_version"] == 3.0, state.keys()
    model.load_state_dict(state["model"], strict=False)
    if parallel_state.get_data_parallel_rank() == 0:
        tensor = parallel_state.get_tensor_model_parallel_rank()
        torch.save({k: p.detach().clone() for k, p in model.named_parameters()}, f"{out}.{tensor}")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def model_of(folder: str, at: str, name: str) -> list[dict[str, Any]]:
    """The weights that ranks of tensor parallelism have when they have loaded this."""
    import torch
    each = [subprocess.Popen([sys.executable, "-W", "ignore", __file__, "--rank", str(i), at,
                              folder, os.path.join(at, name)], stderr=subprocess.DEVNULL,
                             env=dict(os.environ, OMP_NUM_THREADS="1")) for i in range(RANKS)]
    codes = [p.wait(timeout=400) for p in each]
    assert not any(codes), codes
    return [torch.load(f"{os.path.join(at, name)}.{t}", weights_only=True) for t in range(2)]


@tap.needs(*NEEDS)
def test_each_tensor() -> None:
    """dist_checkpointing gives each weight, master and moment of what was written"""
    for save in ("megatron-dist", "megatron-flat"):
        with tap.folder() as at:
            sheaf("convert", os.path.join(GOLDEN, save), at + "/m", "--format", "megatron",
                  "--all")
            with open(at + "/m/latest_checkpointed_iteration.txt", encoding="utf-8") as f:
                assert f.read() == "2"
            found = loaded(at + "/m/iter_0000002", at)
            want = {k: v for k, v in expected(save).items() if "/shard_" not in k}
            assert found == want, sorted(set(found) ^ set(want))


@tap.needs(*NEEDS)
def test_each_tensor_of_a_map() -> None:
    """dist_checkpointing gives the same if the names were those of Hugging Face meanwhile"""
    for save in ("megatron-dist", "megatron-flat"):
        with tap.folder() as at:
            with open(at + "/config.json", "w", encoding="utf-8") as f:
                json.dump(LLAMA, f)
            how = ["--map", "llama-hf-megatron", "--set", "pad=1", "--config",
                   at + "/config.json"]
            sheaf("import", os.path.join(GOLDEN, save), at + "/run", *how, "--to", "hf")
            sheaf("export", at + "/run@2", at + "/m", "--format", "megatron", "--all", *how)
            found = loaded(at + "/m/iter_0000002", at)
            want = {k: v for k, v in expected(save).items() if "/shard_" not in k}
            assert found == want, sorted(set(found) ^ set(want))


@tap.needs(*NEEDS)
def test_a_model() -> None:
    """A model on four ranks loads the weights as from what Megatron-Core wrote"""
    import torch
    source = os.path.join(GOLDEN, "megatron-dist")
    with tap.folder() as at:
        with open(at + "/config.json", "w", encoding="utf-8") as f:
            json.dump(LLAMA, f)
        how = ["--map", "llama-hf-megatron", "--set", "pad=1"]
        sheaf("import", source, at + "/run", *how, "--to", "hf", "--config", at + "/config.json")
        sheaf("export", at + "/run@2", at + "/m", "--format", "megatron", *how, "--config",
              at + "/config.json")
        want = model_of(os.path.join(source, "iter_0000002"), at, "want")
        got = model_of(at + "/m/iter_0000002", at, "got")
        for a, b in zip(want, got):
            assert a.keys() == b.keys() and len(a) > 8
            for k, v in a.items():
                assert torch.equal(v, b[k]) and not bool((v == 7).all()), k


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        work(*sys.argv[2:])
    else:
        sys.exit(tap.run(globals()))
