"""A script's own loop under ``paceline.distribute``: it ends as the same loop by hand does."""

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from command import run_paceline, run_python
from loop.pairs import run_ranks
from paceline.errors import RunFailed, UsageError
from paceline.loop.distribute import distribute
from paceline.loop.process import ScriptProcess
from paceline.loop.replica import LoopReplica, LoopRun
from paceline.loop.sharding import shard
from paceline.loop.watch import watch
from paceline.records.events import read_events
from paceline.records.folder import RunFolder
from paceline.runtimes.flat import own_memory

PAIR = str(Path(__file__).parent / "loop_pair.py")
EXAMPLE = str(Path(__file__).parents[2] / "examples" / "plain_loop.py")


def trained(how: str, tmp_path: Path) -> dict[str, torch.Tensor]:
    out = tmp_path / "model.pt"
    if how.startswith("run "):
        run_paceline(*how.split(), PAIR, "launched", str(out), cwd=tmp_path)
        return torch.load(out)
    if how == "plain" or how.startswith("one:"):
        done = run_python(PAIR, how.removeprefix("one:"), str(out), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    else:
        run_ranks(PAIR, how, str(out), cwd=tmp_path)
    return torch.load(out)


@pytest.mark.parametrize(
    ("ours", "by_hand", "within"),
    [
        ("all-reduce", "ddp", 1e-6),
        ("all-reduce:bucket=64B,first_bucket=64B", "ddp", 1e-6),
        ("local-sgd:period=4", "average", 1e-6),
        ("all-reduce+half", "ddp", 0.01),
        ("run --strategy local-sgd:period=4", "average", 1e-6),
        ("run --codec half", "ddp", 0.01),
        ("one:all-reduce", "plain", 0.0),
        ("one:diloco:period=4,outer_lr=1,outer_momentum=0", "plain", 1e-6),
    ],
)
def test_a_loop_ends_with_the_parameters_of_the_loop_by_hand(
    ours: str, by_hand: str, within: float, tmp_path: Path
) -> None:
    """With accumulation, clipping, a scheduler, two groups, and parameters that are frozen or not used."""
    mine, theirs = trained(ours, tmp_path), trained(by_hand, tmp_path)
    for name, value in theirs.items():
        assert (mine[name] - value).abs().max().item() <= within, name


def test_a_run_of_a_script_is_recorded_and_can_be_compared(tmp_path: Path) -> None:
    shown = run_ranks(EXAMPLE, "--epochs", "1", cwd=tmp_path)[0]
    assert "plain_loop.py (2,410 parameters), 2 workers x batch 16, all-reduce" in shown
    assert "45 steps per worker" in shown
    assert "where a step went" in shown
    (folder,) = (tmp_path / "runs").iterdir()
    assert {"config.json", "summary.json", "trace.json.gz", "events"} <= {
        one.name for one in folder.iterdir()
    }
    for command in ("compare", "report"):
        done = run_python("-m", "paceline", command, str(folder), str(folder), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    again = run_python("-m", "paceline", "train", "--resume", str(folder), cwd=tmp_path)
    assert again.returncode == 2
    assert "is a run of the script plain_loop.py" in again.stderr


AGAIN = """
import torch
import paceline
for _ in range(2):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    model[1].eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with paceline.distribute(model, optimizer) as worker:
        for trained in (False, True):
            if trained:
                model(torch.ones(4, 2)).sum().backward()
                optimizer.step()
            try:
                with worker.central_model() as central:
                    assert not any(one.training for one in central.modules())
                    raise LookupError
            except LookupError:
                print([one.training for one in model.modules()])
"""


def test_a_script_may_train_twice_and_evaluate_where_a_part_is_frozen(tmp_path: Path) -> None:
    (tmp_path / "again.py").write_text(AGAIN)
    done = run_python("again.py", cwd=tmp_path, env={"TMPDIR": str(tmp_path)})
    assert done.stdout.splitlines() == ["[True, True, False]"] * 4, done.stderr
    assert not [*tmp_path.glob("paceline-*")], "a folder of a run that nobody asked for is left"


def test_steps_are_kept_where_the_workers_cannot_end_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(_: LoopRun) -> None:
        raise RunFailed("rank 1 is gone")

    monkeypatch.setattr(ScriptProcess, "current", None)
    monkeypatch.setattr(LoopRun, "settle", fail)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = distribute(model, optimizer)
    ScriptProcess.here().runs = tmp_path
    for _ in range(3):
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
    with pytest.raises(RunFailed, match="rank 1 is gone"):
        worker.close()
    (folder,) = tmp_path.iterdir()
    assert [one.step for one in read_events(RunFolder(folder).events(0)) if one.is_step] == [1, 2, 3]


@pytest.mark.parametrize(("code", "ends"), [(None, True), (0, True), (1, False)])
def test_a_script_that_leaves_with_a_code_of_zero_has_not_failed(
    code: int | None, ends: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ScriptProcess, "current", None)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with suppress(SystemExit), distribute(model, optimizer):
        ScriptProcess.here().runs = tmp_path
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
        sys.exit(code)
    (folder,) = tmp_path.iterdir()
    assert RunFolder(folder).summary.exists() is ends


def test_a_strategy_that_a_script_cannot_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptProcess, "current", None)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for spec, why in (
        ("ssp", "servers"),
        ("sma:learners=auto", "finds the number"),
        ("sma:learners=2,compute=together", "traced"),
        ("fedavg", "clients"),
    ):
        with pytest.raises(UsageError, match=why):
            distribute(model, optimizer, strategy=spec)


@pytest.mark.parametrize("call", [distribute, watch])
def test_a_model_and_an_optimizer_in_the_wrong_order_are_refused(
    call: Callable[[nn.Module, torch.optim.Optimizer], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptProcess, "current", None)
    model: Any = nn.Linear(2, 1)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UsageError, match=r"a SGD is given in place of a torch\.nn\.Module"):
        call(optimizer, model)
    with pytest.raises(UsageError, match=r"a Linear is given in place of a torch\.optim\.Optimizer"):
        call(model, model)


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    with pytest.raises(UsageError, match="not the model's"):
        LoopReplica(nn.Linear(2, 1), torch.optim.SGD(nn.Linear(2, 1).parameters()), 0, 1, own_memory)


def test_a_model_without_parameters_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptProcess, "current", None)
    with pytest.raises(UsageError, match="not the model's"):
        distribute(nn.Identity(), torch.optim.SGD(nn.Linear(2, 1).parameters()))


