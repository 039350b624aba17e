"""A comparison names the true cause, and is silent where the spread is as large as the difference."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UsageError
from paceline.records.events import EventWriter, sample_events
from paceline.records.files import DamagedFile, to_document, write_json
from paceline.records.folder import RunFolder
from paceline.records.spans import Span, StepBreakdown, StepRecord
from paceline.reports.compare import answers, comparison_document, comparison_text, failures, warnings
from paceline.studies.compare import ComparedRun, RunComparison, SpeedDifference, compare, compared_run
from paceline.studies.findings.find import Diagnosis
from paceline.studies.findings.observed import ObservedSteps
from paceline.studies.predict.forecast import RunForecast
from paceline.studies.predict.prediction import Basis, Prediction, PredictionRow, StrategyPrediction
from paceline.studies.recorded import read_recorded
from recorded_runs import GOLDEN, made_up, totals

STEP = StepBreakdown(data=1e-4, forward=4e-3, backward=8e-3, communicate=4e-4, wait=1e-4, apply=4e-4)


def side(name: str, *steps: StepBreakdown, spread: float = 0.01, **more: Any) -> ComparedRun:
    """A run whose ranks take these steps of 16 samples, and vary by this part of a step."""
    run = made_up(Path(name), [totals(step) for step in steps])
    seen = ObservedSteps.of(run)
    assert seen is not None
    values: dict[str, Any] = {
        "name": name,
        "source": "live",
        "workers": len(steps),
        "step": seen.mean,
        "spread": seen.mean * spread,
        "total_spread": seen.mean.total * spread,
        "rate": seen.rate,
        "sent": seen.sent,
        "epoch": 1600.0,
        "diagnosis": Diagnosis(seen),
    }
    return ComparedRun(**values | more)


def difference(first: ComparedRun, other: ComparedRun) -> SpeedDifference:
    return SpeedDifference(first=first, other=other)


def test_two_workers_that_lose_to_one_lose_by_communication() -> None:
    one = side("one", replace(STEP, communicate=0.0, wait=0.0))
    two = side("two", *[replace(STEP, communicate=30e-3)] * 2)
    comparison = RunComparison(sides=(one, two))
    (answer,) = answers(comparison)
    # 12.5 ms for 16 samples against 42.6 ms for 32.
    assert answer.startswith("two (2 workers) is 1.70x slower per epoch than one (1 worker).")
    assert (
        "100 % of the loss is communication: in two, a worker sends 1 kB a step, which takes 30 ms" in answer
    )
    assert not comparison.same_batch
    assert "s an epoch" in comparison_text(comparison)


def test_a_rank_that_became_slow_explains_its_own_computing_and_the_waiting_for_it() -> None:
    healthy = side("healthy", STEP, STEP)
    slow = side("slow", replace(STEP, wait=12.6e-3), replace(STEP * 2, communicate=4e-4, wait=1e-4))
    assert difference(healthy, slow).cause == ("a slow rank", pytest.approx(1.0, abs=0.02))
    (answer,) = answers(RunComparison(sides=(healthy, slow)))
    assert "rank 1 computes 2x as long as the others, which wait for it" in answer
    # The other way round it is the gain that it explains.
    (answer,) = answers(RunComparison(sides=(slow, healthy)))
    assert "faster" in answer
    assert "of the gain is a slow rank: rank 1" in answer


def test_slower_computing_is_not_blamed_on_the_network() -> None:
    cause, share = difference(side("a", STEP, STEP), side("b", *[replace(STEP, backward=16e-3)] * 2)).cause
    assert (cause, round(share, 2)) == ("computing", 1.0)


def test_slower_data_are_named() -> None:
    (answer,) = answers(RunComparison(sides=(side("a", STEP), side("b", replace(STEP, data=9e-3)))))
    assert "100 % of the loss is data: it takes 9 ms a step against 100 us" in answer


def test_a_difference_within_the_spread_is_no_difference() -> None:
    noisy = [side(name, step, step, spread=0.05) for name, step in (("a", STEP), ("b", STEP * 1.08))]
    comparison = RunComparison(sides=tuple(noisy))
    (answer,) = answers(comparison)
    assert answer.startswith("No difference that can be told from the spread: b (2 workers) is 1.08x slower")
    assert failures(comparison, 0.05) == []
    assert comparison.slowest is None
    quiet = RunComparison(sides=tuple(replace(one, total_spread=1e-5) for one in noisy))
    assert failures(quiet, 0.05) == [
        "b (2 workers) is 8 % slower per sample than a (2 workers), more than the allowed 5 %"
    ]
    assert failures(quiet, 0.09) == []


def _rows_of(text: str) -> list[str]:
    return text.partition("ms a step")[2].partition("\n\n")[0].splitlines()


def test_the_rule_under_the_table_is_of_what_is_judged() -> None:
    """In milliseconds this is 1.7 of the spread, which the rule would call no difference; the ratio is beyond 2."""
    comparison = RunComparison(sides=(side("a", STEP, spread=0.05), side("b", STEP * 2.5, spread=0.35)))
    (one,) = comparison.differences
    assert one.significant
    assert (one.other.step.total - one.first.step.total) / (0.35 * one.other.step.total) < 2
    text = " ".join(comparison_text(comparison).split())
    assert "the ratio of the times a sample, whose logarithm has to be beyond 2 standard deviations" in text
    assert "of B / A it is +0.916 ± 0.354." in text


def test_without_the_record_of_steps_no_difference_is_told(tmp_path: Path) -> None:
    """A spread that is not known is not none: noise would be called slower, and fail a check."""
    known = side("known", STEP)
    bare = compared_run("bare", made_up(tmp_path, [totals(STEP * 1.2)]))
    comparison = RunComparison(sides=(known, bare))
    (one,) = comparison.differences
    assert (one.ratio, one.spread, one.significant) == (pytest.approx(1.2), None, False)
    assert comparison.slowest is None
    (answer,) = answers(comparison)
    assert answer.startswith(
        "No difference that can be told from the spread: bare (1 worker) is 1.20x slower"
    )
    assert answer.endswith("and how much their steps vary is not known.")
    assert [one for one in warnings(comparison) if "not known" in one] == [
        "bare: How much its steps vary is not known: its record of steps is gone or too short."
    ]
    assert "±" not in comparison_text(comparison).partition("whole step")[2].partition("\n")[0]
    assert json.loads(json.dumps(comparison_document(comparison, None)))["differences"][0]["spread"] is None
    with pytest.raises(
        UsageError, match=r"max slowdown 5 % cannot be checked: how much the steps of bare vary"
    ):
        failures(comparison, 0.05)


def test_steps_of_different_batches_are_explained_by_the_sample() -> None:
    """By the step, the slower one would be explained by the smaller number: 10 ms against 15 ms."""
    large = compared_side("b64", 64, StepBreakdown(forward=5e-3, backward=10e-3))
    small = compared_side("b32", 32, StepBreakdown(forward=4e-3, backward=6e-3))
    (answer,) = answers(RunComparison(sides=(large, small)))
    assert answer.startswith("b32 (1 worker) is 1.33x slower per epoch than b64 (1 worker).")
    assert answer.endswith("forward, backward and the optimizer take 312 us a sample against 234 us.")
    script = replace(small, epoch=None)
    for sides in ((large, script), (script, large)):
        comparison = RunComparison(sides=sides)
        assert "1.33x" in answers(comparison)[0]
        assert "per sample" in answers(comparison)[0], "the epoch of a script is not known"
        assert "us a sample" in comparison_text(comparison)
    predicted = replace(script, source="prediction", diagnosis=None)
    assert "per epoch" in answers(RunComparison(sides=(large, predicted)))[0]


def compared_side(name: str, batch: int, step: StepBreakdown) -> ComparedRun:
    return replace(side(name, step), rate=batch / step.total)


def test_what_is_not_alike_is_told() -> None:
    one = side("a", STEP, conditions={"threads a worker": "1", "torch": "2"})
    two = side("b", STEP, conditions={"threads a worker": "4"}, doubts=("Others computed.",))
    assert warnings(RunComparison(sides=(one, two))) == [
        "threads a worker differs: 4 in b, 1 in a.",
        "b: Others computed.",
    ]


def test_real_runs_are_read_with_their_spread() -> None:
    golden = GOLDEN / "all-reduce"
    comparison = compare([golden, golden])
    (one,) = comparison.differences
    assert (one.ratio, one.significant) == (1.0, False)
    spread = one.first.relative_spread
    assert spread is not None
    assert 0 < spread < 0.5
    document = json.loads(json.dumps(comparison_document(comparison, 0.05)))
    assert document["runs"][0]["workers"] == 2
    assert sum(
        value for name, value in document["runs"][0]["step"].items() if name != "hidden"
    ) == pytest.approx(document["runs"][0]["step_seconds"])
    assert document["failures"] == []


def row(**changes: Any) -> PredictionRow:
    values: dict[str, Any] = {
        "workers": 2,
        "batch": 16,
        "samples": 32,
        "breakdown": StepBreakdown(forward=0.1, backward=0.2),
        "step": 0.3,
        "low": 0.28,
        "high": 0.32,
        "sent": 1e6,
        "rate": 32 / 0.3,
        "speed_up": 1.5,
        "efficiency": 0.75,
        "bound": "compute",
        "path": "groups",
    }
    return PredictionRow(**values | changes)


def test_a_run_is_compared_with_its_own_prediction(tmp_path: Path) -> None:
    file = tmp_path / "prediction.json"
    write_json(file, to_document(RunForecast(row=row(), made="now")))
    comparison = compare([file, GOLDEN / "all-reduce"])
    assert comparison.differences[0].ratio == pytest.approx(32 / 0.3 / 100.4, rel=0.01)
    assert comparison.sides[0].total_spread == pytest.approx(0.02 / 1.2816)
    text = comparison_text(comparison)
    assert "of a prediction, that of its own interval" in " ".join(text.split())
    # Its parts have no interval, and that of the run alone would be no spread of a difference.
    assert {line.split("  ")[0].strip() for line in _rows_of(text) if "±" in line} == {"whole step"}


def test_a_run_that_accumulates_has_the_batch_of_its_own_prediction(tmp_path: Path) -> None:
    """Else each run with --accumulate would be said to differ from what was predicted of it."""
    run = made_up(tmp_path, [totals(STEP, samples=16)] * 2)
    accumulates = replace(run.config.settings, job=replace(run.config.settings.job, accumulate=4))
    run = replace(run, config=replace(run.config, settings=accumulates))
    file = tmp_path / "prediction.json"
    write_json(file, to_document(RunForecast(row=row(batch=64, samples=128), made="now")))
    assert not [one for one in warnings(compare([file, run])) if "batch" in one]


def test_a_prediction_of_another_model_is_told(tmp_path: Path) -> None:
    """If this failed, a run of a small model would look slow beside the prediction of a large one."""
    file = tmp_path / "other.json"
    basis = Basis(level="catalogue", compute="x", links="x", interval="x")
    series = (StrategyPrediction(strategy="all-reduce", rows=(row(),), findings=None),)
    other = Prediction(
        name="x", parameters=7, scaling="weak", batch=16, cost_model="x", basis=basis, series=series
    )
    write_json(file, to_document(other))
    parameters = read_recorded(GOLDEN / "all-reduce").summary.parameters
    told = [one for one in warnings(compare([GOLDEN / "all-reduce", file])) if "parameters" in one]
    assert told == [
        f"number of parameters differs: 7 in {file} (all-reduce, 2 workers), {parameters:,} in "
        f"{GOLDEN / 'all-reduce'}."
    ]


def test_predictions_of_one_model_are_named_by_what_they_are_on() -> None:
    basis = Basis(level="catalogue", compute="x", links="x", interval="x")
    series = (StrategyPrediction(strategy="all-reduce", rows=(row(),), findings=None),)
    on = [
        Prediction(
            name="x",
            parameters=7,
            scaling="weak",
            batch=16,
            cost_model="x",
            basis=basis,
            series=series,
            settings=settings,
        )
        for settings in ({"device": "a100", "network": "25gbit"}, {"device": "t4"})
    ]
    comparison = compare(on)
    assert [one.name for one in comparison.sides] == [
        "x on a100 over 25gbit (all-reduce, 2 workers)",
        "x on t4 (all-reduce, 2 workers)",
    ]
    (answer,) = answers(comparison)
    assert "and what is predicted may be off by" in answer


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is not a JSON document"),
        ("[1]", "is no prediction"),
        ('{"kind": "forecast", "made": "x", "row": 3}', "of another version"),
        ('{"kind": "forecast", "made": "x"}', "predicts no step"),
        ('{"kind": "prediction"}', "of another version"),
    ],
)
def test_a_file_that_is_no_prediction_is_refused(tmp_path: Path, content: str, sentence: str) -> None:
    file = tmp_path / "file.json"
    file.write_text(content)
    with pytest.raises((UsageError, DamagedFile), match=sentence):
        compare([GOLDEN / "all-reduce", file])


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    for paths, sentence in (
        ([GOLDEN / "all-reduce"], "nothing to be compared with"),
        ([], "there is nothing to be compared"),
        ([GOLDEN / "all-reduce", tmp_path / "missing"], "does not exist"),
        ([GOLDEN / "all-reduce", tmp_path], "is not the folder of a run"),
    ):
        with pytest.raises(UsageError, match=sentence):
            compare(paths)


def test_a_long_record_is_read_in_part(tmp_path: Path) -> None:
    """If this failed, the memory of a comparison would grow with the run, or it would see one end of it only."""
    folder = RunFolder(tmp_path)
    with EventWriter(folder.events(0)) as events:
        for step in range(20_000):
            events.append(StepRecord(step=step, samples=4, spans=[Span("forward", float(step), 1.0)]))
    blocks = sample_events(folder.events(0))
    steps = [record.step for block in blocks for record in block]
    assert len(blocks) == 32
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (0, 19_999)
    assert len(steps) < 32 * 16_384 / 50
    middle = [block[0].step for block in blocks]
    gaps = [later - earlier for earlier, later in pairwise(middle)]
    assert max(gaps) < 1.2 * min(gaps)


def test_a_damaged_long_record_is_refused(tmp_path: Path) -> None:
    path = RunFolder(tmp_path).events(0)
    path.parent.mkdir()
    path.write_bytes(b'{"step": "three"}\n' * 50_000)
    with pytest.raises(DamagedFile, match="is damaged"):
        sample_events(path)
