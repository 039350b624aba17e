"""``config.json``: what a run was asked to do, for people and for a run that goes on."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline import specs
from paceline.errors import Mistake
from paceline.jobs import DATA, MODELS, OPTIMIZERS, SCHEDULES
from paceline.records.files import DamagedFile, read_json, write_json
from paceline.records.folder import RunFolder
from paceline.runtimes.settings import Settings
from paceline.strategies import STRATEGIES

SCHEMA = 1


def write_config(folder: RunFolder, settings: Settings, runtime: str, machinery: Mapping[str, Any]) -> None:
    """Write the resolved settings, and beside them what they ran on, which does not decide the result."""
    document = {
        "schema": SCHEMA,
        "runtime": runtime,
        "settings": resolved(settings).to_json(),
        "machinery": dict(machinery),
    }
    write_json(folder.config, document)


def read_settings(folder: RunFolder) -> Settings:
    """The settings of an earlier live run, or a Mistake that says why they cannot be had."""
    return Settings.from_json(_read_live(folder, "settings"))


def read_machinery(folder: RunFolder) -> dict[str, Any]:
    """What an earlier run ran on, or a Mistake that says why it cannot be had."""
    return dict(_read_live(folder, "machinery"))


def read_run(folder: RunFolder) -> tuple[Settings, dict[str, Any]]:
    """The settings and the machinery of an earlier run, live or simulated, or a Mistake."""
    return Settings.from_json(_read(folder, "settings")), dict(_read(folder, "machinery"))


def _read_live(folder: RunFolder, part: str) -> Any:
    if _read(folder, "runtime") != "live":
        raise Mistake(f"{folder.path} is a simulated run, which has nothing to resume; simulate it anew")
    return _read(folder, part)


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
        )
    return replace(settings, job=job, strategy=_written_out(settings.strategy, STRATEGIES, "strategy"))


def _written_out(spec: str, table: specs.Table, kind: str) -> str:
    # A strategy that was handed over as an object may be in no table.
    name = specs.split(spec)[0]
    return specs.show(name, specs.build(spec, table, kind)) if name in table else spec


def check_same_job(folder: RunFolder, settings: Settings) -> None:
    """Refuse times that were recorded with another model or other data."""
    recorded, asked = Settings.from_json(_read(folder, "settings")).job, resolved(settings).job
    for part in ("path", "data", "model"):
        was, now = getattr(recorded, part), getattr(asked, part)
        if was != now:
            raise Mistake(
                f"--times {folder.path} were recorded with {part} {was}, not {now}; record this job"
            )


def _read(folder: RunFolder, part: str) -> Any:
    try:
        return read_json(folder.config)[part]
    except OSError:
        raise Mistake(f"{folder.path} is not the folder of a run: it holds no config.json") from None
    except (DamagedFile, LookupError, TypeError) as error:
        raise Mistake(f"{folder.config} cannot be read ({error}); start the run anew") from error
