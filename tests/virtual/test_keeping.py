"""What a simulated run keeps in its folder."""

from contextlib import closing

import pytest

from paceline.records.folder import RunFolder
from paceline.runtimes.virtual.recording import MOST_STEPS, MOST_WORKERS, FolderRecorder


@pytest.mark.parametrize(
    ("workers", "steps", "detailed"),
    [(2, 10, True), (MOST_WORKERS + 1, 1, False), (2, MOST_STEPS, False)],
)
def test_steps_are_kept_only_where_they_fit(tmp_path, workers: int, steps: int, detailed: bool) -> None:
    """If this failed, thousands of workers would run out of open files, or a long run fill the disk."""
    with closing(FolderRecorder(RunFolder(tmp_path), workers, steps)) as recorder:
        assert recorder.detailed is detailed
    assert len(RunFolder(tmp_path).event_files()) == (workers if detailed else 0)
