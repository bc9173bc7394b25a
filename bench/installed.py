# SPDX-License-Identifier: Apache-2.0
"""The interpreter of other people's programs: build/peers-venv, with the versions that
bench/peer/requirements.txt pins."""
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PINS = os.path.join(ROOT, "bench", "peer", "requirements.txt")


def python(packages, install, absent):
    """Returns the path of the interpreter, or of this one if there is none and nothing may be
    installed. Each entry of packages is installed separately; absent[entry] says why one is
    missing."""
    at = os.path.join(ROOT, "build", "peers-venv")
    found = os.path.join(at, "bin", "python")
    if not install:
        return found if os.path.exists(found) else sys.executable
    os.makedirs(os.path.join(ROOT, "build"), exist_ok=True)
    subprocess.run(["sh", "-euc", ". tools/setup.sh; need_packages fio python3-venv"], cwd=ROOT,
                   check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    if not os.path.exists(found):
        subprocess.run(["/usr/bin/python3", "-m", "venv", at], check=True)
    for names in packages:
        said = subprocess.run([found, "-m", "pip", "install", "--disable-pip-version-check",
                               "--no-input", "-q", "--only-binary", ":all:", "-c", PINS] +
                              names.split(), stdin=subprocess.DEVNULL, capture_output=True,
                              text=True)
        if said.returncode != 0:
            why = [x for x in said.stderr.splitlines() if x.startswith("ERROR")] or ["?"]
            absent[names] = "cannot be installed: " + why[-1][:200]
    return found
