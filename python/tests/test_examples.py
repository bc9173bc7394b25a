# SPDX-License-Identifier: Apache-2.0
"""The scripts of python/examples run as their heads say. Prints TAP.

usage: test_examples.py SHEAF, the command
"""
from __future__ import annotations

import os
import re
import subprocess
import sys

import tap
from launched import EXAMPLES, ROOT, Job, losses, run
from tap import folder, needs

SHEAF = os.path.abspath(sys.argv[1])
os.environ["PATH"] = os.path.dirname(SHEAF) + ":" + os.environ["PATH"]
if tap.there("torch"):
    import torch                        # before the scripts are forked
    import torch._dynamo                # torch.optim imports it, each rank by itself
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel
    torch.set_num_threads(1)
    if tap.there("transformers"):
        import transformers.models.auto
        import transformers.models.bert.modeling_bert
        import transformers.models.qwen2.modeling_qwen2


@needs("torch", "transformers")
def test_fsdp2() -> None:
    """fsdp2.py on 2 x 2 ranks goes on in one process, with the losses of one that did not stop."""
    with folder() as at:
        first = run(4, at, "fsdp2.py", "runs/tiny", "--steps", "8", "--every", "3")
        assert "goes on" not in first and sorted(losses(first)) == list(range(8))
        then = run(1, at, "fsdp2.py", "runs/tiny", "--steps", "9", "--every", "3")
        assert "goes on after step 5" in then and sorted(losses(then)) == [6, 7, 8]
        for step in (6, 7):
            assert abs(losses(first)[step] - losses(then)[step]) < 2e-3, (first, then)
        assert losses(then)[8] < losses(first)[0] - 1
        assert sorted(os.listdir(os.path.join(at, "runs", "tiny")))[1:] == [
            "checkpoint-2", "checkpoint-5", "checkpoint-8"]


@needs("torch")
def test_dcp() -> None:
    """dcp.py on 2 ranks goes on in one process, with the losses of one that did not stop."""
    with folder() as at:
        first = run(2, at, "dcp.py", "runs/tiny", "--steps", "8", "--every", "3")
        assert "goes on" not in first and sorted(losses(first)) == list(range(8))
        then = run(1, at, "dcp.py", "runs/tiny", "--steps", "9", "--every", "3")
        assert "goes on after step 5" in then and sorted(losses(then)) == [6, 7, 8]
        for step in (6, 7):
            assert abs(losses(first)[step] - losses(then)[step]) < 2e-3, (first, then)
        assert sorted(os.listdir(os.path.join(at, "runs", "tiny")))[1:] == [
            "checkpoint-2", "checkpoint-5", "checkpoint-8"]


@needs("torch", "transformers")
def test_async() -> None:
    """async.py on 2 ranks is killed, and goes on from memory in one process."""
    with folder() as at:
        try:
            first = run(2, at, "async.py", "runs/tiny", "--steps", "20", "--kill", "6",
                        killed=True)
            assert sorted(losses(first)) == list(range(7)), first
            assert sorted(os.listdir(os.path.join(at, "runs", "tiny")))[1:] == ["checkpoint-0"]
            then = run(1, at, "async.py", "runs/tiny", "--steps", "11")
            assert "goes on after step 6" in then and sorted(losses(then)) == [7, 8, 9, 10], then
            assert losses(then)[7] < losses(first)[6] + 0.1, (first, then)
            counts = {name: int(n) for name, n in
                      re.findall(r"^(committed|in flight|left out|failed) +(\d+)$", then, re.M)}
            assert sum(counts.values()) == 4 and counts["failed"] == 0, then
        finally:
            subprocess.run([SHEAF, "agent", os.path.join(at, "runs", "tiny"), "--stop",
                            "--force"], check=True, capture_output=True)


