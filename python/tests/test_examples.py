# SPDX-License-Identifier: Apache-2.0
"""The scripts of python/examples run as their heads say. Prints TAP.

usage: test_examples.py ROOT SHEAF, the command
"""
from __future__ import annotations

import os
import re
import subprocess
import sys

import tap
from tap import folder, needs

PATH = os.path.dirname(os.path.abspath(sys.argv[2])) + ":" + os.environ["PATH"]
EXAMPLES = os.path.join(sys.argv[1], "python", "examples")


def run(at: str, ranks: int, script: str, *args: str, killed: bool = False) -> str:
    """What a script prints on as many processes; it must succeed, or be killed."""
    under = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    done = subprocess.run([sys.executable, "-B", *(under if ranks > 1 else []),
                           os.path.join(EXAMPLES, script), *args], cwd=at, capture_output=True,
                          text=True, env=dict(os.environ, OMP_NUM_THREADS="1", PATH=PATH))
    assert (done.returncode != 0) == killed, done.stdout + done.stderr
    return done.stdout


def losses(text: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+) loss ([0-9.]+)",
                                                                text)}


@needs("torch", "transformers")
def test_fsdp2() -> None:
    """fsdp2.py on 2 x 2 ranks goes on in one process, with the losses of one that did not stop."""
    with folder() as at:
        first = run(at, 4, "fsdp2.py", "runs/tiny", "--steps", "8", "--every", "3")
        assert "goes on" not in first and sorted(losses(first)) == list(range(8))
        then = run(at, 1, "fsdp2.py", "runs/tiny", "--steps", "9", "--every", "3")
        assert "goes on after step 5" in then and sorted(losses(then)) == [6, 7, 8]
        for step in (6, 7):
            assert abs(losses(first)[step] - losses(then)[step]) < 2e-3, (first, then)
        assert losses(then)[8] < losses(first)[0] - 1
        assert sorted(os.listdir(os.path.join(at, "runs", "tiny")))[1:] == [
            "checkpoint-2", "checkpoint-5", "checkpoint-8"]


@needs("torch", "transformers")
def test_async() -> None:
    """async.py on 2 ranks is killed, and goes on from memory in one process."""
    with folder() as at:
        try:
            first = run(at, 2, "async.py", "runs/tiny", "--steps", "20", "--kill", "6",
                        killed=True)
            assert sorted(losses(first)) == list(range(7)), first
            assert sorted(os.listdir(os.path.join(at, "runs", "tiny")))[1:] == ["checkpoint-0"]
            then = run(at, 1, "async.py", "runs/tiny", "--steps", "11")
            assert "goes on after step 6" in then and sorted(losses(then)) == [7, 8, 9, 10], then
            assert losses(then)[7] < losses(first)[6] + 0.1, (first, then)
            counts = {name: int(n) for name, n in
                      re.findall(r"^(committed|in flight|left out|failed) +(\d+)$", then, re.M)}
            assert sum(counts.values()) == 4 and counts["failed"] == 0, then
        finally:
            subprocess.run([sys.argv[2], "agent", os.path.join(at, "runs", "tiny"), "--stop",
                            "--force"], check=True, capture_output=True)


@needs("torch", "transformers", "accelerate")
def test_transformers_trainer() -> None:
    """transformers_trainer.py is killed, and goes on with the losses of one that was not."""
    with folder() as at:
        whole = run(at, 1, "transformers_trainer.py", "runs/whole", "--steps", "12")
        run(at, 1, "transformers_trainer.py", "runs/cut", "--steps", "12", "--kill", "10",
            killed=True)
        then = run(at, 1, "transformers_trainer.py", "runs/cut", "--steps", "12")
        assert losses(then) == losses(whole) and len(losses(whole)) == 12, (whole, then)
        assert "the best is runs/cut/checkpoint-12" in then, then


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
