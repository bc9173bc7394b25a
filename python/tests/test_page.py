#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The examples of doc/python.md and README.md are run as they stand. Prints TAP.

usage: test_page.py SHEAF, the command
"""
from __future__ import annotations

import os
import subprocess
import sys

import tap
from launched import blocks, run

SHEAF = os.path.abspath(sys.argv[1])
os.environ.update(PATH=os.path.dirname(SHEAF) + ":" + os.environ["PATH"], OMP_NUM_THREADS="1")
if tap.there("numpy", "torch"):
    import torch._dynamo                # before the examples are forked
    import torch.distributed.checkpoint


def tried(code: str, at: str) -> None:
    """Runs the code as a script, in that folder."""
    with tap.folder() as apart:
        script = os.path.join(apart, "example.py")
        with open(script, "w", encoding="utf-8") as f:
            f.write(code)
        run(1, at, script)


@tap.needs("numpy", "torch")
def test_the_examples_of_the_page() -> None:
    """The examples of doc/python.md run one after another, as a reader types them"""
    found = [code for mark, code in blocks(os.path.join("doc", "python.md")) if not mark]
    assert len(found) >= 5, len(found)
    with tap.folder() as at:
        tried("\n".join(found), at)


@tap.needs("torch")
def test_the_examples_of_the_page_on_dcp() -> None:
    """The examples of doc/python-dcp.md run one after another"""
    found = [code for _, code in blocks(os.path.join("doc", "python-dcp.md"))]
    assert len(found) == 4, len(found)
    with tap.folder() as at:
        tried("\n".join(found), at)
        assert sorted(os.listdir(os.path.join(at, "runs"))) == ["background", "gpt", "more"]


@tap.needs("numpy", "torch")
def test_the_script_of_the_page_on_moving() -> None:
    """The blocks of doc/python-moving.md run one after another"""
    found = [code for _, code in blocks(os.path.join("doc", "python-moving.md"))]
    assert len(found) == 8, len(found)
    with tap.folder() as at:
        tried("\n".join(found), at)
        made = [n for n in sorted(os.listdir(at)) if not n.startswith("said-")]
        assert made == ["new-dcp", "new.pt", "newer-dcp", "old-dcp", "old.pt", "runs",
                        "weights.pt"], made


@tap.needs("torch")
def test_the_example_of_splits() -> None:
    """The example of doc/python-splits.md runs"""
    found = [code for mark, code in blocks(os.path.join("doc", "python-splits.md"))]
    assert len(found) == 1, len(found)
    with tap.folder() as at:
        tried(found[0], at)


@tap.needs("numpy", "torch")
def test_the_example_of_many_ranks() -> None:
    """The example for many ranks runs under torchrun"""
    found = [code for mark, code in blocks(os.path.join("doc", "python.md"))
             if mark == "many ranks"]
    assert len(found) == 1, len(found)
    with tap.folder() as at:
        script = os.path.join(at, "many.py")
        with open(script, "w", encoding="utf-8") as f:
            f.write(found[0])
        done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone",
                               "--nproc_per_node", "2", script], cwd=at, capture_output=True,
                              text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert os.path.isdir(os.path.join(at, "runs", "ranks", "checkpoint-100"))


FRAMEWORKS = os.path.join("doc", "python-frameworks.md")


def marked(mark: str) -> str:
    """The examples of the page of other frameworks with that mark, one after another."""
    found = blocks(FRAMEWORKS)
    assert {m for m, _ in found} <= {"mpi", "jax", "paddle"}, [m for m, _ in found]
    code = "\n".join(code for m, code in found if m == mark)
    assert code, mark
    return code


@tap.needs("numpy", "mpi4py")
def test_the_example_of_mpi4py() -> None:
    """The example of a tree of several ranks runs under mpirun"""
    mpirun = tap.mpirun()
    with tap.folder() as at:
        done = subprocess.run([*mpirun, "-n", "2", sys.executable, "-c", marked("mpi")],
                              cwd=at, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert os.path.isdir(os.path.join(at, "runs", "rows", "checkpoint-0"))


@tap.needs("jax")
def test_the_example_of_jax() -> None:
    """The example of JAX runs on eight devices of one CPU"""
    with tap.folder() as at:
        env = dict(os.environ, XLA_FLAGS="--xla_force_host_platform_device_count=8",
                   JAX_PLATFORMS="cpu")
        done = subprocess.run([sys.executable, "-c", marked("jax")], cwd=at,
                              capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stdout + done.stderr


@tap.needs("paddle")
def test_the_example_of_paddle() -> None:
    """The example of Paddle runs on two ranks"""
    with tap.folder() as at:
        script = os.path.join(at, "script.py")
        with open(script, "w", encoding="utf-8") as f:
            f.write(marked("paddle"))
        done = subprocess.run([sys.executable, "-m", "paddle.distributed.launch",
                               "--nproc_per_node", "2", "--backend", "gloo", script], cwd=at,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert os.path.isdir(os.path.join(at, "runs", "paddle", "checkpoint-0"))


@tap.needs("numpy", "torch")
def test_the_example_of_the_readme() -> None:
    """The Python example of README.md runs"""
    found = blocks("README.md")
    assert len(found) == 1, len(found)
    with tap.folder() as at:
        try:
            tried(found[0][1], at)
        finally:
            subprocess.run([SHEAF, "agent", os.path.join(at, "runs", "gpt"), "--stop",
                            "--force"], check=True, capture_output=True)
        there = sorted(os.listdir(os.path.join(at, "runs", "gpt")))
        assert there[1:] == ["checkpoint-0", "checkpoint-1000", "checkpoint-500"], there


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
