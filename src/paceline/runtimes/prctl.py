"""What Linux does for a process that asks for it; elsewhere nothing happens."""

import ctypes
import signal

_PDEATHSIG, _NAME, _CHILD_SUBREAPER = 1, 15, 36


def die_with_parent(signum: int = signal.SIGKILL) -> None:
    """Get this signal when the parent dies, however it dies. A parent that is gone already sends none."""
    _prctl(_PDEATHSIG, signum)


def show_as(name: str) -> None:
    """The name that ps and top show; 15 bytes of it."""
    _prctl(_NAME, ctypes.create_string_buffer(name.encode()))


def adopt_orphans(yes: bool) -> None:
    """Whether descendants whose parent dies become children of this process."""
    _prctl(_CHILD_SUBREAPER, int(yes))


def _prctl(option: int, value: object) -> None:
    try:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
    except (AttributeError, OSError):
        return
