# SPDX-License-Identifier: Apache-2.0
"""What every script of this folder shares: rounds, noise, verdicts, tables.

A contestant has a name and three calls: before(), outside the clock, round(), which measures itself
and returns a dictionary (seconds, bytes, perhaps cpu_s, peak_bytes, disk_bytes ...), and close().
Rounds are interleaved: in each round every contestant has its turn, in an order drawn for it.

A and A' are the same thing measured twice; their difference is the noise. A difference between A
and B is inside the noise when the 95 % bootstrap interval of median(B) - median(A), rounds drawn
jointly, lies within +- max(1 %, twice the interval of A' - A). When the medians of A and A' differ
by more than 10 %, nothing is decided: exit 2, and a bound missed then is not a miss.
Times are compared as seconds per byte, so that contestants may differ a little in what they move.
"""
import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import machine

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NOISE_MOST = 0.10
SKIPPED = 77


def median(xs):
    xs = sorted(xs)
    n = len(xs)
    return (xs[(n - 1) // 2] + xs[n // 2]) / 2


def interval(a, b, draws=2000, seed=1):
    """Returns the 95 % bootstrap interval of (median(b) - median(a)) / median(a)."""
    n, rng = min(len(a), len(b)), random.Random(seed)
    base, found = median(a), []
    for _ in range(draws):
        at = [rng.randrange(n) for _ in range(n)]
        found.append((median([b[i] for i in at]) - median([a[i] for i in at])) / base)
    found.sort()
    return found[int(0.025 * draws)], found[int(0.975 * draws) - 1]


def size(n):
    for unit, k in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= k:
            return "%.3g %s" % (n / k, unit)
    return "%d B" % n


class Series:
    """The rounds of one contestant."""

    def __init__(self, name):
        self.name, self.rounds = name, []

    def unit(self):
        """Returns seconds per byte, or seconds if there are no bytes."""
        return [r["seconds"] / (r.get("bytes") or 1) for r in self.rounds]

    def best(self):
        return min(self.unit())

    def median(self):
        return median(self.unit())

    def spread(self):
        u = self.unit()
        return (max(u) - min(u)) / median(u)

    def most(self, key):
        return max((r[key] for r in self.rounds if key in r), default=None)

    def middle(self, key):
        values = [r[key] for r in self.rounds if r.get(key) is not None]
        return median(values) if values else None


class Missing(RuntimeError):
    """This measurement needs a program that is not installed."""


def ranks_text(n):
    return "%d rank%s" % (n, "s" * (n > 1))


class Table:
    """Contestants of one claim, measured together."""

    def __init__(self, title, limit, noise):
        self.title, self.limit, self.noise_of = title, limit, noise
        self.series, self.claims, self.note, self.timed = {}, [], "", False

    def run(self, contestants, rounds, settle):
        for c in contestants:
            self.series[c.name] = Series(c.name)
        began = now()
        for r in range(rounds):
            if r == 1:
                each = now() - began
                print("%s: a round takes %.0f s, all %d of them %.0f min" % (
                    self.title, each, rounds, each * rounds / 60), file=sys.stderr, flush=True)
            # The order is random. With a rotation, A' would always follow A, and A another
            # contestant, whose removed files may still keep the disk busy.
            for c in random.Random(r).sample(contestants, len(contestants)):
                c.before()
                settle()
                self.series[c.name].rounds.append(c.round())

    def noise(self):
        """Returns the difference of the medians of A and A', and the interval; None without
        them."""
        if not self.noise_of:
            return None
        a, again = (self.series[n].unit() for n in self.noise_of)
        return abs(median(again) - median(a)) / median(a), interval(a, again)

    def undecided(self):
        noise = self.noise()
        return noise is not None and noise[0] > NOISE_MOST

    def inside(self, name, limit=None):
        a, b = self.series[limit or self.limit].unit(), self.series[name].unit()
        lo, hi = interval(a, b)
        noise = self.noise()
        room = max(0.01, 2 * max(map(abs, noise[1]))) if noise else 0.01
        return -room <= lo and hi <= room

    def better(self, *names):
        """Returns the name with the best median of several limits."""
        return min(names, key=lambda n: self.series[n].median())

    def claim(self, text, value, bound, at_least, timed=True):
        """Adds a claim: a bound and the value measured. timed False: a count, which noise does not
        excuse."""
        self.timed |= timed
        if value is None:
            verdict = "not measured"
        elif (value >= bound) if at_least else (value <= bound):
            verdict = "met"
        else:
            verdict = "undecided" if timed and self.undecided() else "missed"
        self.claims.append({"text": text, "value": value, "bound": bound,
                            "at_least": at_least, "verdict": verdict})

    def rows(self):
        limit = self.series.get(self.limit)
        for s in self.series.values():
            sized = s.rounds[0].get("bytes")
            total = s.middle("bytes") or 0
            cpu = s.middle("cpu_s")
            yield {"name": s.name, "bytes": total or None, "best_s": s.best() * (total or 1),
                   "median_s": s.median() * (total or 1), "spread": s.spread(),
                   "best_rate": 1 / s.best() if sized else None,
                   "median_rate": 1 / s.median() if sized else None,
                   "ratio_best": limit.best() / s.best() if limit else None,
                   "ratio_median": limit.median() / s.median() if limit else None,
                   "cpu_s_per_gb": cpu / total * 1e9 if cpu is not None and total else None,
                   "cpu_s": cpu, "peak_bytes": s.most("peak_bytes"),
                   "grown_bytes": s.most("grown_bytes"),
                   "disk_bytes": s.middle("disk_bytes"),
                   "inside_noise": bool(limit) and s is not limit and self.inside(s.name),
                   "samples_s": [r["seconds"] for r in s.rounds]}

    def data(self):
        noise = self.noise()
        return {"title": self.title, "limit": self.limit, "note": self.note,
                "noise": noise and {"of": list(self.noise_of), "median": noise[0],
                                    "interval": list(noise[1])},
                "undecided": self.timed and self.undecided(), "rows": list(self.rows()),
                "claims": self.claims}


def cell(value, form, scale=1.0):
    return form % (value * scale) if value is not None else "-"


HEAD = ["", "best", "median", "spread", "best/limit", "median/limit", "CPU s/GB", "peak MB",
        "disk MB"]


def cells(row):
    """Returns the cells of a row, as text."""
    if row["best_rate"]:
        speed = [cell(row["best_rate"], "%.0f MB/s", 1e-6),
                 cell(row["median_rate"], "%.0f MB/s", 1e-6)]
    else:
        speed = [cell(row["best_s"], "%.2f ms", 1e3), cell(row["median_s"], "%.2f ms", 1e3)]
    return [row["name"]] + speed + [
        cell(row["spread"], "%.0f %%", 100), cell(row["ratio_best"], "%.2f"),
        cell(row["ratio_median"], "%.2f") + (" =" if row["inside_noise"] else ""),
        cell(row["cpu_s_per_gb"], "%.3f"), cell(row["peak_bytes"], "%.0f", 1e-6),
        cell(row["disk_bytes"], "%.0f", 1e-6)]


def noise_text(table):
    n = table["noise"]
    if not n:
        return "no control"
    return "noise %s - %s: %.1f %%, 95 %% interval %+.1f to %+.1f %%%s" % (
        n["of"][1], n["of"][0], 100 * n["median"], 100 * n["interval"][0],
        100 * n["interval"][1], ": undecided" if table["undecided"] else "")


def claim_text(c):
    value = "-" if c["value"] is None else "%.3g" % c["value"]
    return "%s: %s, bound %s %.3g: %s" % (c["text"], value, ">=" if c["at_least"] else "<=",
                                         c["bound"], c["verdict"])


def told_lines(table):
    """Returns the lines of a table from a program that measured itself: its own members are
    columns."""
    keys = list(dict.fromkeys(k for r in table["rows"] for k in r))
    def text(v):
        return "%.4g" % v if isinstance(v, float) else str(v)
    rows = [[text(r.get(k, "-")) for k in keys] for r in table["rows"]]
    return [keys] + rows


def print_table(table):
    if table.get("told"):
        lines = told_lines(table)
        wide = [max(map(len, column)) for column in zip(*lines)]
        print("\n" + table["title"])
        for line in lines:
            print("  " + "  ".join(t.ljust(w) for t, w in zip(line, wide)).rstrip())
        for c in table["claims"]:
            print("  " + claim_text(c))
        return
    lines = [HEAD] + [cells(r) for r in table["rows"]]
    wide = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    print("\n" + table["title"])
    for line in lines:
        print("  " + "  ".join(t.ljust(w) if i == 0 else t.rjust(w)
                               for i, (t, w) in enumerate(zip(line, wide))).rstrip())
    if table["limit"]:
        print("  limit: %s; %s; = inside the noise" % (table["limit"], noise_text(table)))
    if table["note"]:
        print("  " + table["note"])
    for c in table["claims"]:
        print("  " + claim_text(c))


def print_bounds(tables):
    """Prints all claims in one table. A single claim is printed under its own table already."""
    lines = [("measured", "claim", "value", "bound", "verdict")]
    for t in tables:
        for c in t["claims"]:
            lines.append((t["title"], c["text"], "-" if c["value"] is None else "%.3g" % c["value"],
                          "%s %.3g" % (">=" if c["at_least"] else "<=", c["bound"]), c["verdict"]))
    if len(lines) < 3:
        return
    wide = [max(map(len, column)) for column in zip(*lines)]
    print("\nbounds")
    for line in lines:
        print("  " + "  ".join(t.ljust(w) for t, w in zip(line, wide)).rstrip())


class Bench:
    """The command line, the programs, a temporary folder, and the result."""

    def __init__(self, doc, gb=2.1, rounds=15, more=None):
        self.name = os.path.basename(sys.argv[0])
        p = argparse.ArgumentParser(prog="bench/" + self.name, description=doc,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
        p.add_argument("--rounds", type=int, help="interleaved rounds (%d)" % rounds)
        p.add_argument("--gb", type=float, help="size of the state (%g)" % gb)
        p.add_argument("--quick", action="store_true", help="a smoke: seconds, no verdict")
        p.add_argument("--json", action="store_true", help="one JSON object on stdout")
        p.add_argument("--dir", help="where to write (build/bench of this tree)")
        p.add_argument("--build", help="a build folder that is ready; else build/, made here")
        if more:
            more(p)
        self.args = a = p.parse_args()
        self.quick = a.quick
        self.rounds = a.rounds or (2 if a.quick else rounds)
        self.gb = a.gb or (0.008 if a.quick else gb)
        self.tables, self.skips, self.open = [], [], []
        self.shown = None                       # number of tables shown; None: not even the machine
        sys.stdout.reconfigure(line_buffering=True)
        self.build = os.path.abspath(a.build) if a.build else prepare()
        self.where = os.path.abspath(a.dir or os.path.join(ROOT, "build", "bench"))
        os.makedirs(self.where, exist_ok=True)
        self.dir = tempfile.mkdtemp(prefix=self.name + ".", dir=self.where)

    def program(self, name, needed=True):
        """Returns the path of a program; if it is missing, raises Missing, or returns None if not
        needed."""
        for at in ("bench/" + name, "cli/" + name, name):
            path = os.path.join(self.build, at)
            if os.access(path, os.X_OK) and os.path.isfile(path):
                return path
        found = shutil.which(name) if name in ("fio", "mpirun") else None
        if needed and not found:
            raise Missing("there is no " + name)
        return found

    def settle(self):
        """Before a turn: waits until other writes are on disk, and removed files are discarded."""
        if not self.quick:
            os.sync()

    def measure(self, title, contestants, limit, noise=None, rounds=None):
        """Runs the contestants and closes them. Returns the Table; until the next one, claims are
        added to it."""
        self.show()
        table = Table(title, limit, noise)
        self.open = contestants
        try:
            table.run(contestants, rounds or self.rounds, self.settle)
        finally:
            self.close()
        self.tables.append(table)
        return table

    def close(self):
        for c in self.open:
            c.close()
        self.open = []

    def skip(self, why):
        """Reports a part that cannot be measured here, so that nothing is left out silently."""
        self.skips.append(why)

    def data(self, table):
        data = table.data()
        for c in data["claims"] if self.quick else ():
            c["verdict"] = "no verdict (--quick)"
        return data

    def show(self):
        """Prints the results so far, because the rest may take an hour, or fail."""
        if self.args.json:
            return
        if self.shown is None:
            for line in machine.lines(ROOT, self.where):
                print(line)
        for t in self.tables[self.shown or 0:]:
            print_table(self.data(t))
        self.shown = len(self.tables)

    def finish(self):
        """Prints the results. Returns the exit status."""
        self.close()
        shutil.rmtree(self.dir, ignore_errors=True)
        tables = [self.data(t) for t in self.tables]
        if self.args.json:
            print(json.dumps({"bench": self.name, "command": "bench/" + self.name,
                              "rounds": self.rounds, "quick": self.quick, "tables": tables,
                              "skipped": self.skips,
                              "machine": machine.describe(ROOT, self.where)}))
        else:
            self.show()
            print_bounds(tables)
            for why in self.skips:
                print("not measured: " + why)
        if self.quick:
            return 0 if tables else SKIPPED
        if not tables:
            return SKIPPED
        verdicts = [c["verdict"] for t in tables for c in t["claims"]]
        if any(t["undecided"] for t in tables):
            return 2
        return 1 if "missed" in verdicts else 0

    def main(self, body):
        """Runs body(self), cleans up whatever happens, and exits."""
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        try:
            body(self)
        except Missing as e:
            self.close()
            shutil.rmtree(self.dir, ignore_errors=True)
            print("bench/%s: not measured: %s" % (self.name, e), file=sys.stderr)
            sys.exit(SKIPPED)
        except (OSError, RuntimeError, subprocess.SubprocessError) as e:
            self.close()
            shutil.rmtree(self.dir, ignore_errors=True)
            if self.tables:         # there may be an hour of results
                self.skip("what is not here: %s" % e)
                self.finish()
            sys.exit("bench/%s: %s" % (self.name, e))
        except BaseException:
            self.close()
            shutil.rmtree(self.dir, ignore_errors=True)
            raise
        sys.exit(self.finish())


def prepare():
    """Does the first steps of ./demo: installs packages by name, and builds with optimisation.
    Returns the build folder."""
    script = (". tools/setup.sh; mkdir -p build; need_packages $packages_build fio; build_release;"
              " targets=$(ninja -C build -t targets all |"
              " sed -n 's,^\\(bench/[a-z-]*\\|train/sheaf-bench-[a-z]*\\|libsheaf\\.so[.0-9]*\\)"
              ": c_LINKER.*,\\1,p');"
              " quietly build/ninja.log ninja -C build $targets")
    done = subprocess.run(["sh", "-euc", script, "bench"], cwd=ROOT, stdout=sys.stderr)
    if done.returncode:
        sys.exit(2)
    return os.path.join(ROOT, "build")


def now():
    return time.monotonic()
