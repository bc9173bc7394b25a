# SPDX-License-Identifier: Apache-2.0
"""Each peer's own way to save and to load, as its documents say it is called.

A tool saves `source` to a path, loads a path into `target`, which is touched memory, or returns
what it loads in memory that it allocates. It says what it syncs by itself: "nothing", "files" or
"all"; what is left is synced by serve.py inside the clock. Modules are imported where they are
used, so that one that is not here hurts no other.
"""
import os


class Tool:
    syncs = "nothing"
    note = ""

    def __init__(self, ctx):
        self.ctx = ctx

    def start(self):
        """Imports; raises ImportError if the tool is not installed."""

    def save(self, path):
        raise NotImplementedError

    def load(self, path):
        raise NotImplementedError

    def fresh(self, path):
        """Returns {key: tensor}, with every page read."""
        raise NotImplementedError


def touch(tensors):
    """Writes to each page of tensors that are mapped files. Before that, they use the page cache's
    memory, and training would pay for copies of the pages in its first step."""
    import torch
    for t in tensors.values():
        if t.numel():
            t.view(-1).view(torch.uint8)[::4096].add_(0)
    return tensors


class Sheaf(Tool):
    syncs = "all"

    def start(self):
        from libsheaf import Sheaf as Library
        self.library = Library
        self.runs, self.saved, self.into = {}, None, None
        self.step = 0

    def open(self, path, create):
        """Opens the run at path once, as a trainer does."""
        if path not in self.runs:
            self.runs[path] = self.library(self.ctx.spec["library"], path, create)
        return self.runs[path]

    def state(self, lib, address):
        return lib.state([(t["family"], t["name"], t["dtype"], t["shape"], t["at"])
                          for t in self.ctx.spec["tensors"]], address)

    def save(self, path):
        run = self.open(path, True)
        if self.saved is None:
            self.saved = self.state(run, self.ctx.source_address())
        self.step += 1
        run.save(self.step, self.saved)

    def load(self, path):
        run = self.open(path, False)
        if self.into is None:
            self.into = self.state(run, self.ctx.target_address())
        run.load(-1, self.into)

    def fresh(self, path):
        import mmap
        run = self.open(path, False)
        memory = mmap.mmap(-1, self.ctx.spec["bytes"], flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        state = self.state(run, self.ctx.address(memory))
        run.load(-1, state)
        run.lib.sheaf_state_free(state)
        return memory


class TorchSave(Tool):
    def start(self):
        import torch
        self.torch = torch

    def file(self, path):
        return os.path.join(path, "state.pt")

    def save(self, path):
        self.torch.save(self.ctx.source, self.file(path))

    def fresh(self, path):
        return touch(self.torch.load(self.file(path), mmap=True, weights_only=True))

    def load(self, path):
        for key, t in self.torch.load(self.file(path), mmap=True, weights_only=True).items():
            self.ctx.target[key].copy_(t)


class TorchRead(TorchSave):
    note = "torch.load without mmap"

    def fresh(self, path):
        return self.torch.load(self.file(path), weights_only=True)

    def load(self, path):
        for key, t in self.fresh(path).items():
            self.ctx.target[key].copy_(t)


class Safetensors(Tool):
    """The same files as Sheaf's, by name and content."""

    def start(self):
        import torch  # noqa: F401
        import safetensors.torch as st
        from safetensors import safe_open
        self.st, self.open = st, safe_open

    def files(self, path):
        return [(n, os.path.join(path, f["path"])) for n, f in enumerate(self.ctx.spec["files"])]

    def save(self, path):
        for n, at in self.files(path):
            os.makedirs(os.path.dirname(at), exist_ok=True)
            self.st.save_file({t["name"]: self.ctx.source[t["key"]]
                               for t in self.ctx.spec["tensors"] if t["file"] == n}, at)

    def load(self, path):
        for n, at in self.files(path):
            with self.open(at, framework="pt") as f:
                for name in f.keys():
                    self.ctx.target[self.ctx.key(n, name)].copy_(f.get_tensor(name))

    def fresh(self, path):
        return touch({self.ctx.key(n, name): t for n, at in self.files(path)
                      for name, t in self.st.load_file(at).items()})


class Fast(Safetensors):
    note = "one loader a file, as names repeat; drops the page cache, its default"

    def start(self):
        super().start()
        import fastsafetensors
        self.fast = fastsafetensors

    def each(self, path):
        for n, at in self.files(path):
            loader = self.fast.SafeTensorsFileLoader(self.fast.SingleGroup(), "cpu", nogds=True)
            loader.add_filenames({0: [at]})
            buffers = loader.copy_files_to_device()
            yield n, buffers, loader

    def load(self, path):
        for n, buffers, loader in self.each(path):
            for name in list(buffers.key_to_rank_lidx):
                self.ctx.target[self.ctx.key(n, name)].copy_(buffers.get_tensor(name))
            buffers.close()
            loader.close()

    def fresh(self, path):
        made = {}
        self.held = []
        for n, buffers, loader in self.each(path):
            for name in list(buffers.key_to_rank_lidx):
                made[self.ctx.key(n, name)] = buffers.get_tensor(name)
            self.held.append((buffers, loader))
        return made

    def drop(self):
        for buffers, loader in self.held:
            buffers.close()
            loader.close()


class Streamer(Safetensors):
    def start(self):
        super().start()
        from runai_model_streamer import SafetensorsStreamer
        self.streamer = SafetensorsStreamer

    def each(self, path, owned):
        known = {(t["name"], t["dtype"]): t["key"] for t in self.ctx.spec["tensors"]}
        short = {"torch.bfloat16": "BF16", "torch.float32": "F32"}
        with self.streamer() as s:
            s.stream_files([at for _, at in self.files(path)], owned=owned)
            for name, t in s.get_tensors():
                yield known[name, short[str(t.dtype)]], t

    def load(self, path):
        for key, t in self.each(path, False):
            self.ctx.target[key].copy_(t)

    def fresh(self, path):
        return dict(self.each(path, True))


class Dcp(Tool):
    syncs = "files"
    threads = 1

    def start(self):
        import torch
        import torch.distributed.checkpoint as dcp
        self.torch, self.dcp = torch, dcp

    def save(self, path):
        self.dcp.save(self.ctx.source, storage_writer=self.dcp.FileSystemWriter(
            path, thread_count=self.threads), no_dist=self.ctx.world == 1)

    def load(self, path):
        self.dcp.load(self.ctx.target, storage_reader=self.dcp.FileSystemReader(path),
                      no_dist=self.ctx.world == 1)


class Dcp2(Dcp):
    threads = 2


class Dcp4(Dcp):
    threads = 4


class DcpAsync(Dcp):
    note = "until the future is done"

    def save(self, path):
        self.dcp.async_save(self.ctx.source, storage_writer=self.dcp.FileSystemWriter(
            path, thread_count=self.threads)).result()


class DcpHf(Dcp):
    """Hugging Face files; on several ranks, shards that are joined afterwards."""
    syncs = "nothing"
    note = "the joined files are not synced by it"

    def start(self):
        super().start()
        self.file = {t["key"]: t["file"] + 1 for t in self.ctx.spec["tensors"]}

    def save(self, path):
        many = self.ctx.world > 1
        self.dcp.save(self.ctx.source, storage_writer=self.dcp.HuggingFaceStorageWriter(
            path, fqn_to_index_mapping=self.file, save_distributed=many,
            enable_consolidation=many, thread_count_consolidation=2 if many else 1),
            no_dist=not many)

    def load(self, path):
        self.dcp.load(self.ctx.target, storage_reader=self.dcp.HuggingFaceStorageReader(path),
                      no_dist=self.ctx.world == 1)


class TorchCheckpointing(Tool):
    direct = True
    note = "CheckpointManager, sync"

    def start(self):
        import torch  # noqa: F401
        import torch_checkpointing as tc
        from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig
        config = tc.CheckpointManager.Config.with_sync_save()
        config.storage_config = LocalFileSystemStorageConfig(use_direct_io=self.direct)
        self.manager = tc.CheckpointManager(config)

    def save(self, path):
        # It renames its own folder to the path, which must not exist.
        done = self.manager.save(os.path.join(path, "step"), {"state": self.ctx.source})
        for future in done if isinstance(done, tuple) else (done,):
            if hasattr(future, "result"):
                future.result()

    def fresh(self, path):
        made = self.manager.load(os.path.join(path, "step"), into={"state": self.ctx.target})
        return touch(made["state"])

    def load(self, path):
        for key, t in self.fresh(path).items():
            if t.data_ptr() != self.ctx.target[key].data_ptr():
                self.ctx.target[key].copy_(t)


class TorchCheckpointingBuffered(TorchCheckpointing):
    direct = False
    note = "CheckpointManager, sync, use_direct_io=False"


class Orbax(Tool):
    syncs = "nothing"
    compress = True
    note = "zstd, its default"

    def start(self):
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import jax  # noqa: F401
        import orbax.checkpoint as ocp
        self.ocp = ocp
        self.source = None

    def checkpointer(self):
        return self.ocp.Checkpointer(self.ocp.PyTreeCheckpointHandler(
            use_compression=self.compress))

    def save(self, path):
        if self.source is None:
            self.source = self.ctx.arrays()
        with self.checkpointer() as saver:
            saver.save(os.path.join(path, "step"), self.source)

    def fresh(self, path):
        import numpy as np
        shape = self.ctx.arrays()
        args = {k: self.ocp.RestoreArgs(restore_type=np.ndarray) for k in shape}
        with self.checkpointer() as loader:
            made = loader.restore(os.path.join(path, "step"), item=shape, restore_args=args)
        return made


class OrbaxPlain(Orbax):
    compress = False
    note = "without compression"


class TensorStore(Tool):
    """One zarr array for each tensor, in one chunk, not compressed."""
    syncs = "files"
    note = "zarr, one chunk a tensor, not compressed"

    def start(self):
        import ml_dtypes  # noqa: F401
        import tensorstore as ts
        self.ts = ts

    def spec(self, path, key):
        return {"driver": "zarr", "kvstore": {"driver": "file",
                                              "path": os.path.join(path, key) + "/"}}

    def save(self, path):
        arrays = self.ctx.arrays()
        made = [self.ts.open(dict(self.spec(path, k), metadata={
            "shape": a.shape, "chunks": a.shape, "compressor": None,
            "dtype": "bfloat16" if a.dtype.name == "bfloat16" else "<f4"}), create=True)
            for k, a in arrays.items()]
        done = [m.result().write(a) for m, a in zip(made, arrays.values())]
        for d in done:
            d.result()

    def fresh(self, path):
        made = {t["key"]: self.ts.open(self.spec(path, t["key"])) for t in self.ctx.spec["tensors"]}
        reads = {k: m.result().read() for k, m in made.items()}
        return {k: r.result() for k, r in reads.items()}


TOOLS = {
    "sheaf": Sheaf, "torch.save": TorchSave, "torch.read": TorchRead, "safetensors": Safetensors,
    "fastsafetensors": Fast, "runai-streamer": Streamer, "dcp": Dcp, "dcp-2": Dcp2, "dcp-4": Dcp4,
    "dcp-async": DcpAsync, "dcp-hf": DcpHf, "torch_checkpointing": TorchCheckpointing,
    "torch_checkpointing-buffered": TorchCheckpointingBuffered,
    "orbax": Orbax, "orbax-plain": OrbaxPlain, "tensorstore": TensorStore,
}
