# SPDX-License-Identifier: Apache-2.0
"""Programs in C that measure themselves and print JSON: objects, or lists of them under "rows".

Every object becomes a row as it is. An object with "claim", "value", "bound" and "at_least" (true
or false) is a claim; "undecided": true in any of them makes the claims undecided.
"""
import json
import subprocess


def objects(value):
    if isinstance(value, list):
        for v in value:
            yield from objects(v)
    elif isinstance(value, dict):
        nested = [v for v in value.values() if isinstance(v, list) and v and
                  all(isinstance(x, dict) for x in v)]
        flat = {k: v for k, v in value.items() if not isinstance(v, (list, dict))}
        if flat and not nested:
            yield flat
        for v in nested:
            yield from objects(v)


class Told:
    """A table that a program measured; as harness.Table to those who print it."""

    def __init__(self, title, rows):
        self.title = title
        self.rows = [r for r in rows if "claim" not in r]
        unsure = any(r.get("undecided") for r in rows)
        self.claims = [{"text": r["claim"], "value": r["value"], "bound": r["bound"],
                        "at_least": bool(r["at_least"]),
                        "verdict": self.verdict(r, unsure)} for r in rows if "claim" in r]
        self.unsure = unsure

    @staticmethod
    def verdict(r, unsure):
        met = r["value"] >= r["bound"] if r["at_least"] else r["value"] <= r["bound"]
        return "met" if met else "undecided" if unsure else "missed"

    def data(self):
        return {"title": self.title, "limit": None, "note": "", "noise": None, "told": True,
                "undecided": self.unsure, "rows": self.rows, "claims": self.claims}


def wrap(bench, name, *args):
    """Runs the program with --json, --quick where asked for; says so where this build has none."""
    path = bench.program(name, needed=False)
    if not path:
        bench.skip("this build has no " + name)
        return
    command = [path, "--json"] + ["--quick"] * bench.quick + list(args)
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          cwd=bench.dir)
    if done.returncode not in (0, 1, 2) or not done.stdout.strip():
        raise RuntimeError("%s: %s" % (name, done.stderr.strip()[-600:]))
    try:
        values = [json.loads(done.stdout)]
    except ValueError:
        values = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    bench.tables.append(Told(name, list(objects(values))))
