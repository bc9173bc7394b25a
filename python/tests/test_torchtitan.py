# SPDX-License-Identifier: Apache-2.0
"""sheaf.torchtitan, driven by a trainer that calls it as torchtitan's own does. Prints TAP.

usage: test_torchtitan.py SHEAF, the command
"""
from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any, Iterator, Optional

import launched
import ranks
import tap
from tap import folder, needs, told

NEEDED = ("torch", "torchtitan", "torchdata", "spmd_types")
if tap.there(*NEEDED):
    import logging
    import warnings

    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torchtitan.components.checkpoint import CheckpointManager as Theirs
    from torchtitan.components.dataloader import ParallelAwareDataloader
    from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, \
        ParamGroupConfig

    import sheaf
    from sheaf.torchtitan import CheckpointManager
    os.environ["PATH"] = os.path.dirname(os.path.abspath(sys.argv[1])) + ":" + os.environ["PATH"]
    logging.disable(logging.WARNING)    # torchtitan tells of each step
    warnings.simplefilter("ignore")

    class Numbers(torch.utils.data.IterableDataset):    # type: ignore[type-arg,misc]
        """An endless sequence of rows, another one on each rank."""

        def __init__(self, rank: int) -> None:
            self.rank, self.at = rank, 0

        def __iter__(self) -> Iterator[Any]:
            while True:
                self.at += 1
                stream = torch.Generator().manual_seed(1000 * self.rank + self.at)
                yield torch.randn(8, generator=stream)

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(8, 20), nn.Linear(20, 8)
            self.norm = nn.LayerNorm(8)

        def forward(self, x: torch.Tensor) -> Any:
            return x + self.down(torch.dropout(self.up(self.norm(x)).relu(), 0.1, self.training))

    class Stage(nn.Module):
        """Some of the layers, by the names that the whole model has."""

        def __init__(self, layers: range) -> None:
            super().__init__()
            self.layers = nn.ModuleDict({str(i): Block() for i in layers})
            self.register_buffer("seen%d" % layers[0], torch.zeros(1))

        def forward(self, x: torch.Tensor) -> Any:
            for name, layer in self.layers.items():
                x = layer(x)
            return x

STEPS = 7


class Trainer:
    """The loop of torchtitan's Trainer, for a small model of two parts.

    settings  of the CheckpointManager, and `kind`: of which class
    """

    def __init__(self, rank: int, n: int, at: str, seed: int = 0, dp: Optional[int] = None,
                 **settings: Any) -> None:
        torch.manual_seed(seed)
        self.parts = [Stage(range(0, 1)), Stage(range(1, 3))]
        if settings.pop("whole", False):        # in one part
            self.parts = [Stage(range(0, 3))]
            self.parts[0].register_buffer("seen1", torch.zeros(1))
        if n > 1:
            mesh = init_device_mesh("cpu", (n,), mesh_dim_names=("fsdp",))
            for part in self.parts:
                for layer in part.layers.values():
                    fully_shard(layer, mesh=mesh)
                fully_shard(part, mesh=mesh)
        torch.manual_seed(100 + rank)
        options = {"lr": 1e-2, "betas": (0.9, 0.95), "fused": False}
        groups = [ParamGroupConfig(pattern=r"norm", optimizer_name="Adam",
                                   optimizer_kwargs=options),
                  ParamGroupConfig(pattern=r".*", optimizer_name="AdamW",
                                   optimizer_kwargs=dict(options, weight_decay=0.1))]
        self.optimizers = OptimizersContainer.Config(
            param_groups=groups, implementation="foreach").build(model_parts=self.parts)
        self.lr_schedulers = LRSchedulersContainer.Config(warmup_steps=2).build(
            optimizers=self.optimizers, training_steps=STEPS)
        self.dataloader = ParallelAwareDataloader(
            Numbers(rank), rank, dp or n, batch_size=4,
            generator=torch.Generator())    # else its iterator draws from dropout's stream
        self.step, self.ntokens_seen = 0, 0
        self.losses: list[float] = []
        self.load_step = settings.get("load_step", -1)
        states = settings.pop("states", {"train_state": self})
        config = settings.pop("kind", CheckpointManager).Config(
            **{"enable": True, "interval": 2, "keep_latest_k": 3, "last_save_model_only": False,
               **settings})
        self.checkpointer = config.build(
            dataloader=self.dataloader, model_parts=self.parts, optimizers=self.optimizers,
            lr_schedulers=self.lr_schedulers, states=states, sd_adapter=None,
            base_folder=at)

    def train(self, steps: int, until: Optional[int] = None) -> Any:
        """Trains, and returns the losses and all parameters."""
        self.checkpointer.load(step=self.load_step)
        data = iter(self.dataloader)
        while self.step < (until or steps):
            self.step += 1
            x = next(data)
            self.optimizers.zero_grad()
            y = x
            for part in self.parts:
                y = part(y)
            loss = (y - x.roll(1, -1)).square().mean()
            loss.backward()
            self.parts[0].seen0 += len(x)
            self.ntokens_seen += len(x)
            self.checkpointer.maybe_wait_for_staging()
            self.optimizers.step()
            self.lr_schedulers.step()
            self.losses.append(loss.item())
            self.checkpointer.save(self.step, last_step=self.step == steps)
        return self.losses, self.weights(), self.ntokens_seen

    def weights(self) -> Any:
        return {name: (t.full_tensor() if hasattr(t, "full_tensor") else t).tolist()
                for part in self.parts for name, t in part.state_dict().items()}

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step, "ntokens_seen": self.ntokens_seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step, self.ntokens_seen = state["step"], state["ntokens_seen"]


