"""``paceline.predict`` and ``paceline.compare`` from Python: what they take, what they return, what they refuse."""

import copy
import importlib
import json
import sys
import types
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn

import paceline
from paceline.cli.main import main
from recorded_runs import GOLDEN

MLP = nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
HERE = {"device": "v100", "network": "1gbit", "workers": 2}


@dataclass(frozen=True, kw_only=True)
class Baton(paceline.Strategy):
    """Of these tests: an average every few steps."""

    period: int = 4

    @property
    def sync_point(self):
        return paceline.SyncPoint.AFTER_ROUND

    def worker(self, me):
        while True:
            yield paceline.Gradient()
            yield paceline.Apply()
            if me.clock % self.period == 0:
                yield paceline.AllReduce(me.params)

    def central(self, me):
        return me.params
        yield


def test_the_command_prints_what_the_function_returns(capsys):
    words = [
        "predict",
        "mlp",
        "--input",
        "1x28x28",
        "--device",
        "v100",
        "--network",
        "1gbit",
        "--workers",
        "1,2",
    ]
    found = paceline.predict("mlp", input=(1, 28, 28), device="v100", network="1gbit", workers=[1, 2])
    assert main(words) == 0
    assert capsys.readouterr().out == f"{found}\n"
    assert main([*words, "--json"]) == 0
    document, same = json.loads(capsys.readouterr().out), json.loads(found.to_json())
    assert {**document, "made": ""} == {**same, "made": ""}


def test_a_module_is_predicted_as_the_same_model_by_name_and_its_weights_stay(capsys):
    module = importlib.import_module("paceline.jobs.models.small").Mlp(hidden=100)((1, 28, 28), 10)
    before = copy.deepcopy(module.state_dict())
    module.eval()
    one = paceline.predict(module, input=(1, 28, 28), **HERE)
    named = paceline.predict("mlp:hidden=100", input="1x28x28", classes=10, **HERE)
    assert one.rows[0]["step"] == pytest.approx(named.rows[0]["step"], rel=1e-9)
    assert not module.training
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert "cross entropy among 10 classes, which is assumed" in str(one)


def test_a_module_of_meta_tensors_is_never_given_memory():
    with torch.device("meta"):
        giant = nn.Sequential(nn.Linear(200_000, 200_000), nn.Linear(200_000, 10))  # 160 GB
    assert paceline.predict(giant, input=(200_000,), **HERE).value.parameters > 4e10


def test_examples_say_what_a_module_is_fed():
    images = torch.zeros(3, 1, 28, 28)
    by_shape = paceline.predict(MLP, input=(1, 28, 28), **HERE)
    by_batch = paceline.predict(MLP, input=images, **HERE)
    with_targets = paceline.predict(MLP, input=(images, torch.zeros(3, dtype=torch.int64)), **HERE)
    steps = {found.rows[0]["step"] for found in (by_shape, by_batch, with_targets)}
    assert len(steps) == 1
    regression = paceline.predict(MLP, input=(images, torch.zeros(3, 10)), **HERE)
    assert "the mean square of errors, which is assumed" in str(regression)


def test_a_loss_that_is_given_is_traced():
    seen = []

    def loss(outputs, targets):
        seen.append((tuple(outputs.shape[1:]), targets.dtype))
        return nn.functional.cross_entropy(outputs, targets)

    assert "which is assumed" in str(
        paceline.predict(MLP, input=(1, 28, 28), loss=loss, **HERE)
    )  # the targets
    assert (torch.Size([10]), torch.int64) in seen
    example = (torch.zeros(2, 1, 28, 28), torch.zeros(2, dtype=torch.int64))
    assert (
        "assumed" not in str(paceline.predict(MLP, input=example, loss=loss, **HERE)).partition("Level:")[2]
    )


