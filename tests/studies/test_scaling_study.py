"""Sweeps: which cells there are, what is read off repeats, and a sweep that is interrupted and goes on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from command import start_python
from paceline.commands.train import train_options
from paceline.errors import RunFailed, UsageError
from paceline.jobs.data import RepeatedData, TensorData
from paceline.jobs.spec import JobSpec
from paceline.records.folder import RunFolder
from paceline.records.load import HostLoad
from paceline.reports.scaling import answer
from paceline.runtimes.config import read_config, resolved
from paceline.runtimes.settings import Cadence, Settings
from paceline.studies.scaling.folder import SweepFolder
from paceline.studies.scaling.plan import Planner
from paceline.studies.scaling.result import middle, read_sweep, summarize_sweep
from paceline.studies.scaling.run import SweepRunner
from paceline.studies.scaling.study import Sweep, SweepCell, SweepRun

GOLDEN = Path(__file__).parents[1] / "golden" / "scaling"


def sweep_of(**more: Any) -> Sweep:
    """Twelve steps of a small model on the digits, unless ``more`` says otherwise."""
    settings = Settings(
        job=JobSpec(model="mlp", optimizer="sgd:lr=0.05"),
        batch_sizes=(32,),
        iterations=12,
        evaluate=Cadence(0),
        checkpoint=Cadence(0),
    )
    asked = {"kind": "scaling", "batches": (16,), "seconds": None, "machinery": {"threads": 1}}
    return Sweep(**({"job": "digits-mlp", "samples": 1437, "settings": settings} | asked | more))


def test_what_is_compared_with_comes_first_and_each_cell_once():
    weak = sweep_of(workers=(2, 4), batches=(16, 64), strategies=("all-reduce", "local-sgd"))
    assert [str(cell) for cell in weak.cells] == [
        "1 worker x batch 16",
        "1 worker x batch 64",
        "2 workers x batch 16",
        "2 workers x batch 16, local-sgd",
        "4 workers x batch 16",
        "4 workers x batch 16, local-sgd",
        "2 workers x batch 64",
        "2 workers x batch 64, local-sgd",
        "4 workers x batch 64",
        "4 workers x batch 64, local-sgd",
    ]
    runs = weak.runs
    assert [run.repeat for run in runs] == [1] * 10 + [2] * 10 + [3] * 10, "all cells have their turn"


def test_a_cell_is_measured_right_after_what_it_is_compared_with():
    """Else a machine that becomes slower in between would look like workers who slow each other down."""
    weak = sweep_of(workers=(1, 2), batches=(16, 64))
    order = [(run.cell.workers, run.cell.batch, run.repeat) for run in weak.runs[:5]]
    assert order == [(1, 16, 1), (2, 16, 1), (1, 64, 1), (2, 64, 1), (1, 16, 2)]
    strong = sweep_of(workers=(1, 2), batches=(16, 64), scaling="strong")
    for place, run in enumerate(strong.runs):
        before = [one.cell for one in strong.runs[:place] if one.repeat == run.repeat]
        needed = {strong.base(run.cell), strong.reference(run.cell)} - {run.cell}
        assert needed <= set(before), "a prediction rests on them"


def test_strong_scaling_divides_the_batch_and_also_measures_one_worker_with_a_part_of_it():
    strong = sweep_of(workers=(1, 4), batches=(64,), scaling="strong")
    four = SweepCell(workers=4, batch=16)
    assert strong.cells == (SweepCell(batch=16), SweepCell(batch=64), four)
    assert strong.base(four) == SweepCell(batch=64)
    assert strong.reference(four) == SweepCell(batch=16)


def test_checkpoints_batches_and_processes_are_other_axes():
    every = Cadence(5, "steps")
    saved = sweep_of(kind="checkpoint", checkpoints=(Cadence(0), every))
    assert saved.cells == (SweepCell(batch=16), SweepCell(batch=16, checkpoint=every))
    assert saved.settings_of(saved.cells[1]).checkpoint == every
    sizes = sweep_of(kind="batch", batches=(64, 16))
    assert sizes.base(SweepCell(batch=64)) == SweepCell(batch=16)
    several = sweep_of(kind="processes", processes=(2,))
    assert several.cells == (SweepCell(batch=16), SweepCell(batch=16, processes=2))


def test_servers_and_a_collective_are_only_of_cells_that_have_them():
    sweep = sweep_of(workers=(1, 2), strategies=("ps", "all-reduce"))
    sweep = replace(sweep, settings=replace(sweep.settings, servers=2, collective="ring"))
    kept = {(cell.workers, cell.strategy): sweep.settings_of(cell) for cell in sweep.cells}
    found = {key: (one.servers, one.collective) for key, one in kept.items()}
    assert found == {
        (1, "all-reduce"): (1, "native"),
        (2, "ps"): (2, "native"),
        (2, "all-reduce"): (1, "ring"),
    }


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"repeats": 0}, "repeats 0 is out of range: it must be 1 to 100"),
        ({"batches": ()}, "a sweep without batches measures nothing"),
        ({"batches": (0,)}, "batch size 0 is out of range"),
        (
            {"batches": (50,), "workers": (4,), "scaling": "strong"},
            "cannot be divided evenly among 4 workers",
        ),
        ({"seconds": 0.0}, "0 seconds a run are out of range"),
        ({"processes": (1000,)}, "processes 1000 is out of range: it must be 1 to 256"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(more, told):
    with pytest.raises(UsageError, match=told):
        sweep_of(**more)


def test_the_same_batch_again_for_each_size_and_no_random_number_used_up():
    data = TensorData(torch.arange(8.0).reshape(8, 1), torch.arange(8))
    repeated = RepeatedData(data)
    first = repeated.take(torch.tensor([3, 4]))
    assert repeated.take(torch.tensor([6, 7])) is first
    assert first[1].tolist() == [3, 4]
    assert len(repeated.take(torch.tensor([1]))[0]) == 1
    assert len(repeated) == 8
    assert repeated.targets is data.targets


def test_the_golden_sweep_adds_up():
    """Else a reader could not tell where the time went: parts of a step, and both ways to split an epoch."""
    result = read_sweep(GOLDEN)
    assert [str(row.cell) for row in result.rows] == [
        f"{one} x batch {batch}" for one in ("1 worker", "2 workers") for batch in (16, 64)
    ]
    for row in result.rows:
        split = row.by_difference
        assert split.compute + split.communicate == pytest.approx(row.epoch)
        assert row.by_spans.compute + row.by_spans.communicate == pytest.approx(row.epoch, rel=0.01)
        gap = split.communicate - row.by_spans.communicate
        assert row.difference.total == pytest.approx(gap, abs=0.01 * row.epoch)
        assert row.repeats == 3
    for alone in result.rows[:2]:
        assert alone.speed_up == alone.efficiency == 1
        assert alone.by_difference.communicate == 0
    two = result.rows[3]
    base = result.row(result.sweep.base(two.cell))
    assert base is result.rows[1]
    assert two.speed_ups.low <= two.speed_up <= two.speed_ups.high
    assert two.speed_up == pytest.approx(two.rate.median / base.rate.median, rel=0.05), "ratios, by repeat"
    assert two.efficiency == pytest.approx(two.speed_up / 2)
    assert two.bandwidth
    assert two.link
    assert 0 < two.bandwidth < two.link


def test_an_even_number_of_repeats_adds_up_too(tmp_path):
    """Else a rate between two repeats would stand beside the step of one of them, and a part of Tn - T1/n be left."""
    golden, own = SweepFolder(GOLDEN), SweepFolder(tmp_path / "own")
    sweep = golden.read()
    own.open(sweep)
    for run, one in golden.done(sweep, sweep.runs).items():
        if run.repeat <= 2:
            slower = 1.0 if run.repeat == 1 else 1.0 + 0.2 * run.cell.workers
            own.keep(sweep, replace(one, rate=one.rate / slower, step=one.step * slower))
    rows = summarize_sweep(sweep, own).rows
    assert [row.repeats for row in rows] == [2] * 4
    for row in rows:
        assert row.epoch == pytest.approx(sweep.samples / row.rate.median)
        assert row.step.total == pytest.approx(row.cell.workers * row.cell.batch / row.rate.median, rel=0.01)
        gap = row.by_difference.communicate - row.by_spans.communicate
        assert row.difference.total == pytest.approx(gap, abs=0.01 * row.epoch)


@pytest.mark.parametrize(("kind", "told"), [("batch", "one batch"), ("processes", "one process")])
def test_of_a_single_cell_nothing_is_said_that_takes_two(kind, told):
    measured = read_sweep(GOLDEN)
    single = replace(measured, sweep=sweep_of(kind=kind), rows=measured.rows[:1])
    assert answer(single).endswith(f"samples/s; only {told} was measured.")


def test_every_prediction_of_the_golden_sweep_is_older_than_its_first_run():
    folder = SweepFolder(GOLDEN)
    sweep = folder.read()
    done = folder.done(sweep, sweep.runs)
    assert len(done) == 12
    for run, result in done.items():
        plan = folder.plan(sweep, run.cell)
        assert plan is not None
        assert plan.row is not None
        assert plan.made < result.begun
    result = read_sweep(GOLDEN)
    errors = [abs(row.plan.speed_up - row.speed_up) for row in result.compared() if row.plan]
    assert result.speed_up_error == pytest.approx(sum(errors) / 2), "the median of two"


def test_a_repeat_far_from_the_others_is_named_with_what_disturbed_it(tmp_path):
    folder, own = SweepFolder(GOLDEN), SweepFolder(tmp_path / "own")
    sweep = folder.read()
    own.open(sweep)
    calm = replace(middle(list(folder.done(sweep, [SweepRun(sweep.cells[0], 1)]).values())), loads=())
    load = HostLoad(host="here", cores=2, wanted=1, others=1.5)
    for repeat in (1, 2, 3):
        slow = {"step": calm.step * 1.4, "loads": (load,)} if repeat == 2 else {}
        own.keep(sweep, replace(calm, cell=SweepRun(sweep.cells[0], repeat), **slow))
    result = summarize_sweep(sweep, own)
    (odd,) = result.outliers
    assert (odd.run.repeat, odd.factor) == (2, pytest.approx(1.4))
    assert odd.disturbance.startswith("Other processes used 1.5 of 2 cores on here during it")
    assert result.disturbed == (odd.run,)


def kept_sweep(folder, rates, disturbed=()):
    """A sweep of 1 and 2 workers with these samples a second, (one, two) a repeat; repeats count from 1."""
    golden = SweepFolder(GOLDEN)
    sweep = replace(golden.read(), batches=(16,), repeats=len(rates))
    own, one, two = SweepFolder(folder), SweepCell(batch=16), SweepCell(batch=16, workers=2)
    own.open(sweep)
    found = golden.done(golden.read(), golden.read().runs)
    load = HostLoad(host="here", cores=2, wanted=2, others=1.5)
    for repeat, pair in enumerate(rates, start=1):
        for cell, rate in zip((one, two), pair, strict=True):
            like, run = found[SweepRun(cell, 1)], SweepRun(cell, repeat)
            loads = (load,) if (cell.workers, repeat) in disturbed else ()
            own.keep(sweep, replace(like, cell=run, rate=rate, loads=loads))
    (row,) = summarize_sweep(sweep, own).compared()
    return row


def test_a_speed_up_is_that_of_runs_that_followed_each_other(tmp_path):
    """A machine that is half as fast in the second repeat is so for one worker and for two."""
    row = kept_sweep(tmp_path, [(100.0, 150.0), (50.0, 75.0), (50.0, 80.0)])
    assert (row.speed_ups.low, row.speed_up, row.speed_ups.high) == (1.5, 1.5, 1.6)
    assert row.efficiency == row.speed_up / 2


def test_a_disturbed_repeat_counts_only_where_there_is_no_other(tmp_path):
    """Two workers on two cores lose to a third process what one worker does not."""
    rates = [(100.0, 150.0), (100.0, 60.0), (100.0, 70.0)]
    row = kept_sweep(tmp_path / "some", rates, disturbed={(2, 2), (2, 3)})
    assert (row.repeats, row.speed_up) == (1, 1.5)
    row = kept_sweep(tmp_path / "all", rates, disturbed={(2, 1), (2, 2), (2, 3)})
    assert (row.repeats, row.speed_up) == (3, 0.7)


def test_checkpoints_of_a_run_that_is_shorter_than_an_epoch_are_an_epoch_apart(tmp_path):
    """Each run saves at its last step: by their number, checkpoints would seem to cost an epoch's steps as much."""
    folder, own = SweepFolder(GOLDEN), SweepFolder(tmp_path / "own")
    sweep = replace(folder.read(), kind="checkpoint", workers=(1,), checkpoints=(Cadence(0), Cadence(2)))
    plain, saves = (one for one in sweep.cells if one.batch == 64)
    like = folder.done(folder.read(), [SweepRun(SweepCell(batch=64), 1)]).popitem()[1]
    own.open(sweep)
    own.keep(sweep, replace(like, cell=SweepRun(plain, 1), steps=24))
    own.keep(sweep, replace(like, cell=SweepRun(saves, 1), steps=24, checkpoint=0.1, checkpoints=1))
    never, often = summarize_sweep(sweep, own).rows
    assert (never.checkpoint_every, often.checkpoint_every) == (0, 2 * 23), "1,437 samples are 23 steps of 64"
    assert often.checkpoints == pytest.approx(1 / 24)


