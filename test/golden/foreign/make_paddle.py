#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small checkpoints with the real Paddle, and what its own loader gives back for each.

usage: make_paddle.py FOLDER

paddle-expected.jsonl has one line a checkpoint: path, format, the version of Paddle, and of each
tensor its dtype, its shape and the SHA-256 of its bytes, row-major. Names in another family than
"model" are <family>:<name>. The files of this folder were made by Paddle 3.3.1 (CPU) with NumPy
2.4.6 and Python 3.11. Two ranks (gloo) write the flex checkpoints.
"""
import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys

try:
    import numpy as np
    import paddle
    import paddle.distributed as dist
except ImportError:
    print("1..0 # SKIP paddle is not installed")
    sys.exit(77)

NAMES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64",
         "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
         "complex64": "C64", "complex128": "F64"}


def described(v):
    """Of a tensor or an array: dtype, shape, SHA-256 of the bytes."""
    name = str(v.dtype).replace("paddle.", "")
    a = np.ascontiguousarray(np.array(v)).reshape(np.shape(v))
    return [NAMES[name], list(a.shape) + ([2] if name == "complex128" else []),
            hashlib.sha256(a.tobytes()).hexdigest()]


def listed(value, name="", out=None):
    """The tensors and arrays of nested dictionaries and lists, by their dotted paths."""
    out = {} if out is None else out
    if isinstance(value, (paddle.Tensor, np.ndarray)):
        out[name or "tensor"] = described(value)
    elif isinstance(value, dict):
        for k, v in value.items():
            listed(v, f"{name}.{k}" if name else str(k), out)
    elif isinstance(value, (list, tuple)):
        for k, v in enumerate(value):
            listed(v, f"{name}.{k}" if name else str(k), out)
    return out


def numbered(shape, dtype, seed):
    a = (np.arange(int(np.prod(shape)), dtype="float32") * 0.37 + seed).reshape(shape)
    return paddle.to_tensor(a).astype(dtype)


def state():
    paddle.seed(7)
    model = paddle.nn.Sequential(paddle.nn.Linear(4, 6), paddle.nn.LayerNorm(6))
    out = dict(model.state_dict())
    for i, dtype in enumerate(n for n in NAMES if not n.startswith("complex")):
        out["type." + dtype] = numbered([3, 5], dtype, i)
    out["complex"] = paddle.to_tensor(np.array([1 + 2j, 3 - 1j], "complex64"))
    out["complex128"] = paddle.to_tensor(np.array([[1 + 2j], [3 - 1j]], "complex128"))
    out["scalar"] = paddle.to_tensor(2.5)
    out["empty"] = paddle.zeros([0, 3])
    out["turned"] = numbered([3, 4], "float32", 9).t()
    out["long"] = numbered([300, 70], "float32", 3)     # more than a frame of the pickle
    return out, model


def training():
    tensors, model = state()
    del tensors["long"]
    optimizer = paddle.optimizer.AdamW(
        learning_rate=paddle.optimizer.lr.StepDecay(0.1, 3), parameters=model.parameters(),
        multi_precision=True)
    model(paddle.ones([2, 4])).sum().backward()
    optimizer.step()
    return tensors, optimizer.state_dict()


def plain(folder, note):
    whole, _ = state()
    tensors, optimizer = training()
    path = os.path.join(folder, "paddle.pdparams")
    paddle.save(whole, path)
    note(path, "paddle.save", listed(paddle.load(path)))
    for protocol in (2, 3):
        path = os.path.join(folder, f"paddle{protocol}.pdparams")
        paddle.save(tensors, path, protocol=protocol)
        note(path, "paddle.save", listed(paddle.load(path)))
    path = os.path.join(folder, "paddle.pdopt")
    paddle.save(optimizer, path)
    note(path, "paddle.save", listed(paddle.load(path)))
    path = os.path.join(folder, "paddle_nested.pdparams")
    paddle.save({"model": tensors, "master_weights": {"w": numbered([2, 3], "float32", 1)},
                 "step": 3, "rate": np.float64(0.5), "list": [paddle.ones([1]), {"x": 1}],
                 "array": np.asfortranarray(np.arange(24, dtype="int32").reshape(2, 3, 4)),
                 ("key", 1): 2}, path)
    note(path, "paddle.save", {k: v for k, v in listed(paddle.load(path)).items()
                               if not k.startswith("(")})
    # What paddle.save does with an array of more than 1 GiB, done with small ones: its loader
    # joins parts of any size.
    whole = {"a": np.arange(35, dtype="float32").reshape(5, 7),
             "b": np.arange(12, dtype="uint16").reshape(2, 2, 3)}
    parts = {"c": np.ones(2, "float32"), "UnpackBigParamInfor@@": {}}
    for name, cuts in (("a", (0, 10, 20, 30, 35)), ("b", (0, 7, 12))):
        names = [f"{name}@@.{i}" for i in range(len(cuts) - 1)]
        parts["UnpackBigParamInfor@@"][name] = {"OriginShape": whole[name].shape, "slices": names}
        for i, part in enumerate(names):
            parts[part] = whole[name].flatten()[cuts[i]:cuts[i + 1]]
    path = os.path.join(folder, "paddle_parts.pdparams")
    with open(path, "wb") as f:
        pickle.dump(parts, f, protocol=3)
    note(path, "paddle.save", listed(paddle.load(path)))


# ---- flex checkpoints: written by two ranks, loaded whole by this process ----

FLEX = {"model_state": {"a.weight": [7, 4], "b.weight": [4, 6], "norm": [5]},
        "optimizer_state": {"a.weight.moment1_0": [7, 4], "a.weight.beta1_pow_acc_0": [1],
                            "b.weight.moment1_0": [4, 6]},
        "master_weight": {"a.weight.w_0": [7, 4], "b.weight.w_0": [4, 6]}}
FAMILIES = {"model_state": "", "optimizer_state": "optimizer:", "master_weight": "master_weights:"}


def flex_values(part):
    dtype = "bfloat16" if part == "model_state" else "float32"
    return {k: numbered(s, dtype, i + len(part)) for i, (k, s) in enumerate(FLEX[part].items())}


def flex_rank(folder):
    """One rank: rows of a, columns of b, and flat slices of the states of the optimizer."""
    from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight
    dist.init_parallel_env()
    rank = dist.get_rank()

    def whole(k, t):
        return ShardedWeight(k, t, tuple(t.shape), tuple(t.shape), (0,) * t.ndim)

    def box(k, t, axis, lo, hi):
        part = t.astype("float32").numpy().take(range(lo, hi), axis)
        local = paddle.to_tensor(part).astype(t.dtype)
        offset = [0] * t.ndim
        offset[axis] = lo
        return ShardedWeight(k, local, tuple(local.shape), tuple(t.shape), tuple(offset))

    def flat(k, t, lo, hi):
        return ShardedWeight(k, t.flatten()[lo:hi], tuple(t.shape), tuple(t.shape), (0,) * t.ndim,
                             True, slice(lo, hi))

    def flat_of_box(k, t):
        """A slice of what a tensor-parallel rank has: of its columns."""
        local = t.numpy()[:, 3 * rank:3 * rank + 3].flatten()
        return ShardedWeight(k, paddle.to_tensor(local), (4, 3), (4, 6), (0, 3 * rank), True,
                             slice(0, 12))

    for part in FLEX:
        out = {}
        for k, t in flex_values(part).items():
            if part == "model_state":
                out[k] = whole(k, t) if t.ndim == 1 else box(
                    k, t, int(k[0] == "b"), *((0, 4), (4, 7))[rank] if k[0] == "a"
                    else (3 * rank, 3 * rank + 3))
            elif t.ndim == 1:
                out[k] = whole(k, t)
            else:
                out[k] = flat_of_box(k, t) if k[0] == "b" else flat(
                    k, t, *((0, 13), (13, 28))[rank])
        dist.save_state_dict(out, os.path.join(folder, part))


def flex(folder, note):
    try:                                        # Paddle before 3.2 has no flat ranges
        import paddle.distributed.flex_checkpoint.dcp.sharded_weight    # noqa: F401
    except ImportError:
        return
    path = os.path.join(folder, "paddle-flex")
    shutil.rmtree(path, ignore_errors=True)
    logs = os.path.join(folder, "logs")
    subprocess.run([sys.executable, "-W", "ignore", "-m", "paddle.distributed.launch",
                    "--nproc_per_node", "2", "--backend", "gloo", "--log_dir", logs,
                    os.path.abspath(__file__), path, "rank"], check=True, timeout=200,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    shutil.rmtree(logs)
    found = {}
    for part in FLEX:
        want = {k: paddle.zeros_like(t) for k, t in flex_values(part).items()}
        dist.load_state_dict(want, os.path.join(path, part))
        for k, v in want.items():
            name = k[:-4] if k.endswith(".w_0") else k
            if part == "optimizer_state":
                name = "/".join(k.rsplit(".", 1))
            found[FAMILIES[part] + name] = described(v)
    note(path, "paddle.flex", found)


# ---- by specification: what PaddleNLP and PaddleFormers write, without them ----

SHAPES = {"embed.weight": [9, 4], "l.0.gate_up_fused_proj.weight": [4, 12],
          "l.0.down_proj.weight": [6, 4], "norm.weight": [4]}
KINDS = ("moment1_0", "moment2_0")


def model(dtype, seed):
    return {k: numbered(s, dtype, seed + i) for i, (k, s) in enumerate(SHAPES.items())}


def moments():
    out = {}
    for i, (k, s) in enumerate(SHAPES.items()):
        for j, kind in enumerate(KINDS):
            out[f"{k}/{kind}"] = numbered(s, "float32", 20 + 10 * j + i)
        for j in (1, 2):
            out[f"{k}/beta{j}_pow_acc_0"] = paddle.to_tensor([0.9 ** j])
    return out


def put_st(path, tensors, form="np"):
    """A safetensors file as Paddle writes it: bfloat16 is labelled as U16."""
    from safetensors.numpy import save_file
    save_file({k: np.array(v) for k, v in tensors.items()}, path, {"format": form})


def put_index(path, kind, files, **more):
    names = {k: f for f, tensors in files.items() for k in tensors}
    with open(os.path.join(path, f"{kind}.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"metadata": {"total_size": 1}, "weight_map": names, **more}, f, indent=4)


def put_merged(path, kind, tensors, **more):
    names = list(tensors)
    cut = len(names) // 2
    files = {f"{kind}-0000{i + 1}-of-00002.safetensors": {k: tensors[k] for k in part}
             for i, part in enumerate((names[:cut], names[cut:]))}
    for name, part in files.items():
        put_st(os.path.join(path, name), part)
    put_index(path, kind, files, **more)


def fresh(folder, name):
    path = os.path.join(folder, name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    return path


def told(*groups):
    return {p + k: described(v) for p, tensors in groups for k, v in tensors.items()}


def put_small(path):
    with open(os.path.join(path, "trainer_state.json"), "w", encoding="utf-8") as f:
        json.dump({"epoch": 0.5, "global_step": 12, "consumed_samples": 96, "log_history": [
            {"loss": 1.0}], "best_metric": None, "is_world_process_zero": True}, f)
    with open(os.path.join(path, "async_save_info.json"), "w", encoding="utf-8") as f:
        json.dump({"world_size": 2, "ignore_save_lr_and_optim": False,
                   "skip_save_model_weight": False, "remove_master_weight": False}, f)
    paddle.save({"last_epoch": 12, "last_lr": 0.125}, os.path.join(path, "scheduler.pdparams"))
    for kind in ("model_weight", "master_weight", "optimizer_weight"):
        for rank in range(2 if kind != "optimizer_weight" else 1):
            with open(os.path.join(path, f".{kind}.done.{rank}"), "wb") as f:
                pickle.dump(rank, f)


def unified(folder, note):
    path = fresh(folder, "paddle-uc")
    weights, masters, states = model("bfloat16", 1), model("float32", 1), moments()
    put_merged(path, "model", weights)
    put_merged(path, "master_weights", masters)
    put_merged(path, "optimizer", states, master_weights=True, quant_ckpt_resume_times=0)
    put_small(path)
    note(path, "paddle.unified", told(("", weights), ("master_weights:", masters),
                                      ("optimizer:", states)), by="specification")
    # skip_save_model_weight: the master weights lie under the names of the model.
    path = fresh(folder, "paddle-uc-skip")
    put_merged(path, "model", masters)
    put_merged(path, "optimizer", states, master_weights=True, quant_ckpt_resume_times=0)
    note(path, "paddle.unified", told(("", masters), ("optimizer:", states)), by="specification")
    # An adapter.
    path = fresh(folder, "paddle-uc-lora")
    put_merged(path, "peft_model", masters, type="lora")
    note(path, "paddle.unified", told(("", masters)), by="specification")


def unified_ranks(folder, note):
    """ignore_merge_optimizer: flat slices of three ranks, padded to 8 items; each rank's file is
    one of two (optim_shard_num)."""
    path = fresh(folder, "paddle-uc-ranks")
    weights, masters, states = model("bfloat16", 1), model("float32", 1), moments()
    put_merged(path, "model", weights)
    at, files = 0, {}
    for k, v in [*((k, v) for k, v in states.items()), *masters.items()]:
        kind = "optimizer" if "/" in k else "master_weights"
        if k.endswith("_pow_acc_0"):
            for rank in range(3):
                files.setdefault((kind, rank), {})[k] = v
            continue
        a = np.array(v).flatten()
        a = np.concatenate([a, np.full(-len(a) % 8, 7, "float32")])
        cuts = [0, (3 * at) % (len(a) + 1), len(a) - len(a) // 3, len(a)]
        cuts = sorted(cuts)
        at += 5
        for rank in range(3):
            if cuts[rank] < cuts[rank + 1]:
                files.setdefault((kind, rank), {})[k] = a[cuts[rank]:cuts[rank + 1]]
    for (kind, rank), tensors in files.items():
        for part in range(2):
            put_st(os.path.join(path, f"{kind}.shard0{rank}.safetensors_shard_000{part + 1}"),
                   dict(list(tensors.items())[part::2]))
    with open(os.path.join(path, "optimizer.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"quant_ckpt_resume_times": 0, "optim_shard_num": 2}, f, indent=4)
    note(path, "paddle.unified", told(("", weights), ("master_weights:", masters),
                                      ("optimizer:", states)), by="specification")
    # The same of two tensor-parallel ranks that have no slices: columns, rows, and two halves.
    path = fresh(folder, "paddle-uc-tp")
    put_merged(path, "model", weights)
    for rank in range(2):
        part = {}
        for k, v in states.items():
            a = np.array(v)
            if "gate_up_fused" in k and a.ndim == 2:
                a = np.concatenate([h[:, 3 * rank:3 * rank + 3] for h in (a[:, :6], a[:, 6:])], 1)
            elif "down_proj" in k and a.ndim == 2:
                a = a[3 * rank:3 * rank + 3]
            elif "embed" in k and a.ndim == 2:
                a = a[:, 2 * rank:2 * rank + 2]
            part[k] = np.ascontiguousarray(a)
        put_st(os.path.join(path, f"optimizer.tp0{rank}.safetensors"), part)
    with open(os.path.join(path, "optimizer.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"quant_ckpt_resume_times": 0}, f, indent=4)
    note(path, "paddle.unified", told(("", weights), ("optimizer:", states)), by="specification")


def quantised(folder, note):
    """ckpt_quant_stage O1: the index lists what the state would be, unquantised."""
    path = fresh(folder, "paddle-uc-o1")
    weights, states = model("bfloat16", 1), moments()
    stored = {}
    for k, v in states.items():
        a = np.array(v)
        if k.endswith("moment1_0"):
            scale = np.abs(a).max(0)
            stored[k] = np.clip(np.rint(a / scale * 127), -127, 127).astype("int8")
            stored[k + "@scales"] = scale
        elif k.endswith("moment2_0"):
            r = 1 / (np.sqrt(a) + 1e-8)
            lo, hi = r.min(0), r.max(0)
            stored[k] = np.rint((r - lo) / np.maximum(hi - lo, 1e-8) * 255).astype("uint8")
            stored[k + "@min_scales"], stored[k + "@max_scales"] = lo, hi
        else:
            stored[k] = a
    put_merged(path, "model", weights)
    put_st(os.path.join(path, "optimizer-00001-of-00001.safetensors"), stored)
    put_index(path, "optimizer", {"optimizer-00001-of-00001.safetensors": states},
              ckpt_quant_stage="O1", quant_ckpt_resume_times=0, master_weights=False)
    note(path, "paddle.unified", told(("", weights), ("optimizer:", stored)), by="specification")


STATIC = {k: f"linear_{i}.w_0" for i, k in enumerate(SHAPES)}


def sharding(folder, note):
    """sharding_io, ShardingV2: flat slices of two ranks; one parameter has no master weight."""
    path = fresh(folder, "paddle-sharding")
    weights, masters, states = model("bfloat16", 1), model("float32", 1), moments()
    alone = {"norm.weight": masters.pop("norm.weight")}
    paddle.save(alone, os.path.join(path, "model_state.pdparams"))
    for rank in range(2):
        out = {"master_weights": {}, "LR_Scheduler": {"last_epoch": 3, "last_lr": 0.5}}
        average = {"master_weights": {}}
        for k, v in [*states.items(), *masters.items()]:
            name, _, kind = k.partition("/")
            a = np.array(v).flatten()
            if not k.endswith("_pow_acc_0"):
                a = np.concatenate([a, np.full(-len(a) % 8, 7, "float32")])
                a = a[:20] if rank == 0 else a[20:]
            if not len(a):
                continue
            t = paddle.to_tensor(a)
            if kind:
                middle = "_fp32_master_0" if name in masters else ""
                out[f"{STATIC[name]}{middle}_{kind}"] = t
            else:
                out["master_weights"][STATIC[name]] = t
                average["master_weights"][STATIC[name]] = t
        if rank == 0:
            average["norm.weight"] = alone["norm.weight"]
        paddle.save(out, os.path.join(path, f"optimizer.shard0{rank}.pdopt"))
        paddle.save(average, os.path.join(path, f"ema.shard0{rank}.pdopt"))
    meta = {"parallel_config": {"pp_degree": 1, "mp_degree": 1, "sharding_degree": 2},
            "sharding_metas": {"tp00_pp00": {
                "structure_name_mapping": STATIC, "param2rank": {},
                "param_meta": {k: [s, 2, False] for k, s in SHAPES.items()},
                "sharding_strategy": "ShardingV2", "enable_overlap": False}}}
    with open(os.path.join(path, "model_meta.json"), "w", encoding="utf-8") as f:
        json.dump(meta, f)
    note(path, "paddle.sharding_io", told(
        ("", alone), ("master_weights:", masters), ("optimizer:", states), ("ema:", masters),
        ("ema:", alone)), by="specification")


def main(folder):
    os.makedirs(folder, exist_ok=True)
    lines = []

    def note(path, kind, tensors, **more):
        lines.append({"path": os.path.relpath(path, folder), "format": kind,
                      "paddle": paddle.__version__, "verify": 2, "tensors": tensors, **more})

    plain(folder, note)
    flex(folder, note)
    unified(folder, note)
    unified_ranks(folder, note)
    quantised(folder, note)
    sharding(folder, note)
    with open(os.path.join(folder, "paddle-expected.jsonl"), "w", encoding="utf-8") as f:
        for line in lines:
            f.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    if sys.argv[2:] == ["rank"]:
        flex_rank(sys.argv[1])
    else:
        main(sys.argv[1])
