# SPDX-License-Identifier: Apache-2.0
"""A later save does not list the tensors again, unless something about them has changed.

Each change here is made between two saves, and the next checkpoint must have what is there then.
Flaws are planted in the comparison, one for each thing that it looks at: every flaw must make some
checkpoint wrong.
"""
from __future__ import annotations

import json
import logging
import sys
from typing import Any, Callable, Iterator

import flaws
import ranks
import tap
from tap import folder, needs

if tap.there("torch"):
    import torch
    from torch import nn

    import sheaf
    import sheaf.torch
    from sheaf import torch_forms
    from sheaf.torch import checkpointer, plan, unchanged

Change = Callable[[Any, Any, Any], None]    # of a model, its optimizer and the Checkpointer
BEFORE = 2                              # saves before the change


def model() -> Any:
    """A model of several modules with buffers, frozen parameters and tied weights."""
    torch.manual_seed(0)
    m = nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.Linear(6, 6), "frozen": nn.Linear(4, 4),
                       "embed": nn.Linear(6, 6, bias=False), "head": nn.Linear(6, 6, bias=False),
                       "empty": nn.Identity(), "one": nn.Identity(), "two": nn.Identity()})
    for name, where in ("first", "one"), ("second", "one"), ("third", "two"):
        m[where].register_buffer(name, torch.randn(3))
    m["head"].weight = m["embed"].weight
    m["frozen"].requires_grad_(False)
    m["a"].register_buffer("square", torch.randn(4, 4))
    m["a"].register_buffer("waves", torch.randn(4, dtype=torch.complex64))
    return m


def optimizer(m: Any) -> Any:
    o = torch.optim.AdamW([{"params": list(m["a"].parameters())},
                           {"params": [*m["b"].parameters(), m["embed"].weight], "lr": 0.5}])
    stepped(o)
    return o


def stepped(*optimizers: Any) -> None:
    for o in optimizers:
        for group in o.param_groups:
            for p in group["params"]:
                p.grad = torch.randn_like(p)
        o.step()


def truth(m: Any, *optimizers: Any) -> dict[str, Any]:
    """All tensors that the next checkpoint must have, by its names."""
    found = {n: t.detach() for n, t in m.state_dict().items()}
    names = {id(p): n for n, p in m.named_parameters()}
    keys = {"exp_avg": "moment1_0", "exp_avg_sq": "moment2_0"}
    for o in optimizers:
        for p, state in o.state.items():
            found.update({"optimizer/%s/%s" % (names[id(p)], keys.get(k, k)): v
                          for k, v in state.items() if isinstance(v, torch.Tensor)})
    return found


def differing(at: str, want: dict[str, Any]) -> Iterator[str]:
    """What is wrong in a checkpoint."""
    with sheaf.open(at, framework="pt") as f:
        if set(f.keys()) != set(want):
            yield "names: %s" % sorted(set(f.keys()) ^ set(want))
            return
        for name, t in want.items():
            got = f.get_tensor(name)
            if got.dtype != t.dtype or got.shape != t.shape or \
                    not torch.equal(got, t.resolve_conj()):
                yield name


def grouped(m: Any, o: Any) -> list[Any]:
    names = {id(p): n for n, p in m.named_parameters()}
    return [[g["lr"], [names[id(p)] for p in g["params"]]] for g in o.param_groups]


def wrong(change: Change) -> str:
    """What is wrong in the checkpoint after a change; "": nothing."""
    m = model()
    o = optimizer(m)
    with folder() as at:
        try:
            with sheaf.Checkpointer(at) as ckpt:
                ckpt.track(m, o)
                for number in range(BEFORE):
                    stepped(o)
                    o.param_groups[0]["lr"] = 0.1 * number
                    ckpt.save_async(number)
                assert ckpt.tracked.listed == 1 and ckpt.plan.made == 1
                optimizers = [o]
                change(m, o, ckpt)
                optimizers += [x.optimizer for x in ckpt.tracked.optimizers[1:]]
                ckpt.save(BEFORE)
                want = truth(m, *optimizers)
                if len(ckpt.tracked.models) > 1:
                    want.update({"more." + n: t for n, t in
                                 truth(ckpt.tracked.models[1].module).items()})
                last = "%s/checkpoint-%d" % (at, BEFORE)
                with open(last + "/param_groups.json", encoding="utf-8") as f:
                    groups = json.load(f)["param_groups"]
                want_groups = [g for x in optimizers for g in grouped(m, x)]
                if [[g["lr"], g["params"]] for g in groups] != want_groups:
                    return "groups %s" % groups
                return next(differing(last, want), "")
        except Exception as e:
            return "%s: %s" % (type(e).__name__, e)


