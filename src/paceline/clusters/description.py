"""A cluster in the user's words: inline, ``hosts=4,workers=2,bandwidth=1 Gbit/s``, or a TOML file."""

from collections.abc import Sequence
from difflib import get_close_matches
from math import inf
from pathlib import Path

from paceline.clusters.catalogue import DeviceSheet, all_devices, find_device, find_network, squash
from paceline.clusters.cluster import MEMORY, Backend, Cluster, Device, Host, HostGroup, Link, StepTimes
from paceline.clusters.toml_reader import Reader, read_toml
from paceline.errors import UsageError
from paceline.records.spans import StepBreakdown

DEFAULT_LINK = Link(bandwidth=1e9 / 8, latency=50e-6)
MOST_HOSTS = 1_000_000
NEAR = 0.86
"""How alike a name and one of the catalogue's must be to be taken for a slip: 'a1000' is, 'l40' for 'l40s' is not."""

_STEP = ("data", "forward", "backward", "apply")
_BESIDE = ("evaluate", "checkpoint", "serve", "aggregate")


def read_cluster(text: str) -> Cluster:
    """Read an inline description, or the ``.toml`` file at a path."""
    path = Path(text)
    if path.suffix != ".toml":
        return _read_inline(text)
    reader = read_toml(path, "cluster file")
    if "ask" in reader.values:
        raise UsageError(
            f"{path} is a scenario, no cluster: it says what is run; use 'paceline simulate {path}'"
        )
    return cluster_of(reader, path.stem)


def cluster_of(reader: Reader, name: str) -> Cluster:
    name = reader.word("name", name)
    inside, times, hosts = reader.table("inside"), reader.table("times"), reader.tables("hosts")
    contention = reader.numbers("contention")
    reader.finish()
    return _build(name, inside, times, hosts, "count", contention)


def _read_inline(text: str) -> Cluster:
    """The tables of a file, all in one line; ``hosts`` says for how many hosts it stands."""
    host: dict[str, str] = {}
    inside: dict[str, str] = {}
    times: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        setting, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise UsageError(
                f"cluster: {part!r} is not a setting: write key=value,key=value, for example "
                f"'hosts=4,workers=2,bandwidth=1 Gbit/s', or the path of a .toml file"
            )
        key = setting.removeprefix("inside-")
        table = inside if key != setting else times if key in (*_STEP, *_BESIDE, "jitter") else host
        if key in table:
            raise UsageError(f"cluster: {setting!r} is set twice; set it once")
        table[key] = value
    readers = Reader("cluster", "inside-", inside), Reader("cluster", "", times)
    return _build("cluster", *readers, [Reader("cluster", "", host)], "hosts")


def _build(
    name: str,
    inside: Reader,
    times: Reader,
    hosts: Sequence[Reader],
    count: str,
    contention: tuple[float, ...] = (),
) -> Cluster:
    _read_link(inside, MEMORY)  # an error in it is reported even where no host reads it
    stated = _read_times(times)
    groups = tuple(_read_group(reader, inside, count) for reader in hosts)
    try:
        return Cluster(groups=groups, times=stated, name=name, contention=contention).check_names()
    except UsageError as error:
        raise UsageError(f"{inside.where}: {error}") from error


def _read_group(reader: Reader, inside: Reader, count: str) -> HostGroup:
    number, names = reader.whole(count, 1, least=1, most=MOST_HOSTS), tuple(reader.words("names", []))
    if count in reader.values and names and len(names) != number:
        raise reader.wrong("names", list(names), f"there must be as many as {count} says, {number}")
    name, workers = reader.word("name", "host"), reader.whole("workers", 1, most=MOST_HOSTS)
    backends: dict[str, Backend] = {"shm": "shm", "gloo": "gloo"}
    backend, dies = reader.word("backend", "shm"), reader.seconds("dies", inf)
    if backend not in backends:
        raise reader.wrong("backend", backend, "it must be shm or gloo")
    try:
        host = Host(
            name=names[0] if names else name,
            workers=workers,
            servers=reader.whole("servers", 0, most=MOST_HOSTS),
            device=_read_device(reader),
            inside=_read_link(inside, MEMORY, workers),
            start=reader.seconds("start", 0.0),
            steps=reader.whole("steps", 0, least=1 if "steps" in reader.values else 0) or None,
            dies=dies if dies < inf else None,
            contention=reader.numbers("contention"),
            backend=backends[backend],
            link=_read_link(reader, DEFAULT_LINK),
        )
    except UsageError as error:
        placed = str(error).startswith(reader.where)
        raise error if placed else UsageError(f"{reader.spot()}: {error}") from error
    return HostGroup(host, len(names) or number, names)


def _read_times(reader: Reader) -> StepTimes:
    read = {key: reader.seconds(key, 0.0) for key in (*_STEP, *_BESIDE)}
    jitter = reader.number("jitter", 0.0)
    reader.finish()
    step = {key: read[key] for key in _STEP if key in reader.values}
    if step:
        reader.need("forward = '1 ms'", "backward = '2 ms'")
    beside = {key: read[key] for key in _BESIDE if key in reader.values}
    try:
        return StepTimes(step=StepBreakdown(**step) if step else None, **beside, jitter=jitter)
    except UsageError as error:
        raise UsageError(f"{reader.place('jitter')}: {error}") from error


def _read_device(reader: Reader) -> Device:
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
    """Of a name of the catalogue; another is only a name, unless it looks like a slip and no speed is stated."""
    try:
        return find_device(name)
    except UsageError as error:
        near = get_close_matches(squash(name), map(squash, all_devices()), cutoff=NEAR)
        if "speed" in reader.values or not near:
            return None
        raise UsageError(f"{reader.place('device')}: {error}; a name of your own needs its speed") from error


def _read_link(reader: Reader, usual: Link, devices: int = 1) -> Link:
    name = reader.word("network", "")
    if name:
        for key in ("bandwidth", "latency") if "," in name else ("bandwidth",):
            if key in reader.values:
                rule = f"it sets the {key}, and so does {key}; leave one of them out"
                raise reader.wrong("network", name, rule)
        try:
            usual = Link.of(find_network(name), devices)
        except UsageError as error:
            raise UsageError(f"{reader.place('network')}: {error}") from error
    bandwidth = reader.rate("bandwidth", usual.bandwidth)
    latency = reader.seconds("latency", usual.latency)
    reader.finish()
    return Link(bandwidth=bandwidth, latency=latency)
