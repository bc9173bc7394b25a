# SPDX-License-Identifier: Apache-2.0
"""Facts for ./demo: reads events, compares files, asks fio and transformers."""
import glob
import json
import os
import random
import shutil
import subprocess
import sys

import numpy as np
from safetensors import safe_open


def size(n):
    return "%.1f MB" % (n / 1e6) if n < 1e9 else "%.2f GB" % (n / 1e9)


def event(path, name):
    with open(path, encoding="utf-8") as f:
        found = [e for e in map(json.loads, f) if e["event"] == name]
    if not found:
        sys.exit("no event %s in %s" % (name, path))
    return found[-1]


def tell_event(path, name):
    e = event(path, name)
    speed = e["bytes"] / max(e["seconds"], 1e-9)
    text = "%s in %.2f s, %s/s" % (size(e["bytes"]), e["seconds"], size(speed))
    if name == "loaded":
        if e.get("source") == "memory":
            text += ", from memory, %d bytes from the disk" % e["disk_bytes"]
        text += ", {:,} values checked, none wrong".format(e["checked_items"])
        if not e["checked_items"]:
            sys.exit("no value was checked")
    print(text)


def tell_model(path):
    files = glob.glob(os.path.join(path, "*.safetensors"))
    tensors = items = 0
    for name in files:
        with safe_open(name, framework="np") as f:
            for key in f.keys():
                tensors += 1
                items += int(np.prod(f.get_slice(key).get_shape()))
    total = sum(map(os.path.getsize, files))
    print("  {:,} parameters in {} tensors, {}; with Adam's two moments {}".format(
        items, tensors, size(total), size(total * 3)))


def moment(path, seed, attempt):
    """Prints when to kill: a random time within the first save, earlier with each attempt."""
    most = event(path, "saved")["seconds"] * 0.8 ** int(attempt)
    print("%.3f" % random.Random("%s/%s" % (seed, attempt)).uniform(most / 8, most))


def killed(path):
    """The last step that a killed job said was committed, and how many were to memory alone."""
    with open(path, encoding="utf-8") as f:
        found = [json.loads(line) for line in f]
    memory = sum(e["event"] == "saved" and e["to"] == "memory" for e in found)
    print(max(e["step"] for e in found if e["event"] == "committed"), memory)


def restarted(path):
    e = event(path, "loaded")
    if e["source"] != "memory" or e["disk_bytes"]:
        sys.exit("it came from %s, %d bytes from the disk" % (e["source"], e["disk_bytes"]))
    print(e["step"])


def newest():
    steps = [e["step"] for e in map(json.loads, sys.stdin) if e["state"] == "committed"]
    print(max(steps, default="none"))


def tensors_of(path):
    for name in sorted(glob.glob(os.path.join(path, "*.safetensors"))):
        with safe_open(name, framework="np") as f:
            for key in f.keys():
                yield key, f.get_tensor(key)


def compare(original, step):
    want, have = dict(tensors_of(original)), dict(tensors_of(step))
    if set(want) != set(have):
        sys.exit("names differ: %s" % sorted(set(want) ^ set(have)))
    for key, a in want.items():
        b = have[key]
        if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
            sys.exit("%s differs from the original" % key)
    for name in ("config.json", "tokenizer.json"):
        with open(os.path.join(original, name), "rb") as a, \
                open(os.path.join(step, name), "rb") as b:
            if a.read() != b.read():
                sys.exit("%s differs from the original" % name)
    moments = dict(tensors_of(os.path.join(step, "optimizer")))
    print("safetensors (Python, NumPy): %d tensors equal to the published ones bit for bit, "
          "%d moments beside them" % (len(want), len(moments)))


def last_step(seed, steps):
    """Prints the step after which the job is killed: one in the middle third."""
    print(random.Random("%s/training" % seed).randint(int(steps) // 3, int(steps) * 2 // 3))


def resumed(path):
    e = event(path, "start")
    if not e["step"]:
        sys.exit("it began anew")
    print("go on from step %d, of %s" % (e["step"], e["resumed_from"]))


def write(checkpoint, tokenizer):
    """Opens a checkpoint in transformers, and prints what its model writes: always the token that
    it finds most likely."""
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    words = PreTrainedTokenizerFast(tokenizer_file=tokenizer)
    begin = words("And God said unto", return_tensors="pt").input_ids
    text = words.decode(model.generate(begin, do_sample=False, max_new_tokens=40)[0])
    print("  transformers opens the checkpoint, and its model writes:\n    %s" %
          " ".join(text.split()))


ENGINES = (("io_uring", 1), ("libaio", 1), ("psync", 1), ("io_uring", 0), ("psync", 0))


def fio_job(folder, sizes, how, engine, direct):
    job = ["[global]", "ioengine=" + engine, "direct=%d" % direct, "bs=8M", "iodepth=8",
           "rw=" + how, "directory=" + folder, "fallocate=native", "end_fsync=1", "thread"]
    for i, n in enumerate(sizes):
        job += ["[f%d]" % i, "filename=f%d" % i, "size=%d" % n]
    done = subprocess.run(["fio", "--output-format=json", "-"], input="\n".join(job), text=True,
                          capture_output=True)
    if done.returncode:
        return None
    jobs = json.loads(done.stdout[done.stdout.index("{"):])["jobs"]
    if any(j["error"] for j in jobs):
        return None
    ms = max(j["job_runtime"] for j in jobs)
    return sum(j[how]["io_bytes"] for j in jobs) / max(ms, 1) * 1e3


def fio(step, saved, loaded):
    names = glob.glob(os.path.join(step, "**", "*.safetensors"), recursive=True)
    sizes = sorted((os.path.getsize(n) + 4095) // 4096 * 4096 for n in names)
    folder = os.path.join(os.path.dirname(saved), "fio")
    os.makedirs(folder)
    for engine, direct in ENGINES:
        write = fio_job(folder, sizes, "write", engine, direct)
        read = write and fio_job(folder, sizes, "read", engine, direct)
        if read:
            break
    else:
        sys.exit("fio would not run on this disk")
    shutil.rmtree(folder)
    print("  fio: %s, %s, the step's own %d files" % (engine, "direct" if direct else "buffered",
                                                      len(sizes)))
    rows = (("save, until it survives power loss", event(saved, "saved"), write),
            ("load at tp=4, nothing in memory before", event(loaded, "loaded"), read))
    for what, e, disk in rows:
        mine = e["bytes"] / max(e["seconds"], 1e-9)
        print("    %-40s %7.0f MB/s   fio %7.0f MB/s   %.2f of it" % (what, mine / 1e6, disk / 1e6,
                                                                     mine / disk))


if __name__ == "__main__":
    {"model": tell_model, "event": tell_event, "moment": moment, "newest": newest,
     "killed": killed, "restarted": restarted, "compare": compare, "last_step": last_step,
     "resumed": resumed, "write": write, "fio": fio}[sys.argv[1]](*sys.argv[2:])
