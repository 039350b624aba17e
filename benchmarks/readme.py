"""Run every command of the README as it is written there, and say how long each took; exits 1 where one fails.

The run folders, the job and the model that the commands name are made first, the commands for three hosts run in three
network namespaces (which needs root), and `make train` runs in a clean clone. `make test` is what CI runs.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from collectives_predicted import hosts

ROOT = Path(__file__).parents[1]
LONGEST = 900
"""Seconds that a command may take."""
STARTS = ("make ", "paceline ", "torchrun ", "openssl ")
IN_CI = "make test"

JOB = """
from paceline.jobs.build import build_job
from paceline.jobs.spec import JobSpec

def build():
    return build_job(JobSpec())
"""
MODEL = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(3, 64, 7, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
"""


def commands(text: str) -> list[str]:
    """The commands in the blocks of a page that are in no language, without their comments."""
    found = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.S | re.M):
        for line in [] if language else block.replace("\\\n", " ").splitlines():
            command = re.split(r"\s{2,}#", line)[0].strip()
            if command.startswith(STARTS):
                found.append(command)
    return found


def train(home: Path, *words: str) -> Path:
    """The folder of a run that has ended."""
    before = set(home.glob("runs/*"))
    run("paceline train " + " ".join(words), home)
    (made,) = set(home.glob("runs/*")) - before
    return made


def interrupted(home: Path) -> Path:
    """The folder of a run that was stopped by Ctrl-C after its first checkpoint."""
    before = set(home.glob("runs/*"))
    command = ["paceline", "train", "--epochs", "200"]
    process = subprocess.Popen(
        command, cwd=home, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not (made := [*(set(home.glob("runs/*")) - before)]) or not [*made[0].glob("checkpoints/step-*")]:
        if time.monotonic() > deadline:
            process.kill()
            raise SystemExit("a training did not reach its first checkpoint in a minute")
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    return made[0]


RUNS: Mapping[str, Callable[[Path], Path]] = {
    "--resume": interrupted,
    "report": lambda home: train(home, "--epochs", "2"),
    "predict --times": lambda home: train(home, "--workers", "1", "--epochs", "2"),
    "simulate --times": lambda home: train(home, "--epochs", "2"),
    "--replay": lambda home: train(home, "--strategy", "async", "--epochs", "1"),
}
"""What makes the run folder that a command names, by the words before it."""


def environment() -> dict[str, str]:
    """This Python's scripts come first, as in an activated environment."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path}


def run(command: str, home: Path, before: str = "") -> None:
    """Run one command in a folder, after these words; or fail with what it said."""
    done = subprocess.run(
        ["bash", "-c", f"{before}{command}"],
        cwd=home,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST,
    )
    if done.returncode:
        raise AssertionError(f"exit code {done.returncode}\n{done.stdout[-2000:]}")


def prepare(home: Path) -> None:
    """What the commands expect to find."""
    (home / "my_module.py").write_text(JOB)
    (home / "my_model.py").write_text(MODEL)
    (home / "examples").symlink_to(ROOT / "examples")


def make_run(command: str, home: Path) -> None:
    """Make the run folder that a command names, in place of one that another command has used."""
    named = re.search(r"(\S+) (\S+) (runs/\S+|latest)", command)
    if named is None:
        return
    verb, option, folder = named.groups()
    key = option if option in RUNS else f"{verb} {option}"
    made = RUNS[key](home)
    if folder != "latest":
        shutil.rmtree(home / folder, ignore_errors=True)
        made.rename(home / folder)


def on_three_hosts(command: str, home: Path) -> None:
    """The command with -nr 0, 1 and 2, each in a network namespace of its own."""
    with hosts(3, network="10.0.0") as names:
        inside = [
            f"ip netns exec {name} unshare --uts sh -c 'hostname host-{number}; exec \"$@\"' sh "
            for number, name in enumerate(names)
        ]
        started = [
            subprocess.Popen(
                ["bash", "-c", f"{words}{command.replace('-nr 0', f'-nr {number}')} --runs runs-{number}"],
                cwd=home,
                env=environment(),
                stdout=subprocess.DEVNULL,
            )
            for number, words in enumerate(inside)
        ]
        codes = [process.wait(LONGEST) for process in started]
    assert not any(codes), f"exit codes {codes}"


def in_a_clone(command: str, home: Path) -> None:
    """A command of make, in a clean clone."""
    clone = home / "clone"
    if not clone.exists():
        run(f"git clone -q {ROOT} {clone}", home)
    run(command, clone)


def play(command: str, home: Path) -> None:
    """Run one command as the README has it."""
    if command.startswith("make "):
        in_a_clone(command, home)
    elif " -n 3 " in command:
        on_three_hosts(command, home)
    else:
        make_run(command, home)
        run(command, home)


def timed(wanted: str) -> Iterator[tuple[str, float, str]]:
    """Every command that has the wanted words in it: how long it took, and why it failed if it did."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        prepare(home)
        for command in commands((ROOT / "README.md").read_text()):
            if command == IN_CI or wanted not in command:
                continue
            begun, why = time.perf_counter(), ""
            try:
                play(command, home)
            except (AssertionError, subprocess.TimeoutExpired) as error:
                why = str(error)
            yield command, time.perf_counter() - begun, why


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="commands that have these words in them")
    options = parser.parse_args()
    failed = 0
    for command, seconds, why in timed(options.only):
        print(f"{seconds:8.1f} s  {'FAILED' if why else 'ok':6}  {command}", flush=True)
        if why:
            failed += 1
            print(why, file=sys.stderr)
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
