#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""sheaf.load into a given tree, sheaf.open, and what a path means. Prints TAP."""
from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import threading
from typing import Any

import tap
import sheaf


def made() -> dict[str, Any]:
    import numpy as np
    import torch
    return {"model": {"w": torch.arange(12.).reshape(3, 4), "b": np.arange(3, dtype=np.int64)},
            "optimizer": {"state": {0: {"m": torch.ones(3, 4)}, 1: {"m": torch.zeros(2)}},
                          "groups": [{"lr": 0.5, "betas": (0.9, 0.999)}]},
            "step": 7, "seen": b"x" * 70000}


def emptied(tree: Any) -> Any:
    """A tree of the same structure with other values."""
    import numpy as np
    import torch
    if isinstance(tree, dict):
        return {k: emptied(v) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(emptied(v) for v in tree)
    if isinstance(tree, torch.Tensor):
        return torch.full_like(tree, -1)
    return np.full_like(tree, -1) if isinstance(tree, np.ndarray) else None


def equal(a: Any, b: Any) -> bool:
    import numpy as np
    import torch
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else bool(a == b)


@tap.needs("torch", "numpy")
def test_a_given_tree_is_filled() -> None:
    """A load into a tree fills its tensors, dicts and lists in place, and returns it"""
    tree = made()
    with tap.folder() as at:
        sheaf.save(at, tree)
        mine = emptied(tree)
        inner = mine["model"], mine["model"]["w"], mine["optimizer"]["groups"][0]
        assert sheaf.load(at, mine) is mine and equal(mine, tree)
        assert mine["model"] is inner[0] and mine["model"]["w"] is inner[1]
        assert mine["optimizer"]["groups"][0] is inner[2]
        pair = (emptied(tree), 5)
        sheaf.save(at, (tree, "x"))
        found = sheaf.load(at, pair)
        assert found == (pair[0], "x") and found[0] is pair[0] and equal(found[0], tree)


@tap.needs("torch", "numpy")
def test_strided_memory_is_filled() -> None:
    """A load fills views with strides, and nothing between their items"""
    import torch
    with tap.folder() as at:
        t = torch.arange(12.).reshape(3, 4)
        sheaf.save(at, {"x": t})
        whole = torch.full((8, 6), -1.)
        sheaf.load(at, {"x": whole.t()[::2, ::2]})
        assert torch.equal(whole.t()[::2, ::2], t)
        whole.t()[::2, ::2] = -1
        assert bool((whole == -1).all())


@tap.needs("torch", "numpy")
def test_differences_are_found_before_any_byte() -> None:
    """Wrong shapes, types and keys are named with their places, and nothing was changed"""
    import numpy as np
    import torch
    saved = made()
    cases: list[tuple[str, Any, tuple[str, ...]]] = [
        ("shape", {"w": torch.zeros(4, 3)}, ("['model']['w']", "(4, 3)", "(3, 4)")),
        ("dtype", {"w": torch.zeros(3, 4).half()}, ("['model']['w']", "F16", "convert=True")),
        ("missing", {"more": torch.zeros(1)}, ("['model']['more']", "lacks")),
        ("kind", {"w": 5}, ("['model']['w']", "the checkpoint has a tensor")),
        ("special", {"w": np.zeros((3, 2), "c16")}, ("complex128",)),
        ("readonly", {"b": np.frombuffer(b"\0" * 24, np.int64)}, ("read-only",)),
        ("container", {"w": {"x": 1}}, ("['model']['w']",))]
    with tap.folder() as at:
        sheaf.save(at, saved)
        for name, change, words in cases:
            mine = emptied(saved)
            mine["model"].update(change)
            kept = copy.deepcopy(mine)
            with tap.raises(sheaf.Mismatch, *words):
                sheaf.load(at, mine)
            assert equal(mine, kept), name
        mine = emptied(saved)
        del mine["optimizer"]["state"][1], mine["step"]
        with tap.raises(sheaf.Mismatch, "['optimizer']['state'][1]: the checkpoint has it",
                        "['step']"):
            sheaf.load(at, mine)
        mine["model"]["more"] = torch.full((2,), 3.)
        sheaf.load(at, mine, strict=False)
        assert torch.equal(mine["model"]["w"], saved["model"]["w"]) and "step" not in mine
        assert torch.equal(mine["model"]["more"], torch.full((2,), 3.))
        with tap.raises(ValueError, "['model']['w']", "expanded"):
            mine["model"]["w"] = torch.zeros(4).expand(3, 4)
            sheaf.load(at, mine, strict=False)
        half = {"w": torch.zeros(3, 4, dtype=torch.bfloat16)}
        sheaf.load(at, {"model": half}, strict=False, convert=True)
        assert torch.equal(half["w"].float(), saved["model"]["w"])


@tap.needs("torch", "numpy")
def test_checkpoints_of_torch() -> None:
    """A directory of PyTorch DCP and a torch.save file are loaded, and opened"""
    import torch
    here = os.path.dirname(os.path.abspath(__file__))
    golden = os.path.join(here, "..", "..", "test", "golden", "foreign")
    for path in (os.path.join(golden, "dcp-mesh"), os.path.join(golden, "dcp-files")):
        found = sheaf.load(path, framework="pt")
        assert found["model.w"].shape == (11, 7) and found["model.h"].dtype == torch.bfloat16
        with sheaf.open(path, framework="pt") as f:
            assert sorted(f) == sorted(found) and torch.equal(f["model.w"][2:4],
                                                              found["model.w"][2:4])
    with tap.folder() as at:
        path = os.path.join(at, "x.pt")
        torch.save({"w": torch.arange(6.)}, path)
        assert torch.equal(sheaf.load(path, framework="pt")["w"], torch.arange(6.))
        part = os.path.join(at, "part")     # a rank's file alone is no run, either
        os.mkdir(part)
        with open(os.path.join(part, "__0_0.distcp"), "wb") as out:
            out.write(b"x")
        with tap.raises(sheaf.UnknownFormat, part, ".metadata"):
            sheaf.load(part)


@tap.needs("torch", "numpy")
def test_the_framework_is_chosen() -> None:
    """framework="np" or "pt" says what new tensors are"""
    import numpy as np
    import torch
    with tap.folder() as at:
        sheaf.save(at, {"a": np.arange(3.), "b": torch.arange(3), "c": torch.tensor([1j, 2])})
        arrays, tensors = sheaf.load(at, framework="np"), sheaf.load(at, framework="pt")
        assert all(type(x) is np.ndarray for x in arrays.values()), arrays
        assert all(type(x) is torch.Tensor for x in tensors.values()), tensors
        assert arrays["c"].dtype == np.complex64 and tensors["a"].dtype == torch.float64
        with tap.raises(ValueError, "'tf'"):
            sheaf.load(at, framework="tf")


def test_a_module_that_is_not_there() -> None:
    """Tensors that need a module which is not installed are an error with its name"""
    code = """if True:
        import sys
        sys.modules[sys.argv[2]] = None
        import sheaf
        try:
            sheaf.load(sys.argv[1], framework=sys.argv[3])
        except (ImportError, TypeError) as e:
            assert sys.argv[2] in str(e), e
        else:
            raise AssertionError("was loaded")
    """
    with tap.folder() as at:
        import array
        sheaf.save(at, {"x": array.array("f", [1])})
        for module, framework in (("numpy", "np"), ("torch", "pt")):
            subprocess.run([sys.executable, "-c", code, at, module, framework], check=True)


@tap.needs("numpy")
def test_damage_is_an_error() -> None:
    """A byte that changed on disk is sheaf.Corrupt, for a load and for a lazy read"""
    import numpy as np
    with tap.folder() as at:
        sheaf.save(at, {"x": np.arange(1000.)})
        where = os.path.join(at, "checkpoint-0", "model-00001-of-00001.safetensors")
        with open(where, "r+b") as f:
            f.seek(-5, 2)
            f.write(b"\x55")
        with tap.raises(sheaf.Corrupt, "model-00001"):
            sheaf.load(at)
        with tap.raises(sheaf.Corrupt, "model-00001"), sheaf.open(at) as g:
            g.get_tensor("x")


@tap.needs("numpy")
def test_paths() -> None:
    """A path is a run, RUN@STEP, RUN@latest, or the folder of a checkpoint"""
    import numpy as np
    with tap.folder() as at:
        run = os.path.join(at, "run")
        with tap.raises(sheaf.NotFound, run):
            sheaf.load(run)
        assert sheaf.save(run, {"x": np.array(0)}) == 0
        assert sheaf.save(run, {"x": np.array(1)}) == 1
        assert sheaf.save(run + "@5", {"x": np.array(5)}) == 5
        assert sheaf.save(run, {"x": np.array(8)}, step=8) == 8
        assert sheaf.save(os.path.join(run, "checkpoint-9"), {"x": np.array(9)}) == 9
        for path, want in ((run, 9), (run + "@latest", 9), (run + "@5", 5), (run + "/", 9),
                           (os.path.join(run, "checkpoint-1"), 1)):
            assert int(sheaf.load(path)["x"]) == want, path
            with sheaf.open(path) as f:
                assert f.step == want
        with tap.raises(sheaf.NotFound, "4"):
            sheaf.load(run + "@4")
        with tap.raises(sheaf.Exists, "9"):
            sheaf.save(run + "@9", {})
        with tap.raises(sheaf.Invalid, "step=3"):
            sheaf.save(run + "@10", {}, step=3)
        with tap.raises(sheaf.NotFound):
            sheaf.load(os.path.join(at, "no"))


@tap.needs("numpy", "torch", "safetensors")
def test_open_is_safe_open() -> None:
    """sheaf.open answers as safetensors.safe_open does, for NumPy and for torch"""
    import numpy as np
    import torch
    from safetensors import safe_open
    with tap.folder() as at:
        sheaf.save(at, {"a": torch.arange(60.).reshape(3, 4, 5), "b": np.arange(7, dtype="u1"),
                        "s": torch.tensor(2.5), "h": torch.arange(8).to(torch.bfloat16)})
        file = os.path.join(at, "checkpoint-0", "model-00001-of-00001.safetensors")
        indices: list[Any] = [0, -1, slice(0, 2), slice(None), slice(-2, None), Ellipsis,
                              (1, 2), (slice(1, 3), slice(2, 3)), (Ellipsis, 1),
                              (0, slice(1, 3), 4), (slice(5, 9),), (slice(2, 1),)]
        for framework in ("pt", "np"):
            with safe_open(file, framework) as want, sheaf.open(at, framework) as have:
                assert sorted(have.keys()) == sorted(want.keys()) == sorted(have)
                assert have.metadata() == want.metadata()
                for name in want.keys():
                    w, h = want.get_slice(name), have.get_slice(name)
                    assert w.get_shape() == h.get_shape() and w.get_dtype() == h.get_dtype()
                    if framework == "np" and name == "h":
                        continue
                    x, y = want.get_tensor(name), have.get_tensor(name)
                    assert x.dtype == y.dtype and x.shape == y.shape, name
                    assert bool((x == y).all()), name
                for index in indices:
                    y = have["a"][index]
                    x = want.get_tensor("a")[index]
                    assert x.shape == y.shape and bool((x == y).all()), index
                assert have["b"][1:6:2].tolist() == [1, 3, 5] and have["s"][()] == 2.5
        with sheaf.open(at) as f:
            assert "a" in f and "z" not in f and len(f) == 4 and f["a"].shape == (3, 4, 5)
            assert np.asarray(f["b"]).tolist() == list(range(7)) and len(f["b"]) == 7
            for index, kind in (((0,) * 4, IndexError), (3, IndexError), ("x", TypeError),
                                ((Ellipsis, Ellipsis), IndexError),
                                (slice(None, None, -1), ValueError)):
                with tap.raises(kind, "a: "):
                    f["a"][index]
            with tap.raises(KeyError, "z"):
                f["z"]
            late = f["a"]
        with tap.raises(ValueError, "closed"):
            late[0]


@tap.needs("numpy")
def test_parts_are_read_not_the_whole() -> None:
    """A few rows of a large tensor are read without the rest, also of families and pairs"""
    import numpy as np
    with tap.folder() as at:
        x = np.arange(1 << 22, dtype=np.float32).reshape(4096, 1024)
        z = (np.arange(12.) + 1j).reshape(3, 4)
        sheaf.save(at, {"model": {"x": x}, "ema": {"z": z}})
        with sheaf.open(at) as f:
            assert sorted(f) == ["ema/z", "x"]
            before = os.sysconf("SC_PAGE_SIZE") * int(open("/proc/self/statm").read().split()[1])
            assert np.array_equal(f["x"][2000:2004, 5:9], x[2000:2004, 5:9])
            after = os.sysconf("SC_PAGE_SIZE") * int(open("/proc/self/statm").read().split()[1])
            assert after - before < 8 << 20, (before, after)
            assert f["ema/z"].shape == (3, 4) and np.array_equal(f["ema/z"][1:, 2], z[1:, 2])


@tap.needs("numpy")
def test_threads_share_a_reader() -> None:
    """Several threads may read through one object"""
    import numpy as np
    with tap.folder() as at:
        x = np.arange(100000.).reshape(100, 1000)
        sheaf.save(at, {"x": x})
        wrong: list[int] = []
        with sheaf.open(at) as f:
            def read(first: int) -> None:
                for i in range(first, 100, 4):
                    if not np.array_equal(f["x"][i], x[i]):
                        wrong.append(i)
            threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join(60)
        assert not wrong, wrong


@tap.needs("numpy")
def test_a_forked_process_reads() -> None:
    """A process that was forked goes on reading, as the workers of a data loader do"""
    import numpy as np
    with tap.folder() as at:
        x = np.arange(5000.).reshape(50, 100)
        sheaf.save(at, {"x": x})
        with sheaf.open(at) as f:
            assert np.array_equal(f["x"][3], x[3])
            pid = os.fork()
            if pid == 0:
                os._exit(0 if np.array_equal(f["x"][4:9], x[4:9]) else 1)
            assert os.waitpid(pid, 0)[1] == 0
            assert np.array_equal(f["x"][4:9], x[4:9])


@tap.needs("torch", "safetensors")
def test_foreign_files() -> None:
    """A safetensors file and a Hugging Face directory are opened and loaded, by names"""
    import torch
    from safetensors.torch import save_file
    with tap.folder() as at:
        w, b = torch.randn(3, 4), torch.randn(5).to(torch.bfloat16)
        file = os.path.join(at, "model.safetensors")
        save_file({"l.w": w, "b": b}, file)
        for path in (file, at):
            found = sheaf.load(path, framework="pt")
            assert set(found) == {"l.w", "b"} and torch.equal(found["l.w"], w), path
            mine = {"l": {"w": torch.zeros(3, 4)}, "b": torch.zeros(5, dtype=torch.bfloat16)}
            assert sheaf.load(path, mine) is mine and torch.equal(mine["b"], b)
            with sheaf.open(path, "pt") as f:
                assert torch.equal(f["l.w"][1], w[1])
            with tap.raises(sheaf.Mismatch, "['l']['x']", "['b']"):
                sheaf.load(path, {"l": {"w": torch.zeros(3, 4), "x": torch.zeros(1)}})


@tap.needs("torch", "transformers")
def test_a_saved_model_is_one_of_hugging_face() -> None:
    """A flat dict of a model with its config is opened by transformers as it lies"""
    import torch
    from transformers import BertConfig, BertModel
    torch.manual_seed(5)
    config = BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                        intermediate_size=32, max_position_embeddings=16)
    model = BertModel(config)
    with tap.folder() as at:
        sheaf.save(at, model.state_dict(), files={"config.json": config.to_dict()})
        again = BertModel.from_pretrained(os.path.join(at, "checkpoint-0"), local_files_only=True)
        for name, t in model.state_dict().items():
            assert torch.equal(again.state_dict()[name], t), name


