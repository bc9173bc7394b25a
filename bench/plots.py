# SPDX-License-Identifier: Apache-2.0
"""A table as a picture: a row for each contestant, a dot for each round, a bar at the median.

SVG by hand: text, lines and circles, on a white ground, readable as source.
"""
from xml.sax.saxutils import escape

WIDE, LEFT, RIGHT, ROW, TOP = 760, 190, 110, 26, 40
INK, FAINT, LIMIT, OURS = "#222222", "#cccccc", "#888888", "#1b6ca8"


def steps(most):
    """Returns round numbers from 0 to above the largest value."""
    unit = 10.0 ** len(str(int(most))) / 10 if most >= 1 else 0.1
    for k in (0.1, 0.2, 0.25, 0.5, 1, 2, 5, 10):
        if most / (unit * k) <= 6:
            n = int(most / (unit * k)) + 1
            return [i * unit * k for i in range(n + 1)]
    return [0, most]


def text(x, y, words, anchor="start", color=INK, bold=False):
    return '<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s"%s>%s</text>' % (
        x, y, anchor, color, ' font-weight="bold"' if bold else "", escape(words))


def line(x1, y1, x2, y2, color, width=1.0, dash=""):
    return '<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%g"%s/>' % (
        x1, y1, x2, y2, color, width, ' stroke-dasharray="%s"' % dash if dash else "")


def values(row):
    """Returns MB/s of each round, or ms if there are no bytes."""
    if row["best_rate"]:
        return [row["bytes"] / s / 1e6 for s in row["samples_s"] if s > 0]
    return [s * 1e3 for s in row["samples_s"]]


def middle(xs):
    xs = sorted(xs)
    return (xs[(len(xs) - 1) // 2] + xs[len(xs) // 2]) / 2


def draw(table):
    """Returns the SVG of a table of harness.py."""
    rows = table["rows"]
    unit = "MB/s" if rows[0]["best_rate"] else "ms"
    ticks = steps(max(v for r in rows for v in values(r)))
    tall = TOP + ROW * len(rows) + 40

    def x(v):
        return LEFT + (WIDE - LEFT - RIGHT) * v / ticks[-1]

    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" '
           'font-size="13">' % (WIDE, tall),
           "<!-- SPDX-License-Identifier: Apache-2.0 -->",
           '<rect width="100%" height="100%" fill="#ffffff"/>',
           text(10, 20, table["title"], bold=True)]
    bottom = TOP + ROW * len(rows)
    for t in ticks:
        out += [line(x(t), TOP - 8, x(t), bottom, FAINT),
                text(x(t), bottom + 16, "%g" % t, "middle")]
    out.append(text(WIDE - RIGHT + 30, bottom + 16, unit))
    for i, row in enumerate(rows):
        y, xs = TOP + ROW * (i + 0.5), values(row)
        color = OURS if row["name"].startswith("sheaf") else INK
        out.append(text(LEFT - 10, y + 4, row["name"], "end", color))
        out += ['<circle cx="%.1f" cy="%.1f" r="3" fill="%s" fill-opacity="0.45"/>' % (
            x(v), y, color) for v in xs]
        out.append(line(x(middle(xs)), y - 9, x(middle(xs)), y + 9, color, 2.5))
        out.append(text(WIDE - RIGHT + 30, y + 4, "%.4g" % middle(xs), color=color))
        if row["name"] == table["limit"]:
            out.append(line(x(middle(xs)), TOP - 8, x(middle(xs)), bottom, LIMIT, 1, "4 3"))
    return "\n".join(out + ["</svg>", ""])
