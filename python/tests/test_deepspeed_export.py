#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed goes on from checkpoints that sheaf exports for it. Prints TAP.

usage: test_deepspeed_export.py SHEAF, the command
"""
from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import launched
import ranks
import tap
from tap import folder, needs

os.environ.setdefault("DS_ACCELERATOR", "cpu")
NEEDED = ("torch", "deepspeed", "numpy")
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "test", "golden",
                      "foreign")
if tap.there(*NEEDED):
    import logging
    import warnings
    warnings.simplefilter("ignore")

    import deepspeed
    import torch
    import torch._dynamo                # now, and not in each rank

    import sheaf as package
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False      # takes minutes to compile

    class Layer(torch.nn.Linear):
        def forward(self, prefix: str, seed: int) -> Any:       # type: ignore[override]
            return loss_of(self, prefix, seed)

    class Net(torch.nn.Module):
        """Odd sizes, a weight that two layers share, a frozen one, one of one item, a buffer. The
        gradient of its loss is what it is given."""

        def __init__(self) -> None:
            super().__init__()
            self.first = Layer(5, 7)
            self.second = Layer(7, 5)
            self.tied = Layer(5, 7, bias=False)
            self.tied.weight = self.first.weight
            self.frozen = torch.nn.Parameter(torch.ones(3, 3), requires_grad=False)
            self.scale = torch.nn.Parameter(torch.tensor([1.25]))
            self.register_buffer("seen", torch.arange(3.0))

        def forward(self, seed: int) -> Any:
            return (loss_of(self, "", seed) + self.first("first.", seed) +
                    self.second("second.", seed))

Betas = tuple[float, float]
LR, BETAS, EPS, DECAY, STEPS = 1e-2, (0.85, 0.97), 1e-8, 0.1, 3
BF16 = {"bf16": {"enabled": True}}
KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "ZeRO 1": (1, {}), "ZeRO 2": (2, {}), "ZeRO 3": (3, {}), "ZeRO 1 in BF16": (1, BF16),
    "ZeRO 3 in BF16": (3, BF16),
    "BF16_Optimizer": (1, {**BF16, "data_types": {"grad_accum_dtype": "fp32"}})}


def gradient(name: str, p: Any, seed: int) -> Any:
    """Values that BF16 has, so that each kind of training has the same."""
    shape = getattr(p, "ds_shape", p.shape)
    g = torch.randn(shape, generator=torch.Generator().manual_seed(seed + len(name)))
    return g.bfloat16().float()


def loss_of(module: Any, prefix: str, seed: int) -> Any:
    """Something whose gradients are given, for the parameters of one module alone, which is what
    ZeRO 3 has then."""
    return sum((p.float() * gradient(prefix + n, p, seed)).sum()
               for n, p in module.named_parameters(recurse=False) if p.requires_grad)


def groups(model: Any) -> list[dict[str, Any]]:
    named = [p for p in model.parameters() if p.requires_grad]
    return [{"params": [p for p in named if p.ndim > 1], "weight_decay": DECAY},
            {"params": [p for p in named if p.ndim < 2], "weight_decay": 0.0}]


def export(*args: str) -> None:
    done = subprocess.run([sys.argv[1], "export", *args, "--format", "deepspeed-universal",
                           "--all"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def next_step(rank: int, n: int, at: str, stage: int, settings: dict[str, Any]) -> Any:
    """Loads the checkpoint, makes a step, and returns what the parameters had and have, and how
    many steps of the training there were."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)        # BF16_Optimizer tells much there
    launched.environment(rank, n)
    if n == 1:
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost",
                          MASTER_PORT=str(launched.free_port()))
    torch.manual_seed(8)
    model = Net()
    # The learning rate is this training's, and the betas come from the checkpoint.
    optimizer = torch.optim.AdamW(groups(model), lr=LR, betas=(0.5, 0.6), eps=EPS)
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.0,
              "zero_allow_untested_optimizer": True,
              "zero_optimization": {"stage": stage}, "checkpoint": {"load_universal": True},
              **settings}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    path, _ = engine.load_checkpoint(at)
    assert path, at
    if stage == 3:              # as doc/formats.md says for optimizers of torch
        for state in engine.optimizer.optimizer.state.values():
            state["step"] = torch.tensor(float(state["step"]))
    trained = [(name, p) for name, p in engine.module.named_parameters() if p.requires_grad]
    found = {name: [safe_get_full_fp32_param(p).clone(),
                    safe_get_full_optimizer_state(p, "exp_avg").clone(),
                    safe_get_full_optimizer_state(p, "exp_avg_sq").clone()] for name, p in trained}
    low = {}
    for name, p in trained:
        with deepspeed.zero.GatheredParameters([p], enabled=stage == 3):
            low[name] = p.detach().float().clone()
    engine.backward(engine(21))
    engine.step()
    for name, p in trained:
        found[name].append(safe_get_full_fp32_param(p).clone())
        found[name].append(low[name])
    return {k: [t.reshape(-1).tolist() for t in v] for k, v in found.items()}, engine.global_steps


