import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.loop.process import ScriptProcess


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A process that is a script's only worker, and whose run is dropped afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ScriptProcess, "current", None)
    for hook in ("excepthook", "exit"):
        monkeypatch.setattr(sys, hook, getattr(sys, hook))
    yield
    process = ScriptProcess.current
    if process is not None and process.joined is not None:
        process.joined.abandon()
        process.joined = None
