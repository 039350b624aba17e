"""How many cores this process may use, and how much of them other processes use meanwhile."""

import os
import socket
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

LEAST = 0.15
"""Cores: what every machine does beside a job, and what the clocks of the system miss."""
OF_FREE_CORES = 0.05
"""The part of the cores that a job leaves free which others may use and not count as a disturbance."""


def usable_cores() -> int:
    """Cores that this process may compute on: its CPU affinity, or less by the quota of its control group."""
    return max(1, int(min(len(_affinity()), _quota())))


def _affinity() -> Collection[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def _quota(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """The cores of ``cpu.max`` (cgroup v2), the least of the group's own and its parents'."""
    try:
        line = next(line for line in own.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return float("inf")
    group = root / line.removeprefix("0::").strip("/")
    folders = [group, *(parent for parent in group.parents if parent.is_relative_to(root))]
    return min(_limit(folder / "cpu.max") for folder in folders)


def _limit(file: Path) -> float:
    try:
        quota, period = file.read_text().split()
        return float("inf") if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return float("inf")


@dataclass(frozen=True, kw_only=True)
class HostLoad:
    """What computed on a host beside a job, as a mean over some time."""

    host: str
    cores: int
    """Those that the job may use."""
    wanted: int
    """Threads that the job computes with there."""
    others: float
    """Cores that processes of others used, of those that the job may use."""

    @property
    def disturbed(self) -> bool:
        """Whether the job's times are longer for it."""
        return self.others > max(LEAST, OF_FREE_CORES * (self.cores - self.wanted))

    def with_others(self, others: float) -> "HostLoad":
        return replace(self, others=round(others, 3))

    @property
    def words(self) -> str:
        """The amount, as part of a sentence."""
        return f"{self.others:.1f} of {self.cores} core{'s' if self.cores > 1 else ''} on {self.host}"


class LoadMeter:
    """Compares the CPU time of the whole host with that of a job's processes.

    A job is a set of processes and all their descendants; what those use that have ended is in their parents' sums.
    """

    def __init__(self, roots: Collection[int] = (), wanted: int = 1) -> None:
        """``roots`` are process ids; without any, it is this process."""
        self._roots, self.wanted = frozenset(roots or {os.getpid()}), wanted
        self.restart()

    def restart(self) -> None:
        self._begun, self._total, self._own = time.monotonic(), _host_seconds(), _job_seconds(self._roots)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def load(self) -> HostLoad:
        """The mean since the start."""
        total, own = _host_seconds() - self._total, _job_seconds(self._roots) - self._own
        cores = usable_cores()
        # A quota leaves cores to others that the job could not have used.
        used = (total - own) / max(self.seconds, 1e-3) - (len(_affinity()) - cores)
        return HostLoad(
            host=socket.gethostname(), cores=cores, wanted=self.wanted, others=round(max(0.0, used), 3)
        )


def _host_seconds() -> float:
    """CPU seconds of all processes on the cores that this one may use; time stolen by other virtual machines too."""
    ours = _affinity()
    each = psutil.cpu_times(percpu=True)
    used = (times for cpu, times in enumerate(each) if cpu in ours)
    return float(
        sum(
            getattr(times, kind, 0.0)
            for times in used
            for kind in ("user", "nice", "system", "irq", "softirq", "steal")
        )
    )


def _job_seconds(roots: Collection[int]) -> float:
    """CPU seconds of these processes and all below them, those that have ended included."""
    found: dict[int, psutil.Process] = {}
    for root in roots:
        try:
            process = psutil.Process(root)
            found |= {one.pid: one for one in (process, *process.children(recursive=True))}
        except psutil.Error:
            continue
    return sum(map(_process_seconds, found.values()))


def _process_seconds(process: psutil.Process) -> float:
    try:
        return float(sum(process.cpu_times()[:4]))  # its own and those of children that it has waited for
    except psutil.Error:
        return 0.0


def disturbance(loads: Collection[HostLoad], during: str = "the run") -> str:
    """One sentence on what disturbed a measurement; empty where nothing did."""
    disturbed = [load for load in loads if load.disturbed]
    if not disturbed:
        return ""
    short = any(load.wanted + load.others > load.cores for load in disturbed)
    return (
        f"Other processes used {' and '.join(load.words for load in disturbed)} during {during}: "
        f"times {'are' if short else 'may be'} longer than on an idle machine."
    )
