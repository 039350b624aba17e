"""Devices and networks by their data sheets; the entries, with their sources, are in ``catalogue.toml``."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeVar

import msgspec

from paceline.errors import UsageError, unknown
from paceline.units import parse_rate, parse_seconds

MAKERS = ("nvidia", "geforce", "tesla", "amd", "instinct", "intel")
SLOW = (50e-6, "latency: about half of the 110 us round trip of TCP measured in serverfault.com/q/791539")
FAST = (20e-6, "latency: twice the 10 us that Larsen et al. (2009) measured at best with TCP on Linux")
"""Latencies of TCP over Ethernet below 10 Gbit/s and from there on, in seconds, each with its source."""


@dataclass(frozen=True, kw_only=True)
class DeviceSheet:
    name: str
    title: str
    kind: Literal["gpu", "cpu"]
    flops: float
    """Peak 32-bit floating-point operations a second, without matrix units."""
    bandwidth: float
    memory: float = 0.0
    """Bytes, as its driver reports them; 0 where it is not stated, as for a CPU, whose host has the memory."""
    tensor_flops: Mapping[str, float] = field(default_factory=dict, hash=False)
    cores: int = 1
    inside: tuple[str, ...] = ()
    """Networks of the catalogue that can connect such devices of one host, slowest first."""
    source: str
    date: str


@dataclass(frozen=True, kw_only=True)
class NetworkSheet:
    name: str
    title: str
    bandwidth: float
    latency: float
    """Seconds of a small message from one end to the other, software included."""
    inside: bool = False
    """Whether it connects devices of one host, each by a link of its own, such as PCIe and NVLink."""
    source: str
    date: str


Sheet = TypeVar("Sheet")


@cache
def all_devices() -> Mapping[str, DeviceSheet]:
    entries = ({**one, "memory": one.get("memory_mib", 0) * 2.0**20} for one in _document()["devices"])
    return {one["name"]: msgspec.convert(one, DeviceSheet) for one in entries}


@cache
def all_networks() -> Mapping[str, NetworkSheet]:
    return {sheet.name: sheet for sheet in msgspec.convert(_document()["networks"], list[NetworkSheet])}


@cache
def _document() -> dict[str, Any]:
    return tomllib.loads((files("paceline.clusters") / "catalogue.toml").read_text(encoding="utf-8"))


def find_device(name: str) -> DeviceSheet:
    """However it is spelt: "A100", "NVIDIA A100", "RTX 4090"; a UsageError names the nearest."""
    found = _spelt(name, all_devices(), _document()["device-aliases"])
    if found is None:
        raise unknown("device", name, all_devices(), see="paceline devices")
    return found


def find_network(text: str) -> NetworkSheet:
    """The network of a name ("25gbit", "25GbE", "NVLink 3") or of a plain rate ("30 Gbit/s")."""
    name, comma, latency = (piece.strip() for piece in text.partition(","))
    sheet = _spelt(name, all_networks(), _document()["network-aliases"]) or _by_rate(name)
    if not comma:
        return sheet
    return replace(sheet, latency=parse_seconds(latency), source=f"{sheet.source}; latency as given")


def _spelt(name: str, known: Mapping[str, Sheet], aliases: Mapping[str, str]) -> Sheet | None:
    found = {squash(one): sheet for one, sheet in known.items()}
    found |= {squash(alias): known[one] for alias, one in aliases.items()}
    return found.get(squash(name)) or found.get(squash(name, MAKERS))


def _by_rate(text: str) -> NetworkSheet:
    if not re.match(r"[-+]?\.?\d", text):
        raise unknown("network", text, all_networks(), see="paceline networks")
    try:
        rate = parse_rate(re.sub(r"(?i)\s*(gbe|gige|gbps)$", " Gbit/s", text))
    except UsageError as error:
        raise UsageError(f"{error}; see 'paceline networks' for names") from error
    gigabits = rate * 8 / 1e9
    known = all_networks().get(f"{gigabits:g}gbit")
    if known and known.bandwidth == rate:
        return known
    latency, source = FAST if gigabits >= 10 else SLOW
    return NetworkSheet(
        name=text, title=text, bandwidth=rate, latency=latency, source=f"as given; {source}", date="2026-11"
    )


def squash(name: str, without: Iterable[str] = ()) -> str:
    """A name without what is spelt differently: case, spaces and hyphens, and the words that are left out."""
    words = re.findall(r"[a-z0-9.+]+", name.lower())
    return "".join(word for word in words if word not in without)
