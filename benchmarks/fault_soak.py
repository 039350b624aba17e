"""A soak of live runs under faults: a seed decides the run, the faults and their moments; see docs/faults.md.

Invariants after every launch: it ends within a bound, nothing is left, what is called safe is safe; and at the end:
the resumed run equals an undisturbed one. The exit code is 1 if any did not hold.
"""

import argparse
import math
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import count
from pathlib import Path

from _fault_hosts import PREFIX, isolated, sweep
from _fault_play import Verdict, play, undisturbed_digest
from _fault_scenarios import Scenario, scenario


class References:
    """Undisturbed runs, each made when it is first asked for."""

    def __init__(self, slack: float) -> None:
        self._slack = slack
        self._lock = threading.Lock()
        self._digests: dict[Scenario, str] = {}

    def __call__(self, undisturbed: Scenario) -> str:
        """The digest of its model."""
        with self._lock:
            if undisturbed not in self._digests:
                self._digests[undisturbed] = undisturbed_digest(undisturbed, self._slack)
            return self._digests[undisturbed]


def missing(wanted: Scenario) -> str:
    """Why a scenario cannot be played here; nothing if it can."""
    if not wanted.needs_root or isolated():
        return ""
    return "network namespaces and disks of their own need root, ip and unshare"


def soak(seeds: Iterable[int], options: argparse.Namespace) -> list[Verdict]:
    """Play the seeds in order, some at a time, until the time is up; Ctrl-C lets those under way come to their end."""
    references, verdicts = References(options.slack), list[Verdict]()
    until = time.monotonic() + 60 * options.minutes if options.minutes else math.inf
    ahead, lock, stopped = iter(seeds), threading.Lock(), threading.Event()

    def work() -> None:
        while time.monotonic() < until and not stopped.is_set():
            with lock:
                seed = next(ahead, None)
            if seed is None:
                return
            if reason := missing(scenario(seed)):
                print(f"seed {seed}: skipped, {reason}", flush=True)
                continue
            kept = Path(tempfile.gettempdir(), f"{PREFIX}kept-{seed}-{os.getpid()}") if options.keep else None
            verdicts.append(play(scenario(seed), references, options.slack, kept))
            print(line(verdicts[-1]), flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            wait([pool.submit(work) for _ in range(options.jobs)])
        except KeyboardInterrupt:
            stopped.set()
    return sorted(verdicts, key=lambda verdict: verdict.scenario.seed)


def line(verdict: Verdict) -> str:
    """A verdict in words."""
    outcome = "; ".join(f"VIOLATED: {sentence}" for sentence in verdict.violations) or "ok"
    story = " -> ".join(verdict.story)
    return f"seed {verdict.scenario.seed}: {verdict.scenario} | {story} | {outcome} | {verdict.seconds:.1f} s"


def table(verdicts: list[Verdict]) -> str:
    """What was played and found, in totals."""
    kinds: Counter[str] = sum((verdict.fired for verdict in verdicts), Counter())
    drawn = Counter(fault.kind for verdict in verdicts for fault in verdict.scenario.faults)
    bad = [verdict for verdict in verdicts if verdict.violations]
    lines = [
        f"{len(verdicts)} scenarios, {sum(kinds.values())} faults injected of {sum(drawn.values())} drawn"
    ]
    lines += [f"  {kind:14} {kinds[kind]:4} of {drawn[kind]}" for kind in sorted(drawn)]
    lines += [f"{sum(len(verdict.violations) for verdict in bad)} violations in {len(bad)} scenarios"]
    lines += [f"  seed {verdict.scenario.seed}: {'; '.join(verdict.violations)}" for verdict in bad]
    return "\n".join(lines)


def numbers(text: str) -> list[int]:
    """Seeds from words such as 3,7,20-29."""
    ends = [part.partition("-") for part in text.split(",")]
    return [seed for first, _, last in ends for seed in range(int(first), int(last or first) + 1)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=numbers, default="1-20", help="such as 1-100, or 3,7,20-29")
    parser.add_argument("--only", type=int, help="this seed alone")
    parser.add_argument(
        "--minutes", type=float, help="go on from the first seed for so long, whatever the last is"
    )
    parser.add_argument("--jobs", type=int, default=1, help="scenarios at a time")
    parser.add_argument(
        "--slack", type=float, default=1.0, help="factor on all time limits, for a busy machine"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder of a seed that failed")
    parser.add_argument("--list", action="store_true", help="show the scenarios; play none")
    options = parser.parse_args()
    seeds: Iterable[int] = options.seeds if options.only is None else [options.only]
    if options.minutes:
        seeds = count(options.seeds[0])
    if options.list:
        print("\n".join(f"seed {seed}: {scenario(seed)}" for seed in seeds))
        return 0
    sweep()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    verdicts = soak(seeds, options)
    print(table(verdicts))
    return int(any(verdict.violations for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
