#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Has the command export checkpoints, and the software whose format it is open them.

usage: check_exports.py SHEAF FOREIGN DEEPSPEED, checkpoints of other software: one with three
families, and one of DeepSpeed in BF16
Prints TAP. Skips all where torch or NumPy is not installed.
"""
import json
import os
import pickle
import subprocess
import sys
import tempfile
import zipfile

try:
    import numpy
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
except ImportError:
    print("1..0 # SKIP torch or NumPy is not installed")
    sys.exit()

done = [0, 0]
sheaf = sys.argv[1]


def result(ok, claim, why=""):
    done[0] += 1
    done[1] += not ok
    print(f"{'ok' if ok else 'not ok'} {done[0]} - {claim}" + (f" # {why}" if not ok else ""))


def run(*command):
    return subprocess.run([sheaf, *command], capture_output=True, text=True, timeout=120,
                          check=False)


def tensors():
    """One of each type that torch saves, and of each odd shape."""
    torch.manual_seed(3)
    names = ("float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 "
             "uint16 uint32 uint64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz "
             "float8_e8m0fnu").split()
    made = {}
    for name in names:
        dtype = getattr(torch, name)
        size = torch.empty((), dtype=dtype).element_size()
        raw = torch.randint(0, 2 if name == "bool" else 120, (5, 7 * size), dtype=torch.uint8)
        made[f"layers.0.{name}"] = raw.bool() if name == "bool" else raw.view(dtype)
    made["scalar"] = torch.tensor(3.5, dtype=torch.bfloat16)
    made["empty"] = torch.zeros(3, 0, 2)
    made["größe.τ"] = torch.arange(4)
    made["long"] = torch.randn(1100, 1009)      # in two chunks
    made["last"] = torch.randn(3000001).bfloat16()
    return made


def differs(have, want):
    """The first name of which the tensors differ, or None."""
    if have.keys() != want.keys():
        return str(sorted(have.keys() ^ want.keys()))
    for name, x in want.items():
        y = have[name]
        if x.dtype != y.dtype or x.shape != y.shape:
            return f"{name}: {y.dtype} {tuple(y.shape)}"
        raw = [t.contiguous().reshape(-1).view(torch.uint8) for t in (x, y) if t.numel()]
        if raw and not torch.equal(raw[0], raw[1]):
            return name
    return None


def check_torch(at, source, want):
    path = f"{at}/out.pt"
    made = run("convert", source, path, "--format", "torch", "--mem", "1")
    result(made.returncode == 0, "a file for torch.load is written", made.stderr.strip())
    bad = differs(torch.load(path, weights_only=True), want)
    result(bad is None, "torch.load(weights_only=True) gives each tensor", bad or "")
    bad = differs(torch.load(path, weights_only=True, mmap=True), want)
    result(bad is None, "and so it does when it maps the file into memory", bad or "")
    with zipfile.ZipFile(path) as z:
        bad = z.testzip()
    result(bad is None, "Python's zipfile finds each CRC-32 right", bad or "")
    result(run("verify", path).returncode == 0, "and so does sheaf verify")
    result(run("diff", source, path).returncode == 0, "sheaf diff finds no difference")


def load_on_rank(rank, ranks, at, names):
    """Loads the directory as one rank of several, "long" cut into rows; exits with 1 if it is not
    what was saved."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{at}/meet-{ranks}", rank=rank,
                            world_size=ranks)
    want = torch.load(f"{at}/source.pt", mmap=True)
    have = {name: torch.zeros_like(want[name]) for name in names}
    mesh = init_device_mesh("cpu", (ranks,))
    have["long"] = distribute_tensor(torch.zeros_like(want["long"]), mesh, [Shard(0)])
    dcp.load(have, checkpoint_id=f"{at}/dcp")
    mine = have["long"].to_local()
    first = compute_local_shape_and_global_offset(want["long"].shape, mesh, [Shard(0)])[1][0]
    want["long"] = want["long"][first:first + len(mine)]
    have["long"] = mine
    bad = differs(have, want)
    dist.destroy_process_group()
    if bad:
        print(f"# rank {rank} of {ranks}: {bad}", file=sys.stderr)
    os._exit(1 if bad else 0)


def loads_on(ranks, at, names):
    begun = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            try:
                load_on_rank(rank, ranks, at, names)
            except BaseException as e:
                print(f"# rank {rank} of {ranks}: {e!r}", file=sys.stderr)
                os._exit(1)
        begun.append(pid)
    return all([os.waitpid(pid, 0)[1] == 0 for pid in begun])


