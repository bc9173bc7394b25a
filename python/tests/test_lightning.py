# SPDX-License-Identifier: Apache-2.0
"""Lightning with sheaf.lightning, in one process and on ranks. Prints TAP."""
from __future__ import annotations

import os
import signal
import sys
from typing import Any, Optional

import launched
import ranks
import tap
from tap import folder, needs, told

NEEDED = ("torch", "lightning", "numpy")
if tap.there(*NEEDED):
    import warnings
    warnings.simplefilter("ignore")
    import logging

    import lightning
    import torch
    import torch._dynamo                # now, and not in each rank
    from lightning.pytorch.callbacks import ModelCheckpoint

    import sheaf
    import sheaf.lightning
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)

    class Model(lightning.LightningModule):     # type: ignore[misc]
        """A small model, which may be sharded."""

        def __init__(self, dropout: float = 0.0, kill: Optional[int] = None) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(dropout),
                                           torch.nn.Linear(16, 8))
            self.losses: list[float] = []

        def configure_model(self) -> None:
            if self.device_mesh is not None:
                from torch.distributed.fsdp import fully_shard
                fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

        def training_step(self, batch: Any, i: int) -> Any:
            if self.global_step == self.hparams.kill and self.global_rank == \
                    self.trainer.world_size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            loss = (self.net(batch) - batch).square().mean()
            self.losses.append(loss.item())
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            found = torch.optim.AdamW(self.parameters(), lr=1e-2)
            return {"optimizer": found, "lr_scheduler": torch.optim.lr_scheduler.StepLR(found, 2)}

EPOCHS = 4


def environment(rank: int, n: int) -> None:
    """The environment by which Lightning knows torchrun."""
    launched.environment(rank, n)
    if n > 1:
        os.environ.update(TORCHELASTIC_RUN_ID="none", GROUP_RANK="0")


def trained(rank: int, n: int, at: str, epochs: int = EPOCHS, resume: Optional[str] = None,
            kill: Optional[int] = None, dropout: float = 0.0, shuffle: bool = False,
            **settings: Any) -> Any:
    """Trains. Returns the losses, the weights and what is in the folder."""
    environment(rank, n)
    torch.manual_seed(0)
    model = Model(dropout, kill)
    data = torch.utils.data.DataLoader(torch.randn(24, 8), batch_size=4, shuffle=shuffle)
    own = ModelCheckpoint(at, save_last=True, monitor="loss", save_top_k=2)
    trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", devices=n, logger=False,
                                enable_progress_bar=False, enable_model_summary=False,
                                callbacks=[own], use_distributed_sampler=not shuffle, **settings)
    trainer.fit(model, data, ckpt_path=resume)
    weights = [(p.full_tensor() if hasattr(p, "full_tensor") else p).tolist()
               for p in model.parameters()]
    return model.losses, weights, sorted(os.listdir(at))


def by_plugin(rank: int, n: int, at: str, *args: Any, **settings: Any) -> Any:
    return trained(rank, n, at, *args, plugins=[sheaf.lightning.CheckpointIO()], **settings)


def killed_by_plugin(rank: int, n: int, at: str, kill: int) -> Any:
    return by_plugin(rank, n, at, EPOCHS, None, kill)


def goes_on(n: int, whole: Any, killed: Any, again: Any, kill: int, per_epoch: int) -> None:
    """A job that is killed and resumed ends as one that was not."""
    with folder() as at:
        first = ranks.results(n, whole, n, at + "/whole")
        ended = ranks.everywhere(n, killed, n, at + "/cut", kill)
        assert isinstance(ended[n - 1], ranks.Ended) and "killed" in repr(ended[n - 1]), ended
        done = kill // per_epoch * per_epoch
        then = ranks.results(n, again, n, at + "/cut", EPOCHS, at + "/cut/last.ckpt")
        for a, b in zip(first, then):
            assert a[1] == b[1] and a[0][done:] == b[0], (a[0], b[0])
            assert a[2] == b[2] and "last.ckpt" in a[2] and len(a[2]) == 3, (a[2], b[2])


@needs(*NEEDED)
def test_the_plugin_in_one_process() -> None:
    """By the CheckpointIO a killed training goes on as one that was not killed"""
    goes_on(1, by_plugin, killed_by_plugin, by_plugin, 15, 6)


@needs(*NEEDED)
def test_the_plugin_on_two_ranks() -> None:
    """The same with DistributedDataParallel on two ranks"""
    goes_on(2, by_plugin, killed_by_plugin, by_plugin, 8, 3)


def by_strategy(rank: int, n: int, at: str, *args: Any, **settings: Any) -> Any:
    found = sheaf.lightning.ModelParallelStrategy(data_parallel_size=n, tensor_parallel_size=1)
    return trained(rank, n, at, *args, strategy=found, dropout=0.1, shuffle=True, **settings)


def killed_by_strategy(rank: int, n: int, at: str, kill: int) -> Any:
    return by_strategy(rank, n, at, EPOCHS, None, kill)


@needs(*NEEDED)
def test_the_strategy_on_two_ranks() -> None:
    """By the strategy a model under FSDP2 goes on bit for bit, with dropout and shuffled data"""
    goes_on(2, by_strategy, killed_by_strategy, by_strategy, 15, 6)


