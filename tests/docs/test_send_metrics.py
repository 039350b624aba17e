"""The example that sends metrics to a tracking server, against clients that take what MLflow's and wandb's take."""

import runpy
from pathlib import Path

import pytest

from paceline import RunFolder, read_metrics

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "served"


class FakeMlflow:
    def __init__(self) -> None:
        self.sent: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.sent.append((step, metrics))


class FakeWandb:
    def __init__(self) -> None:
        self.sent: list[tuple[int, dict[str, float]]] = []

    def log(self, data: dict[str, float], step: int | None = None, commit: bool | None = None) -> None:
        self.sent.append((step, data))


@pytest.mark.parametrize("client", [FakeMlflow(), FakeWandb()])
def test_every_row_of_metrics_is_sent_with_its_step(client):
    send = runpy.run_path(str(ROOT / "examples" / "send_metrics.py"))["send_metrics"]
    send(str(GOLDEN), client)
    rows = list(read_metrics(RunFolder(GOLDEN).metrics))
    assert [step for step, _ in client.sent] == [row.step for row in rows] == [20, 40, 60]
    for (_, values), row in zip(client.sent, rows, strict=True):
        assert values["accuracy"] == row.metrics["accuracy"]
        assert "step" not in values
        assert all(isinstance(value, float) for value in values.values())


def test_the_page_shows_the_example_as_it_is():
    page = (ROOT / "docs" / "export.md").read_text()
    source = (ROOT / "examples" / "send_metrics.py").read_text()
    function = source[source.index("def send_metrics") : source.index("\n\nif __name__")]
    assert function.rstrip() in page
