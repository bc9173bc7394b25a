# SPDX-License-Identifier: Apache-2.0
"""Rounds of a conversion in a Python that has started and imported everything, for the scripts of
bench/foreign that convert with other software."""
import contextlib
import json
import os
import resource
import sys
import time


def rounds(convert):
    """Prints a line when the imports are done. For each line of standard input it calls convert(),
    and prints how long that took and the peak memory of the process."""
    told = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    told.write("ready\n")
    for _ in sys.stdin:
        with open(os.devnull, "w", encoding="utf-8") as quiet, contextlib.redirect_stdout(quiet), \
                contextlib.redirect_stderr(quiet):
            start = time.perf_counter()
            convert()
            seconds = time.perf_counter() - start
        told.write(json.dumps({"seconds": seconds, "peak_bytes": 1024 * resource.getrusage(
            resource.RUSAGE_SELF).ru_maxrss}) + "\n")
