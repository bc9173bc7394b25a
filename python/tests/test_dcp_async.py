# SPDX-License-Identifier: Apache-2.0
"""dcp.async_save to Sheaf: what is copied when, and what the ranks learn of failures."""
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
SAVES = 6


def behind(rank: int, path: str, own: bool) -> Any:
    """Saves each step while the training goes on; the digests at each save."""
    import torch
    import torch.distributed.checkpoint as dcp
    import dcp_model
    import sheaf
    m = dcp_model.model("fsdp")
    o = dcp_model.optimizer(m)
    big = torch.zeros(1 << 20)          # no optimizer has it
    futures, then = [], []
    with sheaf.dcp.Writer(path, optimizers=[o] if own else [], timeout=30,
                          buffers_max=3) as writer:
        for step in range(SAVES):
            dcp_model.train(m, o, step)
            big.fill_(step)
            then.append(dcp_model.digests(m, o))
            futures.append(dcp.async_save(
                dcp_model.state_of(m, o, big=big, step=step), storage_writer=writer.at(step),
                no_dist=True))
            big.fill_(-1)
            if not own:
                with torch.no_grad():
                    for p in m.parameters():
                        p.zero_()
        for f in futures:
            f.result()
    return then


def loaded(rank: int, path: str, step: int) -> Any:
    import torch
    import torch.distributed.checkpoint as dcp
    import dcp_model
    import sheaf
    m = dcp_model.model("one", seed=5)
    o = dcp_model.optimizer(m)
    state = dcp_model.state_of(m, o, big=torch.zeros(1 << 20), step=0)
    dcp.load(state, storage_reader=sheaf.dcp.Reader("%s@%d" % (path, step)))
    dcp_model.give_back(m, o, state)
    assert state["step"] == step and bool((state["big"] == step).all())
    return dcp_model.digests(m, o)


def as_it_was(own: bool) -> None:
    with folder() as at:
        then = ranks.first(ranks.results(2, behind, at + "/run", own))
        for step in (0, SAVES - 1):
            now = ranks.results(1, loaded, at + "/run", step)[0]
            assert now == then[step], (step, now, then[step])


@needs("torch")
def test_optimizers_wait() -> None:
    """Each save has the values of its step, while optimizers that the writer knows go on"""
    as_it_was(True)


@needs("torch")
def test_all_is_copied_at_once() -> None:
    """Without optimizers all may change as soon as async_save has returned"""
    as_it_was(False)


def elsewhere(path: str) -> None:
    """A checkpoint_id that is not the writer's, before and after the checkpoint exists."""
    import torch
    import torch.distributed.checkpoint as dcp
    import sheaf

    class Quick(sheaf.dcp.Writer):
        def reset(self, checkpoint_id: Any = None) -> None:
            assert self.pending is not None
            self.pending.result()
            super().reset(checkpoint_id)

    state = {"w": torch.ones(4)}
    for writer, said in ((Quick(path + "@2"), "exists now"), (sheaf.dcp.Writer(path + "@3"), "")):
        with raises(dcp.api.CheckpointException, "checkpoint_id", "@9 was given", said):
            dcp.async_save(state, checkpoint_id=path + "@9", storage_writer=writer).result()


@needs("torch")
def test_one_process() -> None:
    """Calls that make no sense are refused; torch's own stagers work; a taken number is Exists"""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
    import sheaf
    with folder() as at:
        path = at + "/run"
        state = {"w": torch.ones(4)}
        dcp.async_save(state, storage_writer=sheaf.dcp.Writer(path + "@1")).result()
        with raises(sheaf.Exists, "step 1"):
            dcp.async_save(state, storage_writer=sheaf.dcp.Writer(path + "@1"))
        with raises(sheaf.Invalid, "writer.at(7)"):
            dcp.async_save(state, storage_writer=sheaf.dcp.Writer(path))
        elsewhere(at + "/other")
        dcp.async_save(state, checkpoint_id=path + "@3",
                       storage_writer=sheaf.dcp.Writer(path + "@3")).result()
        stager = DefaultStager(StagingOptions(False, False, False, False))
        future = dcp.async_save(state, storage_writer=sheaf.dcp.Writer(path + "@4"),
                                async_stager=stager)
        state["w"].zero_()
        future.result()
        assert sheaf.load(path)["w"].tolist() == [1.0] * 4
        with sheaf.dcp.Writer(path) as writer:
            future = dcp.async_save(state, storage_writer=writer.at(5))
            writer.synchronize_staging()
            future.result()
            dcp.save(state, storage_writer=writer)
            import pickle
            with raises(TypeError, "AsyncCheckpointerType.THREAD"):
                pickle.dumps(writer)
        assert AsyncCheckpointerType.PROCESS.value
        assert sorted(n for n in os.listdir(path) if n[0] != ".") == [
            "checkpoint-%d" % n for n in (1, 3, 4, 5, 6)]


