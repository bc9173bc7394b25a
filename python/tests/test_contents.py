# SPDX-License-Identifier: Apache-2.0
"""What a Checkpointer saves and gives back where it is easy to miss something."""
from __future__ import annotations

import os
import sys
from typing import Any

import ranks
import tap
from tap import folder, needs, raises

if tap.there("torch"):
    import torch
    from torch import nn

    import sheaf
    import sheaf.torch


def trained(m: Any, lr: float = 0.1) -> Any:
    """An Adam of a module that took a step."""
    o = torch.optim.Adam(m.parameters(), lr)
    for p in m.parameters():
        p.grad = torch.ones_like(p)
    o.step()
    return o


def saved(path: str, *tracked: Any, **options: Any) -> None:
    """A checkpoint of these objects, as step 0."""
    with sheaf.Checkpointer(path, **options) as ckpt:
        ckpt.track(*tracked)
        ckpt.save(0)


@needs("torch")
def test_what_was_none_is_saved_later() -> None:
    """A parameter or buffer that was None is saved once it is set"""
    m = nn.Linear(2, 2)
    m.register_buffer("mean", None)
    m.register_parameter("scale", None)
    with folder() as at:
        with sheaf.Checkpointer(at) as ckpt:
            ckpt.track(m)
            ckpt.save(0)
            m.mean = torch.ones(3)
            m.scale = nn.Parameter(torch.ones(2))
            ckpt.save(1)
            assert sheaf.open(at).keys() == ["bias", "mean", "scale", "weight"]
            m.mean = None
            ckpt.save(2)
            assert sheaf.open(at).keys() == ["bias", "scale", "weight"]
            m.scale = None
            m.register_parameter("other", nn.Parameter(torch.ones(2)))
            ckpt.save(3)
            assert sheaf.open(at).keys() == ["bias", "other", "weight"]


@needs("torch")
def test_parts_of_an_optimizer() -> None:
    """only= with a pattern for optimizer state loads that, and nothing else"""
    m = nn.Linear(2, 2)
    with folder() as at:
        saved(at, m, trained(m))
        for only, keys in ("optimizer/*", "exp_avg exp_avg_sq step"), \
                ("optimizer", "exp_avg exp_avg_sq step"), ("optimizer/*/moment1_0", "exp_avg"), \
                (["optimizer/weight/*"], "exp_avg exp_avg_sq step"):
            other = nn.Linear(2, 2)
            w = other.weight.detach().clone()
            o = torch.optim.Adam(other.parameters(), 0.7)
            with sheaf.Checkpointer(at, readonly=True) as ckpt:
                ckpt.track(other, o)
                ckpt.load(only=only)
            assert " ".join(sorted(o.state[other.weight])) == keys, (only, o.state)
            assert (other.bias in o.state) == (isinstance(only, str)), only
            assert o.state[other.weight]["exp_avg"].any() and torch.equal(other.weight, w)
            assert o.param_groups[0]["lr"] == (0.1 if only in ("optimizer", "optimizer/*") else 0.7)


@needs("torch")
def test_a_pattern_must_match() -> None:
    """only= with a pattern that means nothing is an error"""
    m = nn.Linear(2, 2)
    with folder() as at:
        saved(at, m, trained(m))
        with sheaf.Checkpointer(at, readonly=True) as ckpt:
            ckpt.track(m)
            for only in "modle", "model/wieght*", "scheduler", "scheduler/x", "loader":
                with raises(sheaf.Invalid, "only=%r" % only, "model, optimizer, rng"):
                    ckpt.load(only=["model", only])
            for only in "rng", "model/b*", "optimizer", "*/bias":
                ckpt.load(only=only)


@needs("torch")
def test_state_that_only_the_job_has() -> None:
    """strict=False leaves the optimizer state of a parameter that the checkpoint lacks"""
    m = nn.Linear(2, 2)
    with folder() as at:
        saved(at, m, torch.optim.Adam(m.parameters()))
        more = nn.Linear(2, 2)
        more.register_parameter("new", nn.Parameter(torch.ones(3)))
        o = trained(more)
        with sheaf.Checkpointer(at, readonly=True) as ckpt:
            ckpt.track(more, o)
            ckpt.load(strict=False)
        assert more.new in o.state and more.weight not in o.state


