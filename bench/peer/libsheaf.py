# SPDX-License-Identifier: Apache-2.0
"""libsheaf for one process, by ctypes: as much as saving and loading a state needs.

Sheaf runs here as its peers do, in a Python process, from and into the same memory. Structs,
constants and functions come from sheaf_abi.json, which the build leaves beside the library.
"""
import ctypes
import functools
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python"))
from sheaf import Error as SheafError  # noqa: E402
from sheaf.binding import Library as Interface  # noqa: E402


@functools.lru_cache(maxsize=None)
def interface(library):
    """The one Interface of a library, so that a state made for one run fits another."""
    at = os.path.dirname(os.path.abspath(library))
    return Interface(library, os.path.join(at, "sheaf_abi.json"))


class Sheaf:
    """A run and its state. Errors raise SheafError."""

    def __init__(self, library, run, create, images=0, agent=None):
        self.lib = interface(library)
        self.run = self.lib.handle("sheaf_run")
        opts = self.lib.new("sheaf_opts", flags=self.lib.SHEAF_RUN_CREATE if create else 0,
                            staging={"buffers_max": images}, memory_tier={"agent": agent})
        self.lib.call("sheaf_run_open", ctypes.byref(self.run), run.encode(), None,
                      ctypes.byref(opts))

    def state(self, tensors, address):
        """Makes a state. tensors: (family, name, dtype, shape, offset); data is at address +
        offset."""
        made = self.lib.sheaf_state_new()
        for family, name, dtype, shape, offset in tensors:
            dims = tuple(shape)
            s = self.lib.new("sheaf_slice", family=family.encode(), name=name.encode(),
                             dtype=self.lib.sheaf_dtype_from_name(dtype.encode()),
                             ndim=len(dims), shape=dims, count=dims, data=address + offset)
            self.lib.call("sheaf_state_add", made, ctypes.byref(s))
        return made

    def save(self, step, state):
        save = self.lib.handle("sheaf_save")
        try:
            self.lib.call("sheaf_save_begin", ctypes.byref(save), self.run, step, state, None)
            self.lib.call("sheaf_save_commit", save, -1)
        finally:
            self.lib.sheaf_save_free(save)

    def begin(self, step, state, memory=False):
        """Begins a lazy save. Returns None if no staging buffer is free."""
        save = self.lib.handle("sheaf_save")
        flags = self.lib.SHEAF_SAVE_LAZY | self.lib.SHEAF_SAVE_MAY_DROP
        if memory:
            flags |= self.lib.SHEAF_SAVE_NO_DISK
        opts = self.lib.new("sheaf_save_opts", flags=flags)
        try:
            self.lib.call("sheaf_save_begin", ctypes.byref(save), self.run, step, state,
                          ctypes.byref(opts))
        except SheafError as e:
            if e.code == self.lib.SHEAF_EAGAIN:
                return None
            raise
        return save

    def copied(self, save):
        """Waits until all slices may be changed."""
        self.lib.call("sheaf_save_wait_copied", save, self.lib.SHEAF_ALL_SLICES, -1)

    def commit(self, save, wait):
        """Returns True if the save is on disk, and frees it; False if not yet."""
        try:
            self.lib.call("sheaf_save_commit", save, -1 if wait else 0)
        except SheafError as e:
            if e.code == self.lib.SHEAF_EAGAIN:
                return False
            self.lib.sheaf_save_free(save)
            raise
        self.lib.sheaf_save_free(save)
        return True

    def close(self):
        self.lib.sheaf_run_close(self.run)

    def load(self, step, state):
        opened = self.lib.handle("sheaf_checkpoint")
        try:
            self.lib.call("sheaf_checkpoint_open", ctypes.byref(opened), self.run, step)
            self.lib.call("sheaf_checkpoint_load", opened, state, 0, None)
        finally:
            self.lib.sheaf_checkpoint_close(opened)
