"""A cluster in the user's words: inline, ``hosts=4,workers=2,bandwidth=1 Gbit/s``, or a TOML file."""

import tomllib
from collections.abc import Iterable, Iterator
from math import inf
from pathlib import Path

from paceline.clusters.cluster import MEMORY, Cluster, Host, HostGroup, Link
from paceline.clusters.hardware import read_device, read_link
from paceline.clusters.table import Reader
from paceline.clusters.times import StepTimes
from paceline.errors import UsageError, unknown

DEFAULT_LINK = Link(bandwidth=1e9 / 8, latency=50e-6)
"""The link of a host that states none: 1 Gbit/s Ethernet."""
MOST_HOSTS = 1_000_000
"""That one table may stand for, and the workers and servers of a host."""

_TIMES = ("data", "forward", "backward", "apply", "evaluate", "checkpoint", "serve", "aggregate", "jitter")
_HOST = (
    *("hosts", "workers", "speed", "device", "network", "bandwidth", "latency", "servers", "reduce"),
    *("start", "steps", "dies", "contention", "backend", "memory"),
)
_INSIDE = ("inside-network", "inside-bandwidth", "inside-latency")


def read_cluster(text: str) -> Cluster:
    """Read an inline description, or the ``.toml`` file at a path.

    A UsageError names the file, the line, the key, the value and the rule.
    """
    path = Path(text)
    return _read_file(path) if path.suffix == ".toml" else _read_inline(text)


def _read_file(path: Path) -> Cluster:
    reader = read_toml(path, "cluster file")
    if "ask" in reader.values:
        raise UsageError(
            f"{path} is a scenario, no cluster: it says what is run; use 'paceline simulate {path}'"
        )
    return cluster_of(reader, path.stem)


def read_toml(path: Path, what: str) -> Reader:
    """The whole of a TOML file; a UsageError where it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"cannot read the {what} {str(path)!r}: {error.strerror}") from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # a wrong byte or word, a number too long, brackets too deep
        raise UsageError(f"{path} is not TOML: {error}") from error
    return Reader(str(path), "", document, text)


def cluster_of(reader: Reader, name: str) -> Cluster:
    """The cluster that a file's tables describe; keys that nobody has asked for by now are refused."""
    name = reader.word("name", name)
    inside, times, hosts = reader.table("inside"), reader.table("times"), reader.tables("hosts")
    contention = reader.numbers("contention")
    reader.finish()
    return _build(name, inside, times, hosts, count="count", contention=contention)


def _read_inline(text: str) -> Cluster:
    """One kind of host, ``hosts`` times; the tables of a file, all in one line."""
    host: dict[str, str] = {}
    inside: dict[str, str] = {}
    times: dict[str, str] = {}
    for key, value in _pairs(text):
        if key in _HOST:
            host[key] = value
        elif key in _INSIDE:
            inside[key.removeprefix("inside-")] = value
        elif key in _TIMES:
            times[key] = value
        else:
            raise unknown("setting of --cluster", key, (*_HOST, *_INSIDE, *_TIMES))
    where = "--cluster"
    hosts = [Reader(where, "", host)]
    return _build("cluster", Reader(where, "inside-", inside), Reader(where, "", times), hosts, count="hosts")


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    seen = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise UsageError(
                f"--cluster: {part!r} is not a setting: write key=value,key=value, for example "
                f"'hosts=4,workers=2,bandwidth=1 Gbit/s', or the path of a .toml file"
            )
        if key in seen:
            raise UsageError(f"--cluster: {key!r} is set twice; set it once")
        seen.add(key)
        yield key, value


def _build(
    name: str,
    inside: Reader,
    times: Reader,
    hosts: Iterable[Reader],
    count: str,
    contention: tuple[float, ...] = (),
) -> Cluster:
    read_link(inside, MEMORY)  # a mistake in it is told even where no host reads it
    stated = _read_times(times)
    found = tuple(_read_group(reader, inside, count) for reader in hosts)
    try:
        _check_names(found)
        return Cluster(groups=found, times=stated, name=name, contention=contention)
    except UsageError as mistake:
        raise UsageError(f"{inside.where}: {mistake}") from mistake


def _read_group(reader: Reader, inside: Reader, count: str) -> HostGroup:
    """The hosts that one table describes; ``count`` is the key that says how many."""
    number, name, names = (
        reader.whole(count, 1, least=1, most=MOST_HOSTS),
        reader.word("name", "host"),
        tuple(reader.words("names", [])),
    )
    if count in reader.values and names and len(names) != number:
        raise reader.wrong("names", list(names), f"there must be as many as {count} says, {number}")
    workers, servers = (
        reader.whole(key, usual, most=MOST_HOSTS) for key, usual in (("workers", 1), ("servers", 0))
    )
    device, within = read_device(reader), read_link(inside, MEMORY, workers)
    start, steps = (
        reader.seconds("start", 0.0),
        reader.whole("steps", 0, least=1 if "steps" in reader.values else 0),
    )
    dies, contention = reader.seconds("dies", inf), reader.numbers("contention")
    backend = reader.word("backend", "shm")
    if backend not in ("shm", "gloo"):
        raise reader.wrong("backend", backend, "it must be shm or gloo")
    link = read_link(reader, DEFAULT_LINK)
    try:
        host = Host(
            name=names[0] if names else name,
            link=link,
            workers=workers,
            servers=servers,
            device=device,
            inside=within,
            start=start,
            steps=steps or None,
            dies=dies if dies < inf else None,
            contention=contention,
            backend="gloo" if backend == "gloo" else "shm",
        )
    except UsageError as mistake:
        raise UsageError(f"{reader.spot()}: {mistake}") from mistake
    return HostGroup(host, len(names) or number, names)


def _check_names(groups: Iterable[HostGroup]) -> None:
    names: set[str] = set()
    for name in (group.name(index) for group in groups for index in range(group.count)):
        if name in names:
            raise UsageError(f"two hosts are called {name!r}; every host needs a name of its own")
        names.add(name)


def _read_times(reader: Reader) -> StepTimes:
    read = {key: reader.seconds(key, 0.0) for key in _TIMES if key != "jitter"}
    stated = {key: seconds for key, seconds in read.items() if key in reader.values}
    jitter = reader.number("jitter", 0.0)
    reader.finish()
    try:
        return StepTimes(**stated, jitter=jitter)
    except UsageError as mistake:
        raise UsageError(f"{reader.place('jitter')}: {mistake}") from mistake
