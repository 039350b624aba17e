"""The settings of a run that goes on: its own, and how long it goes on may be given anew."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from paceline.cli.options import RECORD, KeepOptions, RunOptions, given_options
from paceline.errors import UsageError
from paceline.records.folder import RunFolder
from paceline.runtimes.settings import Settings

if TYPE_CHECKING:
    from paceline.runtimes.config import Config

_LATEST = Path("latest")

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
    """The folder of a run that stopped, or 'latest': go on from its last whole checkpoint."""
    trust: Annotated[bool, Parameter(group=RECORD, negative=(), show_default=False)] = False
    """With --resume or --join: run code that the run names, also where it has changed or lies in the run folder."""

    def folder(self, keep: KeepOptions) -> RunFolder | None:
        """The earlier run's folder, which a run that goes on keeps; the latest is looked for in ``--runs``."""
        self._refuse(keep)
        if self.resume is None:
            return None
        return RunFolder(self.resume) if self.resume != _LATEST else latest_run(keep.parent)

    def _refuse(self, keep: KeepOptions) -> None:
        for option, given in (("--name", keep.name), ("--runs", keep.runs)):
            if option == "--runs" and self.resume == _LATEST:
                continue
            if self.resume and given is not None:
                raise UsageError(
                    f"{option} {given} has no place beside --resume: a run keeps its folder; leave it out"
                )


def latest_run(parent: Path) -> RunFolder:
    """The live run that was started or resumed last; or a UsageError."""
    from paceline.runtimes.config import read_config

    for path in sorted(parent.glob("*/config.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True):
        with suppress(UsageError):
            if read_config(folder := RunFolder(path.parent)).runtime == "live":
                return folder
    raise UsageError(
        f"--resume latest: {parent} holds no run of 'paceline train'; name a folder, or the place with --runs"
    )


def repeated_settings(options: RunOptions, *, trust: bool) -> dict[str, object]:
    """What the command that resumes a resumed run must repeat: until it trains, its folder does not know of them."""
    names = [option[2:].replace("-", "_") for option in CHANGEABLE]
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    return {"trust": True, **given} if trust else given


def name_folder(arguments: Sequence[str], folder: RunFolder) -> list[str]:
    """The arguments of a command, with the folder that is meant after --resume and without --runs, where it lies."""
    named: list[str] = []
    words = iter(arguments)
    for word in words:
        option, _, value = word.partition("=")
        if option not in ("--resume", "--runs"):
            named.append(word)
            continue
        if not value:
            next(words, None)
        if option == "--resume":
            named += [option, str(folder.path)]
    return named


def asked_settings(
    options: RunOptions, workers: int | None, resume: RunFolder | None, *, trust: bool = False
) -> Settings:
    """The run's settings for so many workers; for None, as far as they do not depend on their number."""
    from paceline.runtimes.config import read_live

    if resume is None:
        if workers is None:  # what is asked of single ranks can be read only when it is known how many train
            return replace(options, batch_size=None, slow=None, slow_turns=None).settings(1)
        return options.settings(workers)
    if workers is None:
        config = read_live(resume)
        check_code(config, resume, trust=trust)
        return config.settings
    return resumed_settings(options, workers, resume, trust=trust)


def resumed_settings(
    options: RunOptions, workers: int, resume: RunFolder, *, trust: bool = False
) -> Settings:
    """The earlier run's settings; an option that would change its result is a UsageError, one that repeats it is none.

    So is code that is not what the run last ran with, without ``trust``.
    """
    from paceline.runtimes.config import read_live

    config = read_live(resume)
    earlier = config.settings
    check_code(config, resume, trust=trust)
    if workers != earlier.workers:
        raise UsageError(
            f"{resume.path} ran with {earlier.workers} workers and cannot resume with {workers} as it is; resume the "
            f"folder that 'paceline reshard {quote(str(resume.path))} --workers {workers}' makes of it"
        )
    _refuse_changes(options, earlier)
    if options.epochs is not None or options.iterations is not None:
        earlier = replace(earlier, epochs=options.epochs, iterations=options.iterations)
    if options.target_accuracy is not None:
        earlier = replace(earlier, target_accuracy=options.target_accuracy)
    return earlier


def check_code(config: "Config", folder: RunFolder, *, trust: bool) -> None:
    """Refuse code by import path that is not what the run last ran with, without ``trust``."""
    from paceline.runtimes import config as configs

    if not trust:
        configs.check_code(config, folder, f"--resume {folder.path}", "add --trust to run it all the same")


def _refuse_changes(options: RunOptions, earlier: Settings) -> None:
    from paceline.runtimes.config import resolved

    fixed = [option for option in given_options(options) if option not in CHANGEABLE]
    if not fixed:
        return
    was, asked = resolved(earlier), resolved(options.settings(earlier.workers))
    for option in fixed:
        part = _PARTS[option]
        if part(was) != part(asked):
            raise UsageError(
                f"{option} cannot change when a run resumes: this run has {part(was) or 'none'} and you gave "
                f"{part(asked) or 'none'}; leave it out, or start a new run"
            )
