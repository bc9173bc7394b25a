# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed with sheaf.deepspeed, in one process and on ranks. Prints TAP."""
from __future__ import annotations

import os
import signal
import sys
from typing import Any, Optional

import launched
import ranks
import tap
from tap import folder, needs, told

os.environ.setdefault("DS_ACCELERATOR", "cpu")
NEEDED = ("torch", "deepspeed", "numpy")
if tap.there(*NEEDED):
    import logging
    import warnings
    warnings.simplefilter("ignore")

    import deepspeed
    import torch
    import torch._dynamo                # now, and not in each rank

    import sheaf
    import sheaf.deepspeed
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # DeepSpeed would compile all-reduce over shared memory, which takes minutes.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

    class Net(torch.nn.Module):
        """A small model with dropout, tied weights, a buffer and a frozen parameter."""

        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Linear(8, 13)
            self.b = torch.nn.Linear(13, 8, bias=False)
            self.c = torch.nn.Linear(8, 13)
            self.c.weight = self.a.weight
            self.frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
            self.register_buffer("seen", torch.zeros(2))

        def forward(self, x: Any) -> Any:
            self.seen += 1
            x = self.b(torch.nn.functional.dropout(torch.tanh(self.a(x)), 0.1))
            return self.c(x) * self.frozen.sum()

    class Many(torch.nn.Module):
        """More parameters in one flat tensor than Python can go into itself."""

        def __init__(self) -> None:
            super().__init__()
            self.all = torch.nn.ParameterList(torch.full((3,), float(i)) for i in range(1100))

        def forward(self, x: Any) -> Any:
            return x * torch.cat(list(self.all)).sum()

STEPS = 6
TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def objects() -> Any:
    """A new model, its optimizer with two groups, and a schedule."""
    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.AdamW([
        {"params": [model.a.weight, model.b.weight], "weight_decay": 0.1},
        {"params": [model.a.bias, model.c.bias], "lr": 3e-3}], lr=1e-2)
    return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 / (1 + i))


def environment(rank: int, n: int) -> None:
    """The environment of torchrun, which DeepSpeed needs for one rank, too."""
    launched.environment(rank, n)
    if n == 1:
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost",
                          MASTER_PORT=str(launched.free_port()))


def engine_of(rank: int, n: int, stage: int, kind: str, **settings: Any) -> Any:
    """An engine of DeepSpeed for a new model."""
    environment(rank, n)
    model, optimizer, scheduler = objects()
    config = {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0,
              "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True,
              **settings}
    if kind != "fp32":
        config[kind] = {"enabled": True}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=scheduler,
                                      config=config)
    torch.manual_seed(7 + rank)
    return engine


def gathered(t: Any) -> Any:
    """The tensors of all ranks, one after another."""
    parts = [torch.empty_like(t) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, t.detach())
    return torch.cat(parts)


def whole(engine: Any) -> dict[str, Any]:
    """The exact weights and moments, by the order in which DeepSpeed lists the parameters."""
    names = {id(p): name for name, p in engine.module.named_parameters()}
    found: dict[str, Any] = {"frozen": engine.module.frozen.float().tolist(),
                             "seen": engine.module.seen.float().tolist()}
    found.update(("lp " + name, p.float().tolist()) for name, p in engine.module.named_parameters())
    z = engine.optimizer
    if not engine.zero_optimization_stage():
        for group in z.param_groups:
            for p in group["params"]:
                for key, t in [("", p), *z.state[p].items()]:
                    found["%s %s" % (key, names[id(p)])] = t.flatten().tolist()
        return found
    for params, flat in zip(z.round_robin_bit16_groups, z.single_partition_of_fp32_groups):
        for key, t in [("", flat), *z.optimizer.state[flat].items()]:
            at, all_of_it = 0, gathered(t) if t.ndim else t
            for p in params:
                one = all_of_it[at:at + p.numel()] if t.ndim else all_of_it.reshape(1)
                found["%s %s" % (key, names[id(p)])] = one.tolist()
                at += p.numel()
    return found


