"""Golden records, and records made up from them for what a machine cannot be made to do quickly."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.records.folder import RunFolder
from paceline.records.load import HostLoad
from paceline.records.spans import StepBreakdown, Totals
from paceline.studies.recorded import RecordedRun, read_recorded

GOLDEN = Path(__file__).parent / "golden"
QUIET = (HostLoad(host="vm", cores=4, wanted=2, others=0.0),)
STEPS = 200


def totals(
    step: StepBreakdown, samples: int = 16, sent: int = 1000, outside: dict[str, float] | None = None
) -> Totals:
    """A worker all of whose steps are alike."""
    return Totals(
        steps=STEPS + 1,
        samples=samples * (STEPS + 1),
        warm_up_steps=1,
        warm_up_samples=samples,
        in_steps=step * STEPS,
        in_warm_up=step,
        step_sent=sent * (STEPS + 1),
        typical=step,
        outside=outside or {},
    )


def made_up(
    folder: Path,
    workers: Sequence[Totals],
    parameters: int = 250,
    loads: Sequence[HostLoad] = QUIET,
    loader_workers: int | None = 0,
    **settings: Any,
) -> RecordedRun:
    """A run on one host, of the golden one's model, whose workers took these steps; ``folder`` holds no events."""
    golden = read_recorded(GOLDEN / "all-reduce")
    sizes = tuple(one.samples // one.steps for one in workers)
    config = replace(
        golden.config,
        settings=replace(golden.config.settings, **{"slow": {}, "batch_sizes": sizes} | settings),
        placement=replace(golden.config.placement, workers=(0,) * len(workers)),
    )
    summary = replace(
        golden.summary,
        workers=len(workers),
        steps=STEPS,
        epochs=2.0,
        samples=sum(one.samples for one in workers),
        parameters=parameters,
        totals=list(workers),
        loads=list(loads),
        loader_workers=loader_workers,
    )
    return RecordedRun(RunFolder(folder), config, summary)