class Tied(nn.Module if tap.there("torch") else object):    # type: ignore[misc]
    """Two names of one weight, in either order."""

    def __init__(self, names: tuple[str, str] = ("embed", "head")) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(3, 3, bias=False))
        self.head.weight = self.embed.weight


@needs("torch")
def test_tied_weights_and_masters() -> None:
    """Tied weights load with and without masters, in either order of their names, bit for bit"""
    for kept, store in (torch.bfloat16, None), (torch.bfloat16, torch.bfloat16), (None, None), \
            (None, torch.bfloat16):
        for names in ("embed", "head"), ("head", "embed"):
            m = Tied()
            with folder() as at:
                saved(at, m, store_dtype=kept)
                other = Tied(names)
                with sheaf.Checkpointer(at, readonly=True, store_dtype=store) as ckpt:
                    ckpt.track(other)
                    ckpt.load()
                assert torch.equal(other.head.weight, m.embed.weight), (kept, store, names)
                assert other.head.weight is other.embed.weight


@needs("torch")
def test_tied_weights_and_masters_for_two_tensors() -> None:
    """A model that ties nothing gets the exact values of tied weights under both names"""
    m = Tied()
    for store in None, torch.bfloat16:
        for convert in False, True:
            with folder() as at:
                saved(at, m, store_dtype=torch.bfloat16)
                other = nn.ModuleDict({x: nn.Linear(3, 3, bias=False) for x in ("embed", "head")})
                with sheaf.Checkpointer(at, store_dtype=store) as ckpt:
                    ckpt.track(other)
                    ckpt.load(convert=convert)
                    for name, t in other.state_dict().items():
                        assert torch.equal(t, m.embed.weight), (store, convert, name)
                    ckpt.save(1)
                    ckpt.load()


@needs("torch")
def test_what_a_job_forgets() -> None:
    """State that would be lost or begin anew is not loaded by half: what is missing is named"""
    def stepped(m: Any) -> Any:
        o = torch.optim.AdamW(m.parameters(), lr=0.5)
        sum(p.sum() for p in m.parameters()).backward()
        o.step()
        return o

    tied = Tied()
    with folder() as at:
        saved(at, tied, stepped(tied))
        two = nn.ModuleDict({x: nn.Linear(3, 3, bias=False) for x in ("embed", "head")})
        for tracked, says, only in (
                ((two, torch.optim.AdamW(two.parameters())),
                 "is tied to embed.weight in the checkpoint, and a tensor of its own", None),
                ((Tied(),), "the state of an optimizer, and no optimizer is tracked", "model"),
                ((nn.ModuleDict({"net": Tied()}),), "none of the 2 names of this model is stored: "
                 "it has model/net.embed.weight, and the checkpoint model/embed.weight", None)):
            with sheaf.Checkpointer(at, readonly=True) as ckpt:
                ckpt.track(*tracked)
                with raises(sheaf.Mismatch, says):
                    ckpt.load()
                if only is not None:
                    ckpt.load(only=only)
        with sheaf.Checkpointer(at, readonly=True, ignore=["optimizer/*"]) as ckpt:
            ckpt.track(Tied())
            ckpt.load()
        with sheaf.Checkpointer(at, readonly=True) as ckpt:
            ckpt.track(two, torch.optim.AdamW(two["embed"].parameters()))
            ckpt.load()                         # the other one is frozen
        with sheaf.Checkpointer(at, readonly=True) as ckpt:
            ckpt.track(None, torch.optim.AdamW(two.parameters()))
            with raises(LookupError, "is in no model that is tracked: track the module"):
                ckpt.load()
        with raises(ValueError, "is a checkpoint: a Checkpointer takes the run"):
            sheaf.Checkpointer(os.path.join(at, "checkpoint-0"), readonly=True)


