"""The networks of the catalogue: one table, every figure with its source.

Bandwidths are line rates, each way. Latencies are those of a small message between two processes, software included;
they vary between systems far more than bandwidths do, so measure where they matter ('paceline calibrate').
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from paceline.clusters.catalogue import NetworkSheet
from paceline.clusters.devices import squash
from paceline.errors import UsageError, unknown
from paceline.units import parse_rate, parse_seconds

_LOOKED_UP = "2026-11"
_SLOW_LATENCY, _FAST_LATENCY = 50e-6, 20e-6
_SLOW = "latency: about half of the 110 us round trip of TCP measured in serverfault.com/q/791539"
_FAST = "latency: twice the 10 us that Larsen et al. (2009) measured at best with TCP on Linux"
_NCCL = "latency: NCCL's tuning table (ring, LL128)"
_ALIASES = {
    "pcie4": "pcie4-x16",
    "pcie5": "pcie5-x16",
    "fdr": "infiniband-fdr",
    "edr": "infiniband-edr",
    "hdr": "infiniband-hdr",
    "ndr": "infiniband-ndr",
    "efa": "efa-100",
    "p4d": "efa-400",
    "p5": "efa-3200",
}


def _latency(gigabits: float) -> tuple[float, str]:
    """Of TCP over Ethernet, by its rate, and where that is from."""
    return (_FAST_LATENCY, _FAST) if gigabits >= 10 else (_SLOW_LATENCY, _SLOW)


def _ethernet(gigabits: float) -> NetworkSheet:
    latency, why = _latency(gigabits)
    return NetworkSheet(
        name=f"{gigabits:g}gbit",
        title=f"{gigabits:g} Gbit/s Ethernet",
        bandwidth=gigabits * 1e9 / 8,
        latency=latency,
        source=f"IEEE 802.3; {why}",
        date=_LOOKED_UP,
    )


def _paleo(name: str, title: str, gigabits: float, latency: float, inside: bool = False) -> NetworkSheet:
    return NetworkSheet(
        name=name,
        title=title,
        bandwidth=gigabits * 1e9 / 8,
        latency=latency,
        inside=inside,
        source="Paleo (Qi et al., ICLR 2017), its table of networks; latency: ours, Paleo has none",
        date="2017-04",
    )


def _infiniband(generation: str, gigabits: float, source: str) -> NetworkSheet:
    return NetworkSheet(
        name=f"infiniband-{generation.lower()}",
        title=f"InfiniBand {generation} 4x",
        bandwidth=gigabits * 1e9 / 8,
        latency=4.0e-6,
        source=f"{source}; {_NCCL}",
        date=_LOOKED_UP,
    )


def _efa(gigabits: float, instances: str) -> NetworkSheet:
    """All of an instance's cards together, which its workers share."""
    return NetworkSheet(
        name=f"efa-{gigabits:g}",
        title=f"EFA, {gigabits:,g} Gbit/s an instance ({instances})",
        bandwidth=gigabits * 1e9 / 8,
        latency=15e-6,
        source="Amazon EC2 instance types; latency: ours, between TCP's 20 us and InfiniBand's 4 us",
        date=_LOOKED_UP,
    )


def _inside(name: str, title: str, bandwidth: float, latency: float, source: str) -> NetworkSheet:
    return NetworkSheet(
        name=name,
        title=title,
        bandwidth=bandwidth * 1e9,
        latency=latency,
        inside=True,
        source=f"{source}; {_NCCL}",
        date=_LOOKED_UP,
    )


