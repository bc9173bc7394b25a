#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small checkpoints with the real Megatron-Core, on four ranks of this machine (gloo): a
GPTModel with two ranks of tensor parallelism, and its distributed optimizer over two of data
parallelism. What its own loader gives back for each goes to megatron-expected.jsonl, in lines as
make_torch.py writes them. Names in another family than "model" are <family>:<name>.

usage: make_megatron.py FOLDER [NAME ...], the names of those to be made; all

Megatron-Core has its layers and its optimizer for CUDA, and runs on the CPU if it is told that this
is the current device. The version that is installed decides what is made: flat ranges by 0.12.1,
all else by 0.16.1. The files of this folder were made by these two with torch 2.13.0 (CPU) and
Python 3.11.
"""
import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import types
import warnings

warnings.simplefilter("ignore")
try:
    import megatron.core
    import torch
except ImportError:
    print("1..0 # SKIP Megatron-Core is not installed")
    sys.exit(77)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from make_torch import described, listed        # noqa: E402

VERSION = megatron.core.__version__
RANKS, TENSOR, STEPS = 4, 2, 2
KINDS = {"megatron-flat": "fully_sharded_model_space"} if VERSION.startswith("0.12") else {
    "megatron-dist": "fully_reshardable", "megatron-buckets": "dp_reshardable",
    "megatron-ranks": "torch"}
STATES = {"exp_avg": "moment1_0", "exp_avg_sq": "moment2_0"}


def on_the_cpu():
    """Lets Megatron-Core take the CPU for the current CUDA device."""
    from megatron.core import tensor_parallel
    from torch.overrides import TorchFunctionMode

    class Cpu(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if "cuda" in str(kwargs.get("device", "")):
                kwargs["device"] = "cpu"
            return func(*args, **kwargs)

    plain = torch.Tensor.type
    torch.Tensor.type = lambda t, *a, **k: plain(t, *a, **k) if a or k else \
        "torch.cuda." + plain(t).split(".")[-1]
    torch.Tensor.cuda = lambda t, *a, **k: t
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda *a: None
    still = types.SimpleNamespace(fork=lambda *a: contextlib.nullcontext(),
                                  is_initialized=lambda: False)
    tensor_parallel.get_cuda_rng_tracker = lambda *a, **k: still
    Cpu().__enter__()
    if VERSION.startswith("0.12"):              # it is for NumPy 1, an older torch, and a GPU
        import functools

        import numpy
        from megatron.core.dist_checkpointing.strategies import filesystem_async
        from megatron.core.optimizer import distrib_optimizer
        from torch.distributed.checkpoint.filesystem import SerializationFormat
        numpy.product = numpy.prod
        distrib_optimizer.quantize_param_shard = lambda *a, **k: None
        filesystem_async._write_item = functools.partial(
            filesystem_async._write_item, serialization_format=SerializationFormat.TORCH_SAVE)


def model(vocab, tokens, tied=False, **shape):
    """A GPTModel of Llama's kind in BF16. shape: of its TransformerConfig."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        gated_linear_unit=True, activation_func=torch.nn.functional.silu, add_bias_linear=False,
        use_cpu_initialization=True, tensor_model_parallel_size=TENSOR, hidden_dropout=0.0,
        attention_dropout=0.0, bias_activation_fusion=False, masked_softmax_fusion=False,
        bias_dropout_fusion=False, gradient_accumulation_fusion=False, normalization="RMSNorm",
        bf16=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16, **shape)
    return GPTModel(config, get_gpt_layer_local_spec(normalization="RMSNorm"), vocab_size=vocab,
                    max_sequence_length=tokens, position_embedding_type="rope",
                    share_embeddings_and_output_weights=tied).bfloat16()