def trained(rank: int, n: int, at: str, steps: int = STEPS, until: Optional[int] = None,
            settings: Any = None) -> Any:
    launched.environment(rank, n)
    trainer = Trainer(rank, n, at, **(settings or {}))
    try:                                # as torchtitan/train.py does
        found = trainer.train(steps, until)
    except Exception:
        trainer.checkpointer.close()
        raise
    trainer.checkpointer.close()
    return found


def killed(rank: int, n: int, at: str, until: int, settings: Any) -> Any:
    """Trains, and is killed after that step, when all saves that have begun are complete."""
    trainer = Trainer(rank, n, at, **settings)
    trainer.train(STEPS, until)
    trainer.checkpointer.maybe_wait_for_saving()
    if trainer.checkpointer.staged is not None:     # to memory
        assert trainer.checkpointer.staged.result()
    os.kill(os.getpid(), signal.SIGKILL)


def goes_on(n: int, settings: Any) -> None:
    """A training that is killed and goes on ends as one that was not killed."""
    with folder() as at:
        whole = ranks.results(n, trained, n, at + "/whole", STEPS, None, settings)
        for found in ranks.everywhere(n, killed, n, at + "/cut", 5, settings):
            assert repr(found) == "ended: it was killed", found
        again = ranks.results(n, trained, n, at + "/cut", STEPS, None, dict(settings, seed=9))
        for a, b in zip(whole, again):
            assert a[0][4:] == b[0] and a[2] == b[2], (a[0], b[0], a[2], b[2])
            assert a[1] == b[1], [name for name in a[1] if a[1][name] != b[1][name]]
        assert sorted(os.listdir(at + "/cut/checkpoint"))[1:] == [
            "checkpoint-4", "checkpoint-6", "checkpoint-7"]


@needs(*NEEDED)
def test_goes_on_under_fsdp2() -> None:
    """A training under FSDP2 on two ranks that is killed goes on bit for bit"""
    goes_on(2, {})


@needs(*NEEDED)
def test_goes_on_with_saves_in_the_background() -> None:
    """The same with async_mode, in the background"""
    goes_on(2, {"async_mode": "async_with_pinned_mem"})


@needs(*NEEDED)
def test_another_split() -> None:
    """What two ranks saved of two model parts goes on in one process with one part"""
    with folder() as at:
        ranks.results(2, trained, 2, at, STEPS, 4)
        told_of, = ranks.results(1, told_by, 1, at, {"whole": True})
        assert "the loaders of the 2 ranks" in told_of, told_of
        (losses, weights, tokens), = ranks.results(1, trained, 1, at, STEPS, None, {
            "whole": True, "exclude_from_loading": ["dataloader"]})
        assert len(losses) == 3 and weights["seen0"] == [28.0] and tokens == 28, (losses, tokens)


@needs(*NEEDED)
def test_goes_on_from_memory() -> None:
    """With memory_every it goes on from the step before its death, in the memory of the node"""
    with folder() as at:
        settings = {"interval": 4, "memory_every": 1}
        try:
            for found in ranks.everywhere(2, killed, 2, at, 6, settings):
                assert repr(found) == "ended: it was killed", found
            assert sorted(os.listdir(at + "/checkpoint"))[1:] == ["checkpoint-4"]
            for losses, _, tokens in ranks.results(2, trained, 2, at, STEPS, None, settings):
                assert len(losses) == STEPS - 6 and tokens == 4 * STEPS, (losses, tokens)
        finally:
            subprocess.run([sys.argv[1], "agent", at + "/checkpoint", "--stop", "--force"],
                           check=True, capture_output=True)


