"""A few records out of a long file of events: found by bisection over its bytes, without reading the rest."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import msgspec

from paceline.records.spans import StepRecord

LINE = 65_536
"""Bytes that are read to find the next line; longer lines take several reads."""

_decode = msgspec.json.Decoder(StepRecord).decode

RecordKey = Callable[[StepRecord], float]
"""A value that grows from record to record."""


def record_step(record: StepRecord) -> float:
    return record.step


def record_start(record: StepRecord) -> float:
    return record.spans[0].start


def record_end(record: StepRecord) -> float:
    last = record.spans[-1]
    return last.start + last.length


def records_from(path: Path, key: RecordKey, value: float) -> Iterator[StepRecord]:
    """Records in order, from the first whose key is ``value`` or more; lines that hold no spans are skipped."""
    with path.open("rb") as file:
        low, high = 0, file.seek(0, 2)
        while high - low > LINE:
            middle = (low + high) // 2
            found = next(_records_after(file, middle), None)
            if found is not None and key(found) < value:
                low = middle
            else:
                high = middle
        for record in _records_after(file, low):
            if key(record) >= value:
                yield record


def _records_after(file: IO[bytes], offset: int) -> Iterator[StepRecord]:
    """The whole records that begin at this byte or after it; a damaged or torn line is skipped."""
    file.seek(max(0, offset - 1))
    if offset:
        file.readline()  # the rest of the line before, or only its end
    for line in file:
        try:
            record = _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        if record.spans:
            yield record
