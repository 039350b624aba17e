"""Specs are how users name strategies; one that is misread or ignored trains something else than they asked for."""

import sys
from dataclasses import dataclass
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

import pytest

from paceline.cli.main import COMMANDS
from paceline.codecs import CODECS
from paceline.errors import UsageError
from paceline.jobs import DATA, MODELS, OPTIMIZERS, SCHEDULES
from paceline.specs import build, describe, find, list_command, show, split
from paceline.specs.ranges import Range, RangeChecked, at_least
from paceline.strategies import STRATEGIES
from paceline.strategies.local_sgd import LocalSGD
from paceline.units import Period


def make(text):
    return build(text, STRATEGIES, "strategy")


def test_settings_reach_the_strategy():
    assert make("local-sgd:period=4") == LocalSGD(period=Period(steps=4))
    assert make("local-sgd:period=0.5s") == LocalSGD(period=Period(seconds=0.5))
    assert make("all-reduce:bucket=1MiB,first-bucket=2 kB").first_bucket == 2000


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_shown_spec_makes_the_same_strategy(name):
    thing = make(name)
    assert make(show(name, thing)) == thing


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("local-sdg", "unknown strategy 'local-sdg'; did you mean 'local-sgd'?"),
        (
            "LOCAL-SGD",
            f"unknown strategy 'LOCAL-SGD'; did you mean 'local-sgd'? ({', '.join(STRATEGIES)}; see '",
        ),
        (
            "zzz",
            f"unknown strategy 'zzz'; choose one of: {', '.join(STRATEGIES)}; see 'paceline",
        ),
        ("local-sgd:perod=4", "unknown setting 'perod' of strategy 'local-sgd'; did you mean 'period'?"),
        ("local-sgd:period", "'period' in 'local-sgd:period' is not a setting"),
        ("local-sgd:period=4,period=5", "'period' is set twice"),
        (
            "local-sgd:period=0",
            "strategy 'local-sgd:period=0': a period of 0 steps is too short: it must be at least 1 step",
        ),
        ("local-sgd:period=0s", "more than 0 s"),
        ("local-sgd:period=x", "'x' is not a period"),
        ("all-reduce:bucket=0", "at least 1 B"),
        ("all-reduce:bucket=5 parsec", "'5 parsec' is not a size"),
    ],
)
def test_a_bad_spec_is_one_clear_sentence(text, words):
    with pytest.raises(UsageError) as mistake:
        make(text)
    assert words in str(mistake.value)
    assert "\n" not in str(mistake.value)


@pytest.mark.parametrize("kind", ["strategy", "model", "data", "optimizer", "schedule"])
def test_a_mistake_names_a_command_that_there_is(kind):
    assert list_command(kind) in COMMANDS
    with pytest.raises(UsageError, match=f"see 'paceline {list_command(kind)}'"):
        build("nothing-like-it", STRATEGIES, kind)


def test_split_keeps_values_whole():
    assert split("synthetic:shape=3x32x32, classes=10", DATA) == (
        "synthetic",
        {"shape": "3x32x32", "classes": "10"},
    )


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_setting_says_which_way_it_turns(name):
    line, settings = describe(STRATEGIES[name])
    assert line
    assert all(setting.help and setting.default for setting in settings)


DECLARED = [
    (path, field)
    for table in (STRATEGIES, CODECS, MODELS, OPTIMIZERS, SCHEDULES, DATA)
    for path in table.values()
    for field, hint in get_type_hints(find(path), include_extras=True).items()
    if get_origin(hint) is Literal or any(isinstance(one, Range) for one in getattr(hint, "__metadata__", ()))
]


@pytest.mark.parametrize(("path", "field"), DECLARED)
def test_a_class_made_in_python_is_held_to_its_ranges_too(path, field):
    with pytest.raises(UsageError, match=rf"{field}=-1 is (out of range; it must be|unknown; choose)"):
        find(path)(**{field: -1})


AtLeast1 = Annotated[int, at_least(1)]


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (Literal[1, 2], "2", 2),
        (Literal[1, 2], "3", "setting=3 is unknown; choose 1 or 2"),
        (Literal["x"], "y", "setting=y is unknown; choose x"),
        (Literal["a", "b", "c"], "d", "setting=d is unknown; choose a, b or c"),
        (Literal["a", "b"] | None, "a", "a"),
        (Literal["a", "b"] | None, "c", "setting=c is unknown; choose a or b"),
        (AtLeast1 | None, "1", 1),
        (AtLeast1 | None, "0", "setting=0 is out of range; it must be at least 1"),
        (AtLeast1 | None, "x", "'x' is not a value for setting of 'thing': it must be a whole number"),
        (Annotated[int | None, at_least(1)], "0", "setting=0 is out of range; it must be at least 1"),
        (AtLeast1 | Literal["auto"], "auto", "auto"),
        (AtLeast1 | Literal["auto"], "0", "setting=0 is out of range; it must be at least 1 or auto"),
        (AtLeast1 | Literal["auto"], "x", "it must be a whole number; or auto"),
    ],
)
def test_choices_and_ranges_may_be_members_of_a_union(hint, text, value, monkeypatch):
    """The user's own plug-in may have any of these; one that is misread or not checked trains something else."""
    thing = dataclass(kw_only=True)(type("Thing", (RangeChecked,), {"__annotations__": {"setting": hint}}))
    monkeypatch.setattr(sys.modules[__name__], "Thing", thing, raising=False)

    def made():
        return build(f"thing:setting={text}", {"thing": f"{__name__}:Thing"}, "model").setting

    if isinstance(value, str) and " " in value:
        with pytest.raises(UsageError) as mistake:
            made()
        assert str(mistake.value).endswith(value)
    else:
        assert made() == value
    if type(None) in get_args(hint):
        assert thing(setting=None).setting is None
