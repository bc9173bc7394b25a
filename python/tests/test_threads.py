# SPDX-License-Identifier: Apache-2.0
"""Calls of a Checkpointer from other threads than the one that trains."""
from __future__ import annotations

import sys
import threading
from typing import Any

import ranks
import tap
from tap import folder, needs, raises, told

if tap.there("torch"):
    import torch
    from torch import nn

    import sheaf
    import sheaf.torch
    from test_async import late

SLOW = 1 << 20                          # bytes a second: nothing is copied before its gate
TENSORS = 40


def model() -> Any:
    """Parameters that all have the number of the optimizer step as their values."""
    m = nn.ParameterList([nn.Parameter(torch.zeros(64, 64)) for _ in range(TENSORS)])
    for p in m:
        p.grad = -torch.ones(64, 64)
    return m


def odd_steps(path: str, steps: list[int]) -> list[str]:
    """What is wrong with checkpoints whose tensors are not all of one optimizer step."""
    found = []
    for step in steps:
        with sheaf.open("%s/checkpoint-%d" % (path, step), framework="pt") as f:
            values = {float(x) for n in f.keys() for x in f.get_tensor(n).unique()}
        if len(values) != 1:
            found.append("step %d: %s" % (step, sorted(values)))
    return found


def trains(path: str, background: bool) -> tuple[list[str], int]:
    """One thread trains, and another saves."""
    m = model()
    o = torch.optim.SGD(m.parameters(), 1.0)
    trained = 0
    with sheaf.Checkpointer(path, copy_rate_max=SLOW) as ckpt:
        ckpt.track(m, o)
        ended, stepped = threading.Event(), threading.Semaphore(0)

        def saves() -> None:
            try:
                for number in range(15):
                    assert stepped.acquire(timeout=20)
                    ckpt.save_async(number) if background else ckpt.save(number)
            finally:
                ended.set()

        saver = threading.Thread(target=saves)
        saver.start()
        while not ended.is_set():
            o.step()
            stepped.release()
            trained += 1
        saver.join()
        o.step()
        ckpt.save(100)
        steps = ckpt.steps
    assert len(steps) == 16, steps
    return odd_steps(path, steps), trained


@needs("torch")
def test_a_thread_saves_while_another_trains() -> None:
    """A save of another thread has the values of one optimizer step, to disk and in background"""
    with folder() as at:
        for background in (False, True):
            odd, trained = trains("%s/%s" % (at, background), background)
            assert not odd and trained > 15, (odd, trained)


def several(rank: int, path: str) -> list[str]:
    """Threads ask while saves are in flight; the collective calls come from one thread a rank."""
    m = model()
    o = torch.optim.SGD(m.parameters(), 1.0)
    said: list[str] = []
    with sheaf.Checkpointer(path, timeout=30, keep_last=5) as ckpt:
        ckpt.track(m, o)
        late(ckpt, 0.02)
        handles = [ckpt.save_async(0)]
        ended = threading.Event()

        def asks() -> None:
            try:
                while not ended.is_set():
                    ckpt.stats(), ckpt.steps, repr(ckpt)
                    handles[-1].done(), handles[-1].gate(), handles[0].result()
            except BaseException as e:
                said.append("%s: %s" % (type(e).__name__, e))

        threads = [threading.Thread(target=asks) for _ in range(3)]

        def collective() -> None:
            for number in range(1, 12):
                if number % 4 == 3:
                    ckpt.mark(number - 1, "keep")
                    said.extend(ckpt.verify(number - 1))
                o.step()
                handles.append(ckpt.save_async(number))

        threads.append(threading.Thread(target=collective))
        for t in threads:
            t.start()
        threads[-1].join()
        ended.set()
        for t in threads:
            t.join()
        handles[-1].result()
        return said + [str(ckpt.steps[-1])]


@needs("torch")
def test_calls_from_several_threads() -> None:
    """Calls from several threads with saves in flight wait for each other"""
    with folder() as at:
        assert ranks.results(2, several, at + "/run") == [["11"], ["11"]]


class Calls:
    """A scheduler whose state_dict() makes a call of the Checkpointer."""

    def __init__(self, call: Any) -> None:
        self.call = call

    def state_dict(self) -> int:
        self.call()
        return 1

    def load_state_dict(self, state: int) -> None:
        pass


class Ended:
    """A save that ends, in the eyes of another thread, while this one asks about it."""
    error = None

    def __init__(self, background: Any) -> None:
        self.background, self.opened = background, False

    def settle(self) -> None:
        self.opened = True
        if self in self.background.pending:
            self.background.pending.remove(self)

    def done(self) -> bool:
        return self.opened


@needs("torch")
def test_saves_that_another_thread_forgets() -> None:
    """Saves that another thread forgets meanwhile hide no other gate, and are forgotten once"""
    background = sheaf.torch.background.Background()
    saves = [Ended(background) for _ in range(4)]
    background.pending.extend(saves)
    background.settle()
    assert all(s.opened for s in saves) and not background.pending
    background.pending.extend(saves)
    saves[0].done = lambda: background.pending.clear() or True
    background.reap()
    assert not background.pending


@needs("torch")
def test_a_call_within_a_call() -> None:
    """A call within another one, as in the handler of a signal, is Invalid and harms nothing"""
    with folder() as at, sheaf.Checkpointer(at + "/run") as ckpt:
        inside = Calls(lambda: ckpt.save(2))
        ckpt.track(model(), scheduler=inside)
        with raises(sheaf.Invalid, "save() was called within save_async()"):
            ckpt.save_async(1)
        inside.call = lambda: None
        ckpt.save(1)
        assert ckpt.steps == [1]


@needs("torch")
def test_step_that_does_not_end() -> None:
    """A save waits for step() on another thread, but not for ever, nor for a thread that failed"""
    with folder() as at, sheaf.Checkpointer(at + "/run") as ckpt:
        m = model()
        inside, go = threading.Event(), threading.Event()

        class Waits(torch.optim.SGD):
            def step(self, closure: Any = None) -> None:
                inside.set()
                assert go.wait(20)
                raise RuntimeError("an optimizer fails")

        o = Waits(m.parameters(), 1.0)
        ckpt.track(m, o)
        ckpt.save(1)
        text: list[str] = []
        other = threading.Thread(target=lambda: text.append(told(o.step)))
        other.start()
        assert inside.wait(20)
        sheaf.torch.turns.STEP_SECONDS = 0.1
        with raises(sheaf.Failed, "step() of an optimizer on another thread"):
            ckpt.save(2)
        go.set()
        other.join()
        assert text == ["RuntimeError: an optimizer fails"]
        ckpt.save(2)
        assert ckpt.steps == [1, 2]


if __name__ == "__main__":
    if tap.there("torch"):
        torch.set_num_threads(1)
    sys.exit(tap.run(globals()))
