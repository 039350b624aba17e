"""Devices and networks by their data sheets; the entries, with their sources, are in ``catalogue.toml``."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import msgspec

from paceline.errors import UsageError, unknown
from paceline.units import parse_rate, parse_seconds

MAKERS = ("nvidia", "geforce", "tesla", "amd", "instinct", "intel")
SLOW = (50e-6, "latency: about half of the 110 us round trip of TCP measured in serverfault.com/q/791539")
FAST = (20e-6, "latency: twice the 10 us that Larsen et al. (2009) measured at best with TCP on Linux")
"""Latencies of TCP over Ethernet below 10 Gbit/s and from there on, in seconds, each with its source."""


@dataclass(frozen=True, kw_only=True)
class DeviceSheet:
    """A device by its data sheet."""

    name: str
    """As a user writes it: lower case, such as "a100"."""
    title: str
    """As its maker writes it."""
    kind: Literal["gpu", "cpu"]
    flops: float
    """Peak 32-bit floating-point operations a second, without matrix units."""
    bandwidth: float
    """Memory, bytes a second."""
    memory: float = 0.0
    """Bytes, as its driver reports them; 0 where it is not stated, as for a CPU, whose host has the memory."""
    tensor_flops: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Peak of matrix units by number format, such as "tf32" or "bf16", dense."""
    cores: int = 1
    """Of a CPU: ``flops`` is that of all of them."""
    inside: tuple[str, ...] = ()
    """Networks of the catalogue that can connect such devices of one host, slowest first."""
    source: str
    date: str
    """When the figures were looked up or published, year and month: 2026-11."""


@dataclass(frozen=True, kw_only=True)
class NetworkSheet:
    """A kind of link by its data sheet."""

    name: str
    title: str
    bandwidth: float
    """Bytes a second, each way."""
    latency: float
    """Seconds of a small message from one end to the other, software included."""
    inside: bool = False
    """Whether it connects devices of one host, each by a link of its own, such as PCIe and NVLink."""
    source: str
    date: str


@cache
def all_devices() -> Mapping[str, DeviceSheet]:
    """By name."""
    entries = _document()["devices"]
    sheets = msgspec.convert(entries, list[DeviceSheet])
    sizes = (entry.get("memory_mib", 0) * 2.0**20 for entry in entries)
    return {sheet.name: replace(sheet, memory=size) for sheet, size in zip(sheets, sizes, strict=True)}


@cache
def all_networks() -> Mapping[str, NetworkSheet]:
    """By name."""
    return {sheet.name: sheet for sheet in msgspec.convert(_document()["networks"], list[NetworkSheet])}


@cache
def _document() -> dict[str, Any]:
    return tomllib.loads((files("paceline.clusters") / "catalogue.toml").read_text(encoding="utf-8"))


def find_device(name: str) -> DeviceSheet:
    """The device of a name, however it is spelt: "A100", "NVIDIA A100", "RTX 4090"; a UsageError names the nearest."""
    known = all_devices()
    squashed = {squash(one): sheet for one, sheet in known.items()}
    squashed |= {squash(alias): known[one] for alias, one in _document()["device-aliases"].items()}
    found = squashed.get(squash(name, MAKERS))
    if found is None:
        raise unknown("device", name, known, see="paceline devices")
    return found


def find_network(text: str) -> NetworkSheet:
    """The network of a name ("25gbit", "25GbE", "NVLink 3") or of a plain rate ("30 Gbit/s").

    "25gbit,10 us" states the latency as well. A UsageError names the nearest.
    """
    name, comma, latency = (piece.strip() for piece in text.partition(","))
    known = all_networks()
    squashed = {squash(one): sheet for one, sheet in known.items()}
    squashed |= {squash(alias): known[one] for alias, one in _document()["network-aliases"].items()}
    sheet = squashed.get(squash(name)) or _by_rate(name)
    if not comma:
        return sheet
    return replace(sheet, latency=parse_seconds(latency), source=f"{sheet.source}; latency as given")


def _by_rate(text: str) -> NetworkSheet:
    """A network of a stated rate; the catalogue's Ethernet where it is one of those."""
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
