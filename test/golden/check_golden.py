#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden runs: reader.py reads them as it did, and neither it nor the library takes broken ones.
Prints TAP.

usage: check_golden.py RUN EXPECTED TEST_GOLDEN     the committed run and list; the C program
       check_golden.py RUN EXPECTED MPIRUN MAKER    today's library makes the same bytes
"""
import filecmp
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import reader

READER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reader.py")
STEPS = 10, 20
MODEL = "model-00001-of-00003.safetensors"
OPTIMIZER = "optimizer/optimizer-00002-of-00002.safetensors"
INDEX = "ema/ema.safetensors.index.json"
done = []


def claim(true, what, why=""):
    done.append(bool(true))
    print("%s %d - %s" % ("ok" if true else "not ok", len(done), what), flush=True)
    if not true:
        print("".join("# %s\n" % line[:300] for line in str(why).splitlines()[:12]), end="")


def call(*argv):
    return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.PIPE, check=False, encoding="utf-8")


def flip(name, at):
    """A bit, `at` of the file's bytes from its start (below 0: from its end)."""
    def damage(step):
        path = os.path.join(step, name)
        with open(path, "r+b") as f:
            f.seek(at if at >= 0 else os.path.getsize(path) + at)
            byte = f.read(1)[0]
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte ^ 0x10]))
    return "a bit of %s at %d" % (name, at), damage


def shorten(name, to):
    def damage(step):
        path = os.path.join(step, name)
        os.truncate(path, to if to >= 0 else os.path.getsize(path) + to)
    return "%s cut to %d" % (name, to), damage


def lengthen(name):
    def damage(step):
        with open(os.path.join(step, name), "ab") as f:
            f.write(b"\0")
    return "%s a byte longer" % name, damage


def remove(name):
    return "%s gone" % name, lambda step: os.unlink(os.path.join(step, name))


def add(name):
    def damage(step):
        with open(os.path.join(step, name), "wb") as f:
            f.write(b"{}\n")
    return "%s that nobody names" % name, damage


def swap(a, b):
    def damage(step):
        x, y = os.path.join(step, a), os.path.join(step, b)
        os.rename(x, x + ".tmp")
        os.rename(y, x)
        os.rename(x + ".tmp", y)
    return "%s and %s exchanged" % (a, b), damage


DAMAGES = (
    flip(MODEL, 3), flip(MODEL, 20), flip(MODEL, 4000), flip(MODEL, -1), shorten(MODEL, -1),
    shorten(MODEL, 0), lengthen(MODEL), remove(MODEL), flip(OPTIMIZER, 4097), remove(OPTIMIZER),
    flip("sheaf.sums", 0), flip("sheaf.sums", 20), flip("sheaf.sums", 100),
    flip("sheaf.sums", 1000), flip("sheaf.sums", -1), shorten("sheaf.sums", -8),
    remove("sheaf.sums"), flip("sheaf.json", 1), flip("sheaf.json", 300), flip("sheaf.json", -10),
    flip("sheaf.json", -1), shorten("sheaf.json", -1), lengthen("sheaf.json"),
    flip("config.json", 5), shorten("config.json", 3), remove("config.json"), flip(INDEX, 40),
    remove(INDEX), add("notes.txt"), add("ema/ema-00002-of-00002.safetensors"),
    swap(MODEL, "model-00002-of-00003.safetensors"))


def check_sound(run, expected, program):
    steps = [os.path.join(run, "checkpoint-%d" % n) for n in STEPS]
    with open(expected, encoding="utf-8") as f:
        want = f.read()
    got = call(sys.executable, READER, *steps)
    claim(got.returncode == 0 and got.stdout == want, "reader.py reads every step as it did",
          got.stderr or "other tensors than the list has")
    got = call(program, run)
    claim(got.returncode == 0, "the library opens the run and proves every value", got.stderr)
    for n, step in zip(STEPS, steps):
        got = call(program, step, str(n))
        claim(got.returncode == 0, "the library opens step %d by path" % n, got.stderr)


