"""``paceline run``: a user's own script as each worker of a run."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Group, Parameter

from paceline import specs
from paceline.cli.options import (
    AGREE,
    RECORD,
    FolderOptions,
    ProcessOptions,
    Whole,
    given_for,
)
from paceline.cli.report import ReportObserver
from paceline.cli.train import diagnose
from paceline.codecs import check_codec
from paceline.errors import BEFORE_FIRST_STEP, UsageError, say_on_stderr
from paceline.reports.progress import Tee
from paceline.reports.trace import TraceObserver
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.settings import DEFAULT_WORKERS
from paceline.strategies import STRATEGIES

if TYPE_CHECKING:
    from paceline.loop.script import ScriptRequest
    from paceline.records.summary import Observer
    from paceline.runtimes.settings import Settings

SCRIPT = Group("What is run", sort_key=1)
_END = "--"


@Parameter(name="*")
@dataclass(kw_only=True)
class ScriptOptions:
    """None means that an option was not given."""

    module: Annotated[str | None, Parameter(name=["--module", "-m"], group=SCRIPT)] = None
    """Run a module, as after python -m; all that follows its name is its own."""
    strategy: Annotated[str | None, Parameter(group=AGREE)] = None
    """How workers agree, such as local-sgd:period=16 (default: as the script says, or all-reduce), or none."""
    servers: Annotated[int | None, Whole, Parameter(group=AGREE)] = None
    """Servers that keep the parameters, each an even part (default 1); for ps, ssp and async."""
    codec: Annotated[str | None, Parameter(group=AGREE)] = None
    """What is sent in place of whole gradients, such as int8 (default: as the script says); see 'paceline codecs'."""

    def __post_init__(self) -> None:
        if self.strategy not in (None, "none"):
            specs.check(self.strategy, STRATEGIES, "strategy")
        if self.codec is not None:
            check_codec(self.codec)


def run(
    *script: Annotated[str, Parameter(group=SCRIPT, allow_leading_hyphen=True)],
    options: ScriptOptions | None = None,
    where: ProcessOptions | None = None,
    keep: FolderOptions | None = None,
    report: Annotated[bool, Parameter(group=RECORD, negative=(), show_default=False)] = False,
) -> int:
    """Run a script of your own as each worker of a run: its loop, any strategy.

    The script calls paceline.distribute(model, optimizer). Two workers on this machine by default, and all of them
    print. Exit code 1 where the script raised an exception, else the script's own.

    Args:
        script: The script and its own arguments, after all options of paceline.
        report: Make report.html in the run folder at the end.
    """
    options, where, keep = options or ScriptOptions(), where or ProcessOptions(), keep or FolderOptions()
    info = ProcessInfo.from_environment()
    if info is None:
        # torch reads it when it is imported, before workers are forked: paceline reports what goes wrong there.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        return _run(_request(script, options, where, keep, report=report), where, info)
    except KeyboardInterrupt:
        if info is None:  # once workers run, their launcher handles it
            say_on_stderr(BEFORE_FIRST_STEP)
        raise


def _request(
    script: Sequence[str], options: ScriptOptions, where: ProcessOptions, keep: FolderOptions, *, report: bool
) -> "ScriptRequest":
    words = [*script] if options.module is None else [options.module, *script]
    if not words:
        raise UsageError(
            "there is no script to run: name it after the options, as in 'paceline run train.py'"
        )
    from paceline.loop.script import Script, ScriptRequest
    from paceline.runtimes.live.request import LiveOptions

    def observe(settings: "Settings") -> "Observer":
        shown = keep.observers(settings, "wall", diagnose=diagnose)
        return Tee([*shown, TraceObserver(), ReportObserver(make=report, quiet=False)])

    return ScriptRequest(
        script=Script(
            path=words[0],
            arguments=words[1:],
            is_module=options.module is not None,
            misplaced=_misplaced(words[1:], options, where),
        ),
        strategy=options.strategy,
        codec=options.codec,
        servers=options.servers,
        options=LiveOptions(**given_for(LiveOptions, where)),
        observe=observe,
        runs=keep.parent,
        name=keep.name or "",
    )


def _misplaced(words: Sequence[str], options: ScriptOptions, where: ProcessOptions) -> str:
    """What is often written after the script, which may have such options itself: one that the run was not given."""
    given = {
        "--strategy": options.strategy,
        "--codec": options.codec,
        "--workers": where.workers,
        "--servers": options.servers,
    }
    missing = [name for name, value in given.items() if value is None]
    return next((word for word in words if word.partition("=")[0] in missing), "")


def _run(request: "ScriptRequest", where: ProcessOptions, info: ProcessInfo | None) -> int:
    from paceline.cli.main import main
    from paceline.loop.script import launch_script, run_script

    if request.script.hint and (info is None or (info.launch is None and info.rank == 0)):
        say_on_stderr(request.script.hint)
    if info is None:
        plan = where.plan(DEFAULT_WORKERS if where.workers is None else where.workers)
        return launch_script(request, plan, main, sys.argv[1:])
    if info.launch is None:
        info = where.under_launcher(info.with_servers(request.count_servers(info.workers)))
    return run_script(request, info)


def end_options(app: App, words: Sequence[str]) -> list[str]:
    """The words of this command with ``--`` before the script, whose own options are not ours to read."""
    from paceline.cli.main import FLAGS

    takes_value = _takes_value(app)
    place = 1
    while place < len(words) and words[place].startswith("-") and words[place] != _END:
        option, given, _ = words[place].partition("=")
        if option.startswith("--") and option not in (*takes_value, *FLAGS):
            if option == "--batch-size":
                raise UsageError(
                    "--batch-size has no place here: the batch is that of the script's DataLoader; set it there, or "
                    "give the script's own options after the script"
                )
            near = get_close_matches(option, takes_value, n=1)
            guess = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"unknown option {option!r}{guess} (see 'paceline run --help')")
        place += 1 if given or not takes_value.get(option) else 2
        if option in ("-m", "--module"):
            break
    rest = list(words[place:])
    return [*words[:place], *rest] if rest[:1] in ([], [_END]) else [*words[:place], _END, *rest]


def _takes_value(app: App) -> dict[str, bool]:
    arguments = app["run"].assemble_argument_collection()
    return {name: argument.token_count()[0] > 0 for argument in arguments for name in argument.names}
