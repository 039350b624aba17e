"""A grid of simulated runs: what is counted, what is kept, what is run again."""

import os
from dataclasses import replace
from math import inf

import pytest

from convergence_studies import SPOILS, cell_result, run, study_of, three_seeds
from paceline.costs.stated import stated_costs
from paceline.errors import RunFailed, UsageError
from paceline.records.events import MetricsRow
from paceline.records.summary import Observer
from paceline.runtimes.prepare import prepare
from paceline.runtimes.settings import Cadence
from paceline.runtimes.virtual.simulate import simulate
from paceline.runtimes.virtual.simulation import Simulation
from paceline.studies.convergence.folder import StudyFolder
from paceline.studies.convergence.result import summarize
from paceline.studies.convergence.run import CellPool, run_cell
from paceline.studies.convergence.study import GridCell, Pair, select, with_evaluations
from paceline.studies.grid import Spread


def the_cell(study):
    return run_cell(study, GridCell(study.pairs[0], 1), select(study).job)


def test_a_cell_is_the_run_that_simulate_runs():
    """If this failed, the study would compare something else than what a user then runs."""
    study = study_of("local-sgd:period=2", evaluate=2)

    class Rows(Observer):
        def __init__(self) -> None:
            self.rows: list[MetricsRow] = []

        def evaluated(self, row: MetricsRow) -> None:
            self.rows.append(row)

    settings = study.settings_of(GridCell(study.pairs[0], 1))
    observer = Rows()
    costs = stated_costs(study.cluster, settings.batch_sizes, {}, settings.seed)
    summary = simulate(Simulation(prepare(settings), study.cluster, costs, observer=observer))
    found = the_cell(study).evaluations
    assert [one.accuracy for one in found] == [row.metrics["accuracy"] for row in observer.rows]
    assert found[-1].samples == summary.samples
    assert found[-1].sent == sum(one.step_sent for one in summary.totals)
    assert 0 < found[-1].seconds < summary.seconds, "evaluations take time, which is not training"


@pytest.mark.parametrize("strategy", ["all-reduce", "local-sgd:period=2"])
def test_how_often_a_run_is_looked_at_changes_neither_its_time_nor_its_bytes(strategy):
    """An average of local models is an all-reduce: 20 evaluations would cost local SGD more than its own rounds."""
    often, once = (the_cell(study_of(strategy, evaluate=every)).evaluations for every in (1, 6))
    assert len(often) > len(once) == 1
    assert often[-1].seconds == pytest.approx(once[-1].seconds)
    assert replace(often[-1], seconds=0.0) == replace(once[-1], seconds=0.0)


def test_with_servers_what_they_send_counts_as_well():
    study = study_of("ps")
    size = 4 * sum(p.numel() for p in select(study).job.model().parameters())
    sent = the_cell(study).evaluations[-1].sent
    steps, workers = 6, 2
    assert sent == pytest.approx(2 * size * steps * workers, rel=0.02), "a push and a model, each way"


def test_the_number_of_processes_changes_nothing(tmp_path):
    study = study_of(seeds=2)
    alone, together = (run(study, tmp_path / str(count), processes=count) for count in (1, 2))
    assert alone == together
    files = [sorted((tmp_path / name / "cells").iterdir()) for name in "12"]
    assert [[path.name for path in some] for some in files] == [[path.name for path in files[0]]] * 2
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]
    assert len(files[0]) == 4


def test_what_was_done_before_an_interruption_is_not_run_again(tmp_path):
    study = study_of(seeds=2)

    def interrupt(done: float, words: str) -> None:
        if done >= 0.25:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(study, tmp_path / "a", processes=1, show=interrupt)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "a" / "cells").iterdir()}
    assert len(kept) == 1
    told: list[str] = []
    again = run(study, tmp_path / "a", processes=1, show=lambda _, words: told.append(words))
    assert told[-1].startswith("4/4 runs"), "with the one that is kept"
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert again == run(study, tmp_path / "b")