def check_broken(run, at, program):
    step = os.path.join(at, "step")
    whole = os.path.join(run, "checkpoint-%d" % STEPS[1])
    for what, damage in (("a copy", lambda step: None),) + DAMAGES:
        shutil.copytree(whole, step)
        damage(step)
        ours = call(program, step, str(STEPS[1]))
        theirs = call(sys.executable, READER, step)
        want = 0 if what == "a copy" else 1
        claim(ours.returncode == want, "%s: %s by the library" %
              (what, "refused" if want else "read"), ours.stderr or "taken for whole")
        claim(theirs.returncode == want and (not want or not theirs.stdout), "%s: %s by reader.py" %
              (what, "refused" if want else "read"), theirs.stderr or "taken for whole")
        shutil.rmtree(step)


def reseal(a, b, gone=None):
    """Another manifest, whose own sum is right again; and a file that is removed."""
    def damage(step):
        path = os.path.join(step, "sheaf.json")
        with open(path, "rb") as f:
            text = f.read()[:-31]
        assert a in text, a
        text = text.replace(a, b, 1)
        with open(path, "wb") as f:
            f.write(text + b',\n "self": "%016x"}\n' % reader.std(text))
        if gone:
            os.unlink(os.path.join(step, gone))
    return damage


TIE = b'["model", "lm_head.weight", "embed.weight"]'
LIES = (    # what it is, the change, does a reader take it
    ("an unknown member", reseal(b'"needs": []', b'"needs": [], "new": [1e3, -1, null]'), True),
    ("an unknown member twice", reseal(b'"needs": []', b'"needs": [], "x": 1, "x": 2'), True),
    ("a member twice", reseal(b'"ranks": 3', b'"ranks": 3, "ranks": 3'), False),
    ("a file's bytes twice", reseal(b'"bytes": 43', b'"bytes": 43, "bytes": 43'), False),
    ("a note twice", reseal(b'"adam.step": "10"', b'"loss": "1", "adam.step": "10"'), False),
    ("ranks 3.0", reseal(b'"ranks": 3', b'"ranks": 3.0'), False),
    ("ranks 3e0", reseal(b'"ranks": 3', b'"ranks": 3e0'), False),
    ("bytes with a sign", reseal(b'"bytes": 0,', b'"bytes": -0,'), False),
    ("a number as a string", reseal(b'"ranks": 3', b'"ranks": "3"'), False),
    ("NaN", reseal(b'"needs": []', b'"needs": [], "x": NaN'), False),
    ("a byte order mark", reseal(b'{"sheaf"', b'\xef\xbb\xbf{"sheaf"'), False),
    ("a lone surrogate", reseal(b'"needs": []', b'"needs": [], "x": "\\ud800"'), False),
    ("bytes that are no UTF-8", reseal(b'"needs": []', b'"needs": [], "x": "\xff"'), False),
    ("64 levels", reseal(b'"needs": []', b'"needs": [], "x": ' + b"[" * 63 + b"]" * 63), True),
    ("65 levels", reseal(b'"needs": []', b'"needs": [], "x": ' + b"[" * 64 + b"]" * 64), False),
    ("an index that is not attached", reseal(b'  {"name": "%s", "bytes": 121, "crc": '
        b'"3621bc18b2c17a29"},\n' % INDEX.encode(), b"", INDEX), False),
    ("an attached file in a folder", reseal(b'"config.json"', b'"x/config.json"'), False),
    ("an attached file of a family's name", reseal(b'"config.json"', b'"ema"'), False),
    ("a tied name that is stored", reseal(TIE, b'["model", "scalar", "embed.weight"]'), False),
    ("a tie to nothing", reseal(TIE, b'["model", "lm_head.weight", "nothing"]'), False),
    ("a tie to a tied name", reseal(TIE, TIE + b', ["model", "x", "lm_head.weight"]'), False),
    ("a tie to another family", reseal(TIE, b'["ema", "lm_head.weight", "embed.weight"]'), False),
    ("a tie with a type", reseal(TIE, TIE[:-1] + b', "F32"]'), False))


def check_lies(run, at, program):
    """Manifests that are whole, with what doc/format.md allows and refuses in them."""
    step = os.path.join(at, "step")
    for what, damage, good in LIES:
        shutil.copytree(os.path.join(run, "checkpoint-%d" % STEPS[0]), step)
        damage(step)
        for name, got in (("the library", call(program, step, str(STEPS[0]))),
                          ("reader.py", call(sys.executable, READER, step))):
            claim(got.returncode == (0 if good else 1), "%s: %s by %s" %
                  (what, "read" if good else "refused", name), got.stderr or "taken for whole")
        shutil.rmtree(step)


