"""How long workers train alone: a number of steps, or of seconds."""

from dataclasses import dataclass
from typing import Self

from paceline.errors import ParseError, UsageError
from paceline.units import parse_seconds


@dataclass(frozen=True)
class StepPeriod:
    """A period of this many steps; "16" as text."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"a period of {self.count} steps is too short: it must be at least 1")

    @classmethod
    def parse(cls, text: str) -> Self:
        if not text.lstrip("-").isdecimal():
            raise ParseError(f"{text!r} is not a period: write steps ('16') or time ('0.5s')")
        return cls(int(text))

    def is_over(self, clock: int, seconds: float) -> bool:  # noqa: ARG002
        """Whether the step just finished ends a period."""
        return clock % self.count == 0

    def __str__(self) -> str:
        return str(self.count)


@dataclass(frozen=True)
class TimePeriod:
    """A period of this many seconds, "0.5s" as text; a round ends with the first step that is finished after it."""

    length: float

    def __post_init__(self) -> None:
        if not self.length > 0:
            raise UsageError(f"a period of {self.length:g} s is too short: it must be more than 0 s")

    @classmethod
    def parse(cls, text: str) -> Self:
        return cls(parse_seconds(text))

    def is_over(self, clock: int, seconds: float) -> bool:  # noqa: ARG002
        """Whether the step just finished ends a period."""
        return seconds >= self.length

    def __str__(self) -> str:
        return f"{self.length:g}s"
