"""What a finding is: a sentence with the numbers behind it, and settings that are predicted to help."""

from dataclasses import dataclass
from typing import Literal

from paceline.studies.predict.prediction import SettingValue

Kind = Literal[
    "slow-rank",
    "latency",
    "bandwidth",
    "communication",
    "data",
    "slower-than-one",
    "evaluation",
    "checkpoints",
    "oversubscribed",
    "disturbed",
]
"""What costs the time. "communication" is said where a record does not tell latency from bandwidth."""

RemedyPlace = Literal["command", "job", "script", "distribute", "launcher"]
"""Where a setting is: on the command line, also of a script that calls ``distribute`` in place of what it does now, in
the user's own job or script, or with the launcher that starts its processes."""

Change = tuple[SettingValue, ...]
"""Settings and their values, to be set together; the first one is what the change is about."""

WORTH = 1.1
"""A remedy is named where it is predicted to train at least this many times as fast."""


@dataclass(frozen=True, kw_only=True)
class Remedy:
    change: Change
    """Options of a run by their names, or ``loader_workers``, which a user's job sets."""
    gain: float
    """Samples a second over those of the run, predicted."""
    place: RemedyPlace = "command"


@dataclass(frozen=True, kw_only=True)
class Finding:
    kind: Kind
    sentence: str
    share: float
    """The part of the run's time that it costs, which decides the order of several."""
    remedies: tuple[Remedy, ...] = ()
    """Those worth it, the best first; empty where none is, or where none could be predicted."""
