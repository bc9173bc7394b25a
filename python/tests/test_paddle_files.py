#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that the Paddle which is installed writes are read with its own values. Prints TAP.

usage: test_paddle_files.py SHEAF, the command
       test_paddle_files.py rank FLEX SOURCE, one of the ranks that load a flex checkpoint
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import tap

NEEDS = ("paddle", "safetensors", "ml_dtypes")
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "test", "golden",
                      "foreign")


def shown(path: str) -> dict[str, Any]:
    done = subprocess.run([sys.argv[1], "show", path, "--json"], capture_output=True, text=True,
                          timeout=120, check=True)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def written(at: str) -> None:
    subprocess.run([sys.executable, "-W", "ignore", os.path.join(GOLDEN, "make_paddle.py"), at],
                   capture_output=True, timeout=240, check=True)


@tap.needs(*NEEDS)
def test_written_anew() -> None:
    """What Paddle writes now has the tensors and values that its own loader gives"""
    with tap.folder() as at:
        written(at)
        done = subprocess.run([sys.executable, os.path.join(GOLDEN, "check_foreign.py"),
                               sys.argv[1], at], capture_output=True, text=True, timeout=240,
                              check=False)
        bad = [line for line in done.stdout.splitlines() if line.startswith("not ok")]
        assert done.returncode == 0 and not bad, bad


@tap.needs(*NEEDS)
def test_files_of_before() -> None:
    """paddle.load gives what sheaf.load gives, of each protocol"""
    import numpy as np
    import paddle

    import sheaf
    for name in ("paddle.pdparams", "paddle2.pdparams", "paddle3.pdparams", "paddle.pdopt"):
        path = os.path.join(GOLDEN, name)
        wanted, found = paddle.load(path), sheaf.load(path)
        for k, v in found.items():
            if k in wanted and not k.startswith("LR_"):
                a = np.array(wanted[k])
                assert np.asarray(v).tobytes() == np.ascontiguousarray(a).tobytes(), (name, k)


def numbers(v: Any) -> Any:
    """The bytes of a tensor of Paddle, and its shape and type."""
    import numpy as np
    a = np.ascontiguousarray(np.array(v))
    return str(v.dtype), list(v.shape), a.tobytes()


@tap.needs(*NEEDS)
def test_exported_file() -> None:
    """paddle.load gives each tensor of an exported file, and all families as dictionaries"""
    import numpy as np
    import paddle
    with tap.folder() as at:
        exported("paddle.pdparams", at + "/a.pdparams", "--format", "paddle")
        wanted = paddle.load(os.path.join(GOLDEN, "paddle.pdparams"))
        found = paddle.load(at + "/a.pdparams")
        assert list(found) == list(wanted)
        for name, v in wanted.items():
            if name == "complex128":            # Sheaf has pairs of F64 for it
                v = paddle.as_real(v)
            assert numbers(found[name]) == numbers(v), name
        exported("paddle-uc", at + "/all", "--format", "paddle", "--all")
        whole = paddle.load(at + "/all")
        assert isinstance(whole["optimizer"]["norm.weight/moment1_0"], paddle.Tensor)
        for family, states in unified(os.path.join(GOLDEN, "paddle-uc")).items():
            assert whole[family].keys() == states.keys()
            for name, a in states.items():
                assert numbers(whole[family][name])[2] == np.ascontiguousarray(a).tobytes(), name


def unified(at: str) -> dict[str, dict[str, Any]]:
    """The tensors of a unified checkpoint by family, as its index lists them."""
    import safetensors.numpy
    found: dict[str, dict[str, Any]] = {}
    for family in ("model", "master_weights", "optimizer"):
        with open(f"{at}/{family}.safetensors.index.json") as f:
            names = json.load(f)["weight_map"]
        for file in set(names.values()):
            found.setdefault(family, {}).update(safetensors.numpy.load_file(f"{at}/{file}"))
        assert found[family].keys() == names.keys()
    return found


def exported(source: str, to: str, *options: str) -> None:
    subprocess.run([sys.argv[1], "convert", os.path.join(GOLDEN, source), to, *options],
                   capture_output=True, timeout=120, check=True)


