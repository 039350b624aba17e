"""Profiles as files: plain JSON, written whole, read with care."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from paceline.clusters.profile import SCHEMA, LinkFit, Profile
from paceline.errors import UsageError
from paceline.records.files import replacing

DEFAULT_PATH = Path("paceline-profile.json")
LARGEST = 8_000_000
"""Bytes; a profile is far smaller, and what is larger is something else."""
_AGAIN = "make it again with 'paceline calibrate'"


def write_profile(profile: Profile, path: Path) -> None:
    """Write it whole or not at all; a UsageError says why it cannot be written."""
    document = {"schema": SCHEMA, **asdict(profile)}
    try:
        with replacing(path) as file:
            file.write(json.dumps(document, allow_nan=False, separators=(",", ":")).encode())
    except OSError as error:
        raise UsageError(f"cannot write the profile {str(path)!r}: {error.strerror}") from error


def read_profile(path: Path, torch_version: str | None = None) -> Profile:
    """Read it; a UsageError names the file and what is wrong with it.

    With ``torch_version``, a profile that was measured with another torch is refused: kernels change.
    """
    document = _document(path)
    if document.get("schema") != SCHEMA:
        raise UsageError(
            f"{path} is a profile of schema {document.get('schema')!r}, and this paceline reads schema {SCHEMA}; "
            f"{_AGAIN}"
        )
    try:
        profile = _profile(document)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"{path} is not a profile that can be used: {what}; {_AGAIN}") from error
    measured = profile.versions.get("torch", "")
    if torch_version is not None and _minor(measured) != _minor(torch_version):
        raise UsageError(
            f"{path} was measured with torch {measured or 'of no version'} and this is torch {torch_version}, "
            f"whose kernels may differ; {_AGAIN}"
        )
    return profile


def made_before(path: Path) -> str | None:
    """When the profile that is there was made, in words; None where there is no file."""
    if not path.exists():
        return None
    try:
        return f"a profile of {read_profile(path).made}"
    except UsageError:
        return "a file that is not a profile"


def _document(path: Path) -> dict[str, Any]:
    try:
        size = path.stat().st_size
        text = path.read_bytes() if size <= LARGEST else b""
    except OSError as error:
        raise UsageError(f"cannot read the profile {str(path)!r}: {error.strerror}") from error
    if size > LARGEST:
        raise UsageError(f"{path} is no profile: it is larger than {LARGEST // 1_000_000} MB")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:  # also of a number with thousands of digits
        raise UsageError(f"{path} is not JSON, or only a part of it ({error}); {_AGAIN}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path} is JSON but no profile; {_AGAIN}")
    return found


def _profile(document: Mapping[str, Any]) -> Profile:
    known = {key: value for key, value in document.items() if key != "schema"}
    known["links"] = tuple(LinkFit(**link) for link in document["links"])
    for name in ("contention", "contention_short"):
        if name in known:
            if not isinstance(known[name], list):
                raise TypeError(f"{name!r} must be a list")
            _check(name, known[name])
            known[name] = tuple(map(float, known[name]))
    if known.get("cipher") is not None:
        _check("cipher", [known["cipher"]])
    profile = Profile(**known)
    for link in profile.links:
        _check_link(link)
    for name in ("versions", "machine", "device"):
        if not isinstance(getattr(profile, name), dict):
            raise TypeError(f"{name!r} must be a table")
    texts = (profile.name, profile.made, *profile.versions.values(), *(link.name for link in profile.links))
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("its name, its date, its versions and the names of its links must be text")
    return profile


def _check_link(link: LinkFit) -> None:
    name = f"link {link.name!r}"
    _check(name, (link.bandwidth,))
    _check(name, (link.latency, link.spread), least=0.0)
    _check(name, (link.workers, link.points), least=1.0)
    if not isinstance(link.workers, int) or not isinstance(link.points, int):
        raise TypeError(f"{name} must count its workers and its measurements in whole numbers")


def _check(name: str, values: Iterable[float], least: float = 1e-15) -> None:
    for value in values:
        if isinstance(value, bool) or not isfinite(value) or value < least:
            raise ValueError(f"{name} holds {value!r}, which cannot be")


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
