"""What is settled about a cell before it is measured: how many steps its runs have, and what is predicted of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.clusters.profile import read_profile
from paceline.collectives import NATIVE
from paceline.collectives.traffic import ring_bytes
from paceline.costs.collectives import AllReduceCosts
from paceline.costs.topology import Topology
from paceline.errors import UsageError
from paceline.records.spans import StepBreakdown
from paceline.runtimes.live.request import LiveOptions
from paceline.strategies import build_strategy
from paceline.studies.predict.model import PacelineModel, find_model
from paceline.studies.predict.prediction import PredictionRow
from paceline.studies.predict.request import PredictRequest
from paceline.studies.scaling.folder import CellPlan, RepeatResult, SweepFolder
from paceline.studies.scaling.measure import utc
from paceline.studies.scaling.study import PLAIN, Loading, Sweep, SweepCell, SweepRun

LEAST_STEPS, MOST_STEPS = 24, 200_000
"""Of a run, however long its step is; the typical step is the mean of half of them."""
WIDTH = 4
"""Bytes of a parameter."""

MeasureLink = Callable[[str, int, int], float | None]
"""Measures the bus bandwidth of a backend's all-reduces among some workers, of some bytes, in bytes a second."""
Pilot = Callable[[SweepCell], float]
"""Trains a few steps of a cell, and returns how long one takes."""


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Makes plans of cells, each after those that it is compared with have been measured once."""

    sweep: Sweep
    folder: SweepFolder
    profile: Path | None
    pilot: Pilot
    measure_link: MeasureLink

    def plan(self, cell: SweepCell) -> CellPlan:
        reference = self._first(self.sweep.reference(cell))
        base = self._first(self.sweep.base(cell))
        found = self._predict(cell, reference, base)
        if found.link is None and reference is not None:
            link = self._measured_link(cell, reference)
            found = replace(found, link=link, link_basis="measured just before" if link else "")
        return replace(found, steps=self._steps(cell, found, reference), made=utc())

    def _first(self, cell: SweepCell) -> RepeatResult | None:
        run = SweepRun(cell, 1)
        return self.folder.done(self.sweep, [run]).get(run)

    def _steps(self, cell: SweepCell, plan: CellPlan, reference: RepeatResult | None) -> int | None:
        if self.sweep.seconds is None:
            return None
        step = plan.row.step if plan.row else reference.step.total if reference else self.pilot(cell)
        return max(LEAST_STEPS, min(MOST_STEPS, round(self.sweep.seconds / step)))

    def _predict(
        self, cell: SweepCell, reference: RepeatResult | None, base: RepeatResult | None
    ) -> CellPlan:
        """A plan without its steps; one that says why where nothing can be predicted."""
        unknown = CellPlan(cell=cell, steps=None, made="")
        if self.profile is None:
            return replace(unknown, basis="there is no profile of this machine")
        try:
            if cell.checkpoint.count:
                return self._like_base(cell) or unknown
            if cell.processes > 1:
                return self._side_by_side(cell, reference)
            if cell.workers > 1:
                return self._together(cell, reference, base)
            return self._alone(cell)
        except UsageError as mistake:
            return replace(unknown, basis=str(mistake))

    def _like_base(self, cell: SweepCell) -> CellPlan | None:
        """Checkpoints lie between steps, and how long they take is not predicted."""
        like = self.folder.plan(self.sweep, self.sweep.base(cell))
        return replace(like, cell=cell, basis=f"{like.basis}; without its checkpoints") if like else None

    def _alone(self, cell: SweepCell) -> CellPlan:
        """One worker, from the machine's profile."""
        request = self._request(job=self.sweep.settings.job, batch_size=cell.batch, workers=(1,))
        model = find_model(request)
        row = _loaded(model.row(PLAIN, 1), cell.loading)
        base = self.folder.plan(self.sweep, self.sweep.base(cell))
        speed_up = row.rate / base.rate if base and base.rate else 1.0
        return self._predicted(cell, row, row.rate, speed_up, model.basis.compute)

    def _together(
        self, cell: SweepCell, reference: RepeatResult | None, base: RepeatResult | None
    ) -> CellPlan:
        """Several workers, from one that was measured with the same batch, and the profile's links and contention."""
        if reference is None or base is None:
            raise UsageError(
                "the first run of one worker, which predictions rest on, has failed; measure in a new folder"
            )
        folder = self.folder.runs(self.sweep, SweepRun(self.sweep.reference(cell), 1))
        run = next(iter(sorted(folder.glob("*"))), None)
        if run is None:
            raise UsageError(f"the run of one worker is gone from {folder}; measure in a new folder")
        model = find_model(self._request(times=run, workers=(cell.workers,), **self._exchange(cell)))
        row = model.row(cell.strategy, cell.workers)
        words = f"one worker's typical step, measured just before; {model.basis.links}"
        found = self._predicted(cell, row, row.rate, row.rate / base.rate, words)
        if not exchanges(cell):
            return found
        link = link_rate(model, cell.workers, WIDTH * base.parameters)
        return replace(found, link=link, link_basis="as calibrated")

    def _side_by_side(self, cell: SweepCell, reference: RepeatResult | None) -> CellPlan:
        """Processes that share no work, from one that was measured alone, and the profile's contention."""
        assert self.profile is not None
        contention = read_profile(self.profile).contention
        if reference is None or len(contention) < cell.processes:
            raise UsageError(f"{self.profile} has no contention of {cell.processes} processes")
        slower = contention[cell.processes - 1]
        words = f"one process as measured; with {cell.processes} each computes {slower:.2f}x slower"
        rate = reference.mean_rate * cell.processes / slower
        return self._predicted(cell, None, rate, cell.processes / slower, words)

    def _predicted(
        self, cell: SweepCell, row: PredictionRow | None, rate: float, speed_up: float, basis: str
    ) -> CellPlan:
        return CellPlan(cell=cell, steps=None, made="", row=row, rate=rate, speed_up=speed_up, basis=basis)

    def _exchange(self, cell: SweepCell) -> Mapping[str, Any]:
        settings = self.sweep.settings_of(cell)
        return {
            "strategies": (cell.strategy,),
            "codecs": (cell.codec,),
            "servers": settings.servers,
            "collective": settings.collective,
            "backend": self._backend(cell),
        }

    def _backend(self, cell: SweepCell) -> str:
        options, settings = LiveOptions(**self.sweep.machinery), self.sweep.settings_of(cell)
        return options.backend_for(settings.collective, one_host=True)

    def _request(self, **asked: Any) -> PredictRequest:
        return PredictRequest(profile=self.profile, **asked)

    def _measured_link(self, cell: SweepCell, reference: RepeatResult) -> float | None:
        """Bytes a second of an all-reduce of all gradients, measured now; of nccl, nothing here can."""
        backend = self._backend(cell)
        if not exchanges(cell) or backend == "nccl":
            return None
        return self.measure_link(backend, cell.workers, WIDTH * reference.parameters)


def exchanges(cell: SweepCell) -> bool:
    """Whether its workers reduce gradients or parameters among themselves."""
    return cell.workers > 1 and not build_strategy(cell.strategy).served


def link_rate(model: PacelineModel, workers: int, size: int) -> float:
    """The bus bandwidth of an all-reduce that the model's links allow."""
    cluster = model.setup(PLAIN, workers).cluster
    seconds = AllReduceCosts(NATIVE, Topology(cluster)).price(size, WIDTH).seconds
    return ring_bytes(size, workers) / seconds


def _loaded(row: PredictionRow, loading: Loading) -> PredictionRow:
    """Without loading, a step has no time for data."""
    if loading == "with":
        return row
    parts = {name: getattr(row.breakdown, name) for name in StepBreakdown.__slots__ if name != "data"}
    breakdown = StepBreakdown(**parts)
    shorter = breakdown.total / row.breakdown.total
    return replace(row, breakdown=breakdown, step=row.step * shorter, rate=row.rate / shorter)
