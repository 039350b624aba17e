"""Reading what computes and what connects, by the catalogue's names or by figures."""

from difflib import get_close_matches
from math import inf

from paceline.clusters.catalogue import DeviceSheet
from paceline.clusters.cluster import Device, Link
from paceline.clusters.devices import DEVICES, find_device, squash
from paceline.clusters.networks import find_network
from paceline.clusters.table import Reader
from paceline.errors import UsageError

_NEAR = 0.86
"""How alike a name and one of the catalogue's must be to be taken for a slip: 'a1000' is, 'l40' for 'l40s' is not."""


def read_device(reader: Reader) -> Device:
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
    except UsageError as mistake:
        if "speed" in reader.values or not get_close_matches(
            squash(name), map(squash, DEVICES), cutoff=_NEAR
        ):
            return None
        raise UsageError(
            f"{reader.place('device')}: {mistake}; a name of your own needs its speed"
        ) from mistake


def read_link(reader: Reader, default: Link, devices: int = 1) -> Link:
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
    except UsageError as mistake:
        raise UsageError(f"{reader.place('network')}: {mistake}") from mistake
