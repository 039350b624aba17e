import copy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from paceline import Job, TensorData
from paceline.errors import UsageError
from paceline.jobs.build import build_job
from paceline.jobs.sharding import Shards
from paceline.jobs.spec import JobSpec
from paceline.specs import ObjectSpec

GOOD = """
import torch
from torch import nn
from torch.utils.data import Dataset
from paceline import Job

class Numbers(Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, index):
        return torch.ones(4) * index, index % 2

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)

def build(**changes):
    parts = dict(name="mine", model=lambda: nn.Linear(4, 2), loss=nn.functional.cross_entropy, train=Numbers(),
                 test=Numbers(), optimizer=optimizer)
    return Job(**(parts | changes))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder; modules that a test imports from it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def build(path: str) -> Job:
    return build_job(JobSpec(path=path))


def test_the_words_of_a_job_do_not_import_torch() -> None:
    code = "import sys, paceline.jobs.spec, paceline.jobs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def accuracies(job: Job, epochs: int) -> Iterator[float]:
    """Plain training of one worker, and the test accuracy after each epoch."""
    torch.manual_seed(1)
    model = job.model()
    optimizer = job.optimizer(model.parameters())
    shards = Shards(samples=len(job.train), batch_sizes=(64,), seed=1)
    inputs, targets = job.test.take(torch.arange(len(job.test)))
    for step in range(epochs * shards.steps_per_epoch):
        optimizer.zero_grad()
        batch = job.train.take(shards.indices(0, step))
        job.loss(model(batch[0]), batch[1]).backward()
        optimizer.step()
        if (step + 1) % shards.steps_per_epoch == 0:
            with torch.no_grad():
                yield float(job.metrics["accuracy"](model(inputs), targets)) / len(job.test)


def test_the_default_job_reaches_97_percent_well_within_its_30_epochs() -> None:
    job = build_job(JobSpec())
    assert job.name == "digits-cnn"
    assert any(accuracy >= 0.97 for accuracy in accuracies(job, epochs=15))


def test_parts_are_put_together_as_named() -> None:
    job = build_job(
        JobSpec(
            data="synthetic:shape=1x4x4,classes=3,train=20,test=10",
            model="mlp:hidden=5",
            optimizer="adam",
            schedule="cosine:epochs=2",
        )
    )
    assert job.model()(job.train.take(torch.arange(20))[0]).shape == (20, 3)
    assert isinstance(job.optimizer(job.model().parameters()), torch.optim.Adam)
    assert job.schedule(2) == 0


class LooksAtWhatItTakes(nn.Linear):
    """Which no trace without memory can follow."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs.flatten(1)) * (2 if inputs.max().item() > 0 else 1)


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (nn.Linear(100, 10), r"shape \[2, 1, 8, 8\]: it raised .*16x8 and 100x10.*; make it fit the data"),
        (LooksAtWhatItTakes(100, 10), r"2x64 and 100x10"),
        (nn.Flatten(), ""),
        (LooksAtWhatItTakes(64, 10), ""),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(64, 5)),
            r"shape \[2, 5\] for 2 samples of digits.* 10 classes",
        ),
        (nn.Linear(8, 10), r"shape \[2, 1, 8, 10\] for 2 samples .* return a score a class"),
    ],
)
def test_a_model_of_ones_own_that_does_not_fit_the_data_is_refused(module: nn.Module, says: str) -> None:
    """If this failed, a run would begin and end in torch's error, or in that of the loss."""
    spec = JobSpec(model=ObjectSpec.of(module))
    if says:
        with pytest.raises(UsageError, match=says):
            build_job(spec)
    else:
        build_job(spec)


def test_a_model_that_is_tried_stays_as_it_is() -> None:
    module = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(), nn.Linear(64, 10))
    before, random = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    build_job(JobSpec(model=ObjectSpec.of(module)))
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())


def test_a_wrong_word_is_found_before_the_data_is_read() -> None:
    with pytest.raises(UsageError, match="unknown schedule"):
        build_job(JobSpec(data="mnist", data_dir="/nowhere", schedule="sine"))