def check_dcp(at, source, want):
    made = run("convert", source, f"{at}/dcp", "--format", "dcp", "--max-shard-size", "3M")
    result(made.returncode == 0, "a directory for torch.distributed.checkpoint is written",
           made.stderr.strip())
    files = sorted(os.listdir(f"{at}/dcp"))
    result(files == [".metadata", "__0_0.distcp", "__0_1.distcp", "__0_2.distcp"],
           "in files of at most so many bytes, or with one tensor", str(files))
    for ranks in (1, 4):
        result(loads_on(ranks, at, list(want)), f"dcp.load gives each tensor under {ranks} ranks")
    dcp_to_torch_save(f"{at}/dcp", f"{at}/whole.pt")
    bad = differs(torch.load(f"{at}/whole.pt", weights_only=True), want)
    result(bad is None, "dcp_to_torch_save, which needs no state, gives them, too", bad or "")
    result(run("verify", f"{at}/dcp").returncode == 0, "sheaf verify finds each CRC-32 right")
    result(run("diff", source, f"{at}/dcp").returncode == 0, "sheaf diff finds no difference")


def check_npz(at, source, want):
    path = f"{at}/out.npz"
    made = run("convert", source, path, "--format", "npz")
    result(made.returncode == 2 and "BF16" in made.stderr and not os.path.exists(path),
           "types that NumPy does not have are refused by name", made.stderr.strip())
    known = {name: t for name, t in want.items()
             if t.dtype.itemsize > 1 or not t.is_floating_point()}
    torch.save(known, f"{at}/known.pt")
    made = run("convert", f"{at}/known.pt", path, "--format", "npz", "--dtype", "F32")
    result(made.returncode == 0, "with --dtype F32 they are converted", made.stderr.strip())
    with numpy.load(path) as z:         # compares each CRC-32
        have = {name: torch.from_numpy(z[name]) for name in z.files}
    floats = {name: t.float() if t.is_floating_point() else t for name, t in known.items()}
    bad = differs(have, floats)
    result(bad is None, "numpy.load gives each tensor", bad or "")


def check_families(at, source):
    """Several families are dictionaries in one, for torch and for DCP."""
    result(run("export", source, f"{at}/all.pt", "--format", "torch", "--all").returncode == 0,
           "all families are written to one file")
    have = torch.load(f"{at}/all.pt", weights_only=True)
    names = {family: set(tensors) for family, tensors in have.items()}
    shown = json.loads(run("show", source, "--json").stdout)["tensors"]
    want = {f: {t["name"] for t in shown if t["family"] == f} for f in {t["family"] for t in shown}}
    result(names == want and len(want) == 3, "as a dictionary of dictionaries", str(names))
    run("export", source, f"{at}/all-dcp", "--format", "dcp", "--all")
    loaded = {family: {name: torch.zeros_like(t) for name, t in tensors.items()}
              for family, tensors in have.items() if family != "optimizer"}
    keys = {"moment1_0": "exp_avg", "moment2_0": "exp_avg_sq"}
    states = {}
    for name, t in have["optimizer"].items():
        parameter, _, kind = name.rpartition("/")
        states.setdefault(parameter, {})[keys.get(kind, kind)] = torch.zeros_like(t)
    dcp.load({**loaded, "optimizer": {"state": states}}, checkpoint_id=f"{at}/all-dcp",
             no_dist=True)
    loaded["optimizer"] = {name: states[name.rpartition("/")[0]][keys.get(kind, kind)]
                           for name in have["optimizer"] for kind in [name.rpartition("/")[2]]}
    bad = [bad for family in have if (bad := differs(loaded[family], have[family]))]
    result(not bad, "and dcp.load gives the same, state as torch's get_state_dict has it",
           str(bad))
    made = run("export", source, f"{at}/moments.npz", "--format", "npz", "--family", "optimizer")
    with numpy.load(f"{at}/moments.npz") as z:
        loaded = {name: torch.from_numpy(z[name]) for name in z.files}
    bad = differs(loaded, have["optimizer"])
    result(bad is None, "a family with a slash in its names is an archive for NumPy",
           bad or made.stderr.strip())