# ---- changes ----

def data(value: Callable[[Any], Any]) -> Change:
    """Gives a buffer other memory, made from its own."""
    def change(m: Any, o: Any, ckpt: Any) -> None:
        m["a"].square.data = value(m["a"].square)
    return change


def none(m: Any, o: Any, ckpt: Any) -> None:
    stepped(o)


def replaced(m: Any, o: Any, ckpt: Any) -> None:
    m["frozen"].weight = nn.Parameter(torch.randn(4, 4), requires_grad=False)


def written(m: Any, o: Any, ckpt: Any) -> None:
    m["frozen"]._parameters["bias"] = nn.Parameter(torch.randn(4), requires_grad=False)


def other_dict(m: Any, o: Any, ckpt: Any) -> None:
    m["a"]._buffers = dict(m["a"]._buffers, square=torch.randn(4, 4))
    m["a"].square       # torch finds it there


def untied(m: Any, o: Any, ckpt: Any) -> None:
    m["head"].weight = nn.Parameter(torch.randn(6, 6))


def conjugated(m: Any, o: Any, ckpt: Any) -> None:
    m["a"].waves.data = m["a"].waves.data.conj()


def negated(m: Any, o: Any, ckpt: Any) -> None:
    """The imaginary parts of the conjugate are a lazy negative, of the form that `imag` had."""
    waves = m["a"].waves
    m["a"].register_buffer("imag", waves.imag)
    again(ckpt)
    m["a"].imag = waves.conj().imag


def storage(m: Any, o: Any, ckpt: Any) -> None:
    m["a"].square.untyped_storage().resize_(1 << 16)
    m["a"].square.fill_(7)


def cast(m: Any, o: Any, ckpt: Any) -> None:
    m["frozen"].to(torch.float64)


def new_buffer(m: Any, o: Any, ckpt: Any) -> None:
    m["empty"].register_buffer("late", torch.ones(3))


def second_buffer(m: Any, o: Any, ckpt: Any) -> None:
    m["a"].register_buffer("late", torch.ones(3))


def renamed(m: Any, o: Any, ckpt: Any) -> None:
    m["a"].register_buffer("colours", m["a"]._buffers.pop("waves"))


def not_saved(m: Any, o: Any, ckpt: Any) -> None:
    m["a"].register_buffer("square", m["a"].square, persistent=False)


def elsewhere(m: Any, o: Any, ckpt: Any) -> None:
    """The last parameter of one module is the first of the next: all in all, the same order."""
    b, frozen = m["b"]._parameters, m["frozen"]._parameters
    moved = b.pop("bias")
    kept = dict(frozen)
    frozen.clear()
    frozen["bias"] = moved
    frozen.update({"weight": kept["weight"]})
    m["frozen"].register_parameter("last", kept["bias"])


def across(m: Any, o: Any, ckpt: Any) -> None:
    """A buffer goes to another module that has buffers, and keeps its place among all."""
    m["two"].register_buffer("first", m["one"]._buffers.pop("first"))


def alone(m: Any, o: Any, ckpt: Any) -> None:
    """A module's only buffer goes to one that had none, and is next to it."""
    del m["one"].second, m["two"].third
    again(ckpt)
    m["two"].register_buffer("first", m["one"]._buffers.pop("first"))


def new_module(m: Any, o: Any, ckpt: Any) -> None:
    m["late"] = nn.Linear(2, 2)


