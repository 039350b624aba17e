"""``paceline run``: a script is a worker, sees what plain Python would show it, and its end is told."""

import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import paceline.loop.script
from command import run_paceline, run_python, start_python
from paceline.cli.main import main

SHOWS = """
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
seen = [sys.argv, sys.path[0], __name__, __file__, [os.environ.get(name) for name in names]]
sys.stdout.write(json.dumps(seen) + "\\n")
"""
TRAINS = """
import multiprocessing, os, signal, sys, time, torch, paceline
os.chdir(os.sep if sys.argv[1] == "moves" else ".")
if sys.argv[1] == "never joins" and os.environ["RANK"] == "1":
    sys.exit()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
worker = paceline.distribute(model, optimizer)
HOW, rank = sys.argv[1], worker.rank
try:
    for step in range(1, 100_000 if HOW == "long" else 12):
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if HOW == "raises" and rank == 1 and step == 8:
            raise ValueError("no such luck")
        if HOW == "exits" and rank == 1 and step == 8:
            sys.exit(5)
        if HOW == "dies" and rank == 1 and step == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        if HOW == "leaves" and rank == 1 and step == 8:
            os._exit(0)
        if HOW == "interrupts" and rank == 1 and step == 8:
            raise KeyboardInterrupt
        if HOW == "hangs" and rank == 1 and step == 8:
            time.sleep(60)
        if HOW == "ends a child" and step == 8:
            child = multiprocessing.get_context("fork").Process(target=time.sleep, args=[60])
            child.start()
            child.terminate()
            child.join()
            assert child.exitcode == -signal.SIGTERM, child.exitcode
        if HOW == "long":
            time.sleep(0.01)
except KeyboardInterrupt:
    if HOW == "interrupts":
        raise
    with worker.central_model():  # to save it, as a script may
        pass
    sys.stdout.write(f"rank {rank} was interrupted after step {step}\\n")
    raise
if HOW == "mistake":
    optimizer.step()
if HOW == "evaluates" and rank == 0:
    with worker.central_model():
        pass
"""
OWN_GROUP = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(f"rank {dist.get_rank()} has {total.item():g}")
dist.destroy_process_group()
"""


def run_script(
    text: str, *words: str, cwd: Path, check: int | None = 0
) -> "subprocess.CompletedProcess[str]":
    (cwd / "script.py").write_text(text)
    return run_paceline("run", *words, cwd=cwd, check=check)


def test_an_option_of_paceline_after_the_script_is_explained(tmp_path: Path) -> None:
    refuses = "import argparse; argparse.ArgumentParser().parse_args()"
    done = run_script(refuses, "-np", "1", "script.py", "--strategy", "diloco", cwd=tmp_path, check=2)
    assert (
        "(exit code 2; --strategy after the script is the script's own, paceline's come before it)"
        in done.stderr
    )


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (
            ["script.py", "--strategy=local-sgd"],
            "--strategy=local-sgd after the script is the script's own, ",
        ),
        (["--workers", "2", "script.py", "--workers", "4"], ""),
        (["script.py", "--epochs", "4"], ""),
    ],
)
def test_an_option_after_a_script_that_ignores_it_is_explained(
    words: list[str],
    hint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """If this failed, a script that reads no arguments would train with another strategy, without a word."""
    (tmp_path / "script.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")  # which the command sets
    monkeypatch.setattr(paceline.loop.script, "launch_script", lambda *_: 0)
    assert main(["run", *words]) == 0
    assert capsys.readouterr().err == (f"paceline: {hint}paceline's come before it\n" if hint else "")


@pytest.mark.parametrize("module", [False, True])
def test_a_script_sees_what_plain_python_shows_it(module: bool, tmp_path: Path) -> None:
    """If this failed, a script could not read its own options, or import what lies beside it."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "shows.py").write_text(SHOWS)
    words = ["-m", "there.shows"] if module else ["there/shows.py"]
    own = ["--workers", "7", "-np", "--help", "--", "-x=1"]
    done = run_paceline("run", "--strategy", "none", "-np", "2", *words, *own, cwd=tmp_path)
    plain = json.loads(run_python(*words, *own, cwd=tmp_path).stdout)
    seen = sorted(map(json.loads, done.stdout.splitlines()), key=lambda one: one[-1])
    if not module:  # which the tests' stand-in for the interpreter does not make absolute
        plain[1], plain[3] = str(tmp_path / "there"), str(tmp_path / "there" / "shows.py")
    assert [one[:-1] for one in seen] == [plain[:-1]] * 2
    assert [one[-1] for one in seen] == [["0", "2", "0", "2"], ["1", "2", "1", "2"]]
    assert "without a call of paceline.watch(model, optimizer): nothing was recorded" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_script_without_a_strategy_has_a_port_for_its_own_group(tmp_path: Path) -> None:
    """If this failed, a plain DDP script could not be started."""
    done = run_script(OWN_GROUP, "--strategy", "none", "script.py", cwd=tmp_path)
    assert sorted(done.stdout.splitlines()) == ["rank 0 has 2", "rank 1 has 2"]