def safetensors_in(at, family):
    """The tensors that the index of a family lists, as (label, shape, bytes), and the index."""
    with open(f"{at}/{family}.safetensors.index.json") as f:
        index = json.load(f)
    found = {}
    for file in sorted(set(index["weight_map"].values())):
        with open(f"{at}/{file}", "rb") as f:
            header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
            data = f.read()
        assert header.pop("__metadata__") == {"format": "np"}
        end = 0
        for name, t in header.items():          # Paddle's reader wants them in order of place
            assert t["data_offsets"][0] == end
            end = t["data_offsets"][1]
            if index["weight_map"].get(name) == file:
                found[name] = (t["dtype"], t["shape"], data[slice(*t["data_offsets"])])
    assert found.keys() == index["weight_map"].keys()
    return found, index


def check_paddle(at, source):
    """A unified checkpoint of Paddle, from moments without the powers of the betas."""
    made = run("convert", source, f"{at}/uc", "--format", "paddle-uc", "--all",
               "--max-shard-size", "150")
    result(made.returncode == 0, "a unified checkpoint of Paddle is written, and the betas are "
           "those that DeepSpeed noted", made.stderr.strip())
    shown = json.loads(run("show", source, "--json").stdout)["tensors"]
    bad, files = [], set()
    for family in ("model", "master_weights", "optimizer"):
        found, index = safetensors_in(f"{at}/uc", family)
        files |= set(index["weight_map"].values())
        for t in (t for t in shown if t["family"] == family):
            label, shape, data = found.pop(t["name"], (None, None, b""))
            raw = subprocess.run([sheaf, "cat", source, t["name"], "--family", family],
                                 capture_output=True, timeout=120, check=True).stdout
            if (label, shape) != ({"BF16": "U16"}.get(t["dtype"], t["dtype"]), t["shape"]):
                bad.append((t["name"], label, shape))
            if raw != data:
                bad.append(t["name"])
        if family != "optimizer":
            bad += found.keys()
    result(not bad, "with each tensor, and BF16 labelled U16", str(bad))
    result(len(files) > 5, "in files of the size that was asked for", str(files))
    powers = {name: numpy.frombuffer(data, "<f4")[0] for name, (_, _, data) in found.items()}
    want = {f"{t['name'][:-10]}/beta{i}_pow_acc_0": numpy.float32(beta ** 4)
            for t in shown if t["name"].endswith("/moment1_0") for i, beta in ((1, .9), (2, .999))}
    result(powers.keys() == want.keys() and
           all(abs(powers[n] - want[n]) <= 1e-7 * want[n] for n in want),
           "and after 3 updates the powers are those of 4", str(powers))
    result(index["master_weights"] is True, "the index says that there are master weights")
    result(run("diff", f"{at}/uc", f"{at}/uc").returncode == 0, "sheaf reads it")
    run("convert", source, f"{at}/uc5", "--format", "paddle-uc", "--all", "--betas", "0.5,0.25",
        "--step", "2")
    found, _ = safetensors_in(f"{at}/uc5", "optimizer")
    have = {numpy.frombuffer(data, "<f4")[0] for name, (_, _, data) in found.items()
            if "pow_acc" in name}
    result(have == {.5 ** 3, .25 ** 3}, "--step and --betas come before what is noted", str(have))
    torch.save({"ids": torch.zeros(3, dtype=torch.uint16)}, f"{at}/ids.pt")
    made = run("convert", f"{at}/ids.pt", f"{at}/no", "--format", "paddle-uc")
    result(made.returncode == 2 and "U16" in made.stderr, "U16, which Paddle would read as BF16, "
           "is refused", made.stderr.strip())


class OnlyArrays(pickle.Unpickler):
    """Reads a pickle that needs nothing but NumPy's arrays."""
    def find_class(self, module, name):
        assert (module, name) in {("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"),
                                  ("numpy", "dtype")}, (module, name)
        return super().find_class(module, name)


def arrays_in(path):
    """The arrays of a paddle.save file. Each of them is a copy of bytes at a multiple of 8."""
    with open(path, "rb") as f:
        found = OnlyArrays(f).load()
        whole = f.seek(0) or f.read()
    for a in found.values():
        at = 0
        while isinstance(a, numpy.ndarray) and len(a.tobytes()) > 64:
            at = whole.index(a.tobytes(), at)
            if at % 8 == 0:
                break
            at += 1
    return found


class OnlyMetadata(pickle.Unpickler):
    """Reads metadata of a flex checkpoint, whose classes only keep what they are given."""
    def find_class(self, module, name):
        assert module == "paddle.distributed.flex_checkpoint.dcp.metadata", (module, name)
        assert name in {"Metadata", "LocalTensorMetadata", "LocalTensorIndex"}, name
        return type(name, (), {})


