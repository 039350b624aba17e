"""The table of evaluations, a line at a time as they come."""

from paceline.records.metrics import MetricsRow
from paceline.reports.text import figure


class RowTable:
    """Lines that stand below each other; the columns are set by the first row."""

    def __init__(self, clock: str = "wall") -> None:
        self._clock = clock
        """Whose seconds they are: "wall" or "simulated"."""
        self._titles: list[str] = []

    def lines(self, row: MetricsRow) -> list[str]:
        """The row's line, below the header if it is the first."""
        scores = row.scores
        cells = {
            "epoch": f"{row.epoch:.6g}" if round(row.epoch, 2) == row.epoch else f"{row.epoch:.2f}",
            "train loss": figure(scores.train_loss),
            **({} if scores.test_loss is None else {"test loss": figure(scores.test_loss)}),
            **{name: figure(value) for name, value in scores.metrics.items()},
            "lr": figure(row.learning_rate),
            f"{self._clock} s": f"{row.seconds:.{1 if self._clock == 'wall' else 3}f}",
        }
        line = _line(list(cells.items()))
        if self._titles:
            return [line]
        self._titles = list(cells)
        return ["", _line([(title, title) for title in cells]), line]


def _line(cells: list[tuple[str, str]]) -> str:
    """Right-aligned cells, three spaces apart, each column at least as wide as its title and as a loss."""
    return " ".join(cell.rjust(max(len(title), 6) + 2) for title, cell in cells)
