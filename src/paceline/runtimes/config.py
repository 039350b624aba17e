"""``config.json``: what a run was asked to do, for people and for a run that goes on."""

from collections.abc import Mapping
from typing import Any

from paceline.errors import Mistake
from paceline.records.files import DamagedFile, read_json, write_json
from paceline.records.folder import RunFolder
from paceline.runtimes.settings import Settings

SCHEMA = 1


def write_config(folder: RunFolder, settings: Settings, runtime: str, machinery: Mapping[str, Any]) -> None:
    """Write the resolved settings, and beside them what they ran on, which does not decide the result."""
    document = {
        "schema": SCHEMA,
        "runtime": runtime,
        "settings": settings.to_json(),
        "machinery": dict(machinery),
    }
    write_json(folder.config, document)


def read_settings(folder: RunFolder) -> Settings:
    """The settings of an earlier run, or a Mistake that says why they cannot be had."""
    try:
        return Settings.from_json(read_json(folder.config)["settings"])
    except OSError:
        raise Mistake(f"{folder.path} is not the folder of a run: it holds no config.json") from None
    except (DamagedFile, LookupError, TypeError) as error:
        raise Mistake(f"{folder.config} cannot be read ({error}); start the run anew") from error
