# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint saves to Sheaf and loads from it, in any layout, on real ranks."""
from __future__ import annotations

import logging
import os
import sys
import warnings
from typing import Any

import ranks
import tap
from tap import folder, needs, raises, told

warnings.simplefilter("ignore")
VALUES = {"step": 7, "lr": 1e-3, "name": "gpt", "none": None, "nan": float("nan"),
          "list": [1, 2.5, "x"], "tuple": (1, (True, b"\0")), "set": {1, 2}}


def saved(rank: int, path: str, layout: str, collectives: bool, steps: int) -> Any:
    import torch.distributed.checkpoint as dcp
    import dcp_model
    import sheaf
    m = dcp_model.model(layout)
    o = dcp_model.optimizer(m)
    for step in range(steps):
        dcp_model.train(m, o, step)
    state = dcp_model.state_of(m, o, **VALUES)
    if collectives:
        dcp.save(state, storage_writer=sheaf.dcp.Writer(path + "@7"))
    else:
        dcp.save(state, storage_writer=sheaf.dcp.Writer(path + "@7"), use_collectives=False,
                 planner=sheaf.dcp.SavePlanner())
    return dcp_model.digests(m, o)


def loaded(rank: int, path: str, layout: str) -> Any:
    import torch.distributed.checkpoint as dcp
    import dcp_model
    import sheaf
    m = dcp_model.model(layout, seed=9)
    o = dcp_model.optimizer(m)
    state = dcp_model.state_of(m, o, **dict.fromkeys(VALUES, 0))
    reader = sheaf.dcp.Reader(path)
    dcp.load(state, storage_reader=reader)
    assert reader.number == 7
    dcp_model.give_back(m, o, state)
    assert o.param_groups[0]["lr"] == 1e-2
    return dcp_model.digests(m, o), repr({k: state[k] for k in VALUES})


def goes_everywhere(layout: str, collectives: bool, steps: int, *others: str) -> None:
    with folder() as at:
        path = at + "/run"
        now = ranks.first(ranks.results(4, saved, path, layout, collectives, steps))
        for other in others:
            n = {"one": 1, "fsdp": 2}.get(other, 4)
            then, values = ranks.first(ranks.results(n, loaded, path, other))
            assert values == repr(VALUES), values
            assert then.keys() == now.keys(), then.keys() ^ now.keys()
            assert not [k for k in now if then[k] != now[k]], (other, now, then)


@needs("torch")
def test_fsdp_and_tensor_parallelism() -> None:
    """FSDP2 x TP with uneven shards and tied weights: HSDP, FSDP of 2 and one process load it"""
    goes_everywhere("2x2", True, 2, "hsdp", "fsdp", "one")


@needs("torch")
def test_hsdp_without_collectives() -> None:
    """HSDP saves without collectives of DCP: FSDP2 x TP and one process load it"""
    goes_everywhere("hsdp", False, 1, "2x2", "one")


@needs("torch")
def test_plain_tensors_on_all_ranks() -> None:
    """DistributedDataParallel before its first step, with Adam's zeros as DCP's tools make them"""
    goes_everywhere("ddp", True, 0, "fsdp", "one")


def different(rank: int, path: str) -> Any:
    """Each rank has keys of its own, and other values under the same key."""
    import torch
    import torch.distributed.checkpoint as dcp
    import sheaf
    mine = torch.arange(1000) + 1000 * rank
    state = {"model": {"w": torch.ones(3)}, "rng": mine, "dp_rank_%d" % rank: {"at": rank},
             "own_%d" % rank: torch.tensor([rank]), "loader": {"at": rank, "order": [rank]}}
    if rank == 1:
        state["tail"] = torch.ones(5)
    dcp.save(state, storage_writer=sheaf.dcp.Writer(path + "@1"))
    again: dict[str, Any] = {"dp_rank_%d" % rank: {"at": None}, "loader": {"at": None},
                             "own_%d" % rank: torch.zeros(1, dtype=torch.int64)}
    dcp.load(again, storage_reader=sheaf.dcp.Reader(path))
    assert again["dp_rank_%d" % rank]["at"] == rank and again["own_%d" % rank].item() == rank
    assert again["loader"]["at"] == 0
    for _ in range(2):                  # writers that are dropped, and not closed
        dcp.save(again, storage_writer=sheaf.dcp.Writer(path))
    dcp.save(again, storage_writer=sheaf.dcp.Writer(path + "@9"))
    return True