def no_module(m: Any, o: Any, ckpt: Any) -> None:
    del m["frozen"]


def hooked(m: Any, o: Any, ckpt: Any) -> None:
    """A module gets a hook that leaves a name out of its state_dict."""
    m["a"]._register_state_dict_hook(
        lambda module, values, prefix, local: values.pop(prefix + "square") is None or None)


def another_class(m: Any, o: Any, ckpt: Any) -> None:
    """A module gets a class that leaves a name out of its state_dict."""
    class Short(nn.Linear):
        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            super()._save_to_state_dict(destination, prefix, keep_vars)
            del destination[prefix + "bias"]

    m["frozen"].__class__ = Short


def shared(m: Any, o: Any, ckpt: Any) -> None:
    """The names of two modules that each have two: their order at first sight stays the same."""
    x, y = nn.Linear(2, 2), nn.Linear(2, 2)
    for i, one in enumerate((y, x, y, x)):
        m["l%d" % i] = one
    again(ckpt)
    m["l0"], m["l1"] = x, y


def other_state(m: Any, o: Any, ckpt: Any) -> None:
    saved = o.state_dict()
    for values in saved["state"].values():
        values["exp_avg"] = torch.randn_like(values["exp_avg"])
    o.load_state_dict(saved)


def replaced_state(m: Any, o: Any, ckpt: Any) -> None:
    for values in o.state.values():
        values["exp_avg"] = torch.randn_like(values["exp_avg"])


def more_state(m: Any, o: Any, ckpt: Any) -> None:
    o.state[m["b"].bias]["late"] = torch.randn(6)


def renamed_state(m: Any, o: Any, ckpt: Any) -> None:
    values = o.state[m["b"].bias]
    values["other"] = values.pop("exp_avg_sq")


def again(ckpt: Any) -> None:
    """Two more saves, which are taken back, so that the next one compares with them."""
    ckpt.save(BEFORE)
    ckpt.save(BEFORE + 1)
    ckpt.rewind(BEFORE - 1)


def state_elsewhere(m: Any, o: Any, ckpt: Any) -> None:
    """A value of one parameter becomes one of the parameter before."""
    before, after = o.state[m["a"].weight], o.state[m["a"].bias]
    o.state[m["a"].bias] = dict({"late": torch.randn(6)}, **after)
    again(ckpt)
    before["late"] = o.state[m["a"].bias].pop("late")


def state_in_other_order(m: Any, o: Any, ckpt: Any) -> None:
    o.state[m["a"].weight] = o.state.pop(m["a"].weight)
    o.state[m["b"].weight] = o.state.pop(m["b"].weight)


def swapped(m: Any, o: Any, ckpt: Any) -> None:
    """The states of two parameters of one shape change places."""
    one, two = o.state[m["a"].weight], o.state[m["b"].weight]
    every = dict(o.state)
    o.state.clear()
    for p in every:
        key = m["b"].weight if p is m["a"].weight else m["a"].weight if p is m["b"].weight else p
        o.state[key] = one if p is m["a"].weight else two if p is m["b"].weight else every[p]


def number_to_tensor(m: Any, o: Any, ckpt: Any) -> None:
    for values in o.state.values():
        values["rounds"] = 3
    again(ckpt)
    for values in o.state.values():
        values["rounds"] = torch.ones(2)


def tensor_to_number(m: Any, o: Any, ckpt: Any) -> None:
    o.state[m["b"].bias]["step"] = 3.0


def no_state(m: Any, o: Any, ckpt: Any) -> None:
    o.state.clear()


def another_group(m: Any, o: Any, ckpt: Any) -> None:
    o.add_param_group({"params": list(m["frozen"].parameters()), "lr": 0.25})


def between_groups(m: Any, o: Any, ckpt: Any) -> None:
    o.param_groups[1]["params"].insert(0, o.param_groups[0]["params"].pop())


def group_in_other_order(m: Any, o: Any, ckpt: Any) -> None:
    o.param_groups[0]["params"].reverse()