def arrays_of_flex(at):
    """The arrays of a flex checkpoint, as its metadata list them."""
    with open(f"{at}/0.metadata", "rb") as f:
        metadata = OnlyMetadata(f).load()
    files = {name: arrays_in(f"{at}/{name}") for name in os.listdir(at) if name != "0.metadata"}
    assert all(name.endswith("_0.distcp") for name in files)
    places = {vars(index)["tensor_key"]: (vars(index), file)
              for index, file in metadata.storage_metadata.items()}
    found = {}
    for key, boxes in metadata.state_dict_metadata.items():
        index, file = places.pop(key)
        a, (box,) = files[file].pop(key), boxes
        assert box.local_shape == box.global_shape == a.shape
        assert box.global_offset == (0,) * a.ndim and not box.is_flattened
        assert box.dtype == {"uint16": "bfloat16"}.get(str(a.dtype), str(a.dtype))
        assert index == {"tensor_key": key, "global_offset": box.global_offset,
                         "is_flattened": False, "flattened_range": None, "replica_id": None,
                         "local_shape": a.shape}
        assert metadata.flat_mapping.pop(key) == (key,)
        found[key] = a
    assert not places and not metadata.flat_mapping and not any(files.values())
    return found


def check_flex(at, source):
    """A flex checkpoint in the folders of a trainer, against a unified one with the same."""
    run("convert", source, f"{at}/uc-whole", "--format", "paddle-uc", "--all")
    made = run("convert", source, f"{at}/fc", "--format", "paddle-fc", "--all",
               "--max-shard-size", "5K")
    result(made.returncode == 0, "a flex checkpoint of Paddle is written", made.stderr.strip())
    bad = []
    for folder, family in (("model_state", "model"), ("optimizer_state", "optimizer"),
                           ("master_weight", "master_weights")):
        found = arrays_of_flex(f"{at}/fc/{folder}")
        for name, (_, shape, data) in safetensors_in(f"{at}/uc-whole", family)[0].items():
            key = {"model": name, "master_weights": name + ".w_0"}.get(
                family, ".".join(name.rsplit("/", 1)))
            a = found.pop(key)
            if list(a.shape) != shape or a.tobytes() != data:
                bad.append(key)
        bad += found
    result(not bad, "in the folders, with the names and with the powers of the betas that its "
           "trainer has", str(bad))
    result(len(os.listdir(f"{at}/fc/optimizer_state")) > 2,
           "in files of the size that was asked for")
    diff = run("diff", f"{at}/uc-whole", f"{at}/fc")
    result(diff.returncode == 0, "sheaf diff finds what the unified checkpoint has", diff.stdout)
    run("convert", source, f"{at}/fc-model", "--format", "paddle-fc")
    result(sorted(os.listdir(f"{at}/fc-model")) == ["0.metadata", "0_0.distcp"] and
           arrays_of_flex(f"{at}/fc-model").keys() ==
           safetensors_in(f"{at}/uc-whole", "model")[0].keys(),
           "one family is written without folders, and with its own names")


def check_paddle_save(at, source, want):
    """One file for paddle.load, which makes BF16 of 16-bit integers without a sign."""
    path = f"{at}/out.pdparams"
    made = run("convert", source, path, "--format", "paddle")
    result(made.returncode == 2 and "of type F8_E4M3" in made.stderr and not os.path.exists(path),
           "types that Paddle does not have are refused by name", made.stderr.strip())
    types = {getattr(torch, name) for name in ("float64 float32 float16 bfloat16 int64 int32 int16 "
                                               "int8 uint8 bool complex64").split()}
    known = {name: t for name, t in want.items() if t.dtype in types}
    torch.save(known, f"{at}/paddle.pt")
    made = run("convert", f"{at}/paddle.pt", path, "--format", "paddle")
    result(made.returncode == 0, "a file for paddle.load is written", made.stderr.strip())
    have = {}
    for name, a in arrays_in(path).items():
        have[name] = torch.from_numpy(a)
        if a.dtype == numpy.uint16:
            have[name] = torch.from_numpy(a.view(numpy.int16)).view(torch.bfloat16)
    bad = differs(have, known)
    result(bad is None and list(have) == list(known), "Python's pickle with NumPy gives each "
           "tensor, in the order of the source", bad or str(list(have)))
    result(run("diff", f"{at}/paddle.pt", path).returncode == 0, "sheaf diff finds no difference")


