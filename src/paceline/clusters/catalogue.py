"""What a device or a network can do by its data sheet; see ``devices.py`` and ``networks.py`` for the entries."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


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
    memory: float
    """Bytes, as its driver reports them; 0 where nobody says, as for a CPU, whose host has the memory."""
    tensor_flops: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Peak of matrix units by number format, such as "tf32" or "bf16", dense."""
    cores: int = 1
    """Of a CPU: ``flops`` is that of all of them."""
    inside: tuple[str, ...] = ()
    """Networks of the catalogue that such devices of one host can be connected by, slowest first."""
    source: str
    """Where the figures are from."""
    date: str
    """When they were looked up or published, year and month: 2026-11."""


@dataclass(frozen=True, kw_only=True)
class NetworkSheet:
    """A kind of link by its data sheet."""

    name: str
    title: str
    bandwidth: float
    """Bytes a second, each way."""
    latency: float
    """Seconds from one end to the other, software included, where a small message was measured or is usual."""
    inside: bool = False
    """Whether it connects devices of one host, each by a link of its own, such as PCIe and NVLink."""
    source: str
    date: str