def plan_two(folder, sweep, measure=None, **more):
    """The plan of two workers with a batch of 16, after the golden first run of one, unless ``more`` says otherwise."""
    own, one = SweepFolder(folder), SweepRun(SweepCell(batch=16), 1)
    own.open(sweep)
    if more.pop("measured", True):
        golden = SweepFolder(GOLDEN)
        own.keep(sweep, golden.done(golden.read(), [one])[one])
    planner = Planner(
        sweep=sweep, folder=own, profile=None, pilot=lambda _: 1.0, measure_link=measure or (lambda *_: None)
    )
    return replace(planner, **more).plan(SweepCell(batch=16, workers=2))


@pytest.mark.parametrize(
    ("machinery", "collective", "backend"),
    [
        ({}, "native", "shm"),
        ({}, "ring", "gloo"),
        ({"backend": "gloo"}, "native", "gloo"),
        ({"backend": "nccl", "device": "cuda"}, "native", None),
        ({"device": "cuda"}, "native", None),
    ],
)
def test_the_link_is_measured_by_the_backend_that_the_workers_use(
    tmp_path, monkeypatch, machinery, collective, backend
):
    """A ring over Gloo beside what shared memory allows would seem to leave most of the link unused."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "is_backend_available", lambda _: True)
    sweep, asked = sweep_of(workers=(1, 2), machinery={"threads": 1, **machinery}), []
    sweep = replace(sweep, settings=replace(sweep.settings, collective=collective))

    def measure(*words):
        asked.append(words)
        return 5e8

    plan = plan_two(tmp_path, sweep, measure)
    assert asked == ([] if backend is None else [(backend, 2, 4 * 4810)])
    assert plan.link == (None if backend is None else 5e8)


def test_why_two_workers_are_not_predicted_is_what_happened(tmp_path):
    sweep = sweep_of(workers=(1, 2))
    profile = tmp_path / "profile.json"
    gone = plan_two(tmp_path / "gone", sweep, profile=profile)
    assert gone.basis.startswith("the run of one worker is gone from ")
    failed = plan_two(tmp_path / "failed", sweep, profile=profile, measured=False)
    assert failed.basis == (
        "the first run of one worker, which predictions rest on, has failed; measure in a new folder"
    )


def test_code_that_a_folder_brings_is_not_run_to_read_it(tmp_path, monkeypatch):
    """If this failed, a report of somebody's sweep would run whatever strategy its folder names."""
    monkeypatch.chdir(tmp_path)
    folder, mine = SweepFolder(Path("sweep")), Path("sweep/mine.py")
    sweep = sweep_of(workers=(1, 2), strategies=("sweep/mine.py:Mine",))
    folder.open(sweep)
    mine.write_text("from pathlib import Path\nPath('ran').touch()\n")
    with pytest.raises(
        UsageError, match=r"mine.py and call Mine\(\), and that file lies in the run folder itself"
    ):
        read_sweep(folder.path)
    assert not Path("ran").exists()


