#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Has the torch that is installed write checkpoints, and the command read them.

usage: check_torch.py MAKE_TORCH MAKE_DCP CHECK_FOREIGN SHEAF
Prints TAP. Skips all where torch is not installed.
"""
import subprocess
import sys
import tempfile


def main(make, make_dcp, check, sheaf):
    with tempfile.TemporaryDirectory() as folder:
        for script in (make, make_dcp):
            made = subprocess.run([sys.executable, "-W", "ignore", script, folder], text=True,
                                  capture_output=True, timeout=900, check=False)
            if made.returncode:
                print(made.stdout or "1..1\nnot ok 1 - torch writes its files", end="")
                print(made.stderr, file=sys.stderr)
                return 0 if made.returncode == 77 else 1
        return subprocess.run([sys.executable, check, sheaf, folder], timeout=900,
                              check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:5]))