@needs("torch")
def test_one_name_of_a_tensor_is_enough() -> None:
    """only= with one name of a tied weight loads it, with and without masters"""
    m = Tied()
    for kept, store in (torch.bfloat16, None), (torch.bfloat16, torch.bfloat16), (None, None), \
            (None, torch.bfloat16):
        with folder() as at:
            saved(at, m, store_dtype=kept)
            for name, other in ("embed", "head"), ("head", "embed"):
                tied = Tied()
                two = nn.ModuleDict({x: nn.Linear(3, 3, bias=False) for x in (name, other)})
                before = two[other].weight.detach().clone()
                for model in tied, two:
                    with sheaf.Checkpointer(at, readonly=True, store_dtype=store) as ckpt:
                        ckpt.track(model)
                        ckpt.load(only="model/%s.weight" % name)
                assert torch.equal(tied.head.weight, m.head.weight), (kept, store, name)
                assert torch.equal(two[name].weight, m.head.weight), (kept, store, name)
                assert torch.equal(two[other].weight, before), (kept, store, name)


def shared(order: str) -> Any:
    """A module for each letter; the same letter is the same module."""
    made = {letter: nn.Linear(1, 1, bias=False) for letter in sorted(set(order))}
    return nn.ModuleDict({"l%d" % i: made[letter] for i, letter in enumerate(order)})


@needs("torch")
def test_other_ties() -> None:
    """A strict load into a model with other ties is refused, and names both names"""
    for order, other, says in (("xyy", "xyx", "model/l2.weight is tied to l0.weight"),
                               ("yxyx", "xyyx", "model/l2.weight is tied to l1.weight"),
                               ("xyz", "xyx", "l2.weight")):
        with folder() as at:
            saved(at, shared(order))
            for only, refused in (None, True), ("model", True), ("model/l1*", False):
                m = shared(other)
                with sheaf.Checkpointer(at, readonly=True) as ckpt:
                    ckpt.track(m)
                    if refused:
                        with raises(sheaf.Mismatch, says):
                            ckpt.load(only=only)
                    else:
                        ckpt.load(only=only)
    m = shared("xyy")
    with folder() as at:
        saved(at, m)
        for order in "xyy", "xyz":      # what is one tensor there may be two here
            other_m = shared(order)
            with sheaf.Checkpointer(at, readonly=True) as ckpt:
                ckpt.track(other_m)
                ckpt.load()
            for name, t in other_m.state_dict().items():
                assert torch.equal(t, m.state_dict()[name]), (order, name)


class Counting(torch.optim.SGD if tap.there("torch") else object):  # type: ignore[misc]
    """An optimizer whose state has no tensors."""

    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            self.state[p]["count"] = self.state[p].get("count", 0) + 1


@needs("torch")
def test_optimizer_state_of_tied_weights() -> None:
    """The optimizer state of a tied weight is found under any of its names, tensors and others"""
    for kind in Counting, torch.optim.AdamW:
        m = Tied()
        o = kind(m.parameters(), 0.1)
        m.embed.weight.grad = torch.ones(3, 3)
        o.step()
        for names in ("embed", "head"), ("head", "embed"):
            other = Tied(names)
            again = kind(other.parameters(), 0.2)
            with folder() as at:
                saved(at, m, o)
                with sheaf.Checkpointer(at) as ckpt:
                    ckpt.track(other, again)
                    ckpt.load()
                    state, want = again.state[other.head.weight], o.state[m.head.weight]
                    assert state.keys() == want.keys(), (kind, names, state)
                    assert all(torch.equal(torch.as_tensor(state[k]), torch.as_tensor(want[k]))
                               for k in want), (kind, names)
                    assert again.param_groups[0]["lr"] == 0.1
                    ckpt.save(1)        # with the names of this model
                    ckpt.load()
                    assert state.keys() == again.state[other.head.weight].keys(), (kind, names)


@needs("torch")
def test_one_name_twice() -> None:
    """Two tensors of one name are refused, and a parameter that two optimizers have"""
    first = nn.ModuleDict({"critic": nn.Linear(2, 2)})
    second = nn.Linear(2, 2)
    with folder() as at, sheaf.Checkpointer(at) as ckpt:
        ckpt.track(first)
        ckpt.track(second, prefix="critic.")
        with raises(sheaf.torch.Unsupported, "model/critic.weight", "prefix"):
            ckpt.save(0)
    with folder() as at:
        saved(at, second, trained(second))
        with sheaf.Checkpointer(at) as ckpt:
            ckpt.track(second, torch.optim.SGD(second.parameters(), 0.1),
                       torch.optim.Adagrad(second.parameters(), 0.2))
            with raises(sheaf.torch.Unsupported, "weight is in two optimizers", "SGD", "Adagrad"):
                ckpt.save(1)
            with raises(sheaf.torch.Unsupported, "weight is in two optimizers"):
                ckpt.load()


