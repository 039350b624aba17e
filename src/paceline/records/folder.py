"""The run folder: the one class that knows the names of its files."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunFolder:
    """``runs/<utc>-<name>-<four random characters>/``, as both runtimes write it and every report reads it."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved settings."""
        return self.path / "config.json"

    @property
    def env(self) -> Path:
        """Versions and the machine."""
        return self.path / "env.json"

    @property
    def metrics(self) -> Path:
        """One line an evaluation."""
        return self.path / "metrics.jsonl"

    @property
    def system(self) -> Path:
        """CPU, memory and network, about once a second."""
        return self.path / "system.jsonl"

    @property
    def summary(self) -> Path:
        """How the run ended."""
        return self.path / "summary.json"

    @property
    def model(self) -> Path:
        """The model that counts, exported at the end."""
        return self.path / "model.safetensors"

    @property
    def checkpoints(self) -> Path:
        """One folder a saved step."""
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def join(self) -> Path:
        """Where a served run that goes on can be joined."""
        return self.path / "join.json"

    @property
    def trace(self) -> Path:
        """Every worker's spans for Perfetto and Chrome."""
        return self.path / "trace.json.gz"

    @property
    def join_secret(self) -> Path:
        """What a worker must have that joins a run under way; for its user only."""
        return self.path / "join.secret"

    def event_files(self) -> dict[int, Path]:
        """The files of spans that there are, by rank."""
        return _numbered(self.path / "events", "rank-")

    def events(self, rank: int) -> Path:
        """One worker's spans."""
        return self.path / "events" / f"rank-{rank}.jsonl"

    def server_event_files(self) -> dict[int, Path]:
        """The logs of servers that there are, by rank."""
        return _numbered(self.path / "events", "server-")

    def server_events(self, rank: int) -> Path:
        """What one server received and did."""
        return self.path / "events" / f"server-{rank}.jsonl"

    def failure(self, who: str) -> Path:
        """The traceback of a worker or server that failed: of "rank-1", or "server-0"."""
        return self.path / f"failure-{who}.txt"

    def lock(self, node: int) -> Path:
        """What the processes of one node hold while they use the folder."""
        return self.path / f"lock-{node}"

    def lock_nodes(self) -> list[int]:
        """The nodes whose processes have used this very folder, on this host or over a shared file system."""
        names = (path.name.removeprefix("lock-") for path in self.path.glob("lock-*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def commits(self, node: int) -> Path:
        """The steps that every worker and server has saved, as one node knows it."""
        return self.checkpoints / f"complete-{node}.json"

    def checkpoint(self, step: int, rank: int, role: str = "rank") -> Path:
        """One worker's part of the checkpoint of a step; with role "server", one server's."""
        return self.checkpoints / f"step-{step:08d}" / f"{role}-{rank}.safetensors"


def _numbered(folder: Path, prefix: str) -> dict[int, Path]:
    """The files ``<prefix>N.jsonl`` of a folder by N, in order."""
    names = {path.stem.removeprefix(prefix): path for path in folder.glob(f"{prefix}*.jsonl")}
    return {rank: names[str(rank)] for rank in sorted(int(name) for name in names if name.isdecimal())}
