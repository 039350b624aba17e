"""Finding and reading data files, with mistakes that name the places and the files."""

import gzip
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from paceline.errors import UsageError


def find_folder(
    name: str, folder: str | None, usual: Sequence[str], inside: Sequence[str], sign: Sequence[str], get: str
) -> Path:
    """The first folder that holds a file named in ``sign``.

    Looks in the folder given, or else in the usual ones, and in the subfolders ``inside`` of each. ``get``
    tells how to get the data.
    """
    roots = [folder] if folder is not None else usual
    places = [Path(root, sub) for root in roots for sub in ("", *inside)]
    for place in places:
        if find_file(place, sign):
            return place
    looked = ", ".join(dict.fromkeys(map(str, places)))
    if folder is not None and not Path(folder).is_dir():
        raise UsageError(
            f"no {name} data: there is no folder {folder}; {get}, or name its folder with --data-dir"
        )
    raise UsageError(
        f"no {name} data: {sign[0]} is not in {looked}; {get}, or name its folder with --data-dir"
    )


def find_file(folder: Path, names: Iterable[str]) -> Path | None:
    """The first of these files that is there."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def need_file(folder: Path, names: Sequence[str]) -> Path:
    """The first of these files, or a UsageError."""
    path = find_file(folder, names)
    if path is None:
        raise UsageError(
            f"{folder} has no {' or '.join(names)}, but other files of the same data; get all of them"
        )
    return path


def read_bytes(path: Path) -> bytearray:
    """A whole file, unpacked if its name ends in .gz."""
    try:
        data = path.read_bytes()
        return bytearray(gzip.decompress(data) if path.suffix == ".gz" else data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise broken(path, f"it does not unpack ({error})") from error
    except OSError as error:
        raise broken(path, f"it cannot be read ({error.strerror or error})") from error


def broken(path: Path, why: str) -> UsageError:
    """A file that cannot be right."""
    return UsageError(f"{path} is damaged or of another kind: {why}; get the file again")
