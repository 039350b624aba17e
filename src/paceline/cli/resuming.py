"""The settings of a run that goes on: its own, and how long it goes on may be given anew."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from paceline.cli.options import RECORD, KeepOptions, RunOptions, given_options
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
    "--accumulate": lambda run: run.job.accumulate,
    "--clip-norm": lambda run: run.job.clip_norm,
    "--precision": lambda run: run.job.precision,
    "--strategy": lambda run: run.strategy,
    "--servers": lambda run: run.servers,
    "--batch-size": lambda run: ",".join(map(str, run.batch_sizes)),
    "--slow": lambda run: ",".join(f"{rank}={factor:g}" for rank, factor in sorted(run.slow.items())),
    "--slow-turns": lambda run: run.slow_turns,
    "--buffers": lambda run: run.buffers,
    "--collective": lambda run: run.collective,
    "--seed": lambda run: run.seed,
    "--evaluate-every": lambda run: run.evaluate,
    "--checkpoint-every": lambda run: run.checkpoint,
    "--keep": lambda run: run.keep,
}
"""What each other option decides, as a resumed run and its options are compared."""


@Parameter(name="*")
@dataclass(kw_only=True)
class ResumeOptions:
    """Whether this is a run of its own."""

    resume: Annotated[Path | None, Parameter(group=RECORD)] = None
    """The folder of a run that stopped: go on from its last whole checkpoint."""
    trust: Annotated[bool, Parameter(group=RECORD, negative=(), show_default=False)] = False
    """With --resume or --join: run code that the run names, also where it has changed or lies in the run folder."""

    @property
    def folder(self) -> RunFolder | None:
        """The earlier run's folder."""
        return RunFolder(self.resume) if self.resume else None

    def refuse(self, keep: KeepOptions) -> None:
        """A run that goes on keeps its folder."""
        for option, given in (("--name", keep.name), ("--runs", keep.runs)):
            if self.resume and given is not None:
                raise Mistake(
                    f"{option} {given} has no place beside --resume: a run keeps its folder; leave it out"
                )


def resumed_settings(
    options: RunOptions, workers: int, resume: RunFolder, *, trust: bool = False
) -> Settings:
    """The earlier run's settings; an option that would change its result is a Mistake, one that repeats it is none.

    So is code that is not what the run last ran with, without ``trust``.
    """
    from paceline.jobs.sources import check_trusted
    from paceline.runtimes.config import read_live

    config = read_live(resume)
    earlier = config.settings
    if earlier.job.path is not None and not trust:
        check_trusted(earlier.job.path, config.code, resume.path, f"--resume {resume.path}")
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

    fixed = [option for option in given_options(options) if option not in CHANGEABLE]
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
