"""What this process knows of its host: the ids that tell hosts apart, and how much memory it may still take."""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from paceline.shm.barrier import supported

MEMINFO, CGROUPS, CGROUP_ROOT = Path("/proc/meminfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_UNLIMITED = 2**63 - 1


def machine_id() -> str:
    """The same for all processes of a machine, in whichever container or network namespace, and for no others."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def host_id() -> str:
    """The same for all processes that no network lies between: one machine, and one network namespace on it."""
    try:
        network = str(Path("/proc/self/ns/net").stat().st_ino)
    except OSError:
        network = socket.gethostname()
    return f"{machine_id()}/{network}"


def sharing_id() -> str:
    """The same for processes of one host that can also share memory and watch each other."""
    if not supported():
        return host_id()
    spaces = [str(Path("/proc/self/ns", kind).stat().st_ino) for kind in ("pid", "user")]
    return "/".join([host_id(), *spaces, str(os.getuid())])


def free_memory() -> int:
    """Bytes that can be taken before the kernel has to kill a process for them."""
    return max(0, min(_limits(), default=_UNLIMITED))


def _limits() -> Iterator[int]:
    with suppress(OSError, KeyError, ValueError):
        yield 1024 * _numbers(MEMINFO)["MemAvailable:"]
    with suppress(OSError):
        for line in CGROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _left(CGROUP_ROOT, path, "memory.max", "memory.current", "")
            elif controllers == "memory":
                root = CGROUP_ROOT / "memory"
                yield from _left(root, path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")


def _left(root: Path, path: str, limit: str, used: str, prefix: str) -> Iterator[int]:
    """Of one cgroup and those above it. Cached files count as used and are freed on demand."""
    folder = root / path.lstrip("/")
    for group in (folder, *folder.parents[: len(folder.parts) - len(root.parts)]):
        with suppress(OSError, KeyError, ValueError):  # the highest has no such file; "max" is no limit
            cached = _numbers(group / "memory.stat")
            reclaimable = cached[f"{prefix}inactive_file"] + cached[f"{prefix}active_file"]
            taken = int((group / used).read_text()) - reclaimable
            yield int((group / limit).read_text()) - taken


def _numbers(path: Path) -> dict[str, int]:
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}
