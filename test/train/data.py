#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Token files of `sheaf-train data` and of train/prepare.py: what is in them, whatever the number
of threads, and what is said of inputs that are not good. Prints TAP; what needs the Python package
tokenizers is left out by name where it is not installed.

usage: data.py SHEAF-TRAIN
"""
import base64
import json
import os
import random
import resource
import struct
import subprocess
import sys
import tempfile

from trainrun import ROOT, Claims

END = 256
PREPARE = os.path.join(ROOT, "train/prepare.py")


class World:
    def __init__(self, program, at):
        self.program, self.at, self.claims = program, at, Claims()

    def path(self, name):
        return os.path.join(self.at, name)

    def write(self, name, text):
        with open(self.path(name), "wb") as f:
            f.write(text if isinstance(text, bytes) else text.encode())
        return self.path(name)

    def data(self, files, out, *args):
        return subprocess.run([self.program, "data"] + files + ["-o", self.path(out)] + list(args),
                              capture_output=True, text=True)

    def prepare(self, files, out, *args):
        return subprocess.run([sys.executable, PREPARE] + files + ["-o", self.path(out)] +
                              list(args), capture_output=True, text=True)

    def read(self, name):
        """The tensors of a file, as lists."""
        with open(self.path(name), "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            data = f.read()
        kinds = {"U8": "B", "U16": "H", "U32": "I", "I64": "q"}
        return {k: list(struct.unpack("<%d%s" % (v["shape"][0], kinds[v["dtype"]]),
                                      data[slice(*v["data_offsets"])]))
                for k, v in header.items() if k != "__metadata__"}


def inputs(w):
    """Files of text and JSONL, and what they become."""
    rng = random.Random(3)
    words = ["alpha", "beta", "\u20ac", "the", "of", "\U0001f600", "12", "\t\n"]
    texts = [" ".join(rng.choices(words, k=rng.randint(0, 60))) for _ in range(300)]
    pairs = [(None, t) if i % 3 else (t[:len(t) // 2], t[len(t) // 2:])
             for i, t in enumerate(texts)]
    plain = w.write("plain.txt", texts[0])
    lines = w.write("lines.jsonl", "".join(
        json.dumps({"text": t} if p is None else {"prompt": p, "response": t},
                   ensure_ascii=rng.random() < 0.5) + "\n" for p, t in pairs))
    want = {"documents": [0], "tokens": [], "mask": []}
    for prompt, text in [(None, texts[0])] + pairs:
        head, rest = list((prompt or "").encode()), list(text.encode()) + [END]
        want["tokens"] += head + rest
        want["mask"] += [0] * len(head) + [1] * len(rest)
        want["documents"].append(len(want["tokens"]))
    return [plain, lines], want


def of_bytes(w, files, want):
    for jobs in "1", "8":
        done = w.data(files, "bytes" + jobs, "-j" + jobs)
        w.claims.check(done.returncode == 0 and done.stdout == "%s: %d tokens, 301 documents\n" % (
            w.path("bytes" + jobs), len(want["tokens"])), "data -j%s makes a token file" % jobs,
                       done.stdout, done.stderr)
    w.claims.check(w.read("bytes1") == want, "each byte is a token, and prompts are masked")
    w.claims.check(w.read("bytes8") == want, "on eight threads, too")
    w.data(files[:1], "unmasked")
    w.claims.check("mask" not in w.read("unmasked"), "without prompts there is no mask")


def refused(w):
    bad = w.write("bad.jsonl", '{"text": "a"}\n\n{"text": 1}\n')
    for files, args, words in (([bad], (), "bad.jsonl: line 3: text is not a string; correct"),
                               ([bad], ("-j0",), "-j 0: it must be a number of threads"),
                               ([bad], ("--tokenizer", "x.json"), "train/prepare.py"),
                               ([bad], ("-o",), "-o: it needs a value"),
                               ([bad], ("-j",), "-j: it needs a value"),
                               ([bad], ("--tokenizer",), "--tokenizer: it needs a value"),
                               ([bad], ("--fast",), "--fast: there is no such option"),
                               ([w.at], (), "not a file"), ([], (), "data needs files")):
        done = w.data(files, "none", *args)
        w.claims.check(done.returncode == 2 and words in done.stderr and
                       len(done.stderr.splitlines()) == 1 and not done.stdout and
                       not os.path.exists(w.path("none")),
                       "data refuses it: %s" % words, done.stderr)


def too_large(w):
    """The largest size of a file (ulimit -f) is less than the token file needs."""
    text = w.write("large", "x" * 50000)
    done = subprocess.run([w.program, "data", text, "-o", w.path("limited")], capture_output=True,
                          text=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE,
                                                                           (20000, 20000)))
    w.claims.check(done.returncode == 2 and "File too large; run the same command again to "
                   "continue" in done.stderr, "a limit on the size of files is named",
                   done.returncode, done.stderr)


def ranks(tokens):
    return "".join("%s %d\n" % (base64.b64encode(t).decode(), i) for i, t in enumerate(tokens))


def of_a_tokenizer(w, files, want):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from tokenizers.trainers import BpeTrainer
    # Both tokenizers of bytes have the tokens of `sheaf-train data`.
    letters = byte_letters()
    plain = Tokenizer(models.BPE({c: b for b, c in letters.items()}, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    plain.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    plain.save(w.path("bytes.json"))
    w.write("bytes.tiktoken", ranks([bytes([b]) for b in range(256)]))
    for name in "bytes.json", "bytes.tiktoken":
        done = w.prepare(files, name + ".out", "--tokenizer", w.path(name), "-j2")
        w.claims.check(done.returncode == 0 and w.read(name + ".out") == want,
                       "prepare.py with %s has the tokens of data" % name, done.stderr)
    # What tokenizer.json says of the lengths of a model's inputs is not for the tokens of a file.
    plain.enable_truncation(5)
    plain.save(w.path("cut.json"))
    plain.no_truncation()
    plain.enable_padding(pad_id=7)
    plain.save(w.path("padded.json"))
    for name in "cut.json", "padded.json":
        done = w.prepare(files, name + ".out", "--tokenizer", w.path(name))
        w.claims.check(done.returncode == 0 and w.read(name + ".out") == want,
                       "%s is neither cut nor padded" % name, done.stderr)
    # A token may have a number far above the number of tokens.
    far = json.loads(plain.to_str())
    far["model"]["vocab"]["far"] = 70000
    far["added_tokens"] = [{**far["added_tokens"][0], "content": "far", "id": 70000}]
    w.write("far.json", json.dumps(far))
    given = w.write("far.txt", "a far")
    done = w.prepare([given], "far", "--tokenizer", w.path("far.json"), "--end", "256")
    w.claims.check(done.returncode == 0 and w.read("far")["tokens"] == [97, 32, 70000, 256],
                   "numbers of tokens may have gaps", done.stderr)
    # A trained one, as tokenizer.json and as ranks.
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trained.decoder = decoders.ByteLevel()
    trained.train_from_iterator(
        ["alpha beta alphabet the of", "of the \u20ac 1212"] * 9,
        BpeTrainer(vocab_size=300, special_tokens=[], show_progress=False,
                   initial_alphabet=list(letters.values())))
    trained.add_special_tokens([AddedToken("<end>", special=True)])
    trained.save(w.path("trained.json"))
    done = w.prepare(files, "trained", "--tokenizer", w.path("trained.json"), "--end", "<end>")
    got = w.read("trained")
    end = trained.token_to_id("<end>")
    w.claims.check(done.returncode == 0 and got["tokens"].count(end) == 301 and
                   len(got["tokens"]) < 0.8 * len(want["tokens"]) and back(trained, got, end) ==
                   back(None, want, END), "tokens of tokenizer.json become the text again",
                   done.stderr)
    vocab = sorted(trained.get_vocab(with_added_tokens=False).items(), key=lambda x: x[1])
    numbers = {c: b for b, c in letters.items()}
    w.write("trained.tiktoken", ranks([bytes(numbers[c] for c in t) for t, _ in vocab]))
    done = w.prepare(files, "ranks", "--tokenizer", w.path("trained.tiktoken"), "--pattern",
                     r"[\s\S]+", "-j1")
    w.claims.check(done.returncode == 0 and w.read("ranks") == got,
                   "ranks give the tokens of the same merges", done.stderr)
    long = [w.write("long.txt", "alphabeta of the " * 6000)]
    w.prepare(long, "long", "--tokenizer", w.path("trained.json"), "--end", "<end>", "-j1")
    done = w.prepare(long, "ranks", "--tokenizer", w.path("trained.tiktoken"), "--pattern",
                     r"[\s\S]+", "-j1")
    w.claims.check(done.returncode == 0 and w.read("ranks") == w.read("long"),
                   "and of a word of 102000 bytes, within the time of this test", done.stderr)


def byte_letters():
    """The letter by which tokenizer.json writes each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b if b in plain else 256 + others.index(b)) for b in range(256)}


