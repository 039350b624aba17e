"""A cluster in the user's words: inline, ``hosts=4,workers=2,bandwidth=1 Gbit/s``, or a TOML file."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from math import inf
from pathlib import Path

from paceline.clusters.catalogue import DeviceSheet, all_devices, find_device, find_network, squash
from paceline.clusters.cluster import MEMORY, Cluster, Device, Host, HostGroup, Link, StepTimes
from paceline.clusters.toml_reader import Reader, read_toml
from paceline.errors import UsageError, unknown

DEFAULT_LINK = Link(bandwidth=1e9 / 8, latency=50e-6)
"""The link of a host that states none: 1 Gbit/s Ethernet."""
MOST_HOSTS = 1_000_000
"""That one table may stand for, and the workers and servers of a host."""

NEAR = 0.86
"""How alike a name and one of the catalogue's must be to be taken for a slip: 'a1000' is, 'l40' for 'l40s' is not."""

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


def cluster_of(reader: Reader, name: str) -> Cluster:
    """The cluster that a file's tables describe; keys that were not read before are refused."""
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
            raise unknown("setting of a cluster", key, (*_HOST, *_INSIDE, *_TIMES))
    where = "cluster"
    hosts = [Reader(where, "", host)]
    return _build("cluster", Reader(where, "inside-", inside), Reader(where, "", times), hosts, count="hosts")


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    seen = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise UsageError(
                f"cluster: {part!r} is not a setting: write key=value,key=value, for example "
                f"'hosts=4,workers=2,bandwidth=1 Gbit/s', or the path of a .toml file"
            )
        if key in seen:
            raise UsageError(f"cluster: {key!r} is set twice; set it once")
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
    _read_link(inside, MEMORY)  # an error in it is reported even where no host reads it
    stated = _read_times(times)
    found = tuple(_read_group(reader, inside, count) for reader in hosts)
    try:
        _check_names(found)
        return Cluster(groups=found, times=stated, name=name, contention=contention)
    except UsageError as error:
        raise UsageError(f"{inside.where}: {error}") from error


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
    device, within = _read_device(reader), _read_link(inside, MEMORY, workers)
    start, steps = (
        reader.seconds("start", 0.0),
        reader.whole("steps", 0, least=1 if "steps" in reader.values else 0),
    )
    dies, contention = reader.seconds("dies", inf), reader.numbers("contention")
    backend = reader.word("backend", "shm")
    if backend not in ("shm", "gloo"):
        raise reader.wrong("backend", backend, "it must be shm or gloo")
    link = _read_link(reader, DEFAULT_LINK)
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
    except UsageError as error:
        raise UsageError(f"{reader.spot()}: {error}") from error
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
    except UsageError as error:
        raise UsageError(f"{reader.place('jitter')}: {error}") from error


def _read_device(reader: Reader) -> Device:
    """The device of a table of hosts.

    A name of the catalogue brings its sheet. Another one is only a name, unless it looks like a slip and no speed is
    stated: that is refused.
    """
    name = reader.word("device", "device")
    sheet = _find_sheet(reader, name)
    return Device(
        name=name,
        speed=reader.positive("speed", 1.0),
        reduce_seconds=1 / reader.rate("reduce", inf),
        sheet=sheet,
        memory=reader.size("memory", 0.0 if sheet is None else sheet.memory),
    )


def _find_sheet(reader: Reader, name: str) -> DeviceSheet | None:
    try:
        return find_device(name)
    except UsageError as error:
        if "speed" in reader.values or not get_close_matches(
            squash(name), map(squash, all_devices()), cutoff=NEAR
        ):
            return None
        raise UsageError(f"{reader.place('device')}: {error}; a name of your own needs its speed") from error


def _read_link(reader: Reader, default: Link, devices: int = 1) -> Link:
    """A link by ``network``, by ``bandwidth`` and ``latency``, or the default; ``devices`` of a host share it."""
    name = reader.word("network", "none")
    usual = _find_link(reader, name, devices) if "network" in reader.values else default
    bandwidth = reader.rate("bandwidth", usual.bandwidth)
    latency = reader.seconds("latency", usual.latency)
    reader.finish()
    return Link(bandwidth=bandwidth, latency=latency)


def _find_link(reader: Reader, name: str, devices: int) -> Link:
    both = {"bandwidth"} | ({"latency"} if "," in name else set())
    for key in sorted(both & reader.values.keys()):
        raise reader.wrong("network", name, f"it sets the {key}, and so does {key}; leave one of them out")
    try:
        return Link.of(find_network(name), devices)
    except UsageError as error:
        raise UsageError(f"{reader.place('network')}: {error}") from error
