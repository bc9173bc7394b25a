#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small checkpoints with the real DeepSpeed, on two ranks of this machine (gloo), and what
its own converters give back for each.

usage: make_deepspeed.py FOLDER [NAME ...], the names of those to be made; all

deepspeed-expected.jsonl has one line a checkpoint, as make_torch.py writes them. The fp32 weights
are those of get_fp32_state_dict_from_zero_checkpoint, the moments those of ds_to_universal, and
16-bit weights and buffers those of torch.load. Neither converter reads stages of a pipeline and
experts as they are here: their parts are put together by the addresses that DeepSpeed wrote of
them, and the weights are compared with those of 16 bits. Names in another family than "model" are
<family>:<name>. The files of this folder were made by DeepSpeed 0.19.8 with torch 2.13.0 (CPU) and
Python 3.11.
"""
import glob
import json
import os
import re
import shutil
import socket
import subprocess
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")
try:
    import deepspeed
    import torch
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
except ImportError:
    print("1..0 # SKIP deepspeed is not installed")
    sys.exit(77)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from make_torch import described                # noqa: E402

STEP = 3
MOMENTS = {"exp_avg": "moment1_0", "exp_avg_sq": "moment2_0"}
BF16 = {"bf16": {"enabled": True}}
KINDS = {                       # name: stage, settings, settings of ZeRO
    "deepspeed-z1": (1, BF16, {}),
    "deepspeed-bf16": (1, {**BF16, "data_types": {"grad_accum_dtype": "fp32"}}, {}),
    "deepspeed-z2": (2, {}, {}),
    "deepspeed-z2-aligned": (2, BF16, {"parameter_alignment": True, "round_robin_gradients": True}),
    "deepspeed-z3": (3, BF16, {}),
    "deepspeed-z3-parts": (3, {}, {"sub_group_size": 30}),
}
RANKS = {"deepspeed-pipe": 2, "deepspeed-experts": 4, "deepspeed-tp": 2}
UNIVERSAL = ("deepspeed-z1", "deepspeed-z3")


class Net(torch.nn.Module):
    """Odd sizes, a weight that two layers share, a frozen one, one of one item, and a buffer."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(5, 7)
        self.second = torch.nn.Linear(7, 5)
        self.tied = torch.nn.Linear(5, 7, bias=False)
        self.tied.weight = self.first.weight
        self.frozen = torch.nn.Parameter(torch.randn(3, 3), requires_grad=False)
        self.scale = torch.nn.Parameter(torch.tensor([1.25]))
        self.register_buffer("seen", torch.arange(3.0))

    def forward(self, x):
        x = self.second(torch.tanh(self.first(x)))
        return self.tied(x) * self.scale * self.frozen.sum()


CONFIG = {"train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True}


def work_pipe(folder):
    """One rank of a pipeline of two stages, which share a weight."""
    from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
    deepspeed.init_distributed(dist_backend="gloo")

    def turned(layer, x):
        return torch.nn.functional.linear(x, layer.weight.t())
    net = PipelineModule(
        [TiedLayerSpec("both", torch.nn.Linear, 5, 7, bias=False, tied_weight_attr="weight"),
         LayerSpec(torch.nn.Linear, 7, 7), LayerSpec(torch.nn.Linear, 7, 7),
         TiedLayerSpec("both", torch.nn.Linear, 5, 7, bias=False, forward_fn=turned,
                       tied_weight_attr="weight")],
        num_stages=2, loss_fn=torch.nn.MSELoss(), partition_method="uniform")
    engine, *_ = deepspeed.initialize(
        model=net, optimizer=torch.optim.AdamW(net.parameters(), lr=1e-2),
        config={**CONFIG, **BF16, "gradient_accumulation_steps": 1,
                "zero_optimization": {"stage": 1}})

    def data():
        while True:
            yield torch.randn(2, 5).bfloat16(), torch.randn(2, 5).bfloat16()
    for _ in range(STEP):
        engine.train_batch(data())
    engine.save_checkpoint(folder)


def work_experts(folder):
    """One of four ranks, of which two have other experts than the others."""
    from deepspeed.moe.layer import MoE
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
    deepspeed.init_distributed(dist_backend="gloo")

    class Experts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(5, 7)
            self.moe = MoE(7, torch.nn.Linear(7, 7), num_experts=4, ep_size=2, k=1)

        def forward(self, x):
            return self.moe(self.first(x))[0]
    net = Experts()
    groups = split_params_into_different_moe_groups_for_optimizer(
        {"params": list(net.parameters()), "name": "all"})
    engine, *_ = deepspeed.initialize(
        model=net, optimizer=torch.optim.AdamW(groups, lr=1e-2),
        config={**CONFIG, **BF16, "zero_optimization": {"stage": 2}})
    for _ in range(STEP):
        loss = engine(torch.randn(8, 5).bfloat16()).float().square().mean()
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint(folder)


def work_tp(folder):
    """One of two ranks of tensor parallelism, which cut one weight by rows and one by columns."""
    class Cut(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up_proj = torch.nn.Linear(5, 6)
            self.o_proj = torch.nn.Linear(6, 5)

        def forward(self, x):
            return self.o_proj(torch.tanh(self.up_proj(x)))
    net = Cut()
    specs = [{"patterns": [r".*o_proj\.weight$"], "partition_type": "row"},
             {"patterns": [r".*up_proj\.weight$"], "partition_type": "column"}]
    engine, *_ = deepspeed.initialize(
        model=net, optimizer=torch.optim.AdamW(net.parameters(), lr=1e-2),
        config={**CONFIG, **BF16, "zero_optimization": {"stage": 1}, "tensor_parallel": {
            "autotp_size": 2, "partition_config": {"use_default_specs": False,
                                                   "layer_specs": specs}}})
    x = torch.randn(2, 5).bfloat16()
    for _ in range(STEP):
        engine.backward(engine(x).float().square().mean())
        engine.step()
    engine.save_checkpoint(folder)


def work(name, folder):
    """One rank of a job."""
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    torch.manual_seed(3)
    if name not in KINDS:
        return {"deepspeed-pipe": work_pipe, "deepspeed-experts": work_experts,
                "deepspeed-tp": work_tp}[name](folder)
    stage, settings, zero = KINDS[name]
    model = Net()
    decay = [p for n, p in model.named_parameters() if p.ndim > 1 and p.requires_grad]
    rest = [p for n, p in model.named_parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1},
                                   {"params": rest, "weight_decay": 0.0}], lr=1e-2)
    config = {**CONFIG, "zero_optimization": {"stage": stage, **zero}, **settings}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    torch.manual_seed(engine.global_rank)
    for _ in range(STEP):
        dtype = torch.bfloat16 if "bf16" in settings else torch.float32
        loss = engine(torch.randn(2, 5).to(dtype)).float().square().mean()
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint(folder, client_state={"epoch": 2, "note": "abc"})
    return engine.destroy()