def fails(rank: int, at: str) -> Any:
    """A training that fails on this rank with a save in flight, and what another one loads."""
    trainer = Trainer(rank, 1, at, async_mode="async")
    try:
        trainer.train(STEPS, 2)
        raise RuntimeError("the loss is not finite")
    except RuntimeError:
        trainer.checkpointer.close()
    trainer.checkpointer.close()
    reader = Trainer(rank, 1, at, load_only=True, load_step=2)
    reader.train(3)
    reader.checkpointer.close()
    fresh = Trainer(rank, 1, at + "/none", load_only=True)
    began = fresh.checkpointer.load(), fresh.checkpointer.save(2)
    fresh.checkpointer.close()
    return reader.step, sorted(os.listdir(at + "/checkpoint"))[1:], began


@needs(*NEEDED)
def test_close_after_an_exception() -> None:
    """A save in flight is waited for after an exception, and load_only writes nothing"""
    with folder() as at:
        assert ranks.results(1, fails, at) == [(3, ["checkpoint-2"], (False, False))]
        assert not os.path.exists(at + "/none/checkpoint")


def told_by(rank: int, n: int, at: str, settings: Any) -> str:
    """What a training with these settings says."""
    return told(lambda: trained(rank, n, at, STEPS, None, settings))


def last(rank: int, at: str) -> Any:
    """The last checkpoint has the weights alone, and begins another training."""
    one = {"last_save_model_only": True, "export_dtype": "bfloat16"}
    found = trained(rank, 1, at + "/a", 4, None, one)
    saved = sheaf.open(at + "/a/checkpoint", framework="pt")
    kinds = {str(saved[name][:].dtype) for name in saved if "/" not in name}
    again = told_by(rank, 1, at + "/a", one)
    earlier = trained(rank, 1, at + "/a", 4, None, dict(one, load_step=2))
    begun = Trainer(rank, 1, at + "/b", seed=5, initial_load_path=at + "/a/checkpoint/checkpoint-2",
                    last_save_model_only=True)
    loaded = begun.checkpointer.load()
    same = begun.weights() == weights_of(at + "/a/checkpoint@2")
    begun.checkpointer.close()
    return found, kinds, sorted(saved), again, earlier, (loaded, begun.step, same)


def weights_of(at: str) -> Any:
    saved = sheaf.open(at, framework="pt")
    return {name: saved[name][:].tolist() for name in saved if "/" not in name}


@needs(*NEEDED)
def test_the_last_step() -> None:
    """The last checkpoint has the weights alone, in export_dtype; others begin a training"""
    with folder() as at:
        (found, kinds, names, again, earlier, begun), = ranks.results(1, last, at)
        assert kinds == {"torch.bfloat16"} and names == sorted(found[1]), (kinds, names)
        assert "has the weights alone" in again and "load_step to an earlier" in again, again
        assert earlier[0] == found[0][2:] and earlier[1] == found[1], (found[0], earlier[0])
        assert begun == (True, 0, True), begun


def of_torchtitan(rank: int, n: int, at: str) -> Any:
    whole = trained(rank, n, at + "/whole")
    _, saved, _ = trained(rank, n, at + "/run", STEPS, 4, {"kind": Theirs})
    loaded = Trainer(rank, n, at + "/run", seed=3)
    assert loaded.checkpointer.load() and loaded.weights() == saved
    loaded.checkpointer.close()
    return whole, trained(rank, n, at + "/run", STEPS, None, {"seed": 3})


@needs(*NEEDED)
def test_goes_on_from_torchtitan() -> None:
    """A checkpoint that torchtitan itself wrote is loaded, and the next one is Sheaf's"""
    with folder() as at:
        for whole, then in ranks.results(2, of_torchtitan, 2, at):
            assert len(then[0]) == 3 and whole[2] == then[2], (whole[0], then[0])
        assert sorted(os.listdir(at + "/run/checkpoint"))[1:] == [
            "checkpoint-6", "checkpoint-7", "step-2", "step-4"]


def refused(rank: int, at: str) -> list[str]:
    found = [told(lambda: Trainer(rank, 1, at, folder="s3://bucket/run")),
             told(lambda: Trainer(rank, 1, at, states={"loader": torch.Generator()})),
             told(lambda: Trainer(rank, 1, at, exclude_from_loading=["nothing"])),
             told(lambda: Trainer(rank, 1, at, memory_every=-1))]
    trained(rank, 1, at, 2)
    found.append(told_by(rank, 1, at, {"dp": 2}))
    found.append(told_by(rank, 1, at, {"load_step": 1}))
    return found


@needs(*NEEDED)
def test_what_is_refused() -> None:
    """Settings that are not supported are refused, with what to do"""
    with folder() as at:
        (store, state, excluded, memory, loader, absent), = ranks.results(1, refused, at)
        assert "mount the store" in store and "another name in states" in state, (store, state)
        assert "the states are dataloader, lr_scheduler" in excluded, excluded
        assert "memory_every=-1" in memory, memory
        assert "rank 0 of 2" in loader and "exclude_from_loading" in loader, loader
        assert "load_step=1" in absent and absent.startswith("NotFound: "), absent


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
