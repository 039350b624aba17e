"""A line on stderr for people who wait, where a prediction takes longer than a second."""

import time
from typing import TextIO


class Waiting:
    """Told what is worked on, it says so once a second; on a terminal the line goes away again."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._terminal = stream, stream.isatty()
        self._due = time.monotonic() + 1.0
        self._shown = False

    def __call__(self, words: str) -> None:
        """What is worked on now."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + (1.0 if self._terminal else 5.0)
        self._stream.write(f"\r\x1b[K{words} ..." if self._terminal else f"{words} ...\n")
        self._stream.flush()
        self._shown = True

    def done(self) -> None:
        """Tidy up."""
        if self._shown and self._terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
