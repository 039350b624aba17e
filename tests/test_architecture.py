"""The shape of the package: which way imports point, one name for each type, nobody looks into a strategy.

Each rule is a function that yields what breaks it. ``BROKEN`` are small modules that break one rule each, to show that
the rule can fail.
"""

import ast
import importlib.util
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

Modules = Mapping[Path, ast.Module]
"""Modules by their path inside the package."""

PACKAGE = Path(__file__).parents[1] / "src" / "paceline"
MODULES: Modules = {
    path.relative_to(PACKAGE): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))
}
LAYERS = (
    ("cli",),
    ("api",),
    ("commands",),
    ("loop",),
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
LEVEL = {name: number for number, layer in enumerate(LAYERS) for name in layer}
OUTSIDE = ("__init__", "__main__")
"""The package's own ``__init__.py`` only names what users may import; ``__main__.py`` only starts the command line."""

PROTOCOL = ("__init__", "base", "effects", "messages")
"""The modules of strategies/ that hold no strategy."""
CONCRETE = {
    path: tree
    for path, tree in MODULES.items()
    if path.parts[0] == "strategies" and path.stem not in PROTOCOL
}
CLASSES = [node for tree in CONCRETE.values() for node in tree.body if isinstance(node, ast.ClassDef)]
CLASS_NAMES = {one.name for one in CLASSES}
SETTINGS = {
    field.target.id
    for one in CLASSES
    if any(ast.unparse(decorator).startswith("dataclass(frozen=True") for decorator in one.decorator_list)
    for field in one.body
    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
}
STRATEGY = re.compile(r"\b(strategy|strategies|program|programs|built)(\[[^]]*\])?$")
"""How code names a strategy: ``setup.program``, ``request.built[0]``."""
LOOKS = (
    "asdict",
    "astuple",
    "dir",
    "fields",
    "getattr",
    "hasattr",
    "isinstance",
    "issubclass",
    "replace",
    "type",
    "vars",
)

OPTION = re.compile(r"(^|[^-\w])--([a-z]|$)")
WRITES_OPTIONS = {
    (
        "reports/calibrate.py",
        "following",
    ): "what a calibration ends with, from Python too, is the next command",
    ("reports/predict/sentences.py", "typed"): "a report of what would help; six functions would pass it on",
    ("runtimes/live/failures.py", "command"): "workers and launchers say how to go on after they have failed",
}
"""The functions below the command line that write options all the same, and why they are not handed in from cli/."""


def room(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


def inside(modules: Modules, *but: str) -> Iterator[tuple[Path, ast.AST]]:
    """Every node of every module, except those of some packages."""
    for path, tree in modules.items():
        if room(path) not in (*OUTSIDE, *but):
            yield from ((path, node) for node in ast.walk(tree))


def told(path: Path, node: ast.AST) -> str:
    return f"{path}:{getattr(node, 'lineno', 0)} {ast.unparse(node)[:80]}"


def imported(node: ast.AST) -> list[str]:
    """What of ours a statement imports, in full: ``paceline.strategies.local_sgd``."""
    match node:
        case ast.ImportFrom(module=str(module), names=names, level=0):
            found = [f"{module}.{one.name}" for one in names]
        case ast.Import(names=names):
            found = [one.name for one in names]
        case ast.Constant(value=str(text)) if re.fullmatch(r"paceline(\.\w+)+(:\w+)?", text):
            found = [text.replace(":", ".")]  # an entry of a table of names
        case _:
            found = []
    return [name for name in found if name.split(".")[0] == "paceline"]


def packages_without_a_layer(modules: Modules) -> Iterator[str]:
    return (str(path) for path in modules if room(path) not in (*LEVEL, *OUTSIDE))


def imports_that_do_not_point_down(modules: Modules) -> Iterator[str]:
    """If this found something, a change in a report could break a strategy."""
    for path, node in inside(modules):
        own = LEVEL.get(room(path), len(LEVEL))
        for name in imported(node):
            other = name.partition(".")[2].partition(".")[0]
            if other not in (room(path), "__version__") and LEVEL.get(other, -1) <= own:
                yield told(path, node)


def imports_of_another_runtime(modules: Modules) -> Iterator[str]:
    """If this found something, a change in the simulator could break a live run, or the other way round."""
    for path, node in inside(modules):
        if room(path) != "runtimes":
            continue
        others = [runtime for runtime in ("live", "virtual") if runtime != path.parts[1]]
        for name in imported(node):
            if any(f"{name}.".startswith(f"paceline.runtimes.{runtime}.") for runtime in others):
                yield told(path, node)


def relative_imports(modules: Modules) -> Iterator[str]:
    """The other rules do not see where they point."""
    for path, node in inside(modules):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield told(path, node)


def private_names_of_other_packages(modules: Modules) -> Iterator[str]:
    for path, node in inside(modules):
        for name in imported(node):
            parts = name.split(".")[1:]
            if parts[:1] != [room(path)] and any(re.match(r"_(?!_)", part) for part in parts):
                yield told(path, node)


def type_names_used_twice(modules: Modules) -> Iterator[str]:
    """If this found something, a reader would have to ask which of two things a name means."""
    defined = defaultdict(list)
    for path, tree in modules.items():
        for node in ast.walk(tree):
            match node:
                case ast.ClassDef(name=name):
                    defined[name].append(path)
                case ast.Assign(value=ast.Call(func=ast.Name(id="TypeVar"))):
                    pass  # is only a placeholder
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if (
                    re.fullmatch(r"_*[A-Z](\w*[a-z]\w*)?", name)
                ):
                    defined[name].append(path)
    return (f"{name}: {', '.join(map(str, paths))}" for name, paths in defined.items() if len(paths) > 1)


def uses_of_a_concrete_strategy(modules: Modules) -> Iterator[str]:
    """If this found something, a strategy of a user's own would be predicted worse than ours, or not at all."""
    files = {("paceline", "strategies", path.stem) for path in CONCRETE}
    for path, node in inside(modules, "strategies"):
        names = [tuple(name.split(".")) for name in imported(node)]
        if isinstance(node, ast.Attribute):
            names.append((node.attr,))
        if any(name[:3] in files or name[-1] in CLASS_NAMES for name in names):
            yield told(path, node)


def looks_into_a_strategy(modules: Modules) -> Iterator[str]:
    """As above: its settings and its class are its own affair."""
    for path, node in inside(modules, "strategies", "runtimes"):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[subject, *_]):
                looks = name in LOOKS
            case ast.Attribute(value=subject, attr=name):
                looks = name in SETTINGS or name.startswith("__")
            case ast.Match(subject=subject):
                looks = True
            case _:
                continue
        if looks and STRATEGY.search(ast.unparse(subject)):
            yield told(path, node)


def options_below_the_command_line(
    modules: Modules, but: Mapping[tuple[str, str], str] = WRITES_OPTIONS
) -> Iterator[str]:
    """If this found something, somebody who calls the package from Python would be told to type options."""
    allowed = {
        part
        for path, node in inside(modules)
        if isinstance(node, ast.FunctionDef) and (str(path), node.name) in but
        for part in ast.walk(node)
    }
    for path, node in inside(modules, "cli", "commands"):
        match node:
            case ast.Constant(value=str(text)) if node not in allowed and OPTION.search(text):
                yield told(path, node)


Rule = Callable[[Modules], Iterator[str]]
RULES: list[Rule] = [
    packages_without_a_layer,
    imports_that_do_not_point_down,
    imports_of_another_runtime,
    relative_imports,
    private_names_of_other_packages,
    type_names_used_twice,
    uses_of_a_concrete_strategy,
    looks_into_a_strategy,
    options_below_the_command_line,
]
BROKEN: list[tuple[Rule, str, str]] = [
    (packages_without_a_layer, "plots/lines.py", ""),
    (imports_that_do_not_point_down, "jobs/x.py", "from paceline.reports.text import percent"),
    (imports_that_do_not_point_down, "jobs/x.py", "def late():\n    import paceline.reports.text"),
    (imports_that_do_not_point_down, "jobs/x.py", "from paceline import reports"),
    (imports_that_do_not_point_down, "jobs/x.py", "from paceline import Job"),
    (imports_that_do_not_point_down, "jobs/x.py", "import paceline"),
    (imports_that_do_not_point_down, "jobs/x.py", "TABLE = {'mlp': 'paceline.studies.x:MLP'}"),
    (imports_that_do_not_point_down, "shm/x.py", "from paceline.errors import UsageError"),
    (imports_that_do_not_point_down, "costs/x.py", "from paceline.strategies.base import Strategy"),
    (imports_of_another_runtime, "runtimes/x.py", "from paceline.runtimes.virtual.shape import JobShape"),
    (imports_of_another_runtime, "runtimes/x.py", "def late():\n    from paceline.runtimes import live"),
    (imports_of_another_runtime, "runtimes/live/x.py", "import paceline.runtimes.virtual"),
    (imports_of_another_runtime, "runtimes/virtual/x.py", "from paceline.runtimes.live import request"),
    (relative_imports, "jobs/x.py", "from ..reports import text"),
    (relative_imports, "jobs/x.py", "from . import data"),
    (private_names_of_other_packages, "cli/x.py", "from paceline.shm._words import Futex"),
    (private_names_of_other_packages, "cli/x.py", "from paceline.shm import _words"),
    (private_names_of_other_packages, "cli/x.py", "from paceline.shm.arena import _size"),
    (private_names_of_other_packages, "cli/x.py", "import paceline._words"),
    (type_names_used_twice, "jobs/x.py", "class Kind: ...\nclass Kind: ..."),
    (type_names_used_twice, "jobs/x.py", "class Kind: ...\nKind = Literal['a', 'b']"),
    (type_names_used_twice, "jobs/x.py", "Kind: TypeAlias = int\nif TYPE_CHECKING:\n    Kind = str"),
    (type_names_used_twice, "jobs/x.py", "def make():\n    class Kind: ...\nclass Kind: ..."),
    (uses_of_a_concrete_strategy, "studies/x.py", "from paceline.strategies.local_sgd import LocalSGD"),
    (uses_of_a_concrete_strategy, "studies/x.py", "from paceline.strategies import local_sgd"),
    (uses_of_a_concrete_strategy, "studies/x.py", "import paceline.strategies.local_sgd"),
    (uses_of_a_concrete_strategy, "studies/x.py", "from paceline import ParameterServer"),
    (uses_of_a_concrete_strategy, "studies/x.py", "from paceline import strategies\nstrategies.x.LocalSGD"),
    (uses_of_a_concrete_strategy, "cli/x.py", "import_module('paceline.strategies.local_sgd')"),
    (looks_into_a_strategy, "studies/x.py", "isinstance(strategy, Elastic)"),
    (looks_into_a_strategy, "studies/x.py", "getattr(setup.program, 'period', None)"),
    (looks_into_a_strategy, "studies/x.py", "dataclasses.fields(request.built[0])"),
    (looks_into_a_strategy, "studies/x.py", "asdict(self.strategy)"),
    (looks_into_a_strategy, "studies/x.py", "type(strategy).__name__"),
    (looks_into_a_strategy, "studies/x.py", "match setup.program:\n    case Elastic(): ..."),
    (looks_into_a_strategy, "studies/x.py", "strategy.__class__"),
    (looks_into_a_strategy, "reports/x.py", "setup.program.staleness"),
    (looks_into_a_strategy, "reports/x.py", "strategy.period.steps"),
    (options_below_the_command_line, "jobs/x.py", "raise UsageError('leave out --data')"),
    (options_below_the_command_line, "jobs/x.py", "raise UsageError(f'leave out --{name}')"),
    (options_below_the_command_line, "jobs/x.py", "typed = '--' + name"),
    (options_below_the_command_line, "jobs/x.py", "def typed(name): return f'--{name}'"),
    (options_below_the_command_line, "reports/predict/sentences.py", "HINT = 'try --memory'"),
]
ALLOWED = [
    ("cli/x.py", "from paceline import __version__, jobs\nraise UsageError(f'leave out --{name}')"),
    ("jobs/x.py", "import torch\nfrom paceline import specs\nfrom paceline.jobs._files import _read"),
    ("jobs/x.py", "class Model: ...\nT = TypeVar('T')\nMOST = 1\nkind = 2\nkind = 3\nMOST = 4"),
    ("shm/x.py", "T = TypeVar('T')\nT = TypeVar('T')\n'a -- b'\n'-----'\n'well--known'"),
    ("studies/x.py", "from paceline.strategies import STRATEGIES, build_strategy"),
    (
        "studies/x.py",
        "from paceline.strategies.base import Strategy\nstrategy.served, setup.program.worker(me)",
    ),
    ("studies/x.py", "isinstance(effect, Send), match.period, replace(request, strategy=strategy)"),
    (
        "runtimes/live/worker/x.py",
        "from paceline.runtimes.live import request\nimport paceline.runtimes.flat",
    ),
    ("runtimes/live/failures.py", "def command(name): return f'--{name}'"),
]


@pytest.mark.parametrize("rule", RULES)
def test_the_package_keeps_the_rule(rule: Rule) -> None:
    assert list(rule(MODULES)) == []


@pytest.mark.parametrize(("rule", "path", "source"), BROKEN)
def test_a_broken_rule_is_found(rule: Rule, path: str, source: str) -> None:
    assert len(list(rule({Path(path): ast.parse(source)}))) >= 1


@pytest.mark.parametrize(("path", "source"), ALLOWED)
def test_what_is_allowed_breaks_no_rule(path: str, source: str) -> None:
    modules = {Path(path): ast.parse(source)}
    assert [found for rule in RULES for found in rule(modules)] == []


def test_every_rule_was_seen_to_fail() -> None:
    assert {rule for rule, _, _ in BROKEN} == set(RULES)


def test_no_layer_and_no_exception_outlives_its_reason() -> None:
    assert {room(path) for path in MODULES} == {*LEVEL, *OUTSIDE}
    assert {"LocalSGD", "ParameterServer"} <= CLASS_NAMES
    assert {"period", "staleness", "bucket"} <= SETTINGS
    for one in WRITES_OPTIONS:
        others = {key: why for key, why in WRITES_OPTIONS.items() if key != one}
        assert list(options_below_the_command_line(MODULES, others)) != [], one


def test_new_interpreters_import_the_tree_that_the_tests_belong_to(tmp_path: Path) -> None:
    """If this failed, processes of tests in a second work tree would run the package that is installed."""
    code = "import importlib.util; print(importlib.util.find_spec('paceline').origin)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found = importlib.util.find_spec("paceline")
    assert found is not None
    assert {done.stdout.strip(), found.origin} == {str(PACKAGE / "__init__.py")}
