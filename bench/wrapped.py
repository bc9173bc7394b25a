# SPDX-License-Identifier: Apache-2.0
"""Programs in C that measure themselves and print JSON: objects, or lists of them under "rows".

Every object becomes a row, with the plain members of the object around it. An object with "claim",
"value", "bound" and "at_least" (true or false) is a claim; "undecided": true in any row makes the
claims undecided.
"""
import json
import subprocess


def objects(value, around=None):
    if isinstance(value, list):
        for v in value:
            yield from objects(v, around)
    elif isinstance(value, dict):
        nested = [v for v in value.values() if isinstance(v, list) and v and
                  all(isinstance(x, dict) for x in v)]
        flat = dict(around or {})
        for k, v in value.items():
            if isinstance(v, dict):
                flat.update(("%s %s" % (k, inner), x) for inner, x in v.items())
            elif not isinstance(v, list):
                flat[k] = v
        if flat and not nested:
            yield flat
        for v in nested:
            yield from objects(v, flat)


class Told:
    """A table that a program measured; it looks like a harness.Table to code that prints it."""

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


def wrap(bench, name, args, claims=None):
    """Runs the program with --json and args; reports it if this build does not have the program.
    claims: makes more rows, of claims, from its rows."""
    path = bench.program(name, needed=False)
    if not path:
        bench.skip("this build has no " + name)
        return
    command = [path] + args + ["--json"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          cwd=bench.dir)
    if done.returncode not in (0, 1, 2) or not done.stdout.strip():
        raise RuntimeError("%s: %s" % (name, done.stderr.strip()[-600:]))
    try:
        values = [json.loads(done.stdout)]
    except ValueError:
        values = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    rows = list(objects(values))
    bench.tables.append(Told(name, rows + list(claims(rows) if claims else [])))
