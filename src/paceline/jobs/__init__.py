"""What is trained. These tables give the parts that ship their short names; nothing here imports torch."""

from collections.abc import Mapping

DATA: Mapping[str, str] = {
    "cifar10": "paceline.jobs.datasets:Cifar10",
    "digits": "paceline.jobs.datasets:Digits",
    "fashion-mnist": "paceline.jobs.datasets:FashionMnist",
    "mnist": "paceline.jobs.datasets:Mnist",
    "svhn": "paceline.jobs.datasets:Svhn",
    "synthetic": "paceline.jobs.datasets:Synthetic",
}

MODELS: Mapping[str, str] = {
    "alexnet": "paceline.jobs.models.convnets:AlexNet",
    "alexnet-v2": "paceline.jobs.models.convnets:AlexNetV2",
    "cnn": "paceline.jobs.models.small:Cnn",
    "googlenet": "paceline.jobs.models.inception:GoogLeNet",
    "gpt": "paceline.jobs.models.gpt:Gpt",
    "gpt2-small": "paceline.jobs.models.gpt:Gpt2Small",
    "gpt2-medium": "paceline.jobs.models.gpt:Gpt2Medium",
    "gpt2-large": "paceline.jobs.models.gpt:Gpt2Large",
    "gpt2-xl": "paceline.jobs.models.gpt:Gpt2Xl",
    "inception-v3": "paceline.jobs.models.inception:InceptionV3",
    "mlp": "paceline.jobs.models.small:Mlp",
    "nin": "paceline.jobs.models.convnets:NiN",
    "resnet18": "paceline.jobs.models.resnet:ResNet18",
    "resnet50": "paceline.jobs.models.resnet:ResNet50",
    "vgg16": "paceline.jobs.models.convnets:Vgg16",
}

OPTIMIZERS: Mapping[str, str] = {
    "adam": "paceline.jobs.optimizers:Adam",
    "adamw": "paceline.jobs.optimizers:AdamW",
    "lamb": "paceline.jobs.optimizers:Lamb",
    "lars": "paceline.jobs.optimizers:Lars",
    "sgd": "paceline.jobs.optimizers:Sgd",
}

SCHEDULES: Mapping[str, str] = {
    "constant": "paceline.jobs.schedules:Constant",
    "cosine": "paceline.jobs.schedules:Cosine",
    "step": "paceline.jobs.schedules:StepDecay",
    "held": "paceline.jobs.schedules:Held",
}