@needs("torch")
def test_ranks_with_different_keys() -> None:
    """Keys of any rank are stored, and a value that differs comes whole from one rank"""
    import torch
    import sheaf
    with folder() as at:
        ranks.results(2, different, at + "/run")
        tree = sheaf.load(at + "/run@1")
        assert tree["dp_rank_0"] == {"at": 0} and tree["dp_rank_1"] == {"at": 1}
        assert any(torch.equal(tree["rng"], torch.arange(1000) + 1000 * r) for r in (0, 1))
        assert tree["loader"] == {"at": 0, "order": [0]} and tree["tail"].tolist() == [1.0] * 5
        assert tree["own_1"].item() == 1


def sharded(rank: int, path: str) -> bool:
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed._shard.sharded_tensor import Shard, init_from_local_shards
    import sheaf

    def made(value: float) -> Any:
        local = torch.full((3, 4), value) + torch.arange(4)
        return init_from_local_shards([Shard.from_tensor_and_offsets(
            local, [3 * rank, 0], rank)], (6, 4))

    dcp.save({"t": made(float(rank))}, storage_writer=sheaf.dcp.Writer(path + "@1"))
    again = {"t": made(9.0)}
    dcp.load(again, storage_reader=sheaf.dcp.Reader(path))
    assert torch.equal(again["t"].local_shards()[0].tensor,
                       torch.full((3, 4), float(rank)) + torch.arange(4))
    return True


@needs("torch")
def test_sharded_tensors() -> None:
    """ShardedTensor, too"""
    import sheaf
    with folder() as at:
        ranks.results(2, sharded, at + "/run")
        whole = sheaf.open(at + "/run", "pt")["t"][:]
        assert whole[:, 0].tolist() == [0.0] * 3 + [1.0] * 3, whole


def save_one(path: str, **more: Any) -> dict[str, Any]:
    """A state dict that this process saved."""
    import torch
    import torch.distributed.checkpoint as dcp
    import sheaf
    state = {"model": {"w": torch.arange(12.0).reshape(3, 4), "n": torch.tensor(3)}, "epoch": 2,
             **more}
    dcp.save(state, storage_writer=sheaf.dcp.Writer(path))
    return state


@needs("torch", "numpy")
def test_special_values() -> None:
    """Complex numbers, arrays of NumPy, tensors in tuples, long bytes and NaN come back"""
    import numpy
    import torch
    import torch.distributed.checkpoint as dcp
    import sheaf
    with folder() as at:
        state = save_one(at + "/run@3", z=torch.tensor([1 + 2j], dtype=torch.complex128),
                         array=numpy.arange(6).reshape(2, 3).T, pair=(torch.ones(2), 5),
                         data=b"x" * 100000, empty=torch.empty(0, 3), half=torch.ones(
                             2, dtype=torch.bfloat16), nested=[{"a": torch.zeros(1)}, {"b": 1}])
        again = {"model": {"w": torch.zeros(3, 4), "n": torch.tensor(0)}, "epoch": 0,
                 "z": torch.zeros(1, dtype=torch.complex128), "array": None, "pair": None,
                 "data": None, "empty": torch.empty(0, 3), "half": torch.zeros(
                     2, dtype=torch.bfloat16), "nested": [{"a": torch.ones(1)}, {"b": 0}]}
        dcp.load(again, storage_reader=sheaf.dcp.Reader(at + "/run"))
        assert repr(again) == repr(state), again
        tree = sheaf.load(at + "/run@3")
        assert repr(tree) == repr(state), tree
        names = sorted(os.listdir(at + "/run/checkpoint-3"))
        assert "model.safetensors" in str(names) and not [n for n in names if "distcp" in n]


