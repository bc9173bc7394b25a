#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the data of the recipe train/configs/kjv.yaml, the King James Bible of Debian's package
bible-kjv, and prints the result of its training as bits per byte.

usage: kjv.py DIR [--text FILE]
       kjv.py DIR --bits EVENTS

The first form writes into DIR, which it creates:
  train.txt, held-out.txt   the verses, one a line, without their references. Verse i is held out if
                            i / 100, rounded down, mod 20 is 7. So 100 verses that follow each other
                            are held out together.
  tokenizer.json            byte pair encoding with 2048 entries, made from train.txt
  train.safetensors, held-out.safetensors   token files for sheaf-train. A document is a sequence of
                            verses that follow each other in the Bible.
It runs `bible`, or takes the output of that program from FILE.

The second form prints how many bits the model needs for a byte of held-out.txt, from the last
evaluation in EVENTS, the events of a training: loss * tokens / bytes / ln 2. All tokens of the text
are counted, and those that end documents.

It needs the Python package tokenizers.
"""
import argparse
import json
import math
import os
import subprocess
import sys

import prepare

BIBLE = ["bible", "-f", "-l", "10000", "Genesis1:1-Rev22:21"]
ENTRIES, END = 2048, "<|endoftext|>"


def read(path):
    """The verses, in order."""
    if path:
        with open(path, encoding="utf-8") as f:
            text = f.read()
    else:
        try:
            text = subprocess.run(BIBLE, check=True, stdout=subprocess.PIPE, text=True).stdout
        except FileNotFoundError:
            raise prepare.Bad("there is no program bible; install Debian's package bible-kjv, or "
                              "give its output with --text") from None
        except subprocess.CalledProcessError as error:
            raise prepare.Bad("%s: exit status %d" % (" ".join(BIBLE), error.returncode)) from None
    verses = [line.partition(" ")[2] for line in text.splitlines()]
    if not all(verses):
        raise prepare.Bad("verse %d has no text; each line must be a reference, a space and the "
                          "verse" % (verses.index("") + 1))
    return verses


def is_held_out(i):
    return i // 100 % 20 == 7


def split(verses):
    """The documents for training and those that are held out."""
    documents = {False: [], True: []}
    before = None
    for i, verse in enumerate(verses):
        held = is_held_out(i)
        if held != before:
            documents[held].append("")
        documents[held][-1] += verse + "\n"
        before = held
    if not documents[True]:
        raise prepare.Bad("there are %d verses, and the first that is held out is the 701st; give "
                          "more text" % len(verses))
    return documents[False], documents[True]


def make_tokenizer(tokenizers, text, path):
    t = tokenizers.Tokenizer(tokenizers.models.BPE())
    t.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = tokenizers.decoders.ByteLevel()
    t.train([text], tokenizers.trainers.BpeTrainer(
        vocab_size=ENTRIES, special_tokens=[END], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    t.save(path)


def make(at, text):
    import tokenizers
    os.makedirs(at, exist_ok=True)
    for name, documents in zip(("train", "held-out"), split(read(text))):
        stem = os.path.join(at, name)
        with open(stem + ".txt", "w", encoding="utf-8") as f:
            f.write("".join(documents))
        path = os.path.join(at, "tokenizer.json")
        if name == "train":
            make_tokenizer(tokenizers, stem + ".txt", path)
        tokenizer = prepare.HuggingFace(tokenizers, path, END)
        writer = prepare.Writer(stem + ".safetensors", [path], tokenizer, "tokenizer.json")
        try:
            # The first token of a file is no target. So it is one that ends a document.
            writer.document(None, [])
            for document in documents:
                prepare.put_batch(writer, tokenizer, [(None, document)])
            writer.finish()
        finally:
            writer.clean()
        print("%s: %d tokens, %d bytes of text" % (
            writer.path, writer.n, os.path.getsize(stem + ".txt")))


def print_bits(at, events):
    with open(events, encoding="utf-8") as f:
        found = [e for e in map(json.loads, f) if e["event"] == "eval"]
    if not found:
        raise prepare.Bad("%s: it has no event eval; train with eval-data" % events)
    e, size = found[-1], os.path.getsize(os.path.join(at, "held-out.txt"))
    print("step %d: %.4f bits per held-out byte (loss %.4f * %d tokens / %d bytes / ln 2)" % (
        e["step"], e["loss"] * e["tokens"] / size / math.log(2), e["loss"], e["tokens"], size))


def main():
    p = argparse.ArgumentParser(usage="kjv.py DIR [--text FILE | --bits EVENTS]",
                                epilog=__doc__.split("\n\n", 2)[2],
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("DIR")
    p.add_argument("--text", metavar="FILE")
    p.add_argument("--bits", metavar="EVENTS")
    args = p.parse_args()
    try:
        if args.bits:
            print_bits(args.DIR, args.bits)
        else:
            make(args.DIR, args.text)
    except ImportError:
        print("kjv.py: the Python package tokenizers is not installed; install it", file=sys.stderr)
        return 2
    except (prepare.Bad, OSError, ValueError) as error:
        print("kjv.py: %s" % error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
