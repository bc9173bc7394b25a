#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""save_load.c in Python: saves a tensor, clears it, loads it again. Every call as in C.

usage: save_load.py RUN-DIRECTORY [LIBSHEAF.so SHEAF_ABI.json]

The library is that of the Python package sheaf, or the one that is named. sheaf.save and sheaf.load
of the package do the same in two lines.
"""
import ctypes
import sys

from sheaf import binding


def main(directory, *library):
    sheaf = binding.Library(*library) if library else binding.library()
    weights = (ctypes.c_float * 12)(*range(12))
    run, save = sheaf.handle("sheaf_run"), sheaf.handle("sheaf_save")
    state, step = sheaf.sheaf_state_new(), sheaf.handle("sheaf_checkpoint")
    all_of_it = sheaf.new("sheaf_slice", name="weights", dtype=sheaf.SHEAF_F32, ndim=2,
                          shape=(3, 4), count=(3, 4), data=ctypes.addressof(weights))
    opts = sheaf.new("sheaf_opts", flags=sheaf.SHEAF_RUN_CREATE)
    try:
        sheaf.call("sheaf_state_add", state, ctypes.byref(all_of_it))
        sheaf.call("sheaf_run_open", ctypes.byref(run), directory.encode(), None,
                   ctypes.byref(opts))
        sheaf.call("sheaf_save_begin", ctypes.byref(save), run, 1000, state, None)
        sheaf.call("sheaf_save_commit", save, -1)
        ctypes.memset(weights, 0, ctypes.sizeof(weights))
        sheaf.call("sheaf_checkpoint_open", ctypes.byref(step), run, sheaf.SHEAF_LATEST)
        sheaf.call("sheaf_checkpoint_load", step, state, 0, None)
        print("loaded step %d" % sheaf.sheaf_checkpoint_number(step))
    finally:
        sheaf.sheaf_checkpoint_close(step)
        sheaf.sheaf_save_free(save)
        sheaf.sheaf_run_close(run)
        sheaf.sheaf_state_free(state)
    return 0 if list(weights) == list(range(12)) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