def test_a_study_may_grow_in_its_folder(tmp_path, monkeypatch):
    run(study_of("all-reduce"), tmp_path)
    started = []
    begin = CellPool._start
    monkeypatch.setattr(CellPool, "_start", lambda self, cell: (started.append(str(cell)), begin(self, cell)))
    found = run(study_of("all-reduce", "local-sgd:period=2", seeds=2), tmp_path)
    assert started == ["local-sgd:period=2, seed 1", "all-reduce, seed 2", "local-sgd:period=2, seed 2"]
    assert [row.runs for row in found.rows] == [2, 2]
    assert StudyFolder(tmp_path).read() == found.study, "the last grid is the one that is resumed"


def test_a_damaged_file_is_run_again(tmp_path):
    study = study_of("all-reduce")
    first = run(study, tmp_path)
    (file,) = (tmp_path / "cells").iterdir()
    file.write_text(file.read_text().replace("0.", "1.", 1))
    assert run(study, tmp_path) == first


def test_runs_of_other_settings_are_refused(tmp_path):
    run(study_of("all-reduce"), tmp_path)
    with pytest.raises(UsageError, match=r"other settings .iterations 6 there, 7 here.*name another folder"):
        run(study_of("all-reduce", iterations=7), tmp_path)
    other = study_of("all-reduce")
    times = replace(other.cluster.times, jitter=0.5)
    with pytest.raises(UsageError, match="other settings"):
        run(replace(other, cluster=replace(other.cluster, times=times)), tmp_path)


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("done")
    with pytest.raises(UsageError, match="holds something else and no study"):
        run(study_of("all-reduce"), tmp_path)
    with pytest.raises(UsageError, match="is not the folder of a study"):
        StudyFolder(tmp_path).read()


def test_a_run_that_diverges_is_a_row(tmp_path):
    (tmp_path / "mine.py").write_text(SPOILS)
    spoils = f"{tmp_path}/mine.py:Spoils"
    found = run(study_of("all-reduce", spoils), tmp_path / "study")
    good, bad = found.rows
    assert (good.pair.strategy, good.failures) == ("all-reduce", ())
    assert bad.pair.strategy == spoils
    assert bad.failures[0].startswith("seed 1: the ")
    assert (bad.final, bad.on_target, bad.curve, found.broken) == (None, False, (), ())
    assert len(list((tmp_path / "study" / "cells").iterdir())) == 2, "it would fail again"


def test_code_that_raises_breaks_its_own_run_only_and_is_run_again(tmp_path):
    (tmp_path / "mine.py").write_text(SPOILS)
    raises = f"{tmp_path}/mine.py:Spoils:raises=true"
    found = run(study_of("all-reduce", raises), tmp_path / "study")
    assert [row.pair.strategy for row in found.rows] == ["all-reduce"]
    assert "ZeroDivisionError: nothing to divide (mine.py:" in found.broken[0]
    with pytest.raises(RunFailed, match=r"no run was finished; .*ZeroDivisionError"):
        run(study_of(raises), tmp_path / "other")
    changed = (tmp_path / "mine.py").read_text().replace("nothing to divide", "still nothing")
    (tmp_path / "mine.py").write_text(changed)
    with pytest.raises(UsageError, match="that file is not what the run last ran with"):
        StudyFolder(tmp_path / "study").read(trusted=True)
    assert "still nothing" in run(study_of("all-reduce", raises), tmp_path / "study").broken[0]


def test_a_process_that_ends_without_a_word_is_reported(tmp_path, monkeypatch):
    """If this failed, a run would be missing from the medians, and nobody would know."""
    monkeypatch.setattr("paceline.studies.convergence.run.run_cell", lambda *_: os._exit(4))
    with pytest.raises(
        RunFailed, match="no run was finished; all-reduce, seed 1: its process ended with exit code 4"
    ):
        run(study_of("all-reduce"), tmp_path)


def test_pairs_that_do_not_go_together_are_left_out(tmp_path):
    job = {"optimizer": "sgd:momentum=0"}
    selection = select(study_of(codecs=("identity", "dgc"), job=job))
    assert [str(pair) for pair in selection.pairs] == [
        "all-reduce",
        "all-reduce with dgc",
        "local-sgd:period=2",
    ]
    assert selection.left_out[0].startswith(
        "local-sgd:period=2 with dgc is left out: codec 'dgc' adds momentum"
    )
    groups = select(study_of("all-reduce", "sma:learners=2", job={"optimizer": "sgd:decay=weights"}))
    assert groups.left_out == (
        "sma:learners=2 is left out: several learners cannot share the optimizer SGD, which has 2 groups of "
        "parameters; choose one for all of them (of sgd: decay=all), or learners=1",
    )
    with pytest.raises(UsageError, match="codec 'dgc' adds momentum to gradients, and workers of strategy"):
        select(study_of("local-sgd:period=2", codecs=("dgc",), job=job))


