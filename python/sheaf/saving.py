# SPDX-License-Identifier: Apache-2.0
"""sheaf.save: a tree of tensors and other objects as one checkpoint."""
from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Iterator, Mapping, Optional, Union

from . import place, tree
from .errors import Error, sentence
from .group import Group
from .memory import Memory
from .run import Path, Run, Save, State, log_line
from .template import Template, Unsuited

Content = Union[bytes, "os.PathLike[str]", dict[str, Any], list[Any]]


def save(path: Path, tree: Any, *, group: Optional[Group] = None, step: Optional[int] = None,
         unsupported: tree.Unsupported = "refuse", notes: Optional[Mapping[str, str]] = None,
         files: Optional[Mapping[str, Content]] = None, timeout: Optional[float] = None,
         **opts: Any) -> int:
    """Saves a tree as a checkpoint that survives a power loss, and returns its step number.
    [collective]

    path         a run directory, which is created if it does not exist; or RUN@STEP, or the folder
                 RUN/checkpoint-STEP
    tree         dicts, lists, tuples and sets of any depth with tensors (NumPy, torch, JAX,
                 whatever has __dlpack__ or a buffer), numbers, strings, bytes, None, dtypes and
                 NumPy scalars; NamedTuples, and with JAX all nodes of pytrees. Dense tensors in
                 host memory are not copied by Python. Tensors of torch and arrays of JAX may lie
                 on a device, from which they are copied first.
    group        the ranks that save together: a sheaf.group.Group; None: this process alone. All
                 ranks give the same tree, in which a sheaf.Part or a sharded array is the part of a
                 tensor that this rank has. All other tensors must be the same on all ranks.
    step         its number; None: that of the path, else the next one, or 0 in a new run
    unsupported  "refuse": an object of any other type is a TypeError. "drop": it is left out of
                 dicts and sets, becomes None in lists and tuples, and the log names it. A codec
                 (sheaf.Codec): its encode() turns such objects into trees.
    notes        short texts for the manifest
    files        files to attach, such as config.json: bytes, a path to copy, or a dict that is
                 written as JSON
    timeout      how long the run waits, in seconds; None: 600
    opts         other options of struct sheaf_opts, such as keep_last=3

    If the tree is a flat dict of a model's tensors, the checkpoint is a Hugging Face directory. If
    it has a key "model" with a container, each key with a container is a family of its own.

    TypeError, ValueError: something in the tree cannot be stored; the text says where and why.
    sheaf.Exists: the run has a checkpoint with that number.
    sheaf.Busy: another process writes to the run.
    sheaf.Failed: another rank could not save; the message is its reason.
    In all these cases nothing is saved. Other errors are those of sheaf_save_commit.
    """
    problem: Optional[BaseException] = None
    attached: dict[str, bytes] = {}
    where, number = place.to_save(path, step)
    with repeated(where) as before:
        try:
            state, attached[FILE] = before.described(tree, unsupported)
            if group is None or group.rank == 0:
                attached.update({name: contents(name, data) for name, data in
                                 (files or {}).items()})
            if before.empty:            # the library warns of a checkpoint without tensors
                opts.setdefault("log", lambda level, line: log_line(max(level, 2), line))
        except BaseException as e:
            if group is None:
                raise
            problem = e                 # begin reports it to the other ranks
            state = before.failing(sentence(e))
        with Run(where, group, create=True, timeout=timeout, **opts) as run:
            if number is None:          # no rank publishes before all of them are in begin
                number = max(run.steps(), default=-1) + 1
            try:
                with run.begin(number, state) as begun:
                    commit(begun, attached, notes or {}, group)
            except Error as e:
                if problem is not None:
                    raise problem from e
                raise
    return number


def describe(state: State, made: tree.Encoder) -> None:
    """Lists the tensors of a tree in a state."""
    for leaf in made.leaves:
        held = leaf.memory
        if isinstance(held, Memory):
            held.fetch()
            state.add(leaf.name, held, family=leaf.family, tied_to=leaf.tied_to)
            continue
        for memory, start in held.boxes():
            memory.fetch()
            state.add(leaf.name, memory, family=leaf.family, tied_to=leaf.tied_to,
                      shape=held.shape, start=start)


