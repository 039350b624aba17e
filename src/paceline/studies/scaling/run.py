"""Run a sweep: repeat by repeat, every cell in turn; what is done already is not run again."""

import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import IO

from paceline.errors import RunFailed
from paceline.records.summary import read_summary
from paceline.runtimes.settings import Settings
from paceline.studies.grid import Show, held_interrupts
from paceline.studies.scaling.folder import CellPlan, SweepFolder
from paceline.studies.scaling.measure import MeasuredRepeat, pilot_step, read_repeat, train
from paceline.studies.scaling.plan import MeasureLink, Planner
from paceline.studies.scaling.result import SweepResult, summarize_sweep
from paceline.studies.scaling.study import Sweep, SweepCell, SweepRun

STARTING = 3.0
"""Seconds that a training takes before its first step, about; for the time that is left."""
ALMOST = 0.95
"""The part of a run that is shown as done while it takes longer than was expected."""
PILOT_STEPS = 12
"""Of a training that only finds out how long a step is."""

StartTraining = Callable[[Settings, Path, IO[bytes]], "subprocess.Popen[str]"]
"""Starts a training of these settings whose run folder is made in a folder; what it says goes to the file."""


@dataclass
class SweepRunner:
    """Measures what the folder of a sweep lacks."""

    sweep: Sweep
    folder: SweepFolder
    start: StartTraining
    profile: Path | None = None
    measure_link: MeasureLink = lambda *_: None
    show: Show = lambda _, __: None
    keep_runs: bool = False
    """Keep all run folders, and not only those that predictions rest on."""
    broken: list[str] = field(default_factory=list)
    """A sentence for each repeat that failed; it is measured again next time."""

    def run(self) -> SweepResult:
        """On KeyboardInterrupt the trainings are ended, and what is done is kept. Raises RunFailed where nothing is."""
        self.folder.open(self.sweep)
        runs = self.sweep.runs
        done = self.folder.done(self.sweep, runs)
        missing = [run for run in runs if run not in done]
        with held_interrupts() as check_interrupt:
            for place, run in enumerate(missing):
                words = f"{len(done) + place}/{len(runs)} runs  {run}"
                self._measure(run, partial(self._look, check_interrupt, place, len(missing), words))
        if not self.folder.done(self.sweep, runs):
            raise RunFailed(f"no run was finished; {self.broken[0]}")
        return summarize_sweep(self.sweep, self.folder, broken=self.broken)

    def _look(
        self, check_interrupt: Callable[[], None], place: int, many: int, words: str, part: float
    ) -> None:
        check_interrupt()
        self.show((place + min(ALMOST, part)) / many, words)

    def _measure(self, run: SweepRun, look: Callable[[float], None]) -> None:
        try:
            plan = self.folder.plan(self.sweep, run.cell) or self._plan(run.cell, look)
            measured = self._train(run, plan, look)
            self.folder.keep(self.sweep, read_repeat(run, measured))
        except RunFailed as failed:
            self.broken.append(f"{run}: {failed}")
        except KeyboardInterrupt:
            shutil.rmtree(self.folder.runs(self.sweep, run), ignore_errors=True)
            raise
        if not (self.keep_runs or self._is_needed(run)):
            shutil.rmtree(self.folder.runs(self.sweep, run), ignore_errors=True)

    def _is_needed(self, run: SweepRun) -> bool:
        return run.repeat == 1 and run.cell in self._references

    @cached_property
    def _references(self) -> frozenset[SweepCell]:
        """Cells whose first run others are predicted from."""
        several = [cell for cell in self.sweep.cells if cell.workers > 1]
        return frozenset(self.sweep.reference(cell) for cell in several)

    def _plan(self, cell: SweepCell, look: Callable[[float], None]) -> CellPlan:
        planner = Planner(
            sweep=self.sweep,
            folder=self.folder,
            profile=self.profile,
            pilot=partial(self._pilot, look=look),
            measure_link=self.measure_link,
        )
        plan = planner.plan(cell)
        self.folder.keep_plan(self.sweep, plan)
        return plan

    def _pilot(self, cell: SweepCell, look: Callable[[float], None]) -> float:
        run, plan = SweepRun(replace(cell, processes=1), 0), CellPlan(cell=cell, steps=PILOT_STEPS, made="")
        try:
            (folder,) = self._train(run, plan, look).folders
            return pilot_step(read_summary(folder))
        finally:
            shutil.rmtree(self.folder.runs(self.sweep, run), ignore_errors=True)

    def _train(self, run: SweepRun, plan: CellPlan, look: Callable[[float], None]) -> MeasuredRepeat:
        settings = self.folder.job(self.sweep.settings_of(run.cell), run.cell)
        if plan.steps is not None:
            settings = replace(settings, iterations=plan.steps, epochs=None)
        parent = self.folder.runs(self.sweep, run)
        shutil.rmtree(parent, ignore_errors=True)  # of a repeat that was cut off
        several = [parent / str(place) for place in range(run.cell.processes)]
        begun, expected = time.monotonic(), STARTING + (self.sweep.seconds or STARTING)
        return train(
            partial(self.start, settings),
            several if run.cell.processes > 1 else [parent],
            lambda: look((time.monotonic() - begun) / expected),
        )
