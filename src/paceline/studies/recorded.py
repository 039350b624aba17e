"""A run as its folder holds it: what reports, comparisons and findings read."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.records.events import MetricsRow, read_metrics
from paceline.records.files import DamagedFile, from_document, read_json
from paceline.records.folder import RunFolder
from paceline.records.load import SystemSample, read_samples
from paceline.records.summary import Summary, read_summary
from paceline.runtimes.config import Config, read_config
from paceline.studies.predict.forecast import RunForecast


@dataclass(frozen=True)
class RecordedRun:
    """One run, live or simulated. Small files are read at once, others when they are asked for.

    ``events/`` is not read: it grows with the run, and its totals are in the summary.
    """

    folder: RunFolder
    config: Config
    summary: Summary

    @property
    def name(self) -> str:
        return self.folder.path.name

    @cached_property
    def rows(self) -> tuple[MetricsRow, ...]:
        """One an evaluation."""
        return tuple(read_metrics(self.folder.metrics)) if self.folder.metrics.exists() else ()

    @cached_property
    def samples(self) -> tuple[SystemSample, ...]:
        return tuple(read_samples(self.folder.system))

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        """Versions and the machine; empty where they were not kept."""
        found = read_json(self.folder.env) if self.folder.env.exists() else {}
        return found if isinstance(found, dict) else {}

    @cached_property
    def forecast(self) -> RunForecast | None:
        """What was expected before the first step; None where nothing was, or by another version of paceline."""
        if not self.folder.prediction.exists():
            return None
        try:
            return from_document(read_json(self.folder.prediction), RunForecast)
        except (DamagedFile, ValueError):
            return None


def read_recorded(path: Path) -> RecordedRun:
    """A run that has ended; a UsageError says what is missing of it."""
    folder = RunFolder(path)
    config = read_config(folder)
    if not folder.summary.exists():
        state, again = "or was killed", "resume it"
        if config.settings.job.is_script:
            state, again = "failed, or was killed", "run the script again"
        raise UsageError(
            f"{path} holds no summary.json: its run goes on, {state}; wait for its end, {again}, or follow it with "
            f"'paceline watch {path}'"
        )
    return RecordedRun(folder, config, read_summary(folder))