def test_files_and_notes() -> None:
    """Files and notes are attached, and read back"""
    with tap.folder() as at:
        other = os.path.join(at, "other.txt")
        with open(other, "w", encoding="utf-8") as f:
            f.write("hello")
        run = os.path.join(at, "run")
        sheaf.save(run, 1, notes={"train/loss": "0.5"}, files={
            "a.bin": b"\0\1", "config.json": {"x": 1}, "other.txt": other})
        with sheaf.Run(run, readonly=True) as r, r.checkpoint() as c:
            assert c.notes()["train/loss"] == "0.5"
            assert set(c.files()) == {"a.bin", "config.json", "other.txt", "tree.json"}
            assert json.loads(c.file("config.json")) == {"x": 1} and c.file("a.bin") == b"\0\1"
            assert c.file("other.txt") == b"hello" and r.steps() == [0]


def test_two_writers_exclude_each_other() -> None:
    """A run that another process writes is sheaf.Busy, and readers go on"""
    with tap.folder() as at:
        with sheaf.Run(at, create=True):
            code = "import sheaf, sys; sheaf.save(sys.argv[1], 1, timeout=0.2)"
            done = subprocess.run([sys.executable, "-c", code, at], capture_output=True, text=True)
            assert done.returncode == 1 and "sheaf.errors.Busy" in done.stderr, done.stderr