def load_on_rank(flex: str, source: str) -> None:
    """Loads a flex checkpoint as one rank, which has some rows of a matrix and all other tensors
    whole, and compares it with a paddle.save file."""
    import numpy as np
    import paddle
    import paddle.distributed as dist
    from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight
    dist.init_parallel_env()
    # Paddle 3.3 moves what it sends to a GPU first, also where there is none and gloo sends it.
    paddle.Tensor.cuda = lambda self: self
    wanted = {k: paddle.as_real(v) if k == "complex128" else v
              for k, v in paddle.load(source).items()}
    if dist.get_world_size() > 1:       # gloo sends neither of these
        wanted = {k: v for k, v in wanted.items() if k not in ("complex", "type.int16")}
    rows = 300 // dist.get_world_size()
    first = rows * dist.get_rank()
    mine = {k: v[first:first + rows] if k == "long" else v for k, v in wanted.items()}
    have = {}
    for k, v in mine.items():
        empty = paddle.to_tensor(np.zeros(v.shape, np.array(v).dtype))  # uint16 becomes bfloat16
        start = tuple(first if k == "long" and d == 0 else 0 for d in range(v.ndim))
        have[k] = ShardedWeight(k, empty, tuple(v.shape), tuple(wanted[k].shape), start)
    dist.load_state_dict(have, flex)
    for k, v in mine.items():
        assert numbers(have[k].local_tensor) == numbers(v), k


@tap.needs(*NEEDS)
def test_exported_flex_checkpoint() -> None:
    """paddle.distributed.load_state_dict gives each tensor under 1 and 2 ranks, of several files"""
    source = os.path.join(GOLDEN, "paddle.pdparams")
    with tap.folder() as at:
        exported("paddle.pdparams", at + "/one", "--format", "paddle-fc")
        exported("paddle.pdparams", at + "/many", "--format", "paddle-fc",
                 "--max-shard-size", "4K")
        assert sorted(os.listdir(at + "/one")) == ["0.metadata", "0_0.distcp"]
        assert len(os.listdir(at + "/many")) > 4
        for flex in ("one", "many"):
            for ranks in (1, 2):
                done = subprocess.run(
                    [sys.executable, "-W", "ignore", "-m", "paddle.distributed.launch",
                     "--nproc_per_node", str(ranks), "--backend", "gloo",
                     "--log_dir", at + "/logs", os.path.abspath(__file__), "rank",
                     f"{at}/{flex}", source], capture_output=True, text=True, timeout=200,
                    check=False)
                assert done.returncode == 0, (flex, ranks, done.stdout[-2000:], done.stderr[-500:])


def trains_on(masters: dict[str, Any], states: dict[str, Any], prefix: str) -> None:
    """Paddle's AdamW makes the step that the optimizer of deepspeed-z1 would have made next.
    prefix: of the names of its parameters, which Paddle wants to be new."""
    import numpy as np
    import paddle
    lr, b1, b2, eps, decay, steps = 0.01, 0.9, 0.999, 1e-8, 0.1, 3
    params = {n: paddle.create_parameter(list(v.shape), "float32", name=prefix + n)
              for n, v in masters.items()}
    adamw = paddle.optimizer.AdamW(lr, b1, b2, eps, list(params.values()), weight_decay=decay)
    rng = np.random.default_rng(5)
    loaded = {prefix + "_".join(k.rsplit("/", 1)): paddle.to_tensor(v) for k, v in states.items()}
    adamw.set_state_dict(loaded)
    for name, p in params.items():
        p.set_value(masters[name])
        gradient = rng.standard_normal(p.shape).astype("float32")
        p.grad = paddle.to_tensor(gradient)
    adamw.step()
    for name, p in params.items():
        g = p.grad.numpy().astype(np.float64)
        m = b1 * states[name + "/moment1_0"] + (1 - b1) * g
        v = b2 * states[name + "/moment2_0"] + (1 - b2) * g * g
        t = steps + 1
        old = masters[name].astype(np.float64)
        want = old * (1 - lr * decay) - lr * (m / (1 - b1 ** t)) / (
            np.sqrt(v / (1 - b2 ** t)) + eps)
        update = np.abs(want - old).max()
        assert np.abs(p.numpy() - want).max() <= 1e-6 * np.abs(old).max() + 1e-5 * update, name
        assert update > 1e-4, name


@tap.needs(*NEEDS)
def test_unified_checkpoint_trains_on() -> None:
    """Paddle's AdamW goes on from an exported checkpoint as the one that wrote it would"""
    with tap.folder() as at:
        exported("deepspeed-z1", at + "/uc", "--format", "paddle-uc", "--all")
        uc = unified(at + "/uc")
    trains_on(uc["master_weights"], uc["optimizer"], "uc.")


