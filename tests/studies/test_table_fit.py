"""From one worker's column and one other point of a table of measured epochs, the rest."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import UsageError
from paceline.studies.calibrate.table import TRANSFERS, EpochTable, TablePoint, fit_table, read_table

EXAMPLE = Path(__file__).parents[2] / "examples" / "resnet18-cifar10-table.toml"


def test_one_to_all_predicts_the_rest_of_the_resnet_table():
    fits = fit_table(read_table(EXAMPLE), start=TablePoint(4, 128))
    assert next(fit.collective for fit in fits) == "one-to-all", "the best comes first"
    errors = {str(point.point): point.error for point in fits[0].points}
    assert errors == pytest.approx(
        {"2x32": 0.08, "2x128": -0.08, "2x512": -0.25, "4x32": 0.08, "4x512": -0.13}, abs=0.01
    )
    assert fits[0].median == pytest.approx(0.08, abs=0.01)
    assert fits[0].worst == pytest.approx(-0.25, abs=0.01)
    low, high = fits[0].interval(10.0)
    assert low < 10.0 < high


def test_the_point_that_is_fitted_is_not_among_the_predicted():
    for fit in fit_table(read_table(EXAMPLE), start=TablePoint(2, 32)):
        assert TablePoint(2, 32) not in [point.point for point in fit.points]
        assert len(fit.points) == 5


def test_without_a_point_the_middle_of_most_workers_is_taken():
    assert fit_table(read_table(EXAMPLE))[0].start == TablePoint(4, 128)


def test_points_that_nobody_measured_can_be_predicted():
    (fit,) = fit_table(read_table(EXAMPLE), collective="ring", predict=[TablePoint(8, 2048)])
    (new,) = [point for point in fit.points if point.point == TablePoint(8, 2048)]
    assert new.measured is None
    assert new.error is None
    assert new.seconds > 0
    with pytest.raises(UsageError, match=r"8x64 cannot be predicted.*only at 32, 128"):
        fit_table(read_table(EXAMPLE), predict=[TablePoint(8, 64)])


@given(
    collective=st.sampled_from(sorted(TRANSFERS)),
    transfer=st.floats(1e-4, 1.0),
    step=st.floats(1e-4, 1.0),
    start=st.sampled_from([TablePoint(2, 16), TablePoint(3, 16), TablePoint(8, 16)]),
)
@settings(max_examples=40, deadline=None)
def test_a_table_that_a_collective_made_is_predicted_exactly(collective, transfer, step, start):
    epochs = {}
    for workers in (1, 2, 3, 8):
        steps = -(-3840 // (16 * workers))
        moved = TRANSFERS[collective](workers) if workers > 1 else 0.0
        epochs[TablePoint(workers, 16)] = steps * (step + transfer * moved)
    measured = EpochTable(model="made up", parameters=1000, samples=3840, epochs=epochs)
    (fit,) = fit_table(measured, start=start, collective=collective)
    assert fit.transfer == pytest.approx(transfer, rel=1e-6)
    assert fit.rate == pytest.approx(4000 / transfer, rel=1e-6)
    assert fit.errors == pytest.approx([0, 0], abs=1e-6)


def table(tmp_path: Path, rows: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(f"parameters = 1000\nsamples = 100\n{rows}")
    return path


ONE = "[[measured]]\nworkers = 1\nbatch = [10]\nepoch = ['10 s']\n"


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ("", ["no measured times", "[[measured]]"]),
        (ONE, ["no point of more than one worker"]),
        ("[[measured]]\nworkers = 2\nbatch = [10]\nepoch = ['10 s']", ["2x10", "1x10 was not"]),
        (
            ONE + "[[measured]]\nworkers = 2\nbatch = [10]\nepoch = ['4 s']",
            ["no longer than 1/2", "nothing to fit"],
        ),
        (ONE + "[[measured]]\nworkers = 2\nbatch = [10]\nepoch = ['0 s']", ["epoch", "each more than 0 s"]),
        (ONE + "[[measured]]\nworkers = 2\nbatch = [10]\nepoch = [5]", ["epoch", "unit"]),
        (ONE + "[[measured]]\nworkers = 2\nbatch = [10, 20]\nepoch = ['5 s']", ["as many as batches, 2"]),
        (ONE + ONE, ["1x10 is measured twice"]),
    ],
)
def test_a_table_that_cannot_be_fitted_says_why(tmp_path, rows, parts):
    with pytest.raises(UsageError) as caught:
        fit_table(read_table(table(tmp_path, rows)))
    assert all(part in str(caught.value) for part in parts), str(caught.value)


@pytest.mark.parametrize(
    ("start", "why"),
    [(TablePoint(1, 32), "says nothing about communication"), (TablePoint(3, 32), "was not measured")],
)
def test_a_point_that_is_not_in_the_table_is_refused_with_those_that_are(start, why):
    with pytest.raises(UsageError, match=rf"{start}.*{why}.*choose one of 2x32, 2x128"):
        fit_table(read_table(EXAMPLE), start=start)


def test_points_and_collectives_are_read_as_people_write_them():
    assert TablePoint.parse("2x128") == TablePoint(2, 128)
    with pytest.raises(UsageError, match=r"'2-128'.*'2x128'"):
        TablePoint.parse("2-128")
    with pytest.raises(UsageError, match="did you mean 'ring'"):
        fit_table(read_table(EXAMPLE), collective="rings")
