# SPDX-License-Identifier: Apache-2.0
"""A torch job on some ranks: reads a line, saves or loads in that way, prints a line of JSON.

usage: pyjob.py CONFIG

CONFIG is a JSON object: package (the folder with the package sheaf), bin (the folder of the command
sheaf), dir, ranks, layout ("one", "fsdp" or "2x2"), layers, hidden, step_ms, steps, port. The model
is a row of linear layers with AdamW, cut by FSDP2 (2x2: by tensor parallelism, too). Rank 0 starts
the others, which get each line from it. The time of a way is that of the slowest rank.
"""
import json
import os
import shutil
import subprocess
import sys
import threading
import time

SIDE, PIECE = 384, 8 << 20


class Job:
    """The training state in one layout, and another one as the target of loads."""

    def __init__(self, conf, rank):
        import torch
        import torch.distributed as dist
        torch.set_num_threads(1)
        self.torch, self.dist, self.conf, self.rank = torch, dist, conf, rank
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%d" % conf["port"], rank=rank,
                                world_size=conf["ranks"])
        self.model, self.optimizer = self.trained(0)
        self.other = None
        self.step, self.open = 0, {}
        self.a = torch.rand(SIDE, SIDE)

    def trained(self, dim):
        """Returns a model with an optimizer that took a step, sharded on this dimension."""
        torch, conf = self.torch, self.conf
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import Shard
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
        torch.manual_seed(0)
        m = torch.nn.Sequential(*[torch.nn.Linear(conf["hidden"], conf["hidden"], bias=False)
                                  for _ in range(conf["layers"])])
        mesh = None
        if conf["layout"] == "2x2":
            both = init_device_mesh("cpu", (2, conf["ranks"] // 2), mesh_dim_names=("dp", "tp"))
            for layer in m:
                parallelize_module(layer, both["tp"], ColwiseParallel())
            mesh = both["dp"]
        elif conf["layout"] == "fsdp":
            mesh = init_device_mesh("cpu", (conf["ranks"],))
        if mesh is not None:
            fully_shard(m, mesh=mesh, shard_placement_fn=lambda p: Shard(dim))
        o = torch.optim.AdamW(m.parameters(), 1e-4)
        for p in m.parameters():
            p.grad = torch.full_like(p, 1e-3)
        o.step()
        return m, o

    def tensors(self, m, o):
        """Returns the same as a flat dict, for DCP."""
        found = {"model." + n: p.detach() for n, p in m.named_parameters()}
        for n, p in m.named_parameters():
            for key, value in o.state[p].items():
                found["optimizer.%s.%s" % (n, key)] = value
        return found

    def bytes(self):
        return sum(t.numel() * t.element_size()
                   for t in self.tensors(self.model, self.optimizer).values())

    def timed(self, work):
        self.dist.barrier()
        start = time.perf_counter()
        work()
        took = self.torch.tensor([time.perf_counter() - start], dtype=self.torch.float64)
        self.dist.all_reduce(took, self.dist.ReduceOp.MAX)
        return float(took)

    def checkpointer(self, name, objects, **options):
        """Returns an open Checkpointer, and keeps it for the next call."""
        if name not in self.open:
            import sheaf
            made = sheaf.Checkpointer(os.path.join(self.conf["dir"], name.split(":")[0]),
                                      **options)
            made.track(*objects)
            self.open[name] = made
        return self.open[name]

    def remove(self, path):
        self.dist.barrier()
        if self.rank == 0:
            shutil.rmtree(path)
        self.dist.barrier()

    # ---- ways ----

    def save(self):
        ckpt = self.checkpointer("saves", (self.model, self.optimizer))
        self.step += 1
        took = self.timed(lambda: ckpt.save(self.step))
        self.remove(os.path.join(ckpt.path, "checkpoint-%d" % self.step))
        return took

    def calls(self):
        """Makes the calls of C that a save makes, on the state that Python described."""
        ckpt = self.checkpointer("saves", (self.model, self.optimizer))
        self.step += 1

        def both():
            with ckpt.run.begin(self.step, ckpt.plan.state) as save:
                save.commit()

        took = self.timed(both)
        self.remove(os.path.join(ckpt.path, "checkpoint-%d" % self.step))
        return took

    def stored(self):
        if not os.path.isdir(os.path.join(self.conf["dir"], "stored")):
            import sheaf
            with sheaf.Checkpointer(os.path.join(self.conf["dir"], "stored")) as ckpt:
                ckpt.track(self.model, self.optimizer)
                ckpt.save(1)
            self.dist.barrier()

    def load(self):
        self.stored()
        ckpt = self.checkpointer("stored:same", (self.model, self.optimizer), readonly=True)
        return self.timed(lambda: ckpt.load(1))

    def load_other(self):
        self.stored()
        self.other = self.other or self.trained(1)
        ckpt = self.checkpointer("stored:other", self.other, readonly=True)
        return self.timed(lambda: ckpt.load(1))

    def dcp_save(self, threads):
        import torch.distributed.checkpoint as dcp
        path, state = os.path.join(self.conf["dir"], "dcp"), self.tensors(self.model,
                                                                          self.optimizer)
        took = self.timed(lambda: dcp.save(state, storage_writer=dcp.FileSystemWriter(
            path, thread_count=threads, sync_files=False)))
        self.remove(path)
        return took

    def dcp_load(self, same):
        import torch.distributed.checkpoint as dcp
        path = os.path.join(self.conf["dir"], "dcp-stored")
        if not os.path.isdir(path):
            self.dist.barrier()
            dcp.save(self.tensors(self.model, self.optimizer), checkpoint_id=path)
        self.other = self.other or self.trained(1)
        state = self.tensors(*((self.model, self.optimizer) if same else self.other))
        return self.timed(lambda: dcp.load(state, checkpoint_id=path))

    def bare(self):
        """Writes as many bytes by write(2) in two threads of rank 0, into new files."""
        path, n = os.path.join(self.conf["dir"], "bare"), self.bytes()
        if self.rank == 0:
            os.makedirs(path)
            self.filled = getattr(self, "filled", None) or memoryview(bytearray(os.urandom(PIECE)))

        def write(i):
            with open(os.path.join(path, str(i)), "wb", buffering=0) as f:
                for at in range(0, n // 2, PIECE):
                    f.write(self.filled[:min(PIECE, n // 2 - at)])

        def both():
            threads = [threading.Thread(target=write, args=(i,)) for i in range(2)]
            for t in threads if self.rank == 0 else ():
                t.start()
            for t in threads if self.rank == 0 else ():
                t.join()

        took = self.timed(both)
        self.remove(path)
        return took

    # ---- steps with saves in the background, at each step ----

    def all_true(self, mine):
        """Returns whether it is true on all ranks."""
        found = self.torch.tensor([int(mine)])
        self.dist.all_reduce(found, self.dist.ReduceOp.MIN)
        return bool(found)

    def steps(self, saver):
        """Returns the mean time for which a save blocks."""
        blocked, saves = 0.0, 0
        saver.begin()
        for i in range(self.conf["steps"] + 2):
            if i == 2:
                blocked, saves = 0.0, 0
                saver.counted()
            end = time.perf_counter() + self.conf["step_ms"] / 1e3
            while time.perf_counter() < end:
                self.torch.mm(self.a, self.a)
            start = time.perf_counter()
            saver.wait()
            blocked += time.perf_counter() - start
            self.optimizer.step()
            self.step += 1
            start = time.perf_counter()
            saves += saver.save(self.step)
            blocked += time.perf_counter() - start
        blocked += saver.end()
        return blocked / max(saves, 1), saves

    def blocked(self, saver):
        took, saves = self.steps(saver)
        each = self.torch.tensor([took], dtype=self.torch.float64)
        self.dist.all_reduce(each, self.dist.ReduceOp.MAX)
        return {"seconds": float(each), "saves": saves}


class Sheaf:
    """save_async of a Checkpointer; its gate is in optimizer.step(). A step in which the previous
    save is still in progress is not saved, because dcp.async_save is called in the same way."""

    def __init__(self, job, name, **options):
        self.job, self.name, self.options = job, name, options

    def begin(self):
        job = self.job
        self.ckpt = job.checkpointer(self.name, (job.model, job.optimizer), keep_last=1,
                                     grace_s=-1, **self.options)
        self.handles = []

    def counted(self):
        self.gates = self.ckpt.stats().gates

    def wait(self):
        """The optimizer calls the gate, and the library counts it."""

    def save(self, step):
        if self.handles and not self.job.all_true(self.handles[-1].done()):
            return False
        self.handles.append(self.ckpt.save_async(step))
        return self.handles[-1].where != "nowhere"

    def end(self):
        gates = self.ckpt.stats().gates - self.gates
        for h in self.handles:
            h.result()
        self.job.dist.barrier()
        return gates


class Dcp:
    """dcp.async_save; a step in which the previous save is still in progress is not saved."""

    def __init__(self, job, kind, behind):
        self.job, self.kind, self.behind, self.stager = job, kind, behind, None

    def begin(self):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
        self.dcp, self.type = dcp, getattr(AsyncCheckpointerType, self.kind)
        self.future = self.staged = None
        self.path = os.path.join(self.job.conf["dir"], "dcp-async")
        self.stager = self.stager or DefaultStager(StagingOptions(
            use_pinned_memory=False, use_shared_memory=self.kind == "PROCESS",
            use_async_staging=self.behind, use_non_blocking_copy=False))

    def counted(self):
        pass

    def wait(self):
        if self.staged is not None:
            self.staged.result()
            self.staged = None

    def save(self, step):
        if not self.job.all_true(self.future is None or self.future.done()):
            return False
        self.last = os.path.join(self.path, str(step))
        said = self.dcp.async_save(
            self.job.tensors(self.job.model, self.job.optimizer), async_stager=self.stager,
            storage_writer=self.dcp.FileSystemWriter(self.last, sync_files=False),
            async_checkpointer_type=self.type)
        self.staged = getattr(said, "staging_completion", None)
        self.future = getattr(said, "upload_completion", said)
        return True

    def end(self):
        self.wait()
        self.future.result()
        self.job.remove(self.path)
        return 0.0


def ways(job):
    """All ways by name: functions that return seconds, or an event."""
    return {"save": job.save, "calls": job.calls, "load": job.load, "load-other": job.load_other,
            "dcp-save-1": lambda: job.dcp_save(1), "dcp-save-2": lambda: job.dcp_save(2),
            "dcp-load": lambda: job.dcp_load(True), "dcp-load-other": lambda: job.dcp_load(False),
            "bare": job.bare,
            "async-memory": lambda: job.blocked(Sheaf(job, "memory", memory_every=1)),
            "async-disk": lambda: job.blocked(Sheaf(job, "disk")),
            "dcp-thread": lambda: job.blocked(Dcp(job, "THREAD", False)),
            "dcp-thread-behind": lambda: job.blocked(Dcp(job, "THREAD", True)),
            "dcp-process": lambda: job.blocked(Dcp(job, "PROCESS", False)),
            "dcp-process-behind": lambda: job.blocked(Dcp(job, "PROCESS", True))}


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        conf = json.load(f)
    sys.path.insert(0, conf["package"])
    os.environ["PATH"] = conf["bin"] + os.pathsep + os.environ["PATH"]
    rank = int(os.environ.get("PYJOB_RANK", 0))
    others = [] if rank else [subprocess.Popen([sys.executable] + sys.argv, stdin=subprocess.PIPE,
                                               env=dict(os.environ, PYJOB_RANK=str(r)),
                                               stdout=sys.stderr, text=True)
                              for r in range(1, conf["ranks"])]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)                       # a library's output must not be read as an answer

    def say(**event):
        if rank == 0:
            out.write(json.dumps(event) + "\n")
            out.flush()

    job = Job(conf, rank)
    known, size = ways(job), job.bytes()
    say(event="ready", bytes=size)
    for line in sys.stdin:
        for p in others:
            p.stdin.write(line)
            p.stdin.flush()
        try:
            said = known[line.strip()]()
            event = said if isinstance(said, dict) else {"seconds": said, "bytes": size}
            say(event="done", **event)
        except Exception as e:
            say(event="error", message="%s: %s: %s" % (line.strip(), type(e).__name__,
                                                       str(e)[:300]))
    for ckpt in job.open.values():
        ckpt.close()
    for p in others:
        p.stdin.close()
        p.wait(60)
    if rank == 0 and os.path.isdir(os.path.join(conf["dir"], "memory")):
        import sheaf.agent
        sheaf.agent.stop(os.path.join(conf["dir"], "memory"))
    os._exit(0)                         # exit would wait for threads and processes of some tools


if __name__ == "__main__":
    main()
