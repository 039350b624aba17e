"""``config.json``: what a run was asked to do, for people and for a run that goes on."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_type_hints

from paceline import specs
from paceline.errors import UsageError
from paceline.jobs import DATA, MODELS, OPTIMIZERS, SCHEDULES
from paceline.records.files import (
    DamagedFile,
    digest_of,
    from_document,
    read_json,
    read_sealed,
    to_document,
    write_sealed,
)
from paceline.records.folder import RunFolder
from paceline.records.summary import read_summary
from paceline.records.tensors import RunIdentity, new_run_id
from paceline.runtimes.settings import Settings
from paceline.specs.source import check_trusted, fingerprints
from paceline.strategies import STRATEGIES

SCHEMA = 4

_CHANGEABLE = ("epochs", "iterations", "target_accuracy", "evaluate", "checkpoint", "keep")
"""Settings that decide how long a run goes on and what is kept of it, and not what it computes."""

_NEW_RUN = "a run goes on as it began: start a new one with 'paceline train' and the options that you want"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Which node each worker and each server is on, by rank."""

    workers: tuple[int, ...]
    servers: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Config:
    """All that ``config.json`` says."""

    runtime: Literal["live", "virtual"]
    identity: RunIdentity
    settings: Settings
    """With every default of their specs written out."""
    machinery: dict[str, Any]
    """What the run ran on, which does not decide the result."""
    placement: Placement
    code: dict[str, str]
    """The files of a user's own code that the run imports, each with its SHA-256."""
    origin: str
    """The run folder and step that the first checkpoint was made from; empty for a run that began with step 1."""


def write_config(
    folder: RunFolder,
    settings: Settings,
    runtime: Literal["live", "virtual"],
    machinery: Mapping[str, Any],
    *,
    identity: RunIdentity | None = None,
    placement: Placement | None = None,
    origin: str = "",
) -> None:
    """Write the resolved settings, and beside them who the run is and what it ran on.

    Without an ``identity`` it is a new run; without a ``placement`` it is on one host and has no servers.
    """
    config = Config(
        runtime=runtime,
        identity=identity or new_identity(settings),
        settings=resolved(settings),
        machinery=dict(machinery),
        placement=placement or Placement(workers=(0,) * settings.workers),
        code={file: digest for path in import_paths(settings) for file, digest in fingerprints(path).items()},
        origin=origin,
    )
    write_sealed(folder.config, {"schema": SCHEMA, **to_document(config)})


def new_identity(settings: Settings, run: str | None = None) -> RunIdentity:
    """The identity of a run that begins, with an id of its own unless it has one; the same on every host."""
    return RunIdentity(run=run or new_run_id(), settings=digest_of(_fixed(settings)))


def _fixed(settings: Settings) -> dict[str, Any]:
    """What may not change when the run resumes; where its data lies may."""
    document = to_document(resolved(settings))
    document["job"].pop("data_dir")
    return {name: value for name, value in document.items() if name not in _CHANGEABLE}


def read_config(folder: RunFolder) -> Config:
    """All that an earlier run wrote, every field of its type; else a UsageError that says why it cannot be had."""
    document = _read(folder)
    try:
        config = from_document(document, Config)
        if digest_of(to_document(config)) != digest_of(document):
            raise UsageError("it has other fields")
        if config.runtime == "live":
            _check_machinery(config.machinery)
    except ValueError as error:
        raise UsageError(f"{folder.config} cannot be read ({error}); {_NEW_RUN}") from error
    return config


def _read(folder: RunFolder) -> dict[str, Any]:
    try:
        document = read_sealed(folder.config)
    except FileNotFoundError:
        why = "it holds no config.json" if folder.path.is_dir() else "there is no such folder"
        raise UsageError(
            f"{folder.path} is not the folder of a run: {why}; see what 'ls runs' shows"
        ) from None
    except OSError as error:
        raise UsageError(f"{folder.config} cannot be read ({error.strerror}); see who may read it") from error
    except DamagedFile as damage:
        raise UsageError(f"{damage}, {_made_by(folder)}") from damage
    schema = document.pop("schema", None)
    if schema != SCHEMA:
        raise UsageError(
            f"{folder.config} is of schema {schema}, which another paceline wrote, and this one "
            f"reads schema {SCHEMA}; use that paceline, or start a new run with 'paceline train'"
        )
    return document


def _made_by(folder: RunFolder) -> str:
    """Why a document without a right digest is refused: an older paceline wrote none."""
    try:
        document = read_json(folder.config)
    except (DamagedFile, OSError):
        return f"and {_NEW_RUN}"
    if isinstance(document, dict) and document.get("schema") == 1 and "digest" not in document:
        return (
            "or an older paceline, up to 0.1, wrote it, whose runs this one does not read: use that paceline, "
            "or start a new run with 'paceline train'"
        )
    return f"and {_NEW_RUN}"


