"""A worker that is made to compute slowly, to see what uneven workers do."""

import time


class Slowness:
    """Stretches computation by a factor; 1 leaves it alone."""

    def __init__(self, factor: float) -> None:
        self._extra = factor - 1
        self._since = 0.0

    def begin(self) -> None:
        """Computation starts now."""
        if self._extra:
            self._since = time.perf_counter()

    def stretch(self) -> None:
        """Sleep for what the computation since the last call would have taken longer."""
        if self._extra:
            time.sleep(self._extra * (time.perf_counter() - self._since))
            self._since = time.perf_counter()