STREAMS = (     # the rule that is stored, the ranks that load, what they take; None: refused
    (b'"modulo"', 3, ["rng/0", "rng/1", "rng/2"]), (b'"strict"', 3, ["rng/0", "rng/1", "rng/2"]),
    (b'"modulo"', 4, ["rng/0", "rng/1", "rng/2", "rng/0"]), (b'"modulo"', 2, ["rng/0", "rng/1"]),
    (b'"drop"', 2, ["kept", "kept"]), (b'"strict"', 2, None), (b'"other"', 2, None))


def check_streams(run, at):
    step = os.path.join(at, "step")
    for rule, ranks, want in STREAMS + ((None, 2, None), (None, 3, STREAMS[0][2])):
        shutil.copytree(os.path.join(run, "checkpoint-%d" % STEPS[0]), step)
        reseal(b'"ranks.rng": "modulo",\n', b'"ranks.rng": %s,\n' % rule if rule else b"")(step)
        got = call(sys.executable, READER, "--stream", "rng", str(ranks), step)
        takes = [json.loads(line) for line in got.stdout.splitlines()]
        claim(takes == want if want else got.returncode == 1 and not takes,
              "a stream of 3 ranks, rule %s, loaded by %d" % (rule, ranks), got.stderr)
        shutil.rmtree(step)


def check_optimizer(run):
    manifest, tensors = reader.check_step(os.path.join(run, "checkpoint-%d" % STEPS[0]))
    keys, step = reader.optimizer(manifest, tensors, "layers.2.bias")
    claim(sorted(keys) == ["moment1_0", "moment2_0"] and step == "10",
          "the state of a parameter, and the note that counts its updates", keys)
    step = dict(keys["moment1_0"], name="layers.2.bias/step", shape=[])
    claim(reader.optimizer(manifest, tensors + [step], "layers.2.bias")[1] is step,
          "a parameter's own step comes before the note")
    stored = {t["name"] for t in tensors if t["family"] == "model"}
    claim(all(t["name"].rpartition("/")[0] in stored for t in tensors
              if t["family"] == "optimizer"), "its parameters are those of the model")


def check_order():
    """What the page says of names and of items of less than a byte."""
    names = ["a", "a1", "a01", "a2", "a2b", "a10", "aZ", "az", "a~", "aé", "a\U0001f600"]
    claim(sorted(reversed(names), key=reader.natural) == names, "names in natural order")
    claim(reader.unpack(4, b"\x21\x43") == [1, 2, 3, 4], "the first item of F4 has the low bits")
    claim(reader.unpack(6, bytes.fromhex("81200c")) == [1, 2, 2, 3], "items of F6 follow without "
          "gaps, lowest bits first")


def check_again(run, at, mpirun, maker):
    fresh = os.path.join(at, "run")
    made = call(mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "3", maker, fresh)
    claim(made.returncode == 0, "the run is made again", made.stderr)
    for n in STEPS if made.returncode == 0 else ():
        a, b = [os.path.join(x, "checkpoint-%d" % n) for x in (run, fresh)]
        there = [{os.path.relpath(os.path.join(d, f), x) for d, _, fs in os.walk(x) for f in fs}
                 for x in (a, b)]
        claim(there[0] == there[1], "step %d has the same files" % n, there[0] ^ there[1])
        other = [f for f in sorted(there[0] & there[1]) if f != "sheaf.json" and
                 not filecmp.cmp(os.path.join(a, f), os.path.join(b, f), shallow=False)]
        claim(not other, "step %d has the same bytes but for its manifest" % n, other)


def main(argv):
    if len(argv) not in (3, 4):
        print(__doc__, file=sys.stderr)
        return 2
    at = tempfile.mkdtemp(prefix="sheaf-golden-")
    try:
        if len(argv) == 4:
            check_again(argv[0], at, *argv[2:])
        else:
            check_sound(*argv)
            check_broken(argv[0], at, argv[2])
            check_lies(argv[0], at, argv[2])
            check_streams(argv[0], at)
            check_optimizer(argv[0])
            check_order()
    finally:
        shutil.rmtree(at, ignore_errors=True)
    print("1..%d" % len(done))
    return not all(done)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
