"""A worker that is made to compute slowly, to see what uneven workers do."""

import time

from paceline.clusters.cluster import takes_turn


class Slowness:
    """Stretches computation by a factor; 1 leaves it alone."""

    def __init__(self, factor: float = 1.0, rank: int = 0, turns: int = 0) -> None:
        """With ``turns``, only in that many steps in turn."""
        self._most = self._extra = factor - 1
        self._rank, self._turns = rank, turns
        self._since = 0.0

    def begin(self, step: int) -> None:
        """Computation of a step starts now."""
        if self._most:
            self._extra = self._most if takes_turn(self._rank, step, self._turns) else 0.0
            self._since = time.perf_counter()

    def stretch(self) -> None:
        """Sleep for what the computation since the last call would have taken longer."""
        if self._extra:
            time.sleep(self._extra * (time.perf_counter() - self._since))
            self._since = time.perf_counter()