def back(tokenizer, tensors, end):
    """The texts of all documents. Without a tokenizer, tokens are bytes."""
    texts = []
    for a, b in zip(tensors["documents"], tensors["documents"][1:]):
        ids = [t for t in tensors["tokens"][a:b] if t != end]
        texts.append(tokenizer.decode(ids) if tokenizer else bytes(ids).decode())
    return texts


def prepare_refuses(w):
    bad = w.write("bad2.jsonl", '{"text": "a"}\n{"prompt": "a"}\n')
    w.write("short.tiktoken", ranks([b"a"]))
    for name, args, words in (
            ("bytes.json", (), "bad2.jsonl: line 2: it must have text, or prompt and"),
            ("bytes.json", ("--end", "4294967296"), "--end 4294967296: the number of a token must"),
            ("bytes.tiktoken", ("--end", "9" * 5000), ": the number of a token must be below"),
            ("bytes.tiktoken", ("--end", "\u2460"), "a file of ranks has no names"),
            ("bytes.json", ("--end", "\u2460"), "it has no token \u2460"),
            ("short.tiktoken", (), "each of the 256 bytes"),
            ("plain.txt", (), "it is not a tokenizer.json")):
        done = w.prepare([bad], "none", "--tokenizer", w.path(name), *args)
        left = [f for f in os.listdir(w.at) if f.startswith("none")]
        w.claims.check(done.returncode == 2 and words in done.stderr and not left and
                       len(done.stderr.splitlines()) == 1, "prepare.py refuses it: %s" % words,
                       done.stderr, left)
    done = w.prepare([w.path("plain.txt")], "none/out", "--tokenizer", w.path("bytes.json"))
    w.claims.check(done.returncode == 2 and "No such file" in done.stderr and
                   not os.path.exists(w.path("none")),
                   "prepare.py does not make the folder of its output", done.stderr)