def another_optimizer(m: Any, o: Any, ckpt: Any) -> None:
    more = torch.optim.AdamW(m["frozen"].parameters(), 0.125)
    stepped(more)
    ckpt.track(None, more)


def another_model(m: Any, o: Any, ckpt: Any) -> None:
    ckpt.track(nn.Linear(2, 2), prefix="more.")


CHANGES: list[Change] = [none, replaced, written, other_dict, untied, storage, cast, new_buffer,
                         second_buffer, renamed, not_saved, elsewhere, across, alone, new_module,
                         no_module, hooked, another_class, shared, other_state, replaced_state,
                         more_state, renamed_state, state_elsewhere, state_in_other_order, swapped,
                         number_to_tensor, tensor_to_number, no_state, another_group,
                         between_groups, group_in_other_order, another_optimizer, another_model]
DATA: dict[str, Callable[[Any], Any]] = {
    "other memory": lambda t: torch.randn(4, 4), "transposed": lambda t: t.data.t(),
    "another type": lambda t: t.data.view(torch.int32),
    "another shape": lambda t: t.data.view(2, 8), "a part": lambda t: t.data[1:3],
    "strides": lambda t: torch.randn(4, 8)[:, ::2]}
FORMS = ("Guards", "Forms")


@needs("torch")
def test_changes() -> None:
    """What changes between two saves is in the second, whichever way tensors are compared"""
    assert unchanged.FORMS is torch_forms.Guards, "this torch has no guards that can be trusted"
    try:
        for forms in FORMS:
            unchanged.FORMS = getattr(torch_forms, forms)
            for change in CHANGES:
                assert not wrong(change), (forms, change.__name__, wrong(change))
            for change in conjugated, negated:
                assert "lazy conjugate" in wrong(change), (forms, change.__name__)
            for name, value in DATA.items():
                assert not wrong(data(value)), (forms, name, wrong(data(value)))
    finally:
        unchanged.FORMS = torch_forms.Guards


FLAWS: dict[str, list[tuple[str, Change]]] = {
    "unchanged": [
        ("same(chain.from_iterable(map(of_module, self.modules)), self.parts)", other_dict),
        ("same(map(type, self.modules), self.kinds)", another_class),
        ("list(map(len, self.parts)) == self.sizes", across),
        ("list(chain.from_iterable(self.filled)) == self.keys", renamed),
        ("same(self.held(), self.values)", replaced),
        ("same(state, self.owners)", swapped),
        ("list(map(len, groups)) != self.group_sizes", between_groups),
        ("same(chain.from_iterable(groups), self.params)", group_in_other_order),
        ("list(map(len, inner)) != self.sizes", state_elsewhere),
        ("list(chain.from_iterable(inner)) != self.keys", renamed_state),
        ("any(isinstance(v, torch.Tensor) for v in compress(values, self.plain))",
         number_to_tensor),
        ("addresses is None", data(DATA["transposed"])),
        ("addresses != self.unchanged.addresses", data(DATA["other memory"])),
        ("addresses != self.unchanged.addresses", other_state),
        ("addresses != self.unchanged.addresses", storage),
        ("self.sizes != (len(models), len(optimizers))", another_optimizer),
        ("self.sizes != (len(models), len(optimizers))", another_model)],
    "forms": [("not check(*part)", data(DATA["another shape"])),
              ("t.stride()", data(DATA["transposed"])), ("t.dtype", data(DATA["another type"])),
              ("t.shape, t.stride()", data(DATA["another shape"])), ("t.is_conj()", conjugated)],
    "plan": [("local.is_conj()", conjugated), ("local.is_neg()", negated),
             ("base != self.base", data(DATA["other memory"])), ("base != self.base", other_state),
             ("base != self.base", storage)]}


