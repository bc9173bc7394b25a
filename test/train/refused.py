#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What sheaf-train refuses: options that are wrong or do not fit together, before MPI begins and
anything is written; and surroundings in which it cannot train. Prints TAP.

usage: refused.py SHEAF-TRAIN MPIRUN MPI-WITHOUT-THREADS
"""
import json
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import tempfile

from trainrun import MPI_ARGS, ROOT, Claims

sys.path.insert(0, os.path.join(ROOT, "test", "golden"))
import reader  # noqa: E402

BASE = {"model": "train/models/t0.json", "seq": 37, "batch": 48, "steps": 10, "data": "AT/data",
        "run": "AT/run", "eval-data": None, "save-every": 1000}
# Options that are wrong, and words that the message must have: of both options, if two clash.
WRONG = (
    ({"learning-rate": 1}, "learning-rate: there is no such option"),
    ({"batch": 0}, "batch: it must be a whole number from 1", "not '0'"),
    ({"batch": 2.5}, "batch: it must be a whole number", "not '2.5'"),
    ({"seq": -1}, "seq: it must be a whole number from 1", "not '-1'"),
    ({"lr": "fast"}, "lr: it must be a number", "not 'fast'"),
    ({"lr": "nan"}, "lr: it must be a number", "not 'nan'"),
    ({"beta1": 1}, "beta1: it must be a number from 0 to 0.9999999"),
    ({"eps": 0}, "eps: it must be a number from 1.2e-38"),
    ({"ema": 1}, "ema: it must be a number from 0 to 0.9999999"),
    ({"dropout": 1}, "dropout: it must be a number from 0 to 0.99"),
    ({"shuffle": "yes"}, "shuffle: it must be true or false"),
    ({"dtype": "fp64"}, "dtype: it must be one of fp32|bf16"),
    ({"optimizer": "sgd"}, "optimizer: it must be one of adamw|muon"),
    ({"zero": 3}, "zero: it must be a whole number from 0 to 2"),
    ({"mesh": "{ep: 2}"}, "mesh: it must be such as dp=2,tp=2"),
    ({"mesh": "{dp: 0}"}, "mesh: it must be such as dp=2,tp=2"),
    ({"stages": "3,0"}, "stages: it must be such as 3,2,3"),
    ({"run": None}, "run is not set", "--run"),
    ({"model": None}, "model is not set", "--model"),
    ({"data": None}, "data is not set", "--data"),
    ({"batch": None}, "batch is not set", "--batch"),
    ({"seq": None}, "seq is not set", "--seq"),
    ({"steps": None}, "neither steps nor epochs is set"),
    ({"virtual": "{dp: 10}"}, "virtual dp=10", "batch 48"),
    ({"mesh": "{dp: 5}"}, "mesh dp=5", "batch 48"),
    ({"mesh": "{dp: 2}", "virtual": "{dp: 3}"}, "mesh dp=2", "virtual dp=3"),
    ({"mesh": "{tp: 2}", "virtual": "{dp: 2}"}, "mesh tp=2", "virtual tp=1"),
    ({"mesh": "{tp: 3}"}, "mesh tp=3", "num_key_value_heads 4"),
    ({"virtual": "{dp: 1, tp: 3}"}, "virtual tp=3", "num_key_value_heads 4"),
    ({"virtual": "{pp: 2}"}, "virtual pp=2", "mesh pp=1"),
    ({"mesh": "{pp: 6}"}, "mesh pp=6", "5 layers of model"),
    ({"mesh": "{pp: 2}", "stages": "1,2,2"}, "stages has 3 numbers", "mesh pp=2"),
    ({"mesh": "{pp: 2}", "stages": "3,3"}, "stages has 6 layers", "model", "has 5"),
    ({"sp": "true"}, "sp cuts tokens", "mesh has tp=1"),
    ({"mesh": "{pp: 2}", "chunks": 2}, "chunks 2", "schedule is 1f1b"),
    ({"mesh": "{pp: 2}", "schedule": "interleaved"}, "schedule interleaved", "chunks is 1"),
    ({"schedule": "interleaved", "chunks": 2}, "schedule interleaved", "mesh has pp=1"),
    ({"zero-form": "flat"}, "zero-form flat", "zero is 0"),
    ({"zero": 1, "zero-form": "flat", "optimizer": "muon"}, "optimizer muon", "zero-form flat"),
    ({"eval-every": 5}, "eval-every 5", "eval-data is not set"),
    ({"eval-ema": "true", "eval-data": "AT/data"}, "eval-ema", "ema is 0"),
    ({"eval-ema": "true", "ema": 0.9}, "eval-ema", "eval-data is not set"),
    ({"rewind": "true"}, "rewind", "resume is auto"),
    ({"min-lr": 1}, "min-lr 1", "lr 0.0003"),
    ({"warmup": 11}, "warmup 11", "steps 10"),
    ({"seq": 100000}, "seq 100000", "max_position_embeddings"),
    ({"init": "model"}, "init model", "model", "is a file"),
    ({"model": "AT/none.json"}, "none.json: No such file"),
)


class World:
    def __init__(self, program, mpirun, at):
        self.program, self.mpirun, self.at = program, mpirun, at
        self.claims = Claims()

    def path(self, name):
        return os.path.join(self.at, name)

    def config(self, options):
        """Writes a file of options, and returns its path."""
        with open(self.path("config.yaml"), "w", encoding="utf-8") as f:
            for key, value in {**BASE, **options}.items():
                if value is not None:
                    f.write("%s: %s\n" % (key, str(value).replace("AT", self.at)))
        return self.path("config.yaml")

    def call(self, *args):
        return subprocess.run([self.program] + [str(a) for a in args], text=True, cwd=ROOT,
                              capture_output=True, timeout=60, stdin=subprocess.DEVNULL)

    def run(self, options, *args, ranks=1, env=None, user=None):
        job = [self.program, "run", self.config(options)] + [str(a) for a in args]
        if ranks > 1:
            job = [self.mpirun] + MPI_ARGS + ["-n", str(ranks)] + job
        return subprocess.run(job, text=True, cwd=ROOT, capture_output=True, timeout=60,
                              stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})},
                              user=user)


def is_asan(program):
    with open(program, "rb") as f:
        return b"__asan_init" in f.read()


def wrong_options(w):
    """MPI is told to use components that do not exist, so a message of the trainer alone shows that
    MPI has not begun."""
    no_mpi = {"OMPI_MCA_pml": "none", "OMPI_MCA_ess": "none"}
    done = w.run({}, env=no_mpi)
    w.claims.check(done.returncode not in (0, 2) or "MPI" in done.stderr,
                   "a good configuration reaches MPI", done.returncode, done.stderr)
    for options, *words in WRONG:
        done = w.run(options, env=no_mpi)
        lines = done.stderr.splitlines()
        w.claims.check(done.returncode == 2 and len(lines) == 1 and
                       lines[0].startswith("sheaf-train: ") and
                       all(word in lines[0] for word in words) and
                       not os.path.exists(w.path("run")),
                       "%s is refused" % json.dumps(options), done.returncode, done.stderr)
    for args, words in ((["--sp", "yes"], "--sp: it must be true or false, not 'yes'"),
                        (["--shuffle", "0"], "--shuffle: it must be true or false, not '0'"),
                        (["--rewind", "TRUE"], "--rewind: it must be true or false, not 'TRUE'"),
                        (["--sp", "other.yaml"], "config.yaml: there is a CONFIG already")):
        done = w.call("run", *args, w.config({}))
        w.claims.check(done.returncode == 2 and words in done.stderr and
                       not os.path.exists(w.path("run")), "%s is refused" % args, done.stderr)
    done = w.call("run", w.config({}), "--sp", "maybe")
    w.claims.check(done.returncode == 2 and "--sp: it must be true or false, not 'maybe'" in
                   done.stderr, "a value of a switch is not taken for a CONFIG", done.stderr)
    os.mkdir(w.path("run"))
    for has in [], ["notes"]:
        for name in has:
            open(w.path("run/" + name), "wb").close()
        done = w.run({"warmup": 11}, env=no_mpi)
        w.claims.check(done.returncode == 2 and "warmup 11" in done.stderr and
                       os.listdir(w.path("run")) == has,
                       "a directory with %s gets nothing" % (has or "no file"), done.stderr)
    os.unlink(w.path("run/notes"))
    os.rmdir(w.path("run"))
    done = w.run({"batch": 0}, "--lr", "fast", "--json", env=no_mpi)
    w.claims.check([json.loads(line) for line in done.stdout.splitlines()] == [
        {"event": "error", "code": "EINVAL", "rank": 0,
         "message": done.stderr[len("sheaf-train: "):].rstrip("\n")}],
        "with --json it is an event, too", done.stdout, done.stderr)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    w.claims.check(is_asan(w.program) or peak < 100 << 20, "without any large memory", peak)


# ---- surroundings ----

def tensors_file(path, tensors, cut=None):
    """Writes a safetensors file of name: (type, shape, bytes), or its first `cut` bytes."""
    header, data = {}, b""
    for name, (kind, shape, content) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write((struct.pack("<Q", len(text)) + text + data)[:cut])


def tokens_file(path, ids, cut=None):
    tensors_file(path, {"tokens": ("U16", [len(ids)], struct.pack("<%dH" % len(ids), *ids)),
                        "documents": ("I64", [2], struct.pack("<2q", 0, len(ids)))}, cut)


def model_directory(w, name, change):
    """Copies the model of checkpoint 2 of `good`, with another config.json or other weights."""
    at = w.path(name)
    os.mkdir(at)
    for file in ("config.json", "model-00001-of-00001.safetensors", "model.safetensors.index.json"):
        path = w.path("good/checkpoint-2/" + file)
        if os.path.exists(path) and change.get(file, b"") is not None:
            with open(path, "rb") as f, open(os.path.join(at, file), "wb") as to:
                to.write(change.get(file) or f.read())
    return at


def rename_first(path, old, new):
    with open(path, "rb") as f:
        content = f.read()
    assert content.count(old) >= 1 and len(old) == len(new)
    return content.replace(old, new, 1)


def prepare(w):
    """A run with two checkpoints, and what is wrong with the data, models and runs of others."""
    tokens_file(w.path("data"), [i * i % 523 for i in range(5000)])
    tokens_file(w.path("one-token"), [7])
    tokens_file(w.path("large-ids"), [i % 600 for i in range(5000)])
    tokens_file(w.path("cut"), [1] * 5000, cut=6000)
    open(w.path("empty"), "wb").close()
    os.mkfifo(w.path("fifo"))
    os.mkdir(w.path("with-fifo"))
    os.mkfifo(w.path("with-fifo/tokenizer.json"))
    shutil.copy(os.path.join(ROOT, BASE["model"]), w.path("with-fifo/config.json"))
    with open(w.path("list.json"), "w", encoding="ascii") as f:
        f.write("[1]")
    tensors_file(w.path("short"), {"tokens": ("U16", [5000], bytes(10000)), "documents": (
        "I64", [2], struct.pack("<2q", 0, 4999))})
    tensors_file(w.path("disorder"), {"tokens": ("U16", [5000], bytes(10000)), "documents": (
        "I64", [5], struct.pack("<5q", 0, 400, 200, 600, 5000))})
    with open(w.path("text"), "w", encoding="ascii") as f:
        f.write("no tokens, but text\n" * 500)
    done = w.run({"run": "AT/good", "steps": 2, "save-every": 1})
    w.claims.check(done.returncode == 0, "a training saves two checkpoints", done.stderr)
    weights = w.path("good/checkpoint-2/model-00001-of-00001.safetensors")
    model_directory(w, "no-config", {"config.json": None})
    model_directory(w, "other-kind", {"config.json": b'{"model_type": "gpt2"}'})
    model_directory(w, "no-json", {"config.json": b'{"model_type": '})
    model_directory(w, "no-tensor", {weights.rsplit("/", 1)[1]: rename_first(
        weights, b"layers.1.mlp.up_proj", b"layers.1.mlp.xx_proj"),
        "model.safetensors.index.json": None})
    with open(w.path("good/checkpoint-2/config.json"), encoding="ascii") as f:
        config = json.load(f)
    config["intermediate_size"] += 1
    model_directory(w, "other-shapes", {"config.json": json.dumps(config).encode()})
    for name in ("newer", "damaged", "all-damaged"):
        subprocess.run(["cp", "-r", w.path("good"), w.path(name)], check=True)
    for step in (1, 2):
        path = w.path("newer/checkpoint-%d/sheaf.json" % step)
        content = rename_first(path, b'{"sheaf": 1,', b'{"sheaf": 9,').rsplit(b',\n "self"', 1)[0]
        with open(path, "wb") as f:
            f.write(content + b',\n "self": "%016x"}\n' % reader.std(content))
    for run, steps in (("damaged", (2,)), ("all-damaged", (1, 2))):
        for step in steps:
            os.truncate(w.path("%s/checkpoint-%d/model-00001-of-00001.safetensors" % (run, step)),
                        1000)


def has_avx512_bf16():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        return "avx512_bf16" in f.read()


def missing_isa():
    """Kernels that this CPU does not have, and what the message says of them."""
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        flags = f.read().split()
    for isa in ("avx2", "avx512"):
        if isa + ("" if isa == "avx2" else "f") not in flags and os.uname().machine == "x86_64":
            return isa, "this CPU has no"
    return "neon", "this build has no such kernels"


# What is wrong, options, ranks, exit status, words of the message, and those by which sheaf-train.1
# explains it.
BROKEN = (
    ("ranks that are not those of mesh", {"mesh": "{dp: 3}"}, 2, 2,
     "mesh dp=3, tp=1, pp=1 needs 3 ranks, and the job has 2", "and the job has"),
    ("data that does not exist", {"data": "AT/none"}, 1, 2, "AT/none: No such file",
     "No such file or directory"),
    ("data without a byte", {"data": "AT/empty"}, 1, 1, "AT/empty: not a safetensors file",
     "not a safetensors file"),
    ("a pipe as data", {"data": "AT/fifo"}, 1, 1, "AT/fifo: not a file",
     "not a file ; it is not a regular file"),
    ("a pipe as data of evaluations", {"eval-data": "AT/fifo"}, 1, 1, "AT/fifo: not a file",
     "not a file ; it is not a regular file"),
    ("a pipe as model", {"model": "AT/fifo"}, 1, 2, "AT/fifo: it is not a regular file",
     "it is not a regular file"),
    ("a pipe as tokenizer", {"model": "AT/with-fifo"}, 1, 2,
     "AT/with-fifo/tokenizer.json: it is not a regular file", "it is not a regular file"),
    ("text as data", {"data": "AT/text"}, 1, 1, "AT/text: not a safetensors file",
     "not a safetensors file"),
    ("data that was cut", {"data": "AT/cut"}, 1, 1, "AT/cut: it is too short for its 5000 tokens",
     "it is too short for its"),
    ("data of one token", {"data": "AT/one-token"}, 1, 2, "AT/one-token: it has 1 tokens",
     "and the smallest sample needs 2"),
    ("tokens that the model does not have", {"data": "AT/large-ids"}, 1, 2,
     "AT/large-ids: token 4723 is 523, and the model has a vocab_size of 523",
     "and the model has a vocab_size of"),
    ("documents that are not in order", {"data": "AT/disorder", "document-attention": "true"}, 1, 1,
     "AT/disorder: documents[2] is 200, which is not in order from 0 to 5000",
     "which is not in order from 0"),
    ("data of evaluations with tokens that the model does not have", {"eval-data": "AT/large-ids"},
     1, 2, "AT/large-ids: token 523 is 523, and the model has a vocab_size of 523",
     "and the model has a vocab_size of"),
    ("data of evaluations that does not exist", {"eval-data": "AT/none"}, 1, 2,
     "AT/none: No such file", "No such file or directory"),
    ("fewer samples than a step", {"batch": 480, "steps": None, "epochs": 1}, 1, 2,
     "batch 480 is above the 136 samples of 1 epochs", "so there is no step"),
    ("a warmup of more steps than the epochs have",
     {"warmup": 3, "steps": None, "epochs": 1}, 1, 2, "warmup 3 is above the 2 steps of 1 epochs",
     "warmup N is above the M steps of E epochs"),
    ("a model directory without config.json", {"model": "AT/no-config", "init": "model"}, 1, 2,
     "AT/no-config/config.json: No such file", "No such file or directory"),
    ("a model of another kind", {"model": "AT/other-kind", "init": "model"}, 1, 1,
     "AT/other-kind/config.json: its model_type is neither", "its model_type is neither"),
    ("a config.json that is no JSON", {"model": "AT/no-json", "init": "model"}, 1, 1,
     "AT/no-json/config.json: line 1: not the JSON of a model", "not the JSON of a model"),
    ("a config.json that is a list", {"model": "AT/list.json"}, 1, 1,
     "AT/list.json: not the JSON of a model, which is an object", "not the JSON of a model"),
    ("documents that end before the last token", {"data": "AT/short"}, 1, 1,
     "AT/short: documents end with token 4999, and the file has 5000", "documents end with token"),
    ("a model without a tensor", {"model": "AT/no-tensor", "init": "model"}, 1, 1,
     "AT/no-tensor are not those of its config.json: AT/no-tensor: no tensor",
     "are not those of its config.json"),
    ("a model with tensors of other shapes", {"model": "AT/other-shapes", "init": "model"}, 1, 1,
     "AT/other-shapes are not those of its config.json: model/model.layers.0",
     "are not those of its config.json"),
    ("a run that is a file", {"run": "AT/text"}, 1, 2, "AT/text: creating the run directory",
     "creating the run directory"),
    ("a run of a newer format", {"run": "AT/newer"}, 1, 1, "AT/newer", "newer version"),
    ("a run whose checkpoints are all damaged", {"run": "AT/all-damaged"}, 1, 1,
     "step 2, the latest, is damaged: AT/all-damaged/checkpoint-2/model", "the latest, is damaged"),
    ("a run with later steps", {"run": "AT/good", "resume": "none"}, 1, 2,
     "AT/good has step 2, and the training begins with step 0",
     "and the training begins with step"),
    ("a step that the run does not have", {"run": "AT/good", "resume": "AT/good@7"}, 1, 2,
     "AT/good: no step 7", "no step"),
    ("other data than that of the checkpoint", {"run": "AT/good", "data": "AT/large-ids"}, 1, 2,
     "data AT/large-ids, of 5000 tokens, is not the data of AT/good@2", "is not the data of"),
    ("another model than that of the checkpoint",
     {"run": "AT/good", "model": "train/models/t1.json"}, 1, 2,
     "model train/models/t1.json: vocab_size differs from that in AT/good@2", "differs from"),
    ("another optimizer than that of the checkpoint", {"run": "AT/good", "optimizer": "muon"}, 1, 2,
     "optimizer muon: AT/good@2 was trained with adamw", "was trained with"),
    ("a directory for moments that does not exist", {"offload": "AT/none"}, 1, 2,
     "offload AT/none: No such file", "No such file or directory"),
)


def message(done):
    """The one line that the job writes about itself, or nothing if it advises calls, flags or
    options of the library's API, which a user of the command does not have."""
    lines = [x for x in done.stderr.splitlines() if x.startswith("sheaf-train: ")]
    of_api = re.search(r"\bsheaf_[a-z]|\bSHEAF_[A-Z]|\bopts\.", done.stderr)
    return lines[0][len("sheaf-train: "):] if len(lines) == 1 and not of_api else ""