def trained(rank: int, n: int, at: str, stage: int, kind: str, steps: int = STEPS,
            kill: Optional[int] = None, tag: Any = None) -> Any:
    """Trains from the newest checkpoint on. Returns losses, weights and moments, and counters."""
    engine = sheaf.deepspeed.use(engine_of(rank, n, stage, kind), keep_last=4)
    path, client = engine.load_checkpoint(at, tag) if os.path.isdir(at) else (None, None)
    losses: dict[int, float] = {}
    before = whole(engine) if path else None
    while engine.global_steps < steps:
        if engine.global_steps == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.randn(4, 8).to(getattr(torch, TYPES[kind]))
        loss = engine(x).float().square().mean()
        engine.backward(loss)
        engine.step()
        losses[engine.global_steps] = loss.item()
        if engine.global_steps % 2 == 0:
            engine.save_checkpoint(at, client_state={"step": engine.global_steps, "t": (1, "x")})
    scale = getattr(engine.optimizer, "cur_scale", None)
    counters = (engine.global_steps, engine.global_samples, engine.skipped_steps, scale,
                engine.lr_scheduler.state_dict()["last_epoch"], engine.get_lr())
    after = whole(engine)
    engine.destroy()
    return losses, after, counters, before, client, path


def goes_on(n: int, stage: int, kind: str) -> None:
    """A training that is killed and resumed ends as one that was not."""
    with folder() as at:
        first = ranks.results(n, trained, n, at + "/whole", stage, kind)
        ended = ranks.everywhere(n, trained, n, at + "/cut", stage, kind, STEPS, 5)
        assert all(isinstance(x, ranks.Ended) and "killed" in repr(x) for x in ended), ended
        then = ranks.results(n, trained, n, at + "/cut", stage, kind)
        for a, b in zip(first, then):
            assert b[4] == {"step": 4, "t": (1, "x")} and b[5].endswith("/checkpoint-4"), b[4:]
            assert {k: v for k, v in a[0].items() if k > 4} == b[0], (a[0], b[0])
            assert a[1:3] == b[1:3], (a[1:3], b[1:3])
            assert a[2][0] == STEPS and any(b[3]["exp_avg b.weight"])


@needs(*NEEDED)
def test_zero_2_in_bf16() -> None:
    """ZeRO 2 in bf16 on two ranks is killed and goes on bit for bit"""
    goes_on(2, 2, "bf16")


@needs(*NEEDED)
def test_zero_1_in_fp32() -> None:
    """ZeRO 1 in fp32 on two ranks goes on bit for bit"""
    goes_on(2, 1, "fp32")


@needs(*NEEDED)
def test_without_zero() -> None:
    """An engine without ZeRO goes on bit for bit"""
    goes_on(1, 0, "fp32")


def exact(found: dict[str, Any]) -> dict[str, Any]:
    """What must be the same in each layout and type: weights, moments and steps as masters."""
    return {k: v for k, v in found.items() if not k.startswith("lp ")}


def plain(rank: int, at: str, save: str) -> Any:
    """What plain PyTorch loads; it saves that to another run as well."""
    model, optimizer, scheduler = objects()
    with sheaf.Checkpointer(at, readonly=True) as ckpt:
        ckpt.track(model, optimizer, scheduler=scheduler)
        # bf16 of the frozen parameter and the buffer is converted. The counters and client_state of
        # the engine have no object here, so they are left out.
        ckpt.load(convert=True, only=["model", "optimizer", "scheduler"])
    with sheaf.Checkpointer(save) as ckpt:
        ckpt.track(model, optimizer, scheduler=scheduler)
        ckpt.save(STEPS)
    names = {id(p): name for name, p in model.named_parameters()}
    found: dict[str, Any] = {"frozen": model.frozen.tolist(), "seen": model.seen.tolist()}
    for group in optimizer.param_groups:
        for p in group["params"]:
            for key, t in [("", p), *optimizer.state[p].items()]:
                found["%s %s" % (key, names[id(p)])] = t.flatten().tolist()
    return found, scheduler.last_epoch, [g["lr"] for g in optimizer.param_groups]


def of_plain(rank: int, n: int, at: str) -> Any:
    """What an engine loads of that."""
    engine = sheaf.deepspeed.use(engine_of(rank, n, 2, "bf16"))
    engine.load_checkpoint(at, load_module_strict=False)
    return exact(whole(engine)), engine.get_lr()


@needs(*NEEDED)
def test_other_layouts() -> None:
    """What ZeRO 2 saved in bf16 on 2 ranks is loaded by 1, by another stage, by plain PyTorch"""
    with folder() as at:
        first, _ = ranks.results(2, trained, 2, at + "/run", 2, "bf16")
        for n, stage, kind in ((1, 2, "bf16"), (2, 1, "fp32"), (1, 0, "fp32")):
            for found in ranks.results(n, trained, n, at + "/run", stage, kind):
                assert exact(found[3]) == exact(first[1]), (n, stage, kind, found[3], first[1])
                assert found[2][0] == STEPS and found[2][4:] == first[2][4:], (found[2], first[2])
        (loaded, epoch, lr), = ranks.results(1, plain, at + "/run", at + "/plain")
        assert loaded == exact(first[1]) and epoch == first[2][4] and lr == first[2][5]
        for found, lr in ranks.results(2, of_plain, 2, at + "/plain"):
            assert found == exact(first[1]) and lr == first[2][5]


