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
    return Settings.from_json(_read(folder, "settings"))


def read_machinery(folder: RunFolder) -> dict[str, Any]:
    """What an earlier run ran on, or a Mistake that says why it cannot be had."""
    return dict(_read(folder, "machinery"))


def _read(folder: RunFolder, part: str) -> Any:
    try:
        document = read_json(folder.config)
        if document["runtime"] != "live":
            raise Mistake(f"{folder.path} is a simulated run, which has nothing to resume; simulate it anew")
        return document[part]
    except OSError:
        raise Mistake(f"{folder.path} is not the folder of a run: it holds no config.json") from None
    except (DamagedFile, LookupError, TypeError) as error:
        raise Mistake(f"{folder.config} cannot be read ({error}); start the run anew") from error
