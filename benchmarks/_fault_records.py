"""What a run has left, read from outside: what it printed, its checkpoints, its records and its model."""

import hashlib
import json
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from _fault_scenarios import Scenario
from paceline.records.files import DamagedFile
from paceline.records.folder import RunFolder
from paceline.records.tensors import read_tensors

TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True)
class Said:
    """What one launcher printed, as far as it can be checked."""

    text: str

    def _last(self, pattern: str) -> str | None:
        found = re.findall(pattern, self.text, re.MULTILINE)
        return found[-1] if found else None

    @property
    def safe(self) -> int | None:
        """The step that it calls safe."""
        return _number(self._last(r"^Safe: checkpoint of step ([\d,]+)"))

    @property
    def nothing_safe(self) -> bool:
        """Whether it says that there is no checkpoint."""
        return bool(self._last(r"^Safe: (no checkpoint|nothing)"))

    @property
    def resume(self) -> list[str] | None:
        """The words after ``paceline`` of the command that it tells to type."""
        found = self._last(r"^ *[Rr]esume: paceline (.*)$")
        return shlex.split(found) if found else None

    @property
    def resumed_at(self) -> int | None:
        """The step from which it went on."""
        return _number(self._last(r"resumed at step ([\d,]+) of"))

    @property
    def last_line(self) -> str:
        """For a report."""
        lines = [line for line in self.text.splitlines() if line.strip()]
        return lines[-1][:160] if lines else "nothing"


def _number(text: str | None) -> int | None:
    return int(text.replace(",", "")) if text else None


class Records:
    """The run folders of a scenario, one on each host."""

    def __init__(self, scenario: Scenario, folders: list[Path]) -> None:
        self.scenario = scenario
        self.folders = [RunFolder(path) for path in folders]

    def parts(self, excused: Iterable[str] = ()) -> list[tuple[int, str, int]]:
        """Host, role and number of every worker and server that must have a file in a checkpoint."""
        run = self.scenario
        names = [f"rank-{rank}" for rank in range(run.hosts * run.workers)]
        names += [f"server-{number}" for number in range(run.servers)]
        kept = (name.partition("-") for name in names if name not in set(excused))
        return [(run.host_of(f"{role}-{number}"), role, int(number)) for role, _, number in kept]

    def whole(self, step: int, excused: Iterable[str] = (), host: int | None = None) -> bool:
        """Whether a checkpoint can be read, to the last byte, on all hosts or one."""
        parts = [part for part in self.parts(excused) if host is None or part[0] == host]
        return all(_readable(self.folders[at].checkpoint(step, number, role)) for at, role, number in parts)

    def newest_whole(self, excused: Iterable[str] = ()) -> int | None:
        """The last step of which every part can be read."""
        names = (path.name for folder in self.folders for path in folder.checkpoints.glob("step-*"))
        steps = sorted({int(name.removeprefix("step-")) for name in names}, reverse=True)
        return next((step for step in steps if self.whole(step, excused)), None)

    def incomplete(self) -> list[str]:
        """What a run that says it is complete still lacks; the worker that speaks last writes it on its own host."""
        missing = []
        speaker = next((one for one in self.folders if one.summary.exists()), self.folders[0])
        try:
            summary = json.loads(speaker.summary.read_text())
            if (summary["ending"], summary["steps"]) != ("budget", self.scenario.steps):
                missing.append(f"the summary says {summary['ending']} at step {summary['steps']}")
        except (OSError, ValueError):
            missing.append("no summary")
        if not self.folders[0].config.exists():
            missing.append("no config.json")
        if not _readable(speaker.model):
            missing.append("no whole model")
        return missing

    def doubled(self, damaged: Iterable[str] = ()) -> list[str]:
        """Steps that are recorded twice, out of order or, where that is known, not at all."""
        wrong = []
        if "metrics" not in damaged:
            rows = _lines(self.folders[0].metrics)
            wrong += _disorder("metrics", [row["step"] for row in rows], None)
        for folder in self.folders if "events" not in damaged else []:
            for rank, path in folder.event_files().items():
                steps = [line["step"] for line in _lines(path) if line.get("is_step", True)]
                expected = self.scenario.steps if self.scenario.deterministic else None
                wrong += _disorder(f"events of rank {rank}", steps, expected)
        return wrong

    def model_digest(self) -> str:
        """A hash of the names and the bits of the final model."""
        state: dict[str, Any] = read_tensors(self.folders[0].model)
        digest = hashlib.sha256()
        for name in sorted(state):
            digest.update(name.encode() + state[name].numpy().tobytes())
        return digest.hexdigest()

    def victim(self, kind: str, place: float) -> Path | None:
        """The file that a damage of this kind hits: of the newest checkpoint, of any part."""
        folder = self.folders[int(place * 997) % len(self.folders)]
        candidates = {
            "config": [folder.config],
            "metrics": [self.folders[0].metrics],
            "events": sorted(folder.path.glob("events/*.jsonl")),
            "checkpoint": sorted(
                max(folder.checkpoints.glob("step-*"), default=folder.path).glob("*.safetensors")
            ),
        }[kind]
        there = [path for path in candidates if path.exists() and path.stat().st_size]
        return there[int(place * 9973) % len(there)] if there else None


def damage(path: Path, kind: str, place: float) -> bytes:
    """Truncate a file, or flip one bit of it; what it held before."""
    before = path.read_bytes()
    at = int(place * len(before))
    after = before[:at] if kind == "truncate" else before[:at] + bytes([before[at] ^ 4]) + before[at + 1 :]
    path.write_bytes(after)
    return before


def _disorder(what: str, steps: list[int], expected: int | None) -> list[str]:
    if any(later <= earlier for earlier, later in pairwise(steps)):
        return [f"{what}: steps doubled or out of order"]
    if expected is not None and steps != list(range(1, expected + 1)):
        return [f"{what}: {len(steps)} steps of {expected}"]
    return []


def _lines(path: Path) -> list[dict[str, Any]]:
    found = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _readable(path: Path) -> bool:
    try:
        read_tensors(path)
    except (OSError, DamagedFile):
        return False
    return True
