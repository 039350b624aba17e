"""``paceline.simulate``, ``train``, ``bench_*`` and ``explain`` from Python, with jobs and strategies of one's own."""

import importlib
import json
import sys

import pytest
import torch
from test_predict_api import Baton
from torch import nn
from torch.utils.data import TensorDataset

import paceline
from paceline.cli.main import main
from paceline.errors import RunFailed
from paceline.jobs.build import build_job
from paceline.jobs.spec import JobSpec
from paceline.records.folder import RunFolder
from paceline.records.spans import StepBreakdown
from recorded_runs import made_up, totals

CLUSTER = "hosts=2,bandwidth=1 Gbit/s,latency=50 us,forward=1 ms,backward=2 ms"
SHORT = {"iterations": 6, "batch_size": 16, "model": "mlp", "checkpoint_every": "never"}
FILE = '''
from dataclasses import dataclass, replace
import paceline
from paceline import AllReduce, Apply, Gradient, Job, Strategy, SyncPoint, TensorData
import torch
from torch import nn
from torch.utils.data import TensorDataset


@dataclass(frozen=True, kw_only=True)
class Baton(Strategy):
    """An average every few steps."""

    period: int = 4
    sync_point = SyncPoint.EVERY_STEP

    def worker(self, me):
        while True:
            yield Gradient()
            yield Apply()
            if me.clock % self.period == 0:
                yield AllReduce(me.params, weight=me.samples_since_sync)

    def central(self, me):
        average = me.params.clone()
        yield AllReduce(average, weight=max(1, me.samples_since_sync))
        return average


def build():
    inputs = torch.linspace(-1, 1, 64)[:, None]
    return Job(
        name="lines",
        train=TensorData(inputs, 2 * inputs),
        model=lambda: nn.Linear(1, 1),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of a user's own, in the current folder."""
    (tmp_path / "my_lines.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("my_lines", None)
    yield importlib.import_module("my_lines")
    sys.modules.pop("my_lines", None)


def test_a_simulation_from_python_is_the_command_s(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = paceline.simulate(cluster=CLUSTER, strategy="local-sgd:period=2", **SHORT)
    assert capsys.readouterr() == ("", "")
    words = (
        "--strategy local-sgd:period=2 --iterations 6 --batch-size 16 --model mlp --checkpoint-every never"
    )
    assert main(["simulate", "--cluster", CLUSTER, *words.split(), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rows"] == run.to_dict()["rows"]
    assert document["summary"] == run.to_dict()["summary"]
    assert document.keys() == run.to_dict().keys()


def test_a_job_that_fails_ends_a_simulation_with_its_cause(tmp_path):
    """Not with a traceback, as a mistake in the job is the user's."""
    data = TensorDataset(torch.ones(8, 3), torch.zeros(8, dtype=torch.long))
    job = paceline.Job(
        name="bad",
        train=data,
        model=lambda: nn.Linear(4, 2),
        loss=nn.functional.cross_entropy,
        optimizer=torch.optim.SGD,
    )
    with pytest.raises(
        RunFailed, match=r"worker 0 failed at step 1: RuntimeError: mat1 and mat2 .*4x3 and 4x2"
    ):
        paceline.simulate(job=lambda: job, cluster=CLUSTER, batch_size=4, iterations=1, runs=tmp_path)


def test_objects_of_one_s_own_are_simulated_as_they_are(mine, tmp_path):
    """A job and a strategy that no other process could import give what their import paths give."""
    named = paceline.simulate(
        job="my_lines:build", strategy="my_lines:Baton:period=2", cluster=CLUSTER, batch_size=8, iterations=8
    )
    objects = paceline.simulate(
        job=mine.build(), strategy=mine.Baton(period=2), cluster=CLUSTER, batch_size=8, iterations=8
    )
    local = type("Baton", (mine.Baton,), {"__module__": "__main__"})(period=2)
    hidden = paceline.simulate(job=mine.build, strategy=local, cluster=CLUSTER, batch_size=8, iterations=8)
    assert named.rows == objects.rows == hidden.rows
    assert named.value.config.settings.strategy == objects.value.config.settings.strategy
    assert hidden.value.config.settings.strategy == "Baton(period=2)"
    assert len(paceline.compare(named, hidden).rows) == 2


def test_a_module_is_trained_as_a_copy(tmp_path):
    module = build_job(JobSpec(model="mlp")).model()
    before = [one.clone() for one in module.parameters()]
    optimizer = torch.optim.AdamW(module.parameters())
    run = paceline.simulate(cluster=CLUSTER, runs=tmp_path, optimizer=optimizer, **SHORT | {"model": module})
    assert run.rows[-1]["train_loss"] > 0
    assert all(torch.equal(one, other) for one, other in zip(before, module.parameters(), strict=True))


def test_a_run_without_evaluations_has_a_row_a_worker(tmp_path):
    """If this failed, the run of a script would be an empty table."""
    run = paceline.simulate(cluster=CLUSTER, gradients=False, runs=tmp_path, **SHORT)
    rows = paceline.load_run(run.value.folder.path).rows
    assert rows == run.rows
    assert [(row["rank"], row["steps"], row["samples"]) for row in rows] == [(0, 6, 96), (1, 6, 96)]
    assert (rows[0]["forward"], rows[0]["backward"]) == pytest.approx((1e-3, 2e-3))
    parts = ("data", "forward", "backward", "communicate", "wait", "apply", "other")
    assert rows[0]["typical_step"] == pytest.approx(sum(rows[0][part] for part in parts))
    assert rows[0]["sent"] > 0
    assert run.to_dict()["rows"] == []


def test_a_scenario_is_answered():
    with pytest.raises(paceline.UsageError, match="epochs has no place"):
        paceline.simulate("examples/master-six-workers.toml", epochs=2)
    with pytest.raises(paceline.UsageError, match="tensorboard has no place"):
        paceline.simulate("examples/master-six-workers.toml", tensorboard=True)
    answer = paceline.simulate("examples/master-six-workers.toml")
    assert answer.to_dict()["ask"] == "run"
    assert str(answer).startswith(answer.to_dict()["answer"])


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"batch_size": "1,2,3"}, "batch_size='1,2,3' gives 3 sizes for 2 workers"),
        ({"evaluate_every": "now"}, "'now' is not a value for evaluate_every"),
        ({"slow": "x"}, "slow='x': write RANK=FACTOR"),
        ({"horizon": "1 parsec"}, "horizon: '1 parsec' is not a time"),
        ({"job": "a:b"}, "job='a:b' brings its own parts, so model has no place"),
        ({"target_accuracy": 2.0}, "a target_accuracy of 2.0 must lie between 0 and 1"),
        ({"strategy": "local"}, "unknown strategy 'local'"),
        ({"workers": 0, "cluster": None}, "workers=0 is too small"),
        ({"epoch": 1}, "unknown option 'epoch'; did you mean 'epochs'? (see help(paceline.simulate))"),
        ({"worker": 1}, "unknown option 'worker'; did you mean 'workers'?"),
        ({"times": 3, "cluster": None}, "times=3 must be text, a path or what load_run returned"),
    ],
)
def test_mistakes_name_the_argument(asked, says, tmp_path):
    with pytest.raises(paceline.UsageError) as caught:
        paceline.simulate(**{"cluster": CLUSTER, "runs": tmp_path} | SHORT | asked)
    assert says in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_train_runs_a_job_and_a_strategy_of_one_s_own(mine, capsys):
    """In processes of their own, which import both by name; the record is the one that the command leaves."""
    run = paceline.train(job=mine.build, strategy=mine.Baton(period=2), epochs=2, batch_size=8, show=False)
    assert capsys.readouterr() == ("", "")
    assert run.value.summary.runtime == "live"
    assert run.value.config.settings.strategy == "my_lines:Baton:period=2"
    assert run.rows[1]["train_loss"] < run.rows[0]["train_loss"]
    assert "where a step went" in str(run)
    with pytest.raises(paceline.RunFailed, match="is nan in step 1"):
        paceline.train(job=_diverging(mine), epochs=2, show=False)


def _diverging(mine):
    with open("my_diverging.py", "w") as file:  # noqa: PTH123
        file.write(
            "from dataclasses import replace\nimport my_lines\n\n"
            "def build():\n    return replace(my_lines.build(), loss=lambda a, b: (a - b).sum() * float('nan'))\n"
        )
    return "my_diverging:build"


def test_what_other_processes_cannot_import_is_refused(mine):
    local = type("Baton", (Baton,), {"__module__": "__main__"})(period=2)
    for asked in ({"strategy": local}, {"job": mine.build()}, {"model": nn.Linear(1, 1)}):
        with pytest.raises(
            paceline.UsageError, match="put its class, or the function that makes it, at the top"
        ):
            paceline.train(show=False, **asked)


def test_mistakes_are_found_before_a_process_is_started(mine):
    with pytest.raises(paceline.UsageError, match=r"batch_size='1,2,3' gives 3 sizes") as caught:
        paceline.train(batch_size="1,2,3", show=False)
    assert "--" not in str(caught.value)
    with pytest.raises(
        paceline.UsageError, match=r"did you mean 'batch_size'\? \(see help\(paceline.train\)"
    ):
        paceline.train(batchsize=7, show=False)


@pytest.mark.parametrize("name", ["folder", "latest", "loaded"])
def test_times_are_those_of_a_folder_the_latest_run_or_a_loaded_one(name, tmp_path, monkeypatch):
    """If this failed, a run that can be compared and reported could not be predicted or simulated from."""
    monkeypatch.chdir(tmp_path)
    run = paceline.simulate(cluster=CLUSTER.replace("hosts=2", "hosts=1"), gradients=False, **SHORT)
    folder = run.value.folder.path
    monkeypatch.setattr("paceline.records.folder.latest_run", lambda _: RunFolder(folder))
    times = {"folder": str(folder), "latest": "latest", "loaded": run}[name]
    again = paceline.simulate(times=times, workers=2, gradients=False, **SHORT)
    assert again.value.summary.totals[0].typical.forward == pytest.approx(1e-3)
    assert paceline.predict(times=times, workers=1).rows[0]["step"] > 1e-3
    if name == "latest":
        assert main(["simulate", "--times", "latest", "--no-gradients", "--model", "mlp", "-i", "3"]) == 0


def test_a_plan_is_the_command_s(capsys):
    offer = "a100:price=2.5,network=25gbit,most=4"
    found = paceline.plan("mlp", samples=10**6, hardware=offer, strategy="all-reduce", codec="identity")
    words = ["plan", "mlp", "--samples", "1000000", "--hardware", offer, "--strategy", "all-reduce"]
    assert main([*words, "--codec", "identity"]) == 0
    assert capsys.readouterr().out == f"{found}\n"
    assert found.rows[0]["hardware"] == "a100 at 25gbit"
    with pytest.raises(paceline.UsageError, match=r"deadline: 'soon' is not a time"):
        paceline.plan("mlp", samples=10, hardware=offer, deadline="soon")


def test_hardware_is_text_or_a_list_of_texts():
    with pytest.raises(
        paceline.UsageError, match=r"hardware=\{'a100': 2\} is not .*: give text, such as 'a100:"
    ):
        paceline.plan("resnet50", hardware={"a100": 2})


def test_a_collective_is_explained(capsys):
    found = paceline.explain("ring", workers=3, op="max", values=[[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    assert main(["explain", "ring", "--workers", "3", "--op", "max", "--values", "1 2 3; 4 5 6; 7 8 9"]) == 0
    assert capsys.readouterr().out == f"{found}\n"
    assert found.value.result == (7.0, 8.0, 9.0)
    assert [row["round"] for row in found.rows] == [1, 2, 3, 4]
    with pytest.raises(paceline.UsageError, match="did you mean 'ring'"):
        paceline.explain("rong")


def test_a_benchmark_is_a_value():
    found = paceline.bench_collectives(sizes="1kB", only=["shm"], repeats=3)
    assert [(row["what"], row["size"], row["right"]) for row in found.rows] == [("shm", 1000, True)]
    assert "all results are right" in str(found)


def test_a_table_is_fitted():
    found = paceline.calibrate(
        "table",
        "examples/resnet18-cifar10-table.toml",
        start="4x128",
        collective="one-to-all",
        predict="8x512",
    )
    assert found.to_dict()["model"]
    assert any(row["collective"] == "one-to-all" for row in found.rows)


def test_a_page_is_made_of_runs_only():
    with pytest.raises(paceline.UsageError, match="what is of type int is in no folder"):
        paceline.report(3)


def test_a_page_is_made_of_a_loaded_run(tmp_path):
    run = paceline.simulate(cluster=CLUSTER, runs=tmp_path, **SHORT)
    page = paceline.report(run, out=tmp_path / "page.html")
    assert page.read_text().startswith("<!doctype html>")
    with pytest.raises(paceline.UsageError, match="which run"):
        paceline.report()


def test_a_script_s_run_without_an_end_is_not_resumed(tmp_path, monkeypatch):
    """If this failed, people would be sent to a command that refuses scripts."""
    script = made_up(tmp_path, [totals(StepBreakdown(forward=1e-3))], job=JobSpec(path="base.py")).config
    monkeypatch.setattr("paceline.studies.recorded.read_config", lambda _: script)
    with pytest.raises(
        paceline.UsageError, match=r"goes on, failed, or was killed; .* run the script again"
    ) as caught:
        paceline.load_run(tmp_path)
    assert "resume" not in str(caught.value)