def words_of_library(w):
    """bindmessages.c replaces parts of messages of the library, whose texts may change."""
    text = r'(?:\s*"(?:\\.|[^"\\])*")+'
    with open(os.path.join(ROOT, "train/run/bindmessages.c"), encoding="utf-8") as f:
        table = f.read().partition("words[] = {")[2].partition("\n};")[0]
    with open(os.path.join(ROOT, "test/messages.txt"), encoding="utf-8") as f:
        messages = f.read()
    rows = ["".join(re.findall(r'"((?:\\.|[^"\\])*)"', row))
            for row in re.findall(r"\{(%s),%s\s*\}" % (text, text), table)]
    w.claims.check(rows and len(rows) == table.count("{"),
                   "the table of bindmessages.c is read", rows)
    gone = [row for row in rows if row not in messages]
    w.claims.check(not gone, "messages of the library have each text that bindmessages.c replaces",
                   *gone)


def broken_surroundings(w):
    with open(os.path.join(ROOT, "doc/man/sheaf-train.1"), encoding="utf-8") as f:
        diagnostics = f.read().partition(".Sh DIAGNOSTICS")[2].split(".Sh ")[0]
    isa, words = missing_isa()
    more = [("kernels that this computer does not have", {"isa": isa}, 1, 2, "isa %s: %s" %
             (isa, words), words)]
    lacks = "instructions for bf16 that this computer does not have"
    if has_avx512_bf16():
        w.claims.skip(lacks, "it has them")
    else:
        more.append((lacks, {"isa": "avx512-bf16", "dtype": "bf16"}, 1, 2, "isa avx512-bf16: this",
                     "avx512-bf16"))
    for what, options, ranks, status, words, listed in (*BROKEN, *more):
        done = w.run({"run": "AT/other", **options}, ranks=ranks)
        w.claims.check(done.returncode == status and words.replace("AT", w.at) in message(done),
                       "%s: the training ends with a message" % what, done.returncode, done.stderr)
        w.claims.check(listed in diagnostics, "which the manual page explains", listed)


