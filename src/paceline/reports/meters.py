"""How far a run has come: a bar on a terminal, a line now and then elsewhere."""

import time
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from paceline.records.summary import Started
from paceline.reports.text import figure, time_left


class Meter(Protocol):
    """Shows the counters now and then."""

    interval: float
    """Seconds between two looks."""

    def show(self, done: float, words: str) -> None:
        """The share that is done, and the rest in words."""

    def say(self, sentence: str) -> None:
        """A sentence for people, without breaking what is shown."""

    def stop(self) -> None:
        """Leave the last state on the screen; may be called twice."""


class ProgressBar:
    """A progress bar at the bottom of a terminal."""

    interval = 0.25

    def __init__(self, console: Console) -> None:
        # Drawn when it is told to and by no thread of its own, which would take time from the training.
        self._progress = Progress(
            TextColumn("{task.percentage:>4.0f} %"),
            BarColumn(max(6, min(20, console.width - 66)), complete_style="cyan", finished_style="green"),
            TextColumn(
                "{task.fields[words]}", markup=False, table_column=Column(no_wrap=True, overflow="crop")
            ),
            console=console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = TaskID(0)
        self.console = console

    def show(self, done: float, words: str) -> None:
        if not self._progress.live.is_started:
            self._task = self._progress.add_task("", total=1.0, words=words)
            self._progress.start()
            self.console.show_cursor()  # a worker that is killed could not give it back
        self._progress.update(self._task, completed=done, words=words)
        self._progress.refresh()

    def say(self, sentence: str) -> None:
        write(self.console, sentence)

    def stop(self) -> None:
        if self._progress.live.is_started:
            self._progress.stop()


class ProgressLines:
    """A plain line now and then, for files and pipes."""

    interval = 10.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, done: float, words: str) -> None:
        self.say(f"{100 * done:.0f} %  {words}")

    def say(self, sentence: str) -> None:
        self._stream.write(f"{sentence}\n")
        self._stream.flush()

    def stop(self) -> None:
        """Nothing is open."""


class StepProgress:
    """Counts steps, cheaply, and shows them on a meter when it is time."""

    def __init__(self, meter: Meter, run: Started) -> None:
        self.meter, self._run = meter, run
        self._begun = time.monotonic()
        self._due = self._begun + meter.interval
        self._progress = run.first_step
        self._samples = self._steps = 0
        self._loss = 0.0
        self._seconds = self._since = run.seconds
        self._measured: list[str] = []

    def count(self, progress: int, samples: int, loss: float, seconds: float) -> None:
        """One step more; about a microsecond, unless it is time to show."""
        self._samples += samples
        self._steps += 1
        self._loss += loss
        self._progress = progress
        self._seconds = seconds
        if time.monotonic() >= self._due:
            self.show()

    def show(self) -> None:
        run, now = self._run, time.monotonic()
        if self._steps and self._seconds > self._since:
            rate = self._samples / (self._seconds - self._since)
            self._measured = [f"{rate:,.0f} samples/s", f"loss {figure(self._loss / self._steps)}"]
            self._samples = self._steps = 0
            self._loss, self._since = 0.0, self._seconds
        words = [_position(run, self._progress), *self._measured]
        done, left = self._progress - run.first_step, run.last_step - self._progress
        if done and left > 0:
            words.append(f"{time_left((now - self._begun) / done * left)} left")
        self.meter.show(min(1.0, self._progress / run.last_step), "  ".join(words))
        self._due = time.monotonic() + self.meter.interval


class Countdown:
    """Shows on a meter, when it is due, the share that is done and about how long the rest takes."""

    def __init__(self, meter: Meter) -> None:
        self.meter, self._begun = meter, time.monotonic()
        self._due = self._begun + meter.interval

    def show(self, done: float, words: str) -> None:
        now = time.monotonic()
        if now >= self._due:
            left = (now - self._begun) * (1 - done) / done if done else 0.0
            self.meter.show(done, f"{words}  about {time_left(left)} left" if left else words)
            self._due = now + self.meter.interval


def write(console: Console, text: str) -> None:
    """Print text as it is: no markup, no colours, no line breaks of rich's own."""
    console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)


def _position(run: Started, progress: int) -> str:
    """Epochs where the run is so many of them, steps otherwise."""
    epochs, rest = divmod(run.last_step, run.steps_per_epoch)
    if rest:
        return f"{progress:,}/{run.last_step:,} steps"
    return f"{progress / run.steps_per_epoch:.{0 if progress == run.last_step else 1}f}/{epochs} epochs"


def meter_for(out: TextIO, err: TextIO) -> Meter:
    """A bar where people look at a terminal, plain lines elsewhere."""
    console = Console(file=out if out.isatty() else err, force_terminal=True)
    return ProgressBar(console) if err.isatty() and not console.is_dumb_terminal else ProgressLines(err)