@needs("torch")
def test_schedulers() -> None:
    """MultiStepLR (which has a Counter), SequentialLR and OneCycleLR go on"""
    kinds = torch.optim.lr_scheduler
    for make in (lambda o: kinds.MultiStepLR(o, [2, 4]),
                 lambda o: kinds.SequentialLR(o, [kinds.ConstantLR(o), kinds.MultiStepLR(o, [3])],
                                              [2]),
                 lambda o: kinds.OneCycleLR(o, 1.0, total_steps=9)):
        made = []
        with folder() as at:
            for i in range(2):
                m = nn.Linear(2, 2)
                o = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)
                made.append((o, make(o)))
                with sheaf.Checkpointer(at) as ckpt:
                    ckpt.track(m, o, scheduler=made[i][1])
                    for k in range(3 if i == 0 else 0):
                        o.step()
                        made[0][1].step()
                    if i == 0:
                        ckpt.save(0)
                    else:
                        ckpt.load()
        for k in range(3):
            rates = []
            for o, s in made:
                o.step()
                s.step()
                rates.append(o.param_groups[0]["lr"])
            assert rates[0] == rates[1], (made[0][1], rates)
        assert type(made[1][1].__dict__.get("milestones")) is \
            type(made[0][1].__dict__.get("milestones"))


@needs("torch")
def test_groups_without_parameters() -> None:
    """A parameter group without parameters gets its options back, of the second optimizer too"""
    def make(lr: float) -> list[Any]:
        both = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        return [both] + [torch.optim.SGD([{"params": [], "lr": lr}, {"params": m.parameters()},
                                          {"params": [], "lr": 2 * lr}], 3 * lr) for m in both]

    made = make(0.1)
    made[2].param_groups[0]["lr"] = 0.7
    with folder() as at:
        saved(at, *made)
        other = make(1.0)
        fewer = make(1.0)
        del fewer[2].param_groups[2]    # these groups may mean something else
        for tracked in other, fewer:
            with sheaf.Checkpointer(at, readonly=True) as ckpt:
                ckpt.track(*tracked)
                ckpt.load()
        rates = [[g["lr"] for g in o.param_groups] for o in (*other[1:], fewer[2])]
        assert rates[:2] == [[g["lr"] for g in o.param_groups] for o in made[1:]], rates
        assert rates[2] == [1.0, made[2].param_groups[1]["lr"]], rates


@needs("torch")
def test_files_of_its_own() -> None:
    """Further files may not replace the documents of a Checkpointer"""
    m = nn.Linear(2, 2)
    for name in "trainer.json", "param_groups.json", "trainer-3.json", "param_groups-12.json":
        with folder() as at, raises(ValueError, "files: %r" % name):
            sheaf.Checkpointer(at, files={name: b"{}"})
    with folder() as at:
        saved(at, m, trained(m), files={"trainer.txt": b"x", "my-trainer.json": b"{}"})
        assert {"trainer.txt", "my-trainer.json", "trainer.json"} <= \
            set(os.listdir(at + "/checkpoint-0"))


@needs("torch")
def test_metrics_keep_their_types() -> None:
    """Metrics that are strings come back as strings, and numbers as numbers"""
    m = nn.Linear(2, 2)
    given = {"git": "12345e6", "run": "00123", "tag": "1_000", "name": "x", "space": " 1",
             "loss": 0.1, "n": 3, "least": 1e-30, "all": float("inf"), "down": -2.0}
    with folder() as at, sheaf.Checkpointer(at) as ckpt:
        ckpt.track(m)
        ckpt.save(0, given)
        found = ckpt.load()
        assert found is not None and found.metrics == given, found
        assert [type(v) for v in found.metrics.values()] == \
            [type(given[k]) for k in found.metrics]


