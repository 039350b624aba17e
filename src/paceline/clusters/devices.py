"""The devices of the catalogue: one table, every figure with its source.

Memory bandwidths are as their makers state them, in decimal units; Paleo's own cost model reads its eight as GiB/s.
Peaks of matrix units are dense: half of what data sheets print with sparsity. Sizes of memory are in MiB, as drivers
report them (``nvidia-smi``, ``rocm-smi``): where data sheets say GB, most mean GiB, of which error correction takes a
part on some devices.
"""

import re
from collections.abc import Iterable, Mapping

from paceline.clusters.catalogue import DeviceSheet
from paceline.errors import unknown

_LOOKED_UP = "2026-11"
_PALEO = "Paleo (Qi et al., ICLR 2017), its table of devices"
_BASE = "cores x base clock x 32-bit operations a cycle"
_MAKERS = ("nvidia", "geforce", "tesla", "amd", "instinct", "intel")
_ALIASES = {
    "v100-16gb": "v100",
    "a100-40gb": "a100",
    "h100-sxm": "h100",
    "h200-sxm": "h200",
    "grace-cpu": "grace",
}


def _paleo(name: str, title: str, gigaflops: float, bandwidth: float, gibibytes: float) -> DeviceSheet:
    return DeviceSheet(
        name=name,
        title=title,
        kind="gpu",
        flops=gigaflops * 1e9,
        bandwidth=bandwidth * 1e9,
        memory=gibibytes * 2.0**30,
        source=f"{_PALEO}; size of memory: NVIDIA's data sheet",
        date="2017-04",
    )


def _gpu(
    name: str,
    title: str,
    *,
    teraflops: float,
    bandwidth: float,
    mebibytes: int,
    source: str,
    inside: tuple[str, ...],
    **tensor: float,
) -> DeviceSheet:
    return DeviceSheet(
        name=name,
        title=title,
        kind="gpu",
        flops=teraflops * 1e12,
        bandwidth=bandwidth * 1e9,
        memory=mebibytes * 2.0**20,
        tensor_flops={kind: peak * 1e12 for kind, peak in tensor.items()},
        inside=inside,
        source=f"{source}, as quoted by public tables of specifications",
        date=_LOOKED_UP,
    )


def _cpu(
    name: str, title: str, *, cores: int, clock: float, a_cycle: int, bandwidth: float, source: str
) -> DeviceSheet:
    return DeviceSheet(
        name=name,
        title=title,
        kind="cpu",
        flops=cores * clock * 1e9 * a_cycle,
        bandwidth=bandwidth * 1e9,
        memory=0,
        cores=cores,
        source=f"{source}; peak: {_BASE} = {cores} x {clock:g} GHz x {a_cycle}",
        date=_LOOKED_UP,
    )


