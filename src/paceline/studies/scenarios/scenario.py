"""A scenario file: what is given, and what is asked."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline import specs
from paceline.clusters.cluster import Cluster
from paceline.clusters.description import cluster_of, read_cluster
from paceline.clusters.toml_reader import Reader, read_toml
from paceline.errors import UsageError, unknown
from paceline.studies.scenarios import ASKS


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A file that was read as far as every scenario goes; the rest is up to what is asked."""

    path: Path
    about: str
    """A line of explanation, as the file has it."""
    ask: str
    reader: Reader
    """The whole file. Whoever answers reads all of it, and then calls ``finish`` or ``cluster``."""

    def cluster(self) -> Cluster:
        """The cluster that the file describes, or names: inline, or a file beside it. Unknown keys are refused."""
        if "cluster" not in self.reader.values:
            return cluster_of(self.reader, self.path.stem)
        text = self.reader.word("cluster", "")
        self.reader.finish()
        return read_cluster(str(self.path.parent / text) if text.endswith(".toml") else text)

    def answer(self) -> Any:
        return specs.find(ASKS[self.ask])(self)

    def placed(self, mistake: UsageError) -> UsageError:
        """The error with the name of the file in it."""
        said = str(mistake)
        return mistake if str(self.path) in said else UsageError(f"{self.path}: {said}")


def read_scenario(path: Path) -> Scenario:
    """Read a file; a UsageError says what is wrong with it, and where."""
    reader = read_toml(path, "scenario")
    if "ask" not in reader.values:
        raise UsageError(
            f"{path} does not say what is asked: add ask, one of {', '.join(ASKS)}; "
            "a file that describes a cluster alone is given to 'paceline simulate' as its cluster"
        )
    about, ask = reader.word("about", path.stem), reader.word("ask", "")
    if ask not in ASKS:
        raise UsageError(f"{reader.place('ask')}: {unknown('question', ask, ASKS)}")
    return Scenario(path=path, about=about, ask=ask, reader=reader)