@needs("torch")
def test_flaws() -> None:
    """Without any one of the comparisons some checkpoint is wrong"""
    logging.getLogger("sheaf").setLevel(logging.CRITICAL)
    modules = {"unchanged": unchanged, "plan": plan, "forms": torch_forms}
    right = checkpointer.Lists, checkpointer.Plan, unchanged.FORMS
    try:
        for name, planted in FLAWS.items():
            for check, change in planted:
                said = ""
                for forms in FORMS:
                    made = flaws.flawed(modules[name], check)
                    made.FORMS = getattr(made if name == "forms" else torch_forms, forms)
                    checkpointer.Lists = getattr(made, "Lists", right[0])
                    checkpointer.Plan = getattr(made, "Plan", right[1])
                    unchanged.FORMS = made.FORMS
                    found = wrong(change)
                    said = said or ("" if "it is a lazy conjugate" in found else found)
                assert said, (check, change.__name__)
    finally:
        checkpointer.Lists, checkpointer.Plan, unchanged.FORMS = right
        logging.getLogger("sheaf").setLevel(logging.NOTSET)


def on_ranks(rank: int, path: str, flaw: str) -> None:
    """Changes of sharded tensors, and changes on one rank alone."""
    if flaw:
        checkpointer.Lists = flaws.flawed(unchanged, flaw).Lists
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec
    from torch.distributed.tensor.placement_types import _StridedShard
    mesh = init_device_mesh("cpu", (2,))
    m = model()
    whole = torch.randn(8, 4, generator=torch.Generator().manual_seed(3))
    m["a"].sharded = nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)]))
    m["own%d" % rank] = nn.Linear(2, 2)
    o = torch.optim.AdamW([m["a"].sharded, m["own%d" % rank].weight])
    with sheaf.Checkpointer(path, timeout=30) as ckpt:
        ckpt.track(m, o)
        for number in range(BEFORE):
            ckpt.save_async(number)
        assert ckpt.tracked.listed == 1, ckpt.tracked.listed

        def proven(whole: torch.Tensor, listed: int) -> None:
            nonlocal number
            number += 1
            ckpt.save(number)
            assert ckpt.tracked.listed == listed, (number, ckpt.tracked.listed)
            at = "%s/checkpoint-%d" % (path, number)
            with sheaf.open(at, framework="pt") as f:
                assert torch.equal(f.get_tensor("a.sharded"), whole), number
                for name, t in m["own%d" % rank].state_dict().items():
                    assert torch.equal(f.get_tensor("own%d.%s" % (rank, name)), t), (number, name)

        p = m["a"].sharded
        p._local_tensor = p._local_tensor.clone() * 2       # other memory
        proven(2 * whole, 1)
        rows = [0, 1, 4, 5] if rank == 0 else [2, 3, 6, 7]
        p._local_tensor.data.copy_(whole[rows])             # as many rows, but other ones
        p._spec = DTensorSpec(mesh, (_StridedShard(0, split_factor=2),),
                              tensor_meta=p._spec.tensor_meta)
        proven(whole, 2)
        p._local_tensor = whole.t().contiguous().t()[rows].t().contiguous().t()
        proven(whole, 3)                                    # other strides
        if rank == 1:
            m["own1"].register_buffer("late", torch.ones(5))
        proven(whole, 3 + rank)
        if rank == 0:
            m["own0"].weight = nn.Parameter(torch.ones(2, 2))
            o.param_groups[0]["params"][1] = m["own0"].weight
        proven(whole, 4)
        if rank == 0:
            m["own0"].bias.data = torch.ones(2, dtype=torch.float64)
        proven(whole, 5 - rank)
        assert ckpt.steps[-1] == number


@needs("torch")
def test_ranks() -> None:
    """What changes in sharded tensors, or on one rank alone, is in the next checkpoint of all"""
    with folder() as at:
        ranks.results(2, on_ranks, at + "/run", "")
        for n, flaw in enumerate(("addresses is None",
                                  "list(map(sharding_of, map(spec_of, shards))) == "
                                  "self.shardings")):
            for x in ranks.everywhere(2, on_ranks, "%s/%d" % (at, n), flaw):
                assert isinstance(x, ranks.Ended), flaw


