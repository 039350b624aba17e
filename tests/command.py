"""The command, as a user runs it."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

from paceline.cli.main import main


def run_paceline(*arguments: str, cwd: Path, check: int | None = 0) -> subprocess.CompletedProcess[str]:
    """Run the command; ``check`` is the exit code it must have."""
    done = subprocess.run(
        [sys.executable, "-m", "paceline", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert check is None or done.returncode == check, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def run_json(*arguments: str, cwd: Path) -> dict:
    """Run the command with --json and read its document; a simulation runs in this process, which is quicker."""
    if arguments[0] != "simulate":
        return json.loads(run_paceline(*arguments, "--json", cwd=cwd).stdout)
    out = io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out):
        assert main([*arguments, "--json"]) == 0
    return json.loads(out.getvalue())