@needs("torch")
def test_state_of_an_optimizer() -> None:
    """State of complex128 is built as it is, and state that belongs to no parameter is refused"""
    made = []
    with folder() as at:
        for i in range(2):
            m = nn.Module()
            m.w = nn.Parameter(torch.full((3, 2), 1 + 2j, dtype=torch.complex128))
            o = torch.optim.Adam(m.parameters())
            with sheaf.Checkpointer(at) as ckpt:
                ckpt.track(m, o)
                if i == 0:
                    m.w.grad = torch.ones_like(m.w)
                    o.step()
                    ckpt.save(0)
                else:
                    ckpt.load()
            made.append(o.state[m.w])
        assert made[0].keys() == made[1].keys()
        for key, value in made[0].items():
            assert torch.equal(value, made[1][key]) and value.dtype == made[1][key].dtype, key
        o.state["global"] = {"count": 3}
        with sheaf.Checkpointer(at) as ckpt:
            ckpt.track(m, o)
            with raises(sheaf.torch.Unsupported, "'global'", "belongs to no parameter"):
                ckpt.save(1)


class Extra(nn.Linear if tap.there("torch") else object):   # type: ignore[misc]
    """A module with extra state."""

    kept = 0

    def get_extra_state(self) -> Any:
        return {"kept": self.kept}

    def set_extra_state(self, state: Any) -> None:
        self.kept = state["kept"]


@needs("torch")
def test_strict_documents() -> None:
    """A strict load needs the same extra state, schedulers and further objects on both sides"""
    plain, extra = nn.Linear(2, 2), Extra(2, 2)
    with folder() as at, folder() as more:
        saved(at, plain)
        saved(more, extra)
        for path, m, says in ((at, extra, "model/_extra_state is extra state of a module"),
                              (more, plain, "model/_extra_state is stored")):
            with sheaf.Checkpointer(path, readonly=True) as ckpt:
                ckpt.track(m)
                with raises(sheaf.Mismatch, says):
                    ckpt.load()
                ckpt.load(strict=False)
                ckpt.load(only=["model/weight", "model/bias"])
    for what in "scheduler", "scaler", "mine":
        o = torch.optim.SGD(plain.parameters(), 0.1)
        some: Any = {what: torch.optim.lr_scheduler.StepLR(o, 1)}
        for first, then, says in (some, {}, "%s: this job tracks 0" % what), \
                ({}, some, "%s: this job tracks 1" % what):
            with folder() as at:
                with sheaf.Checkpointer(at) as ckpt:
                    ckpt.track(plain, **first)
                    ckpt.save(0)
                with sheaf.Checkpointer(at, readonly=True) as ckpt:
                    ckpt.track(plain, **then)
                    with raises(sheaf.Mismatch, says):
                        ckpt.load()
                    ckpt.load(strict=False)
                    ckpt.load(only="model")


def extra_of_stages(rank: int, path: str) -> Any:
    """Each rank has a stage with extra state; what a load says when rank 1 has another stage."""
    stage = nn.ModuleDict({"s%d" % rank: Extra(2, 2)})
    with sheaf.Checkpointer(path, timeout=20) as ckpt:
        ckpt.track(stage)
        stage["s%d" % rank].kept = rank + 5
        ckpt.save(0)
        stage["s%d" % rank].kept = 0
        ckpt.load()
        kept = stage["s%d" % rank].kept
    with sheaf.Checkpointer(path, timeout=20) as ckpt:
        ckpt.track(nn.ModuleDict({"s1": nn.Linear(2, 2)}) if rank == 1 else stage)
        return kept, tap.told(ckpt.load)


@needs("torch")
def test_strict_extra_state_of_stages() -> None:
    """The extra state that a strict load needs may be on any rank"""
    with folder() as at:
        found = ranks.results(2, extra_of_stages, at)
        assert [kept for kept, told in found] == [5, 6], found
        for kept, told in found:
            assert told.startswith("Mismatch: model/s1._extra_state is stored"), found


def later_on_one_rank(rank: int, path: str) -> Any:
    """Rank 1 gets a module with extra state, and optimizers other parameters, after a save."""
    m = nn.ModuleDict({"s%d" % rank: nn.Linear(2, 2)})
    o = torch.optim.SGD([m["s%d" % rank].weight], 0.1 + rank)
    with sheaf.Checkpointer(path, timeout=20) as ckpt:
        ckpt.track(m, o)
        ckpt.save(1)
        if rank == 1:
            m["x"] = Extra(2, 2)
            m["x"].kept = 42
        o.param_groups[0]["params"] = [m["s%d" % rank].bias]     # a group of the same size
        ckpt.save(2)
        o.param_groups[0]["lr"] = 9.0
        if rank == 1:
            m["x"].kept = 0
        ckpt.load(2)
        return m["x"].kept if rank == 1 else 42, round(o.param_groups[0]["lr"] - rank, 6)