@pytest.mark.parametrize(
    ("study", "told"),
    [
        (lambda: study_of("local-sgd:period=0"), "a period of 0"),
        (lambda: study_of(codecs=("int8:bits=40",)), "bits=40"),
        (lambda: study_of(batch_sizes=(2000, 2000)), "2"),
        (lambda: study_of(job={"data": "mnist", "data_dir": "/nowhere"}), "there is no folder /nowhere"),
        (lambda: replace(study_of(), seeds=()), "a study without seeds compares nothing"),
        (lambda: study_of(evaluate=0), "a study without evaluations compares nothing"),
        (lambda: study_of(target_accuracy=0.9), "leave it out of the settings"),
    ],
)
def test_what_no_run_can_have_is_refused_before_any_starts(study, told):
    with pytest.raises(UsageError, match=told):
        select(study())


def test_servers_are_for_strategies_that_have_them():
    study = study_of("all-reduce", "ps", servers=2, collective="ring")
    of = {pair.strategy: study.settings_of(GridCell(pair, 1)) for pair in study.pairs}
    assert (of["ps"].servers, of["ps"].collective) == (2, "native")
    assert (of["all-reduce"].servers, of["all-reduce"].collective) == (1, "ring")
    assert len(select(study).pairs) == 2
    with pytest.raises(UsageError, match="2 servers cannot be used with strategy 'all-reduce'"):
        select(study_of("all-reduce", servers=2))


def test_about_twenty_evaluations_a_run_and_at_least_one_an_epoch():
    job = select(study_of()).job
    for iterations, every in (
        (6, 1),
        (100, 5),
        (1000, 45),
    ):  # an epoch has 45 steps of 2 x 16 of 1,437 samples
        study = with_evaluations(study_of(iterations=iterations), job)
        assert study.settings.evaluate == Cadence(every, "steps")


def test_rows_have_the_median_and_the_range_over_seeds():
    study = three_seeds(study_of("all-reduce", "async"))
    cells = [
        cell_result("all-reduce", 1, 0.5, 0.8, 0.9),
        cell_result("all-reduce", 2, 0.5, 0.9, 0.95),
        cell_result("all-reduce", 3, 0.5, 0.6, 0.7),
        cell_result("async", 1, 0.9, 0.91, every=0.5, sent=300),
        cell_result("async", 2, 0.1, 0.2, every=0.5, sent=300),
        cell_result("async", 3, 0.4, every=0.5, failure="the loss is nan"),
    ]
    found = summarize(study, "digits", cells, target=0.9)
    first, second = found.rows
    assert first.pair == Pair("all-reduce")
    assert (first.reached, first.runs) == (2, 3)
    assert first.seconds == Spread(3.0, 2.0, inf)
    assert first.sent == Spread(300, 200, inf)
    assert first.samples.median == 30
    assert first.final == Spread(0.9, 0.7, 0.95)
    assert [(point.accuracy, point.low, point.high) for point in first.curve] == [
        (0.5, 0.5, 0.5),
        (0.8, 0.6, 0.9),
        (0.9, 0.7, 0.95),
    ]
    assert (second.reached, second.on_target, second.seconds.low) == (1, False, 0.5)
    assert second.failures == ("seed 3: the loss is nan",)
    assert len(second.curve) == 2, "of the runs that did not fail"
    assert found.baseline is first


def test_without_a_target_it_is_a_point_below_what_the_first_comes_to():
    study = three_seeds(study_of("all-reduce", "async"))
    cells = [cell_result("all-reduce", 1, 0.9731), cell_result("async", 1, 0.5)]
    found = summarize(study, "digits", cells)
    assert (found.target, found.chosen) == (0.96, False)
    failed = [replace(cells[0], failure="the loss is nan"), cells[1]]
    assert summarize(study, "digits", failed).target == 0.49
