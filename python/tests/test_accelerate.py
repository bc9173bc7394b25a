# SPDX-License-Identifier: Apache-2.0
"""accelerate with sheaf.accelerate, in one process and on ranks. Prints TAP."""
from __future__ import annotations

import os
import signal
import sys
from typing import Any, Optional

import launched
import ranks
import tap
from tap import folder, needs, told

NEEDED = ("torch", "accelerate", "numpy")
if tap.there(*NEEDED):
    import accelerate
    import torch
    import torch._dynamo                # now, and not in each rank
    from accelerate.utils import ProjectConfiguration

    import sheaf
    import sheaf.accelerate

    if tap.there("transformers"):
        os.environ["HF_HUB_OFFLINE"] = "1"
        import transformers.models.qwen2.modeling_qwen2     # as above

STEPS = 8


class Average(torch.nn.Module if tap.there(*NEEDED) else object):   # type: ignore[misc]
    """A moving average of a weight, and how often it was taken, registered for checkpointing."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("of", torch.zeros(8))

    def take(self, w: Any) -> None:
        self.of.mul_(0.5).add_(w.detach()[:8])


class Count:
    """A count, registered for checkpointing."""

    def __init__(self) -> None:
        self.n = 0

    def state_dict(self) -> dict[str, int]:
        return {"n": self.n}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.n = state["n"]


class Job:
    """A training by accelerate: a model, shuffled data, and registered objects.

    shard  uses FSDP2
    """

    def __init__(self, rank: int = 0, n: int = 1, shard: bool = False, plain: bool = False,
                 config: Any = None, **opts: Any) -> None:
        launched.environment(rank, n)
        # Otherwise skip_first_batches would skip batches of another order.
        order = accelerate.DataLoaderConfiguration(use_seedable_sampler=True)
        found = accelerate.Accelerator(cpu=True, project_config=config, dataloader_config=order)
        if shard:
            launched.use_fsdp2()
        self.accelerator = found if plain else sheaf.accelerate.use(found, **opts)
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        loader = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=4, shuffle=True)
        self.model, self.optimizer, self.loader, self.scheduler = self.accelerator.prepare(
            model, optimizer, loader, torch.optim.lr_scheduler.StepLR(optimizer, 3))
        self.average, self.count = Average(), Count()
        self.accelerator.register_for_checkpointing(self.average, self.count)

    def steps(self, first: int, last: int, save: Optional[str] = None) -> list[float]:
        """Does these steps of one epoch, and returns the losses."""
        found: list[float] = []
        loader = accelerate.skip_first_batches(self.loader, first) if first else self.loader
        for step, batch in enumerate(loader, first):
            if step == last:
                break
            with self.accelerator.accumulate(self.model):
                loss = (self.model(batch) - batch).square().mean()
                self.accelerator.backward(loss)
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
            self.average.take(self.weights()[0].flatten())
            self.count.n += 1
            found.append(loss.item())
            if step == 3:
                if save is not None:
                    self.accelerator.save_state(save + "/checkpoint-%d" % step)
                self.drawn = torch.rand(4).tolist()
        return found

    def weights(self) -> list[Any]:
        return [p.full_tensor() if hasattr(p, "full_tensor") else p
                for p in self.model.parameters()]

    def state(self) -> Any:
        return ([w.tolist() for w in self.weights()], self.average.of.tolist(), self.count.n,
                self.scheduler.get_last_lr())


def whole(rank: int, n: int, shard: bool) -> Any:
    job = Job(rank, n, shard)
    return job.steps(0, STEPS), job.state(), job.drawn


def cut(rank: int, n: int, shard: bool, at: str) -> Any:
    job = Job(rank, n, shard)
    job.steps(0, 6, at)
    if rank == n - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    job.accelerator.wait_for_everyone()


def resumed(rank: int, n: int, shard: bool, at: str) -> Any:
    job = Job(rank, n, shard)
    job.accelerator.load_state(at)
    assert job.accelerator.step == 4 == job.count.n
    drawn = torch.rand(4).tolist()
    found = job.steps(4, STEPS), job.state(), drawn
    job.accelerator.end_training()
    return found


def goes_on(n: int, shard: bool) -> None:
    """A job that is killed and resumed ends as one that was not."""
    with folder() as at:
        unbroken = ranks.results(n, whole, n, shard)
        ended = ranks.everywhere(n, cut, n, shard, at + "/run")
        assert isinstance(ended[n - 1], ranks.Ended) and "killed" in repr(ended[n - 1]), ended
        again = ranks.results(n, resumed, n, shard, at + "/run")
        assert again == [(losses[4:], state, drawn) for losses, state, drawn in unbroken]
        if shard:                       # and in one process, but with the data of one
            ranks.results(1, resumed, 1, False, at + "/run")


@needs(*NEEDED)
def test_goes_on_in_one_process() -> None:
    """A killed job goes on bit for bit: model, optimizer, schedule, data, registered objects"""
    goes_on(1, False)


@needs(*NEEDED)
def test_goes_on_on_two_ranks() -> None:
    """The same with DistributedDataParallel on two ranks"""
    goes_on(2, False)


@needs(*NEEDED)
def test_goes_on_sharded() -> None:
    """The same with FSDP2 on two ranks, and one process loads that checkpoint"""
    goes_on(2, True)


def named(rank: int, at: str) -> Any:
    config = ProjectConfiguration(project_dir=at, automatic_checkpoint_naming=True, total_limit=2)
    job = Job(config=config, background=True)
    said = [told(job.accelerator.load_state)]
    for step in range(4):
        job.steps(step, step + 1)
        job.accelerator.save_state()
    job.accelerator.sheaf.close()
    there = sorted(n for n in os.listdir(at + "/checkpoints") if n[0] != ".")
    job.steps(4, 5)
    job.accelerator.load_state()
    assert job.count.n == 4 and job.accelerator.save_iteration == 4
    job.accelerator.load_state(at + "/checkpoints/checkpoint-2")
    assert job.count.n == 3
    folder = job.accelerator.save_state()           # set aside: checkpoint-3
    return said, there, os.path.basename(folder), job.accelerator.save_iteration


@needs(*NEEDED)
def test_automatic_naming() -> None:
    """automatic_checkpoint_naming and total_limit have their meaning, also in the background"""
    with folder() as at:
        (said, there, last, n), = ranks.results(1, named, at)
        assert said[0].startswith("NotFound: ") and "there is no such run" in said[0], said
        assert there == ["checkpoint-2", "checkpoint-3"] and last == "checkpoint-3" and n == 4


def of_accelerate(rank: int, at: str) -> Any:
    job = Job(plain=True)
    job.steps(0, 3)
    job.accelerator.save_state(at + "/checkpoint-3")
    before = job.state()
    job.steps(3, 4)
    sheaf.accelerate.use(job.accelerator)
    job.accelerator.load_state(at + "/checkpoint-3")
    same = job.state() == before
    job.accelerator.save_state(at + "/checkpoint-4")
    job.steps(4, 5)
    job.accelerator.load_state(at + "/checkpoint-4")
    return same, job.state() == before


@needs(*NEEDED)
def test_loads_what_accelerate_wrote() -> None:
    """A checkpoint of accelerate itself is loaded by accelerate, and the next one is Sheaf's"""
    with folder() as at:
        assert ranks.results(1, of_accelerate, at + "/run") == [(True, True)]
        assert os.path.exists(at + "/run/checkpoint-4/sheaf.json")


