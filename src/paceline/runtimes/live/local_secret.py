"""The secret of a process's run: as its launcher or the user gave it, else agreed on by the processes of one host."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from paceline.errors import Mistake
from paceline.runtimes.live.place import Place
from paceline.runtimes.live.served.keys import Secret

NEEDED = (
    "needs --secret-file, so that only the run's own processes get in: make one with "
    "'openssl rand -hex 32 > secret', copy it to every host and give --secret-file secret"
)
"""What is said where nobody can make a secret for the user."""


@contextmanager
def run_secret(place: Place) -> Iterator[Secret]:
    """The secret; until the context is left, where all processes have it, those of one host find it in a file.

    Under another launcher than ours nobody makes a secret. There the processes of one host share one through a file
    that only this user can read, in a folder named for their common parent; the first one makes it.
    """
    if place.secret_file is not None:
        yield Secret.read(place.secret_file)
        return
    if place.nodes > 1:
        raise Mistake(f"a run on {place.nodes} hosts {NEEDED}")
    folder = agreed_folder(place.port)
    try:
        yield agree(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if place.role == "worker" and place.rank == 0:  # one is enough, and the others may be in their next run
        shutil.rmtree(folder, ignore_errors=True)


def agreed_folder(port: int) -> Path:
    """Where the processes that one parent has started for one port agree."""
    parent = os.getppid()
    name = f"paceline-ranks-{os.geteuid()}-{parent}-{_started(parent)}-{port}"
    return Path(tempfile.gettempdir(), name)


def agree(folder: Path) -> Secret:
    """The secret in the folder; whoever is first makes both. A Mistake where others could have a hand in it."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise Mistake(
            f"{folder} is not a folder of this user alone, so that no secret can be kept there; "
            "remove it, or give --secret-file"
        )
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
