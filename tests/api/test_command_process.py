"""A command in a process of its own: how it ends is what its caller in Python is told."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from paceline.commands import process
from paceline.errors import RunFailed, UsageError

KILLED = "import os; os.kill(os.getpid(), {signum})"
SAVES_LONG = """
import os, signal
from pathlib import Path

def ask(*_):
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    print("-" * 1_000_000)
    Path("asked").touch()

signal.signal(signal.SIGINT, ask)
print("ready", flush=True)
while True:
    signal.pause()
"""


def run(text: str, monkeypatch: pytest.MonkeyPatch, **more: object) -> int:
    monkeypatch.setattr(process, "paceline_command", lambda _: [sys.executable, "-S", "-c", text])
    return process.run_command(["train"], show=False, **more)  # type: ignore[arg-type]


def test_a_command_that_is_killed_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this failed, a launcher that runs out of memory would end a sweep as Ctrl-C does."""
    with pytest.raises(
        RunFailed, match=r"'paceline train' was killed by signal 9, SIGKILL; .* out of memory"
    ):
        run(KILLED.format(signum=9), monkeypatch)


@pytest.mark.timeout(30)
def test_output_that_is_no_text_is_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this failed, the command would wait for ever for somebody to read the rest."""
    says = "sys.stderr.buffer.write(b'\\xe9' * 300_000); sys.stdout.buffer.write(b'\\xe9\\n')"
    assert run(f"import sys; {says}", monkeypatch) == 0


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_interrupted_interrupts(signum: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"import signal; signal.signal(2, signal.SIG_DFL); {KILLED.format(signum=int(signum))}"
    with pytest.raises(KeyboardInterrupt):
        run(text, monkeypatch)


@pytest.mark.timeout(30)
def test_every_ctrl_c_is_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If this failed, a second Ctrl-C would leave the launcher alone, or a launcher that says much would never end."""

    def ask_again() -> None:
        while not (tmp_path / "asked").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    def ask(_: str) -> None:
        threading.Thread(target=ask_again, daemon=True).start()
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(SAVES_LONG, monkeypatch, read=ask)


@pytest.mark.parametrize(
    ("command", "function"),
    [("train", "train"), ("bench scaling", "bench_scaling"), ("calibrate device", "calibrate")],
)
def test_the_help_of_a_command_is_that_of_its_function(
    command: str, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = f"paceline: no --epoch (see 'paceline {command} --help')"
    text = f"import sys; print({said!r}, file=sys.stderr); sys.exit(2)"
    with pytest.raises(UsageError, match=rf"^no epoch \(see help\(paceline\.{function}\)\)$"):
        run(text, monkeypatch)
