"""If these fail, a user's own strategy, model or optimizer works in one command and not in another."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch

from command import run_json, run_paceline, run_python
from paceline.cli.main import main
from paceline.records.tensors import read_tensors

PAGE = Path(__file__).parents[2] / "docs" / "add-a-strategy.md"
BATON = "baton.py:Baton:period=4"
SHORT = ("--strategy", BATON, "--workers", "2", "--batch-size", "16", "--checkpoint-every", "10 steps")

PARTS = """
from dataclasses import dataclass

import torch
from torch import Tensor, nn, optim

import paceline


class Net(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


@dataclass(frozen=True, kw_only=True)
class Plain:
    lr: float = 0.1

    def __call__(self, parameters):
        return optim.SGD(parameters, lr=self.lr)


@dataclass(frozen=True, kw_only=True)
class Halving:
    epochs: int = 1

    def __call__(self, epoch: float) -> float:
        return 0.5 ** (epoch // self.epochs)


@dataclass(frozen=True, kw_only=True)
class Points:
    width: int = 64

    def load(self, folder):
        points = torch.randn(96, 1, 1, self.width, generator=torch.Generator().manual_seed(0))
        labels = (points.sum(dim=(1, 2, 3)) > 0).long()
        train, test = (paceline.TensorData(points[part], labels[part]) for part in (slice(64), slice(64, 96)))
        return paceline.Images(train, test, classes=2)


@dataclass(frozen=True, kw_only=True)
class Every(paceline.Codec):
    n: int = 2
    sums = True

    def encode(self, vector: Tensor, context: paceline.Context) -> paceline.Message:
        return (vector[context.round % self.n :: self.n].clone(),)

    def decode(self, message: paceline.Message, context: paceline.Context) -> Tensor:
        out = message[0].new_zeros(context.layout.elements)
        out[context.round % self.n :: self.n] = message[0]
        return out


@dataclass(frozen=True, kw_only=True)
class Own(Every):
    def reduce(self, vector: Tensor, context: paceline.Context) -> paceline.Reduction:
        received = yield paceline.AllGather(vector)
        vector.copy_(sum(received))
        context.memory.zero_()


@dataclass(frozen=True, kw_only=True)
class Broken(Every):
    def encode(self, vector: Tensor, context: paceline.Context) -> paceline.Message:
        raise KeyError("no such table")


@dataclass(frozen=True, kw_only=True)
class NoDecoder(paceline.Codec):
    def encode(self, vector: Tensor, context: paceline.Context) -> paceline.Message:
        return (vector,)


class NoDataclass:
    pass


@dataclass(frozen=True, kw_only=True)
class NoStrategy:
    period: int = 1
"""


@pytest.fixture
def folder(tmp_path):
    """A user's folder, with the strategy that the page shows and a file of other parts."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    (source,) = [block for block in blocks if "class Baton" in block]
    (tmp_path / "baton.py").write_text(source)
    (tmp_path / "parts.py").write_text(PARTS)
    return tmp_path


def model_of(folder, document):
    return read_tensors(folder / document["run"]["folder"] / "model.safetensors")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_strategy_on_the_page_trains_live_as_in_virtual_time_and_resumes(folder):
    through = run_json("train", *SHORT, "--iterations", "30", cwd=folder)
    simulated = run_json("simulate", *SHORT, "--iterations", "30", cwd=folder)
    assert same(model_of(folder, through), model_of(folder, simulated))
    first = run_json("train", *SHORT, "--iterations", "10", cwd=folder)
    resumed = run_json("train", "--resume", first["run"]["folder"], "--iterations", "30", cwd=folder)
    assert same(model_of(folder, resumed), model_of(folder, through))
    config = json.loads((folder / first["run"]["folder"] / "config.json").read_text())
    assert config["settings"]["strategy"] == BATON
    assert [Path(file).name for file in config["code"]] == ["baton.py"]

    file = folder / "baton.py"
    file.write_text(file.read_text() + "# changed\n")
    refused = run_paceline(
        "train", "--resume", first["run"]["folder"], "--iterations", "40", check=2, cwd=folder
    )
    assert "baton.py and call Baton(), and that file is not what the run last ran with" in refused.stderr
    file.unlink()
    refused = run_paceline(
        "train", "--resume", first["run"]["folder"], "--iterations", "40", check=2, cwd=folder
    )
    assert "would call Baton() of 'baton.py', which is not found in" in refused.stderr


def test_a_model_an_optimizer_and_a_schedule_come_by_import_path(folder):
    options = ("--model", "parts.py:Net:width=8", "--optimizer", "parts:Plain:lr=0.2", "--iterations", "6")
    options = (*options, "--schedule", "parts.py:Halving", "--batch-size", "16", "--workers", "2")
    live, virtual = (run_json(command, *options, cwd=folder) for command in ("train", "simulate"))
    assert live["run"]["job"] == "digits-Net"
    assert same(model_of(folder, live), model_of(folder, virtual))
    assert model_of(folder, live)["layers.1.weight"].shape == (8, 64)


def test_a_data_set_comes_by_import_path(folder):
    words = ("--data", "parts.py:Points:width=9", "--model", "mlp:hidden=4")
    short = (*words, "--iterations", "6", "--batch-size", "8", "--workers", "2")
    live, virtual = (run_json(command, *short, cwd=folder) for command in ("train", "simulate"))
    assert live["run"]["job"] == "Points-mlp"
    assert model_of(folder, live)["1.weight"].shape == (4, 9)
    assert same(model_of(folder, live), model_of(folder, virtual))
    predicted = run_json(
        "predict", *words, "--device", "v100", "--network", "1gbit", "--workers", "2", cwd=folder
    )
    assert predicted["series"][0]["rows"][0]["step"] > 0


def test_a_codec_comes_by_import_path(folder):
    short = ("--model", "mlp", "--iterations", "20", "--workers", "2", "--codec")
    for codec in ("parts.py:Every:n=8", "parts:Own"):
        live, virtual = (run_json(command, *short, codec, cwd=folder) for command in ("train", "simulate"))
        assert live["run"]["codec"] == f"{codec} with error memory"
        assert same(model_of(folder, live), model_of(folder, virtual))
        config = json.loads((folder / live["run"]["folder"] / "config.json").read_text())
        assert [Path(file).name for file in config["code"]] == ["parts.py"]


def test_an_exception_in_a_codec_is_one_sentence_with_its_line(folder):
    words = ("train", "--model", "mlp", "--iterations", "20", "--codec", "parts.py:Broken")
    told = run_paceline(*words, cwd=folder, check=1).stderr
    assert "KeyError: 'no such table' (parts.py:" in told
    assert "Traceback (most" not in told


def test_a_codec_of_ones_own_is_predicted(folder):
    words = ("predict", "parts.py:Net:width=4096", "--input", "64", "--device", "v100", "--network", "1gbit")
    words = (*words, "--workers", "4", "--codec")
    half, mine, fewer = (
        run_json(*words, codec, cwd=folder)["series"][0]["rows"][0]["breakdown"]["communicate"]
        for codec in ("half", "parts.py:Every", "parts:Every:n=8")
    )
    assert mine == pytest.approx(half, rel=0.05)
    assert fewer < mine / 2


def test_the_strategy_on_the_page_runs_under_torchrun(folder):
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "paceline", "train")
    options = ("--strategy", BATON, "--batch-size", "16", "--iterations", "10", "--json")
    done = run_python(*torchrun, *options, cwd=folder, env={"OMP_NUM_THREADS": "1"}, seconds=100)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["summary"]["steps"] == 10


@pytest.mark.parametrize(
    ("option", "spec", "words"),
    [
        ("strategy", "lost.py:Baton", "there is no file"),
        ("strategy", "lost_module:Baton", "there is no module 'lost_module'"),
        ("strategy", "baton.py", "names a file and no class in it; write baton.py:Class"),
        ("strategy", "baton.py:Batn", "has no 'Batn'; did you mean 'Baton'"),
        (
            "strategy",
            "baton.py:Baton:perod=4",
            "unknown setting 'perod' of strategy 'baton.py:Baton'; did you mean 'period'?",
        ),
        ("strategy", "baton.py:Baton:period=x", "'x' is not a value for period of 'baton.py:Baton'"),
        ("strategy", "baton.py:Baton:period=0", "period=0 is out of range; it must be at least 1"),
        (
            "strategy",
            "parts.py:NoDataclass",
            "is not a dataclass; write @dataclass(frozen=True, kw_only=True)",
        ),
        ("strategy", "parts.py:NoStrategy", "inherit from paceline.Strategy"),
        (
            "codec",
            "parts.py:NoDecoder",
            "has no decode: inherit from paceline.Codec and define the rest",
        ),
        ("codec", "parts.py:Every:m=3", "unknown setting 'm' of codec 'parts.py:Every'"),
        ("model", "parts.py:Net:depth=3", "unknown setting 'depth' of model 'parts.py:Net'"),
        ("model", "parts.py:Plain", "it must make an nn.Module"),
        ("optimizer", "parts:NoStrategy", "has no __call__"),
        ("data", "parts.py:Plain", "has no load; define it"),
    ],
)
def test_what_is_wrong_with_a_plug_in_is_one_sentence(option, spec, words, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for command in ("train", "simulate"):
        sys.modules.pop("parts", None)
        options = [command, f"--{option}", spec, "--iterations", "1"]
        monkeypatch.setattr(
            sys, "argv", ["paceline", *options]
        )  # a launcher starts its own command line again
        assert main(options) == 2
        told = capsys.readouterr().err
        assert words in told
        assert told.count("\n") == 1


WRONG_PROGRAMS = {
    "yield 'gradient'": "asks for 'gradient', which is no effect",
    "yield Broadcast(me.params)": "asks for 10,001 effects and for no gradient among them",
    "yield Gradient()\n            return": "ends; let it yield effects without end",
    "yield Gradient()\n            yield Broadcast(me.params, root=2)": "a Broadcast from rank 2 of 2 workers",
}


@pytest.fixture
def wrong_program(tmp_path):
    def write(body):
        lines = (
            "from dataclasses import dataclass",
            "from paceline import Apply, Broadcast, Gradient, Strategy, SyncPoint",
            "@dataclass(frozen=True, kw_only=True)",
            "class Wrong(Strategy):",
            "    sync_point = SyncPoint.EVERY_STEP",
            "    def worker(self, me):",
            "        while True:",
            f"            {body}",
            "    def central(self, me):",
            "        return me.params",
            "        yield",
        )
        (tmp_path / "wrong.py").write_text("\n".join(lines) + "\n")
        return ("--workers", "2", "--strategy", "wrong.py:Wrong")

    return write


@pytest.mark.parametrize(
    ("body", "words", "code"),
    [(body, words, 2) for body, words in WRONG_PROGRAMS.items()]
    + [
        ("yield Receive()", "asks for Receive(until=None), which a worker without servers cannot do", 2),
        ("yield Gradient(me.clok)", "'Worker' object has no attribute 'clok'", 1),
    ],
)
def test_a_program_that_is_wrong_is_refused_by_predict_and_never_hangs_it(
    body, words, code, wrong_program, tmp_path
):
    options = wrong_program(body.replace("Receive", "__import__('paceline').Receive"))
    told = run_paceline("predict", "mlp", "--device", "v100", *options, cwd=tmp_path, check=code).stderr
    assert words in told
    assert "Traceback" not in told


@pytest.mark.parametrize(("body", "words"), WRONG_PROGRAMS.items())
def test_a_program_that_is_wrong_ends_its_run_with_a_sentence(body, words, wrong_program, tmp_path):
    """If this failed, such a run would hang, end in a traceback, or train on what no rank has sent."""
    told = run_paceline("simulate", *wrong_program(body), "--iterations", "3", cwd=tmp_path, check=1).stderr
    assert "the worker's program of strategy 'wrong.py:Wrong'" in told
    assert words in told
    assert "Traceback" not in told


@pytest.mark.parametrize("jitter", ["0", "0.1"])
def test_the_strategy_on_the_page_is_predicted(folder, jitter):
    """With no further code: one worker, several, several a host, and with compute times that vary."""
    words = ["mlp", "--device", "v100", "--network", "1gbit", "--per-host", "2", "--workers", "1,2,5,64"]
    command = ["predict", *words, "--jitter", jitter, "--strategy"]
    baton, apart = (run_json(*command, one, cwd=folder) for one in (BATON, "local-sgd:period=4"))
    rows, others = (document["series"][0]["rows"] for document in (baton, apart))
    assert [row["workers"] for row in rows] == [1, 2, 5, 64]
    assert rows[0]["step"] == pytest.approx(others[0]["step"])
    assert all(row["breakdown"]["communicate"] > 0 for row in rows[1:])
    assert all(row["speed_up"] > 0 for row in rows)


def test_the_strategy_on_the_page_is_predicted_on_an_uneven_cluster(folder):
    (folder / "uneven.toml").write_text('[[hosts]]\ncount = 2\n[[hosts]]\nname = "slow"\nspeed = 0.5\n')
    words = ["mlp", "--device", "v100", "--cluster", "uneven.toml", "--strategy", BATON]
    rows = run_json("predict", *words, cwd=folder)["series"][0]["rows"]
    assert [row["workers"] for row in rows] == [1, 2, 3]
    assert rows[2]["breakdown"]["wait"] > 0
