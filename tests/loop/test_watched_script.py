"""``paceline.watch``: a script is measured, and trains as it does without."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from test_loop import PAIR, trained
from torch import nn

import paceline
from command import run_python
from loop.pairs import run_ranks
from paceline.collectives.traffic import ring_bytes
from paceline.errors import UsageError
from paceline.loop.moments import Moments
from paceline.loop.process import ScriptProcess, script_settings
from paceline.loop.store_comm import StoreComm
from paceline.loop.watch_recorder import ExchangeLengths, WatchRecorder
from paceline.records.events import EventWriter, read_events
from paceline.records.folder import RunFolder
from paceline.records.spans import TimeLedger
from paceline.records.summary import read_summary
from paceline.runtimes.config import read_config
from paceline.runtimes.flat import CONTROL
from paceline.runtimes.prepare import check_settings
from paceline.strategies import STRATEGIES, WATCHED, build_strategy
from paceline.studies.findings import find
from paceline.studies.predict import predict
from paceline.studies.predict.observe import observe
from paceline.studies.predict.request import PredictRequest
from paceline.studies.recorded import read_recorded
from ports import free_ports

TRAINED = 6 * 16 + 16 + 16 * 5 + 5 + 3


def the_run(home: Path) -> RunFolder:
    (path,) = (home / "runs").iterdir()
    return RunFolder(path)


@pytest.mark.parametrize(("watched", "unwatched"), [("watch-plain", "plain"), ("watch-ddp", "ddp")])
def test_watching_changes_no_bit_and_records_every_step(watched: str, unwatched: str, tmp_path: Path) -> None:
    """With accumulation under no_sync, clipping, a scheduler, and a parameter that is not used."""
    plain = unwatched == "plain"
    mine = trained(f"one:{watched}" if plain else watched, tmp_path)
    theirs = trained(unwatched, tmp_path)
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    folder = the_run(tmp_path)
    settings, summary = read_config(folder).settings, read_summary(folder)
    assert settings.strategy.partition(":")[0] == ("none" if plain else "ddp")
    assert (settings.job.path, settings.batch_sizes) == ("loop_pair.py", (8,) * (1 if plain else 2))
    for rank, totals in enumerate(summary.totals):
        assert (totals.steps, totals.samples) == (12, 12 * 16)
        # Once a step: the first of its two backwards averages nothing.
        assert totals.sent == (0 if plain else 12 * ring_bytes(4 * TRAINED, 2))
        kinds = [[span.kind for span in one.spans] for one in read_events(folder.events(rank)) if one.is_step]
        computed = ["data", "forward", "backward"] * 2
        assert all([kind for kind in kinds_ if kind in computed] == computed for kinds_ in kinds)
        assert all(("communicate" in kinds_) != plain and kinds_[-1] == "apply" for kinds_ in kinds)


def test_a_slow_rank_is_named_and_a_watched_run_is_compared_with_a_distributed_one(tmp_path: Path) -> None:
    """The bare module is watched, and wrapped afterwards."""
    ours, by_hand = tmp_path / "ours", tmp_path / "by-hand"
    for home, how in ((ours, "all-reduce"), (by_hand, "watch-bare")):
        home.mkdir()
        run_ranks(PAIR, how, "model.pt", "40", cwd=home)
    run = read_recorded(the_run(by_hand).path)
    slow = next(one for one in find(run) if one.kind == "slow-rank")
    assert "waiting for rank 1" in slow.sentence
    assert "most of it for its data" in slow.sentence
    done = run_python(
        "-m", "paceline", "compare", str(run.folder.path), str(the_run(ours).path), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "whole step" in done.stdout
    assert (run.folder.path / "trace.json.gz").exists()


def test_workers_that_a_script_starts_itself_are_one_record(tmp_path: Path) -> None:
    """Without a launcher's variables; buffers are broadcast before each forward, which is an exchange as well."""
    script = str(Path(__file__).parent / "spawned_pair.py")
    done = run_python(script, str(free_ports(1)[0]), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 workers x batch 4, ddp over gloo" in done.stderr
    folder = the_run(tmp_path)
    assert [(one.steps, one.samples) for one in read_summary(folder).totals] == [(8, 32)] * 2
    for rank in range(2):
        steps = [one for one in read_events(folder.events(rank)) if one.is_step]
        for record in steps[1:]:  # in the first one the record begins, when buffers have been sent
            kinds = [span.kind for span in record.spans if span.kind != "wait"]
            assert kinds == ["data", "communicate", "forward", "backward", "communicate", "apply"]


def test_paceline_run_records_a_script_that_distributes_nothing(tmp_path: Path) -> None:
    words = (
        "run",
        "--workers",
        "2",
        "--strategy",
        "none",
        "--name",
        "by-hand",
        PAIR,
        "watch-ddp",
        "model.pt",
    )
    done = run_python("-m", "paceline", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "where a step went" in done.stdout
    folder = the_run(tmp_path)
    assert "by-hand" in folder.path.name
    assert read_config(folder).settings.strategy.startswith("ddp")
    assert [one.steps for one in read_summary(folder).totals] == [12, 12]


def exchanges(events: Path) -> list[dict[str, float]]:
    """Seconds by kind of each step."""
    return [
        {
            kind: sum(span.length for span in one.spans if span.kind == kind)
            for kind in ("communicate", "wait")
        }
        for one in read_events(events)
        if one.is_step
    ]


def test_exchanges_are_split_by_the_shortest_without_waiting(tmp_path: Path) -> None:
    store = dist.HashStore()
    lengths = [ExchangeLengths(store, rank, 2) for rank in range(2)]
    ledgers = [TimeLedger(), TimeLedger()]
    writers = [EventWriter(tmp_path / f"{rank}.jsonl") for rank in range(2)]
    recorders = [WatchRecorder(*one, Moments()) for one in zip(lengths, writers, ledgers, strict=True)]
    for step in range(1, 4):
        for seconds, recorder in zip((0.02, 0.005), recorders, strict=True):
            recorder.mark("backward")
            time.sleep(seconds)
            recorder.exchanged(8, 8)
            recorder.count(1)
            recorder.close(step)
    for one, written in ((1, 0), (0, 3), (1, 3)):  # of what rank 0 took, rank 1 knows nothing yet
        recorders[one].settle()
        assert ledgers[one].totals().steps == written
    totals = [ledger.totals() for ledger in ledgers]
    assert [one.steps for one in totals] == [3, 3]
    for early, late in zip(*(exchanges(tmp_path / f"{rank}.jsonl") for rank in range(2)), strict=True):
        assert early["communicate"] == pytest.approx(late["communicate"], abs=1e-9)
        assert min(early["wait"], late["wait"]) == 0
        assert early["wait"] + late["wait"] > 0
    recorders[0].mark("backward")
    recorders[0].exchanged(8, 8)
    recorders[0].close(4)
    begun = time.perf_counter()
    recorders[0].finish(patience=0.05)  # rank 1 is gone
    assert time.perf_counter() - begun < 1
    assert ledgers[0].totals().seconds["communicate"] > 0
    for writer in writers:
        writer.close()


def test_a_record_is_written_when_the_store_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths, ledger = ExchangeLengths(dist.HashStore(), 1, 2), TimeLedger()

    def gone(_: object) -> None:
        raise dist.DistNetworkError("the host of the store has ended")

    monkeypatch.setattr(lengths, "post", gone)
    with EventWriter(tmp_path / "events.jsonl") as events:
        recorder = WatchRecorder(lengths, events, ledger, Moments())
        for step in range(1, 3):
            recorder.exchanged(8, 8)
            recorder.count(1)
            recorder.close(step)
        recorder.finish(patience=5.0)
    assert [one.step for one in read_events(tmp_path / "events.jsonl") if one.is_step] == [1, 2]


def loop(optimizer: torch.optim.Optimizer, model: nn.Module, steps: int = 8) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()


def watched_model(monkeypatch: pytest.MonkeyPatch, home: Path) -> tuple[nn.Module, torch.optim.Optimizer]:
    monkeypatch.setattr(ScriptProcess, "current", None)
    monkeypatch.chdir(home)
    model = nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_watching_stops_and_starts_again_in_another_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = watched_model(monkeypatch, tmp_path)
    for _ in range(2):
        watching = paceline.watch(model, optimizer)
        with pytest.raises(UsageError, match="twice"):
            paceline.watch(model, optimizer)
        loop(optimizer, model)
        watching.stop()
        loop(optimizer, model, 3)
    found = [read_summary(RunFolder(path)) for path in (tmp_path / "runs").iterdir()]
    assert [(one.steps, one.samples) for one in found] == [(8, 32)] * 2
    assert not model._forward_pre_hooks


def test_backward_is_one_however_often_it_is_called_and_torchs_own_again_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpointing calls the model and backward again inside of backward; an evaluation belongs to no step."""
    original = torch.autograd.backward
    model, optimizer = watched_model(monkeypatch, tmp_path)
    watching = paceline.watch(model, optimizer)
    for _ in range(3):
        inputs = torch.ones(4, 2, requires_grad=True)
        outputs = torch.utils.checkpoint.checkpoint(model, model(inputs).expand(4, 2), use_reentrant=True)
        outputs.mean().backward(retain_graph=True)
        outputs.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model(inputs)
    replaced = torch.autograd.backward
    watching.stop()
    assert torch.autograd.backward is original is not replaced
    records = list(read_events(the_run(tmp_path).events(0)))
    kinds = [[span.kind for span in one.spans] for one in records if one.is_step]
    assert kinds[1:] == [["data", "forward", "backward", "backward", "apply"]] * 2
    assert [one.samples for one in records if one.is_step] == [4] * 3
    assert any(span.kind == "evaluate" for one in records if not one.is_step for span in one.spans)


def kinds_of_steps(home: Path) -> list[list[str]]:
    records = read_events(the_run(home).events(0))
    return [[span.kind for span in one.spans] for one in records if one.is_step]


def test_a_backward_that_fails_does_not_end_up_in_later_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where backwards in each other were miscounted, no later one would end."""
    model, optimizer = watched_model(monkeypatch, tmp_path)
    watching = paceline.watch(model, optimizer)
    loop(optimizer, model, 1)
    loss = model(torch.ones(4, 2)).sum()
    handle = model.weight.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss.backward()
    handle.remove()
    loop(optimizer, model, 3)
    watching.stop()
    _, failed, *others = kinds_of_steps(tmp_path)
    assert failed == ["data", "forward", "backward"] * 2 + ["apply"]
    assert others == [["data", "forward", "backward", "apply"]] * 2


def test_of_a_backward_that_is_not_of_the_model_nothing_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = watched_model(monkeypatch, tmp_path)
    watching = paceline.watch(model, optimizer)
    for _ in range(3):
        torch.ones(2, requires_grad=True).sum().backward()
        loop(optimizer, model, 1)
    watching.stop()
    assert kinds_of_steps(tmp_path)[1:] == [["data", "forward", "backward", "apply"]] * 2


def test_a_compiled_model_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks are compiled with the model, and leave the compiler before they note anything."""
    model, optimizer = watched_model(monkeypatch, tmp_path)
    watching = paceline.watch(model, optimizer)
    loop(optimizer, torch.compile(model, backend="eager"), 5)
    watching.stop()
    assert kinds_of_steps(tmp_path)[1:] == [["data", "forward", "backward", "apply"]] * 4
    assert read_summary(the_run(tmp_path)).totals[0].samples == 20


def test_records_are_made_while_a_script_makes_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this failed, what is noted would fill the memory of a script that calls its model and never steps."""
    monkeypatch.setattr("paceline.loop.watch.SETTLE_EVERY", 0.0)
    model, optimizer = watched_model(monkeypatch, tmp_path)
    watching = paceline.watch(model, optimizer)
    for _ in range(5):
        model(torch.ones(4, 2))
    assert sum(1 for _ in watching._steps._moments.take()) == 1
    watching.stop()


def test_a_step_is_predicted_from_the_record_of_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parameters are the script's own, and so are the times; what it needs of memory nobody knows."""
    model, optimizer = watched_model(monkeypatch, tmp_path)
    watching = paceline.watch(model, optimizer)
    loop(optimizer, model, 20)
    watching.stop()
    folder = the_run(tmp_path)
    request = PredictRequest(times=folder.path, network="1gbit", workers=(1, 2))
    alone, pair = predict(request).series[0].rows
    step = read_summary(folder).totals[0].typical
    assert alone.step == pytest.approx(step.total, rel=0.01)
    assert (pair.batch, pair.sent, pair.memory) == (4, 4 * (3 + CONTROL), None)
    with pytest.raises(UsageError, match="cannot be compared"):
        predict(replace(request, memory="1GB"))
    assert run_python("-m", "paceline", "train", "--resume", str(folder.path), cwd=tmp_path).returncode == 2


def test_what_goes_wrong_in_watching_does_not_end_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").write_text("no folder")
    model, optimizer = watched_model(monkeypatch, tmp_path)
    before = model.weight.clone()
    paceline.watch(model, optimizer)
    loop(optimizer, model)
    assert not torch.equal(model.weight, before)
    said = capsys.readouterr().err
    assert said.count("paceline.watch has stopped") == 1
    assert "is not a folder" in said


@pytest.mark.parametrize("named", [{"strategy": "local-sgd"}, {"codec": "int8"}])
def test_what_the_command_line_names_and_watching_does_not_use_is_refused(
    named: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = watched_model(monkeypatch, tmp_path)
    process = ScriptProcess.here()
    vars(process).update(named)
    with pytest.raises(UsageError, match="only measures"):
        paceline.watch(model, optimizer)
    vars(process).update(strategy="none", codec=None)
    paceline.watch(model, optimizer)


def test_an_optimizer_that_computes_gradients_itself_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = watched_model(monkeypatch, tmp_path)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(4, 2)).pow(2).sum()
        loss.backward()
        return loss

    watching = paceline.watch(model, optimizer)
    for _ in range(3):
        optimizer.step(closure)
    watching.stop()
    (path,) = (tmp_path / "runs").iterdir()
    steps = [one for one in read_events(RunFolder(path).events(0)) if one.is_step]
    assert [one.spans[0].kind for one in steps[1:]] == ["data"] * 2
    assert all("backward" in {span.kind for span in one.spans} for one in steps)


def test_what_a_script_does_by_itself_can_be_recorded_and_not_be_chosen() -> None:
    for name in WATCHED:
        assert name not in STRATEGIES
        with pytest.raises(UsageError, match="what a script does by itself"):
            check_settings(script_settings("s.py", name, "identity", (8, 8)))
    assert observe(build_strategy("ddp"), 2, 1.0, "ddp") == observe(build_strategy("all-reduce"), 2, 1.0, "")
    with pytest.raises(UsageError, match="not known"):
        observe(build_strategy("own"), 2, 1.0, "own")


def test_a_worker_that_alone_is_watched_is_told_so_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.loop.store_comm.AT_END", 0.05)
    comm = StoreComm(dist.HashStore(), 0, 2, patience=0.05)
    with pytest.raises(UsageError, match="rank 1 did not train a watched model"):
        comm.exchange("here")
    comm.is_over = True
    assert comm.exchange("what rank 0 did")[0] == "what rank 0 did"