@tap.needs("numpy")
def test_objects_are_collected_in_any_order() -> None:
    """Handles that nobody closes are closed when they are collected, and the lock is free"""
    import gc
    import numpy as np
    with tap.folder() as at:
        sheaf.save(at, {"x": np.arange(4)})
        run = sheaf.Run(at)
        state = sheaf.State()
        x = np.arange(4)
        from sheaf import memory
        held = memory.of(x)
        assert held is not None
        state.add("x", held)
        save = run.begin(1, state)
        save.commit()
        checkpoint = run.checkpoint(1)
        del run, x, held
        gc.collect()
        checkpoint.load(state)
        del state, save, checkpoint
        gc.collect()
        with sheaf.Run(at, timeout=0.2) as again:
            assert again.steps() == [0, 1]


@tap.needs("numpy")
def test_ctrl_c_in_a_load() -> None:
    """Ctrl-C ends a call that waits by KeyboardInterrupt, and the run can be opened again"""
    # A load of many bytes, so that the signal meets it; its progress lets Python look.
    code = """if True:
        import numpy, os, sheaf, signal, sys
        x = numpy.zeros(1 << 26, dtype=numpy.uint8)
        sheaf.save(sys.argv[1], {"x": x})
        calls = []
        def progress(stat):
            calls.append(stat)
            if len(calls) == 1:
                os.kill(os.getpid(), signal.SIGINT)
        try:
            sheaf.load(sys.argv[1], {"x": x}, progress=progress)
        except KeyboardInterrupt:
            sheaf.load(sys.argv[1], {"x": x})
            sys.exit(7)
        sys.exit(8 if calls else 9)
    """
    with tap.folder() as at:
        done = subprocess.run([sys.executable, "-c", code, at], capture_output=True, text=True)
        assert done.returncode == 7, (done.returncode, done.stderr)


@tap.needs("torch")
def test_ctrl_c_in_a_save() -> None:
    """Ctrl-C at any moment of a save is a KeyboardInterrupt, and never lost in a callback"""
    code = """if True:
        import os, random, sheaf, signal, sys, threading, time, torch
        m = torch.nn.Linear(900, 900)
        random.seed(1)
        seen = 0
        with sheaf.Checkpointer(sys.argv[1], keep_last=2, grace_s=-1) as ckpt:
            ckpt.track(m)
            start = time.monotonic()
            ckpt.save(1)
            took = time.monotonic() - start
            for i in range(20):
                ends = random.random() * took * 0.7
                try:
                    threading.Timer(ends, os.kill, (os.getpid(), signal.SIGINT)).start()
                    ckpt.save(i + 2)
                    time.sleep(5)
                except KeyboardInterrupt:
                    seen += 1
            ckpt.save(100)
            assert seen == 20 and ckpt.verify() == [], seen
    """
    with tap.folder() as at:
        done = subprocess.run([sys.executable, "-c", code, at], capture_output=True, text=True)
        assert done.returncode == 0 and "Exception ignored" not in done.stderr, done.stderr


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
