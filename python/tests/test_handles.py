# SPDX-License-Identifier: Apache-2.0
"""What must live as long as a handle, and readers in processes that were forked."""
from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import weakref
from typing import Any, Callable

import tap

if tap.there("numpy"):
    import numpy as np
    import sheaf
    from sheaf import memory


def watched() -> tuple[Callable[[Any], int], "weakref.ref[Any]"]:
    """A function for opts.progress, and a reference that dies with it."""
    def progress(stat: Any) -> int:
        return 0
    return progress, weakref.ref(progress)


def listed(x: Any) -> sheaf.State:
    """A state with an array as x."""
    held = memory.of(x)
    assert held is not None
    state = sheaf.State()
    state.add("x", held)
    return state


@tap.needs("numpy")
def test_a_checkpoint_outlives_its_run() -> None:
    """The library may call the functions of a run as long as a checkpoint of it is open"""
    with tap.folder() as at:
        sheaf.save(at, {"x": np.arange(4)})
        progress, called = watched()
        run = sheaf.Run(at, progress=progress)
        checkpoint = run.checkpoint()
        run.close()
        del run, progress
        gc.collect()
        assert called() is not None
        x = np.zeros(4, np.int64)
        checkpoint.load(listed(x))
        assert x[3] == 3
        checkpoint.close()
        gc.collect()
        assert called() is None


@tap.needs("numpy")
def test_a_save_outlives_its_state() -> None:
    """A lazy save reads memory that nothing else refers to, and the functions of its run"""
    with tap.folder() as at:
        x = np.full(1000, 7)
        there = weakref.ref(x)
        progress, called = watched()
        run = sheaf.Run(at, create=True, progress=progress)
        state = listed(x)
        save = run.begin(0, state, lazy=True)
        state.close()
        del x, state, progress
        gc.collect()
        assert there() is not None and called() is not None
        save.commit()
        save.close()
        gc.collect()
        assert there() is None
        run.close()
        assert (sheaf.load(at)["x"] == 7).all()


def in_a_child(work: Callable[[], bool]) -> bool:
    """What a forked process says, within ten seconds."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)                # it ends the process
        try:
            os._exit(0 if work() else 1)
        except BaseException as e:
            print("# %s: %s" % (type(e).__name__, e), flush=True)
        os._exit(2)
    return os.waitpid(pid, 0)[1] == 0


@tap.needs("numpy")
def test_a_fork_keeps_the_step() -> None:
    """A forked process reads the step that was opened, however often, if there is a newer one"""
    with tap.folder() as at:
        for path in ("", "@latest"):
            sheaf.save(at, {"x": np.full(4, 1)})
            with sheaf.open(at + path) as f:
                sheaf.save(at, {"x": np.full(4, 2)})
                assert in_a_child(lambda: all((f["x"][...] == 1).all() for i in range(3)))
                assert (f["x"][...] == 1).all()
            f = sheaf.open(at + path)
            f.close()
            assert in_a_child(lambda: tap.told(lambda: f["x"][...]) ==
                              "ValueError: x: the checkpoint is closed")


@tap.needs("numpy")
def test_a_fork_while_a_thread_reads() -> None:
    """A process that is forked while another thread reads does not wait for that thread"""
    with tap.folder() as at:
        sheaf.save(at, {"x": np.arange(4)})
        with sheaf.open(at) as f, f.lock:
            assert in_a_child(lambda: bool(f["x"][3] == 3))


@tap.needs("numpy")
def test_exceptions_of_callbacks() -> None:
    """An interrupt in a callback ends the call, and an exception is no cause of later errors"""
    with tap.folder() as at:
        raised: list[BaseException] = [KeyboardInterrupt()]
        logging.getLogger("sheaf").setLevel(logging.CRITICAL)

        def log(level: int, line: bytes) -> None:
            if raised:
                raise raised.pop()

        # A checkpoint without tensors is something to log.
        run = sheaf.Run(at, create=True, log=log)
        with tap.raises(KeyboardInterrupt):
            with run.begin(0, sheaf.State()) as save:
                save.commit()
        raised.append(ZeroDivisionError())
        with run.begin(1, sheaf.State()) as save:
            save.commit()
        logging.getLogger("sheaf").setLevel(logging.NOTSET)
        assert not raised
        checkpoint = run.checkpoint()
        checkpoint.close()
        causes: list[Any] = []

        def look() -> None:
            try:
                list(checkpoint.tensors())
            except sheaf.Error as e:
                causes.append(e.__cause__)

        other = threading.Thread(target=look)       # which has made no call yet
        other.start()
        other.join()
        look()
        assert causes == [None, None], causes


if __name__ == "__main__":
    sys.exit(tap.run(globals()))
