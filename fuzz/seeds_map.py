# SPDX-License-Identifier: Apache-2.0
"""Seeds of fuzz_map: maps, sound and almost sound, for the model of the target."""
HEAD = "sheaf-map 1 a b\n"
REST = "{*} = {*}\n"

TEXTS = [
    "", HEAD, HEAD + REST, HEAD + "a [x y] = c [y x]\n" + REST,
    HEAD + "let g = 2\na [(g x) y] = c [y g x]\n" + REST,
    HEAD + "let p = 4\nlet q = 6\na [p h], b [q i] = c [(p h + q i)]\n" + REST,
    HEAD + "let p = 2\nlet q = 2\na [(p + q) y] = c [p y], d [q y]\n" + REST,
    HEAD + "for l = config.n\nl.{l} [x] = l [l x]\n" + REST,
    HEAD + "for l = 2\nfor k = config.n\nl.{l} [(k x)] = r.{k} [x l]\n" + REST,
    HEAD + "for l = 2\nl.{1 - l} = m.{l:03}\n" + REST,
    HEAD + "arg t = 3\nlet n = up(config.n, t) * (7 % 4) - config.none or config.h.x / t\n"
    "a [x y] = c [(x + zero(n)) y 1]\n" + REST,
    HEAD + "also {*}/m in model = m.{*}\nmaybe a : F32 = c : BF16\ndrop a z\n" + REST,
    HEAD + "a : bits I32 = c : bits U32\n" + REST,
    HEAD + "let t = 2\na [((t x) + zero(1)) (y z)] = c [(x + zero(2)) z t y]\n" + REST,
    HEAD + "let g = 2\nlet k = 1\na [(g k x) ((k + g) y)] = c [(y (k + g)) (x g k)]\n" + REST,
    HEAD + "for n = 99999\nmaybe q.{n} = r.{n}\n" + REST,
    HEAD + "for n = 99999999999\nfor m = 99999999999\nmaybe q.{n} [m] = r.{m} [n]\n" + REST,
    HEAD + "let x = 9223372036854775807\na [(x y)] = c [x y]\n" + REST,
    HEAD + "a [x x] = c [x]\na = \n # c\n", "sheaf-map 2 a b\n", HEAD + "a [((((((((x",
    HEAD + "for l = 2\nalso {*}/{l} = x.{*}\n" + REST, HEAD + "\xe9",
]
MAP = [t.encode("latin-1" if "\xe9" in t else "utf-8") for t in TEXTS]
