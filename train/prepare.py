#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a token file for sheaf-train with the tokenizer of a model, as `sheaf-train data` makes one
with a token for each byte.

usage: prepare.py IN... -o FILE --tokenizer TOKENIZER [--end TOKEN] [--pattern REGEX] [-j N]

IN         files of text, each of which is a document, and files *.jsonl or *.ndjson, whose lines
           are documents: objects with "text", or with "prompt" and "response", of which the prompt
           does not count as a target
TOKENIZER  a tokenizer.json of Hugging Face, or a file *.tiktoken of ranks, such as qwen.tiktoken
--end      the token that ends each document: a token of tokenizer.json (default <|endoftext|>), or
           the number of a token (default for ranks: the first number after them)
--pattern  how text is split before the ranks are used (default: the pattern of Qwen)
-j         threads (default: all cores)

Until FILE is whole, its parts are in a directory FILE.part. A call that is killed leaves it, and
the next one begins anew, in the same directory; `sheaf-train data` goes on instead.

It needs the Python package tokenizers. In text, tokenizer.json finds special tokens, as it does in
transformers; ranks do not. A prompt and its response are tokenized apart.
"""
import argparse
import array
import base64
import fcntl
import heapq
import json
import os
import shutil
import struct
import sys

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")
BATCH_CHARACTERS = 1 << 20              # that are tokenized at once
LINE_MAX = 256 << 20                    # bytes of a line of JSONL


class Bad(Exception):
    """What is wrong with the input, as one sentence."""


# ---- documents ----

def parse(line, where):
    """The prompt and the text of a line; None is no prompt."""
    def fail(why):
        raise Bad("%s: %s; correct the line or remove it" % (where, why))

    def unique(pairs):
        if len(dict(pairs)) < len(pairs):
            fail("it has a key twice")
        return dict(pairs)

    def constant(name):                 # NaN and the like, which Python would take
        raise ValueError(name)

    try:
        values = json.loads(line, object_pairs_hook=unique, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        fail("it is not JSON: %s" % error)
    if not isinstance(values, dict):
        fail("it is not an object")
    keys = [k for k in ("text", "prompt", "response") if k in values]
    for key in keys:
        if not isinstance(values[key], str):
            fail("%s is not a string" % key)
        try:
            values[key].encode()
        except UnicodeEncodeError:
            fail("%s has half of a surrogate pair" % key)
    if keys not in (["text"], ["prompt", "response"]):
        fail("it must have text, or prompt and response")
    return values.get("prompt"), values.get("text", values.get("response"))


def decode(data, where):
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Bad("%s: it is not UTF-8: %s; convert it" % (where, error)) from None


def documents(paths):
    """All documents, in order: (prompt or None, text)."""
    for path in paths:
        with open(path, "rb") as f:
            if not path.endswith((".jsonl", ".ndjson")):
                yield None, decode(f.read(), path)
                continue
            for i, line in enumerate(iter(lambda: f.readline(LINE_MAX + 1), b""), 1):
                where = "%s: line %d" % (path, i)
                if len(line) > LINE_MAX:
                    raise Bad("%s has more than %d bytes; make several documents of it, or a file "
                              "of text" % (where, LINE_MAX))
                if line.strip():
                    yield parse(decode(line, where), where)


# ---- tokenizers ----

def is_number(end):
    return end.isascii() and end.isdecimal()


def number_of(end):
    if len(end) > 10 or int(end) >= 1 << 32:
        raise Bad("--end %.40s: the number of a token must be below 2^32" % end)
    return int(end)


class HuggingFace:
    def __init__(self, tokenizers, path, end):
        try:
            self.tokenizer = tokenizers.Tokenizer.from_file(path)
        except Exception as error:      # the package raises no narrower type
            raise Bad("%s: it is not a tokenizer.json: %s" % (path, error)) from None
        # They are of the inputs of a model, and would cut documents or add tokens to them.
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        end = end or "<|endoftext|>"
        self.end = number_of(end) if is_number(end) else self.tokenizer.token_to_id(end)
        if self.end is None:
            raise Bad("%s: it has no token %s; name the one that ends documents with --end" %
                      (path, end))
        # The numbers of tokens may have gaps, so there may be fewer tokens than that.
        self.size = max([self.end, *self.tokenizer.get_vocab(with_added_tokens=True).values()]) + 1

    def encode(self, texts):
        return [e.ids for e in self.tokenizer.encode_batch(texts, add_special_tokens=False)]


class Ranks:
    """Byte pair encoding: of all neighbours those are joined first whose whole has the least rank,
    and of equal ones the leftmost."""

    def __init__(self, tokenizers, path, end, pattern):
        self.ranks = {}
        with open(path, "rb") as f:
            for i, line in enumerate(f, 1):
                try:
                    token, rank = line.split()
                    self.ranks[base64.b64decode(token, validate=True)] = int(rank)
                except ValueError:
                    raise Bad("%s: line %d: it must be a token in base64 and its rank" %
                              (path, i)) from None
        if any(bytes([b]) not in self.ranks for b in range(256)):
            raise Bad("%s: it must have each of the 256 bytes as a token" % path)
        if end and not is_number(end):
            raise Bad("--end %s: a file of ranks has no names; give the number of the token" % end)
        self.end = number_of(end) if end else max(self.ranks.values()) + 1
        self.size = max(max(self.ranks.values()), self.end) + 1
        self.split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern or QWEN), "isolated")
        self.words = {}

    def join(self, word):
        """The ranks of the parts of a word that remain when no two neighbours can be joined."""
        n = len(word)
        parts = [bytes([b]) for b in word]      # None: it was joined to the part before it
        before, after = list(range(-1, n - 1)), list(range(1, n + 1))   # the neighbours of each
        pairs = []                      # a heap: rank, the first part, bytes of both

        def offer(i):
            pair = parts[i] + parts[after[i]] if i >= 0 and after[i] < n else None
            if pair in self.ranks:
                heapq.heappush(pairs, (self.ranks[pair], i, pair))

        for i in range(n):
            offer(i)
        while pairs:
            _, i, pair = heapq.heappop(pairs)
            j = after[i]
            if parts[i] is None or j == n or parts[i] + parts[j] != pair:
                continue                # one of the two was joined to another part before
            parts[i], parts[j], after[i] = pair, None, after[j]
            if after[i] < n:
                before[after[i]] = i
            offer(before[i])
            offer(i)
        return [self.ranks[p] for p in parts if p is not None]

    def word(self, text):
        ids = self.words.get(text)
        if ids is None:
            data = text.encode()
            ids = [self.ranks[data]] if data in self.ranks else self.join(data)
            if len(self.words) < 1 << 20:
                self.words[text] = ids
        return ids

    def encode(self, texts):
        return [[i for word, _ in self.split.pre_tokenize_str(text) for i in self.word(word)]
                for text in texts]


# ---- the file ----

PARTS = ("tokens", "mask", "whole")     # the files in the directory of the parts


def check_names(inputs, out, folder):
    """Refuses to write OUT and its parts where an input is, or something that is not a file, or
    that no earlier call has left."""
    for path in [out] + [os.path.join(folder, name) for name in PARTS]:
        if os.path.exists(path) and any(os.path.samefile(path, i) for i in inputs):
            raise Bad("%s: it is an input, too; write to another file" % path)
    if os.path.exists(out) and not os.path.isfile(out):
        raise Bad("%s: it exists and is not a file; write to another file" % out)
    if os.path.lexists(folder) and (
            os.path.islink(folder) or not os.path.isdir(folder) or
            any(e.name not in PARTS or not e.is_file(follow_symlinks=False)
                for e in os.scandir(folder))):
        raise Bad("%s: it is in the way, and no earlier call has left it; move it, or write to "
                  "another file" % folder)


def lock(folder):
    """Makes the directory, and keeps other calls out of it until this process ends."""
    try:
        os.mkdir(folder)
    except FileExistsError:
        pass
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise Bad("%s: another call is writing there; wait for it, or write to another file" %
                  folder) from None
    return fd


class Writer:
    """Tokens and masks go to files of their own, because the header comes before them and has their
    number."""

    def __init__(self, path, inputs, tokenizer, name):
        self.path, self.name, self.end = path, name, tokenizer.end
        self.kind = "H" if tokenizer.size <= 1 << 16 else "I"
        self.begins, self.n, self.masked = array.array("q"), 0, False
        self.folder = path + ".part"
        check_names(inputs, path, self.folder)
        self.lock = lock(self.folder)
        self.parts = [os.path.join(self.folder, name) for name in PARTS]
        self.tokens, self.mask = (open(p, "wb") for p in self.parts[:2])

    def put(self, ids, counts):
        ids = array.array(self.kind, ids)
        if sys.byteorder == "big":
            ids.byteswap()
        self.tokens.write(ids.tobytes())
        self.mask.write((b"\1" if counts else b"\0") * len(ids))
        self.n += len(ids)

    def document(self, prompt, text):
        self.begins.append(self.n)
        if prompt is not None:
            self.masked = True
            self.put(prompt, False)
        self.put(text, True)
        self.put([self.end], True)

    def header(self):
        size, tensors, at = array.array(self.kind).itemsize, {}, 0
        listed = [("documents", "I64", len(self.begins), 8),
                  ("tokens", "U16" if size == 2 else "U32", self.n, size)]
        for name, dtype, n, bytes_each in listed + [("mask", "U8", self.n, 1)] * self.masked:
            end = at + n * bytes_each
            tensors[name] = {"dtype": dtype, "shape": [n], "data_offsets": [at, end]}
            at = end
        text = json.dumps({"__metadata__": {"tokenizer": self.name}, **tensors},
                          separators=(",", ":")).encode()
        return text + b" " * (-len(text) % 8)

    def finish(self):
        self.tokens.close()
        self.mask.close()
        self.begins.append(self.n)
        if sys.byteorder == "big":
            self.begins.byteswap()
        with open(self.parts[2], "wb") as f:
            header = self.header()
            f.write(struct.pack("<Q", len(header)) + header)
            self.begins.tofile(f)
            for part in self.parts[:1 + self.masked]:
                with open(part, "rb") as source:
                    shutil.copyfileobj(source, f, 1 << 20)
            f.flush()
            os.fsync(f.fileno())
        os.rename(self.parts[2], self.path)

    def clean(self):
        for f in self.tokens, self.mask:
            f.close()
        for part in self.parts:
            if os.path.exists(part):
                os.unlink(part)
        os.rmdir(self.folder)
        os.close(self.lock)


def put_batch(writer, tokenizer, batch):
    texts = [t for pair in batch for t in pair if t is not None]
    ids = iter(tokenizer.encode(texts))
    for prompt, _ in batch:
        writer.document(None if prompt is None else next(ids), next(ids))


def prepare(paths, tokenizer, writer):
    batch, characters = [], 0
    for prompt, text in documents(paths):
        batch.append((prompt, text))
        characters += len(text) + len(prompt or "")
        if characters >= BATCH_CHARACTERS:
            put_batch(writer, tokenizer, batch)
            batch, characters = [], 0
    put_batch(writer, tokenizer, batch)
    writer.finish()


def arguments():
    p = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0],
                                epilog=__doc__.split("\n\n", 2)[2],
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("IN", nargs="+")
    p.add_argument("-o", required=True, metavar="FILE")
    p.add_argument("--tokenizer", required=True)
    p.add_argument("--end")
    p.add_argument("--pattern")
    p.add_argument("-j", type=int, default=os.cpu_count() or 1)
    return p.parse_args()


def main():
    args = arguments()
    # The package reads these when it is imported.
    os.environ.update(RAYON_NUM_THREADS=str(max(args.j, 1)), TOKENIZERS_PARALLELISM="true")
    try:
        import tokenizers
    except ImportError:
        print("prepare.py: the Python package tokenizers is not installed; install it",
              file=sys.stderr)
        return 2
    writer = None
    try:
        tokenizer = Ranks(tokenizers, args.tokenizer, args.end, args.pattern) \
            if args.tokenizer.endswith(".tiktoken") else \
            HuggingFace(tokenizers, args.tokenizer, args.end)
        writer = Writer(args.o, args.IN + [args.tokenizer], tokenizer,
                        os.path.basename(args.tokenizer))
        prepare(args.IN, tokenizer, writer)
    except (Bad, OSError) as error:
        print("prepare.py: %s" % error, file=sys.stderr)
        return 2
    finally:
        if writer:
            writer.clean()
    print("%s: %d tokens, %d documents" % (args.o, writer.n, len(writer.begins) - 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
