#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small directories with the real torch_checkpointing, on ranks of this machine (gloo), and
what its own loader gives back for each.

usage: make_torch_checkpointing.py FOLDER

ckpt-expected.jsonl has one line a checkpoint, as make_torch.py writes them. The directories were
made by torch_checkpointing 0.1.1 with torch 2.13.0 (CPU) and Python 3.11. It gathers the metadata
of the ranks through the memory of a GPU; here that one function gathers through gloo instead. Its
files are written without O_DIRECT, which not every file system has.
"""
import json
import os
import shutil
import socket
import sys

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    import torch_checkpointing as tc
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.placement_types import _StridedShard
    from torch_checkpointing.metadata_manager import DefaultMetadataManager
except ImportError as e:
    print(f"1..0 # SKIP {e}")
    sys.exit(77)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from make_torch import described                # noqa: E402
from torch_checkpointing.checkpoint_layout import JsonSerialization, LayoutInfo, \
    SafetensorsSerialization                    # noqa: E402
from torch_checkpointing.checkpoint_manager import CheckpointManager    # noqa: E402
from torch_checkpointing.config import SyncCheckpointSaverConfig        # noqa: E402
from torch_checkpointing.default_resharder import DefaultResharder      # noqa: E402
from torch_checkpointing.schema import ItemSpec                         # noqa: E402
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig    # noqa: E402

RANKS = 4


def state():
    """The whole tensors; odd sizes, so that shards are uneven."""
    torch.manual_seed(3)
    return {"w": torch.randn(11, 7), "b": torch.randn(5), "h": torch.randn(6, 9).bfloat16(),
            "both": torch.randn(8, 3), "t": torch.randn(6, 9).t(), "one": torch.tensor(3.5),
            "few": torch.randn(2, 3), "c": torch.complex(torch.randn(4), torch.randn(4)).to(
                torch.complex128)}


# `both` is cut by tensor parallelism first, and then by FSDP, as torchtitan does; of `few` some
# ranks have nothing.
CUTS = {"w": [Shard(0), Shard(1)], "b": [Shard(0), Replicate()], "h": [Shard(1), Shard(0)],
        "both": [_StridedShard(0, split_factor=2), Shard(0)], "t": [Replicate(), Shard(0)],
        "few": [Shard(0), Shard(0)]}


def placed(mesh, whole):
    out = {}
    for name, value in whole.items():
        cut = CUTS.get(name)
        if name == "both":                      # distribute_tensor does not make such a one
            rank = mesh.get_coordinate()
            local = value.chunk(2)[rank[1]].chunk(2)[rank[0]].clone()
            out[name] = torch.distributed.tensor.DTensor.from_local(
                local, mesh, cut, run_check=False, shape=value.shape, stride=value.stride())
        else:
            out[name] = distribute_tensor(value, mesh, cut) if cut else value
    return out


def gathered(self, data, process_group=None):
    """What _all_gather_pickled_data does, without a GPU."""
    out = [None] * RANKS
    dist.all_gather_object(out, data)
    return dict(enumerate(out))


def manager(kind):
    items = {"model": ItemSpec(resharder=DefaultResharder()),
             "optimizer": ItemSpec(resharder=DefaultResharder())}
    if kind == "ckpt-safetensors":
        items = {"model": ItemSpec(resharder=DefaultResharder(), layout=LayoutInfo(
            "weights/model-{rank}.safetensors", SafetensorsSerialization()))}
    items["trainer"] = ItemSpec(layout=LayoutInfo("trainer-{rank}.json", JsonSerialization()))
    return CheckpointManager(CheckpointManager.Config(
        items=items, save=SyncCheckpointSaverConfig(),
        storage_config=LocalFileSystemStorageConfig(use_direct_io=False)))


def payload(kind, mesh, whole):
    model = {k: v for k, v in whole.items() if kind == "ckpt-torch" or k != "c"}
    value = {"model": placed(mesh, model), "trainer": {"step": 12, "lr": 0.25}}
    if kind == "ckpt-torch":
        value["optimizer"] = {"state": {0: {"exp_avg": placed(mesh, {"w": whole["w"] * 2})["w"],
                                            "step": torch.tensor(12.)}}, "name": "adam"}
    return value


def full(value):
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def work(rank, port, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
                      WORLD_SIZE=str(RANKS))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    # pylint: disable-next=protected-access
    DefaultMetadataManager._all_gather_pickled_data = gathered
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    lines = []
    for kind in ("ckpt-torch", "ckpt-safetensors"):
        path = os.path.join(folder, kind)
        if rank == 0:
            shutil.rmtree(path, ignore_errors=True)
        dist.barrier()
        saver = manager(kind)
        saver.save(path, payload(kind, mesh, state()))
        back = payload(kind, mesh, {k: torch.zeros_like(v) for k, v in state().items()})
        back = saver.load(path, into=back)
        tensors = {f"model.{k}": described(full(v)) for k, v in back["model"].items()}
        if kind == "ckpt-torch":
            tensors["optimizer.state.0.exp_avg"] = described(
                full(back["optimizer"]["state"][0]["exp_avg"]))
            tensors["optimizer.state.0.step"] = described(back["optimizer"]["state"][0]["step"])
        saver.close()
        lines.append({"path": kind, "format": "torch.checkpointing",
                      "torch_checkpointing": tc.__version__, "torch": torch.__version__,
                      "verify": 0 if kind == "ckpt-torch" else 2, "tensors": tensors})
    if rank == 0:
        with open(os.path.join(folder, "ckpt-expected.jsonl"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps(x) + "\n" for x in lines)
    dist.barrier()
    dist.destroy_process_group()


def main(folder):
    os.makedirs(folder, exist_ok=True)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(work, args=(port, folder), nprocs=RANKS)


if __name__ == "__main__":
    main(sys.argv[1])
