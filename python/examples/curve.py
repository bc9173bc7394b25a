#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the losses of finetune.py, a colour for each job.

    python curve.py runs/tuned/losses.jsonl curve.svg

A job that goes on after another has been killed continues its curve. Steps that a job repeats,
because they were lost with it, are drawn twice.
"""
import json
import sys

WIDE, HIGH, EDGE = 720, 300, 46
COLOURS = ["#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#b8860b"]


def jobs(path: str) -> list[list[dict[str, float]]]:
    """The lines of each job: a new one begins where steps or the number of ranks jump."""
    found: list[list[dict[str, float]]] = []
    with open(path, encoding="utf-8") as f:
        for line in map(json.loads, f):
            last = found[-1][-1] if found else None
            if last is None or line["step"] != last["step"] + 1 or line["ranks"] != last["ranks"]:
                found.append([])
            found[-1].append(line)
    return found


def draw(parts: list[list[dict[str, float]]]) -> str:
    """The picture, as SVG."""
    lines = [line for part in parts for line in part]
    most, steps = max(x["loss"] for x in lines), max(x["step"] for x in lines)

    def x(step: float) -> float:
        return EDGE + step / steps * (WIDE - 2 * EDGE)

    def y(loss: float) -> float:
        return HIGH - EDGE - loss / most * (HIGH - 2 * EDGE)

    out = ['<!-- SPDX-License-Identifier: Apache-2.0 -->',
           '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" '
           'font-family="sans-serif" font-size="12">' % (WIDE, HIGH),
           '<rect width="100%" height="100%" fill="white"/>',
           '<path d="M%d %d V%d H%d" fill="none" stroke="#888888"/>'
           % (EDGE, EDGE, HIGH - EDGE, WIDE - EDGE)]
    for loss in range(0, int(most) + 1, max(1, int(most) // 4)):
        out.append('<text x="%d" y="%.1f" text-anchor="end">%d</text>'
                   % (EDGE - 6, y(loss) + 4, loss))
    for step in range(0, int(steps) + 1, max(1, int(steps) // 5)):
        out.append('<text x="%.1f" y="%d" text-anchor="middle">%d</text>'
                   % (x(step), HIGH - EDGE + 18, step))
    for i, part in enumerate(parts):
        points = " ".join("%.1f,%.1f" % (x(p["step"]), y(p["loss"])) for p in part)
        colour = COLOURS[i % len(COLOURS)]
        out.append('<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>'
                   % (points, colour))
        name = "steps %d to %d on %d ranks" % (part[0]["step"], part[-1]["step"], part[0]["ranks"])
        out.append('<text x="%d" y="%d" text-anchor="end" fill="%s">%s</text>'
                   % (WIDE - EDGE, EDGE + 16 * i, colour, name))
    out.append('<text x="%d" y="%d">loss</text>' % (EDGE - 10, EDGE - 12))
    out.append('<text x="%d" y="%d" text-anchor="end">step</text></svg>' % (WIDE - EDGE, HIGH - 8))
    return "\n".join(out) + "\n"


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: curve.py LOSSES PICTURE.svg")
    with open(sys.argv[2], "w", encoding="utf-8") as f:
        f.write(draw(jobs(sys.argv[1])))


if __name__ == "__main__":
    main()
