"""The run's secret, the keys derived from it, and how processes without a launcher of ours agree on one."""

import os
import secrets
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Literal, Self
from uuid import uuid4

from paceline.errors import UsageError
from paceline.runtimes.live.process_info import SECRET_FILE, ProcessInfo, proc_stat

SHORTEST = 16
NEEDED = (
    "needs a secret file, so that only the run's own processes get in: make one with "
    "'openssl rand -hex 32 > secret && chmod 600 secret', copy it to every host and name it there, or in "
    f"{SECRET_FILE} under another launcher"
)
_LONGEST = 2**20


@dataclass(frozen=True)
class Secret:
    """What only the members of a run have; it never shows in a repr, a log or a command line."""

    text: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.text) < SHORTEST:
            raise UsageError(
                f"a secret of {len(self.text)} bytes can be guessed: it needs at least {SHORTEST}; "
                "make one with 'openssl rand -hex 32', the same on every host"
            )

    @classmethod
    def new(cls) -> Self:
        return cls(secrets.token_hex(32).encode())

    @classmethod
    def read(cls, path: Path, say: Callable[[str], None] = lambda _: None) -> Self:
        """The secret in a file, without the white space around it; says so where other users can read it."""
        try:
            with path.open("rb") as file:
                secret = cls(file.read(_LONGEST).strip())
        except OSError as error:
            raise UsageError(
                f"the secret file {path} cannot be read ({error.strerror}); put the same random text of at "
                f"least {SHORTEST} bytes there on every host"
            ) from None
        except UsageError as short:
            raise UsageError(f"the secret file {path}: {short}") from None
        if path.stat().st_mode & 0o077:
            say(
                f"other users of this host can read {path} and so join the run; 'chmod 600 {path}' shuts them out"
            )
        return secret

    def key(self, use: Literal["wire", "store"]) -> bytes:
        return blake2b(self.text, digest_size=32, person=b"paceline " + use.encode()).digest()

    def write(self, path: Path) -> None:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as stream:
            stream.write(self.text + b"\n")


@contextmanager
def run_secret(info: ProcessInfo) -> Iterator[Secret]:
    """The secret of a process's run; until the context is left, the processes of one host find it in a file.

    Under another launcher they share one that the first makes, in a file named for a process that all know.
    """
    if info.secret_file is not None:
        yield Secret.read(info.secret_file)
        return
    if info.nodes > 1:
        raise UsageError(f"a run on {info.nodes} hosts {NEEDED}")
    file = agreed_file(info.port, info.secret_of)
    try:
        yield agree(file)
    except BaseException:
        file.unlink(missing_ok=True)
        raise
    if info.role == "worker" and info.rank == 0:  # one is enough, and the others may be in their next run
        file.unlink(missing_ok=True)


def agreed_file(port: int, common: int | None = None) -> Path:
    """Where processes that have one in common, or a parent, agree on a secret; those of processes gone are removed.

    Containers may share the folder: whether one is gone shows only in its own PID namespace, which is in the name.
    """
    folder, namespace = _own_folder(), Path("/proc/self/ns/pid").stat().st_ino
    common = common or os.getppid()
    mine = f"paceline-ranks-{os.geteuid()}-{namespace}"
    for file in folder.glob(f"{mine}-*"):
        with suppress(OSError, ValueError):
            other, started, *_ = file.name.removeprefix(f"{mine}-").split("-")
            if _started(int(other)) != started:
                file.unlink()
    return folder / f"{mine}-{common}-{_started(common)}-{port}"


def _started(process: int) -> str:
    """When a process was started, in the kernel's ticks: its id may be used again."""
    return "".join(proc_stat(process)[19:20])


def _own_folder() -> Path:
    """A folder in which no other user can take the name first; the temporary directory where there is none."""
    with suppress(KeyError, OSError):
        if _is_own((runtime := Path(os.environ["XDG_RUNTIME_DIR"])).lstat()):
            return runtime
    with suppress(RuntimeError, OSError):
        if _is_own(Path.home().lstat(), others=0o022):
            cache = Path.home() / ".cache" / "paceline" / socket.gethostname()  # a home may be on many hosts
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_own(cache.lstat()):
                return cache
    return Path(tempfile.gettempdir())


def _is_own(found: os.stat_result, others: int = 0o077) -> bool:
    return not stat.S_ISLNK(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & others


def agree(file: Path) -> Secret:
    draft = file.with_name(f"{file.name}-{uuid4().hex}")
    Secret.new().write(draft)
    with suppress(FileExistsError):
        os.link(draft, file)
    draft.unlink()
    if not _is_own(file.lstat()):
        raise UsageError(
            f"{file} is not a file of this user alone, so that no secret can be kept there; "
            "remove it, or name a secret file"
        )
    return Secret.read(file)
