#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Is an expression true of a file of JSON lines?

usage: lines.py FILE EXPRESSION

o is the list of objects; by(key) maps values of a member to objects; only(key, value) filters.
Every line must be one object, and nothing may follow the last.
"""
import json
import sys


def pairs(items):
    names = [k for k, _ in items]
    assert len(set(names)) == len(names), "a member twice: %s" % names
    return dict(items)


def constant(name):
    raise ValueError("%s is no JSON" % name)


def main():
    with open(sys.argv[1], "rb") as f:
        text = f.read()
    assert text == b"" or text.endswith(b"\n"), "the last line has no end"
    text.decode("ascii")
    o = [json.loads(line, object_pairs_hook=pairs, parse_constant=constant)
         for line in text.splitlines()]
    assert all(isinstance(x, dict) for x in o), "a line is no object"
    scope = {
        "o": o,
        "json": json,
        "by": lambda key: {x.get(key): x for x in o},
        "only": lambda key, value: [x for x in o if x.get(key) == value],
        "keys": lambda x, names: set(names.split()) <= set(x),
    }
    if eval(sys.argv[2], scope):
        return 0
    print("not true: %s" % sys.argv[2], file=sys.stderr)
    for x in o[:5] + o[5:][-2:]:
        print(json.dumps(x)[:300], file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
