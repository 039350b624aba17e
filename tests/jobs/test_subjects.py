import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from paceline.errors import UsageError
from paceline.jobs.build import build_job, traceable_of, traceable_of_job
from paceline.jobs.job import Traceable
from paceline.jobs.spec import JobSpec

MINE = """
import torch
from torch import nn
from paceline import Job, TensorData
from paceline.jobs.job import Traceable

def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))

class Looks(nn.Module):
    def __init__(self):
        super().__init__()
        rates = [float(rate) for rate in torch.linspace(0, 1, 3)]
        self.layer = nn.Linear(12, len(rates))
    def forward(self, images):
        return self.layer(images.flatten(1))

def huge():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 2**40), nn.Linear(2**40, 2))

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)

def job():
    tokens = torch.randint(5, 9, (20, 4))
    return Job(name="words", model=lambda: nn.Embedding(9, 3), loss=lambda out, _: out.mean(),
               train=TensorData(tokens, tokens), test=TensorData(tokens, tokens), optimizer=optimizer)

def subject():
    return Traceable(name="s", model=net, loss=nn.functional.cross_entropy, optimizer=optimizer,
                   batch=lambda n: (torch.ones(n, 12), torch.zeros(n, dtype=torch.int64)))

def pixels():
    return nn.Conv2d(3, 4, 1)

def fails():
    return 1 / 0

def number():
    return 3

made = net()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder with a file of a user's own; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (tmp_path / "mine.py").write_text(MINE)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def loss_of(subject: Traceable, samples: int = 2) -> float:
    model = subject.model()
    inputs, targets = subject.batch(samples)
    loss = subject.loss(model(inputs), targets)
    loss.backward()
    subject.optimizer(model.parameters()).step()
    return loss.item()


def test_a_shipped_model_is_fed_what_is_usual_or_what_is_asked_for() -> None:
    assert traceable_of("resnet50").batch(2)[0].shape == (2, 3, 224, 224)
    assert traceable_of("inception-v3").batch(1)[0].shape == (1, 3, 299, 299)
    subject = traceable_of("mlp:hidden=4", shape=(2, 5, 6), classes=3)
    inputs, targets = subject.batch(50)
    assert inputs.shape == (50, 2, 5, 6)
    assert set(targets.tolist()) == {0, 1, 2}
    assert subject.model()(inputs).shape == (50, 3)
    assert (subject.name, subject.train_samples) == ("mlp", None)
    assert loss_of(subject) > 0


def test_batches_are_made_on_the_default_device() -> None:
    for subject in (traceable_of("cnn"), traceable_of("gpt"), traceable_of_job(JobSpec())):
        with torch.device("meta"):
            assert all(part.is_meta for part in subject.batch(10**9)), "a billion samples take no memory"
    tokens, targets = traceable_of("gpt:vocabulary=7,context=9").batch(4)
    assert tokens.shape == targets.shape == (4, 9)
    assert 0 <= min(tokens.min(), targets.min()) <= max(tokens.max(), targets.max()) < 7


def test_the_optimizer_is_the_one_asked_for() -> None:
    parameters = list(traceable_of("mlp").model().parameters())
    assert type(traceable_of("mlp", optimizer="adam").optimizer(parameters)) is torch.optim.Adam
    with pytest.raises(UsageError, match="unknown optimizer 'adma'; did you mean 'adam'"):
        traceable_of("mlp", optimizer="adma")


def test_a_job_by_its_parts_is_what_would_be_trained() -> None:
    spec = JobSpec(data="synthetic:shape=3x9x9,classes=4,train=70", model="mlp:hidden=5", optimizer="adam")
    subject, job = traceable_of_job(spec), build_job(spec)
    assert (subject.name, subject.train_samples) == (job.name, len(job.train)) == ("synthetic-mlp", 70)
    shapes = [[one.shape for one in thing.model().parameters()] for thing in (subject, job)]
    assert shapes[0] == shapes[1]
    assert [part.shape for part in subject.batch(6)] == [
        part.shape for part in job.train.take(torch.arange(6))
    ]


def test_large_synthetic_images_are_not_drawn_for_a_prediction() -> None:
    spec = JobSpec(data="synthetic:shape=3x1000x1000,train=1000000000", model="resnet50")
    assert traceable_of_job(spec).batch(1)[0].shape == (1, 3, 1000, 1000)


def test_ones_own_module_is_fed_what_is_asked_for(here: Path) -> None:
    for path in ("mine:net", "mine.py:net", "mine:Looks"):
        subject = traceable_of(path, shape=(3, 2, 2))
        assert subject.name == path.rpartition(":")[2]
        assert loss_of(subject) > 0, "targets are in range although nobody said how many classes there are"
        with torch.device("meta"):
            assert all(parameter.is_meta for parameter in subject.model().parameters())
    assert max(traceable_of("mine:net", shape=(3, 2, 2), classes=3).batch(50)[1]) == 2


def test_a_module_that_is_made_already_is_copied(here: Path) -> None:
    subject = traceable_of("mine:made", shape=(3, 2, 2))
    with torch.device("meta"):
        assert [parameter.device.type for parameter in subject.model().parameters()] == ["meta", "meta"]
    weights = [next(subject.model().parameters()) for _ in range(2)]
    assert torch.equal(*weights)
    assert weights[0] is not weights[1]


def test_a_module_larger_than_the_memory_is_no_problem(here: Path) -> None:
    with torch.device("meta"):
        assert traceable_of("mine:huge", shape=(12,)).model()[1].weight.numel() == 12 * 2**40


def test_ones_own_job_is_fed_copies_of_its_first_sample(here: Path) -> None:
    for subject in (traceable_of("mine:job"), traceable_of_job(JobSpec(path="mine:job"))):
        inputs, targets = subject.batch(3)
        assert torch.equal(inputs, targets)
        assert inputs.shape == (3, 4)
        assert inputs.min() >= 5
        assert (subject.name, subject.train_samples) == ("words", 20)
        loss_of(subject)
        with torch.device("meta"):
            assert subject.batch(3)[0].is_meta


def test_ones_own_subject_is_taken_as_it_is(here: Path) -> None:
    assert traceable_of("mine:subject").name == "s"


@pytest.mark.parametrize(
    ("text", "look", "says"),
    [
        ("mine:net", {}, "is an nn.Module, .* give the input shape of one sample, such as 3x224x224"),
        ("mine:job", {"shape": (3, 2, 2)}, "its Job says what a sample looks like; leave the input shape"),
        ("mine:subject", {"classes": 3}, "its Traceable says what a sample looks like"),
        ("mine:net", {"shape": (12,), "classes": 0}, "0 classes are too few"),
        ("mine:number", {}, "returned a int; it must return an nn.Module, a Job or a Traceable"),
        ("mine:fails", {}, r"fails\(\) raised ZeroDivisionError: division by zero \(mine.py:\d+ in fails\)"),
        ("mine:nte", {}, "mine.py has no 'nte'; did you mean 'net'"),
        ("nowhere:net", {}, "model nowhere:net: there is no module 'nowhere'"),
        (":net", {}, "'net' in ':net' is not a setting"),
        ("resnet5", {}, "unknown model 'resnet5'; did you mean 'resnet50'"),
        ("resnet5:stem=small", {}, "unknown model 'resnet5'"),
        ("resnet50:small", {}, "'small' in 'resnet50:small' is not a setting"),
        ("cnn", {"shape": (3, 5)}, "'cnn' takes images and '3x5' is not the shape of one"),
        ("cnn", {"shape": (3, 0, 5)}, "'cnn' cannot be fed '3x0x5': every side must be at least 1"),
        ("cnn", {"classes": 0}, "0 classes are too few"),
        ("gpt", {"shape": (3, 8, 8)}, "takes sequences of tokens and '3x8x8' is the shape of something else"),
        ("gpt", {"shape": (2048,)}, "a context of 1,024 tokens and 2,048 are asked for; .* set context=2048"),
        ("gpt", {"classes": 10}, "a vocabulary of 50,257 and 10 classes are asked for; .* set vocabulary=10"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(here: Path, text: str, look: dict, says: str) -> None:
    with pytest.raises(UsageError, match=says) as mistake:
        traceable_of(text, **look)
    assert "\n" not in str(mistake.value)


def test_a_module_without_a_score_a_class_needs_a_subject(here: Path) -> None:
    with pytest.raises(
        UsageError, match=r"output is a tensor of shape \[2, 4, 5, 5\] .* return a .*Traceable, which says it"
    ):
        loss_of(traceable_of("mine:pixels", shape=(3, 5, 5)))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("gpt", "model 'gpt' takes sequences of tokens .* or choose a model for images, such as cnn"),
        ("vgg16", "'vgg16' needs images of at least 32x32 pixels and these have 8x8; .*cnn, mlp or resnet18"),
    ],
)
def test_a_job_whose_data_does_not_fit_its_model_is_refused_at_once(model: str, says: str) -> None:
    for build in (build_job, traceable_of_job):
        with pytest.raises(UsageError, match=says):
            build(JobSpec(model=model))


def test_ones_own_module_is_fed_numbers_of_its_own_type(here: Path) -> None:
    """Else a model of half precision would be traced with tensors of twice their size, or not run at all."""
    (here / "narrow.py").write_text(MINE + "\ndef narrow():\n    return net().bfloat16()\n")
    assert traceable_of("narrow.py:narrow", shape=(12,), classes=3).batch(2)[0].dtype == torch.bfloat16
