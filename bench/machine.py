# SPDX-License-Identifier: Apache-2.0
"""What a number was measured on: processor, memory, kernel, file system, versions."""
import os
import re
import subprocess


def said(*command, cwd=None):
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def file_text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def mount_of(path):
    """Returns the type and options of the file system that contains path; ("", "") if unknown."""
    path, found = os.path.realpath(path), ("", "", "")
    for line in file_text("/proc/self/mounts").splitlines():
        parts = line.split()
        at = parts[1].encode().decode("unicode_escape")
        if (path + "/").startswith(at.rstrip("/") + "/") and len(at) >= len(found[0]):
            found = (at, parts[2], parts[3])
    return found[1], found[2]


def memory_free():
    """Returns the number of bytes available to new programs."""
    free = re.search(r"MemAvailable:\s*(\d+)", file_text("/proc/meminfo"))
    return int(free[1]) * 1024 if free else 1 << 62


def instructions():
    """Returns the relevant instruction sets that the processor has."""
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)", file_text("/proc/cpuinfo"), re.M)
    here = flags[1].split() if flags else []
    return [f for f in ("avx2", "avx512f", "avx512_bf16", "pclmulqdq", "vpclmulqdq") if f in here]


def describe(tree, where):
    """tree: a folder of the source. where: the folder that is written to."""
    cpu = file_text("/proc/cpuinfo")
    memory = re.search(r"MemTotal:\s*(\d+)", file_text("/proc/meminfo"))
    kind, options = mount_of(where)
    return {
        "cpu": (re.search(r"model name\s*:\s*(.*)", cpu) or ["", os.uname().machine])[1],
        "cores": len(os.sched_getaffinity(0)),
        "instructions": instructions(),
        "memory_bytes": int(memory[1]) * 1024 if memory else 0,
        "kernel": os.uname().release,
        "file_system": kind, "mount_options": options,
        "fio": said("fio", "--version"),
        "mpi": said("mpirun", "--version").split("\n")[0],
        "compiler": said("gcc", "--version").split("\n")[0],
        "commit": said(os.path.join(tree, "tools", "commit"), cwd=tree),
        "load": os.getloadavg()[0],
    }


def lines(tree, where):
    m = describe(tree, where)
    yield "%s, %d cores (%s), %.0f GB of memory, Linux %s" % (
        m["cpu"], m["cores"], " ".join(m["instructions"]), m["memory_bytes"] / 1e9, m["kernel"])
    yield "%s (%s); %s; %s; %s; commit %s; load average %.1f at the end" % (
        m["file_system"], m["mount_options"], m["fio"], m["mpi"], m["compiler"], m["commit"],
        m["load"])
