"""The torch profiler, for chosen steps of a run only."""

import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from paceline.errors import UsageError

MOST_STEPS = 1000
"""Profiled steps: the profiler keeps every operator of each in memory."""


@dataclass(frozen=True)
class ProfiledSteps:
    first: int
    last: int

    @classmethod
    def parse(cls, text: str, name: str) -> Self:
        """Read "20-24", or "20"; ``name`` is what the user calls it."""
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
        if match is None:
            raise UsageError(f"{name} {text}: write a range of steps such as 20-24, or one step such as 20")
        first, last = int(match[1]), int(match[2] or match[1])
        if first < 1:
            raise UsageError(
                f"{name} {text} begins before the first step, which is step 1; begin with 1 or later"
            )
        if last < first:
            raise UsageError(f"{name} {text} runs backwards; write {last}-{first}")
        if last - first >= MOST_STEPS:
            raise UsageError(
                f"{name} {text} has {last - first + 1:,} steps; at most {MOST_STEPS:,} are profiled"
            )
        return cls(first, last)

    def __str__(self) -> str:
        return f"{self.first}-{self.last}" if self.last > self.first else str(self.first)

    def check(self, done: int, last: int) -> None:
        """Refuse steps that the run does not take: it is at step ``done`` and ends at step ``last``."""
        if self.last > last:
            raise UsageError(
                f"steps {self} cannot be profiled: the run ends at step {last}; choose earlier ones, or train longer"
            )
        if self.first <= done:
            raise UsageError(
                f"steps {self} cannot be profiled: the run goes on after step {done}; choose later ones"
            )


class StepProfiler:
    """Writes a trace of one worker's chosen steps, for chrome://tracing and Perfetto; off in all others."""

    def __init__(self, steps: ProfiledSteps, file: Path, device: torch.device) -> None:
        self.steps, self.file = steps, file
        self.written = False
        self._device = device
        self._profile: Any = None
        self._regions = ExitStack()

    def wants_to_switch(self, clock: int, *, training: bool) -> bool:
        """Whether profiling begins or ends here, between two steps; ``training`` says that a step comes next."""
        if self._profile is not None:
            return clock >= self.steps.last
        return training and not self.written and self.steps.first <= clock + 1 <= self.steps.last

    def switch(self) -> None:
        if self._profile is None:
            self._start()
        else:
            self.close()

    def _start(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._device.type == "cuda" else [])]
        self._profile = profile(activities=kinds)
        self._profile.start()

    def begin(self, phase: str) -> None:
        """Name what follows, up to ``end``, in the trace."""
        if self._profile is not None:
            self._regions.enter_context(torch.profiler.record_function(phase))

    def end(self) -> None:
        self._regions.close()

    def close(self) -> None:
        """Write what was profiled; a run that ends before the last of the steps leaves those that it did."""
        if self._profile is None:
            return
        self._regions.close()
        ended, self._profile = self._profile, None
        ended.stop()
        self.file.parent.mkdir(exist_ok=True)
        draft = self.file.with_name(f".{self.file.name}")  # torch compresses what ends in .gz
        ended.export_chrome_trace(str(draft))
        draft.replace(self.file)
        self.written = True