@needs("torch")
def test_always_another() -> None:
    """A job whose tensors are other ones in each step is saved right, without comparing in vain"""
    m = model()
    o = optimizer(m)
    with folder() as at:
        with sheaf.Checkpointer(at) as ckpt:
            ckpt.track(m, o)
            for number in range(2 * unchanged.MISSES):
                m["a"].square = torch.randn(4, 4)
                ckpt.save(number)
                assert not list(differing("%s/checkpoint-%d" % (at, number), truth(m, o)))
            assert ckpt.plan.made == 1 and ckpt.lists.unchanged is None
            assert ckpt.tracked.listed == 2 * unchanged.MISSES
            for number in range(2 * unchanged.MISSES, 2 * unchanged.MISSES + 4):
                ckpt.save(number)       # it is tried again after 16 misses, and holds now
            assert ckpt.lists.unchanged is not None and ckpt.lists.misses == 0


class Config:
    """A configuration as transformers has them."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def to_json_string(self, use_diff: bool = True) -> str:
        return json.dumps(self.__dict__, default=lambda x: sorted(x) if isinstance(x, set)
                          else getattr(x, "__dict__", str(x)))


@needs("torch")
def test_configuration() -> None:
    """A configuration that changes is written anew, however deep the change"""
    m = nn.Linear(2, 2)
    m.config = Config(cache=True, layers=["a", "b"], inner=Config(rate=1.0, names={"x": 1}),
                      kind=torch.float32, odd={1, 2})
    m.generation_config = Config(heat=0.5)

    def heat() -> None:
        m.generation_config = Config(heat=0.7)

    changes: list[Callable[[], Any]] = [
        lambda: None, lambda: None, lambda: setattr(m.config, "cache", 1),
        lambda: m.config.layers.append("c"), lambda: m.config.inner.names.update(y=2),
        lambda: setattr(m.config.inner, "rate", 2.0), heat,
        lambda: setattr(m.config, "kind", torch.float16), lambda: m.config.odd.add(3)]
    with folder() as at:
        with sheaf.Checkpointer(at) as ckpt:
            ckpt.track(m)
            for number, change in enumerate(changes):
                change()
                ckpt.save(number)
                for name, config in ("config", m.config), ("generation_config",
                                                           m.generation_config):
                    path = "%s/checkpoint-%d/%s.json" % (at, number, name)
                    with open(path, encoding="utf-8") as f:
                        found = json.load(f)
                    found.pop("architectures", None)
                    assert found == json.loads(config.to_json_string()), (number, found)
            del m.config.odd
            ckpt.save(100)
            one = ckpt.tracked.models[0].written
            ckpt.save(101)
            assert ckpt.tracked.models[0].written is one


@needs("torch")
def test_time() -> None:
    """A later save takes a small part of the time of listing all tensors"""
    import time
    m = nn.Sequential(*[nn.Linear(4, 4) for _ in range(600)])
    o = torch.optim.AdamW(m.parameters())
    stepped(o)
    with folder() as at:
        with sheaf.Checkpointer(at) as ckpt:
            ckpt.track(m, o)
            ckpt.save(0)
            times: dict[str, list[float]] = {"again": [], "anew": []}
            for _ in range(15):
                for how in times:
                    if how == "anew":
                        ckpt.lists.forget()
                    start = time.thread_time()
                    ckpt.lists.state(ckpt.tracked, ckpt.plan)
                    times[how].append(time.thread_time() - start)
            assert ckpt.plan.made == 1 and ckpt.tracked.listed == 16
            assert 4 * min(times["again"]) < min(times["anew"]), times


@needs("torch")
def test_a_thousand_names() -> None:
    """A parameter with 1,100 names is saved again and again"""
    m = nn.Module()
    m.first = nn.Parameter(torch.zeros(2))
    for i in range(1100):
        m.register_parameter("again%d" % i, m.first)
    with folder() as at, sheaf.Checkpointer(at) as ckpt:
        ckpt.track(m)
        for step in range(3):
            with torch.no_grad():
                m.first.fill_(step)
            ckpt.save(step)
        assert sheaf.open(at, framework="pt")["again1099"][0:2].tolist() == [2.0, 2.0]


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
