"""What recording a run costs: time a step, bytes on disk, memory; exit code 3 where a limit is missed.

Time: `cnn` at batch 16 trains on two workers, and then its own records are made again by the same recorder, span for
span, into a file; what that takes, and what sampling the system takes, is compared with the step. A run with recording
against one without would differ by less than two equal runs do on a shared machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from paceline.records.events import EventWriter, MetricsRow, append_metrics, read_events
from paceline.records.folder import RunFolder
from paceline.records.load import SystemSampler, read_samples
from paceline.records.spans import StepRecord, TimeLedger
from paceline.records.summary import read_summary
from paceline.runtimes.live.worker.recorder import StepRecorder
from paceline.strategies.base import Worker

MOST_SHARE, MOST_BYTES, MOST_GROWTH = 0.02, 1000.0, 200_000
"""Of a step; a step and rank on disk; of the recorder's memory between the short and the long run, in bytes."""
MOST_RSS_GROWTH = 0.05
# The ledger has a class for each length of steps within 4 %: a few hundred at most, where some steps are far longer
# than others. Records that were kept would be 4 MB and more.
REPEATS = 5
PARAMETERS = 19_670
"""Of cnn: workers compare a hash of them every 256 exchanges."""


class TwoWorkers:
    """Stands for the group of a worker: the other one took as long for every exchange."""

    workers, rank = 2, 0

    def minimum(self, numbers: torch.Tensor) -> None:
        """The least of both is this worker's own."""


