"""The models that ship for predictions are the published ones."""

import subprocess
import sys
from collections import Counter

import pytest
import torch
from torch import nn

from paceline import specs
from paceline.costs.trace.operator import Convolution, Window
from paceline.costs.trace.trace import trace
from paceline.errors import UsageError
from paceline.jobs import MODELS
from paceline.jobs.build import traceable_of
from paceline.jobs.models import model_sizes
from paceline.jobs.models.convnets import AlexNet, dense_layers
from paceline.jobs.models.gpt import Gpt
from paceline.jobs.models.layers import chain

PUBLISHED = {
    "alexnet": 60_965_224,
    "alexnet-v2": 50_303_912,
    "alexnet-v2:dense=linear": 50_303_912,
    "googlenet": 6_624_904,
    "googlenet:version=paper": 6_998_552,
    "gpt2-small": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "inception-v3": 23_834_568,
    "inception-v3:version=paleo": 23_734_312,
    "nin": 7_595_176,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "vgg16": 138_357_544,
    "vgg16:dense=convolution": 138_357_544,
}

MULTIPLY_ADDS = {"vgg16": 15.5e9, "resnet50": 4.1e9, "googlenet": 1.5e9, "resnet18": 1.82e9}


def on_meta(spec: str, **look: object) -> nn.Module:
    with torch.device("meta"):
        return traceable_of(spec, **look).model()


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("spec", "parameters"), PUBLISHED.items())
def test_a_model_has_the_published_number_of_parameters(spec: str, parameters: int) -> None:
    assert count(on_meta(spec)) == parameters


@pytest.mark.parametrize("name", MODELS)
def test_the_figures_that_the_list_shows_are_those_of_the_model(name: str) -> None:
    traced = trace(traceable_of(name), 1)
    usual = specs.build(name, MODELS, "model").default_input
    fed = "x".join(map(str, usual.shape))
    assert model_sizes()[name] == {
        "input": fed,
        "classes": usual.classes,
        "parameters": traced.size,
        "multiply_adds": traced.multiply_adds,
    }
    if name in MULTIPLY_ADDS:
        assert traced.multiply_adds == pytest.approx(MULTIPLY_ADDS[name], rel=0.005)


def layers(spec: str) -> list[tuple[str, int, int, int, int, int]]:
    """Kind, kernel, sides and channels after each convolution and pooling, in order."""
    found = []
    for one in trace(traceable_of(spec), 1).forward:
        match one.shape:
            case Convolution() as it:
                row = ("conv", *it.kernel, *it.out, it.outputs)
                found.append(row)
            case Window() as it:
                row = ("pool", *it.kernel, *it.out, it.channels)
                found.append(row)
    return found


def square(text: str) -> list[tuple[str, int, int, int, int, int]]:
    """Rows from "conv 3 224 64": kind, kernel, side and channels."""
    rows = []
    for line in text.split(","):
        kind, kernel, side, channels = line.split()
        rows.append((kind, int(kernel), int(kernel), int(side), int(side), int(channels)))
    return rows


def test_alexnet_v2_has_the_layers_that_paleo_describes() -> None:
    assert layers("alexnet-v2") == square(
        "conv 11 54 64, pool 3 26 64, conv 5 26 192, pool 3 12 192, conv 3 12 384, conv 3 12 384, conv 3 12 256, "
        "pool 3 5 256, conv 5 1 4096, conv 1 1 4096, conv 1 1 1000"
    )


def test_nin_has_the_layers_that_paleo_describes() -> None:
    assert layers("nin") == square(
        "conv 11 54 96, conv 1 54 96, conv 1 54 96, pool 3 26 96, conv 5 26 256, conv 1 26 256, conv 1 26 256, "
        "pool 3 12 256, conv 3 12 384, conv 1 12 384, conv 1 12 384, pool 3 5 384, conv 3 5 1024, conv 1 5 1024, "
        "conv 1 5 1000, pool 5 1 1000"
    )


