"""Only one worker talks: the first of those who are there."""

from paceline.records.events import MetricsRow
from paceline.records.observer import Observer, Started
from paceline.records.summary import Summary
from paceline.runtimes.live.worker.comm import Group


class FirstSpeaks(Observer):
    """Passes on what happens while this worker is the first; one that becomes it says so, and how the run began."""

    def __init__(self, observer: Observer, group: Group) -> None:
        self._observer, self._group = observer, group
        self._run: Started | None = None
        self._introduced = False

    @property
    def speaks(self) -> bool:
        """Whether it is this worker's turn."""
        return self._group.members[0] == self._group.rank

    def started(self, run: Started) -> None:
        """Remember it, for a turn that may come."""
        self._run = run
        if self.speaks:
            self._introduce()

    def stepped(self, progress: int, samples: int, loss: float, seconds: float) -> None:
        """Pass it on."""
        if self._introduced:
            self._observer.stepped(progress, samples, loss, seconds)

    def evaluated(self, row: MetricsRow) -> None:
        """Pass it on; here all workers know who is there."""
        if self.speaks:
            self._take_over()
            self._observer.evaluated(row)

    def noted(self, sentence: str) -> None:
        """Pass it on."""
        if self.speaks:
            self._observer.noted(sentence)

    def finished(self, summary: Summary) -> None:
        """Pass it on."""
        if self.speaks:
            self._take_over()
            self._observer.finished(summary)

    def _take_over(self) -> None:
        if not self._introduced:
            self._observer.noted(f"rank {self._group.rank} reports from here on: those before it have gone")
            self._introduce()

    def _introduce(self) -> None:
        self._introduced = True
        if self._run is not None:
            self._observer.started(self._run)
