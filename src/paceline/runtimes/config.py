"""``config.json``: the settings of a run, for people and for a run that resumes."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, get_type_hints

from paceline import specs
from paceline.codecs import CODECS, each_link, links
from paceline.errors import UsageError
from paceline.jobs import DATA, MODELS, OPTIMIZERS, SCHEDULES
from paceline.records.files import (
    DamagedFile,
    digest_of,
    from_document,
    read_sealed,
    to_document,
    write_sealed,
)
from paceline.records.folder import RunFolder, no_run
from paceline.records.summary import read_summary
from paceline.records.tensors import RunIdentity
from paceline.runtimes.settings import Settings, read_exactly
from paceline.specs.source import check_trusted, fingerprints
from paceline.strategies import RECORDED

SCHEMA = 6

_CHANGEABLE = ("epochs", "iterations", "target_accuracy", "evaluate", "checkpoint", "keep")
"""Settings that decide how long a run goes on and what is kept of it, and not what it computes."""

_PARTS = {"data": DATA, "model": MODELS, "optimizer": OPTIMIZERS, "schedule": SCHEDULES}
_NEW_RUN = "start a new run with 'paceline train'"


@dataclass(frozen=True, kw_only=True)
class Placement:
    workers: tuple[int, ...]
    servers: tuple[int, ...] = ()


class LiveMachinery(TypedDict, total=False):
    """The machinery of a live run: the fields of its ``LiveOptions``, which this layer does not import."""

    device: Literal["cpu", "cuda"]
    backend: str | None
    timeout: float
    threads: int
    silence: float
    hang_timeout: float | None


@dataclass(frozen=True, kw_only=True)
class Config:
    runtime: Literal["live", "virtual"]
    identity: RunIdentity
    settings: Settings
    """With every default of their specs written out."""
    machinery: dict[str, Any]
    """What the run ran on, which does not decide the result."""
    placement: Placement
    code: dict[str, str]
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
    """Without an ``identity`` it is a new run; without a ``placement`` it is on one host and has no servers."""
    config = Config(
        runtime=runtime,
        identity=identity or new_identity(settings),
        settings=resolved(settings),
        machinery=dict(machinery),
        placement=placement or Placement(workers=(0,) * settings.workers),
        code={file: digest for path in import_paths(settings) for file, digest in fingerprints(path).items()},
        origin=origin,
    )
    folder.path.mkdir(parents=True, exist_ok=True)
    write_sealed(folder.config, {"schema": SCHEMA, **to_document(config)})


def new_identity(settings: Settings, run: str | None = None) -> RunIdentity:
    """The identity of a run, with a new id unless it has one.

    It covers what may not change when the run resumes; where its data lies may.
    """
    document = to_document(resolved(settings))
    document["job"].pop("data_dir")
    fixed = {name: value for name, value in document.items() if name not in _CHANGEABLE}
    return RunIdentity(run=run or secrets.token_hex(8), settings=digest_of(fixed))


def read_config(folder: RunFolder) -> Config:
    try:
        document = read_sealed(folder.config)
        schema = document.pop("schema", None)
        if schema != SCHEMA:
            raise UsageError(
                f"{folder.config} is of schema {schema}, made by another version of paceline; this one reads schema "
                f"{SCHEMA}: use that version, or {_NEW_RUN}"
            )
    except FileNotFoundError:
        raise no_run(folder) from None
    except OSError as error:
        raise UsageError(
            f"{folder.config} cannot be read ({error.strerror}); check its permissions"
        ) from error
    except DamagedFile as damage:
        raise UsageError(damage.told) from damage
    try:
        config = read_exactly(document, Config)
        if config.runtime == "live":
            _check_machinery(config.machinery)
    except ValueError as error:
        raise UsageError(f"{folder.config} cannot be read ({error}); {_NEW_RUN}") from error
    return config


def _check_machinery(machinery: dict[str, Any]) -> None:
    hints = get_type_hints(LiveMachinery)
    for name, value in machinery.items():
        try:
            from_document(value, hints.get(name, type(None)))
        except ValueError as error:
            raise UsageError(f"machinery.{name} is {value!r}") from error


def read_live(folder: RunFolder) -> Config:
    config = read_config(folder)
    if config.runtime != "live":
        raise UsageError(f"{folder.path} is a simulated run, which cannot be resumed; simulate it again")
    return config


def read_run(folder: RunFolder) -> Config:
    """The config of a live or simulated run whose job may be built; refuses one whose code has changed."""
    config = read_config(folder)
    check_job(config, folder)
    check_code(config, folder, str(folder.path), "record a run of the code as it is")
    return config


def check_job(config: Config, folder: RunFolder) -> None:
    """Refuse a run of a script: what it trains is known to the script alone."""
    if config.settings.job.is_script:
        raise UsageError(
            f"{folder.path} is a run of the script {config.settings.job.path}, whose model and data only the script "
            "has; run the script again, or give a run of 'paceline train'"
        )


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
        raise already_complete(folder, last, summary.steps)


def already_complete(folder: RunFolder, last: int, step: int) -> UsageError:
    return UsageError(
        f"{folder.path} is at step {step}, and these settings end at step {last}; ask for more epochs or iterations"
    )


def import_paths(settings: Settings) -> list[str]:
    job = settings.job
    own = [job.path]
    if not job.path:
        own = [specs.import_path(getattr(job, part), table) for part, table in _PARTS.items()]
    own = [] if job.is_script else own
    own += [specs.import_path(settings.strategy, RECORDED)]
    own += [specs.import_path(link, CODECS) for link in links(settings.codec)]
    own += [settings.collective if ":" in settings.collective else None]
    return [path for path in own if path is not None and not isinstance(path, specs.ObjectSpec)]


def check_code(config: Config, folder: RunFolder, where: str, fix: str) -> None:
    for path in import_paths(config.settings):
        check_trusted(path, config.code, folder.path, where, fix)


def resolved(settings: Settings) -> Settings:
    """The settings with every default of their specs written out, so that a later default changes nothing."""
    job = settings.job
    if job.path is None:
        parts: dict[str, Any] = {
            part: _written_out(getattr(job, part), table, part) for part, table in _PARTS.items()
        }
        parts |= {"accumulate": job.accumulate or 1, "precision": job.precision or "fp32"}
        job = replace(job, **parts, label_smoothing=job.label_smoothing or 0.0)
    strategy = _written_out(settings.strategy, RECORDED, "strategy")
    codec = each_link(settings.codec, lambda link: _written_out(link, CODECS, "codec"))
    # Another number of workers shares the same global batch: the rate stays what it was.
    reference = settings.reference_batch if settings.scale_lr == "none" else float(settings.reference)
    return replace(settings, job=job, strategy=strategy, codec=codec, reference_batch=reference)


def _written_out(spec: str, table: specs.Table, kind: str) -> str:
    # A strategy that was given as an object may be in no table.
    name = specs.split(spec, table)[0]
    return specs.show(name, specs.build(spec, table, kind)) if name in table else spec


def check_same_job(folder: RunFolder, settings: Settings) -> None:
    recorded, asked = read_config(folder).settings.job, resolved(settings).job
    for part in ("path", "data", "model"):
        was, now = getattr(recorded, part), getattr(asked, part)
        if was != now:
            raise UsageError(
                f"the times of {folder.path} were recorded with {part} {was}, not {now}; record this job"
            )
