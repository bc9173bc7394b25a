#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small directories of torch.distributed.checkpoint with the real torch, on ranks of this
machine (gloo), and what its own loader gives back for each; as make_torch.py does for files.

usage: make_dcp.py FOLDER

dcp-expected.jsonl has one line a checkpoint. The directories were made by torch 2.13.0 (CPU) with
Python 3.11. Those whose items are compressed (dcp-zstd, dcp-pyzstd) need the packages zstandard
and pyzstd, with which torch compresses; they were zstandard 0.25.0 and pyzstd 0.20.0.
"""
import io
import json
import os
import socket
import sys

try:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import torch.multiprocessing as mp
    import pyzstd       # noqa: F401  # pylint: disable=unused-import
    import zstandard    # noqa: F401  # pylint: disable=unused-import
    from torch.distributed.checkpoint import _extension
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
except ImportError as e:
    print(f"1..0 # SKIP {e}")
    sys.exit(77)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from make_torch import described                # noqa: E402


def state():
    """The whole tensors; odd sizes, so that shards are uneven."""
    torch.manual_seed(3)
    out = {"model.w": torch.randn(11, 7), "model.b": torch.randn(5),
           "model.h": torch.randn(6, 9).to(torch.bfloat16),
           "optimizer.state.0.exp_avg": torch.randn(11, 7).to(torch.float64),
           "model.t": torch.arange(54.).reshape(9, 6).t(), "model.one": torch.tensor(3.5),
           "model.f8": torch.randn(4, 4).to(torch.float8_e5m2),
           "model.c": torch.complex(torch.randn(3), torch.randn(3)).to(torch.complex128)}
    return out


CUTS = {"model.w": [Shard(0), Shard(1)], "model.b": [Shard(0), Replicate()],
        "model.h": [Shard(1), Shard(0)], "optimizer.state.0.exp_avg": [Shard(0), Shard(0)]}


def cut(mesh):
    whole = state()
    placed = {k: distribute_tensor(v, mesh, CUTS[k]) if k in CUTS else v for k, v in whole.items()}
    return {"model": {k[6:]: v for k, v in placed.items() if k.startswith("model.")},
            "optimizer": {"state": {0: {"exp_avg": placed["optimizer.state.0.exp_avg"]}}},
            "step": 12, "lr": 0.25, "name": "gpt", "raw": io.BytesIO(b"abc")}


def work(rank, port, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
                      WORLD_SIZE="4")
    dist.init_process_group("gloo", rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dcp.save(cut(mesh), checkpoint_id=os.path.join(folder, "dcp-mesh"))
    writer = dcp.FileSystemWriter(os.path.join(folder, "dcp-files"), single_file_per_rank=False)
    dcp.save(cut(mesh), storage_writer=writer)
    zstandard_module = _extension.zstandard
    for name in ("dcp-zstd", "dcp-pyzstd"):
        if name == "dcp-pyzstd":
            _extension.zstandard = None         # torch prefers it to pyzstd
        dcp.save(cut(mesh), storage_writer=dcp.FileSystemWriter(
            os.path.join(folder, name), _extensions=[_extension.ZStandard()]))
    _extension.zstandard = zstandard_module
    whole = {k: torch.zeros_like(v) for k, v in state().items()}
    nested = {"model": {k[6:]: v for k, v in whole.items() if k.startswith("model.")},
              "optimizer": {"state": {0: {"exp_avg": whole["optimizer.state.0.exp_avg"]}}}}
    for path in ("dcp-mesh", "dcp-files", "dcp-zstd", "dcp-pyzstd"):
        dcp.load(nested, checkpoint_id=os.path.join(folder, path))
        if rank == 0:
            with open(os.path.join(folder, "dcp-expected.jsonl"), "a", encoding="utf-8") as f:
                f.write(json.dumps({"path": path, "format": "torch.dcp",
                                    "torch": torch.__version__, "tensors": {
                                        k: described(v) for k, v in whole.items()}}) + "\n")
        for v in whole.values():
            v.zero_()
    dist.barrier()
    dist.destroy_process_group()


def main(folder):
    os.makedirs(folder, exist_ok=True)
    open(os.path.join(folder, "dcp-expected.jsonl"), "w", encoding="utf-8").close()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.start_processes(work, args=(port, folder), nprocs=4, start_method="fork")


if __name__ == "__main__":
    main(sys.argv[1])
