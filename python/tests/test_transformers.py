# SPDX-License-Identifier: Apache-2.0
"""transformers.Trainer with sheaf.transformers, in one process and on ranks. Prints TAP.

usage: test_transformers.py SHEAF, the command
"""
from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from typing import Any, Optional

import launched
import ranks
import tap
from tap import folder, needs, told

READY = tap.there("torch", "transformers", "accelerate", "numpy")
if READY:
    os.environ.update(HF_HUB_OFFLINE="1", PATH=os.path.dirname(os.path.abspath(sys.argv[1])) + ":" +
                      os.environ["PATH"])
    import torch
    import torch._dynamo                # now, and not in each rank
    import transformers
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, \
        TrainingArguments
    from transformers.trainer_callback import ExportableState

    import sheaf
    import sheaf.agent
    import sheaf.transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    class At(TrainerCallback):          # type: ignore[misc]
        """Does something before a step of a rank."""

        def __init__(self, rank: int, step: int, work: Any) -> None:
            self.rank, self.step, self.work = rank, step, work

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == self.step and args.process_index == self.rank:
                self.work()

NEEDED = ("torch", "transformers", "accelerate", "numpy")
STEPS = 10


def data(n: int = 32) -> list[dict[str, Any]]:
    rows = torch.randint(0, 64, (n, 8), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": r, "labels": r} for r in rows]


def trainer(at: str, *callbacks: Any, plain: bool = False, use: Optional[dict[str, Any]] = None,
            **settings: Any) -> Any:
    """A Trainer of a small model with dropout, whose data is shuffled."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=8, n_embd=16, n_layer=1, n_head=2,
                                       bos_token_id=0, eos_token_id=0))
    made = dict(per_device_train_batch_size=4, max_steps=STEPS, save_steps=3, logging_steps=1,
                use_cpu=True, report_to=[], disable_tqdm=True, learning_rate=1e-2,
                lr_scheduler_type="cosine", log_level="error", ddp_find_unused_parameters=False)
    made.update(settings)
    found = Trainer(model, TrainingArguments(at, **made), train_dataset=data(),
                    eval_dataset=data(8), callbacks=list(callbacks))
    found.remove_callback(transformers.PrinterCallback)
    return found if plain else sheaf.transformers.use(found, **(use or {}))


def losses(t: Any) -> dict[int, float]:
    return {h["step"]: h["loss"] for h in t.state.log_history if "loss" in h}


def weights(model: Any) -> list[Any]:
    return [(p.full_tensor() if hasattr(p, "full_tensor") else p).tolist()
            for p in model.parameters()]


def shard() -> None:
    """Makes a Trainer use FSDP2."""
    import accelerate
    own = accelerate.Accelerator.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        own(self, *args, **kwargs)
        launched.use_fsdp2()
    os.environ.update(ACCELERATE_USE_FSDP="true", FSDP_VERSION="2")
    accelerate.Accelerator.__init__ = init


def trained(rank: int, n: int, at: str, resume: Any, kill: Any = None, sharded: bool = False,
            **settings: Any) -> Any:
    """Trains, and returns losses and weights. kill: the rank and the step at which it is killed."""
    launched.environment(rank, n)
    if sharded:
        shard()
    own = [At(*kill, lambda: os.kill(os.getpid(), signal.SIGKILL))] if kill else []
    t = trainer(at, *own, **settings)
    t.train(resume_from_checkpoint=resume)
    return losses(t), weights(t.model)


def there(at: str) -> list[int]:
    return sorted(int(n[11:]) for n in os.listdir(at) if n.startswith("checkpoint-"))


@functools.lru_cache
def unbroken(n: int) -> Any:
    """What a job returns that is not killed."""
    with folder() as at:
        found = ranks.results(n, trained, n, at, None)
        assert there(at) == [3, 6, 9, 10] and sorted(found[0][0]) == list(range(1, STEPS + 1))
        return found


def goes_on(n: int, at: str) -> None:
    """A job that is killed and resumed has the losses and weights of one that was not."""
    use = {"background": False}         # or the step before the end might not be there
    ended = ranks.everywhere(n, killed, n, at + "/cut", (n - 1, 8), use)
    assert isinstance(ended[n - 1], ranks.Ended) and there(at + "/cut") == [3, 6], ended
    again = ranks.results(n, trained, n, at + "/cut", True)
    assert again == unbroken(n) and there(at + "/cut") == [3, 6, 9, 10]
    model = GPT2LMHeadModel.from_pretrained(at + "/cut/checkpoint-10")
    assert weights(model) == again[0][1]


def killed(rank: int, n: int, at: str, kill: Any, use: Any) -> Any:
    return trained(rank, n, at, None, kill, use=use)


@needs(*NEEDED)
def test_goes_on_after_a_kill() -> None:
    """A Trainer that is killed goes on bit for bit, and from_pretrained opens its checkpoint"""
    with folder() as at:
        goes_on(1, at)


@needs(*NEEDED)
def test_goes_on_on_two_ranks() -> None:
    """The same on two ranks (DistributedDataParallel), of which one is killed"""
    with folder() as at:
        goes_on(2, at)


@needs(*NEEDED)
def test_goes_on_sharded() -> None:
    """With FSDP2 on two ranks it goes on bit for bit, and one process loads that checkpoint"""
    with folder() as at:
        first = ranks.results(2, trained, 2, at + "/run", None, None, True)
        again = ranks.results(2, trained, 2, at + "/run", at + "/run/checkpoint-6", None, True)
        assert again == first
        (losses_of_one, _), = ranks.results(1, trained, 1, at + "/one", at + "/run/checkpoint-9")
        assert sorted(losses_of_one) == list(range(1, STEPS + 1)) and there(at + "/one") == [10]
        model = GPT2LMHeadModel.from_pretrained(at + "/run/checkpoint-10")
        assert weights(model) == first[0][1]


def two_more(rank: int, at: str) -> Any:
    plain = trainer(at, plain=True, max_steps=STEPS)
    plain.train()
    os.rename(at, at + "/../hf")
    t = trainer(at, max_steps=STEPS)
    t.train(resume_from_checkpoint=at + "/../hf/checkpoint-6")
    return weights(plain.model) == weights(t.model), losses(t) == losses(plain), there(at)


@needs(*NEEDED)
def test_resumes_from_what_the_trainer_wrote() -> None:
    """A checkpoint that the Trainer itself wrote is resumed from, and the next one is Sheaf's"""
    with folder() as at:
        assert ranks.results(1, two_more, at + "/run") == [(True, True, [9, 10])]
        assert os.path.exists(at + "/run/checkpoint-9/sheaf.json")


def back(rank: int, at: str) -> Any:
    first = trainer(at)
    first.train()
    again = trainer(at, max_steps=12)
    said = told(lambda: again.train())
    again.train(resume_from_checkpoint=at + "/checkpoint-3")
    other = trainer(at + "-2")
    other.train(resume_from_checkpoint=at + "/checkpoint-9")
    return said, losses(first)[4] == losses(again)[4], there(at), there(at + "-2")


@needs(*NEEDED)
def test_goes_back_and_elsewhere() -> None:
    """A Trainer goes back to an older step, goes on in another folder, and overwrites nothing"""
    with folder() as at:
        (said, same, steps, others), = ranks.results(1, back, at + "/run")
        assert "the newest of step 10" in said and "resume_from_checkpoint=True" in said, said
        assert same and steps == [3, 6, 9, 12] and others == [10], (steps, others)


def without(rank: int, at: str, folder: str) -> Any:
    """A Trainer without Sheaf that goes on from step 6 of a folder."""
    t = trainer(at, plain=True)
    t.train(resume_from_checkpoint=folder + "/checkpoint-6")
    return losses(t), weights(t.model), float(next(iter(t.optimizer.state.values()))["step"])


def plainly(rank: int, at: str) -> None:
    """Lets the Trainer write step 6 of a run as a checkpoint of its own, as the page does."""
    names: dict[str, Any] = {}
    code, = [code for m, code in launched.blocks("doc/python-trainers.md")
             if m == "transformers, going back"]
    exec(code, names)
    t = trainer(at, max_steps=STEPS + 2)
    t.add_callback(names["Back"](t, at + "-plain"))
    t.train(resume_from_checkpoint=at + "/checkpoint-6")


@needs(*NEEDED)
def test_goes_back_to_the_trainer() -> None:
    """A Trainer without Sheaf finds the weights alone, and all it needs after a step of the page"""
    with folder() as at:
        want, = ranks.results(1, trained, 1, at + "/run", None)
        (found, _, steps), = ranks.results(1, without, at + "/alone", at + "/run")
        assert steps == STEPS - 6 and sorted(found) == sorted(want[0]), (steps, found)
        assert [found[s] for s in range(1, 7)] == [want[0][s] for s in range(1, 7)]
        assert found[8] != want[0][8], found
        ranks.results(1, plainly, at + "/run")
        (found, last, steps), = ranks.results(1, without, at + "/plain", at + "/run-plain")
        assert (found, last) == want and steps == STEPS, (found, want[0])


def best(rank: int, n: int, at: str) -> Any:
    launched.environment(rank, n)
    t = trainer(at, eval_strategy="steps", eval_steps=2, save_steps=2, save_total_limit=2,
                load_best_model_at_end=True, learning_rate=0.5)
    scores = iter([5.0, 3.0, 4.0, 3.0, 6.0])
    own = t.evaluate
    t.evaluate = lambda *a, **k: dict(own(*a, **k), eval_loss=next(scores))
    t.train()
    with open(at + "/checkpoint-10/trainer_state.json", encoding="utf-8") as f:
        state = json.load(f)
    saved = GPT2LMHeadModel.from_pretrained(at + "/checkpoint-8")
    return there(at), t.state.best_model_checkpoint == at + "/checkpoint-8" == \
        state["best_model_checkpoint"], weights(saved) == weights(t.model)


@needs(*NEEDED)
def test_limit_and_best() -> None:
    """save_total_limit and load_best_model_at_end have their meaning, on two ranks"""
    with folder() as at:
        assert ranks.first(ranks.results(2, best, 2, at + "/run")) == ([8, 10], True, True)


def better_before(rank: int, at: str, first: bool) -> Any:
    """Trains without Sheaf to step 4, or on with it, to worse losses."""
    launched.environment(rank, 1)
    t = trainer(at, plain=first, eval_strategy="steps", eval_steps=2, save_steps=2,
                max_steps=4 if first else 8, load_best_model_at_end=True, save_total_limit=3)
    scores = iter([5.0, 3.0] if first else [4.0, 4.5])
    own = t.evaluate
    t.evaluate = lambda *a, **k: dict(own(*a, **k), eval_loss=next(scores))
    t.train(resume_from_checkpoint=None if first else True)
    return t.state.best_model_checkpoint, weights(t.model)


@needs(*NEEDED)
def test_the_best_of_the_trainer_stays() -> None:
    """The best checkpoint that the Trainer wrote itself is the best until there is a better one"""
    with folder() as at:
        (want, first), = ranks.results(1, better_before, at + "/run", True)
        assert want == at + "/run/checkpoint-4"
        (found, last), = ranks.results(1, better_before, at + "/run", False)
        assert found == want and last == first, found


def from_memory(rank: int, n: int, at: str, resume: Any, kill: Any) -> Any:
    return trained(rank, n, at, resume, kill, save_steps=1,
                   use={"memory_every": 1, "disk_every": 4})


@needs(*NEEDED)
def test_goes_on_from_memory() -> None:
    """Checkpoints in memory outlive both ranks, and the Trainer resumes from the newest of them"""
    with folder() as at:
        try:
            ended = ranks.everywhere(2, from_memory, 2, at + "/cut", None, (1, 7))
            assert isinstance(ended[1], ranks.Ended) and max(there(at + "/cut")) <= 4, ended
            newest = sheaf.Run(at + "/cut", readonly=True, agent="auto").checkpoint().number
            assert ranks.results(2, from_memory, 2, at + "/cut", True, None) == unbroken(2)
            assert newest in (5, 6, 7) and there(at + "/cut") == [4, 8], newest
        finally:
            subprocess.run([sys.argv[1], "agent", at + "/cut", "--stop", "--force"], check=True,
                           capture_output=True)


def terminated(rank: int, n: int, at: str, resume: Any) -> Any:
    launched.environment(rank, n)
    own = [At(1, 4, lambda: os.kill(os.getpid(), signal.SIGTERM))] if resume is None else []
    t = trainer(at, *own, use={"on_sigterm": 30})
    t.train(resume_from_checkpoint=resume)
    return losses(t), weights(t.model)


@needs(*NEEDED)
def test_sigterm() -> None:
    """SIGTERM on one rank: both save that step and end; the next job goes on"""
    with folder() as at:
        first = ranks.results(2, terminated, 2, at + "/cut", None)
        assert sorted(first[0][0]) == [1, 2, 3, 4, 5] and there(at + "/cut") == [3, 5]
        assert ranks.results(2, terminated, 2, at + "/cut", True) == unbroken(2)


def fails(rank: int, n: int, at: str) -> Any:
    launched.environment(rank, n)
    t = trainer(at, At(1, 2, lambda: t.model.register_buffer("wrong", torch.ones(1).expand(4))))
    return told(t.train), there(at)


@needs(*NEEDED)
def test_a_failure_on_one_rank() -> None:
    """What one rank cannot save ends both with its name, and nothing hangs"""
    with folder() as at:
        (first, a), (second, b) = ranks.results(2, fails, 2, at + "/run")
        assert first.startswith("Failed: ") and "wrong" in first, first
        assert "wrong" in second and a == b == [], second


def held(at: str) -> str:
    """A callback whose state is not JSON."""
    class Odd(TrainerCallback, ExportableState):        # type: ignore[misc]
        def state(self) -> Any:
            return {"args": {}, "attributes": {"odd": object()}}
    return told(trainer(at + "-odd", Odd()).train)


def settings(rank: int, at: str) -> Any:
    found = [told(lambda: trainer(at, **{name: value})) for name, value in
             (("auto_find_batch_size", True), ("save_on_each_node", True),
              ("enable_jit_checkpoint", True))]
    found.append(told(lambda: trainer(at, use={"keep_last": 3})))
    found.append(told(lambda: sheaf.transformers.use("no trainer")))
    t = trainer(at)
    found.append(told(lambda: sheaf.transformers.use(t)))
    found.append(held(at))
    return found


@needs(*NEEDED)
def test_settings_that_are_refused() -> None:
    """A setting that cannot have its meaning is refused, with what to do"""
    with folder() as at:
        (batch, node, jit, keep, other, twice, odd), = ranks.results(1, settings, at)
        assert "auto_find_batch_size=True" in batch and "per_device_train_batch_size" in batch
        assert "save_on_each_node=False" in node and "on_sigterm=SECONDS" in jit
        assert "save_total_limit" in keep and "a str is no" in other and "already" in twice
        assert "the callback Odd" in odd and "numbers, strings" in odd, odd


@needs(*NEEDED)
def test_the_script() -> None:
    """transformers_trainer.py is killed, and goes on with the losses of one that was not"""
    with folder() as at:
        whole, then = launched.resumed(1, at, "transformers_trainer.py", 12, 10)
        assert launched.losses(then) == whole and len(whole) == 12, (whole, then)
        assert "the best is runs/cut/checkpoint-12" in then, then


@needs(*NEEDED)
def test_the_example_of_the_page() -> None:
    """The example of doc/python-trainers.md runs, and goes on when it is run again"""
    with folder() as at:
        launched.page(at, "transformers")
        assert os.path.isdir(os.path.join(at, "runs/trainer/checkpoint-6"))


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