def trained():
    """A model after some steps of its distributed optimizer."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.parallel_state import get_tensor_model_parallel_rank

    torch.manual_seed(3)
    small = model(22, 6, num_layers=2, hidden_size=8, num_attention_heads=4, num_query_groups=2,
                  ffn_hidden_size=6)
    ddp = DistributedDataParallel(small.config, DistributedDataParallelConfig(
        use_distributed_optimizer=True, overlap_grad_reduce=False), small)
    optimizer = get_megatron_optimizer(OptimizerConfig(
        optimizer="adam", lr=1e-2, bf16=True, params_dtype=torch.bfloat16,
        use_distributed_optimizer=True), [ddp])
    draw = torch.Generator().manual_seed(10 + get_tensor_model_parallel_rank())
    for _ in range(STEPS):
        for buffer in ddp.buffers:
            buffer.grad_data.copy_(torch.randn(buffer.grad_data.shape, generator=draw))
        optimizer.step()
    return small, optimizer


def save(at, kind):
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    on_the_cpu()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=TENSOR)
    model, optimizer = trained()
    tensor = parallel_state.get_tensor_model_parallel_rank()
    data = parallel_state.get_data_parallel_rank()
    state = {"model": model.sharded_state_dict(), "iteration": STEPS, "checkpoint_version": 3.0,
             "args": argparse.Namespace(num_layers=2, hidden_size=8, bf16=True),
             "rng_state": ShardedObject("rng_state", [tensor], (1, TENSOR), (0, tensor),
                                        replica_id=data)}
    how = {"sharding_type": kind} if VERSION.startswith("0.12") else {
        "metadata": {"distrib_optim_sharding_type": kind}}
    state["optimizer"] = optimizer.sharded_state_dict(state["model"], **how)
    if torch.distributed.get_rank() == 0:
        os.makedirs(at)
    torch.distributed.barrier()
    dist_checkpointing.save(state, at)


def save_ranks(at, kind):
    """Writes what save_checkpoint of Megatron-LM does with --ckpt-format torch, for each rank of
    tensor parallelism. It needs GPUs, so the files are put together here."""
    from megatron.core import parallel_state

    on_the_cpu()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=TENSOR)
    model, optimizer = trained()
    tensor = parallel_state.get_tensor_model_parallel_rank()
    state = optimizer.chained_optimizers[0].get_parameter_state_dp_zero()
    if parallel_state.get_data_parallel_rank() == 0:
        folder = os.path.join(at, f"mp_rank_{tensor:02d}")
        os.makedirs(folder)
        torch.save({"args": argparse.Namespace(tensor_model_parallel_size=TENSOR,
                                               pipeline_model_parallel_size=1, num_layers=2),
                    "checkpoint_version": 3.0, "iteration": STEPS, "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "rng_state": [{"torch_rng_state": torch.arange(16, dtype=torch.uint8)}]},
                   os.path.join(folder, "model_optim_rng.pt"))
        torch.save(state, os.path.join(folder, "distrib_optim.pt"))


def load_ranks(at, out):
    found = {}
    for folder in sorted(os.listdir(at)):
        for name in ("model_optim_rng.pt", "distrib_optim.pt"):
            for k, d in listed(torch.load(os.path.join(at, folder, name),
                                          weights_only=False)).items():
                head, _, rest = k.partition(".")
                family = {"model": "", "rng_state": "rng:"}.get(head, "optimizer:")
                k = rest if head in ("model", "rng_state", "optimizer") else k
                found[family + k + "@mp" + folder[len("mp_rank_"):]] = d
    with open(out, "w", encoding="utf-8") as f:
        json.dump(found, f)


def shown(key):
    """The name of a tensor under which Sheaf lists it."""
    if not key.startswith("optimizer."):
        return key
    state, _, name = key[len("optimizer.state."):].partition(".")
    if not key.startswith("optimizer.state."):
        return "optimizer:" + key
    return f"optimizer:{name}/{STATES[state]}" if state in STATES else f"master_weights:{name}"


def load(at, out):
    """What Megatron-Core itself finds there. A flat tensor comes as one row."""
    from megatron.core import dist_checkpointing

    shapes = {k: t.global_shape for k, t in dist_checkpointing.load_tensors_metadata(at).items()}
    found = dist_checkpointing.load_plain_tensors(at)
    with open(out, "w", encoding="utf-8") as f:
        json.dump({shown(k): described(found[k].reshape(shapes[k])) for k in shapes}, f)


def rank(what, number, store, *rest):
    n = RANKS if what.startswith("save") else 1
    torch.distributed.init_process_group("gloo", init_method="file://" + store, rank=int(number),
                                         world_size=n)
    {"save": save, "load": load, "save_ranks": save_ranks, "load_ranks": load_ranks}[what](*rest)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def ranks(what, n, *rest):
    with tempfile.TemporaryDirectory() as at:
        each = [subprocess.Popen([sys.executable, __file__, "--rank", what, str(i),
                                  os.path.join(at, "store"), *rest]) for i in range(n)]
        codes = [p.wait(timeout=400) for p in each]
    assert not any(codes), codes


def main(folder, *names):
    path = os.path.join(folder, "megatron-expected.jsonl")
    lines = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            lines = {x["path"]: x for x in map(json.loads, f)}
    for name in names or KINDS:
        kind = KINDS[name]
        at = os.path.join(folder, name)
        shutil.rmtree(at, ignore_errors=True)
        os.makedirs(at)
        step = os.path.join(at, f"iter_{STEPS:07d}")
        by_rank = "_ranks" if kind == "torch" else ""
        ranks("save" + by_rank, RANKS, step, kind)
        with open(os.path.join(at, "latest_checkpointed_iteration.txt"), "w") as f:
            f.write(str(STEPS))
        with tempfile.TemporaryDirectory() as out:
            ranks("load" + by_rank, 1, step, os.path.join(out, "found"))
            with open(os.path.join(out, "found"), encoding="utf-8") as f:
                lines[name] = {
                    "path": name, "format": "megatron.torch" + ("" if by_rank else "_dist"),
                    "megatron": VERSION, "tensors": json.load(f)}
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(lines[k], separators=(",", ":")) + "\n" for k in sorted(lines))


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        rank(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
