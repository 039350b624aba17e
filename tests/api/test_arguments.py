"""Arguments of every function of ``import paceline``: what is taken, what it becomes, and what is refused."""

import ast
import inspect
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import paceline
from paceline.api.arguments import naming_arguments
from paceline.cli.main import main
from recorded_runs import GOLDEN

CLUSTER = "hosts=2,bandwidth=1 Gbit/s,latency=50 us,forward=1 ms,backward=2 ms"
PREDICTED = {"device": "v100", "network": "1gbit", "workers": 2}
SIMULATED = {"cluster": CLUSTER, "model": "mlp", "iterations": 2, "gradients": False}
NAN = float("nan")
BATCH = torch.zeros(8, 784)


@naming_arguments
def taken(
    first: int | None = 7,
    /,
    *,
    count: int | None = None,
    rate: float | None = None,
    counts: str | int | tuple[int, ...] | None = None,
    flag: bool = True,
    thing: "str | Unknown | list[str] | None" = None,  # type: ignore[name-defined]  # noqa: F821
    path: str | Path = "here",
) -> list[object]:
    return [first, count, rate, counts, flag, thing, path]


def mistake_of(function, *args, **kwargs):
    with pytest.raises(paceline.UsageError) as caught:
        function(*args, **kwargs)
    assert len(str(caught.value)) < 260
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_numbers_become_what_the_annotation_says():
    """If this failed, 1e6 samples or a number of numpy's would crash deep inside."""
    found = taken(np.int64(3), count=1e6, rate=np.float32(0.5))
    assert found[:3] == [3, 1_000_000, 0.5]
    assert [type(one) for one in found[:3]] == [int, int, float]
    assert type(taken(rate=1)[2]) is float


def test_none_is_the_default_of_every_argument():
    usual = [7, None, None, None, True, None, "here"]
    assert taken(None, count=None, flag=None, path=None) == usual == taken()
    same = paceline.predict("mlp", layers=None, progress=None, scaling=None, **PREDICTED)
    assert same.rows == paceline.predict("mlp", **PREDICTED).rows


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"count": True}, "count=True must be a whole number"),
        ({"count": math.inf}, "count=inf must be a whole number"),
        ({"count": 10**5000}, "count=<int> must be a whole number"),
        ({"count": BATCH}, "count=<Tensor of shape (8, 784)> must be a whole number"),
        ({"rate": NAN}, "rate=nan must be a number"),
        ({"flag": 1}, "flag=1 must be True or False"),
        ({"thing": 3}, "thing=3 must be text, an object (Unknown)"),
        ({"path": b"x"}, "path=b'x' must be text or a path"),
    ],
)
def test_values_of_other_types_are_refused(asked, says):
    assert says in mistake_of(taken, **asked)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"scaling": "Strong"}, "scaling='Strong' must be 'weak' or 'strong'; did you mean 'strong'?"),
        ({"cost_model": "x"}, "cost_model='x' must be 'paceline' or 'paleo'"),
        ({"network": True}, "network=True must be text or a number, such as '25gbit'"),
        ({"network": NAN}, "network=nan must be text or a number"),
        ({"network": 1e300}, "network=1e+300 is out of range: bytes a second must be more than 0"),
        ({"network": ["25gbit"]}, "network=['25gbit'] must be text or a number"),
        ({"workers": b"1"}, "workers=b'1' must be text, a whole number or a list of whole numbers"),
        ({"layers": "yes"}, "layers='yes' must be True or False"),
        ({"epochs": 1.5, "samples": 10}, "epochs=1.5 must be a whole number"),
        ({"per_host": 1.5}, "per_host=1.5 must be a whole number"),
        ({"batch_size": "32"}, "batch_size='32' must be a whole number; leave out the quotes"),
        ({"price": "3.06"}, "price='3.06' must be a number; leave out the quotes"),
        ({"device": 3}, "device=3 must be text"),
        ({"precision": ""}, "unknown precision ''; choose one of: bf16"),
        ({"precision": 16}, "precision=16 must be text"),
        ({"servers": True}, "servers=True must be a whole number"),
        ({"cluster": 3}, "cluster=3 must be text"),
        ({"strategy": []}, "strategy=[] is empty: name at least one"),
        ({"codec": ()}, "codec=() is empty: name at least one"),
        ({"strategy": ["ps", 3]}, "strategy=['ps', 3] must be text, an object (Strategy) or a list"),
        ({"input": BATCH}, "input=<Tensor of shape (8, 784)> is not the shape of one sample"),
    ],
)
def test_a_prediction_refuses(asked, says):
    assert says in mistake_of(paceline.predict, "mlp", **PREDICTED | asked)


