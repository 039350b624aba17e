"""A run as plain CSV tables: names of columns carry their units, and every table is written line by line."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from paceline.records.events import read_events, read_metrics
from paceline.records.files import read_json
from paceline.records.folder import RunFolder
from paceline.records.load import SystemSample, read_samples, worker_ranks
from paceline.records.servers import Updated, read_server_log
from paceline.records.spans import KINDS, StepBreakdown, StepRecord, Totals
from paceline.records.summary import Summary, read_summary

CsvRow = Mapping[str, Any]
PARTS = tuple(f"{kind}_seconds" for kind in KINDS)


@dataclass(frozen=True)
class CsvTable:
    """One file: its columns, and its rows as they are read."""

    columns: tuple[str, ...]
    rows: Callable[[RunFolder], Iterable[CsvRow]]


def write_csv(folder: RunFolder, out: Path) -> dict[Path, int]:
    """Write every table that the run has rows for into the folder ``out``; return the files with their rows.

    Memory does not grow with the run. A table of an earlier export is replaced.
    """
    written = {}
    for name, table in tables(folder).items():
        path = out / f"{name}.csv"
        if count := _write(path, table.columns, table.rows(folder)):
            written[path] = count
        else:
            path.unlink()
    return written


def _write(path: Path, columns: tuple[str, ...], rows: Iterable[CsvRow]) -> int:
    count = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(columns)
        for row in rows:
            lines.writerow([_cell(row.get(column)) for column in columns])
            count += 1
    return count


def _cell(value: Any) -> Any:
    """Empty for what is not known; numbers as Python writes them, so that no digit is lost."""
    return "" if value is None else int(value) if isinstance(value, bool) else value


def tables(folder: RunFolder) -> dict[str, CsvTable]:
    return {
        "steps": CsvTable(
            (
                *("rank", "step", "is_step", "warm_up", "start_seconds", "length_seconds", *PARTS),
                *("hidden_seconds", "samples", "sent_bytes", "received_bytes"),
            ),
            _steps,
        ),
        "metrics": CsvTable(_metric_columns(folder), _metrics),
        "system": CsvTable(
            (
                *("time_seconds", "rank", "pid", "worker_cpu_percent_of_core", "worker_memory_bytes"),
                *("host_cpu_percent", "host_sent_bytes_per_second", "host_received_bytes_per_second"),
            ),
            _system,
        ),
        "totals": CsvTable(tuple(_totals_row(0, Totals())), _totals),
        "staleness": CsvTable(("server", "staleness_updates", "gradients"), _staleness),
        "updates": CsvTable(
            (
                *("server", "time_seconds", "version", "worker", "worker_clock_steps", "worker_version"),
                *("staleness_updates", "samples"),
            ),
            _updates,
        ),
        "prediction": CsvTable(("name", "value"), _prediction),
    }


def _steps(folder: RunFolder) -> Iterator[CsvRow]:
    for rank, path in folder.event_files().items():
        for record in read_events(path):
            yield _step_row(rank, record)


def _step_row(rank: int, record: StepRecord) -> CsvRow:
    parts = dict.fromkeys(PARTS, 0.0)
    for kind, _, length in record.spans:
        parts[f"{kind}_seconds"] += length
    return {
        "rank": rank,
        "step": record.step,
        "is_step": record.is_step,
        "warm_up": record.warm_up,
        "start_seconds": record.spans[0].start if record.spans else None,
        "length_seconds": sum(parts.values()),
        **parts,
        "hidden_seconds": sum([span.length for span in record.hidden], 0.0),
        "samples": record.samples,
        "sent_bytes": record.sent,
        "received_bytes": record.received,
    }


def _metrics(folder: RunFolder) -> Iterator[CsvRow]:
    for row in read_metrics(folder.metrics) if folder.metrics.exists() else ():
        yield {_METRIC_UNITS.get(name, name): value for name, value in row.to_json().items()}


_METRIC_UNITS = {"seconds": "time_seconds", "noise_scale": "noise_scale_samples"}


def _metric_columns(folder: RunFolder) -> tuple[str, ...]:
    """Every name that any row has: a job's own metrics are known from its rows only."""
    found = dict.fromkeys(("step", "epoch", "time_seconds", "learning_rate", "train_loss"))
    for row in _metrics(folder):
        found |= dict.fromkeys(row)
    return tuple(found)


def _system(folder: RunFolder) -> Iterator[CsvRow]:
    """One row a worker and sample; where no worker was left, one with the host's figures only."""
    ranks = worker_ranks(folder.env)
    for sample in read_samples(folder.system):
        host = _host_cells(sample)
        for worker in sample.workers:
            yield {
                **host,
                "rank": ranks.get(worker.pid),
                "pid": worker.pid,
                "worker_cpu_percent_of_core": worker.cpu_percent,
                "worker_memory_bytes": worker.memory_bytes,
            }
        if not sample.workers:
            yield host


def _host_cells(sample: SystemSample) -> CsvRow:
    return {
        "time_seconds": sample.time,
        "host_cpu_percent": sample.cpu_percent,
        "host_sent_bytes_per_second": sample.sent_per_second,
        "host_received_bytes_per_second": sample.received_per_second,
    }


def _totals(folder: RunFolder) -> Iterator[CsvRow]:
    if summary := _summary(folder):
        for rank, totals in enumerate(summary.totals):
            yield _totals_row(rank, totals)


def _summary(folder: RunFolder) -> Summary | None:
    try:
        return read_summary(folder)
    except FileNotFoundError:  # the run goes on, or has failed
        return None


def _totals_row(rank: int, totals: Totals) -> dict[str, Any]:
    typical = {
        f"typical_{part.name}_seconds": getattr(totals.typical, part.name) for part in fields(StepBreakdown)
    }
    return {
        "rank": rank,
        "steps": totals.steps,
        "warm_up_steps": totals.warm_up_steps,
        "samples": totals.samples,
        "sent_bytes": totals.sent,
        "received_bytes": totals.received,
        **{f"{kind}_seconds": totals.seconds.get(kind, 0.0) for kind in KINDS},
        "outside_of_steps_seconds": sum(totals.outside.values()),
        **typical,
        "typical_step_seconds": totals.typical.total,
    }


def _staleness(folder: RunFolder) -> Iterator[CsvRow]:
    summary = _summary(folder)
    for server, totals in enumerate(summary.servers if summary else ()):
        for staleness, gradients in sorted(totals.staleness.items()):
            yield {"server": server, "staleness_updates": staleness, "gradients": gradients}


def _updates(folder: RunFolder) -> Iterator[CsvRow]:
    for server, path in folder.server_event_files().items():
        for entry in read_server_log(path):
            if not isinstance(entry, Updated):
                continue
            for used in entry.used:
                yield {
                    "server": server,
                    "time_seconds": entry.at,
                    "version": entry.version,
                    "worker": used.worker,
                    "worker_clock_steps": used.clock,
                    "worker_version": used.version,
                    "staleness_updates": used.staleness,
                    "samples": used.samples,
                }


def _prediction(folder: RunFolder) -> Iterator[CsvRow]:
    """``prediction.json`` value by value: the path to each, such as ``row.step``."""
    if folder.prediction.exists():
        yield from _flat(read_json(folder.prediction))


def _flat(value: Any, path: str = "") -> Iterator[CsvRow]:
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    else:
        yield {"name": path, "value": value}
