# SPDX-License-Identifier: Apache-2.0
"""One contestant of bench/peers: reads a line of JSON, runs one round, prints a line of JSON.

usage: serve.py SPEC TOOL [RANK WORLD MEETING]

Memory comes as descriptors of bench/peers, so that all contestants save from and load into the
same pages: source and target of one rank, and of two ranks the shards of both. On two ranks every
tensor with an inner axis is cut there to be saved and on its outer axis to be loaded.
"""
import gc
import json
import mmap
import os
import resource
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tools  # noqa: E402


def map_all(fd, size):
    return mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)


def family(pid):
    """Returns pid and all processes below it."""
    found = [pid]
    for p in found:
        try:
            for task in os.listdir("/proc/%d/task" % p):
                with open("/proc/%d/task/%s/children" % (p, task)) as f:
                    found += [int(x) for x in f.read().split()]
        except OSError:
            pass
    return found


def used():
    """Returns processor seconds and bytes read from disk, of this process and its children."""
    cpu = sum(resource.getrusage(who)[k] for k in (0, 1)
              for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    read, tick = 0, os.sysconf("SC_CLK_TCK")
    for pid in family(os.getpid()):
        try:
            if pid != os.getpid():
                with open("/proc/%d/stat" % pid) as f:
                    cpu += sum(int(x) for x in f.read().rsplit(")", 1)[1].split()[11:15]) / tick
            with open("/proc/%d/io" % pid) as f:
                read += int(f.read().split("\nread_bytes:")[1].split()[0])
        except (OSError, IndexError):
            pass
    return cpu, read


def sync_tree(path, files):
    """Syncs every directory below path, path and its parent; with `files`, every file, too."""
    for at, _, names in os.walk(path, topdown=False):
        for name in (names if files else []) + ["."]:
            fd = os.open(os.path.join(at, name), os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
    fd = os.open(os.path.dirname(path), os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


class Context:
    """The state as the tools see it: dictionaries of tensors in the shared memory."""

    def __init__(self, spec, rank, world):
        self.spec, self.rank, self.world = spec, rank, world
        self.whole = map_all(spec["source_fd"], spec["bytes"])
        self.goal = map_all(spec["target_fd"], spec["target_bytes"])
        self.keys = {(t["file"], t["name"]): t["key"] for t in spec["tensors"]}
        self.made = {}

    def key(self, file, name):
        return self.keys[file, name]

    @staticmethod
    def address(memory):
        import ctypes
        return ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def source_address(self):
        return self.address(self.whole)

    def target_address(self):
        return self.address(self.goal)

    def tensors(self, memory):
        import torch
        kinds = {"BF16": torch.bfloat16, "F32": torch.float32}
        made = {}
        for t in self.spec["tensors"]:
            items = 1
            for d in t["shape"]:
                items *= d
            made[t["key"]] = torch.frombuffer(memory, dtype=kinds[t["dtype"]], count=items,
                                              offset=t["at"]).view(t["shape"])
        return made

    def arrays(self):
        if "arrays" not in self.made:
            import ml_dtypes
            import numpy as np
            kinds = {"BF16": np.dtype(ml_dtypes.bfloat16), "F32": np.dtype("<f4")}
            self.made["arrays"] = {t["key"]: np.frombuffer(
                self.whole, dtype=kinds[t["dtype"]], offset=t["at"],
                count=t["bytes"] // kinds[t["dtype"]].itemsize).reshape(t["shape"])
                for t in self.spec["tensors"]}
        return self.made["arrays"]

    def shards(self, memory, inner, fill):
        """Returns this rank's DTensors in its half of memory, and its local tensors with the values
        expected in them."""
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard
        if "mesh" not in self.made:
            self.made["mesh"] = init_device_mesh("cpu", (self.world,))
        made, want, at = {}, {}, self.rank * (len(memory) // self.world)
        for key, t in self.tensors(self.whole).items():
            axis = 1 if inner and t.dim() > 1 else 0
            part = t.chunk(self.world, axis)[self.rank]
            local = torch.frombuffer(memory, dtype=t.dtype, count=part.numel(), offset=at)
            local = local.view(part.shape)
            at += (part.numel() * t.element_size() + 63) // 64 * 64
            if fill:
                local.copy_(part)
            want[key] = (local, part)
            made[key] = DTensor.from_local(local, self.made["mesh"], [Shard(axis)],
                                           run_check=False, shape=t.shape, stride=t.stride())
        return made, want

    def build(self, name):
        if name == "sheaf" or name in self.made:
            return
        if self.world == 1:
            self.made[name] = self.tensors(self.whole if name == "source" else self.goal)
        elif name == "source":
            memory = map_all(self.spec["shards_fd"], self.spec["target_bytes"])
            self.made[name] = self.shards(memory, True, True)[0]
        else:
            self.made[name], self.made["want"] = self.shards(self.goal, False, False)

    @property
    def source(self):
        self.build("source")
        return self.made["source"]

    @property
    def target(self):
        self.build("target")
        return self.made["target"]

    def poison(self):
        half = len(self.goal) // self.world
        block = b"\xa5" * (1 << 20)
        for at in range(self.rank * half, (self.rank + 1) * half, len(block)):
            end = min(at + len(block), (self.rank + 1) * half)
            self.goal[at:end] = block[:end - at]

    def wrong(self):
        """Returns the key of the first tensor of the target that differs from the source, or
        None."""
        if self.world > 1:
            import torch
            for key, (local, part) in self.made["want"].items():
                if not torch.equal(local, part):
                    return key
            return None
        return self.differs(self.goal)

    def differs(self, memory):
        a, b = memoryview(self.whole), memoryview(memory)
        for t in self.spec["tensors"]:
            for at in range(t["at"], t["at"] + t["bytes"], 1 << 20):
                end = min(at + (1 << 20), t["at"] + t["bytes"])
                if bytes(a[at:end]) != bytes(b[at:end]):
                    return t["key"]
        return None

    def wrong_fresh(self, made):
        if isinstance(made, mmap.mmap):
            return self.differs(made)
        for t in self.spec["tensors"]:
            have = made.get(t["key"])
            if have is None or list(have.shape) != t["shape"]:
                return t["key"]
            if hasattr(have, "data_ptr"):
                import torch
                if not torch.equal(have, self.tensors_once()[t["key"]]):
                    return t["key"]
            elif have.tobytes() != self.whole[t["at"]:t["at"] + t["bytes"]]:
                return t["key"]
        return None

    def tensors_once(self):
        if "once" not in self.made:
            self.made["once"] = self.tensors(self.whole)
        return self.made["once"]


def meet(world):
    if world > 1:
        import torch.distributed as dist
        dist.barrier()


def one_round(tool, ctx, order):
    do, path = order["do"], order["path"]
    made = None
    if do == "save":
        os.makedirs(path, exist_ok=True)
        assert ctx.world == 1 or ctx.source
    elif do == "load":
        assert isinstance(tool, tools.Sheaf) or ctx.target
        ctx.poison()
    gc.collect()
    meet(ctx.world)
    (cpu, read), start, synced = used(), time.monotonic(), 0.0
    if do == "save":
        tool.save(path)
        meet(ctx.world)
        before = time.monotonic()
        if tool.syncs != "all" and ctx.rank == 0:
            sync_tree(path, tool.syncs == "nothing")
        synced = time.monotonic() - before
    else:
        made = getattr(tool, do)(path)
    meet(ctx.world)
    seconds = time.monotonic() - start
    cpu_after, read_after = used()
    said = {"event": "round", "seconds": seconds, "cpu_s": cpu_after - cpu,
            "read_bytes": read_after - read, "sync_s": synced}
    if order.get("check") and do != "save":
        said["wrong"] = ctx.wrong() if do == "load" else ctx.wrong_fresh(made)
    del made
    if do == "fresh" and hasattr(tool, "drop"):
        tool.drop()
    return said


def serve(spec, name, rank, world, meeting):
    # A library's output must not be read as an answer.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**event):
        out.write(json.dumps(event) + "\n")
        out.flush()

    try:
        tool = tools.TOOLS[name](None)
        tool.ctx = ctx = Context(spec, rank, world)
        tool.start()
        if world > 1:
            import torch.distributed as dist
            dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank,
                                    world_size=world)
    except ImportError as e:
        say(event="absent", why=str(e).splitlines()[0])
        return 0
    except Exception as e:
        say(event="failed", why="%s: %s" % (type(e).__name__, str(e)[:300]))
        return 0
    say(event="ready", syncs=tool.syncs, note=tool.note)
    for line in sys.stdin:
        try:
            say(**one_round(tool, ctx, json.loads(line)))
        except Exception as e:
            say(event="failed", why="%s: %s" % (type(e).__name__, str(e)[:300]))
            break
    out.flush()
    os._exit(0)     # exit would wait for processes and threads of some tools


def main():
    with open(sys.argv[1]) as f:
        spec = json.load(f)
    rank, world = (int(sys.argv[3]), int(sys.argv[4])) if len(sys.argv) > 3 else (0, 1)
    meeting = sys.argv[5] if len(sys.argv) > 5 else ""
    return serve(spec, sys.argv[2], rank, world, meeting)


if __name__ == "__main__":
    sys.exit(main())
