"""A machine that was measured: one small JSON file that can be shared."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec

from paceline.clusters.cluster import BUSY
from paceline.clusters.toml_reader import Count, Factor
from paceline.errors import UsageError
from paceline.records.files import DamagedFile, from_document, read_json, replacing, to_document

SCHEMA = 4
DEFAULT_PATH = Path("paceline-profile.json")
LARGEST = 8_000_000
AGAIN = "make it again with 'paceline calibrate'"
MACHINE = "machine"
"""Names the profile that is kept for this machine, in place of a file."""
MAKE = "'paceline calibrate machine' makes one in about 4 minutes"

MeasuredPositive = Annotated[float, msgspec.Meta(ge=1e-15, le=1e300)]
MeasuredNotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e300)]

DISTURBED = "disturbed"
"""What ``machine`` of a profile holds where something else computed while it was measured: a sentence."""

INSIDE = ("memory", "loopback", "messages")

FASTEST = 1e12
"""Bytes a second that no link between processes reaches: where a fit finds no time a byte, latency is all there is."""
SLICE = 0.003
"""The scheduler's time slice (Linux), in seconds: how long a worker keeps a shared core."""


def short_contention_weight(apart: float) -> float:
    """The weight of ``contention_short`` for workers that synchronise every ``apart`` seconds: 1 at once, 0 for never.

    The others wait for a worker that has no core meanwhile. Below a time slice the wait grows with ``apart``; above, it
    lasts some slices, however long it is until the next synchronisation.
    """
    return 1 / (1 + apart / SLICE)


@dataclass(frozen=True, kw_only=True)
class LinkFit:
    name: str
    """How it was reached: "memory" (shared memory of one host), "loopback" (Gloo on one host), "messages" (with a
    server on one host), "network" (all-reduces between hosts) or "wire" (messages between hosts)."""
    bandwidth: MeasuredPositive
    latency: MeasuredNotNegative
    spread: MeasuredNotNegative
    """Standard deviation of the logarithm of (measured / predicted)."""
    points: Count
    workers: Count = 2
    """How many communicated at once."""

    @property
    def has_bandwidth(self) -> bool:
        return self.bandwidth < FASTEST


class MachineInfo(TypedDict, total=False):
    """What is read of ``Profile.machine``, which may hold more."""

    threads: Count
    cores: Count | None
    usable_cores: Count
    memory_bytes: Count
    disturbed: str


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What ``paceline calibrate`` found; the device's part is a document that ``costs.fitted`` reads."""

    name: str
    made: str
    versions: Mapping[str, str]
    machine: Mapping[str, Any]
    """CPU or GPU by name, cores, threads per worker; and what disturbed the measurement, where anything did."""
    device: Mapping[str, Any]
    links: tuple[LinkFit, ...] = ()
    contention: tuple[Factor, ...] = ()
    """How many times as long computing takes with 1, 2, 3... workers of the host at it; the first is 1."""
    contention_short: tuple[Factor, ...] = ()
    """The same where they synchronise again at once: shared cores are then shared unevenly."""
    cipher: MeasuredPositive | None = None

    def contention_between(self, apart: float) -> tuple[float, ...]:
        """How many times as long computing takes with 1, 2, 3... workers that synchronise every ``apart`` seconds."""
        factors = self.contention
        if len(self.contention_short) == len(factors):
            part = short_contention_weight(apart)
            pairs = zip(self.contention_short, factors, strict=True)
            factors = tuple(long + (short - long) * part for short, long in pairs)
        return (*factors[:1], *(max(one, self._least(many)) for many, one in enumerate(factors[1:], start=2)))

    def _least(self, workers: int) -> float:
        """Even where they do not slow each other down, workers may take all cores."""
        cores = self.machine.get("usable_cores", self.machine.get("cores"))
        return BUSY if cores and workers * self.machine.get("threads", 1) >= cores else 1.0

    def link(self, name: str, workers: int) -> LinkFit | None:
        found = [fit for fit in self.links if fit.name == name]
        return min(found, key=lambda fit: (abs(fit.workers - workers), fit.workers)) if found else None


def machine_profile(threads: int) -> Path:
    """Where the profile of this machine is kept, for workers with as many threads; it need not exist.

    It is named by the host, because several hosts may share a home directory.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():  # as the specification of that variable has it
        cache = Path(os.path.expanduser("~/.cache"))  # noqa: PTH111 - which raises nothing without a home
    host = re.sub(r"[^\w.-]", "_", socket.gethostname())
    return cache / "paceline" / f"profile-{host}-{threads}.json"


def make_room(path: Path) -> Path:
    """The same path, in a folder that exists."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot make the folder {str(path.parent)!r}: {error.strerror}; name a file for the profile"
        ) from error
    return path


def named_profile(path: Path, threads: int) -> Path:
    """The file of a profile; "machine" names the one that is kept for this machine."""
    if str(path) != MACHINE:
        return path
    kept = machine_profile(threads)
    if not kept.exists():
        raise UsageError(
            f"there is no profile of this machine for workers with as many threads ({threads}): {MAKE}"
        )
    return kept


def write_profile(profile: Profile, path: Path) -> None:
    try:
        with replacing(path) as file:
            file.write(msgspec.json.encode({"schema": SCHEMA, **to_document(profile)}))
    except OSError as error:
        raise UsageError(f"cannot write the profile {str(path)!r}: {error.strerror}") from error


def read_profile(path: Path, torch_version: str | None = None) -> Profile:
    """Read it; a UsageError names the file and what is wrong with it.

    With ``torch_version``, a profile that was measured with another torch is refused: kernels change.
    """
    profile = _checked(path)
    measured = profile.versions.get("torch", "")
    if torch_version is not None and _minor(measured) != _minor(torch_version):
        raise UsageError(
            f"{path} was measured with torch {measured or 'of an unknown version'} and this is torch {torch_version}, "
            f"whose kernels may differ; {AGAIN}"
        )
    return profile


def made_before(path: Path) -> str | None:
    """When an existing profile was made, in words; None where there is no file."""
    try:
        return f"a profile of {read_profile(path).made}" if path.exists() else None
    except UsageError:
        return "a file that is not a profile"


def _checked(path: Path) -> Profile:
    try:
        if path.stat().st_size > LARGEST:
            raise UsageError(f"{path} is no profile: it is larger than {LARGEST // 1_000_000} MB")
        document = read_json(path)
    except OSError as error:
        raise UsageError(f"cannot read the profile {str(path)!r}: {error.strerror}") from error
    except DamagedFile as error:
        raise UsageError(f"{error}; {AGAIN}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{path} is JSON but no profile; {AGAIN}")
    schema = document.pop("schema", None)
    if schema != SCHEMA:
        raise UsageError(
            f"{path} is a profile of schema {schema!r}, made by another version of paceline; this one reads schema "
            f"{SCHEMA}: {AGAIN}"
        )
    try:
        profile = from_document(document, Profile)
        from_document(profile.machine, MachineInfo)
        read = to_document(profile)
        pairs = zip([document, *document.get("links", [])], [read, *read.get("links", [])], strict=True)
        for extra in (key for given, known in pairs for key in given if key not in known):
            raise msgspec.ValidationError(f"{extra!r} is unknown")
    except msgspec.ValidationError as error:
        raise UsageError(f"{path} is not a profile that can be used: {error}; {AGAIN}") from error
    return profile


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
