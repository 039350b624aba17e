"""The secret of a process's run: as its launcher or the user gave it, else agreed on by the processes of one host."""

import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from paceline.errors import UsageError
from paceline.runtimes.live.launch_folder import LaunchFolder, sweep
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.secret import Secret

NEEDED = (
    "needs --secret-file, so that only the run's own processes get in: make one with "
    "'openssl rand -hex 32 > secret && chmod 600 secret', copy it to every host and give --secret-file secret"
)
"""What is said where nobody can make a secret for the user."""


@contextmanager
def run_secret(place: ProcessInfo) -> Iterator[Secret]:
    """The secret; until the context is left, where all processes have it, those of one host find it in a file.

    Under another launcher than ours nobody makes a secret. There the processes of one host share one through a file
    that only this user can read, in a folder named for their common parent; the first one makes it.
    """
    if place.secret_file is not None:
        yield Secret.read(place.secret_file)
        return
    if place.nodes > 1:
        raise UsageError(f"a run on {place.nodes} hosts {NEEDED}")
    folder = enter(agreed_folder(place.port))
    try:
        sweep(folder.path.parent)  # those of processes that were killed; this one is in use
        yield agree(folder.path)
    except BaseException:
        folder.remove()
        raise
    if place.role == "worker" and place.rank == 0:  # one is enough, and the others may be in their next run
        folder.remove()
    else:
        folder.close()


def agreed_folder(port: int) -> Path:
    """Where the processes that one parent has started for one port agree."""
    parent = os.getppid()
    name = f"paceline-ranks-{os.geteuid()}-{parent}-{_started(parent)}-{port}"
    return _own_parent() / name


def _own_parent() -> Path:
    """A folder in which nobody else can take the name first; the temporary directory for whoever has none.

    All processes of one launcher have one environment, so they come to the same.
    """
    with suppress(KeyError, OSError):
        if _is_own(runtime := Path(os.environ["XDG_RUNTIME_DIR"])):
            return runtime
    with suppress(RuntimeError, OSError):
        if _is_own(Path.home(), others=0o022):
            cache = Path.home() / ".cache" / "paceline" / socket.gethostname()  # a home may be on many hosts
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_own(cache):
                return cache
    return Path(tempfile.gettempdir())


def _is_own(folder: Path, others: int = 0o077) -> bool:
    """Whether it is a folder of this user, and others have none of these rights."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & others


def enter(folder: Path) -> LaunchFolder:
    """Use the folder, which the first one makes. A UsageError where others could have a hand in it."""
    while True:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        with suppress(FileNotFoundError):  # swept before it had its lock
            if not _is_own(folder):
                raise UsageError(
                    f"{folder} is not a folder of this user alone, so that no secret can be kept there; "
                    "remove it, or give --secret-file"
                )
            entered = LaunchFolder(folder)
            if entered.lasts():
                return entered
            entered.close()


def agree(folder: Path) -> Secret:
    """The secret in the folder, which the first one makes."""
    draft = folder / uuid4().hex
    Secret.new().write(draft)
    with suppress(FileExistsError):
        os.link(draft, folder / "secret")
    draft.unlink()
    return Secret.read(folder / "secret")


def _started(process: int) -> str:
    """When a process was started, in the kernel's ticks: its number may be used again; "0" where it is hidden."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"