def test_vgg16_has_the_layers_that_paleo_describes() -> None:
    assert layers("vgg16:dense=convolution") == square(
        "conv 3 224 64, conv 3 224 64, pool 2 112 64, conv 3 112 128, conv 3 112 128, pool 2 56 128, "
        "conv 3 56 256, conv 3 56 256, conv 3 56 256, pool 2 28 256, conv 3 28 512, conv 3 28 512, conv 3 28 512, "
        "pool 2 14 512, conv 3 14 512, conv 3 14 512, conv 3 14 512, pool 2 7 512, conv 7 1 4096, conv 1 1 4096, "
        "conv 1 1 1000"
    )


def test_inception_v3_has_the_layers_that_paleo_describes() -> None:
    found = Counter(layers("inception-v3:version=paleo"))
    flat = {
        (kernel, side, channels): n for (_, high, kernel, side, _, channels), n in found.items() if high == 1
    }
    high = {
        (kernel, side, channels): n for (_, kernel, wide, side, _, channels), n in found.items() if wide == 1
    }
    factors = {(3, 8, 384): 4, (7, 17, 128): 2, (7, 17, 160): 4, (7, 17, 192): 7}
    single = Counter(
        square(
            "conv 1 73 80, conv 1 35 32, conv 1 17 128, conv 1 17 128, conv 1 1 1000"
            + ", conv 1 35 48" * 3
            + ", conv 1 35 64" * 9
            + ", conv 1 17 160" * 4
            + ", conv 1 17 192" * 12
            + "".join(f", conv 1 8 {channels}" * 2 for channels in (192, 320, 384, 448))
        )
    )
    larger = Counter(
        square(
            "conv 3 149 32, conv 3 147 32, conv 3 147 64, pool 3 73 64, conv 3 71 192, pool 3 35 192"
            + ", conv 5 35 64" * 3
            + ", conv 3 35 96" * 6
            + ", pool 3 35 192, pool 3 35 256, pool 3 35 288"
            + ", conv 3 17 384, conv 3 17 96, pool 3 17 288"
            + ", pool 3 17 768" * 4
            + ", conv 3 8 320, conv 3 8 192, pool 3 8 768, conv 3 8 384, conv 3 8 384, pool 3 8 1280, pool 3 8 2048"
            + ", pool 8 1 2048"
        )
    )
    assert {key: n for key, n in flat.items() if key[0] > 1} == factors
    assert {key: n for key, n in high.items() if key[0] > 1} == factors
    assert Counter({row: n for row, n in found.items() if row[1] == row[2]}) == single + larger
    assert found.total() == 108


def test_resnet50_strides_in_the_3x3_convolution_and_starts_large_on_large_images() -> None:
    found = layers("resnet50")
    assert found[:2] == square("conv 7 112 64, pool 3 56 64")
    second_stage = found.index(("conv", 1, 1, 56, 56, 128))
    assert found[second_stage : second_stage + 3] == square("conv 1 56 128, conv 3 28 128, conv 1 28 512")
    assert layers("resnet50:stem=small")[0] == ("conv", 3, 3, 224, 224, 64)


@pytest.mark.parametrize(
    ("spec", "side"),
    [
        ("alexnet", 63),
        ("alexnet-v2", 67),
        ("nin", 67),
        ("vgg16", 32),
        ("googlenet", 32),
        ("googlenet:version=paper", 32),
        ("inception-v3", 75),
        ("inception-v3:version=paleo", 75),
        ("resnet50", 16),
        ("resnet18:stem=large", 32),
    ],
)
def test_a_model_trains_on_the_smallest_images_that_it_takes(spec: str, side: int) -> None:
    subject = traceable_of(spec, shape=(2, side, side + 3), classes=5)
    model = subject.model()
    inputs, targets = subject.batch(2)
    outputs = model(inputs)
    assert outputs.shape == (2, 5)
    subject.loss(outputs, targets).backward()
    assert all(one.grad is not None and one.grad.isfinite().all() for one in model.parameters())


@pytest.mark.parametrize("spec", ["alexnet", "alexnet-v2", "googlenet", "nin", "vgg16", "inception-v3"])
def test_smaller_images_are_refused(spec: str) -> None:
    smallest = specs.build(spec, MODELS, "model").default_input.smallest
    with pytest.raises(UsageError, match=f"'{spec}' needs images of at least {smallest}x{smallest} pixels"):
        traceable_of(spec, shape=(3, smallest - 1, 300))


