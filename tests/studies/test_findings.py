"""Each kind of loss is called by its name, with numbers of the record, and a healthy run is left alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.jobs.spec import JobSpec
from paceline.records.events import EventWriter
from paceline.records.files import write_json
from paceline.records.folder import RunFolder
from paceline.records.load import HostLoad
from paceline.records.spans import Span, StepBreakdown, StepRecord
from paceline.reports.findings import finding_text
from paceline.reports.predict.sentences import typed
from paceline.runtimes.settings import Cadence
from paceline.studies.findings import Finding, find
from paceline.studies.findings.observed import ObservedSteps
from paceline.studies.findings.rebuilt import rebuild
from paceline.studies.recorded import read_recorded
from recorded_runs import GOLDEN, made_up, totals

HEALTHY = StepBreakdown(data=1e-4, forward=4e-3, backward=8e-3, communicate=4e-4, wait=1e-4, apply=4e-4)


def kinds(found: tuple[Finding, ...]) -> list[str]:
    return [one.kind for one in found]


def test_the_slowed_rank_of_a_real_run_is_named_with_its_factor() -> None:
    first, *others = find(read_recorded(GOLDEN / "all-reduce"))
    assert first.kind == "slow-rank"
    assert "waiting for rank 1, which computes 2x as long" in first.sentence
    assert first.sentence.startswith("49 %")
    assert kinds(tuple(others)) == ["disturbed"]


def test_a_rank_is_not_blamed_for_waits_that_are_longer_than_what_it_computes_longer(tmp_path: Path) -> None:
    """As on a machine that is shared with other programs, where all ranks wait for their turn."""
    fast, slow = replace(HEALTHY, wait=40e-3), replace(HEALTHY * 1.4, wait=36e-3)
    assert "slow-rank" not in kinds(find(made_up(tmp_path, [totals(fast), totals(slow)])))


def test_a_rank_that_is_always_slow_is_not_helped_by_a_staleness_bound() -> None:
    """It holds all others back in the end; nothing in this record tells what a smaller batch would take either."""
    remedies = {
        typed(*one.change): one.gain for one in find(read_recorded(GOLDEN / "all-reduce"))[0].remedies
    }
    assert remedies == {"--strategy async": pytest.approx(1.3, abs=0.1)}


@pytest.mark.parametrize(("small", "even"), [(4e-3, True), (11.8e-3, False)])
def test_batches_are_evened_out_where_smaller_ones_take_less(
    tmp_path: Path, small: float, even: bool
) -> None:
    """Steps of 16 samples take 12 ms, and the record holds shorter ones as well, of 4 samples."""
    fast, slow = replace(HEALTHY, wait=24e-3), HEALTHY * 3
    with EventWriter(RunFolder(tmp_path).events(0)) as events:
        for samples, seconds in [(16, 12e-3), (4, small)] * 5:
            events.append(StepRecord(step=1, samples=samples, spans=[Span("backward", 0.0, seconds)]))
    (finding,) = find(made_up(tmp_path, [totals(fast), totals(slow)]))
    batches = [one for one in finding.remedies if one.change[0][0] == "batch_size"]
    assert bool(batches) == even


@pytest.mark.parametrize("name", ["all-reduce", "served"])
def test_a_rebuilt_run_predicts_its_own_step(name: str) -> None:
    seen = ObservedSteps.of(read_recorded(GOLDEN / name))
    assert seen is not None
    rebuilt = rebuild(seen)
    assert rebuilt is not None
    assert rebuilt.now.seconds == pytest.approx(seen.mean.total, rel=0.25)
    assert rebuilt.now.sent == pytest.approx(seen.sent, rel=0.02)
    assert rebuilt.gain(rebuilt.setup) == 1.0


def test_a_healthy_run_has_no_findings(tmp_path: Path) -> None:
    assert find(made_up(tmp_path, [totals(HEALTHY), totals(HEALTHY)])) == ()


def test_a_run_of_a_few_steps_has_no_findings(tmp_path: Path) -> None:
    few = replace(totals(replace(HEALTHY, data=1.0)), steps=4)
    assert find(made_up(tmp_path, [few, few])) == ()


def test_short_messages_are_bound_by_latency_and_rarer_ones_help(tmp_path: Path) -> None:
    step = replace(HEALTHY, communicate=12e-3)
    (first, *_) = find(made_up(tmp_path, [totals(step), totals(step)]))
    assert first.kind == "communication", "no evaluation is recorded that tells the latency"
    assert "49 % of each step is communication within the host: a worker sends 1 kB" in first.sentence
    assert {typed(*one.change) for one in first.remedies} & {
        "--strategy local-sgd:period=8",
        "--batch-size 64",
    }
    assert all(one.gain >= 1.1 for one in first.remedies)


@pytest.mark.parametrize(("small", "kind"), [(11e-3, "latency"), (1e-4, "bandwidth")])
def test_the_sums_of_evaluations_tell_latency_from_bandwidth(tmp_path: Path, small: float, kind: str) -> None:
    """The exchange of a step takes 12 ms; that of a few numbers takes as long, or next to nothing."""
    with EventWriter(RunFolder(tmp_path).events(0)) as events:
        spans = [Span("communicate", 0.0, small), Span("evaluate", 1.0, 0.1), Span("communicate", 1.1, 0.02)]
        events.append(StepRecord(step=1, spans=spans, is_step=False))
    step = replace(HEALTHY, communicate=12e-3)
    first = find(made_up(tmp_path, [totals(step), totals(step)]))[0]
    assert first.kind == kind
    assert f"{kind} is the limit" in first.sentence


def test_of_a_watched_script_remedies_follow_from_what_backward_does_not_hide(tmp_path: Path) -> None:
    """20 MB in one bucket: the link is as fast as that of a run whose whole transfer takes 12 ms more than backward."""
    step = replace(HEALTHY, communicate=12e-3)
    script = {"job": JobSpec(path="train.py"), "strategy": "ddp"}
    run = made_up(tmp_path, [totals(step), totals(step)], parameters=5_000_000, **script)
    seen = ObservedSteps.of(run)
    assert seen is not None
    rebuilt = rebuild(seen)
    assert rebuilt is not None
    assert rebuilt.now.breakdown.communicate == pytest.approx(seen.mean.communicate, rel=0.05)
    assert rebuilt.now.breakdown.hidden > 0
    first = find(run)[0]
    assert "of which backward hides all but 12 ms" in first.sentence
    assert any(
        one.place == "distribute" and one.change[0][0] in ("strategy", "codec") for one in first.remedies
    )
    assert "with paceline.distribute() in the script" in finding_text(first)


def test_nothing_is_predicted_of_workers_that_agree_in_their_own_way(tmp_path: Path) -> None:
    step = replace(HEALTHY, communicate=12e-3, data=9e-3)
    script = {"job": JobSpec(path="train.py"), "strategy": "own"}
    found = find(made_up(tmp_path, [totals(step), totals(step)], **script))
    assert {"communication", "data"} <= {*kinds(found)}
    assert not any(one.remedies for one in found)


def test_workers_that_lose_to_one_are_told_so_and_from_which_batch_they_pay_off(tmp_path: Path) -> None:
    step = replace(HEALTHY, communicate=30e-3)
    found = {one.kind: one for one in find(made_up(tmp_path, [totals(step), totals(step)]))}
    finding = found["slower-than-one"]
    # Alone: 16 samples in 12.5 ms; together: 32 in 42.6 ms.
    both = "2 workers train 751 samples/s in typical steps; one alone would train about 1,280 at batch 16"
    assert both in finding.sentence
    # Backward hides part of it: k * 12.1 ms + 0.4 ms of each of two workers against what 30 ms leave.
    assert (
        "From batch 64 a worker they pay off (predicted, if computing grows with the batch)"
        in finding.sentence
    )
    assert [(typed(*one.change), round(one.gain, 2)) for one in finding.remedies] == [("--workers 1", 1.7)]


def test_one_alone_is_said_to_train_at_the_batch_that_its_rate_is_of(tmp_path: Path) -> None:
    step = replace(HEALTHY, communicate=30e-3)
    slower = replace(step, forward=1.1 * step.forward)
    found = {one.kind: one for one in find(made_up(tmp_path, [totals(slower, 20), totals(step, 16)]))}
    assert "one alone would train about 1,280 at batch 16:" in found["slower-than-one"].sentence


def commands(finding: Finding) -> list[str]:
    return [typed(*one.change) for one in finding.remedies]


def test_no_codec_is_offered_that_the_schedule_of_the_run_cannot_sum(tmp_path: Path) -> None:
    """int8 is predicted to help more than half; 'paceline train --collective ring' refuses it."""
    step = replace(HEALTHY, communicate=60e-3)
    workers = [totals(step, samples=samples, sent=20_000_000) for samples in (16, 17)]
    by_backend = find(made_up(tmp_path, workers, parameters=5_000_000))[0]
    by_ring = find(made_up(tmp_path, workers, parameters=5_000_000, collective="ring"))[0]
    assert "--codec int8" in commands(by_backend)
    assert commands(by_ring) == ["--strategy local-sgd:period=8", "--codec half"]


def test_no_servers_are_offered_to_a_run_that_sends_its_buffers_at_every_step(tmp_path: Path) -> None:
    workers = [totals(replace(HEALTHY, wait=24e-3)), totals(HEALTHY * 3)]
    assert "--strategy async" in commands(find(made_up(tmp_path, workers))[0])
    assert commands(find(made_up(tmp_path, workers, buffers="rank0"))[0]) == []


def test_what_has_no_servers_is_offered_without_their_number(tmp_path: Path) -> None:
    """'paceline train --servers 2 --strategy all-reduce' is refused. One worker alone would still push and pull."""
    step = totals(replace(HEALTHY, communicate=60e-3), sent=20_000_000)
    run = made_up(tmp_path, [step] * 4, parameters=5_000_000, strategy="ps", servers=2)
    found = {one.kind: one for one in find(run)}
    assert "--strategy all-reduce --servers 1" in commands(found["communication"])
    run = made_up(tmp_path, [step] * 2, parameters=5_000_000, strategy="ps", servers=2)
    found = {one.kind: one for one in find(run)}
    assert commands(found["slower-than-one"]) == ["--workers 1 --strategy all-reduce --servers 1"]


@pytest.mark.parametrize(
    ("settings", "launcher", "says"),
    [
        ({}, "paceline", "help: --workers 1 ("),
        ({}, "other", "help: start one process ("),
        ({"strategy": "ps"}, "other", "help: start one process with --strategy all-reduce ("),
        ({"strategy": "ddp", "job": JobSpec(path="train.py")}, "paceline", "help: start one process ("),
    ],
)
def test_one_worker_is_asked_for_where_its_number_is_decided(
    tmp_path: Path, settings: dict, launcher: str, says: str
) -> None:
    """Under torchrun --workers is refused, and a watched script has no options of ours."""
    write_json(tmp_path / "env.json", {"workers": [{"rank": rank, "launcher": launcher} for rank in (0, 1)]})
    step = totals(replace(HEALTHY, communicate=60e-3), sent=20_000_000)
    found = {one.kind: one for one in find(made_up(tmp_path, [step] * 2, parameters=5_000_000, **settings))}
    assert says in finding_text(found["slower-than-one"])


def test_a_starved_worker_is_offered_loaders_only_where_its_job_has_them(tmp_path: Path) -> None:
    step = replace(HEALTHY, data=8e-3)
    run = made_up(tmp_path, [totals(step), totals(step)])
    (finding,) = find(run)
    assert finding.kind == "data"
    assert finding.sentence.startswith("38 % of each step is spent on getting its batch (8 ms of 20.9 ms)")
    assert finding.remedies == ()
    own = replace(run.config.settings, job=replace(run.config.settings.job, path="mine:build"))
    (finding,) = find(replace(run, config=replace(run.config, settings=own)))
    assert [(typed(*one.change), round(one.gain, 1)) for one in finding.remedies] == [
        ("--loader-workers 1", 1.6)
    ]


def test_loaders_are_offered_only_to_a_job_that_is_known_to_have_none(tmp_path: Path) -> None:
    """What is measured is the wait that its loaders leave: one loader in place of four would make it longer."""
    step, mine = totals(replace(HEALTHY, data=8e-3)), JobSpec(path="mine:build")
    (finding,) = find(made_up(tmp_path, [step] * 2, job=mine, loader_workers=4))
    assert finding.sentence.endswith("when a worker needs them, though it has 4 loader processes.")
    assert finding.remedies == ()
    script = {"job": JobSpec(path="train.py"), "strategy": "ddp", "loader_workers": None}
    (finding,) = find(made_up(tmp_path, [step] * 2, **script))
    assert "how many loader processes the script has (num_workers) is not recorded" in finding.sentence
    assert finding.remedies == ()


def test_loaders_save_what_is_spent_on_data_and_nothing_else(tmp_path: Path) -> None:
    step = replace(HEALTHY, data=8e-3, other=4e-3)
    (finding,) = find(made_up(tmp_path, [totals(step)] * 2, job=JobSpec(path="mine:build")))
    (remedy,) = finding.remedies
    assert remedy.gain == pytest.approx(step.total / (step.total - step.data), rel=0.03)


def test_loaders_are_not_offered_where_no_core_is_left_for_them(tmp_path: Path) -> None:
    step = replace(HEALTHY, data=8e-3)
    full = [HostLoad(host="vm", cores=2, wanted=2, others=0.0)]
    run = made_up(tmp_path, [totals(step), totals(step)], loads=full)
    own = replace(run.config.settings, job=replace(run.config.settings.job, path="mine:build"))
    busy = replace(run.summary, cpu_percent=99.0)
    (finding,) = find(replace(run, config=replace(run.config, settings=own), summary=busy))
    assert (finding.kind, finding.remedies) == ("data", ())


def test_a_larger_batch_is_named_as_what_makes_a_rank_slow(tmp_path: Path) -> None:
    small = replace(HEALTHY, wait=25e-3)
    run = made_up(tmp_path, [totals(small), totals(HEALTHY * 3, samples=48)])
    (finding,) = find(run)
    assert "rank 1, which computes 3x as long: its batch has 3x as many samples" in finding.sentence


def test_a_batch_of_the_same_size_is_not_named_as_what_makes_a_rank_slow(tmp_path: Path) -> None:
    """Half of the ranks are slow: those beside the slowest are not much faster in their mean."""
    fast, slow = totals(replace(HEALTHY, wait=5e-3)), totals(replace(HEALTHY * 1.38, wait=0.0))
    (finding,) = find(made_up(tmp_path, [fast] * 4 + [slow] * 4))
    assert finding.kind == "slow-rank"
    assert "its batch" not in finding.sentence


def test_frequent_evaluations_and_their_remedy(tmp_path: Path) -> None:
    one = totals(HEALTHY, outside={"evaluate": 2.6})  # beside 2.6 s of steps
    run = made_up(tmp_path, [one, one], evaluate=Cadence(10, "steps"), checkpoint=Cadence(0))
    (finding,) = find(run)
    assert finding.kind == "evaluation"
    assert finding.sentence == "Evaluations take 50 % of the run: 20 of about 130 ms each."
    assert [(typed(*one.change), round(one.gain, 2)) for one in finding.remedies] == [
        ("--evaluate-every '50 steps'", 1.66)
    ]


def test_more_threads_than_cores(tmp_path: Path) -> None:
    loads = [HostLoad(host="vm", cores=2, wanted=4, others=0.0)]
    (finding,) = find(made_up(tmp_path, [totals(HEALTHY)] * 2, loads=loads))
    assert finding.kind == "oversubscribed"
    assert "4 threads compute on 2 cores of vm" in finding.sentence


def test_nothing_is_promised_where_the_run_itself_is_not_predicted(tmp_path: Path) -> None:
    """Both ranks compute alike and wait for half of each step: no model of theirs explains it."""
    step = replace(HEALTHY, wait=40e-3, communicate=20e-3)
    for finding in find(made_up(tmp_path, [totals(step), totals(step)])):
        assert finding.remedies == ()


def test_at_most_three_the_most_costly_first(tmp_path: Path) -> None:
    bad = replace(HEALTHY, data=20e-3, communicate=30e-3)
    loads = [HostLoad(host="vm", cores=2, wanted=4, others=1.0)]
    found = find(made_up(tmp_path, [totals(bad), totals(bad)], loads=loads))
    assert len(found) == 3
    assert [one.share for one in found] == sorted((one.share for one in found), reverse=True)