def check_deepspeed(at, source):
    """A universal checkpoint of DeepSpeed: every file opens without executing anything."""
    made = run("convert", source, f"{at}/ds", "--format", "deepspeed-universal", "--all")
    result(made.returncode == 0, "a universal checkpoint of DeepSpeed is written",
           made.stderr.strip())
    with open(f"{at}/ds/latest_universal") as f:
        folder = f"{at}/ds/{f.read().strip()}"
    files = {os.path.relpath(p, folder) for top, _, names in os.walk(folder)
             for p in (os.path.join(top, n) for n in names)}
    have = {f: torch.load(f"{folder}/{f}", weights_only=True, mmap=True) for f in files}
    shown = json.loads(run("show", source, "--json").stdout)["tensors"]
    kinds = {"exp_avg": "moment1_0", "exp_avg_sq": "moment2_0"}
    bad = []
    for t in (t for t in shown if t["family"] == "master_weights"):
        for kind in ("fp32", "exp_avg", "exp_avg_sq"):
            name = t["name"] + ("/" + kinds[kind] if kind in kinds else "")
            family = "optimizer" if kind in kinds else "master_weights"
            raw = subprocess.run([sheaf, "cat", source, name, "--family", family],
                                 capture_output=True, timeout=120, check=True).stdout
            found = have.pop(f"zero/{t['name']}/{kind}.pt")
            ours = found["param"]
            if found["cat_dim"] != 0 or ours.dtype != torch.float32 or \
                    list(ours.shape) != t["shape"] or ours.numpy().tobytes() != raw:
                bad.append(name)
        if not have.pop(f"zero/{t['name']}/step.pt").equal(torch.tensor(3.)):
            bad.append(t["name"] + "/step")
    result(not bad, "torch.load(weights_only=True) gives each weight, its moments and its updates",
           str(bad))
    model = have.pop("mp_rank_00_model_states.pt")
    empty = have.pop("zero_pp_rank_0_mp_rank_00_model_states.pt")
    state = have.pop("zero/optimizer_state.pt")
    trained = {t["name"]: t["shape"] for t in shown if t["family"] == "master_weights"}
    result(not have and {n: list(x) for n, x in model["param_shapes"][0].items()} == trained and
           model["module"].keys() == {t["name"] for t in shown if t["family"] == "model"} and
           empty.pop("module") == {} and empty.items() <= model.items() and
           model["global_steps"] == 3 and model["lr_scheduler"] is None,
           "the files of the model have what is in no folder", str(have.keys()))
    result(all(g == {"betas": (0.9, 0.999), "params": [i]} for i, g in
               enumerate(state["param_groups"])) and len(state["param_groups"]) >= 100 and
           state["optimizer_state_dict"]["state"] == {0: {"step": 3}},
           "and that of the optimizer has the betas for any number of groups")
    result(run("verify", f"{at}/ds").returncode == 0, "sheaf verify finds each CRC-32 right")
    made = run("convert", source, f"{at}/no", "--format", "deepspeed-universal")
    result(made.returncode == 2 and "--all" in made.stderr and not os.path.exists(f"{at}/no"),
           "without --all it is refused", made.stderr.strip())
    made = run("convert", sys.argv[2], f"{at}/no", "--format", "deepspeed-universal", "--all",
               "--betas", "0.9,0.95")
    result(made.returncode == 2 and "--step" in made.stderr, "without a number of updates, too",
           made.stderr.strip())
    made = run("convert", sys.argv[2], f"{at}/ds2", "--format", "deepspeed-universal", "--all",
               "--betas", "0.9,0.95", "--step", "12")
    result(made.returncode == 0, "a checkpoint of Paddle, whose powers of betas say neither, "
           "is written with both given", made.stderr.strip())
    found = run("diff", sys.argv[2], f"{at}/ds2")
    result(found.returncode == 0, "with all its weights and moments", found.stdout)


def main():
    with tempfile.TemporaryDirectory() as at:
        want = tensors()
        torch.save(want, f"{at}/source.pt")
        check_dcp(at, f"{at}/source.pt", want)
        check_torch(at, f"{at}/source.pt", want)
        check_npz(at, f"{at}/source.pt", want)
        check_paddle_save(at, f"{at}/source.pt", want)
        check_families(at, sys.argv[2])
        check_paddle(at, sys.argv[3])
        check_flex(at, sys.argv[3])
        check_deepspeed(at, sys.argv[3])
    print(f"1..{done[0]}")
    return 1 if done[1] else 0


if __name__ == "__main__":
    sys.exit(main())
