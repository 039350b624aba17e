"""A piece of memory that several processes of one host map. It has no name in any folder: it is a memfd.

Its maker tells the others which of its descriptors it is, and a token. They open it through /proc, and map it only if
it is what its maker would have made: a forged message gains nothing.
"""

import errno
import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from hmac import compare_digest
from mmap import PAGESIZE, mmap
from pathlib import Path
from stat import S_ISREG
from typing import Annotated

from msgspec import Meta

from paceline.shm.barrier import died
from paceline.shm.host import free_memory

PAGE = PAGESIZE
PREFIX = "paceline-"
TOKEN = 32
"""Bytes of a token; it stands at the start of the segment, in a page of its own that is never mapped."""

_NO_EXEC, _NO_EXEC_SEAL = 0x0008, 0x0020
"""MFD_NOEXEC_SEAL and F_SEAL_EXEC of Linux 6.3, which some systems insist on; Python has no names for them."""
_SEALS = 0x0001 | 0x0002 | 0x0004
"""F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW: a process that uses memory which another has cut off is killed by SIGBUS."""
_SPARE = 0.9
"""The part of the free memory that a segment may take: what is free is an estimate, and others need some as well."""


class SharedMemoryUnavailable(OSError):
    """Memory cannot be shared here; the message is a sentence for the user."""


class UntrustedSegment(OSError):
    """What a handle names is not a segment that its maker made; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Handle:
    """What another process of this host needs to know of a segment in order to map it."""

    process: Annotated[int, Meta(ge=1, le=2**22)]
    descriptor: Annotated[int, Meta(ge=0, le=2**30)]
    token: Annotated[bytes, Meta(min_length=TOKEN, max_length=TOKEN)]


Exchange = Callable[[str, Handle | str], Sequence[Handle | str]]
"""Gives a value of this rank, under a name, to all that map a segment together, and returns all of theirs by rank."""


@dataclass(frozen=True, slots=True)
class OwnedSegment:
    """A segment that this process made; its handle is good until it is closed."""

    memory: mmap
    handle: Handle

    def close(self) -> None:
        os.close(self.handle.descriptor)


def create(label: str, size: int) -> OwnedSegment:
    """Make a segment of ``size`` zero bytes, all reserved. Close it when all have mapped it."""
    if (free := free_memory()) * _SPARE < size + PAGE:
        raise SharedMemoryUnavailable(
            f"sharing memory needs {size / 1e6:,.1f} MB and {free / 1e6:,.0f} MB are free; "
            "free some, or raise the container's limit"
        )
    token, plain = secrets.token_bytes(TOKEN), PREFIX + re.sub(r"[^A-Za-z0-9.]+", "_", label)[:120]
    with _no_room(f"{size / 1e6:,.1f} MB of memory cannot be shared"):
        descriptor = _memfd(plain)
        try:
            os.fchmod(descriptor, 0o600)
            os.posix_fallocate(descriptor, 0, PAGE + size)
            os.pwrite(descriptor, token, 0)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            memory = mmap(descriptor, size, offset=PAGE)
        except BaseException:
            os.close(descriptor)
            raise
    return OwnedSegment(memory, Handle(os.getpid(), descriptor, token))


@contextmanager
def _no_room(what: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SharedMemoryUnavailable(f"{what} ({error.strerror})") from error


def _memfd(name: str) -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _NO_EXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(name, flags)


def attach(handle: Handle, size: int) -> mmap:
    """Map a segment of ``size`` bytes that another process of this host made and still holds open."""
    try:
        with _open(f"/proc/{handle.process}/fd/{handle.descriptor}", os.O_PATH) as found:
            _check_kind(found, size)
            # The very file that was looked at, whatever its maker does with its descriptor meanwhile.
            with _open(f"/proc/self/fd/{found}", os.O_RDWR) as opened:
                _check_content(opened, handle.token)
                with _no_room(f"{size / 1e6:,.1f} MB of shared memory cannot be mapped"):
                    return mmap(opened, size, offset=PAGE)
    except FileNotFoundError:
        if not Path(f"/proc/{handle.process}").exists() and not died(handle.process):
            raise SharedMemoryUnavailable("this system hides the processes of other ranks in /proc") from None
        raise UntrustedSegment(
            f"process {handle.process} does not hold descriptor {handle.descriptor} open"
        ) from None


@contextmanager
def _open(path: str, mode: int) -> Iterator[int]:
    with _no_room("this system does not let a rank open the memory of another through /proc"):
        descriptor = os.open(path, mode | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _check_kind(found: int, size: int) -> None:
    """Judge a file without opening it: opening a device, for one, may already do something."""
    status, name = os.fstat(found), os.readlink(f"/proc/self/fd/{found}")  # noqa: PTH115  Path resolves nothing here
    if not S_ISREG(status.st_mode) or not name.startswith(f"/memfd:{PREFIX}"):
        raise UntrustedSegment("it is not memory that this package shares")
    if status.st_uid != os.getuid():
        raise UntrustedSegment("it belongs to another user")
    if status.st_size != PAGE + size:
        raise UntrustedSegment(f"it has {status.st_size:,} bytes where {PAGE + size:,} are expected")


def _check_content(opened: int, token: bytes) -> None:
    try:
        seals = fcntl.fcntl(opened, fcntl.F_GET_SEALS)
    except OSError:  # as an ordinary file says, whatever it is called
        seals = 0
    if seals & ~_NO_EXEC_SEAL != _SEALS:
        raise UntrustedSegment("its size is not sealed")
    if not compare_digest(os.pread(opened, TOKEN, 0), token):
        raise UntrustedSegment("it is the memory of another group")


def map_together(
    first: bool, label: str, size: int, exchange: Exchange, refuse: Callable[[str], object] = str
) -> mmap:
    """Make a segment on the first of several ranks, map it on all; raise SharedMemoryUnavailable on all if one fails.

    ``refuse`` is called with what is wrong with a handle that leads to something else.
    """
    made, memory, offer, problem = None, None, "", ""
    with ExitStack() as open_for_others:
        try:
            made = open_for_others.enter_context(closing(create(label, size))) if first else None
        except SharedMemoryUnavailable as error:
            offer = str(error)
        offered = exchange("table", made.handle if made else offer)[0]
        try:
            if isinstance(offered, str):
                raise SharedMemoryUnavailable(offered)
            memory = made.memory if made else attach(offered, size)
        except (SharedMemoryUnavailable, UntrustedSegment) as error:
            problem = str(error)
            if isinstance(error, UntrustedSegment):
                refuse(problem)
        problems = exchange("mapped", problem)
    for problem in filter(None, map(str, problems)):
        raise SharedMemoryUnavailable(problem)
    assert memory is not None, "a rank without it has said why"
    return memory
