import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.errors import UsageError
from paceline.records.events import MetricsRow
from paceline.records.spans import StepBreakdown, Totals
from paceline.records.summary import Started, Summary
from paceline.reports.tensorboard import TensorBoardObserver, export_tensorboard
from paceline.studies.recorded import read_recorded

STARTED = Started(
    name="digits",
    job="digits, cnn",
    parameters=20522,
    strategy="all-reduce",
    batch_sizes=(32, 32),
    transport="gloo",
    last_step=20,
    steps_per_epoch=10,
)


def test_the_scalars_are_read_back_by_tensorboard_itself(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    observer = TensorBoardObserver(every=0)
    observer.started(replace(STARTED, folder=str(tmp_path)))
    observer.stepped(1, 64, 2.0, 0.5)
    observer.stepped(2, 64, 1.0, 1.0)
    observer.evaluated(MetricsRow(2, 0.2, 1.5, 1.25, {"accuracy": 0.75}, 0.1, 1.5, noise_scale=1900.0))
    observer.noted("a sentence")
    totals = Totals(steps=2, samples=64)
    totals.typical = StepBreakdown(forward=0.25)
    summary = Summary(
        name="digits",
        runtime="live",
        ending="budget",
        workers=1,
        steps=2,
        epochs=0.2,
        seconds=1.5,
        samples=128,
        parameters=20522,
        totals=[totals],
    )
    observer.finished(summary)

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()

    def points(name: str) -> list[tuple[int, float]]:
        return [(point.step, point.value) for point in events.Scalars(name)]

    assert points("train/loss") == [(1, 2.0), (2, 1.0)]
    assert points("train/samples_per_second") == [(1, 128.0), (2, 128.0)]
    assert points("test/accuracy") == [(2, 0.75)]
    assert points("test/loss") == [(2, 1.25)]
    assert points("train/learning_rate") == [(2, pytest.approx(0.1))]
    assert points("train/noise_scale") == [(2, 1900.0)]
    assert points("step_ms/forward") == [(2, 250.0)]
    assert not {"step_ms/evaluate", "step_ms/checkpoint"} & set(events.Tags()["scalars"]), "always 0"
    one, other = events.Scalars("train/loss")
    assert other.wall_time - one.wall_time == pytest.approx(0.5), "the axis shows the run's own time"


def test_step_times_are_a_series_over_the_run_without_evaluations(tmp_path):
    """If this failed, nobody could see when a run became slower, or an evaluation would look like a slow step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    observer = TensorBoardObserver(every=1e9)
    observer.started(replace(STARTED, folder=str(tmp_path), last_step=400))
    now = 0.0
    for step in range(1, 401):
        now += 0.010 if step <= 200 else 0.030
        observer.stepped(step, 64, 2.0, now)
        if step % 100 == 0:
            now += 5.0
            observer.evaluated(MetricsRow(step, 0.2, 1.5, 1.25, {}, 0.1, now))
    observer.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    points = {point.step: point.value for point in events.Scalars("step_ms/step")}
    assert len(points) >= 190
    assert all(value == pytest.approx(10 if step <= 200 else 30) for step, value in points.items())
    rates = [point.value for point in events.Scalars("train/samples_per_second")]
    assert len(rates) >= 190
    assert min(rates) == pytest.approx(64 / 0.030, rel=0.01), "an evaluation of 5 s makes no rate lower"


def test_a_missing_package_is_a_mistake_that_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match=r"pip install 'paceline\[tensorboard\]'"):
        TensorBoardObserver().started(replace(STARTED, folder=str(tmp_path)))


@pytest.mark.parametrize("name", ["all-reduce", "served"])
def test_a_finished_run_is_exported_with_its_profile_as_text(name, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = read_recorded(Path(__file__).parents[1] / "golden" / name)
    export_tensorboard(run, tmp_path)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    accuracy = [(point.step, point.value) for point in events.Scalars("test/accuracy")]
    assert accuracy == [(row.step, pytest.approx(row.metrics["accuracy"])) for row in run.rows]
    assert "train/loss" not in events.Tags()["scalars"], "the loss of a step is not recorded"
    times = [point.wall_time for point in events.Scalars("train/mean_loss")]
    assert times[1] - times[0] == pytest.approx(run.rows[1].seconds - run.rows[0].seconds, abs=1e-3)
    backward = sum(totals.typical.backward for totals in run.summary.totals) / len(run.summary.totals)
    assert events.Scalars("step_ms/backward")[0].value == pytest.approx(1e3 * backward)
    rates = [point.value for point in events.Scalars("train/samples_per_second")]
    assert run.summary.samples / run.summary.seconds / 2 < sorted(rates)[len(rates) // 2] < 5e5

    def text(tag: str) -> str:
        (event,) = events.Tensors(f"{tag}/text_summary")
        return event.tensor_proto.string_val[0].decode()

    assert "where a step went" in text("profile")
    assert run.config.identity.run in text("configuration")
    if name == "all-reduce":
        assert "rank 1" in text("findings")
