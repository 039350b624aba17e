"""``import paceline``: quick, without torch, and it says what there is."""

import inspect
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

import paceline

ROOT = Path(__file__).parents[2]


def test_an_import_brings_neither_torch_nor_anything_else_of_ours():
    code = (
        "import sys; before = set(sys.modules); import paceline; found = set(sys.modules) - before; "
        "print(sorted(name for name in found if name.startswith(('paceline', 'torch', 'numpy'))))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    assert done.stdout.strip() == "['paceline']"


@pytest.mark.parametrize(
    "name", ["predict", "simulate", "train", "plan", "explain", "compare", "load_run", "report"]
)
def test_functions_are_found_without_torch(name):
    code = f"import sys, paceline; paceline.{name}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_dir_and_all_name_everything_and_each_is_there():
    assert set(paceline.__all__) <= set(dir(paceline))
    assert {"predict", "Job", "Strategy", "Codec", "Gradient", "distribute", "UsageError"} <= set(
        paceline.__all__
    )
    for name in paceline.__all__:
        assert getattr(paceline, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        paceline.nothing  # noqa: B018


def test_what_type_checkers_see_is_what_there_is():
    source = inspect.getsource(paceline).partition("if TYPE_CHECKING:")[2].partition("\n\n__version__")[0]
    seen = {line.rpartition(" as ")[2] for line in source.splitlines() if " as " in line}
    assert seen == set(paceline.__all__) - {"__version__"}
    # A list that is computed would hide all of them from a star import.
    assert "\n__all__" not in inspect.getsource(paceline)


FUNCTIONS = [
    name
    for name in paceline.__all__
    if name.islower() and getattr(getattr(paceline, name), "__module__", "").startswith("paceline.api")
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_says_what_it_does_and_takes(name):
    function = getattr(paceline, name)
    text = inspect.getdoc(function) or ""
    assert len(text) > 20
    named = "Args:" in text
    own = [
        one.name
        for one in inspect.signature(function).parameters.values()
        if named and one.kind is not one.VAR_KEYWORD
    ]
    assert [one for one in own if f"    {one}: " not in text] == []
    assert named or "bench_" in name or name == "load_sweep"


def test_functions_were_found():
    assert {"predict", "simulate", "train", "load_run", "bench_scaling", "calibrate"} <= set(FUNCTIONS)


DRAWS = """
import random, torch, paceline
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
random.seed(1)
paceline.distribute(model, optimizer)
model(torch.ones(2, 2)).sum().backward()
optimizer.step()
print(random.random())
"""


def test_a_script_has_its_own_random_numbers(tmp_path):
    """If this failed, one that seeds Python's stream would see other numbers with paceline than without."""
    done = subprocess.run(
        [sys.executable, "-c", DRAWS], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert float(done.stdout) == Random(1).random()
