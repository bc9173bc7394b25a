#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads checkpoints of other software with the command, and compares every tensor with what that
software's own loader gave (*expected.jsonl). Prints TAP.

usage: check_foreign.py SHEAF FOLDER
"""
import hashlib
import json
import os
import subprocess
import sys

done = [0, 0]


def result(ok, claim, why=""):
    done[0] += 1
    done[1] += not ok
    print(f"{'ok' if ok else 'not ok'} {done[0]} - {claim}" + (f" # {why}" if why else ""))


def run(*command):
    return subprocess.run(command, capture_output=True, timeout=120, check=False)


def key(family, name):
    return name if family == "model" else f"{family}:{name}"


def check(sheaf, folder, line):
    path = os.path.join(folder, line["path"])
    shown = run(sheaf, "show", path, "--json")
    if shown.returncode:
        result(False, f"{line['path']} is shown", shown.stderr.decode())
        return
    said = json.loads(shown.stdout)
    result(said["format"] == line["format"], f"{line['path']} is a {line['format']}",
           said["format"])
    found = {key(t["family"], t["name"]): t for t in said["tensors"]}
    have = {n: [t["dtype"], t["shape"]] for n, t in found.items()}
    refused = line.get("refused", {})
    want = {n: [t[0], t[1]] for n, t in {**line["tensors"], **refused}.items()}
    result(have == want, f"{line['path']} has the tensors that its own loader finds",
           "" if have == want else str({n for n in have.keys() | want.keys()
                                        if have.get(n) != want.get(n)}))
    bad = []
    for name, (_, _, digest) in line["tensors"].items():
        family, _, own = name.rpartition(":")
        read = run(sheaf, "cat", path, own, "--family", family or "model")
        if read.returncode or hashlib.sha256(read.stdout).hexdigest() != digest:
            bad.append(f"{name}: {read.stderr.decode()}")
        at = found.get(name, {}).get("offset")
        # Where the bytes are said to lie in one piece, they do.
        if at is not None and found[name]["bytes"]:
            file = path if os.path.isfile(path) else os.path.join(path, found[name]["file"])
            with open(file, "rb") as f:
                f.seek(at)
                if hashlib.sha256(f.read(found[name]["bytes"])).hexdigest() != digest:
                    bad.append(f"{name} is not at byte {at} of {file}")
    for name, (_, _, why) in refused.items():
        read = run(sheaf, "cat", path, name)
        if not read.returncode or why not in read.stderr.decode():
            bad.append(f"{name} is not refused by name: {read.stderr.decode()}")
    result(not bad, f"{line['path']} has the values that its own loader gives", "; ".join(bad))
    proved = run(sheaf, "verify", path)
    result(proved.returncode == line.get("verify", 0), f"{line['path']} is verified",
           proved.stdout.decode() + proved.stderr.decode())
    if not refused:
        same = run(sheaf, "diff", path, path)
        result(same.returncode == 0, f"{line['path']} is equal to itself", same.stderr.decode())


def main(sheaf, folder):
    for name in sorted(n for n in os.listdir(folder) if n.endswith("expected.jsonl")):
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            for line in f:
                check(sheaf, folder, json.loads(line))
    print(f"1..{done[0]}")
    sys.exit(1 if done[1] else 0)


if __name__ == "__main__":
    main(*sys.argv[1:3])