_SHEETS = (
    _paleo("aws", "Amazon EC2 of 2016", 2, _SLOW_LATENCY),
    _paleo("ethernet", "Ethernet 10 Gbit/s", 10, _FAST_LATENCY),
    _paleo("ethernet20", "Ethernet 20 Gbit/s", 20, _FAST_LATENCY),
    _paleo("infiniband", "InfiniBand", 70, 4.0e-6),
    _paleo("pcie2", "PCIe 2 x16", 64, 2.5e-6, inside=True),
    _paleo("pcie3", "PCIe 3 x16", 128, 2.5e-6, inside=True),
    *(_ethernet(gigabits) for gigabits in (1, 2.5, 5, 10, 25, 40, 50, 100, 200, 400)),
    _infiniband("FDR", 54.5, "IBTA: 4 lanes of 14.0625 Gbit/s, 64b/66b"),
    _infiniband("EDR", 100, "IBTA: 4 lanes of 25.78125 Gbit/s, 64b/66b"),
    _infiniband("HDR", 200, "IBTA: 4 lanes of 50 Gbit/s"),
    _infiniband("NDR", 400, "IBTA: 4 lanes of 100 Gbit/s"),
    _efa(100, "c5n, p3dn, g5.48xlarge"),
    _efa(400, "p4d, p4de"),
    _efa(3200, "p5, p5e, p5en"),
    _inside("pcie3-x16", "PCIe 3 x16", 15.75, 2.5e-6, "PCI-SIG: 16 lanes of 8 GT/s, 128b/130b"),
    _inside("pcie4-x16", "PCIe 4 x16", 31.5, 2.5e-6, "PCI-SIG: 16 lanes of 16 GT/s, 128b/130b"),
    _inside("pcie5-x16", "PCIe 5 x16", 63.0, 2.5e-6, "PCI-SIG: 16 lanes of 32 GT/s, 128b/130b"),
    _inside("nvlink2", "NVLink 2 (V100)", 150, 1.9e-6, "NVIDIA V100 data sheet: 300 GB/s both ways"),
    _inside("nvlink3", "NVLink 3 (A100)", 300, 1.9e-6, "NVIDIA A100 data sheet: 600 GB/s both ways"),
    _inside("nvlink4", "NVLink 4 (H100)", 450, 1.9e-6, "NVIDIA H100 data sheet: 900 GB/s both ways"),
    _inside("nvlink5", "NVLink 5 (B200)", 900, 1.9e-6, "NVIDIA HGX B200 data sheet: 1,800 GB/s both ways"),
    _inside(
        "infinity-fabric",
        "Infinity Fabric (MI300X)",
        448,
        1.9e-6,
        "AMD Instinct MI300X data sheet: 7 links of 128 GB/s both ways, taken to be as quick as NVLink",
    ),
)

NETWORKS: Mapping[str, NetworkSheet] = {sheet.name: sheet for sheet in _SHEETS}


def find_network(text: str) -> NetworkSheet:
    """The network of a name ("25gbit", "25GbE", "NVLink 3") or of a plain rate ("30 Gbit/s").

    "25gbit,10 us" states the latency as well. A UsageError names the nearest.
    """
    name, comma, latency = (piece.strip() for piece in text.partition(","))
    sheet = _named(name) or _rated(name)
    return (
        replace(sheet, latency=parse_seconds(latency), source=f"{sheet.source}; latency as given")
        if comma
        else sheet
    )


def _named(name: str) -> NetworkSheet | None:
    squashed = {squash(known): sheet for known, sheet in NETWORKS.items()}
    squashed |= {squash(alias): NETWORKS[known] for alias, known in _ALIASES.items()}
    return squashed.get(squash(name))


def _rated(text: str) -> NetworkSheet:
    """A network of a stated rate; the catalogue's Ethernet where it is one of those."""
    if not re.match(r"[-+]?\.?\d", text):
        raise unknown("network", text, NETWORKS, see="paceline networks")
    try:
        rate = parse_rate(re.sub(r"(?i)\s*(gbe|gige|gbps)$", " Gbit/s", text))
    except UsageError as mistake:
        raise UsageError(f"{mistake}; see 'paceline networks' for names") from mistake
    gigabits = rate * 8 / 1e9
    known = NETWORKS.get(f"{gigabits:g}gbit")
    if known and known.bandwidth == rate:
        return known
    latency, why = _latency(gigabits)
    return NetworkSheet(
        name=text, title=text, bandwidth=rate, latency=latency, source=f"as given; {why}", date=_LOOKED_UP
    )