def refused(rank: int, path: str) -> Any:
    import torch
    import torch.distributed.checkpoint as dcp
    import sheaf
    odd: dict[str, Any] = {"w": torch.ones(4), "hook": object() if rank == 1 else 1}
    with sheaf.dcp.Writer(path, timeout=30) as writer:
        said = told(lambda: dcp.async_save(odd, storage_writer=writer.at(1), no_dist=True))
        odd["hook"] = 2
        dcp.async_save(odd, storage_writer=writer.at(1), no_dist=True).result()
    return said


@needs("torch")
def test_a_save_after_a_staged_one() -> None:
    """dcp.save by a writer whose async_save did not come to its end saves, or says Exists, and a
    run that was closed and opened again has its gates"""
    import torch
    import torch.distributed.checkpoint as dcp
    import sheaf

    class Fails(dcp.DefaultSavePlanner):
        def create_local_plan(self) -> Any:
            raise RuntimeError("the planner failed")

    with folder() as at:
        with sheaf.dcp.Writer(at + "/run") as writer:
            one = writer.at(1)
            future = dcp.async_save({"w": torch.zeros(2)}, storage_writer=one, planner=Fails(),
                                    no_dist=True)
            with raises(BaseException, "the planner failed"):
                future.result()
            with raises(BaseException, "step 1 exists"):
                dcp.save({"w": torch.ones(2)}, storage_writer=one, no_dist=True)
        w = torch.nn.Parameter(torch.zeros(1 << 20))
        w.grad = -torch.ones(1 << 20)
        mine, other = torch.optim.SGD([w], 1.0), torch.optim.SGD([w], 1.0)
        with sheaf.dcp.Writer(at + "/gates", optimizers=[mine], copy_rate_max=8 << 20) as writer:
            for n in (1, 2):
                w.data.zero_()
                future = dcp.async_save({"w": w.detach()}, storage_writer=writer.at(n),
                                        no_dist=True)
                other.step()
                future.result()
                assert not sheaf.load("%s/gates@%d" % (at, n))["w"].any(), n
                writer.close()


@needs("torch")
def test_one_rank_cannot_stage() -> None:
    """A rank that cannot stage says why on all ranks, and the next save succeeds"""
    import sheaf
    with folder() as at:
        first, second = ranks.results(2, refused, at + "/run")
        assert first.startswith("Failed: ") and second.startswith("TypeError: "), (first, second)
        assert "['hook']: a object cannot be stored" in first, first
        assert sheaf.load(at + "/run")["hook"] == 2


def left(rank: int, path: str, kill: bool) -> Any:
    """Rank 1 leaves by an exception, or is killed, after a save in the background."""
    import signal
    import time
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import sheaf
    state = {"w": torch.full((1 << 16,), float(rank))}
    begun = time.monotonic()

    def job() -> None:
        with sheaf.dcp.Writer(path, timeout=20) as writer:
            dcp.async_save(state, storage_writer=writer.at(1), no_dist=True).result()
            dist.barrier()
            if rank == 1:
                if kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError("this rank stumbled")
            dcp.async_save(state, storage_writer=writer.at(2), no_dist=True).result()
    return told(job), time.monotonic() - begun


@needs("torch")
def test_a_rank_leaves() -> None:
    """A rank that leaves `with` by an exception, or is killed, is Lost to the others at once"""
    with folder() as at:
        for kill in (False, True):
            path = at + "/run%d" % kill
            (said, seconds), other = ranks.everywhere(2, left, path, kill)
            assert said.startswith("Lost: "), said
            assert kill or "this rank stumbled" in said and "stumbled" in other[0], (said, other)
            assert seconds < 18, seconds
            assert [n for n in os.listdir(path) if n[0] != "."] == ["checkpoint-1"]


if __name__ == "__main__":
    if tap.there("torch"):
        import dcp_model                # all ranks are forked from here, and need it
        import sheaf.dcp
        import torch._dynamo            # torch.optim imports it, each rank by itself
        logging.getLogger().setLevel(logging.CRITICAL)
    sys.exit(tap.run(globals()))
