"""Where a live run computes and how its processes talk; nothing here changes its result."""

from dataclasses import dataclass, field
from typing import Literal

import torch

import paceline.shm  # noqa: F401  makes "shm" a backend that torch knows
from paceline.collectives import NATIVE
from paceline.errors import UsageError, unknown
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.timeouts import HANG, LEAST_SILENCE, SILENCE
from paceline.runtimes.threads import usual_threads

BACKENDS = ("gloo", "nccl", "shm")
LONGEST = 365 * 24 * 3600
"""Seconds of a year: more overflows where torch or Python counts time."""


@dataclass(frozen=True, kw_only=True)
class LiveOptions:
    device: Literal["cpu", "cuda"] = "cpu"
    backend: str | None = None
    """Of torch.distributed; None is shm among workers of one host, gloo across hosts, nccl on CUDA."""
    timeout: float = 300.0
    """Seconds in a collective."""
    threads: int = field(default_factory=usual_threads)
    silence: float = SILENCE
    """Seconds that servers wait for a sign of life from a worker, and launchers from each other."""
    hang_timeout: float | None = None
    """Seconds that a process may make no progress before it is ended; None is 120, or less where the timeout is short:
    it is ended before the others give up waiting."""

    @property
    def hang(self) -> float:
        return min(HANG, 0.8 * self.timeout) if self.hang_timeout is None else self.hang_timeout

    def __post_init__(self) -> None:
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UsageError("device cuda: torch finds no CUDA device on this host; choose cpu")
        if self.backend is not None:
            self._check_backend(self.backend)
        for what, seconds, least in (
            ("timeout", self.timeout, 1e-3),
            ("silence", self.silence, LEAST_SILENCE),
        ):
            if not least <= seconds <= LONGEST:
                raise UsageError(
                    f"a {what} of {seconds:g} s is out of range: it must lie between {least:g} s and {LONGEST:,} s"
                )
        if self.hang_timeout is not None and not 0 < self.hang_timeout < self.timeout:
            raise UsageError(
                f"a hang timeout of {self.hang_timeout:g} s must lie between 0 and the timeout of {self.timeout:g} s, "
                "or the others give up before the process that hangs is named; lower it, or raise the timeout"
            )
        if self.threads < 1:
            raise UsageError(f"{self.threads} threads cannot compute: a worker needs at least 1")

    def _check_backend(self, backend: str) -> None:
        if backend not in BACKENDS:
            raise unknown("backend", backend, BACKENDS)
        if not torch.distributed.is_backend_available(backend):
            raise UsageError(f"backend {backend} is not in this torch; leave it out to get the usual one")
        if (backend, self.device) in (("nccl", "cpu"), ("shm", "cuda")):
            raise UsageError(
                f"backend {backend} cannot move tensors of device {self.device}: nccl moves CUDA tensors only, shm CPU "
                "tensors only; change one of them"
            )

    def transport(self, info: ProcessInfo, collective: str = NATIVE) -> str:
        """The backend that a worker uses; schedules send point to point over gloo."""
        if collective != NATIVE and self.device == "cuda":
            raise UsageError(
                f"collective {collective} moves CPU tensors only; choose collective {NATIVE} or device cpu"
            )
        if self.backend:
            return self.backend
        if self.device == "cuda":
            return "nccl"
        return "shm" if info.workers == info.local_workers and collective == NATIVE else "gloo"

    def device_of(self, info: ProcessInfo) -> torch.device:
        if self.device == "cpu":
            return torch.device("cpu")
        if info.local_rank >= torch.cuda.device_count():
            raise UsageError(
                f"{info.local_workers} workers on {info.host} are too many for its "
                f"{torch.cuda.device_count()} CUDA devices; start at most one a device"
            )
        return torch.device("cuda", info.local_rank)