def train(home: Path, *words: str) -> RunFolder:
    command = [sys.executable, "-m", "paceline", "train", "-np", "2", "-b", "16", "--runs", str(home)]
    before = set(home.glob("*"))
    never = ("--evaluate-every", "never", "--checkpoint-every", "never")
    subprocess.run(
        [*command, *never, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    (path,) = set(home.glob("*")) - before
    return RunFolder(path)


def bytes_per_step(folder: RunFolder) -> float:
    files = [*folder.event_files().values(), *folder.server_event_files().values()]
    steps = sum(totals.steps for totals in read_summary(folder).totals)
    return sum(path.stat().st_size for path in files) / steps


def record_again(records: list[StepRecord], events: EventWriter, ledger: TimeLedger) -> float:
    """Seconds a step of the recorder: the same spans and exchanges, one call each, as the training loop makes them."""
    params = torch.zeros(PARAMETERS)
    me = Worker(0, 2, params, params, params[:0])
    recorder = StepRecorder(TwoWorkers(), events, ledger, replica=me)  # type: ignore[arg-type]
    begun = time.perf_counter()
    for record in records:
        for span in record.spans:
            if span.kind == "communicate":
                recorder.exchanged(record.sent, record.received)
            else:
                recorder.mark(span.kind)
        for _ in record.hidden:
            recorder.hide(0.0, 1e-6)
        recorder.count(record.samples)
        recorder.close(record.step)
        recorder.pace(record.step)
    recorder.settle()
    return (time.perf_counter() - begun) / len(records)


def time_of_recording(folder: RunFolder, home: Path) -> dict[str, float]:
    records = [record for record in read_events(folder.events(0)) if record.is_step]
    again = []
    for number in range(REPEATS):
        with EventWriter(home / f"again-{number}.jsonl") as events:
            again.append(record_again(records, events, TimeLedger()))
    step = fmean(totals.typical.total for totals in read_summary(folder).totals)
    # A worker's share of one core: a sample is taken once a second by one thread, beside both workers.
    with SystemSampler(home / "system.jsonl", [os.getpid(), os.getppid()]) as sampler:
        begun = time.thread_time()
        for _ in range(50):
            sampler._sample()
        sampling = (time.thread_time() - begun) / 50
    begun = time.perf_counter()
    append_metrics(home / "metrics.jsonl", MetricsRow(1, 1.0, 1.0, 1.0, {"accuracy": 0.5}, 0.1, 1.0))
    row = time.perf_counter() - begun
    return {
        "step_seconds": step,
        "recorder_seconds_per_step": median(again),
        "recorder_seconds_per_step_most": max(again),
        "sampling_seconds_per_second": sampling,
        "metrics_seconds_per_row": row,
        "share_of_step": median(again) / step + sampling,
    }


def recorder_memory(home: Path, steps: int) -> int:
    """Bytes that a recorder, its writer and its ledger hold after so many steps."""
    from paceline.records.spans import Span

    spans = [Span(kind, 0.0, 1e-3) for kind in ("data", "forward", "backward", "communicate", "apply")]
    block = [StepRecord(step, 16, spans, sent=8, received=8) for step in range(1000)]
    tracemalloc.start()
    with EventWriter(home / f"memory-{steps}.jsonl") as events:
        ledger = TimeLedger()
        for _ in range(steps // len(block)):
            record_again(block, events, ledger)
        events.flush()
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    return held


def memory_of_a_run(folder: RunFolder, early: int) -> dict[str, float]:
    """The resident memory of rank 0 when it had done ``early`` steps, and at the end, a few samples each."""
    times = {record.step: record.spans[0].start for record in read_events(folder.events(0)) if record.is_step}
    samples = [(one.time, one.workers[0].memory_bytes) for one in read_samples(folder.system) if one.workers]
    after = [memory for at, memory in samples if at >= times[early]]
    return {"early_bytes": fmean(after[:3]), "late_bytes": fmean(after[-3:]), "steps": max(times)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--steps", type=int, default=4000, help="of the runs whose time and bytes are measured"
    )
    parser.add_argument("--long", type=int, default=40_000, help="steps of the run whose memory is measured")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recording-cost-") as name:
        home = Path(name)
        runs = home / "runs"
        runs.mkdir()
        reduced = train(runs, "-i", str(options.steps))
        served = train(runs, "-i", str(options.steps), "--strategy", "ssp")
        long = train(runs, "-i", str(options.long), "--model", "mlp")
        found: dict[str, Any] = {
            "time": time_of_recording(reduced, home),
            "bytes_per_step_and_rank": {
                "all-reduce": bytes_per_step(reduced),
                "ssp, its server's log included": bytes_per_step(served),
            },
            "recorder_memory_bytes": {str(steps): recorder_memory(home, steps) for steps in (2000, 40_000)},
            "resident": memory_of_a_run(long, min(2000, options.long // 2)),
        }
    found["missed"] = missed(found)
    print(json.dumps(found, indent=2) if options.json else text(found))
    sys.exit(3 if found["missed"] else 0)


def missed(found: dict[str, Any]) -> list[str]:
    short, long = found["recorder_memory_bytes"].values()
    resident = found["resident"]
    checks = {
        "time": found["time"]["share_of_step"] < MOST_SHARE,
        "bytes": all(value < MOST_BYTES for value in found["bytes_per_step_and_rank"].values()),
        "memory of the recorder": long - short < MOST_GROWTH,
        "memory of a worker": resident["late_bytes"] < (1 + MOST_RSS_GROWTH) * resident["early_bytes"],
    }
    return [name for name, met in checks.items() if not met]


def text(found: dict[str, Any]) -> str:
    times, resident = found["time"], found["resident"]
    lines = [
        f"cnn, batch 16, 2 workers, all-reduce: {1e3 * times['step_seconds']:.2f} ms a step",
        f"recording: {1e6 * times['recorder_seconds_per_step']:.1f} us a step "
        f"(at most {1e6 * times['recorder_seconds_per_step_most']:.1f}), and sampling "
        f"{1e3 * times['sampling_seconds_per_second']:.2f} ms a second: "
        f"{100 * times['share_of_step']:.2f} % of a step (limit {100 * MOST_SHARE:g} %)",
        f"a row of metrics: {1e6 * times['metrics_seconds_per_row']:.0f} us an evaluation",
    ]
    for name, value in found["bytes_per_step_and_rank"].items():
        lines.append(f"on disk, {name}: {value:.0f} bytes a step and rank (limit {MOST_BYTES:g})")
    memory = ", ".join(
        f"{value:,} bytes after {steps} steps" for steps, value in found["recorder_memory_bytes"].items()
    )
    lines.append(f"the recorder holds {memory}")
    early, late = (resident[key] / 1e6 for key in ("early_bytes", "late_bytes"))
    lines.append(
        f"rank 0 of a run of {resident['steps']:,} steps: {early:.1f} MB early, {late:.1f} MB at its end"
    )
    return "\n".join([*lines, f"missed: {', '.join(found['missed']) or 'none'}"])


if __name__ == "__main__":
    main()
