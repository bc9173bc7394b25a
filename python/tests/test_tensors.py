# SPDX-License-Identifier: Apache-2.0
"""DTensors of random meshes, placements and shapes are described as torch itself cuts them."""
from __future__ import annotations

import itertools
import os
import random
import sys
from typing import Any

import ranks
import tap
from tap import folder, needs, raises, told

if tap.there("torch"):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.placement_types import _StridedShard

    import sheaf
    from sheaf.torch.layout import DTYPES, Unsupported, layout
    from sheaf.torch.model import Item
    from sheaf.torch.plan import Plan

SIZES = (0, 1, 2, 3, 5, 7, 8, 13)


def placements(rnd: random.Random, dims: int, mesh: Any) -> list[Any]:
    """One placement for each dimension of the mesh."""
    found: list[Any] = []
    for _ in range(mesh.ndim):
        kind = rnd.randrange(4)
        if dims == 0 or kind == 0:
            found.append(Replicate())
        elif kind == 1:
            found.append(_StridedShard(rnd.randrange(dims), split_factor=rnd.choice([2, 3, 4])))
        else:
            found.append(Shard(rnd.randrange(dims) - rnd.choice([0, dims])))
    return [Shard(p.dim % dims) if isinstance(p, Shard) else p for p in found]


def cut(t: Any, mesh: Any, how: list[Any]) -> Any:
    """The tensor cut by torch, of any dtype: torch cannot copy all of them."""
    same = {1: torch.uint8, 2: torch.int16}.get(t.dtype.itemsize) if t.dtype != torch.bool else None
    made = distribute_tensor(t.view(same) if same else t, mesh, how, src_data_rank=None)
    return DTensor.from_local(made.to_local().view(t.dtype), mesh, how, run_check=False,
                              shape=t.shape, stride=t.stride()) if same else made


def raw(t: Any) -> Any:
    """The bytes of a tensor."""
    dense = torch.empty(t.numel(), dtype=t.dtype)
    dense.copy_(t.reshape(-1))
    return dense.view(torch.uint8)