def _check_machinery(machinery: dict[str, Any]) -> None:
    from paceline.runtimes.live.options import LiveOptions

    hints = get_type_hints(LiveOptions)
    for name, value in machinery.items():
        try:
            from_document(value, hints.get(name, type(None)))
        except ValueError as error:
            raise UsageError(f"machinery.{name} is {value!r}") from error


def read_settings(folder: RunFolder) -> Settings:
    """The settings of an earlier live run, or a UsageError that says why they cannot be had."""
    return read_live(folder).settings


def check_unfinished(folder: RunFolder, settings: Settings) -> None:
    """Refuse to resume a run that has done all its steps, where its summary says so; else its workers find out."""
    try:
        summary = read_summary(folder)
    except (DamagedFile, OSError, UsageError):
        return
    if summary.ending != "budget" or not summary.epochs:
        return
    last = settings.iterations
    if last is None:
        last = round((settings.epochs or 0) * summary.steps / summary.epochs)
    if last <= summary.steps:
        raise already_complete(folder, settings, last, summary.steps)


def already_complete(folder: RunFolder, settings: Settings, last: int, step: int) -> UsageError:
    """Nothing is left to resume: these settings end at step ``last``, and the run has done ``step``."""
    if last == step:
        return UsageError(
            f"{folder.path} is complete: it ended at step {step}; ask for more epochs or iterations to go on"
        )
    asked = f"{settings.epochs} epochs end" if settings.iterations is None else f"{last} iterations end"
    return UsageError(f"{asked} at step {last}, and {folder.path} is at step {step}; ask for more")


def read_machinery(folder: RunFolder) -> dict[str, Any]:
    """What an earlier run ran on, or a UsageError that says why it cannot be had."""
    return read_live(folder).machinery


def read_run(folder: RunFolder) -> tuple[Settings, dict[str, Any]]:
    """The settings and the machinery of an earlier run, live or simulated, whose job may be built; or a UsageError."""
    config = read_config(folder)
    check_code(config, folder, str(folder.path), "record a run of the code as it is")
    return config.settings, config.machinery


def import_paths(settings: Settings) -> list[str]:
    """The import paths of a user's own code that a run with these settings imports."""
    job = settings.job
    parts = [(job.data, DATA), (job.model, MODELS), (job.optimizer, OPTIMIZERS), (job.schedule, SCHEDULES)]
    own = [job.path] if job.path else [specs.import_path(spec, table) for spec, table in parts]
    own += [specs.import_path(settings.strategy, STRATEGIES)]
    own += [settings.collective if ":" in settings.collective else None]
    return [path for path in own if path is not None]


def check_code(config: Config, folder: RunFolder, where: str, fix: str) -> None:
    """Refuse to import code that is not what the run last ran with; see ``check_trusted``."""
    for path in import_paths(config.settings):
        check_trusted(path, config.code, folder.path, where, fix)


def read_live(folder: RunFolder) -> Config:
    """All that an earlier live run wrote, or a UsageError."""
    config = read_config(folder)
    if config.runtime != "live":
        raise UsageError(f"{folder.path} is a simulated run, which has nothing to resume; simulate it anew")
    return config


def resolved(settings: Settings) -> Settings:
    """The settings with every default of their specs written out, so that a later default changes nothing."""
    job = settings.job
    if job.path is None:
        job = replace(
            job,
            data=_written_out(job.data, DATA, "data"),
            model=_written_out(job.model, MODELS, "model"),
            optimizer=_written_out(job.optimizer, OPTIMIZERS, "optimizer"),
            schedule=_written_out(job.schedule, SCHEDULES, "schedule"),
            accumulate=job.accumulate or 1,
            precision=job.precision or "fp32",
        )
    return replace(settings, job=job, strategy=_written_out(settings.strategy, STRATEGIES, "strategy"))


def _written_out(spec: str, table: specs.Table, kind: str) -> str:
    # A strategy that was handed over as an object may be in no table.
    name = specs.split(spec, table)[0]
    return specs.show(name, specs.build(spec, table, kind)) if name in table else spec


def check_same_job(folder: RunFolder, settings: Settings) -> None:
    """Refuse times that were recorded with another model or other data."""
    recorded, asked = read_config(folder).settings.job, resolved(settings).job
    for part in ("path", "data", "model"):
        was, now = getattr(recorded, part), getattr(asked, part)
        if was != now:
            raise UsageError(
                f"the times of {folder.path} were recorded with {part} {was}, not {now}; record this job"
            )
