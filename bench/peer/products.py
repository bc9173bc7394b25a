# SPDX-License-Identifier: Apache-2.0
"""Products of matrices in NumPy and torch on one thread, for bench/train.

usage: products.py numpy|torch SHAPES

SHAPES is JSON: lists [kind, m, n, k], kind nn, nt or tn. For each line of stdin it prints a line of
JSON: the seconds of each product, the best of several.
"""
import json
import sys
import time


def operands(make, kind, m, n, k):
    """Returns A and B, one of which is a transposed view."""
    a = make(k, m).T if kind == "tn" else make(m, k)
    b = make(n, k).T if kind == "nt" else make(k, n)
    return a, b


def main():
    if sys.argv[1] == "torch":
        import torch
        torch.set_num_threads(1)
        made = [operands(torch.rand, *s) + (torch.empty(s[1], s[2]),)
                for s in json.loads(sys.argv[2])]

        def product(a, b, c):
            torch.mm(a, b, out=c)
    else:
        import numpy as np
        rng = np.random.default_rng(1)
        made = [operands(lambda *s: rng.random(s, dtype=np.float32), *s) +
                (np.empty((s[1], s[2]), np.float32),) for s in json.loads(sys.argv[2])]

        def product(a, b, c):
            np.matmul(a, b, out=c)
    for _ in sys.stdin:
        best = []
        for a, b, c in made:
            times = []
            for _ in range(7):
                began = time.monotonic()
                product(a, b, c)
                times.append(time.monotonic() - began)
            best.append(min(times))
        print(json.dumps(best), flush=True)


if __name__ == "__main__":
    main()