@needs("torch")
def test_boxes_of_fake_meshes() -> None:
    """Each rank of fake meshes up to 2 x 3 x 2: the boxes have the items that torch puts there."""
    from torch.testing._internal.distributed.fake_pg import FakeStore
    rnd = random.Random(7)
    seen = empty = 0
    for shape_of in ((2, 3, 2), (4, 2), (5,), (1, 3)):
        world = 1
        for n in shape_of:
            world *= n
        cases = []
        for rank in range(world):
            dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
            try:
                mesh = init_device_mesh("cpu", shape_of)
                for i in range(25):
                    if rank == 0:
                        shape = [rnd.choice(SIZES) for _ in range(rnd.randrange(4))]
                        cases.append((shape, placements(rnd, len(shape), mesh)))
                    shape, how = cases[i]
                    n = 1
                    for k in shape:
                        n *= k
                    full = torch.arange(n, dtype=torch.int64).reshape(shape)
                    d = distribute_tensor(full, mesh, how, src_data_rank=None)
                    at = layout(d)
                    flat = at.local.as_strided((max(1, at.local.untyped_storage().nbytes() // 8),),
                                               (1,), 0) if at.boxes else None
                    there = 0
                    for box in at.boxes:
                        for index in itertools.product(*map(range, box.count)):
                            item = box.origin + sum(x * s for x, s in zip(index, at.stride))
                            want = full[tuple(a + b for a, b in zip(box.start, index))]
                            assert flat is not None and flat[item] == want, (shape, how, rank)
                            there += 1
                    assert there == d.to_local().numel(), (shape, how, rank)
                    seen, empty = seen + 1, empty + (there == 0)
            finally:
                dist.destroy_process_group()
    assert seen == 25 * (12 + 8 + 5 + 3) and empty > 20


def resharded(rank: int, path: str, seed: int) -> int:
    """Saves tensors of all types in one layout, and loads them in others. Tells what is wrong."""
    from sheaf.torch.ranks import of_torch
    group = of_torch(30)
    rnd = random.Random(seed)
    torch.manual_seed(seed)
    meshes = [init_device_mesh("cpu", s) for s in ((2, 2), (4,), (2, 1, 2))]
    full = []
    for i in range(60):
        kind = rnd.choice(list(DTYPES))
        shape = [rnd.choice(SIZES) for _ in range(rnd.randrange(4))]
        t = torch.randint(0, 256, [*shape, kind.itemsize], dtype=torch.uint8)
        full.append((t % 2).bool().reshape(shape) if kind == torch.bool else
                    t.view(kind).reshape(shape))

    def items(tensors: list[Any]) -> list[Item]:
        return [Item("model", "t%d" % i, t) for i, t in enumerate(tensors)]

    def anyhow(t: Any) -> tuple[Any, list[Any]]:
        mesh = rnd.choice(meshes)
        return mesh, placements(rnd, t.ndim, mesh)

    wrong = 0
    with sheaf.Run(path, group, create=True, timeout=30, replicas=True) as run:
        plan = Plan()
        held = [cut(t, *anyhow(t)) for t in full]
        with run.begin(1, plan.update(items(held))) as save:
            save.commit()
        for _ in range(3):
            how = [anyhow(t) for t in full]
            into = [cut(torch.zeros_like(t), *h) for t, h in zip(full, how)]
            with run.checkpoint() as c:
                c.load(Plan().update(items(into)), strict=True)
            for t, h, got in zip(full, how, into):
                wrong += not torch.equal(raw(cut(t, *h).to_local()), raw(got.to_local()))
        whole = [torch.zeros_like(t) for t in full]
        with run.checkpoint() as c:
            c.load(Plan().update(items(whole)), strict=True)
        wrong += sum(not torch.equal(raw(a), raw(b)) for a, b in zip(full, whole))
    return wrong


@needs("torch")
def test_any_layout_loads_any() -> None:
    """Tensors of all types, saved by 4 ranks in one random layout, load in others bit for bit."""
    for seed in (1, 2):
        with folder() as at:
            assert ranks.results(4, resharded, at + "/run", seed) == [0] * 4, seed


@needs("torch")
def test_placements_that_are_refused() -> None:
    """Partial sums are refused, and uneven splits of FSDP over TP that torch cannot place."""
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", rank=6, world_size=8, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (4, 2))
        t = DTensor.from_local(torch.ones(3), mesh, [Partial(), Replicate()], run_check=False)
        with raises(Unsupported, "partial sum"):
            layout(t)
        # 9 rows cut in 2, and each part in 4: rank (3, 0) has none, and by its placements one.
        t = DTensor.from_local(torch.ones(0), mesh, [_StridedShard(0, split_factor=2), Shard(0)],
                               run_check=False, shape=torch.Size([9]), stride=(1,))
        with raises(Unsupported, "uneven"):
            layout(t)
    finally:
        dist.destroy_process_group()


def swapped(_rank: int, path: str) -> str:
    """What a rank is told of a tensor on a mesh of rank 1 and rank 0."""
    mesh = DeviceMesh("cpu", [1, 0])
    t = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
    assert t.full_tensor().tolist() == [0, 1, 2, 3]     # torch gathers it as it cut it
    model = torch.nn.Module()
    model.w = torch.nn.Parameter(t)
    with sheaf.Checkpointer(path) as ckpt:
        ckpt.track(model)
        return told(lambda: ckpt.save(1))


@needs("torch")
def test_meshes_that_are_refused() -> None:
    """A mesh of ranks that do not ascend is refused: torch cuts there not as it computes."""
    with folder() as at:
        for text in ranks.results(2, swapped, at + "/run"):
            assert "its mesh" in text and "do not ascend" in text and "w (" in text, text
        assert not [n for n in os.listdir(at + "/run") if n.startswith("checkpoint")]


if __name__ == "__main__":
    if tap.there("torch"):
        torch.set_num_threads(1)
    sys.exit(tap.run(globals()))
