"""When to evaluate, save and stop: pure arithmetic on how far a run has come."""

from dataclasses import dataclass

from paceline.runtimes.settings import Settings


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be done at one meeting."""

    evaluate: bool
    checkpoint: bool
    stop: bool


class Triggers:
    """Turns progress, in steps a worker, into what is due.

    Where workers take different numbers of steps, progress is their mean, so it may jump over several dates at once;
    each kind is then done once.
    """

    def __init__(self, settings: Settings, steps_per_epoch: int) -> None:
        self.steps_per_epoch = steps_per_epoch
        epochs = settings.epochs or 0
        self.last = settings.iterations if settings.iterations is not None else epochs * steps_per_epoch
        self._evaluate = settings.evaluate.in_steps(steps_per_epoch)
        self._checkpoint = settings.checkpoint.in_steps(steps_per_epoch)

    def next(self, progress: int) -> int:
        """The first date after ``progress``; before it, nothing is due."""
        dates = [self.last]
        dates += [
            progress - progress % every + every for every in (self._evaluate, self._checkpoint) if every
        ]
        return min(dates)

    def due(self, before: int, progress: int) -> Due:
        """What fell due after ``before``, up to and including ``progress``; the end counts as a date of each kind."""
        stop = progress >= self.last
        return Due(
            evaluate=bool(self._evaluate) and (stop or _crossed(before, progress, self._evaluate)),
            checkpoint=bool(self._checkpoint) and (stop or _crossed(before, progress, self._checkpoint)),
            stop=stop,
        )

    def epoch(self, progress: float) -> float:
        """Progress in epochs."""
        return progress / self.steps_per_epoch


def _crossed(before: int, after: int, every: int) -> bool:
    return bool(every) and before // every != after // every