@tap.needs(*NEEDS)
def test_flex_checkpoint_trains_on() -> None:
    """It goes on from the folders of an exported flex checkpoint, loaded as a trainer loads them"""
    import numpy as np
    import paddle
    import paddle.distributed as dist
    found: dict[str, dict[str, Any]] = {}
    with tap.folder() as at:
        exported("deepspeed-z1", at + "/fc", "--format", "paddle-fc", "--all")
        for part in ("model_state", "optimizer_state", "master_weight"):
            said = paddle.load(f"{at}/fc/{part}/0.metadata").state_dict_metadata
            want = {k: paddle.zeros(box.global_shape, box.dtype) for k, (box,) in said.items()}
            dist.load_state_dict(want, f"{at}/fc/{part}")
            found[part] = {k: np.array(v) for k, v in want.items()}
    masters = {k[:-len(".w_0")]: v for k, v in found["master_weight"].items()}
    kinds = ("moment1_0", "moment2_0", "beta1_pow_acc_0", "beta2_pow_acc_0")
    assert found["model_state"].keys() >= masters.keys()
    assert found["optimizer_state"].keys() == {f"{n}.{kind}" for n in masters for kind in kinds}
    trains_on(masters, {"/".join(k.rsplit(".", 1)): v
                        for k, v in found["optimizer_state"].items()}, "fc.")


@tap.needs(*NEEDS)
def test_sharded_checkpoint_trains_on() -> None:
    """It goes on from files of ranks of sharding_io, by the names that model_meta.json says"""
    import numpy as np
    import paddle
    masters, states, weights = {}, {}, {}
    with tap.folder() as at:
        exported("deepspeed-z1", at + "/sh", "--format", "sharding-io", "--all",
                 "--max-shard-size", "500")
        with open(at + "/sh/model_meta.json", encoding="utf-8") as f:
            meta = json.load(f)
        run_names = meta["sharding_metas"]["tp00_pp00"]["structure_name_mapping"]
        ranks = meta["parallel_config"]["sharding_degree"]
        assert ranks > 2
        names = {run: name for name, run in run_names.items()}
        for rank in range(ranks):
            weights.update(paddle.load(f"{at}/sh/model_state.shard{rank:02d}.pdparams",
                                       return_numpy=True))
            found = paddle.load(f"{at}/sh/optimizer.shard{rank:02d}.pdopt")
            for run, t in found.pop("master_weights").items():
                assert t.name == run + "_fp32_master_0"
                masters[names[run]] = np.array(t)
            for key, t in found.items():
                assert t.name == key
                run = next(n for n in names if key.startswith(n + "_"))
                kind = key[len(run) + 1:].replace("fp32_master_0_", "")
                states[names[run] + "/" + kind] = np.array(t)
        wanted = {t["name"]: t["shape"] for t in shown(os.path.join(GOLDEN, "deepspeed-z1"))[
            "tensors"] if t["family"] == "model"}
        assert {n: list(w.shape) for n, w in weights.items()} == wanted
        assert paddle.load(at + "/sh/scheduler.pdparams") == {"last_epoch": 3, "last_lr": 0.01}
        with open(at + "/sh/trainer_state.json", encoding="utf-8") as f:
            assert json.load(f)["global_step"] == 3
        same = subprocess.run([sys.argv[1], "diff", os.path.join(GOLDEN, "deepspeed-z1"),
                               at + "/sh"], capture_output=True, text=True, timeout=120,
                              check=False).stdout.splitlines()
        assert all("_pow_acc_" in line for line in same[:-1]), same
    trains_on(masters, states, "sh.")


def test_conversion() -> None:
    """A unified checkpoint becomes a Hugging Face directory with the names and shapes it has"""
    with tap.folder() as at:
        source = os.path.join(GOLDEN, "paddle-uc")
        subprocess.run([sys.argv[1], "convert", source, at + "/model"], capture_output=True,
                       timeout=120, check=True)
        wanted = {t["name"]: (t["dtype"], t["shape"]) for t in shown(source)["tensors"]
                  if t["family"] == "model"}
        found = shown(at + "/model")
        assert found["format"] == "hf"
        assert {t["name"]: (t["dtype"], t["shape"]) for t in found["tensors"]} == wanted
        for name in wanted:
            values = [subprocess.run([sys.argv[1], "cat", path, name], capture_output=True,
                                     timeout=120, check=True).stdout
                      for path in (source, at + "/model")]
            assert values[0] == values[1], name


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        load_on_rank(*sys.argv[2:4])
        sys.exit()
    sys.exit(tap.run(globals()))
