"""A scenario file: what is given, and what is asked."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline import specs
from paceline.clusters.cluster import Cluster
from paceline.clusters.description import cluster_of, read_cluster
from paceline.clusters.toml_reader import Name, Reader, read_toml
from paceline.errors import UsageError, unknown

ASKS: Mapping[str, str] = {
    "crossover": "paceline.studies.scenarios.run:find_crossover",
    "explain": "paceline.studies.scenarios.questions:read_request",
    "lower-bound": "paceline.studies.scenarios.questions:least_traffic",
    "peak": "paceline.studies.scenarios.questions:peak",
    "predict": "paceline.studies.scenarios.questions:prediction",
    "run": "paceline.studies.scenarios.run:run",
    "scaling": "paceline.studies.scenarios.questions:scaling",
}
"""What may be asked, and the function that answers it: it reads its tables of the ``Scenario``.

``reports.scenarios`` renders the answer under the same name.
"""
Answer = dict[str, Any]
"""The figures as a JSON document; seconds, bytes and bytes a second."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """The keys that every scenario has; the question reads the rest."""

    path: Path
    about: str
    ask: str
    reader: Reader
    """The whole file. An answer reads all of it, and then calls ``finish`` or ``cluster``."""

    def cluster(self) -> Cluster:
        """The cluster that the file describes, or names: inline, or a file beside it. Unknown keys are refused."""
        if "cluster" not in self.reader.values:
            return cluster_of(self.reader, self.path.stem)
        text = self.reader.get("cluster", Name, "")
        self.reader.finish()
        return read_cluster(str(self.path.parent / text) if text.endswith(".toml") else text)

    def finish(self, *tables: Reader) -> None:
        for reader in (*tables, self.reader):
            reader.finish()

    def answer(self) -> Any:
        return specs.find(ASKS[self.ask])(self)


def read_scenario(path: Path) -> Scenario:
    reader = read_toml(path, "scenario")
    if "ask" not in reader.values:
        raise UsageError(
            f"{path} does not say what is asked: add ask, one of {', '.join(ASKS)}; "
            "a file that describes a cluster alone is given to 'paceline simulate' as its cluster"
        )
    about, ask = reader.get("about", Name, path.stem), reader.get("ask", Name, "")
    if ask not in ASKS:
        raise UsageError(f"{reader.place('ask')}: {unknown('question', ask, ASKS)}")
    return Scenario(path=path, about=about, ask=ask, reader=reader)
