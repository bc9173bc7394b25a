# SPDX-License-Identifier: Apache-2.0
"""A training loop in Python, and those who save in it: reads a line, steps, prints a line of JSON.

usage: stepper.py CONFIG

CONFIG is a JSON object: state (a description, as sheaf-bench takes it), library, sheaf (the
command), dir, step_ms, steps, warmup, every, modes. A line names who saves; the answer is an event
as of `sheaf-bench stall`. A step is that of sheaf-bench: products, then Adam over every tensor in
place, then whoever saves is asked. One thread computes. Where the one before still runs, a save is
left out and counted. Who cannot be had is told by an event "absent" at the start, with the reason.
"""
import json
import math
import mmap
import os
import shutil
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

SIDE = 512


def now():
    return time.perf_counter()


class Saver:
    """Saves nothing; the base class of the others. The time of these calls is measured."""

    def __init__(self, loop):
        self.loop, self.dir = loop, os.path.join(loop.conf["dir"], type(self).__name__)

    def start(self):
        """Imports; raises an error if the tool is not installed."""

    def open(self):
        """Called before a block."""

    def begin(self, step):
        """Returns True if a save of this step began."""
        return True

    def before_update(self):
        """After this has returned, all tensors may change."""

    def after_update(self):
        """The step's new values are complete."""

    def poll(self):
        """Called once in a step."""

    def close(self):
        """Called after a block. Finishes all saves."""

    def clean(self):
        """Removes a block's files from the disk."""
        for at in os.listdir(self.dir) if os.path.isdir(self.dir) else []:
            if at.isdigit() or at.startswith("checkpoint-"):
                shutil.rmtree(os.path.join(self.dir, at))

    def over(self):
        """Called after the last block."""


class Sheaf(Saver):
    """Lazy saves of libsheaf; waits for all slices before they change."""
    memory = False

    def start(self):
        from libsheaf import Sheaf as Library
        self.library, self.run, self.state, self.step = Library, None, None, 0
        self.flying, self.gated = [], None
        self.loop.slices()

    def open(self):
        self.run = self.library(self.loop.conf["library"], self.dir, True, 2,
                                b"auto" if self.memory else None)
        self.state = self.run.state(self.loop.slices(), self.loop.address)

    def begin(self, step):
        save = self.run.begin(step, self.state, self.memory)
        if save is None:
            return False
        self.flying.append(save)
        self.gated = save
        return True

    def before_update(self):
        if self.gated is not None:
            self.run.copied(self.gated)
            self.gated = None

    def poll(self, wait=False):
        while self.flying and self.run.commit(self.flying[0], wait):
            self.flying.pop(0)

    def close(self):
        self.before_update()
        self.poll(True)
        self.run.close()
        self.run.lib.sheaf_state_free(self.state)


class SheafMemory(Sheaf):
    """The same, to the memory of an agent."""
    memory = True

    def start(self):
        super().start()
        self.agent("--detach")

    def agent(self, *what):
        subprocess.run([self.loop.conf["sheaf"], "agent", self.dir, *what], check=True,
                       stdin=subprocess.DEVNULL)

    def begin(self, step):
        began = super().begin(step)
        if not began and not self.flying:
            raise RuntimeError("no agent")
        return began

    def over(self):
        self.agent("--stop", "--force")


class Futures(Saver):
    """Tools whose save returns a future: one save at a time."""

    future, path = None, None

    def begin(self, step):
        if self.future is not None and not self.future.done():
            return False
        if self.future is not None:
            self.future.result()
        self.path = os.path.join(self.dir, str(step))
        self.future = self.save(self.path)
        return True

    def close(self):
        if self.future is None:
            return
        self.future.result()
        self.future = None
        held = sum(os.path.getsize(os.path.join(at, n)) for at, _, names in os.walk(self.path)
                   for n in names)
        if held < self.loop.bytes:
            raise RuntimeError("%s holds %d bytes of %d" % (self.path, held, self.loop.bytes))