def commit(begun: Save, attached: Mapping[str, bytes], notes: Mapping[str, str],
           group: Optional[Group]) -> None:
    """Attaches files and notes, and commits. If that fails here, the save is aborted on all
    ranks."""
    problem: Optional[BaseException] = None
    try:
        for name, data in attached.items():
            begun.attach(name, data)
        for key, value in notes.items() if group is None or group.rank == 0 else ():
            begun.note(key, value)
    except BaseException as e:
        if group is None:
            raise
        problem = e
        begun.abort(sentence(e))
    try:
        begun.commit()
    except Error as e:
        if problem is not None:
            raise problem from e
        raise


FILE = tree.FILE
MOST = 4                                # runs whose layout is kept
MISSES = 8                              # templates in a row that were of no use


class Repeated:
    """The trees that this process saves to one run, one after another. [local]"""

    def __init__(self) -> None:
        self.saved = 0
        self.misses = 0
        self.template: Optional[Template] = None
        self.state: Optional[State] = None      # of the tree that is being saved
        self.empty = False                      # whether it has no tensors

    def described(self, value: Any, unsupported: tree.Unsupported) -> tuple[State, bytes]:
        """The list of a tree's tensors, and its document.

        The layout of the first tree is not kept, because most programs save only one.
        """
        if self.template is not None:
            document = self.template.again(value, unsupported)
            if document is not None:
                self.misses, self.empty, self.state = 0, False, self.template.state
                return self.state, document
            self.misses += 1
            self.close()
        made = encode(value, unsupported)
        self.state, self.empty = State(), not made.leaves
        describe(self.state, made)
        if self.saved > 0 and self.misses < MISSES:
            try:
                self.template = Template(value, made, self.state)
            except Unsuited:
                self.misses = MISSES
        return self.state, made.document()

    def failing(self, why: str) -> State:
        """A state with which the save fails on all ranks, with that reason."""
        self.close()
        self.state = State()
        self.state.fail(why)
        return self.state

    def saw(self) -> None:
        """The tree has been saved: lets go of its tensors, and of what the next one cannot use."""
        self.saved += 1
        if self.state is not None:
            self.state.keeps = []
        if self.template is None:
            self.close()
        self.state = None

    def close(self) -> None:
        """Frees what is kept."""
        for state in (self.state, self.template.state if self.template else None):
            if state is not None:
                state.close()
        self.state = self.template = None


_repeated: dict[str, Repeated] = {}     # by run; the one that was saved to last is the last


@contextlib.contextmanager
def repeated(run: str) -> Iterator[Repeated]:
    """What this process knows of the trees that it saves to a run. A thread that saves to the run
    while another one does begins anew, and so does the save after one that failed."""
    found = _repeated.pop(run, None) or Repeated()
    try:
        yield found
    except BaseException:
        found.close()
        raise
    found.saw()
    _repeated[run] = found
    for old in list(_repeated)[:-MOST]:
        gone = _repeated.pop(old, None)
        if gone is not None:
            gone.close()


def encode(value: Any, unsupported: tree.Unsupported) -> tree.Encoder:
    """The document and the tensors of a tree; what was dropped is logged."""
    made = tree.Encoder(value, unsupported, records=True)
    if made.dropped:
        import logging
        for what in made.dropped:
            logging.getLogger("sheaf").warning("%s was left out of the checkpoint", what)
    return made


def contents(name: str, data: Content) -> bytes:
    """What a file that is attached contains."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, (dict, list)):
        return (json.dumps(data, indent=2) + "\n").encode()
    if isinstance(data, (str, os.PathLike)):
        with open(data, "rb") as f:
            return f.read()
    raise TypeError("files[%r]: a %s; give bytes, a path or a dict" % (name, type(data).__name__))