@needs("torch")
def test_what_torch_itself_offers() -> None:
    """checkpoint_id, partial loads, keys alone, planners that rename, and metadata"""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
    import sheaf
    with folder() as at:
        path = at + "/run"
        state = save_one(path + "@3")
        writer = sheaf.dcp.Writer()
        dcp.save(state, checkpoint_id=path + "/checkpoint-4", storage_writer=writer)
        dcp.save(state, checkpoint_id=path, storage_writer=writer)      # the next one
        metadata = sheaf.dcp.Reader(path + "@5").read_metadata()
        w = metadata.state_dict_metadata["model.w"]
        assert w.size == (3, 4) and w.properties.dtype == torch.float32 and len(w.chunks) == 1
        assert set(metadata.state_dict_metadata) == {"model.w", "model.n", "epoch"}
        found = _load_state_dict_from_keys(storage_reader=sheaf.dcp.Reader(path))
        assert repr(found) == repr(state)
        found = _load_state_dict_from_keys("model", checkpoint_id=path,
                                           storage_reader=sheaf.dcp.Reader())
        assert repr(found) == repr({"model": state["model"]})
        more: dict[str, Any] = {"epoch": 0, "other": 5}
        reader = sheaf.dcp.Reader(path)
        dcp.load(more, storage_reader=reader,
                 planner=dcp.DefaultLoadPlanner(allow_partial_load=True))
        assert more == {"epoch": 2, "other": 5}
        with raises(dcp.api.CheckpointException, "Missing key", "other"):
            dcp.load(more, storage_reader=reader)
        with raises(dcp.api.CheckpointException, "Size mismatch", "model.w"):
            dcp.load({"model": {"w": torch.zeros(4, 3)}}, storage_reader=reader)
        wide = {"model": {"w": torch.zeros(3, 4, dtype=torch.float64)}}
        dcp.load(wide, storage_reader=reader)
        assert torch.equal(wide["model"]["w"], state["model"]["w"].double())
        with raises(dcp.api.CheckpointException, "model/w"):
            dcp.load(wide, storage_reader=sheaf.dcp.Reader(path, convert=False))
        file = path + "/checkpoint-4/model-00001-of-00001.safetensors"
        with open(file, "r+b") as f:
            f.seek(-4, 2)
            f.write(b"\x77")
        with raises(dcp.api.CheckpointException, "has checksum"):
            dcp.load(wide, storage_reader=sheaf.dcp.Reader(path + "@4"))
        with raises(dcp.api.CheckpointException, "no step 9"):
            dcp.load(more, storage_reader=sheaf.dcp.Reader(path + "@9"))


@needs("torch")
def test_planners() -> None:
    """Planners may change the state dict and what is loaded; one whose work would be lost is
    refused"""
    import torch
    import torch.distributed.checkpoint as dcp
    import sheaf

    class Renames(dcp.DefaultSavePlanner):
        def set_up_planner(self, state_dict: Any, storage_meta: Any = None,
                           is_coordinator: bool = False) -> None:
            super().set_up_planner({"new": state_dict["old"]}, storage_meta, is_coordinator)

    class Halves(dcp.DefaultSavePlanner):
        def transform_object(self, write_item: Any, object: Any) -> Any:
            return object.half()

    class Into(dcp.DefaultLoadPlanner):
        committed = 0

        def resolve_tensor(self, read_item: Any) -> Any:
            return torch.narrow(self.there, 0, 1, 3)

        def commit_tensor(self, read_item: Any, tensor: Any) -> None:
            self.committed += 1

    with folder() as at:
        path = at + "/run"
        state = {"old": torch.arange(3.0)}
        for caching in (False, True, True):
            planner = Renames(enable_plan_caching=caching)
            dcp.save(state, storage_writer=sheaf.dcp.Writer(path), planner=planner)
        assert sheaf.load(path)["new"].tolist() == [0.0, 1.0, 2.0]
        with raises(dcp.api.CheckpointException, "Halves has its own transform_object"):
            dcp.save(state, storage_writer=sheaf.dcp.Writer(path), planner=Halves())
        into = Into()
        into.there = torch.zeros(5)
        dcp.load({"new": torch.zeros(3)}, storage_reader=sheaf.dcp.Reader(path), planner=into)
        assert into.there.tolist() == [0.0, 0.0, 1.0, 2.0, 0.0] and into.committed == 1


