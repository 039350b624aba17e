"""The shape of the package: which way imports point, one name for each class, nobody looks into a strategy."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "paceline"
LAYERS = (
    ("cli",),
    ("reports",),
    ("studies",),
    ("runtimes",),
    ("strategies", "costs"),
    ("collectives", "codecs"),
    ("clusters", "jobs"),
    ("records",),
    ("specs",),
    ("units",),
    ("errors", "shm"),
)
"""From the top down: a module imports from its own package and from those below."""
OPTION = re.compile(r"(^|[^-\w])--[a-z][a-z-]+")
MODULES = {path.relative_to(PACKAGE): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
OUTSIDE_STRATEGIES = [
    path for path in MODULES if path.parts[0] not in ("__init__.py", "strategies", "runtimes")
]
"""The package's own ``__init__.py`` only names what users may import."""


def room(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """The modules of ours that a module imports, at its top or inside of functions."""
    for node in ast.walk(MODULES[path]):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] == "paceline":
                yield from (f"{module}.{one.name}" if module == "paceline" else module for one in names)
            case ast.Import(names=names):
                yield from (one.name for one in names if one.name.startswith("paceline"))


def test_every_package_has_its_layer():
    known = {name for layer in LAYERS for name in layer}
    assert {room(path) for path in MODULES} - {"__init__", "__main__"} == known


def test_imports_point_down():
    """If this failed, a change in a report could break a strategy."""
    level = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    wrong = [
        (str(path), module)
        for path in MODULES
        if room(path) in level
        for module in imports(path)
        if (other := module.split(".")[1]) in level
        and other != room(path)
        and level[other] <= level[room(path)]
    ]
    assert wrong == []


def test_neither_runtime_is_imported_by_the_other_or_by_what_they_share():
    """If this failed, a change in the simulator could break a live run, or the other way round."""
    wrong = [
        (str(path), module)
        for path in MODULES
        if room(path) == "runtimes"
        for module in imports(path)
        for runtime in ("live", "virtual")
        if f"{module}.".startswith(f"paceline.runtimes.{runtime}.") and path.parts[1] != runtime
    ]
    assert wrong == []


def test_nobody_uses_a_private_module_of_another_package():
    wrong = [
        (str(path), module)
        for path in MODULES
        for module in imports(path)
        if any(part.startswith("_") and not part.startswith("__") for part in module.split("."))
        and module.split(".")[1] != room(path)
    ]
    assert wrong == []


def test_a_class_name_is_used_once():
    """If this failed, a reader would have to ask which of two things a name means."""
    defined = defaultdict(list)
    for path, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(str(path))
    assert {name: paths for name, paths in defined.items() if len(paths) > 1} == {}


def test_nobody_imports_a_concrete_strategy():
    """If this failed, a strategy of a user's own would be predicted worse than ours, or not at all."""
    protocol = {"paceline.strategies", "paceline.strategies.base", "paceline.strategies.effects"}
    protocol |= {"paceline.strategies.messages"}
    wrong = [
        (str(path), module)
        for path in OUTSIDE_STRATEGIES
        for module in imports(path)
        if module.startswith("paceline.strategies") and module not in protocol
    ]
    assert wrong == []


@pytest.mark.parametrize("name", ["getattr", "hasattr", "isinstance", "vars", "fields"])
def test_nobody_asks_a_strategy_for_its_settings_or_its_class(name):
    wrong = [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for path in OUTSIDE_STRATEGIES
        for node in ast.walk(MODULES[path])
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == name
        and node.args
        and re.search(r"\bstrategy\b", ast.unparse(node.args[0]))
    ]
    assert wrong == []


def test_no_module_below_the_command_line_names_an_option():
    """If this failed, somebody who calls the package from Python would be told to type options."""
    wrong = [
        f"{path}:{node.lineno} {node.value[:60]!r}"
        for path, tree in MODULES.items()
        if room(path) != "cli"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and OPTION.search(node.value)
    ]
    assert wrong == []