def small_bert(at: str, texts: list[str]) -> str:
    """A small BERT with a tokenizer of its own for these texts, as a Hugging Face directory."""
    import tokenizers
    from transformers import BertConfig, BertModel
    words = tokenizers.BertWordPieceTokenizer()
    words.train(texts, vocab_size=600, show_progress=False)
    path = os.path.join(at, "bert")
    torch.manual_seed(1)
    BertModel(BertConfig(vocab_size=words.get_vocab_size(), hidden_size=32, num_hidden_layers=2,
                         num_attention_heads=4, intermediate_size=64)).save_pretrained(path)
    words.save(os.path.join(path, "tokenizer.json"))
    with open(os.path.join(path, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        f.write('{"tokenizer_class": "PreTrainedTokenizerFast", "mask_token": "[MASK]"}')
    return path


@needs("torch", "transformers")
def test_finetune() -> None:
    """A fine-tuning of 2 x 2 ranks is killed, and goes on with its losses on 2 ranks, evaluated."""
    from transformers import AutoTokenizer, BertForMaskedLM
    with folder() as at:
        texts = [os.path.join(ROOT, "doc", name) for name in ("design.md", "async.md")]
        given = [small_bert(at, texts), *texts, "--steps", "12", "--disk-every", "4"]
        runs = os.path.join(at, "tuned")
        whole = losses(run(1, at, "finetune.py", os.path.join(at, "whole"), *given))
        with Job(1, at, "held_out.py", runs, *given[:3], "--until", "12") as reader:
            with Job(4, at, "finetune.py", runs, *given) as job:
                job.wait_for("step 6 ")
                job.kill()
                job.wait()
                first = job.said()
            try:
                then = run(2, at, "finetune.py", runs, *given)
                assert reader.wait() == [0], reader.said()
                evaluated = reader.said()
            finally:
                for name in (runs, os.path.join(at, "whole")):
                    subprocess.run([SHEAF, "agent", name, "--stop", "--force"], check=True,
                                   capture_output=True)
        went_on = re.search(r"goes on after step (\d+)\n", then)
        assert went_on is not None, then
        both = losses(first) | losses(then)
        assert sorted(losses(then)) == list(range(int(went_on[1]) + 1, 13)), then
        assert all(abs(both[step] - whole[step]) < 2e-3 for step in both), (both, whole)
        assert "step 12 held-out loss" in evaluated, evaluated
        model, what = BertForMaskedLM.from_pretrained(os.path.join(runs, "checkpoint-12"),
                                                      output_loading_info=True)
        assert not what["missing_keys"] and not what["unexpected_keys"], what
        tokenizer = AutoTokenizer.from_pretrained(os.path.join(runs, "checkpoint-12"))
        assert tokenizer.mask_token_id == 4 and model.config.hidden_size == 32
        picture = os.path.join(at, "curve.svg")
        run(1, at, "curve.py", os.path.join(runs, "losses.jsonl"), picture)
        with open(picture, encoding="utf-8") as f:
            drawn = f.read()
        assert "on 4 ranks" in drawn and "to 12 on 2 ranks" in drawn, drawn


def without_torch(at: str, before: list[str], script: str, *args: str, **env: str) -> str:
    """What a script prints that needs no torch; `before` starts it."""
    done = subprocess.run([*before, sys.executable, os.path.join(EXAMPLES, script), *args],
                          cwd=at, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          env=dict(os.environ, OMP_NUM_THREADS="1", **env))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs("numpy", "mpi4py")
def test_mpi_numpy() -> None:
    """mpi_numpy.py goes on with other ranks, and ends where one that did not stop does"""
    under = [*tap.mpirun(), "-n"]
    with folder() as at:
        first = without_torch(at, [*under, "4"], "mpi_numpy.py", "runs/heat", "--steps", "100")
        assert "goes on" not in first
        then = without_torch(at, [*under, "3"], "mpi_numpy.py", "runs/heat", "--steps", "130")
        whole = without_torch(at, [*under, "1"], "mpi_numpy.py", "runs/whole", "--steps", "130")
        assert "goes on after step 100" in then and then.split("\n")[1:] == whole.split("\n"), \
            (then, whole)


@needs("jax", "optax")
def test_jax_sharded() -> None:
    """jax_sharded.py goes on on other meshes, with the losses of one that did not stop"""
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}

    def run_on(run: str, mesh: str, steps: int) -> dict[int, float]:
        text = without_torch(at, [], "jax_sharded.py", run, "--mesh", mesh, "--steps", str(steps),
                             "--every", "10", **env)
        assert ("goes on after" in text) == (run == "runs/jax" and mesh != "4,2")
        return losses(text)

    with folder() as at:
        found = run_on("runs/jax", "4,2", 10)
        found.update(run_on("runs/jax", "2,4", 20))
        found.update(run_on("runs/jax", "1,1", 25))
        whole = run_on("runs/whole", "8,1", 25)
        assert sorted(found) == sorted(whole) == list(range(1, 26))
        for step in whole:
            assert abs(found[step] - whole[step]) < 1e-3, (step, found, whole)


@needs("paddle")
def test_paddle_sharded() -> None:
    """paddle_sharded.py goes on on other ranks, with the losses of one that did not stop"""
    def run_on(run: str, ranks: int, steps: int) -> str:
        under = ["-m", "paddle.distributed.launch", "--nproc_per_node", str(ranks), "--backend",
                 "gloo", "--log_dir", os.path.join(at, "logs")]
        done = subprocess.run([sys.executable, *under,
                               os.path.join(EXAMPLES, "paddle_sharded.py"), run, "--steps",
                               str(steps)], cwd=at, stdin=subprocess.DEVNULL, text=True,
                              capture_output=True, env=dict(os.environ, OMP_NUM_THREADS="1"))
        with open(os.path.join(at, "logs", "workerlog.0"), encoding="utf-8") as f:
            said = f.read()
        assert done.returncode == 0, said + done.stdout + done.stderr
        return said

    with folder() as at:
        found = losses(run_on("runs/paddle", 2, 5))
        then = run_on("runs/paddle", 4, 10)
        assert "goes on after step 5" in then, then
        found.update(losses(then))
        whole = losses(run_on("runs/whole", 1, 10))
        assert sorted(found) == sorted(whole) == list(range(1, 11))
        for step in whole:
            assert abs(found[step] - whole[step]) < 1e-4, (step, found, whole)


@needs("torch")
def test_megatron() -> None:
    """megatron.py on 2 ranks goes on in one process."""
    with folder() as at:
        first = losses(run(2, at, "megatron.py", "runs/tp", "--steps", "3"))
        then = run(1, at, "megatron.py", "runs/tp", "--steps", "6")
        assert sorted(first) == [0, 1, 2] and "goes on after step 2" in then, then
        assert first[2] > losses(then)[3] and sorted(losses(then)) == [3, 4, 5], (first, then)


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
