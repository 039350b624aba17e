"""The models that ship, and how large they are on what they are usually fed."""

import tomllib
from pathlib import Path
from typing import Any


def model_sizes() -> dict[str, dict[str, Any]]:
    """By name: the sample, the classes, the parameters, and the multiply-adds of one sample's forward."""
    return tomllib.loads((Path(__file__).parents[1] / "files" / "models.toml").read_text())