def test_a_prediction_takes_numbers_of_numpy_s():
    asked = {"device": "v100", "network": "1gbit", "epochs": 3, "samples": 1000}
    found = paceline.predict("mlp", workers=[1, 4], batch_size=8, **asked)
    same = {"workers": [np.int64(1), 4.0], "batch_size": np.int64(8), "samples": 1e3}
    assert paceline.predict("mlp", **asked | same).rows == found.rows
    assert paceline.predict("mlp", workers=np.int64(4), batch_size=8, **asked).rows == found.rows[1:]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"gradients": "no"}, "gradients='no' must be True or False"),
        ({"iterations": NAN}, "iterations=nan must be a whole number"),
        ({"buffers": "x"}, "buffers='x' must be 'average' or 'rank0'"),
        ({"scale_lr": "x"}, "scale_lr='x' must be 'linear', 'sqrt' or 'none'"),
        ({"recipe": 3}, "recipe=3 must be text"),
        ({"seed": 1.5}, "seed=1.5 must be a whole number"),
        ({"slow": {1: "b"}}, "slow={1: 'b'} must be a dict of whole numbers to numbers"),
        ({"slow": {"a": 2}}, "slow={'a': 2} must be a dict of whole numbers to numbers"),
        ({"slow": [(1, 2)]}, "slow=[(1, 2)] must be a dict of whole numbers to numbers"),
        ({"servers": True}, "servers=True must be a whole number"),
        ({"strategy": ["all-reduce"]}, "strategy=['all-reduce'] must be text or an object (Strategy)"),
        ({"cluster": 3}, "cluster=3 must be text or an object (Cluster)"),
        ({"batch_size": "9" * 5000}, "9...: write a whole number, or one per worker"),
        ({"scenario": "x.toml"}, "unknown option 'scenario'"),
    ],
)
def test_a_simulation_refuses(asked, says, tmp_path):
    assert says in mistake_of(paceline.simulate, **{"runs": tmp_path} | SIMULATED | asked)
    assert list(tmp_path.iterdir()) == []


def test_a_simulation_keeps_numbers_as_its_record_has_them(tmp_path):
    """If this failed, a run with clip_norm=1 would be recorded and could not be read again."""
    asked = {"clip_norm": 1, "seed": np.int64(3), "lr": np.float64(0.3), "slow": {1: 2}}
    run = paceline.simulate(runs=tmp_path, **SIMULATED, **asked)
    settings = paceline.load_run(run.value.folder.path).value.config.settings
    assert (settings.seed, settings.slow, settings.job.clip_norm) == (3, {1: 2.0}, 1.0)
    assert settings.job.optimizer.startswith("sgd:lr=0.3,")
    goal = {"gradients": True, "target_accuracy": 1}
    assert paceline.simulate(runs=tmp_path, **SIMULATED | goal).value.summary.final


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: paceline.plan("mlp", samples=9, hardware="a100", budget="100"),
            "budget='100' must be a num",
        ),
        (lambda: paceline.explain("ring", op=3), "op=3 must be text"),
        (lambda: paceline.explain("ring", workers="4"), "workers='4' must be a whole number; leave out"),
        (lambda: paceline.explain("ring", length="3"), "length='3' must be a whole number"),
        (
            lambda: paceline.explain("ring", values=[1, 2]),
            "a list of lists of numbers, such as [[5, 2], [3, 8]]",
        ),
        (lambda: paceline.explain(None), "schedule=None must be text"),
        (lambda: paceline.load_run(None), "path=None must be text or a path"),
        (lambda: paceline.load_sweep(None), "path=None must be text or a path"),
        (lambda: paceline.report(GOLDEN / "served", out=3), "out=3 must be text or a path"),
        (lambda: paceline.simulate(3), "scenario=3 must be text or a path"),
        (lambda: paceline.bench_scaling(workers=[]), "workers=[] is empty: name at least one"),
        (lambda: paceline.bench_batch(batch_size=[]), "batch_size=[] is empty: name at least one"),
        (lambda: paceline.bench_convergence(strategy=[]), "strategy=[] is empty: name at least one"),
        (lambda: price(element=NAN), "element=nan must be a whole number"),
        (lambda: price(element=1.5), "element=1.5 must be a whole number"),
        (lambda: paceline.calibrate("tabel"), "did you mean 'table'?"),
        (lambda: paceline.calibrate("record"), "calibrate('record') needs source: the folder of a run"),
        (lambda: paceline.calibrate("machine", "x"), "calibrate('machine') takes no source; leave it out"),
        (
            lambda: paceline.calibrate("device", start="4x8"),
            "start has no place in calibrate('device'), only in",
        ),
    ],
)
def test_other_functions_refuse(call, says):
    assert says in mistake_of(call)


