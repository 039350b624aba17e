"""Clusters whose hosts name their devices: each is as fast as its sheet says, beside the one that times are for."""

from collections.abc import Callable
from dataclasses import replace

from paceline.clusters.catalogue import DeviceSheet
from paceline.clusters.cluster import Cluster, Host
from paceline.errors import UsageError

Seconds = Callable[[DeviceSheet], float]
"""How long a step takes on a device of the catalogue."""


def first_device(cluster: Cluster) -> DeviceSheet | None:
    """The device of the first worker, where the catalogue knows it."""
    return next(group.host for group in cluster.groups if group.workers).device.sheet


def at_their_speeds(cluster: Cluster, base: float, seconds: Seconds) -> Cluster:
    """The cluster with hosts as fast as their sheets say, where a step takes ``base`` seconds at speed 1.

    A speed that is stated as well multiplies; a host that names no device of the catalogue has the stated speed alone.
    """
    known: dict[str, float] = {}

    def faster(host: Host) -> Host:
        sheet = host.device.sheet
        if sheet is None or not host.workers:
            return host
        if sheet.name not in known:
            known[sheet.name] = base / seconds(sheet)
        return replace(host, device=replace(host.device, speed=host.device.speed * known[sheet.name]))

    return cluster.map_hosts(faster)


def refuse_named(cluster: Cluster, option: str) -> None:
    """Refuse names of devices where a measurement says how fast one computes."""
    for group in cluster.groups:
        host = group.host
        if host.workers and host.device.sheet is not None:
            raise UsageError(
                f"{group.name(0)} has device {host.device.name!r}, and {option} measured another; leave the names of "
                "devices out and state speeds, or use --device"
            )
