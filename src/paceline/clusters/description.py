"""A cluster in the user's words: inline, ``hosts=4,workers=2,bandwidth=1 Gbit/s``, or a TOML file."""

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from math import inf
from pathlib import Path
from typing import Annotated

from paceline.clusters import toml_reader as toml
from paceline.clusters.catalogue import NetworkSheet, all_devices, find_device, find_network, squash
from paceline.clusters.cluster import MEMORY, Cluster, Device, Host, HostGroup, Hosts, Link, StepTimes
from paceline.errors import UsageError
from paceline.records.spans import StepBreakdown

DEFAULT_LINK = Link(bandwidth=1e9 / 8, latency=50e-6)
NEAR = 0.86
"""How alike a name and one of the catalogue's must be to be taken for a slip: 'a1000' is, 'l40' for 'l40s' is not."""

Network = Annotated[NetworkSheet, toml.TextParser(find_network, "it must be a name in quotes")]

_STEP = ("data", "forward", "backward", "apply")
_TIMES = (*_STEP, "evaluate", "checkpoint", "serve", "aggregate", "coding", "jitter")


def read_cluster(text: str) -> Cluster:
    """Read an inline description, or the ``.toml`` file at a path."""
    path = Path(text)
    if path.suffix != ".toml":
        return _read_inline(text)
    reader = toml.read_toml(path, "cluster file")
    if "ask" in reader.values:
        raise UsageError(
            f"{path} is a scenario, no cluster: it says what is run; use 'paceline simulate {path}'"
        )
    return cluster_of(reader, path.stem)


def cluster_of(reader: toml.Reader, name: str) -> Cluster:
    name = reader.get("name", toml.Name, name)
    contention = reader.get("contention", tuple[toml.Factor, ...], ())
    inside, times, hosts = reader.table("inside"), reader.table("times"), reader.tables("hosts")
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
        table = inside if key != setting else times if key in _TIMES else host
        if key in table:
            raise UsageError(f"cluster: {setting!r} is set twice; set it once")
        table[key] = value
    readers = toml.Reader("cluster", "inside-", inside), toml.Reader("cluster", "", times)
    return _build("cluster", *readers, [toml.Reader("cluster", "", host)], "hosts")


def _build(
    name: str,
    inside: toml.Reader,
    times: toml.Reader,
    hosts: Sequence[toml.Reader],
    count: str,
    contention: tuple[float, ...] = (),
) -> Cluster:
    _read_link(inside, MEMORY)  # an error in it is reported even where no host reads it
    stated = _read_times(times)
    groups = tuple(_read_group(reader, inside, count) for reader in hosts)
    for reader in (inside, times, *hosts):
        reader.finish()
    try:
        return Cluster(groups=groups, times=stated, name=name, contention=contention).check_names()
    except UsageError as error:
        raise UsageError(f"{inside.where}: {error}") from error


def _read_group(reader: toml.Reader, inside: toml.Reader, count: str) -> HostGroup:
    number: int = reader.get(count, Hosts, 1)
    names: tuple[str, ...] = reader.get("names", tuple[toml.Name, ...], ())
    if count in reader.values and names and len(names) != number:
        raise reader.wrong("names", list(names), f"there must be as many as {count} says, {number}")
    name = reader.get("name", toml.Name, "host")
    host = reader.fill(
        Host,
        name=names[0] if names else name,
        device=_read_device(reader),
        link=_read_link(reader, DEFAULT_LINK),
        inside=MEMORY,
    )
    host = replace(host, inside=_read_link(inside, MEMORY, host.workers))
    return HostGroup(host, len(names) or number, names)


def _read_times(reader: toml.Reader) -> StepTimes:
    step = {key: reader.get(key, toml.Seconds, 0.0) for key in _STEP}
    times = reader.fill(StepTimes, step=None)
    if not reader.values.keys() & step.keys():
        return times
    reader.finish()
    reader.need("forward = '1 ms'", "backward = '2 ms'")
    return replace(times, step=StepBreakdown(**step))


def _read_device(reader: toml.Reader) -> Device:
    """A name that is not in the catalogue is only a label, unless it looks like a typo and no speed is stated."""
    name, sheet = reader.get("device", toml.Name, "device"), None
    try:
        sheet = find_device(name)
    except UsageError as error:
        near = get_close_matches(squash(name), map(squash, all_devices()), cutoff=NEAR)
        if near and "speed" not in reader.values:
            place = reader.place("device")
            raise UsageError(f"{place}: {error}; a name of your own needs its speed") from error
    return Device(
        name=name,
        speed=reader.get("speed", toml.PositiveNumber, 1.0),
        reduce_seconds=1 / reader.get("reduce", toml.Rate, inf),
        sheet=sheet,
        memory=reader.get("memory", toml.Bytes, sheet.memory if sheet else 0.0),
    )


def _read_link(reader: toml.Reader, usual: Link, devices: int = 1) -> Link:
    sheet: NetworkSheet | None = reader.get("network", Network, None)
    if sheet is not None:
        name = reader.values["network"]
        for key in ("bandwidth", "latency") if "," in name else ("bandwidth",):
            if key in reader.values:
                rule = f"it sets the {key}, and so does {key}; leave one of them out"
                raise reader.wrong("network", name, rule)
        usual = Link.of(sheet, devices)
    bandwidth = reader.get("bandwidth", toml.Rate, usual.bandwidth)
    return Link(bandwidth=bandwidth, latency=reader.get("latency", toml.Seconds, usual.latency))