class DcpThread(Futures):
    """torch.distributed.checkpoint.async_save, with a stager that keeps its memory."""
    kind, behind = "THREAD", False

    def start(self):
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
        self.dcp, self.type = dcp, getattr(AsyncCheckpointerType, self.kind)
        self.staged = None
        os.makedirs(self.dir, exist_ok=True)
        if not dist.is_initialized():
            dist.init_process_group("gloo", init_method="file://" + self.dir + "/meeting", rank=0,
                                    world_size=1)
        self.stager = DefaultStager(StagingOptions(
            use_pinned_memory=False, use_shared_memory=self.kind == "PROCESS",
            use_async_staging=self.behind, use_non_blocking_copy=False))

    def save(self, path):
        said = self.dcp.async_save(self.loop.tensors, async_stager=self.stager,
                                   storage_writer=self.dcp.FileSystemWriter(path),
                                   async_checkpointer_type=self.type)
        if hasattr(said, "staging_completion"):
            self.staged = said.staging_completion
            return said.upload_completion
        return said

    def before_update(self):
        if self.staged is not None:
            self.staged.result()
            self.staged = None


class DcpProcess(DcpThread):
    kind = "PROCESS"


class DcpThreadBehind(DcpThread):
    behind = True


class DcpProcessBehind(DcpProcess):
    behind = True


class TorchCheckpointing(Futures):
    """CheckpointManager with asynchronous saves; takes its lock around the update. It uses the page
    cache: its process writes unaligned pieces, which direct writes reject (EINVAL)."""

    def start(self):
        import torch_checkpointing as tc
        from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig
        config = tc.CheckpointManager.Config.with_async_save()
        config.storage_config = LocalFileSystemStorageConfig(use_direct_io=False)
        self.manager, self.held = tc.CheckpointManager(config), None
        os.makedirs(self.dir, exist_ok=True)

    def save(self, path):
        return self.manager.save(path, {"state": self.loop.tensors})

    def before_update(self):
        self.held = self.manager.lock()
        self.held.__enter__()

    def after_update(self):
        self.held.__exit__(None, None, None)


SAVERS = {"none": Saver, "none2": Saver, "sheaf": Sheaf,
          "sheaf-memory": SheafMemory, "dcp-thread": DcpThread,
          "dcp-process": DcpProcess, "dcp-thread-behind": DcpThreadBehind,
          "dcp-process-behind": DcpProcessBehind, "torch_checkpointing": TorchCheckpointing}


