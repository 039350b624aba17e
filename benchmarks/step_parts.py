"""Whether the parts of a step add up to the step, by a clock that is not the recorder's; exit code 3 where they do not.

The model stamps the time of every forward. From one stamp to the next is a step, and what the record says of the same
time, part by part, must add up to it: in sum, in the median step, and in the typical step that is shown. Two workers
train by all-reduce, local SGD, a stale-synchronous server, and in a script's own loop.

Then communication both ways: as spans have it, and as Tn - T1/n, where T1 and Tn are the times of an epoch by the
stamps of one worker and of n. They differ by what computing takes longer beside other workers; with it, the parts must
add up to Tn - T1/n.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from _stamped import BATCH, read_stamps
from paceline.records.events import read_events
from paceline.records.files import read_json
from paceline.records.folder import RunFolder
from paceline.records.spans import StepRecord
from paceline.records.summary import read_summary

LIMIT = 0.01
"""Of a step, and of Tn."""
JOB = Path(__file__).with_name("_stamped.py")
SAMPLES = 1437
"""Of the digits' training data."""
RUNS = {
    "one worker": ("-np", "1"),
    "all-reduce": ("-np", "2"),
    "local-sgd:period=8": ("-np", "2", "--strategy", "local-sgd:period=8"),
    "ssp:staleness=3": ("-np", "2", "--strategy", "ssp:staleness=3"),
}
COMPUTING = ("data", "forward", "backward", "apply")
SKIPPED = 20
"""Steps at the start, in which memory is allocated and kernels are chosen."""


@dataclass(frozen=True)
class RankTimes:
    """One rank: each step from a forward to the next one, by its stamps and by the parts in its record."""

    stamped: list[float]
    parts: list[dict[str, float]]
    typical: float
    """As the run's summary has it."""

    @property
    def recorded(self) -> list[float]:
        return [sum(one.values()) for one in self.parts]


def environment(stamps: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "STAMPS": str(stamps), "OMP_NUM_THREADS": "1", **more}


def train(home: Path, steps: int, words: Sequence[str]) -> tuple[RunFolder, Path]:
    """A run of the job without evaluations and checkpoints, and where its stamps are."""
    stamps = home / "stamps"
    stamps.mkdir(parents=True)
    never = ("--evaluate-every", "never", "--checkpoint-every", "never", "--threads", "1")
    command = [sys.executable, "-m", "paceline", "train", "--job", f"{JOB}:build", "-b", str(BATCH), *never]
    return run([*command, "-i", str(steps), "--runs", str(home / "runs"), *words], home, stamps)