@needs(*NEEDED)
def test_another_number_of_ranks() -> None:
    """What two ranks saved under FSDP2 is loaded by one, and read by names"""
    with folder() as at:
        first = ranks.results(2, by_strategy, 2, at + "/run", 1)
        then = ranks.results(1, by_strategy, 1, at + "/run", 2, at + "/run/last.ckpt")
        assert len(then[0][0]) == 6 and "last.ckpt" in then[0][2]
        saved = sheaf.open(at + "/run/epoch=0-step=6.ckpt", framework="pt")
        assert saved["net.0.weight"][0:2].tolist() == first[0][1][0][0:2]


def of_lightning(rank: int, at: str) -> Any:
    first = trained(0, 1, at, 2)
    second = by_plugin(0, 1, at + "-2", EPOCHS, at + "/last.ckpt")
    plain = trained(0, 1, at + "-3", EPOCHS, at + "/last.ckpt")
    return first[0] + second[0] == trained(0, 1, at + "-4")[0], second[1] == plain[1], \
        os.path.isdir(at + "-2/last.ckpt/.sheaf")


@needs(*NEEDED)
def test_loads_what_lightning_wrote() -> None:
    """A checkpoint that Lightning itself wrote is loaded, and the next one is Sheaf's"""
    with folder() as at:
        assert ranks.results(1, of_lightning, at + "/run") == [(True, True, True)]


def wrong(rank: int, at: str) -> Any:
    io = sheaf.lightning.CheckpointIO()
    with open(at + "-file", "wb"):
        pass
    found = [told(lambda: io.save_checkpoint({"state_dict": {}, "hyper_parameters":
                                              {"fn": print}}, at)),
             told(lambda: io.save_checkpoint({"state_dict": {}}, "s3://bucket/x.ckpt")),
             told(lambda: io.save_checkpoint({"state_dict": {}}, at, {"x": 1})),
             told(lambda: io.save_checkpoint({"state_dict": {}}, at + "-file")),
             told(lambda: io.load_checkpoint(at + "-none")),
             told(lambda: sheaf.lightning.ModelParallelStrategy(save_distributed_checkpoint=False))]
    io.save_checkpoint({"state_dict": {"w": torch.ones(2)}, "epoch": 1}, at)
    io.save_checkpoint({"state_dict": {"w": torch.ones(3)}, "epoch": 2}, at)
    loaded = io.load_checkpoint(at)
    io.remove_checkpoint(at)
    return found, loaded["state_dict"]["w"].tolist(), loaded["epoch"], os.path.exists(at)


@needs(*NEEDED)
def test_what_is_refused() -> None:
    """What cannot be saved is refused by its place, and a path is saved to again and removed"""
    with folder() as at:
        (said, w, epoch, left), = ranks.results(1, wrong, at + "/x.ckpt")
        held, store, options, file, absent, whole = said
        assert "['lightning']['hyper_parameters']['fn']" in held and "ignore=[...]" in held, held
        assert "mount the store" in store and "storage_options" in options, said
        assert "another dirpath" in file and absent.startswith("NotFound: "), said
        assert "save_distributed_checkpoint=False" in whole, said
        assert w == [1.0] * 3 and epoch == 2 and not left


def apart(rank: int, n: int, at: str) -> str:
    found = sheaf.lightning.ModelParallelStrategy(data_parallel_size=n, tensor_parallel_size=1)
    own = Model.on_save_checkpoint

    def hook(self: Any, checkpoint: Any) -> None:
        own(self, checkpoint)
        if rank == 1:
            self.net.register_buffer("wrong", torch.ones(1).expand(4))
    Model.on_save_checkpoint = hook
    return told(lambda: trained(rank, n, at, strategy=found))


@needs(*NEEDED)
def test_a_failure_on_one_rank() -> None:
    """What one rank cannot save ends both with its name, and no checkpoint is there"""
    with folder() as at:
        first, second = ranks.results(2, apart, 2, at + "/run")
        assert first.startswith("Failed: ") and "wrong" in first and "wrong" in second, first
        assert not [n for n in os.listdir(at + "/run") if n.endswith(".ckpt")]


@needs(*NEEDED, "transformers")
def test_the_script() -> None:
    """lightning_fit.py on 2 ranks goes on with the losses of one that ran through"""
    with folder() as at:
        whole = launched.losses(script(at, "runs/whole", "--epochs", "2"))
        first = launched.losses(script(at, "runs/cut", "--epochs", "1"))
        then = launched.losses(script(at, "runs/cut", "--epochs", "2"))
        assert whole == {**first, **then} and not set(first) & set(then), (whole, first, then)
        assert "last.ckpt" in os.listdir(os.path.join(at, "runs", "cut"))


def script(at: str, *args: str) -> str:
    os.environ.update(TORCHELASTIC_RUN_ID="none", GROUP_RANK="0")
    try:
        return launched.run(2, at, "lightning_fit.py", *args)
    finally:
        del os.environ["TORCHELASTIC_RUN_ID"], os.environ["GROUP_RANK"]


@needs(*NEEDED)
def test_the_example_of_the_page() -> None:
    """The example of doc/python-trainers.md runs, and goes on when it is run again"""
    with folder() as at:
        launched.page(at, "lightning")
        assert os.path.isdir(os.path.join(at, "runs/lightning/last.ckpt/.sheaf"))


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
