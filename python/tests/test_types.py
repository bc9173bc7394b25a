#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The package is typed, and small. Prints TAP.

usage: test_types.py ROOT
"""
from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile

import tap

PACKAGE = os.path.join(sys.argv[1], "python", "sheaf")
LINES = 500


def sources() -> list[str]:
    return sorted(os.path.join(folder, n) for folder, _, names in os.walk(PACKAGE)
                  for n in names if n.endswith(".py"))


@tap.needs("mypy", "torch")
def test_mypy_finds_nothing() -> None:
    """mypy --strict finds nothing, for the oldest Python that the package allows"""
    with tempfile.NamedTemporaryFile("w", suffix=".ini") as settings:
        settings.write("[mypy]\n")
        flags = []
        if os.environ.get("T_STRIDE", "1") != "1":
            # The types of torch take four times as long as all else. ./check --long looks at them.
            settings.write("[mypy-torch.*,numpy.*,accelerate.*]\nfollow_imports = skip\n")
            flags = ["--allow-subclassing-any", "--no-warn-return-any", "--no-warn-unused-ignores"]
        settings.flush()
        done = subprocess.run([sys.executable, "-m", "mypy", "--config-file", settings.name,
                               "--strict", *flags, "--python-version", "3.10", "--cache-dir",
                               os.devnull, PACKAGE], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_modules_are_small_and_listed() -> None:
    """Modules have at most 500 lines, and the build installs each of them"""
    for path in sources():
        with open(os.path.join(os.path.dirname(path), "meson.build"), encoding="utf-8") as f:
            listed = f.read()
        with open(path, encoding="utf-8") as f:
            n = f.read().count("\n")
        assert n <= LINES, (path, n)
        assert "'%s'" % os.path.basename(path) in listed, path


def test_what_users_call_is_described() -> None:
    """Each module and class has a docstring; save, load and open name all arguments and an error"""
    said = []
    for path in sources():
        with open(path, encoding="utf-8") as f:
            tree = ast.parse(f.read())
        assert ast.get_docstring(tree), path
        said += ["%s: %s" % (os.path.basename(path), n.name) for n in tree.body
                 if isinstance(n, ast.ClassDef) and not ast.get_docstring(n)]
        public = {"saving.py": ("save",), "loading.py": ("load",), "reading.py": ("open",)}
        for n in tree.body:
            if isinstance(n, ast.FunctionDef) and n.name in public.get(os.path.basename(path), ()):
                text = ast.get_docstring(n) or ""
                said += ["%s: nothing about %s" % (n.name, a.arg) for a in
                         n.args.args + n.args.kwonlyargs if a.arg not in text]
                if "sheaf." not in text:
                    said.append("%s: nothing about its errors" % n.name)
    assert not said, said


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
