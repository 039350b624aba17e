"""A cluster in the user's words: inline, ``hosts=4,workers=2,bandwidth=1 Gbit/s``, or a TOML file."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paceline.clusters.cluster import MEMORY, Cluster, Device, Host, Link
from paceline.clusters.table import Reader
from paceline.clusters.times import StepTimes
from paceline.errors import Mistake, unknown

DEFAULT_LINK = Link(bandwidth=1e9 / 8, latency=50e-6)
"""The link of a host that states none: 1 Gbit/s Ethernet."""

_TIMES = ("data", "forward", "backward", "apply", "evaluate", "checkpoint", "serve", "jitter")
_HOST = ("workers", "speed", "device", "bandwidth", "latency", "servers")
_INSIDE = {"inside-bandwidth": "bandwidth", "inside-latency": "latency"}


def read_cluster(text: str) -> Cluster:
    """Read an inline description, or the ``.toml`` file at a path.

    A Mistake names the file, the key, the value and the rule.
    """
    path = Path(text)
    if path.suffix == ".toml":
        return _read_file(path)
    return _read_document(_inline(text), "--cluster", path.stem)


def _read_file(path: Path) -> Cluster:
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise Mistake(f"cannot read the cluster file {str(path)!r}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Mistake(f"{path} is not TOML: {error}") from error
    return _read_document(document, str(path), path.stem)


def _inline(text: str) -> dict[str, Any]:
    """The document that an inline description stands for: one kind of host, ``hosts`` times."""
    host: dict[str, Any] = {}
    document: dict[str, Any] = {"hosts": [host], "inside": {}, "times": {}}
    seen = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise Mistake(
                f"--cluster: {part!r} is not a setting: write key=value,key=value, for example "
                f"'hosts=4,workers=2,bandwidth=1 Gbit/s', or the path of a .toml file"
            )
        if key in seen:
            raise Mistake(f"--cluster: {key!r} is set twice; set it once")
        seen.add(key)
        table, name = _inline_place(key, document)
        table[name] = value
    return document


def _inline_place(key: str, document: dict[str, Any]) -> tuple[dict[str, Any], str]:
    if key == "hosts":
        return document["hosts"][0], "count"
    if key in _HOST:
        return document["hosts"][0], key
    if key in _INSIDE:
        return document["inside"], _INSIDE[key]
    if key in _TIMES:
        return document["times"], key
    raise unknown("setting of --cluster", key, ("hosts", *_HOST, *_INSIDE, *_TIMES))


def _read_document(document: Mapping[str, Any], where: str, name: str) -> Cluster:
    reader = Reader(where, "", document)
    name = reader.word("name", name)
    inside = _read_link(reader.table("inside"), MEMORY)
    times = _read_times(reader.table("times"))
    hosts = [host for table in reader.tables("hosts") for host in _read_hosts(table, inside)]
    reader.finish()
    try:
        return Cluster(hosts=tuple(hosts), times=times, name=name)
    except Mistake as mistake:
        raise Mistake(f"{where}: {mistake}") from mistake


def _read_hosts(reader: Reader, inside: Link) -> Iterator[Host]:
    count = reader.whole("count", 1, least=1)
    stem = reader.word("name", "host")
    names = reader.words("names", [f"{stem}-{index}" for index in range(count)] if count > 1 else [stem])
    if "count" in reader.values and len(names) != count:
        raise reader.wrong("names", names, f"there must be as many as count says, {count}")
    workers, servers = reader.whole("workers", 1), reader.whole("servers", 0)
    device = Device(name=reader.word("device", "device"), speed=reader.positive("speed", 1.0))
    link = _read_link(reader, DEFAULT_LINK)
    for name in names:
        yield Host(name=name, link=link, workers=workers, servers=servers, device=device, inside=inside)


def _read_link(reader: Reader, default: Link) -> Link:
    link = Link(
        bandwidth=reader.rate("bandwidth", default.bandwidth),
        latency=reader.seconds("latency", default.latency),
    )
    reader.finish()
    return link


def _read_times(reader: Reader) -> StepTimes:
    stated = {key: reader.seconds(key, 0.0) for key in _TIMES if key != "jitter" and key in reader.values}
    jitter = reader.number("jitter", 0.0)
    reader.finish()
    try:
        return StepTimes(**stated, jitter=jitter)
    except Mistake as mistake:
        raise Mistake(f"{reader.place('jitter')}: {mistake}") from mistake