def test_a_job_of_ones_own_with_a_torch_dataset(here: Path) -> None:
    (here / "my_job.py").write_text(GOOD)
    job = build("my_job:build")
    inputs, targets = job.train.take(torch.tensor([3, 2]))
    assert inputs[:, 0].tolist() == [3, 2]
    assert targets.tolist() == [1, 0]
    assert build("my_job.py:build").name == "mine"


def test_a_job_in_another_folder_finds_its_neighbours_even_later(here: Path) -> None:
    other = here / "other"
    other.mkdir()
    (other / "neighbour_of_job.py").write_text("from torch.nn import Linear\n")
    (other / "a_job.py").write_text(
        GOOD.replace("lambda: nn.Linear(4, 2)", "lambda: __import__('neighbour_of_job').Linear(4, 2)")
    )
    assert build("other/a_job.py:build").model()(torch.ones(1, 4)).shape == (1, 2)


def test_the_search_path_grows_by_one_folder_once(here: Path) -> None:
    (here / "my_job.py").write_text(GOOD)
    before = list(sys.path)
    for _ in range(3):
        build("my_job:build")
    assert sys.path == [str(here), *before]


def test_a_data_of_ones_own_is_kept(here: Path) -> None:
    (here / "with_data.py").write_text(
        "from test_build_job_parts import build as b\nfrom paceline import TensorData\nimport torch\n"
        "def build():\n    return b(train=TensorData(torch.ones(3, 4), torch.zeros(3, dtype=torch.int64)))\n"
    )
    (here / "test_build_job_parts.py").write_text(GOOD)
    assert isinstance(build("with_data:build").train, TensorData)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("my_job", "'my_job' is not an import path: write module:name"),
        (":build", "not an import path"),
        ("my_job:", "not an import path"),
        ("no_such_job:build", "there is no module 'no_such_job' in .* or among the installed ones"),
        ("nowhere.py:build", "there is no file .*nowhere.py"),
        ("my_job:biuld", "my_job.py has no 'biuld'; did you mean 'build'"),
        ("my_job:zzzzz", "has no 'zzzzz'; check the name"),
        ("my_job:number", "'number' is a int, not a function"),
        ("my_job:fails", r"fails\(\) raised ZeroDivisionError: division by zero \(my_job.py:\d+ in fails\)"),
        ("my_job:leaves", r"leaves\(\) raised SystemExit: 3"),
        ("my_job:wants", r"wants\(\) raised TypeError: .*missing 1 required positional argument"),
        ("my_job:other", r"other\(\) returned a dict; it must return a paceline.Job"),
        ("my_job:made", r"its model is a Linear already made; write model=lambda: Linear\(...\)"),
        ("my_job:no_optimizer", "its optimizer is a NoneType; it must be a function"),
        ("my_job:no_metric", "its metric 'accuracy' is a int"),
        ("my_job:no_data", "its test data has no samples"),
        ("raises:build", r"module 'raises' does not import: KeyError: 'oh' \(raises.py:1 in <module>\)"),
        ("raises.py:build", r"raises.py does not run: KeyError: 'oh' \(raises.py:1 in <module>\)"),
        ("broken:build", r"module 'broken' does not import: SyntaxError: .*\(broken.py, line 1\)"),
        (
            "needs:build",
            r"module 'needs' does not import: ModuleNotFoundError: No module named 'not_installed'",
        ),
        ("..x:build", "does not import: TypeError"),
    ],
)
def test_what_is_wrong_with_a_job_is_told_in_one_sentence(here: Path, path: str, says: str) -> None:
    (here / "my_job.py").write_text(
        GOOD
        + "number = 3\ndef fails(): 1 / 0\ndef leaves(): raise SystemExit(3)\ndef wants(x): pass\n"
        + "def other(): return {}\ndef made(): return build(model=nn.Linear(4, 2))\n"
        + "def no_optimizer(): return build(optimizer=None)\ndef no_data(): return build(test=[])\n"
        + "def no_metric(): return build(metrics={'accuracy': 1})\n"
    )
    (here / "raises.py").write_text("{}['oh']\n")
    (here / "broken.py").write_text("def (:\n")
    (here / "needs.py").write_text("import not_installed\n")
    with pytest.raises(UsageError, match=says) as mistake:
        build(path)
    assert "\n" not in str(mistake.value)
    assert path in str(mistake.value)
