"""How large the shipped models are on what they are usually fed; a test counts them again."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Figures:
    """A model's size."""

    parameters: int
    multiply_adds: int
    """Of one sample's forward, in convolutions, matrix products and attention."""


FIGURES: Mapping[str, Figures] = MappingProxyType(
    {
        "alexnet": Figures(60_965_224, 724_406_816),
        "alexnet-v2": Figures(50_303_912, 736_555_776),
        "cnn": Figures(19_670, 65_024),
        "googlenet": Figures(6_624_904, 1_498_376_192),
        "gpt": Figures(124_439_808, 145_824_153_600),
        "gpt2-small": Figures(124_439_808, 145_824_153_600),
        "gpt2-medium": Figures(354_823_168, 413_475_536_896),
        "gpt2-large": Figures(774_030_080, 887_285_350_400),
        "gpt2-xl": Figures(1_557_611_200, 1_753_351_782_400),
        "inception-v3": Figures(23_834_568, 5_713_216_096),
        "mlp": Figures(4_810, 4_736),
        "nin": Figures(7_595_176, 969_460_864),
        "resnet18": Figures(11_689_512, 1_814_073_344),
        "resnet50": Figures(25_557_032, 4_089_184_256),
        "vgg16": Figures(138_357_544, 15_470_264_320),
    }
)
