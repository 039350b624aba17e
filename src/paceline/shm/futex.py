"""Words in shared memory that processes can sleep on, through the kernel's own call; no compiled code is needed.

A word is written by one process only, with a plain aligned store. On x86-64 stores become visible in the order in
which they were made, so data written before a word is there for a process that has read the word.
"""

import ctypes
import os
import platform
from collections.abc import Callable
from ctypes import c_int, c_long, c_uint32, c_void_p
from errno import EAGAIN, EINTR, ETIMEDOUT
from functools import cache

_FUTEX = 202
_WAIT, _WAKE = 0, 1
_ALL_WAITERS = 2**31 - 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", c_long), ("nanoseconds", c_long))


@cache
def _kernel() -> Callable[..., int]:
    """The call itself, found when it is first needed: not every system has it, and all may import this."""
    if platform.system() != "Linux":
        return lambda *_: 0  # a rank that shares no memory has nothing to wake
    found = ctypes.CDLL(None, use_errno=True).syscall
    found.argtypes = (c_long, c_void_p, c_int, c_uint32, c_void_p, c_void_p, c_uint32)
    found.restype = c_long
    return found


def supported() -> bool:
    """Whether this machine keeps the promises above."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))  # by which ranks watch each other
    except OSError:
        return False
    return True


def wake(address: int) -> None:
    _kernel()(_FUTEX, address, _WAKE, _ALL_WAITERS, None, None, 0)


def sleep(address: int, value: int, seconds: float) -> None:
    """Sleep until the word is woken; not if it holds another value already, and at most so many seconds."""
    limit = _Timespec(int(seconds), int(seconds % 1 * 1e9))
    if _kernel()(_FUTEX, address, _WAIT, value, ctypes.byref(limit), None, 0) < 0:
        error = ctypes.get_errno()
        if error not in (EAGAIN, EINTR, ETIMEDOUT):
            raise OSError(error, os.strerror(error))