def not_writable(w):
    """A run in a directory that belongs to another user."""
    claim = "a run that cannot be written to: the training ends with a message"
    os.mkdir(w.path("read-only"))
    os.chmod(w.path("read-only"), 0o555)
    os.chmod(w.at, 0o755)
    who = {"user": 65534} if os.getuid() == 0 else {}
    try:
        done = w.run({"run": "AT/read-only/run"}, **who)
    except PermissionError:
        w.claims.skip(claim, "root may not become another user here")
        return
    w.claims.check(done.returncode == 2 and "read-only/run" in message(done) and
                   "Permission denied" in message(done), claim, done.stderr)


def without_threads(w, shim):
    """An MPI that was built without threads, of which a library that is preloaded tells."""
    claim = "an MPI without threads: the training ends with a message"
    if is_asan(w.program):
        w.claims.skip(claim, "nothing may be preloaded before ASan")
        return
    done = w.run({"run": "AT/other"}, env={"LD_PRELOAD": shim})
    w.claims.check(done.returncode == 2 and "this MPI does not allow threads" in message(done),
                   claim, done.returncode, done.stderr)


def in_use(w):
    """A second job trains in the same run."""
    first = subprocess.Popen([w.program, "run", w.config({"steps": 100000, "epochs": 100000}),
                              "--run", w.path("shared"), "--json"], stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True, cwd=ROOT)
    first.stdout.readline()
    done = w.run({"run": "AT/shared"})
    first.kill()
    first.communicate()
    w.claims.check(done.returncode == 2 and "shared" in message(done) and
                   "another job has the run open for writing" in message(done),
                   "a run in which another job trains: the training ends with a message",
                   done.returncode, done.stderr)
    with open(w.path("shared/events.jsonl"), encoding="ascii") as f:
        w.claims.check('"event":"error"' not in f.read(),
                       "and the events of the run have only those of the first job")