@needs("torch")
def test_checkpoints_of_others() -> None:
    """What a Checkpointer and sheaf.save wrote is loaded by name"""
    import torch
    import torch.distributed.checkpoint as dcp
    import dcp_model
    import sheaf
    with folder() as at:
        m = dcp_model.model("one")
        o = dcp_model.optimizer(m)
        dcp_model.train(m, o, 0)
        with sheaf.Checkpointer(at + "/run") as ckpt:
            ckpt.track(m, o)
            ckpt.save(1)
        other = dcp_model.model("one", seed=3)
        o2 = dcp_model.optimizer(other)
        state = dcp_model.state_of(other, o2)
        state["optimizer"] = state.pop("optim")
        dcp.load(state, storage_reader=sheaf.dcp.Reader(at + "/run"))
        dcp_model.give_back(other, o2, dict(state, optim=state["optimizer"]))
        assert o2.param_groups[0]["betas"] == (0.9, 0.999)
        assert dcp_model.digests(other, o2) == dcp_model.digests(m, o)
        sheaf.save(at + "/tree", {"model": {"w": torch.ones(2)}, 5: "five"})
        found = {"model": {"w": torch.zeros(2)}, "5": ""}
        dcp.load(found, storage_reader=sheaf.dcp.Reader(at + "/tree"))
        assert found["5"] == "five" and found["model"]["w"].tolist() == [1.0, 1.0]


@needs("torch")
def test_tied_weights_beside_masters() -> None:
    """Tied weights that are rounded in `model` are loaded exactly, into tied and untied models; and
    ranks with other ties have other layouts"""
    import torch
    import torch.distributed.checkpoint as dcp
    import sheaf
    from sheaf.dcp.contents import contents_of

    def model(tie: bool) -> Any:
        m = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 4, bias=False),
                                 "b": torch.nn.Linear(4, 4, bias=False)})
        if tie:
            m["b"].weight = m["a"].weight
        return m

    with folder() as at:
        m = model(True)
        with sheaf.Checkpointer(at + "/run", store_dtype=torch.bfloat16) as ckpt:
            ckpt.track(m)
            ckpt.save(1)
        for tie in (True, False):
            state = {"model": model(tie).state_dict()}
            dcp.load(state, storage_reader=sheaf.dcp.Reader(at + "/run"), no_dist=True)
            for name, t in m.state_dict().items():
                assert torch.equal(state["model"][name], t), (tie, name)
    t = torch.ones(3)
    assert contents_of({"a": t, "b": t}).digests() != contents_of({"a": t, "b": t + 0}).digests()


def refused(rank: int, path: str) -> list[str]:
    """What is said on each rank when one of them cannot save; after each, a save succeeds."""
    import torch
    import torch.distributed.checkpoint as dcp
    import sheaf
    good: dict[str, Any] = {"model": {"w": torch.ones(4)}, "epoch": 1}
    bad = {"model": {"w": torch.ones(4).expand(2, 4)}} if rank == 1 else good
    odd = dict(good, **({"hook": object()} if rank == 1 else {}))
    twice = dict(good, **({"model.w": 5} if rank == 1 else {}))
    alone: dict[str, Any] = {"use_collectives": False, "planner": sheaf.dcp.SavePlanner()}
    found = []
    with sheaf.dcp.Writer(path, timeout=20) as writer:
        for state, how in ((bad, {}), (odd, {}), (odd, alone), (twice, {}), (twice, alone)):
            found.append(told(lambda: dcp.save(state, storage_writer=writer.at(5), **how)))
        dcp.save(good, storage_writer=writer.at(6))
        found.append(told(lambda: dcp.save(good, storage_writer=writer.at(6))))
    assert os.listdir(path).count("checkpoint-6") == 1 and len(os.listdir(path)) == 2
    return found


