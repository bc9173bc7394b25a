# SPDX-License-Identifier: Apache-2.0
"""libsheaf for one process, by ctypes: as much as saving and loading a state needs.

Sheaf runs here as its peers do, in a Python process, from and into the same memory.
"""
import ctypes as c

CREATE, LATEST, DIMS = 1 << 16, -1, 8
LAZY, NO_DISK, MAY_DROP, EAGAIN = 1 << 32, 1 << 33, 1 << 34, -7
I64x8 = c.c_int64 * DIMS


class Error(c.Structure):
    _fields_ = [("code", c.c_int), ("sys", c.c_int), ("rank", c.c_int), ("msg", c.c_char * 500)]


class Slice(c.Structure):
    _fields_ = [("size", c.c_uint32), ("memory", c.c_int32), ("flags", c.c_uint64),
                ("family", c.c_char_p),
                ("name", c.c_char_p), ("tied_to", c.c_char_p), ("dtype", c.c_int32),
                ("data_dtype", c.c_int32), ("ndim", c.c_int32), ("reserved", c.c_int32),
                ("shape", I64x8), ("start", I64x8), ("count", I64x8), ("stride", I64x8),
                ("origin", c.c_int64), ("flat_start", c.c_int64), ("flat_count", c.c_int64),
                ("data", c.c_void_p)]


class Opts(c.Structure):
    _fields_ = [("size", c.c_uint32), ("timeout", c.c_int32), ("flags", c.c_uint64),
                ("staging", c.c_uint64), ("file_bytes", c.c_uint64),
                ("io_threads", c.c_int32), ("images", c.c_int32), ("keep_last", c.c_int32),
                ("keep_every", c.c_int32), ("grace", c.c_int32), ("attempts", c.c_int32),
                ("ignore", c.c_void_p), ("log", c.c_void_p),
                ("progress", c.c_void_p), ("arg", c.c_void_p), ("keep_best", c.c_int32),
                ("best_largest", c.c_int32), ("best_note", c.c_char_p),
                ("copy_threads", c.c_int32), ("copies", c.c_int32), ("agent", c.c_char_p)]


class SaveOpts(c.Structure):
    _fields_ = [("size", c.c_uint32), ("reserved", c.c_uint32), ("flags", c.c_uint64),
                ("loss", c.c_double)]


class Sheaf:
    """A run and the state that is saved in it. What fails raises OSError with the sentence."""

    def __init__(self, library, run, create, images=0, agent=None):
        self.lib = c.CDLL(library)
        self.lib.sheaf_state_new.restype = c.c_void_p
        self.lib.sheaf_run_open.argtypes = [c.c_void_p, c.c_char_p, c.c_void_p, c.c_void_p,
                                            c.c_void_p]
        self.lib.sheaf_state_add.argtypes = [c.c_void_p, c.c_void_p, c.c_void_p]
        self.lib.sheaf_save_begin.argtypes = [c.c_void_p, c.c_void_p, c.c_int64, c.c_void_p,
                                              c.c_void_p, c.c_void_p]
        self.lib.sheaf_save_commit.argtypes = [c.c_void_p, c.c_int, c.c_void_p]
        self.lib.sheaf_save_wait_copied.argtypes = [c.c_void_p, c.c_int, c.c_int,
                                                    c.c_void_p]
        self.lib.sheaf_checkpoint_open.argtypes = [c.c_void_p, c.c_void_p, c.c_int64, c.c_void_p]
        self.lib.sheaf_checkpoint_load.argtypes = [c.c_void_p, c.c_void_p, c.c_uint64,
                                                   c.c_void_p, c.c_void_p]
        for name in ("sheaf_save_free", "sheaf_checkpoint_close", "sheaf_run_close",
                     "sheaf_state_free"):
            getattr(self.lib, name).argtypes = [c.c_void_p]
        self.err = Error()
        self.run = c.c_void_p()
        opts = Opts(size=c.sizeof(Opts), flags=CREATE if create else 0, images=images,
                    agent=agent)
        self.must(self.lib.sheaf_run_open(c.byref(self.run), run.encode(), None, c.byref(opts),
                                          c.byref(self.err)))

    def must(self, code):
        if code < 0:
            raise OSError("%s (%d)" % (self.err.msg.decode(errors="replace"), code))

    def state(self, tensors, address):
        """tensors: (family, name, dtype, shape, offset); their bytes lie at address + offset."""
        made = self.lib.sheaf_state_new()
        for family, name, dtype, shape, offset in tensors:
            dims = I64x8(*shape)
            s = Slice(size=c.sizeof(Slice), family=family.encode(), name=name.encode(),
                      dtype=self.lib.sheaf_dtype_from_name(dtype.encode()), ndim=len(shape),
                      shape=dims, count=dims, data=address + offset)
            code = self.lib.sheaf_state_add(made, c.byref(s), c.byref(self.err))
            if code < 0:
                raise OSError("%s: is not taken (%d)" % (name, code))
        return made

    def save(self, step, state):
        save = c.c_void_p()
        try:
            self.must(self.lib.sheaf_save_begin(c.byref(save), self.run, step, state, None,
                                                c.byref(self.err)))
            self.must(self.lib.sheaf_save_commit(save, -1, c.byref(self.err)))
        finally:
            self.lib.sheaf_save_free(save)

    def begin(self, step, state, memory=False):
        """A lazy save, or None where no image is free."""
        save = c.c_void_p()
        opts = SaveOpts(size=c.sizeof(SaveOpts), flags=LAZY | MAY_DROP | NO_DISK * memory)
        code = self.lib.sheaf_save_begin(c.byref(save), self.run, step, state, c.byref(opts),
                                         c.byref(self.err))
        if code == EAGAIN:
            return None
        self.must(code)
        return save

    def copied(self, save, i):
        """Until slice i may change; -2 ** 31: all of them."""
        self.lib.sheaf_save_wait_copied(save, i, -1, None)

    def commit(self, save, wait):
        """True: the save is on disk, and gone from memory; False: not yet."""
        code = self.lib.sheaf_save_commit(save, -1 if wait else 0, c.byref(self.err))
        if code == EAGAIN:
            return False
        self.lib.sheaf_save_free(save)
        self.must(code)
        return True

    def close(self):
        self.lib.sheaf_run_close(self.run)

    def load(self, step, state):
        opened = c.c_void_p()
        try:
            self.must(self.lib.sheaf_checkpoint_open(c.byref(opened), self.run, step,
                                                     c.byref(self.err)))
            self.must(self.lib.sheaf_checkpoint_load(opened, state, 0, None, c.byref(self.err)))
        finally:
            self.lib.sheaf_checkpoint_close(opened)