def no_events(w):
    """The file of events of a run cannot be opened."""
    os.makedirs(w.path("no-events/events.jsonl"))
    done = w.run({"run": "AT/no-events", "steps": 1})
    w.claims.check(done.returncode == 0 and "no-events/events.jsonl: Is a directory; events are "
                   "not written to it" in message(done),
                   "a training without a file of events says so, and continues", done.stderr)


def files_of(folder):
    return sorted((os.path.join(at, name), os.stat(os.path.join(at, name)).st_mtime_ns)
                  for at, _, names in os.walk(folder) for name in names)


def printed(w):
    """--print-config prints the options that the checkpoint hands on, and writes nothing."""
    done = w.run({"run": "AT/handed", "steps": 2, "clip": 0.5, "beta2": 0.5, "ema": 0.5})
    before = files_of(w.path("handed"))
    texts = [w.run(options, "--print-config").stdout.splitlines() for options in (
        {"run": "AT/handed"}, {"run": "AT/absent", "resume": "AT/handed@2"},
        {"run": "AT/absent", "resume": "AT/handed/checkpoint-2"})]
    w.claims.check(done.returncode == 0 and files_of(w.path("handed")) == before and
                   not os.path.exists(w.path("absent")) and
                   all("clip: 0.5" in x and "beta2: 0.5" in x and "steps: 10" in x for x in texts),
                   "--print-config prints what the checkpoint hands on, and writes nothing", *texts)
    plans = [w.call("plan", w.config({"run": run}), "--json").stdout
             for run in ("AT/handed", "AT/absent")]
    trained = w.call("plan", w.config({"run": "AT/absent", "ema": 0.5}), "--json").stdout
    w.claims.check(plans[0] == trained != plans[1] and plans[1],
                   "and plan counts what the checkpoint hands on", *plans, trained)
    with open(w.path("printed.yaml"), "w", encoding="utf-8") as f:
        f.write("\n".join(texts[0]))
    again = w.call("run", w.path("printed.yaml"), "--json")
    changed = [json.loads(x)["changed"] for x in again.stdout.splitlines() if '"start"' in x]
    w.claims.check(again.returncode == 0 and changed == [["steps"]],
                   "and what is printed changes nothing else", changed, again.stderr)
    done = w.run({"run": "AT/handed", "steps": 10, "lr": 0.01, "clip": 1})
    w.claims.check("\nchanged: lr, clip\n" in done.stdout and done.stdout.endswith(
        "\nnothing is left to train: steps is 10; set more steps to go on\n"),
        "a resume prints the options that differ, and that nothing is left to train", done.stdout)
    done = w.call("eval", w.path("printed.yaml"), "--run", w.path("absent"), "--resume",
                  w.path("handed/checkpoint-2"), "--eval-data", w.path("data"))
    w.claims.check(done.returncode == 0 and "of eval-data" in done.stdout and
                   not os.path.exists(w.path("absent")),
                   "eval needs no run where resume names another checkpoint", done.stderr)
    done = w.call("eval", w.path("printed.yaml"), "--run", w.path("absent"), "--resume",
                  w.path("handed@latest"), "--eval-data", w.path("data"))
    w.claims.check(done.returncode == 0 and "step 10" in done.stdout,
                   "RUN@latest is the newest checkpoint of a run", done.stdout, done.stderr)
    done = w.run({"run": "AT/handed", "resume": "AT/handed@latest", "steps": 11}, "--json")
    begins = [json.loads(x)["step"] for x in done.stdout.splitlines() if '"start"' in x]
    w.claims.check(done.returncode == 0 and begins == [10], "also of run itself", begins,
                   done.stderr)
    for resume, words in (("AT/absent@3", "no run directory here"), ("AT/good", "use RUN@STEP"),
                          ("AT/absent@newest", "RUN@latest nor a directory; use one of them"),
                          ("AT/absent@latest", "no run directory here")):
        done = w.run({"run": "AT/handed", "resume": resume})
        w.claims.check(done.returncode in (1, 2) and words in message(done),
                       "resume %s is refused without words of the API" % resume, done.stderr)
    os.mkdir(w.path("no-run"))
    for run in "AT/absent", "AT/no-run":
        done = w.run({"run": run}, "--print-config")
        w.claims.check(done.returncode == 0 and not done.stderr and "\nbeta2: 0.95\n" in
                       done.stdout and not os.path.exists(w.path("absent")) and
                       not os.listdir(w.path("no-run")),
                       "where %s has no checkpoint, the options that were given are printed" % run,
                       done.stderr)
    done = w.run({"run": "AT/handed", "resume": "AT/handed@7"}, "--print-config")
    w.claims.check(done.returncode == 2 and "no step 7" in message(done) and not done.stdout,
                   "a checkpoint that does not exist has no options to print", done.stderr)