def test_what_a_script_raises_is_shown_with_its_rank(tmp_path: Path) -> None:
    """If this failed, a user would look for the error in a folder, or among the frames of this package."""
    done = run_script(TRAINS, "script.py", "raises", cwd=tmp_path, check=1)
    told = done.stderr.splitlines()
    begins = told.index("paceline: the traceback of rank 1 follows")
    assert told[begins + 1] == "Traceback (most recent call last):"
    assert told[begins + 2].endswith('script.py", line 16, in <module>')
    assert told[begins + 4] == "ValueError: no such luck"
    assert re.match(
        r"paceline: rank 1 on \S+ failed at step 8: ValueError: no such luck \(script.py:16 in <module>\)",
        told[-3],
    )
    assert told[-2].startswith("Records: runs/")
    assert told[-1].endswith("is safe; start again with the same command when the error is repaired.")


@pytest.mark.parametrize(
    ("how", "code", "says"),
    [
        (
            "async raises",
            1,
            "failed at step 8: ValueError: no such luck (script.py:16 in <module>); the others stopped",
        ),
        ("exits", 5, "exited at step 8 (exit code 5); the others stopped after"),
        ("dies", 1, "died at step 8 (killed by signal 9, SIGKILL); the others stopped after"),
        (
            "ssp:staleness=2 dies",
            0,
            "died at step 8 (killed by signal 9, SIGKILL); the run goes on with the others",
        ),
        (
            "mistake",
            2,
            "must be outside of worker.no_sync(), after a call of the model (script.py:43 in <module>)",
        ),
        (
            "never joins",
            1,
            "rank 1 on {host} exited (exit code 0, before the run was over); the others stopped",
        ),
        ("leaves", 1, "exited at step 8 (exit code 0, before the run was over); the others stopped"),
        ("async leaves", 1, "exited at step 8 (exit code 0, before the run was over); the others stopped"),
        (
            "interrupts",
            1,
            "failed at step 8: KeyboardInterrupt (script.py:24 in <module>); the others stopped",
        ),
        ("ends a child", 0, ""),
        ("ssp:staleness=2 evaluates", 2, "is at central_model() after step 11"),
        ("moves", 0, ""),
    ],
)
def test_how_a_script_ends_is_how_the_command_does(how: str, code: int, says: str, tmp_path: Path) -> None:
    begun = time.monotonic()
    strategy, how = how.split(" ", 1) if how.startswith(("async ", "ssp:")) else ("all-reduce", how)
    done = run_script(TRAINS, "--strategy", strategy, "script.py", how, cwd=tmp_path, check=code)
    assert time.monotonic() - begun < 30
    assert says.format(host=platform.node()) in done.stderr
    assert ("Traceback (" in done.stderr) == (how in ("raises", "interrupts"))
    assert "as asked" not in done.stderr
    assert len(list(tmp_path.glob("runs/*"))) == (how != "never joins")
    if how == "dies" and code == 0:
        assert "rank 1 died" in done.stdout
        assert " to 11 steps per worker" in done.stdout, "rank 0 has not taken all of its steps"


@pytest.mark.parametrize("strategy", ["all-reduce", "async"])
def test_a_rank_that_hangs_between_its_steps_is_the_cause(strategy: str, tmp_path: Path) -> None:
    """If this failed, the rank that waits for it would be blamed."""
    limits = ("--timeout", "6", "--hang-timeout", "2")
    done = run_script(TRAINS, "--strategy", strategy, *limits, "script.py", "hangs", cwd=tmp_path, check=1)
    assert "rank 1 on" in (told := done.stderr.partition("paceline: ")[2])
    assert "has made no progress since" in told
    assert re.search(
        r"rank 1 on \S+ had made no progress in script .* at step 8 \(script.py:26 in <module>\)", told
    )
    assert "Traceback (" not in told