def ranks(name, folder):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    n = RANKS.get(name, 2)
    jobs = [subprocess.Popen([sys.executable, __file__, "--rank", name, folder], env={
        **os.environ, "RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": str(n),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}) for r in range(n)]
    if any([j.wait() for j in jobs]):
        sys.exit(f"{name}: a rank failed")


def read(path):
    return torch.load(path, map_location="cpu", weights_only=False)


def fp32_of(folder, state, other):
    """The fp32 weights. zero_to_fp32 does not know the files of BF16_Optimizer."""
    if "zero_stage" in state["optimizer_state_dict"]:
        return get_fp32_state_dict_from_zero_checkpoint(os.path.dirname(folder),
                                                        os.path.basename(folder))
    return {os.path.basename(os.path.dirname(p)): read(p)["param"]
            for p in glob.glob(os.path.join(other, "zero", "*", "fp32.pt"))}


def weights_of(folder, stage, other):
    """The tensors of the model and its masters. other: the same as a universal checkpoint."""
    optimizer = read(sorted(glob.glob(os.path.join(folder, "*_optim_states.pt")))[0])
    whole = fp32_of(folder, optimizer, other)
    if stage == 3:
        return {n: described(t) for n, t in whole.items()}
    state = read(os.path.join(folder, "mp_rank_00_model_states.pt"))
    module, stored = state["module"], [n for g in state["param_shapes"] for n in g]
    out = {n: described(t) for n, t in module.items()}
    out.update(("master_weights:" + n, described(whole[n])) for n in stored
               if module[n].dtype != torch.float32)
    for n, t in module.items():                 # both have the same; of ZeRO 1 without the frozen
        assert n not in whole or whole[n].to(t.dtype).equal(t), n
    return out


def universal(folder, out, *more):
    subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder",
                    folder, "--output_folder", out, "--num_extract_workers", "1",
                    "--num_merge_workers", "1", *more], check=True, stdout=subprocess.DEVNULL)


def states_of(folder, shapes):
    """The states of the optimizer that ds_to_universal wrote."""
    out = {}
    for path in sorted(glob.glob(os.path.join(folder, "zero", "*", "exp_avg*.pt"))):
        name = os.path.basename(os.path.dirname(path))
        t = read(path)
        t = (t["param"] if isinstance(t, dict) else t).reshape(shapes[name])
        out[f"optimizer:{name}/{MOMENTS[os.path.basename(path)[:-3]]}"] = described(t)
    return out


def steps_of(folder):
    """The counts of steps, which ds_to_universal writes of ZeRO 1 and 2."""
    return {f"optimizer:{os.path.basename(os.path.dirname(p))}/step": described(read(p))
            for p in sorted(glob.glob(os.path.join(folder, "zero", "*", "step.pt")))}


def model_of(folder):
    """The 16-bit weights, by their names in the model."""
    out = {}
    for path in sorted(glob.glob(os.path.join(folder, "*model_states.pt"))):
        layer = re.match(r"layer_(\d+)-model_states", os.path.basename(path))
        state = read(path)
        state = state if os.path.basename(path).startswith("layer_") else state["module"] or {}
        out.update(((layer[1].lstrip("0") or "0") + "." + n if layer else n, t)
                   for n, t in state.items())
    return out