def masked(w):
    """A mask that no program of ours makes, and one that leaves no target."""
    ids, ends = struct.pack("<5000H", *(i % 523 for i in range(5000))), struct.pack("<2q", 0, 5000)
    for name, mask in ("mask-7", b"\1" * 4000 + b"\7" * 1000), ("mask-0", bytes(5000)):
        tensors_file(w.path(name), {"tokens": ("U16", [5000], ids), "documents": ("I64", [2], ends),
                                    "mask": ("U8", [5000], mask)})
    done = w.run({"run": "AT/mask-7-run", "data": "AT/mask-7", "shuffle": "false"}, "--json")
    w.claims.check(done.returncode == 1 and "mask[4000] is 7, and must be 1" in message(done) and
                   done.stdout.count('"event":"step"') == 2,
                   "a mask that is neither 0 nor 1 ends the training", done.stderr, done.stdout)
    done = w.run({"run": "AT/mask-0-run", "data": "AT/mask-0", "steps": 3})
    w.claims.check(done.returncode == 0 and message(done).startswith(
        "step 1: no token of its samples counts as a target"),
        "steps without a target are trained, and a message says so once", done.stderr)
    done = w.run({"run": "AT/mask-0-eval", "eval-data": "AT/mask-0", "steps": 1}, "--json")
    w.claims.check(done.returncode == 2 and "AT/mask-0: no token counts as a target".replace(
        "AT", w.at) in message(done) and '"event":"step"' not in done.stdout,
        "data without a target has no loss, which is found before the first step", done.stderr)


