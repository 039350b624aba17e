"""The settings of a run that goes on: its own, and how long it goes on may be given anew."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from paceline.cli.options import RunOptions
from paceline.errors import Mistake
from paceline.records.folder import RunFolder
from paceline.runtimes.settings import Settings

CHANGEABLE = ("--epochs", "--iterations", "--target-accuracy")
"""What a resumed run may be given anew: how long it goes on."""

_PARTS: dict[str, Callable[[Settings], Any]] = {
    "--job": lambda run: run.job.path,
    "--data": lambda run: run.job.path or run.job.data,
    "--data-dir": lambda run: run.job.data_dir,
    "--model": lambda run: run.job.path or run.job.model,
    "--optimizer": lambda run: run.job.path or run.job.optimizer,
    "--lr": lambda run: run.job.path or run.job.optimizer,
    "--schedule": lambda run: run.job.path or run.job.schedule,
    "--strategy": lambda run: run.strategy,
    "--servers": lambda run: run.servers,
    "--batch-size": lambda run: ",".join(map(str, run.batch_sizes)),
    "--slow": lambda run: ",".join(f"{rank}={factor:g}" for rank, factor in sorted(run.slow.items())),
    "--buffers": lambda run: run.buffers,
    "--collective": lambda run: run.collective,
    "--seed": lambda run: run.seed,
    "--evaluate-every": lambda run: run.evaluate,
    "--checkpoint-every": lambda run: run.checkpoint,
    "--keep": lambda run: run.keep,
}
"""What each other option decides, as a resumed run and its options are compared."""


def resumed_settings(options: RunOptions, workers: int, resume: RunFolder) -> Settings:
    """The earlier run's settings; an option that would change its result is a Mistake, one that repeats it is none."""
    from paceline.runtimes.config import read_settings

    earlier = read_settings(resume)
    if workers != earlier.workers:
        raise Mistake(
            f"{resume.path} ran with {earlier.workers} workers and cannot resume with {workers}; "
            "give it as many as it had"
        )
    _refuse_changes(options, earlier)
    if options.epochs is not None or options.iterations is not None:
        earlier = replace(earlier, epochs=options.epochs, iterations=options.iterations)
    if options.target_accuracy is not None:
        earlier = replace(earlier, target_accuracy=options.target_accuracy)
    return earlier


def _refuse_changes(options: RunOptions, earlier: Settings) -> None:
    from paceline.runtimes.config import resolved

    fixed = [option for option in options.given() if option not in CHANGEABLE]
    if not fixed:
        return
    was, asked = resolved(earlier), resolved(options.settings(earlier.workers))
    for option in fixed:
        part = _PARTS[option]
        if part(was) != part(asked):
            raise Mistake(
                f"{option} cannot change when a run resumes: this run has {part(was) or 'none'} and you gave "
                f"{part(asked) or 'none'}; leave it out, or start a new run"
            )
