"""Errors that the user can fix, each in one sentence."""

import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

BEFORE_FIRST_STEP = "interrupted before the first step; nothing was saved"


class UsageError(ValueError):
    """A user's mistake: the message names the value, the rule and the fix; the command exits with 2."""


class ParseError(UsageError):
    """Text that is not of the kind that was asked for; another kind may still read it."""


class ArgumentError(UsageError):
    """A mistake in arguments: ``{name}`` in the sentence stands for one, with its value unless that is None.

    The message names them as Python does; the command line writes the same sentence with its options.
    """

    def __init__(self, sentence: str, **arguments: object) -> None:
        self.sentence, self.arguments = sentence, arguments
        super().__init__(self.written(lambda name, value: name if value is None else f"{name}={value!r}"))

    @classmethod
    def about(cls, name: str, mistake: UsageError) -> "ArgumentError":
        """The same mistake, after the name of the argument that it is in."""
        said = str(mistake).replace("{", "{{").replace("}", "}}")
        return cls(f"{{{name}}}: {said}", **{name: None})

    def written(self, write: Callable[[str, object], str]) -> str:
        """The sentence with every argument as ``write`` has it, by its name and its value."""
        return self.sentence.format(**{name: write(name, value) for name, value in self.arguments.items()})


class NamedMistake(UsageError):
    """A mistake in the words of Python; ``plain`` is the same in those of a person."""

    def __init__(self, sentence: str, plain: UsageError) -> None:
        super().__init__(sentence)
        self.plain = plain


class RunFailed(RuntimeError):
    """A run that started and could not finish: the message is the root cause; the command exits with its ``code``."""

    code = 1


class ScriptExited(RunFailed):
    """A script that has ended its run with an exit code of its own, which is the command's too."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


class Diverged(RunFailed):
    """A loss or a parameter that is not finite: more training would only spoil what is saved."""

    def __init__(self, what: str, step: int, rate: float) -> None:
        """``what`` was found in a step, counted from 1, at a learning rate."""
        advice = f", at a learning rate of {rate:g}; try a lower one"
        if step <= 1:
            advice = ", before any update; look at the model's first weights and at that mini-batch"
        super().__init__(f"{what} in step {step}{advice}")


def unknown(
    kind: str, name: str, choices: Iterable[str], see: str = "", meant: str = "", of: str = ""
) -> UsageError:
    """Say that ``name`` is no ``kind``, which choice is nearest to it (or to ``meant``), and all choices.

    ``of`` is said after the name: what has the choices.
    """
    known = {choice.lower(): choice for choice in sorted(choices)}
    near = get_close_matches((meant or name).lower(), known, n=1, cutoff=0.5)
    there = f"{', '.join(known.values())}{f'; see {see!r}' if see else ''}"
    if near:
        return UsageError(f"unknown {kind} {name!r}{of}; did you mean {known[near[0]]!r}? ({there})")
    return UsageError(f"unknown {kind} {name!r}{of}; choose one of: {there}")


def reason(error: Exception) -> str:
    """Why something could not be done: our own errors in their words, all others with their type."""
    ours = type(error).__module__.partition(".")[0] == __name__.partition(".")[0]
    return str(error) if ours else describe(error)


def describe(error: BaseException) -> str:
    """An exception in one line: its type and the first line of its message."""
    lines = _message(error).strip().splitlines()
    if _is_from_loader(error):  # of a traceback's text, the first line that is not indented is the exception
        return next((line for line in lines[2:] if line[:1].strip()), lines[0])
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def users_line(error: BaseException) -> str:
    """The last line of the user's own code in a traceback, "my_job.py:42 in loss"; without one, the last of torch's.

    Of an error that torch's loader has passed on from one of its processes, it is the line in that process.
    """
    frames = [
        (frame.filename, frame.lineno, frame.name) for frame in traceback.extract_tb(error.__traceback__)
    ]
    if _is_from_loader(error):
        frames = re.findall(r'^ *File "(.+)", line (\d+), in (.+)$', _message(error), re.MULTILINE)
    users = [frame for frame in frames if is_users(frame[0])]
    found = users or [frame for frame in frames if "/torch/" in frame[0]]
    return f"{Path(found[-1][0]).name}:{found[-1][1]} in {found[-1][2]}" if found else ""


def raised(error: BaseException) -> str:
    """An exception in one line, with the user's line that raised it."""
    line = "" if isinstance(error, SyntaxError) else users_line(error)
    return f"{describe(error)} ({line})" if line else describe(error)


def _is_from_loader(error: BaseException) -> bool:
    """Whether torch's loader has raised it anew, with the traceback of one of its processes as the message."""
    return bool(
        re.match(r"Caught \S+ in DataLoader worker process \d+\.\nOriginal Traceback", _message(error))
    )


def _message(error: BaseException) -> str:
    """As far as it can be written: an exception's class may be the user's."""
    try:
        return str(error).encode(errors="backslashreplace").decode()
    except Exception:
        return ""


def is_users(file: str) -> bool:
    """Whether a source file is the user's own, and not of this package or a library."""
    package = str(Path(__file__).parent)
    stdlib, purelib = sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")
    return not file.startswith((package, stdlib, purelib, sys.prefix + "/lib", "<"))


def printable(text: str, longest: int, *, lines: bool = False) -> str:
    """Text without control characters, which a terminal could obey, cut at ``longest`` characters."""
    kept = "\n\t" if lines else ""
    return "".join(each if each.isprintable() or each in kept else " " for each in text[:longest])


def say_on_stderr(sentence: str) -> None:
    with suppress(OSError):  # a closed stream
        sys.stderr.write(f"paceline: {sentence}\n")
        sys.stderr.flush()