def above(w):
    """micro-batch is above the samples that a rank has."""
    for micro, said in ((48, ""), (49, "micro-batch 49 is above the 48 samples that a rank has in "
                                   "a step, so it is 48")):
        done = w.run({"run": "AT/micro", "micro-batch": micro, "steps": 1})
        w.claims.check(done.returncode == 0 and message(done) == said,
                       "micro-batch %d of 48 samples: %s" % (micro, said or "nothing is said"),
                       done.stderr)


def unsaved(w):
    for every, said in (1000, 0), (None, 1):
        done = w.run({"run": "AT/unsaved", "steps": 1, "save-every": every})
        w.claims.check(done.returncode == 0 and done.stderr.count(
            "nothing is saved before the last step") == said,
            "save-every %s: %s is said" % (every, "it" if said else "nothing"), done.stderr)


def questions(w):
    version = r"sheaf-train \d+\.\d+\.\d+\n$"
    for args, words in ((("--version",), version), (("-V",), version), (("help",), "usage: "),
                        (("-h",), "usage: "), (("--help",), "usage: "),
                        (("run", "--help"), "usage: "), (("plot", "-h"), "usage: "),
                        (("eval", "config.yaml", "--help"), "usage: ")):
        done = w.call(*args)
        w.claims.check(done.returncode == 0 and re.match(words, done.stdout) and not done.stderr,
                       "%s is answered" % " ".join(args), done.stdout, done.stderr)