_SHEETS = (
    _paleo("titan-x", "NVIDIA GTX Titan X", 6144, 336.5, 12),
    _paleo("k20", "NVIDIA Tesla K20", 3520, 208, 5),
    _paleo("k20x", "NVIDIA Tesla K20X", 3935, 250, 6),
    _paleo("k40", "NVIDIA Tesla K40", 4290, 288, 12),
    _paleo("k80", "NVIDIA Tesla K80", 5600, 480, 24),
    _paleo("gtx-780-ti", "NVIDIA GTX 780 Ti", 5040, 336, 3),
    _paleo("gt-750m", "NVIDIA GT 750M", 722.7, 80, 2),
    DeviceSheet(
        name="i7-5930k",
        title="Intel Core i7-5930K",
        kind="cpu",
        flops=289e9,
        bandwidth=68e9,
        memory=0,
        cores=6,
        source=_PALEO,
        date="2017-04",
    ),
    _gpu(
        "v100",
        "NVIDIA V100 SXM2 16 GB",
        teraflops=15.7,
        fp16=125,
        bandwidth=900,
        mebibytes=16_160,
        inside=("pcie3-x16", "nvlink2"),
        source="NVIDIA V100 data sheet",
    ),
    _gpu(
        "t4",
        "NVIDIA T4",
        teraflops=8.1,
        fp16=65,
        bandwidth=320,
        mebibytes=15_360,
        inside=("pcie3-x16",),
        source="NVIDIA T4 data sheet",
    ),
    _gpu(
        "a10",
        "NVIDIA A10",
        teraflops=31.2,
        tf32=62.5,
        fp16=125,
        bf16=125,
        bandwidth=600,
        mebibytes=23_028,
        inside=("pcie4-x16",),
        source="NVIDIA A10 data sheet; tf32 is half of bf16, as on the A40 of the same chip",
    ),
    _gpu(
        "a100",
        "NVIDIA A100 SXM4 40 GB",
        teraflops=19.5,
        tf32=156,
        fp16=312,
        bf16=312,
        bandwidth=1555,
        mebibytes=40_960,
        inside=("pcie4-x16", "nvlink3"),
        source="NVIDIA A100 data sheet (1758950 r4) and Ampere white paper",
    ),
    _gpu(
        "a100-80gb",
        "NVIDIA A100 SXM4 80 GB",
        teraflops=19.5,
        tf32=156,
        fp16=312,
        bf16=312,
        bandwidth=2039,
        mebibytes=81_920,
        inside=("pcie4-x16", "nvlink3"),
        source="NVIDIA A100 data sheet (1758950 r4)",
    ),
    _gpu(
        "h100",
        "NVIDIA H100 SXM5 80 GB",
        teraflops=66.9,
        tf32=494.7,
        fp16=989.4,
        bf16=989.4,
        bandwidth=3350,
        mebibytes=81_559,
        inside=("pcie5-x16", "nvlink4"),
        source="NVIDIA H100 data sheet and Hopper white paper",
    ),
    _gpu(
        "h100-pcie",
        "NVIDIA H100 PCIe 80 GB",
        teraflops=51,
        tf32=378,
        fp16=756.5,
        bf16=756.5,
        bandwidth=2000,
        mebibytes=81_559,
        inside=("pcie5-x16",),
        source="NVIDIA H100 data sheet",
    ),
    _gpu(
        "l4",
        "NVIDIA L4",
        teraflops=30.3,
        tf32=60,
        fp16=121,
        bf16=121,
        bandwidth=300,
        mebibytes=23_034,
        inside=("pcie4-x16",),
        source="NVIDIA L4 data sheet",
    ),
    _gpu(
        "rtx-4090",
        "NVIDIA GeForce RTX 4090",
        teraflops=82.6,
        tf32=82.6,
        fp16=165.2,
        bf16=165.2,
        bandwidth=1008,
        mebibytes=24_564,
        inside=("pcie4-x16",),
        source="NVIDIA Ada white paper; fp16 with 32-bit sums",
    ),
    _gpu(
        "h200",
        "NVIDIA H200 SXM 141 GB",
        teraflops=66.9,
        tf32=494.7,
        fp16=989.4,
        bf16=989.4,
        bandwidth=4800,
        mebibytes=143_771,
        inside=("pcie5-x16", "nvlink4"),
        source="NVIDIA H200 data sheet; computes as the H100 SXM of the same chip",
    ),
    _gpu(
        "b200",
        "NVIDIA B200 (HGX, 1000 W)",
        teraflops=80,
        tf32=1100,
        fp16=2250,
        bf16=2250,
        bandwidth=8000,
        mebibytes=183_359,
        inside=("pcie5-x16", "nvlink5"),
        source="NVIDIA Blackwell architecture brief and HGX B200 data sheet",
    ),
    _gpu(
        "mi300x",
        "AMD Instinct MI300X",
        teraflops=163.4,
        fp16=1307.4,
        bf16=1307.4,
        bandwidth=5300,
        mebibytes=196_592,
        inside=("pcie5-x16", "infinity-fabric"),
        source="AMD Instinct MI300X data sheet; tf32 is left out, for PyTorch does not use it there by itself",
    ),
    _gpu(
        "l40s",
        "NVIDIA L40S",
        teraflops=91.6,
        tf32=183,
        fp16=362.05,
        bf16=362.05,
        bandwidth=864,
        mebibytes=46_068,
        inside=("pcie4-x16",),
        source="NVIDIA L40S data sheet",
    ),
    _cpu(
        "xeon-6248",
        "Intel Xeon Gold 6248",
        cores=20,
        clock=2.5,
        a_cycle=64,
        bandwidth=140.8,
        source="NASA NAS, Cascade Lake Processors; six channels of DDR4-2933",
    ),
    _cpu(
        "epyc-7763",
        "AMD EPYC 7763",
        cores=64,
        clock=2.45,
        a_cycle=32,
        bandwidth=204.8,
        source="AMD's list of EPYC 7003, Microway on Milan (two 256-bit FMA units); eight channels of DDR4-3200",
    ),
    _cpu(
        "epyc-9654",
        "AMD EPYC 9654",
        cores=96,
        clock=2.4,
        a_cycle=32,
        bandwidth=460.8,
        source="AMD's list of EPYC 9004 (AVX-512 on 256-bit paths); twelve channels of DDR5-4800",
    ),
    _cpu(
        "ryzen-7950x",
        "AMD Ryzen 9 7950X",
        cores=16,
        clock=4.5,
        a_cycle=32,
        bandwidth=83.2,
        source="AMD Ryzen 9 7950X specifications (Zen 4, 256-bit paths); two channels of DDR5-5200",
    ),
    _cpu(
        "grace",
        "NVIDIA Grace CPU",
        cores=72,
        clock=3.1,
        a_cycle=32,
        bandwidth=500,
        source="NVIDIA Grace CPU Superchip, one of its two CPUs (Neoverse V2, four 128-bit SVE2 units); LPDDR5X",
    ),
)

DEVICES: Mapping[str, DeviceSheet] = {sheet.name: sheet for sheet in _SHEETS}


def find_device(name: str) -> DeviceSheet:
    """The device of a name, however it is spelt: "A100", "NVIDIA A100", "RTX 4090"; a UsageError names the nearest."""
    squashed = {squash(known): sheet for known, sheet in DEVICES.items()}
    squashed |= {squash(alias): DEVICES[known] for alias, known in _ALIASES.items()}
    found = squashed.get(squash(name, _MAKERS))
    if found is None:
        raise unknown("device", name, DEVICES, see="paceline devices")
    return found


def squash(name: str, without: Iterable[str] = ()) -> str:
    """A name without what people spell differently: case, spaces and hyphens, and the words that are left out."""
    words = re.findall(r"[a-z0-9.+]+", name.lower())
    return "".join(word for word in words if word not in without)