def by_addresses(folder):
    """What ranks have of each parameter, one after another, by the addresses that they wrote."""
    parts, shapes = {}, {}
    for path in glob.glob(os.path.join(folder, "mp_rank_*_model_states.pt")):
        for group in read(path)["param_shapes"]:
            shapes.update(group)
    for path in sorted(glob.glob(os.path.join(folder, "*_optim_states.pt"))):
        rank = int(re.search(r"pp_rank_(\d+)", path)[1])
        state = read(path)["optimizer_state_dict"]
        for g, addresses in enumerate(state["param_slice_mappings"]):
            spread = RANKS["deepspeed-experts"] // state["partition_count"][g]
            kinds = {"master_weights:%s": state["single_partition_of_fp32_groups"][g],
                     **{f"optimizer:%s/{ours}": state["base_optimizer_state"]["state"][g][k]
                        for k, ours in MOMENTS.items()}}
            for name, at in addresses.items():
                own = re.sub(r"(deepspeed_experts\.)(\d+)", lambda m: m[1] + str(
                    int(m[2]) + 2 * (rank % spread)), name)
                for kind, flat in kinds.items():
                    mp = re.search(r"mp_rank_(\d+)", path)[1]
                    parts.setdefault((kind % own, name), {}).setdefault(mp, []).append(
                        flat[at.start:at.start + at.numel])
    return {n: torch.cat(next(iter(p.values()))).reshape(shapes[name])
            for (n, name), p in parts.items()}


def joined(folder):
    """What a save of ranks of tensor parallelism holds, as ds_to_universal joins it."""
    whole = folder + "_universal"
    universal(folder, whole)
    weights = {os.path.basename(os.path.dirname(p)): read(p)["param"].detach()
               for p in glob.glob(os.path.join(whole, "zero", "*", "fp32.pt"))}
    out = states_of(whole, {n: list(t.shape) for n, t in weights.items()})
    for n, t in weights.items():
        parts = [read(p)["module"][n] for p in sorted(glob.glob(os.path.join(
            folder, "mp_rank_*_model_states.pt")))]
        own = t.to(torch.bfloat16)
        assert own.equal(parts[0]) or any(own.equal(torch.cat(parts, k)) for k in range(t.ndim)), n
        out.update({n: described(own), "master_weights:" + n: described(t)})
    shutil.rmtree(whole)
    os.remove(os.path.join(os.path.dirname(folder), "latest_universal"))
    return out


def special(folder):
    """What a save of a pipeline or of experts holds."""
    if "deepspeed-tp" in folder:
        return joined(folder)
    model, flat = model_of(folder), by_addresses(folder)
    for n, t in flat.items():
        family, _, name = n.partition(":")
        name = name.replace("tied_modules.both", "0")
        if family == "master_weights":
            assert t.to(torch.bfloat16).equal(model[name]), n
    return {n: described(t) for n, t in {**model, **flat}.items()}


def saved(at):
    """Makes a directory of one save; returns the folder of the save."""
    shutil.rmtree(at, ignore_errors=True)
    ranks(os.path.basename(at), at)
    for script in glob.glob(os.path.join(at, "zero_to_*.py")):
        os.remove(script)
    return os.path.join(at, f"global_step{STEP}")


def main(folder, *names):
    lines = []
    for name in RANKS:
        if names and name not in names:
            continue
        lines.append({"path": name, "format": "deepspeed", "deepspeed": deepspeed.__version__,
                      "tensors": special(saved(os.path.join(folder, name)))})
    for name, (stage, _, _) in KINDS.items():
        if names and name not in names:
            continue
        at = os.path.join(folder, name)
        tag = saved(at)
        whole = tag + "_universal"
        universal(tag, whole, *(["--inject_missing_state"] if stage < 3 else []))
        found = weights_of(tag, stage, whole)
        found.update(states_of(whole, {n.rpartition(":")[2]: t[1] for n, t in found.items()}))
        line = {"path": name, "format": "deepspeed", "deepspeed": deepspeed.__version__,
                "tensors": found}
        lines.append(line)
        if name in UNIVERSAL:
            other = name.replace("-z", "-u")
            kept = os.path.join(folder, other)
            shutil.rmtree(kept, ignore_errors=True)
            os.makedirs(kept)
            os.rename(whole, os.path.join(kept, os.path.basename(whole)))
            os.rename(os.path.join(at, "latest_universal"), os.path.join(kept, "latest_universal"))
            lines.append({**line, "path": other, "tensors": {**found, **steps_of(
                os.path.join(kept, os.path.basename(whole)))}})
        else:
            shutil.rmtree(whole)
            os.remove(os.path.join(at, "latest_universal"))
    with open(os.path.join(folder, "deepspeed-expected.jsonl"), "w", encoding="utf-8") as f:
        f.writelines(json.dumps(x, separators=(",", ":")) + "\n"
                     for x in sorted(lines, key=lambda x: x["path"]))


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        work(*sys.argv[2:4])
    else:
        main(*sys.argv[1:])
