"""The machine during a run: usable cores, the load of other processes, and samples of CPU, memory and network."""

import os
import socket
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec
import psutil

from paceline.records.files import DamagedFile, LineWriter, read_json, read_lines

LEAST = 0.15
"""Cores: what every machine does beside a job, and what the clocks of the system miss."""
OF_FREE_CORES = 0.05
"""The part of a job's free cores that other processes may use without being a disturbance."""


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
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max 100000" is no limit
        return float("inf")


@dataclass(frozen=True, kw_only=True)
class HostLoad:
    """What computed on a host beside a job, as a mean over some time."""

    host: str
    cores: int
    """Usable cores."""
    wanted: int
    others: float
    """Usable cores that other processes used."""

    @property
    def disturbed(self) -> bool:
        return self.others > max(LEAST, OF_FREE_CORES * (self.cores - self.wanted))

    @property
    def words(self) -> str:
        return f"{self.others:.1f} of {self.cores} core{'s' if self.cores > 1 else ''} on {self.host}"


class LoadMeter:
    """Compares the CPU time of the whole host with that of a job: its processes and all their descendants."""

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
    kinds = ("user", "nice", "system", "irq", "softirq", "steal")
    cores = (times for cpu, times in enumerate(psutil.cpu_times(percpu=True)) if cpu in ours)
    return float(sum(getattr(times, kind, 0.0) for times in cores for kind in kinds))


def _job_seconds(roots: Collection[int]) -> float:
    """CPU seconds of these processes and all below them, those that have ended included."""
    found: set[psutil.Process] = set()
    for root in roots:
        with suppress(psutil.Error):
            process = psutil.Process(root)
            found |= {process, *process.children(recursive=True)}
    seconds = 0.0
    for process in found:
        with suppress(psutil.Error):
            seconds += sum(process.cpu_times()[:4])  # its own and those of children that it has waited for
    return seconds


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


class WorkerUsage(msgspec.Struct, frozen=True):
    pid: int
    cpu_percent: float
    """Of one core, since the sample before."""
    memory_bytes: int


class SystemSample(msgspec.Struct, frozen=True):
    """A line of ``system.jsonl``: the machine at one moment of a run."""

    time: float
    """Seconds of the run."""
    cpu_percent: float
    """Of all cores, since the sample before."""
    workers: tuple[WorkerUsage, ...]
    """In order of rank, those on this host; one that has ended is left out."""
    sent_per_second: float
    """Bytes by the network interfaces of the host, loopback included."""
    received_per_second: float


_decode_sample = msgspec.json.Decoder(SystemSample).decode


def read_samples(path: Path) -> Iterator[SystemSample]:
    """None where nothing was sampled, as in a simulation."""
    return read_lines(path, _decode_sample, "a sample") if path.exists() else iter(())


def worker_ranks(env: Path) -> dict[int, int]:
    """The rank of each process id, by ``env.json``, as of the last start; empty where it names none."""
    with suppress(DamagedFile, OSError, KeyError, TypeError):
        return {worker["pid"]: worker["rank"] for worker in read_json(env)["workers"]}
    return {}


class SystemSampler:
    """Writes ``system.jsonl`` while a block runs, at least one line however short it is.

    ``pids`` are workers; a worker that has ended is left out of later lines. The job is these and ``roots`` with all
    that they start, and ``wanted`` its threads. ``since`` is the run's time so far, where a run resumes. A full disk
    ends the sampling and not the run.
    """

    def __init__(
        self,
        path: Path,
        pids: Sequence[int],
        interval: float = 1.0,
        *,
        since: float = 0.0,
        roots: Sequence[int] = (),
        wanted: int = 1,
    ) -> None:
        self._path, self._interval, self._since = path, interval, since
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system-sampler", daemon=True)
        self._meter = LoadMeter((*pids, *roots), wanted)
        self._pids, self._workers = pids, dict[psutil.Process, float]()
        """The workers' processes, to the CPU seconds that each had used before."""
        self._shares: dict[int, float] = {}
        self.memory_bytes: float | None = None
        self.load: HostLoad | None = None

    def __enter__(self) -> Self:
        self._begun, self._traffic = time.monotonic(), (time.monotonic(), *_traffic())
        for pid in self._pids:
            with suppress(psutil.Error, OSError):
                process = psutil.Process(pid)
                self._workers[process] = sum(process.cpu_times()[:2])
        self._sample()  # what the next one is compared with
        self._shares.clear()
        self._meter.restart()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.load = self._meter.load()

    @property
    def cpu_percent(self) -> float | None:
        """Mean CPU use of a worker over the whole time, of one core."""
        return sum(self._shares.values()) / len(self._shares) if self._shares else None

    def _run(self) -> None:
        psutil.cpu_percent()  # psutil measures from the last call of the same thread
        with suppress(OSError), LineWriter[SystemSample](self._path, at_once=1) as lines:
            over = False
            while not over:
                over = self._over.wait(self._interval)
                lines.append(self._sample())

    def _sample(self) -> SystemSample:
        then, *before = self._traffic
        self._traffic = (time.monotonic(), *_traffic())
        now, *after = self._traffic
        sent, received = ((new - old) / max(now - then, 1e-6) for new, old in zip(after, before, strict=True))
        return SystemSample(
            time=round(self._since + now - self._begun, 3),
            cpu_percent=psutil.cpu_percent(),
            workers=tuple(self._usages()),
            sent_per_second=round(sent),
            received_per_second=round(received),
        )

    def _usages(self) -> list[WorkerUsage]:
        found = []
        for process, before in self._workers.items():
            with suppress(psutil.Error, OSError), process.oneshot():
                used, memory = sum(process.cpu_times()[:2]) - before, process.memory_info().rss
                share, pid = process.cpu_percent(), process.pid
                found.append(WorkerUsage(pid=pid, cpu_percent=share, memory_bytes=memory))
                self._shares[pid] = 100 * used / max(time.monotonic() - self._begun, 1e-6)
                self.memory_bytes = max(self.memory_bytes or 0.0, float(memory))
        return found


def _traffic() -> tuple[int, int]:
    counters = psutil.net_io_counters()
    return (counters.bytes_sent, counters.bytes_recv) if counters else (0, 0)
