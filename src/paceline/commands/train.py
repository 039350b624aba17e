"""Trainings as command lines: of arguments in Python, and of the settings of a study's runs."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from paceline.jobs.spec import JobSpec
from paceline.records.files import to_document
from paceline.runtimes.settings import Settings

_RENAMED = {
    "path": "job",
    "batch_sizes": "batch-size",
    "evaluate": "evaluate-every",
    "checkpoint": "checkpoint-every",
}


def option_words(arguments: Mapping[str, Any]) -> list[str]:
    """Options as they are typed; what is None or False is left out, several values repeat the option."""
    words: list[str] = []
    for name, value in arguments.items():
        option = f"--{_RENAMED.get(name, name.replace('_', '-'))}"
        if value is True:
            words.append(option)
        elif isinstance(value, Mapping):
            words += [word for rank, factor in value.items() for word in (option, f"{rank}={factor!r}")]
        elif name == "batch_size" and isinstance(value, Sequence) and not isinstance(value, str):
            words += [option, ",".join(map(str, value))]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            words += [word for one in value for word in (option, str(one))]
        elif value is not None and value is not False:
            words += [option, str(value)]
    return words


def start_training(
    machinery: Mapping[str, Any], settings: Settings, runs: Path, words: IO[bytes]
) -> "subprocess.Popen[str]":
    """One run of a sweep; what it says goes to ``words``."""
    from paceline.runtimes.live.launcher.launch import paceline_command
    from paceline.studies.scaling.measure import start_command

    return start_command(paceline_command(["train", *train_options(settings, machinery, runs)]), words)


def train_options(settings: Settings, machinery: Mapping[str, Any], runs: Path) -> list[str]:
    """The options of 'paceline train' that give a run of these settings; none for what is its default."""
    usual = to_document(Settings(job=JobSpec(), epochs=1))
    asked = {
        **to_document(settings),
        "evaluate": str(settings.evaluate),
        "checkpoint": str(settings.checkpoint),
    }
    job = asked.pop("job")
    changed = {name: value for name, value in job.items() if value != usual["job"][name]}
    changed |= {name: value for name, value in asked.items() if value is not None and value != usual[name]}
    changed |= {"batch_sizes": ",".join(map(str, settings.batch_sizes)), **machinery}
    changed |= {"workers": settings.workers, "epochs": settings.epochs, "runs": runs}
    options = ["--json"]
    for name, value in changed.items():
        if value not in (None, {}):
            options += [f"--{_RENAMED.get(name, name.replace('_', '-'))}", str(value)]
    return options
