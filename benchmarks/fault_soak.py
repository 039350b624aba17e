"""A soak of live runs under faults: a seed decides the run, the faults and their moments; see docs/faults.md.

Invariants after every launch: it ends within a bound, nothing is left, what is called safe is safe; and at the end:
the resumed run equals an undisturbed one. The exit code is 1 if any did not hold.
"""

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from _fault_hosts import PREFIX, sweep
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
    if not wanted.needs_root or (os.geteuid() == 0 and shutil.which("ip") and shutil.which("unshare")):
        return ""
    return "network namespaces and disks of their own need root, ip and unshare"


def soak(seeds: Iterable[int], options: argparse.Namespace) -> Iterator[Verdict]:
    """Play the seeds in order, some at a time, until the time is up."""
    references, began = References(options.slack), time.monotonic()

    def one(seed: int) -> Verdict | None:
        drawn = scenario(seed)
        if options.minutes and time.monotonic() - began > 60 * options.minutes:
            return None
        if reason := missing(drawn):
            print(f"seed {seed}: skipped, {reason}", flush=True)
            return None
        kept = Path(tempfile.gettempdir(), f"{PREFIX}kept-{seed}-{os.getpid()}") if options.keep else None
        verdict = play(drawn, references, options.slack, kept)
        print(line(verdict), flush=True)
        return verdict

    with ThreadPoolExecutor(options.jobs) as pool:
        yield from (verdict for verdict in pool.map(one, seeds) if verdict is not None)


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1-20", help="first and last seed, such as 1-100")
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
    first, last = (int(number) for number in options.seeds.split("-"))
    seeds: Iterable[int] = range(first, 1_000_000 if options.minutes else last + 1)
    if options.only is not None:
        seeds = [options.only]
    if options.list:
        print("\n".join(f"seed {seed}: {scenario(seed)}" for seed in seeds))
        return 0
    sweep()
    verdicts = list(soak(seeds, options))
    print(table(verdicts))
    return int(any(verdict.violations for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