def shared_then_other(rank: int, path: str) -> Any:
    """Replicas, until rank 1 alone gets a module with extra state."""
    torch.manual_seed(0)
    m = nn.ModuleDict({"s": nn.Linear(2, 2)})
    with sheaf.Checkpointer(path, timeout=20) as ckpt:
        ckpt.track(m)
        ckpt.save(1)
        if rank == 1:
            m["x"] = Extra(2, 2)
            m["x"].kept = 42
        ckpt.save(2)
        if rank == 1:
            m["x"].kept = 0
        ckpt.load(2)
        return m["x"].kept if rank == 1 else 42


@needs("torch")
def test_extra_state_that_appears_later() -> None:
    """What appears on one rank after the first save is saved, though ranks had equal parts"""
    for work, want in (later_on_one_rank, (42, 0.1)), (shared_then_other, 42):
        with folder() as at:
            assert ranks.first(ranks.results(2, work, at)) == want, work


def files_of(rank: int, path: str, save: bool) -> Any:
    """Trains to step 3 of a counted loader and saves, or loads; the files, or the position."""
    torch.manual_seed(100 + rank)
    m = nn.Linear(2, 2)
    torch.distributed.broadcast(m.weight.data, 0) if save else None
    torch.distributed.broadcast(m.bias.data, 0) if save else None
    o = torch.optim.SGD(m.parameters(), 0.1)
    data = torch.utils.data.TensorDataset(torch.arange(20))
    loader = sheaf.torch.CountedLoader(torch.utils.data.DataLoader(data, batch_size=2,
                                                                   shuffle=True))
    with sheaf.Checkpointer(path, timeout=20) as ckpt:
        ckpt.track(m, o, loader=loader)
        if not save:
            ckpt.load()
            return loader.consumed
        for i, batch in enumerate(loader):
            if i == 2:
                break
        ckpt.save(0)
        o.add_param_group({"params": [], "lr": 0.5})
        ckpt.save(1)
        o.add_param_group({"params": [], "lr": 0.7})
        ckpt.save_async(2).result()
        if rank == 1:
            o.add_param_group({"params": []})
        ckpt.save(3)
        if rank == 0:
            o.add_param_group({"params": []})
        ckpt.save(4)
        stats = ckpt.stats()
    return [sorted(f for f in os.listdir(os.path.join(path, "checkpoint-%d" % step))
                   if f.startswith(("param_groups", "trainer"))) for step in range(5)], \
        (stats.committed, stats.failed)


@needs("torch")
def test_documents_are_written_once() -> None:
    """Equal ranks write one document, and counted loaders go on with another number of ranks"""
    with folder() as at:
        found, counts = ranks.first(ranks.results(2, files_of, at, True))
        one = ["param_groups.json", "trainer.json"]
        assert found == [one, one, one, sorted(["param_groups-1.json", *one]), one], found
        assert counts == (5, 0), counts
        assert ranks.results(1, files_of, at, False) == [3]


def changed_and_wrong(rank: int, path: str) -> Any:
    """The groups of one rank change, and the other one saves a step that is no number."""
    m = nn.Linear(2, 2)
    o = torch.optim.SGD(m.parameters(), 0.1)
    said = []
    with sheaf.Checkpointer(path, timeout=20) as ckpt:
        ckpt.track(m, o)
        ckpt.save(0)
        for changed in 0, 1:
            if rank == changed:
                o.add_param_group({"params": []})
            step: Any = 9 if rank == changed else "nine"
            said.append(tap.told(lambda: ckpt.save(step)))
            ckpt.save(1 + changed)
        return said, ckpt.steps


@needs("torch")
def test_a_change_and_a_wrong_argument() -> None:
    """No rank waits if the names of one have changed and the other has a wrong argument"""
    with folder() as at:
        found = ranks.results(2, changed_and_wrong, at)
        for rank, (said, steps) in enumerate(found):
            assert steps == [0, 1, 2]
            for changed, text in enumerate(said):
                kind = "Failed: " if rank == changed else "TypeError: "
                assert text.startswith(kind) and "'str'" in text, found


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
