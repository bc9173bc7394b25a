#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The wheel and the source archive, built by pip and meson-python. Prints TAP.

usage: test_wheel.py ROOT MESON

The wheel is built without optimisation, because it is only installed and tried. Nothing is taken
from the network: the Python that runs this has meson-python.
"""
from __future__ import annotations

import glob
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from typing import Any, Callable

import tap

ROOT, MESON = sys.argv[1:3]
PACKAGE = os.path.join(ROOT, "python", "sheaf")
TRIED = """if True:
    import array, os, sys
    import sheaf
    x = array.array("f", range(12))
    assert sheaf.save("run", {"x": x, "epoch": 3}) == 0
    y = {"x": array.array("f", bytes(48)), "epoch": None}
    assert sheaf.load("run", y) == {"x": x, "epoch": 3}
    assert sheaf.version() == sys.argv[1], sheaf.version()
    print(os.path.dirname(sheaf.__file__))
"""
AT: dict[str, str] = {}


def done(*command: str, **more: Any) -> str:
    """What a command prints; an error with the end of it if it fails."""
    env = dict(os.environ, MESON=MESON, LC_ALL="C.UTF-8", **more.pop("env", {}))
    for name in ("PYTHONPATH", "CC", "CFLAGS", "DESTDIR"):
        env.pop(name, None)
    ran = subprocess.run(command, capture_output=True, text=True, env=env,
                         stdin=subprocess.DEVNULL, **more)
    if ran.returncode:
        lines = (ran.stdout + ran.stderr).splitlines()[-25:]
        raise AssertionError("%s:\n%s" % (" ".join(command), "\n".join(lines)))
    return ran.stdout


def version() -> str:
    with open(os.path.join(ROOT, "meson.build"), encoding="utf-8") as f:
        found = re.search(r"version: '([0-9.]+)'", f.read())
    assert found
    return found[1]


@tap.needs("mesonpy")
def test_pip_builds_a_wheel() -> None:
    """`pip wheel` builds one wheel for any Python 3 on this kind of machine"""
    done(sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps",
         "--no-index", "-w", AT["wheels"], "--config-settings=build-dir=" + AT["build"],
         "--config-settings=setup-args=-Doptimization=0", ROOT, cwd=AT["at"])
    made = os.listdir(AT["wheels"])
    machine = os.uname().machine
    assert made == ["sheaf-%s-py3-none-linux_%s.whl" % (version(), machine)], made


def contents() -> dict[str, str]:
    """The files of the wheel without the folders that say where they go, and their names in it."""
    found = glob.glob(os.path.join(AT["wheels"], "*.whl"))
    if not found:
        raise tap.Skip("no wheel was built")
    with zipfile.ZipFile(found[0]) as z:
        return {re.sub(r"^sheaf-[0-9.]+\.(data/(purelib/|scripts/|data/)|dist-info/)", "", n): n
                for n in z.namelist()}


def test_only_what_runs_is_in_it() -> None:
    """The wheel has the modules, one library without a version, the command, maps; nothing else"""
    modules = {"sheaf/" + under + n for under in ("", "torch/", "dcp/")
               for n in os.listdir(os.path.join(PACKAGE, under)) if n.endswith((".py", ".typed"))}
    maps = {"share/sheaf/maps/" + n for n in os.listdir(os.path.join(ROOT, "maps"))
            if n.endswith(".map")}
    want = modules | maps | {"sheaf/libsheaf.so", "sheaf/abi.json", "sheaf", "METADATA", "WHEEL",
                      "RECORD", "licenses/LICENSE"}
    have = set(contents())
    assert have == want, have ^ want


def test_the_command_needs_no_library() -> None:
    """Library and command need nothing but the C library"""
    names, found = contents(), glob.glob(os.path.join(AT["wheels"], "*.whl"))
    with zipfile.ZipFile(found[0]) as z:
        for name in ("sheaf/libsheaf.so", "sheaf"):
            path = z.extract(names[name], AT["at"])
            said = done("readelf", "-d", path)
            needed = set(re.findall(r"NEEDED.*\[(.*)\]", said))
            assert needed <= {"libc.so.6", "libm.so.6", "libpthread.so.0",
                              "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}, (name, needed)
            assert not re.search(r"R(UN)?PATH", said), said
            assert name == "sheaf" or re.findall(r"SONAME.*\[(.*)\]", said) == ["libsheaf.so"]


def test_an_empty_environment_runs_it() -> None:
    """Installed in an empty environment, it saves and loads, and the command lists what it saved"""
    found = glob.glob(os.path.join(AT["wheels"], "*.whl"))
    if not found:
        raise tap.Skip("no wheel was built")
    env = os.path.join(AT["at"], "env")
    done(sys.executable, "-m", "venv", "--without-pip", env)
    python = os.path.join(env, "bin", "python")
    done(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index",
         "--disable-pip-version-check", found[0], cwd=AT["at"])
    where = done(python, "-I", "-c", TRIED, version(), cwd=AT["at"]).strip()
    assert where.startswith(env), where
    command = os.path.join(env, "bin", "sheaf")
    assert "committed" in done(command, "ls", "run", cwd=AT["at"])
    assert "agent" in done(command, "agent", "--help", cwd=AT["at"])
    refused = subprocess.run([command, "diff", "run", "run", "--map", "qwen2-hf-paddle"],
                             cwd=AT["at"], capture_output=True, text=True)
    assert "qwen2-hf-paddle.map" in refused.stderr, refused.stderr    # found, and does not fit


@tap.needs("mesonpy")
def test_the_source_archive_is_whole() -> None:
    """The source archive has all that git has, and can be configured"""
    if not os.path.exists(os.path.join(ROOT, ".git")):
        raise tap.Skip("no git repository")
    code = "import mesonpy, sys; print(mesonpy.build_sdist(sys.argv[1]))"
    name = done(sys.executable, "-c", code, AT["at"], cwd=ROOT).split()[-1]
    with tarfile.open(os.path.join(AT["at"], name)) as t:
        have = {n.partition("/")[2] for n in t.getnames()}
        listed = set(done("git", "-C", ROOT, "ls-tree", "-r", "--name-only", "HEAD").splitlines())
        rooms = ("lib/", "cli/", "include/", "python/")
        missing = {n for n in listed if n.startswith(rooms)} - have
        assert not missing and {"pyproject.toml", "LICENSE", "meson.build"} <= have, missing
        t.extractall(AT["at"])
    done(MESON, "setup", "-Dwheel=true", "-Dtests=false", "-Dmpi=disabled", "configured",
         os.path.join(AT["at"], name.removesuffix(".tar.gz")), cwd=AT["at"])


if __name__ == "__main__":
    run: Callable[[dict[str, Any]], int] = tap.run
    with tap.folder() as at:
        AT.update(at=at, wheels=os.path.join(at, "wheels"), build=os.path.join(at, "build"))
        os.mkdir(AT["wheels"])
        worst = run(globals())
    sys.exit(worst)
