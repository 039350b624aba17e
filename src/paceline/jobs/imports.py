"""A user's own job or model, by import path; whatever goes wrong in it is told in one sentence."""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from paceline.errors import UsageError
from paceline.jobs.batches import check_loss
from paceline.jobs.data.tensors import as_data
from paceline.jobs.job import Job

_CRASHES = (Exception, SystemExit)
"""What a user's code may end with; Ctrl-C stays Ctrl-C."""


def import_job(path: str) -> Job:
    """Call the function behind "module:function" or "file.py:function" and check the job that it returns.

    The current folder, or the file's, becomes importable and stays so: a job may import more when it is used.
    """
    where = f"--job {path}"
    job = call(import_function(path, "--job"), where)
    if not isinstance(job, Job):
        name, kind = _name(path), type(job).__name__
        raise UsageError(f"{where}: {name}() returned a {kind}; it must return a paceline.jobs.Job")
    return checked_job(where, job)


def import_function(path: str, option: str) -> Callable[[], Any]:
    """The function behind a path; ``option`` is where the user wrote it, such as "--job"."""
    source, colon, name = path.rpartition(":")
    if not (source and colon and name):
        raise UsageError(
            f"{option} {path!r} is not an import path: write module:function or file.py:function"
        )
    where = f"{option} {path}"
    module = _import_file(where, Path(source)) if source.endswith(".py") else _import_module(where, source)
    return _find(where, module, name)


def call(function: Callable[[], Any], where: str) -> Any:
    """What a user's function returns; ``where`` ends with its path."""
    try:
        return function()
    except UsageError as mistake:
        raise UsageError(f"{where}: {mistake}") from mistake
    except _CRASHES as error:
        raise UsageError(f"{where}: {_name(where)}() raised {_say(error)}") from error


def _name(path: str) -> str:
    return path.rpartition(":")[2]


def _import_module(where: str, name: str) -> ModuleType:
    _make_importable(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise UsageError(f"{where}: module {name!r} does not import: {_say(error)}") from error
        raise UsageError(
            f"{where}: there is no module {error.name!r} in {Path.cwd()} or among the installed ones; "
            "run from the folder that holds it, or write file.py:function"
        ) from error
    except _CRASHES as error:
        raise UsageError(f"{where}: module {name!r} does not import: {_say(error)}") from error


def _import_file(where: str, file: Path) -> ModuleType:
    if not file.is_file():
        raise UsageError(f"{where}: there is no file {file.absolute()}; check the name")
    _make_importable(file.absolute().parent)
    # A name of its own, so that the file cannot stand in for a module that happens to be called the same.
    spec = importlib.util.spec_from_file_location(f"paceline_job_{file.stem}", file)
    assert spec is not None, "a .py file always has a loader"
    assert spec.loader is not None, "a .py file always has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except _CRASHES as error:
        del sys.modules[spec.name]
        raise UsageError(f"{where}: {file} does not run: {_say(error)}") from error
    return module


def _make_importable(folder: Path) -> None:
    importlib.invalidate_caches()
    known = {str(Path(entry).absolute()) for entry in sys.path}
    if str(folder) not in known:
        sys.path.insert(0, str(folder))


def _find(where: str, module: ModuleType, name: str) -> Callable[[], Any]:
    if not hasattr(module, name):
        own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        near = get_close_matches(name, own, n=3, cutoff=0.5)
        guess = f"did you mean {' or '.join(map(repr, near))}?" if near else "check the name after the colon"
        raise UsageError(f"{where}: {module.__file__ or module.__name__} has no {name!r}; {guess}")
    function = getattr(module, name)
    if not callable(function):
        raise UsageError(f"{where}: {name!r} is a {type(function).__name__}, not a function")
    found: Callable[[], Any] = function
    return found


def checked_job(where: str, job: Job) -> Job:
    """The job with its data ready for batches; a UsageError that starts with ``where`` says what is wrong."""
    if isinstance(job.model, nn.Module):
        kind = type(job.model).__name__
        raise UsageError(f"{where}: its model is a {kind} already made; write model=lambda: {kind}(...)")
    functions = {"model": job.model, "optimizer": job.optimizer, "schedule": job.schedule}
    optional = {"loss": job.loss, "compute_loss": job.compute_loss, "collate": job.collate}
    functions |= {name: function for name, function in optional.items() if function is not None}
    functions |= {f"metric {name!r}": metric for name, metric in job.metrics.items()}
    for name, function in functions.items():
        if not callable(function):
            raise UsageError(f"{where}: its {name} is a {type(function).__name__}; it must be a function")
    train, batch = as_data(job.train, f"{where}: its training data", job.collate)
    test = None if job.test is None else as_data(job.test, f"{where}: its test data", job.collate)[0]
    try:
        check_loss(job, batch)
    except UsageError as mistake:
        raise UsageError(f"{where}: {mistake}") from mistake
    return replace(job, train=train, test=test)


def _say(error: BaseException) -> str:
    """The error as Python's last line says it, and where it was raised."""
    said = f"{type(error).__name__}: {error}".rstrip(": ").replace("\n", " ")
    ours = (__file__, importlib.__file__)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in ours and not frame.filename.startswith("<frozen")
    ]
    if isinstance(error, SyntaxError) or not frames:
        return said
    return f"{said} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