def wrong(rank: int, at: str, stage: int, kind: str, settings: Any) -> Any:
    engine = engine_of(0, 1, stage, kind, **settings)
    said = [told(lambda: sheaf.deepspeed.use(engine))]
    if said == [""]:
        said += [told(lambda: sheaf.deepspeed.use(engine)),
                 told(lambda: engine.save_checkpoint(at, "best")),
                 told(lambda: engine.save_checkpoint(at, client_state={"f": print})),
                 told(lambda: engine.save_checkpoint(at, save_latest=False))]
        engine.backward(engine(torch.ones(4, 8)).square().mean())
        engine.step()
        said += [told(lambda: engine.save_checkpoint(at)), repr(os.listdir(at))]
    return said


@needs(*NEEDED)
def test_what_is_refused() -> None:
    """What cannot be saved is refused by name, with what to do"""
    with folder() as at:
        more = {"gradient_accumulation_steps": 2}
        (said,) = ranks.results(1, wrong, at, 1, "fp32", more)
        for text, words in zip(said[1:], ("uses Sheaf already", "tag='best' names no step",
                                          "client_state", "save_latest=False",
                                          "between micro-batches: the gradients of 1 of 2")):
            assert words in text, (words, text)
        assert "checkpoint-" not in said[-1], said[-1]
        assert "with ZeRO stage 0" in ranks.results(1, wrong, at, 0, "bf16", {})[0][0]
        assert "ZeRO stage 3" in ranks.results(1, wrong, at, 3, "bf16", {})[0][0]
        assert "is no engine" in told(lambda: sheaf.deepspeed.use(1))


@needs(*NEEDED)
def test_loss_scale() -> None:
    """The numbers of a dynamic loss scaler are saved, and given back to one of its kind alone"""
    from types import SimpleNamespace
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler

    def counted(scaler: Any) -> Any:
        return SimpleNamespace(optimizer=SimpleNamespace(loss_scaler=scaler), global_steps=3,
                               global_samples=12, skipped_steps=1,
                               gradient_accumulation_steps=lambda: 2)

    used = DynamicLossScaler(2.0 ** 16, 2, 1.0, 1, False)
    used.cur_scale, used.cur_iter, used.last_overflow_iter = 2.0 ** 15, 3, 1   # as an overflow does
    state = sheaf.deepspeed.Counters(counted(used)).state_dict()
    fresh, static = DynamicLossScaler(2.0 ** 16, 2, 1.0, 1, False), LossScaler(4.0)
    for scaler in (fresh, static):
        engine = counted(scaler)
        sheaf.deepspeed.Counters(engine).load_state_dict(state)
        assert engine.micro_steps == 6
    assert vars(fresh) == vars(used) and static.cur_scale == 4.0


def many(rank: int, at: str) -> Any:
    found = []
    environment(0, 1)
    for steps in (2, 4):
        model = Many()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config={
            "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True})
        engine = sheaf.deepspeed.use(engine)
        if steps == 4:
            engine.load_checkpoint(at)
        found.append([p.tolist() for p in engine.module.parameters()])
        while engine.global_steps < steps:
            engine.backward(engine(torch.ones(1)).sum())
            engine.step()
            engine.save_checkpoint(at)
        found.append([p.tolist() for p in engine.module.parameters()])
        engine.sheaf.close()
    return found[1] == found[2] != found[3], len(found[1])


@needs(*NEEDED)
def test_many_parameters() -> None:
    """A flat tensor with 1,100 parameters is saved several times, and loaded"""
    with folder() as at:
        assert ranks.results(1, many, at + "/run") == [(True, 1100)]


@needs(*NEEDED)
def test_the_script() -> None:
    """deepspeed_loop.py on 2 ranks is killed, and goes on with the losses of one that was not"""
    with folder() as at:
        whole, then = launched.resumed(2, at, "deepspeed_loop.py", 9, 6)
        found = launched.losses(then)
        assert "goes on after 64 rows" in then and sorted(found) == list(range(5, 10)), then
        assert found.items() <= whole.items(), (whole, then)


@needs(*NEEDED)
def test_the_example_of_the_page() -> None:
    """The example of doc/python-trainers.md runs, and goes on when it is run again"""
    environment(0, 1)
    with folder() as at:
        launched.page(at, "deepspeed")
        assert os.path.isdir(os.path.join(at, "runs/deepspeed/checkpoint-6"))


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
