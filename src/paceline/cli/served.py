"""How one more worker comes to a run with servers that is under way."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from cyclopts import Parameter

from paceline.cli.options import WHERE
from paceline.errors import UsageError
from paceline.records.files import DamagedFile, read_json
from paceline.records.folder import RunFolder

_ENDPOINT = re.compile(r"(?:tcp://)?(?P<host>\[[^\]]+\]|[^:/\s]+):(?P<port>\d{1,5})")


class JoinAddress(NamedTuple):
    """Where a run lets workers in, and the file with what they must know."""

    endpoint: str
    secret_file: Path
    runs: Path | None = None
    """Where its folder is, if it was found by that."""


@Parameter(name="*")
@dataclass(kw_only=True)
class ServedOptions:
    """None means that an option was not given."""

    join: Annotated[str | None, Parameter(group=WHERE)] = None
    """Be one more worker of a run with servers: its folder on this host, or HOST:PORT with --secret-file."""

    def door(self, secret_file: Path | None) -> JoinAddress:
        """Where the run is that this worker is to join; ``secret_file`` is what the user gave."""
        join = self.join or ""
        if (folder := Path(join)).is_dir():
            return self._door_of(RunFolder(folder), secret_file)
        if (endpoint := _endpoint(join)) is None:
            raise UsageError(
                f"--join {join} is neither a run's folder on this host nor HOST:PORT, such as node-a:5570"
            )
        if secret_file is None:
            raise UsageError(f"--join {join} needs --secret-file, a copy of the file that the run was given")
        return JoinAddress(endpoint, secret_file)

    def _door_of(self, folder: RunFolder, secret_file: Path | None) -> JoinAddress:
        try:
            document = read_json(folder.join)
            file = secret_file or Path(document["secret"])
            endpoint, known = _endpoint(document["endpoint"]), file.exists()
        except (FileNotFoundError, DamagedFile, KeyError, TypeError):
            known = False
        if not known:  # a launcher removes its secret when the run is over
            raise UsageError(
                f"--join {folder.path}: no run with servers is under way there; "
                "give the folder of one that still trains, or HOST:PORT with --secret-file"
            )
        if endpoint is None:
            raise UsageError(
                f"--join {folder.path}: {folder.join} names no HOST:PORT; give HOST:PORT with --secret-file"
            )
        if secret_file is None and file.stat().st_uid != os.geteuid():
            raise UsageError(
                f"--join {folder.path}: the secret file {file} that it names belongs to another user; "
                "give --secret-file if you trust it"
            )
        return JoinAddress(endpoint, file, folder.path.absolute().parent)


def _endpoint(text: str) -> str | None:
    """Where a server listens, as tcp://HOST:PORT; None where the text is not HOST:PORT."""
    match = _ENDPOINT.fullmatch(text)
    if match is None or not 0 < int(match["port"]) < 65536:
        return None
    return f"tcp://{match['host']}:{match['port']}"