@needs("torch")
def test_one_rank_cannot_save() -> None:
    """A rank that cannot save says why on all ranks, with and without collectives"""
    with folder() as at:
        first, second = ranks.results(2, refused, at + "/run")
        for said in (first, second):
            assert "expanded" in said[0] and "['model']['w']" in said[0], said[0]
            assert "['hook']: a object cannot be stored" in said[1], said[1]
            assert "['hook']: a object cannot be stored" in said[2], said[2]
            assert "duplicated flatten key model.w" in said[3], said[3]
            assert "duplicated flatten key model.w" in said[4], said[4]
            assert "Exists" in said[5], said[5]
        assert first[2].startswith("Failed") and second[2].startswith("TypeError"), second[2]


def some(rank: int, path: str) -> bool:
    """Some of the ranks save and load, one alone does, and ranks that do not see one newest."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import sheaf
    from sheaf.dcp.names import Names

    class Late(sheaf.dcp.Reader):       # rank 1 has not seen the newest one yet
        def read_metadata(self) -> Any:
            with self.open(None, rank + 1 if rank < 2 else 1) as checkpoint:
                self.names = Names(checkpoint)
            return self.names.metadata()

    state = {"w": torch.full((3,), float(rank)), "at": rank}
    pair = dist.new_group([1, 2], backend="gloo")
    if rank in (1, 2):
        with raises(dcp.api.CheckpointException, "DCP saves on 2 ranks"):
            dcp.save(state, storage_writer=sheaf.dcp.Writer(path + "@1"), process_group=pair)
        writer = sheaf.dcp.Writer(path + "@1", process_group=pair)
        dcp.save(state, storage_writer=writer, process_group=pair)
        again = {"w": torch.zeros(3), "at": 0}
        dcp.load(again, storage_reader=sheaf.dcp.Reader(path, process_group=pair),
                 process_group=pair)
        assert again["at"] == 1, again
        with sheaf.dcp.Writer(path + "2", process_group=pair, optimizers=[]) as writer:
            dcp.async_save(state, storage_writer=writer.at(5), process_group=pair).result()
    dist.barrier()
    if rank == 2:
        dcp.save(state, storage_writer=sheaf.dcp.Writer(path + "@2"), no_dist=True)
        alone = {"at": 0}
        dcp.load(alone, storage_reader=sheaf.dcp.Reader(path), no_dist=True)
        assert alone["at"] == 2
    dist.barrier()
    reader = Late(path)
    again = {"w": torch.zeros(3), "at": 0}
    dcp.load(again, storage_reader=reader)
    assert reader.number == 1 and again["at"] == 1, (reader.number, again)
    return True


@needs("torch")
def test_some_of_the_ranks() -> None:
    """Process groups, no_dist, and ranks that do not see the same newest checkpoint"""
    with folder() as at:
        ranks.results(3, some, at + "/run")


def killed(rank: int, path: str) -> tuple[str, float]:
    """Rank 1 is killed while it describes a save."""
    import signal
    import time
    import torch
    import torch.distributed.checkpoint as dcp
    import sheaf
    import sheaf.dcp.writer as module
    state = {"model": {"w": torch.ones(4)}, "epoch": 1}
    dcp.save(state, storage_writer=sheaf.dcp.Writer(path + "@1", timeout=20))
    if rank == 1:
        module.contents = lambda planner: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore
    begun = time.monotonic()
    said = told(lambda: dcp.save(state, storage_writer=sheaf.dcp.Writer(path + "@2", timeout=20)))
    return said, time.monotonic() - begun


@needs("torch")
def test_a_rank_is_killed() -> None:
    """When a rank is killed the others get an error, and the checkpoint before it loads"""
    import sheaf
    with folder() as at:
        found = ranks.everywhere(4, killed, at + "/run")
        assert isinstance(found[1], ranks.Ended), found
        for said, seconds in (found[0], found[2], found[3]):
            assert said and seconds < 25, (said, seconds)
        assert sheaf.load(at + "/run")["epoch"] == 1
        assert sorted(n for n in os.listdir(at + "/run") if n[0] != ".") == ["checkpoint-1"]


if __name__ == "__main__":
    if tap.there("torch"):
        import dcp_model                # all ranks are forked from here, and need it
        import sheaf.dcp
        import torch._dynamo            # torch.optim imports it, each rank by itself
        logging.getLogger().setLevel(logging.CRITICAL)
    sys.exit(tap.run(globals()))