def price(**asked):
    return paceline.price_all_reduce("ring", "1 MB", cluster=CLUSTER, **asked)


def test_calibrate_measures_all_where_no_task_is_given(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "paceline.api.calibrate.run_json", lambda words, given, show: asked.append(words) or {}
    )
    assert str(paceline.calibrate(None, None, seconds=60)) == ""
    assert asked == [["calibrate", "machine"]]


def test_a_damaged_file_is_a_mistake_as_for_the_command(tmp_path, capsys):
    """If this failed, Python would raise an exception that nobody can import."""
    run = tmp_path / "run"
    shutil.copytree(GOLDEN / "all-reduce", run)
    (run / "metrics.jsonl").write_text("torn\n")
    said = mistake_of(paceline.load_run, run)
    assert said.endswith("; use a record that is whole")
    assert main(["report", str(run)]) == 2
    assert capsys.readouterr().err == f"paceline: {said}\n"


class Net(nn.Module):
    def __init__(self, sizes=(784, 10)):
        super().__init__()
        self.layer = nn.Linear(*sizes)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize("make", [Net, lambda: Net()], ids=["class", "function"])
@pytest.mark.parametrize("batch", [BATCH, {"x": BATCH}], ids=["tensor", "dict"])
def test_what_makes_a_module_is_fed_a_batch(make, batch):
    step = paceline.predict(make, input=batch, **PREDICTED).rows[0]["step"]
    assert step == paceline.predict(Net(), input=batch, **PREDICTED).rows[0]["step"]
    targets = (BATCH, torch.zeros(8, 10))
    assert paceline.predict(make, input=targets, loss=nn.MSELoss(), **PREDICTED).rows


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: 3, "makes no nn.Module but a int"),
        (lambda: Net((3, "x")), "makes no module without memory: it raised TypeError"),
    ],
)
def test_what_makes_no_module_is_refused_in_a_short_sentence(make, says):
    assert says in mistake_of(paceline.predict, make, input=BATCH, **PREDICTED)


def test_a_calibration_prints_what_the_command_prints(tmp_path, monkeypatch, capsys):
    table = str(Path("examples/resnet18-cifar10-table.toml").resolve())
    monkeypatch.chdir(tmp_path)
    found = paceline.calibrate("table", table, start="4x128", show=False)
    assert main(["calibrate", "table", table, "--from", "4x128"]) == 0
    assert capsys.readouterr().out == f"{found}\n"
    alone = {"cluster": CLUSTER.replace("hosts=2", "hosts=1"), "iterations": 5}
    run = paceline.simulate(**SIMULATED | alone)
    found = paceline.calibrate("record", run, out="python.json", threads=1, show=False)
    words = ["calibrate", "record", str(run.value.folder.path), "--threads", "1", "--out", "command.json"]
    assert main(words) == 0
    assert capsys.readouterr().out.replace("command.json", "python.json") == f"{found}\n"


def test_a_dictionary_is_what_is_read_from_json():
    """If this failed, a document that was saved and read again would differ from to_dict()."""
    results = (
        paceline.predict("mlp", **PREDICTED),
        paceline.explain("ring"),
        paceline.compare(GOLDEN / "all-reduce", GOLDEN / "served"),
        paceline.load_run(GOLDEN / "served"),
    )
    assert all(found.to_dict() == json.loads(found.to_json()) for found in results)


def test_type_checkers_take_no_method_of_a_strategy_for_abstract_that_is_not():
    """They do where a body of a Protocol only raises NotImplementedError; typed_use.py is checked by make lint."""
    (kind,) = ast.parse(inspect.getsource(paceline.Strategy)).body
    abstract = []
    for method in kind.body:
        if isinstance(method, ast.FunctionDef) and not re.search("abstract", ast.dump(method)):
            body = [one for one in method.body if not isinstance(one, ast.Expr)]
            abstract += [method.name] if "NotImplementedError" in ast.unparse(body[:1]) else []
    assert abstract == []