def formula(old: Any, m: Any, v: Any, g: Any, decay: float, betas: Betas) -> Any:
    """AdamW in float64."""
    old, m, v, g = (t.double().reshape(-1) for t in (old, m, v, g))
    m = betas[0] * m + (1 - betas[0]) * g
    v = betas[1] * v + (1 - betas[1]) * g * g
    t = STEPS + 1
    return old * (1 - LR * decay) - LR * (m / (1 - betas[0] ** t)) / (
        (v / (1 - betas[1] ** t)).sqrt() + EPS)


def compare(found: dict[str, Any], source: dict[str, Any], betas: Betas, claim: str) -> None:
    """What was loaded is what the source has, and the step is that of the formula and that of the
    source."""
    assert found.keys() == source.keys(), claim
    for name, (old, m, v, then) in source.items():
        loaded, first, second, after, low = (torch.tensor(x) for x in found[name])
        assert loaded.equal(old.reshape(-1)), (claim, name)
        assert first.equal(m.reshape(-1)) and second.equal(v.reshape(-1)), (claim, name)
        in_16_bits = old.reshape(-1).bfloat16().float()
        assert low.reshape(-1).equal(in_16_bits if "BF16" in claim else old.reshape(-1)), claim
        want = formula(old, m, v, gradient(name, old, 21), DECAY if old.ndim > 1 else 0,
                       betas)
        update = (want - old.double().reshape(-1)).abs().max()
        near = 1e-6 * want.abs().max()
        assert update > 1e-4, (claim, name)
        assert (after.double() - want).abs().max() <= near, (claim, name, after, want)
        assert (after - then.reshape(-1)).abs().max() <= near, (claim, name, after, then)


def trained(at: str) -> dict[str, Any]:
    """Trains with torch alone, saves a step to a run, and makes another step: of each parameter
    its weights and moments in the run, and its weights then."""
    torch.manual_seed(3)
    model = Net()
    optimizer = torch.optim.AdamW(groups(model), lr=LR, betas=BETAS, eps=EPS)

    def step(seed: int) -> None:
        optimizer.zero_grad()
        model(seed).backward()
        optimizer.step()
    for i in range(STEPS):
        step(i)
    with package.Checkpointer(at) as ckpt:
        ckpt.track(model, optimizer)
        ckpt.save(1000)
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    kept = {n: [p.detach().clone(), optimizer.state[p]["exp_avg"].clone(),
                optimizer.state[p]["exp_avg_sq"].clone()] for n, p in named}
    step(21)
    for n, p in named:
        kept[n].append(p.detach().clone())
    return kept


@needs(*NEEDED)
def test_training_goes_on() -> None:
    """Each kind of ZeRO goes on from a step of a run as the training would have that saved it"""
    with folder() as at:
        source = trained(at + "/run")
        export(at + "/run@1000", at + "/ds")
        for n in (1, 2):
            for claim, (stage, settings) in KINDS.items():
                if n == 1 and claim not in ("ZeRO 2", "ZeRO 3", "BF16_Optimizer"):
                    continue
                for found, steps in ranks.results(n, next_step, n, at + "/ds", stage, settings):
                    compare(found, source, BETAS, "%s on %d ranks" % (claim, n))
                    assert steps == 1001, steps


@needs(*NEEDED)
def test_masters() -> None:
    """So it does from masters and moments that DeepSpeed saved, as AdamW of torch would"""
    save, betas = os.path.join(GOLDEN, "deepspeed-bf16"), (0.9, 0.999)
    source: dict[str, Any] = {}
    for name, p in Net().named_parameters():
        if not p.requires_grad:
            continue
        kept = []
        for family, key in (("master_weights", ""), ("optimizer", "/moment1_0"),
                            ("optimizer", "/moment2_0")):
            raw = subprocess.run([sys.argv[1], "cat", save, name + key, "--family", family],
                                 capture_output=True, timeout=120, check=True).stdout
            kept.append(torch.frombuffer(bytearray(raw), dtype=torch.float32).reshape(p.shape))
        then = torch.nn.Parameter(kept[0].clone())
        then.grad = gradient(name, p, 21)
        adam = torch.optim.AdamW([then], lr=LR, betas=betas, eps=EPS,
                                 weight_decay=DECAY if p.ndim > 1 else 0)
        adam.state[then] = {"step": torch.tensor(float(STEPS)), "exp_avg": kept[1].clone(),
                            "exp_avg_sq": kept[2].clone()}
        adam.step()
        source[name] = [*kept, then.detach()]
    with folder() as at:
        export(save, at + "/ds")
        for found, steps in ranks.results(2, next_step, 2, at + "/ds", 2, BF16):
            compare(found, source, betas, "ZeRO 2 in BF16")
            assert steps == STEPS + 1, steps


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