class Trainings:
    """Starts trainings as forks, which are quick, and remembers their settings."""

    def __init__(self) -> None:
        self.settings: list[Settings] = []

    def __call__(self, settings: Settings, runs: Path, words: Any) -> Any:
        self.settings.append(settings)
        options = train_options(settings, {"threads": 1}, runs)
        return start_python("-m", "paceline", "train", *options, stdout=words, stderr=words)


def test_an_interrupted_sweep_goes_on_where_it_stopped(tmp_path):
    sweep = sweep_of(loading=("with", "without"), repeats=2)
    folder, started = SweepFolder(tmp_path / "sweep"), Trainings()

    def interrupt(done: float, words: str) -> None:
        if words.startswith("3/4"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SweepRunner(sweep, folder, started, show=interrupt, keep_runs=True).run()
    before = {path: path.stat().st_mtime_ns for path in folder.cells.iterdir()}
    assert len(before) == 3
    assert len(list((folder.path / "runs").iterdir())) == 3, "nothing is left of the run that was cut off"
    kept = folder.runs(sweep, SweepRun(sweep.cells[0], 1))
    (run,) = kept.iterdir()
    asked = resolved(sweep.settings_of(sweep.cells[0]))
    assert read_config(RunFolder(run)).settings == asked, "the training is the one that was asked for"

    started.settings.clear()
    result = SweepRunner(sweep, folder, started).run()
    assert [settings.job.path is not None for settings in started.settings] == [True], "without data loading"
    assert before.items() <= {path: path.stat().st_mtime_ns for path in folder.cells.iterdir()}.items()
    assert len(folder.done(sweep, sweep.runs)) == 4, "of them, those count that no other test has disturbed"
    assert [row.cell.loading for row in result.rows] == ["with", "without"]
    assert all(row.step.total > 0 and row.rate.median > 0 for row in result.rows)
    assert result.rows[0].plan is not None
    assert result.rows[0].plan.basis == "there is no profile of this machine"


def test_a_training_that_fails_is_a_sentence_and_nothing_is_kept_of_it(tmp_path):
    sweep = sweep_of(repeats=1)
    diverges = replace(sweep.settings, job=JobSpec(model="mlp", optimizer="sgd:lr=1e30"))
    folder = SweepFolder(tmp_path / "sweep")
    with pytest.raises(RunFailed, match=r"no run was finished; 1 worker x batch 16, repeat 1: .*loss"):
        SweepRunner(replace(sweep, settings=diverges), folder, Trainings()).run()
    assert not folder.cells.exists()
    assert list((folder.path / "runs").iterdir()) == []


def test_another_job_does_not_go_on_in_the_same_folder(tmp_path):
    folder, sweep = SweepFolder(tmp_path), sweep_of()
    folder.open(sweep)
    folder.open(replace(sweep, batches=(16, 32), repeats=5))
    assert folder.read().repeats == 5, "a larger grid may share the folder"
    other = replace(sweep, settings=replace(sweep.settings, seed=2))
    with pytest.raises(UsageError, match=r"other settings .seed 1 there, 2 here"):
        folder.open(other)