def not_a_number(w):
    """A training that diverges, and saves after each step."""
    done = w.run({"run": "AT/diverges", "lr": 1000, "clip": 0, "steps": 100, "save-every": 1},
                 "--json")
    events = [json.loads(x) for x in done.stdout.splitlines() if x.startswith("{")]
    last = max([e["step"] for e in events if e["event"] == "step"] + [0])
    saved = [e["step"] for e in events if e["event"] == "saved"]
    w.claims.check(done.returncode == 1 and ("step %d: the " % (last + 1)) in message(done) and
                   "is not a number" in message(done) and set(saved) <= set(range(1, last + 1)) and
                   not os.path.exists(w.path("diverges/checkpoint-%d" % (last + 1))),
                   "NaN ends the training before a save, and the message has its step",
                   done.returncode, done.stderr, saved, last)


def main():
    with tempfile.TemporaryDirectory(prefix="sheaf-refused-") as at:
        w = World(os.path.abspath(sys.argv[1]), sys.argv[2], at)
        wrong_options(w)
        prepare(w)
        broken_surroundings(w)
        not_writable(w)
        without_threads(w, os.path.abspath(sys.argv[3]))
        in_use(w)
        no_events(w)
        printed(w)
        masked(w)
        questions(w)
        words_of_library(w)
        unsaved(w)
        above(w)
        not_a_number(w)
        return w.claims.end()


if __name__ == "__main__":
    sys.exit(main())
