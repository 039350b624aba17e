"""Runs with servers: who gets in, and how one more worker comes to a run that is under way."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cyclopts import Parameter

from paceline.cli.options import WHERE
from paceline.errors import Mistake
from paceline.records.files import DamagedFile, read_json
from paceline.records.folder import RunFolder

if TYPE_CHECKING:
    from paceline.runtimes.live.served.keys import Secret

_ENDPOINT = re.compile(r"(?:tcp://)?(?P<host>\[[^\]]+\]|[^:/\s]+):(?P<port>\d{1,5})")


class Door(NamedTuple):
    """Where a run lets workers in, and the file with what they must know."""

    endpoint: str
    secret_file: Path
    runs: Path | None = None
    """Where its folder is, if it was found by that."""


@Parameter(name="*")
@dataclass(kw_only=True)
class ServedOptions:
    """None means that an option was not given."""

    secret_file: Annotated[Path | None, Parameter(group=WHERE)] = None
    """What only the processes of a run with servers know, the same file on every host (made for you on one host)."""
    join: Annotated[str | None, Parameter(group=WHERE)] = None
    """Be one more worker of a run with servers: its folder on this host, or HOST:PORT with --secret-file."""

    def check(self, strategy: str, servers: int, *, made: bool) -> None:
        """Refuse a secret that nobody needs, and servers without one; ``made`` says that the launcher makes one."""
        if not servers:
            if self.secret_file is not None:
                raise Mistake(
                    f"--secret-file {self.secret_file} has no place beside strategy {strategy!r}, "
                    "which has no servers; leave it out"
                )
        elif self.secret_file is not None:
            self.secret(self.secret_file)
        elif not made:
            raise Mistake(
                f"strategy {strategy!r} needs --secret-file on several hosts or under another launcher, so that only "
                "the run's own processes get in: make one with 'openssl rand -hex 32 > secret', "
                "copy it to every host and give --secret-file secret"
            )

    def warn(self) -> None:
        """Say that others can read the secret, where they can."""
        if self.secret_file is not None and self.secret_file.stat().st_mode & 0o077:
            sys.stderr.write(
                f"paceline: other users of this host can read {self.secret_file} and so join the run; "
                f"'chmod 600 {self.secret_file}' shuts them out\n"
            )

    def secret(self, file: Path) -> "Secret":
        """Read the secret."""
        from paceline.runtimes.live.served.keys import Secret

        return Secret.read(file)

    def door(self) -> Door:
        """Where the run is that this worker is to join."""
        join = self.join or ""
        if (folder := Path(join)).is_dir():
            return self._door_of(RunFolder(folder))
        match = _ENDPOINT.fullmatch(join)
        if match is None or not 0 < int(match["port"]) < 65536:
            raise Mistake(
                f"--join {join} is neither a run's folder on this host nor HOST:PORT, such as node-a:5570"
            )
        if self.secret_file is None:
            raise Mistake(f"--join {join} needs --secret-file, a copy of the file that the run was given")
        return Door(f"tcp://{match['host']}:{match['port']}", self.secret_file)

    def _door_of(self, folder: RunFolder) -> Door:
        try:
            document = read_json(folder.join)
            file = self.secret_file or Path(document["secret"])
            door = Door(document["endpoint"], file, folder.path.absolute().parent)
        except (FileNotFoundError, DamagedFile, KeyError, TypeError):
            door = None
        if (
            door is None or not door.secret_file.exists()
        ):  # a launcher removes its secret when the run is over
            raise Mistake(
                f"--join {folder.path}: no run with servers is under way there; "
                "give the folder of one that still trains, or HOST:PORT with --secret-file"
            )
        return door
