"""Help must be quick, so it may not import torch; lists must name everything there is."""

import ast
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from paceline import cli, jobs
from paceline.cli.main import COMMANDS, main
from paceline.strategies import STRATEGIES


@pytest.mark.parametrize(
    "words",
    [
        *(
            "--help",
            "--version",
            "train --help",
            "simulate --help",
            "bench --help",
            "bench collectives --help",
            "bench convergence --help",
            "bench scaling --help",
        ),
        *("calibrate", "calibrate --help", "calibrate device --help", "calibrate links --help"),
        *("calibrate record --help", "calibrate table --help"),
    ],
)
def test_help_does_not_import_torch(words):
    script = f"import sys; from paceline.cli.main import main; main({words.split()!r}); print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "False"


LIGHT = [
    *(
        "strategies",
        "codecs",
        "models",
        "data",
        "optimizers",
        "schedules",
        "devices",
        "networks",
        "models --json",
    ),
    *(
        "explain ring",
        "train --strategy spp",
        "train --strategy ssp:stale=3",
        "train --model cn",
        "train --data digit",
    ),
    *("train --optimizer sdg", "train --schedule cosin", "train --collective rin", "simulate --strategy spp"),
    *("bench convergence --strategy spp", "bench convergence --codec in8"),
    *("bench scaling --strategy spp", "bench scaling --codec in8"),
]


def test_lists_and_refusals_of_names_do_not_import_torch():
    """If this failed, whoever looks a name up or misspells it would wait for torch, which is not needed for it."""
    script = f"""
import sys
from itertools import pairwise
from pathlib import Path
from paceline.cli.main import main
for words in {LIGHT!r}:
    main(words.split())
    if "torch" in sys.modules:
        sys.exit(words)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr.splitlines()[-1]
    refused = [line for line in done.stderr.splitlines() if line.startswith("paceline: unknown ")]
    assert len(refused) == sum(words.startswith(("train", "simulate", "bench")) for words in LIGHT)


@pytest.mark.parametrize("words", ["explain ring", "explain ring --json", "--help"])
def test_a_reader_who_has_seen_enough_is_no_failure(words):
    inward, outward = os.pipe()
    os.close(inward)
    command = [sys.executable, "-m", "paceline", *words.split()]
    ended = subprocess.run(command, stdout=outward, stderr=subprocess.PIPE, text=True)
    os.close(outward)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("path", sorted(Path(cli.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_the_help_of_an_option_is_one_line_of_source(path):
    """A second one would be shown with its indent, in mid-sentence."""
    kinds = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
    for kind in kinds:
        for field, said in pairwise(kind.body):
            if isinstance(field, ast.AnnAssign) and isinstance(said, ast.Expr):
                assert "\n" not in said.value.value, ast.unparse(field.target)


def test_help_names_every_command(capsys):
    main(["--help"])
    out = capsys.readouterr().out
    assert all(command in out for command in COMMANDS)
    assert "Start with 'paceline train'" in out
    for command in ("train", "bench collectives"):
        main([*command.split(), "--help"])
        assert "Start with 'paceline train'" not in capsys.readouterr().out


def test_ctrl_c_before_the_first_step_is_told(monkeypatch, capsys):
    """If this failed, a user who stops a start would not know whether anything was saved."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.cli.train._launch", interrupt)
    with pytest.raises(SystemExit, match="130"):
        main(["train"])
    assert capsys.readouterr().err == "paceline: interrupted before the first step; nothing was saved\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "-v",
            "unknown option '-v'; did you mean '--version'? "
            "(--help, --install-completion, --version, -h; see 'paceline --help')",
        ),
        (
            "--hepl",
            "unknown option '--hepl'; did you mean '--help'? "
            "(--help, --install-completion, --version, -h; see 'paceline --help')",
        ),
        ("train --hepl", "unknown option '--hepl'; did you mean '--help'? (see 'paceline train --help')"),
        (
            "train --epoch=3",
            "unknown option '--epoch'; did you mean '--epochs'? (see 'paceline train --help')",
        ),
        ("train --strategy ssp:", "'' in 'ssp:' is not a setting: write ssp:key=value,key=value"),
        (
            "train --strategy ssp:staleness=3,",
            "'' in 'ssp:staleness=3,' is not a setting: write ssp:key=value",
        ),
    ],
)
def test_a_slip_is_told_with_what_was_meant(words, told, capsys):
    assert main(words.split()) == 2
    assert told in capsys.readouterr().err


def test_only_commands_with_a_default_number_of_workers_say_so(capsys):
    for command, has_one in {"train": True, "bench collectives": True, "calibrate device": False}.items():
        main([*command.split(), "--help"])
        text = " ".join(capsys.readouterr().out.split())
        assert ("Worker processes on this host (default 2)" in text) == has_one, command


TABLES = {
    "strategies": STRATEGIES,
    "models": jobs.MODELS,
    "data": jobs.DATA,
    "optimizers": jobs.OPTIMIZERS,
    "schedules": jobs.SCHEDULES,
}


@pytest.mark.parametrize("kind", TABLES)
def test_a_list_names_everything_with_its_settings(kind, capsys):
    assert main([kind]) == 0
    text = capsys.readouterr().out
    assert main([kind, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert list(document["entries"]) == list(TABLES[kind])
    for name, entry in document["entries"].items():
        assert name in text
        assert entry["help"]
        for setting in entry["settings"]:
            assert f"{setting['name']}=" in text
            assert setting["help"], f"{name}: {setting['name']} does not say which way it turns"
