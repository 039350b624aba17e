"""``paceline.train``: train for real, with workers on this machine, from Python or a notebook."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from paceline.api.arguments import naming_arguments
from paceline.api.result import StudyResult
from paceline.api.settings import RunArguments, run_arguments, run_settings, with_recipe
from paceline.errors import ArgumentError, RunFailed, UsageError
from paceline.runtimes.settings import DEFAULT_WORKERS
from paceline.specs import importable

if TYPE_CHECKING:
    from paceline.studies.recorded import RecordedRun

SPECS = ("job", "data", "model", "optimizer", "schedule", "strategy", "codec")


@naming_arguments
def train(
    *,
    workers: int | None = None,
    device: Literal["cpu", "cuda"] | None = None,
    backend: str | None = None,
    threads: int | None = None,
    timeout: float | None = None,
    hang_timeout: float | None = None,
    silence: float | None = None,
    profile_steps: str | None = None,
    resume: str | Path | None = None,
    trust: bool = False,
    runs: str | Path | None = None,
    name: str | None = None,
    tensorboard: bool = False,
    report: bool = False,
    show: bool = True,
    **settings: Unpack[RunArguments],
) -> "StudyResult[RecordedRun]":
    """Train for real with workers on this machine, as ``paceline train`` does, and wait for the end.

    The launcher and its workers are processes of their own: they import a job, a model or a strategy by its name, so it
    must be in a file that can be imported. Ctrl-C lets them save a checkpoint, and is raised here.

    Args:
        workers: Worker processes (2).
        device: "cpu" or "cuda".
        backend: "shm", "gloo" or "nccl".
        threads: Threads a worker computes with (1).
        timeout: Seconds that a worker waits in an exchange before it fails (300).
        hang_timeout: Seconds that a process may make no progress before it is ended (120).
        silence: Seconds without a heartbeat after which a worker of a run with servers counts as lost (20).
        profile_steps: Run the torch profiler in these steps of every worker, such as "20-24".
        resume: The folder of a run that stopped, or "latest": go on from its last whole checkpoint.
        trust: With it: run code that the run names, also where it has changed.
        runs: Where run folders are made ("runs").
        name: What to call the run.
        tensorboard: Write TensorBoard event files as well.
        report: Make report.html in the run folder at the end.
        show: Print what the command prints; False is quiet.
        **settings: What decides the result, in the words of the options: ``job`` (an import path, or the function that
            makes it), or ``data``, ``data_dir``, ``model``, ``optimizer``, ``schedule``, ``lr`` and
            ``label_smoothing``; ``accumulate``, ``clip_norm``, ``precision``, ``scale_lr``, ``reference_batch``,
            ``recipe``; ``strategy``, ``codec``, ``collective``, ``servers``, ``buffers``; ``batch_size`` (32, or one a
            worker), ``slow`` ({1: 2.5}), ``slow_turns``; ``epochs`` (30) or ``iterations``, ``target_accuracy``,
            ``seed``; ``evaluate_every``, ``checkpoint_every``, ``keep``.

    Returns:
        The run as ``load_run`` gives it. A run that fails raises ``RunFailed`` with the root cause.
    """
    given = {
        key: value for key, value in locals().items() if value is not None and key not in ("settings", "show")
    }
    from paceline.api.runs import loaded
    from paceline.commands.process import run_command
    from paceline.commands.train import option_words
    from paceline.studies.recorded import read_recorded

    asked = run_arguments(dict(settings))
    for kind in SPECS:
        if kind in asked:
            asked[kind] = importable(asked[kind], kind)
    _check(asked, workers, fresh=resume is None)
    folders: list[str] = []

    def read(line: str) -> None:
        if found := re.match(r"recorded in (.+)$", line):
            folders.append(found[1])

    run_command(["train", *option_words({**given, **asked})], show=show, read=read)
    if not folders:
        raise RunFailed("the training has left no record")
    return loaded(read_recorded(Path(folders[-1])))


def _check(asked: dict[str, Any], workers: int | None, *, fresh: bool) -> None:
    """Find mistakes here, before a process is started."""
    from paceline.runtimes.live.process_info import ProcessInfo
    from paceline.runtimes.prepare import check_settings

    if ProcessInfo.from_environment() is not None:
        raise UsageError(
            "train() starts workers of its own, and this process is one of a launcher's (RANK is set); use "
            "distribute() in the script, or start it without that launcher"
        )
    if workers is not None and workers < 1:
        raise ArgumentError("{workers} is too small: at least 1 worker must train", workers=workers)
    if fresh:
        check_settings(run_settings(with_recipe(asked)[0], workers or DEFAULT_WORKERS))