def test_dense_layers_are_the_same_either_way() -> None:
    linear = chain(dense_layers("linear", 4, (3, 2), (5, 6, 7))).eval()
    other = chain(dense_layers("convolution", 4, (3, 2), (5, 6, 7))).eval()
    for one, two in zip(other.parameters(), linear.parameters(), strict=True):
        one.data = two.data.view(one.shape)
    images = torch.randn(2, 4, 3, 2)
    assert torch.allclose(other(images), linear(images), atol=1e-6)


def test_alexnet_normalises_across_channels_as_its_paper_says() -> None:
    norm = AlexNet()((3, 63, 63), 2).get_submodule("norm1")
    images = torch.rand(1, 9, 1, 1) * 100
    squares = images[0, 2:7].square().sum()
    assert torch.allclose(norm(images)[0, 4], images[0, 4] / (2 + 1e-4 * squares) ** 0.75)


TINY = "gpt:layers=2,heads=2,width=8,context=6,vocabulary=11"


def test_a_gpt_does_not_see_what_follows() -> None:
    subject = traceable_of(TINY)
    model = subject.model()
    tokens, targets = subject.batch(3)
    outputs = model(tokens)
    assert outputs.shape == (3, 6, 11)
    changed = tokens.clone()
    changed[:, 4] = (tokens[:, 4] + 1) % 11
    again = model(changed)
    assert torch.equal(again[:, :4], outputs[:, :4])
    assert not torch.equal(again[:, 4:], outputs[:, 4:])
    subject.loss(outputs, targets).backward()
    assert all(one.grad is not None for one in model.parameters())


def test_a_gpt_learns_what_follows() -> None:
    torch.manual_seed(1)
    subject = traceable_of(TINY, shape=(4,), optimizer="adam:lr=0.02")
    model = subject.model()
    optimizer = subject.optimizer(model.parameters())
    tokens = torch.arange(11).repeat(2)[torch.arange(11)[:, None] + torch.arange(5)]
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = subject.loss(model(tokens[:, :4]), tokens[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(2.4, abs=0.3), "it starts by knowing nothing: ln 11"
    assert losses[-1] < 0.3


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("gpt:heads=5", "width=768 is not a multiple of heads=5"),
        ("gpt:heads=0", "heads=0 is out of range"),
        ("gpt:layers=1000000000", "layers=1000000000 is out of range; it must be from 1 to 1,000"),
        ("gpt:vocabulary=0", "vocabulary=0 is out of range"),
        ("resnet50:stem=big", "stem=big is unknown; choose auto, small or large"),
        ("vgg16:dense=none", "dense=none is unknown; choose linear or convolution"),
        ("alexnet-v2:dense=none", "dense=none is unknown"),
        ("googlenet:version=3", "version=3 is unknown; choose batch-norm or paper"),
        ("inception-v3:version=3", "version=3 is unknown; choose published or paleo"),
    ],
)
def test_a_wrong_setting_is_refused(spec: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        traceable_of(spec)


def test_making_a_model_without_memory_does_not_import_the_compiler() -> None:
    code = """
import sys, torch
from paceline.jobs import MODELS
from paceline.jobs.build import traceable_of
with torch.device("meta"):
    for name in MODELS:
        subject = traceable_of(name)
        assert subject.model() and subject.batch(2)
        if "torch._dynamo" in sys.modules:
            sys.exit(f"{name} imports torch._dynamo, which takes a second and more")
"""
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_gpt_of_ones_own_size_is_that_size() -> None:
    parts = Gpt(layers=3, heads=2, width=10, context=7, vocabulary=13)
    block = 2 * 20 + (10 * 30 + 30) + (10 * 10 + 10) + (10 * 40 + 40) + (40 * 10 + 10)
    with torch.device("meta"):
        assert count(parts((7,), 13)) == 13 * 10 + 7 * 10 + 3 * block + 20