class Odd:
    """Has a state that cannot be stored, on rank 1."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def state_dict(self) -> Any:
        return {"odd": object() if self.rank == 0 else 1}

    def load_state_dict(self, state: Any) -> None:
        """Takes nothing."""


def wrong(rank: int, n: int, at: str) -> Any:
    job = Job(rank, n)
    a = job.accelerator
    found = [told(lambda: a.save_state(at + "/step_500")),
             told(a.save_state),
             told(lambda: a.save_state(at + "/checkpoint-5", safe_serialization=False)),
             told(lambda: a.save_state(at + "/checkpoint-5", exclude_frozen_parameters=True)),
             told(lambda: a.load_state(at + "/nothing")),
             told(lambda: sheaf.accelerate.use(a))]
    hook = a.register_save_state_pre_hook(lambda models, weights, at: None)
    found.append(told(lambda: a.save_state(at + "/checkpoint-5")))
    hook.remove()
    a.save_state(at + "/checkpoint-5")
    found.append(told(lambda: a.save_state(at + "/checkpoint-5")))
    a.register_for_checkpointing(Odd(rank))
    found.append(told(lambda: a.save_state(at + "/checkpoint-6")))
    a.sheaf.close()
    found.append(told(lambda: a.save_state(at + "/checkpoint-6")))
    return found


@needs(*NEEDED)
def test_what_is_refused() -> None:
    """What cannot have its meaning is refused, with what to do, on both ranks"""
    with folder() as at:
        first, second = ranks.results(2, wrong, 2, at + "/run")
        for said in (first, second):
            name, none, pickled, extra, absent, twice, hook, exists, late, odd = said
            assert "checkpoint-NUMBER" in name and "automatic_checkpoint_naming" in none, said
            assert "safe_serialization=False" in pickled and "exclude_frozen" in extra, said
            assert absent.startswith("NotFound: ") and "already" in twice, said
            assert "register_for_checkpointing" in hook and exists.startswith("Exists: "), said
            assert "accelerator.sheaf.close()" in late and "registered" in odd, said
        assert odd.startswith("Failed: "), odd


@needs(*NEEDED, "transformers")
def test_the_script() -> None:
    """accelerate_loop.py on 2 ranks is killed, and goes on with the losses of one that was not"""
    with folder() as at:
        whole, then = launched.resumed(2, at, "accelerate_loop.py", 15, 6)
        found = launched.losses(then)
        assert "goes on after step 4" in then and sorted(found) == list(range(5, 16)), then
        assert found.items() <= whole.items(), (whole, then)


@needs(*NEEDED)
def test_the_example_of_the_page() -> None:
    """The example of doc/python-trainers.md runs, and goes on when it is run again"""
    with folder() as at:
        launched.page(at, "accelerate")
        assert os.path.isdir(os.path.join(at, "runs/accelerate/checkpoint-5"))


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
