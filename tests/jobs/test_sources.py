"""Code that a run folder or a server names is looked at before it is run."""

import json
import os
import sys
from pathlib import Path

import pytest

from paceline.cli.main import main
from paceline.errors import UsageError
from paceline.jobs.spec import JobSpec
from paceline.records.files import to_document
from paceline.records.folder import RunFolder
from paceline.runtimes.config import read_config, write_config
from paceline.runtimes.live.request import LiveOptions
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.wire.messages import Welcome
from paceline.runtimes.live.worker import start
from paceline.runtimes.settings import Settings
from paceline.specs.source import fingerprints, source_files

CODE = """
from pathlib import Path
Path({marker!r}).write_text("ran")

def build():
    raise RuntimeError("built")
"""


@pytest.fixture
def marker(tmp_path) -> Path:
    return tmp_path / "marker"


def write_code(path: Path, marker: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(CODE.format(marker=str(marker)))


def make_run(path: Path, job: str) -> RunFolder:
    path.mkdir(exist_ok=True)
    write_config(RunFolder(path), Settings(job=JobSpec(path=job), epochs=1), "live", {})
    return RunFolder(path)


@pytest.mark.parametrize("job", ["run_1/evil.py:build", "run_2.evil:build", "run_3.pack.evil:build"])
def test_code_in_a_run_folder_is_not_run(job, tmp_path, marker, monkeypatch, capsys):
    """If this failed, whoever hands over a run folder could run anything here."""
    monkeypatch.chdir(tmp_path)
    run = job[:5]
    for name in ("evil.py", "pack/__init__.py", "pack/evil.py", "__init__.py"):
        write_code(tmp_path / run / name, marker)
    make_run(tmp_path / run, job)
    assert main(["train", "--resume", run]) == 2
    told = capsys.readouterr().err
    assert not marker.exists(), "it was run"
    assert f"resuming {run} would run " in told
    assert "call build()" in told
    assert "lies in the run folder itself; read it, then trust the run to execute it anyway" in told
    for other in (["simulate", "--replay", run], ["predict", "--times", run, "--network", "1gbit"]):
        assert main(other) == 2
        assert "lies in the run folder itself; read it, then record a run" in capsys.readouterr().err
    assert not marker.exists(), "it was run"
    monkeypatch.setattr(sys, "argv", ["paceline", "train", "--resume", run, "--trust"])
    assert main() == 2
    assert marker.exists()
    assert "build() raised RuntimeError: built" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_code_of_another_user_is_not_run(tmp_path, marker, monkeypatch, capsys):
    """If this failed, whoever hands over a run folder could have it name a file of theirs, digest included."""
    monkeypatch.chdir(tmp_path)
    write_code(tmp_path / "theirs.py", marker)
    make_run(tmp_path / "run", "theirs.py:build")
    os.chown(tmp_path / "theirs.py", 65534, 65534)
    assert main(["train", "--resume", "run"]) == 2
    assert not marker.exists()
    assert "theirs.py and call build(), and that file belongs to another user" in capsys.readouterr().err


def test_code_that_has_changed_since_is_not_run(tmp_path, marker, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_code(tmp_path / "mine.py", marker)
    folder = make_run(tmp_path / "run", "mine.py:build")
    assert read_config(folder).code == fingerprints("mine.py:build")
    (tmp_path / "mine.py").write_text((tmp_path / "mine.py").read_text() + "# changed\n")
    assert main(["train", "--resume", "run"]) == 2
    assert not marker.exists()
    assert (
        f"would run {tmp_path}/mine.py and call build(), and that file is not what the run last ran with"
        in (capsys.readouterr().err)
    )
    write_code(tmp_path / "mine.py", marker)
    monkeypatch.setattr(sys, "argv", ["paceline", "train", "--resume", "run"])
    assert main() == 2
    assert marker.exists()
    assert "build() raised RuntimeError: built" in capsys.readouterr().err


def test_a_module_is_found_without_running_its_package(tmp_path, marker, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_code(tmp_path / "some_pack" / "__init__.py", marker)
    write_code(tmp_path / "some_pack" / "part.py", marker)
    assert source_files("some_pack.part:build") == [
        tmp_path / "some_pack" / "__init__.py",
        tmp_path / "some_pack" / "part.py",
    ]
    assert source_files("some_pack.other:build") == source_files("no_such_thing:build") == []
    assert not marker.exists()


def test_a_module_that_is_not_found_is_not_imported_from_elsewhere(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "run", "no_such_thing:build")
    assert main(["train", "--resume", "run"]) == 2
    assert "would call build() of 'no_such_thing', which is not found" in capsys.readouterr().err


def test_joining_runs_no_code_that_the_user_did_not_name(tmp_path, marker, monkeypatch):
    """If this failed, whoever knows the secret of a run could run anything on the hosts that join."""
    monkeypatch.chdir(tmp_path)
    write_code(tmp_path / "mine.py", marker)
    settings = Settings(job=JobSpec(path="mine.py:build"), epochs=1, strategy="async")
    document = json.dumps({"settings": to_document(settings), "name": "x", "run": "0" * 16, "endpoints": []})
    monkeypatch.setattr(start, "_request_rank", lambda *_: Welcome(2, False, document))

    def join(**more):
        start.join_run("tcp://x:1", Secret.new(), LiveOptions(), tmp_path, None, lambda: False, **more)

    with pytest.raises(UsageError, match=r"this host would import and call mine.py:build, from .*/mine.py"):
        join()
    with pytest.raises(UsageError, match=r"name the same job mine.py:build, or trust the run"):
        join(job="other.py:build")
    assert not marker.exists()
    for more in ({"job": "mine.py:build"}, {"trust": True}):
        with pytest.raises(UsageError, match="built"):
            join(**more)
        assert marker.exists()


def test_trust_has_no_place_in_a_new_run(capsys):
    assert main(["train", "--trust"]) == 2
    assert "--trust has no place without --resume or --join" in capsys.readouterr().err
