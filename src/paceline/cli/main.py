"""The ``paceline`` command: its sub-commands, and how errors are reported.

Nothing here imports torch: each command is imported when it is called, so help is quick.
"""

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from inspect import Parameter
from pathlib import Path
from traceback import extract_tb
from typing import Literal, get_args, get_origin

from cyclopts import (
    App,
    Argument,
    CycloptsError,
    MissingArgumentError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from paceline import __version__
from paceline.errors import ArgumentError, NamedMistake, RunFailed, UsageError, is_users, raised, unknown

DONE, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130

HELP, VERSION, COMPLETION = ("--help", "-h"), "--version", "--install-completion"
FLAGS = (*HELP, VERSION, COMPLETION)

COMMANDS = {
    "train": ("train:train", "Train for real: on this machine, or on several."),
    "run": ("run:run", "Run your own script as each worker: its loop, any strategy."),
    "reshard": ("train:reshard", "Make a stopped run ready for another number of workers."),
    "simulate": ("simulate:simulate", "Run the same training in virtual time, on a simulated cluster."),
    "predict": ("predict:predict", "Predict how fast a training will go, on hardware that you do not have."),
    "plan": ("plan:plan", "Find what to train on: hardware, strategy and batch for a deadline or a budget."),
    "calibrate": ("calibrate:app", "Measure this machine, so that predictions know it."),
    "compare": ("compare:compare", "Compare runs and predictions: which is faster, by how much, and why."),
    "explain": ("explain:explain", "Show what a collective does, round by round."),
    "report": ("report:report", "Make a page of a run, of several beside each other, or of a study."),
    "bench": ("bench:app", "Measure how fast things are here, beside what was predicted."),
    "watch": ("watch:watch", "Follow a run while it goes on, from its files."),
    "export": ("export:export", "Write a run's records for other tools: CSV, Perfetto, TensorBoard."),
    "strategies": ("lists:strategies", "List how workers can agree, with each one's settings."),
    "codecs": ("lists:codecs", "List what can be sent instead of whole gradients."),
    "models": ("lists:models", "List the models that ship."),
    "devices": ("lists:devices", "List the devices that predictions know, with their sources."),
    "networks": ("lists:networks", "List the networks that predictions know, with their sources."),
    "data": ("lists:data", "List the data sets that ship or are found in a folder."),
    "optimizers": ("lists:optimizers", "List the optimizers."),
    "schedules": ("lists:schedules", "List the learning-rate schedules."),
}


def make_app() -> App:
    app = App(
        name="paceline",
        help="How should I spread this PyTorch training over several workers, and how fast will it go?",
        version=__version__,
        version_flags=[VERSION],
        help_flags=HELP,
        help_epilogue="Start with 'paceline train': it trains the embedded digits on two local workers.",
        help_format="plaintext",
        result_action="return_value",
    )
    for name, (path, help_line) in COMMANDS.items():
        # An imported group of commands takes no settings.
        usage = {"usage": "Usage: paceline run [OPTIONS] SCRIPT [ARGS...]"} if name == "run" else {}
        app.command(f"paceline.cli.{path}", name=name, help=help_line, **usage)
    completing = "Let the shell complete commands and options."
    app.command("paceline.cli.completion:install_completion", name=COMPLETION, help=completing)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 bad usage, 3 a failed check, 130 interrupted."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    code: object = DONE
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started this
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
    try:
        if arguments and arguments[0] not in (*COMMANDS, *FLAGS):
            raise _unknown_word(arguments[0])
        app = make_app()
        if arguments and arguments[0] in COMMANDS:
            app.help_epilogue = None  # which every command would show too
        if arguments[:1] == ["run"]:
            from paceline.cli.run import end_options

            arguments = end_options(app, arguments)
        code = app(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as error:
        return _complain(_one_sentence(error), BAD_USAGE)
    except UsageError as mistake:
        return _complain(as_typed(mistake), BAD_USAGE)
    except RunFailed as failure:
        return _complain(str(failure), failure.code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _write_nowhere()
    except Exception as error:
        return _complain(*_of_users_file(error))
    except SystemExit as leaving:
        if not isinstance(leaving.__context__, BrokenPipeError):  # a console of rich makes this of it
            raise
        _write_nowhere()
    return code if isinstance(code, int) else DONE


def as_typed(mistake: UsageError) -> str:
    """The sentence with options in place of a function's arguments."""
    if isinstance(mistake, ArgumentError):
        return mistake.written(_option)
    return str(mistake.plain if isinstance(mistake, NamedMistake) else mistake)


def _option(name: str, value: object) -> str:
    option = f"--{name.replace('_', '-')}"
    return option if value is None else f"{option} {value}"


def _of_users_file(error: Exception) -> tuple[str, int]:
    """What to say of a damaged file, or of an exception in the user's own code; others are raised again."""
    from paceline.records.files import DamagedFile

    if isinstance(error, DamagedFile):
        return error.told, BAD_USAGE
    if not any(is_users(frame.filename) for frame in extract_tb(error.__traceback__)):
        raise error
    return f"your code raised {raised(error)}", FAILED


def _unknown_word(word: str) -> UsageError:
    """The first word is neither a command nor an option; a single letter is taken for a long option's first."""
    if not word.startswith("-"):
        return unknown("command", word, COMMANDS, see="paceline --help")
    long = next((flag for flag in FLAGS if flag[2:3] and flag[2] == word[1:]), word)
    return unknown("option", word, FLAGS, see="paceline --help", meant=long)


def _write_nowhere() -> None:
    """Discard the rest of the output: the reader has closed the pipe, as `head` does, which is no failure."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _complain(sentence: str, code: int) -> int:
    sys.stderr.write(f"paceline: {sentence}\n")
    return code


def _missing(error: MissingArgumentError, argument: Argument) -> str:
    """An option without its value, or one that is needed and is not there; with its choices, if it has some."""
    option, *_ = argument.names
    positional = argument.field_info.kind is not Parameter.KEYWORD_ONLY
    name = f"the argument {option.removeprefix('--').upper()}" if positional and not error.keyword else option
    choices = (
        f": {', '.join(map(str, get_args(argument.hint)))}" if get_origin(argument.hint) is Literal else ""
    )
    return f"{name} {'needs a value' if error.keyword else 'is missing'}{choices}"


def _one_sentence(error: CycloptsError) -> str:
    command = " ".join(["paceline", *(error.command_chain or ())])
    if isinstance(error, UnknownOptionError):
        option = (error.token.keyword or error.token.value).partition("=")[0]
        known = [*HELP, *(name for argument in error.argument_collection for name in argument.names)]
        near = get_close_matches(option, known, n=1, cutoff=0.6)
        words = f"unknown option {option!r}{f'; did you mean {near[0]!r}?' if near else ''}"
    elif isinstance(error, UnusedCliTokensError):
        words = f"{' '.join(error.unused_tokens or ())!r} is not expected: options begin with --"
    elif isinstance(error, MissingArgumentError) and error.argument is not None:
        words = _missing(error, error.argument)
    else:
        words = " ".join(str(error).split()).rstrip(".")
    return f"{words[:1].lower()}{words[1:]} (see '{command} --help')"
