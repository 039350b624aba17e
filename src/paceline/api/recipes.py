"""Recipes: values of options that belong together, and the paper that they come from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline import jobs, specs
from paceline.errors import unknown
from paceline.jobs.spec import JobSpec

PARTS: Mapping[str, tuple[Mapping[str, str], str]] = {
    "optimizer": (jobs.OPTIMIZERS, JobSpec.optimizer),
    "schedule": (jobs.SCHEDULES, JobSpec.schedule),
    "model": (jobs.MODELS, JobSpec.model),
}
"""Options that are specs: their table and their default."""


@dataclass(frozen=True)
class Ingredient:
    option: str
    value: str
    """Of the option, or of settings of its spec, "momentum=0.9,nesterov=true", which go together."""
    words: str

    @property
    def settings(self) -> dict[str, str]:
        return dict(piece.split("=") for piece in self.value.split(","))


@dataclass(frozen=True)
class Recipe:
    source: str
    ingredients: tuple[Ingredient, ...]


RECIPES: Mapping[str, Recipe] = {
    "large-batch": Recipe(
        "Goyal et al., 2017",
        (
            Ingredient("scale_lr", "linear", "the learning rate scaled linearly with the batch"),
            Ingredient("schedule", "warmup=5", "5 epochs of gradual warm-up"),
            Ingredient("optimizer", "momentum=0.9,nesterov=true", "Nesterov momentum 0.9"),
            Ingredient("optimizer", "decay=weights", "no weight decay on biases and batch norm"),
            Ingredient("model", "zero_gamma=true", "gamma 0 in each block's last batch norm"),
        ),
    )
}


def check_recipe(name: str) -> None:
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)


def follow(name: str, given: Mapping[str, object]) -> tuple[dict[str, Any], str]:
    """The options as a recipe has them, and a sentence that says what it turns on; what was ``given`` stays."""
    changed: dict[str, Any] = {}
    on, kept, lacking = list[str](), list[str](), list[str]()
    for one in RECIPES[name].ingredients:
        own = own_values(one, given)
        missing = missing_setting(one, given)
        if missing:
            lacking.append(missing)
        elif own:
            kept += own
        else:
            changed[one.option] = _added(one, changed.get(one.option) or given.get(one.option))
            on.append(one.words)
    return changed, _sentence(name, on, kept, list(dict.fromkeys(lacking)))


def own_values(one: Ingredient, given: Mapping[str, object]) -> list[str]:
    """What was given in place of an ingredient, for people."""
    if one.option not in given:
        return []
    if one.option not in PARTS:
        return [f"{one.option.replace('_', '-')} {given[one.option]}"]
    found = specs.split(str(given[one.option]), PARTS[one.option][0])[1]
    found = {key.replace("-", "_"): value for key, value in found.items()}
    return [f"{key}={found[key]}" for key in one.settings if key in found]


def missing_setting(one: Ingredient, given: Mapping[str, object]) -> str:
    """Why an ingredient has no place; empty where it has one."""
    if one.option not in PARTS:
        return ""
    if "job" in given:
        return f"job {given['job']} brings its own {one.option}"
    table, default = PARTS[one.option]
    name = specs.split(str(given.get(one.option, default)), table)[0]
    known = [setting.name for setting in specs.describe(table[name])[1]] if name in table else []
    missing = [key for key in one.settings if key not in known]
    return f"{one.option} {name} has no {missing[0]}" if missing else ""


def _added(one: Ingredient, before: object) -> str:
    if one.option not in PARTS:
        return one.value
    table, default = PARTS[one.option]
    spec = str(before or default)
    for key, value in one.settings.items():
        spec = specs.with_setting(spec, table, key, value)
    return spec


def _sentence(name: str, on: list[str], kept: list[str], lacking: list[str]) -> str:
    words = f"recipe {name} ({RECIPES[name].source}) turns on: {', '.join(on) or 'nothing'}"
    words += f"; as you gave it: {', '.join(kept)}" if kept else ""
    return words + (f"; {', '.join(lacking)}" if lacking else "")
