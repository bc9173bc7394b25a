# SPDX-License-Identifier: Apache-2.0
"""One rank of the job that bench/dcp measures: a state of sharded tensors, which
torch.distributed.checkpoint saves and loads, by its own files or by sheaf.dcp.

usage: dcpjob.py CONF, under torch.distributed.run. Rank 0 reads lines of JSON, and answers each.
"""
import json
import os
import shutil
import sys
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import sheaf

warnings.simplefilter("ignore")


class Job:
    def __init__(self, conf):
        self.conf, self.rank, self.ranks = conf, dist.get_rank(), dist.get_world_size()
        self.mesh = init_device_mesh("cpu", (self.ranks,))
        self.group = dist.new_group(backend="gloo")         # for DCP's thread
        self.state = self.made(0)
        self.bytes = sum(t.numel() * t.element_size() for t in self.tensors(self.state))
        self.number, self.writers, self.stager = 0, {}, {}

    def made(self, axis, value=None):
        """Makes a state whose tensors are cut on an axis. value None: the numbers depend on the
        place."""
        def tensor(name, shape, k):
            shape = list(shape)
            cut = axis if len(shape) > 1 and shape[axis] % self.ranks == 0 else 0
            if shape[cut] % self.ranks:
                full = torch.full(shape, value if value is not None else float(k % 251))
                return DTensor.from_local(full, self.mesh, [Replicate()], run_check=False)
            local = list(shape)
            local[cut] //= self.ranks
            t = torch.empty(local)
            if value is not None:
                t.fill_(value)
            else:               # the same for any cut: the sum of both indices, with few bits
                index = [torch.arange(n, dtype=torch.float32) + (self.rank * n if d == cut else 0)
                         for d, n in enumerate(local)]
                t.copy_(index[0] if len(index) == 1 else index[0][:, None] + index[1][None, :])
                t.add_(k)
            return DTensor.from_local(t, self.mesh, [Shard(cut)], run_check=False)

        tensors = [(n, s) for n, s in self.conf["tensors"]]
        return {"model": {n: tensor(n, s, k) for k, (n, s) in enumerate(tensors)},
                "optim": {"state": {n: {m: tensor(n, s, k + 1000 * i) for i, m in
                                        ((1, "exp_avg"), (2, "exp_avg_sq"))}
                                    for k, (n, s) in enumerate(tensors)},
                          "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.999),
                                            "params": [n for n, _ in tensors]}]}, "step": 7}

    @staticmethod
    def tensors(state):
        """Returns the local tensors of a state."""
        found = [t.to_local() for t in state["model"].values()]
        for moments in state["optim"]["state"].values():
            found += [t.to_local() for t in moments.values()]
        return found

    # ---- contestants ----

    def path(self, who):
        return os.path.join(self.conf["dir"], who)

    def kept(self, who):
        """Makes Sheaf's writer once, and keeps it, as its page says."""
        if who not in self.writers:
            owner = torch.optim.AdamW([t for t in self.tensors(self.state)]) \
                if who == "sheaf-gates" else None
            self.writers[who] = sheaf.dcp.Writer(
                self.path(who), optimizers=[owner] if owner else [], keep_last=1, buffers_max=2)
        self.number += 1
        return self.writers[who].at(self.number)

    def save(self, who):
        if who == "sheaf-plain":                            # as a user of DCP would write it
            self.number += 1
            dcp.save(self.state, storage_writer=sheaf.dcp.Writer(
                "%s@%d" % (self.path(who), self.number), keep_last=1))
        elif who == "sheaf":
            dcp.save(self.state, storage_writer=self.kept(who), use_collectives=False,
                     planner=sheaf.dcp.SavePlanner())
        else:
            dcp.save(self.state, storage_writer=dcp.FileSystemWriter(
                self.path(who), thread_count=int(who[-1]) if who[-1].isdigit() else 1),
                planner=dcp.DefaultSavePlanner(enable_plan_caching="cached" in who))

    def load(self, who, into):
        reader = sheaf.dcp.Reader(self.path(who)) if who.startswith("sheaf") else \
            dcp.FileSystemReader(self.path(who))
        dcp.load(into, storage_reader=reader)

    def behind(self, who, step_s):
        """Returns the seconds for which a save in the background blocks: the call, and what remains
        of the copy after a step of that length."""
        begun = time.perf_counter()
        if who.startswith("sheaf"):
            writer = self.kept(who)
            future = dcp.async_save(self.state, storage_writer=writer, no_dist=True)
            copied = writer.synchronize_staging
        else:
            late = who == "dcp-behind"
            if who not in self.stager:
                self.stager[who] = DefaultStager(StagingOptions(False, False, late, False))
            shutil.rmtree(self.path(who), ignore_errors=True) if self.rank == 0 else None
            future = dcp.async_save(
                self.state, storage_writer=dcp.FileSystemWriter(self.path(who)),
                async_stager=self.stager[who], process_group=self.group)
            copied = (lambda: None)
            if late:
                copied, future = future.staging_completion.result, future.upload_completion
        blocked = time.perf_counter() - begun
        time.sleep(step_s)              # the device computes
        begun = time.perf_counter()
        copied()
        blocked += time.perf_counter() - begun
        future.result()
        return blocked

    # ---- rounds ----

    def round(self, what, who):
        """Returns the seconds of a call on the slowest rank."""
        into = None
        if what == "save" and self.rank == 0 and not who.startswith("sheaf"):
            shutil.rmtree(self.path(who), ignore_errors=True)
        if what == "load":
            into = self.made(1, -1.0)
        dist.barrier()
        begun = time.perf_counter()
        if what == "save":
            self.save(who)
        elif what == "load":
            self.load(who, into)
        took = self.behind(who, self.conf["step_s"]) if what == "async" else \
            time.perf_counter() - begun
        if into is not None:
            for mine, want in zip(self.tensors(into), self.tensors(self.made(1))):
                if not torch.equal(mine, want):
                    raise RuntimeError("%s loaded wrong bytes" % who)
        every = torch.tensor([took])
        dist.all_reduce(every, op=dist.ReduceOp.MAX)
        return {"seconds": every.item(), "bytes": self.bytes * self.ranks}

    def close(self):
        for writer in self.writers.values():
            writer.close()


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        conf = json.load(f)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    job = Job(conf)
    told = sys.stdout
    if job.rank == 0:
        print(json.dumps({"event": "ready", "bytes": job.bytes * job.ranks}), file=told, flush=True)
    while True:
        line = [sys.stdin.readline() if job.rank == 0 else ""]
        dist.broadcast_object_list(line)
        if not line[0]:
            break
        asked = json.loads(line[0])
        try:
            result = job.round(asked["what"], asked["who"])
        except BaseException as e:      # DCP's exception, too, which is not an Exception
            why = "%s: %s: %s" % (asked, type(e).__name__, str(e).strip()[-400:])
            print(json.dumps({"event": "error", "message": why}), file=told, flush=True)
            raise
        if job.rank == 0:
            print(json.dumps({"event": "round", **result}), file=told, flush=True)
    job.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
