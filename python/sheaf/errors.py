# SPDX-License-Identifier: Apache-2.0
"""The exceptions of this package: one class for each result code of the library.

All of them derive from `sheaf.Error`. If Python has a corresponding exception, the class derives
from that, too, so `except FileNotFoundError` catches `sheaf.NotFound`.
"""
from __future__ import annotations

from typing import Union


class Error(Exception):
    """A call of the library that failed.

    code     the result code, negative: enum sheaf_code in sheaf.h
    rank     the rank that failed first; -1: unknown
    sys      the errno of the operating system; 0: none
    message  one sentence that says what failed, where and why
    """

    code: int
    rank: int
    sys: int
    message: str

    def __init__(self, code: Union[int, str], rank: int = -1, sys: int = 0,
                 message: str = "") -> None:
        if isinstance(code, str):       # so torch's loader makes the exception of a worker again
            message, code = code, 0
        self.args = (code, rank, sys, message)
        self.code = int(code)
        self.rank = rank
        self.sys = sys
        self.message = message
        if isinstance(self, OSError):
            setattr(self, "errno", sys or None)
            setattr(self, "strerror", message)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[type[Error], tuple[int, int, int, str]]:
        return type(self), (self.code, self.rank, self.sys, self.message)


class Invalid(Error, ValueError):
    """EINVAL: an argument or the order of the calls is wrong. Nothing happened."""


class OutOfMemory(Error, MemoryError):
    """ENOMEM: there is not enough memory."""


class InputOutput(Error, OSError):
    """EIO: the disk or the file system failed; `errno` says how."""


class NotFound(Error, FileNotFoundError):
    """ENOENT: there is no such run, checkpoint or file."""


class Exists(Error, FileExistsError):
    """EEXIST: the run has a checkpoint of that number; the message says how to free it."""


class Busy(Error):
    """EBUSY: another process writes to the run."""


class NotYet(Error, TimeoutError):
    """EAGAIN: the time limit passed before the work was done. The call may be made again."""


class Mismatch(Error, ValueError):
    """ELAYOUT: a tensor is absent, or what is stored has another shape or dtype."""


class Corrupt(Error):
    """ECORRUPT: stored bytes do not match their checksum."""


class UnknownFormat(Error):
    """EFORMAT: this is not a checkpoint, or a newer version of Sheaf wrote it."""


class InDoubt(Error):
    """EINDOUBT: the checkpoint exists, but a power loss may still remove it. Save again."""


class Bug(Error):
    """EBUG: the library found an error of its own."""


class Lost(Error):
    """ELOST: a rank died or timed out, or the lock of the run was lost."""


class Diverged(Error):
    """EDIVERGED: replicas differ, or memory changed before its gate."""


class Failed(Error):
    """EFAILED: the operation was aborted; the message is the reason."""


class End(Error, IndexError):
    """EEND: a list has no item at that index."""


def sentence(e: BaseException) -> str:
    """The message of an exception for other ranks, with its type unless it is one of this package.

    It has at most 400 characters. Characters that UTF-8 cannot encode, as in file names, become
    "?".
    """
    text = str(e) if isinstance(e, Error) else "%s: %s" % (type(e).__name__, e)
    return text[:400].encode(errors="replace").decode()


BY_NAME: dict[str, type[Error]] = {
    "EINVAL": Invalid, "ENOMEM": OutOfMemory, "EIO": InputOutput, "ENOENT": NotFound,
    "EEXIST": Exists, "EBUSY": Busy, "EAGAIN": NotYet, "ELAYOUT": Mismatch, "ECORRUPT": Corrupt,
    "EFORMAT": UnknownFormat, "EINDOUBT": InDoubt, "EBUG": Bug, "ELOST": Lost,
    "EDIVERGED": Diverged, "EFAILED": Failed, "EEND": End}
