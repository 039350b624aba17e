"""The report of a long run: how long it takes to build, how large it is, and whether a browser can use it.

Eight ranks train for a few seconds, in a run of 100,000 steps that is then stopped. Its record is continued to the last
of them by the writers that runs use: the same steps over and over, each later than the one before, with evaluations,
checkpoints and samples of the machine where the run had them. Then 'paceline report' makes the page, and a headless
Chromium opens it, on a desktop and on a phone: until all is drawn, the timeline zoomed, a tab and the theme switched.
Exit code 3 where a limit is missed.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from operator import ne
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from selenium.webdriver.common.by import By

from _browser import browser, open_report, show, until
from paceline.records.events import EventWriter, append_metrics, read_events, read_metrics
from paceline.records.files import LineWriter, write_json
from paceline.records.folder import RunFolder
from paceline.records.load import SystemSample, read_samples
from paceline.records.spans import Span, StepRecord, TimeLedger, Totals
from paceline.records.summary import read_summary

BUILT, SIZE, DRAWN, ANSWERED = 10.0, 5_000_000, 3.0, 0.3
"""Seconds to build, bytes of the page, seconds until all of it is drawn, and until a click has its effect."""
WARM_UP = 20
"""Steps of the recorded run that are not repeated."""
SCREENS = {"desktop": (1280, 900), "phone": (390, 844)}

AXIS = "return [...document.querySelectorAll('#timeline .role-axis-label text')].map((one) => one.textContent).join()"
SHOWN = (
    "return [...document.querySelectorAll('.chart')]"
    ".filter((one) => !one.closest('[hidden]')).map((one) => one.id).join()"
)
THEME = "return document.documentElement.dataset.theme"
CLICKS = (
    ("zoom in", "[data-zoom=in]", AXIS),
    ("zoom out to all", "[data-zoom=all]", AXIS),
    ("against samples", "input[value=learning-1]", SHOWN),
    ("dark", ".theme input[value=dark]", THEME),
)
"""What is clicked, and what then differs."""


def train(home: Path, ranks: int, steps: int, seconds: float) -> RunFolder:
    """The folder of a run of so many steps that was stopped after some seconds."""
    words = ["-np", str(ranks), "-b", "8", "-i", str(steps), "--threads", "1", "--runs", str(home)]
    command = [sys.executable, "-m", "paceline", "train", "--model", "mlp", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        while not list(home.glob("*/metrics.jsonl")):
            if run.poll() is not None:
                sys.exit(f"'paceline train' ended with {run.returncode}")
            time.sleep(0.1)
        time.sleep(seconds)
        run.send_signal(signal.SIGINT)
    (path,) = home.glob("*-*")
    return RunFolder(path)


def shifted(record: StepRecord, steps: int, seconds: float) -> StepRecord:
    def later(spans: Sequence[Span]) -> list[Span]:
        return [Span(kind, start + seconds, length) for kind, start, length in spans]

    return msgspec.structs.replace(
        record,
        step=record.step + steps,
        spans=later(record.spans),
        hidden=later(record.hidden),
        warm_up=False,
    )


def lap_of(folder: RunFolder) -> tuple[int, int, float]:
    """The steps that are repeated, first and last, whole epochs of them, and how long they took rank 0."""
    rows = [row for row in read_metrics(folder.metrics) if row.step > WARM_UP]
    return rows[0].step, rows[-1].step, rows[-1].seconds - rows[0].seconds


def continue_rank(folder: RunFolder, rank: int, steps: int, lap: tuple[int, int, float]) -> Totals:
    """Write the rest of one rank's record; the totals of all of it."""
    first, last, seconds = lap
    path = folder.events(rank)
    known = [record for record in read_events(path) if record.step <= last]
    again = [record for record in known if record.step > first]
    path.unlink()
    ledger = TimeLedger()
    with EventWriter(path) as events:
        for record in known:
            events.append(record)
            ledger.add(record)
        for number in range(1, (steps - last) // (last - first) + 2):
            for record in again:
                if record.step + number * (last - first) <= steps:
                    events.append(one := shifted(record, number * (last - first), number * seconds))
                    ledger.add(one)
    return ledger.totals()


def continue_run(folder: RunFolder, steps: int) -> None:
    """From the steps that were recorded to the last one that the run was to have."""
    lap, summary = lap_of(folder), read_summary(folder)
    first, last, seconds = lap
    laps = (steps - last) // (last - first) + 1
    totals = [continue_rank(folder, rank, steps, lap) for rank in folder.event_files()]
    rows = [row for row in read_metrics(folder.metrics) if row.step > first]
    epochs = rows[-1].epoch - rows[0].epoch + rows[0].epoch / rows[0].step * (rows[0].step - first)
    for number in range(1, laps + 1):
        for row in rows:
            if (step := row.step + number * (last - first)) <= steps:
                later = replace(
                    row, step=step, epoch=row.epoch + number * epochs, seconds=row.seconds + number * seconds
                )
                append_metrics(folder.metrics, later)
    samples = list(read_samples(folder.system))
    whole = seconds * (steps - first) / (last - first)
    with LineWriter[SystemSample](folder.system) as lines:
        for second in range(1, int(whole - samples[-1].time)):
            again = samples[second % len(samples)]
            lines.append(msgspec.structs.replace(again, time=samples[-1].time + second))
    (*_, final) = read_metrics(folder.metrics)
    changed = replace(
        summary,
        ending="budget",
        steps=steps,
        epochs=summary.epochs * steps / summary.steps,
        samples=sum(one.samples for one in totals),
        seconds=sum(totals[0].seconds.values()),
        final={name: value for name, value in final.to_json().items() if value is not None},
        totals=totals,
    )
    write_json(folder.summary, changed.to_json())


def used(page: Path, screen: tuple[int, int], profile: Path) -> dict[str, Any]:
    """Seconds until all is drawn, and until each click shows its effect; what the browser complained about."""
    with browser(profile) as chrome:
        show(chrome, *screen)
        chrome.get("about:blank")
        begun = time.perf_counter()
        drawn = open_report(chrome, page)
        seconds = time.perf_counter() - begun
        clicks = {}
        for name, selector, script in CLICKS:
            before = chrome.execute_script(script)
            button = chrome.find_element(By.CSS_SELECTOR, selector)
            chrome.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
            begun = time.perf_counter()
            button.click()
            changed = until(chrome, script, partial(ne, before), 5.0)
            clicks[name] = time.perf_counter() - begun if changed else float("inf")
        log: list[dict[str, Any]] = chrome.get_log("browser")  # type: ignore[no-untyped-call]
        wide = chrome.execute_script("return document.documentElement.scrollWidth > innerWidth")
    errors = [one["message"] for one in log if one["level"] in ("WARNING", "SEVERE")]
    errors += ["not all charts are drawn"] * (not drawn) + ["the page is wider than the window"] * wide
    return {"drawn": seconds, "clicks": clicks, "errors": errors}


def measure(options: argparse.Namespace, home: Path) -> dict[str, Any]:
    folder = train(home / "runs", options.ranks, options.steps, options.seconds)
    recorded = read_summary(folder).steps
    continue_run(folder, options.steps)
    page, built = home / "report.html", []
    for _ in range(options.repeats):
        begun = time.perf_counter()
        command = [sys.executable, "-m", "paceline", "report", str(folder.path), "--out", str(page)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        built.append(time.perf_counter() - begun)
    if options.out:
        shutil.copy(page, options.out)
    return {
        "ranks": options.ranks,
        "steps": options.steps,
        "recorded_steps": recorded,
        "evaluations": sum(1 for _ in read_metrics(folder.metrics)),
        "record_bytes": sum(path.stat().st_size for path in folder.path.rglob("*") if path.is_file()),
        "built": built,
        "size": page.stat().st_size,
        "screens": {name: used(page, screen, home / name) for name, screen in SCREENS.items()},
    }


def missed(found: dict[str, Any]) -> list[str]:
    screens = found["screens"].values()
    checks = {
        "time to build": median(found["built"]) < BUILT,
        "size": found["size"] < SIZE,
        "time until drawn": all(one["drawn"] < DRAWN for one in screens),
        "time of a click": all(max(one["clicks"].values()) < ANSWERED for one in screens),
        "errors": not any(one["errors"] for one in screens),
    }
    return [name for name, met in checks.items() if not met]


def text(found: dict[str, Any]) -> str:
    built = found["built"]
    lines = [
        f"{found['steps']:,} steps on {found['ranks']} ranks, {found['recorded_steps']:,} of them trained; "
        f"{found['evaluations']:,} evaluations, {found['record_bytes'] / 1e6:.0f} MB of records",
        f"built in {median(built):.2f} s ({min(built):.2f} to {max(built):.2f}; limit {BUILT:g} s), "
        f"{found['size'] / 1e6:.2f} MB (limit {SIZE / 1e6:g} MB)",
    ]
    for name, one in found["screens"].items():
        clicks = ", ".join(f"{what} {1e3 * seconds:.0f} ms" for what, seconds in one["clicks"].items())
        lines.append(f"{name}: drawn after {one['drawn']:.2f} s (limit {DRAWN:g} s); clicks: {clicks}")
        lines += [f"{name}: {error}" for error in one["errors"]]
    return "\n".join([*lines, f"missed: {', '.join(found['missed']) or 'none'}"])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=8.0, help="of training")
    parser.add_argument("--repeats", type=int, default=3, help="of building the page")
    parser.add_argument("--out", type=Path, help="keep the page here")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-") as name:
        home = Path(name)
        (home / "runs").mkdir()
        found = measure(options, home)
    found["missed"] = missed(found)
    print(json.dumps(found, indent=2) if options.json else text(found))
    return 3 if found["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