class Loop:
    """The state, and a step on it."""

    def __init__(self, conf):
        import torch
        torch.set_num_threads(1)
        self.torch, self.conf, self.units, self.steps = torch, conf, 0, 0
        with open(conf["state"], encoding="utf-8") as f:
            wanted = json.load(f)["tensors"]
        self.wanted = [(t["name"], t["shape"]) for t in wanted]
        self.bytes = 0
        sizes = [math.prod(shape) for _, shape in self.wanted]
        self.whole = mmap.mmap(-1, sum(-(-n * 2 // 64) * 64 + 3 * -(-n * 4 // 64) * 64
                                       for n in sizes))
        self.params, self.tensors, self.at = [], {}, []
        for (name, shape), n in zip(self.wanted, sizes):
            self.add(name, shape, n)
        most = max(sizes)
        self.grad = torch.rand(most) - 0.5
        self.room = torch.empty(most)
        self.a, self.b, self.c = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE), torch.empty(
            SIDE, SIDE)

    def add(self, name, shape, n):
        """Adds master, weight and moments, in the order in which they change."""
        torch, made = self.torch, []
        for key, kind, size in (("master_weights/" + name, torch.float32, 4),
                                ("model/" + name, torch.bfloat16, 2),
                                ("optimizer/%s/moment1_0" % name, torch.float32, 4),
                                ("optimizer/%s/moment2_0" % name, torch.float32, 4)):
            at = self.at[-1][3] if self.at else 0
            t = torch.frombuffer(self.whole, dtype=kind, count=n, offset=at).view(shape)
            self.at.append((key, "F32" if size == 4 else "BF16", at, at + -(-n * size // 64) * 64,
                            shape))
            self.tensors[key] = t
            self.bytes += n * size
            made.append(t)
        made[0].uniform_(-1, 1)
        made[1].copy_(made[0])
        self.params.append(made)

    @property
    def address(self):
        import ctypes
        return ctypes.addressof(ctypes.c_char.from_buffer(self.whole))

    def slices(self):
        return [key.split("/", 1) + [dtype, shape, at] for key, dtype, at, _, shape in self.at]

    def products(self, units):
        for _ in range(units):
            self.torch.mm(self.a, self.b, out=self.c)

    def update(self):
        """Runs Adam in place."""
        first = 1 / (1 - 0.9 ** self.steps)
        second = 1 / (1 - 0.999 ** self.steps)
        for w, p, m, v in self.params:
            n = w.numel()
            g, room = self.grad[:n].view(w.shape), self.room[:n].view(w.shape)
            m.mul_(0.9).add_(g, alpha=0.1)
            v.mul_(0.999).addcmul_(g, g, value=0.001)
            self.torch.mul(v, second, out=room).sqrt_().add_(1e-8)
            w.mul_(1 - 1e-5).addcdiv_(m, room, value=-1e-3 * first)
            p.copy_(w)

    def step(self, saver, saves):
        """(seconds of the step, seconds in the saver's calls, whether a save began)"""
        self.steps += 1
        start = now()
        self.products(self.units)
        at = now()
        saver.before_update()
        blocked = now() - at
        self.update()
        at, began = now(), None
        saver.after_update()
        saver.poll()
        if saves:
            began = saver.begin(self.steps)
        end = now()
        return end - start, blocked + end - at if type(saver) is not Saver else 0.0, began

    def pace(self):
        """Finds how many products make a step last step_ms."""
        none, want = Saver(self), self.conf["step_ms"] / 1e3
        self.rest = min(self.step(none, False)[0] for _ in range(4))
        units = []
        for _ in range(4):
            start = now()
            self.products(20)
            units.append((now() - start) / 20)
        self.units = max(0, int((want - self.rest) / min(units)))

    def block(self, name, saver):
        """Runs a block. The first steps are not counted; two of them save, so that memory is
        allocated."""
        every, times, saves = self.conf["every"], [], []
        saver.open()
        for i in range(self.conf["warmup"]):
            self.step(saver, i < 2 or every == 1)
        for i in range(self.conf["steps"]):
            took, blocked, began = self.step(saver, i % every == 0)
            times.append((took * 1e3, blocked * 1e3))
            saves += [began] if began is not None else []
        saver.close()
        saver.clean()
        idle = type(saver) is Saver
        return {"event": "stall", "mode": name, "every": 0 if idle else every,
                "steps": len(times), "dropped": saves.count(False), "bytes": self.bytes,
                "step_ms": spread([t for t, _ in times]),
                "blocked_ms": spread([b for _, b in times]),
                "saves": 0 if idle else saves.count(True), "rest_ms": self.rest * 1e3,
                "units": self.units}


def spread(ms):
    s, n = sorted(ms), len(ms)
    return {"min": s[0], "median": (s[(n - 1) // 2] + s[n // 2]) / 2,
            "p99": s[(n * 99 + 99) // 100 - 1], "mean": sum(s) / n, "sum": sum(s)}


def main():
    # A library's output must not be read as an answer.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**event):
        out.write(json.dumps(event) + "\n")
        out.flush()

    with open(sys.argv[1], encoding="utf-8") as f:
        conf = json.load(f)
    try:
        loop = Loop(conf)
        loop.pace()
    except ImportError as e:
        say(event="absent", mode="all", why=str(e).splitlines()[0])
        say(event="ready", modes=[])
        return 0
    savers = {}
    for name in conf["modes"]:
        try:
            saver = SAVERS[name](loop)
            saver.start()
            savers[name] = saver
        except Exception as e:
            say(event="absent", mode=name, why="%s: %s" % (type(e).__name__, str(e)[:300]))
    say(event="ready", modes=list(savers))
    for line in sys.stdin:
        name = line.strip()
        try:
            say(**loop.block(name, savers[name]))
        except Exception as e:
            say(event="error", mode=name, message="%s: %s" % (type(e).__name__, str(e)[:300]))
    for saver in savers.values():
        saver.over()
    out.flush()
    os._exit(0)     # exit would wait for processes and threads of some tools


if __name__ == "__main__":
    sys.exit(main())