def test_objects_stand_where_names_go(tmp_path, monkeypatch):
    """A strategy of one's own gives what its import path gives; so does one that no import would find."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "batons.py").write_text(
        f"import paceline\nfrom dataclasses import dataclass\n{_source(Baton)}"
    )
    imported = importlib.import_module("batons").Baton(period=2)
    local = types.new_class("Baton", (Baton,))(period=2)
    by_name = paceline.predict("mlp", strategy="batons:Baton:period=2", **HERE)
    by_object = paceline.predict("mlp", strategy=imported, **HERE)
    by_local = paceline.predict("mlp", strategy=local, **HERE)
    assert by_object.value.series[0].strategy == "batons:Baton:period=2"
    assert by_local.value.series[0].strategy == "Baton(period=2)"
    steps = {one.rows[0]["step"] for one in (by_name, by_object, by_local)}
    assert len(steps) == 1
    assert json.loads(by_local.to_json())["settings"]["strategies"] == ["Baton(period=2)"]


def _source(kind):
    import inspect

    return inspect.getsource(kind)


def test_a_job_is_predicted_as_an_object_and_as_the_function_that_makes_it():
    inputs = torch.zeros(64, 3)
    job = paceline.Job(
        name="lines",
        train=paceline.TensorData(inputs, inputs[:, :1]),
        model=lambda: nn.Linear(3, 1),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    found = [
        paceline.predict(job, **HERE),
        paceline.predict(job=job, **HERE),
        paceline.predict(job=lambda: job, **HERE),
    ]
    assert {one.value.name for one in found} == {"lines"}
    assert len({one.rows[0]["step"] for one in found}) == 1


def test_an_optimizer_is_taken_as_a_name_a_class_or_one_that_is_made():
    named = paceline.predict("mlp", optimizer="adam", **HERE)
    made = torch.optim.Adam(MLP.parameters(), lr=0.1)
    decayed = torch.optim.AdamW(MLP.parameters())  # whose defaults are more than its constructor takes
    for optimizer in (torch.optim.Adam, made, decayed, partial(torch.optim.Adam, lr=0.1)):
        other = paceline.predict("mlp", optimizer=optimizer, **HERE)
        assert other.rows[0]["memory_optimizer"] == pytest.approx(named.rows[0]["memory_optimizer"], rel=1e-3)


def test_numbers_in_si_mean_what_words_mean():
    words = paceline.predict("mlp", device="v100", network="25 Gbit/s", memory="16 GB", workers="1-2")
    numbers = paceline.predict("mlp", device="v100", network=25e9 / 8, memory=16e9, workers=range(1, 3))
    assert words.rows == numbers.rows


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"batch_size": 0}, "batch_size 0 is out of range"),
        ({"per_host": 0}, "per_host 0 is out of range"),
        ({"input": "3x"}, "input='3x' is not a shape"),
        ({"strategy": "spp"}, "did you mean 'ssp'?"),
        ({"codec": "int9"}, "did you mean 'int8'?"),
        (
            {"job": "a:b", "data": "digits"},
            "job='a:b' brings its own parts: leave out data, model and optimizer",
        ),
        ({"loss": max}, "leave it out"),
        ({"loss": "mse"}, "loss='mse' must be a function, such as nn.MSELoss()"),
    ],
)
def test_a_mistake_names_the_argument(asked, says):
    with pytest.raises(paceline.UsageError) as caught:
        paceline.predict("mlp", **HERE | asked)
    assert says in str(caught.value)
    assert "--" not in str(caught.value)


def test_one_score_a_sample_is_no_choice_among_classes():
    module = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    batch = (torch.ones(8, 4), torch.ones(8, dtype=torch.long))
    found = paceline.predict(module, input=batch, device="a100", workers=2)
    assert "the mean square of errors, which is assumed" in str(found)


def test_weights_are_no_module():
    with pytest.raises(paceline.UsageError, match=r"state_dict\(\) of a module, .* give the module itself"):
        paceline.predict(nn.Linear(1, 1).state_dict(), device="a100")


def test_a_module_without_an_input_is_refused():
    with pytest.raises(paceline.UsageError, match=r"give input, the shape of one sample"):
        paceline.predict(MLP, **HERE)


def test_a_result_converts_and_shows_itself(monkeypatch):
    found = paceline.predict(
        "mlp", device="v100", workers=[1, 2], strategy=["all-reduce", "local-sgd:period=8"]
    )
    assert [(row["strategy"], row["workers"]) for row in found.rows] == [
        *(("all-reduce", 1), ("all-reduce", 2)),
        *(("local-sgd:period=8", 1), ("local-sgd:period=8", 2)),
    ]
    assert all(not isinstance(value, dict | list) for row in found.rows for value in row.values())
    assert repr(found) == "<paceline Prediction, 4 rows; print() shows it>"
    page = found._repr_html_()
    assert page.count("<tr>") == 5
    assert "Fastest in samples a second" in page
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(paceline.UsageError, match="pip install pandas"):
        found.to_pandas()
    frames = types.SimpleNamespace(DataFrame=lambda rows: ("frame", rows))
    monkeypatch.setitem(sys.modules, "pandas", frames)
    assert found.to_pandas() == ("frame", list(found.rows))


def test_what_a_notebook_shows_is_escaped():
    rows = [{"name": "<script>", "value": 1.5}]
    result = paceline.StudyResult(value=1, rows=rows, document=dict, text=lambda: "a < b\n\nmore")
    assert result._repr_html_().startswith("<p>a &lt; b</p>")
    assert "<td>&lt;script&gt;</td><td>1.5</td>" in result._repr_html_()


def test_runs_and_predictions_are_loaded_and_compared(capsys):
    run = GOLDEN / "all-reduce"
    loaded = paceline.load_run(run)
    assert loaded.rows[-1]["accuracy"] == loaded.value.summary.final["accuracy"]
    assert str(loaded).startswith("ended at")
    assert loaded.to_dict()["summary"]["steps"] == loaded.value.summary.steps
    compared = paceline.compare(loaded, str(run))
    assert [row["workers"] for row in compared.rows] == [loaded.value.config.settings.workers] * 2
    assert main(["compare", str(run), str(run)]) == 0
    assert capsys.readouterr().out == f"{compared}\n"
    with_prediction = paceline.compare(loaded, paceline.predict("mlp", **HERE))
    assert with_prediction.value.sides[1].source == "prediction"
    with pytest.raises(paceline.UsageError, match="nothing to be compared with"):
        paceline.compare(run)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"size": -5}, "size=-5.0 is not a number of bytes"),
        ({"size": float("nan")}, "size=nan must be text or a number"),
        ({"size": "1 MB", "element": 0}, "element=0 is too small"),
    ],
)
def test_an_all_reduce_of_no_size_has_no_price(asked, says):
    with pytest.raises(paceline.UsageError, match=says):
        paceline.price_all_reduce("ring", cluster="hosts=2,bandwidth=1 Gbit/s,latency=50 us", **asked)