def test_workers_get_equal_parts_of_a_loader() -> None:
    loader = torch.utils.data.DataLoader(torch.arange(11), batch_size=2, shuffle=True)
    parts = [
        torch.cat([*shard(loader, rank, 3, torch.Generator().manual_seed(5))]).tolist() for rank in range(3)
    ]
    assert [len(part) for part in parts] == [3, 3, 3]
    assert len({*parts[0], *parts[1], *parts[2]}) == 9


OWN = """
from dataclasses import dataclass
import torch
import paceline

@dataclass(frozen=True, kw_only=True)
class Baton(paceline.Strategy):
    period: int = 4
    sync_point = paceline.SyncPoint.EVERY_STEP

    def worker(self, me):
        while True:
            yield paceline.Gradient()
            yield paceline.Apply()
            if me.clock % self.period == 0:
                yield paceline.AllReduce(me.params)

    def central(self, me):
        return me.params
        yield

torch.manual_seed(1)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
worker = paceline.distribute(model, optimizer, strategy=Baton(period=2))
for _ in range(5):
    model(torch.ones(4, 3)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(worker.state_dict()["strategy"], model.weight.tolist())
"""


def test_a_strategy_of_the_script_s_own_is_an_object(tmp_path: Path) -> None:
    """Its class is in __main__, where no import path leads; one worker trains as the script alone would."""
    (tmp_path / "script.py").write_text(OWN)
    plain = OWN.replace("worker = paceline.distribute(model, optimizer, strategy=Baton(period=2))\n", "")
    (tmp_path / "plain.py").write_text(plain.replace('worker.state_dict()["strategy"]', '"Baton(period=2)"'))
    printed = [run_python(name, cwd=tmp_path) for name in ("script.py", "plain.py")]
    assert printed[0].returncode == 0, printed[0].stderr
    assert printed[0].stdout == printed[1].stdout
    assert printed[0].stdout.startswith("Baton(period=2) [[")


@pytest.mark.parametrize(
    ("count", "said"), [(2, "the other learner's were not"), (3, "the other 2 learners' were not")]
)
def test_learners_whose_gradients_are_left_are_counted(count: int, said: str) -> None:
    replica = Mock(versions=[2] + [1] * (count - 1))
    with pytest.raises(UsageError, match=said):
        LoopReplica.check_changed_alike(replica, [1] * count)
