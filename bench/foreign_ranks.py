# SPDX-License-Identifier: Apache-2.0
"""Ranks of bench/foreign: they save a directory of PyTorch DCP, or load one cut on another axis.

usage: foreign_ranks.py save|dcp|sheaf FOLDER BYTES

Each line on standard input starts a round. Only the load is timed, into memory that was touched
before, and then all values are compared. Rank 0 prints one JSON object for each round.
"""
import json
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

RANKS, COLUMNS, TENSORS = 2, 4096, 8


def whole(i, rows):
    return torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(i))


def read_bytes():
    """Returns the number of bytes that this process has read, as the kernel counts its calls."""
    with open("/proc/self/io", encoding="ascii") as f:
        return int(f.readline().split()[1])


def by_sheaf(folder, held, rows, rank, group):
    import sheaf.memory
    import sheaf.run
    with sheaf.run.State() as state, sheaf.run.open_path(folder, group) as found:
        for name, t in held.items():
            local = t.to_local()
            m = sheaf.memory.Memory(local.data_ptr(), "F32", tuple(local.shape), None, "torch",
                                    local)
            state.add(name, m, shape=(rows, COLUMNS), start=(0, rank * COLUMNS // RANKS))
        found.load(state)


def work(rank, port, what, folder, size):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (RANKS,))
    rows = size // (4 * COLUMNS * TENSORS) // RANKS * RANKS
    names = ["w%d" % i for i in range(TENSORS)]
    if what == "save":
        dcp.save({n: distribute_tensor(whole(i, rows), mesh, [Shard(0)])
                  for i, n in enumerate(names)}, checkpoint_id=folder)
        dist.barrier()
        dist.destroy_process_group()
        return
    want = {n: distribute_tensor(whole(i, rows), mesh, [Shard(1)]).to_local().clone()
            for i, n in enumerate(names)}
    held = {n: distribute_tensor(torch.zeros(rows, COLUMNS), mesh, [Shard(1)]) for n in names}
    group = None
    if what == "sheaf":
        import sheaf.group
        group = sheaf.group.torch_distributed()
    while True:
        go = torch.tensor([1 if rank or sys.stdin.readline() else 0])
        dist.broadcast(go, 0)
        if not go.item():
            break
        for t in held.values():
            t.to_local().fill_(-1)
        dist.barrier()
        before, began = read_bytes(), time.monotonic()
        if what == "dcp":
            dcp.load(held, checkpoint_id=folder)
        else:
            by_sheaf(folder, held, rows, rank, group)
        dist.barrier()
        seconds = time.monotonic() - began
        read = torch.tensor([read_bytes() - before])
        dist.all_reduce(read)
        for n in names:
            assert torch.equal(held[n].to_local(), want[n]), n
        if rank == 0:
            print(json.dumps({"seconds": seconds, "bytes": 4 * rows * COLUMNS * TENSORS,
                              "disk_bytes": read.item()}), flush=True)
    if group:
        group.close()
    dist.destroy_process_group()


def main(what, folder, size):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    others = [mp.get_context("spawn").Process(target=work, args=(r, port, what, folder, size))
              for r in range(1, RANKS)]
    for p in others:
        p.start()
    work(0, port, what, folder, size)
    for p in others:
        p.join()
    return max(p.exitcode for p in others)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