def test_closed_streams_are_nobodys_mistake(tmp_path: Path) -> None:
    def close() -> None:
        sys.stdout = sys.__stdout__ = None

    (tmp_path / "script.py").write_text(TRAINS)
    words = ("-m", "paceline", "run", "script.py", "-")
    done = run_python(*words, cwd=tmp_path, first=close)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 1


def test_the_command_line_wins_and_says_so(tmp_path: Path) -> None:
    """And a script that never joins is told."""
    script = TRAINS.replace("optimizer)\nHOW", "optimizer, strategy='diloco', codec='int8')\nHOW")
    done = run_script(
        script, "--strategy", "local-sgd:period=4", "--codec", "int8", "script.py", "-", cwd=tmp_path
    )
    assert (
        "the strategy is local-sgd:period=4, as the command line says, and not diloco, as the script does"
        in done.stderr
    )
    assert "the codec is" not in done.stderr
    assert "2 workers x batch 2, local-sgd:period=4 over shared memory, codec int8" in done.stdout
    done = run_script(script, "--strategy", "none", "script.py", "-", cwd=tmp_path, check=2)
    assert "script.py calls distribute(), and the run was started with strategy none" in done.stderr
    done = run_script("", "--workers", "1", "script.py", cwd=tmp_path)
    assert (
        "script.py ended without a call of paceline.distribute(model, optimizer): nothing was recorded"
        in done.stderr
    )


@pytest.mark.parametrize("strategy", ["all-reduce", "local-sgd:period=8", "ssp:staleness=1"])
def test_ctrl_c_stops_all_workers_at_one_step(strategy: str, tmp_path: Path) -> None:
    """If this failed, a model that is saved on Ctrl-C would mix two steps, or the record would be lost."""
    (tmp_path / "script.py").write_text(TRAINS)
    words = ["-m", "paceline", "run", "--strategy", strategy, "script.py", "long"]
    with start_python(*words, cwd=tmp_path) as launcher:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("runs/*/events/rank-1.jsonl")):
            assert time.monotonic() < deadline
            assert launcher.poll() is None, launcher.communicate()
            time.sleep(0.05)
        time.sleep(0.5)
        workers = psutil.Process(launcher.pid).children()
        os.kill(launcher.pid, signal.SIGINT)
        out, err = launcher.communicate(timeout=20)
    assert launcher.returncode == 130, err
    steps = [int(step) for step in re.findall(r"was interrupted after step (\d+)", out)]
    assert max(steps) - min(steps) <= (2 if strategy.startswith("ssp") else 0), out
    assert out.count("was interrupted after step") == 2
    assert "interrupted; all workers have stopped in agreement.\nRecords: runs/" in err
    (folder,) = tmp_path.glob("runs/*")
    assert json.loads((folder / "summary.json").read_text())["ending"] == "interrupted"
    assert not any(worker.is_running() for worker in workers)


APART = """
import sys, time, torch, paceline, paceline.loop.barrier as barrier
compare = barrier.ServedPlaces.wait
def wait(*words):
    try:
        compare(*words)
    except paceline.UsageError as mistake:
        sys.stdout.write(f"compared: {mistake}\\n")
        raise
barrier.ServedPlaces.wait = wait
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
worker = paceline.distribute(model, optimizer)
for step in range(100_000 if worker.rank else 3):
    model(torch.ones(2, 4)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)
sys.stdout.write("waits\\n")
sys.stdout.flush()
with worker.central_model():
    pass
"""


def test_ctrl_c_stops_a_worker_that_waits_for_one_that_trains(tmp_path: Path) -> None:
    """If this failed, workers of servers that stop at different places would be told that their script is wrong."""
    (tmp_path / "script.py").write_text(APART)
    words = ["-m", "paceline", "run", "--strategy", "async", "script.py"]
    with start_python(*words, cwd=tmp_path) as launcher:
        assert launcher.stdout is not None
        said = next(line for line in launcher.stdout if line == "waits\n")
        time.sleep(0.5)
        os.kill(launcher.pid, signal.SIGINT)
        out, err = launcher.communicate(timeout=20)
    assert said
    assert launcher.returncode == 130, err
    assert "compared" not in out
