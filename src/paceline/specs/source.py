"""The code behind an import path: read without running it, or imported.

An import path is "package.module:name" or "path/to/file.py:name".
"""

import ast
import hashlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from paceline.errors import UsageError, raised

CRASHES = (Exception, SystemExit)
"""What a user's code may end with; Ctrl-C stays Ctrl-C."""


@dataclass(frozen=True)
class Setting:
    """One setting as a list of plug-ins shows it."""

    name: str
    default: str
    help: str


@cache
def describe(path: str) -> tuple[str, list[Setting]]:
    """The first line of a shipped class's docstring, and its settings: read from its source, to import no torch."""
    line = ""
    settings: dict[str, Setting] = {}
    for node, names in _lineage(path):
        line = (ast.get_docstring(node) or line).partition("\n")[0]
        for field, following in pairwise([*node.body, ast.Pass()]):
            match field:
                case ast.AnnAssign(target=ast.Name(id=name)) if "ClassVar" not in ast.unparse(
                    field.annotation
                ):
                    text = settings[name].help if name in settings else ""
                    match following:
                        case ast.Expr(value=ast.Constant(value=str(found))):
                            text = inspect.cleandoc(found)
                    settings[name] = Setting(name, _default(field.value, names), text)
    return line, list(settings.values())


def _lineage(path: str) -> Iterator[tuple[ast.ClassDef, Mapping[str, str]]]:
    """A class after the classes that it inherits from, each with where the names of its module come from."""
    module, _, name = path.partition(":")
    spec = importlib.util.find_spec(module)
    assert spec is not None
    tree = ast.parse(Path(spec.origin or "").read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    names = {defined: f"{module}:{defined}" for defined in classes} | {
        alias.name: f"{node.module}:{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("paceline", "math")
        for alias in node.names
    }
    for base in map(ast.unparse, classes[name].bases):
        if base in names:
            yield from _lineage(names[base])
    yield classes[name], names


def _default(value: ast.expr | None, names: Mapping[str, str]) -> str:
    if value is None:
        return ""
    used = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    ours = {name: getattr(importlib.import_module(names[name].partition(":")[0]), name) for name in used}
    return str(eval(ast.unparse(value), ours))  # noqa: S307  our own types, called with literals


def source_files(path: str) -> list[Path]:
    """The files that importing a path would run first, in order; none of them is run.

    A module's packages come before it. Empty where there is no such module, or where it is not read from a file.
    """
    source = path.rpartition(":")[0]
    if source.endswith(".py"):
        return [Path(source).absolute()] if Path(source).is_file() else []
    files: list[Path] = []
    search = [str(Path.cwd()), *sys.path]
    parts = source.split(".")
    for length in range(1, len(parts) + 1):
        name = ".".join(parts[:length])
        spec = next((found for finder in sys.meta_path if (found := finder.find_spec(name, search))), None)
        if spec is None or (length == len(parts) and not spec.has_location):
            return []
        if spec.has_location and spec.origin:
            files.append(Path(spec.origin).absolute())
        search = list(spec.submodule_search_locations or [])
    return files


def load(path: str, kind: str) -> Any:
    """Import a path and return what it names; a UsageError of one sentence says what is wrong in it.

    The current folder, or the file's, becomes importable and stays so: the code may import more when it is used.
    """
    source, colon, name = path.rpartition(":")
    if not (source and colon and name):
        raise UsageError(f"{kind} {path!r} is not an import path: write module:name or file.py:name")
    where = f"{kind} {path}"
    module = _import_file(where, Path(source)) if source.endswith(".py") else _import_module(where, source)
    if not hasattr(module, name):
        own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        near = get_close_matches(name, own, n=3, cutoff=0.5)
        guess = f"did you mean {' or '.join(map(repr, near))}?" if near else "check the name after the colon"
        raise UsageError(f"{where}: {module.__file__ or module.__name__} has no {name!r}; {guess}")
    return getattr(module, name)


def _import_module(where: str, name: str) -> ModuleType:
    _make_importable(Path.cwd())
    try:
        return importlib.import_module(name)
    except CRASHES as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{name}.".startswith(f"{missing}."):
            raise UsageError(
                f"{where}: there is no module {missing!r} in {Path.cwd()} or among the installed ones; "
                "run from the folder that holds it, or write file.py:name"
            ) from error
        raise UsageError(f"{where}: module {name!r} does not import: {raised(error)}") from error


def _import_file(where: str, file: Path) -> ModuleType:
    if not file.is_file():
        raise UsageError(f"{where}: there is no file {file.absolute()}; check the name")
    _make_importable(file.absolute().parent)
    # A name of its own, so that the file cannot replace a module that happens to be called the same.
    code = hashlib.sha256(str(file.absolute()).encode() + file.read_bytes()).hexdigest()[:12]
    name = f"paceline_plugin_{file.stem}_{code}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file.absolute())
    assert spec is not None and spec.loader is not None, "a .py file always has a loader"  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except CRASHES as error:
        del sys.modules[name]
        raise UsageError(f"{where}: {file} does not run: {raised(error)}") from error
    return module


def _make_importable(folder: Path) -> None:
    importlib.invalidate_caches()
    if str(folder) not in {str(Path(entry).absolute()) for entry in sys.path}:
        sys.path.insert(0, str(folder))


def fingerprints(path: str) -> dict[str, str]:
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in source_files(path)}


def check_trusted(path: str, known: Mapping[str, str], folder: Path, where: str, fix: str) -> None:
    """Refuse to import code that lies in a run folder, or that is not what the run last ran with; nothing is run.

    ``known`` is what ``fingerprints`` gave when the run began; ``where`` names the folder for the user, and ``fix``
    says what can be done about code that is found.
    """
    found = fingerprints(path)
    source, _, name = path.rpartition(":")
    if not found:
        raise UsageError(
            f"{where} would call {name}() of {source!r}, which is not found in {Path.cwd()} or among the "
            "installed modules; run from the folder that holds it"
        )
    for file, digest in found.items():
        wrong = ""
        if Path(file).resolve().is_relative_to(folder.resolve()):
            wrong = "lies in the run folder itself; read it, then"
        elif Path(file).stat().st_uid not in (
            0,
            os.geteuid(),
        ):  # its owner could have put its digest in the folder
            wrong = "belongs to another user; read it, then"
        elif digest not in known.values():
            then = " or ".join(one[:12] for one in known.values()) or "known"
            wrong = f"is not what the run last ran with (SHA-256 {digest[:12]}, not {then}); put it back, or"
        if wrong:
            raise UsageError(f"{where} would run {file} and call {name}(), and that file {wrong} {fix}")
