"""How large the shipped models are on what they are usually fed; a test counts them again."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class ModelSize:
    """A model's size."""

    parameters: int
    multiply_adds: int
    """Of one sample's forward, in convolutions, matrix products and attention."""
    input: str
    """The sample: channels x height x width, or tokens."""
    classes: int


FIGURES: Mapping[str, ModelSize] = MappingProxyType(
    {
        "alexnet": ModelSize(60_965_224, 724_406_816, "3x224x224", 1_000),
        "alexnet-v2": ModelSize(50_303_912, 736_555_776, "3x224x224", 1_000),
        "cnn": ModelSize(19_670, 65_024, "1x8x8", 10),
        "googlenet": ModelSize(6_624_904, 1_498_376_192, "3x224x224", 1_000),
        "gpt": ModelSize(124_439_808, 145_824_153_600, "1024", 50_257),
        "gpt2-small": ModelSize(124_439_808, 145_824_153_600, "1024", 50_257),
        "gpt2-medium": ModelSize(354_823_168, 413_475_536_896, "1024", 50_257),
        "gpt2-large": ModelSize(774_030_080, 887_285_350_400, "1024", 50_257),
        "gpt2-xl": ModelSize(1_557_611_200, 1_753_351_782_400, "1024", 50_257),
        "inception-v3": ModelSize(23_834_568, 5_713_216_096, "3x299x299", 1_000),
        "mlp": ModelSize(4_810, 4_736, "1x8x8", 10),
        "nin": ModelSize(7_595_176, 969_460_864, "3x224x224", 1_000),
        "resnet18": ModelSize(11_689_512, 1_814_073_344, "3x224x224", 1_000),
        "resnet50": ModelSize(25_557_032, 4_089_184_256, "3x224x224", 1_000),
        "vgg16": ModelSize(138_357_544, 15_470_264_320, "3x224x224", 1_000),
    }
)
