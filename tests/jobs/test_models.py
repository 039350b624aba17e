import pytest
import torch
from torch import nn

from paceline import specs
from paceline.errors import UsageError
from paceline.jobs import MODELS
from paceline.jobs.models.resnet import Block
from paceline.jobs.spec import ImageShape

SHAPES = [
    ImageShape((1, 8, 8)),
    ImageShape((1, 28, 28)),
    ImageShape((3, 32, 32)),
    ImageShape((2, 1, 1)),
    ImageShape((3, 13, 40)),
]


def make(spec: str, shape: ImageShape = SHAPES[2], classes: int = 10) -> nn.Module:
    torch.manual_seed(1)
    model: nn.Module = specs.build(spec, MODELS, "model")(shape, classes)
    return model


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("spec", ["mlp", "mlp:layers=0", "cnn", "resnet18"])
def test_every_model_takes_images_of_any_size(spec: str, shape: ImageShape) -> None:
    samples = 2
    model = make(spec, shape, classes=7)
    outputs = model(torch.randn(samples, *shape))
    assert outputs.shape == (samples, 7)
    outputs.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters()), "a parameter is not used"


def test_resnet18_has_the_published_number_of_parameters() -> None:
    assert count(make("resnet18")) == 11_173_962


def test_resnet18_halves_the_image_three_times_and_does_not_pool_at_the_start() -> None:
    model = make("resnet18")
    sides = []
    for module in model.children():
        if isinstance(module, Block):
            module.register_forward_hook(lambda _module, _inputs, output: sides.append(output.shape[1:]))
    model(torch.randn(2, 3, 32, 32))
    assert sides[1::2] == [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]


def test_resnet18_trains_on_a_single_tiny_image() -> None:
    make("resnet18", SHAPES[0]).train()(torch.randn(1, 1, 8, 8))


def test_zero_gamma_starts_every_block_as_its_shortcut() -> None:
    blocks = [module for module in make("resnet18:zero_gamma=true").modules() if isinstance(module, Block)]
    assert len(blocks) == 8
    assert all(not block.last_norm.weight.any() for block in blocks)
    images = torch.rand(2, 64, 4, 4)
    assert torch.equal(blocks[0](images), images)
    assert not any(isinstance(m, Block) and not m.last_norm.weight.all() for m in make("resnet18").modules())


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [(SHAPES[0], 19_670), (SHAPES[1], 156 + 2_416 + 16_448 + 650), (SHAPES[2], 456 + 2_416 + 25_664 + 650)],
)
def test_the_cnn_is_lean(shape: ImageShape, parameters: int) -> None:
    assert count(make("cnn", shape)) == parameters


def test_the_same_seed_makes_the_same_model() -> None:
    for one, two in zip(make("cnn").parameters(), make("cnn").parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("mlp:hidden=0", "hidden=0 is out of range; it must be at least 1"),
        ("mlp:layers=-1", "layers=-1 is out of range"),
        ("cnn:first=0", "first=0"),
        ("cnm", "did you mean 'cnn'"),
        ("resnet18:gamma=0", "setting 'gamma' of model 'resnet18'.*zero_gamma"),
    ],
)
def test_a_wrong_model_is_refused(spec: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make(spec)
