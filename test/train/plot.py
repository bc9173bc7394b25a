#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pictures of `sheaf-train plot`: the points of each line are those of the events. Prints TAP.

usage: plot.py SHEAF-TRAIN
"""
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET

from trainrun import Claims, train

NS = "{http://www.w3.org/2000/svg}"
MODEL = {"model_type": "qwen2", "hidden_size": 16, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24,
         "vocab_size": 257, "tie_word_embeddings": True, "hidden_act": "silu",
         "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e4}
OF_STEP = {"loss": "loss", "norm": "grad_norm_hex", "rate": "lr_hex", "speed": "tokens_per_s",
           "stall": "blocked_ms"}


def value(x):
    return float.fromhex(x) if isinstance(x, str) else x


class Panel:
    """A panel, whose points are read back as numbers."""

    def __init__(self, g):
        self.g = g
        self.x, self.y = ([float(v) for v in g.get(k).split()] for k in ("data-x", "data-y"))

    def lines(self, curve, run=0):
        """The points of each polyline."""
        found = [p for p in self.g.iter(NS + "polyline")
                 if p.get("class") == curve and p.get("data-run") == str(run)]
        return [[(self.back(self.x, x), self.back(self.y, y)) for x, y in
                 (map(float, pair.split(",")) for pair in p.get("points").split())]
                for p in found]

    @staticmethod
    def back(scale, pixel):
        low, high, first, last = scale
        return low + (pixel - first) / (last - first) * (high - low)

    def near(self, points, want):
        """Are they equal, to the hundredth of a pixel that is written?"""
        dx, dy = ((s[1] - s[0]) / abs(s[3] - s[2]) * 0.011 for s in (self.x, self.y))
        return len(points) == len(want) and all(
            abs(a - x) <= dx and abs(b - y) <= dy for (a, b), (x, y) in zip(points, want))


class Svg:
    def __init__(self, text):
        self.root = ET.fromstring(text)
        self.panels = {g.get("id"): Panel(g) for g in self.root.iter(NS + "g")}
        self.names = [t.text for t in self.root.iter(NS + "text") if t.get("class") == "run"]
        self.resumed = [(r.get("data-run"), int(r.get("data-step")))
                        for r in self.panels["loss"].g.iter(NS + "line")
                        if r.get("class") == "resumed"]


class World:
    def __init__(self, program, at):
        self.program, self.at, self.claims = program, at, Claims()
        self.last = ""

    def path(self, name):
        return os.path.join(self.at, name)

    def plot(self, *args):
        return subprocess.run([self.program, "plot", *args], cwd=self.at, capture_output=True,
                              text=True, timeout=60)

    def svg(self, *args):
        done = self.plot(*args)
        assert done.returncode == 0, done.stderr
        return Svg(done.stdout)

    def refuses(self, claim, words, *args):
        done = self.plot(*args)
        self.claims.check(done.returncode == 2 and words in done.stderr and not done.stdout and
                          done.stderr.count("\n") == 1, claim, done.returncode, done.stderr)


def trained(w):
    """A run of two jobs: its events are in its directory."""
    with open(w.path("model.json"), "w", encoding="utf-8") as f:
        json.dump(MODEL, f)
    with open(w.path("text"), "w", encoding="utf-8") as f:
        f.write("Seven sheaves bowed down to the eighth.\n" * 30)
    subprocess.run([w.program, "data", w.path("text"), "-o", w.path("data")], check=True,
                   capture_output=True)
    jobs = [train(w.program, None, 1, "/dev/null", "--run", w.path("run"), "--model",
                  w.path("model.json"), "--data", w.path("data"), "--eval-data", w.path("data"),
                  "--eval-every", 2, "--seq", 20, "--batch", 4, "--steps", steps, "--save-every", 2,
                  "--lr", "1e-2", "--decay", "constant") for steps in (6, 9)]
    assert not any(j.status for j in jobs), [(j.status, j.out, j.err) for j in jobs]
    with open(w.path("run/events.jsonl"), encoding="utf-8") as f:
        kept = f.read()
    w.claims.check([j.status for j in jobs] == [0, 0] and kept == jobs[0].out + jobs[1].out,
                   "the events of a run are in its directory", kept[:300], jobs[0].err, jobs[1].err)
    return jobs


def cut_line(w):
    """A job was killed while it wrote an event."""
    with open(w.path("run/events.jsonl"), "r+b") as f:
        whole = f.read()
        f.write(b'{"event":"step","st')
    job = train(w.program, None, 1, "/dev/null", "--run", w.path("run"), "--steps", 10)
    with open(w.path("run/events.jsonl"), encoding="utf-8") as f:
        lines = f.read()
    w.claims.check(job.status == 0 and lines == whole.decode() + '{"event":"step","st\n' + job.out,
                   "the next job does not continue a line that a crash has cut", lines[-2000:],
                   job.err)
    os.rename(w.path("run/events.jsonl"), w.path("cut-in-run.jsonl"))
    with open(w.path("run/events.jsonl"), "wb") as f:
        f.write(whole)
    w.last = w.plot("run").stdout
    w.claims.check(w.svg("cut-in-run.jsonl").resumed == [("0", 6), ("0", 9)],
                   "and plot shows its resumption")


def evaluated(w):
    """An evaluation of a checkpoint writes to the events of the run."""
    done = subprocess.run([w.program, "eval", "/dev/null", "--run", w.path("run"), "--resume",
                           w.path("run") + "@4", "--eval-data", w.path("data"), "--events",
                           w.path("run/events.jsonl")], capture_output=True, text=True, timeout=60)
    before, after = Svg(w.last), w.svg("run")
    have, had = (x.panels["loss"].lines("eval") for x in (after, before))
    w.claims.check(done.returncode == 0 and after.resumed == [("0", 6)] and
                   [len(p) for p in have] == [len(p) for p in had] + [1] and
                   len(after.panels["loss"].lines("loss")) == 2,
                   "an evaluation of a checkpoint is a dot, and no resumption", have, done.stderr)


def check_trained(w, jobs):
    svg = w.svg("run")
    for panel, key in OF_STEP.items():
        want = [[(e["step"], value(e[key])) for e in j.of("step")] for j in jobs]
        have = svg.panels[panel].lines(panel)
        w.claims.check(len(have) == 2 and all(map(svg.panels[panel].near, have, want)),
                       "%s: the points of both jobs" % panel, have, want)
    want = [[(e["step"], e["loss"]) for e in j.of("eval")] for j in jobs]
    have = svg.panels["loss"].lines("eval")
    w.claims.check(all(map(svg.panels["loss"].near, have, want)) and len(have) == 2,
                   "evaluations are points of the panel of the loss", have, want)
    w.claims.check(svg.resumed == [("0", 6)], "the resumption is marked at its step", svg.resumed)


def write_events(w, name, losses, start=None):
    with open(w.path(name), "w", encoding="utf-8") as f:
        if start:
            f.write(json.dumps(start) + "\n")
        for i, loss in enumerate(losses, 1):
            f.write(json.dumps({"event": "step", "step": i, "loss": loss, "grad_norm_hex": "0x1p+0",
                                "lr_hex": "0x1p-8", "tokens_per_s": 1000, "blocked_ms": 0}) + "\n")


def check_several(w):
    losses = [5 + math.sin(i / 50) for i in range(20000)]
    losses[12345], losses[777] = 9.5, 0.25
    write_events(w, "long <&>.jsonl", losses)
    write_events(w, "short.jsonl", [3.5])
    svg = w.svg("long <&>.jsonl", "short.jsonl")
    panel = svg.panels["loss"]
    points = panel.lines("loss")[0]
    w.claims.check(svg.names == ["long <&>.jsonl", "short.jsonl"], "names stand as they are",
                   svg.names)
    w.claims.check(len(points) < 2000 and panel.near(
        [max(points, key=lambda p: p[1]), min(points, key=lambda p: p[1])],
        [(12346, 9.5), (778, 0.25)]), "of a long run few points are drawn, and each peak",
        len(points))
    w.claims.check(panel.near(panel.lines("loss", 1)[0], [(1, 3.5)]) and
                   len(list(panel.g.iter(NS + "circle"))) == 1, "a single step is a dot")


def check_odd(w):
    write_events(w, "cut.jsonl", [4, 3, 2])
    with open(w.path("cut.jsonl"), "a", encoding="utf-8") as f:
        f.write('{"event":"step","st')
    done = w.plot("cut.jsonl", "-o", "cut.svg")
    with open(w.path("cut.svg"), encoding="utf-8") as f:
        points = Svg(f.read()).panels["loss"].lines("loss")[0]
    w.claims.check(done.returncode == 0 and not done.stdout and "are left out: 1\n" in
                   done.stderr and len(points) == 3, "a line that a crash has cut is left out",
                   done.stderr)
    with open(w.path("cut.jsonl"), "a", encoding="utf-8") as f:
        f.writelines('\n{"event":"%s","step":%s,"loss":1}' % case for case in (
            ("step", "1000000000000001"), ("eval", "1e300"), ("start", "-1"), ("step", '"7"')))
    svg, done = w.svg("cut.jsonl"), w.plot("cut.jsonl")
    w.claims.check("are left out: 5\n" in done.stderr and not svg.resumed and
                   svg.panels["loss"].x[1] == 3,
                   "lines with a step that no training makes are left out", done.stderr)
    with open(w.path("words.jsonl"), "w", encoding="utf-8") as f:
        f.writelines('{"event":"step","step":%d,"loss":1,"lr_hex":"%s"}\n' % case for case in (
            (1, "0x1p-8"), (2, "fast"), (3, ""), (4, "0x1p-8 ")))
    w.claims.check([len(p) for p in w.svg("words.jsonl").panels["rate"].lines("rate")] == [1],
                   "a text that is not a number is not drawn")
    write_events(w, "large.jsonl", [1.7e308, -1.7e308, 2, 1])
    with open(w.path("large.jsonl"), "a", encoding="utf-8") as f:
        f.write('{"event":"eval","step":900,"loss":2}\n')
    panel = w.svg("large.jsonl").panels["loss"]
    w.claims.check("nan" not in w.plot("large.jsonl").stdout and panel.near(
        panel.lines("loss")[0], [(3, 2), (4, 1)]), "numbers that no training makes are not drawn")
    w.claims.check(panel.near(panel.lines("eval")[0], [(900, 2)]) and panel.x[1] == 900,
                   "and an evaluation behind the last step is inside the picture", panel.x)
    with open(w.path("none.jsonl"), "w", encoding="utf-8") as f:
        f.write('{"event":"end"}\n')
    with open(w.path("far.jsonl"), "w", encoding="utf-8") as f:
        f.write('{"event":"step","step":100000000000000000,"loss":1}\n')
    os.mkdir(w.path("empty"))
    w.refuses("a run without events", "plot that file", "empty")
    w.refuses("a run that does not exist", "No such file", "nowhere")
    w.refuses("a file without a step", "no event of a step", "none.jsonl")
    w.refuses("a file of a step that no training makes", "no event of a step", "far.jsonl")
    w.refuses("no run", "1 to 8 runs, not 0")
    w.refuses("nine runs", "1 to 8 runs, not 9", *["cut.jsonl"] * 9)
    w.refuses("an option that does not exist", "no such option", "cut.jsonl", "--events")
    limit = (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    done = subprocess.run([w.program, "plot", "short.jsonl", "-o", "part.svg"], cwd=w.at,
                          capture_output=True, text=True, timeout=60, preexec_fn=lambda: (
                              signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
                              resource.setrlimit(resource.RLIMIT_FSIZE, limit)))
    w.claims.check(done.returncode == 2 and "part.svg: File too large" in done.stderr and
                   not os.path.exists(w.path("part.svg")), "no part of a picture stays",
                   done.stderr)
    w.refuses("an output that cannot be written", "empty", "short.jsonl", "-o", "empty")


def main():
    with tempfile.TemporaryDirectory(prefix="sheaf-plot-") as at:
        w = World(os.path.abspath(sys.argv[1]), at)
        check_trained(w, trained(w))
        cut_line(w)
        evaluated(w)
        check_several(w)
        check_odd(w)
        return w.claims.end()


if __name__ == "__main__":
    sys.exit(main())
