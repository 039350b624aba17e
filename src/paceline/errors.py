"""What the user can fix, told in one sentence."""

from collections.abc import Iterable
from difflib import get_close_matches


class Mistake(ValueError):
    """A user's mistake: the message names the value, the rule and the fix; the command exits with 2."""


class Unreadable(Mistake):
    """Text that is not of the kind that was asked for; another kind may still read it."""


class RunFailed(RuntimeError):
    """A run that started and could not finish: the message is the root cause; the command exits with 1."""


def unknown(kind: str, name: str, choices: Iterable[str], see: str = "", meant: str = "") -> Mistake:
    """Say that ``name`` is no ``kind``, what was probably meant (what is nearest to ``meant``) and what there is."""
    known = {choice.lower(): choice for choice in sorted(choices)}
    near = get_close_matches((meant or name).lower(), known, n=1, cutoff=0.5)
    there = f"{', '.join(known.values())}{f'; see {see!r}' if see else ''}"
    if near:
        return Mistake(f"unknown {kind} {name!r}; did you mean {known[near[0]]!r}? ({there})")
    return Mistake(f"unknown {kind} {name!r}; choose one of: {there}")