def prepare_keeps_inputs(w):
    os.mkdir(w.path("kept.part"))
    for name in "kept", "kept.part/tokens", "kept.part/mask", "kept.part/whole":
        given = w.write(name, "text")
        done = w.prepare([w.path("plain.txt"), given], "kept", "--tokenizer", w.path("bytes.json"))
        with open(given, encoding="utf-8") as f:
            w.claims.check(done.returncode == 2 and f.read() == "text" and
                           done.stderr == "prepare.py: %s: it is an input, too; write to another "
                           "file\n" % given, "prepare.py overwrites no input %s" % name,
                           done.stderr)
        os.unlink(given)
    os.rmdir(w.path("kept.part"))
    os.mkfifo(w.path("other"))
    done = w.prepare([w.path("lines.jsonl")], "other", "--tokenizer", w.path("bytes.json"))
    w.claims.check(done.returncode == 2 and done.stderr == "prepare.py: %s: it exists and is "
                   "not a file; write to another file\n" % w.path("other"),
                   "prepare.py does not write through other", done.stderr)


def prepare_keeps_what_others_left(w):
    part = w.path("mine.part")

    def refuses(what):
        done = w.prepare([w.path("lines.jsonl")], "mine", "--tokenizer", w.path("bytes.json"))
        w.claims.check(done.returncode == 2 and done.stderr == "prepare.py: %s: it is in the way, "
                       "and no earlier call has left it; move it, or write to another file\n" %
                       part and os.path.lexists(part), "prepare.py keeps %s" % what, done.stderr)

    w.write("mine.part", "a file of another program")
    refuses("a file of another program")
    os.unlink(part)
    os.symlink(w.at, part)
    refuses("what a link leads to")
    os.unlink(part)
    os.mkdir(part)
    w.write("mine.part/notes", "text")
    refuses("a directory of another program")
    os.unlink(w.path("mine.part/notes"))
    w.write("mine.part/tokens", "what a call that was killed has left, and more of it " * 10000)
    done = w.prepare([w.path("lines.jsonl")], "mine", "--tokenizer", w.path("bytes.json"))
    other = w.prepare([w.path("lines.jsonl")], "fresh", "--tokenizer", w.path("bytes.json"))
    w.claims.check(done.returncode == other.returncode == 0 and not os.path.exists(part) and
                   w.read("mine") == w.read("fresh"),
                   "prepare.py begins anew where a call was killed", done.stderr, other.stderr)


def prepare_is_alone(w):
    """The first call waits for its input, which is a pipe."""
    os.mkfifo(w.path("slow"))
    first = subprocess.Popen([sys.executable, PREPARE, w.path("slow"), "-o", w.path("both"),
                              "--tokenizer", w.path("bytes.json")], stdout=subprocess.DEVNULL)
    with open(w.path("slow"), "w", encoding="ascii") as f:
        done = w.prepare([w.path("plain.txt")], "both", "--tokenizer", w.path("bytes.json"))
        f.write("some text")
    w.claims.check(done.returncode == 2 and "another call is writing there" in done.stderr and
                   first.wait() == 0 and len(w.read("both")["tokens"]) == 10,
                   "two calls of prepare.py do not write the same file", done.stderr)


def main():
    with tempfile.TemporaryDirectory(prefix="sheaf-data-") as at:
        w = World(os.path.abspath(sys.argv[1]), at)
        files, want = inputs(w)
        of_bytes(w, files, want)
        refused(w)
        too_large(w)
        try:
            import tokenizers
            tokenizers.__version__
        except ImportError as missing:
            w.claims.skip("prepare.py", missing)
            return w.claims.end()
        of_a_tokenizer(w, files, want)
        prepare_refuses(w)
        prepare_keeps_inputs(w)
        prepare_keeps_what_others_left(w)
        prepare_is_alone(w)
        return w.claims.end()


if __name__ == "__main__":
    sys.exit(main())
