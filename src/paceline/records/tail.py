"""Files of a run that goes on, read as they grow."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from paceline.records.events import MetricsRow, _decode_row, _decode_step
from paceline.records.load import SystemSample, _decode_sample
from paceline.records.servers import Entry
from paceline.records.servers import _decode as _decode_entry
from paceline.records.spans import StepRecord

T = TypeVar("T")

LAST = 256 * 1024
"""Bytes at the end of a file with which the first look begins, however long the file is."""
BLOCK = 1024 * 1024


class LineTail(Generic[T]):
    """Reads what was added to a file since the last look; the file may appear later.

    A line that is half written is left for the next look. A run that resumes cuts or replaces its files: then
    ``restart`` is called and the end of the file is read again. A damaged line is counted and skipped.
    """

    def __init__(self, path: Path, decode: Callable[[bytes], T], restart: Callable[[], None]) -> None:
        self.path, self.damaged = path, 0
        self._decode, self._restart = decode, restart
        self._inode, self._offset = 0, 0

    def read(self) -> Iterator[T]:
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            self._find_place(os.fstat(file.fileno()))
            while True:
                file.seek(self._offset)
                block = file.read(BLOCK)
                whole = block[: block.rfind(b"\n") + 1]
                if not whole and len(block) < BLOCK:
                    return
                self._offset += len(whole or block)
                yield from self._things(whole or b"\n")  # no line that we write is as long as a block

    def _find_place(self, status: os.stat_result) -> None:
        if status.st_ino == self._inode and status.st_size >= self._offset:
            return
        if self._inode:
            self._restart()
        self._inode, self._offset = status.st_ino, max(0, status.st_size - LAST)
        self._in_line = self._offset > 0

    def _things(self, lines: bytes) -> Iterator[T]:
        for line in lines.splitlines():
            if self._in_line:  # the first look began within it
                self._in_line = False
                continue
            try:
                yield self._decode(line)
            except (msgspec.MsgspecError, LookupError, UnicodeDecodeError, RecursionError):
                self.damaged += 1


def tail_events(path: Path, restart: Callable[[], None]) -> LineTail[StepRecord]:
    return LineTail(path, _decode_step, restart)


def tail_metrics(path: Path, restart: Callable[[], None]) -> LineTail[MetricsRow]:
    return LineTail(path, _decode_row, restart)


def tail_samples(path: Path, restart: Callable[[], None]) -> LineTail[SystemSample]:
    return LineTail(path, _decode_sample, restart)


def tail_server_log(path: Path, restart: Callable[[], None]) -> LineTail[Entry]:
    return LineTail(path, _decode_entry, restart)
