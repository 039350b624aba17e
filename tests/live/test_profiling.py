import gzip
import json
import subprocess
import sys

import pytest
import torch

from paceline.cli.main import main
from paceline.errors import UsageError
from paceline.records.events import read_events
from paceline.records.folder import RunFolder
from paceline.runtimes.live.worker.profiling import ProfiledSteps, StepProfiler


def test_ranges_are_read():
    assert ProfiledSteps.parse("20-24", "steps") == ProfiledSteps(20, 24)
    assert ProfiledSteps.parse("7", "steps") == ProfiledSteps(7, 7)
    assert (str(ProfiledSteps(20, 24)), str(ProfiledSteps(7, 7))) == ("20-24", "7")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0-3", "begins before the first step"),
        ("5-2", "runs backwards; write 2-5"),
        ("-4", "write a range of steps such as 20-24"),
        ("some", "write a range of steps"),
        ("1-1001", "at most 1,000"),
    ],
)
def test_a_bad_range_is_refused_before_anything_starts(text, why, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", f"--profile-steps={text}"]) == 2
    assert why in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_steps_that_the_run_does_not_take_are_refused():
    ProfiledSteps(41, 60).check(done=40, last=60)
    with pytest.raises(UsageError, match="the run ends at step 60"):
        ProfiledSteps(55, 61).check(done=0, last=60)
    with pytest.raises(UsageError, match="the run goes on after step 40"):
        ProfiledSteps(40, 44).check(done=40, last=60)


def test_it_is_on_from_the_first_step_to_the_last_and_not_in_an_evaluation(tmp_path):
    profiler = StepProfiler(ProfiledSteps(2, 3), tmp_path / "rank-0.json.gz", torch.device("cpu"))
    assert not profiler.wants_to_switch(0, training=True)
    assert not profiler.wants_to_switch(1, training=False), "an evaluation comes first"
    assert profiler.wants_to_switch(1, training=True)
    profiler._profile = object()
    assert not profiler.wants_to_switch(2, training=True)
    assert profiler.wants_to_switch(3, training=False), "before the evaluation that follows"
    profiler._profile, profiler.written = None, True
    assert not profiler.wants_to_switch(3, training=True)


def test_every_rank_leaves_a_trace_of_these_steps_only(tmp_path):
    words = ("train", "-i", "12", "--evaluate-every", "8 steps", "--checkpoint-every", "never")
    command = [sys.executable, "-m", "paceline", *words, "--profile-steps", "6-8"]
    # A new interpreter: the profiler decides what it logs when torch is imported.
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    (path,) = (tmp_path / "runs").iterdir()
    assert f"torch profiler traces of steps 6-8: runs/{path.name}/profile/rank-*.json.gz" in done.stdout
    assert "USDT" not in done.stderr
    for rank in (0, 1):
        events = json.loads(gzip.decompress(RunFolder(path).profile(rank).read_bytes()))["traceEvents"]
        names = [event.get("name") for event in events if event.get("cat") == "user_annotation"]
        assert [names.count(phase) for phase in ("data", "forward", "backward")] == [3, 3, 3]
        records = list(read_events(RunFolder(path).events(rank)))
        assert [record.step for record in records if record.is_step] == list(range(1, 13))
        switched = [record.step for record in records if not record.is_step and 0 < record.step < 12]
        assert {5, 8} <= set(switched), "what it took to turn it on and off is in no step"
    assert {file.name for file in (path / "profile").iterdir()} == {"rank-0.json.gz", "rank-1.json.gz"}