def train_script(home: Path, steps: int) -> tuple[RunFolder, Path]:
    """The same in a loop of its own, under torchrun."""
    stamps = home / "stamps"
    stamps.mkdir(parents=True)
    epochs = max(1, round(steps / (SAMPLES // (2 * BATCH))))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(JOB)]
    return run(command, home, stamps, EPOCHS=str(epochs))


def run(command: Sequence[str], home: Path, stamps: Path, **more: str) -> tuple[RunFolder, Path]:
    done = subprocess.run(
        command, cwd=home, env=environment(stamps, **more), capture_output=True, text=True, timeout=200
    )
    if done.returncode:
        sys.exit(f"'{' '.join(command[1:])}' ended with {done.returncode}:\n{done.stderr}")
    (path,) = (home / "runs").glob("*")
    return RunFolder(path), stamps


def rank_times(folder: RunFolder, stamps: Path) -> list[RankTimes]:
    processes = {worker["rank"]: worker["pid"] for worker in read_json(folder.env)["workers"]}
    totals = read_summary(folder).totals
    found = []
    for rank, path in folder.event_files().items():
        steps = parts_between_forwards(list(read_events(path)))
        times = read_stamps(stamps / str(processes[rank]))[-len(steps) - 1 :]
        stamped = [later - sooner for sooner, later in pairwise(times)]
        assert len(stamped) == len(steps), f"rank {rank} has {len(stamped)} stamped steps of {len(steps)}"
        found.append(RankTimes(stamped[SKIPPED:], steps[SKIPPED:], totals[rank].typical.total))
    return found


def parts_between_forwards(records: Sequence[StepRecord]) -> list[dict[str, float]]:
    """Seconds by part from the first forward of a step to that of the next one, whatever record they are in."""
    found: list[dict[str, float]] = []
    for record in records:
        begun = False
        for span in record.spans:
            if span.kind == "forward" and not begun:
                found.append({})
                begun = True
            if found:
                found[-1][span.kind] = found[-1].get(span.kind, 0.0) + span.length
    return found[:-1]  # after the last forward there is no other


def middle_mean(values: Sequence[float]) -> float:
    """The mean of the middle half."""
    many = len(values)
    return fmean(sorted(values)[many // 4 : many - many // 4])


@dataclass(frozen=True)
class Sums:
    """How far parts are from the stamped time, as a share of it; the worst rank."""

    seconds: float
    """The mean step, by stamps."""
    whole: float
    """All steps in sum."""
    usual: float
    """The median step."""
    ninety_nine: float
    """99 of 100 steps."""
    typical: float
    """The summary's typical step, against the middle half of the stamped ones."""

    @classmethod
    def of(cls, ranks: Sequence[RankTimes], *, typical: bool) -> "Sums":
        apart = [
            sorted(abs(ours / clock - 1) for ours, clock in zip(one.recorded, one.stamped, strict=True))
            for one in ranks
        ]
        return cls(
            seconds=fmean(fmean(one.stamped) for one in ranks),
            whole=max(abs(sum(one.recorded) / sum(one.stamped) - 1) for one in ranks),
            usual=max(map(median, apart)),
            ninety_nine=max(one[round(0.99 * (len(one) - 1))] for one in apart),
            typical=max(abs(one.typical / middle_mean(one.stamped) - 1) for one in ranks) if typical else 0.0,
        )

    @property
    def met(self) -> bool:
        return max(self.whole, self.usual, self.typical) < LIMIT


def mean_parts(ranks: Sequence[RankTimes]) -> dict[str, float]:
    """Seconds of a step by part, the mean over all steps of all ranks."""
    kinds = {kind for one in ranks for step in one.parts for kind in step}
    steps = [step for one in ranks for step in one.parts]
    return {kind: sum(step.get(kind, 0.0) for step in steps) / len(steps) for kind in kinds}


@dataclass(frozen=True)
class Difference:
    """Of an epoch, in seconds: Tn - T1/n by stamps, and what the record says that it is made of."""

    whole: float
    """Tn."""
    difference: float
    communicate: float
    wait: float
    computing: float
    """Longer than alone: contention."""
    rest: float

    @classmethod
    def of(cls, alone: Sequence[RankTimes], ranks: Sequence[RankTimes]) -> "Difference":
        # n workers share the samples, so an epoch has as many steps of each as T1/n has of the one.
        steps = SAMPLES / BATCH / len(ranks)
        ours, theirs = mean_parts(alone), mean_parts(ranks)
        one, several = (fmean(fmean(rank.stamped) for rank in side) for side in (alone, ranks))

        def longer(*kinds: str) -> float:
            return steps * sum(theirs.get(kind, 0.0) - ours.get(kind, 0.0) for kind in kinds)

        return cls(
            whole=steps * several,
            difference=steps * (several - one),
            communicate=longer("communicate"),
            wait=longer("wait"),
            computing=longer(*COMPUTING),
            rest=longer("other"),
        )

    @property
    def explained(self) -> float:
        return self.communicate + self.wait + self.computing + self.rest

    @property
    def left(self) -> float:
        """What is not explained, as a share of Tn."""
        return abs(self.explained - self.difference) / self.whole

    @property
    def met(self) -> bool:
        return self.left < LIMIT


def text(sums: Mapping[str, Sums], differences: Mapping[str, Difference]) -> list[str]:
    lines = [
        f"`cnn` at batch {BATCH}: how far the parts of a step are from its stamped time (limit {100 * LIMIT:g} %)",
        "",
        "| run | step ms | all steps in sum | median step | 99 of 100 steps | typical step |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in sums.items():
        typical = f"{100 * one.typical:.2f} %" if one.typical else "-"
        lines.append(
            f"| {name} | {1e3 * one.seconds:.3f} | {100 * one.whole:.3f} % | {100 * one.usual:.2f} % "
            f"| {100 * one.ninety_nine:.2f} % | {typical} |"
        )
    lines += [
        "",
        "An epoch of 2 workers in ms: communication as spans, and as Tn - T1/n by stamps, with what lies between",
        "",
        "| run | communicate | wait | computing longer than alone | rest | together | Tn - T1/n | left, of Tn |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, each in differences.items():
        parts = (each.communicate, each.wait, each.computing, each.rest, each.explained, each.difference)
        shown = " | ".join(f"{1e3 * one:.2f}" for one in parts)
        lines.append(f"| {name} | {shown} | {100 * each.left:.2f} % |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2500, help="of each run")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-") as name:
        home = Path(name)
        found = {
            what: rank_times(*train(home / str(number), options.steps, words))
            for number, (what, words) in enumerate(RUNS.items())
        }
        found["a script's loop"] = rank_times(*train_script(home / "script", options.steps))
    # With local SGD a step in eight is unlike the others: its typical step keeps their share, the middle half does not.
    sums = {what: Sums.of(ranks, typical="local-sgd" not in what) for what, ranks in found.items()}
    alone = found.pop("one worker")
    differences = {what: Difference.of(alone, ranks) for what, ranks in found.items()}
    missed = [name for name, one in sums.items() if not one.met]
    missed += [f"{name}, by difference" for name, one in differences.items() if not one.met]
    if options.json:
        document = {
            "sums": {name: asdict(one) for name, one in sums.items()},
            "differences": {name: asdict(one) for name, one in differences.items()},
            "missed": missed,
        }
        print(json.dumps(document, indent=2))
    else:
        print("\n".join([*text(sums, differences), "", f"missed: {', '.join(missed) or 'none'}"]))
    return 3 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
